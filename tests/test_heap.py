"""What was freed goes back to the system."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from loopscope.execute.heap import LARGE, _trim, give_back

MIB = 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_gaps_in_the_heap_are_handed_back_behind_large_work_alone() -> None:
    if platform.libc_ver()[0] != "glibc":
        assert give_back(LARGE) is None
        return
    assert _trim() is not None
    blocks = [torch.ones(MIB // 64) for _ in range(3200)]  # 64 KiB each, which glibc takes from its heap
    kept = blocks[::10]
    del blocks
    held = resident()
    give_back(LARGE - 1)
    assert resident() > held - 20 * MIB
    give_back(LARGE)
    assert resident() < held - 100 * MIB
    assert len(kept) == 320
