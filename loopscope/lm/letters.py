"""Letter-walk: ten people pass a letter around, and a prompt asks who holds it after k transfers.

Each person passes the letter to one other, and the ten transfers form a single cycle.  The prompt names the rules in
shuffled order, then a start and k; the answer is a name.  Everything here is text, for any tokenizer: where token
positions matter, a function takes an `encode` that turns a text into ids.

`Letter` is one such question.  `training` gives those of an update, `evaluation` those of the sixteen test graphs,
`pairs` the aligned pairs of the attention experiments, `adaptation` long texts in which one set of rules is followed by
many questions with their answers, so that every token can be learned from and looking a name up is learned first.
No graph that is evaluated on, alone or in a pair, is ever in a training text: `held` has them all, and a training seed
that draws one of them is moved on by REDRAW until it draws another graph.

On a cycle of ten, eight transfers onward are two backward: a right answer at k = 8 does not prove eight steps.

What the paper leaves out, and what is done here.  The order of draws is the reference study's: one `random.Random` per
example draws the cycle, then the order of the sentences, then the start; one per set of pairs draws both cycles, both
starts and, once a pair is accepted, the order.  A start is drawn from the alphabetical names, and a pair that fails any
condition is drawn again as a whole: the steering set takes 342 attempts, as it did there.  Seeds and sizes of sets are
that study's too, but not the wording beyond the rule sentence, so its prompts and accuracies are not ours.  It held out
only the graphs of `evaluation`; those of its pairs could occur in training.  Its pairs also left out graphs of earlier
unpublished sets; ours leave out those of `evaluation` and of all sets before them in `SETS`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import NamedTuple

from loopscope.errors import DamagedError, InputError, nearest

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
    return _text(letter, {giver: letter.taker(giver) for giver in letter.order}, letter.start)


def answer(letter: Letter) -> str:
    """Who holds the letter at the end."""
    return letter.taker(letter.start, letter.k)


def correct(letter: Letter, reply: str) -> bool:
    """Whether a generated reply is the answer, up to case and the spaces, full stops or exclamation marks around it."""
    return reply.strip(" .!\n").casefold() == answer(letter).casefold()


def _text(letter: Letter, takers: Mapping[str, str], start: str) -> str:
    rules = [RULE.format(giver=giver, taker=takers[giver]) for giver in letter.order]
    return "\n".join([TEMPLATES[letter.template].intro, *rules, f"{_question(letter, start)} {ONLY_THE_NAME}"])


def _question(letter: Letter, start: str) -> str:
    return TEMPLATES[letter.template].question.format(start=start, k=f"{letter.k:02d}")


def _shuffled(rng: random.Random) -> tuple[str, ...]:
    names = list(NAMES)
    rng.shuffle(names)
    return tuple(names)


def draw(seed: int, k: int, template: int) -> Letter:
    """The question of a seed.  Its graph, order and start depend on neither k nor template.  Held graphs occur."""
    return _draw(random.Random(seed), k, template)


def _draw(rng: random.Random, k: int, template: int) -> Letter:
    return Letter(_shuffled(rng), _shuffled(rng), rng.choice(NAMES), k, template)


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


@cache
def held() -> Held:
    """Every graph of `evaluation` and of every set in `SETS`."""
    letters = [letter for name in SETS for pair in pairs(name) for letter in pair.letters]
    return _evaluated().with_those_of(letters)


def _evaluated() -> Held:
    return Held().with_those_of(evaluation(k=1))


# ---- training --------------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A stage of training: its first seed, how many examples an update has, and the largest k."""

    first_seed: int
    examples: int
    deepest: int


BACKBONE = Stage(100_000_000, 8, 4)
MAP = Stage(300_000_000, 16, 8)
ADAPTATION_SEED = 500_000_000
UPDATE_STRIDE = 100
"""Seeds of one update are this far from those of the next."""


def training(stage: Stage, update: int) -> tuple[Letter, ...]:
    """The examples of an update: example j has depth 1 + j mod `deepest`, and the templates 0-4 take turns.

    A function of (stage, update) alone.  No graph of `held` occurs.
    """
    seeds = _seeds(stage.first_seed, update, stage.examples)
    return tuple(
        draw(held().free_seed(seed), k=1 + j % stage.deepest, template=_turn(update, stage.examples, j))
        for j, seed in enumerate(seeds)
    )


def _seeds(first: int, update: int, count: int) -> range:
    if update < 0:
        raise InputError(f"updates are counted from 0, not {update}")
    if not 1 <= count <= UPDATE_STRIDE:
        raise InputError(f"an update has 1 to {UPDATE_STRIDE} texts, not {count}")
    return range(first + UPDATE_STRIDE * update, first + UPDATE_STRIDE * update + count)


def _turn(update: int, count: int, j: int) -> int:
    """Which training template is next, if each update has `count` texts."""
    return TRAIN_TEMPLATES[(count * update + j) % len(TRAIN_TEMPLATES)]


@dataclass(frozen=True)
class Lookups:
    """One set of rules followed by questions with their answers.  The letters differ in start and k only.

    How to answer is said once, with the first question, so that answers lie closer together.
    """

    letters: tuple[Letter, ...]

    @property
    def turns(self) -> tuple[tuple[str, str], ...]:
        """(what comes before an answer, the answer), one after another; joined, they are the text."""
        first, *rest = self.letters
        asked = [f"{prompt(first)}\n", *(f"\n{_question(letter, letter.start)}\n" for letter in rest)]
        return tuple((before, answer(letter)) for before, letter in zip(asked, self.letters, strict=True))

    @property
    def text(self) -> str:
        """The whole text.  It begins with the prompt of its first letter."""
        return "".join(before + name for before, name in self.turns)


def lookups(seed: int, template: int, deepest: int, questions: int) -> Lookups:
    """A text of `questions` questions whose depths rise from 1 to `deepest`, each depth equally often up to one.

    No question is asked twice, so up to depth ten no answer can be copied from before: hence at most ten questions per
    depth, and at least one, or InputError.  An earlier answer can still stand in for several transfers of a later
    question.  The graph is that of `held().free_seed(seed)`; the template is one of 0-4.
    """
    if template not in TRAIN_TEMPLATES:
        raise InputError(f"texts to learn from have templates 0 to {TRAIN_TEMPLATES[-1]}, not {template}")
    if not 1 <= deepest <= questions <= len(NAMES) * deepest:
        most = f"{deepest} to {len(NAMES) * deepest} questions" if deepest >= 1 else "no questions"
        raise InputError(f"depths up to {deepest} take {most}, one to ten for each depth, not {questions}")
    rng = random.Random(held().free_seed(seed))
    letter = _draw(rng, 1, template)
    depths = groupby(1 + q * deepest // questions for q in range(questions))
    asked = [(k, start) for k, group in depths for start in rng.sample(NAMES, len(list(group)))]
    return Lookups(tuple(replace(letter, k=k, start=start) for k, start in asked))


def adaptation(update: int, *, texts: int, questions: int, deepest: int) -> tuple[Lookups, ...]:
    """The texts of an update.  A curriculum gives `deepest` as a function of the update, beginning with 1.

    A function of its arguments alone; the templates 0-4 take turns.  Raises InputError as `lookups` does.
    """
    seeds = _seeds(ADAPTATION_SEED, update, texts)
    return tuple(lookups(seed, _turn(update, texts, j), deepest, questions) for j, seed in enumerate(seeds))


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
        return self.base.taker(self.source.taker(self.source.start, self.source.k - 1))

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
    seen, drawn = _evaluated(), {}
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
        order = _shuffled(rng)
        accepted.append(Pair(replace(pair.base, order=order), replace(pair.source, order=order)))
        unseen = unseen.with_those_of(pair.letters)
    return tuple(accepted)


def _independent(rng: random.Random) -> Pair:
    base, source = _shuffled(rng), _shuffled(rng)
    return Pair(_walk(base, rng.choice(NAMES)), _walk(source, rng.choice(NAMES)))


def _shared_path(rng: random.Random) -> Pair:
    source = _shuffled(rng)
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
    return _text(letter, dict.fromkeys(NAMES, name), name)


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
