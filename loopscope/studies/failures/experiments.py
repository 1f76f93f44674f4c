"""What is measured to understand why a claim does not hold, and on which backbones.

The maps are fitted by commands of their own (`docs/failures.md`), so these experiments are done where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopscope.bounds import shown
from loopscope.store.store import Store
from loopscope.studies.experiment import Cohort, Experiment, Profile, everywhere
from loopscope.studies.failures import continuing
from loopscope.studies.graph_walk import lasting, learning, switching
from loopscope.studies.graph_walk.composition import INDEPENDENT
from loopscope.studies.graph_walk.continuation import WITHHELD
from loopscope.studies.graph_walk.layouts import of_lasting, of_switching
from loopscope.studies.records import Predictions, Record
from loopscope.studies.schema import Kept, Layout, MisfitError, graphs_of, only, sha256, whole
from loopscope.studies.selection import Role
from loopscope.studies.trained import TrainedModel, digest_of

SWITCHING_LONG, SWITCHING_NEXT, CONTINUATION_AGAIN, LASTING_LONGER = (
    "switching-long", "switching-next", "continuation-again", "lasting-longer"
)  # fmt: skip

LONG = ("one", "two-long")
"""The maps of `switching-long`: J_two had four times the updates."""

LONGER: Mapping[str, tuple[str, str]] = {"pool-longer": ("pool-longer-one", "pool-longer-two")}
"""The family of `lasting-longer`."""

COHORTS: tuple[Cohort, ...] = (
    Cohort(
        "next", "the next backbone after the chosen three that walks in ones and twos: is a failure one of seeds?",
        ("d8l6",), (16,), ("one", "two"),
    ),
)  # fmt: skip


# ---- settings and measuring ------------------------------------------------------------------------------------------


def _switching_long(role: Role, profile: Profile) -> list[dict[str, Any]]:
    if role == "other":
        return []
    return [{"where": switching.WHERE if role == "main" else switching.OTHERS, "targets": list(LONG)}]


def _switching_next(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [{"where": switching.OTHERS}]


def _lasting_longer(role: Role, profile: Profile) -> list[dict[str, Any]]:
    return [] if role == "other" or profile == "quick" else [{}]


def measure_longer(
    trained: TrainedModel,
    where: str = INDEPENDENT,
    calls: int = lasting.CALLS,
    graphs: int | None = None,
    strings: int = 32,
) -> Predictions:
    """`lasting.measure` of the maps of `LONGER`."""
    return lasting.measure(trained, where, calls, graphs, strings, LONGER)


# ---- what records keep -----------------------------------------------------------------------------------------------


def trained(store: Store, inputs: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """How the maps of a record learned, and the digest of its backbone's weights, which another training has not."""
    return {**learning.notes(store, inputs, prefix), "selected": digest_of(store, inputs)}


def _check_notes(record: Record) -> None:
    only(record.notes, ("curves", "selected"), "notes")
    sha256(record.notes.get("selected"), "the digest of the selected weights")


def of_continuation(record: Record) -> Layout:
    """Right answers of every single cycle, by target."""
    facts = record.facts
    _check_notes(record)
    only(record.settings, ("graphs",), "settings")
    some = None if record.settings.get("graphs") is None else whole(record.settings, "graphs", 1, 10**6)
    graphs_of(WITHHELD, facts.nodes, some)
    cycles = continuing.cycles_of(some)
    there = {target: facts.fits.get(target, 0) for target in continuing.AGAIN}
    if not any(there.values()):
        raise MisfitError(f"fits of one of {', '.join(continuing.AGAIN)}", shown(dict(facts.fits)))
    return {
        WITHHELD: {
            target + continuing.RIGHT: Kept((fits, continuing.LOOPS, cycles), high=facts.nodes)
            for target, fits in there.items()
            if fits
        }
    }


def of_switched(record: Record) -> Layout:
    """As of `switching`."""
    _check_notes(record)
    return of_switching(record)


def of_longer(record: Record) -> Layout:
    """As of `lasting`, of the maps of `LONGER`."""
    _check_notes(record)
    return of_lasting(record, LONGER)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        SWITCHING_LONG, "Does target switching fail for want of time, with J_two fitted four times as long?",
        ("mechanism",), switching.measure, _switching_long, LONG, switching.tables, notes=trained,
        apart=LONG[1:], layout=of_switched,
    ),
    Experiment(
        SWITCHING_NEXT, "Does the next backbone that walks in ones and twos switch targets?", ("next",),
        switching.measure, _switching_next, ("one", "two"), switching.tables, notes=trained, apart=("two",),
        layout=of_switched,
    ),
    Experiment(
        CONTINUATION_AGAIN, "Do backbones without a working map for sixteen calls take one in more time, or in fp32?",
        ("eight",), continuing.measure, everywhere, tuple(continuing.AGAIN), continuing.tables, notes=trained, raw=True,
        apart=tuple(continuing.AGAIN), layout=of_continuation,
    ),
    Experiment(
        LASTING_LONGER, "Does control last for 64 calls if states live longer in the pool?", ("mechanism",),
        measure_longer, _lasting_longer, LONGER["pool-longer"], lasting.tables, notes=trained, raw=True,
        apart=LONGER["pool-longer"], layout=of_longer,
    ),
)  # fmt: skip
