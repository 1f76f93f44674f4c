"""Programs read by a metric: one number for every example and row, and no logits that are kept.

`sweep(..., metric=...)` and the instruments that run programs of many kinds go through here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import Settings, carry_out
from loopscope.execute.memory import Memory, TooLargeError
from loopscope.execute.metrics import Metric, best, difference, metric_of
from loopscope.execute.traces import Result, Work
from loopscope.execute.unequal import Texts
from loopscope.program import Program, Run, Source
from loopscope.protocol import LoopedModel


@dataclass(frozen=True)
class Readings:
    """What a metric, of this name, says of programs, and of the one that they are compared with."""

    metric: str
    values: Float[Tensor, "programs examples rows"]
    base: Float[Tensor, "examples rows"]
    work: Work = field(repr=False)


@torch.no_grad()
def read_by(
    model: LoopedModel,
    tokens: Texts | None,
    base: Program,
    programs: Sequence[Program],
    metric: tuple[str, Metric],
    inputs: Mapping[str, Any],
    *,
    memory: int | None = None,
    chunk: int | None = None,
    stack: int | None = None,
    tell: Callable[[Memory], None] | None = None,
) -> Readings:
    """Programs read at their ends by a metric, which sees the logits of `base` as well; errors as `run`.

    `inputs` are keywords of `run`, `memory` and `tell` as for it: fewer examples, and fewer programs, are taken
    together where they would not fit.
    """
    name, measure = metric
    settings = Settings("last", chunk, stack, measure, memory=memory, tell=tell)
    values, calls, rows, plain = [], 0, 0, 1
    first, at_once = 0, len(programs)
    while first < len(programs):
        some = programs[first : first + at_once]
        try:
            found = carry_out(model, tokens, list(dict.fromkeys([base, *some])), settings, **inputs)
        except TooLargeError:
            if len(some) == 1:
                raise
            at_once = len(some) // 2
            continue
        values += [found[each].logits[..., 0] for each in some]
        calls, rows = calls + found.work.calls, rows + found.work.rows
        plain, first = max(plain, found.work.plain_rows), first + len(some)
    read, unpatched, nothing = torch.stack(values), found[base].logits[..., 0], skipped(measure)
    if nothing is not None:
        read, unpatched = (each.masked_fill(nothing.to(each.device), torch.nan) for each in (read, unpatched))
    return Readings(name, read, unpatched, Work(calls, rows, plain))


def metric_on(
    model: LoopedModel,
    tokens: Texts | None,
    base: Program,
    origin: Source | None,
    metric: str | Metric,
    answers: Tensor | None,
    inputs: Mapping[str, Any],
    *,
    memory: int | None = None,
    skip: bool = False,
) -> tuple[str, Metric]:
    """A metric and its name; "recovered" runs `base` and the origin of patches, which must be a run, to say how far.

    `memory` bounds these runs; with `skip` an example with nothing to recover has NaN.  InputError for answers that do
    not fit, and for `skip` with another metric.
    """
    if skip and metric != "recovered":
        raise InputError("examples are left out by the metric 'recovered', of which some may have nothing to recover")
    examples = count_of(tokens, inputs.get("state"))
    if metric == "recovered":
        return "recovered", _recovered(model, tokens, base, origin, answers, inputs, examples, memory, skip)
    return metric_of(metric, answers, examples)


def count_of(tokens: Texts | None, state: Tensor | None) -> int:
    """How many examples there are; InputError for none to run on."""
    given = state if tokens is None else tokens
    if given is None:
        raise InputError("nothing to run on: give tokens, or a state for programs that start with h_t")
    return len(given)


def _recovered(
    model: LoopedModel,
    tokens: Texts | None,
    base: Program,
    origin: Source | None,
    answers: Tensor | None,
    inputs: Mapping[str, Any],
    examples: int,
    memory: int | None,
    skip: bool,
) -> Metric:
    """How far a patch moves the difference between two answers, in shares of what lies between base and source."""
    if not isinstance(origin, Run):
        why = "nothing is patched here" if origin is None else f"{origin} is none"
        raise InputError(f"the metric 'recovered' measures against the run that a patch is from, and {why}")
    theirs, beside = source_inputs(tokens, origin, inputs)
    if answers is None:
        found = [
            _read(model, each, program, best, some, memory)
            for each, program, some in ((tokens, base, inputs), (theirs, origin.program, beside))
        ]
        pairs = torch.stack(found[::-1], -1).long()
    else:
        metric_of("recovered", answers, examples)
        pairs = answers.long()[:, None]

    def apart(logits: Tensor, _: Tensor, numbers: Tensor) -> Tensor:
        return difference(logits, pairs.to(logits.device)[numbers])

    before = _read(model, tokens, base, apart, inputs, memory)
    after = _read(model, theirs, origin.program, apart, beside, memory)
    nothing = before >= after
    flat = nothing.nonzero().tolist()
    if flat and not (skip and not bool(nothing.all())):
        example, row = flat[0]
        answer, own = pairs.expand(-1, before.shape[1], -1)[example, row].tolist()
        same = f"both say class {own}" if own == answer else f"do not differ towards class {answer} from {own}"
        several = len({each for each, _ in flat})
        raise InputError(
            f"example {example + 1} and its source {same} in '{base}': nothing to recover; of {examples} examples "
            f'{several} {"is" if several == 1 else "are"} so (nearest: skip=True, or metric="kl")'
        )

    return _Recovered(apart, before, (after - before).masked_fill(nothing, 1.0), nothing if flat else None)


@dataclass(frozen=True, eq=False)
class _Recovered:
    """What is recovered of the `way` from `before`; of an example and row that are skipped it says nothing."""

    apart: Metric
    before: Float[Tensor, "examples rows"]
    way: Float[Tensor, "examples rows"]
    skipped: Bool[Tensor, "examples rows"] | None

    def __call__(self, logits: Tensor, base: Tensor, numbers: Tensor) -> Tensor:
        return (self.apart(logits, base, numbers) - self.before[numbers]) / self.way[numbers]


def skipped(metric: Metric) -> Bool[Tensor, "examples rows"] | None:
    """Where a metric has no value, whatever it gives: NaN in a run would be taken for numbers that left the range."""
    return metric.skipped if isinstance(metric, _Recovered) else None


@torch.no_grad()
def _read(
    model: LoopedModel, tokens: Texts | None, program: Program, metric: Metric, inputs: Mapping[str, Any],
    memory: int | None,
) -> Float[Tensor, "examples rows"]:  # fmt: skip
    found: Result = carry_out(model, tokens, [program], Settings(reduce=metric, memory=memory), **inputs)
    return found[program].logits[..., 0]


def source_inputs(tokens: Texts | None, origin: Run, inputs: Mapping[str, Any]) -> tuple[Texts | None, dict[str, Any]]:
    """What the program of a source runs on, as its own input."""
    if origin.input is None:
        return tokens, dict(inputs)
    others = inputs.get("others") or {}
    if origin.input not in others:
        raise InputError(f"no aligned input named {origin.input!r} was given; there are: {', '.join(others) or 'none'}")
    theirs, state = None, None
    given = others[origin.input]
    for each in given if isinstance(given, tuple) else (given,):
        if isinstance(each, Tensor) and each.is_floating_point():
            state = each
        else:
            theirs = each
    return theirs, {**inputs, "state": state, "mask": None}
