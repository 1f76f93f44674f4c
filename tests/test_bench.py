"""The benchmark measures what it says: both ways agree, and work is counted in the same unit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loopscope.address import grid
from loopscope.cli.bench.by_hand import ByHand
from loopscope.cli.bench.large import (
    SHAPES,
    Decoding,
    Kept,
    LargeTiming,
    bench_decoding,
    bench_large,
    precision_named,
    shape_named,
)
from loopscope.cli.bench.operations import Count, counted
from loopscope.cli.bench.patching import patching_cases, time_case
from loopscope.cli.bench.single import time_single
from loopscope.cli.bench.sweeping import PLAIN_CELLS, SweepCase, time_sweep
from loopscope.errors import InputError
from loopscope.maps import DiagonalLowRank
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.models.stacks import stack_from_config

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


def test_sweeps_by_hand_agree_with_ours() -> None:
    config = {
        "model_type": "llama", "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = stack_from_config(config, 2).eval()
    heads = grid("z", loops=(1, 2), layers=(1, 2, 3), heads=range(4), rows=(6,))
    stream = tuple(cell for row in range(7) for cell in grid("resid", loops=(1, 2), layers=(1, 3), rows=(row,)))
    for cells in (heads, stream):
        timing = time_sweep(model, SweepCase("tiny", "", config, 2, 7, cells))
        assert timing.max_abs_diff < 1e-5
        assert timing.cells == len(cells)
        assert timing.plain_cells >= PLAIN_CELLS
    mine, theirs = (ByHand(model, torch.randint(0, 50, (1, 7)), 2) for _ in range(2))
    with torch.no_grad():
        whole = torch.cat([mine.whole(cell, theirs) for cell in heads])
        result = torch.cat([mine.heads(c.loop, c.site.layer, c.site.heads or (), theirs) for c in heads])
    assert torch.allclose(whole, result, atol=1e-5)
    names, apart = zip(*((each.case, each.max_abs_diff) for each in time_single(model, 2, 7, 50, "tiny")), strict=True)
    assert names == ("tiny: one run", "tiny: readouts")
    assert max(apart) < 1e-5


def test_work_of_a_large_model_is_measured_both_ways() -> None:
    shape = replace(SHAPES["tiny"], examples=1, tokens=7, long=(9,), new=2)
    cpu = torch.device("cpu")
    found = {each.case: each for each in bench_large(shape, cpu, torch.float32)}
    assert [each.cells for each in found.values()] == [1, 1, 16, 32, 8, 16, 16]
    for name, each in found.items():
        assert (each.apart is None) == name.startswith("z, last row of")
        assert each.apart is None or each.apart < 1e-5 < (each.spread or 0)
        assert each.peak is None  # a CPU does not say
    assert found["pattern, last row"].foreseen
    ways = [(each.way, each.batch, each.loops) for each in bench_decoding(shape, cpu, torch.float32)]
    assert ways == [
        (way, batch, loops) for batch in (1, 8) for way, loops in (("transformers", 1), ("ours", 1), ("ours", 2))
    ]


def test_operations_are_counted_without_views_and_do_not_grow_with_heads() -> None:
    with Count() as count:
        torch.ones(2, 2).view(4).add(1).view(2, 2) @ torch.zeros(2, 2)
    assert (count.operations, count.products) == (4, 1)  # two fills, a sum, a product
    model = stack_from_config(SHAPES["tiny"].config, 2).eval()
    texts = torch.randint(0, 512, (2, 1, 9), generator=torch.Generator().manual_seed(0)).unbind()
    one, all_heads = (
        counted(model, "z", "", grid("z", loops=[2], layers=range(1, 5), heads=heads, rows=(8,)), texts)
        for heads in ([0], range(4))
    )
    assert (one.cells, all_heads.cells) == (4, 16)
    assert one.products == all_heads.products
    assert all_heads.operations < 1.5 * one.operations


def test_measurements_that_are_kept_are_not_made_again(tmp_path: Path) -> None:
    about = {"device": "cpu", "torch": "2", "peak_tflops": None, "shape": "tiny", "precision": "fp32"}
    path, cpu = tmp_path / "large.json", torch.device("cpu")
    shape = replace(SHAPES["tiny"], examples=1, tokens=5, long=(9,), new=2)
    names = ["one run", "readouts", "z, last row", "pattern, last row", "resid, last row", "z, all rows"]
    kept = Kept(path, about)
    for name in names:
        kept.add(LargeTiming(name, "", 1, None, 0.1, None, None, None, None, None, None))
    kept.add(Decoding("ours", 1, 2, 3.0))
    again = Kept(path, about)
    assert again.to_dict() == kept.to_dict()
    known = [each.case for each in again.cases]
    assert [each.case for each in bench_large(shape, cpu, torch.float32, known=known)] == ["z, last row of 9"]
    assert {each.batch for each in bench_decoding(shape, cpu, torch.float32, known=[1])} == {8}
    with pytest.raises(InputError, match=r"large.json has measurements of shape .*tiny.*, not .*135m"):
        Kept(path, {**about, "shape": "135m"})
    path.write_text("{}")
    with pytest.raises(InputError, match="no file of measurements"):
        Kept(path, about)
    with pytest.raises(InputError, match="there is no folder"):
        Kept(tmp_path / "no" / "large.json", about)


def test_shapes_and_precisions_go_by_name() -> None:
    with pytest.raises(InputError, match=r"no shape is called .2\.6. \(nearest: 2\.6b\)"):
        shape_named("2.6")
    with pytest.raises(InputError, match="bf16 or fp32, not 'fp16'"):
        precision_named("fp16")


def test_weights_do_not_matter_to_the_count() -> None:
    case = replace(CASES["ten starts"], tokens=CASES["ten starts"].tokens[:20])  # type: ignore[index]
    works = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        works.add(time_case(LoopedTransformer(graph_walk_config()), case, {}).ours_work)
    assert len(works) == 1


@pytest.mark.slow
def test_the_explorers_waits_are_those_of_answers() -> None:
    from loopscope.cli.bench import viewing
    from loopscope.view.inputs import tokens_of
    from loopscope.view.shown_model import open_model
    from tests.viewing import text_explorer

    subject = open_model("tiny-0")
    cases = {each.case: each for each in viewing.bench_view(subject)}
    assert [*cases] == ["first answer", "J switched", "patch", "sweep"]
    assert cases["sweep"].about == "8 heads"  # of two layers in two calls
    assert all(0 < each.median_s <= each.longest_s for each in cases.values())
    assert all(1 <= each.rounds <= viewing.ROUNDS for each in cases.values())
    speaker = text_explorer().subject
    assert len(tokens_of(speaker, viewing._example(speaker).input)) >= viewing.TOKENS
    assert [each.aim_s for each in viewing.bench_view(speaker) if each.case == "patch"] == [0.4]
