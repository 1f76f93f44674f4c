"""Relation composition: for how many relations does one map J, used between all calls, keep a frozen block on its way?

The backbone learned chains of one to three relations, one call for each.  A chain of n is run as F^n, and as
F (J F)^(n-1) with a map that was fitted in two parts: a curriculum through lengths 4, 5, ..., 16, then a continuation
on all of them.  Every length from 1 to 32 is asked: those of the backbone, those of the map, and those beyond both.

How far a map carries beyond its lengths is not settled by its training: it differs from fit to fit and, within one fit,
from one check to the next.  So several fits are measured, each after the curriculum and at every check of the
continuation, and both spreads are reported beside the last maps' shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.program import F, J, Program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Estimate, Tally, cluster_bootstrap_later, mean_sd, wilson
from loopscope.studies.records import Predictions
from loopscope.tasks import relations

LENGTHS = tuple(range(1, 33))
QUERIES = 1024
LAST = 10
"""Checks at the end of the continuation whose spread is reported: half of the published recipe's."""

RANGES: Mapping[str, range] = {
    "1-3": range(1, 4), "4-16": range(4, 17), "17-24": range(17, 25), "25-32": range(25, 33)
}  # fmt: skip
"""The backbone's lengths, the map's, and those beyond both."""

INSIDE, BEYOND, FAR = "4-16", "17-24", "25-32"
NOISY = 20
"""The length whose spread over checks is on record for the reference study, too."""

OWN, CUT = "own-queries", "cut-queries"
NATIVE, GROWN, FINAL = "F only", "J after the curriculum", "J"
CONDITIONS = (NATIVE, GROWN, FINAL)
"""No map; every fit as it was after the curriculum; every fit as it is at the end."""

WHICH, WHEN = "lengths", "updates"
FIT = "relations-curriculum"
"""The maps."""

SEED = 2026092317

COUNTS: Mapping[str, tuple[int, ...]] = {
    NATIVE: (
        1024, 1024, 1020, 144, 16, 16, 16, 15, 24, 12, 16, 20, 18, 16, 15, 9,
        15, 14, 23, 15, 16, 19, 4, 20, 13, 15, 21, 15, 21, 15, 14, 14,
    ),
    GROWN: (
        1024, 1024, 1024, 1023, 1023, 1024, 1019, 1022, 1020, 1019, 1018, 1011, 1011, 1007, 992, 957,
        882, 612, 227, 57, 19, 15, 17, 18, 21, 11, 11, 19, 12, 17, 15, 19,
    ),
    FINAL: (
        1024, 1024, 1024, 1023, 1024, 1024, 1023, 1023, 1023, 1022, 1024, 1023, 1023, 1024, 1023, 1023,
        1020, 1001, 878, 465, 90, 25, 16, 17, 22, 17, 14, 21, 12, 16, 15, 18,
    ),
}  # fmt: skip
"""Right answers of the reference study's one fit, of 1,024 at each of `LENGTHS`."""


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    model: LoopedModel,
    fits: Sequence[Mapping[int, TokenMap]],
    *,
    lengths: Sequence[int] = LENGTHS,
    queries: int = QUERIES,
    cut: bool = False,
) -> Predictions:
    """Which queries are answered right at each length, without a map and with each map of each fit.

    A fit is its maps by update of the continuation: 0 is the map after the curriculum, the greatest update the map at
    the end; all fits have the same updates.  Maps are on the model's device.

    Each length has queries of its own, the first `queries` of 1,024.  `cut=True` takes those of the greatest length
    and cuts them to every other: a row sees only rows before it, so one run answers all lengths, at about a twelfth of
    the cost.

    Under `own-queries` or `cut-queries`, all on the CPU: `lengths` and `updates` (int32); `F only` [lengths,
    queries / 8] and, for each fit, `fit 1` [updates, lengths, queries / 8], a bit for each query (uint8, eight to a
    byte).  InputError for numbers that do not fit.
    """
    updates = _check(fits, lengths, queries)
    asked = {n: relations.evaluation(n, QUERIES) for n in (lengths[-1:] if cut else lengths)}
    first = {n: relations.Queries(*(part[:queries] for part in drawn)) for n, drawn in asked.items()}
    if cut:
        starts, followed = first[lengths[-1]]
        first = {n: relations.Queries(starts, followed[:, :n]) for n in lengths}
    read = _read_cut if cut else _read_own
    found = {
        WHICH: torch.tensor(lengths, dtype=torch.int32),
        WHEN: torch.tensor(updates, dtype=torch.int32),
        NATIVE: pack_bits(read(model, None, first)),
    }
    for number, fit in enumerate(fits, 1):
        found[f"fit {number}"] = torch.stack([pack_bits(read(model, fit[update], first)) for update in updates])
    return {CUT if cut else OWN: found}


def program(length: int, steered: bool) -> Program:
    """F^n, or F (J F)^(n-1): no map comes before the first call."""
    return Program((F, *((J("map"), F) if steered else (F,)) * (length - 1)))


def pack_bits(hits: Bool[Tensor, "*lead n"]) -> UInt8[Tensor, "*lead eighth"]:
    """Eight outcomes to a byte; n must be a multiple of eight."""
    return torch.from_numpy(np.packbits(hits.numpy(), axis=-1))


def unpack_bits(packed: UInt8[Tensor, "*lead eighth"]) -> Bool[Tensor, "*lead n"]:
    """What `pack_bits` was given."""
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1)).bool()


def _read_own(
    model: LoopedModel, step: TokenMap | None, asked: Mapping[int, relations.Queries]
) -> Bool[Tensor, "lengths queries"]:
    """Every length run for itself and read at its last row."""
    hits = []
    for length, queries in asked.items():
        each = program(length, step is not None)
        found = run(model, relations.tokens(*queries), each, maps={} if step is None else {"map": step})
        hits.append(found[each].predictions[:, 0].cpu() == _answers(queries))
    return torch.stack(hits)


def _read_cut(
    model: LoopedModel, step: TokenMap | None, asked: Mapping[int, relations.Queries]
) -> Bool[Tensor, "lengths queries"]:
    """The longest queries run once; a length n is read after call n, at the row of the n-th relation."""
    longest = max(asked)
    each = program(longest, step is not None)
    points, rows = [f"h{length}" for length in asked], [length + 1 for length in asked]
    maps = {} if step is None else {"map": step}
    trace = run(model, relations.tokens(*asked[longest]), each, maps=maps, read=points, rows=rows)[each]
    read = [trace.logits_at[point][:, index].argmax(-1).cpu() for index, point in enumerate(points)]
    return torch.stack(read) == torch.stack([_answers(queries) for queries in asked.values()])


def _answers(queries: relations.Queries) -> Tensor:
    return relations.path(relations.world(), *queries)[:, -1]


def _check(fits: Sequence[Mapping[int, TokenMap]], lengths: Sequence[int], queries: int) -> list[int]:
    """The updates of all fits."""
    if not lengths or lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
        raise InputError(f"lengths must be increasing whole numbers from 1, not {list(lengths)} (nearest: 1 to 32)")
    if queries % 8 or not 8 <= queries <= QUERIES:
        near = min(max(8, queries // 8 * 8), QUERIES)
        raise InputError(f"{queries} queries cannot be asked: a multiple of 8 up to {QUERIES} (nearest: {near})")
    known = [sorted(fit) for fit in fits]
    if not known or any(updates != known[0] for updates in known) or not any(known[0]):
        raise InputError(f"all fits must have maps of the same updates, one of them after 0: got {known}")
    return known[0]


# ---- outcomes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outcomes:
    """A record unpacked: right or wrong, for every query, without a map and with every map of every fit."""

    lengths: tuple[int, ...]
    updates: tuple[int, ...]
    native: Bool[Tensor, "lengths queries"]
    steered: Bool[Tensor, "fits updates lengths queries"]
    cut: bool

    @property
    def conditions(self) -> dict[str, Bool[Tensor, "maps lengths queries"]]:
        """The outcomes of `CONDITIONS`; a map of update 0 must be there for the one after the curriculum."""
        grown = {GROWN: self.steered[:, 0]} if self.updates[0] == 0 else {}
        return {NATIVE: self.native[None], **grown, FINAL: self.steered[:, -1]}

    def places(self, lengths: range) -> list[int]:
        """Where lengths of this range stand; none of them need have been measured."""
        return [place for place, length in enumerate(self.lengths) if length in lengths]

    def course(self, lengths: range) -> Float[np.ndarray, "fits updates"]:
        """Every map's share of right answers in a range of lengths: how it went through the continuation."""
        shares = self.steered[:, :, self.places(lengths)].double().mean((-2, -1))
        return np.asarray(shares, dtype=np.float64)

    @property
    def checks(self) -> list[int]:
        """Where the maps of the continuation stand among `updates`."""
        return [place for place, update in enumerate(self.updates) if update > 0]

    @property
    def size(self) -> str:
        """What was asked, in words."""
        queries, few = self.native.shape[1], len(self.lengths)
        how = f"{queries:,} queries cut to" if self.cut else f"{queries:,} queries at"
        return f"{how} each of {few} lengths, {self.lengths[0]} to {self.lengths[-1]}"


def outcomes(predictions: Predictions) -> Outcomes:
    """What `measure` gave."""
    ((where, found),) = predictions.items()
    fits = [unpack_bits(found[name]) for name in _fits(found)]
    lengths, updates = (tuple(map(int, found[name])) for name in (WHICH, WHEN))
    return Outcomes(lengths, updates, unpack_bits(found[NATIVE]), torch.stack(fits), where == CUT)


def _fits(found: Mapping[str, Tensor]) -> list[str]:
    return sorted((name for name in found if name.startswith("fit ")), key=lambda name: int(name.split()[1]))


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(predictions: Predictions, paper: bool = False) -> list[QuantityTable]:
    """By range, by length, by fit and, where there are several, by check; `paper`: with the published numbers beside.

    Ranges of which nothing was measured have no rows.
    """
    seen = outcomes(predictions)
    checks = [by_check(seen)] if len(seen.checks) > 1 else []
    return [by_range(seen, paper), *by_length(seen, paper), by_fit(seen), *checks]


def by_range(seen: Outcomes, paper: bool = False) -> QuantityTable:
    """The share of right answers in each range, and how much a map adds (paired)."""
    rows = []
    for name in _measured(seen):
        rows += [share(seen, name, condition, paper=paper) for condition in seen.conditions]
        rows.append(share(seen, name, FINAL, minus=NATIVE))
    fits = len(seen.steered)
    mean = "one fit" if fits == 1 else f"mean of {fits} fits"
    note = f"Lengths count alike; {mean}; queries resampled.  {seen.size}."
    return QuantityTable("chains.range", "Right answers by range of lengths", rows, note)


def by_length(seen: Outcomes, paper: bool = False) -> list[QuantityTable]:
    """The share of right answers at each length, a table for each condition."""
    result = []
    for condition, hits in seen.conditions.items():
        rows = [
            Quantity(
                "chains.length", f"length {length}", _estimate(hits[:, place, None]), hits.shape[-1],
                _published(condition, [length]) if paper and length in LENGTHS else None,
                {"condition": condition, "length": length},
            )
            for place, length in enumerate(seen.lengths)
        ]  # fmt: skip
        interval = "Wilson intervals" if len(hits) == 1 else f"mean of {len(hits)} fits; queries resampled"
        title = f"Right answers by length, {condition}"
        result.append(QuantityTable("chains.length", title, rows, f"{interval}.  {seen.size}."))
    return result


def by_fit(seen: Outcomes) -> QuantityTable:
    """The last map of each fit, and, from two fits on, their mean with one sample SD to either side."""
    final, rows = seen.conditions[FINAL], []
    for name in _measured(seen):
        hits = final[:, seen.places(RANGES[name])]
        each = [
            Quantity(
                "chains.fit", f"{name}, fit {fit}", _estimate(own[None]), own.numel(), None,
                {"lengths": name, "fit": fit},
            )
            for fit, own in enumerate(hits, 1)
        ]  # fmt: skip
        rows += each
        if len(each) > 1:
            spread = mean_sd([row.estimate.value for row in each]).estimate("fit")
            at: At = {"lengths": name}
            rows.append(Quantity("chains.fit.mean", f"{name}, all fits", spread, hits[0].numel(), None, at))
    note = f"Each fit: queries resampled; all fits: mean ± SD over fits.  {seen.size}."
    return QuantityTable("chains.fit", "Spread over fits, right answers with the last map", rows, note)


def by_check(seen: Outcomes, last: int = LAST) -> QuantityTable:
    """For each fit, the mean over the last checks of the continuation, from the lowest of them to the highest."""
    ranges = {name: RANGES[name] for name in _measured(seen) if name != "1-3"}
    if NOISY in seen.lengths:
        ranges[f"length {NOISY}"] = range(NOISY, NOISY + 1)
    checks, rows = seen.checks[-last:], []
    for name, lengths in ranges.items():
        n = len(seen.places(lengths)) * seen.native.shape[1]
        for fit, shares in enumerate(seen.course(lengths)[:, checks], 1):
            extent = float(shares.mean()), float(shares.min()), float(shares.max())
            spread = Estimate(*extent, len(checks), "check, lowest to highest", 0)
            at: At = {"lengths": name, "fit": fit}
            rows.append(Quantity("chains.check", f"{name}, fit {fit}", spread, n, None, at))
    note = (
        f"Mean over the last {len(checks)} checks, no interval but the lowest and the highest of them.  "
        f"The reference study's fit went from 13 to 65 % at length {NOISY} (128 queries, ten checks).  {seen.size}."
    )
    return QuantityTable("chains.check", "Spread over the last checks of the continuation", rows, note)


def share(seen: Outcomes, name: str, condition: str, *, minus: str | None = None, paper: bool = False) -> Quantity:
    """Right answers in a range under a condition, `chains.range`, or how many more than under another, `.gain`.

    InputError where no length of the range was measured, or the condition was not.
    """
    places, known = seen.places(RANGES[name]), seen.conditions
    if not places or condition not in known:
        raise InputError(f"{name}, {condition} was not measured; there are {seen.size}, {', '.join(known)}")
    hits = known[condition][:, places]
    other = None if minus is None else known[minus][:, places]
    id, label = "chains.range", f"{name}, {condition}"
    if minus is not None:
        id, label = f"{id}.gain", f"{label} minus {minus}"
    n, published = len(places) * seen.native.shape[1], _published(condition, RANGES[name]) if paper else None
    return Quantity(id, label, _estimate(hits, other), n, published, {"lengths": name, "condition": condition})


def _estimate(
    hits: Bool[Tensor, "maps lengths queries"], minus: Bool[Tensor, "others some queries"] | None = None
) -> Estimate:
    """The mean over maps and lengths, queries resampled; by Wilson's formula for one map at one length.

    What is resampled is a query's number: at all lengths and in all maps at once.  That is right for cut queries, which
    are the same at all lengths, and for own queries, of which those of one number have nothing to do with each other.
    """
    if minus is None and hits.shape[:2] == (1, 1):
        return wilson(int(hits.sum()), hits.shape[-1], unit="query")
    a, *b = (_tally(each) for each in (hits, minus) if each is not None)
    return cluster_bootstrap_later(a, *b, seed=SEED, unit="query")


def _tally(hits: Bool[Tensor, "maps lengths queries"]) -> Tally:
    correct = np.asarray(hits, dtype=np.float64)
    return Tally(correct, np.ones_like(correct))


def _measured(seen: Outcomes) -> list[str]:
    return [name for name, lengths in RANGES.items() if seen.places(lengths)]


def _published(condition: str, lengths: Sequence[int]) -> float:
    return sum(COUNTS[condition][length - 1] for length in lengths) / (QUERIES * len(lengths))
