"""Parity beyond 500 bits once more, in fp32: do counts in fp16 say what the model does, or what rounding does to it?

Lengths of 505 to 1,000 bits are counted with products in fp16, and a claim rests on them.  Over a thousand calls a
rounding error has time to grow, so some of the same strings are run again with products in fp32, and kept string by
string.  The number of strings is a setting: on one core a string of 600 bits takes 45 seconds, one of 1,000 takes 160.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer
from loopscope.protocol import TokenMap
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Estimate, wilson
from loopscope.studies.parity.counts import CONDITIONS, FAR, REACH, Counts, right_strings
from loopscope.studies.records import percent

STRINGS = ((600, 0, 128), (800, 0, 128), (1000, 0, 128))
"""Length, number of the first string, and of the first one that is left out: all that are counted in fp16."""

AT_ONCE = 8
"""Strings of a piece."""

RIGHT, FIRST = "right", "first"


def measure(
    model: LoopedTransformer, step: TokenMap | None, strings: Sequence[Sequence[int]] = STRINGS
) -> dict[str, dict[str, Tensor]]:
    """By length, as a word: `right` as `right_strings` gives it, and `first`, the number of the first string."""
    found = {}
    for length, first, end in strings_of(strings):
        right = right_strings(model, step, length, range(first, end))
        found[str(length)] = {RIGHT: right, FIRST: torch.tensor([first], dtype=torch.int32)}
    return found


def pieces(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings of `measure` for `AT_ONCE` strings each, which together measure what these do; see `whole`."""
    return [
        {"strings": [[length, at, min(at + AT_ONCE, end)]]}
        for length, first, end in strings_of(settings.get("strings", STRINGS))
        for at in range(first, end, AT_ONCE)
    ]


def whole(found: Sequence[Counts]) -> Counts:
    """What was measured in pieces, as one; InputError unless the strings of each length follow each other."""
    joined: Counts = {}
    for piece in found:
        for length, part in piece.items():
            if length not in joined:
                joined[length] = dict(part)
                continue
            so_far = joined[length]
            if int(so_far[FIRST]) + so_far[RIGHT].shape[-1] != int(part[FIRST]):
                raise InputError(f"strings of {length} bits from {int(part[FIRST])} on do not follow those before them")
            so_far[RIGHT] = torch.cat([so_far[RIGHT], part[RIGHT]], -1)
    return joined


def strings_of(strings: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """Length, first and end of what is asked for; InputError for anything else, and for a length twice."""
    asked: list[tuple[int, int, int]] = []
    for each in strings:
        match list(each):
            case [int(length), int(first), int(end)] if 0 <= first < end and length not in [n for n, _, _ in asked]:
                asked.append((length, first, end))
            case _:
                raise InputError(f"strings are given as length, first, end, every length once, not {list(each)}")
    return asked


# ---- analysis --------------------------------------------------------------------------------------------------------

EXACT, COUNTED = "fp32", "fp16"
NOTE = (
    "At t = n; Wilson intervals over strings. Counts in fp16 are known of the first 64 strings of a length and of all "
    "128; where fewer were run in fp32, they are the first of those 64."
)


@dataclass(frozen=True)
class Score:
    """How many strings are right at t = n, of how many, and the share right over all 21 loops around it."""

    right: int
    strings: int
    around: float

    @property
    def share(self) -> Estimate:
        """At t = n."""
        return wilson(self.right, self.strings, unit="string")


@dataclass(frozen=True)
class Compared:
    """One length and condition in both precisions; `counted` is None where nothing was counted in fp16."""

    length: int
    condition: str
    exact: Score
    counted: Score | None

    @property
    def same(self) -> bool:
        """Whether both are about the same strings."""
        return self.counted is not None and self.counted.strings == self.exact.strings


def compared(exact: Counts, counts: Counts | None = None) -> list[Compared]:
    """Every length that was run in fp32, by length and condition, beside what `far` counts of it."""
    found = []
    for length in sorted(exact, key=int):
        for condition, right in zip(CONDITIONS, exact[length][RIGHT], strict=False):
            strings = right.shape[-1]
            scored = Score(int(right[REACH].sum()), strings, float(right.double().mean()))
            beside = None if counts is None else _counted(counts, int(length), condition, strings)
            found.append(Compared(int(length), condition, scored, beside))
    return found


def _counted(counts: Counts, length: int, condition: str, strings: int) -> Score | None:
    """The first half of the strings in fp16, or all where more than that were run."""
    if FAR not in counts:
        return None
    far, place = counts[FAR], CONDITIONS.index(condition)
    at = far["lengths"] == length
    if place >= len(far["right"]) or not bool(at.any()):
        return None
    halves, sizes = far["right"][place, :, at][:, 0], far["strings"].tolist()
    right, size = (halves[0], sizes[0]) if strings <= sizes[0] else (halves.sum(0), sum(sizes))
    return Score(int(right[REACH]), size, float(right.double().mean()) / size)


def table(exact: Counts, counts: Counts | None = None) -> QuantityTable:
    """Both precisions side by side: `parity.precision`."""
    rows = []
    for each in compared(exact, counts):
        for precision, scored in ((EXACT, each.exact), (COUNTED, each.counted)):
            if scored is not None:
                label = f"{each.length} bits, {each.condition}, {precision}"
                at: At = {"length": each.length, "condition": each.condition, "precision": precision}
                rows.append(Quantity("parity.precision", label, scored.share, scored.strings, None, at))
    return QuantityTable("parity.precision", "Beyond 500 bits: fp32 beside fp16", rows, NOTE)


def in_words(exact: Counts, counts: Counts | None = None) -> str:
    """The 21 loops around t = n, which say more than t = n alone."""
    said = []
    for each in compared(exact, counts):
        beside = "" if each.counted is None else f" ({percent(each.counted.around)} in {COUNTED})"
        strings = f"{each.exact.strings} strings of {each.length} bits"
        said.append(f"{each.condition} {percent(each.exact.around)} %{beside} of {strings}")
    return f"Right over the 21 loops around t = n in {EXACT}: {'; '.join(said)}."
