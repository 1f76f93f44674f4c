"""What attention carries in the letter-walk: three tests on 256 pairs each, as programs with patches.

All requests are for eight transfers; J stands before loops 2..L.  The *chosen* heads come from `measure.select`, and
their loops with them (in the paper: sixteen heads at loop 4).  Patches act on every row of the prompt.

**steering** (independent pairs, the base's question).  Does the pattern carry what J does?  Patterns of the steered run
go into the unsteered one (`rescue`) and back (`damage`); `outputs` of the same heads say what they carry altogether.
Controls: values instead, patterns of the pair's other graph (`unrelated`), of another loop (`wrong loop`: the next one,
and loop 2 for the last), at comparison heads, at the other heads of the same layers (`complement`), at all heads of the
late layers in loops 2..L, and the run's own pattern and output (which must change nothing).

**pattern-vs-output** (shared-path pairs, J everywhere).  The source's pattern in the base's run should answer E, its
output D; its values, comparison heads and the wrong loop are the controls.

**restoration** (shared-path pairs, J everywhere).  All queries of the chosen heads' layers are replaced by those of a
run on the same graph that starts elsewhere; then outputs of the clean run are put back: at the chosen heads, at
comparison heads, at one layer's chosen heads, at all heads of these layers (which must restore the clean run exactly).

An answer is who is named: by the likeliest first token at the prompt's last row and, for the rows that a paper would
print, by a whole greedy generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.log import Log, silent
from loopscope.measure.controls import (
    BASE,
    LAYER,
    REFERENCE,
    SOURCE,
    Chosen,
    Condition,
    restoration,
    steering,
    wrong_loop,
)
from loopscope.measure.heads import Heads
from loopscope.measure.replies import ChatTokenizer, as_reply, asked, together
from loopscope.measure.searching import MAP_NAME
from loopscope.models.decoding import generate
from loopscope.models.passes import LanguageModel
from loopscope.models.placement import between
from loopscope.program import F, Run
from loopscope.protocol import TokenMap
from loopscope.tasks.letters import NAMES, Letter, prompt
from loopscope.tasks.letters.pairs import SETS, Pair, check_aligned, pairs

STEERING, CONTENT, RESTORATION = "steering", "pattern-vs-output", "restoration"
TESTS = (STEERING, CONTENT, RESTORATION)

OTHER, TRUNCATED = 255, 254
"""In place of a name: none of them; a generation that had not ended."""

FEWEST = 2
"""Pairs that a test takes at least: an interval over pairs needs two."""

NEW = 16
"""Tokens that a name is generated with."""


def conditions(test: str, loops: int, chosen: Chosen | None) -> dict[str, Condition]:
    """The rows of a test by name; without chosen heads, those that patch nothing.  InputError for an unknown test."""
    if test not in TESTS:
        raise InputError(f"there is no test {test!r}, only {', '.join(TESTS)}")
    if test == STEERING:
        return steering(F**loops, between(MAP_NAME, loops), chosen, range(2, loops + 1))
    return _content(loops, chosen) if test == CONTENT else restoration(between(MAP_NAME, loops), chosen)


def _content(loops: int, chosen: Chosen | None) -> dict[str, Condition]:
    steered = between(MAP_NAME, loops)
    found = {each: Condition(steered, each, whole=True) for each in (BASE, SOURCE, REFERENCE)}
    if chosen is None:
        return found

    def crossed(heads: Heads, component: str, source: Run, whole: bool = False, like: str = "") -> Condition:
        return Condition(heads.patch(steered, component, source, chosen.loops), whole=whole, like=like)

    heads, donor, own = chosen.heads, Run(steered, SOURCE), Run(steered)
    found |= {
        "pattern": crossed(heads, "pattern", donor, whole=True),
        "output": crossed(heads, "z", donor, whole=True),
        "values": crossed(heads, "v", donor, whole=True),
        "wrong loop": Condition(wrong_loop(steered, heads, chosen.loops, steered, SOURCE), whole=True),
        "self-pattern": crossed(heads, "pattern", own, like=BASE),
        "self-output": crossed(heads, "z", own, like=BASE),
    }
    if chosen.comparison:
        found["comparison pattern"] = crossed(chosen.comparison, "pattern", donor, whole=True)
        found["comparison output"] = crossed(chosen.comparison, "z", donor, whole=True)
    return found


@cache
def rows(test: str) -> tuple[str, ...]:
    """All rows that a test may have, in their order, which files do not keep; LAYER stands for those of layers."""
    one, other = Heads(((1, 0),)), Heads(((1, 1),))
    found = conditions(test, 2, Chosen(one, comparison=other, complement=other, late=one, loops=(2,)))
    return tuple(LAYER if name.startswith(LAYER) else name for name in found)


def layer_of(condition: str) -> int | None:
    """The layer whose chosen heads a condition of the restoration test puts back; None for any other condition."""
    return int(condition.removeprefix(LAYER)) if condition.startswith(LAYER) else None


def in_order(test: str, names: Iterable[str]) -> list[str]:
    """Rows of a test as `conditions` has them."""

    def place(name: str) -> tuple[int, int]:
        layer = layer_of(name)
        return (rows(test).index(name), 0) if layer is None else (rows(test).index(LAYER), layer)

    return sorted(names, key=place)


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Who was named, by condition: by the first token, and as a whole; an index into NAMES, OTHER or TRUNCATED.

    `by_loop` is, in the steering test, whom the first token after every loop would name.  `errors` are the largest
    differences of logits between a condition and the one it must be like; `forwards` are plain runs of one prompt,
    without those of generating.
    """

    first: dict[str, UInt8[Tensor, " pairs"]]
    whole: dict[str, UInt8[Tensor, " pairs"]]
    by_loop: dict[str, UInt8[Tensor, "pairs loops"]] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    forwards: float = 0.0


def answer_tokens(tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """The first token of each of the NAMES as an answer; InputError where two begin alike."""
    first = {name: tokenizer.encode(name, special=False)[0] for name in NAMES}
    if len(set(first.values())) < len(NAMES):
        raise InputError(f"some names have the same first token, so it does not tell them apart: {first}")
    return tuple(first.values())


def question_tokens(tokenizer: ChatTokenizer, letters: Sequence[Letter]) -> Int[Tensor, "letters T"]:
    """Questions as chat prompts; InputError where they are not of one length."""
    return together([asked(tokenizer, prompt(letter)) for letter in letters])


def first_pairs(name: str, count: int | None) -> tuple[Pair, ...]:
    """The first pairs of a set, by default all; InputError for more than there are, or fewer than an interval takes."""
    there = pairs(name)
    if count is not None and not FEWEST <= count <= len(there):
        near = min(max(count, FEWEST), len(there))
        few = f": intervals over pairs take at least {FEWEST}" if count < FEWEST else ""
        raise InputError(f"cannot take {count} of {len(there)} pairs of {name!r}{few} (nearest: {near})")
    return there[:count]


def discovery(tokenizer: ChatTokenizer, name: str) -> tuple[Int[Tensor, "pairs T"], Int[Tensor, " pairs"]]:
    """What heads are chosen on: the base questions of a set, and the first tokens of their answers.

    InputError for the sets of the three tests.
    """
    if name in TESTS:
        raise InputError(f"heads are not chosen on {name!r}, where they are tested; there are {_others()}")
    first = answer_tokens(tokenizer)
    found = pairs(name)
    answers = torch.tensor([first[NAMES.index(pair.B)] for pair in found])
    return question_tokens(tokenizer, [pair.base for pair in found]), answers


def _others() -> str:
    return ", ".join(name for name in SETS if name not in TESTS)


@torch.no_grad()
def measure(
    model: LanguageModel,
    tokenizer: ChatTokenizer,
    step: TokenMap,
    test: str,
    chosen: Chosen | None,
    *,
    count: int | None = None,
    batch: int = 16,
    log: Log = silent,
) -> Measured:
    """One test on the first `count` pairs of its set, by default all.

    Every pair is checked to be aligned, token by token.  Without chosen heads only the rows without patches are run.
    InputError where the tokenizer does not align pairs or tell names apart, and as `execute.run`.
    """
    if batch < 1:
        raise InputError(f"a batch has at least 1 pair, not {batch} (nearest: 1)")
    mine = first_pairs(test, count)
    for pair in mine:
        check_aligned(pair, lambda text: asked(tokenizer, text), lambda text: tokenizer.encode(text, special=False))
    rows = conditions(test, model.loops, chosen)
    first, maps = answer_tokens(tokenizer), {MAP_NAME: step}
    named: dict[str, list[Tensor]] = {name: [] for name in rows}
    by_loop: dict[str, list[Tensor]] = {name: [] for name in rows if test == STEERING}
    wholes: dict[str, list[int]] = {name: [] for name, row in rows.items() if row.whole}
    found = Measured({}, {})
    for start in range(0, len(mine), batch):
        log(f"{test}: {start} of {len(mine)} pairs")
        some = mine[start : start + batch]
        inputs = {
            BASE: question_tokens(tokenizer, [pair.base for pair in some]),
            SOURCE: question_tokens(tokenizer, [pair.source for pair in some]),
            REFERENCE: question_tokens(tokenizer, [pair.reference for pair in some]),
        }
        logits: dict[str, Tensor] = {}
        for which, tokens in inputs.items():
            asking = {name: row.program for name, row in rows.items() if row.input == which}
            if asking:
                others = {name: each for name, each in inputs.items() if name != which}
                read = "calls" if by_loop else "last"
                result = run(model, tokens, asking.values(), maps=maps, others=others, read=read)
                found.forwards += result.work.forwards * len(tokens)
                logits |= {name: result[program].logits[:, 0].float() for name, program in asking.items()}
                for name, parts in by_loop.items():
                    likeliest = [each[:, 0].argmax(-1) for each in result[asking[name]].logits_at.values()]
                    parts.append(torch.stack([names_of(each, first) for each in likeliest], 1))
        for name, row in rows.items():
            named[name].append(names_of(logits[name].argmax(-1), first))
            if row.like:
                apart = float((logits[name] - logits[row.like]).abs().max())
                found.errors[name] = max(found.errors.get(name, 0.0), apart)
            if row.whole:
                others = {each: tokens for each, tokens in inputs.items() if each != row.input}
                said = generate(model, inputs[row.input], row.program, new=NEW, maps=maps, others=others)
                wholes[name] += [_whole(tokenizer, text) for text in said.texts()]
    found.by_loop |= {name: torch.cat(parts) for name, parts in by_loop.items()}
    found.first |= {name: torch.cat(parts) for name, parts in named.items()}
    found.whole |= {name: torch.tensor(parts, dtype=torch.uint8) for name, parts in wholes.items()}
    return found


def names_of(tokens: Int[Tensor, " B"], first: tuple[int, ...]) -> UInt8[Tensor, " B"]:
    """Whom first tokens name, as an index into NAMES, or OTHER; `first` are `answer_tokens`."""
    known: Mapping[int, int] = {token: number for number, token in enumerate(first)}
    return torch.tensor([known.get(token, OTHER) for token in tokens.tolist()], dtype=torch.uint8)


def _whole(tokenizer: ChatTokenizer, tokens: Sequence[int]) -> int:
    """Who a generation names, up to case and what may stand around a name."""
    if len(tokens) == NEW:
        return TRUNCATED
    said = as_reply(tokenizer, tokens, NEW).strip(" .!\n").casefold()
    return next((number for number, name in enumerate(NAMES) if name.casefold() == said), OTHER)
