"""Inputs and programs that the page begins with: walks that no model was trained on, short texts, strings of bits.

Walks are chosen by their labels alone, never by what a model makes of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import LoopscopeError
from loopscope.model import LoopedTransformer
from loopscope.program import Program
from loopscope.tasks import parity, relations
from loopscope.tasks.graph_walk import (
    DEPTHS,
    advance,
    all_starts,
    crossed_current,
    crossed_labels,
    distinct,
    start_for,
    walk,
)
from loopscope.tasks.populations import population
from loopscope.view.contract import Json, Settings
from loopscope.view.inputs import tokens_of

if TYPE_CHECKING:
    from loopscope.models.text import Tokenizer
    from loopscope.view.shown_model import ShownModel

OTHER = "other"
"""What a second input is called in programs."""

WALKS: Mapping[int, Mapping[str, int]] = {
    10: {"rings": 3, "pairs-2404-receiver": 1},
    8: {"eight-test": 3},
    6: {"tiny-test": 3},
}
"""Populations that examples are from and how many are of each, by the number of nodes."""

TEXTS = (
    ("The capital of France is", "The capital of Italy is"),
    ("Mary and John went out, and John gave a book to", "Mary and John went out, and Mary gave a book to"),
    ("2, 4, 6, 8,", "1, 3, 5, 7,"),
)  # fmt: skip
"""Texts and others that differ from them in a word or two; shown are those that a tokenizer makes equally long."""

BITS, PARITY_SEED = (6, 9, 12), 31


@dataclass(frozen=True)
class Example:
    """An input with the other one that belongs to it, and what to call them."""

    id: str
    title: str
    input: Settings
    others: Mapping[str, Settings] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Json]:
        """As JSON."""
        return {"id": self.id, "title": self.title, "input": dict(self.input), "others": dict(self.others)}


def examples_of(subject: ShownModel) -> tuple[Example, ...]:
    """What a model is shown on first; there is always one."""
    if subject.walk is not None:
        return tuple(_walks(subject.walk.nodes))
    if subject.tokenizer is not None and (texts := tuple(_texts(subject, subject.tokenizer))):
        return texts
    if isinstance(subject.model, LoopedTransformer):
        if subject.vocabulary == parity.VOCABULARY:
            return tuple(_bits())
        if subject.vocabulary == relations.VOCABULARY:
            return tuple(_compositions(subject.program.calls))
    most = subject.vocabulary or subject.classes
    tokens, other = ([number % most for number in range(start, start + min(8, subject.rows))] for start in (1, 2))
    return (Example("tokens-1", "Tokens in a row", {"tokens": tokens}, {OTHER: {"tokens": other}}),)


def other_of(subject: ShownModel) -> Mapping[str, Settings]:
    """What a second input is by default."""
    return dict(subject.examples[0].others)


def programs_of(subject: ShownModel) -> list[dict[str, str]]:
    """Programs to begin with: the model's own, with another call, and with a map before that call.

    Where some maps have plain names ("one" beside "pool-one"), these alone.
    """
    own = subject.program
    last = [step for step in own.steps if step == own.steps[-1]][-1]
    trained = "As it was trained" if isinstance(subject.model, LoopedTransformer) else "Its own loops"
    found = {"own": (trained, own), "more": ("One more call", own | last)}
    plain = [name for name in subject.maps if "-" not in name]
    for name in plain or subject.maps:
        found[name] = (f"J:{name} before one more call", Program.parse(f"{own} J:{name} {last}"))
    return [{"id": key, "title": title, "program": str(program)} for key, (title, program) in found.items()]


# ---- graph walks -----------------------------------------------------------------------------------------------------


def _walks(nodes: int) -> Iterator[Example]:
    """Walks whose next steps lead to different nodes, each with one on another graph that stands elsewhere."""
    number = 0
    for graphs, others in _graphs(nodes):
        every, starts = all_starts(graphs[None])
        ends = advance(every, starts, DEPTHS)
        beside = others[None].expand(nodes, -1)
        steps = walk(every, ends, min(4, nodes - 1))
        good = distinct(steps) & distinct(crossed_labels(every, beside, ends))
        good = good if bool(good.any()) else distinct(walk(every, ends, 2))
        if not bool(good.any()):
            continue
        start = int(good.nonzero()[0, 0])
        number += 1
        elsewhere = int(start_for(beside[:1], crossed_current(ends[start : start + 1], nodes))[0])
        yield Example(
            f"walk-{number}",
            f"Walk {number}: {DEPTHS} steps from node {start}",
            _graph(graphs, start),
            {OTHER: _graph(others, elsewhere)},
        )


def _graphs(nodes: int) -> Iterator[tuple[Int[Tensor, " nodes"], Int[Tensor, " nodes"]]]:
    """A few graphs, each with another."""
    if nodes not in WALKS:
        generator = torch.Generator().manual_seed(nodes)
        drawn = [torch.randperm(nodes, generator=generator) for _ in range(4)]
        yield from zip(drawn, [*drawn[1:], drawn[0]], strict=True)
        return
    for name, count in WALKS[nodes].items():
        found = population(name)
        mine = found.graphs[: count + 1]
        givers = population(found.giver).graphs[:count] if found.giver else mine[1:]
        yield from zip(mine[:count], givers, strict=True)


def _graph(successors: Int[Tensor, " nodes"], start: int) -> Settings:
    return {"graph": successors.tolist(), "start": start, "depth": DEPTHS}


# ---- others ----------------------------------------------------------------------------------------------------------


def _texts(subject: ShownModel, tokenizer: Tokenizer) -> Iterator[Example]:
    """Texts that the model can read, each with another of as many tokens, whose rows can all be patched from."""
    read = {text: _tokens(subject, text) for pair in TEXTS for text in pair}
    pairs = [(one, _text(two)) for one, two in TEXTS if read[one] != read[two] and len(read[one]) == len(read[two])]
    pairs = [(one, other) for one, other in pairs if read[one]]
    pairs = pairs or [(one, _exchanged(tokenizer, read[one])) for one, _ in TEXTS if read[one]]
    for number, (one, other) in enumerate(pairs, start=1):
        yield Example(f"text-{number}", one, _text(one), {OTHER: other})


def _tokens(subject: ShownModel, text: str) -> tuple[int, ...]:
    """The tokens of a text; none where the model cannot read it."""
    try:
        return tokens_of(subject, _text(text))
    except LoopscopeError:
        return ()


def _exchanged(tokenizer: Tokenizer, tokens: tuple[int, ...]) -> Settings:
    """An input whose token in the middle is another one of the same text; a text, where it is read as these tokens."""
    middle = len(tokens) // 2
    before, here, behind = tokens[:middle], tokens[middle], tokens[middle + 1 :]
    changed = [[*before, new, *behind] for new in dict.fromkeys(tokens) if new != here]
    for each in changed:
        text = tokenizer.decode(each)
        if tokenizer.encode(text) == each:
            return _text(text)
    return {"tokens": changed[0] if changed else [*before, 0 if here else 1, *behind]}


def _text(text: str) -> Settings:
    return {"text": text, "chat": False}


def _bits() -> Iterator[Example]:
    for number, length in enumerate(BITS, start=1):
        one, two = parity.fixed_length(parity.evaluation_bits(length, 2, PARITY_SEED)).tokens.tolist()
        title = f"Parity of {''.join(map(str, one[:length]))}"
        yield Example(f"bits-{number}", title, {"tokens": one}, {OTHER: {"tokens": two}})


def _compositions(longest: int) -> Iterator[Example]:
    for length in range(1, longest + 1):
        queries = relations.compositions("test", length)
        one, two = relations.tokens(queries.starts[:2], queries.relations[:2]).tolist()
        yield Example(f"relations-{length}", f"{length} relations", {"tokens": one}, {OTHER: {"tokens": two}})
