"""Padded units are the units, and replayed passes are those that were captured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopscope.maps import Dense
from loopscope.models.folders import load
from loopscope.studies.language.recipes import recipe
from loopscope.training.lm.batches import Unit
from loopscope.training.lm.checks import Checks
from loopscope.training.lm.cuda_graphs import ANSWERS, LENGTH, TARGETS, padded
from loopscope.training.lm.objective import Objective
from loopscope.training.lm.processes import Processes
from loopscope.training.lm.trainer import Tuner
from tests.tuning_tiny import tuning_data, tuning_folder

pytestmark = pytest.mark.gpu
POSITIONS = 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuning_folder(tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("name", ["smol-letter-adapt", "smol-letter", "smol-antonym-stepwise", "smol-letter-map"])
def test_a_padded_unit_has_the_loss_and_gradients_of_the_unit(folder: Path, name: str) -> None:
    model = load(folder)
    model.requires_grad_(True)
    for unit in tuning_data(recipe(name, ["examples=4", "micro=4"]), folder)(0, 3):
        longer = padded(unit, POSITIONS)
        assert (longer.loops, longer.reads, longer.kind) == (unit.loops, unit.reads, unit.kind)
        assert longer.length == unit.length
        found = []
        for each in (unit, longer):
            model.zero_grad()
            loss, right = Objective(model)(each)
            loss.backward()
            found.append((loss.detach(), right, [part.grad.clone() for part in model.parameters()]))
        (loss, right, gradients), (same, several, again) = found
        torch.testing.assert_close(same, loss)
        assert torch.equal(several[: len(right)], right)
        assert not longer.depths[len(right) :].any()
        assert not longer.after[len(right) :].any()
        for a, b in zip(again, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_padded_shapes_are_few_and_within_the_positions(folder: Path) -> None:
    given = tuning_data(recipe("smol-letter-adapt", ["examples=4", "micro=4"]), folder)
    several = [[padded(unit, POSITIONS) for unit in given(update, 2)] for update in range(12)]
    plain = [given(update, 2) for update in range(12)]

    def shapes(many: list[list[Unit]]) -> set[tuple[torch.Size, ...]]:
        return {tuple(each.shape for each in unit.tensors.values()) for units in many for unit in units}

    assert len(shapes(several)) <= 3 < 9 <= len(shapes(plain))
    (unit, *_) = plain[0]
    longer = padded(unit, POSITIONS)
    assert longer.tokens.shape[1] % LENGTH == len(longer.targets) % (TARGETS // 8) == len(longer.answers) % ANSWERS == 0
    assert padded(unit, unit.tokens.shape[1] + 1).tokens.shape[1] == unit.tokens.shape[1] + 1
    again = padded(longer, POSITIONS)
    assert again.tensors.keys() == longer.tensors.keys()
    assert all(torch.equal(each, longer.tensors[name]) for name, each in again.tensors.items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs take a GPU")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("smol-letter-adapt", ["grow_every=3", "grow_at=null"]),
        ("small-letter-map", []),
        ("smol-letter-map", ["grow_every=3", "grow_at=null"]),
        ("smol-antonym-stepwise", []),
    ],
)
def test_captured_training_is_training(folder: Path, name: str, more: list[str]) -> None:
    """Shapes and levels change on the way, and two units of an update add up."""
    changes = ["updates=12", "examples=4", "micro=2", "checked=1", "check_every=6", "horizon=0", "warmup=1"]
    given, gpu, found = recipe(name, [*changes, *more]), torch.device("cuda"), []
    for captured in (False, True):
        batches = tuning_data(given, folder)
        model = load(folder, loops=given.loops, device=gpu)
        step = Dense(model.width).to(gpu) if given.trains == "map" else None
        model.requires_grad_(step is None)
        objective = Objective(model, step, given.placement)
        objective.compiled = True
        processes = Processes(0, 1, gpu)
        checks = Checks(given, batches.tokenizer, batches.pools, processes)
        tuner = Tuner(given, objective, batches, checks, processes, captured)
        tuner.run(lambda _: None)
        found.append((tuner.history, {key: value.cpu() for key, value in tuner.weights.items()}))
    (plain, weights), (again, same) = found
    for a, b in zip(plain, again, strict=True):
        assert a["update"] == b["update"]
        if "loss" in a:
            assert a["loss"] == pytest.approx(b["loss"], rel=2e-2)
            assert {key: count[1] for key, count in a["answers"].items()} == {
                key: count[1] for key, count in b["answers"].items()
            }
    for key, value in weights.items():
        torch.testing.assert_close(same[key], value, rtol=0.05, atol=5e-3)
