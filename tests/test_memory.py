"""What a run says that it takes at its peak: an upper bound on what lies there, and not more than it may take."""

from __future__ import annotations

import pytest
import torch

from loopscope import F, run, sweep
from loopscope.address import Address, grid
from loopscope.errors import InputError
from loopscope.execute.memory import Memory, memory_named, said
from loopscope.program import Run
from tests.kinds import KINDS, VOCABULARY
from tests.live_bytes import LiveBytes
from tests.tiny import tiny_model

EXAMPLES, TOKENS = 3, 40
MIDDLE = tuple(a for r in (0, 20, -1) for a in grid("resid", loops=(1, 2), layers=(1, 2), rows=(r,)))
SWEEPS: dict[str, tuple[Address, ...]] = {
    "heads, last row": grid("z", loops=(1, 2), layers=(1, 2), heads=range(4), rows=(-1,)),
    "heads, all rows": grid("z", loops=(1, 2), layers=(1, 2), heads=range(4)),
    "patterns": grid("pattern", loops=(1, 2), layers=(1, 2), heads=range(4)),
    "patterns, last row": grid("pattern", loops=(1, 2), layers=(1, 2), heads=range(4), rows=(-1,)),
    "stream": MIDDLE,
    "units": grid("mlp_hidden", loops=(1, 2), layers=(1, 2)),
}


def drawn(seed: int, classes: int) -> torch.Tensor:
    return torch.randint(0, classes, (EXAMPLES, TOKENS), generator=torch.Generator().manual_seed(seed))


def test_live_bytes_counts_storages_while_they_live() -> None:
    with LiveBytes() as live:
        a = torch.zeros(1000)
        view = a[:10]
        del a
        assert live.now == 4000
        del view
        assert live.now == 0
    assert live.peak == 4000


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("settings", [{}, {"metric": "kl"}, {"memory": 900_000}, {"chunk": 2, "stack": 1}], ids=str)
def test_a_sweep_stays_under_the_peak_that_it_states(name: str, settings: dict[str, object]) -> None:
    model, told = tiny_model("relations"), list[Memory]()
    tokens, other = drawn(1, 8), drawn(2, 8)
    sweep(model, tokens, F**2, SWEEPS[name], Run(F**2, "other"), others={"other": other})  # what is made once
    with LiveBytes() as live:
        sweep(
            model, tokens, F**2, SWEEPS[name], Run(F**2, "other"), others={"other": other}, tell=told.append, **settings
        )  # type: ignore[call-overload]
    (stated,) = told
    assert live.peak <= stated.peak <= 3.5 * live.peak
    assert stated.peak <= settings.get("memory", stated.peak)  # type: ignore[operator]


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_holds_for_every_kind_of_model(kind: str) -> None:
    model, told = KINDS[kind](), list[Memory]()
    program = "(L H)2" if kind == "two stacks" else "F2"
    places = "L[*].layer[*].resid" if kind == "two stacks" else "loop[*].layer[*].resid"
    tokens, other = drawn(1, VOCABULARY), drawn(2, VOCABULARY)
    with LiveBytes() as live:
        sweep(model, tokens, program, places, f"({program})@other", others={"other": other}, tell=told.append)
    assert live.peak <= told[0].peak


def test_less_memory_changes_nothing_but_how_much_is_done_at_a_time() -> None:
    model, told = tiny_model("relations"), list[Memory]()
    results = [
        sweep(
            model, drawn(1, 8), F**2, SWEEPS["heads, all rows"], Run(F**2, "other"), others={"other": drawn(2, 8)},
            memory=memory, tell=told.append,
        ).logits
        for memory in (None, 10**6)
    ]  # fmt: skip
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5)
    assert told[1].peak <= 10**6 < told[0].peak
    assert (told[1].chunk, told[1].stack) < (told[0].chunk, told[0].stack)


def test_patterns_of_one_row_take_no_room_for_those_of_all() -> None:
    model, tokens, peaks = tiny_model("relations"), drawn(1, 8), []
    for keep in ((), "loop[1].layer[1].row[-1].pattern", "loop[1].layer[1].pattern"):
        run(model, tokens, F**2, keep=keep)
        with LiveBytes() as live:
            run(model, tokens, F**2, keep=keep)
        peaks.append(live.peak)
    none, last, every = peaks
    assert none <= last < none + (every - none) / 10


def test_unequal_texts_are_stated_length_by_length() -> None:
    told: list[Memory] = []
    run(tiny_model(), [[1, 2, 3], [4, 5], [6, 7, 0]], F**2, tell=told.append)
    assert [each.chunk for each in told] == [2, 1]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"memory": 1000}, r"one example at a time takes .* KiB beside the model, and 1000 bytes are allowed"),
        ({"memory": 10**5, "chunk": 3, "stack": 40}, "more than the 97.66 KiB that are allowed"),
        ({"memory": 0}, "1 or more, not 0"),
        ({"memory": 10**9, "gradients": True}, "leave out memory"),
    ],
)
def test_what_does_not_fit_gets_one_line_before_anything_is_computed(settings: dict[str, object], line: str) -> None:
    model, told = tiny_model("relations"), list[Memory]()
    with pytest.raises(InputError, match=line) as error:
        run(model, drawn(1, 8), F**2, tell=told.append, **settings)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not told


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 2**29), ("8 GB", 2**33), ("1.5k", 1536), ("1000", 1000), ("2TiB", 2**41)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert memory_named(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "8 XB", "GiB", "1e3", "0.1"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match="cannot read a size of memory"):
        memory_named(text)


def test_sizes_are_said() -> None:
    assert [said(each) for each in (1000, 2**20, 3 * 2**29)] == ["1000 bytes", "1.00 MiB", "1.50 GiB"]
