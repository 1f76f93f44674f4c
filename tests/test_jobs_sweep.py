"""Sweeps cut by examples: parts in order, equal bits by whatever number of workers, and what the whole sweep gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopscope import load, load_map
from loopscope.errors import InputError
from loopscope.execute.sweeping import Measured, Sweep
from loopscope.execute.sweeping import sweep as whole_sweep
from loopscope.jobs import sweep
from loopscope.jobs.sweeping import KIND
from loopscope.store.store import Store
from loopscope.studies.trained import instances
from loopscope.threads import fixed_threads
from tests.jobs_here import Here

TOKENS = instances("tiny-test", 2, torch.device("cpu")).tokens[::20]
ASKED = ("F2 F", "loop[3].layer[*].row[-1].z", "(F2 J:one F)")
MAPS = {"one": "tiny-one-1@tiny-0"}


def test_parts_are_put_together_in_order(tmp_path: Path) -> None:
    model, maps = load("tiny-0"), {"one": load_map(MAPS["one"])}
    found = sweep("tiny-0", TOKENS, *ASKED, maps=MAPS, store=tmp_path, on=Here(), each=9)
    alone = whole_sweep(model, TOKENS, *ASKED, maps=maps)
    assert isinstance(found, Sweep)
    assert (found.program, found.source, found.addresses) == (alone.program, alone.source, alone.addresses)
    torch.testing.assert_close(found.logits, alone.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.base, alone.base, rtol=0, atol=1e-5)
    assert len(Store(tmp_path).every(KIND)) == -(-len(TOKENS) // 9)
    right = torch.arange(len(TOKENS)) % 6
    asked = {"metric": "probability", "answers": right}
    measured = sweep("tiny-0", TOKENS, *ASKED, maps=MAPS, store=tmp_path, on=Here(), each=9, **asked)
    assert isinstance(measured, Measured)
    values = whole_sweep(model, TOKENS, *ASKED, maps=maps, **asked).values
    torch.testing.assert_close(measured.values, values, rtol=0, atol=1e-5)
    again = Here()
    sweep("tiny-0", TOKENS, *ASKED, maps=MAPS, store=tmp_path, on=again, each=9)
    assert again.tried == []
    with pytest.raises(InputError, match="no examples"):
        sweep("tiny-0", TOKENS[:0], *ASKED, maps=MAPS, store=tmp_path, on=again)


def test_cutting_changes_no_bit_but_by_which_examples_go_together(tmp_path: Path) -> None:
    """Parts are whole sweeps over the same slices, to the last bit where threads are the same."""
    model, maps = load("tiny-0"), {"one": load_map(MAPS["one"])}
    found = sweep("tiny-0", TOKENS, *ASKED, maps=MAPS, store=tmp_path, on=Here(), each=9)
    assert isinstance(found, Sweep)
    with fixed_threads(1):
        parts = [whole_sweep(model, part, *ASKED, maps=maps) for part in TOKENS.split(9)]
    assert len(parts) > 1
    assert torch.equal(found.logits, torch.cat([each.logits for each in parts], 1))
    assert torch.equal(found.base, torch.cat([each.base for each in parts]))


@pytest.mark.slow
def test_two_workers_give_the_bits_of_one(tmp_path: Path) -> None:
    one, two = (
        sweep("tiny-0", TOKENS, *ASKED, maps=MAPS, store=tmp_path / on[-1], on=on, each=9)
        for on in ("local:1", "local:2")
    )
    assert isinstance(one, Sweep)
    assert isinstance(two, Sweep)
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(one.base, two.base)
