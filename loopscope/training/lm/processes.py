"""One process, or several that train together: who has which part of the work and of the weights.

    accelerate launch --num_processes 4 -m loopscope.cli lm finetune ...

Each process takes its share of an update's passes.  Where all weights are trained, each also holds its share of the
weights, gradients and optimiser states (FSDP): the whole model is one unit, gathered once for a pass, because the same
layers are used again in every loop and gathering them for each use would cost as many times more.  Where a map is
fitted, every process has the whole frozen model, and only the map's gradients are exchanged (DDP).
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from loopscope.errors import InputError
from loopscope.models.extras import extra
from loopscope.training.job import Group

Item = TypeVar("Item")

LAUNCHED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher gives each process, beside how many there are."""


@dataclass(frozen=True)
class Processes(Group):
    """Process `index` of `count`, and the device it computes on."""

    index: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and logs."""
        return self.index == 0

    def share(self, items: Sequence[Item]) -> list[tuple[Item, float]]:
        """This process's items, each with a factor for its gradient; all processes get equally many.

        Gradients are averaged over processes, so the factor is their number; 0 for an item that is there only to keep
        pace with the others.
        """
        mine = [(item, float(self.count)) for item in items[self.index :: self.count]]
        rounds = -(-len(items) // self.count)
        return mine + [(items[0], 0.0)] * (rounds - len(mine))

    def spread(self, objective: nn.Module, trains: Literal["weights", "map"]) -> nn.Module:
        """The objective to be called in this process; parameters may be other objects afterwards."""
        if self.count == 1:
            return objective
        if trains == "map":
            return DistributedDataParallel(objective)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(objective, mesh=init_device_mesh(self.device.type, (self.count,)))
        return objective

    @contextmanager
    def whole(self, spread: nn.Module) -> Iterator[None]:
        """Inside, every process has all weights, for passes that do not go through the objective."""
        sharded = hasattr(spread, "unshard")
        if sharded:
            cast("Any", spread).unshard()
        try:
            yield
        finally:
            if sharded:
                cast("Any", spread).reshard()

    def passing(self, spread: nn.Module, last: bool) -> Any:
        """A context for one of several passes of an update: gradients of a map are exchanged in the last."""
        return spread.no_sync() if isinstance(spread, DistributedDataParallel) and not last else nullcontext()

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over processes."""
        if self.count > 1:
            dist.all_reduce(numbers)
        return numbers

    def agreed(self, choice: bool) -> bool:
        """The first process's choice, in all of them."""
        return bool(self.total(torch.tensor(float(choice and self.first), device=self.device)))

    def wait(self) -> None:
        """Until all processes are here."""
        if self.count > 1:
            dist.barrier()


def several() -> bool:
    """Whether `accelerate launch` or `torchrun` started more processes than this one; InputError as `_number`."""
    return _number("WORLD_SIZE", 1, 2**16, 1) > 1


def speaks() -> bool:
    """Whether this process is the only one or, of several, the first, which prints what comes out."""
    return not several() or _number("RANK", 0, 2**16, 0) == 0


def _number(name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number of the environment; InputError where it is none, or not from `low` to `high`."""
    text = os.environ.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise InputError(f"the environment variable {name} must be a number from {low} to {high}, not {text[:40]!r}")
    return int(text)


def _check_launched() -> None:
    """InputError unless the environment is whole: a process that waits for others that never come would hang."""
    count = _number("WORLD_SIZE", 1, 2**16)
    missing = [name for name in LAUNCHED if not os.environ.get(name)]
    if missing:
        raise InputError(
            f"WORLD_SIZE is {count}, but {', '.join(missing)} is not set; start several processes by `accelerate "
            "launch` or `torchrun`, or one without WORLD_SIZE"
        )
    _number("RANK", 0, count - 1)
    _number("LOCAL_RANK", 0, count - 1)
    _number("MASTER_PORT", 1, 2**16 - 1)


def join(device: torch.device) -> Processes:
    """Alone, or one of those that `accelerate launch` or `torchrun` started; then each has a GPU of its own.

    InputError where the environment that they left is not whole.
    """
    if not several():
        return Processes(0, 1, device)
    _check_launched()
    state = extra("accelerate", "training in several processes").PartialState(cpu=device.type == "cpu")
    atexit.register(_leave)
    return Processes(state.process_index, state.num_processes, state.device)


def _leave() -> None:
    """Leave the group before the interpreter ends: its threads abort a process that ends while another still talks."""
    if dist.is_initialized():
        dist.destroy_process_group()


def everywhere(tensor: Tensor) -> Tensor:
    """The same tensor, whole in every process where it is shared by several."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)


def gathered(tensor: Tensor) -> Tensor:
    """An ordinary tensor with all of a shared one; every process must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shared_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor shared as a parameter is: alike where it has the same shape, else whole everywhere.

    Every process has the whole tensor and takes its part of it; nothing is exchanged.
    """
    if not isinstance(parameter, DTensor) or tensor.dim() == 0:
        return tensor
    same = tensor.shape == parameter.shape
    placements = parameter.placements if same else [Replicate()] * parameter.device_mesh.ndim
    whole = tensor.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, placements, src_data_rank=None)
