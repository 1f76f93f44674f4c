"""Composition: can maps follow each other, in any order, and for how many calls?

After the trained calls a *string* such as "12" asks for J_one, F, J_two, F; a "0" is a call without a map.  Targets
count from the current node u, never from what the model answered before: after "12" it is f^3(u).  Nothing is reset
between calls.

Controls are strings, too, judged by the target of the string they stand for: "10" for "12" leaves out the current map,
"1000" for "1212" keeps the first one alone, "0000" has none.  Another control reads after the last J and before its F;
a baseline answers u, whatever was asked.

Answers are kept by the string they end, so that equal beginnings are run and stored once: `121-2` is the answer after
the third call with the second fits of both maps, `121-2 before F` the one read before that call, `00` the one after two
calls without maps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.program import F, J, Program
from loopscope.quantity import At, Quantity, QuantityTable
from loopscope.studies.graph_walk.counting import OTHER, distribution, node, share
from loopscope.studies.graph_walk.targets import BEFORE
from loopscope.studies.records import ModelFacts, Predictions
from loopscope.studies.trained import TrainedModel, Walks, instances, some_graphs, walks
from loopscope.tasks.populations import mixed_strings

ORIGINAL, INDEPENDENT = "switching-2501", "independent-3001"
MAP_OF = {"0": None, "1": "one", "2": "two"}
TWO_CALLS = tuple(first + second for first in "012" for second in "012")
PAIRS = ("11", "12", "21", "22")
CALLS = 8
NOTE = "Share of instances with u, ..., f^4(u) distinct; mean of strings and fits; graphs resampled."

EVERY, SO_FAR, WITHOUT, FIRST, NONE, READ_BEFORE, COPY = (
    "every map", "all calls so far right", "current map left out", "first map only", "no map", "read before F", "copy u"
)  # fmt: skip
CONTROLS: Mapping[str, Callable[[str], str]] = {
    EVERY: lambda string: string,
    WITHOUT: lambda string: string[:-1] + "0",
    FIRST: lambda string: string[0] + "0" * (len(string) - 1),
    NONE: lambda string: "0" * len(string),
}
"""The string that is run in place of the one asked for."""

PAPER_PAIRS = {
    ORIGINAL: {"11": 0.9364, "12": 0.6528, "21": 0.7450, "22": 0.6812},
    INDEPENDENT: {"11": 0.9364, "12": 0.6504, "21": 0.7513, "22": 0.6803},
}
PAPER_WITHOUT_SECOND = {ORIGINAL: {"11": 0.483}}
PAPER_ANSWERS: Mapping[str, Mapping[str, Mapping[int, float]]] = {
    ORIGINAL: {
        "10": {2: 0.483, 3: 0.0134}, "11": {2: 0.9364}, "12": {3: 0.6528},
        "20": {3: 0.6377, 4: 0.1627}, "21": {3: 0.7450}, "22": {4: 0.6812},
    }
}  # fmt: skip
"""How often the published backbone answers f^k(u) after two calls, as far as its results say: by string and k."""

PAPER_LONG: Mapping[str, Mapping[tuple[str, str], Mapping[int, float]]] = {
    ORIGINAL: {
        ("one", EVERY): dict(enumerate((0.996, 0.936, 0.579, 0.205, 0.083, 0.060, 0.067, 0.0966), 1)),
        ("two", EVERY): dict(enumerate((0.980, 0.681, 0.234, 0.108, 0.116, 0.111, 0.104, 0.1062), 1)),
        ("mixed", EVERY): dict(enumerate((0.990, 0.789, 0.397, 0.123, 0.093, 0.091, 0.097, 0.1011), 1)),
    },
    INDEPENDENT: {
        ("one", EVERY): {2: 0.9364, 3: 0.563},
        ("two", EVERY): {2: 0.6803, 3: 0.236},
        ("mixed", EVERY): {2: 0.7889, 4: 0.1262, 8: 0.1009},
        ("mixed", WITHOUT): {2: 0.3293, 4: 0.1312, 8: 0.1000},
        ("mixed", FIRST): {2: 0.3293, 4: 0.0752, 8: 0.1499},
        ("mixed", NONE): {2: 0.0293, 4: 0.1047, 8: 0.1618},
        ("mixed", READ_BEFORE): {2: 0.0066, 4: 0.0772, 8: 0.1032},
        ("mixed", COPY): {2: 0.0, 4: 0.1425, 8: 0.1708},
    },
}
"""What is published, by population, kind of strings, condition and call."""


# ---- strings ---------------------------------------------------------------------------------------------------------


def long_strings() -> dict[str, tuple[str, ...]]:
    """The strings of eight calls by kind: `one` again and again, `two` again and again, the 32 fixed `mixed` ones."""
    mixed = tuple("".join(map(str, row)) for row in mixed_strings().tolist())
    return {"one": ("1" * CALLS,), "two": ("2" * CALLS,), "mixed": mixed}


def beginnings(strings: Iterable[str]) -> list[str]:
    """Every beginning of the strings once, the shortest first."""
    return sorted(
        {string[:call] for string in strings for call in range(1, 1 + len(string))}, key=lambda s: (len(s), s)
    )


def hops(string: str) -> int:
    """How far from u a string asks to go: the sum of its letters."""
    return sum(map(int, string))


def spelled(string: str) -> str:
    """A string in words: `one-none` for "10"."""
    return "-".join(MAP_OF[letter] or "none" for letter in string)


def name_of(string: str, fit: int) -> str:
    """What the answers of a string are kept under; a string without maps has no fit."""
    return f"{string}-{fit}" if set(string) - {"0"} else string


def program(string: str, loops: int, fit: int = 1, before: bool = False) -> Program:
    """The trained calls, then one call for each letter, with its map before it; `before`: up to the last map only.

    InputError for another letter.
    """
    if unknown := sorted(set(string) - set(MAP_OF)):
        raise InputError(f"no letter {unknown[0]!r} in string {string!r}: letters are {', '.join(MAP_OF)}")
    names = (MAP_OF[letter] for letter in string)
    whole = reduce(
        lambda so_far, name: so_far | F if name is None else so_far | J(f"{name}-{fit}") | F, names, F**loops
    )
    return Program(whole.steps[:-1]) if before else whole


# ---- measuring -------------------------------------------------------------------------------------------------------


def measure_two(trained: TrainedModel, where: str = ORIGINAL) -> Predictions:
    """Two calls with each of J_one, J_two and no map before either: the nine `TWO_CALLS` with every fit."""
    return {where: _measure(trained, walks(where, trained).tokens, TWO_CALLS)}


def measure_long(
    trained: TrainedModel, where: str = INDEPENDENT, graphs: int | None = None, first: int = 0
) -> Predictions:
    """Every call of the `long_strings` and of their controls, on so many graphs from number `first` on (None: all).

    On all 512 graphs of ten nodes these are 756 answers to 5,120 instances.  InputError for a number of graphs that
    the population does not have.
    """
    return {where: _measure(trained, some_graphs(walks(where, trained), first, graphs).tokens, *strings_of_eight())}


def strings_of_eight() -> tuple[list[str], list[str]]:
    """What `measure_long` runs: every beginning of the `long_strings` with its controls; read before F, the former."""
    asked = beginnings(string for strings in long_strings().values() for string in strings)
    return [*dict.fromkeys(control(string) for control in CONTROLS.values() for string in asked)], asked


def names_of(strings: Iterable[str], before: Iterable[str], fits: int) -> list[str]:
    """What a record calls the answers of strings, and those read before the last call of `before`, with every fit."""
    suffixed = [(string, "") for string in strings] + [(string, BEFORE) for string in before]
    every = (name_of(string, fit) + suffix for fit in range(1, 1 + fits) for string, suffix in suffixed)
    return [*dict.fromkeys(every)]


def _measure(
    trained: TrainedModel, tokens: Int[Tensor, "n tokens"], strings: Collection[str], before: Collection[str] = ()
) -> dict[str, UInt8[Tensor, " n"]]:
    """The node answered at the end of every string, and before the last call of every string of `before`."""
    maps = trained.named("one", "two")
    programs: dict[str, Program] = {}
    for fit in range(1, 1 + _fits({target: len(trained.maps[target]) for target in ("one", "two")})):
        programs |= {name_of(string, fit): program(string, trained.loops, fit) for string in strings}
        programs |= {name_of(string, fit) + BEFORE: program(string, trained.loops, fit, True) for string in before}
    return trained.answers(tokens, programs, maps=maps)


def _fits(fits: Mapping[str, int]) -> int:
    """How many fits a string can be run with: fit i of J_one goes with fit i of J_two."""
    return min(fits["one"], fits["two"])


# ---- analysis --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What was answered on a population, or on its first graphs, beside the walks that were asked about."""

    found: Mapping[str, UInt8[Tensor, " n"]]
    fits: int
    at: Walks

    @classmethod
    def of(cls, predictions: Predictions, facts: ModelFacts, where: str, first: int = 0) -> Answers:
        """Those of one population, of its graphs from number `first` on; u, ..., f^4(u) must differ."""
        found = predictions[where]
        measured = len(next(iter(found.values()))) // facts.nodes
        at = instances(where, facts.depth, torch.device("cpu"), "five")
        return cls(found, _fits(facts.fits), some_graphs(at, first, measured))

    @cached_property
    def targets(self) -> list[UInt8[Tensor, " n"]]:
        """u, f(u), f^2(u), ... as far as the longest string of two hops a call leads; of the type of answers."""
        return [self.at.ahead(steps).to(torch.uint8) for steps in range(1 + 2 * CALLS)]

    def given(self, string: str, suffix: str = "") -> UInt8[Tensor, "fits n"]:
        """The answers of all fits at the end of a string."""
        names = dict.fromkeys(name_of(string, fit) + suffix for fit in range(1, 1 + self.fits))
        return torch.stack([self.found[name] for name in names])

    def right(self, string: str, instead: str | None = None) -> Bool[Tensor, "fits n"]:
        """Where the answer is what a string asks for, when it is run or another one `instead`."""
        return self.given(string if instead is None else instead) == self.targets[hops(string)]

    def under(self, condition: str, string: str) -> Bool[Tensor, "fits n"]:
        """Where the last call of a string is right under a condition of `curves`."""
        if condition == COPY:
            return (self.targets[0] == self.targets[hops(string)])[None]
        if condition == READ_BEFORE:
            return self.given(string, BEFORE) == self.targets[hops(string)]
        if condition == SO_FAR:
            return torch.stack([self.right(each) for each in beginnings([string])]).all(0)
        return self.right(string, CONTROLS[condition](string))

    def stacked(self, condition: str, strings: Iterable[str]) -> Bool[Tensor, "strings fits n"]:
        """`under` for several strings side by side."""
        return torch.stack([self.under(condition, string) for string in strings])


Long = Mapping[tuple[str, str], Mapping[int, float]]
"""Published accuracies of strings of eight calls, by kind and condition, then by call."""

CONDITIONS = (EVERY, SO_FAR, WITHOUT, FIRST, NONE, READ_BEFORE, COPY)


def at_call(
    answers: Answers, kind: str, condition: str, call: int, paper: Long | None = None, where: str = ""
) -> Quantity:
    """Accuracy at one call of a kind of `long_strings`, under one of `CONDITIONS`: `compose.long`."""
    hits = answers.stacked(condition, [string[:call] for string in long_strings()[kind]])
    known = (paper or {}).get((kind, condition), {}).get(call)
    at: At = {"kind": kind, "condition": condition, "call": call, "where": where}
    return share("compose.long", f"{condition}, call {call}", hits, answers.at, at, published=known)


STEPS = range(5)
NODES = (*map(node, STEPS), OTHER)
"""What two calls may answer: u and the nodes that two maps can lead to, or none of these."""


def tables_two(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """The nine conditions, what the second map adds, the effect of order, and which nodes are answered.

    `paper`: with the published numbers beside, for the backbone that stands for the published one.
    """
    result = []
    for where in predictions:
        answers = Answers.of(predictions, facts, where)
        result += _two(answers, TWO_CALLS, where, paper)
        for first in "12":
            rows = []
            for second in "012":
                given, steps = answers.given(first + second), range(int(first), int(first) + 3)
                at = {"string": first + second, "where": where}
                label = f"{spelled(second)}: "
                rows += distribution("compose.second", given, answers.at, steps, at, label=label)
            title = f"Answers from F(J_{spelled(first)}(h)) ({where})"
            result.append(QuantityTable("compose.second", title, rows, NOTE))
        title = f"Which node is answered after two calls ({where})"
        result.append(QuantityTable("compose.landed", title, landed(answers, where, paper), NOTE))
    return result


def landed(answers: Answers, where: str, paper: bool = False) -> list[Quantity]:
    """How often each of `TWO_CALLS` ends at each of `NODES`, which differ in all instances that count."""
    rows = []
    for string in TWO_CALLS:
        known = PAPER_ANSWERS.get(where, {}).get(string, {}) if paper else {}
        published = {node(steps): value for steps, value in known.items()}
        at, label = {"string": string, "where": where}, f"{spelled(string)}: "
        given = answers.given(string)
        rows += distribution("compose.landed", given, answers.at, STEPS, at, label=label, published=published)
    return rows


def tables_long(predictions: Predictions, facts: ModelFacts, paper: bool = False) -> list[QuantityTable]:
    """Accuracy at every call of each kind of `long_strings` under every condition, and the four strings of two calls.

    How many graphs were measured follows from the predictions.  `paper` as in `tables_two`.
    """
    result = []
    for where in predictions:
        answers = Answers.of(predictions, facts, where)
        known = PAPER_LONG.get(where, {}) if paper else {}
        for kind in long_strings():
            rows = [
                at_call(answers, kind, condition, call, known, where)
                for condition in CONDITIONS
                for call in range(1, 1 + CALLS)
            ]
            result.append(QuantityTable("compose.long", f"Eight calls, {kind} ({where})", rows, NOTE))
        result += _two(answers, PAIRS, where, paper)
    return result


def _two(answers: Answers, strings: Iterable[str], where: str, paper: bool) -> list[QuantityTable]:
    """Accuracy of these strings of two calls, what the second map adds to each pair, and the effect of their order."""
    known, without = (each.get(where, {}) if paper else {} for each in (PAPER_PAIRS, PAPER_WITHOUT_SECOND))
    walks = answers.at

    def at(string: str) -> At:
        return {"string": string, "where": where}

    rows = [
        share("compose.two", spelled(each), answers.right(each), walks, at(each), published=known.get(each))
        for each in strings
    ]
    added = []
    for pair in PAIRS:
        both, first = answers.right(pair), answers.right(pair, pair[0] + "0")
        gain = f"{spelled(pair)}, gain by the second map"
        added += [
            share("compose.first_alone", first_alone(pair), first, walks, at(pair), published=without.get(pair)),
            share("compose.second_gain", gain, both, walks, at(pair), minus=first),
        ]
    right, reversed_right = answers.right("12"), answers.right("21")
    order = share("compose.order", "one-two minus two-one", right, walks, {"where": where}, minus=reversed_right)
    return [
        QuantityTable("compose.two", f"Two calls ({where})", rows, NOTE),
        QuantityTable(
            "compose.added", f"What the second map adds ({where})", added, f"Gains are paired differences. {NOTE}"
        ),
        QuantityTable("compose.order", f"Order ({where})", [order], f"A paired difference. {NOTE}"),
    ]


def first_alone(pair: str) -> str:
    """What a pair of maps is called without its second."""
    return f"{spelled(pair[0] + '0')}, asked for {spelled(pair)}"


def above_copying(predictions: Predictions, facts: ModelFacts, where: str = INDEPENDENT) -> Quantity:
    """How much more often mixed strings are right at call 8 than u itself is (paired)."""
    answers, mixed = Answers.of(predictions, facts, where), long_strings()["mixed"]
    right, copied = (answers.stacked(condition, mixed) for condition in (EVERY, COPY))
    label = f"mixed at call {CALLS} minus copy u"
    return share("compose.above_copying", label, right, answers.at, {"where": where}, minus=copied)
