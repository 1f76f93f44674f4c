"""The section on claims that do not hold: what more time, another seed or more precision changes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loopscope.quantity import Quantity
from loopscope.studies.evidence import Evidence, mean_of
from loopscope.studies.failures.continuing import AGAIN
from loopscope.studies.failures.experiments import (
    CONTINUATION_AGAIN,
    LASTING_LONGER,
    LONG,
    LONGER,
    SWITCHING_LONG,
    SWITCHING_NEXT,
)
from loopscope.studies.graph_walk.continuation_curves import BEYOND, INSIDE
from loopscope.studies.graph_walk.experiments import SWITCHING
from loopscope.studies.graph_walk.lasting import AIM
from loopscope.studies.records import Record, percent
from loopscope.studies.report.contents import Grid, Section

FAILURES = "failures"
HOW = (
    "A claim that does not hold is a finding; the question after it is what it depends on. Here are runs with more "
    "updates, another seed or products in fp32. They stand beside the rows of the ledger and decide none of them.",
    "Backbones whose weights are not kept were trained again, in other company and so with other bits; records name "
    "the digest of the weights that they were measured on.",
)
PUBLISHED_FIT, LONG_FIT = "8,000 updates", "J_two with 32,000 updates"


def failures_section(evidence: Evidence) -> Section | None:
    """What was measured of switching, continuation and control that lasts; None without any of it."""
    names = (SWITCHING_LONG, SWITCHING_NEXT, CONTINUATION_AGAIN, LASTING_LONGER)
    records = [record for name in names for record in evidence.every(name)]
    if not records:
        return None
    grids = [switching_grid(evidence), continuation_grid(evidence), lasting_grid(evidence)]
    tables = [grid for grid in grids if grid is not None]
    more = [table.under(record.facts.name) for record in records for table in evidence.tables(record)]
    return Section(
        FAILURES, "Why some claims do not hold", "What do failures depend on: time, seeds or precision?", HOW, (),
        tables, more=more, finding=finding(evidence),
    )  # fmt: skip


def switching_grid(evidence: Evidence) -> Grid | None:
    """Target switching on each backbone that was measured again, beside the published maps on the same one."""
    again, beside = evidence.of(SWITCHING_LONG), evidence.of(SWITCHING)
    lines: dict[str, Mapping[str, Quantity]] = {}
    for name, record in again.items():
        if name in beside:
            lines[f"{name}, {PUBLISHED_FIT}"] = _switched(evidence, beside[name], "two")
        lines[f"{name}, {LONG_FIT}"] = _switched(evidence, record, LONG[1])
    for name, record in evidence.of(SWITCHING_NEXT).items():
        lines[f"{name}, {PUBLISHED_FIT}"] = _switched(evidence, record, "two")
    columns = ["two -> one", "one -> two"]
    note = "Share that answers the giver's target, with its pattern in layer 2; mean of fits; graphs resampled."
    return Grid("Target switching: in more time, and on another seed", columns, lines, note) if lines else None


def _switched(evidence: Evidence, record: Record, two: str) -> dict[str, Quantity]:
    return {
        "two -> one": evidence.one(record, "switching.target", giver=two, receiver="one"),
        "one -> two": evidence.one(record, "switching.target", giver="one", receiver=two),
    }


def continuation_grid(evidence: Evidence) -> Grid | None:
    """Single cycles inside the range of loops that maps were trained for, and beyond it."""
    lines = {}
    for name, record in evidence.of(CONTINUATION_AGAIN).items():
        rows = [row for table in evidence.tables(record) for row in table.rows]
        for target in dict.fromkeys(row.at["target"] for row in rows):
            mine = {_loops(row): row for row in rows if row.at["target"] == target}
            lines[f"{name}, {AGAIN[str(target)]}"] = mine
    columns = [f"loops {first}-{last}" for first, last in (INSIDE, BEYOND)]
    note = "Right answers on single cycles, mean over loops, then fits; graphs resampled."
    return Grid("Continuation on backbones that took no map", columns, lines, note) if lines else None


def _loops(row: Quantity) -> str:
    return f"loops {row.at['first']}-{row.at['last']}"


def lasting_grid(evidence: Evidence) -> Grid | None:
    """One hop at the calls of the aim."""
    found = evidence.of(LASTING_LONGER)
    lines = {f"{name}, {next(iter(LONGER))}": _lasting(evidence, record) for name, record in found.items()}
    columns = [f"call {call}" for call in AIM]
    note = "Right answers, one hop; mean of fits; graphs resampled."
    return Grid("Control that lasts, from states that live longer", columns, lines, note) if lines else None


def _lasting(evidence: Evidence, record: Record) -> dict[str, Quantity]:
    family = next(iter(LONGER))
    rows = [row for table in evidence.tables(record) if table.id == "lasting.call" for row in table.rows]
    wanted = {"family": family, "kind": "one", "counted": "right"}
    return {
        f"call {row.at['call']}": row
        for row in rows
        if row.at["call"] in AIM and all(row.at[name] == value for name, value in wanted.items())
    }


def finding(evidence: Evidence) -> str:
    """Each question with its number, in a sentence."""
    said = []
    for name, record in evidence.of(SWITCHING_LONG).items():
        said.append(_in_words(name, "with J_two fitted four times as long", _switched(evidence, record, LONG[1])))
    for name, record in evidence.of(SWITCHING_NEXT).items():
        said.append(_in_words(name, "the next backbone that qualifies,", _switched(evidence, record, "two")))
    grid = continuation_grid(evidence)
    for target, about in AGAIN.items() if grid else ():
        rows = [mine[_inside()] for line, mine in grid.lines.items() if line.endswith(about)] if grid else []
        if rows:
            said.append(f"With {about} ({target}), loops 9-16: {_each(rows)}.")
    longer = [row for record in evidence.of(LASTING_LONGER).values() if (row := _last(evidence, record)) is not None]
    if longer:
        shares = f"{_each(longer)} (mean {percent(mean_of(longer).value)})"
        said.append(f"With states that live longer, one hop is right at call {max(AIM)} in {shares}.")
    return " ".join(said)


def _in_words(name: str, how: str, rows: Mapping[str, Quantity]) -> str:
    shares = " and ".join(f"{percent(row.estimate.value)} % ({which})" for which, row in rows.items())
    return f"On `{name}`, {how} targets switch in {shares}."


def _inside() -> str:
    return f"loops {INSIDE[0]}-{INSIDE[1]}"


def _each(rows: Sequence[Quantity]) -> str:
    return ", ".join(f"{percent(row.estimate.value)}" for row in rows) + " %"


def _last(evidence: Evidence, record: Record) -> Quantity | None:
    return _lasting(evidence, record).get(f"call {max(AIM)}")


SECTIONS = {FAILURES: failures_section}
EXPERIMENTS_OF = {FAILURES: (SWITCHING_LONG, SWITCHING_NEXT, CONTINUATION_AGAIN, LASTING_LONGER)}
