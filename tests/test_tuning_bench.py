"""The bench of fine-tuning times what it says: updates after the first window, without checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from loopscope.cli.bench.tuning import bench_tuning
from loopscope.errors import InputError
from loopscope.studies.language.recipes import recipe
from loopscope.training.lm.checks import Checks
from loopscope.training.lm.trainer import Tuner
from tests.commands import loopscope
from tests.tuning_tiny import small, tuning_folder


@pytest.mark.parametrize("name", ["smol-letter-adapt", "smol-letter-map"])
def test_a_cpu_has_the_plain_way(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, steps = tuning_folder(tmp_path / "llama"), []
    step = Tuner._step

    def noted(self: Tuner, units: object) -> None:
        steps.append(self.recipe.depth_at(self.level_at(self.update)))
        step(self, units)  # type: ignore[arg-type]

    def refuse(*_: object) -> None:
        raise AssertionError("a check was made")

    monkeypatch.setattr(Tuner, "_step", noted)
    monkeypatch.setattr(Checks, "__call__", refuse)
    given = small(name, "share=0", "deepest=2", *(["grow_every=5"] if "adapt" in name else []))
    (found,) = bench_tuning(folder, given, torch.device("cpu"), windows=4)
    assert steps == [2] * 4  # as deep as the recipe's from the start
    assert (found.way, found.ratio) == ("plain", 1.0)
    assert found.seconds > 0
    assert found.tokens > 100


def test_a_map_keeps_its_pace(tmp_path: Path) -> None:
    """Eight steps in four loops take two a loop."""
    given = recipe("smol-letter-map", ["examples=2", "micro=2", "share=0"])
    (found,) = bench_tuning(tuning_folder(tmp_path / "llama"), given, torch.device("cpu"), windows=2)
    assert found.tokens > 100


def test_the_command_and_a_refusal(
    tmp_path: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tuning_folder(tmp_path / "llama")
    fewer = [word for change in ("examples=2", "micro=2", "share=0") for word in ("--set", change)]
    code, out, _ = loopscope(capsys, "bench", "tune", str(folder), *fewer, "--device", "cpu", "--json")
    assert code == 0
    assert [way["way"] for way in json.loads(out)["ways"]] == ["plain"]
    once = partial(bench_tuning, folder, small("smol-letter"), torch.device("cpu"), windows=1)
    assert "at least 2 windows" in refused(InputError, once)
