"""Does one component act on another directly?  A patch into the input of one place alone (path patching).

    paths(model, tokens, "F6", "loop[5].layer[2].head[1].z", ["loop[6].layer[1].q", "loop[6].layer[1].mlp_out"],
          "(F6)@other", others={"other": other})

The receiver is computed in a run in which the sender is patched, and what attention and MLPs add between them is as in
the unpatched run, so that the change comes along the stream alone.  Its value then goes into a run that is otherwise
unpatched up to there, and what comes behind it sees the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from jaxtyping import Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means
from loopscope.execute.metrics import Metric
from loopscope.execute.sweeping import source_or_program
from loopscope.execute.unequal import Texts
from loopscope.measure.metered import Metered, Places, places_of
from loopscope.measure.streaming import Examples, Inputs, Rows
from loopscope.program import Call, Program, ProgramLike, Run, Source
from loopscope.protocol import LoopedModel
from loopscope.table import Table

SUBLAYERS = ("attn_out", "mlp_out")
"""What is added to the stream in a layer, in order."""

Moment = tuple[int, int, int]
"""When something is computed: its call, its layer, and 0 for what enters that, 1 for attention, 2 for the MLP."""


def paths(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None,
    senders: Places,
    receivers: Places,
    source: Source | ProgramLike,
    *,
    metric: str | Metric = "recovered",
    answers: Int[Tensor, "examples ..."] | None = None,
    skip: bool = False,
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """Patch every sender from a source into the input of every receiver that is computed after it.

    A row for every `sender`, `receiver` and `row` that is read: `value`, the mean of the metric over examples, with its
    interval, and `n`, the examples.  Both are addresses in calls, or sites, which stand for all of them.  Of a head,
    `q`, `k` and `v` are inputs apart, and `z` has all three; `mlp_out` is what the MLP makes of its input.
    `about["first"]` is the program of the first row.  All else as `spans`.

    InputError for places in a prelude or coda, and where no sender comes before a receiver.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    origin = source_or_program(source)
    where: dict[str, list[str]] = {"sender": [], "receiver": []}
    programs: list[Program] = []
    to = places_of(examples, receivers)
    for sender in places_of(examples, senders):
        for receiver in to:
            if _moment(examples, sender) < _moment(examples, receiver):
                programs.append(_path(examples, sender, receiver, origin))
                where["sender"].append(str(sender))
                where["receiver"].append(str(receiver))
    if not programs:
        raise InputError(f"no sender is computed in a layer or sublayer before {to[0]}, so no path leads there")
    metered = Metered(examples, metric, answers, origin, memory=memory, skip=skip)
    values, _ = metered.read(programs, memory)
    made = means(values, clusters=clusters, seed=seed, draws=draws, share=metered.share)
    columns = {**metered.columns(where), "value": made.flat(), "n": made.n.reshape(-1)}
    return Table("paths", columns, {**metered.about, "first": str(programs[0])})


def _path(examples: Examples, sender: Address, receiver: Address, origin: Source) -> Program:
    """The program with the receiver as it is where the sender reaches it along the stream."""
    asked = examples.program
    inside = asked.patch(sender, origin)
    for between in _between(examples, sender, receiver):
        inside = inside.patch(between, Run(asked))
    return asked.patch(receiver, Run(inside))


def _between(examples: Examples, sender: Address, receiver: Address) -> Iterator[Address]:
    """What is added to the stream after the sender and before the receiver."""
    first, last = _moment(examples, sender), _moment(examples, receiver)
    for loop in range(first[0], last[0] + 1):
        call = examples.program.steps[examples.program.index_of(loop)]
        assert isinstance(call, Call)
        for layer in range(1, len(examples.pieces.stack(call.stack)) + 1):
            for which, component in enumerate(SUBLAYERS, start=1):
                if first < (loop, layer, which) < last:
                    yield Address(loop, Site(layer, component))


def _moment(examples: Examples, address: Address) -> Moment:
    if address.stage in ("prelude", "coda"):
        raise InputError(f"{address} is in no call, and paths lead from call to call")
    part = address.site.part
    which = 0 if part == "resid" else 2 if part.startswith("mlp") else 1
    return examples.program.loop_at(address), address.site.layer, which
