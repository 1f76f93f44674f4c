"""Control that lasts: for how many calls do maps steer the walk, and what ends it?

Strings of maps (see `composition`) are carried on to 64 calls: J_one again and again, J_two again and again, and the
fixed mixed strings, each repeated.  A *family* is a pair of maps for one hop and for two, fitted in one way: the
published maps for one more call, maps fitted through eight of their own calls, on a pool of states that they have led
themselves, or together on random strings of both.  Answers are judged by the walk from u, whatever came before; where
every call so far was right the control was never lost.

What may end it is measured on a few graphs: how large states grow, how far the rows of the graph, which no call should
have to change, move from where the trained calls left them, and the spectrum of the maps' linear parts.

Answers would fill megabytes, so they are counted: every call over all instances, some calls (`MARKS`) graph by graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product, takewhile

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from loopscope.bounds import taken
from loopscope.errors import InputError
from loopscope.maps import AffineMap
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.stats import Tally, cluster_bootstrap_later
from loopscope.studies.graph_walk.composition import COPY, EVERY, INDEPENDENT, PAPER_LONG, SO_FAR, long_strings, program
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, first_graphs, instances
from loopscope.tasks.graph_walk import GraphWalk, walk

CALLS = 64
MARKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Calls that are counted graph by graph, so that graphs can be resampled."""

PUBLISHED = "published"
FAMILIES: Mapping[str, tuple[str, str]] = {
    PUBLISHED: ("one", "two"),
    "rollout": ("rollout-one", "rollout-two"),
    "pool": ("pool-one", "pool-two"),
    "strings": ("strings-one", "strings-two"),
}
"""The targets of each family, for one hop and for two."""

KINDS = ("one", "two", "mixed")
STRINGS = "mixed strings"
LOOKED_AT = 16
"""Graphs whose states are looked at, one start each."""

AIM = {8: 0.99, 64: 0.95}
"""What is aimed at for one hop, by call."""

AT_ONCE = 8
"""Strings that are run side by side."""

SEED = 2026093001
NOTE = (
    "Share of instances with u, ..., f^4(u) distinct; mean of strings and fits; graphs resampled.  "
    f"`{SO_FAR}`: this call and all before it."
)


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure(
    trained: TrainedModel,
    where: str = INDEPENDENT,
    calls: int = CALLS,
    graphs: int | None = None,
    strings: int = 32,
    families: Mapping[str, tuple[str, str]] = FAMILIES,
) -> Predictions:
    """Counts and limits for every family that the model has maps of, on the first `graphs` graphs (None: all).

    By family and kind ("pool one"), with the fits of its maps on the first axis:

    - `... right`, `... so far`: int32 [fits, calls], instances that count and are right, summed over strings.
    - `... right by graph`, `... so far by graph`: int16 [marks, graphs], the same at `MARKS`, summed over fits, too.
    - `... limits`: float32 [fits, 1 + calls, 3], see `Limits`; for mixed strings, of the first.
    - `... spectrum`: float32 [fits, d, 2], real and imaginary parts of the eigenvalues, largest first; not for mixed.

    `mixed strings` are the strings themselves, uint8 [strings, calls].  A reduced run can be told by the shapes.  On
    512 graphs with four families of two fits this is 0.4 MB.  InputError for a size that cannot be had, or a model
    without maps.
    """
    at = _first(where, trained.depth, graphs, trained.device)
    for what, asked, most in (("calls", calls, 8 * CALLS), ("strings", strings, len(long_strings()["mixed"]))):
        if not 1 <= asked <= most:
            near = min(max(asked, 1), most)
            raise InputError(f"cannot run {asked} {what}: 1 to {most} can be asked for (nearest: {near})")
    kinds = {kind: [_repeated(each, calls) for each in long_strings()[kind][:strings]] for kind in KINDS}
    found = {STRINGS: mixed_strings(strings, calls)}
    for family, kind in product(families, KINDS):
        if maps := _maps(trained, families[family], kind):
            made = _counts(trained, at, maps, kinds[kind])
            made["limits"] = _limits(trained, at, maps, kinds[kind][0])
            if kind != "mixed":
                made["spectrum"] = torch.stack([_spectrum(step) for steps in maps for step in steps.values()])
            found |= {f"{family} {kind} {name}": tensor for name, tensor in made.items()}
    if len(found) == 1:
        wanted = ", ".join(target for pair in families.values() for target in pair)
        raise InputError(f"{trained.name} has none of the maps {wanted}; it has {', '.join(trained.maps) or 'none'}")
    return {where: found}


def mixed_strings(strings: int, calls: int) -> UInt8[Tensor, "strings calls"]:
    """The hops that each of the first mixed strings asks for, call by call."""
    chosen = long_strings()["mixed"][:strings]
    return torch.stack([_hops(_repeated(each, calls)) for each in chosen]).to(torch.uint8)


def _repeated(string: str, calls: int) -> str:
    return (string * calls)[:calls]


def _hops(string: str) -> Int[Tensor, " calls"]:
    return torch.tensor([int(letter) for letter in string])


def _first(where: str, depth: int, graphs: int | None, device: torch.device) -> Walks:
    """The instances of a population's first graphs; those with u, ..., f^4(u) distinct count."""
    at = instances(where, depth, device, "five")
    return at if graphs is None else first_graphs(at, taken(graphs, at.many, f"graphs of {where}", least=2))


def _maps(trained: TrainedModel, targets: tuple[str, str], kind: str) -> list[dict[str, AffineMap]]:
    """The maps of each fit by their letter; none where one is missing.  Fit i for one hop goes with fit i for two."""
    one, two = targets
    used = {"one": {"1": one}, "two": {"2": two}, "mixed": {"1": one, "2": two}}[kind]
    fits = min(len(trained.maps.get(target, ())) for target in used.values())
    return [{letter: trained.maps[target][fit] for letter, target in used.items()} for fit in range(fits)]


def _counts(
    trained: TrainedModel, at: Walks, maps: list[dict[str, AffineMap]], strings: list[str]
) -> dict[str, Tensor]:
    calls, nodes = len(strings[0]), at.graphs.shape[1]
    path = walk(at.graphs, at.current, 2 * calls).T
    by_graph = torch.zeros(2, len(maps), calls, at.many, dtype=torch.int32)
    for fit, steps in enumerate(maps):
        named = {f"{'one' if letter == '1' else 'two'}-1": step for letter, step in steps.items()}
        for first in range(0, len(strings), AT_ONCE):
            programs = {string: program(string, trained.loops) for string in strings[first : first + AT_ONCE]}
            found = trained.run(at.tokens, programs.values(), maps=named, read="calls")
            for string, each in programs.items():
                logits = list(found[each].logits_at.values())[-calls:]
                reached = _hops(string).cumsum(0).to(path.device)
                right = torch.stack([at_call[:, 0].argmax(-1) for at_call in logits]) == path[reached]
                both = torch.stack([right, right.cummin(0).values]) & at.kept
                by_graph[:, fit] += both.view(2, calls, -1, nodes).sum(-1).cpu().int()
    marks = [mark - 1 for mark in MARKS if mark <= calls]
    counts: dict[str, Tensor] = {}
    for name, counted in zip(("right", "so far"), by_graph, strict=True):
        counts[name] = counted.sum(-1).int()
        counts[f"{name} by graph"] = counted.sum(0)[marks].to(torch.int16)
    return counts


@torch.no_grad()
def _limits(
    trained: TrainedModel, at: Walks, maps: list[dict[str, AffineMap]], string: str
) -> Float[Tensor, "fits reads 3"]:
    """`Limits` of every fit, on the first start of the first graphs."""
    model, nodes = trained.model, at.graphs.shape[1]
    rows = slice(GraphWalk(nodes).query_row)
    start = model.embed(at.tokens[: LOOKED_AT * nodes : nodes])
    for _ in range(trained.loops):
        start = model.call(start)
    size = start[:, rows].norm(dim=-1)
    limits = []
    for steps in maps:
        h, reads = start, []
        for letter in ("", *string):
            h = model.call(steps[letter](h)) if letter else h
            graph = h[:, rows]
            moved = ((graph - start[:, rows]).norm(dim=-1) / size).mean()
            reads.append(torch.stack([h[:, -1].norm(dim=-1).mean(), graph.norm(dim=-1).mean(), moved]))
        limits.append(torch.stack(reads))
    return torch.stack(limits).float().cpu()


def _spectrum(step: AffineMap) -> Float[Tensor, "d 2"]:
    values = torch.linalg.eigvals(step.linear().detach().cpu().double())
    return torch.view_as_real(values[values.abs().argsort(descending=True)]).float()


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What may end control, after 0, 1, ... steered calls: mean lengths of rows over graphs, fits and rows.

    `answer` and `graph` are the lengths of the ANSWER row and of the rows of BOS and the arrows; `drift` is how far the
    latter have moved from where the trained calls left them, as a share of their length there.
    """

    answer: list[float]
    graph: list[float]
    drift: list[float]


@dataclass(frozen=True)
class Spectrum:
    """A map's linear part: its spectral radius, eigenvalues above 1 in size, and their median size; mean of fits."""

    radius: float
    above_one: float
    median: float


@dataclass(frozen=True)
class Counted:
    """What was counted on the first graphs of a population, beside the walks that were asked about."""

    found: Mapping[str, Tensor]
    at: Walks

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, where: str = INDEPENDENT) -> Counted:
        """Those of one population."""
        found = predictions[where]
        measured = next(tensor.shape[1] for name, tensor in found.items() if name.endswith("by graph"))
        return cls(found, _first(where, facts.depth, measured, torch.device("cpu")))

    @property
    def calls(self) -> int:
        """How long the strings are."""
        return self.found[STRINGS].shape[1]

    @property
    def marks(self) -> list[int]:
        """The calls that have rows."""
        return [mark for mark in MARKS if mark <= self.calls]

    @property
    def measured(self) -> list[tuple[str, str]]:
        """The families and kinds that there are, in the order of `FAMILIES` and `KINDS`: a store keeps none."""
        names = [name.removesuffix(" limits").rsplit(" ", 1) for name in self.found if name.endswith(" limits")]
        families = [*FAMILIES, *sorted({family for family, _ in names} - set(FAMILIES))]
        return [(family, kind) for family, kind in product(families, KINDS) if [family, kind] in names]

    def strings(self, kind: str) -> list[list[int]]:
        """The hops that each string of a kind asks for, call by call."""
        return self.found[STRINGS].tolist() if kind == "mixed" else [[KINDS.index(kind) + 1] * self.calls]

    @property
    def kept(self) -> int:
        """How many instances count."""
        return int(self.at.kept.sum())

    def curve(self, family: str, kind: str, counted: str = "right") -> list[float]:
        """Accuracy at every call, mean of strings and fits; `counted` may be "so far"."""
        found = self.found[f"{family} {kind} {counted}"].double().mean(0)
        return (found / (self.kept * len(self.strings(kind)))).tolist()

    def copy_curve(self, kind: str) -> list[float]:
        """How often u itself is right at every call, mean of strings."""
        found: list[float] = self._returns(self._hops(kind))[..., self.at.kept].double().mean((0, 2)).tolist()
        return found

    def row(self, family: str, kind: str, call: int, counted: str = "right") -> Quantity:
        """Accuracy at one of `marks`, `lasting.call`; `counted` may be "so far"."""
        label = f"{EVERY if counted == 'right' else SO_FAR}, call {call}"
        published = PAPER_LONG[INDEPENDENT].get((kind, EVERY), {}).get(call)
        share = cluster_bootstrap_later(self._tally(family, kind, call, counted), seed=SEED)
        at: At = {"family": family, "kind": kind, "call": call, "counted": counted}
        paper = published if (family, counted) == (PUBLISHED, "right") else None
        return Quantity("lasting.call", label, share, self.kept, paper, at)

    def cost_row(self, family: str, kind: str, call: int = 1) -> Quantity:
        """How much more often a family is right at a call than the published maps are (paired): `lasting.cost`."""
        a, b = (self._tally(each, kind, call, "right") for each in (family, PUBLISHED))
        label, at = f"{family}, {kind}, minus {PUBLISHED}", {"family": family, "kind": kind}
        return Quantity("lasting.cost", label, cluster_bootstrap_later(a, b, seed=SEED), self.kept, None, at)

    def copy_row(self, kind: str, call: int) -> Quantity:
        """How often u itself is right at a call, `lasting.copy`."""
        right = self._by_graph(self._returns(self._hops(kind)[:, call - 1]) & self.at.kept).sum(0)
        there = self._by_graph(self.at.kept) * len(self.strings(kind))
        share = cluster_bootstrap_later(Tally(right.numpy(), there.numpy()), seed=SEED)
        return Quantity("lasting.copy", f"{COPY}, call {call}", share, self.kept, None, {"kind": kind, "call": call})

    def _hops(self, kind: str) -> Int[Tensor, "strings calls"]:
        """How many hops each string of a kind asks for up to each call."""
        return torch.tensor(self.strings(kind)).cumsum(1)

    def _returns(self, hops: Int[Tensor, "*lead"]) -> Bool[Tensor, "*lead n"]:
        """Where so many hops lead back to u: there u itself is right."""
        path = walk(self.at.graphs, self.at.current, int(hops.max())).T
        return path[hops] == self.at.current

    def _tally(self, family: str, kind: str, call: int, counted: str) -> Tally:
        right = self.found[f"{family} {kind} {counted} by graph"][self.marks.index(call)]
        times = len(self.strings(kind)) * len(self.found[f"{family} {kind} {counted}"])
        return Tally(right.numpy(), (self._by_graph(self.at.kept) * times).numpy())

    def _by_graph(self, hits: Bool[Tensor, "*lead n"]) -> Int[Tensor, "*lead graphs"]:
        return hits.unflatten(-1, (-1, self.at.graphs.shape[1])).sum(-1)


def same_counts(part: Counted, whole: Counted) -> tuple[int, int]:
    """On the graphs and calls that both counted: how many counts are the same, and how many there are.

    A count is the right answers on a graph at a call, by family and hops; strings that mix hops are summed over other
    strings in each, and left out.  Where control is lost, rounding decides what is answered, and counts may differ.
    """
    same = there = 0
    for family, kind in part.measured:
        if kind != "mixed" and (family, kind) in whole.measured:
            a, b = (each.found[f"{family} {kind} right by graph"] for each in (part, whole))
            calls, graphs = (min(sizes) for sizes in zip(a.shape, b.shape, strict=True))
            equal = a[:calls, :graphs] == b[:calls, :graphs]
            same, there = same + int(equal.sum()), there + equal.numel()
    return same, there


def reach(counted: Counted, family: str, kind: str, level: float = 0.95) -> int:
    """How many calls accuracy stays at `level` or above, without a break from the first on."""
    return len(list(takewhile(lambda accuracy: accuracy >= level, counted.curve(family, kind))))


def limits(counted: Counted, family: str, kind: str) -> Limits:
    """The limits of a family, mean of its fits."""
    found = counted.found[f"{family} {kind} limits"].double().mean(0)
    return Limits(*found.T.tolist())


def spectrum(counted: Counted, family: str, kind: str) -> Spectrum:
    """The spectrum of a family's map for one hop or two; a mixed string has two, and none of its own."""
    sizes = _sizes(counted, family, kind)
    each = sizes.amax(1), (sizes > 1).double().sum(1), sizes.quantile(0.5, dim=1)
    return Spectrum(*(float(value.mean()) for value in each))


def eigenvalues(counted: Counted, family: str, kind: str) -> list[float]:
    """The sizes of the eigenvalues of a family's map for one hop or two, the largest first, mean of fits."""
    found: list[float] = _sizes(counted, family, kind).mean(0).tolist()
    return found


def _sizes(counted: Counted, family: str, kind: str) -> Float[Tensor, "fits d"]:
    return counted.found[f"{family} {kind} spectrum"].double().norm(dim=-1)


def tables(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """Accuracy of each family at `MARKS` by kind, the baseline, and what lasting costs at the first call.

    `paper`: with the published numbers beside, for the backbone that stands for the published one.
    """
    result = []
    for where in predictions:
        counted = Counted.of(predictions, facts, where)
        for family, kind in counted.measured:
            rows = [counted.row(family, kind, call, name) for name in ("right", "so far") for call in counted.marks]
            rows = rows if paper and where == INDEPENDENT else [replace(row, published=None) for row in rows]
            title = f"{counted.calls} calls, {family} maps, {kind} ({where})"
            result.append(QuantityTable("lasting.call", title, rows, NOTE))
        for kind in dict.fromkeys(kind for _, kind in counted.measured):
            rows = [counted.copy_row(kind, call) for call in counted.marks]
            result.append(QuantityTable("lasting.copy", f"{counted.calls} calls, {COPY}, {kind} ({where})", rows, NOTE))
        if rows := costs(counted):
            about = f"Paired differences at the first call.  {NOTE}"
            result.append(QuantityTable("lasting.cost", f"What lasting costs at the first call ({where})", rows, about))
    return result


def costs(counted: Counted) -> list[Quantity]:
    """The first call of every family beside that of the published maps, for one hop and for two."""
    return [
        counted.cost_row(family, kind)
        for family, kind in counted.measured
        if family != PUBLISHED and kind != "mixed" and (PUBLISHED, kind) in counted.measured
    ]
