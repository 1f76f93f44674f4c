"""Matched supervision in tables: targets reached, answers, what is read before F, copying, gaps within pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool
from torch import Tensor

from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Estimate, Tally, cluster_bootstrap_later, mean_sd, tally
from loopscope.studies.graph_walk.matched import (
    ANSWERS,
    BEFORE,
    ENDPOINT,
    FINAL,
    HOPS,
    LONG,
    STEPWISE,
    UNSTEERED,
    WHERE,
    Backbone,
    Study,
    called,
    study_of,
    target_of,
    targets_of,
)
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import Walks

SEED = 2026092614
"""Of the intervals over graphs, which are ours: the paper gives the spread over backbones alone."""

PAPER = {
    FINAL: {UNSTEERED: (1.0, 0.0, 0.0), "stay": (1.0,), "one": (0.665,), "two": (0.505,)},
    STEPWISE: {UNSTEERED: (0.0, 1.0, 0.0), "stay": (1.0,), "one": (1.0,), "two": (0.132,)},
}
"""Published means over five backbones: stay, one, two without a map; with a map, its own target."""

NOTE = (
    "Fits are averaged first.  A row of several backbones is their mean, its interval one sample SD to either side; a "
    "row of one backbone has a 95 % interval over graphs."
)
PAPER_NOTE = "  The paper's SDs: final-only one 10.0, two 15.2, stepwise two 6.8 points, all others 0."

_Groups = Mapping[str, Sequence[Backbone]]
"""What the rows of a table are about: one backbone, or several of which a mean is taken."""


# ---- one row ---------------------------------------------------------------------------------------------------------

_Case = tuple[Bool[Tensor, "fits n"], Bool[Tensor, "..."]]
"""Of one backbone: which answers are hits, and which of them count ([n], or [fits, n])."""


def _rows(
    id: str, label: str, cases: Sequence[_Case], walks: Walks, at: At, published: float | None = None
) -> list[Quantity]:
    """One row (or none, where fewer than two graphs count): the share of hits among what counts, fits averaged first.

    Several backbones: mean and sample SD of their shares, the least n.  One: its share, and an interval over graphs.
    """
    counts = [tally(np.asarray(hits), walks.clusters, np.asarray(counted)) for hits, counted in cases]
    if not all(_enough(each) for each in counts):
        return []
    n = min(int(counted.sum()) for _, counted in cases)
    if len(counts) == 1:
        share = cluster_bootstrap_later(counts[0], seed=SEED)
    else:
        share = mean_sd([float(each.accuracy().mean()) for each in counts]).estimate("backbone")
    return [Quantity(id, label, share, n, published, at)]


def _enough(counts: Tally) -> bool:
    return bool(((counts.eligible > 0).sum(-1) > 1).all())


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(
    found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str = WHERE, paper: bool = False
) -> list[QuantityTable]:
    """Everything that follows from the predictions of these backbones, both by name such as `matched-final-3`.

    `paper`: set the published means beside those of the two regimes.  Rows that need a map, a pair or a number of
    graphs that is not there are left out; so are tables without rows.  InputError where predictions do not fit.
    """
    study = study_of(found, facts, where)
    by_regime, by_name = (study.regimes, "by supervision"), (study.singles, "by backbone")
    made = []
    for groups, what in (by_regime, by_name) if study.regimes != study.singles else (by_regime,):
        made += [_accuracy(study, groups, what, paper and groups == study.regimes), _answers(study, groups, what)]
    made += [_fits(study), _gaps(_pairs(study)), _before(study), _cycles(study), _copying(study), _baselines(study)]
    made += [_longer(study)]
    return [table for table in made if table.rows]


def _accuracy(study: Study, groups: _Groups, what: str, paper: bool = False) -> QuantityTable:
    """At every condition the target, and without a map each of the three targets: `matched.accuracy`."""
    rows = []
    for group, members in groups.items():
        asked = [(ENDPOINT, ("stay",)), (UNSTEERED, ANSWERS[:3])]
        asked += [(target, (target_of(target),)) for target in targets_of(members)]
        for condition, answers in asked:
            published = PAPER.get(members[0].regime, {}).get(condition) if paper else None
            for answer, value in zip(answers, published or (None,) * len(answers), strict=True):
                rows += _answered("matched.accuracy", study, group, members, condition, answer, value)
    note = NOTE + PAPER_NOTE if paper else NOTE
    title = f"Matched supervision: target accuracy after one more call, {what}"
    return QuantityTable("matched.accuracy", title, rows, note)


def _answers(study: Study, groups: _Groups, what: str) -> QuantityTable:
    """After one more call, how often each node is answered: `matched.answer`."""
    rows = []
    for group, members in groups.items():
        for condition in (UNSTEERED, *targets_of(members)):
            for answer in ANSWERS:
                rows += _answered("matched.answer", study, group, members, condition, answer)
    return QuantityTable("matched.answer", f"Matched supervision: which node is answered, {what}", rows, NOTE)


def _answered(
    id: str,
    study: Study,
    group: str,
    members: Sequence[Backbone],
    condition: str,
    answer: str,
    published: float | None = None,
) -> list[Quantity]:
    cases = [(study.hits(each.given[condition], answer), study.at.kept) for each in members]
    at = {"group": group, "regime": members[0].regime, "condition": condition, "answer": answer}
    return _rows(id, f"{group}, {called(condition)}: {answer}", cases, study.at, at, published)


def _fits(study: Study) -> QuantityTable:
    rows = []
    for each in study.backbones:
        for target in targets_of([each]):
            for fit, right in enumerate(study.right(each, target), 1):
                label, case = f"{each.name}, {called(target)}, fit {fit}", (right[None], study.at.kept)
                at: At = {"group": each.name, "condition": target, "fit": fit}
                rows += _rows("matched.accuracy.fit", label, [case], study.at, at)
    title = "Matched supervision: target accuracy of every fit"
    return QuantityTable("matched.accuracy.fit", title, rows, "95 % intervals over graphs.")


def _before(study: Study) -> QuantityTable:
    """What is read before F: `matched.before`; and of what is right after F, how much: `matched.before.right`."""
    rows = []
    for group, members in (study.regimes | study.singles).items():
        for target in targets_of(members):
            after = [study.right(each, target) & study.at.kept for each in members]
            before = [study.right(each, target + BEFORE) for each in members]
            label, at = f"{group}, {called(target)}", {"group": group, "condition": target}
            read = [(hits, study.at.kept) for hits in before]
            rows += _rows("matched.before", f"{label}: read before F", read, study.at, at)
            both = list(zip(before, after, strict=True))
            rows += _rows("matched.before.right", f"{label}: right after F, and before", both, study.at, at)
    note = f"The second kind of row counts only answers that are right after F, of all fits together.  {NOTE}"
    return QuantityTable("matched.before", "Matched supervision: what J alone reads out", rows, note)


def _cycles(study: Study) -> QuantityTable:
    """By regime only: ten backbones, three maps and eight lengths would be no table any more."""
    rows = []
    for regime, members in study.regimes.items():
        for target in targets_of(members):
            right = [study.right(each, target) for each in members]
            for length in range(3, study.at.graphs.shape[1] + 1):
                counted = study.at.kept & (study.lengths == length)
                label, cases = f"{regime}, {called(target)}, cycle of {length}", [(hits, counted) for hits in right]
                at: At = {"group": regime, "condition": target, "cycle": length}
                rows += _rows("matched.cycle", label, cases, study.at, at)
    title = "Matched supervision: target accuracy by the cycle length of the start"
    return QuantityTable("matched.cycle", title, rows, NOTE)


def _copying(study: Study) -> QuantityTable:
    """Where the start is not the target: how often it is answered, and how often the target is."""
    rows = []
    at = study.at
    for group, members in (study.regimes | study.singles).items():
        for target in targets_of(members):
            elsewhere = at.kept & (at.starts != study.nodes[HOPS[target]])
            asked = {
                "copied": ("answers s", [(each.given[target].long() == at.starts, elsewhere) for each in members]),
                "right": ("right", [(study.right(each, target), elsewhere) for each in members]),
            }
            for which, (words, cases) in asked.items():
                label = f"{group}, {called(target)}: {words}, where s is wrong"
                rows += _rows(f"matched.elsewhere.{which}", label, cases, at, {"group": group, "condition": target})
    return QuantityTable("matched.elsewhere", "Matched supervision: is the start copied?", rows, NOTE)


def _baselines(study: Study) -> QuantityTable:
    """How often s or u is the target: what answering it would score, whatever the backbone."""
    id, rows = "matched.baseline", []
    at = study.at
    for name, copied in {"copy s": at.starts, "copy u": at.current}.items():
        for answer in ANSWERS[:3]:
            hits, label = study.hits(copied[None], answer), f"{name}: {answer}"
            rows += _rows(id, label, [(hits, at.kept)], at, {"baseline": name, "answer": answer})
            for length in range(3, at.graphs.shape[1] + 1):
                counted = hits[0, at.kept & (study.lengths == length)]
                if len(counted):  # all or none of them, so that there is nothing to resample
                    share = float(counted.double().mean())
                    exact = Estimate(share, share, share, len(counted), "instance, exact", 0)
                    where: At = {"baseline": name, "answer": answer, "cycle": length}
                    title = f"{label}, cycle of {length}"
                    rows.append(Quantity(f"{id}.cycle", title, exact, len(counted), None, where))
    note = (
        "95 % intervals over graphs; within one cycle length copying is always right or never.  No model is involved."
    )
    return QuantityTable(id, "Matched supervision: baselines that copy", rows, note)


def _longer(study: Study) -> QuantityTable:
    """Every map that was fitted for longer beside the one that was not: after F, before it, and within its pair.

    A fit is compared with the longer fit of the same number, so that ids are those of other tables after
    `matched.longer`: here only as many fits are counted as were fitted for longer.
    """
    id, rows = "matched.longer", []
    study = replace(study, backbones=[_as_many(each) for each in study.backbones])
    before, gaps = _before(study).rows, _pairs(study)
    for each in study.backbones:
        for target in (target for target in targets_of([each]) if target.endswith(LONG)):
            both = [name for name in (target.removesuffix(LONG), target) if name in each.given]
            if len(both) == 2:
                short, long = (study.right(each, name) for name in both)
                for name, right in zip(both, (short, long), strict=True):
                    label, cases = f"{each.name}, {called(name)}", [(right, study.at.kept)]
                    rows += _rows(f"{id}.accuracy", label, cases, study.at, {"group": each.name, "condition": name})
                label, n = f"{each.name}, {called(target)} - {called(both[0])}", int(study.at.kept.sum())
                at = {"group": each.name, "condition": target}
                rows.append(Quantity(f"{id}.gain", label, _difference(long, short, study.at), n, None, at))
                mine = [row for row in before if row.at["group"] == each.name and row.at["condition"] in both]
                rows += [replace(row, id=row.id.replace("matched", id)) for row in mine]
    compared = {pair.target.removesuffix(LONG) for pair in gaps if pair.target.endswith(LONG)}
    for pair in (pair for pair in gaps if pair.target.removesuffix(LONG) in compared):
        label = f"{FINAL} - {STEPWISE}, seed {pair.seed}, {called(pair.target)}"
        rows.append(pair.quantity(f"{id}.gap", label))
    note = "The same fits; differences paired; 95 % intervals over graphs.  Before F: what J alone reads out."
    return QuantityTable(id, "Matched supervision: what a longer fit adds", rows, note)


def _as_many(each: Backbone) -> Backbone:
    """With as many fits of a target as were fitted for longer, where some were."""
    fits = {
        target.removesuffix(LONG): len(each.given[target]) for target in targets_of([each]) if target.endswith(LONG)
    }
    return replace(
        each, given={name: found[: fits.get(name.removesuffix(BEFORE))] for name, found in each.given.items()}
    )


# ---- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Target accuracy of the two backbones of a seed, fits averaged; `gap` is final - stepwise on `n` instances."""

    seed: str
    target: str
    final: float
    stepwise: float
    gap: Estimate
    n: int

    def quantity(self, id: str, label: str) -> Quantity:
        """The gap."""
        return Quantity(id, label, self.gap, self.n, None, {"condition": self.target, "seed": self.seed})


def pairs(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str = WHERE) -> list[Pair]:
    """For every target, every seed of which both backbones are there; the same graphs are resampled for both."""
    return _pairs(study_of(found, facts, where))


def _pairs(study: Study) -> list[Pair]:
    final, stepwise = (
        {each.seed: each for each in study.backbones if each.regime == regime} for regime in (FINAL, STEPWISE)
    )
    kept = study.at.kept
    outcome = []
    for target in HOPS:
        for seed in (seed for seed in final if seed in stepwise):
            two = final[seed], stepwise[seed]
            if target in targets_of(two):
                a, b = (study.right(each, target) for each in two)
                shares = [int((hits & kept).sum()) / (len(hits) * int(kept.sum())) for hits in (a, b)]
                gap = _difference(a, b, study.at)
                outcome.append(Pair(seed, target, shares[0], shares[1], gap, int(kept.sum())))
    return outcome


def _difference(a: Bool[Tensor, "fits n"], b: Bool[Tensor, "others n"], at: Walks) -> Estimate:
    counts = (tally(np.asarray(hits), at.clusters, np.asarray(at.kept)) for hits in (a, b))
    return cluster_bootstrap_later(*counts, seed=SEED)


def _gaps(found: Sequence[Pair]) -> QuantityTable:
    rows = []
    for target in HOPS:
        same = [pair for pair in found if pair.target == target]
        if len(same) > 1:
            mean = mean_sd([pair.gap.value for pair in same]).estimate("pair")
            label, at = f"{called(target)}, mean of {len(same)} pairs", {"condition": target}
            rows.append(Quantity("matched.gap.mean", label, mean, same[0].n, None, at))
        rows += [pair.quantity("matched.gap", f"{called(target)}, seed {pair.seed}") for pair in same]
    note = "Final-only minus stepwise.  A mean has one sample SD to either side, a pair a 95 % interval over graphs."
    return QuantityTable("matched.gap", "Matched supervision: the gap within each pair", rows, note)
