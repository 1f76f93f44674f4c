"""The row on selecting or creating, with the predicate that was fixed before the first such map was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from loopscope.stats import Estimate, Tally, backbone_bootstrap
from loopscope.studies.claim import Claim
from loopscope.studies.evidence import Evidence, Finding, at_most
from loopscope.studies.graph_walk.experiments import TRAJECTORIES
from loopscope.studies.graph_walk.trajectories import walk_of
from loopscope.studies.records import Record, percent
from loopscope.studies.selecting.experiments import SELECTING
from loopscope.studies.selecting.hops import DECIDING, MOST_RANDOM, PREDICATE, SEED, WHERE, Counted, native, native_in
from loopscope.training.cohort.hops import BLOCKS, HOPS

F_TRAINED, F_PERMUTED = BLOCKS[0], BLOCKS[1]


def select_native(evidence: Evidence) -> Finding | None:
    """The predicate over all of `HOPS`; None where no backbone has maps by the full budget.

    Not decided before all backbones of `DECIDING` have all maps that it speaks of.  A reduced budget decides nothing.
    """
    found, moving = _judged(evidence, HOPS), select_moving(evidence)
    return found and replace(found, beside=(f"without k = 0: {moving.ours}",) if moving and found.used else ())


def select_moving(evidence: Evidence) -> Finding | None:
    """The same without k = 0, whose answer is in h_L before J comes, so that no block is needed for it."""
    return _judged(evidence, tuple(k for k in HOPS if k != 0))


def _judged(evidence: Evidence, ks: Sequence[int]) -> Finding | None:
    records = evidence.of(SELECTING, WHERE)
    if not records:
        return None
    counted = {name: each for name, record in records.items() if (each := _whole(record, ks)) is not None}
    walks = {name: native_hops(evidence, records[name]) for name in counted}
    ready = [name for name in DECIDING if name in counted and walks[name] is not None]
    used = [records[name] for name in ready]
    if len(ready) < len(DECIDING):
        return Finding(None, f"{len(ready)} of {len(DECIDING)} backbones", None, 0, used)
    known = {name: [k for k in walks[name] or () if k in ks] for name in ready}
    split = {name: hops for name, hops in known.items() if 0 < len(hops) < len(ks)}
    if len(split) < 2:
        return Finding(None, "fewer than two backbones have native and other hops", None, 0, used)
    gain = difference({name: counted[name] for name in split}, split, ks)
    means = {k: float(np.mean([counted[name].tally(F_PERMUTED, [k]).accuracy() for name in ready])) for k in ks}
    most = max(means, key=lambda k: means[k])
    ours = (
        f"native minus other {percent(gain.value)} points; with permuted F at most {percent(means[most])} (k = {most})"
    )
    return Finding(gain.low > 0 and at_most(means[most], MOST_RANDOM), ours, gain, counted[ready[0]].n, used)


def _whole(record: Record, ks: Sequence[int]) -> Counted | None:
    """What was counted by the full budget, where all k have maps with F as trained and permuted."""
    counted = Counted.of(record.predictions, record.facts, "full")
    if counted is None or any(not set(ks) <= set(counted.hops(control)) for control in (F_TRAINED, F_PERMUTED)):
        return None
    return counted


def native_hops(evidence: Evidence, record: Record) -> tuple[int, ...] | None:
    """The hops that the loops of a record's backbone show; None where its native walk was not measured.

    A record by the full budget says it itself.  Maps by the reduced one are on weights of the zoo, which have a record
    of their walk.
    """
    if (own := native_in(record.predictions, record.facts)) is not None:
        return own
    walked = evidence.of(TRAJECTORIES).get(record.facts.name)
    if walked is None:
        return None
    walk = walk_of(walked.predictions, walked.facts)
    return native(walk.increments, walk.loops, walked.facts.nodes)


def difference(counted: Mapping[str, Counted], known: Mapping[str, Sequence[int]], ks: Sequence[int]) -> Estimate:
    """Accuracy of J_k, mean over native k minus mean over others, averaged over two backbones or more.

    Backbones are resampled, and graphs within.
    """
    sides = []
    for inside in (True, False):
        each = [counted[name].tally(F_TRAINED, [k for k in ks if (k in known[name]) is inside]) for name in counted]
        sides.append(Tally(np.stack([t.correct for t in each]), np.stack([t.eligible for t in each])))
    return backbone_bootstrap(*sides, seed=SEED)


CLAIMS: tuple[Claim, ...] = ()

OURS: tuple[Claim, ...] = (
    Claim(
        "select.native", "-", "J_k reaches its target for those k that the backbone's own loops show, not for others",
        "not asked", PREDICATE, SELECTING, select_native, kind="ours",
    ),
)  # fmt: skip
