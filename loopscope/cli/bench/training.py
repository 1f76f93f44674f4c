"""How fast training is: the plain eager loop of a recipe beside ours, in one run.

The baseline is what one would write first: the model of `model.py`, `torch.optim.AdamW`, `clip_grad_norm_`, autocast
where the recipe's products are bf16, one seed, batches from the same stream already on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

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
from loopscope.training.cohort.trainer import WINDOW, Trainer
from loopscope.training.recipe import BackboneRecipe, GraphData, MapRecipe, ParityData, WalkFit

Log = Callable[[str], None]
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


@dataclass(frozen=True)
class Machine:
    """What the times were taken on; the peak is that of one large bf16 product."""

    device: str
    torch: str
    peak_tflops: float | None


def bench_training(device: torch.device, log: Log = lambda _: None) -> tuple[Machine, list[Timing]]:
    """On a GPU: D8L6 with one, three and eight seeds, four map fits, three parity seeds; on a CPU: tiny recipes."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    peak = None
    if device.type == "cuda":
        log("bf16 peak")
        peak = measure_peak(device)
    machine = Machine(name, torch.__version__, peak)
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
    return machine, timings


def measure_peak(device: torch.device, size: int = 8192) -> float:
    """TFLOP/s of a product of two square bf16 matrices, the best of several tries."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = min(_seconds(lambda: a @ b, 10, device) for _ in range(5))
    return 2 * size**3 / best / 1e12


def _seconds(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Seconds per call, after two calls that are not timed."""
    for _ in range(2):
        step()
    _wait(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    _wait(device)
    return (time.perf_counter() - started) / count


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _backbones(recipe: BackboneRecipe, seeds: int, device: torch.device) -> Objective:
    numbers = list(range(seeds))
    return BACKBONES[recipe.data.task](recipe, [initial_model(recipe, seed) for seed in numbers], numbers, device)


def _short(recipe: AnyRecipe, device: torch.device) -> AnyRecipe:
    """The recipe cut to a few windows, the last of one update, which ends with a check and is not timed."""
    updates = WINDOW[device.type] * WINDOWS + 1
    return replace(recipe, stages=(replace(recipe.stages[0], updates=updates, check_every=0),))


def _timed(
    case: str, recipe: BackboneRecipe | MapRecipe, objective: Objective, eager: float | None, peak: float | None
) -> Timing:
    """Time the trainer itself, with its looks at the device; graphs are captured before the clock starts."""
    device = objective.stack.flat.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    marks: list[float] = []
    Trainer(objective, "last").run(lambda *_: marks.append(time.perf_counter()))
    timed = WINDOW[device.type] * (WINDOWS - 1)
    return _timing(case, recipe, len(objective.stack), eager, (marks[-2] - marks[0]) / timed, timed, peak, device)


def _timing(
    case: str, recipe: BackboneRecipe | MapRecipe, members: int, eager: float | None, seconds: float, timed: int,
    peak: float | None, device: torch.device,
) -> Timing:  # fmt: skip
    """`seconds` per update of all members."""
    total = sum(stage.updates for stage in recipe.stages)
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
    data, optimiser = recipe.data, recipe.stages[0].optimiser
    model = initial_model(recipe, 0).to(device)
    adam = torch.optim.AdamW(
        model.parameters(), lr=optimiser.schedule.peak, betas=optimiser.betas, eps=optimiser.eps,
        weight_decay=optimiser.decay,
    )  # fmt: skip
    stream = GraphStream(recipe.stream, [0], recipe.batch, data.nodes, held_out(data.held_out), device)
    task, update = GraphWalk(data.nodes), torch.zeros((), dtype=torch.int64, device=device)
    bf16 = device.type == "cuda" and recipe.precision == "bf16"

    def step() -> None:
        update.add_(1)
        graphs, starts = stream.graphs(update)[0], stream.starts(update)[0]
        depths = stream.depths(update, data.depth)[0]
        target = walk(graphs, starts, data.depth).gather(1, depths[:, None])[:, 0]
        tokens = task.tokens(graphs, starts, depths, check=False)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            loss = nnf.cross_entropy(_forward(model, tokens), target)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optimiser.clip)
        adam.step()

    return _seconds(step, count, device)


def _forward(model: LoopedTransformer, tokens: Tensor) -> Tensor:
    h = model.embed(tokens)
    for _ in range(model.config.loops):
        h = model.call(h)
    return model.read(h[:, -1])


def time_eager_fit(recipe: MapRecipe, model: LoopedTransformer, device: torch.device, count: int) -> float:
    """Seconds per update of the plain loop, one map."""
    assert isinstance(recipe.data, WalkFit)
    data, optimiser = recipe.data, recipe.stages[0].optimiser
    model = model.to(device).requires_grad_(False)
    step_map = new_map(recipe, model.width, 1).to(device)
    adam = torch.optim.AdamW(step_map.parameters(), lr=optimiser.schedule.peak, weight_decay=0.0)
    nodes = model.config.classes
    stream = GraphStream(recipe.stream, [1], recipe.batch, nodes, held_out(data.held_out), device)
    task, update = GraphWalk(nodes), torch.zeros((), dtype=torch.int64, device=device)

    def step() -> None:
        update.add_(1)
        graphs, starts = stream.graphs(update)[0], stream.starts(update)[0]
        target = walk(graphs, starts, data.base + data.hops)[:, -1]
        with torch.no_grad():
            h = model.embed(task.tokens(graphs, starts, data.request, check=False))
            for _ in range(model.config.loops):
                h = model.call(h)
        loss = nnf.cross_entropy(model.read(model.call(step_map(h))[:, -1]), target)
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(step_map.parameters(), optimiser.clip)
        adam.step()

    with products("fp32"):
        seconds = _seconds(step, count, device)
    model.to("cpu")
    return seconds


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
