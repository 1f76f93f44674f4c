"""The benchmark measures what it says: both ways agree, and work is counted in the same unit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from loopscope.cli.bench.patching import patching_cases, time_case
from loopscope.maps import DiagonalLowRank
from loopscope.model import LoopedTransformer, graph_walk_config

CASES = {case.name: case for case in patching_cases()}


def test_the_five_cases() -> None:
    assert list(CASES) == ["head subsets", "48-cell sweep", "mixed strings", "ten starts", "mechanism battery"]
    runs = {"head subsets": 15, "48-cell sweep": 48, "mixed strings": 32, "ten starts": 1, "mechanism battery": 29}
    assert {name: len(case.programs) for name, case in CASES.items()} == runs


@pytest.mark.parametrize("name", ["head subsets", "mechanism battery"])
def test_both_ways_agree_and_count_alike(name: str) -> None:
    case = CASES[name]
    assert case.tokens is not None
    small = replace(case, tokens=case.tokens[:2], others={other: t[:2] for other, t in case.others.items()})
    maps = {name: DiagonalLowRank(256, 48, seed=1) for name in ("one", "two")}
    timing = time_case(LoopedTransformer(graph_walk_config()), small, maps)
    assert timing.predictions_equal
    assert timing.max_abs_diff < 1e-5
    # Each program once, and each source that is not itself asked for once.
    extra = 1 if name == "head subsets" else 2
    assert timing.plain_work == pytest.approx(timing.programs + extra)
    assert 0 < timing.ours_work < timing.plain_work / 4
    assert timing.ratio == pytest.approx(timing.plain_s / timing.ours_s)


def test_weights_do_not_matter_to_the_count() -> None:
    case = replace(CASES["ten starts"], tokens=CASES["ten starts"].tokens[:20])  # type: ignore[index]
    works = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        works.add(time_case(LoopedTransformer(graph_walk_config()), case, {}).ours_work)
    assert len(works) == 1
