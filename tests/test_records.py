"""Records: two nodes to a byte and back, stored and found again as they were, damage and mistakes told in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.store.artefacts import BACKBONE, RESULT
from loopscope.store.store import Store
from loopscope.store.zoo import open_zoo
from loopscope.studies.records import ABOUT, RECORD, ModelFacts, Record, config_of, load, pack, records, save, unpack
from loopscope.studies.trained import load_trained

FACTS = ModelFacts("toy-3", "ab" * 32, loops=2, depth=2, nodes=16, heads=2, fits={"one": 2, "stay": 1})
INPUTS = {BACKBONE: "ab" * 32, "one-1": "cd" * 32, "one-2": "ef" * 32}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def record_of(experiment: str = "targets", name: str = "toy-3", **settings: Any) -> Record:
    """One with a plain tensor and one with leading axes, on two populations."""
    facts = ModelFacts(name, FACTS.key, FACTS.loops, FACTS.depth, FACTS.nodes, FACTS.heads, FACTS.fits)
    predictions = {
        "tiny-test": {"one-1/pattern, layer 2": torch.arange(12, dtype=torch.uint8), "raw": torch.zeros(12).byte()},
        "rings": {"native": torch.arange(120, dtype=torch.uint8).remainder(16).view(3, 4, 10)},
    }
    cost = {"seconds": 1.5, "device": "CPU, 1 threads", "forwards": 12.25, "plain": 20.0}
    return Record(experiment, facts, predictions, settings, cost)


# ---- two nodes to a byte ---------------------------------------------------------------------------------------------


@st.composite
def nodes(draw: st.DrawFn) -> Tensor:
    """Nodes below 16 with any leading axes, an even number of them in the last."""
    lead = draw(st.lists(st.integers(0, 3), max_size=2))
    n = 2 * draw(st.integers(0, 6))
    size = n
    for axis in lead:
        size *= axis
    values = draw(st.lists(st.integers(0, 15), min_size=size, max_size=size))
    return torch.tensor(values, dtype=torch.uint8).view(*lead, n)


@given(nodes())
def test_what_is_packed_comes_back(whole: Tensor) -> None:
    packed = pack(whole)
    assert packed.dtype == torch.uint8
    assert packed.shape == (*whole.shape[:-1], whole.shape[-1] // 2)
    back = unpack(packed)
    assert back.dtype == torch.uint8
    assert back.shape == whole.shape
    assert torch.equal(back, whole)


def test_the_first_of_two_nodes_is_the_high_half() -> None:
    assert pack(torch.tensor([1, 2, 15, 0], dtype=torch.uint8)).tolist() == [0x12, 0xF0]


@pytest.mark.parametrize("wrong", [[1, 2, 3], [16, 0]], ids=["odd", "no node"])
def test_what_cannot_be_packed(wrong: list[int], refused: Callable[..., str]) -> None:
    told = refused(InputError, pack, torch.tensor(wrong, dtype=torch.uint8))
    assert told == "only an even number of nodes below 16, as uint8, can be packed"


# ---- in a store ------------------------------------------------------------------------------------------------------


def test_a_stored_record_comes_back_as_it_was(store: Store) -> None:
    record = record_of(where="tiny-test", graphs=2, more=None, list=[1, "x"])
    made = save(store, record, INPUTS)
    assert (made.manifest.kind, made.manifest.inputs) == (RECORD, INPUTS)
    assert set(made.manifest.files) == {ABOUT, "tiny-test.safetensors.xz", "rings.safetensors.xz"}
    back = load(store.open(RECORD, made.key))
    assert (back.experiment, back.facts, back.settings, back.cost) == (
        record.experiment, record.facts, record.settings, record.cost
    )  # fmt: skip
    assert {where: set(found) for where, found in back.predictions.items()} == {
        where: set(found) for where, found in record.predictions.items()
    }
    for where, found in record.predictions.items():
        for name, answers in found.items():
            assert torch.equal(back.predictions[where][name], answers)
            assert back.predictions[where][name].dtype == torch.uint8


def test_a_raw_record_keeps_its_tensors_as_they_are(store: Store) -> None:
    counts = {"near": {"lengths": torch.arange(3, dtype=torch.int32), "right": torch.tensor([[-1, 700]])}}
    made = replace(record_of(), predictions=counts, raw=True, notes={"curves": [1]})
    back = load(save(store, made, INPUTS))
    assert (back.raw, back.notes) == (True, {"curves": [1]})
    for name, tensor in counts["near"].items():
        assert back.predictions["near"][name].dtype == tensor.dtype
        assert torch.equal(back.predictions["near"][name], tensor)


def test_a_byte_holds_two_answers(store: Store) -> None:
    stored = save(store, record_of(), INPUTS).tensors("rings.safetensors.xz")["native"]
    assert (stored.shape, stored.dtype) == ((3, 4, 5), torch.uint8)


def test_a_record_is_found_by_what_it_was_made_from(store: Store) -> None:
    made = save(store, record_of(graphs=2), INPUTS)

    def found(experiment: str, name: str, settings: dict[str, Any], inputs: dict[str, str]) -> bool:
        known = store.find(RECORD, config_of(experiment, name, settings), inputs)
        assert known is None or known.key == made.key
        return known is not None

    assert found("targets", "toy-3", {"graphs": 2}, INPUTS)
    assert not found("crossing", "toy-3", {"graphs": 2}, INPUTS)
    assert not found("targets", "toy-4", {"graphs": 2}, INPUTS)
    assert not found("targets", "toy-3", {"graphs": 3}, INPUTS)
    assert not found("targets", "toy-3", {}, INPUTS)
    assert not found("targets", "toy-3", {"graphs": 2}, INPUTS | {"one-1": "0" * 64})


def test_what_cannot_be_packed_leaves_nothing_in_the_store(store: Store) -> None:
    odd = Record("targets", FACTS, {"tiny-test": {"raw": torch.zeros(7).byte()}})
    with pytest.raises(InputError):
        save(store, odd, INPUTS)
    assert store.list() == ()
    assert store.gc().removed == ()


def test_records_come_by_experiment_and_backbone(store: Store) -> None:
    asked = [("targets", "toy-2"), ("crossing", "toy-3"), ("targets", "toy-0"), ("crossing", "toy-1")]
    for experiment, name in asked:
        save(store, record_of(experiment, name), INPUTS)
    with store.write(BACKBONE, {"recipe": {"name": "toy"}, "seed": 0}) as draft:
        draft.json(RESULT, {})
    assert [(each.experiment, each.facts.name) for each in records(store)] == sorted(asked)
    assert [each.facts.name for each in records(store, "targets")] == ["toy-0", "toy-2"]
    assert records(store, "matched") == []
    assert records(Store(store.root / "nowhere")) == []


# ---- what is not a record --------------------------------------------------------------------------------------------


def test_an_artefact_of_another_kind(store: Store, refused: Callable[..., str]) -> None:
    with store.write(BACKBONE, {"seed": 0}) as draft:
        draft.json(ABOUT, {"facts": {}, "cost": {}})
    assert refused(InputError, load, draft.artefact) == f"{draft.artefact.folder} is a backbone, not a record"


@pytest.mark.parametrize("name", [ABOUT, "rings.safetensors.xz"])
def test_a_changed_byte_is_damage(store: Store, name: str, refused: Callable[..., str]) -> None:
    made = save(store, record_of(), INPUTS)
    path = made.folder / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    told = refused(DamagedError, load, store.open(RECORD, made.key))
    assert told.startswith(f"{path}: expected SHA-256 {made.manifest.files[name].sha256}, found ")
    assert refused(DamagedError, records, store) == told


WANTED = "the facts name, key, loops, depth, nodes, heads, fits"


@pytest.mark.parametrize(
    ("about", "expected", "found"),
    [
        (["facts", "cost"], "facts, cost, notes and raw of a record", "something else"),
        ({"facts": {}}, "facts, cost, notes and raw of a record", "something else"),
        ({"facts": {"name": "x"}, "cost": {}, "notes": {}, "raw": False}, WANTED, "name"),
        ({"facts": {}, "cost": {}, "notes": {}, "raw": False}, WANTED, "none"),
    ],
)
def test_a_record_written_by_another_hand(
    store: Store, about: Any, expected: str, found: str, refused: Callable[..., str]
) -> None:
    with store.write(RECORD, config_of("targets", "toy-3", {}), INPUTS) as draft:
        draft.json(ABOUT, about)
    folder = draft.artefact.folder
    assert refused(DamagedError, load, draft.artefact) == f"{folder / ABOUT}: expected {expected}, found {found}"


# ---- facts -----------------------------------------------------------------------------------------------------------


def test_the_facts_of_a_subject() -> None:
    trained = load_trained(open_zoo(), "tiny-0", torch.device("cpu"), prefix="tiny-")
    facts = ModelFacts.of(trained)
    assert facts == ModelFacts("tiny-0", trained.key, loops=2, depth=2, nodes=6, heads=2, fits={"one": 2, "stay": 2})
    assert list(facts.fits) == ["one", "stay"]  # in one order, made or stored
