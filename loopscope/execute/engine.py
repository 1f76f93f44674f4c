"""Carries out a plan on one batch of examples: base runs first, then patched runs bundle by bundle.

`bases` computes base runs and `patched` the bundles; both use `layer.through` for every layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jaxtyping import Int
from torch import Tensor

from loopscope.execute.bases import BaseRuns
from loopscope.execute.bundles import Bundles
from loopscope.execute.patched import PatchedRuns
from loopscope.execute.plan import Plan
from loopscope.execute.prefixes import Inputs
from loopscope.execute.runs import MAIN, BaseRun, PatchedRun
from loopscope.finite import Watch
from loopscope.pieces import Pieces
from loopscope.protocol import TokenMap


class Engine:
    """Takes one batch of examples through a plan: those numbered `picked`, out of `of` examples in all.

    After `execute`, `logits` and `component` answer for every readout and kept activation that the plan foresaw.
    `rows` counts the (example, row, layer) triples that were computed.
    """

    def __init__(
        self,
        pieces: Pieces,
        plan: Plan,
        bundles: Bundles,
        inputs: Mapping[tuple[bool, int], Inputs],
        maps: Mapping[str, TokenMap],
        given: Mapping[str, Tensor],
        picked: Int[Tensor, " examples"],
        of: int,
        watch: Watch,
    ) -> None:
        self.plan, self.bundles = plan, bundles
        self.bases = BaseRuns(pieces, plan, bundles, inputs, maps, len(picked), watch)
        self.patched = PatchedRuns(self.bases, given, picked, of)

    @property
    def rows(self) -> int:
        """How many (example, row, layer) triples were computed."""
        return self.bases.rows + self.patched.rows

    def execute(self) -> None:
        """Compute everything the plan asks for."""
        uses = Counter(run.parent for run in self.plan.base_runs if run.parent)
        uses.update(run.e for run in self.plan.base_runs if run.e)  # which are held to the end
        held = self.bases.states
        for base in self.plan.base_runs:
            self.bases.compute(base)
            if not uses[base]:
                held.pop(base, None)
            if base.parent:
                uses[base.parent] -= 1
                if not uses[base.parent]:  # no later step continues it
                    held.pop(base.parent, None)
        for bundle in self.bundles:
            self.patched.compute(bundle)

    def logits(self, base: BaseRun, patched: PatchedRun | None, rows: tuple[int, ...]) -> Tensor:
        """Readout of a run on its examples: [examples, rows, classes]."""
        return self.bases.assembled(base, patched, rows, self.bases.readings, MAIN)

    def component(
        self,
        base: BaseRun,
        patched: PatchedRun | None,
        name: str,
        layer: int,
        component: str,
        rows: tuple[int, ...],
    ) -> Tensor:
        """A captured component of a run on the input called `name`: [examples, (H,) rows, ...]."""
        return self.bases.component(base, patched, name, layer, component, rows)
