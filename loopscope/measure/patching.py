"""Patches of a language model, in terms of what it would say next.

`compare` runs programs on a text and sets each beside its plain program, `compare_texts` on several.  `recover` patches
one component from another text, place by place, and says how far each patch moves the answer from the text's own to the
other's:

    recovered = (d(patched) - d(text)) / (d(other) - d(text)),    d = logit of the other answer - logit of the own

0 is as without the patch, 1 as on the other text.  An answer is the likeliest next token of the plain program.

Texts may have unequal lengths, as for `execute.run`.  A program that starts from a given state h0 takes it from
`states`, by the name of the input ("main" for the programs' own).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import Address, Row
from loopscope.errors import InputError
from loopscope.estimates import DRAWS
from loopscope.execute.checks import check_examples, check_names, check_read
from loopscope.execute.executor import check_programs, run
from loopscope.execute.memory import Memory, TooLargeError
from loopscope.execute.runs import MAIN, Sizes
from loopscope.execute.sweeping import sweep
from loopscope.execute.tables import EXAMPLES, Resampled, sweep_table
from loopscope.execute.unequal import Decoder, Texts, anchors_of, check_rows, groups, listed
from loopscope.log import Log, silent
from loopscope.models.passes import LanguageModel, check_length
from loopscope.pieces import pieces_of
from loopscope.program import Call, Coda, Patch, Program, ProgramLike, Run, Start, as_program
from loopscope.protocol import TokenMap
from loopscope.resampling import Seed
from loopscope.results import Tabular, numbered
from loopscope.table import Table
from loopscope.wildcards import addresses_of

OTHER = "other"
"""What the input that a sweep takes its values from is called in its programs."""

AT_ONCE = 128
"""Places of a sweep that are run together: their logits over a vocabulary are held until they are compared."""


@dataclass(frozen=True, repr=False)
class NextToken(Tabular):
    """What a program says next: logits at one row, in float32, and those of its plain program (None: it is plain)."""

    program: Program
    logits: Float[Tensor, " vocabulary"]
    plain: NextToken | None = None

    @property
    def probabilities(self) -> Float[Tensor, " vocabulary"]:
        """Of every next token."""
        return self.logits.softmax(-1)

    def top(self, count: int) -> list[tuple[int, float]]:
        """The likeliest next tokens and their probabilities, most likely first."""
        found = self.probabilities.topk(min(count, len(self.logits)))
        return list(zip(found.indices.tolist(), found.values.tolist(), strict=True))

    @property
    def kl(self) -> float:
        """KL divergence of this program's next token from the plain program's, KL(plain || this), in nats."""
        if self.plain is None:
            return 0.0
        before, after = self.plain.logits.double().log_softmax(-1), self.logits.double().log_softmax(-1)
        return max(0.0, float((before.exp() * (before - after)).sum()))

    def table(self, top: int = 10, tokenizer: Decoder | None = None) -> Table:
        """The likeliest next tokens of the program and, in its first rows, of its plain program."""
        asked = [each for each in (self.plain, self) if each is not None]
        rows = [(str(each.program), rank, *found) for each in asked for rank, found in enumerate(each.top(top), 1)]
        names = ("program", "rank", "token", "probability")
        columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
        if tokenizer is not None:
            columns["text"] = [tokenizer.decode([token]) for token in columns["token"]]
        return Table("next tokens", columns, {"kl": self.kl})

    def _words(self) -> str:
        ((token, probability),) = self.top(1)
        moved = "" if self.plain is None else f", {self.kl:.3g} nats from plain"
        return f"token {token} with {probability:.1%}{moved}, after '{self.program}'"

    def _tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits, **({} if self.plain is None else {"plain": self.plain.logits})}


def plain_of(program: Program) -> Program:
    """What a program is compared with: itself without its patches or, if it has none, without its maps."""
    if program != program.skeleton or program.calls == 0:
        return program.skeleton
    return replace(program, steps=tuple(step for step in program.steps if isinstance(step, Call)))


def started(program: Program, start: Start) -> Program:
    """A program and the runs that its patches take values from, begun there where they name no start themselves."""

    def patch(each: Patch) -> Patch:
        if not isinstance(each.giver, Run):
            return each
        return each.taking(replace(each.giver, program=started(each.giver.program, start)))

    def patches(several: tuple[Patch, ...]) -> tuple[Patch, ...]:
        return tuple(map(patch, several))

    steps = tuple(replace(e, patches=patches(e.patches)) if isinstance(e, Call) else e for e in program.steps)
    coda = tuple(Coda(each.loop, patches(each.patches)) for each in program.coda)
    return Program(steps, start if program.start is None else program.start, patches(program.prelude), coda)


def check(
    model: LanguageModel,
    tokens: Texts,
    programs: Sequence[Program],
    *,
    maps: Mapping[str, TokenMap],
    others: Mapping[str, Texts],
    states: Mapping[str, Tensor] | None = None,
    row: Row = -1,
    tokenizer: Decoder | None = None,
) -> None:
    """InputError where a map, input, place, row or length does not fit; the model may be on the meta device."""
    named = {MAIN: listed("tokens", tokens), **{name: listed(name, each) for name, each in others.items()}}
    for texts in named.values():
        check_length(max(map(len, texts)), model.positions)
    pieces = pieces_of(model)
    for program in programs:
        pieces.check(program)
        check_read(program)
    check_examples(named)
    check_names(list(programs), maps, {}, {False: named, True: states or {}}, pieces.needs_tokens)
    for name, state in (states or {}).items():
        for text in named[name]:
            if state.shape[1:] != (len(text), pieces.state_width):
                wanted = [len(named[name]), len(text), pieces.state_width]
                raise InputError(f"a state of input {name!r} must be {wanted}, not {list(state.shape)}")
    check_rows(named, programs, [], (row,))
    for group in groups(named, anchors_of(programs, [], (row,)), tokenizer):
        first = int(group.examples[0])
        lengths = {name: len(texts[first]) for name, texts in named.items()}
        asked = [group.program(program) for program in programs]
        rows = [each for each in group.rows((row,), MAIN)]
        check_programs(asked, Sizes.of(pieces, lengths[MAIN], lengths), rows=rows)


def compare(
    model: LanguageModel,
    tokens: Texts,
    programs: Iterable[ProgramLike] | ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts] | None = None,
    states: Mapping[str, Tensor] | None = None,
    row: Row = -1,
    tokenizer: Decoder | None = None,
) -> list[NextToken]:
    """What each program says after one text, every plain program before those that are compared with it.

    Errors as `execute.run`.
    """
    found = compare_texts(
        model, tokens, programs, maps=maps, others=others, states=states, row=row, tokenizer=tokenizer
    )
    if len(found) != 1:
        raise InputError(f"one text is compared, not {len(found)} (nearest: compare_texts)")
    return found[0]


def compare_texts(
    model: LanguageModel,
    tokens: Texts,
    programs: Iterable[ProgramLike] | ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts] | None = None,
    states: Mapping[str, Tensor] | None = None,
    row: Row = -1,
    tokenizer: Decoder | None = None,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
) -> list[list[NextToken]]:
    """As `compare`, of every text; `memory` and `tell` as for `execute.run`."""
    beside: dict[Program, list[Program]] = {}
    for program in dict.fromkeys(map(as_program, [programs] if isinstance(programs, ProgramLike) else programs)):
        check_read(program)
        beside.setdefault(plain_of(program), []).append(program)
    asked = [program for plain, several in beside.items() for program in (plain, *several)]
    result = run(
        model, tokens, asked, maps=maps, others=_beside(others or {}, states), state=(states or {}).get(MAIN),
        rows=[row], tokenizer=tokenizer, memory=memory, tell=tell,
    )  # fmt: skip
    found: list[list[NextToken]] = []
    for text in range(len(tokens)):
        found.append([])
        for plain, several in beside.items():
            first = NextToken(plain, result[plain].logits[text, 0].float())
            found[-1].append(first)
            found[-1] += [NextToken(e, result[e].logits[text, 0].float(), first) for e in several if e != plain]
    return found


def _beside(
    others: Mapping[str, Texts], states: Mapping[str, Tensor] | None
) -> dict[str, Texts | tuple[Texts, Tensor]]:
    """Other inputs, with their states where there are any."""
    theirs = states or {}
    return {name: (each, theirs[name]) if name in theirs else each for name, each in others.items()}


@dataclass(frozen=True, repr=False)
class Recovery(Tabular):
    """How far patches at many addresses move the answers of some texts towards those of other texts.

    `answers` are each text's own and the other's; `before` and `after` the logit differences of the plain program on
    the text and on the other; `named` says where the other's answer is the likeliest next token.
    """

    program: Program
    addresses: tuple[Address, ...]
    answers: Int[Tensor, "texts 2"]
    before: Float[Tensor, " texts"]
    after: Float[Tensor, " texts"]
    recovered: Float[Tensor, "addresses texts"]
    named: Bool[Tensor, "addresses texts"]
    resampled: Resampled = EXAMPLES

    def table(self, draws: int = DRAWS) -> Table:
        """`value`, the mean share recovered over texts, at every address, and how often the other's answer is named."""
        measured = {"value": self.recovered[..., None], "named": self.named[..., None]}
        about = {"metric": "recovered"}
        source = f"({self.program})@{OTHER}"
        return sweep_table(self.program, source, self.addresses, measured, about, (-1,), draws, self.resampled)

    def _words(self) -> str:
        share = self.recovered.double().nanmean(1)
        best = int(share.argmax())
        texts = numbered(len(self.before), "text")
        return f"{len(share):,} places, {texts}; most at {self.addresses[best]}: {float(share[best]):.1%}"

    def _tensors(self) -> dict[str, Tensor]:
        names = ("answers", "before", "after", "recovered", "named")
        return {name: getattr(self, name) for name in names}


def recover(
    model: LanguageModel,
    tokens: Texts,
    other: Texts,
    program: ProgramLike,
    addresses: Address | str | Iterable[Address | str],
    *,
    maps: Mapping[str, TokenMap] | None = None,
    source: ProgramLike | None = None,
    states: Mapping[str, Tensor] | None = None,
    row: Row = -1,
    tokenizer: Decoder | None = None,
    name: Callable[[int], str] = str,
    skip: bool = False,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
    log: Log = silent,
) -> Recovery:
    """Patch `program` on each text at each address, one at a time, from the same program on the text's other.

    `source` is another program to take values from, such as one with a map; the other text may then be the same.
    Errors as `execute.sweep`; InputError for a text whose answer is also its other's, as then there is nothing to move;
    with `skip` it has NaN, unless all texts are so.  `name` gives a token's name for that line.  `clusters`, `seed`,
    `memory` and `tell` as for `execute.sweep`; it is told of every group of places that are swept together, before
    these are.
    """
    resampled = Resampled.of(clusters, seed, len(tokens))
    log("reading both texts")
    program = as_program(program)
    theirs, giving = states or {}, program if source is None else as_program(source)
    places = addresses_of(addresses, [program], model, patched=True)
    own, others = (
        run(model, each, asked, maps=maps, state=theirs.get(which), rows=[row], tokenizer=tokenizer, memory=memory)[
            asked
        ].logits[:, 0].float()
        for which, each, asked in ((MAIN, tokens, program), (OTHER, other, giving))
    )  # fmt: skip
    answers = torch.stack([own.argmax(-1), others.argmax(-1)], 1)
    before, after = _difference(own, answers), _difference(others, answers)
    nothing = before >= after
    for number in () if skip and not bool(nothing.all()) else nothing.nonzero()[:, 0].tolist():
        token = name(int(answers[number, 0]))
        where = f"'{program}'" if giving == program else f"'{program}' and '{giving}'"
        raise InputError(f"text {number + 1} and its other are both continued by {token} in {where}: nothing to move")
    recovered, named, start, at_once = [], [], 0, AT_ONCE
    while start < len(places):
        some, at = places[start : start + at_once], f"{start} of {len(places)} places"

        def sized(held: Memory, at: str = at) -> None:
            log(f"{at}: {held}")
            if tell is not None:
                tell(held)

        try:
            found = sweep(
                model, tokens, program, some, Run(giving, OTHER), maps=maps, others=_beside({OTHER: other}, states),
                state=theirs.get(MAIN), rows=[row], tokenizer=tokenizer, memory=memory, tell=sized,
            )  # fmt: skip
        except TooLargeError:
            if len(some) == 1:
                raise
            at_once = len(some) // 2
            continue
        logits = found.logits[:, :, 0].float()
        way = (after - before).masked_fill(nothing, torch.nan)
        recovered.append((_difference(logits, answers.expand(len(some), -1, -1)) - before) / way)
        named.append(logits.argmax(-1) == answers[:, 1])
        start += len(some)
    return Recovery(program, tuple(places), answers, before, after, torch.cat(recovered), torch.cat(named), resampled)


def _difference(
    logits: Float[Tensor, "*A texts vocabulary"], answers: Int[Tensor, "*A texts 2"]
) -> Float[Tensor, "*A texts"]:
    """Logit of the other answer less that of the own."""
    own, other = logits.gather(-1, answers).unbind(-1)
    return other - own
