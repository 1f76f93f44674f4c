"""Carries out a plan on one batch of examples.

Base runs come first, parents before children.  Then come patched runs: all those of one base run advance together,
layer by layer, and those that compute the same rows are stacked as [examples, runs, rows, d].  Both use `through` for
every layer.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.address import COMPONENTS, PER_HEAD
from loopscope.execute.layer import Put, See, through
from loopscope.execute.plan import MAIN, BaseRun, LayerNeed, PatchedRun, PlacedPatch, Plan, ordered
from loopscope.execute.prefixes import Inputs, PrefixGroups
from loopscope.execute.rows import KeysValues, Repeats, RowBlock
from loopscope.finite import Watch
from loopscope.program import Map
from loopscope.protocol import LoopedLayer, LoopedModel, TokenMap

K = TypeVar("K")


@dataclass(frozen=True)
class StackedRuns:
    """States of patched runs that hold the same rows, computed together: data [examples, runs, rows, d]."""

    runs: tuple[PatchedRun, ...]
    block: RowBlock


class Engine:
    """Takes one batch of examples through a plan: those numbered `picked`, out of `of` examples in all.

    After `execute`, `logits` and `component` answer for every readout and kept activation that the plan foresaw.
    `rows` counts the (example, row, layer) triples that were computed.
    """

    def __init__(
        self,
        model: LoopedModel,
        plan: Plan,
        inputs: Mapping[bool, Inputs],
        maps: Mapping[str, TokenMap],
        given: Mapping[str, Tensor],
        picked: Int[Tensor, " examples"],
        of: int,
        stack: int,
        watch: Watch,
    ) -> None:
        self.model, self.plan, self.inputs, self.maps, self.given = model, plan, inputs, maps, given
        self.picked, self.of, self.stack, self.rows = picked, of, stack, 0
        self.examples, self.watch = len(picked), watch
        self.states: dict[BaseRun, list[RowBlock]] = {}
        self.captures: dict[tuple[BaseRun | PatchedRun, int, str], list[RowBlock]] = {}
        self.readings: dict[BaseRun | PatchedRun, list[RowBlock]] = {}
        self.stacked: dict[PatchedRun, tuple[StackedRuns, int]] = {}

    def prefix_groups(self, base: BaseRun) -> PrefixGroups:
        """The inputs that this base run is computed on, by what they share."""
        return self.inputs[base.start is not None].prefix_groups(frozenset(base.inputs))

    def execute(self) -> None:
        """Compute everything the plan asks for."""
        every: list[BaseRun | PatchedRun] = [*self.plan.base_runs, *self.plan.patched_runs]
        uses = Counter(run.parent for run in every if run.parent)
        for base in self.plan.base_runs:
            self._base(base)
            self._release(base, uses, self.states)
        for (_, base), bundle in itertools.groupby(
            self.plan.patched_runs, key=lambda patched: (patched.rank, patched.base)
        ):
            runs = list(bundle)
            self._patched_runs(base, runs)
            for patched in runs:
                self._release(patched, uses, self.stacked)

    @staticmethod
    def _release(run: BaseRun | PatchedRun, uses: Counter[BaseRun | PatchedRun], held: dict[Any, Any]) -> None:
        """Forget states that no later step continues."""
        if not uses[run]:
            held.pop(run, None)
        if run.parent:
            uses[run.parent] -= 1
            if not uses[run.parent]:
                held.pop(run.parent, None)

    # Answers ---------------------------------------------------------------------------------------------------------

    def logits(self, base: BaseRun, patched: PatchedRun | None, rows: tuple[int, ...]) -> Tensor:
        """Readout of a run on its examples: [examples, rows, classes]."""
        return self._assemble(base, patched, rows, self.readings, MAIN)

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
        runs: list[BaseRun | PatchedRun] = [base] if patched is None else [base, patched]
        captures = {
            run: self.captures[run, layer, component] for run in runs if (run, layer, component) in self.captures
        }
        return self._assemble(base, patched, rows, captures, name)

    def _assemble(
        self,
        base: BaseRun,
        patched: PatchedRun | None,
        rows: tuple[int, ...],
        held: Mapping[BaseRun | PatchedRun, list[RowBlock]],
        name: str,
    ) -> Tensor:
        """Rows of a patched run where it has its own, of its base run elsewhere."""
        own = held[patched][0].among(rows) if patched is not None and patched in held else RowBlock((), torch.empty(0))
        others = tuple(r for r in rows if r not in own.rows)
        if not others:
            return own.take(rows)
        rest = self.prefix_groups(base).rows_of(held[base], others, name)
        if not own.rows:
            return rest
        return RowBlock((*own.rows, *others), torch.cat([own.data, rest], -2)).take(rows)

    # Base runs -------------------------------------------------------------------------------------------------------

    def _base(self, base: BaseRun) -> None:
        prefix_groups = self.prefix_groups(base)
        if base.parent is None:
            kind = self.inputs[base.start is not None]
            h = kind.distinct if base.start is not None else self.model.embed(kind.distinct)
            x = kind.start(prefix_groups, h)
            self.zero = h.new_zeros(())  # of the dtype and device of all states
        else:
            x = prefix_groups.within(self.states[base.parent], self.prefix_groups(base.parent))
        if isinstance(base.step, Map):
            x = [RowBlock(block.rows, self.maps[base.step.name](block.data)) for block in x]
        elif base.is_call:
            x = self._base_call(base, prefix_groups, x)
        self.states[base] = x
        if base.read:
            self.readings[base] = [self._reading(block.among(ordered(base.read))) for block in x]

    def _base_call(self, base: BaseRun, prefix_groups: PrefixGroups, x: list[RowBlock]) -> list[RowBlock]:
        for number, (layer, need) in enumerate(zip(self.model.layers, base.layers, strict=True), start=1):
            see = self._see(base, number)
            context: list[KeysValues] = []
            after: list[RowBlock] = []
            for block in x:
                block = block.among(ordered(need.entering))
                seen: dict[str, RowBlock] = {}
                self._count(len(block.data), block.rows, need)
                out, own = through(layer, block, need, context, "pattern" in need.captured, self._capturing(seen), see)
                after.append(out or RowBlock((), block.data[..., :0, :]))
                context = [KeysValues(own.rows, own.k, own.v, prefix_groups.repeats)] if own.rows else []
                for component in COMPONENTS:
                    wanted = need.needed_of_base(component) | need.captured.get(component, set())
                    if wanted:
                        held = seen.get(component, RowBlock((), block.data)).among(ordered(wanted))
                        self.captures.setdefault((base, number, component), []).append(held.alone())
            x = after
        return [RowBlock(block.rows, self._closed(base, block.data)) for block in x]

    def _closed(self, base: BaseRun, h: Tensor) -> Tensor:
        """States after the last layer as F leaves them; looked at before a norm can hide what is in them."""
        self.watch.see(h, "loop", base.loop)
        return self.model.close(h)

    def _capturing(self, seen: dict[str, RowBlock]) -> Put:
        """Change nothing, remember everything until the layer is done."""

        def put(component: str, tensor: Tensor, rows: tuple[int, ...], keys: list[int]) -> Tensor:
            seen[component] = RowBlock(rows, self._full(tensor, keys) if component == "pattern" else tensor)
            return tensor

        return put

    # Patched runs ----------------------------------------------------------------------------------------------------

    def _patched_runs(self, base: BaseRun, runs: list[PatchedRun]) -> None:
        if isinstance(base.step, Map):
            steering_map = self.maps[base.step.name]
            for rows, group in _grouped(
                [patched for patched in runs if patched.need],
                lambda patched: ordered(patched.need),
            ).items():
                before = self._collect([patched.parent for patched in group if patched.parent], rows)
                self._hold(group, rows, steering_map(before))
        else:
            self._patched_call(base, runs)
        for patched in runs:
            if patched.read:
                stacked, at = self.stacked[patched]
                own = RowBlock(stacked.block.rows, stacked.block.data[:, at]).among(ordered(patched.read))
                self.readings[patched] = [self._reading(own)]

    def _patched_call(self, base: BaseRun, runs: list[PatchedRun]) -> None:
        for patched in runs:
            if patched.parent in self.stacked:
                self.stacked[patched] = self.stacked[patched.parent]
        for number, layer in enumerate(self.model.layers, start=1):
            active = [patched for patched in runs if patched.layers[number - 1].entering]
            for alike in _grouped(active, partial(_signature, number=number)).values():
                for start in range(0, len(alike), self.stack):
                    self._patched_layer(base, number, layer, alike[start : start + self.stack])
        held = [patched for patched in runs if patched.need]
        for group in _grouped(held, lambda patched: id(self.stacked[patched][0])).values():
            stacked = self.stacked[group[0]][0]
            self._hold(list(stacked.runs), stacked.block.rows, self._closed(base, stacked.block.data))

    def _patched_layer(self, base: BaseRun, number: int, layer: LoopedLayer, runs: list[PatchedRun]) -> None:
        """One layer for patched runs of one base run that compute the same rows."""
        first, count = runs[0], len(runs)
        need = first.layers[number - 1]
        rows = ordered(need.entering)
        prefix_groups = self.prefix_groups(base)
        x = self._entering(base, number, runs, rows)
        context = [] if not need.mixed else self._context(base, number, prefix_groups, first, count)
        explicit = any(
            "pattern" in patched.layers[number - 1].captured
            or Plan.patched_rows(patched.patches[number - 1], "pattern")
            for patched in runs
        )
        self._count(len(x), rows, need)
        out, _ = through(
            layer,
            RowBlock(rows, x),
            need,
            context,
            explicit,
            self._patching(runs, number),
            self._see(base, number),
        )
        if out is not None:
            self._hold(runs, out.rows, out.data.unflatten(0, (self.examples, count)))

    def _entering(self, base: BaseRun, number: int, runs: list[PatchedRun], rows: tuple[int, ...]) -> Tensor:
        """The layer's input, [examples * runs, rows, d]: own rows where runs differ, the base run's elsewhere.

        Rows about to be replaced by a resid patch are left at zero.
        """
        first = runs[0]
        patched_rows = Plan.patched_rows(first.patches[number - 1], "resid")
        own = tuple(r for r in rows if r in first.entering[number - 1] and r not in patched_rows)
        from_base = tuple(r for r in rows if r not in first.differs[number - 1])
        if own == rows:
            return self._collect(runs, rows).flatten(0, 1)
        shape = (self.examples, len(runs), len(rows), self.model.width)
        pieces = []
        if own:
            pieces.append(RowBlock(own, self._collect(runs, own)))
        if from_base:
            under = self.prefix_groups(base).rows_of(self.captures[base, number, "resid"], from_base, first.input)
            pieces.append(RowBlock(from_base, under[:, None].expand(-1, len(runs), -1, -1)))
        x = self.zero.new_zeros(shape)
        places = {row: place for place, row in enumerate(rows)}
        for piece in pieces:
            x[:, :, [places[r] for r in piece.rows]] = piece.data
        return x.flatten(0, 1)

    def _context(
        self, base: BaseRun, number: int, prefix_groups: PrefixGroups, patched: PatchedRun, count: int
    ) -> list[KeysValues]:
        """The base run's keys and values that these patched runs attend to beside their own."""
        need = patched.layers[number - 1]
        wanted = ordered(set(range(max(need.mixed) + 1)) - need.keyed)
        attended = []
        if wanted:
            keys, values = self.captures[base, number, "k"], self.captures[base, number, "v"]
            for segment, k, v in zip(prefix_groups.segments, keys, values, strict=True):
                k, v, repeats = k.among(wanted), v.among(wanted), segment.repeats[patched.input]
                if not k.rows:
                    continue
                if repeats.index is not None:  # lay the entries out once for the examples, not once for every run
                    k, v = RowBlock(k.rows, repeats.gather(k.data)), RowBlock(v.rows, repeats.gather(v.data))
                    repeats = Repeats(self.examples)
                attended.append(KeysValues(k.rows, k.data, v.data, repeats.spread(count)))
        return attended

    def _patching(self, runs: list[PatchedRun], number: int) -> Put:
        """Apply each run's own patches, and capture what is wanted of it."""

        def put(component: str, tensor: Tensor, rows: tuple[int, ...], keys: list[int]) -> Tensor:
            by_run = tensor.unflatten(0, (self.examples, len(runs)))
            written = False
            for at, patched in enumerate(runs):
                for patch in patched.patches[number - 1]:
                    if patch.site.component == component and patch.wanted:
                        if not written:
                            by_run = by_run.clone()
                            written = True
                        self._replace(by_run[:, at], patch, rows, keys)
                if component in patched.layers[number - 1].captured:
                    data = self._full(by_run[:, at], keys) if component == "pattern" else by_run[:, at]
                    captured = RowBlock(rows, data).among(ordered(patched.layers[number - 1].captured[component]))
                    self.captures[patched, number, component] = [captured.alone()]
            return by_run.flatten(0, 1) if written else tensor

        return put

    def _replace(self, tensor: Tensor, patch: PlacedPatch, rows: tuple[int, ...], keys: list[int]) -> None:
        """Write a patch into tensor [examples, (H,) rows, ...] in place."""
        site, origin = patch.site, patch.origin
        places = {row: place for place, row in enumerate(rows)}
        at = torch.tensor([places[r] for r in patch.wanted], device=tensor.device)
        heads = torch.tensor(site.heads, device=tensor.device) if site.component in PER_HEAD else None
        if origin.given is not None:
            all_rows = site.rows or ()
            last = self.plan.sizes.rows if site.component == "pattern" else tensor.shape[-1]
            shape = (self.of, *(() if heads is None else (len(heads),)), len(all_rows), last)
            value = RowBlock(all_rows, self.given[origin.given].expand(shape)[self.picked]).take(patch.wanted)
        else:
            assert origin.base is not None
            value = self.component(origin.base, origin.patched, origin.input, site.layer, site.component, patch.wanted)
            value = value if heads is None else value[:, heads]
        if site.component == "pattern" and keys != list(range(value.shape[-1])):
            value = value[..., keys]
        if heads is None:
            tensor[:, at] = value
        else:
            tensor[:, heads[:, None], at] = value

    # Small things ----------------------------------------------------------------------------------------------------

    def _collect(self, runs: list[PatchedRun], rows: tuple[int, ...]) -> Tensor:
        """These rows of these runs' states: [examples, runs, rows, d]."""
        pieces = []
        for _, run in itertools.groupby(runs, key=lambda patched: id(self.stacked[patched][0])):
            group = list(run)
            stacked = self.stacked[group[0]][0]
            at = [self.stacked[patched][1] for patched in group]
            data = stacked.block.take(rows)
            pieces.append(data if at == list(range(data.shape[1])) else data[:, at])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def _hold(self, runs: list[PatchedRun], rows: tuple[int, ...], data: Tensor) -> None:
        stacked = StackedRuns(tuple(runs), RowBlock(rows, data))
        for at, patched in enumerate(runs):
            self.stacked[patched] = (stacked, at)

    def _see(self, base: BaseRun, number: int) -> See:
        return lambda q, k: self.watch.scores(q, k, "loop", base.loop, "layer", number)

    def _reading(self, block: RowBlock) -> RowBlock:
        return RowBlock(block.rows, self.model.read(block.data))

    def _full(self, alpha: Tensor, keys: list[int]) -> Tensor:
        """A pattern with one column for every row of the input."""
        total = self.plan.sizes.rows
        if keys == list(range(total)):
            return alpha
        full = alpha.new_zeros((*alpha.shape[:-1], total))
        full[..., keys] = alpha
        return full

    def _count(self, entries: int, rows: tuple[int, ...], need: LayerNeed) -> None:
        self.rows += entries * sum(r in need.keyed or r in need.mixed for r in rows)


def _grouped(runs: list[PatchedRun], key: Callable[[PatchedRun], K]) -> dict[K, list[PatchedRun]]:
    """Runs with equal keys together, in order of first appearance."""
    groups: dict[K, list[PatchedRun]] = {}
    for patched in runs:
        groups.setdefault(key(patched), []).append(patched)
    return groups


def _signature(patched: PatchedRun, number: int) -> tuple[object, ...]:
    """What runs must agree on to be stacked in one layer."""
    need = patched.layers[number - 1]
    return (
        patched.input,
        ordered(need.entering),
        ordered(need.keyed),
        ordered(need.mixed),
        ordered(need.leaving),
        patched.entering[number - 1],
        patched.differs[number - 1],
        Plan.patched_rows(patched.patches[number - 1], "resid"),
    )
