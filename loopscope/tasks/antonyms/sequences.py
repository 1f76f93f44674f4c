"""Sequences of words and their deletions: what cancels what, how deep that goes, and which are held out."""

from __future__ import annotations

import hashlib
import itertools
import random
from functools import cache
from typing import Literal, NamedTuple

from loopscope.errors import InputError, nearest

Words = tuple[str, ...]
Topology = tuple[int, ...]
Split = Literal["train", "validation", "unused"]

PAIRS = (
    ("hot", "cold"), ("near", "far"), ("open", "closed"), ("heavy", "light"), ("young", "old"), ("rich", "poor"),
    ("happy", "sad"), ("clean", "dirty"), ("full", "empty"), ("wet", "dry"), ("fast", "slow"), ("alive", "dead"),
)  # fmt: skip
"""The twelve pairs of the paper; a sequence holds each of them once, either word first."""

PARTNER = {word: other for pair in PAIRS for word, other in (pair, pair[::-1])}
"""The antonym of each of the 24 words."""

DEEP = 3
"""A sequence is used if its first 8 deletions reach this dependency depth."""

LONGEST = 8
"""The longest request of the study, and how many deletions must reach depth 3."""

TRAINED_DEPTH = 4
"""The longest request a backbone is trained on, and how many loops it is trained in."""

VALIDATION_SEEDS = range(9_100_000, 9_200_000)
"""Seeds that draw from the validation topologies; all others draw from the training topologies."""

PANEL_SEED = 9_101_000
"""The evaluation panel takes seeds from here on."""

# ---- cancellation ----------------------------------------------------------------------------------------------------


class Deletion(NamedTuple):
    """Two words that are deleted together, by their places in the original sequence."""

    left: int
    right: int


def deletions(words: Words) -> tuple[Deletion, ...]:
    """Every deletion in order: the leftmost adjacent antonyms, again and again, until no neighbours are antonyms.

    InputError for a word that is in none of the pairs.
    """
    _check_words(words)
    left = list(range(len(words)))
    deleted: list[Deletion] = []
    while True:
        places = (i for i, (a, b) in enumerate(itertools.pairwise(left)) if PARTNER[words[a]] == words[b])
        first = next(places, None)
        if first is None:
            return tuple(deleted)
        deleted.append(Deletion(left[first], left[first + 1]))
        del left[first : first + 2]


def deletion(words: Words, k: int) -> Deletion:
    """The k-th deletion, counted from 1; InputError if there are fewer."""
    deleted = deletions(words)
    if not 1 <= k <= len(deleted):
        raise InputError(f"deletion {k} is asked for, the sequence has deletions 1 to {len(deleted)}")
    return deleted[k - 1]


def _check_words(words: Words) -> None:
    for word in words:
        if word not in PARTNER:
            raise InputError(f"{word!r} is none of the 24 words{nearest(word, PARTNER)}")


def dependency_depths(deleted: tuple[Deletion, ...]) -> tuple[int, ...]:
    """How long a chain of deletions each deletion had to wait for, itself included.

    1 plus the largest depth of the earlier deletions strictly inside it, so 1 for words that were neighbours from the
    beginning.
    """
    depths: list[int] = []
    for outer in deleted:
        inside = (
            depth
            for inner, depth in zip(deleted[: len(depths)], depths, strict=True)
            if outer.left < inner.left and inner.right < outer.right
        )
        depths.append(1 + max(inside, default=0))
    return tuple(depths)


def is_deep(words: Words) -> bool:
    """Whether the first 8 deletions reach dependency depth 3."""
    return max(dependency_depths(deletions(words)[:LONGEST]), default=0) >= DEEP


# ---- topologies and seeds --------------------------------------------------------------------------------------------


def topology(words: Words) -> Topology:
    """Each word's pair, numbered by first appearance: blind to which words they are and which of a pair comes first.

    InputError for a word that is in none of the pairs.
    """
    _check_words(words)
    numbers: dict[frozenset[str], int] = {}
    return tuple(numbers.setdefault(frozenset((word, PARTNER[word])), len(numbers)) for word in words)


def needed_topology(words: Words, k: int) -> Topology:
    """The topology of the words up to the right one of deletion k: all that the first k answers depend on.

    Each deletion lies further right than all before it, so the words behind it make no difference.  InputError if there
    are fewer than k deletions.
    """
    return topology(words[: deletion(words, k).right + 1])


def bucket(shape: Topology) -> int:
    """0 to 99 by the SHA-256 of the topology, one byte per word."""
    return int.from_bytes(hashlib.sha256(bytes(shape)).digest()) % 100


def split(shape: Topology) -> Split:
    """What a topology is for: train (buckets 0-79), validation (80-89), unused (90-99)."""
    number = bucket(shape)
    return "train" if number < 80 else "validation" if number < 90 else "unused"


def sequence(seed: int) -> Words:
    """The sequence of a seed: 24 words, deep, wholly cancellable.

    Seeds 9,100,000 to 9,199,999 give validation topologies, all others training topologies.
    """
    return drawn(random.Random(seed), "validation" if seed in VALIDATION_SEEDS else "train")


def drawn(source: random.Random, wanted: Split) -> Words:
    """The next sequence of a random source that is deep and in the wanted split."""
    while True:
        pairs = list(PAIRS)
        source.shuffle(pairs)
        words: list[str] = []
        for pair in pairs:
            facing = pair if source.randrange(2) == 0 else pair[::-1]
            place = source.randrange(len(words) + 1)
            words[place:place] = facing
        drawn = tuple(words)
        if split(topology(drawn)) == wanted and is_deep(drawn):
            return drawn


@cache
def quick_sequences() -> tuple[Words, ...]:
    """The 16 validation sequences that are looked at during training; no final number comes from them."""
    return tuple(sequence(VALIDATION_SEEDS.start + i) for i in range(16))


@cache
def panel(size: int = 64) -> tuple[Words, ...]:
    """The evaluation panel: validation sequences with pairwise distinct topologies that no quick sequence has.

    The first `size` that qualify, seed by seed from 9,101,000.  InputError when the validation seeds do not suffice.
    """
    taken = {topology(words) for words in quick_sequences()}
    chosen: list[Words] = []
    for seed in range(PANEL_SEED, VALIDATION_SEEDS.stop):
        if len(chosen) == size:
            return tuple(chosen)
        words = sequence(seed)
        if topology(words) not in taken:
            taken.add(topology(words))
            chosen.append(words)
    raise InputError(f"a panel of {size} sequences is asked for, the validation seeds give {len(chosen)}")
