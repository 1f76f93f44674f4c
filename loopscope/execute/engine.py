"""Carries out a plan on one batch of examples.

Base runs come first, in tree order; then lanes, a bundle at a time: all lanes of one node advance together, layer by
layer, those with the same rows stacked as [examples, lanes, rows, d].  `through` is the only place where a layer is
computed, for base runs and lanes alike.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as nnf
from jaxtyping import Int
from torch import Tensor

from loopscope.address import COMPONENTS, PER_HEAD
from loopscope.execute.plan import MAIN, Lane, LayerNeed, Node, Placed, Plan, ordered
from loopscope.execute.prefixes import Crowd, Inputs
from loopscope.execute.rows import Fan, Part, Slab, columns, mix, patterns
from loopscope.finite import Watch
from loopscope.program import Map
from loopscope.protocol import LoopedLayer, LoopedModel, TokenMap

K = TypeVar("K")
Put = Callable[[str, Tensor, tuple[int, ...], list[int]], Tensor]
"""(component, tensor, its rows, key rows of a pattern) -> the tensor after patches, noted down where asked for."""
See = Callable[[Tensor, Tensor], None]
"""Looks at queries and keys that go into fused attention, which would hide that they are not finite."""


@dataclass(frozen=True)
class Block:
    """States of some lanes that hold the same rows: data [examples, lanes, rows, d]."""

    lanes: tuple[Lane, ...]
    slab: Slab


def through(
    layer: LoopedLayer, x: Slab, need: LayerNeed, context: list[Part], explicit: bool, put: Put, see: See
) -> tuple[Slab | None, Part]:
    """One layer on the rows of x: (the rows that leave it, its keys and values).

    x holds this run's own rows among `need.entering`; keys and values of other rows come from `context`.
    """
    device = x.data.device
    keyed = tuple(r for r in x.rows if r in need.keyed)
    mixed = tuple(r for r in x.rows if r in need.mixed)
    leaving = tuple(r for r in x.rows if r in need.leaving)

    def project(rows: tuple[int, ...], parts: str) -> tuple[Tensor, ...]:
        return layer.project(x.take(rows), torch.tensor(rows, dtype=torch.long, device=device), parts)

    x = Slab(x.rows, put("resid", x.data, x.rows, []))
    q = k = v = x.data[:, None, :0]  # stand in where there are no rows to project
    if keyed and keyed == mixed:
        q, k, v = project(keyed, "qkv")
    else:
        if keyed:
            k, v = project(keyed, "kv")
        if mixed:
            (q,) = project(mixed, "q")
    if keyed:
        k, v = put("k", k, keyed, []), put("v", v, keyed, [])
    own = Part(keyed, k, v, Fan(len(x.data)))
    if not mixed:
        return None, own
    q = put("q", q, mixed, [])
    parts = [*context, own] if keyed else context
    if not explicit and not context and keyed == mixed == tuple(range(len(mixed))):
        see(q, k)
        z = nnf.scaled_dot_product_attention(q, k, v, is_causal=True, scale=layer.scale)
    else:
        alpha = put("pattern", patterns(q, mixed, parts, layer.scale), mixed, columns(parts))
        z = mix(alpha, parts)
    z = put("z", z, mixed, [])
    if not leaving:
        return None, own
    a = put("attn_out", layer.attn_out(Slab(mixed, z).take(leaving)), leaving, [])
    middle = x.take(leaving) + a
    return Slab(leaving, middle + put("mlp_out", layer.mlp_out(middle), leaving, [])), own


class Engine:
    """One batch of examples taken through a plan: those numbered `picked`, out of `of`.

    After `execute`, `logits(node, lane, rows)` and `component(...)` answer for every readout and kept activation that
    the plan foresaw.  `rows` counts the (example, row, layer) triples that were computed.
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
        self.states: dict[Node, list[Slab]] = {}
        self.notes: dict[tuple[Node | Lane, int, str], list[Slab]] = {}
        self.readings: dict[Node | Lane, list[Slab]] = {}
        self.blocks: dict[Lane, tuple[Block, int]] = {}

    def crowd(self, node: Node) -> Crowd:
        """The inputs that this node's base runs on."""
        return self.inputs[node.start is not None].crowd(frozenset(node.inputs))

    def execute(self) -> None:
        """Compute everything the plan asks for."""
        runs: list[Node | Lane] = [*self.plan.order, *self.plan.lanes]
        uses = Counter(run.parent for run in runs if run.parent)
        for node in self.plan.order:
            self._base(node)
            self._release(node, uses, self.states)
        for (_, node), bundle in itertools.groupby(self.plan.lanes, key=lambda lane: (lane.rank, lane.node)):
            lanes = list(bundle)
            self._lanes(node, lanes)
            for lane in lanes:
                self._release(lane, uses, self.blocks)

    @staticmethod
    def _release(run: Node | Lane, uses: Counter[Node | Lane], held: dict[Any, Any]) -> None:
        """Forget states that no later step continues."""
        if not uses[run]:
            held.pop(run, None)
        if run.parent:
            uses[run.parent] -= 1
            if not uses[run.parent]:
                held.pop(run.parent, None)

    # Answers ---------------------------------------------------------------------------------------------------------

    def logits(self, node: Node, lane: Lane | None, rows: tuple[int, ...]) -> Tensor:
        """Readout of a run on its examples: [examples, rows, classes]."""
        return self._assemble(node, lane, rows, self.readings, MAIN)

    def component(
        self, node: Node, lane: Lane | None, name: str, layer: int, component: str, rows: tuple[int, ...]
    ) -> Tensor:
        """A noted component of a run on the input called `name`: [examples, (H,) rows, ...]."""
        runs: list[Node | Lane] = [node] if lane is None else [node, lane]
        notes = {run: self.notes[run, layer, component] for run in runs if (run, layer, component) in self.notes}
        return self._assemble(node, lane, rows, notes, name)

    def _assemble(
        self, node: Node, lane: Lane | None, rows: tuple[int, ...], held: Mapping[Node | Lane, list[Slab]], name: str
    ) -> Tensor:
        """Rows of a lane where it has its own, of its base elsewhere."""
        own = held[lane][0].among(rows) if lane is not None and lane in held else Slab((), torch.empty(0))
        others = tuple(r for r in rows if r not in own.rows)
        if not others:
            return own.take(rows)
        base = self.crowd(node).rows_of(held[node], others, name)
        if not own.rows:
            return base
        return Slab((*own.rows, *others), torch.cat([own.data, base], -2)).take(rows)

    # Base runs -------------------------------------------------------------------------------------------------------

    def _base(self, node: Node) -> None:
        crowd = self.crowd(node)
        if node.parent is None:
            kind = self.inputs[node.start is not None]
            h = kind.distinct if node.start is not None else self.model.embed(kind.distinct)
            x = kind.start(crowd, h)
            self.zero = h.new_zeros(())  # of the dtype and device of all states
        else:
            x = crowd.within(self.states[node.parent], self.crowd(node.parent))
        if isinstance(node.step, Map):
            x = [Slab(slab.rows, self.maps[node.step.name](slab.data)) for slab in x]
        elif node.is_call:
            x = self._base_call(node, crowd, x)
        self.states[node] = x
        if node.read:
            self.readings[node] = [self._reading(slab.among(ordered(node.read))) for slab in x]

    def _base_call(self, node: Node, crowd: Crowd, x: list[Slab]) -> list[Slab]:
        for number, (layer, need) in enumerate(zip(self.model.layers, node.layers, strict=True), start=1):
            see = self._see(node, number)
            context: list[Part] = []
            after: list[Slab] = []
            for slab in x:
                slab = slab.among(ordered(need.entering))
                seen: dict[str, Slab] = {}
                self._count(len(slab.data), slab.rows, need)
                out, own = through(layer, slab, need, context, "pattern" in need.noted, self._noting(seen), see)
                after.append(out or Slab((), slab.data[..., :0, :]))
                context = [Part(own.rows, own.k, own.v, crowd.fan)] if own.rows else []
                for component in COMPONENTS:
                    lent = {"resid": need.lent_entering, "k": need.lent_keys, "v": need.lent_keys}.get(component, set())
                    wanted = lent | need.noted.get(component, set())
                    if wanted:
                        held = seen.get(component, Slab((), slab.data)).among(ordered(wanted))
                        self.notes.setdefault((node, number, component), []).append(held.alone())
            x = after
        return [Slab(slab.rows, self._closed(node, slab.data)) for slab in x]

    def _closed(self, node: Node, h: Tensor) -> Tensor:
        """States after the last layer as F leaves them; looked at before a norm can hide what is in them."""
        self.watch.see(h, "loop", node.loop)
        return self.model.close(h)

    def _noting(self, seen: dict[str, Slab]) -> Put:
        """Change nothing, remember everything until the layer is done."""

        def put(component: str, tensor: Tensor, rows: tuple[int, ...], keys: list[int]) -> Tensor:
            seen[component] = Slab(rows, self._full(tensor, keys) if component == "pattern" else tensor)
            return tensor

        return put

    # Lanes -----------------------------------------------------------------------------------------------------------

    def _lanes(self, node: Node, lanes: list[Lane]) -> None:
        if isinstance(node.step, Map):
            step = self.maps[node.step.name]
            for rows, group in _grouped([lane for lane in lanes if lane.need], lambda lane: ordered(lane.need)).items():
                before = self._collect([lane.parent for lane in group if lane.parent], rows)
                self._hold(group, rows, step(before))
        else:
            self._lane_call(node, lanes)
        for lane in lanes:
            if lane.read:
                block, at = self.blocks[lane]
                own = Slab(block.slab.rows, block.slab.data[:, at]).among(ordered(lane.read))
                self.readings[lane] = [self._reading(own)]

    def _lane_call(self, node: Node, lanes: list[Lane]) -> None:
        for lane in lanes:
            if lane.parent in self.blocks:
                self.blocks[lane] = self.blocks[lane.parent]
        for number, layer in enumerate(self.model.layers, start=1):
            active = [lane for lane in lanes if lane.layers[number - 1].entering]
            for alike in _grouped(active, partial(_signature, number=number)).values():
                for start in range(0, len(alike), self.stack):
                    self._lane_layer(node, number, layer, alike[start : start + self.stack])
        held = [lane for lane in lanes if lane.need]
        for group in _grouped(held, lambda lane: id(self.blocks[lane][0])).values():
            block = self.blocks[group[0]][0]
            self._hold(list(block.lanes), block.slab.rows, self._closed(node, block.slab.data))

    def _lane_layer(self, node: Node, number: int, layer: LoopedLayer, lanes: list[Lane]) -> None:
        """One layer for lanes of one node that compute the same rows."""
        pattern, count = lanes[0], len(lanes)
        need = pattern.layers[number - 1]
        rows = ordered(need.entering)
        crowd = self.crowd(node)
        x = self._entering(node, number, lanes, rows)
        context = [] if not need.mixed else self._context(node, number, crowd, pattern, count)
        explicit = any(
            "pattern" in lane.layers[number - 1].noted or Plan.patched(lane.patches[number - 1], "pattern")
            for lane in lanes
        )
        self._count(len(x), rows, need)
        out, _ = through(
            layer, Slab(rows, x), need, context, explicit, self._patching(lanes, number), self._see(node, number)
        )
        if out is not None:
            self._hold(lanes, out.rows, out.data.unflatten(0, (self.examples, count)))

    def _entering(self, node: Node, number: int, lanes: list[Lane], rows: tuple[int, ...]) -> Tensor:
        """The layer's input, [examples * lanes, rows, d]: own rows where lanes differ, the base's elsewhere.

        Rows about to be replaced by a resid patch are left at zero.
        """
        pattern = lanes[0]
        patched = Plan.patched(pattern.patches[number - 1], "resid")
        own = tuple(r for r in rows if r in pattern.entering[number - 1] and r not in patched)
        base = tuple(r for r in rows if r not in pattern.differs[number - 1])
        if own == rows:
            return self._collect(lanes, rows).flatten(0, 1)
        shape = (self.examples, len(lanes), len(rows), self.model.width)
        pieces = []
        if own:
            pieces.append(Slab(own, self._collect(lanes, own)))
        if base:
            below = self.crowd(node).rows_of(self.notes[node, number, "resid"], base, pattern.input)
            pieces.append(Slab(base, below[:, None].expand(-1, len(lanes), -1, -1)))
        x = self.zero.new_zeros(shape)
        places = {row: place for place, row in enumerate(rows)}
        for piece in pieces:
            x[:, :, [places[r] for r in piece.rows]] = piece.data
        return x.flatten(0, 1)

    def _context(self, node: Node, number: int, crowd: Crowd, lane: Lane, count: int) -> list[Part]:
        """The base's keys and values that these lanes see beside their own."""
        need = lane.layers[number - 1]
        wanted = ordered(set(range(max(need.mixed) + 1)) - need.keyed)
        parts = []
        if wanted:
            keys, values = self.notes[node, number, "k"], self.notes[node, number, "v"]
            for segment, k, v in zip(crowd.segments, keys, values, strict=True):
                k, v, fan = k.among(wanted), v.among(wanted), segment.looks[lane.input]
                if not k.rows:
                    continue
                if fan.index is not None:  # lay the entries out once for the examples, not once for every lane
                    k, v = Slab(k.rows, fan.gather(k.data)), Slab(v.rows, fan.gather(v.data))
                    fan = Fan(self.examples)
                parts.append(Part(k.rows, k.data, v.data, fan.spread(count)))
        return parts

    def _patching(self, lanes: list[Lane], number: int) -> Put:
        """Apply each lane's own patches, and note what others want of it."""

        def put(component: str, tensor: Tensor, rows: tuple[int, ...], keys: list[int]) -> Tensor:
            by_lane = tensor.unflatten(0, (self.examples, len(lanes)))
            written = False
            for at, lane in enumerate(lanes):
                for patch in lane.patches[number - 1]:
                    if patch.site.component == component and patch.wanted:
                        if not written:
                            by_lane = by_lane.clone()
                            written = True
                        self._replace(by_lane[:, at], patch, rows, keys)
                if component in lane.layers[number - 1].noted:
                    data = self._full(by_lane[:, at], keys) if component == "pattern" else by_lane[:, at]
                    noted = Slab(rows, data).among(ordered(lane.layers[number - 1].noted[component]))
                    self.notes[lane, number, component] = [noted.alone()]
            return by_lane.flatten(0, 1) if written else tensor

        return put

    def _replace(self, tensor: Tensor, patch: Placed, rows: tuple[int, ...], keys: list[int]) -> None:
        """Write a patch into tensor [examples, (H,) rows, ...] in place."""
        site, origin = patch.site, patch.origin
        places = {row: place for place, row in enumerate(rows)}
        at = torch.tensor([places[r] for r in patch.wanted], device=tensor.device)
        heads = torch.tensor(site.heads, device=tensor.device) if site.component in PER_HEAD else None
        if origin.given is not None:
            all_rows = site.rows or ()
            last = self.plan.sizes.rows if site.component == "pattern" else tensor.shape[-1]
            shape = (self.of, *(() if heads is None else (len(heads),)), len(all_rows), last)
            value = Slab(all_rows, self.given[origin.given].expand(shape)[self.picked]).take(patch.wanted)
        else:
            assert origin.node is not None
            value = self.component(origin.node, origin.lane, origin.input, site.layer, site.component, patch.wanted)
            value = value if heads is None else value[:, heads]
        if site.component == "pattern" and keys != list(range(value.shape[-1])):
            value = value[..., keys]
        if heads is None:
            tensor[:, at] = value
        else:
            tensor[:, heads[:, None], at] = value

    # Small things ----------------------------------------------------------------------------------------------------

    def _collect(self, lanes: list[Lane], rows: tuple[int, ...]) -> Tensor:
        """These rows of these lanes' states: [examples, lanes, rows, d]."""
        pieces = []
        for _, run in itertools.groupby(lanes, key=lambda lane: id(self.blocks[lane][0])):
            group = list(run)
            block = self.blocks[group[0]][0]
            at = [self.blocks[lane][1] for lane in group]
            data = block.slab.take(rows)
            pieces.append(data if at == list(range(data.shape[1])) else data[:, at])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def _hold(self, lanes: list[Lane], rows: tuple[int, ...], data: Tensor) -> None:
        block = Block(tuple(lanes), Slab(rows, data))
        for at, lane in enumerate(lanes):
            self.blocks[lane] = (block, at)

    def _see(self, node: Node, number: int) -> See:
        return lambda q, k: self.watch.scores(q, k, "loop", node.loop, "layer", number)

    def _reading(self, slab: Slab) -> Slab:
        return Slab(slab.rows, self.model.read(slab.data))

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


def _grouped(lanes: list[Lane], key: Callable[[Lane], K]) -> dict[K, list[Lane]]:
    """Lanes with equal keys together, in order of first appearance."""
    groups: dict[K, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(key(lane), []).append(lane)
    return groups


def _signature(lane: Lane, number: int) -> tuple[object, ...]:
    """What lanes must agree on to be stacked in one layer."""
    need = lane.layers[number - 1]
    return (
        lane.input,
        ordered(need.entering),
        ordered(need.keyed),
        ordered(need.mixed),
        ordered(need.leaving),
        lane.entering[number - 1],
        lane.differs[number - 1],
        Plan.patched(lane.patches[number - 1], "resid"),
    )
