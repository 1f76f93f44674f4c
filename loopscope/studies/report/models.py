"""Language models side by side: what they are called, how they compare with the published one, tables of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loopscope.quantity import Quantity, every
from loopscope.stats import Estimate
from loopscope.studies.language.names import how_much, identity, identity_of, in_millions, parameters_of
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.contents import Grid, Listing
from loopscope.studies.report.figures import Line

INTERVALS = "Intervals are Wilson's, over independent {}."


def labels(records: Iterable[Record]) -> dict[tuple[str, ...], str]:
    """A name for every model with its map, the largest first: its folder's, its size, and what else tells it apart."""
    known = {identity(record): record for record in records}
    known = dict(sorted(known.items(), key=lambda each: (-parameters_of(each[1]), each[0])))
    by_name: dict[str, list[tuple[str, ...]]] = {}
    for each in known:
        by_name.setdefault(each[0], []).append(each)
    return {
        each: f"{each[0]} ({in_millions(parameters_of(record))}{_apart(each, by_name[each[0]])})"
        for each, record in known.items()
    }


def labelled(records: Sequence[Record]) -> dict[str, Record]:
    """Records by the name of their model, of which each has one."""
    return {label: each for who, label in labels(records).items() for each in records if identity(each) == who}


def _apart(mine: tuple[str, ...], alike: Sequence[tuple[str, ...]]) -> str:
    """What tells one from others of its name, as little as is enough."""
    said = ""
    _, weights, step, loops, boundary, rest = mine
    parts = (
        (4, f"boundary {boundary}"), (3, f"{loops} loops"), (2, f"map {step[:6]}"), (1, f"weights {weights[:6]}"),
        (5, f"config {rest[:6]}" if rest else "identity version 1"),
    )  # fmt: skip
    for place, part in parts:
        if len({each[place] for each in alike}) > 1:
            said += f", {part}"
            alike = [each for each in alike if each[place] == mine[place]]
    return said


def published(experiment: str) -> str:
    """What the paper's model is called in figures and tables."""
    return f"paper: {LANGUAGE[experiment].published_on}"


def measured_on(experiment: str, named: Iterable[str]) -> str:
    """Which models, beside the published one, in a sentence."""
    known = LANGUAGE[experiment]
    return (
        f"The paper's model is {known.published_on}, of {in_millions(known.parameters)} parameters. Measured here: "
        f"{'; '.join(named)}."
    )


def models(experiment: str, records: Mapping[str, Sequence[Record]]) -> Listing:
    """Every model in numbers, with what it was asked, and the published one."""
    lines: dict[str, dict[str, str]] = {}
    for label, found in records.items():
        about, step = found[0].notes["model"], found[0].notes.get("map", {})
        rank = f", rank {step['rank']}" if "rank" in step else ""
        lines[label] = {
            "kind": str(about["type"]), "parameters": f"{parameters_of(found[0]):,}", "layers": str(about["layers"]),
            "heads": str(about["heads"]), "width": f"{about['width']:,}", "loops": str(found[0].facts.loops),
            "boundary": str(found[0].settings.get("boundary", "")), "J": f"{step.get('family', '')}{rank}",
            "precision": ", ".join(dict.fromkeys(str(each.settings.get("dtype", "fp32")) for each in found)),
            "asked": "; ".join(dict.fromkeys(map(how_much, found))),
        }  # fmt: skip
    known = LANGUAGE[experiment]
    lines[published(experiment)] = {"parameters": f"{known.parameters:,}", **known.published}
    columns = list(dict.fromkeys(column for cells in lines.values() for column in cells))
    note = "Boundary: what ends a loop, the model's final norm or nothing."
    if old := [label for label, found in records.items() if any(identity_of(each)["version"] == 1 for each in found)]:
        note += f" Identity version 1, known by the SHA-256 of the weights alone: {', '.join(old)}."
    return Listing("Models", columns, lines, note, "model")


def side_by_side(
    title: str, experiment: str, rows: Mapping[str, Sequence[Quantity]], head: str = "condition", note: str = ""
) -> Grid:
    """A line for every quantity, a column for every model, and one for the paper where it printed some of them.

    Where models were asked differently often, their heads say how often.
    """
    often = {label: {row.n for row in found} for label, found in rows.items()}
    alike = len({frozenset(counts) for counts in often.values()}) == 1
    columns = {
        label: label
        if alike
        else f"{label}, n\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{', '.join(f'{n:,}' for n in sorted(counts))}"
        for label, counts in often.items()
    }
    said: dict[object, str] = {}
    lines: dict[object, dict[str, Quantity]] = {which: {} for which in _merged(rows.values())}
    for label, found in rows.items():
        for row in found:
            said[_which(row)] = row.label
            lines[_which(row)][columns[label]] = row
            if row.published is not None:
                lines[_which(row)][published(experiment)] = bare(row.id, row.published, row.n)
    last = [published(experiment)] * any(published(experiment) in line for line in lines.values())
    return Grid(title, [*columns.values(), *last], {said[which]: line for which, line in lines.items()}, note, head)


def _which(row: Quantity) -> object:
    """What tells a quantity from others of one model."""
    return row.id, *sorted(row.at.items())


def _merged(rows: Iterable[Sequence[Quantity]]) -> list[object]:
    """The quantities of all models in order; one that the models before have not stands after its neighbour."""
    order: list[object] = []
    for found in rows:
        place = 0
        for which in map(_which, found):
            if which not in order:
                order.insert(place, which)
            place = order.index(which) + 1
    return order


def bare(id: str, share: float, n: int) -> Quantity:
    """A share without an interval or a label: what the paper printed, or what is counted and not measured."""
    return Quantity(id, "", Estimate(share, float("nan"), float("nan"), n, "", 0), n)


def by_depth(quantities: Iterable[Quantity], id: str, templates: tuple[int, int]) -> list[Line]:
    """Lines over the depths k: with J, without, and with J in the wording that was held out, dashed.

    The second of `templates` is held out.
    """
    there = list(quantities)
    trained, held_out = templates
    lines = []
    for template, steered in ((trained, True), (trained, False), (held_out, True)):
        dashed = template == held_out
        found = sorted(every(there, id, template=template, steered=steered), key=lambda each: int(each.at["k"]))
        paper = [(float(each.at["k"]), each.published) for each in found if each.published is not None and not dashed]
        said = f"{'J' if steered else 'no map'}{', held-out wording' if dashed else ''}"
        lines.append(Line(said, [each.estimate for each in found], dashed, paper=paper))
    return lines
