"""The campaign of what is left open: its commands are commands, it stops in time, and the same call goes on."""

from __future__ import annotations

import runpy
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import typer

from loopscope.cli.app import app
from loopscope.studies.language.protocols import plan
from loopscope.studies.recipes import RECIPES
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.selecting.hops import DECIDING
from loopscope.training.cohort.hops import BLOCKS, HOPS

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "docs" / "open_questions.py"))
PLAN: tuple[Any, ...] = SCRIPT["PLAN"]
Step: Any = SCRIPT["Step"]
WORDS = {"DEVICE": "cpu", "TOKENIZER": "."}
SHELL = ("sh", "-c", 'exec "$@"', "sh")


def campaign(tmp_path: Path, *steps: Any, minutes: float = 1.0) -> Any:
    """Of programs of the system in the place of commands."""
    return SCRIPT["Campaign"](steps, tmp_path, minutes, {"DEVICE": "cpu"}, SHELL)


def test_every_command_is_one() -> None:
    """With these arguments and options; what is trained and measured exists."""
    whole = typer.main.get_command(app)
    for command in dict.fromkeys(each for step in PLAN for each in step.commands):
        words = ["." if word.startswith("W/") else WORDS.get(word, word) for word in shlex.split(command)]
        found: Any = whole
        context = None
        while hasattr(found, "commands"):
            context, found = typer.Context(found, parent=context), found.commands[words.pop(0)]
        given = found.make_context(command, words, parent=context).params
        for name in [given["recipe"]] if "seeds" in given else given.get("recipes", ()):
            assert name in RECIPES, command
        assert set(given.get("experiments") or ()) <= set(EXPERIMENTS), command
        if command.startswith("lm reproduce "):
            plan(given["protocol"], given["scale"], given["changes"])


def test_the_plan_has_what_decides() -> None:
    asked = {
        (name, backbone)
        for step in PLAN
        for command in step.commands
        if command.startswith("fit ")
        for name in command.partition(" --")[0].split()[1:]
        for backbone in command.split()
        if backbone.startswith("d8l")
    }
    maps = [control.target(k) for control in BLOCKS[:2] for k in HOPS]
    assert {(name, backbone) for name in maps for backbone in DECIDING} <= asked
    names = [step.name for step in PLAN]
    assert len(names) == len(set(names))
    assert all(names.index(before) < names.index(step.name) for step in PLAN for before in step.after)


def test_what_is_done_is_not_done_again_and_what_failed_is(tmp_path: Path) -> None:
    add = "sh -c 'echo x >> {}'"
    first, second = tmp_path / "first", tmp_path / "second"
    steps = (
        Step("two", "", "a", 0.0, (add.format(first), f"test -e {tmp_path}/there", add.format(second)), drop=("gone",)),
        Step("behind", "", "b", 0.0, (f"test -e {second}",), ("two",)),
        Step("beside", "", "a", 0.0, ("true",)),
    )
    (tmp_path / "gone").mkdir()
    one = campaign(tmp_path, *steps)
    started = time.monotonic()
    assert one.run() == 1
    assert time.monotonic() - started < 30  # and not the minute: nobody waits for what failed
    assert "waits for two" in one.table()
    assert [one.done(step) for step in steps] == [1, 0, 1]
    assert "failed (exit code 1)" in one.table()
    assert (tmp_path / "gone").exists()
    (tmp_path / "there").touch()
    again = campaign(tmp_path, *steps)
    assert again.run() == 0
    assert first.read_text() == second.read_text() == "x\n"
    assert all(map(again.finished, steps))
    assert not (tmp_path / "gone").exists()
    assert campaign(tmp_path, *steps).run() == 0
    assert first.read_text() == "x\n"


def test_it_stops_in_time_and_begins_nothing_that_must_end_in_one_go(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    slow = Step("slow", "", "a", 1.0, (f"sh -c 'trap \"touch {asked}; exit 1\" TERM; sleep 60 & wait'", "true"))
    whole = Step("whole", "", "b", 1.0, ("true",), whole=True)
    made = campaign(tmp_path, slow, whole)
    threading.Timer(1.0, made.stop).start()
    started = time.monotonic()
    assert made.run() == 0
    assert time.monotonic() - started < 20
    assert asked.exists()
    assert [made.done(step) for step in (slow, whole)] == [0, 0]
    assert "too late" in made.table()


def test_a_model_whose_weights_did_not_travel_is_begun_again(tmp_path: Path) -> None:
    made, trained = tmp_path / "new", tmp_path / "trained"
    new = f"sh -c 'mkdir {made} && touch {made}/model.safetensors'"
    step = Step("model", "", "a", 0.0, (new, f"test -e {tmp_path}/there"), start="new", drop=("trained",))
    one = campaign(tmp_path, step)
    assert one.run() == 1
    assert one.done(step) == 1
    (made / "model.safetensors").unlink()
    trained.mkdir()
    (tmp_path / "there").touch()
    again = campaign(tmp_path, step)
    assert again.done(step) == 0
    assert again.run() == 0
    assert (made / "model.safetensors").exists()
    assert not trained.exists()
