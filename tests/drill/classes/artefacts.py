"""Stores and the zoo: every file, manifests, links, what lies beside, what was forged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.drill import mutations as do
from tests.drill.cases import Case, Change, Command, Group, Scene, World
from tests.drill.classes.models import DOCUMENTS, WRONG
from tests.drill.forging import forged

VERIFY = Scene.of("store", "store", "verify", "--store", "store", "--json")
ADD = Scene.of(
    "store", "zoo", "add", "d8l6-3", "one-1@d8l6-4", "--store", "store", "--zoo", "new", "--json", writes="new"
)
ZOO = Scene.of("zoo", "zoo", "verify", "--zoo", "zoo", "--json")
COLLECT = Scene.of("store", "store", "gc", "--damaged", "--store", "store", "--json")


def artefacts(world: World, name: str) -> list[Path]:
    """The artefacts of a store, by their path from the base."""
    return [file.parent for file in world.files(name) if file.name == "manifest.json"]


def store_files(world: World, seed: int) -> Iterator[Case]:
    """Every file of a store: flipped, cut, gone, something else in its place; things that nobody wrote."""
    draw = random.Random(seed)
    for file in world.files("store"):
        if file.name.startswith("."):
            continue
        size, told = world.size(file), f"{file.parts[1]}/{file.parts[2][:6]}/{file.name}"
        for at, change in do.flips(file, size, 4, draw):
            yield Case("store files", f"{told} byte {at}", VERIFY, change)
        yield Case("store files", f"{told} used, byte {size - 1}", ADD, do.flip(file, -1, 0))
        for name, change in _instead(file).items():
            yield Case("store files", f"{told} {name}", VERIFY, change)
    for artefact in artefacts(world, "store"):
        told = f"{artefact.parts[1]}/{artefact.name[:6]}"
        yield Case("store files", f"{told} with a file more", VERIFY, do.replace(artefact / "more.json", b"{}"))
        yield Case("store files", f"{told} with a link more", VERIFY, do.link(artefact / "more", "/etc/passwd"))
        yield Case("store files", f"{told} moved away, linked", VERIFY, do.moved_and_linked(artefact))
        yield Case("store files", f"{told} a link to nowhere", VERIFY, do.link(artefact, "/nowhere"))
        yield Case("store files", f"{told} a file", VERIFY, do.each(do.remove(artefact), do.replace(artefact, b"x")))
        yield Case("store files", f"{told} a FIFO", VERIFY, do.fifo(artefact))
        yield Case("store files", f"{told} empty", VERIFY, do.folder(artefact))
    first, second = artefacts(world, "store")[:2]
    yield Case("store files", "one artefact in another's place", VERIFY, do.copy(first, second))
    yield Case("store files", "a copy under another key", VERIFY, do.copy(first, first.parent / ("0" * 64)))
    for name in ("no-kind", "Backbone", "backbone/notakey", ".hidden", "x.txt", "backbone/.draft-x"):
        yield Case("store files", f"{name} beside", VERIFY, do.replace(f"store/{name}", b"x"))
    for kind in ("backbone", "map"):
        yield Case("store files", f"{kind} moved away, linked", VERIFY, do.moved_and_linked(f"store/{kind}"))
        damaged = do.flip(artefacts(world, "store")[0] / "result.json", 1, 0)
        change = do.each(damaged, do.moved_and_linked(f"store/{kind}"))
        yield Case("store files", f"{kind} linked and collected", COLLECT, change, codes=(1, 2, 3))
    draft = "store/map/.draft-0123456789ab-0123456789ab"
    yield Case("store files", "a draft that links outside, collected", COLLECT, do.link(draft, "../../../outside"))
    outside = do.each(do.replace(f"{draft}/writer.lock", b""), do.link(f"{draft}/artefact", "../../../../outside"))
    scene = Scene(COLLECT.needs, COLLECT.command, (draft,))
    yield Case("store files", "a draft with a link outside, collected", scene, outside)
    for name, place in {
        "metrics/tiny-0.jsonl": "../../../outside/kept",
        "metrics": "../../outside",
        "checkpoint": "../../outside",
    }.items():
        scene, command = Scene.of("", "recipes", "--json"), Command(("train", "tiny", "--seeds", "0"))
        change = do.link(f"store/{name}", place)
        yield Case("store files", f"{name} links outside, trained", scene, change, (1, 2, 3), True, ((command,),))
    yield Case("store files", "a store that is a link", VERIFY, do.moved_and_linked("store"))
    yield Case("store files", "a store that is a file", VERIFY, do.each(do.remove("store"), do.replace("store", b"")))
    yield Case("store files", "a store that is gone", VERIFY, do.remove("store"))


def _instead(file: Path) -> dict[str, Change]:
    return {
        "gone": do.remove(file), "empty": do.replace(file, b""), "a FIFO": do.fifo(file), "a folder": do.folder(file),
        "cut by a byte": do.cut(file, -1), "longer by a byte": do.append(file, b"\n"),
        "moved away, linked": do.moved_and_linked(file), "links to /dev/zero": do.link(file, "/dev/zero"),
        "of 8 GiB of zeros": do.sparse(file, 8 << 30),
    }  # fmt: skip


def manifests(world: World, seed: int) -> Iterator[Case]:
    """Manifests with other values and digests that fit; newer schemas; names that lead out of the folder."""
    artefact = next(each for each in artefacts(world, "store") if each.parts[1] == "backbone")
    for key in ("schema", "kind", "key", "config", "inputs", "files", "versions", "device", "created"):
        for name, value in {**WRONG, "999": 999, "nan": float("nan"), "-1": -1}.items():
            yield Case("manifests", f"{key}={name}", VERIFY, forged(artefact, _set((key,), value)))
            if key in ("schema", "config", "inputs", "kind"):
                change = forged(artefact, _set((key,), value), rename=True)
                yield Case("manifests", f"{key}={name}, with its key", VERIFY, change)
    for name, path in FILES.items():
        yield Case("manifests", f"a file {name}", VERIFY, forged(artefact, _set(("files", *path[:-1]), path[-1])))
    yield Case("manifests", "a key more", VERIFY, forged(artefact, _set(("more",), 1)))
    yield Case("manifests", "a file less", VERIFY, forged(artefact, _set(("files", "result.json"), do.GONE)))
    yield Case("manifests", "no files", VERIFY, forged(artefact, _set(("files",), {})))
    for name, data in DOCUMENTS.items():
        yield Case("manifests", f"is {name}", VERIFY, do.replace(artefact / "manifest.json", data))
    for name, value in NAMES.items():
        forge = forged(artefact, _set(("config", "recipe", "name"), value), rename=True)
        yield Case("manifests", f"a name {name}, verified", ZOO_OF_STORE, forge)
        yield Case("manifests", f"a name {name}, listed", LISTED, forge)
    settings = {"loops": 0, "layers": 10**9, "width": 2**40, "heads": 3, "positions": -1, "vocabulary": True}
    for key, value in settings.items():
        forge = forged(artefact, _set(("config", "recipe", "model", key), value), rename=True)
        yield Case("manifests", f"a model of {key} {value}", ZOO_OF_STORE, forge)


ZOO_OF_STORE = Scene.of("store", "zoo", "verify", "--zoo", "store", "--json")
LISTED = Scene.of("store", "zoo", "list", "--zoo", "store")
NAMES = {
    "with controls": "\x1b[2J\x07",
    "of two lines": "a\nb",
    "with ../": "../../outside/kept",
    "that is long": "x" * 5000,
    "that is empty": "",
    "that turns round": "\u202eabc",
    "with markup": "[red]x[/red]",
    "with a null": "a\0b",
}
RECORD = {"sha256": "0" * 64, "size": 1}
FILES: dict[str, tuple[Any, ...]] = {
    "outside": ("../x", RECORD),
    "absolute": ("/etc/passwd", RECORD),
    "of no name": ("", RECORD),
    "with controls": ("\x1b[2J", RECORD),
    "with a long name": ("x" * 300, RECORD),
    "that is the manifest": ("manifest.json", RECORD),
    "of -1 bytes": ("result.json", {"sha256": "0" * 64, "size": -1}),
    "of 2^70 bytes": ("result.json", {"sha256": "0" * 64, "size": 2**70}),
    "of NaN bytes": ("result.json", {"sha256": "0" * 64, "size": float("nan")}),
    "of no size": ("result.json", {"sha256": "0" * 64}),
    "of no digest": ("result.json", {"size": 3}),
    "of a short digest": ("result.json", {"sha256": "0", "size": 3}),
    "that is a list": ("result.json", []),
    "that is not there": ("none.bin", RECORD),
    "with a key more": ("result.json", {**RECORD, "x": 1}),
}


def _set(path: tuple[str, ...], value: object) -> Any:
    def inside(body: dict[str, Any]) -> None:
        at = body
        for name in path[:-1]:
            at = at[name]
        if value is do.GONE:
            at.pop(path[-1], None)
        else:
            at[path[-1]] = value

    return inside


def zoo(world: World, seed: int) -> Iterator[Case]:
    """The zoo: damage anywhere, maps without their models, names that cannot be told apart."""
    draw = random.Random(seed)
    for file in world.files("zoo"):
        if file.name.startswith("."):
            continue
        told = f"{file.parts[1]}/{file.parts[2][:6]}/{file.name}"
        yield Case("zoo", f"{told} flipped", ZOO, do.flip(file, draw.randrange(world.size(file)), draw.randrange(8)))
        yield Case("zoo", f"{told} gone", ZOO, do.remove(file))
        yield Case("zoo", f"{told} a FIFO", ZOO, do.fifo(file))
    for artefact in artefacts(world, "zoo"):
        told = f"{artefact.parts[1]}/{artefact.name[:6]}"
        if artefact.parts[1] == "backbone":
            yield Case("zoo", f"{told} gone", ZOO, do.remove(artefact))
        yield Case("zoo", f"{told} linked", ZOO, do.moved_and_linked(artefact))
    one, two = (each for each in artefacts(world, "zoo") if each.parts[1] == "backbone")
    for file in ("weights.safetensors", "result.json", "manifest.json"):
        yield Case("zoo", f"{file} of another backbone", ZOO, do.copy(two / file, one / file))
    yield Case("zoo", "all of another backbone", ZOO, do.copy(two, one))


GROUPS: dict[str, Group] = {"store files": store_files, "manifests": manifests, "zoo": zoo}
