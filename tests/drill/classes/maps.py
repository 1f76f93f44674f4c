"""Saved maps: every byte of a tiny one, settings, weights, and which model they were fitted to."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tests.drill import mutations as do
from tests.drill.cases import Case, Command, Group, Scene, World
from tests.drill.classes.models import DOCUMENTS, HEADERS, NUMBERS, WRONG, places, tensor_changes, tensors

SHOW = Scene.of("small", "maps", "show", "small", "--json")
PATCH = Scene.of(
    "worded map", "lm", "patch", "worded", "F2 J:step F", "--text", "user 1 2", "--map", "step=map", "--json"
)
FITTED = Scene.of(
    "tuned fitted", "lm", "patch", "tuned", "F2 J:step F", "--text", "ab a 12", "--map", "step=fitted", "--json"
)
CONFIG, WEIGHTS = "small/adapter_config.json", "small/adapter_model.safetensors"


def maps(world: World, seed: int) -> Iterator[Case]:
    """A tiny map with any bit flipped, cut anywhere, of other settings, types and values."""
    draw = random.Random(seed)
    for file in world.files("small"):
        for at in range(world.size(file)):
            yield Case("maps", f"{file.name} byte {at}", SHOW, do.flip(file, at, draw.randrange(8)))
        for length in sorted(draw.sample(range(world.size(file)), 12)):
            yield Case("maps", f"{file.name} first {length} bytes", SHOW, do.cut(file, length))
        yield Case("maps", f"{file.name} longer", SHOW, do.append(file, b"\n"))
        yield from places("maps", SHOW, str(file))
    for key in json.loads((world.base / CONFIG).read_text(encoding="utf-8")):
        for name, value in {**WRONG, **NUMBERS}.items():
            yield Case("maps", f"{key}={name}", SHOW, do.put(CONFIG, (key,), value))
    for name, data in DOCUMENTS.items():
        yield Case("maps", f"config is {name}", SHOW, do.replace(CONFIG, data))
    for name, data in HEADERS.items():
        yield Case("maps", f"weights with {name}", SHOW, do.replace(WEIGHTS, data))
    for name, inside in tensor_changes().items():
        yield Case("maps", f"weights: {name}", SHOW, tensors(WEIGHTS, inside))
        yield Case("maps", f"in use: {name}", PATCH, tensors("map/adapter_model.safetensors", inside))
    both = Scene((*PATCH.needs, "othermap", "small"), PATCH.command)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        yield Case("maps", f"{file} of another", both, do.copy(f"othermap/{file}", f"map/{file}"))
        yield Case("maps", f"{file} of a smaller", both, do.copy(f"small/{file}", f"map/{file}"))
    yield Case("maps", "a file more", SHOW, do.replace("small/more.bin", b"x"))


def provenance(world: World, seed: int) -> Iterator[Case]:
    """Maps that were fitted to another model, or say nothing true about it."""
    draw = random.Random(seed)
    group, file = "provenance", "fitted/fitted.json"
    told = json.loads((world.base / file).read_text(encoding="utf-8"))
    for key in told:
        for name, value in WRONG.items():
            yield Case(group, f"{key}={name}", FITTED, do.put(file, (key,), value))
    for name, data in DOCUMENTS.items():
        yield Case(group, f"fitted.json is {name}", FITTED, do.replace(file, data))
    for at, change in do.flips(file, world.size(Path(file)), 25, draw):
        yield Case(group, f"fitted.json byte {at}", FITTED, change)
    yield from places(group, FITTED, file)
    for name, other in {"another model": "other", "what it was tuned from": "llama"}.items():
        argv = tuple(other if each == "tuned" else each for each in FITTED.command.argv)
        scene = Scene((*FITTED.needs, other), FITTED.command)
        yield Case(group, f"used with {name}", scene, rounds=((Command(argv),),), refuse=True)
    for name, more in {"none": ("--boundary", "none")}.items():
        argv = (*FITTED.command.argv, *more)
        yield Case(group, f"used with boundary {name}", FITTED, rounds=((Command(argv),),), refuse=True)
        argv = (*TESTED, "--boundary", "none", "--json")
        yield Case(group, f"tested with boundary {name}", FITTED, rounds=((Command(argv),),), refuse=True)
    swaps = Scene((*FITTED.needs, "map"), FITTED.command)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        yield Case(group, f"{file} of another map", swaps, do.copy(f"map/{file}", f"fitted/{file}"))


TESTED = ("lm", "test", "letters", "tuned", "--map", "fitted", "--test", "steering", "--pairs", "1", "--heads", "1.1")

GROUPS: dict[str, Group] = {"maps": maps, "provenance": provenance}
