"""Letter-walk questions as text: what is asked, what is right, which graphs training must not see."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loopscope.errors import InputError, nearest

NAMES = ("Alice", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack")

LARGEST_K = 99
"""k is written with two digits, so that prompts of all depths are equally long."""


class Template(NamedTuple):
    """A wording: the line before the rules and the question after them, with {start} and {k} to be filled in."""

    intro: str
    question: str


# A start is always in mid-sentence, after a space: there every name is one token in the vocabularies we know, while at
# the beginning of a line some are two and the prompts of two starts would not be aligned.
TEMPLATES = (
    Template(
        "Ten people send a letter around. These are the rules they keep:",
        "To begin, the letter is with {start}. When exactly {k} transfers have been made, who has it?",
    ),
    Template(
        "A letter goes from hand to hand among ten friends, always in this way:",
        "The one who initially holds it is {start}. Give the name of its holder {k} handoffs later.",
    ),
    Template(
        "Each line below is one link in the route of a letter:",
        "Begin with {start} and follow {k} links of the route. Who is reached last?",
    ),
    Template(
        "Ten colleagues share one letter, and each knows whose turn is next:",
        "Before any transfer the letter lies with {start}. Who is its holder once transfer number {k} is over?",
    ),
    Template(
        "Here is every transfer that can happen to a letter:",
        "Starting at {start}, carry out exactly {k} transfers. Identify the person who ends up with the letter.",
    ),
    Template(
        "A village has a single letter, which its ten residents deliver like this:",
        "Its original holder was {start}. Where is the letter when {k} deliveries have taken place?",
    ),
)
TRAIN_TEMPLATES = (0, 1, 2, 3, 4)
HELD_OUT_TEMPLATE = 5

RULE = "{giver} passes the letter to {taker}."
ONLY_THE_NAME = "Reply with one name and nothing else."

Graph = tuple[tuple[str, str], ...]
"""Identity of a graph: its ten (giver, taker) edges, sorted.  Where a cycle was begun to be written does not matter."""

Encode = Callable[[str], Sequence[int]]
"""The token ids of a text."""


# ---- one question ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Letter:
    """One question.  Raises InputError if the names are not the ten, k is not in 1..99 or the template does not exist.

    `cycle`: each passes the letter to the next, the last to the first.  `order`: the givers as their sentences follow
    one another.  `k`: how many transfers are asked about.  `template`: index of the wording.
    """

    cycle: tuple[str, ...]
    order: tuple[str, ...]
    start: str
    k: int
    template: int

    def __post_init__(self) -> None:
        for what, names in (("cycle", self.cycle), ("order", self.order)):
            if sorted(names) != list(NAMES):
                raise InputError(f"the {what} must have each of {', '.join(NAMES)} once, not {', '.join(names)}")
        if self.start not in NAMES:
            raise InputError(f"nobody is called {self.start!r}{nearest(self.start, NAMES)}")
        if not 1 <= self.k <= LARGEST_K:
            raise InputError(f"a letter is followed for 1 to {LARGEST_K} transfers, not {self.k}")
        if not 0 <= self.template < len(TEMPLATES):
            raise InputError(f"there are templates 0 to {len(TEMPLATES) - 1}, not {self.template}")

    @property
    def graph(self) -> Graph:
        """Who passes to whom, whatever is asked and however it is worded."""
        return tuple(sorted(zip(self.cycle, (*self.cycle[1:], self.cycle[0]), strict=True)))

    def taker(self, giver: str, transfers: int = 1) -> str:
        """Who has the letter that many transfers after `giver` had it; a negative number looks back."""
        return self.cycle[(self.cycle.index(giver) + transfers) % len(self.cycle)]


def prompt(letter: Letter) -> str:
    """The text of a question: intro, ten rules and the question, a line each."""
    return written(letter, {giver: letter.taker(giver) for giver in letter.order}, letter.start)


def answer(letter: Letter) -> str:
    """Who holds the letter at the end."""
    return letter.taker(letter.start, letter.k)


def is_right(reply: str, answer: str) -> bool:
    """Whether a generated reply is the answer, up to case and the spaces, full stops or exclamation marks around it."""
    return reply.strip(" .!\n").casefold() == answer.casefold()


def written(letter: Letter, takers: Mapping[str, str], start: str) -> str:
    """The text of a prompt with other takers and another start than the letter's own."""
    rules = [RULE.format(giver=giver, taker=takers[giver]) for giver in letter.order]
    return "\n".join([TEMPLATES[letter.template].intro, *rules, f"{question(letter, start)} {ONLY_THE_NAME}"])


def question(letter: Letter, start: str) -> str:
    """The question alone, asked from this start."""
    return TEMPLATES[letter.template].question.format(start=start, k=f"{letter.k:02d}")


def shuffled(rng: random.Random) -> tuple[str, ...]:
    """The ten names in an order drawn from `rng`."""
    names = list(NAMES)
    rng.shuffle(names)
    return tuple(names)


def draw(seed: int, k: int, template: int) -> Letter:
    """The question of a seed.  Its graph, order and start depend on neither k nor template.  Held graphs occur."""
    return draw_from(random.Random(seed), k, template)


def draw_from(rng: random.Random, k: int, template: int) -> Letter:
    """The next question of a random source."""
    return Letter(shuffled(rng), shuffled(rng), rng.choice(NAMES), k, template)


# ---- graphs kept from training ---------------------------------------------------------------------------------------

EVALUATION_GRAPHS = 16
EVALUATION_SEED = 9_100_000
REDRAW = 100_000_000
"""What is added to a training seed for as long as it draws a held graph."""


@dataclass(frozen=True)
class Held:
    """Graphs that training must not see."""

    graphs: frozenset[Graph] = frozenset()

    def __contains__(self, graph: object) -> bool:
        return graph in self.graphs

    def __len__(self) -> int:
        return len(self.graphs)

    def with_those_of(self, letters: Iterable[Letter]) -> Held:
        """These graphs and those of the letters."""
        return Held(self.graphs.union(letter.graph for letter in letters))

    def free_seed(self, seed: int) -> int:
        """The first of seed, seed + REDRAW, seed + 2 REDRAW, ... whose graph is not held."""
        while draw(seed, 1, 0).graph in self:
            seed += REDRAW
        return seed


def evaluation(k: int, template: int = 0) -> tuple[Letter, ...]:
    """The sixteen test graphs, each asked once at depth k; template 5 is the wording no training text has."""
    return tuple(draw(EVALUATION_SEED + i, k, template) for i in range(EVALUATION_GRAPHS))


def evaluated() -> Held:
    """The graphs of `evaluation`."""
    return Held().with_those_of(evaluation(k=1))
