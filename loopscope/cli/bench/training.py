"""How fast training is: the plain eager loop of a recipe beside ours, in one run.

The baseline is what one would write first: the model of `model.py`, `torch.optim.AdamW`, `clip_grad_norm_`, autocast
where the recipe's products are bf16, one seed, batches from the same stream already on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from loopscope.cli.bench.timing import Machine, machine, seconds_per_call, timed_windows
from loopscope.log import Log, silent
from loopscope.model import LoopedTransformer
from loopscope.studies.costs import training_flops
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.tasks.graph_walk import GraphWalk, walk
from loopscope.tasks.populations import held_out
from loopscope.training.cohort.cohort import products
from loopscope.training.cohort.jobs import BACKBONES, FITS, initial_model
from loopscope.training.cohort.objective import Objective, new_map
from loopscope.training.cohort.parity import ParityBackbones
from loopscope.training.cohort.streams import GraphStream
from loopscope.training.cohort.trainer import LOOK_EVERY, Trainer
from loopscope.training.recipe import BackboneRecipe, GraphData, MapRecipe, Optimiser, ParityData, WalkFit

AnyRecipe = TypeVar("AnyRecipe", BackboneRecipe, MapRecipe)
WINDOWS = 4  # of a timed run; the first is not timed


@dataclass(frozen=True)
class Timing:
    """One recipe, timed.  Times are milliseconds per member and update; `tflops` counts full rows (see `costs.py`)."""

    case: str
    members: int
    eager_ms: float | None
    ours_ms: float
    ratio: float | None
    tflops: float
    share_of_peak: float | None
    updates: int
    projected_s: float
    measured_updates: int
    memory_gib: float | None


def bench_training(device: torch.device, log: Log = silent) -> tuple[Machine, list[Timing]]:
    """On a GPU: D8L6 with one, three and eight seeds, four map fits, three parity seeds; on a CPU: tiny recipes."""
    here = machine(device, log)
    peak = here.peak_tflops
    small = device.type != "cuda"
    backbone, maps = ("tiny", ("tiny-stay", "tiny-one")) if small else ("d8l6", ("one", "two"))
    recipe = backbone_recipe(backbone)
    log(f"{backbone}, eager")
    eager = time_eager(recipe, device, 20 if small else 40)
    timings = []
    for seeds in (2,) if small else (8, 3, 1):
        log(f"{backbone}, {seeds} seeds")
        timings.append(
            _timed(f"{backbone}, {seeds} seeds", recipe, _backbones(_short(recipe, device), seeds, device), eager, peak)
        )
    model = initial_model(recipe, 0)
    chosen = [map_recipe(each) for each in maps]
    log("map fit, eager")
    eager = time_eager_fit(chosen[0], model, device, 10 if small else 40)
    log("map fits")
    pairs = [(each.data.hops, fit) for each in chosen for fit in (1, 2) if isinstance(each.data, WalkFit)]
    fits = FITS["graph-walk"](_short(chosen[0], device), model, pairs, device)
    timings.append(_timed(f"{'+'.join(maps)}, 4 fits", chosen[0], fits, eager, peak))
    if not small:
        log("parity, 3 seeds")
        timings.append(time_parity(device, peak))
    return here, timings


def _backbones(recipe: BackboneRecipe, seeds: int, device: torch.device) -> Objective:
    numbers = list(range(seeds))
    return BACKBONES[recipe.data.task](recipe, [initial_model(recipe, seed) for seed in numbers], numbers, device)


def _short(recipe: AnyRecipe, device: torch.device) -> AnyRecipe:
    """The recipe cut to a few windows, the last of one update, which ends with a check and is not timed."""
    updates = LOOK_EVERY[device.type] * WINDOWS + 1
    return replace(recipe, stages=(replace(recipe.stages[0], updates=updates, check_every=0),))


def _timed(
    case: str, recipe: BackboneRecipe | MapRecipe, objective: Objective, eager: float | None, peak: float | None
) -> Timing:
    """Time the trainer itself, with its looks at the device; graphs are captured before the clock starts."""
    device = objective.stack.flat.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    members, total = len(objective.stack), sum(stage.updates for stage in recipe.stages)
    (began, first, _), *_, (ended, last, _), _ = timed_windows(Trainer(objective, "last"))
    timed = last - first
    seconds = (ended - began) / timed  # of an update of all members
    ours = seconds / members
    speed = training_flops(recipe) / total / ours / 1e12
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    eager_ms, ratio = (None, None) if eager is None else (eager * 1e3, eager / ours)
    return Timing(
        case, members, eager_ms, ours * 1e3, ratio, speed,
        None if peak is None else speed / peak, total, seconds * total, timed, memory,
    )  # fmt: skip


def time_eager(recipe: BackboneRecipe, device: torch.device, count: int) -> float:
    """Seconds per update of the plain loop, one seed."""
    assert isinstance(recipe.data, GraphData)
    data, task, model = recipe.data, GraphWalk(recipe.data.nodes), initial_model(recipe, 0).to(device)
    stream = GraphStream(recipe.stream, [0], recipe.batch, data.nodes, held_out(data.held_out), device)
    bf16 = device.type == "cuda" and recipe.precision == "bf16"

    def loss(update: Tensor) -> Tensor:
        graphs, starts = stream.graphs(update)[0], stream.starts(update)[0]
        depths = stream.depths(update, data.depth)[0]
        target = walk(graphs, starts, data.depth).gather(1, depths[:, None])[:, 0]
        tokens = task.tokens(graphs, starts, depths, check=False)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            return nnf.cross_entropy(model.read(_looped(model, tokens)[:, -1]), target)

    return _time_plain(recipe.stages[0].optimiser, model, loss, count, device)


def time_eager_fit(recipe: MapRecipe, model: LoopedTransformer, device: torch.device, count: int) -> float:
    """Seconds per update of the plain loop, one map."""
    assert isinstance(recipe.data, WalkFit)
    data, nodes = recipe.data, model.config.classes
    model = model.to(device).requires_grad_(False)
    made, task = new_map(recipe, model.width, 1).to(device), GraphWalk(nodes)
    stream = GraphStream(recipe.stream, [1], recipe.batch, nodes, held_out(data.held_out), device)

    def loss(update: Tensor) -> Tensor:
        graphs, starts = stream.graphs(update)[0], stream.starts(update)[0]
        target = walk(graphs, starts, data.base + data.hops)[:, -1]
        with torch.no_grad():
            h = _looped(model, task.tokens(graphs, starts, data.request, check=False))
        return nnf.cross_entropy(model.read(model.call(made(h))[:, -1]), target)

    with products("fp32"):
        seconds = _time_plain(recipe.stages[0].optimiser, made, loss, count, device)
    model.to("cpu")
    return seconds


def _time_plain(
    optimiser: Optimiser, trained: nn.Module, loss: Callable[[Tensor], Tensor], count: int, device: torch.device
) -> float:
    """Seconds per update of what one would write first."""
    update = torch.zeros((), dtype=torch.int64, device=device)
    adam = torch.optim.AdamW(
        trained.parameters(), lr=optimiser.schedule.peak, betas=optimiser.betas, eps=optimiser.eps,
        weight_decay=optimiser.decay,
    )  # fmt: skip

    def step() -> None:
        adam.zero_grad()
        loss(update.add_(1)).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), optimiser.clip)
        adam.step()

    return seconds_per_call(step, count, device)


def _looped(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    h = model.embed(tokens)
    for _ in range(model.config.loops):
        h = model.call(h)
    return h


class _Climbing(ParityBackbones):
    """Updates at one length as they are before the full length is reached: none takes the short cut of the last."""

    def shape(self, stage: int, update: int) -> tuple[int, bool]:
        return self.data.longest, False


def time_parity(device: torch.device, peak: float | None) -> Timing:
    """Three parity seeds at the full length, which nine of ten updates have.

    The whole run is projected from this and the times at two shorter lengths, linear in between.
    """
    recipe = backbone_recipe("parity")
    assert isinstance(recipe.data, ParityData)
    models, seeds = [initial_model(recipe, seed) for seed in range(3)], range(3)
    full = _short(replace(recipe, data=replace(recipe.data, every=1)), device)
    timing = _timed("parity, 3 seeds", recipe, ParityBackbones(full, models, seeds, device), None, peak)
    lengths, times = [5, 10], []
    for length in lengths:
        short = replace(full, data=replace(recipe.data, longest=length, every=1))
        times.append(_timed("climbing", recipe, _Climbing(short, models, seeds, device), None, peak).ours_ms)
    total = sum(stage.updates for stage in recipe.stages)
    taken = [recipe.data.reached(update) for update in range(1, total + 1)]
    milliseconds = np.interp(taken, [*lengths, recipe.data.longest], [*times, timing.ours_ms]).sum() * timing.members
    return replace(timing, projected_s=float(milliseconds) / 1e3)
