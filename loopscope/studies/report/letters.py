"""The section on the letter walk: which heads carry the steering, how they were found, and what patches of them do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from loopscope.measure.heads import KEEPS, LEAVES, Heads, Selection, Tried, may_leave
from loopscope.quantity import Quantity, every
from loopscope.stats import Estimate, wilson
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.names import identity, loops_in_words
from loopscope.studies.language.records import LANGUAGE
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.names import of_search, patched
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.tables import PAPER_CONTENT, PAPER_PAIRS
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING, TESTS
from loopscope.studies.letters.walks import WALKS
from loopscope.studies.records import Record
from loopscope.studies.report.contents import Figure, Grid, Listing, Section
from loopscope.studies.report.dots import Search, Spot, Step, dots, searches
from loopscope.studies.report.figures import Line, lines_in_panels, stacked_panels
from loopscope.studies.report.letter_walks import along_figure, walks_figure
from loopscope.studies.report.models import INTERVALS, labels, measured_on, models, published, side_by_side
from loopscope.tasks.letters.pairs import SETS

CONFIRMED = "confirmation"
RANKING = ("layers left out", "heads left out")
"""Steps that take nothing: they rank."""

SELF = {"self-pattern": "its own patterns", "self-output": "its own outputs"}
"""Conditions in which a run is given what it has anyway."""

STEERED: Mapping[str, Mapping[str, str]] = {
    "no patch": {"unsteered": "without J", "steered": "with J"},
    "patterns of the chosen heads": {"rescue": "rescue: steered into unsteered", "damage": "damage: the reverse"},
    "outputs of the chosen heads": {"outputs": "steered into unsteered"},
    "controls, into the unsteered run": {
        "values": "values in place of patterns", "unrelated": "patterns of another graph",
        "wrong loop": "patterns of another loop", "comparison": "comparison heads",
        "complement": "other heads of these layers",
    },
    "controls, into the steered run": {
        "comparison damage": "comparison heads", "complement damage": "other heads of these layers",
    },
    "all heads of the late layers": {"late rescue": "rescue", "late damage": "damage"},
    "what the run has anyway": SELF,
}  # fmt: skip
"""Conditions of the steering test by what they are for, with their names in the figure."""

BACK = {"selected": "at the chosen heads", "comparison": "at comparison heads", "all": "at all heads of these layers"}
RESTORED: Mapping[str, Mapping[str, str]] = {
    "right answers": {"clean": "clean run", "replaced": "other queries"},
    "right answers, clean outputs put back": BACK,
}

ANSWERS = {"B": "B, own answer", "E": "E, rerouted", "D": "D, donor's answer", "other": "other"}

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


ByCondition = Mapping[str, Mapping[str, Quantity]]
"""Quantities by model and condition."""


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
        figures += [_path(found), _sizes(found)]
        tables += [search_table(label, each, walkers.searched[label].facts.heads) for label, each in found.items()]
    if steering:
        figures.append(_steering(steering, walkers.series))
        tables.append(side_by_side("Steering: right answers", LETTERS, _listed(steering, STEERED)))
    if along := walkers.quantities(STEERING, "letters.steering.along"):
        figures.append(along_figure(along))
    if content:
        figures.append(_content(content))
        shown = {label: [each for each in found if not _of_itself(each)] for label, found in content.items()}
        tables.append(side_by_side("Pattern against output: what is answered", LETTERS, shown, note=_BDE))
    if restored:
        figures.append(_restoration(restored, repaired, walkers.series))
        layers = {name: name for name in _by_layer(restored)}
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


# ---- the search ------------------------------------------------------------------------------------------------------


def steps(found: Selection) -> dict[str, list[Tried]]:
    """What each step of a search tried, in order."""
    by_step: dict[str, list[Tried]] = {}
    for each in found.tried:
        by_step.setdefault(each.step, []).append(each)
    return by_step


def taken(found: Selection, step: str, tried: Sequence[Tried]) -> int | None:
    """Which of its scopes a step went on with; None for one that only ranks, and where none passed."""
    passed = [number for number, each in enumerate(tried) if each.passed]
    if step in RANKING or not passed:
        return None
    if step.startswith(("groups", "triples")):
        return max(passed, key=lambda number: tried[number].rescue)
    if step == "loops":
        return next((number for number in passed if tried[number].loops == found.loops), None)
    return passed[0]


def _pairs(found: Selection, step: str) -> int:
    """On how many pairs a step was done."""
    return SETS[CONFIRMED].size if step.startswith(CONFIRMED) else found.pairs


def _path(found: Mapping[str, Selection]) -> Figure:
    panels = {}
    for label, each in found.items():
        made = [
            Step(step, [(scope.rescued / _pairs(each, step), scope.damaged / _pairs(each, step)) for scope in tried],
                 taken(each, step, tried))
            for step, tried in steps(each).items()
        ]  # fmt: skip
        steered = each.steered / each.pairs
        panels[f"{label}: {each.steered} of {each.pairs} steered, {each.unsteered} unsteered"] = Search(
            made, KEEPS * steered, may_leave(each.steered, each.unsteered) / each.pairs
        )
    caption = (
        "Every scope that was tried, step by step: late layers, groups of them, three layers, their heads (each left "
        "out, then the leading ones), loops, and confirmation pairs. Filled: the scope that the step went on with. "
        "Pale marks grow with the number of scopes. Dotted: what rescue must keep, and what damage may leave."
    )
    return searches("letters-search", "From late layers to a few heads", caption, panels)


def _sizes(found: Mapping[str, Selection]) -> Figure:
    panels = {}
    for label, each in found.items():
        lines = []
        for step, told in (("leading heads", "discovery"), (CONFIRMED, "confirmation")):
            tried = steps(each).get(step, [])
            sizes = [len(Heads.parse(scope.heads)) for scope in tried]
            for what in ("rescued", "damaged") if tried else ():
                shares = [wilson(getattr(scope, what), _pairs(each, step), unit="pair") for scope in tried]
                lines.append(Line(f"{what[:-1]}, {told}", shares, step == CONFIRMED, sizes))
        panels[f"{label}: {len(each.heads)} heads chosen"] = lines
    caption = (
        "Right answers when patterns of the leading heads alone are exchanged: rescue into the unsteered run, damage "
        f"into the steered one. Bands: 95 % over discovery and over {SETS[CONFIRMED].size} confirmation pairs (dashed)."
    )
    return lines_in_panels("letters-heads", "How many heads it takes", caption, panels, "leading heads")


def search_table(label: str, found: Selection, heads: int) -> Listing:
    """The path of a search in a model with so many heads: what a step tried, what passed, what it went on with."""
    lines = {}
    for step, tried in steps(found).items():
        at, of = taken(found, step, tried), _pairs(found, step)
        told = {"tried": str(len(tried)), "passed": str(sum(scope.passed for scope in tried))}
        if at is None:
            told["went on with"] = "a ranking" if step in RANKING else "none"
        else:
            told |= {
                "rescued": f"{tried[at].rescued}/{of}", "damaged": f"{tried[at].damaged}/{of}",
                "went on with": _scope(tried[at], heads),
            }  # fmt: skip
        lines[step] = told
    columns = ("tried", "passed", "rescued", "damaged", "went on with")
    note = (
        "Layers are counted from 1, heads from 0. Rescued and damaged: right answers on discovery or confirmation "
        "pairs, in the scope that the step went on with."
    )
    return Listing(f"How the heads were found, {label}", columns, lines, note, "step")


def _scope(tried: Tried, heads: int) -> str:
    """Heads in short: whole layers by their numbers."""
    chosen = Heads.parse(tried.heads)
    layers = list(chosen.by_layer)
    loops = loops_in_words(tried.loops)
    if len(chosen) < heads * len(layers):
        return f"{tried.heads}, {loops}"
    together = layers == list(range(layers[0], layers[-1] + 1)) and len(layers) > 2
    said = f"{layers[0]}-{layers[-1]}" if together else ", ".join(map(str, layers))
    return f"layer{'s' * (len(layers) > 1)} {said}, {loops}"


# ---- the three tests -------------------------------------------------------------------------------------------------

_BDE = (
    "B is the receiving run's own answer, D the donor's, E the donor's last transfer by the receiver's rules: a "
    "pattern that says where to read gives E, an output that was read gives D."
)


def _listed(rows: ByCondition, groups: Mapping[str, Mapping[str, str]]) -> dict[str, list[Quantity]]:
    """Quantities by model as tables list them: those of some groups in their order, with what they mean."""
    told = {name: _full(name, said) for group in groups.values() for name, said in group.items()}
    return {
        label: [replace(found[name], label=said) for name, said in told.items() if name in found]
        for label, found in rows.items()
    }


def _full(name: str, said: str) -> str:
    """A condition as records call it, with what it means where that is not the same."""
    return said if name in said else name if said in name else f"{name} ({said})"


def _by_layer(rows: ByCondition) -> dict[str, str]:
    """Conditions that put back the chosen heads of one layer, in order."""
    layers = {int(each.at["layer"]): name for found in rows.values() for name, each in found.items()
              if "layer" in each.at}  # fmt: skip
    return {layers[layer]: f"at the chosen heads of layer {layer}" for layer in sorted(layers)}


def _spots(told: Mapping[str, str], rows: ByCondition) -> list[Spot]:
    """A row of the figure for each of the conditions that some model was run in."""
    made = []
    for name, said in told.items():
        there = {label: found[name] for label, found in rows.items() if name in found}
        if there:
            shares = {label: each.estimate for label, each in there.items()}
            made.append(Spot(said, shares, next(iter(there.values())).published))
    return made


def _steering(rows: ByCondition, series: Sequence[str]) -> Figure:
    groups = {group: _spots(told, rows) for group, told in STEERED.items()}
    n = _often(each for found in rows.values() for each in found.values())
    caption = (
        f"Right answers of {n} independent pairs with 95 % intervals. Controls should leave the run that "
        "they are put into as it is. Diamonds: the paper's numbers."
    )
    return dots("letters-steering", "What steered patterns do", caption, {k: v for k, v in groups.items() if v}, series)


def _of_itself(found: Quantity) -> bool:
    """Whether a run was given what it has anyway."""
    return found.at["condition"] in SELF


def _content(rows: Mapping[str, Sequence[Quantity]]) -> Figure:
    panels: dict[str, dict[str, dict[str, Estimate]]] = {}
    for label, found in rows.items():
        counts: dict[str, dict[str, int]] = {}
        for each in found:
            if not _of_itself(each):
                mine = counts.setdefault(str(each.at["condition"]), {})
                mine[str(each.at["answer"])] = round(each.estimate.value * each.n)
        panels[label] = {condition: _parts(each, found[0].n) for condition, each in counts.items()}
    shown = dict.fromkeys(condition for answers in panels.values() for condition in answers)
    panels[published(LETTERS)] = {
        condition: _parts(dict(zip("BDE", PAPER_CONTENT[condition], strict=True)), PAPER_PAIRS)
        for condition in shown
        if condition in PAPER_CONTENT
    }
    n = _often(each for found in rows.values() for each in found)
    caption = (
        f"Who is named in {n} shared-path pairs, with J in all runs. Base, source and reference are clean "
        "runs; below them, the source's pattern, output or values at the chosen heads of the base's run, and controls. "
        "The pattern should give E, the output D, the controls B."
    )
    return stacked_panels("letters-content", "Pattern against output between graphs", caption, panels, ANSWERS)


def _parts(counts: Mapping[str, int], n: int) -> dict[str, Estimate]:
    whole = {**counts, "other": n - sum(counts.values())}
    return {which: wilson(whole[which], n, unit="pair") for which in ANSWERS}


def _restoration(rows: ByCondition, repaired: ByCondition, series: Sequence[str]) -> Figure:
    groups = {
        **{group: _spots(told, rows) for group, told in RESTORED.items()},
        "repaired of what other queries broke": _spots({**BACK, **_by_layer(rows)}, repaired),
    }
    n = _often(each for found in rows.values() for each in found.values())
    caption = (
        f"{n} shared-path pairs; in the chosen heads' layers, queries of a run on the same graph that "
        "starts elsewhere. Below: of the answers that were right and are not, how many are right again. Diamonds: the "
        "paper's numbers."
    )
    filled = {group: spots for group, spots in groups.items() if spots}
    return dots("letters-restoration", "Outputs of the chosen heads repair", caption, filled, series)


def _often(quantities: Iterable[Quantity]) -> str:
    return " or ".join(str(n) for n in sorted({each.n for each in quantities}))


def _differences(walkers: Walkers) -> list[Grid]:
    """Paired differences between two conditions, of all tests together."""
    made: dict[str, list[Quantity]] = {}
    for test, id in ((STEERING, "letters.steering.difference"), (CONTENT, "letters.content.difference")):
        for label, found in walkers.quantities(test, id).items():
            made.setdefault(label, []).extend(found)
    note = "Paired differences in points; pairs are resampled 10,000 times."
    return [side_by_side("Paired differences", LETTERS, made, note=note)] if made else []
