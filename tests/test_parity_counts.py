"""Counting parity: against runs of one length at a time, nothing shared; in pieces; with the kernels of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import DiagonalLowRank
from loopscope.program import F, J
from loopscope.studies.parity import counts as counts_of
from loopscope.studies.parity import exact as exact_of
from loopscope.studies.parity import timing as timing_of
from loopscope.studies.parity.counts import QUICK, Counts, joined, measure, pieces, whole
from loopscope.studies.parity.lengths import at_exit
from loopscope.tasks.parity import evaluation_bits, fixed_length, make_batch
from loopscope.training.cohort.jobs import initial_model
from tests.planted.parity import STEP, backbone
from tests.toys import toy_parity

Refused = Callable[..., str]


def alone(n: int, loops: int, strings: int, base: int, step: DiagonalLowRank | None) -> Tensor:
    """Whether each string is right after each call, [loops, strings]: run with its own length, nothing shared."""
    tokens, targets, answer = fixed_length(evaluation_bits(n, strings, base))
    program = F**1
    for _ in range(loops - 1):
        program = program | F if step is None else program | J("own") | F
    seen = plain_run(backbone(), {"main": tokens}, program, maps={} if step is None else {"own": step})
    after = [seen.states[f"h{t}"] for t in range(1, loops + 1)]
    told = torch.stack([backbone().read(h).argmax(-1) for h in after])
    return ((told == targets) | ~answer).all(-1)


@pytest.mark.parametrize("tokens", [1, 700, 10**6], ids=["one length at a time", "some together", "all together"])
def test_bands_are_those_of_each_length_run_alone(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts_of.TOKENS, "cpu", tokens)
    asked = [1, 2, 5, 9, 11, 12, 16]
    found = counts_of.measure_bands(backbone(), STEP, asked, 7, base=5)
    assert found["lengths"].tolist() == asked
    assert found["strings"].tolist() == [3, 4]
    assert all(tensor.dtype == torch.int32 for tensor in found.values())
    assert found["right"].shape == (2, 2, 7, 21)
    for condition, step in enumerate((None, STEP)):
        for place, n in enumerate(asked):
            right = alone(n, n + 10, 7, 5, step)
            for offset in range(-10, 11):
                counts = found["right"][condition, :, place, offset + 10].tolist()
                there = right[n + offset - 1] if n + offset >= 1 else None
                assert counts == ([-1, -1] if there is None else [int(there[:3].sum()), int(there[3:].sum())])
    assert len(found["right"].unique()) > 3
    assert not torch.equal(found["right"][0], found["right"][1])
    native = counts_of.measure_bands(backbone(), None, asked, 7, base=5)
    assert torch.equal(native["right"], found["right"][:1])


def test_heat_maps_are_those_of_each_length_run_alone() -> None:
    found = counts_of.measure_heat(backbone(), STEP, 12, 6, base=5)
    assert found["strings"].tolist() == [6]
    assert found["lengths"].tolist() == list(range(1, 13))
    for condition, step in enumerate((None, STEP)):
        alone_counts = [alone(n, 12, 6, 5, step).sum(1).tolist() for n in range(1, 13)]
        assert found["right"][condition].tolist() == alone_counts
    assert len(found["right"].unique()) > 3


def test_what_follows_a_string_changes_no_state_of_it() -> None:
    """Why lengths may share a batch: attention is causal, and there are no positions."""
    model, bits, own = backbone().double(), evaluation_bits(9, 4, 1), torch.tensor([9] * 4)
    try:
        short = model.embed(fixed_length(bits).tokens)
        long = model.embed(make_batch(torch.nn.functional.pad(bits, (0, 6)), own, 15).tokens)
        for _ in range(40):
            short, long = model.call(short), model.call(long)
            torch.testing.assert_close(long[:, :11], short, rtol=1e-9, atol=1e-9)
    finally:
        model.float()


def test_parts_and_their_strings() -> None:
    small = {"near": (2, 8, 3), "strings": 4, "far": [10, 14, 2], "far_strings": 6, "heat": 5, "heat_strings": 3}
    found = measure(backbone(), STEP, 2, **small)
    assert [(part, each["lengths"].tolist()) for part, each in found.items()] == [
        ("near", [2, 5, 8]), ("far", [10, 12, 14]), ("heat", [1, 2, 3, 4, 5])
    ]  # fmt: skip
    bases = {"near": 2026083901 + 200, "far": 2026092401, "heat": 2026083201 + 200}
    assert torch.equal(
        found["near"]["right"], counts_of.measure_bands(backbone(), STEP, [2, 5, 8], 4, bases["near"])["right"]
    )
    again = counts_of.measure_bands(backbone(), STEP, [10, 12, 14], 6, bases["far"])
    assert torch.equal(found["far"]["right"], again["right"])
    assert torch.equal(found["heat"]["right"], counts_of.measure_heat(backbone(), STEP, 5, 3, bases["heat"])["right"])
    assert list(measure(backbone(), None, 0, near=None, far=[4, 4, 1], heat=0)) == ["far"]


def same(a: Counts, b: Counts) -> bool:
    return {part: set(found) for part, found in a.items()} == {part: set(found) for part, found in b.items()} and all(
        torch.equal(a[part][name], b[part][name]) for part in a for name in a[part]
    )


def test_pieces_measure_what_the_whole_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs no more than it may, unless it is a single length; what a piece holds does not hang on the others."""
    asked: dict[str, Any] = {
        "near": [2, 20, 2], "strings": 4, "far": [22, 30, 4], "far_strings": 6, "heat": 5, "heat_strings": 3,
        "check": [4, 20, 8], "products": "fp16",
    }  # fmt: skip
    assert pieces(asked) == [asked]
    monkeypatch.setattr(counts_of, "PIECE", 6000)
    cut = pieces(asked)
    bands = [(settings.get("near") or settings.get("check"), settings) for settings in cut if "strings" in settings]
    assert len(bands) > 3
    for grid, settings in bands:
        cost = counts_of.calls_of_tokens(range(grid[0], grid[1] + 1, grid[2]), settings["strings"])
        assert cost <= 6000 or grid[0] == grid[1]
    assert all(("products" in settings) == ("check" not in settings) for settings in cut)
    found = [measure(backbone(), STEP, 1, **settings) for settings in cut]
    assert same(whole(found), measure(backbone(), STEP, 1, **asked))
    without = pieces(asked | {"far": None})
    assert [settings for settings in cut if settings in without] == without


def test_the_whole_grid_is_cut_into_a_few_dozen_pieces() -> None:
    cut = pieces({"products": "fp16", "check": [100, 500, 100]})
    near = [settings["near"] for settings in cut if settings.get("near")]
    far = [settings["far"] for settings in cut if settings.get("far")]
    assert [n for first, last, step in near for n in range(first, last + 1, step)] == [*range(1, 501)]
    assert [n for first, last, step in far for n in range(first, last + 1, step)] == [*range(500, 1001, 5)]
    assert (len(near), len(far), len(cut)) == (6, 17, 25)
    assert counts_of.calls_of_tokens(range(1, 501), 64) == 5_543_008_000


def test_a_check_runs_the_strings_of_near_in_fp32() -> None:
    """On a CPU all is fp32, so that it finds the same; whatever the precision is called."""
    found = measure(
        backbone(), STEP, 3, near=[3, 9, 2], strings=4, far=None, heat=3, heat_strings=2, check=[5, 9, 4],
        products="fp16",
    )  # fmt: skip
    assert list(found) == ["near", "check", "heat"]
    assert found["check"]["lengths"].tolist() == [5, 9]
    assert torch.equal(found["check"]["right"], found["near"]["right"][:, :, [1, 3]])


def test_states_that_are_lost_are_no_wrong_answers(refused: Refused) -> None:
    broken = initial_model(toy_parity(), 0).requires_grad_(False)
    broken.layers[0].up.bias[0] = torch.inf
    line = refused(InputError, counts_of.measure_bands, broken, None, [3, 5], 2, 0)
    assert line == "states of 5 bits are not finite after 15 calls in fp32"


def test_pieces_make_one_part(refused: Refused) -> None:
    def piece(lengths: list[int], strings: int = 4, step: DiagonalLowRank | None = STEP) -> dict[str, Tensor]:
        return counts_of.measure_bands(backbone(), step, lengths, strings, base=5)

    assert same({"near": piece([3, 4, 9])}, {"near": joined([piece([3]), piece([4, 9])])})
    for other in (piece([3, 4]), piece([9], strings=6), piece([9], step=None)):
        assert "same strings" in refused(InputError, joined, [piece([4]), other])


def test_the_quick_profile_shows(refused: Refused) -> None:
    found = measure(backbone(), STEP, 0, **QUICK)
    notes = {table.title: table.note for table in timing_of.tables(found)}
    assert notes["Right at t = n, lengths 1-100"].startswith("3 lengths from 45 to 85, 8 strings each")
    assert notes["Right at t = n, lengths 101-500"].startswith("2 lengths from 105 to 125, 8 strings each")
    assert not any("1000" in title for title in notes)
    refused(InputError, at_exit, found, 505, 1000)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"strings": 1}, "1 strings cannot be split into halves"),
        ({"near": (0, 5, 1)}, r"first, last, step .* not \[0, 5, 1\]"),
        ({"near": (6, 5, 1)}, r"not \[6, 5, 1\]"),
        ({"near": (1, 5)}, r"not \[1, 5\]"),
        ({"near": None, "far": None, "heat": -3}, "1 to -3 bits make no heat map"),
    ],
)
def test_grids_that_are_none(settings: dict[str, object], line: str) -> None:
    with pytest.raises(InputError, match=line):
        measure(backbone(), STEP, 0, **{"far": None, "heat": 0, "strings": 2, **settings})
    with pytest.raises(InputError, match="increasing"):
        counts_of.measure_bands(backbone(), STEP, [3, 3], 2, 0)


# ---- single strings, in fp32 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 60, 10**6], ids=["one at a time", "some together", "all together"])
def test_single_strings_are_those_that_are_counted(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(counts_of.TOKENS, "cpu", tokens)
    counted = counts_of.measure_bands(backbone(), STEP, [12], 6, base=5)["right"][:, :, 0]
    found = counts_of.right_strings(backbone(), STEP, 12, range(6), base=5)
    assert found.shape == (2, 21, 6)
    assert torch.equal(found[..., :3].sum(-1), counted[:, 0])
    assert torch.equal(found[..., 3:].sum(-1), counted[:, 1])
    assert torch.equal(counts_of.right_strings(backbone(), STEP, 12, range(2, 5), base=5), found[..., 2:5])
    assert torch.equal(counts_of.right_strings(backbone(), None, 12, range(6), base=5), found[:1])
    assert 0 < int(found.sum()) < found.numel()


def test_strings_in_pieces_are_those_of_one_go() -> None:
    asked = {"strings": [[11, 0, 19], [14, 3, 5]]}
    cuts = exact_of.pieces(asked)
    assert [cut["strings"] for cut in cuts] == [[[11, 0, 8]], [[11, 8, 16]], [[11, 16, 19]], [[14, 3, 5]]]
    at_once = exact_of.measure(backbone(), STEP, **asked)
    joined_up = exact_of.whole([exact_of.measure(backbone(), STEP, **cut) for cut in cuts])
    assert list(joined_up) == list(at_once) == ["11", "14"]
    for length, found in at_once.items():
        assert all(torch.equal(joined_up[length][name], each) for name, each in found.items())
    assert at_once["14"]["first"].tolist() == [3]
    assert torch.equal(at_once["14"]["right"], counts_of.right_strings(backbone(), STEP, 14, range(3, 5)))
    assert sum(each["strings"][0][2] - each["strings"][0][1] for each in exact_of.pieces({})) == 3 * 128


def test_strings_that_cannot_be_run_or_joined(refused: Refused) -> None:
    for strings in ([[600, 4, 4]], [[600, 0]], [[600, 0, 8], [600, 8, 16]]):
        assert refused(InputError, exact_of.pieces, {"strings": strings}) == (
            f"strings are given as length, first, end, every length once, not {strings[-1]}"
        )
    assert refused(InputError, counts_of.right_strings, backbone(), None, 10, range(2)) == (
        "neighbouring strings of more than 10 bits are asked for, not range(0, 2) of 10 bits"
    )
    apart = [exact_of.measure(backbone(), None, strings=[[11, first, first + 1]]) for first in (0, 2)]
    assert refused(InputError, exact_of.whole, apart) == (
        "strings of 11 bits from 2 on do not follow those before them"
    )
