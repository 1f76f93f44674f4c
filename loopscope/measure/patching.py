"""Patches of a language model, in terms of what it would say next.

`compare` runs programs on a text and sets each beside its plain program.  `recover` patches one component from another
text, place by place, and says how far each patch moves the answer from the text's own to the other's:

    recovered = (d(patched) - d(text)) / (d(other) - d(text)),    d = logit of the other answer - logit of the own

0 is as without the patch, 1 as on the other text.  An answer is the likeliest next token of the plain program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.errors import InputError
from loopscope.execute.checks import check_names
from loopscope.execute.executor import check_programs, run, sweep
from loopscope.execute.plan import MAIN, Sizes
from loopscope.measure.replies import Log
from loopscope.models.passes import LanguageModel, check_length
from loopscope.program import Call, Program, Run
from loopscope.protocol import LoopedModel, TokenMap

OTHER = "other"
"""What the input that a sweep takes its values from is called in its programs."""

AT_ONCE = 128
"""Places of a sweep that are run together: their logits over a vocabulary are held until they are compared."""


@dataclass(frozen=True)
class Said:
    """What a program says next: logits at one row, in float32, and those of its plain program (None: it is plain)."""

    program: Program
    logits: Float[Tensor, " vocabulary"]
    plain: Said | None = None

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


def plain_of(program: Program) -> Program:
    """What a program is compared with: itself without its patches or, if it has none, without its maps."""
    if program != program.skeleton or program.calls == 0:
        return program.skeleton
    return replace(program, steps=tuple(step for step in program.steps if isinstance(step, Call)))


def check(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    programs: Sequence[Program],
    *,
    maps: Mapping[str, TokenMap],
    others: Mapping[str, Int[Tensor, "B T"]],
    row: int = -1,
) -> None:
    """InputError where a map, input, place, row or length does not fit; the model may be on the meta device."""
    check_length(tokens.shape[1], model.positions)
    check_names(list(programs), maps, {}, {False: {MAIN: tokens, **others}, True: {}})
    check_programs(programs, Sizes(len(model.layers), model.heads, tokens.shape[1]), rows=[row])


def compare(
    model: LanguageModel,
    tokens: Int[Tensor, "1 T"],
    programs: Iterable[Program],
    *,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Int[Tensor, "1 T"]] | None = None,
    row: int = -1,
) -> list[Said]:
    """What each program says after a text, every plain program before those that are compared with it.

    Errors as `execute.run`.
    """
    beside: dict[Program, list[Program]] = {}
    for program in dict.fromkeys(programs):
        beside.setdefault(plain_of(program), []).append(program)
    asked = [program for plain, several in beside.items() for program in (plain, *several)]
    result = run(model, tokens, asked, maps=maps, others=others, rows=[row])
    found = []
    for plain, several in beside.items():
        first = Said(plain, result[plain].logits[0, 0].float())
        found.append(first)
        found += [Said(each, result[each].logits[0, 0].float(), first) for each in several if each != plain]
    return found


@dataclass(frozen=True)
class Recovery:
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


def places(
    model: LoopedModel,
    program: Program,
    site: Site,
    length: int,
    *,
    loops: Iterable[int] | None = None,
    layers: Iterable[int] | None = None,
    each_head: bool = False,
) -> tuple[Address, ...]:
    """The addresses of a sweep: the component, heads and rows of `site` in every loop and layer, or in those given.

    `each_head` takes the site's heads (default: all) one at a time.  InputError for a place that does not exist.
    """
    heads = [(head,) for head in site.heads or range(model.heads)] if each_head else [site.heads]
    first = (program.start or 0) + 1
    every = range(first, first + program.calls)
    found = tuple(
        Address(loop, replace(site, layer=layer, heads=some))
        for loop in dict.fromkeys(every if loops is None else loops)
        for layer in dict.fromkeys(range(1, len(model.layers) + 1) if layers is None else layers)
        for some in heads
    )
    if not found:
        raise InputError(f"'{program}' calls F nowhere, so there is no place to patch")
    for address in found:
        program.index_of(address.loop)
        address.site.resolve(layers=len(model.layers), heads=model.heads, rows=length)
    return found


def recover(
    model: LanguageModel,
    tokens: Int[Tensor, "texts T"],
    other: Int[Tensor, "texts T"],
    program: Program,
    addresses: Sequence[Address],
    *,
    maps: Mapping[str, TokenMap] | None = None,
    row: int = -1,
    name: Callable[[int], str] = str,
    log: Log = lambda _: None,
) -> Recovery:
    """Patch `program` on each text at each address, one at a time, from the same program on the text's other.

    Errors as `execute.sweep`; InputError for a text whose answer is also its other's, as then there is nothing to move;
    `name` gives a token's name for that line.
    """
    log("reading both texts")
    own, others = (
        run(model, each, program, maps=maps, rows=[row])[program].logits[:, 0].float() for each in (tokens, other)
    )
    answers = torch.stack([own.argmax(-1), others.argmax(-1)], 1)
    before, after = _difference(own, answers), _difference(others, answers)
    for number in (before >= after).nonzero()[:, 0].tolist():
        token = name(int(answers[number, 0]))
        raise InputError(
            f"text {number + 1} and its other are both continued by {token} in '{program}': nothing to move"
        )
    recovered, named = [], []
    for start in range(0, len(addresses), AT_ONCE):
        log(f"{start} of {len(addresses)} places")
        some = addresses[start : start + AT_ONCE]
        found = sweep(model, tokens, program, some, Run(program, OTHER), maps=maps, others={OTHER: other}, rows=[row])
        logits = found.logits[:, :, 0].float()
        recovered.append((_difference(logits, answers.expand(len(some), -1, -1)) - before) / (after - before))
        named.append(logits.argmax(-1) == answers[:, 1])
    return Recovery(program, tuple(addresses), answers, before, after, torch.cat(recovered), torch.cat(named))


def _difference(
    logits: Float[Tensor, "*A texts vocabulary"], answers: Int[Tensor, "*A texts 2"]
) -> Float[Tensor, "*A texts"]:
    """Logit of the other answer less that of the own."""
    own, other = logits.gather(-1, answers).unbind(-1)
    return other - own
