"""Trained artefacts and the zoo: names, loading with every check, listing, finding, verifying, adding."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import loopscope
from loopscope.errors import DamagedError, InputError
from loopscope.maps import Dense
from loopscope.store.artefacts import load_backbone, load_fit, name_of
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Store
from loopscope.store.zoo import VARIABLE, add, entries, find, open_zoo, readable_entries, verify, zoo_folder
from tests.stores import bf16, everything_under, flip, put_backbone, put_fit
from tests.tiny import tiny_map, tiny_model, tiny_tokens

Refused = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def zoo(tmp_path: Path) -> Store:
    return Store(tmp_path / "zoo")


# Names ----------------------------------------------------------------------------------------------------------------


def test_names(store: Store, zoo: Store) -> None:
    backbone = put_backbone(store, seed=3)
    fit = put_fit(store, backbone, fit=2)
    assert name_of(backbone) == "d8l6-3"
    assert name_of(fit) == "one-2@d8l6-3"
    assert name_of(zoo.adopt(fit)) == f"one-2@{backbone.key[:8]}"  # its backbone stayed in the other store
    zoo.adopt(backbone)
    assert name_of(zoo.open("map", fit.key)) == "one-2@d8l6-3"


@pytest.mark.parametrize("kind", ["backbone", "map", "checkpoint"])
@pytest.mark.parametrize(
    "config", [{}, {"recipe": {}}, {"recipe": "d8l6", "seed": 1}, {"recipe": {"name": 1}, "fit": 1}]
)
def test_what_training_did_not_write_goes_by_its_key(store: Store, kind: str, config: dict[str, Any]) -> None:
    with store.write(kind, config) as draft:
        pass
    assert name_of(draft.artefact) == draft.artefact.key[:8]


# Loading --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["graph", "parity", "relations"])
def test_a_backbone_comes_back_frozen_in_fp32(store: Store, kind: str) -> None:
    trained = tiny_model(kind, seed=5)
    artefact = put_backbone(store, model=trained)
    before = torch.get_rng_state()
    model = load_backbone(artefact)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.config == trained.config
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    # What bf16 left of the trained weights, put into a model in the ordinary way, computes the same.
    trained.load_state_dict({name: tensor.float() for name, tensor in bf16(trained).items()})
    assert model.state_dict().keys() == trained.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), trained.parameters(), strict=True))
    tokens = tiny_tokens(4)
    assert torch.equal(model(tokens), trained(tokens))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_every_type_that_fp32_holds_is_read_exactly(store: Store, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in tiny_model().state_dict().items()}
    loaded = load_backbone(put_backbone(store, tensors=tensors)).state_dict()
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in tensors.items())


def without(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {other: tensor for other, tensor in tensors.items() if other != name}


def with_value(value: float, tensor: Tensor) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[-1] = value
    return tensor


UP = "layers.1.up.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: without(UP, w), f"expected {UP} of shape (32, 16), found nothing"),
        (lambda w: without("positions", w), "expected positions of shape (7, 16), found nothing"),
        (lambda _: {}, "expected positions of shape (7, 16), found nothing"),
        (lambda w: {**w, "layers.2.up.weight": w[UP]}, "expected the 25 tensors of the model, found also 'layers.2"),
        (lambda w: {**w, UP: w[UP].T}, f"expected {UP} of shape (32, 16), found (16, 32)"),
        (lambda w: {**w, UP: w[UP][None]}, f"expected {UP} of shape (32, 16), found (1, 32, 16)"),
        (lambda w: {**w, UP: w[UP].to(torch.int32)}, f"expected {UP} as bf16, fp16 or fp32, found torch.int32"),
        (lambda w: {**w, UP: w[UP].double()}, f"expected {UP} as bf16, fp16 or fp32, found torch.float64"),
        (
            lambda w: {**w, UP: with_value(float("nan"), w[UP])},
            f"expected finite weights, found NaN or infinity in {UP}",
        ),
        (lambda w: {**w, "norm.bias": with_value(-float("inf"), w["norm.bias"])}, "NaN or infinity in norm.bias"),
    ],
)
def test_weights_that_do_not_fit_are_damage(
    store: Store, refused: Refused, change: Callable[[dict[str, Tensor]], dict[str, Tensor]], says: str
) -> None:
    artefact = put_backbone(store, tensors=change(bf16(tiny_model())))
    message = refused(DamagedError, load_backbone, artefact)
    assert message.startswith(f"{artefact.folder / 'weights.safetensors'}: ")
    assert says in message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "expected the settings of a model, found model setting 'vocabulary' is missing"),
        ({"haeds": 4}, "found unknown model setting 'haeds' (nearest: heads)"),
        ({**tiny_model().config.to_dict(), "heads": 3}, "found 3 heads do not divide width 16"),
        ({**tiny_model().config.to_dict(), "width": "16"}, "found width must be of type int, not '16'"),
        ([], "expected the settings of a model under config.recipe.model, found none"),
    ],
)
def test_settings_that_do_not_fit_are_damage(store: Store, refused: Refused, settings: Any, says: str) -> None:
    artefact = put_backbone(store, settings=settings)
    message = refused(DamagedError, load_backbone, artefact)
    assert message.startswith(f"{artefact.folder / MANIFEST}: ")
    assert says in message


def test_a_wrong_width_takes_no_memory(store: Store, refused: Refused) -> None:
    settings = {**tiny_model().config.to_dict(), "width": 2**20}
    assert "of shape (7, 1048576), found (7, 16)" in refused(
        DamagedError, load_backbone, put_backbone(store, settings=settings)
    )


def test_a_fit_is_the_saved_map(store: Store) -> None:
    step = tiny_map(7)
    loaded = load_fit(put_fit(store, put_backbone(store), step=step))
    assert loaded.family == step.family
    assert loaded.settings() == step.settings()
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), step.parameters(), strict=True))


def test_a_flipped_bit_is_never_loaded(store: Store, refused: Refused) -> None:
    backbone = put_backbone(store)
    fit = put_fit(store, backbone)
    for load, artefact, name in (
        (load_backbone, backbone, "weights.safetensors"),
        (load_fit, fit, "adapter_model.safetensors"),
        (load_fit, fit, "adapter_config.json"),
    ):
        flip(artefact.folder / name)
        message = refused(DamagedError, load, artefact)
        assert message.startswith(f"{artefact.folder / name}: expected SHA-256 ")
        flip(artefact.folder / name)
        load(artefact)


def test_each_loader_wants_its_kind(store: Store, refused: Refused) -> None:
    backbone = put_backbone(store)
    fit = put_fit(store, backbone)
    assert refused(InputError, load_backbone, fit) == f"{fit.folder} is a map, not a backbone"
    assert refused(InputError, load_fit, backbone) == f"{backbone.folder} is a backbone, not a map"
    with store.write("map", {}) as draft:
        draft.json("result.json", {})
    assert "is no saved map: it has no adapter_config.json" in refused(InputError, load_fit, draft.artefact)


# Where the zoo is -----------------------------------------------------------------------------------------------------


def test_the_zoo_is_beside_the_package_or_where_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert zoo_folder() == Path(__file__).parent.parent / "zoo"
    monkeypatch.setenv(VARIABLE, "")
    assert zoo_folder() == Path(__file__).parent.parent / "zoo"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert zoo_folder() == tmp_path / "named"
    assert zoo_folder(tmp_path / "given") == tmp_path / "given"
    message = refused(InputError, open_zoo)
    assert message == f"there is no zoo at {tmp_path / 'named'}; name one with --zoo or LOOPSCOPE_ZOO"
    assert not (tmp_path / "named").exists()
    (tmp_path / "named").mkdir()
    assert open_zoo().root == tmp_path / "named"


def test_an_installed_package_has_no_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(loopscope, "__file__", str(tmp_path / "loopscope" / "__init__.py"))
    (tmp_path / "zoo").mkdir()  # somebody else's
    assert f"{tmp_path}, which is no checkout" in refused(InputError, open_zoo)


def test_an_installed_package_may_bring_a_part_of_the_zoo(
    zoo: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(loopscope, "__file__", str(tmp_path / "loopscope" / "__init__.py"))
    packaged = tmp_path / "loopscope" / "zoo"
    packaged.mkdir(parents=True)
    assert open_zoo().root == packaged
    assert "came with the package" in refused(InputError, add, open_zoo(), zoo, ["tiny-0"])
    assert not list(packaged.iterdir())


# Listing and finding --------------------------------------------------------------------------------------------------


def test_entries_come_by_kind_and_number(zoo: Store) -> None:
    backbones = {seed: put_backbone(zoo, seed=seed) for seed in (10, 9, 1)}
    for fit in (2, 1):
        put_fit(zoo, backbones[9], fit=fit)
    put_fit(zoo, backbones[10], fit=1)
    with zoo.write("checkpoint", {}) as draft:
        draft.bytes("state", b"x")
    found = entries(zoo)
    assert [(entry.kind, entry.name) for entry in found] == [
        ("backbone", "d8l6-1"),
        ("backbone", "d8l6-9"),
        ("backbone", "d8l6-10"),
        ("map", "one-1@d8l6-9"),
        ("map", "one-1@d8l6-10"),
        ("map", "one-2@d8l6-9"),
    ]
    assert found[0].about == "selected at update 15,000, score 1.0000"
    assert found[3].about == "selected at update 1,200, score 0.9877, 0.5000"
    manifest = backbones[1].manifest
    assert (found[0].key, found[0].created, found[0].device) == (manifest.key, manifest.created, manifest.device)
    files = ("weights.safetensors", "result.json")
    assert found[0].bytes == sum((backbones[1].folder / name).stat().st_size for name in files)
    assert json.loads(json.dumps(asdict(found[0])))["name"] == "d8l6-1"


@pytest.mark.parametrize(
    ("result", "about"),
    [
        ({"selected": {"update": 0, "score": []}}, ""),
        ({"selected": {"update": 5, "score": [float("nan"), 1]}}, "selected at update 5, score nan, 1.0000"),
        ({"selected": {"update": 5, "score": ["high"]}}, ""),
        ({"selected": {"update": "last", "score": [1.0]}}, ""),
        ({"selected": None}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_about_is_what_the_result_says(zoo: Store, result: object, about: str) -> None:
    put_backbone(zoo, result=result)
    assert [entry.about for entry in entries(zoo)] == [about]


def test_a_damaged_result_and_a_damaged_size_are_told(zoo: Store, refused: Refused) -> None:
    first, second = put_backbone(zoo, seed=1), put_backbone(zoo, seed=2)
    flip(first.folder / "result.json")
    (second.folder / "result.json").write_bytes(b"")
    (entry,), (error,) = readable_entries(zoo)
    assert (
        str(error)
        == f"{second.folder / 'result.json'}: expected {second.manifest.files['result.json'].size} bytes, found 0"
    )
    assert refused(DamagedError, entries, zoo) == str(error)
    assert entry.name == "d8l6-1"
    assert entry.about.startswith(f"{first.folder / 'result.json'}: expected SHA-256 ")


def test_find_by_name_and_by_key(store: Store) -> None:
    backbones = {seed: put_backbone(store, seed=seed) for seed in (1, 2)}
    fit = put_fit(store, backbones[2])
    for artefact, kind in ((backbones[1], "backbone"), (backbones[2], "backbone"), (fit, "map")):
        for asked in (name_of(artefact), artefact.key, artefact.key[:8], artefact.key[:4]):
            assert find(store, asked, kind) == find(store, asked) == artefact


def test_find_names_the_nearest(store: Store, refused: Refused) -> None:
    for seed in (1, 23):
        backbone = put_backbone(store, seed=seed)
    put_fit(store, backbone)
    message = refused(InputError, find, store, "d8l6-24", "backbone")
    assert message == f"{store.root} has no backbone 'd8l6-24' among 2 (nearest: d8l6-23)"
    message = refused(InputError, find, store, "one-2@d8l6-23")
    assert message == f"{store.root} has no backbone or map 'one-2@d8l6-23' among 3 (nearest: one-1@d8l6-23)"
    assert "has no map 'd8l6-1' among 1 " in refused(InputError, find, store, "d8l6-1", "map")
    assert "has no backbone '" in refused(InputError, find, store, backbone.key[:3], "backbone")
    assert "has no backbone '../backbone'" in refused(InputError, find, store, "../backbone", "backbone")
    (backbone.folder / "weights.safetensors").unlink()
    # What cannot be read may be what is asked for, or a second of its name: nothing of its kind is found by name.
    weights = backbone.folder / "weights.safetensors"
    for asked, kind in (("d8l6-23", "backbone"), ("d8l6-1", None), ("one-2@d8l6-23", "map"), ("one-1@d8l6-23", "map")):
        assert refused(DamagedError, find, store, asked, kind) == f"{weights}: expected a file, found none"
    assert "has no map 'x' among 0" in refused(InputError, find, Store(store.root / "nowhere"), "x", "map")


def test_two_of_one_name_are_told_apart_by_key(store: Store, refused: Refused) -> None:
    old, new = put_backbone(store, batch=256), put_backbone(store, batch=512)
    message = refused(InputError, find, store, "d8l6-3", "backbone")
    assert message.startswith("backbone 'd8l6-3' is ambiguous; give one of the keys ")
    assert old.key in message
    assert new.key in message
    assert find(store, new.key, "backbone") == new


# Verifying ------------------------------------------------------------------------------------------------------------


def states(zoo: Store) -> dict[str, tuple[str, str]]:
    return {status.key: (status.state, status.reason) for status in verify(zoo)}


def test_verify_loads_everything(zoo: Store) -> None:
    backbone = put_backbone(zoo)
    put_fit(zoo, backbone)
    put_fit(zoo, backbone, fit=2)
    with zoo.write("checkpoint", {}) as draft:
        draft.bytes("state", b"x")
    assert [(status.kind, status.state) for status in verify(zoo)] == [
        ("backbone", "ok"),
        ("checkpoint", "ok"),
        ("map", "ok"),
        ("map", "ok"),
    ]
    flip(draft.artefact.folder / "state")
    assert [status.kind for status in verify(zoo) if status.state == "damaged"] == ["checkpoint"]


def test_a_damaged_backbone_takes_its_maps_along(zoo: Store) -> None:
    good, bad = put_backbone(zoo, seed=1), put_backbone(zoo, seed=2)
    kept, lost = put_fit(zoo, good), put_fit(zoo, bad)
    flip(bad.folder / "weights.safetensors")
    found = states(zoo)
    assert found[good.key] == found[kept.key] == ("ok", "")
    assert found[bad.key][0] == "damaged"
    needs = f"{lost.folder / MANIFEST}: expected its backbone {bad.key} in the same zoo, found none that is whole"
    assert found[lost.key] == ("damaged", needs)
    zoo.remove("backbone", bad.key)
    assert states(zoo)[lost.key] == ("damaged", needs)


def test_verify_finds_what_hashes_do_not(zoo: Store) -> None:
    backbone = put_backbone(zoo)
    wide = put_fit(zoo, backbone, fit=1, step=Dense(8))
    nan = put_backbone(zoo, seed=4, tensors={**bf16(tiny_model()), UP: torch.full((32, 16), float("nan")).bfloat16()})
    with zoo.write("map", {}, {"backbone": backbone}) as draft:
        draft.json("result.json", {})
    assert {status.state for status in zoo.verify()} == {"ok"}
    found = states(zoo)
    assert found[backbone.key] == ("ok", "")
    says = f"{wide.folder}: expected a map of its backbone's width 16, found one of width 8"
    assert found[wide.key] == ("damaged", says)
    assert found[nan.key][0] == "damaged"
    assert found[draft.artefact.key][0] == "unreadable"


# Adding ---------------------------------------------------------------------------------------------------------------


def test_a_map_brings_its_backbone(store: Store, zoo: Store) -> None:
    for seed in (1, 2):
        put_fit(store, put_backbone(store, seed=seed))
    added = add(zoo, store, ["one-1@d8l6-2"])
    assert [entry.name for entry in added] == ["d8l6-2", "one-1@d8l6-2"]
    assert added == entries(zoo)
    assert {status.state for status in verify(zoo)} == {"ok"}
    there = everything_under(store.root)
    copied = {path: data for path, data in everything_under(zoo.root).items() if not path.endswith(".lock")}
    assert len(copied) == 3 + 4
    compressed = {path for path in copied if path.endswith(".xz")}
    assert len(compressed) == 3  # weights and result of the backbone, result of the map
    for path in compressed:
        assert lzma.decompress(copied[path]) == there[path.removesuffix(".xz")]
    manifests = {path for path in copied if path.endswith("manifest.json")}  # which name the files
    assert all(there[path] == copied[path] for path in copied.keys() - compressed - manifests)
    assert add(zoo, store, ["one-1@d8l6-2", added[0].key[:10]]) == added  # again: nothing changes
    assert add(zoo, store, ["d8l6-1"]) == entries(zoo)[:1]


def test_the_backbone_may_be_in_the_zoo_already(store: Store, zoo: Store) -> None:
    backbone = put_backbone(store)
    put_fit(store, backbone)
    add(zoo, store, ["d8l6-3"])
    store.remove("backbone", backbone.key)
    name = f"one-1@{backbone.key[:8]}"
    assert [entry.name for entry in add(zoo, store, [name])] == ["d8l6-3", "one-1@d8l6-3"]


@pytest.mark.parametrize("asked", [["d8l6-3", "one-1@d8l6-3"], ["one-1@d8l6-3", "d8l6-3"]])
def test_adding_repairs_what_is_damaged_in_the_zoo(
    store: Store, zoo: Store, refused: Refused, asked: list[str]
) -> None:
    put_fit(store, put_backbone(store))
    backbone, fit = add(zoo, store, ["one-1@d8l6-3"])
    for kind, key, name in (
        ("backbone", backbone.key, "weights.safetensors.xz"),
        ("map", fit.key, "adapter_model.safetensors"),
    ):
        flip(zoo.root / kind / key / name)
    refused(DamagedError, add, zoo, store, ["one-1@d8l6-3"])  # the map's backbone is there, but was not asked for
    add(zoo, store, asked)
    assert {status.state for status in verify(zoo)} == {"ok"}


def test_what_cannot_be_added_leaves_the_zoo_as_it_was(store: Store, zoo: Store, refused: Refused) -> None:
    good, bad = put_backbone(store, seed=1), put_backbone(store, seed=2)
    put_fit(store, bad)
    orphan = put_fit(store, "0" * 64, fit=2)
    flip(bad.folder / "weights.safetensors")
    assert "has no backbone or map 'd8l6-7'" in refused(InputError, add, zoo, store, ["d8l6-1", "d8l6-7"])
    for asked in (["d8l6-1", "d8l6-2"], ["one-1@d8l6-2"]):
        message = refused(DamagedError, add, zoo, store, asked)
        assert message.startswith(f"{bad.folder / 'weights.safetensors'}: ")
    message = refused(InputError, add, zoo, store, ["d8l6-1", "one-2@00000000"])
    assert message == (
        f"map one-2@00000000 needs the backbone {'0' * 64}, which is neither in {zoo.root} nor {store.root}"
    )
    worse = put_backbone(store, seed=3)
    flip(worse.folder / "result.json")  # which is copied, but not needed to load it
    assert "result.json" in refused(DamagedError, add, zoo, store, ["d8l6-1", "d8l6-3"])
    assert not zoo.root.exists()
    assert [entry.key for entry in add(zoo, store, [good.key])] == [good.key]
    before = everything_under(zoo.root)
    refused(InputError, add, zoo, store, [orphan.key])
    assert everything_under(zoo.root) == before
