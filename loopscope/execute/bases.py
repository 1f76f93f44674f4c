"""Base runs: programs without their patches, with what inputs share held once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.address import COMPONENTS
from loopscope.execute.bundles import Bundles
from loopscope.execute.layer import At, Attend, Put, SideOf, through
from loopscope.execute.places import LayerRows, Picked, indices
from loopscope.execute.plan import Plan
from loopscope.execute.prefixes import Inputs, PrefixGroups
from loopscope.execute.rows import KeysValues, Repeats, RowBlock, columns, mix, patterns
from loopscope.execute.runs import BaseRun, Part, PatchedRun, ordered
from loopscope.execute.sight import NONE
from loopscope.finite import Watch
from loopscope.pieces import LayerPieces, Pieces
from loopscope.program import Map, Zeros
from loopscope.protocol import Side, TokenMap


class BaseRuns:
    """Takes one batch of examples through base runs, parents before children.

    A state is one block of rows for every segment of what the inputs share.  `captures` and `readings` are what others
    ask for, by run; `before` are states before a call, where patched runs need them.  `rows` counts (entry, row, layer)
    triples.
    """

    def __init__(
        self,
        pieces: Pieces,
        plan: Plan,
        bundles: Bundles,
        inputs: Mapping[tuple[bool, int], Inputs],
        maps: Mapping[str, TokenMap],
        examples: int,
        watch: Watch,
    ) -> None:
        self.pieces, self.plan, self.bundles, self.inputs, self.maps = pieces, plan, bundles, inputs, maps
        self.examples, self.watch, self.rows = examples, watch, 0
        self.states: dict[BaseRun, list[RowBlock]] = {}
        self.before: dict[BaseRun, list[RowBlock]] = {}
        self.captures: dict[tuple[BaseRun | PatchedRun, int, str], list[RowBlock]] = {}
        self.readings: dict[BaseRun | PatchedRun, list[RowBlock]] = {}
        self._angles: dict[int, Any] = {}
        self._tokens: dict[tuple[bool, int, frozenset[str]], list[RowBlock]] = {}

    def prefix_groups(self, base: BaseRun) -> PrefixGroups:
        """The inputs that a base run is computed on, by what they share."""
        return self.inputs[base.given, base.length].prefix_groups(frozenset(base.inputs))

    def compute(self, base: BaseRun) -> None:
        """One step."""
        prefix_groups = self.prefix_groups(base)
        if base.parent is None:
            x = self._input(base, prefix_groups)
        elif isinstance(base.step, Part) and base.step.kind == "start":
            x = self._start(base, base.step, prefix_groups)
        else:
            x = self.within(base, base.parent)
        if isinstance(base.step, Map):
            x = [RowBlock(block.rows, self.maps[base.step.name](block.data)) for block in x]
        elif base.part:
            x = self._part(base, prefix_groups, x)
        self.states[base] = x
        if base.read:
            self.readings[base] = [self._reading(base, block.among(ordered(base.read))) for block in x]

    def within(self, base: BaseRun, other: BaseRun) -> list[RowBlock]:
        """The state of an earlier run, laid out for the inputs of this one."""
        mine, theirs = self.prefix_groups(base), self.prefix_groups(other)
        if base.given != other.given:
            return mine.regrouped(self.states[other], theirs)
        return mine.within(self.states[other], theirs)

    def tokens(self, base: BaseRun) -> list[RowBlock]:
        """The tokens of the inputs of a run, [entries, rows, 1]."""
        key = base.given, base.length, frozenset(base.inputs)
        if key not in self._tokens:
            kind = self.inputs[False, base.length]
            theirs = kind.prefix_groups(key[2])
            blocks = kind.laid_out(theirs, kind.distinct[..., None])
            self._tokens[key] = self.prefix_groups(base).regrouped(blocks, theirs) if base.given else blocks
        return self._tokens[key]

    def at(self, base: BaseRun) -> At:
        """Where rows stand: as numbers, or as the rotary positions that a language model works out from them."""

        def at(some: Picked, x: Tensor) -> Any:
            if base.length not in self._angles:
                like = x[:1, :1].expand(-1, base.length, -1)
                self._angles[base.length] = self.pieces.angles(torch.arange(base.length, device=x.device), like)
            every = self._angles[base.length]
            if every is None:
                return some.rows.on(x.device)
            if tuple(some.rows.numbers) == tuple(range(base.length)):
                return every
            return type(every)(*(each.index_select(-2, some.rows.on(x.device)) for each in every))

        return at

    def closed(self, base: BaseRun, x: Tensor, h: Tensor | None) -> Tensor:
        """The state after the last layer of a part; looked at before a norm can hide what is in it."""
        self.watch.see(x, *base.place)
        if base.part == "prelude":
            return self.pieces.settle(x)
        return self.pieces.close(x, h, base.part) if base.is_call else x

    @staticmethod
    def full(alpha: Tensor, keys: list[int], base: BaseRun) -> Tensor:
        """A pattern with one column for every row of the input."""
        if keys == list(range(base.length)):
            return alpha
        full = alpha.new_zeros((*alpha.shape[:-1], base.length))
        full[..., keys] = alpha
        return full

    # Answers ---------------------------------------------------------------------------------------------------------

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
        return self.assembled(base, patched, rows, captures, name)

    def assembled(
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

    # Steps -----------------------------------------------------------------------------------------------------------

    def _input(self, base: BaseRun, prefix_groups: PrefixGroups) -> list[RowBlock]:
        """What a run takes up: a given state, or the embedding of tokens."""
        kind = self.inputs[base.given, base.length]
        h = kind.distinct
        if not base.given:
            h = self.pieces.embed(h, torch.arange(base.length, device=h.device))
            h = h if self.pieces.prelude else self.pieces.settle(h)
        self.zero = h.new_zeros(())  # of the dtype and device of all states
        return kind.laid_out(prefix_groups, h)

    def _start(self, base: BaseRun, step: Part, prefix_groups: PrefixGroups) -> list[RowBlock]:
        """h_0: drawn, zeros, made of the input, or given beside tokens."""
        assert base.parent is not None
        if base.given:
            kind = self.inputs[True, base.length]
            return kind.laid_out(prefix_groups, kind.distinct)
        blocks = self.within(base, base.parent)
        if isinstance(step.start, Zeros):  # nobody asked the input for rows, as none of it is in the start
            blocks = [
                RowBlock(each.rows, self.zero.expand(len(each.members), len(each.rows), self.pieces.width))
                for each in prefix_groups.segments
            ]
        wanted = ordered(base.need)
        return [RowBlock(block.rows, self._started(block, step)) for block in (each.among(wanted) for each in blocks)]

    def _started(self, block: RowBlock, step: Part) -> Tensor:
        rows = indices(block.rows, block.data.device)
        return self.pieces.start(block.data, step.start, rows)

    def _part(self, base: BaseRun, prefix_groups: PrefixGroups, x: list[RowBlock]) -> list[RowBlock]:
        """The prelude, a call or a coda."""
        assert base.parent is not None
        before = x
        if base.before_needed:
            self.before[base] = [block.among(ordered(base.before_needed)).alone() for block in before]
        entering = ordered(base.layers[0].entering)
        x = [block.among(entering) for block in x]
        if base.part == "coda":
            x = [RowBlock(block.rows, self.pieces.leave(block.data)) for block in x]
        elif base.is_call:
            es = self.within(base, base.e) if base.e else None
            x = [
                RowBlock(block.rows, self._entered(base, block.data, es[at].take(block.rows) if es else None))
                for at, block in enumerate(x)
            ]
        for number, layer in enumerate(self.plan.sizes.pieces_of(base.part), start=1):
            x = self._layer(base, number, layer, prefix_groups, x)
        several = base.is_call and len(self.pieces.stacks) > 1
        return [
            RowBlock(block.rows, self.closed(base, block.data, before[at].take(block.rows) if several else None))
            for at, block in enumerate(x)
        ]

    def _layer(
        self, base: BaseRun, number: int, layer: LayerPieces, prefix_groups: PrefixGroups, x: list[RowBlock]
    ) -> list[RowBlock]:
        """A layer, segment by segment."""
        need = base.layers[number - 1]
        context: list[KeysValues] = []
        after: list[RowBlock] = []
        for at, block in enumerate(x):
            block = block.among(ordered(need.entering))
            rows = self.bundles.of_base(block.rows, need)
            seen: dict[str, RowBlock] = {}
            put = self._capturing(block.rows, rows, seen)
            attend = self._attending(base, number, layer, rows, context, seen)
            units = "mlp_hidden" in need.captured
            self.rows += len(block.data) * sum(row in need.keyed or row in need.mixed for row in block.rows)
            out, k, v = through(layer, block.data, rows, attend, put, self.at(base), self._side(base, at), units)
            left = tuple(rows.leaving.rows.numbers)
            after.append(RowBlock((), block.data[..., :0, :]) if out is None else RowBlock(left, out))
            keyed = tuple(rows.keyed.rows.numbers)
            context = [KeysValues(keyed, k, v, prefix_groups.repeats)] if keyed else []
            for component in COMPONENTS:
                wanted = need.needed_of_base(component) | need.captured.get(component, NONE)
                if wanted:
                    held = seen.get(component, RowBlock((), block.data)).among(ordered(wanted))
                    self.captures.setdefault((base, number, component), []).append(held.alone())
        return after

    def _attending(
        self,
        base: BaseRun,
        number: int,
        layer: LayerPieces,
        rows: LayerRows,
        context: list[KeysValues],
        seen: dict[str, RowBlock],
    ) -> Attend:
        """Attention of some rows over those before them and their own; fused where few patterns are asked for."""
        keyed, mixed = tuple(rows.keyed.rows.numbers), tuple(rows.mixed.rows.numbers)
        wanted = base.layers[number - 1].captured.get("pattern", NONE)
        asked = tuple(row for row in mixed if row in wanted)
        fusible = keyed == mixed and 2 * len(asked) <= len(mixed) and layer.causal and layer.softcap is None

        def form(queries: RowBlock, attended: list[KeysValues]) -> Tensor:
            alpha = patterns(queries.data, queries.rows, attended, layer)
            if asked:
                seen["pattern"] = RowBlock(queries.rows, self.full(alpha, columns(attended), base))
            return alpha

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            own = [KeysValues(keyed, k, v, Repeats(len(q)))] if keyed else []
            attended = [*context, *own]
            behind = bool(context) or mixed != tuple(range(len(mixed)))
            if fusible and (not behind or len(mixed) > q.shape[-1]):  # else scores take less room than more keys
                self.watch.scores(q, k, *base.place, "layer", number)
                if asked:
                    form(RowBlock(mixed, q).among(asked), attended)
                visible = None
                if behind:
                    k, v = (
                        torch.cat([each.repeats.gather(getattr(each, name)) for each in attended], 2) for name in "kv"
                    )
                    at = (rows.mixed.rows.on(q.device), indices(tuple(columns(attended)), q.device))
                    visible = layer.visible(*at)
                return nnf.scaled_dot_product_attention(q, k, v, visible, is_causal=not behind, scale=layer.scale)
            return mix(form(RowBlock(mixed, q), attended), attended)

        return attend

    @staticmethod
    def _capturing(block: tuple[int, ...], rows: LayerRows, seen: dict[str, RowBlock]) -> Put:
        """Change nothing, remember everything until the layer is done."""
        held = {"resid": block, "k": rows.keyed.rows.numbers, "v": rows.keyed.rows.numbers}
        held |= {"q": rows.mixed.rows.numbers, "z": rows.mixed.rows.numbers}

        def put(component: str, tensor: Tensor) -> Tensor:
            seen[component] = RowBlock(tuple(held.get(component, rows.leaving.rows.numbers)), tensor)
            return tensor

        return put

    def _entered(self, base: BaseRun, h: Tensor, e: Tensor | None) -> Tensor:
        """What the first layer of a call sees."""
        return self.pieces.enter(h, e, base.loop, base.part)

    def _side(self, base: BaseRun, segment: int) -> SideOf:
        call = 0 if base.part == "prelude" else base.loop

        def side(some: Picked) -> Side:
            return Side(self.tokens(base)[segment].take(tuple(some.rows.numbers))[..., 0], call)

        return side

    def _reading(self, base: BaseRun, block: RowBlock) -> RowBlock:
        """Logits of a state, or of what a coda gives."""
        x = block.data if base.part == "coda" else self.pieces.leave(block.data)
        return RowBlock(block.rows, self.pieces.read(x))
