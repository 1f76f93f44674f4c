"""What judges of language models share: which record decides a claim.

Where several records could decide, the one closest to the published protocol does (`closeness.rank`); what the others
say stands beside it, each with its own verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from loopscope.quantity import Quantity
from loopscope.store.zoo import by_number
from loopscope.studies.closeness import rank
from loopscope.studies.evidence import Evidence, Finding
from loopscope.studies.records import Record

CONTROLLED = 0.20
"""How often a control may do what only the effect should do: the bound of `letter.controls`."""


def ranked(evidence: Evidence, records: Iterable[Record], patches: bool = True) -> list[Record]:
    """The closest to the published protocol first; then by name, and what was there before what is measured now."""

    def order(each: Record) -> tuple[object, ...]:
        rest = by_number(each.facts.name), evidence.is_fresh(each), str(each.settings.get("heads"))
        return *rank(each, evidence.lineage, patches), *rest

    return sorted(records, key=order)


def deciding(findings: Iterable[Finding]) -> Finding | None:
    """Of findings that come closest first, the first that decides, with the others beside it; None of none."""
    found = tuple(findings)
    if not found:
        return None
    first = next((each for each in found if each.holds is not None), found[0])
    return replace(first, others=tuple(each for each in found if each is not first))


def counted(found: Quantity) -> str:
    """A share as a count: 248/256."""
    return f"{round(found.estimate.value * found.n)}/{found.n}"
