"""Aligned pairs of letter-walk questions, for the experiments that patch something of one run into another.

`pairs` gives the sets by name, `check_aligned` where the names of a pair stand in its tokenized prompts.

A set has one `random.Random`, which draws both cycles, both starts and, once a pair is accepted, the order of the
sentences; a pair that fails any condition is drawn again as a whole.  The steering set takes 342 attempts, as it did in
the reference study, whose seeds and sizes these are.  Its pairs also left out graphs of earlier unpublished sets; ours
leave out those of `letters.evaluation` and of all sets before them in `SETS`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from loopscope.errors import DamagedError, InputError, nearest
from loopscope.tasks.letters.prompts import NAMES, Encode, Held, Letter, answer, evaluated, prompt, shuffled, written

# ---- aligned pairs ---------------------------------------------------------------------------------------------------

PAIR_K, PAIR_TEMPLATE = 8, 0
"""All pairs ask for eight transfers, in the wording of template 0."""


@dataclass(frozen=True)
class Pair:
    """Two questions with the same order of givers.  Something of the source's run is patched into the base's run.

    A patched base run can answer `B`, its own; `D`, the source's; or `E`, where the source stands before its last
    transfer, looked up in the base graph.  The three differ.
    """

    base: Letter
    source: Letter

    @property
    def letters(self) -> tuple[Letter, Letter]:
        """Base and source."""
        return self.base, self.source

    @property
    def B(self) -> str:
        """The base's answer."""
        return answer(self.base)

    @property
    def D(self) -> str:
        """The source's answer."""
        return answer(self.source)

    @property
    def E(self) -> str:
        """The last transfer of the source's walk, made by the base's rules."""
        return self.base.taker(self.before_D)

    @property
    def before_B(self) -> str:
        """Where the base stands before its last transfer."""
        return self.base.taker(self.B, -1)

    @property
    def before_D(self) -> str:
        """Where the source stands before its last transfer; it can be B."""
        return self.source.taker(self.D, -1)

    @property
    def reference(self) -> Letter:
        """The base's rules with the start that leads to E.  In a shared-path pair this is the source's start."""
        return replace(self.base, start=self.base.taker(self.E, -self.base.k))


class PairSet(NamedTuple):
    """A set of pairs: how many, from which seed, with a shared path or independent, and its fingerprint."""

    size: int
    seed: int
    shared_path: bool
    sha256: str


SETS: Mapping[str, PairSet] = {
    "discovery": PairSet(8, 2026092301, False, "a2d8eda342fc5462fd2c962de0be7a43fc0969d2163f0b73caaeff84ad24ee54"),
    "confirmation": PairSet(64, 2026092401, False, "d3384dc1d31fb6064b93c571d1b2a5864b57ccd124214f04a6bcaf27439a65ae"),
    "shared-discovery": PairSet(
        8, 2026092501, True, "83720714c97e8bc955ef2548d5825751e35eda306d265d388f2b9fa1968d6747"
    ),
    "steering": PairSet(256, 2026092632, False, "024fb05d36a051b8376e9caeff378f69c2282916835cffbc2836946a2002443f"),
    "pattern-vs-output": PairSet(
        256, 2026092641, True, "5c3a9a51056cec05578c2d4cd3cc8b2aa1aa84da5d0f34503649278541d8b616"
    ),
    "restoration": PairSet(256, 2026092642, True, "f03be07ac86835463ab9bca8955d50933ab28e3c77fbfded9ca20e1a4d02ef8e"),
}
"""The sets by name, in order: none has a graph of those before it.  Heads are found on the discovery sets and chosen on
`confirmation`; the last three are for the results."""


def pairs(name: str) -> tuple[Pair, ...]:
    """The pairs of a set.

    Raises InputError for an unknown set, DamagedError if this Python draws other pairs than the recorded ones.
    """
    if name not in SETS:
        raise InputError(f"there is no set of pairs {name!r}; there are {', '.join(SETS)}{nearest(name, SETS)}")
    return _all_pairs()[name]


@cache
def _all_pairs() -> Mapping[str, tuple[Pair, ...]]:
    seen, drawn = evaluated(), {}
    for name, wanted in SETS.items():
        drawn[name] = draw_pairs(wanted.size, wanted.seed, shared_path=wanted.shared_path, unseen=seen)
        found = _fingerprint(drawn[name])
        if found != wanted.sha256:
            raise DamagedError(f"pairs {name!r}: expected the draw {wanted.sha256[:12]}, this Python drew {found[:12]}")
        seen = seen.with_those_of(letter for pair in drawn[name] for letter in pair.letters)
    return drawn


def _fingerprint(drawn: Iterable[Pair]) -> str:
    letters = (letter for pair in drawn for letter in pair.letters)
    lines = (" ".join([*letter.cycle, *letter.order, letter.start]) for letter in letters)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def draw_pairs(size: int, seed: int, *, shared_path: bool, unseen: Held) -> tuple[Pair, ...]:
    """That many pairs from one generator, with no graph of `unseen` and no graph twice.

    Independent pairs have two cycles and two starts drawn freely.  Shared-path pairs have the cycles c0 ... c7 c8 c9
    (source) and c0 ... c7 c9 c8 (base), so that both make the first seven transfers from c0, the source's start, alike;
    then D = c8 and E = c9.  The base's start is free.  A pair whose B, D and E are not three names is drawn again.
    """
    rng, accepted = random.Random(seed), list[Pair]()
    while len(accepted) < size:
        pair = _shared_path(rng) if shared_path else _independent(rng)
        if len({pair.B, pair.D, pair.E}) < 3 or any(letter.graph in unseen for letter in pair.letters):
            continue
        order = shuffled(rng)
        accepted.append(Pair(replace(pair.base, order=order), replace(pair.source, order=order)))
        unseen = unseen.with_those_of(pair.letters)
    return tuple(accepted)


def _independent(rng: random.Random) -> Pair:
    base, source = shuffled(rng), shuffled(rng)
    return Pair(_walk(base, rng.choice(NAMES)), _walk(source, rng.choice(NAMES)))


def _shared_path(rng: random.Random) -> Pair:
    source = shuffled(rng)
    base = (*source[:8], source[9], source[8])
    return Pair(_walk(base, rng.choice(NAMES)), _walk(source, source[0]))


def _walk(cycle: tuple[str, ...], start: str) -> Letter:
    return Letter(cycle, NAMES, start, PAIR_K, PAIR_TEMPLATE)


# ---- places in a tokenized prompt ------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where names stand in a tokenized prompt: the taker of each rule in the order of the rules, and the start."""

    takers: tuple[range, ...]
    start: range


def places(letter: Letter, encode: Encode) -> Places:
    """The token positions at which takers and start stand, for every prompt with this order, k and template.

    All eleven places are filled with one name, then with the next: the ten texts must be equally long, and differ at
    the places.  `encode` may put a chat template around the prompt.  Raises InputError if a name does not fit a place.
    """
    filled = {name: tuple(encode(_filled(letter, name))) for name in NAMES}
    lengths = {name: len(ids) for name, ids in filled.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"prompts are not aligned: filled with one name each they have lengths {lengths}")
    differ = [position for position, ids in enumerate(zip(*filled.values(), strict=True)) if len(set(ids)) > 1]
    runs = [[position for _, position in run] for _, run in groupby(enumerate(differ), lambda at: at[1] - at[0])]
    if len(runs) != len(NAMES) + 1:
        raise InputError(f"prompts are not aligned: names change {len(runs)} places, not {len(NAMES) + 1}")
    *takers, start = (range(run[0], run[-1] + 1) for run in runs)
    return Places(tuple(takers), start)


def _filled(letter: Letter, name: str) -> str:
    return written(letter, dict.fromkeys(NAMES, name), name)


def check_aligned(pair: Pair, encode: Encode, encode_answer: Encode | None = None) -> Places:
    """Check base, source and reference token by token, and return where their names stand.

    They must have the same length and the same tokens outside the places of takers and start, and B, D and E three
    different first tokens.  `encode_answer` encodes an answer if `encode` adds a chat template.  Raises InputError.
    """
    where = places(pair.base, encode)
    named = {position for place in (*where.takers, where.start) for position in place}
    expected = tuple(encode(_filled(pair.base, NAMES[0])))
    for what, letter in (("base", pair.base), ("source", pair.source), ("reference", pair.reference)):
        ids = tuple(encode(prompt(letter)))
        if len(ids) != len(expected):
            raise InputError(f"the pair is not aligned: its {what} prompt has {len(ids)} tokens, not {len(expected)}")
        for position, (token, wanted) in enumerate(zip(ids, expected, strict=True)):
            if token != wanted and position not in named:
                raise InputError(f"the pair is not aligned: its {what} prompt differs at token {position}, not a name")
    first = {name: (encode_answer or encode)(name)[0] for name in (pair.B, pair.D, pair.E)}
    if len(set(first.values())) < 3:
        raise InputError(f"the answers B, D, E do not have three different first tokens: {first}")
    return where
