"""Target switching: identities on the tiny backbone of the zoo, and planted answers that are counted as planted."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.program import Program
from loopscope.quantity import Quantity
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk.switching import (
    AT_ANSWER,
    LAYERS,
    PARTS,
    PATTERN,
    WHERE,
    Answers,
    measure,
    of_heads,
    programs,
    subsets,
    tables,
)
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, instances, load_trained, walks

CPU = torch.device("cpu")
TINY = "tiny-test"
TARGETS = ("stay", "one")
ARROWS = [f"{a}->{b}" for fit in (1, 2) for a, b in permutations(("raw", f"stay-{fit}", f"one-{fit}"), 2)]


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")


@pytest.fixture(scope="module")
def found(trained: TrainedModel) -> dict[str, Tensor]:
    return measure(trained, TINY, TARGETS, graphs=12)[TINY]


def same(a: Tensor, b: Tensor) -> bool:
    """Whether the answers agree on the instances that both are about."""
    n = min(len(a), len(b))
    return n > 0 and torch.equal(a[:n], b[:n])


# ---- programs --------------------------------------------------------------------------------------------------------


def test_the_runs_of_the_paper_and_all_others() -> None:
    narrow, wide = programs(6, 4, ("one", "two"), fits=2)
    assert not set(narrow) & set(wide)
    assert len(narrow) + len(wide) == 1 + 2 * (2 + 6 * len(PARTS) * len(LAYERS) + 2 * (1 + 15))
    texts = {
        f"two-1->one-1/{PATTERN}": "F6 J:one-1 F[layer[2].pattern<-(F6 J:two-1 F)]",
        f"two-1->one-1/{AT_ANSWER}": "F6 J:one-1 F[layer[2].row[-1].pattern<-(F6 J:two-1 F)]",
        "raw->two-2/MLP output, layer 2": "F6 J:two-2 F[layer[2].mlp_out<-(F7)]",
        f"one-2->two-2/{of_heads((0, 3))}": "F6 J:two-2 F[layer[2].head[0,3].pattern<-(F6 J:one-2 F)]",
    }
    assert {name: str(narrow[name]) for name in texts} == texts
    both = "; ".join(f"layer[{layer}].{part}<-(F6 J:one-1 F)" for layer in (1, 2) for part in "qk")
    assert wide["one-1->raw/queries+keys, layers 1+2"] == Program.parse(f"F6 F[{both}]")


def test_subsets_of_heads() -> None:
    assert len(subsets(4)) == len(set(subsets(4))) == 15
    assert subsets(2) == [(0,), (1,), (0, 1)]


# ---- measuring -------------------------------------------------------------------------------------------------------


def test_clean_runs_give_their_targets(trained: TrainedModel, found: dict[str, Tensor]) -> None:
    at = walks(TINY, trained)
    for fit in (1, 2):
        assert torch.equal(found[f"stay-{fit}"].long(), at.current)
        assert torch.equal(found[f"one-{fit}"].long(), at.ahead(1))


@pytest.mark.parametrize("arrow", ARROWS)
def test_what_is_equal_by_construction_is_equal(found: dict[str, Tensor], arrow: str) -> None:
    giver, receiver = arrow.split("->")
    for place in LAYERS:
        assert same(found[f"{arrow}/queries+keys, {place}"], found[f"{arrow}/pattern, {place}"])
        assert same(found[f"{arrow}/head outputs, {place}"], found[f"{arrow}/attention output, {place}"])
        assert same(found[f"{arrow}/entering state, {place}"], found[giver])
    if "raw" not in (giver, receiver):
        assert same(found[f"{arrow}/{AT_ANSWER}"], found[f"{arrow}/{PATTERN}"])
        assert same(found[f"{arrow}/{of_heads((0, 1))}"], found[f"{arrow}/{PATTERN}"])


def test_parts_differ_where_they_can(found: dict[str, Tensor]) -> None:
    """The patches act: on this backbone no two of these parts lead to the same answers throughout."""
    parts = ("pattern", "values", "attention output", "MLP output", "entering state")
    answers = [tuple(found[f"one-1->stay-1/{part}, layer 2"][:72].tolist()) for part in parts]
    assert len({*answers, tuple(found["stay-1"][:72].tolist())}) == 1 + len(parts)


def test_patched_runs_are_those_done_the_plain_way(trained: TrainedModel, found: dict[str, Tensor]) -> None:
    narrow, wide = programs(2, 2, TARGETS, fits=2)
    tokens = walks(TINY, trained).tokens[:30]
    for what in (f"{PATTERN}", "values, layer 1", "MLP output, layers 1+2", "keys, layer 2"):
        name = f"one-2->raw/{what}"
        seen = plain_run(trained.model, {"main": tokens}, (narrow | wide)[name], maps=trained.named(*TARGETS))
        answered = trained.model.read(seen.states["h3"][:, -1:]).argmax(-1)[:, 0]
        assert torch.equal(found[name][:30].long(), answered)


def test_costly_runs_on_the_first_graphs_only(trained: TrainedModel, found: dict[str, Tensor]) -> None:
    few = measure(trained, TINY, TARGETS, graphs=4)[TINY]
    assert set(few) == set(found)
    assert all(same(nodes, found[name]) for name, nodes in few.items())
    assert {len(few[name]) for name in few if "layer 1" in name or "layers" in name or "keys" in name} == {24}
    assert {len(few[name]) for name in few if name.endswith(("pattern, layer 2", "MLP output, layer 2"))} == {432}
    with pytest.raises(InputError, match=r"^cannot take 73 of 72 graphs \(nearest: 72\)$"):
        measure(trained, TINY, TARGETS, graphs=73)


def test_a_backbone_without_these_maps(trained: TrainedModel) -> None:
    with pytest.raises(InputError, match=r"^tiny-0 has no maps 'two'; there are one, stay$"):
        measure(trained, TINY)


# ---- analysis --------------------------------------------------------------------------------------------------------


def rows_of(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> dict[str, dict[str, Quantity]]:
    return {table.title: {row.label: row for row in table.rows} for table in tables(predictions, facts, paper)}


def test_tables_of_the_tiny_backbone(trained: TrainedModel, found: dict[str, Tensor]) -> None:
    """On the first eight graphs, and the costly runs on the first four."""
    narrow, _ = programs(2, 2, TARGETS, fits=2)
    few = {name: nodes[: 48 if name in narrow else 24] for name, nodes in found.items()}
    facts = ModelFacts.of(trained)
    made = rows_of({TINY: few}, facts)
    assert len(made) == 6 + 2
    at = instances(TINY, facts.depth, CPU, "three")
    wide_n, narrow_n = (int(at.kept[:n].sum()) for n in (24, 48))
    rows = made[f"Target switching, one -> stay ({TINY})"]
    for part in PARTS:
        for place in LAYERS:
            four = [rows[f"{part}, {place}: {answer}"] for answer in ("u", "f(u)", "f^2(u)", "other")]
            assert sum(row.estimate.value for row in four) == pytest.approx(1)
            costly = place != "layer 2" or part in ("keys", "queries+keys", "values", "entering state")
            assert {row.n for row in four} == {wide_n if costly else narrow_n}
    hits = torch.stack([few[f"one-{fit}->stay-{fit}/{PATTERN}"] == at.ahead(1)[:48] for fit in (1, 2)])
    by_hand = hits[:, at.kept[:48]].double().mean()
    for name in (f"{PATTERN}: giver's target", f"{AT_ANSWER}: giver's target", f"{PATTERN}: f(u)"):
        assert rows[name].estimate.value == pytest.approx(float(by_hand))
    assert rows["clean: u"].estimate.value == 1
    subsets_of = made[f"Patterns of some heads of layer 2, one -> stay ({TINY})"]
    assert list(subsets_of) == [
        f"heads {chosen}: {role}" for chosen in ("0", "1", "0 1") for role in ("giver's target", "own target")
    ]
    assert subsets_of["heads 0 1: giver's target"].estimate.value == pytest.approx(float(by_hand))


def test_planted_switches_stand_beside_the_published_ones() -> None:
    """A pattern of J_two that switches fit 1 everywhere and fit 2 nowhere; in the raw run it gives one hop."""
    facts = ModelFacts("planted", "0" * 64, loops=6, depth=8, nodes=10, heads=1, fits={"one": 2, "two": 2})
    at = instances(WHERE, 8, CPU, "three")
    u, one, two = (at.ahead(steps)[:30].to(torch.uint8) for steps in range(3))
    narrow, wide = programs(6, 1, ("one", "two"), fits=2)
    clean = {"raw": u, "one-1": one, "one-2": one, "two-1": two, "two-2": two}
    found = {name: clean[name] if name in clean else clean[name.split("/")[0].split("->")[1]] for name in narrow | wide}
    found |= {f"two-1->one-1/{PATTERN}": two, f"two-1->raw/{PATTERN}": one, f"two-2->raw/{PATTERN}": one}
    rows = rows_of({WHERE: found}, facts, paper=True)
    switched = rows[f"Target switching, two -> one ({WHERE})"]
    name = f"{PATTERN}: giver's target"
    assert [switched[name + end].estimate.value for end in ("", ", fit 1", ", fit 2", ", minus clean")] == [
        0.5, 1, 0, 0.5
    ]  # fmt: skip
    assert [switched[name + end].published for end in ("", ", fit 1", ", fit 2", ", minus clean")] == [
        0.4540, 0.4497, 0.4582, None
    ]  # fmt: skip
    assert switched[f"{PATTERN}: f(u)"].estimate.value == 0.5
    raw = rows[f"Target switching, two -> raw ({WHERE})"]
    assert [raw[f"{PATTERN}: {answer}"].estimate.value for answer in ("u", "f(u)", "f^2(u)", "other")] == [0, 1, 0, 0]
    assert {row.published for row in raw.values()} == {None}
    assert {row.published for made in rows_of({WHERE: found}, facts).values() for row in made.values()} == {None}


@pytest.mark.parametrize(("where", "n"), [(WHERE, 4116), ("switching-2608", 4149)])
def test_as_many_instances_count_as_on_record(where: str, n: int) -> None:
    facts = ModelFacts("planted", "0" * 64, loops=6, depth=8, nodes=10, heads=4, fits={"one": 1, "two": 1})
    empty = {name: torch.zeros(5120, dtype=torch.uint8) for name in ("raw", "one-1", "two-1")}
    assert int(Answers.of({where: empty}, facts, where).at.kept.sum()) == n
