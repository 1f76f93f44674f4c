"""Parity by length with planted answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Line = Callable[[np.ndarray], np.ndarray]

LINES: tuple[Line, Line] = (lambda n: -0.0096 * n - 0.12, lambda n: -0.0018 * n - 0.16)
"""Where the bands of the published seed 2 lie, relative to t = n: native, and with J."""


def planted(
    lengths: range, lines: tuple[Line, ...] = LINES, half: int = 10_000, ceiling: float = 1.0
) -> dict[str, Tensor]:
    """Bands of period four around lines, from 0 to `ceiling`; so many strings that rounding is nothing."""
    n, offsets = np.array(lengths), np.arange(-10, 11)
    shares = [ceiling * (0.5 + 0.5 * np.cos(np.pi / 2 * (offsets - line(n)[:, None]))) for line in lines]
    right = torch.tensor(np.rint(half * np.stack(shares)), dtype=torch.int32)[:, None].repeat(1, 2, 1, 1)
    numbers = torch.tensor([*lengths], dtype=torch.int32), torch.tensor([half, half], dtype=torch.int32)
    return {"lengths": numbers[0], "strings": numbers[1], "right": right}


def wave(offset: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.cos(np.pi / 2 * offset)


# The published counts of 128 at 500, 505, ..., 1000, seed 2.
RECORDED = (
    "71 65 73 66 59 67 53 51 39 56 40 44 41 33 28 20 43 33 34 28 24 34 21 38 24 36 30 37 33 31 28 41 36 35 39 37 41 47 "
    "50 47 50 48 55 47 55 56 62 60 58 72 74 74 80 87 75 78 91 88 83 86 82 93 92 95 97 93 88 85 93 96 91 95 93 93 83 80 "
    "83 82 83 84 73 81 80 74 80 78 65 71 58 71 64 62 60 60 50 52 58 65 45 51 47",
    "59 55 60 61 62 67 59 47 52 55 62 61 61 49 55 45 62 41 35 44 55 51 50 51 52 43 50 53 46 51 42 40 45 46 45 48 45 44 "
    "44 33 51 46 48 52 59 45 53 44 52 44 42 40 46 53 50 56 45 42 37 38 44 32 40 37 47 43 51 47 36 44 38 47 42 38 37 46 "
    "36 45 47 35 45 46 43 39 51 46 43 42 41 43 43 49 42 52 42 45 38 51 46 38 32",
)


def recorded() -> dict[str, Tensor]:
    counts = torch.tensor([[int(word) for word in line.split()] for line in RECORDED], dtype=torch.int32)
    right = torch.zeros(2, 2, 101, 21, dtype=torch.int32)
    right[:, 0, :, 10], right[:, 1, :, 10] = counts // 2, counts - counts // 2
    sizes = torch.arange(500, 1001, 5, dtype=torch.int32), torch.tensor([64, 64], dtype=torch.int32)
    return {"lengths": sizes[0], "strings": sizes[1], "right": right}
