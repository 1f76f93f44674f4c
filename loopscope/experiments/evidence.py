"""Evidence: the records that claims are judged by, those measured just now before stored ones.

Long experiments keep counts (`raw`), and a quick run of them measures a small part.  It does not replace a stored
record of the whole, but is a check of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

from loopscope.experiments import language_tables
from loopscope.experiments.language import LANGUAGE
from loopscope.experiments.language_names import scale_of, subject_of
from loopscope.experiments.records import Record, Row, Table, percent
from loopscope.experiments.suite import EXPERIMENTS, Role, Selection, selection
from loopscope.stats import Estimate, Spread, mean_sd
from loopscope.tasks.populations import population


@dataclass(frozen=True)
class Evidence:
    """All records that claims may use; `fresh` are those measured just now."""

    stored: Sequence[Record] = ()
    fresh: Sequence[Record] = ()
    _tables: dict[int, list[Table]] = field(default_factory=dict, repr=False)

    @cached_property
    def records(self) -> list[Record]:
        """One record for each experiment, backbone and set of populations, by number of the seed, the best last.

        Of several, fresh ones come before stored ones, and then the one with the most answers: what was measured on all
        graphs, not on some.  Before that, a long experiment's record of the whole comes before one of a part.  Of a
        language model in two precisions it is that in fp32.
        """
        found = {_subject_of(record): record for record in sorted([*self.stored, *self.fresh], key=self._order)}
        return sorted(found.values(), key=self._order)

    @cached_property
    def in_part(self) -> list[Record]:
        """What was measured just now on a part of what a stored record has whole."""
        shown = {id(record) for name in EXPERIMENTS for record in self.of(name).values()}
        return [record for record in self.fresh if not _is_whole(record) and id(record) not in shown]

    def _order(self, record: Record) -> tuple[Any, ...]:
        rank = _is_whole(record), self.is_fresh(record), *_worth(record)
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

    def tables(self, record: Record) -> list[Table]:
        """The tables of a record, made once.

        The paper's numbers are beside those of the main backbone and of every language model.
        """
        if record.experiment in LANGUAGE:
            if id(record) not in self._tables:
                self._tables[id(record)] = language_tables.tables(record)
            return self._tables[id(record)]
        make = EXPERIMENTS[record.experiment].tables
        if make is None:
            return []
        if id(record) not in self._tables:
            names = self.selection.names
            paper = bool(names) and record.facts.name == names[0]
            self._tables[id(record)] = make(record.predictions, record.facts, paper)
        return self._tables[id(record)]

    def row(self, record: Record, title: str, name: str) -> Row:
        """One row by its name and the beginning of its table's title."""
        table = next(table for table in self.tables(record) if table.title.startswith(title))
        return next(row for row in table.rows if row.name == name)

    def is_fresh(self, record: Record) -> bool:
        """Whether it was measured just now."""
        return any(record is each for each in self.fresh)

    def origin(self, *experiments: str) -> str:
        """In a sentence, on which backbones these experiments were done just now and which come from stored records."""
        used = [record for record in self.records if record.experiment in experiments]
        parts = {
            "Recomputed now": [record for record in used if self.is_fresh(record)],
            "From `results/`": [record for record in used if not self.is_fresh(record)],
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


def _subject_of(record: Record) -> tuple[str, ...]:
    """What one record is enough of.  Language models go by weights, map and settings: two folders may have one name."""
    spoken = subject_of(record) if record.experiment in LANGUAGE else ()
    return record.experiment, record.facts.name, *spoken, *sorted(record.predictions)


def _is_whole(record: Record) -> bool:
    """Whether a long experiment was done as the paper profile does it; of others, what was measured is whole."""
    if not record.raw or record.experiment in LANGUAGE or not record.settings:
        return True
    settings = EXPERIMENTS[record.experiment].settings
    return any(record.settings in settings(role, "paper") for role in get_args(Role))


def _worth(record: Record) -> tuple[int, bool]:
    answers = sum(nodes.numel() for found in record.predictions.values() for nodes in found.values())
    return answers, "dtype" not in record.settings


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
        told = (f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
        said.append(f"{recipe}-{', '.join(told)}")
    return "; ".join(said)


@dataclass(frozen=True)
class Finding:
    """What the evidence says: whether the predicate holds (None: not all is there), and the number it rests on.

    `others` are what other models say, which the verdict does not rest on.
    """

    holds: bool | None
    ours: str
    estimate: Estimate | None
    n: int
    used: Sequence[Record]
    others: tuple[Finding, ...] = ()


Judge = Callable[[Evidence], Finding | None]
"""What decides a claim; None where nothing was measured that it speaks of."""


def scale(records: Iterable[Record]) -> str:
    """Whether whole populations were measured, or how many of their graphs; of raw records, what was reduced.

    Of language models, which they are and how much they were asked.  No claim rests on what was only looked at more
    closely on some graphs: the insides of calls, the costly switches.
    """
    used = list(records)
    spoken = dict.fromkeys(scale_of(record) for record in used if record.experiment in LANGUAGE)
    if spoken:
        return "; ".join(spoken)
    shortened = set()
    for record in used:
        if record.raw:
            if not _is_whole(record):
                shortened.add(", ".join(_setting(*each) for each in sorted(record.settings.items())))
            continue
        for where, found in record.predictions.items():
            measured = max(answers.shape[-1] for answers in found.values()) // record.facts.nodes
            there = len(population(where).rows)
            if measured < there:
                shortened.add(f"{measured} of {there} graphs")
    return "paper scale" if not shortened else "paper's model, " + ", ".join(sorted(shortened))


def _setting(name: str, value: Any) -> str:
    """A setting in words: 64 queries, cut, no far, near 45-125 by 20."""
    said = name.replace("_", " ")
    match value:
        case True:
            return said
        case None | False:
            return f"no {said}"
        case int() if said.endswith("s"):
            return f"{value} {said}"
        case [first, last, step]:
            return f"{said} {first}-{last} by {step}"
    return f"{said} {value}"


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


def mean_of(rows: Sequence[Row]) -> Estimate:
    """The mean over backbones with equal weight, and one sample SD to either side; a single one as it is.

    NaN, of which no predicate holds, where some backbone has no share because nothing counts in it.
    """
    values = [row.estimate.value for row in rows]
    if any(map(math.isnan, values)):
        return Spread(math.nan, math.nan, len(values)).estimate("backbone")
    if len(rows) == 1:
        return rows[0].estimate
    return mean_sd(values).estimate("backbone")
