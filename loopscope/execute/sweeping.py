"""One program patched at many addresses, one at a time.

found = sweep(model, tokens, "F6 F", grid("z", loops=[7], layers=[1, 2]), "(F6 J:one F)", maps={"one": J_one})
found.predictions                              [addresses, examples, rows]
sweep(..., metric="recovered").values          [addresses, examples, rows], and no logits are kept
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import Address, Row
from loopscope.errors import InputError
from loopscope.estimates import DRAWS
from loopscope.execute.checks import check_read
from loopscope.execute.executor import run
from loopscope.execute.measuring import count_of, metric_on, read_by
from loopscope.execute.memory import Memory
from loopscope.execute.metrics import Metric
from loopscope.execute.tables import EXAMPLES, Resampled, sweep_table
from loopscope.execute.traces import Work
from loopscope.execute.unequal import Decoder, Texts, named_rows
from loopscope.program import Program, ProgramLike, Run, Source, as_program, as_source
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.resampling import Seed
from loopscope.results import Tabular, numbered
from loopscope.table import Table
from loopscope.wildcards import addresses_of


@dataclass(frozen=True, repr=False)
class Sweep(Tabular):
    """One program patched at many addresses, one at a time: `logits[i]` belongs to `addresses[i]`."""

    program: Program
    source: Source
    addresses: tuple[Address, ...]
    logits: Float[Tensor, "addresses examples rows classes"]
    base: Float[Tensor, "examples rows classes"]
    work: Work = field(repr=False)
    rows: tuple[Row, ...] = (-1,)
    resampled: Resampled = EXAMPLES

    @property
    def predictions(self) -> Int[Tensor, "addresses examples rows"]:
        """The most likely class for every address."""
        return self.logits.argmax(-1)

    def rates(self, answers: Int[Tensor, " examples"]) -> dict[Address, float]:
        """For every address, how often the patched run gives these answers at its first read row."""
        if answers.shape != self.logits.shape[1:2]:
            raise InputError(
                f"answers have shape {list(answers.shape)}, not one for each of {self.logits.shape[1]} examples"
            )
        hits = (self.predictions[:, :, 0] == answers.to(self.logits.device)).double().mean(1)
        return dict(zip(self.addresses, hits.tolist(), strict=True))

    def table(self, answers: Int[Tensor, " examples"] | None = None, draws: int = DRAWS) -> Table:
        """What each patch does, a row for every address: means over examples, with intervals.

        - `changed`: how often the likeliest class is another than without the patch;
        - `kl`: KL divergence of what is said with the patch from what is said without, in nats;
        - `right`: how often the likeliest class is that of `answers`, where these are given.

        With several rows read there is a line for each, `row` says which.
        """
        base = self.base.double().log_softmax(-1)
        apart = torch.stack([(base.exp() * (base - e.double().log_softmax(-1))).sum(-1) for e in self.logits])
        predictions = self.predictions
        measured = {"changed": predictions != self.base.argmax(-1), "kl": apart.clamp(min=0)}
        if answers is not None:
            self.rates(answers)
            measured = {"right": predictions == answers.to(predictions.device)[:, None], **measured}
        return sweep_table(self.program, self.source, self.addresses, measured, {}, self.rows, draws, self.resampled)

    def _words(self) -> str:
        sizes = f"{numbered(self.logits.shape[1], 'example')}, {numbered(self.logits.shape[2], 'row')}"
        return f"{_places(self.addresses)}, {sizes} of '{self.program}' from {self.source}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"logits": self.logits, "base": self.base}


@dataclass(frozen=True, repr=False)
class Measured(Tabular):
    """One number of one program patched at many addresses, one at a time: `values[i]` belongs to `addresses[i]`.

    `base` is the number of the program without the patch, whose own it is compared with.
    """

    program: Program
    source: Source
    addresses: tuple[Address, ...]
    metric: str
    values: Float[Tensor, "addresses examples rows"]
    base: Float[Tensor, "examples rows"]
    work: Work = field(repr=False)
    rows: tuple[Row, ...] = (-1,)
    resampled: Resampled = EXAMPLES

    def table(self, draws: int = DRAWS) -> Table:
        """`value`, the mean of the metric over examples at every address, with its interval.

        With several rows read there is a line for each, `row` says which.
        """
        about = {"metric": self.metric, "without": float(self.base.double().nanmean())}
        measured = {"value": self.values}
        return sweep_table(self.program, self.source, self.addresses, measured, about, self.rows, draws, self.resampled)

    def _words(self) -> str:
        examples = numbered(self.values.shape[1], "example")
        return f"{self.metric} at {_places(self.addresses)}, {examples} of '{self.program}' from {self.source}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"values": self.values, "base": self.base}


def _places(addresses: Sequence[Address]) -> str:
    return f"{len(addresses):,} address{'' if len(addresses) == 1 else 'es'}"


@overload
def sweep(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike,
    addresses: Address | str | Iterable[Address | str],
    source: Source | ProgramLike,
    *,
    metric: None = None,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    mask: Bool[Tensor, "examples T"] | None = None,
    tokenizer: Decoder | None = None,
    rows: Sequence[Row | str] = (-1,),
    chunk: int | None = None,
    stack: int | None = None,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
) -> Sweep: ...


@overload
def sweep(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike,
    addresses: Address | str | Iterable[Address | str],
    source: Source | ProgramLike,
    *,
    metric: str | Metric,
    answers: Int[Tensor, "examples ..."] | None = None,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    mask: Bool[Tensor, "examples T"] | None = None,
    tokenizer: Decoder | None = None,
    rows: Sequence[Row | str] = (-1,),
    chunk: int | None = None,
    stack: int | None = None,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    skip: bool = False,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
) -> Measured: ...


def sweep(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike,
    addresses: Address | str | Iterable[Address | str],
    source: Source | ProgramLike,
    *,
    metric: str | Metric | None = None,
    answers: Int[Tensor, "examples ..."] | None = None,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    state: Float[Tensor, "examples T d"] | None = None,
    mask: Bool[Tensor, "examples T"] | None = None,
    tokenizer: Decoder | None = None,
    rows: Sequence[Row | str] = (-1,),
    chunk: int | None = None,
    stack: int | None = None,
    clusters: ArrayLike | None = None,
    seed: Seed = 0,
    skip: bool = False,
    memory: int | None = None,
    tell: Callable[[Memory], None] | None = None,
) -> Sweep | Measured:
    """Patch `program` at each address in turn from the same place in `source`, and read the end of each patched run.

    `source` is a source or its text ("(F6 J:one F)@other"), or a program, which then runs on the same input.  A change
    is one, too: "+=$name", "*=0", "<-J:clip".  Inputs and rows are as for `run`; an address may have `*` for the loop
    and the layer.

    With a `metric`, a name or a function of `metrics`, its values are what comes back, and logits live only until they
    are measured: memory does not grow with the vocabulary.  An example that has nothing to recover, as this run and the
    source say the same, is refused by "recovered"; with `skip` it has NaN there, and tables count the others in `n`.

    Tables, plots and files of what is found have intervals over examples or, where these come in `clusters`, an id for
    each, over clusters; `seed` draws them.

    `memory` is what the sweep may hold, in bytes beside the model and its inputs; as many places and examples are taken
    at a time as fit, and InputError says what one takes if it does not.  `tell` hears the peak before the sweep starts.
    """
    base = as_program(program)
    places = tuple(addresses_of(addresses, [base], model, patched=True))
    if not places:
        raise InputError("a sweep needs at least one address")
    origin = source_or_program(source)
    cells = [base.patch(place, origin) for place in places]
    for cell in cells:
        check_read(cell)
    inputs: dict[str, Any] = {
        "maps": maps, "others": others, "given": given, "state": state, "mask": mask, "tokenizer": tokenizer,
        "rows": rows,
    }  # fmt: skip
    resampled = Resampled.of(clusters, seed, count_of(tokens, state))
    if metric is None:
        if skip:
            raise InputError("examples are left out by a metric, and none was asked for (nearest: metric='recovered')")
        if answers is not None:
            raise InputError("answers belong to a metric, and none was asked for (nearest: metric='probability')")
        result = run(model, tokens, [base, *cells], chunk=chunk, stack=stack, memory=memory, tell=tell, **inputs)
        logits = torch.stack([result[cell].logits for cell in cells])
        return Sweep(base, origin, places, logits, result[base].logits, result.work, named_rows(rows), resampled)
    measured = metric_on(model, tokens, base, origin, metric, answers, inputs, memory=memory, skip=skip)
    found = read_by(
        model, tokens, base, cells, measured, inputs, memory=memory, chunk=chunk, stack=stack, tell=tell
    )  # fmt: skip
    return Measured(
        base, origin, places, found.metric, found.values, found.base, found.work, named_rows(rows), resampled
    )


def source_or_program(source: Source | ProgramLike) -> Source:
    """A source or change as a value; text that is neither is a program, run on the same input."""
    if isinstance(source, str) and not source.lstrip().startswith(("(", "$", "+=", "*=", "<-")):
        return Run(as_program(source))
    return as_source(source)
