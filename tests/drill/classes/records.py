"""Records: raw damage, content that was forged with fitting manifests, and the inventory of what must be there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.drill import mutations as do
from tests.drill.cases import Case, Group, Scene, World
from tests.drill.classes.artefacts import artefacts
from tests.drill.classes.models import DOCUMENTS, NUMBERS, WRONG, places
from tests.drill.forging import bomb, forged, in_json, in_tensors, refilled

CLAIMS = Scene.of("results", "claims", "--results", "results", "--json")
ABOUT = "record.json"


def damaged_records(world: World, seed: int) -> Iterator[Case]:
    """One thing wrong in the files of a record: the verdict must not be given without it."""
    draw = random.Random(seed)
    for file in world.files("results"):
        if file.name.startswith("."):
            continue
        size, told = world.size(file), f"{file.parts[2][:6]}/{file.name}"
        for at, change in do.flips(file, size, 3, draw):
            yield Case("damaged records", f"{told} byte {at}", CLAIMS, change)
        yield Case("damaged records", f"{told} cut by a byte", CLAIMS, do.cut(file, -1))
        yield Case("damaged records", f"{told} gone", CLAIMS, do.remove(file))
        yield Case("damaged records", f"{told} a FIFO", CLAIMS, do.fifo(file))
        yield Case("damaged records", f"{told} linked", CLAIMS, do.moved_and_linked(file))
    for artefact in artefacts(world, "results"):
        yield Case(
            "damaged records",
            f"{artefact.name[:6]} a file",
            CLAIMS,
            do.each(do.remove(artefact), do.replace(artefact, b"")),
        )
        yield Case("damaged records", f"{artefact.name[:6]} empty", CLAIMS, do.folder(artefact))
        yield Case("damaged records", f"{artefact.name[:6]} linked", CLAIMS, do.moved_and_linked(artefact))
        yield Case(
            "damaged records",
            f"{artefact.name[:6]} under another key",
            CLAIMS,
            do.copy(artefact, artefact.parent / ("0" * 64)),
        )


def forged_records(world: World, seed: int) -> Iterator[Case]:
    """Records of other facts, settings and answers, with every checksum right."""
    group = "forged records"
    for artefact in artefacts(world, "results"):
        told = f"{_experiment(world, artefact)} {artefact.name[:6]}"
        about = json.loads((world.base / artefact / ABOUT).read_text(encoding="utf-8"))
        for key in about:
            for name, value in WRONG.items():
                yield _forged(
                    group, f"{told} {key}={name}", CLAIMS, refilled(artefact, ABOUT, in_json(_put((key,), value)))
                )
        for key in about["facts"]:
            for name, value in {**WRONG, **SOME}.items():
                change = refilled(artefact, ABOUT, in_json(_put(("facts", key), value)))
                yield _forged(group, f"{told} facts.{key}={name}", CLAIMS, change)
        change = refilled(artefact, ABOUT, in_json(_put(("facts", "more"), 1)))
        yield _forged(group, f"{told} facts and more", CLAIMS, change)
        for name, data in DOCUMENTS.items():
            yield _forged(group, f"{told} {ABOUT} is {name}", CLAIMS, refilled(artefact, ABOUT, data))
        for key, values in CONFIG.items():
            for name, value in values.items():
                change = forged(artefact, _config((key,), value), rename=True)
                yield _forged(group, f"{told} config.{key}={name}", CLAIMS, change)
        packed = [each.name for each in world.files(str(artefact)) if each.name.endswith(".safetensors.xz")]
        for name, inside in ANSWERS.items():
            yield _forged(group, f"{told} answers {name}", CLAIMS, refilled(artefact, packed[0], in_tensors(inside)))
        yield _forged(group, f"{told} answers no xz", CLAIMS, refilled(artefact, packed[0], b"x" * 40))
        yield _forged(
            group,
            f"{told} a population less",
            CLAIMS,
            forged(artefact, lambda body, name=packed[0]: body["files"].pop(name) and None),
        )
    artefact = artefacts(world, "results")[0]
    for size in (3, 6):
        packed = next(each.name for each in world.files(str(artefact)) if each.name.endswith(".xz"))
        yield _forged(
            group,
            f"answers that expand to {size} GiB",
            CLAIMS,
            refilled(artefact, packed, lambda data, size=size: bomb(size)),
        )
        change = do.each(refilled(artefact, packed, lambda data: data), _bomb_beside(artefact, size))
        yield _forged(group, f"a file more that expands to {size} GiB", CLAIMS, change)


def _forged(group: str, label: str, scene: Scene, change: do.Change) -> Case:
    """Even the unchanged verdicts would be wrong: they would rest on a record that is none."""
    return Case(group, label, scene, change, refuse=True)


SOME = {name: NUMBERS[name] for name in ("nan", "0", "-1", "3", "10^40", "half")}
CONFIG: dict[str, dict[str, Any]] = {
    "version": {"999": 999, "0": 0, "-1": -1, "text": "2", "null": None, "list": [], "3": 3},
    "experiment": {
        "none": "no-such",
        "another": "matched",
        "text of controls": "\x1b[2J",
        "empty": "",
        "number": 3,
        "null": None,
    },
    "subject": {"another": "d8l6-99", "number": 3, "null": None, "empty": "", "path": "../../x", "controls": "\x1b[2J"},
    "settings": {"list": [], "null": None, "empty": {}, "unknown": {"nobody": 1}, "text": "x"},
}


def _first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], Any]:
    def inside(tensors: dict[str, torch.Tensor]) -> None:
        name = min(tensors)
        tensors[name] = change(tensors[name])

    return inside


ANSWERS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "of other values": _first(lambda t: torch.full_like(t, 255 if t.dtype == torch.uint8 else 1)),
    "as floats": _first(torch.Tensor.float),
    "as int64": _first(torch.Tensor.long),
    "shorter": _first(lambda t: t[..., :-2]),
    "longer": _first(lambda t: torch.cat([t, t], -1)),
    "of a dimension more": _first(lambda t: t[None]),
    "empty": _first(lambda t: t[..., :0]),
    "of one number": _first(lambda t: t.reshape(-1)[0]),
    "less one": lambda tensors: tensors.pop(min(tensors)) is None,
    "none": lambda tensors: tensors.clear(),
    "and more": lambda tensors: tensors.update(more=torch.zeros(3)),
    "NaN": _first(lambda t: torch.full_like(t, float("nan"), dtype=torch.float32)),
    "with a name of controls": lambda tensors: tensors.update({"\x1b[2J": torch.zeros(2, dtype=torch.uint8)}),
}


def inventory(world: World, seed: int) -> Iterator[Case]:
    """What a store must have: records missing, changed or not listed, and the list itself."""
    group, file = "inventory", "listed/inventory.json"
    scene = Scene.of("listed", "claims", "--results", "listed", "--json")
    if not (world.base / file).is_file():
        scene = Scene.of("results", "claims", "--results", "results", "--json")
        yield Case(group, "can be written", scene, do.remove("results"), codes=(99,))
        return
    for artefact in artefacts(world, "listed"):
        yield Case(group, f"{artefact.name[:6]} gone", scene, do.remove(artefact))
        both = Scene((*scene.needs, "results"), scene.command)
        change = refilled(artefact, ABOUT, in_json(_put(("facts", "loops"), 3)))
        yield Case(group, f"{artefact.name[:6]} forged", both, change)
    kind = artefacts(world, "listed")[0].parent
    yield Case(group, "all gone", scene, do.remove(kind))
    extra = forged(artefacts(world, "listed")[0], _config(("subject",), "d8l6-99"), rename=True)
    yield Case(group, "one that is not listed in the place of one", scene, extra)
    whole = json.loads((world.base / file).read_text(encoding="utf-8"))
    for key in whole:
        for name, value in {**WRONG, "999": 999}.items():
            yield Case(group, f"{key}={name}", scene, do.put(file, (key,), value))
    draw = random.Random(seed)
    for at, change in do.flips(file, world.size(Path(file)), 25, draw):
        yield Case(group, f"byte {at}", scene, change)
    for name, data in DOCUMENTS.items():
        yield Case(group, f"is {name}", scene, do.replace(file, data))
    yield from places(group, scene, file)


def _bomb_beside(artefact: Path, size: int) -> Callable[[Path], None]:
    def change(work: Path) -> None:
        (work / artefact / "more.safetensors.xz").write_bytes(b"")
        refilled(artefact, "more.safetensors.xz", bomb(size))(work)

    return change


def _experiment(world: World, artefact: Path) -> str:
    manifest = json.loads((world.base / artefact / "manifest.json").read_text(encoding="utf-8"))
    return str(manifest["config"]["experiment"])


def _put(path: tuple[str, ...], value: object) -> Callable[[Any], None]:
    def inside(whole: Any) -> None:
        at = whole
        for name in path[:-1]:
            at = at[name]
        if value is do.GONE:
            at.pop(path[-1])
        else:
            at[path[-1]] = value

    return inside


def _config(path: tuple[str, ...], value: object) -> Callable[[Any], None]:
    return _put(("config", *path), value)


GROUPS: dict[str, Group] = {
    "damaged records": damaged_records,
    "forged records": forged_records,
    "inventory": inventory,
}
