"""How likely a program finds a text behind another: what benchmarks of language models compare.

    log_likelihoods(model, [([1, 7, 3], [4, 2])], F | J("mine") | F, maps={"mine": step})     # [(-3.1, False)]

Patches act on the whole text, prompt and continuation, as if each token of it were read anew.  What they take from is a
program on the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from loopscope.bounds import BATCH, whole
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.log import Log, silent
from loopscope.measure.answers import check_maps
from loopscope.models.padding import check_continued
from loopscope.models.passes import one_pass
from loopscope.pieces import pieces_of
from loopscope.program import Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of

Pair = tuple[Sequence[int], Sequence[int]]
"""Tokens, and those behind them whose likelihood is asked for."""


@dataclass(frozen=True)
class _Line:
    """What the model sees of a pair: all but the last token; which rows are read, and what stands behind each."""

    at: int
    tokens: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def rows(self) -> range:
        return range(len(self.tokens) - len(self.wanted), len(self.tokens))


def log_likelihoods(
    model: LoopedModel,
    pairs: Sequence[Pair],
    program: ProgramLike,
    *,
    maps: Mapping[str, TokenMap] | None = None,
    longest: int | None = None,
    batch: int = 32,
    log: Log = silent,
) -> list[tuple[float, bool]]:
    """For every pair the sum of log-probabilities (nats) of its second part, and whether greedy decoding would say it.

    Of a text longer than `longest` (default: the model's positions) the first tokens are left out, but never one that
    is asked for.  An empty second part has likelihood 1.

    InputError for an empty first part, more asked-for tokens than `longest`, a map that is not given, patches at rows
    counted from the end, which a text of several tokens has not, and a model whose rows see those behind them.
    """
    whole("a batch", batch, 1, BATCH)
    program = as_program(program)
    check_maps([program], maps or {})
    patched = program != program.skeleton
    for patch in program.patches():
        if any(row < 0 for row in patch.site.rows or () if isinstance(row, int)):
            raise InputError(f"'{program}' patches a row counted from the end, and a text grows (nearest: all rows)")
    positions = getattr(model, "positions", None)
    most = longest or (positions if isinstance(positions, int) else 2**31)
    lines = [_line(at, pair, most) for at, pair in enumerate(pairs)]
    if reading := [each for each in lines if each.wanted]:
        check_continued(pieces_of(model), [1], max(len(each.tokens) for each in reading) + 1, torch.device("cpu"))
    found: dict[int, tuple[float, bool]] = {each.at: (0.0, True) for each in lines}
    order = sorted((each for each in lines if each.wanted), key=lambda each: -len(each.tokens))
    for start in range(0, len(order), batch):
        log(f"{program}: {start} of {len(order)} texts")
        mine = order[start : start + batch]
        read = _patched if patched else _plain
        for line, said in zip(mine, read(model, mine, program, maps or {}), strict=True):
            likely = said.float().log_softmax(-1)
            wanted = torch.tensor(line.wanted, device=said.device)
            total = float(likely.gather(1, wanted[:, None]).double().sum())
            found[line.at] = total, bool((said.argmax(-1) == wanted).all())
    return [found[at] for at in range(len(pairs))]


def _line(at: int, pair: Pair, most: int) -> _Line:
    before, after = map(tuple, pair)
    if not before:
        raise InputError(f"text {at + 1} has no tokens before those whose likelihood is asked for")
    if len(after) > most:
        raise InputError(f"text {at + 1} asks for {len(after)} tokens, but there are {most} positions")
    return _Line(at, (*before, *after)[-most - 1 :][:-1], after)


def _plain(
    model: LoopedModel, lines: Sequence[_Line], program: Program, maps: Mapping[str, TokenMap]
) -> list[Float[Tensor, "_ classes"]]:
    """Logits at the asked-for rows of every line, in one pass, padded on the right, where no real row looks."""
    longest = max(len(each.tokens) for each in lines)
    padded = [[*each.tokens, *[0] * (longest - len(each.tokens))] for each in lines]
    with torch.no_grad():
        tokens = torch.tensor(padded, device=device_of(model))
        h = one_pass(model, tokens, program, maps=maps).left(program.points[-1])
        return [model.read(h[at, each.rows.start : each.rows.stop]) for at, each in enumerate(lines)]


def _patched(
    model: LoopedModel, lines: Sequence[_Line], program: Program, maps: Mapping[str, TokenMap]
) -> list[Float[Tensor, "_ classes"]]:
    """The same for a program with patches, a text at a time."""
    found = []
    for each in lines:
        tokens = torch.tensor([each.tokens], device=device_of(model))
        found.append(run(model, tokens, program, maps=maps, rows=tuple(each.rows))[program].logits[0])
    return found
