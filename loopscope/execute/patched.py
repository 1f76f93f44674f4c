"""Patched runs of a bundle, layer by layer, with all their rows in one block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.address import PER_HEAD
from loopscope.execute.bases import BaseRuns
from loopscope.execute.bundles import BASE, OWN, ZEROS, Attending, Bundle, BundleLayer, Earlier, Under
from loopscope.execute.changing import changed
from loopscope.execute.layer import through
from loopscope.execute.places import Picked
from loopscope.execute.rows import KeysValues, Repeats, RowBlock
from loopscope.execute.runs import BaseRun, Part
from loopscope.execute.waves import Wave
from loopscope.pieces import LayerPieces
from loopscope.program import Apply, Map
from loopscope.protocol import Side


class PatchedRuns:
    """Takes bundles through their steps, on top of base runs that are done.

    `captures` and `readings` of patched runs are added to those of the base runs.
    """

    def __init__(self, bases: BaseRuns, given: Mapping[str, Tensor], picked: Tensor, of: int) -> None:
        self.bases, self.pieces, self.plan, self.watch = bases, bases.pieces, bases.plan, bases.watch
        self.given, self.picked, self.of = given, picked, of
        self.states: dict[Bundle, Tensor] = {}
        self.rows = 0

    def compute(self, bundle: Bundle) -> None:
        """One step of a bundle."""
        base, x = bundle.base, None
        if base.part:
            x = self._part(bundle)
        elif bundle.before is not None and bundle.state.total:
            x = self._row_by_row(bundle, self._earlier(bundle, bundle.before, None))
        if x is not None and bundle.state.total:
            self.states[bundle] = x
        if bundle.read is not None:
            assert x is not None
            read = bundle.read.take(x, 1)
            logits = self.pieces.read(read if base.part == "coda" else self.pieces.leave(read))
            first = 0
            for patched, rows in bundle.readers:
                self.bases.readings[patched] = [RowBlock(rows, logits.narrow(1, first, len(rows)))]
                first += len(rows)
        for earlier in bundle.forget:
            self.states.pop(earlier, None)

    def _row_by_row(self, bundle: Bundle, x: Tensor) -> Tensor:
        """A map or a start."""
        if isinstance(bundle.base.step, Map):
            return self.bases.maps[bundle.base.step.name](x)
        assert isinstance(bundle.base.step, Part)
        return self.pieces.start(x, bundle.base.step.start, bundle.positions.on(x.device))

    def _part(self, bundle: Bundle) -> Tensor | None:
        """The prelude, a call or a coda; the state behind it."""
        base, x = bundle.base, None
        if bundle.before is not None:
            x = self._earlier(bundle, bundle.before, self.bases.before.get(base))
            if base.part == "coda":
                x = self.pieces.leave(x)
            elif base.is_call:
                e = None
                if bundle.e is not None:
                    assert base.e is not None
                    e = self._earlier(bundle, bundle.e, self.bases.within(base, base.e))
                x = self.pieces.enter(x, e, base.loop, base.part)
        for number, layer in enumerate(self.plan.sizes.pieces_of(base.part), start=1):
            if number in bundle.layers:
                x = self._layer(bundle, number, layer, x)
        if not bundle.state.total:
            return None
        assert x is not None
        assert bundle.leaves is not None
        h = None
        if bundle.carried is not None:
            h = self._earlier(bundle, bundle.carried, self.bases.before.get(base))
        return self.bases.closed(base, bundle.leaves.take(x, 1), h)

    def _earlier(self, bundle: Bundle, earlier: Earlier, under: list[RowBlock] | None) -> Tensor:
        """Rows of what came before: [examples, rows, ...]."""
        blocks: dict[Hashable, Tensor] = dict(self.states.items())
        if earlier.under is not None:
            assert under is not None
            blocks[BASE] = self._under(bundle, under, earlier.under)
        return earlier.rows.of_blocks(blocks)

    def _under(self, bundle: Bundle, blocks: list[RowBlock], under: Under) -> Tensor:
        """These rows of the base run, for every example."""
        found = self.bases.prefix_groups(bundle.base).rows_of(blocks, under.rows, bundle.input)
        if len(under.rows) == 1:
            return found.expand(-1, len(under.order), *found.shape[2:])
        return under.order.take(found, 1)

    def _layer(self, bundle: Bundle, number: int, layer: LayerPieces, before: Tensor | None) -> Tensor | None:
        base, mine = bundle.base, bundle.layers[number]
        blocks: dict[Hashable, Tensor] = {} if before is None else {OWN: before}
        if mine.under is not None:
            blocks[BASE] = self._under(bundle, self.bases.captures[base, number, "resid"], mine.under)
        if mine.zeros:
            blocks[ZEROS] = self.bases.zero.new_zeros((self.bases.examples, mine.zeros, self.pieces.width))
        x = mine.enter.of_blocks(blocks)
        self.rows += len(x) * mine.counted

        def put(component: str, tensor: Tensor) -> Tensor:
            return self._put(bundle, mine, number, component, 0, tensor)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._attend(bundle, mine, number, layer, q, k, v)

        def side(some: Picked) -> Side:
            every = tuple(range(base.length))
            tokens = self.bases.prefix_groups(base).rows_of(self.bases.tokens(base), every, bundle.input)[..., 0]
            return Side(tokens.index_select(1, some.rows.on(tokens.device)), 0 if base.part == "prelude" else base.loop)

        return through(layer, x, mine.rows, attend, put, self.bases.at(base), side, mine.touches("mlp_hidden"))[0]

    # Attention -------------------------------------------------------------------------------------------------------

    def _attend(
        self, bundle: Bundle, mine: BundleLayer, number: int, layer: LayerPieces, q: Tensor, k: Tensor, v: Tensor
    ) -> Tensor:
        """What the heads give, [examples, H, rows, k], group by group."""
        under = self._context(bundle, number)
        explicit = mine.touches("pattern") or not layer.causal or layer.softcap is not None
        found = []
        for at, group in enumerate(mine.groups):
            queries = q.narrow(2, group.queries, group.count * len(group.mixed))
            own = [each.narrow(2, group.keys, group.count * len(group.keyed)) for each in (k, v)] if group.keyed else []
            context = _among(under, group.context)
            if not explicit and group.fusible(q.shape[-1]):
                found.append(self._fused(bundle, number, layer, group, queries, own, context))
                continue
            alpha = _pattern(queries, own, context, group, layer)
            alpha = self._put(bundle, mine, number, "pattern", at, alpha)
            found.append(_mixed(alpha, own, context, group))
        return found[0] if len(found) == 1 else torch.cat(found, 2)

    def _fused(
        self, bundle: Bundle, number: int, layer: LayerPieces, group: Attending, q: Tensor, own: list[Tensor],
        context: list[KeysValues],
    ) -> Tensor:  # fmt: skip
        """Attention of many rows without its pattern, which would take more room than the keys laid out run by run."""
        q, k, v = (each.unflatten(2, (group.count, -1)).transpose(1, 2).flatten(0, 1) for each in (q, *own))
        self.watch.scores(q, k, *bundle.base.place, "layer", number)
        repeats = [each.repeats.spread(group.count) for each in context]
        k = torch.cat([*(r.gather(each.k) for r, each in zip(repeats, context, strict=True)), k], 2)
        v = torch.cat([*(r.gather(each.v) for r, each in zip(repeats, context, strict=True)), v], 2)
        visible = layer.visible(group.mixed.on(q.device), group.columns.on(q.device)) if context else None
        z = nnf.scaled_dot_product_attention(q, k, v, visible, is_causal=not context, scale=layer.scale)
        return z.unflatten(0, (-1, group.count)).transpose(1, 2).flatten(2, 3)

    def _context(self, bundle: Bundle, number: int) -> list[tuple[RowBlock, RowBlock, Repeats]]:
        """The base run's keys and values, with which of them every example uses."""
        base, found = bundle.base, []
        keys, values = (self.bases.captures.get((base, number, part), []) for part in "kv")
        for segment, k, v in zip(self.bases.prefix_groups(base).segments, keys, values, strict=False):
            repeats = segment.repeats[bundle.input]
            if repeats.index is not None:  # lay the entries out once for the examples, not once for every group
                k, v = RowBlock(k.rows, repeats.gather(k.data)), RowBlock(v.rows, repeats.gather(v.data))
                repeats = Repeats(self.bases.examples)
            found.append((k, v, repeats))
        return found

    # Patches ---------------------------------------------------------------------------------------------------------

    def _put(
        self, bundle: Bundle, mine: BundleLayer, number: int, component: str, group: int, tensor: Tensor
    ) -> Tensor:
        """The component after patches, captured where somebody asks for it; of a pattern, that of a group."""
        columns = mine.groups[group] if component == "pattern" else None
        for wave in mine.waves.get((component, group), ()):
            tensor = self._patched(bundle.base, wave, tensor, columns)
        for run, picked in mine.captured.get((component, group), ()):
            data = picked.take(tensor)
            if columns is not None:
                data = self.bases.full(data, list(columns.columns.numbers), bundle.base)
            self.bases.captures[run, number, component] = [RowBlock(tuple(picked.rows.numbers), data).alone()]
        return tensor

    def _patched(self, base: BaseRun, wave: Wave, tensor: Tensor, group: Attending | None) -> Tensor:
        """A component [examples, (H,) rows, ...] after the patches of a wave."""
        device, change = tensor.device, wave.patch.change
        into = wave.into.on(device)
        where = (slice(None), into) if wave.heads is None else (slice(None), wave.heads.on(device), into)
        value = self._value(base, wave, tensor, group)
        if change is not None and isinstance(change, Apply):
            value = self._applied(base, wave, tensor[where], group)
        elif change is not None:
            value = changed(change, tensor[where], value, self.bases.maps, None)
        assert value is not None
        tensor = tensor.clone()
        tensor[where] = value
        return tensor

    def _value(self, base: BaseRun, wave: Wave, tensor: Tensor, group: Attending | None) -> Tensor | None:
        """What patches put in or add: [examples, places, ...]."""
        site, origin = wave.patch.site, wave.patch.origin
        if origin.given is not None:
            last = base.length if group is not None else tensor.shape[-1]
            heads = site.heads if site.component in PER_HEAD else None
            shape = (self.of, *(() if heads is None else (len(heads),)), len(site.numbers), last)
            found = RowBlock(site.numbers, self.given[origin.given].expand(shape)[self.picked]).take(wave.patch.wanted)
            found = found if heads is None else found.flatten(1, 2)
        elif origin.base is not None:
            found = self.bases.component(
                origin.base, origin.patched, origin.input, site.layer, site.component, wave.rows
            )
            theirs = wave.theirs.on(found.device)
            found = found[:, theirs] if wave.heads is None else found[:, wave.heads.on(found.device), theirs]
        else:
            return None
        if group is not None and list(group.columns.numbers) != list(range(found.shape[-1])):
            found = found.index_select(-1, group.columns.on(found.device))
        return found

    def _applied(self, base: BaseRun, wave: Wave, own: Tensor, group: Attending | None) -> Tensor:
        """What a function makes of a component; it sees whole patterns, and heads and rows on axes of their own."""
        patch = wave.patch
        assert patch.change is not None
        if wave.heads is not None:
            own = own.unflatten(1, (-1, len(patch.wanted)))
        if group is None:
            found = changed(patch.change, own, None, self.bases.maps, None)
        else:
            visible = torch.zeros(len(patch.wanted), base.length, dtype=torch.bool)
            for place, row in enumerate(patch.wanted):
                visible[place, list(self.plan.sight(base, patch.site.layer).seen(frozenset({row})))] = True
            whole = self.bases.full(own, list(group.columns.numbers), base)
            found = changed(patch.change, whole, None, self.bases.maps, visible.to(own.device))
            found = found.index_select(-1, group.columns.on(found.device))
        return found if wave.heads is None else found.flatten(1, 2)


def _among(under: list[tuple[RowBlock, RowBlock, Repeats]], rows: tuple[int, ...]) -> list[KeysValues]:
    """The base run's keys and values of these rows, place by place."""
    found = ((k.among(rows), v.among(rows), repeats) for k, v, repeats in under if rows)
    return [KeysValues(k.rows, k.data, v.data, repeats) for k, v, repeats in found if k.rows]


def _pattern(q: Tensor, own: list[Tensor], context: list[KeysValues], group: Attending, layer: LayerPieces) -> Tensor:
    """alpha of a group's queries [examples, H, runs * rows, k] over the base run's keys and each run's own."""
    count, device = group.count, q.device
    scores = [each.repeats.matmul(q, each.k.transpose(-1, -2)) for each in context]
    if own:
        k = own[0]
        if len(group.mixed) == len(group.keyed) == 1:
            scores.append((q * k).sum(-1, keepdim=True))
        else:
            k = k.unflatten(2, (count, -1)).transpose(-1, -2)
            scores.append((q.unflatten(2, (count, -1)) @ k).flatten(2, 3))
    found = (scores[0] if len(scores) == 1 else torch.cat(scores, -1)) * layer.scale
    if layer.softcap is not None:
        found = layer.softcap * torch.tanh(found / layer.softcap)
    if not (layer.causal and max(group.columns.numbers) <= min(group.mixed.numbers)):
        visible = layer.visible(group.mixed.on(device), group.columns.on(device))
        found = found.unflatten(2, (count, -1)).masked_fill(~visible, -torch.inf).flatten(2, 3)
    return found.softmax(-1)


def _mixed(alpha: Tensor, own: list[Tensor], context: list[KeysValues], group: Attending) -> Tensor:
    """z = alpha V, place by place."""
    sizes = [len(each.rows) for each in context] + ([len(group.keyed)] if own else [])
    slices = alpha.split(sizes, -1)
    found = [each.repeats.matmul(piece, each.v) for piece, each in zip(slices, context, strict=False)]
    if own:
        v, piece = own[1], slices[-1]
        if len(group.mixed) == len(group.keyed) == 1:
            found.append(piece * v)
        else:
            found.append((piece.unflatten(2, (group.count, -1)) @ v.unflatten(2, (group.count, -1))).flatten(2, 3))
    total = found[0]
    for each in found[1:]:
        total = total + each
    return total
