"""Antonym cancellation as text: which two words does the k-th deletion take away?

Twelve pairs of antonyms stand in one list of 24 words.  A deletion takes the leftmost two neighbours that are antonyms
and closes the gap, so that new neighbours meet.  In `hot near far cold open closed` the deletions are `near far`,
`hot cold`, `open closed`; the answer to k = 2 is `hot cold`.

    request = Request(sequence(seed=100_000_000), k=3, template=0, form="final-only")
    request.prompt, request.answer         # two texts; tokens are somebody else's business

**What is held out** is the *topology* of a sequence, the way its pairs are nested whatever their words.  Of the 208,012
topologies of twelve pairs, 158,228 are deep enough (below): 126,802 are for training, 15,595 for validation, 15,831 are
left alone.  All twelve pairs stand in every sequence, so no word is ever new.  And an answer depends on less than the
whole topology: on the sequence up to the words it names (`needed_topology`).  Of the 64 panel sequences, the 8,000 of a
map's 500 updates show the needed part of 64, 64, 64, 64, 64, 62, 60, 52 at k = 1 to 8: the split holds out whole
sequences, hardly any shape of an answer.

**What the paper leaves out, and what is decided here.**

* How a sequence is drawn.  One `random.Random(seed)`: shuffle the pairs; for each, draw its orientation, then a place
  in the growing list, uniform over all gaps; insert its two words there as neighbours.  Draw again until the sequence
  is deep and its topology is in the split of the seed.  "Deep": the first 8 deletions reach dependency depth 3, where
  the depth of a deletion is one more than that of the deepest deletion it had to wait for.
* The bytes that are hashed: one byte per word, the number of its pair by first appearance.  The bucket is the whole
  SHA-256, as a big-endian number, modulo 100: train below 80, validation 80 to 89.
* The reference study also excludes a bank of 16 older topologies that it does not list.  Ours are the topologies of the
  16 quick evaluation sequences (seeds from 9,100,000; two of them share one): the panel leaves them out, and training
  never meets them anyway.
* Every wording.  The rule has six paraphrases, of which the last is never trained on.
* Case and punctuation around an answer do not count; any third word does.

**What the two forms do not share.**  The *final-only* form names one deletion, and its answer belongs to the last loop.
The *stepwise* form names how many deletions there are and asks for the present one: answer t of `Request.stages`
belongs to loop t.  The stepwise backbone is only ever asked for 4, and learns from four times as many forward passes:
final-only against stepwise is a comparison of two ways to train, not of one changed variable.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from loopscope.errors import InputError, nearest
from loopscope.tasks.task import Asked, Draw, Task, Turn

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

TRAINED = 4
"""The longest request a backbone is trained on, and how many loops it is trained in."""

VALIDATION_SEEDS = range(9_100_000, 9_200_000)
"""Seeds that draw from the validation topologies; all others draw from the training topologies."""

PANEL_SEED = 9_101_000
"""The evaluation panel takes seeds from here on."""

BACKBONE_SEED, MAP_SEED = 100_000_000, 300_000_000
"""Example j of update u is drawn from seed `base + 100 u + j`."""

UPDATE_STRIDE = 100
"""Seeds of one update are this far from those of the next."""

RULES = (
    "Rule: find the first two neighbouring words, counted from the left, that are opposites. Delete both, close the "
    "gap and look again from the left.",
    "Read from the left and strike out the earliest two adjacent words of contrary meaning. The others move together "
    "without changing places, and reading begins anew.",
    "Each deletion takes away the two adjacent antonyms that stand furthest to the left. What remains keeps its order, "
    "so new neighbours can meet before the next deletion.",
    "In every round, go through the list from its first word to the earliest pair of opposites standing side by side, "
    "and remove that pair. The next round works on the words that are left.",
    "Opposites cancel as soon as nothing stands between them. Where several pairs could cancel, the one nearest to the "
    "beginning goes first; then the list is joined up again.",
    "Words that mean the reverse of each other vanish together once they touch. One pair vanishes at a time, always "
    "the earliest in the list, and the survivors close ranks.",
)
"""The rule in six wordings; a template is the number of one of them."""

TRAIN_TEMPLATES, HELD_OUT_TEMPLATE = range(5), 5
"""Training uses the first five wordings; the last is for evaluation."""

QUESTIONS = {
    "final-only": "Which two words go at deletion number {k}? Reply with these two words alone, the left one first.",
    "stepwise": "Number of deletions asked for: {k}. Reply with nothing but the two words of the present deletion, the "
    "left one first.",
}
"""The two forms of a request, and what each of them asks."""

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
    return _drawn(random.Random(seed), "validation" if seed in VALIDATION_SEEDS else "train")


def _drawn(source: random.Random, wanted: Split) -> Words:
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


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A question about one sequence: its text and the right answer.

    InputError for a word that is none of the 24, a deletion that never happens, an unknown template or form.
    """

    words: Words
    k: int
    template: int = 0
    form: str = "final-only"

    def __post_init__(self) -> None:
        deletion(self.words, self.k)
        if not 0 <= self.template < len(RULES):
            raise InputError(f"template {self.template} does not exist, there are 0 to {len(RULES) - 1}")
        _check_choice("form", self.form, QUESTIONS)

    @property
    def prompt(self) -> str:
        """What the user says: the words, the rule, the question."""
        return f"{_introduction(self.words, self.template)}\n{QUESTIONS[self.form].format(k=self.k)}"

    @property
    def stages(self) -> tuple[str, ...]:
        """The answers of deletions 1 to k: with stepwise supervision, what loops 1 to k should say."""
        return tuple(f"{self.words[left]} {self.words[right]}" for left, right in deletions(self.words)[: self.k])

    @property
    def answer(self) -> str:
        """The two words of deletion k, in their original order."""
        return self.stages[-1]


def _introduction(words: Words, template: int) -> str:
    return f"Words: {' '.join(words)}\n{RULES[template]}"


def _check_choice(what: str, asked: str, choices: Iterable[str]) -> None:
    if asked not in choices:
        raise InputError(f"there is no {what} {asked!r}, only {', '.join(choices)}{nearest(asked, choices)}")


def requests(update: int, base: int, depths: Sequence[int], form: str) -> tuple[Request, ...]:
    """Requests to learn from, of these depths: number j has seed `base + 100 update + j`; the templates take turns.

    Where an update has more than 100 requests, their number takes the place of 100.  A function of its arguments alone;
    topologies are those for training, whatever the seed.  InputError for a negative update and an unknown form.
    """
    if update < 0:
        raise InputError(f"there is no update {update}: updates are counted from 0")
    seeds = [base + max(UPDATE_STRIDE, len(depths)) * update + j for j in range(len(depths))]
    drawn = [_drawn(random.Random(seed), "train") for seed in seeds]
    return tuple(
        Request(words, k, (len(depths) * update + j) % len(TRAIN_TEMPLATES), form)
        for j, (words, k) in enumerate(zip(drawn, depths, strict=True))
    )


def dense_turns(seed: int, *, longest: int, sequences: int = 4, form: str = "final-only") -> tuple[Turn, ...]:
    """The questions of a text with many of them, each with its answer, to be learned from first token to last.

    `sequences` training sequences, each followed by the questions for deletions 1 to `longest` (1 to 12) in a random
    order, every answer behind its question.  In growing order each would stand on the one above it, and a text would
    teach a single deletion.  What a turn asks about are the words of its sequence.  InputError for a length or number
    out of range.
    """
    if not 1 <= longest <= len(PAIRS):
        raise InputError(f"longest deletion {longest} is asked for, there are 1 to {len(PAIRS)}")
    if sequences < 1:
        raise InputError(f"a text of {sequences} sequences is asked for: it needs at least 1")
    source = random.Random(seed)
    turns: list[Turn] = []
    for _ in range(sequences):
        template = source.choice(TRAIN_TEMPLATES)
        request = Request(_drawn(source, "train"), longest, template, form)
        asked = source.sample(range(1, longest + 1), longest)
        apart = ("\n\n" if turns else "") + _introduction(request.words, template)
        for k in asked:
            turns.append(Turn(request.words, f"{apart}\n{QUESTIONS[form].format(k=k)} ", request.stages[:k]))
            apart = ""
    return tuple(turns)


# ---- scoring ---------------------------------------------------------------------------------------------------------


def read_pair(text: str) -> str | None:
    """The two words a text consists of, as an answer is written, or None if it is anything but two of the 24 words.

    Words are what blanks separate, less the punctuation around them; case does not count.  Special tokens must have
    been left out when decoding.
    """
    words = [word.strip(string.punctuation).casefold() for word in text.split()]
    return " ".join(words) if len(words) == 2 and all(word in PARTNER for word in words) else None


def first_sentence(text: str) -> str:
    """A text up to its first full stop, exclamation mark, question mark or line break, blanks before it left out."""
    return re.split(r"[.!?\n]", text.strip(), maxsplit=1)[0]


def is_right(text: str, answer: str) -> bool:
    """The score of a whole generation: nothing but the two words of the answer, in order."""
    return read_pair(text) == answer


def is_read_right(text: str, answer: str) -> bool:
    """The score of a readout, which may run on: its first sentence is the two words of the answer."""
    return read_pair(first_sentence(text)) == answer


# ---- the task --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Antonyms(Task):
    """Antonyms; `form` is what is asked (`QUESTIONS`).  A text has `per_text` sequences."""

    name = "antonyms"
    key = "antonym"
    in_every_recipe = True
    run_by_run = True

    form: Literal["final-only", "stepwise"] = "final-only"

    def questions(self, draw: Draw) -> Iterator[Asked]:
        """A sequence for every question."""
        first = draw.deepest if draw.only_deepest else 1
        depths = [first + j % (1 + draw.deepest - first) for j in range(draw.examples)]
        return map(_asked, requests(draw.update, draw.seed, depths, self.form))

    def texts(self, draw: Draw) -> Iterator[Iterator[Turn]]:
        """Every sequence is asked about for each depth."""
        for seed in range(draw.seed + draw.examples * draw.update, draw.seed + draw.examples * (draw.update + 1)):
            yield iter(dense_turns(seed, longest=draw.deepest, sequences=draw.per_text, form=self.form))

    def checks(self, deepest: int, count: int) -> Iterator[Asked]:
        """Validation sequences that no final number comes from."""
        for k in range(1, deepest + 1):
            yield from (_asked(Request(words, k, form=self.form)) for words in quick_sequences()[:count])

    def right(self, reply: str, answer: str) -> bool:
        """As `is_right`."""
        return is_right(reply, answer)


def _asked(request: Request) -> Asked:
    return Asked(request.prompt, request.stages)
