"""Matched supervision: does a loss at every loop change which transitions a map can select?

Backbones come in pairs that differ in their loss alone: `matched-final-3` is taught after its last loop, and
`matched-stepwise-3` (same start, same batches) after every loop.  From h_L each is called once more: without a map, and
with a map fitted to stay at u, to walk one step or two.

The targets wrap around the cycle of the start s.  On a cycle whose length divides 10, f^10(s) is s itself, so copying s
scores on "two" without walking anywhere.  Hence the split by cycle length and the copy baselines; and hence the readout
before F, which tells what J read out of the state from what the call of F then did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.program import F, J
from loopscope.quantity import At, Quantity, Table
from loopscope.stats import Estimate, Tally, cluster_bootstrap, mean_sd, tally
from loopscope.studies.records import Facts, Predictions, check_measured
from loopscope.studies.subject import Subject, Walks, instances, walks
from loopscope.tasks.graph_walk import cycle_lengths

FINAL, STEPWISE = "matched-final", "matched-stepwise"
WHERE = "matched-test"

HOPS = {"stay": 0, "one": 1, "two": 2, "one-long": 1, "two-long": 2}
"""Steps from u that each target asks for; a `long` map is fitted to the same target with more updates."""

ANSWERS = ("stay", "one", "two", "other")
ENDPOINT, UNSTEERED, BEFORE, LONG = "endpoint", "unsteered", " before F", "-long"

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


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(subject: Subject, where: str = WHERE) -> Predictions:
    """The node answered in every instance, by condition.

    `endpoint` is read after the trained calls, `unsteered` after one more, `two-1` after J and one more call,
    `two-1 before F` after J alone.  Every fit of every target of `HOPS` that the subject has maps for.
    """
    maps = subject.named(*(target for target in HOPS if target in subject.maps))
    trained = F**subject.loops
    programs = {ENDPOINT: trained, UNSTEERED: trained | F}
    for name in maps:
        programs |= {name: trained | J(name) | F, name + BEFORE: trained | J(name)}
    return {where: subject.answers(walks(where, subject).tokens, programs, maps=maps)}


# ---- what was measured, put in order ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Backbone:
    """One backbone's answers by condition (`endpoint`, `unsteered`, `two`, `two before F`), a row for each fit."""

    name: str
    given: Mapping[str, UInt8[Tensor, "fits n"]]

    @property
    def regime(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def seed(self) -> str:
        return self.name.rpartition("-")[2]


_Groups = Mapping[str, Sequence[_Backbone]]
"""What the rows of a table are about: one backbone, or several of which a mean is taken."""


@dataclass(frozen=True)
class _Study:
    """All backbones on one population, and what they are judged by: `nodes` are u, f(u), f^2(u)."""

    at: Walks
    nodes: Int[Tensor, "3 n"]
    lengths: Int[Tensor, " n"]
    backbones: Sequence[_Backbone]

    @property
    def regimes(self) -> dict[str, list[_Backbone]]:
        """Backbones by recipe, in the order given; one that is alone goes by its own name."""
        found: dict[str, list[_Backbone]] = {}
        for each in self.backbones:
            found.setdefault(each.regime, []).append(each)
        return {name if len(members) > 1 else members[0].name: members for name, members in found.items()}

    @property
    def singles(self) -> dict[str, list[_Backbone]]:
        """Every backbone by itself."""
        return {each.name: [each] for each in self.backbones}

    def hits(self, given: Int[Tensor, "fits n"] | UInt8[Tensor, "fits n"], answer: str) -> Bool[Tensor, "fits n"]:
        """Where the answers given are of this kind."""
        matches = given.long() == self.nodes[:, None]
        return ~matches.any(0) if answer == "other" else matches[ANSWERS.index(answer)]

    def right(self, each: _Backbone, condition: str) -> Bool[Tensor, "fits n"]:
        """Where a map led to its own target."""
        return self.hits(each.given[condition], _target(condition.removesuffix(BEFORE)))


def _study(found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str) -> _Study:
    """InputError without backbones, for one without facts or with another request, and for answers that do not fit."""
    if not found:
        raise InputError("matched supervision needs the predictions of at least one backbone, not of none")
    check_measured(found, facts, where)
    depths = sorted({facts[name].depth for name in found})
    if len(depths) > 1:
        raise InputError(f"backbones with requests of {' and '.join(map(str, depths))} steps cannot be compared")
    at = instances(where, depths[0], torch.device("cpu"), rule="three")
    backbones = [_Backbone(name, _given(found[name][where], facts[name], len(at.starts))) for name in found]
    nodes = torch.stack([at.ahead(steps) for steps in range(3)])
    return _Study(at, nodes, cycle_lengths(at.graphs).gather(1, at.starts[:, None])[:, 0], backbones)


def _given(predictions: Mapping[str, Tensor], facts: Facts, instances: int) -> dict[str, Tensor]:
    """The answers with the fits of a target as rows of one tensor."""
    names = {ENDPOINT: [ENDPOINT], UNSTEERED: [UNSTEERED]}
    for target in (target for target in HOPS if target in facts.fits):
        fits = [f"{target}-{fit}" for fit in range(1, 1 + facts.fits[target])]
        names |= {target: fits, target + BEFORE: [fit + BEFORE for fit in fits]}
    for name in (name for fits in names.values() for name in fits):
        if name not in predictions:
            raise InputError(f"{facts.name} has no answers for {name!r}{nearest(name, predictions)}")
        if predictions[name].shape != (instances,):
            shape = list(predictions[name].shape)
            raise InputError(f"{facts.name} has answers of shape {shape} for {name!r}, not one for each of {instances}")
    return {condition: torch.stack([predictions[fit] for fit in fits]) for condition, fits in names.items()}


def _target(condition: str) -> str:
    """The answer that a map is fitted to give."""
    return ANSWERS[HOPS[condition]]


def _targets(members: Iterable[_Backbone]) -> list[str]:
    """Targets that all of these backbones have maps for."""
    return [target for target in HOPS if all(target in each.given for each in members)]


def _called(condition: str) -> str:
    return {ENDPOINT: "last trained loop", UNSTEERED: "no map"}.get(condition, f"J_{condition}")


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
        share = cluster_bootstrap(counts[0], seed=SEED)
    else:
        share = mean_sd([float(each.accuracy().mean()) for each in counts]).estimate("backbone")
    return [Quantity(id, label, share, n, published, at)]


def _enough(counts: Tally) -> bool:
    return bool(((counts.eligible > 0).sum(-1) > 1).all())


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(
    found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str = WHERE, paper: bool = False
) -> list[Table]:
    """Everything that follows from the predictions of these backbones, both by name such as `matched-final-3`.

    `paper`: set the published means beside those of the two regimes.  Rows that need a map, a pair or a number of
    graphs that is not there are left out; so are tables without rows.  InputError where predictions do not fit.
    """
    study = _study(found, facts, where)
    by_regime, by_name = (study.regimes, "by supervision"), (study.singles, "by backbone")
    made = []
    for groups, what in (by_regime, by_name) if study.regimes != study.singles else (by_regime,):
        made += [_accuracy(study, groups, what, paper and groups == study.regimes), _answers(study, groups, what)]
    made += [_fits(study), _gaps(_pairs(study)), _before(study), _cycles(study), _copying(study), _baselines(study)]
    made += [_longer(study)]
    return [table for table in made if table.rows]


def summary(
    found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str = WHERE, paper: bool = False
) -> Table:
    """The first of `tables` alone, which is the paper's: target accuracy by supervision."""
    study = _study(found, facts, where)
    return _accuracy(study, study.regimes, "by supervision", paper)


def by_backbone(found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str = WHERE) -> Table:
    """Target accuracy of every backbone, fits averaged, with intervals over graphs."""
    study = _study(found, facts, where)
    return _accuracy(study, study.singles, "by backbone")


def read_before(
    found: Mapping[str, Predictions], facts: Mapping[str, Facts], target: str, where: str = WHERE
) -> dict[str, Quantity]:
    """By supervision, how often the target of a map is read before F: what J alone does."""
    study = _study(found, facts, where)
    rows = [row for group, members in study.regimes.items() for row in _read_before(study, group, members, target)]
    return {str(row.at["group"]): row for row in rows}


def _read_before(study: _Study, group: str, members: Sequence[_Backbone], target: str) -> list[Quantity]:
    cases = [(study.right(each, target + BEFORE), study.at.kept) for each in members]
    label = f"{group}, {_called(target)}: read before F"
    return _rows("matched.before", label, cases, study.at, {"group": group, "condition": target})


def _accuracy(study: _Study, groups: _Groups, what: str, paper: bool = False) -> Table:
    """At every condition the target, and without a map each of the three targets: `matched.accuracy`."""
    rows = []
    for group, members in groups.items():
        asked = [(ENDPOINT, ("stay",)), (UNSTEERED, ANSWERS[:3])]
        asked += [(target, (_target(target),)) for target in _targets(members)]
        for condition, answers in asked:
            published = PAPER.get(members[0].regime, {}).get(condition) if paper else None
            for answer, value in zip(answers, published or (None,) * len(answers), strict=True):
                rows += _answered("matched.accuracy", study, group, members, condition, answer, value)
    note = NOTE + PAPER_NOTE if paper else NOTE
    title = f"Matched supervision: target accuracy after one more call, {what}"
    return Table("matched.accuracy", title, rows, note)


def _answers(study: _Study, groups: _Groups, what: str) -> Table:
    """After one more call, how often each node is answered: `matched.answer`."""
    rows = []
    for group, members in groups.items():
        for condition in (UNSTEERED, *_targets(members)):
            for answer in ANSWERS:
                rows += _answered("matched.answer", study, group, members, condition, answer)
    return Table("matched.answer", f"Matched supervision: which node is answered, {what}", rows, NOTE)


def _answered(
    id: str,
    study: _Study,
    group: str,
    members: Sequence[_Backbone],
    condition: str,
    answer: str,
    published: float | None = None,
) -> list[Quantity]:
    cases = [(study.hits(each.given[condition], answer), study.at.kept) for each in members]
    at = {"group": group, "regime": members[0].regime, "condition": condition, "answer": answer}
    return _rows(id, f"{group}, {_called(condition)}: {answer}", cases, study.at, at, published)


def _fits(study: _Study) -> Table:
    rows = []
    for each in study.backbones:
        for target in _targets([each]):
            for fit, right in enumerate(study.right(each, target), 1):
                label, case = f"{each.name}, {_called(target)}, fit {fit}", (right[None], study.at.kept)
                at: At = {"group": each.name, "condition": target, "fit": fit}
                rows += _rows("matched.accuracy.fit", label, [case], study.at, at)
    title = "Matched supervision: target accuracy of every fit"
    return Table("matched.accuracy.fit", title, rows, "95 % intervals over graphs.")


def _before(study: _Study) -> Table:
    """What is read before F: `matched.before`; and of what is right after F, how much: `matched.before.right`."""
    rows = []
    for group, members in (study.regimes | study.singles).items():
        for target in _targets(members):
            after = [study.right(each, target) & study.at.kept for each in members]
            before = [study.right(each, target + BEFORE) for each in members]
            label, cases = (
                f"{group}, {_called(target)}: right after F, and before",
                list(zip(before, after, strict=True)),
            )
            rows += _read_before(study, group, members, target)
            rows += _rows("matched.before.right", label, cases, study.at, {"group": group, "condition": target})
    note = f"The second kind of row counts only answers that are right after F, of all fits together.  {NOTE}"
    return Table("matched.before", "Matched supervision: what J alone reads out", rows, note)


def _cycles(study: _Study) -> Table:
    """By regime only: ten backbones, three maps and eight lengths would be no table any more."""
    rows = []
    for regime, members in study.regimes.items():
        for target in _targets(members):
            right = [study.right(each, target) for each in members]
            for length in range(3, study.at.graphs.shape[1] + 1):
                counted = study.at.kept & (study.lengths == length)
                label, cases = f"{regime}, {_called(target)}, cycle of {length}", [(hits, counted) for hits in right]
                at: At = {"group": regime, "condition": target, "cycle": length}
                rows += _rows("matched.cycle", label, cases, study.at, at)
    title = "Matched supervision: target accuracy by the cycle length of the start"
    return Table("matched.cycle", title, rows, NOTE)


def _copying(study: _Study) -> Table:
    """Where the start is not the target: how often it is answered, and how often the target is."""
    rows = []
    at = study.at
    for group, members in (study.regimes | study.singles).items():
        for target in _targets(members):
            elsewhere = at.kept & (at.starts != study.nodes[HOPS[target]])
            asked = {
                "copied": ("answers s", [(each.given[target].long() == at.starts, elsewhere) for each in members]),
                "right": ("right", [(study.right(each, target), elsewhere) for each in members]),
            }
            for which, (told, cases) in asked.items():
                label = f"{group}, {_called(target)}: {told}, where s is wrong"
                rows += _rows(f"matched.elsewhere.{which}", label, cases, at, {"group": group, "condition": target})
    return Table("matched.elsewhere", "Matched supervision: is the start copied?", rows, NOTE)


def _baselines(study: _Study) -> Table:
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
                    called = f"{label}, cycle of {length}"
                    rows.append(Quantity(f"{id}.cycle", called, exact, len(counted), None, where))
    note = (
        "95 % intervals over graphs; within one cycle length copying is always right or never.  No model is involved."
    )
    return Table(id, "Matched supervision: baselines that copy", rows, note)


def _longer(study: _Study) -> Table:
    """Every map that was fitted for longer beside the one that was not: after F, before it, and within its pair.

    A fit is compared with the longer fit of the same number, so that ids are those of other tables after
    `matched.longer`: here only as many fits are counted as were fitted for longer.
    """
    id, rows = "matched.longer", []
    study = replace(study, backbones=[_as_many(each) for each in study.backbones])
    before, gaps = _before(study).rows, _pairs(study)
    for each in study.backbones:
        for target in (target for target in _targets([each]) if target.endswith(LONG)):
            both = [name for name in (target.removesuffix(LONG), target) if name in each.given]
            if len(both) == 2:
                short, long = (study.right(each, name) for name in both)
                for name, right in zip(both, (short, long), strict=True):
                    label, cases = f"{each.name}, {_called(name)}", [(right, study.at.kept)]
                    rows += _rows(f"{id}.accuracy", label, cases, study.at, {"group": each.name, "condition": name})
                label, n = f"{each.name}, {_called(target)} - {_called(both[0])}", int(study.at.kept.sum())
                at = {"group": each.name, "condition": target}
                rows.append(Quantity(f"{id}.gain", label, _difference(long, short, study.at), n, None, at))
                mine = [row for row in before if row.at["group"] == each.name and row.at["condition"] in both]
                rows += [replace(row, id=row.id.replace("matched", id)) for row in mine]
    compared = {pair.target.removesuffix(LONG) for pair in gaps if pair.target.endswith(LONG)}
    for pair in (pair for pair in gaps if pair.target.removesuffix(LONG) in compared):
        label = f"{FINAL} - {STEPWISE}, seed {pair.seed}, {_called(pair.target)}"
        rows.append(pair.quantity(f"{id}.gap", label))
    note = "The same fits; differences paired; 95 % intervals over graphs.  Before F: what J alone reads out."
    return Table(id, "Matched supervision: what a longer fit adds", rows, note)


def _as_many(each: _Backbone) -> _Backbone:
    """With as many fits of a target as were fitted for longer, where some were."""
    fits = {target.removesuffix(LONG): len(each.given[target]) for target in _targets([each]) if target.endswith(LONG)}
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


def pairs(found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str = WHERE) -> list[Pair]:
    """For every target, every seed of which both backbones are there; the same graphs are resampled for both."""
    return _pairs(_study(found, facts, where))


def _pairs(study: _Study) -> list[Pair]:
    final, stepwise = (
        {each.seed: each for each in study.backbones if each.regime == regime} for regime in (FINAL, STEPWISE)
    )
    kept = study.at.kept
    outcome = []
    for target in HOPS:
        for seed in (seed for seed in final if seed in stepwise):
            two = final[seed], stepwise[seed]
            if target in _targets(two):
                a, b = (study.right(each, target) for each in two)
                shares = [float(hits[:, kept].double().mean()) for hits in (a, b)]
                gap = _difference(a, b, study.at)
                outcome.append(Pair(seed, target, shares[0], shares[1], gap, int(kept.sum())))
    return outcome


def _difference(a: Bool[Tensor, "fits n"], b: Bool[Tensor, "others n"], at: Walks) -> Estimate:
    counts = (tally(np.asarray(hits), at.clusters, np.asarray(at.kept)) for hits in (a, b))
    return cluster_bootstrap(*counts, seed=SEED)


def _gaps(found: Sequence[Pair]) -> Table:
    rows = []
    for target in HOPS:
        same = [pair for pair in found if pair.target == target]
        if len(same) > 1:
            mean = mean_sd([pair.gap.value for pair in same]).estimate("pair")
            label, at = f"{_called(target)}, mean of {len(same)} pairs", {"condition": target}
            rows.append(Quantity("matched.gap.mean", label, mean, same[0].n, None, at))
        rows += [pair.quantity("matched.gap", f"{_called(target)}, seed {pair.seed}") for pair in same]
    note = "Final-only minus stepwise.  A mean has one sample SD to either side, a pair a 95 % interval over graphs."
    return Table("matched.gap", "Matched supervision: the gap within each pair", rows, note)
