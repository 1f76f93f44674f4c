"""Work that is interrupted, resumed from what was left, or done by two processes at once."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from dataclasses import replace

from tests.drill import mutations as do
from tests.drill.cases import Case, Command, Death, Group, Scene, World
from tests.drill.classes.artefacts import artefacts
from tests.drill.classes.surroundings import ADD, KEEP, NEW, PATCH, READ, RULES, TUNED

DEATHS = {"killed": signal.SIGKILL, "ended": signal.SIGTERM, "interrupted": signal.SIGINT}
ENDS = (0, 1, 9, 15, 130, 143)
EVENTS = {"readouts": (READ, 40), "new": (NEW, 60), "rules": (RULES, 6), "keep": (KEEP, 60), "add": (ADD, 60),
          "patch": (PATCH, 40), "finetune": (TUNED, 400)}  # fmt: skip
"""By name: a command that writes and about how many things it does to files."""


def signals(world: World, seed: int) -> Iterator[Case]:
    """A command that ends in the middle leaves nothing that the next one, or `store gc`, does not deal with."""
    draw = random.Random(seed)
    for name, (scene, events) in EVENTS.items():
        command = scene.command
        stores = [each for each in ("made", "store") if name in ("keep", "add", "finetune") and each in scene.writes]
        if name == "finetune":
            stores = ["store"]
        for told, number in DEATHS.items():
            for event in sorted(draw.sample(range(events), min(events, 4 if name == "finetune" else 6))):
                cleaned = tuple((Command(("store", "gc", "--store", each, "--json")),) for each in stores)
                rounds = ((replace(command, death=Death(number, event)),), *cleaned, (command,))
                yield Case("signals", f"{name} {told} at {event}", scene, codes=(), rounds=rounds, earlier=(*ENDS, 2))


def together(world: World, seed: int) -> Iterator[Case]:
    """Two processes at once, on the same things."""
    verify = Command(("store", "verify", "--store", "made", "--json"))
    for name, (scene, _) in EVENTS.items():
        busy = (2,) if name in ("finetune", "readouts", "new", "rules", "patch") else ()
        for number in range(3):
            rounds = ((scene.command, scene.command),)
            yield Case("together", f"{name} twice, {number}", scene, rounds=rounds, earlier=busy, codes=busy)
    for number in range(4):
        beside = Command(("store", "gc", "--store", "made", "--json"))
        yield Case(
            "together",
            f"add beside gc, {number}",
            ADD,
            rounds=((ADD.command,), (beside, verify), (ADD.command,)),
            codes=(),
        )
        rounds = ((KEEP.command, beside), (KEEP.command,))
        yield Case("together", f"keep beside gc, {number}", KEEP, rounds=rounds, earlier=(2,), codes=())
        rounds = ((KEEP.command, verify), (KEEP.command,))
        yield Case("together", f"keep beside verify, {number}", KEEP, rounds=rounds, earlier=(2,), codes=())


RESUMED = Scene(
    ("llama", "text.jsonl", "begun"),
    Command((*TUNED.command.argv[:-1], "--store", "begun", "--json")),
    ("made", "begun"),
    ("made",),
)


def checkpoints(world: World, seed: int) -> Iterator[Case]:
    """A training job that was begun: checkpoints that cannot be used are told and passed over, and nothing is lost."""
    return (replace(case, tells=True) for case in _checkpoints(world))


def _checkpoints(world: World) -> Iterator[Case]:
    from tests.drill.classes.models import DOCUMENTS
    from tests.drill.forging import forged, in_json, refilled

    found = (
        [each for each in artefacts(world, "begun") if each.parts[1] == "checkpoint"]
        if (world.base / "begun").is_dir()
        else []
    )
    for artefact in found:
        told = artefact.name[:6]
        for file in world.files(str(artefact)):
            yield Case("checkpoints", f"{told}/{file.name} flipped", RESUMED, do.flip(file, -3, 1))
            yield Case("checkpoints", f"{told}/{file.name} cut", RESUMED, do.cut(file, -1))
            yield Case("checkpoints", f"{told}/{file.name} gone", RESUMED, do.remove(file))
            yield Case("checkpoints", f"{told}/{file.name} a FIFO", RESUMED, do.fifo(file))
        for name, value in {"null": None, "list": [], "text": "x", "empty": {}}.items():
            change = forged(artefact, lambda body, value=value: body.update(config=value), rename=True)
            yield Case("checkpoints", f"{told} config={name}", RESUMED, change)
            change = forged(artefact, lambda body, value=value: body["config"].update(update=value), rename=True)
            yield Case("checkpoints", f"{told} update={name}", RESUMED, change)
            change = refilled(
                artefact, "progress.json", in_json(lambda told, value=value: value if value is not None else "null")
            )
            yield Case("checkpoints", f"{told} progress={name}", RESUMED, change)
        for name, data in DOCUMENTS.items():
            yield Case("checkpoints", f"{told} progress is {name}", RESUMED, refilled(artefact, "progress.json", data))
        yield Case(
            "checkpoints",
            f"{told} without tensors",
            RESUMED,
            refilled(artefact, "state.safetensors", b"\x02" + bytes(7) + b"{}"),
        )


GROUPS: dict[str, Group] = {"signals": signals, "together": together, "checkpoints": checkpoints}
