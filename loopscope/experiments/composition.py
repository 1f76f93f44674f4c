"""Composition: can maps follow each other, in any order, and for how many calls?

After the trained calls a *string* such as "12" asks for J_one, F, J_two, F; a "0" is a call without a map.  Targets
count from the current node u, never from what the model answered before: after "12" it is f^3(u).  Nothing is reset
between calls.  Controls leave out the current map alone, all maps but the first, or all of them, or read after J and
before F; a baseline copies u.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

import torch
from jaxtyping import Bool, Integer, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute import run
from loopscope.experiments.subject import Subject, Walks
from loopscope.program import F, J, Program
from loopscope.tasks.populations import mixed_strings

LETTERS = {"0": None, "1": "one", "2": "two"}
TWO_CALLS = tuple(first + second for first in "012" for second in "012")
CALLS = 8


def long_strings() -> tuple[str, ...]:
    """Eight calls of one, eight of two, and the 32 fixed mixed strings."""
    return ("1" * CALLS, "2" * CALLS, *("".join(map(str, row)) for row in mixed_strings().tolist()))


def program(string: str, loops: int, fit: int = 1) -> Program:
    """The trained calls, then one call for each letter, with its map before it; InputError for another letter."""
    if unknown := sorted(set(string) - set(LETTERS)):
        raise InputError(f"no letter {unknown[0]!r} in string {string!r}: letters are {', '.join(LETTERS)}")
    names = (LETTERS[letter] for letter in string)
    return reduce(lambda so_far, name: so_far | F if name is None else so_far | J(f"{name}-{fit}") | F, names, F**loops)


def hops(string: str) -> list[int]:
    """How far from u each call should lead: the sum of the letters so far."""
    return [sum(map(int, string[: call + 1])) for call in range(len(string))]


def measure(
    subject: Subject, at: Walks, strings: Iterable[str], before: bool = False
) -> dict[str, UInt8[Tensor, "calls n"]]:
    """The node answered after every call of every string, by `string-fit`; strings with equal beginnings share them.

    `before`: read after J and before F instead (strings without a 0).
    """
    asked = list(strings)
    targets = sorted({name for string in asked for letter in string if (name := LETTERS.get(letter)) is not None})
    fits = range(1, 1 + min((len(subject.maps[target]) for target in targets if target in subject.maps), default=1))
    programs = {f"{string}-{fit}": program(string, subject.loops, fit) for string in asked for fit in fits}
    maps = subject.named(*targets)
    found = run(subject.model, at.tokens, list(dict.fromkeys(programs.values())), maps=maps, read="all")
    outcome = {}
    for name, each in programs.items():
        # Points after the trained calls: h7, or "h6 J:one-1" for the mapped state that enters the next call.
        points = [point for point in each.points if ("J:" in point) == before]
        chosen = points if before else points[subject.loops + 1 :]
        logits = found[each].logits_at
        outcome[name] = torch.stack([logits[point][:, 0].argmax(-1) for point in chosen]).to(torch.uint8).cpu()
    return outcome


def without_current(string: str) -> tuple[str, ...]:
    """For every call, the string up to it with that call's own map left out; only the last answer of each counts."""
    return tuple(string[:call] + "0" for call in range(len(string)))


def first_only(string: str) -> str:
    """The map of the first call alone."""
    return string[0] + "0" * (len(string) - 1)


def right(answers: Integer[Tensor, "calls n"], string: str, at: Walks) -> Bool[Tensor, "calls n"]:
    """Which answers are what the string asks for."""
    targets = torch.stack([at.ahead(steps) for steps in hops(string)]).cpu()
    return answers.long() == targets


def so_far(right: Bool[Tensor, "calls n"]) -> Bool[Tensor, "calls n"]:
    """Whether an instance was right at this call and at all before it."""
    return right.long().cumprod(0).bool()


def copy_u(string: str, at: Walks) -> Bool[Tensor, "calls n"]:
    """Where answering u would be right: walks that have returned to it."""
    return right(at.current.cpu().expand(len(string), -1), string, at)


def accuracies(outcomes: Mapping[str, Bool[Tensor, "calls n"]], kept: Bool[Tensor, " n"]) -> list[float]:
    """Accuracy at every call over the instances that count, averaged over strings and fits."""
    stacked = torch.stack(list(outcomes.values()))
    return stacked[:, :, kept.cpu()].double().mean((0, 2)).tolist()
