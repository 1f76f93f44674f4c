"""How long must an intervention last?  The same patch in one loop, in two that follow each other, up to all.

    found = spans(model, tokens, "F6", "layer[2].z", "(F6)@other", others={"other": other})
    found.grid("value", "first", "last")      loops x loops: how much the patch from `first` to `last` recovers

On the diagonal stand the single loops, as `sweep` has them; in the last column what is patched to the end of the run.
"""

from __future__ import annotations

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
from loopscope.program import Call, Program, ProgramLike, Source
from loopscope.protocol import LoopedModel
from loopscope.table import Table


def spans(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None,
    places: Places,
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
    """Patch a site in every run of loops, and read the end of each patched run by a metric.

    A row for every place, first and last loop, and row that is read:

    - `place`: the site, "layer[2].z"; of a model with several stacks with the stack before it, "L.layer[2].z";
    - `first`, `last`: the patch acts in these calls of F, counted from 1, and in all of that stack between them;
    - `row`: the row that is read;
    - `value`: the mean of the metric over examples, with its interval `value_low`, `value_high`; `n` are the examples.

    `places` are sites such as "layer[2].head[0].z", one or several, in all loops; or addresses, also with `*`, that say
    which loops are looked at; those of a site are calls of its stack that follow each other.  `source`, `metric` and
    `skip` are those of `sweep`: by default the share that is recovered of the way to the run that the patches are from.
    `program` None is the model's own.  `inputs` are those of `execute.run`; `memory` bounds the bytes that are held at
    a time.

    Errors as `sweep`; InputError for a place in a prelude or coda, which no loop goes through, and for loops of a site
    with a call of its stack between them that was not asked for.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    asked, origin = examples.program, source_or_program(source)
    programs: list[Program] = []
    where: dict[str, list[str | int]] = {"place": [], "first": [], "last": []}
    for place, series in _series(examples, places).items():
        loops = sorted(series)
        for begin, first in enumerate(loops):
            patched = asked
            for last in loops[begin:]:
                patched = patched.patch(series[last], origin)
                programs.append(patched)
                for name, value in (("place", place), ("first", first), ("last", last)):
                    where[name].append(value)
    metered = Metered(examples, metric, answers, origin, memory=memory, skip=skip)
    values, _ = metered.read(programs, memory)
    made = means(values, clusters=clusters, seed=seed, draws=draws, share=metered.share)
    columns = {**metered.columns(where), "value": made.flat(), "n": made.n.reshape(-1)}
    return Table("spans", columns, metered.about)


def _series(examples: Examples, places: Places) -> dict[str, dict[int, Address]]:
    """The address of every place in each of its loops."""
    program = examples.program
    found: dict[tuple[str, Site], dict[int, Address]] = {}
    for address in places_of(examples, places):
        if address.stage in ("prelude", "coda"):
            raise InputError(f"{address} is in no loop, so that no span of loops begins there")
        loop = program.loop_at(address)
        call = program.steps[program.index_of(loop)]
        assert isinstance(call, Call)
        found.setdefault((call.stack, address.site), {})[loop] = address
    for (stack, site), series in found.items():
        _check_gaps(program, stack, site, sorted(series))
    several = len(examples.pieces.stacks) > 1
    return {f"{stack}.{site}" if several else str(site): series for (stack, site), series in found.items()}


def _check_gaps(program: Program, stack: str, site: Site, loops: list[int]) -> None:
    """InputError where a span from the first to the last of these loops would leave out a call of the stack."""
    calls = [
        program.loop_of(at) for at, each in enumerate(program.steps) if isinstance(each, Call) and each.stack == stack
    ]
    between = [loop for loop in calls if loops[0] <= loop <= loops[-1]]
    if lacking := [loop for loop in between if loop not in loops]:
        near = ", ".join(f"loop[{loop}].{site}" for loop in between[: between.index(lacking[0]) + 1])
        raise InputError(
            f"a span goes over calls that follow each other, and {site} is asked in loops "
            f"{', '.join(map(str, loops))} without {lacking[0]} (nearest: {near})"
        )
