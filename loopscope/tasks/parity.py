"""Parity: is the number of ones in a string of bits odd?

The model reads n bits, a separator and then padding,

    b_1 b_2 ... b_n  SEPARATOR  PAD ... PAD

and answers from the separator on: the parity bit there, PAD at every later place.  All strings of a batch have the
length `longest + 2`, where `longest` is the largest n the batch may hold, so at least one PAD follows every separator.

A batch has a fixed shape that no value of its tensors changes.  It is built on the device of its input without waiting
for it, and may have any leading axes: [batch], or [seeds, batch] for several seeds trained side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.tasks.labels import check_int64, check_range

SEPARATOR = 2
"""Id of the token after the bits, where the parity is read; the bits are their own ids, 0 and 1."""

PAD = 3
"""Id of every token after the separator, and the right answer there."""

NO_ANSWER = 5
"""Target at the places of the bits, where nothing is asked; `Batch.answer` leaves them out of loss and score."""

VOCABULARY = 6
"""How many ids there are.  4 is used nowhere and 5 only as a target: the reference study's models have six classes."""

LENGTH_FACTOR = 1009
"""Strings of n bits are drawn for an evaluation from the seed `base + 1009 n`."""


class Batch(NamedTuple):
    """What the model reads, what it should answer, and where its answer counts: three tensors of the same shape."""

    tokens: Int[Tensor, "*batch tokens"]
    targets: Int[Tensor, "*batch tokens"]
    answer: Bool[Tensor, "*batch tokens"]


def make_batch(
    bits: Int[Tensor, "*batch bits"], lengths: Int[Tensor, "*batch"], longest: int, *, check: bool = True
) -> Batch:
    """The batch of the strings `bits[..., :length]`, each `longest + 2` tokens long, on the device of `bits`.

    `bits` may have more columns than `longest`; a bit behind a string's own length is never looked at.  Raises
    InputError for a shape or type that does not fit, a bit other than 0 and 1, or a length outside 1..longest.
    `check=False` leaves out the checks of tensor values, which make a GPU wait; a training loop that draws its own
    strings has no use for them.
    """
    _check_shapes(bits, lengths, longest)
    if check:
        check_range("length", lengths, 1, longest)
        check_range("bit", bits[..., :longest], 0, 1)
    place = torch.arange(longest + 2, device=bits.device)
    separator = lengths.unsqueeze(-1)
    padded = torch.nn.functional.pad(bits[..., :longest], (0, 2))
    string = torch.where(place < separator, padded, 0)
    parity = string.sum(dim=-1, keepdim=True) % 2

    at, after = place == separator, place > separator
    tokens = torch.where(at, SEPARATOR, torch.where(after, PAD, string))
    targets = torch.where(at, parity, torch.where(after, PAD, NO_ANSWER))
    return Batch(tokens, targets, at | after)


def fixed_length(bits: Int[Tensor, "*batch bits"], *, check: bool = True) -> Batch:
    """The batch of strings that use all their bits: n bits, the separator and one PAD.  Checks as in `make_batch`."""
    lengths = torch.full(bits.shape[:-1], bits.shape[-1], device=bits.device)
    return make_batch(bits, lengths, bits.shape[-1], check=check)


def evaluation_bits(length: int, count: int, base: int) -> Int[Tensor, "count length"]:
    """Fair bits of `count` strings of one length, from a CPU generator with the seed `base + 1009 * length`.

    They are drawn string after string, so the strings of a smaller count are the first of a larger one.  Raises
    InputError for a length or count below 1.
    """
    if length < 1 or count < 1:
        raise InputError(f"{count} strings of {length} bits cannot be drawn: both numbers are 1 or more")
    generator = torch.Generator().manual_seed(base + LENGTH_FACTOR * length)
    return torch.randint(2, (count, length), generator=generator)


def _check_shapes(bits: Tensor, lengths: Tensor, longest: int) -> None:
    for what, tensor in (("bits", bits), ("lengths", lengths)):
        check_int64(what, tensor)
    if bits.ndim == 0 or lengths.shape != bits.shape[:-1]:
        shapes = f"lengths {list(lengths.shape)}, bits {list(bits.shape)}"
        raise InputError(f"there must be one length for each row of bits, not {shapes}")
    if not 1 <= longest <= bits.shape[-1]:
        raise InputError(f"strings of up to {longest} bits cannot be cut from rows of {bits.shape[-1]}")
