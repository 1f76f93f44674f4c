"""The section on whether J selects or creates: accuracy by hops, with F and with blocks that never learned to walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loopscope.plot.canvas import (
    MARKERS,
    PAPER,
    RULE,
    SERIES,
    WIDE,
    Canvas,
    check_some,
    common_legend,
    panels_of,
)
from loopscope.quantity import Quantity, every
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import Record
from loopscope.studies.registry import EXPERIMENTS
from loopscope.studies.report.contents import Figure, Grid, Section, percent
from loopscope.studies.report.drawing import draw
from loopscope.studies.selecting import hops as selecting
from loopscope.studies.selecting.claims import F_PERMUTED, F_TRAINED, difference, native_hops
from loopscope.studies.selecting.experiments import SELECTING
from loopscope.studies.selecting.hops import DECIDING, MOST_RANDOM, PREDICATE, TOLD, WHERE, Counted
from loopscope.training.cohort.hops import BLOCKS, BUDGETS, HOPS, PARTS, Budget, Control

HOW = (
    "The paper infers that J selects computations that the backbone has learned. If so, J should work for hops that "
    "the backbone's own loops show, fail for others, and need the trained F. J is fitted for k = -1, 0, ..., 4 hops, "
    "each from the same h_L with one more call, and under controls: the entries of every weight tensor of F permuted; "
    "the block and readout of another task; no block, J(h) is read. On some backbones J is also restricted to some "
    "rows or to a smaller rank.",
    "k = 0 stands apart: u is in h_L before J comes, and the residual stream carries it past any block, so that it "
    "needs no F. In general, what J reaches without a block it reads from h_L; only what it reaches beyond that needs "
    "F. Counted are instances whose nodes f^7(s), ..., f^12(s) are all distinct.",
)


@dataclass(frozen=True)
class Measured:
    """One backbone's record with maps of one budget; `native` are the hops that its own loops show, if known."""

    record: Record
    counted: Counted
    native: tuple[int, ...] | None

    @property
    def name(self) -> str:
        """The backbone's."""
        return self.record.facts.name

    @property
    def walks(self) -> str:
        """Its native hops, in words."""
        if self.native is None:
            return "native walk not measured"
        return f"native {', '.join(map(str, self.native)) or 'none of these'}"

    def rows(self, control: Control, evidence: Evidence) -> dict[int, Quantity]:
        """The share right by k under a control."""
        at = {"control": control.name, "budget": self.counted.budget}
        found = every(evidence.quantities(self.record), "selecting.accuracy", **at)
        return {int(row.at["k"]): row for row in found}


def measured(evidence: Evidence, budget: Budget) -> list[Measured]:
    """Every backbone with maps of this budget, by number of the seed."""
    found = []
    for record in evidence.of(SELECTING, selecting.place(WHERE, budget)).values():
        counted = Counted.of(record.predictions, record.facts, budget)
        if counted is not None:
            found.append(Measured(record, counted, native_hops(evidence, record)))
    return found


def selecting_section(evidence: Evidence) -> Section | None:
    """Accuracy by hops and control, of whatever backbones were measured, budgets apart; None without."""
    by_budget = {budget: found for budget in BUDGETS if (found := measured(evidence, budget))}
    if not by_budget:
        return None
    text = [f"A row of ours, `select.native`, which is no claim of the paper. It holds if: {PREDICATE}.", *HOW]
    text += [said for budget, found in by_budget.items() for said in in_words(budget, found)]
    figures = [_figure(budget, found, evidence) for budget, found in by_budget.items()]
    tables = [grid for budget, found in by_budget.items() for grid in grids(budget, found, evidence)]
    budget, deciding = next(iter(by_budget.items()))
    finding = _native_beside_others(deciding, HOPS, "all k") or ""
    if finding and budget == "brief":
        finding += f" This is by a {TOLD[budget]}, which decides nothing."
    return Section(
        SELECTING, "Does J select, or does it create?", EXPERIMENTS[SELECTING].question, text, figures, tables,
        decided_by(SELECTING), finding=finding,
    )  # fmt: skip


# ---- in words --------------------------------------------------------------------------------------------------------


def in_words(budget: Budget, found: Sequence[Measured]) -> list[str]:
    """What was measured by this budget, what it can decide, and native hops beside others."""
    names = ", ".join(f"`{each.name}` ({each.walks})" for each in found)
    depth = found[0].record.facts.depth
    start = ", ".join(f"{percent(share)} for k = {k}" for k, share in selecting.returns(WHERE, depth).items())
    sentences = [
        f"By {'the' if budget == 'full' else 'a'} {TOLD[budget]}: {names}; {found[0].counted.n:,} instances each."
    ]
    sentences[0] += f" Answering the start s, which comes around on its cycle, would be right in {start} %."
    if budget == "brief":
        sentences[0] += (
            " All controls have the same budget, which is not that of the predicate and decides nothing: a map that "
            "fails here might have succeeded with more updates."
        )
    elif missing := [name for name in DECIDING if name not in {each.name for each in found}]:
        sentences[0] += f" Not decided: {len(missing)} of {len(DECIDING)} backbones are missing."
    for ks, said in ((HOPS, "all k"), (tuple(k for k in HOPS if k), "k other than 0")):
        if (line := _native_beside_others(found, ks, said)) is not None:
            sentences.append(line + _most_permuted(found, ks))
    return sentences


def _native_beside_others(found: Sequence[Measured], ks: Sequence[int], said: str) -> str | None:
    """The difference over backbones; None with fewer than two that have native hops and others."""
    known = {
        each.name: [k for k in each.native or () if k in ks]
        for each in found
        if set(ks) <= set(each.counted.hops(F_TRAINED))
    }
    known = {name: native for name, native in known.items() if 0 < len(native) < len(ks)}
    if len(known) < 2:
        return None
    gain = difference({each.name: each.counted for each in found if each.name in known}, known, ks)
    return (
        f"Over {said}, J before the trained F is right on native hops {percent(gain.value)} points more often than on "
        f"others [{percent(gain.low)}, {percent(gain.high)}] ({gain.n} backbones; they are resampled, and graphs "
        "within)."
    )


def _most_permuted(found: Sequence[Measured], ks: Sequence[int]) -> str:
    there = [each.counted for each in found if set(ks) <= set(each.counted.hops(F_PERMUTED))]
    if not there:
        return ""
    means = {k: sum(float(each.tally(F_PERMUTED, [k]).accuracy()) for each in there) / len(there) for k in ks}
    most = max(means, key=lambda k: means[k])
    return (
        f" With permuted weights it reaches at most {percent(means[most])} % (k = {most}; mean of {len(there)}; the "
        f"predicate allows {percent(MOST_RANDOM)} %)."
    )


# ---- figure and tables -----------------------------------------------------------------------------------------------


def _shown(each: Measured) -> dict[str, list[Control]]:
    """The panels of a backbone, with the controls of each."""
    panels = {f"{each.name}, {each.walks}": [c for c in BLOCKS if each.counted.hops(c)]}
    if parts := [control for control in PARTS if each.counted.hops(control)]:
        panels[f"{each.name}, less of J"] = [F_TRAINED, *parts]
    return panels


def _figure(budget: Budget, found: Sequence[Measured], evidence: Evidence) -> Figure:
    panels = {
        title: ({control.about: each.rows(control, evidence) for control in controls}, each.native or ())
        for each in found
        for title, controls in _shown(each).items()
    }
    caption = (
        f"Right answers of J_k by k, {TOLD[budget]}, {found[0].counted.n:,} instances; bars are intervals over graphs. "
        "Grey: hops that the backbone's own loops show."
    )
    return by_hops(f"selecting-{budget}", f"Accuracy by hops and control, {TOLD[budget]}", caption, panels)


def by_hops(
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, tuple[Mapping[str, Mapping[int, Quantity]], Sequence[int]]],
) -> Figure:
    """A panel for each backbone: series by k, and the native k, whose columns are grey."""
    check_some(name, panels)
    shown = list(dict.fromkeys(series for lines, _ in panels.values() for series in lines))

    def plot(width: int) -> Canvas:
        drawn, grid = panels_of(width, [*panels], "k, hops", "right, %", height=215, above=90)
        for axes, (lines, native) in zip(grid, panels.values(), strict=True):
            for k in native:
                axes.axvspan(k - 0.45, k + 0.45, color=RULE, alpha=0.55, linewidth=0, zorder=0)
            for series, points in lines.items():
                index = shown.index(series)
                colour, beside = SERIES[index % len(SERIES)], 0.07 * (list(lines).index(series) - (len(lines) - 1) / 2)
                places, each = [k + beside for k in points], [row.estimate for row in points.values()]
                axes.vlines(places, [e.low for e in each], [e.high for e in each], color=colour, linewidth=1.4)
                axes.plot(places, [e.value for e in each], color=colour, label=series, linewidth=0.8,
                          marker=MARKERS[index % len(MARKERS)], markersize=5.5,
                          markerfacecolor=colour if series == F_TRAINED.about else PAPER)  # fmt: skip
            axes.set_xticks(HOPS)
            axes.set_xlim(HOPS[0] - 0.6, HOPS[-1] + 0.6)
        common_legend(drawn, grid, 3 if width == WIDE else 1)
        return drawn

    text = " ".join(
        f"{label}, {series}: {', '.join(f'{percent(row.estimate.value)} at {k}' for k, row in points.items())}."
        for label, (lines, _) in panels.items()
        for series, points in lines.items()
    )
    return draw(name, title, caption, f"Per cent right by k. {text}", plot)


def grids(budget: Budget, found: Sequence[Measured], evidence: Evidence) -> list[Grid]:
    """The share right by k, a line for each backbone and control."""
    lines = {
        f"{each.name}, {control.about}": {f"k = {k}": row for k, row in each.rows(control, evidence).items()}
        for each in found
        for control in (*BLOCKS, *PARTS)
        if each.counted.hops(control)
    }
    note = f"{selecting.NOTE} {TOLD[budget].capitalize()}."
    return [Grid(f"Right answers by k ({TOLD[budget]})", [f"k = {k}" for k in HOPS], lines, note)]


SECTIONS = {SELECTING: selecting_section}
