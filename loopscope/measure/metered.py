"""What instruments that run many programs have in common: places, a metric, and means over examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.errors import InputError
from loopscope.execute.checks import check_read
from loopscope.execute.measuring import metric_on, read_by
from loopscope.execute.metrics import SHARES, Metric
from loopscope.measure.streaming import Examples, about
from loopscope.program import Call, Program, Scale, Source
from loopscope.wildcards import addresses_of

Places = Site | Address | str | Iterable[Site | Address | str]
"""Sites, which stand for every loop, or addresses, in which `*` may stand for loops and layers."""


class Metered:
    """Examples and a metric that reads programs on them; errors as `sweep`."""

    def __init__(
        self,
        examples: Examples,
        metric: str | Metric,
        answers: Int[Tensor, "examples ..."] | None,
        origin: Source | None,
        others: Mapping[str, Any] | None = None,
        given: Mapping[str, Tensor] | None = None,
        *,
        memory: int | None = None,
        skip: bool = False,
    ) -> None:
        """`others` and `given` are inputs and tensors beside those that the examples come with.

        `memory` and `skip` as of `sweep`.
        """
        self.examples = examples
        self.inputs: dict[str, Any] = {**examples.inputs, "mask": None, "rows": examples.rows}
        self.inputs["others"] = {**(self.inputs.get("others") or {}), **(others or {})}
        self.inputs["given"] = {**(self.inputs.get("given") or {}), **(given or {})}
        self.metric = metric_on(
            examples.model, examples.texts, examples.program, origin, metric, answers, self.inputs, memory=memory,
            skip=skip,
        )  # fmt: skip
        self.about = {**about(examples), "metric": self.metric[0]}
        self.share = self.metric[0] in SHARES
        if origin is not None:
            self.about["source"] = str(origin)

    def read(
        self, programs: Sequence[Program], memory: int | None
    ) -> tuple[Float[np.ndarray, "examples programs R"], Float[np.ndarray, "examples 1 R"]]:
        """The metric of every program, and of the one that they are compared with."""
        one = self.examples
        found = read_by(one.model, one.texts, one.program, programs, self.metric, self.inputs, memory=memory)
        return found.values.transpose(0, 1).double().cpu().numpy(), found.base[:, None].double().cpu().numpy()

    def columns(self, where: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Columns that say where, one entry for every program, spread over the rows that are read, and these."""
        rows, programs = len(self.examples.rows), len(next(iter(where.values())))
        spread = {name: [value for value in values for _ in range(rows)] for name, values in where.items()}
        return {**spread, "row": np.tile(np.array(self.examples.row_names), programs)}


def places_of(examples: Examples, places: Places) -> list[Address]:
    """Addresses as values, each once; sites stand for every call whose stack has their layer.

    InputError for none, and for places in a coda that the end of the program is not read through.
    """
    found: dict[Address, None] = {}
    for asked in [places] if isinstance(places, Site | Address | str) else places:
        if isinstance(asked, Site) or (isinstance(asked, str) and asked.lstrip().startswith(("layer", "row", "enter"))):
            here = _everywhere(str(asked), examples)
        else:
            here = addresses_of(asked, [examples.program], examples.model, patched=True)
        found.update(dict.fromkeys(here))
    if not found:
        raise InputError("there is no place to look at; give a site such as layer[1].z, or an address")
    for place in found:
        if place.stage == "coda":
            check_read(examples.program.skeleton.patch(place, Scale(0)))
    return list(found)


def _everywhere(site: str, examples: Examples) -> list[Address]:
    """The addresses of a site in all calls; of a model with several stacks in those of each that has the layer."""
    program, pieces = examples.program, examples.pieces
    if len(pieces.stacks) == 1:
        return addresses_of(f"loop[*].{site}", [program], examples.model)
    called = {step.stack for step in program.steps if isinstance(step, Call)}
    found: list[Address] = []
    for stack, layers in pieces.stacks.items():
        if stack in called:
            each = addresses_of(f"{stack}[*].{site}", [program], examples.model)
            found += [address for address in each if address.site.layer <= len(layers)]
    if not found:
        raise InputError(f"no stack has a place for {site}")
    return found
