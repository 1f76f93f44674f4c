"""What the benchmarks share: the clock, and the machine that the times are of."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from loopscope.log import Log, silent
from loopscope.training.checkpoints import Resumable

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Machine:
    """What the times were taken on; the peak is that of one large bf16 product."""

    device: str
    torch: str
    peak_tflops: float | None


def machine(device: torch.device, log: Log = silent) -> Machine:
    """This machine; on a GPU its peak is measured."""
    if device.type != "cuda":
        return Machine(f"cpu, {torch.get_num_threads()} threads", torch.__version__, None)
    log("bf16 peak")
    return Machine(torch.cuda.get_device_name(device), torch.__version__, measure_peak(device))


def measure_peak(device: torch.device, size: int = 8192) -> float:
    """TFLOP/s of a product of two square bf16 matrices, the best of several tries."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    best = min(seconds_per_call(lambda: a @ b, 10, device) for _ in range(5))
    return 2 * size**3 / best / 1e12


def seconds_per_call(step: Callable[[], object], count: int, device: torch.device) -> float:
    """Seconds of one of `count` calls in a row, after two that are not timed."""
    for _ in range(2):
        step()
    wait_for(device)
    started = time.perf_counter()
    for _ in range(count):
        step()
    wait_for(device)
    return (time.perf_counter() - started) / count


def each_call(
    step: Callable[[], Any], count: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[float], Any]:
    """The seconds of `count` calls, and what the last of them gave."""
    found, last = [], None
    for _ in range(count):
        started = clock()
        last = step()
        found.append(clock() - started)
    return found, last


def timed_windows(trainer: Resumable, look: Callable[[Any], int] = lambda _: 0) -> list[tuple[float, int, int]]:
    """Train to the end; after every window the time, the update and what `look` sees.

    A window ends when the device is done with it.  The first one also compiles and captures: leave it out.
    """
    marks: list[tuple[float, int, int]] = []
    trainer.run(lambda mine: marks.append((time.perf_counter(), mine.update, look(mine))))
    return marks


def in_turn(
    ways: Mapping[Any, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    device: torch.device = CPU,
) -> dict[Any, float]:
    """Median seconds of each way.  They take turns, so that what else the machine does befalls all of them alike."""
    found: dict[Any, list[float]] = {name: [] for name in ways}
    for step in ways.values():
        done(step, device)
    for _ in range(rounds):
        for name, step in ways.items():
            found[name] += each_call(partial(done, step, device), 1, clock)[0]
    return {name: median(times) for name, times in found.items()}


def done(step: Callable[[], Any], device: torch.device) -> Any:
    """What a call gives, when the device is done with it."""
    found = step()
    wait_for(device)
    return found


def wait_for(device: torch.device) -> None:
    """Until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
