"""Requests about a sequence, as text, and how replies are read."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopscope.errors import InputError, nearest
from loopscope.tasks.antonyms.sequences import PAIRS, PARTNER, Words, deletion, deletions, drawn
from loopscope.tasks.task import Turn

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
    sequences = [drawn(random.Random(seed), "train") for seed in seeds]
    return tuple(
        Request(words, k, (len(depths) * update + j) % len(TRAIN_TEMPLATES), form)
        for j, (words, k) in enumerate(zip(sequences, depths, strict=True))
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
        request = Request(drawn(source, "train"), longest, template, form)
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
