"""How heads were found: every step of a search, in two figures and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopscope.measure.heads import Heads, Selection, Tried
from loopscope.measure.searching import KEEPS, may_leave
from loopscope.stats import wilson
from loopscope.studies.language.names import loops_in_words
from loopscope.studies.letters.layouts import CONFIRMATION
from loopscope.studies.report.contents import Figure, Listing
from loopscope.studies.report.dots import Search, Step, searches
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.tasks.letters.pairs import SETS

RANKING = ("layers left out", "heads left out")
"""Steps that take nothing: they rank."""


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
    return SETS[CONFIRMATION].size if step.startswith(CONFIRMATION) else found.pairs


def path_figure(found: Mapping[str, Selection]) -> Figure:
    """Every scope that searches tried, step by step, a panel for every model."""
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


def sizes_figure(found: Mapping[str, Selection]) -> Figure:
    """What the leading heads rescue and damage by their number, a panel for every model."""
    panels = {}
    for label, each in found.items():
        lines = []
        for step, words in (("leading heads", "discovery"), (CONFIRMATION, "confirmation")):
            tried = steps(each).get(step, [])
            sizes = [len(Heads.parse(scope.heads)) for scope in tried]
            for what in ("rescued", "damaged") if tried else ():
                shares = [wilson(getattr(scope, what), _pairs(each, step), unit="pair") for scope in tried]
                lines.append(Line(f"{what[:-1]}, {words}", shares, step == CONFIRMATION, sizes))
        panels[f"{label}: {len(each.heads)} heads chosen"] = lines
    caption = (
        "Right answers when patterns of the leading heads alone are exchanged: rescue into the unsteered run, damage "
        f"into the steered one. Bands: 95 % over discovery and over {SETS[CONFIRMATION].size} confirmation pairs "
        "(dashed)."
    )
    return lines_in_panels("letters-heads", "How many heads it takes", caption, panels, "leading heads")


def search_table(label: str, found: Selection, heads: int) -> Listing:
    """The path of a search in a model with so many heads: what a step tried, what passed, what it went on with."""
    lines = {}
    for step, tried in steps(found).items():
        at, of = taken(found, step, tried), _pairs(found, step)
        cells = {"tried": str(len(tried)), "passed": str(sum(scope.passed for scope in tried))}
        if at is None:
            cells["went on with"] = "a ranking" if step in RANKING else "none"
        else:
            cells |= {
                "rescued": f"{tried[at].rescued}/{of}", "damaged": f"{tried[at].damaged}/{of}",
                "went on with": _scope(tried[at], heads),
            }  # fmt: skip
        lines[step] = cells
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
