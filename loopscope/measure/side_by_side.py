"""Programs side by side on the examples of a task: shares of right answers by steps, paired differences, intervals.

Where examples have clusters, these are resampled; a single cluster says nothing of others, so its interval is all that
could be, and where all answers are right, or none, it is Wilson's over clusters.  Where they have none, the interval of
a share is Wilson's, and that of a difference resamples examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool
from torch import Tensor

import loopscope.table as tables
from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.measure.answers import Item, moved_answers, read_at_map, whole_answers, without_map
from loopscope.program import ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.quantity import Quantity, QuantityTable
from loopscope.results import Tabular, numbered
from loopscope.stats import Estimate, cluster_bootstrap, tally, wilson
from loopscope.tasks.examples import Example

SEED, DRAWS = 20_261_119, 2_000
"""What intervals are drawn from, and how often."""

RIGHT, DIFFERENCE = "task.right", "task.difference"
"""Ids of the quantities."""

WITH, WITHOUT, NO_F = "with J", "without J", "J without the F behind it"
OUTPUT, CHANGE = "J's output of another example", "J's change of another example"
"""The rows of a map and its controls, in their order."""


@dataclass(frozen=True)
class Condition:
    """What was asked in one way: its name, its program, the numbers of the examples, and which are answered right."""

    name: str
    program: str
    at: tuple[int, ...]
    right: Bool[Tensor, " examples"]


@dataclass(frozen=True, repr=False)
class SideBySide(Tabular):
    """Examples asked in several ways; differences are from the first."""

    examples: tuple[Example, ...]
    conditions: tuple[Condition, ...]

    def condition(self, name: str) -> Condition | None:
        """The one of this name; None where there is none."""
        return next((each for each in self.conditions if each.name == name), None)

    def table(self) -> tables.Table:
        """The share of right answers of every condition, of all examples and by steps, and its difference."""
        more = {row.at["condition"]: row.estimate for row in self.differences().rows}
        rows = self.right().rows
        steps = {"steps": [row.at.get("steps") for row in rows]} if any("steps" in row.at for row in rows) else {}
        first = [more.get(row.at["condition"]) if "steps" not in row.at else None for row in rows]
        columns: dict[str, Any] = {name: [row.at[name] for row in rows] for name in ("condition", "program")} | steps
        for name, found in (("right", [row.estimate for row in rows]), ("more", first)):
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high")):
                columns[f"{name}{end}"] = [None if each is None else getattr(each, part) for each in found]
        columns = {name: each for name, each in columns.items() if any(cell is not None for cell in each)}
        return tables.Table("right", {**columns, "n": [row.n for row in rows]}, {"note": self._note()})

    def _words(self) -> str:
        shares = ", ".join(f"{each.name} {float(each.right.float().mean()):.1%}" for each in self.conditions)
        return f"{numbered(len(self.examples), 'example')}; right: {shares}"

    def right(self) -> QuantityTable:
        """The share of right answers of every condition: of all examples, then by steps."""
        rows = []
        for each in self.conditions:
            for steps in (None, *(self.steps if len(self.steps) > 1 else ())):
                mine = [place for place, at in enumerate(each.at) if steps in (None, self.examples[at].steps)]
                if mine:
                    found = share(each.right[mine], [self.examples[each.at[place]] for place in mine])
                    where: dict[str, str | int] = {"condition": each.name, "program": each.program}
                    where |= {} if steps is None else {"steps": steps}
                    rows.append(Quantity(RIGHT, each.name, found, len(mine), at=where))
        return QuantityTable(RIGHT, "Right answers", rows, self._note())

    def differences(self) -> QuantityTable:
        """How much more each condition has right than the first, on the examples that both were asked."""
        first, *others = self.conditions
        rows = []
        for each in others:
            places = {at: place for place, at in enumerate(first.at)}
            mine = [place for place, at in enumerate(each.at) if at in places]
            if not mine:
                continue
            pairs = first.right[[places[each.at[place]] for place in mine]], each.right[mine]
            found = difference(*pairs, [self.examples[each.at[place]] for place in mine])
            rows.append(Quantity(DIFFERENCE, f"{each.name} less {first.name}", found, len(mine),
                                 at={"condition": each.name, "program": each.program}))  # fmt: skip
        return QuantityTable(DIFFERENCE, "Differences of paired answers", rows, self._note())

    @property
    def steps(self) -> list[int]:
        """The numbers of steps that occur."""
        return sorted({each.steps for each in self.examples if each.steps is not None})

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: both tables."""
        return {"asked": len(self.examples), "clusters": _clusters(self.examples), "tables": [
            {**asdict(table), "rows": [{**asdict(row), "at": dict(row.at)} for row in table.rows]}
            for table in (self.right(), self.differences())
        ]}  # fmt: skip

    def _note(self) -> str:
        clusters = _clusters(self.examples)
        unit = "examples" if clusters is None else f"{clusters:,} clusters"
        return f"{len(self.examples):,} examples; intervals of 95 % over {unit}."


def share(right: Bool[Tensor, " n"], asked: Sequence[Example]) -> Estimate:
    """The share of right answers, with its interval over examples or, where they have them, their clusters."""
    clusters = _clusters(asked)
    if clusters is None:
        return wilson(int(right.sum()), len(right))
    value = float(right.float().mean())
    if clusters < 2:
        return Estimate(value, 0.0, 1.0, clusters, "cluster", 0)
    if value in (0.0, 1.0):  # resampled, these would never be other than they are
        return wilson(round(value * clusters), clusters, unit="cluster")
    return cluster_bootstrap(tally(right.numpy(), cluster_ids(asked)), seed=SEED, draws=DRAWS, unit="cluster")


def difference(first: Bool[Tensor, " n"], second: Bool[Tensor, " n"], asked: Sequence[Example]) -> Estimate:
    """Share right of the second less that of the first, the same examples asked twice."""
    value, ids = float(second.float().mean() - first.float().mean()), cluster_ids(asked)
    unit = "example" if _clusters(asked) is None else "cluster"
    if len(set(ids.tolist())) < 2:
        return Estimate(value, -1.0, 1.0, 1, unit, 0)
    a, b = (tally(each.numpy(), ids) for each in (second, first))
    return cluster_bootstrap(a, b, seed=SEED, draws=DRAWS, unit=unit)


def _clusters(asked: Sequence[Example]) -> int | None:
    """How many clusters there are, an example without one counting as one; None where no example has one."""
    named = {each.cluster for each in asked if each.cluster is not None}
    return None if not named else len(named) + sum(each.cluster is None for each in asked)


def cluster_ids(asked: Sequence[Example]) -> np.ndarray:
    """What is resampled together, an id for every example; one without a cluster is its own."""
    names = [f"of {each.cluster}" if each.cluster is not None else f"alone {at}" for at, each in enumerate(asked)]
    return np.array(names)


def side_by_side(
    model: LoopedModel,
    items: Sequence[Item],
    programs: Sequence[ProgramLike],
    *,
    maps: Mapping[str, TokenMap] | None = None,
    batch: int = 32,
    log: Log = silent,
) -> SideBySide:
    """Whole answers of programs; errors as `answers.whole_answers`, and for no items or programs."""
    if not items or not programs:
        raise InputError(f"nothing is to be compared: {len(items)} examples, {len(programs)} programs")
    asked = list(dict.fromkeys(map(as_program, programs)))
    right = whole_answers(model, items, asked, maps=maps, batch=batch, log=log)
    every = tuple(range(len(items)))
    found = [Condition(str(each), str(each), every, right[number]) for number, each in enumerate(asked)]
    return SideBySide(tuple(item.example for item in items), tuple(found))


def controls(
    model: LoopedModel,
    items: Sequence[Item],
    program: ProgramLike,
    name: str,
    *,
    maps: Mapping[str, TokenMap],
    batch: int = 32,
    log: Log = silent,
) -> SideBySide:
    """A program with the map of this name, beside: without it, without the F behind it, and with another example's J.

    The last two are of the examples that have a partner (`answers.partners`), which has another answer: where the
    answer lies in what J gives, none is right with another's.  InputError for a program without the
    map, and as `side_by_side`.
    """
    program = as_program(program)
    plain = without_map(program, name)
    if plain == program:
        raise InputError(f"'{program}' has no map {name!r} to compare with none (nearest: {program} J:{name})")
    short = read_at_map(program, name)
    wanted = {WITH: program, WITHOUT: plain} | ({} if short is None else {NO_F: short})
    right = whole_answers(model, items, list(wanted.values()), maps=maps, batch=batch, log=log)
    every = tuple(range(len(items)))
    found = [Condition(label, str(each), every, right[at]) for at, (label, each) in enumerate(wanted.items())]
    for label, what in ((OUTPUT, "output"), (CHANGE, "change")):
        at, moved = moved_answers(model, items, program, name, maps=maps, what=what, batch=batch, log=log)
        if at:
            found.append(Condition(label, str(program), tuple(at), moved))
    return SideBySide(tuple(item.example for item in items), tuple(found))


def statement(found: SideBySide) -> list[str]:
    """What a map and its controls say, in plain sentences; a difference whose interval holds 0 is called none."""
    table, differences = found.right().rows, {row.at["condition"]: row.estimate for row in found.differences().rows}
    share = {row.at["condition"]: row.estimate for row in table if "steps" not in row.at}
    said = [f"With J {_percent(share[WITH])} of {len(found.examples):,} held-out answers are right, "
            f"without it {_percent(share[WITHOUT])}."]  # fmt: skip
    gained = differences[WITHOUT]
    if gained.low <= 0 <= gained.high:
        said.append("J makes no difference that these examples can tell.")
    else:
        said.append(f"J {'costs' if gained.value > 0 else 'brings'} {_points(gained)} points.")
    if (after := differences.get(NO_F)) is not None:
        if after.low <= 0 <= after.high:
            itself = "" if gained.high >= 0 else ": J may answer by itself"
            said.append(f"J without the F behind it does no worse that these examples can tell{itself}.")
        else:
            word = "more" if after.value > 0 else "fewer"
            said.append(f"J without the F behind it has {_percent(share[NO_F])}, {_points(after)} points {word}.")
    for label in (OUTPUT, CHANGE):
        if (moved := differences.get(label)) is not None:
            same = moved.low <= 0 <= moved.high
            said.append(f"With {label} it is {_percent(share[label])}"
                        f"{', which these examples cannot tell from its own' if same else ''}.")  # fmt: skip
    return said


def by_steps(found: SideBySide) -> list[str]:
    """The same shares for each number of steps, where there are several, a sentence each."""
    said = []
    for steps in found.steps if len(found.steps) > 1 else ():
        mine = {row.at["condition"]: row for row in found.right().rows if row.at.get("steps") == steps}
        shares = ", ".join(f"{name} {_percent(mine[name].estimate)}" for name in (WITH, WITHOUT, NO_F) if name in mine)
        said.append(f"At {steps} step{'' if steps == 1 else 's'}: {shares}; n {mine[WITH].n:,}.")
    return said


def _percent(each: Estimate) -> str:
    return f"{100 * each.value:.1f} % ({100 * each.low:.1f} to {100 * each.high:.1f})"


def _points(each: Estimate) -> str:
    low, high = sorted((abs(each.low), abs(each.high)))
    return f"{100 * abs(each.value):.1f} ({100 * low:.1f} to {100 * high:.1f})"
