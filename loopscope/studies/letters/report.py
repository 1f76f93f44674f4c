"""The section on the letter walk: which heads carry the steering, how they were found, and what patches of them do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from loopscope.measure.searching import KEEPS, LEAVES
from loopscope.quantity import Quantity, every
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.names import identity, loops_in_words
from loopscope.studies.letters.figures import (
    BACK,
    RESTORED,
    STEERED,
    ByCondition,
    along_figure,
    by_layer,
    content_figure,
    of_itself,
    restoration_figure,
    steering_figure,
    walks_figure,
)
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.names import of_search, patched
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.search import path_figure, search_table, sizes_figure
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING, TESTS
from loopscope.studies.letters.walks import WALKS
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.contents import Figure, Grid, Listing, Section
from loopscope.studies.report.models import INTERVALS, labels, measured_on, models, side_by_side

HOW = (
    "Ten people pass a letter on; asked is who has it after eight transfers, where the backbone was trained on one to "
    "four. J stands before loops 2 to L. Whoever the likeliest first token names is the answer; whole names were "
    f"generated, too, and tables say how often both agree. {INTERVALS.format('pairs of prompts')}",
    "Heads are searched on discovery pairs and their number is fixed on confirmation pairs; all other numbers are from "
    "pairs that the search never saw. Rescue puts attention patterns of the steered run into the unsteered one, damage "
    f"the reverse; a scope passes if rescue keeps {100 * KEEPS:.0f} % of the steered score, or where no layers do, of "
    f"what all layers rescue, and damage leaves at most {100 * LEAVES:.0f} %, or as little as the unsteered run has. "
    "The paper's are sixteen heads of three late layers, at loop 4.",
)


@dataclass(frozen=True)
class Walkers:
    """All records of the letter walk, by test and by the name of their model."""

    evidence: Evidence
    records: Sequence[Record]
    named: Mapping[tuple[str, ...], str]

    @property
    def walks(self) -> dict[str, Record]:
        """The records of how far models go."""
        return self._one_each(WALKS)

    @property
    def searched(self) -> dict[str, Record]:
        """The records of head selections."""
        return self._one_each(HEADS)

    def _one_each(self, part: str) -> dict[str, Record]:
        found = {identity(each): each for each in self.records if part in each.predictions}
        return {label: found[who] for who, label in self.named.items() if who in found}

    def tested(self, test: str) -> dict[str, Record]:
        """The records of a test; with several sets of heads, those not selected are named with their loops."""
        return {label: each for who in self.named for label, each in self._tested(who, test).items()}

    def _tested(self, who: tuple[str, ...], test: str) -> dict[str, Record]:
        mine = [each for each in self.records if test in each.predictions and identity(each) == who]
        found = {}
        for each in sorted(mine, key=lambda record: not of_search(record, self.records)):
            alone = len(mine) == 1 or of_search(each, self.records)
            found[self.named[who] if alone else f"{self.named[who]}, {patched(each)}"] = each
        return found

    @property
    def series(self) -> list[str]:
        """Every name that figures use, in one order for all of them."""
        return [*dict.fromkeys(label for who in self.named for test in TESTS for label in self._tested(who, test))]

    def quantities(self, test: str, id: str) -> dict[str, list[Quantity]]:
        """By model, the quantities of an id in the records of a test; models without any are left out."""
        made = {label: every(self.evidence.quantities(each), id) for label, each in self.tested(test).items()}
        return {label: found for label, found in made.items() if found}

    def by_condition(self, test: str, id: str) -> ByCondition:
        """The same, by condition."""
        made = self.quantities(test, id)
        return {label: {str(each.at["condition"]): each for each in found} for label, found in made.items()}


def letters_section(evidence: Evidence) -> Section | None:
    """The search for heads and the three tests, of whatever models were measured; None without any."""
    records = evidence.every(LETTERS)
    if not records:
        return None
    named = labels(records)
    walkers = Walkers(evidence, records, named)
    mine = {label: [each for each in records if identity(each) == who] for who, label in named.items()}
    found = {label: each for label, record in walkers.searched.items() if (each := selection_of(record)) is not None}
    steering = walkers.by_condition(STEERING, "letters.steering")
    content = walkers.quantities(CONTENT, "letters.content")
    restored = walkers.by_condition(RESTORATION, "letters.restoration")
    repaired = walkers.by_condition(RESTORATION, "letters.restoration.repaired")
    figures: list[Figure] = [walks_figure(evidence, walkers.walks)] if walkers.walks else []
    tables: list[Grid | Listing] = [models(LETTERS, mine)]
    if found:
        figures += [path_figure(found), sizes_figure(found)]
        tables += [search_table(label, each, walkers.searched[label].facts.heads) for label, each in found.items()]
    if steering:
        figures.append(steering_figure(steering, walkers.series))
        tables.append(side_by_side("Steering: right answers", LETTERS, _listed(steering, STEERED)))
    if along := walkers.quantities(STEERING, "letters.steering.along"):
        figures.append(along_figure(along))
    if content:
        figures.append(content_figure(content))
        shown = {label: [each for each in found if not of_itself(each)] for label, found in content.items()}
        tables.append(side_by_side("Pattern against output: what is answered", LETTERS, shown, note=_BDE))
    if restored:
        figures.append(restoration_figure(restored, repaired, walkers.series))
        layers = {name: name for name in by_layer(restored)}
        tables.append(
            side_by_side("Restoration: right answers", LETTERS, _listed(restored, {**RESTORED, "layers": layers}))
        )
    if repaired:
        said = "n counts answers that were right before queries were replaced, and wrong after."
        rows = _listed(repaired, {"all": BACK, "layers": layers})
        tables.append(side_by_side("Restoration: repaired of what other queries broke", LETTERS, rows, note=said))
    tables += _differences(walkers)
    more = [
        table.under(label)
        for label, record in [
            *walkers.walks.items(),
            *walkers.searched.items(),
            *(each for test in TESTS for each in walkers.tested(test).items()),
        ]
        for table in evidence.tables(record)
        if table.rows
    ]
    text = [measured_on(LETTERS, named.values()), *HOW, *_chosen(walkers)]
    return Section(
        LETTERS, "Language models: the letter walk", LANGUAGE[LETTERS].question, text, figures, tables,
        decided_by(LETTERS), more,
    )  # fmt: skip


def _chosen(walkers: Walkers) -> list[str]:
    """Which heads the search chose in every model, in a sentence."""
    said = []
    for label, record in walkers.searched.items():
        found = selection_of(record)
        if found is None:
            said.append(f"{label}: none, as J brings no more right answers on discovery pairs")
            continue
        how = "every step had a scope that passed" if found.passed else "not every step had a scope that passed"
        loops = loops_in_words(found.loops)
        said.append(f"{label}: {len(found.heads)} in {loops}, `{found.heads}` (layer.heads), {how}")
    return [f"Heads that were chosen. {'; '.join(said)}."] if said else []


_BDE = (
    "B is the receiving run's own answer, D the donor's, E the donor's last transfer by the receiver's rules: a "
    "pattern that says where to read gives E, an output that was read gives D."
)


def _listed(rows: ByCondition, groups: Mapping[str, Mapping[str, str]]) -> dict[str, list[Quantity]]:
    """Quantities by model as tables list them: those of some groups in their order, with what they mean."""
    labels = {name: _full(name, said) for group in groups.values() for name, said in group.items()}
    return {
        label: [replace(found[name], label=said) for name, said in labels.items() if name in found]
        for label, found in rows.items()
    }


def _full(name: str, said: str) -> str:
    """A condition as records call it, with what it means where that is not the same."""
    return said if name in said else name if said in name else f"{name} ({said})"


def _differences(walkers: Walkers) -> list[Grid]:
    """Paired differences between two conditions, of all tests together."""
    made: dict[str, list[Quantity]] = {}
    for test, id in ((STEERING, "letters.steering.difference"), (CONTENT, "letters.content.difference")):
        for label, found in walkers.quantities(test, id).items():
            made.setdefault(label, []).extend(found)
    note = "Paired differences in points; pairs are resampled 10,000 times."
    return [side_by_side("Paired differences", LETTERS, made, note=note)] if made else []


SECTIONS = {LETTERS: letters_section}
