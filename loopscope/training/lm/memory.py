"""How much memory a run takes, counted before it begins, so that one that cannot fit is not begun.

Counted from shapes: weights, gradients and optimiser state in fp32; on a GPU a bf16 copy of trained weights for the
products, while frozen ones are there in bf16 alone, but for an embedding; what a pass keeps for its backward pass; and
the logits of the tokens learned.  What a layer keeps is at most 8 d + 8 H k + 4 m numbers per row (width d, H heads of
size k, MLP m): measured on Llama, Qwen3 and Ouro, it was that or up to a quarter less.  Recomputing keeps one state
per layer, and one layer's worth; a norm at the end of a loop keeps three more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from loopscope.errors import InputError
from loopscope.execute.runs import Sizes
from loopscope.models.folders import Adapter
from loopscope.pieces import pieces_of
from loopscope.training.lm.batches import Unit
from loopscope.training.lm.objective import ROWS
from loopscope.training.lm.recipe import Recipe
from loopscope.training.lm.task_recipe import TaskRecipe

SPARE = 0.9
"""How much of the free memory may be planned for: allocators leave gaps."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a run takes in one process, by what they are for."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    logits: int
    recompute: bool

    @property
    def total(self) -> int:
        """All together."""
        return self.weights + self.gradients + self.optimiser + self.activations + self.logits

    def to_dict(self) -> dict[str, int | bool]:
        """JSON-able."""
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = ("weights", "gradients", "optimiser", "activations", "logits")
        sizes = ", ".join(f"{name} {getattr(self, name) / 2**30:.2f}" for name in parts)
        how = "layers recomputed" if self.recompute else "nothing recomputed"
        return f"{self.total / 2**30:.2f} GiB ({sizes}; {how})"


def estimate(
    model: Adapter, step: nn.Module | None, recipe: Recipe | TaskRecipe, units: Iterable[Unit], *, device: torch.device,
    recompute: bool, processes: int = 1,
) -> Memory:  # fmt: skip
    """What training takes with passes like `units`, from a model on any device, the meta device too.

    With several processes, all but a pass's own gathered weights are divided among them.
    """
    gpu = device.type == "cuda"
    size = sum(each.numel() for each in model.parameters())
    trained = [each.shape for each in (model if step is None else step).parameters()]
    count = sum(shape.numel() for shape in trained)
    if recipe.optimiser == "adamw":
        kept = 2 * count
    else:
        kept = sum(shape.numel() // shape[-1] + shape.numel() // shape[-2] if len(shape) > 1 else shape.numel()
                   for shape in trained)  # fmt: skip
    parts = processes if step is None else 1
    whole = 4 * size if parts > 1 else 0  # gathered for a pass, beside this process's share
    product = 2 if gpu else 4
    linear = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    frozen = 2 * linear if gpu and step is not None else 0
    mlp = model.middle
    d, heads = model.width, model.heads * model.head_size
    layers_of = Sizes.of(pieces_of(model), 1).layers_of
    layer = 4 * (8 * d + 8 * heads) + product * 4 * mlp
    activations, logits = 0, 0
    for unit in units:
        length, programs = unit.tokens.shape[1], [model.program(loops) for loops in unit.loops]
        calls = sum(program.calls for program in programs)
        passed = sum(map(layers_of, programs))  # a prelude and a coda once for each example
        held = passed * 4 * d + len(unit.loops) * layer if recompute else passed * layer
        closing = calls * 3 * 4 * d if model.boundary == "norm" else 0
        activations = max(activations, length * (held + closing))
        logits = max(logits, min(len(unit.targets), ROWS) * model.vocabulary * (product + 8))
    return Memory(
        weights=4 * size // parts + whole + (2 * size if gpu and step is None else 0) - frozen,
        gradients=4 * count // parts + (whole if step is None else 0),
        optimiser=4 * kept // parts,
        activations=activations,
        logits=logits,
        recompute=recompute,
    )


def free_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise InputError("this system does not say how much memory is free")


def plan(
    model: Adapter, step: nn.Module | None, recipe: Recipe | TaskRecipe, units: Iterable[Unit], *, device: torch.device,
    processes: int = 1, free: int | None = None,
) -> Memory:  # fmt: skip
    """The estimate of how the run is done: with recomputed layers only where it would not fit without.

    InputError where it fits neither way; `free` is the memory that is there (default: what the device says).
    """
    there = free_memory(device) if free is None else free
    passes = list(units)
    for recompute in (False, True):
        found = estimate(
            model, step, recipe, passes, device=device, recompute=recompute, processes=processes
        )  # fmt: skip
        if found.total <= SPARE * there:
            return found
    raise InputError(
        f"{recipe.name} takes about {found}, but {device.type} has {there / 2**30:.2f} GiB free; "
        f"smaller passes take less (micro={max(1, recipe.micro // 2)})"
    )
