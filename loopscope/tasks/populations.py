"""The graphs every evaluation is made on, regenerated from their recipes and checked against fingerprints.

Nothing is downloaded and nothing is stored: a population is drawn again from its seed, and its SHA-256 is compared with
the one written here each time it is built, so a library that draws other numbers is noticed before a result is wrong.
Fingerprints marked "reference" identify the populations of the reference study; those marked "own" only say that the
graphs are the ones Loopscope has always used.

How the populations come about (sizes in graphs):

    locks       one stream of random permutations: selection 128, discovery 32, confirmation 512, rings 512, smoke 4
    swaps       every graph one swap away from a discovery, confirmation or smoke graph; held out with the five locks
    reserve     the swaps that served no earlier experiment
    ...-2403    cohorts, each a seeded shuffle of a pool cut into slices: 2403, then 2404, then 2501 take turns on the
    ...-3001    reserve; 3001 draws from all swaps the three left over; 2608 draws from all swaps
    matched-... the pools of the matched-supervision study, drawn without regard to the locks above
    eight-...   the pools of the eight-node study
    tiny-...    six-node graphs for tests and tutorials

In a pair of populations, row i of the giver is the graph whose run gives its state, row i of the receiver the graph
whose run receives it.  An *instance* is a graph with one of its starts; a *label rule* says which instances count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypedDict

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import DamagedError, InputError, nearest
from loopscope.tasks import draws
from loopscope.tasks.draws import Graphs
from loopscope.tasks.graph_walk import DEPTHS, advance, all_starts, codes_of, crossed_labels, distinct, walk

Rule = Literal["all", "three", "five", "crossed"]
RULES: Mapping[Rule, str] = {
    "all": "every start",
    "three": "u, f(u), f^2(u) pairwise distinct, u = f^8(s)",
    "five": "u, f(u), ..., f^4(u) pairwise distinct, u = f^8(s)",
    "crossed": "B = f_2(c), D = f_1(w), E = f_2(w) pairwise distinct, c = f_2^8(s), w = c + 3 (mod N)",
}

Source = Literal["reference", "own"]

MIXED_SEED = 2026092608


# ---- populations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Population:
    """A named list of graphs to evaluate on.

    `about` says what it is for, `rule` which label rule its main experiment applies, `giver` names the population that
    gives to this one where the two form pairs, `sha256` is its fingerprint, `source` says who recorded it first.
    """

    name: str
    rows: Graphs
    about: str
    rule: Rule
    giver: str | None
    sha256: str
    source: Source

    def __repr__(self) -> str:
        return f"<population {self.name!r}: {len(self.rows):,} graphs of {self.nodes} nodes, rule {self.rule}>"

    @property
    def graphs(self) -> Int[Tensor, "graphs nodes"]:
        """The successor rows as a new CPU tensor, so that nobody can change the population."""
        return torch.tensor(self.rows)

    @property
    def nodes(self) -> int:
        """How many nodes each graph has."""
        return len(self.rows[0])

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The label rules that can be applied: "crossed" needs a giver."""
        return tuple(rule for rule in RULES if rule != "crossed" or self.giver is not None)

    def mask(self, rule: Rule | None = None) -> Bool[Tensor, " instances"]:
        """Which instances a label rule keeps, in the order of `all_starts`; by default the population's own rule.

        Raises InputError for a rule that does not exist or that needs a giver where there is none.
        """
        rule = self.rule if rule is None else rule
        if rule not in self.rules:
            raise InputError(f"no label rule {rule!r} for population {self.name!r}{nearest(str(rule), self.rules)}")
        graphs, starts = all_starts(self.graphs)
        u = advance(graphs, starts, DEPTHS)
        if rule == "three":
            return distinct(walk(graphs, u, 2))
        if rule == "five":
            return distinct(walk(graphs, u, 4))
        if rule == "crossed" and self.giver is not None:
            giver, _ = all_starts(population(self.giver).graphs)
            return distinct(crossed_labels(graphs, giver, u))
        return torch.ones_like(u, dtype=torch.bool)

    @property
    def kept(self) -> int:
        """How many instances, over all starts, the population's own label rule keeps."""
        return int(self.mask().sum())


REFERENCE_SHA256: Mapping[str, str] = {
    "selection": "9f7720ba612fa2529e371d4697fac4c696f4f9abe2cf856ea9fa97acc64699d4",
    "discovery": "82a374c04803699ac520c8462b4361adeb8cac7dcfa07ef4f14bf98a8c51c23f",
    "confirmation": "909707667e388460392f497bf8a8190bb640c066636a003c8689f8ac2b5b9959",
    "rings": "e43dfe81b718b0f9dfd7133c4da5feef7e9fe0fc604cd0656a908eb78f470531",
    "smoke": "66ec140f0a8ea0fa2bc9bb0374bb2e0f5ef7bb5cce5c432f78edf70f695f29d3",
    "swaps": "68c9da12e53bf2239a3755742f54be7d8ce90aec3c1dd78f855cdaf6338c4a19",
    "pairs-2404-receiver": "dfc275b617594a969d8ee1198fc82f65a62a753925246b630a28ba7b25a80c7d",
    "pairs-2404-giver": "e98940364b938e240f39d2922929c53663cf38994ed262aeec0a3540c333c9f9",
    "switching-2501": "d0839873240bd984d5e24b1f6124224ac78b9834571f462736eb6c4cc551b06e",
    "independent-3001": "f663325da631ee348fcde9c9cac91ff0bb61ea6009c7057b29addc0f9451cc3d",
    "discovery-2608-receiver": "ff326cf0ab2edb481e9225ccf1bd8137369e0089a0e4239ea146e954a2f0d8f0",
    "discovery-2608-giver": "3a80f95617ed52f5e538dc6bcf7af046f8e581101c124efaf798bbb092e207bd",
    "pairs-2608-receiver": "e53f07aabf6dae3c5df9695218e5856366654a5bb73a638f3edd788a3102edf9",
    "pairs-2608-giver": "3e4fd46c13026e649acc59656c684af98aae89956f87e7c46984f25703acd8af",
    "switching-2608": "85a38a33d8e2387a6ff6c30c6456710cdf587a1ab527db26cf5d942fcc8576e3",
    "matched-selection": "c0d860c4aacd6fdf2e038a81e6a992a2ca95efcb65232834a1c303dfbf5550ec",
    "matched-test": "13238982b29e5db18f56caf6c8253152d471b2d284058d0964c0d7618b4d092c",
    "matched-maps": "6435d5b507b28db37d76c7bf6c3bbb91c281b6c890dfe6612eed03d177851e3d",
    "mixed-strings": "5527ca4bf8037d6576adcce5ae663b0a59a86d073f05e38836eddd71d0a6c2f7",
}
"""Fingerprints of what the reference study used."""

OWN_SHA256: Mapping[str, str] = {
    "reserve": "d0ddb3bc17aaf258e33ca5a4feb607ba221991e66eadaf4aa3d2da580fa66204",
    "reserve-after-2403": "6e5d2fcbf7deef69703df88e2eae0f0a28c6e16da3ad1fff6cf51139a71f3874",
    "pairs-2403-receiver": "77ca3df8c8afb04fb8095461c417d374e95ad5f2e1276e4ee5d68fad8beab5cb",
    "pairs-2403-giver": "6f0a95409b1a768165e69e237e7a624c6b454fa0c79ede942c3015617cafc405",
    "smoke-2501": "9b399dbbcb4706cb2d8ba924d4127d81fab13ec9cc3cfd25f59f479cc7d9e2a4",
    "smoke-2608": "ca86f6842ae4992b1b0ebdf2d9b276fa2d27d0ef7a26aebe9b8cd575d77f9091",
    "eight-selection": "819d7865eb45041c5ca7d3064536dff74155a4b9ccb8a3f7bd73b5854c101ae6",
    "eight-test": "bca86a9c62186b28c1cb8facebe590837ca6b45e2431c3ce88212ff95a961d4c",
    "eight-broad": "eb3cdcb2ccd3ba658761120ab26d4591ba2e6a90db7187d39e28c18d0c5fd2d1",
    "tiny-selection": "31954d90ed07bb8827e47116c6602b7bbc9150933dfdd19a0d5ba4c3c54629f2",
    "tiny-test": "65ec1d7a71f3d690f42ff200056c3e1e5d31e496451b7f4b09f7dd84143c1759",
}
"""Regression values of our own, for sets that the reference study gives no fingerprint of."""


@dataclass(frozen=True)
class _Entry:
    """What is written down about a population before it is built."""

    build: Callable[[], Mapping[str, Graphs]]
    rule: Rule
    about: str
    giver: str | None = None


_REGISTER: Mapping[str, _Entry] = {
    "selection": _Entry(draws.locks, "all", "Chooses the checkpoints of backbones and maps."),
    "discovery": _Entry(draws.locks, "three", "Chooses the attention head to patch."),
    "confirmation": _Entry(draws.locks, "three", "Tests target selection: F(J(h6)) against u, f(u), f^2(u)."),
    "rings": _Entry(draws.locks, "all", "Shows the native readouts, loop by loop, on single ten-node cycles."),
    "smoke": _Entry(draws.locks, "three", "Tries out code before anything is measured."),
    "swaps": _Entry(draws.pools, "all", "Holds what the cohorts are drawn from; withheld from training as a whole."),
    "reserve": _Entry(draws.pools, "all", "Holds the swaps that the first patching experiments did not use."),
    "reserve-after-2403": _Entry(draws.cohorts, "all", "Holds the reserve without the 2403 pairs."),
    "pairs-2403-receiver": _Entry(
        draws.cohorts, "crossed", "Receives in the earlier cross-graph patches of seed 6.", "pairs-2403-giver"
    ),
    "pairs-2403-giver": _Entry(draws.cohorts, "three", "Gives in the earlier cross-graph patches of seed 6."),
    "pairs-2404-receiver": _Entry(
        draws.cohorts,
        "crossed",
        "Receives in the cross-graph patches of seed 6; tests restoration.",
        "pairs-2404-giver",
    ),
    "pairs-2404-giver": _Entry(draws.cohorts, "three", "Gives in the cross-graph patches of seed 6."),
    "smoke-2501": _Entry(draws.cohorts, "three", "Tries out target switching."),
    "switching-2501": _Entry(
        draws.cohorts, "three", "Tests target switching in seed 6, and composition by rule `five`."
    ),
    "independent-3001": _Entry(draws.cohorts, "five", "Tests composition up to eight calls on graphs of its own."),
    "discovery-2608-receiver": _Entry(
        draws.cohorts, "crossed", "Receives when the head is chosen in seeds 10 and 13.", "discovery-2608-giver"
    ),
    "discovery-2608-giver": _Entry(draws.cohorts, "three", "Gives when the head is chosen in seeds 10 and 13."),
    "pairs-2608-receiver": _Entry(
        draws.cohorts, "crossed", "Receives in the cross-graph patches of seeds 10 and 13.", "pairs-2608-giver"
    ),
    "pairs-2608-giver": _Entry(draws.cohorts, "three", "Gives in the cross-graph patches of seeds 10 and 13."),
    "switching-2608": _Entry(draws.cohorts, "three", "Tests target switching in seeds 10 and 13."),
    "smoke-2608": _Entry(draws.cohorts, "three", "Tries out the experiments on seeds 10 and 13."),
    "matched-selection": _Entry(draws.matched, "three", "Chooses the map checkpoints under matched supervision."),
    "matched-test": _Entry(draws.matched, "three", "Tests the maps under matched supervision."),
    "matched-maps": _Entry(
        draws.matched, "all", "Trains the maps under matched supervision; not withheld from backbones."
    ),
    "eight-selection": _Entry(draws.eight, "all", "Chooses the checkpoints of the eight-node maps."),
    "eight-test": _Entry(draws.eight, "all", "Tests eight-node continuation on graphs withheld from training."),
    "eight-broad": _Entry(draws.eight, "all", "Tests eight-node continuation on a sample of all graphs."),
    "tiny-selection": _Entry(draws.tiny, "all", "Chooses the checkpoints of the tiny recipes."),
    "tiny-test": _Entry(draws.tiny, "all", "Tests the tiny recipes on graphs withheld from training."),
}

NAMES: tuple[str, ...] = tuple(_REGISTER)
"""The names of all populations."""

HELD_OUT: Mapping[str, tuple[str, ...]] = {
    "main": ("selection", "discovery", "confirmation", "rings", "smoke", "swaps"),
    "matched": ("matched-selection", "matched-test"),
    "eight": ("eight-selection", "eight-test"),
    "tiny": ("tiny-selection", "tiny-test"),
}
"""For each study, the populations its backbones never see in training."""


@cache
def population(name: str) -> Population:
    """The population with this name (see `NAMES`).

    Raises InputError for an unknown name, and DamagedError if this machine draws other graphs than the recorded ones.
    """
    if name not in _REGISTER:
        raise InputError(f"no population {name!r} among the {len(NAMES)} there are{nearest(name, NAMES)}")
    entry = _REGISTER[name]
    rows = entry.build()[name]
    sha256, source = _checked(name, rows)
    return Population(name, rows, entry.about, entry.rule, entry.giver, sha256, source)


def populations() -> tuple[Population, ...]:
    """All populations, in the order of `NAMES`."""
    return tuple(map(population, NAMES))


@cache
def _mixed_strings() -> tuple[tuple[int, ...], ...]:
    generator = np.random.default_rng(MIXED_SEED)
    strings: list[tuple[int, ...]] = []
    while len(strings) < 32:
        string = tuple(generator.integers(1, 3, size=8).tolist())
        if {1, 2} <= set(string) and string not in strings:
            strings.append(string)
    _checked("mixed-strings", strings)
    return tuple(strings)


def mixed_strings() -> Int[Tensor, "strings calls"]:
    """The 32 mixed programs of eight calls: entry 1 asks for J_one before that call, 2 for J_two."""
    return torch.tensor(_mixed_strings())


@cache
def _held_out(study: str) -> tuple[int, ...]:
    graphs = torch.cat([population(name).graphs for name in HELD_OUT[study]])
    return tuple(codes_of(graphs).unique().tolist())


def held_out(study: str) -> Int[Tensor, " codes"]:
    """Codes of the graphs withheld from training in a study (see `HELD_OUT`), ascending.

    Raises InputError for an unknown study.  Made for `graph_walk.is_held_out`.
    """
    if study not in HELD_OUT:
        raise InputError(f"no study {study!r} among {', '.join(HELD_OUT)}{nearest(study, HELD_OUT)}")
    return torch.tensor(_held_out(study))


# ---- fingerprints ----------------------------------------------------------------------------------------------------


def fingerprint(rows: Iterable[Sequence[int]]) -> str:
    """SHA-256 of the rows written as digits, one row a line, without a final newline."""
    return hashlib.sha256("\n".join("".join(map(str, row)) for row in rows).encode()).hexdigest()


def _checked(name: str, rows: Iterable[Sequence[int]]) -> tuple[str, Source]:
    """The fingerprint of the rows and whose it is, or DamagedError if it is not the recorded one."""
    source: Source = "reference" if name in REFERENCE_SHA256 else "own"
    expected = REFERENCE_SHA256[name] if source == "reference" else OWN_SHA256[name]
    found = fingerprint(rows)
    if found != expected:
        libraries = f"torch {torch.__version__}, numpy {np.__version__}"
        raise DamagedError(f"{name} came out different with {libraries}: expected sha256 {expected}, found {found}")
    return found, source


class Listed(TypedDict):
    """One population as a row of a table; `labels` counts the instances kept by every rule that applies."""

    name: str
    nodes: int
    graphs: int
    rule: Rule
    kept: int
    labels: dict[Rule, int]
    giver: str | None
    sha256: str
    source: Source
    about: str


def listing() -> list[Listed]:
    """All populations as rows for a table or for JSON."""
    return [
        Listed(
            name=each.name,
            nodes=each.nodes,
            graphs=len(each.rows),
            rule=each.rule,
            kept=each.kept,
            labels={rule: int(each.mask(rule).sum()) for rule in each.rules},
            giver=each.giver,
            sha256=each.sha256,
            source=each.source,
            about=each.about,
        )
        for each in populations()
    ]
