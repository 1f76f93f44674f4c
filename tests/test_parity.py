"""Parity: every token, target and mask against plain Python, for any leading axes; evaluation strings as drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import InputError
from loopscope.tasks.parity import NO_ANSWER, PAD, SEPARATOR, VOCABULARY, evaluation_bits, fixed_length, make_batch


def oracle(bits: list[int], longest: int) -> tuple[list[int], list[int], list[bool]]:
    """Tokens, targets and mask of one string, written out."""
    pads = longest + 1 - len(bits)
    return (
        [*bits, 2, *[3] * pads],
        [*[5] * len(bits), bits.count(1) % 2, *[3] * pads],
        [*[False] * len(bits), True, *[True] * pads],
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Bits with more columns than needed, lengths, and the longest length, for [rows] or [seeds, rows]."""
    longest = draw(st.integers(1, 12))
    columns = longest + draw(st.integers(0, 3))
    shape = draw(st.sampled_from([(1,), (4,), (2, 3), (2, 1, 2)]))
    count = torch.Size(shape).numel()
    bits = draw(st.lists(st.integers(0, 1), min_size=count * columns, max_size=count * columns))
    lengths = draw(st.lists(st.integers(1, longest), min_size=count, max_size=count))
    return torch.tensor(bits).view(*shape, columns), torch.tensor(lengths).view(shape), longest


def test_the_six_ids() -> None:
    assert (SEPARATOR, PAD, NO_ANSWER, VOCABULARY) == (2, 3, 5, 6)


@given(batches())
def test_batches_against_plain_python(given_batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
    bits, lengths, longest = given_batch
    batch = make_batch(bits, lengths, longest)
    assert all(part.shape == (*lengths.shape, longest + 2) for part in batch)
    flat = [part.reshape(-1, longest + 2).tolist() for part in batch]
    for row, (string, length) in enumerate(zip(bits.flatten(0, -2).tolist(), lengths.flatten().tolist(), strict=True)):
        assert tuple(part[row] for part in flat) == oracle(string[:length], longest)


@given(batches(), st.randoms(use_true_random=False))
def test_what_lies_behind_a_string_changes_nothing(given_batch, random) -> None:  # type: ignore[no-untyped-def]
    bits, lengths, longest = given_batch
    noise = torch.tensor([random.randint(0, 1) for _ in range(bits.numel())]).view(bits.shape)
    behind = torch.arange(bits.shape[-1]) >= lengths[..., None]
    changed = make_batch(torch.where(behind, noise, bits), lengths, longest)
    assert all(torch.equal(a, b) for a, b in zip(changed, make_batch(bits, lengths, longest), strict=True))


@given(batches())
def test_one_flipped_bit_flips_the_parity(given_batch: tuple[torch.Tensor, torch.Tensor, int]) -> None:
    bits, lengths, longest = given_batch
    last = torch.arange(bits.shape[-1]) == lengths[..., None] - 1
    before = make_batch(bits, lengths, longest)
    after = make_batch(torch.where(last, 1 - bits, bits), lengths, longest)
    separator = before.tokens == SEPARATOR
    assert bool((separator.sum(-1) == 1).all())
    assert torch.equal(before.targets[separator], 1 - after.targets[separator])
    assert torch.equal(before.targets[~separator], after.targets[~separator])


def test_fixed_length_is_n_bits_a_separator_and_one_pad() -> None:
    batch = fixed_length(torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0]]))
    assert batch.tokens.tolist() == [[1, 0, 1, 1, 2, 3], [0, 0, 0, 0, 2, 3]]
    assert batch.targets.tolist() == [[5, 5, 5, 5, 1, 3], [5, 5, 5, 5, 0, 3]]
    assert batch.answer.tolist() == [[False] * 4 + [True] * 2] * 2


def test_values_are_looked_at_only_when_asked() -> None:
    """Without the check the batch is built all the same: nothing reads a value on the way."""
    bits, lengths = torch.tensor([[0, 7]]), torch.tensor([2])
    assert make_batch(bits, lengths, 2, check=False).tokens.tolist() == [[0, 7, 2, 3]]
    with pytest.raises(InputError, match=r"^bit 7 does not exist: it is one of 0 to 1$"):
        make_batch(bits, lengths, 2)
    with pytest.raises(InputError, match=r"^bit 7 does not exist"):
        fixed_length(bits)


@pytest.mark.parametrize(
    ("bits", "lengths", "longest", "line"),
    [
        (torch.ones(1, 3), torch.tensor([1]), 3, "bits are torch.float32, but torch.int64 is needed"),
        (torch.tensor([[1]]), torch.ones(1), 1, "lengths are torch.float32, but torch.int64 is needed"),
        (torch.tensor([[1]]), torch.tensor([1, 1]), 1, r"for each row of bits, not lengths \[2\], bits \[1, 1"),
        (torch.tensor(1), torch.tensor(1), 1, r"one length for each row of bits, not lengths \[\], bits \[\]"),
        (torch.tensor([[1, 0]]), torch.tensor([1]), 3, "strings of up to 3 bits cannot be cut from rows of 2"),
        (torch.tensor([[1, 0]]), torch.tensor([1]), 0, "strings of up to 0 bits cannot be cut from rows of 2"),
        (torch.tensor([[1, 0]]), torch.tensor([0]), 2, "length 0 does not exist: it is one of 1 to 2"),
        (torch.tensor([[1, 0]]), torch.tensor([2]), 1, "length 2 does not exist: it is one of 1 to 1"),
    ],
)
def test_mistakes_are_one_line(bits: torch.Tensor, lengths: torch.Tensor, longest: int, line: str) -> None:
    with pytest.raises(InputError, match=line) as caught:
        make_batch(bits, lengths, longest)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [1, 7, 500])
def test_evaluation_strings_are_drawn_one_after_another(length: int) -> None:
    """The reference study draws string by string, in batches of 32 from one generator; the count changes nothing."""
    generator = torch.Generator().manual_seed(2026083901 + 1009 * length)
    one_by_one = torch.stack([torch.randint(0, 2, (length,), generator=generator) for _ in range(64)])
    assert torch.equal(evaluation_bits(length, 64, 2026083901), one_by_one)
    assert torch.equal(evaluation_bits(length, 32, 2026083901), one_by_one[:32])


def test_evaluation_strings_of_record() -> None:
    strings = evaluation_bits(10, 4, 2026083901)
    assert ["".join(map(str, row)) for row in strings.tolist()] == [
        "1000110010", "0110000001", "0101001110", "1101111011"
    ]  # fmt: skip
    ones = evaluation_bits(500, 64, 2026083901).sum()
    assert abs(int(ones) - 16_000) < 4 * 90  # the standard deviation of 32,000 fair coins is 89


def test_nothing_is_drawn_for_no_string() -> None:
    with pytest.raises(InputError, match=r"^0 strings of 5 bits cannot be drawn: both numbers are 1 or more$"):
        evaluation_bits(5, 0, 1)
    with pytest.raises(InputError, match=r"^5 strings of 0 bits cannot be drawn"):
        evaluation_bits(0, 5, 1)
