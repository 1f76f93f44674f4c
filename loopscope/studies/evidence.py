"""Evidence: the records that claims are judged by, and what a judge finds in them.

A population is a fixed list of graphs, pairs or requests, and a claim on one is decided on the whole of it.  A quick
run measures only a part of some populations.  Such a record checks the stored one of the whole and does not replace it.
Of several records of the whole, those measured just now come first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from loopscope.quantity import Coordinate, Quantity, QuantityTable, of_tables, one
from loopscope.stats import Estimate, Spread, mean_sd
from loopscope.studies.closeness import is_whole, parts_left
from loopscope.studies.language.names import question_of, scale_of
from loopscope.studies.language.records import ANY_MAP
from loopscope.studies.lineage import Lineage
from loopscope.studies.records import Record, percent
from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE, selection
from loopscope.studies.selection import Selection

T = TypeVar("T")


@dataclass(frozen=True)
class Evidence:
    """All records that claims may use; `fresh` are those measured just now; `lineage` says how models were trained."""

    stored: Sequence[Record] = ()
    fresh: Sequence[Record] = ()
    lineage: Lineage = field(default_factory=Lineage)
    _tables: dict[int, list[QuantityTable]] = field(default_factory=dict, repr=False)
    _kept: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def records(self) -> list[Record]:
        """One record for each experiment, backbone and set of populations, by number of the seed, the best last.

        Of several, one of whole populations comes before one of a part, then one in fp32 before one in less, then a
        fresh one before a stored one, then the one with the most answers.  A map of another model decides nothing.
        """
        there = [record for record in (*self.stored, *self.fresh) if not record.settings.get(ANY_MAP)]
        found = {_question_of(record): record for record in sorted(there, key=self._order)}
        return sorted(found.values(), key=self._order)

    @cached_property
    def in_part(self) -> list[Record]:
        """What was measured just now on a part of what a stored record has whole."""
        shown = {id(record) for name in EXPERIMENTS for record in self.of(name).values()}
        shown |= {id(record) for name in LANGUAGE for record in self.every(name)}
        return [record for record in self.fresh if not is_whole(record) and id(record) not in shown]

    def _order(self, record: Record) -> tuple[Any, ...]:
        rank = is_whole(record), "dtype" not in record.settings, self.is_fresh(record), _answers(record)
        return record.experiment, *split(record.facts.name), record.facts.name, *rank

    @cached_property
    def selection(self) -> Selection:
        """The mechanism backbones by the rule."""
        return selection(self.records)

    def of(self, experiment: str, where: str | None = None) -> dict[str, Record]:
        """The records of an experiment (with a population) by backbone.

        Where a backbone has several, with other populations each, it is the best as `records` has it.
        """
        return {record.facts.name: record for record in self.every(experiment) if where in (None, *record.predictions)}

    def every(self, experiment: str) -> list[Record]:
        """All records of an experiment, also several of one backbone."""
        return [record for record in self.records if record.experiment == experiment]

    def main(self, experiment: str, where: str | None = None) -> Record | None:
        """That of the main backbone."""
        names = self.selection.names
        return self.of(experiment, where).get(names[0]) if names else None

    def mechanism(self, experiment: str) -> list[Record]:
        """Those of the mechanism backbones that were measured, the main one first."""
        found = self.of(experiment)
        return [found[name] for name in self.selection.names if name in found]

    def tables(self, record: Record) -> list[QuantityTable]:
        """The tables of a record, made once.

        The paper's numbers are beside those of the main backbone and of every language model.
        """
        if id(record) not in self._tables:
            self._tables[id(record)] = self._make_tables(record)
        return self._tables[id(record)]

    def _make_tables(self, record: Record) -> list[QuantityTable]:
        if record.experiment in LANGUAGE:
            return LANGUAGE[record.experiment].tables(record)
        make = EXPERIMENTS[record.experiment].tables
        paper = record.facts.name in self.selection.names[:1]
        return [] if make is None else list(make(record.predictions, record.facts, paper))

    def kept(self, name: str, records: Sequence[Record], make: Callable[[], T]) -> T:
        """What follows from several records, made once: `name` says what it is."""
        where = name, tuple(map(id, records))
        if where not in self._kept:
            self._kept[where] = make()
        found: T = self._kept[where]
        return found

    def quantities(self, record: Record) -> list[Quantity]:
        """All quantities of a record's tables."""
        return list(of_tables(self.tables(record)))

    def one(self, record: Record, id: str, **at: Coordinate) -> Quantity:
        """A quantity of a record; InputError where there is none, or more than one."""
        return one(self.quantities(record), id, **at)

    def is_fresh(self, record: Record) -> bool:
        """Whether it was measured just now."""
        return any(record is each for each in self.fresh)

    def origin(self, *experiments: str) -> str:
        """In a sentence, on which backbones these experiments were done just now and which come from stored records."""
        used = [record for record in self.records if record.experiment in experiments]
        parts = {
            "Recomputed now": [record for record in used if self.is_fresh(record)],
            "From stored records": [record for record in used if not self.is_fresh(record)],
            "Recomputed now in part, as a check": [each for each in self.in_part if each.experiment in experiments],
        }
        said = []
        for where, found in parts.items():
            names = {each: _backbones(found, each) for each in experiments}
            listed = "; ".join(f"`{each}` on {those}" for each, those in names.items() if those)
            said += [f"{where}: {listed}."] if listed else []
        return " ".join(said)


def _backbones(records: Iterable[Record], experiment: str) -> str:
    return in_short(record.facts.name for record in records if record.experiment == experiment)


def _question_of(record: Record) -> tuple[str, ...]:
    """What one record is enough of.  Language models go by weights, map and settings: two folders may have one name."""
    language = question_of(record) if record.experiment in LANGUAGE else ()
    return record.experiment, record.facts.name, *language, *sorted(record.predictions)


def _answers(record: Record) -> int:
    return sum(nodes.numel() for found in record.predictions.values() for nodes in found.values())


def split(name: str) -> tuple[str, int]:
    """Recipe and seed of a backbone's name."""
    recipe, _, seed = name.rpartition("-")
    return recipe, int(seed) if seed.isdigit() else 0


def in_short(names: Iterable[str]) -> str:
    """Backbones by recipe, neighbouring seeds as a range: d8l6-3, d8l6-4, d8l6-5, d8l8-0 -> d8l6-3..5, d8l8-0.

    A name that does not end in a seed stays as it is.
    """
    seeds: dict[str, set[int]] = {}
    said = []
    for name in dict.fromkeys(names):
        if not name.rpartition("-")[2].isdigit():  # of a language model, which has no seed
            said.append(name)
            continue
        recipe, seed = split(name)
        seeds.setdefault(recipe, set()).add(seed)
    for recipe, found in seeds.items():
        runs: list[list[int]] = []
        for seed in sorted(found):
            if runs and seed == runs[-1][-1] + 1:
                runs[-1].append(seed)
            else:
                runs.append([seed])
        ranges = (f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
        said.append(f"{recipe}-{', '.join(ranges)}")
    return "; ".join(said)


@dataclass(frozen=True)
class Control:
    """What should leave an effect alone: how often it gives the effect's own answer, and how often it may.

    `gives` names that answer.  One that `keeps` should leave answers as they are; `bound` is then the least of them.
    """

    row: Quantity
    bound: float
    gives: str = "the answer"
    keeps: bool = False

    @property
    def failed(self) -> bool:
        """Whether it does what only the effect should do."""
        share = self.row.estimate.value
        if math.isnan(share):  # nothing that it could be counted on
            return False
        return not (at_least(share, self.bound) if self.keeps else at_most(share, self.bound))


@dataclass(frozen=True)
class Finding:
    """What the evidence says: whether the predicate holds (None: not all is there), and the number it rests on.

    - `of`: what the estimate is of, where `ours` shows something else beside it, such as levels beside their change.
    - `others`: what other records say, which the verdict does not rest on.
    - `controls` of the same test; `beside`: what else stands in the row, in sentences.
    - `patches`: whether the number depends on where patches acted.
    - `told`: other numbers by name, as a sentence on it writes them.
    """

    holds: bool | None
    ours: str
    estimate: Estimate | None
    n: int
    used: Sequence[Record]
    others: tuple[Finding, ...] = ()
    of: str = ""
    controls: tuple[Control, ...] = ()
    beside: tuple[str, ...] = ()
    patches: bool = True
    told: Mapping[str, str] = field(default_factory=dict, hash=False)


Judge = Callable[[Evidence], Finding | None]
"""What decides a claim; None where nothing was measured that it speaks of."""


def scale(records: Iterable[Record]) -> str:
    """Whether whole populations were measured, or how much of them; of language models, which and how much."""
    used = list(records)
    language = dict.fromkeys(scale_of(record) for record in used if record.experiment in LANGUAGE)
    if language:
        return "; ".join(language)
    shortened = {each for record in used for each in parts_left(record)}
    return "paper scale" if not shortened else "paper's model, " + ", ".join(sorted(shortened))


# ---- numbers, as predicates take them and as they are told -----------------------------------------------------------

ROUNDING = 1e-9
"""Shares are floats, and so are their differences; one instance of any population weighs far more."""


def at_least(share: float, bound: float) -> bool:
    """Up to rounding."""
    return share >= bound - ROUNDING


def at_most(share: float, bound: float) -> bool:
    """Up to rounding."""
    return share <= bound + ROUNDING


def listed(shares: Iterable[float]) -> str:
    """Several, in per cent."""
    return ", ".join(map(percent, shares))


def mean_of(rows: Sequence[Quantity]) -> Estimate:
    """The mean over backbones with equal weight, and one sample SD to either side; a single one as it is.

    NaN, of which no predicate holds, where some backbone has no share because nothing counts in it.
    """
    values = [row.estimate.value for row in rows]
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, len(values)).estimate("backbone")
    if len(rows) == 1:
        return rows[0].estimate
    return mean_sd(values).estimate("backbone")


def of_cohort(found: Mapping[str, T], cohort: str) -> tuple[dict[str, T], bool]:
    """What belongs to a cohort, by backbone, and whether that is all of it."""
    names = COHORTS[cohort].backbones
    mine = {name: found[name] for name in names if name in found}
    return mine, len(mine) == len(names)
