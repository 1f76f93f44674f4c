"""Jobs of training that are stopped, broken and taken up again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.store.store import Store
from loopscope.training.cohort.jobs import Finished, Progress, Settings
from loopscope.training.cohort.objective import Step
from loopscope.training.cohort.walks import WalkBackbones
from loopscope.training.recipe import BackboneRecipe, Schedule
from tests.toys import CPU, stage_of, toy_walk


def digest_of(weights: dict[str, Tensor]) -> str:
    told = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        told.update(name.encode() + tensor.numpy().tobytes())
    return told.hexdigest()


def settings_of(**changes: Any) -> Settings:
    return Settings(CPU, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


class StoppedError(Exception):
    """Raised by whoever watches, to stop a run."""


def stop_after(windows: int) -> Callable[[Progress], None]:
    left = [windows]

    def watch(_: Progress) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise StoppedError

    return watch


def digests(done: list[Finished]) -> list[dict[str, str]]:
    return [dict(each.digests) for each in done]


def checkpoints(store: Store) -> list[tuple[int, int]]:
    """(stage, update) of the checkpoints in a store."""
    return sorted((each.manifest.config["stage"], each.manifest.config["update"]) for each in store.every("checkpoint"))


def breaking(bad: dict[int, int], how: float = math.nan) -> type[WalkBackbones]:
    """Graph walks in which the loss of some seeds is not finite from some update on."""

    class Breaking(WalkBackbones):
        def __init__(self, recipe: BackboneRecipe, models: Any, seeds: Sequence[int], device: torch.device) -> None:
            super().__init__(recipe, models, seeds, device)
            self.seeds = list(seeds)

        def step(self, stage: int, shape: None, update: Tensor) -> Step:
            step = super().step(stage, shape, update)
            hit = torch.tensor([update >= bad.get(seed, 10**6) for seed in self.seeds])
            return Step(torch.where(hit, how, step.losses), step.drawn)

    return Breaking


EVERY = 2  # updates of a window


def toy_backbone(windows: int) -> BackboneRecipe:
    """A backbone whose checkpoints cost more than its updates."""
    made = toy_walk()
    stage = stage_of(EVERY * windows, EVERY, schedule=Schedule(0.01, warmup=3))
    return replace(made, model=replace(made.model, width=8, layers=1, mlp=16), batch=4, stages=(stage,))


BACKBONES = {"backbone": toy_backbone(24), "short": toy_backbone(3), "shortest": toy_backbone(2)}


def told(done: list[Finished]) -> list[Any]:
    """What must not depend on interruptions, as JSON."""
    return [[each.key, each.selected_update, list(each.score), dict(each.digests)] for each in done]
