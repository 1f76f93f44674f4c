"""How much is computed at a time, so that it fits the memory, and what a run takes at its peak.

The peak is stated before a run starts.  It is an upper bound on what lies side by side at any time beside the model and
the inputs: states that later steps continue, what is kept for patches, readings, results, and what a layer takes on
the way.  It is found by going through the plan as the engine does, in numbers of one example.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.bundles import Attending, Bundle, BundleLayer, Bundles
from loopscope.execute.plan import Plan
from loopscope.execute.runs import BaseRun, LayerNeed, Part
from loopscope.pieces import LayerPieces, Pieces
from loopscope.protocol import LoopedModel

CPU_BUDGET = 256 * 2**20
"""Bytes of activations held at a time on a CPU.  Small: large blocks cost more in page faults than they save."""

NUMBER = 4
"""Bytes of a number in fp32, the widest that states usually have."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Memory:
    """Bytes that a run holds at its peak beside the model and its inputs, as estimated before it starts.

    It takes `chunk` examples at a time, and of these `stack` patched runs.
    """

    peak: int
    chunk: int
    stack: int

    @property
    def at_once(self) -> int:
        """How many logits are measured at once, so that a metric's work takes little beside the rest."""
        return min(2**24, self.peak // 512)

    def __str__(self) -> str:
        return f"{said(self.peak)} at the peak, {self.chunk} examples and {self.stack} patched runs at a time"


class TooLargeError(InputError):
    """A run that does not fit the memory it was given."""


def said(size: int) -> str:
    """Bytes as people say them."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole = 2 ** (10 * (1 + "KMGT".index(unit[0])))
        if size >= whole:
            return f"{size / whole:.2f} {unit}"
    return f"{size} bytes"


def memory_named(text: str) -> int:
    """Bytes of "8GiB", "512 MiB" or "1000000"; InputError for anything else."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE)
    size = 0 if match is None else int(float(match[1]) * _UNITS[match[2].upper()])
    if size < 1:
        raise InputError(f"cannot read a size of memory from {text!r}; it is written 512MiB, 8GiB or as bytes")
    return size


def fitted(
    plan: Plan,
    pieces: Pieces,
    row: Tensor,
    examples: int,
    chunk: int | None,
    stack: int | None,
    *,
    rows: int,
    reduced: bool,
    memory: int | None,
) -> tuple[Memory, Bundles]:
    """How much to take at a time, and what that takes; `row` is a state, `rows` are read of every run.

    With a budget of `memory` bytes as few patched runs and then as few examples as it needs; TooLargeError where one of
    each does not fit, or those that are given do not.
    """
    with torch.no_grad():
        classes = classes_of(pieces, row)
    one, two = sizes_in_memory(
        plan, pieces.model, row.device, examples, chunk, stack, classes * rows if reduced else 0, memory
    )
    rooms = _Rooms(plan, pieces, row, classes, rows, reduced)
    while True:
        bundles = Bundles(plan, two)
        found = Memory(rooms.peak(bundles, one, examples), one, two)
        if memory is None or found.peak <= memory:
            return found, bundles
        most = max((sum(len(each.runs) for each in bundle.cohorts) for bundle in bundles), default=1)
        if stack is None and most > 1:
            two = most // 2
        elif chunk is None and one > 1:
            one = one // 2
        else:
            raise TooLargeError(
                f"one example at a time takes {said(found.peak)} beside the model, and {said(memory)} are allowed;"
                " shorter inputs, fewer places at a time or, of a sweep, a metric take less"
                if chunk is None and stack is None
                else f"{found}: more than the {said(memory)} that are allowed (leave out chunk and stack)"
            )


def sizes_in_memory(
    plan: Plan,
    model: LoopedModel,
    device: torch.device,
    examples: int,
    chunk: int | None,
    stack: int | None,
    readout: int = 0,
    memory: int | None = None,
) -> tuple[int, int]:
    """(examples at a time, patched runs at a time) that stay inside the memory budget, where they are not given.

    Estimated: what is held for one example (base rows that patched runs need, captured components, states of patched
    runs), and what one layer takes on the way; and, of logits that are reduced as soon as they are there, `readout`
    numbers for every reading.  `memory` is a budget of bytes below the usual one.
    """
    budget = CPU_BUDGET if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 2
    budget = budget if memory is None else min(budget, memory)
    width, heads = model.width, plan.sizes.heads
    length = max(base.length for base in plan.base_runs)
    inner = heads * model.head_size  # all heads of a query, key or value
    widest = max(width, inner, heads * length)
    row = NUMBER * (11 * width + 3 * inner + heads * length)  # one row inside a layer: MLP, q, k, v, scores
    held = NUMBER * readout * len(plan.readings)
    held += max(len(base.inputs) for base in plan.base_runs) * length * row
    for base in plan.base_runs:
        for need in base.layers:
            needed = width * len(need.base_entering_needed) + 2 * inner * len(need.base_keys_needed)
            captured = widest * sum(map(len, need.captured.values()))
            held += NUMBER * len(base.inputs) * (needed + captured)
    states: dict[int, int] = {}  # by loop: two states of every patched run, before and after the call
    most_rows = 1
    of_layers: dict[int, tuple[int, int]] = {}  # runs share layers: captured rows of all of them, most rows of one
    for patched in plan.patched_runs:
        loop = patched.base.loop
        states[loop] = states.get(loop, 0) + 2 * NUMBER * width * len(patched.need)
        if id(patched.layers) not in of_layers:
            captured = sum(len(rows) for need in patched.layers for rows in need.captured.values())
            of_layers[id(patched.layers)] = captured, max((len(need.entering) for need in patched.layers), default=0)
        captured, entering = of_layers[id(patched.layers)]
        held += NUMBER * widest * captured
        most_rows = max(most_rows, entering)
    held += max(states.values(), default=0)
    chunk = chunk or max(1, min(examples, budget // held))
    return chunk, stack or max(1, budget // (chunk * most_rows * row))


_classes: WeakKeyDictionary[LoopedModel, int] = WeakKeyDictionary()


def classes_of(pieces: Pieces, row: Tensor) -> int:
    """How many classes a state is read out to; asked of a model once, since its head may be large."""
    try:
        if pieces.model not in _classes:
            _classes[pieces.model] = pieces.read(pieces.leave(row)).shape[-1]
        return _classes[pieces.model]
    except TypeError:  # a model that cannot be referred to weakly
        return pieces.read(pieces.leave(row)).shape[-1]


class _Rooms:
    """What lies side by side at any time of a run, in numbers of one example."""

    def __init__(self, plan: Plan, pieces: Pieces, row: Tensor, classes: int, rows: int, reduced: bool) -> None:
        self.plan, self.pieces, self.classes, self.rows = plan, pieces, classes, rows
        self.reduced, self.size = reduced, row.element_size()
        self.width, self.state = pieces.width, pieces.state_width
        self.head, self.heads = pieces.model.head_size, plan.sizes.heads
        self.inner = self.heads * self.head
        self.middles = {id(layer.layer): self._middle(layer, row) for layer in _first(pieces)}
        self.middle = max(self.middles.values())
        self.length = max(base.length for base in plan.base_runs)
        self.kept, self.base_peak = self._bases()

    def _middle(self, layer: LayerPieces, row: Tensor) -> int:
        """The width of an MLP inside."""
        own = getattr(self.pieces.model, "middle", None)
        if isinstance(own, int):
            return own
        with torch.no_grad():
            x = row.reshape(1, 1, -1)[..., : self.width]
            return layer.mlp_hidden(x, x).shape[-1] if layer.units else 4 * self.width

    def peak(self, bundles: Bundles, chunk: int, examples: int) -> int:
        """Bytes at the peak for so many examples at a time."""
        one = max(self.base_peak, self._patched(bundles))
        results = len(self.plan.readings) * self.rows * (1 if self.reduced else self.classes)
        kept = sum(
            self._component(site.part, base.length) * len(site.numbers)
            for (_, address), (base, _) in self.plan.places.items()
            for site in [self.plan.resolve(address.site, base)]
        )
        whole = self.size * (chunk * one + 2 * examples * (results + kept))
        return whole * 9 // 8 if self.reduced else whole  # with what a metric takes: see `Memory.at_once`

    # Base runs -------------------------------------------------------------------------------------------------------

    def _bases(self) -> tuple[int, int]:
        """What base runs leave behind for patched ones, and their own peak."""
        uses = Counter(run.parent for run in self.plan.base_runs if run.parent)
        uses.update(run.e for run in self.plan.base_runs if run.e)
        states: dict[BaseRun, int] = {}
        kept = most = 0
        for base in self.plan.base_runs:
            inputs, work = len(base.inputs), 0
            rows = len(base.layers[-1].leaving) if base.layers else base.length
            for number, (need, layer) in enumerate(zip(base.layers, self._pieces(base), strict=True), start=1):
                work = max(work, inputs * self._base_layer(base, number, need, layer))
                kept += inputs * sum(
                    self._component(component, base.length) * len(need.needed_of_base(component) | rows_of)
                    for component in ("resid", "q", "k", "v", "pattern", "z", "attn_out", "mlp_hidden", "mlp_out")
                    if (rows_of := need.captured.get(component, frozenset())) or need.needed_of_base(component)
                )
            kept += inputs * self.state * len(base.before_needed)
            kept += inputs * len(base.read) * (self.classes + 2 * self.width)
            own = inputs * rows * self.state * (2 if base.parent is None or isinstance(base.step, Part) else 1)
            states[base] = own
            most = max(most, kept + work + sum(states.values()) + own)
            if base.parent:
                uses[base.parent] -= 1
            for each in (base, base.parent):
                if each is not None and not uses[each]:
                    states.pop(each, None)
        return kept + sum(states.values()), most

    def _pieces(self, base: BaseRun) -> Sequence[LayerPieces]:
        return self.plan.sizes.pieces_of(base.part) if base.part else ()

    def _base_layer(self, base: BaseRun, number: int, need: LayerNeed, layer: LayerPieces) -> int:
        keyed, mixed = len(need.keyed), len(need.mixed)
        asked = len(need.captured.get("pattern", ()))
        plain = 2 * asked <= mixed and layer.causal and layer.softcap is None
        seen = len(self.plan.sight(base, number).seen(need.mixed)) if need.mixed else 0
        if plain and need.keyed == need.mixed:
            scores = 4 * self.inner * seen + seen * mixed  # keys and values behind a shared beginning, and a mask
            scores = max(scores, 4 * self.heads * min(mixed, self.head) * seen) + 8 * self.heads * asked * seen
        else:
            scores = 4 * self.heads * mixed * seen
        return self._layer(len(need.entering), keyed, mixed, len(need.leaving), scores)

    def _layer(self, entering: int, keyed: int, mixed: int, leaving: int, scores: int) -> int:
        """A layer: what is there to its end, and the most of projections, attention and MLP on top."""
        whole = 3 * self.width * entering + self.inner * (2 * keyed + 2 * mixed) + 3 * self.width * leaving
        projections = 2 * self.width * entering + 4 * self.inner * max(keyed, mixed)
        mlp = leaving * (3 * self.width + 3 * self.middle)
        return whole + max(projections, scores + self.inner * mixed, mlp)

    def _component(self, component: str, length: int) -> int:
        """Numbers of a row of a component, with what a view may keep alive beside it."""
        widths = {"q": self.inner, "k": self.inner, "v": self.inner, "z": self.inner, "mlp_hidden": self.middle}
        width = self.heads * length if component == "pattern" else widths.get(component, self.width)
        return width * 5 // 4

    # Patched runs ----------------------------------------------------------------------------------------------------

    def _patched(self, bundles: Bundles) -> int:
        """The peak of patched runs, on top of what base runs leave behind."""
        states: dict[Bundle, int] = {}
        held = most = self.kept
        for bundle in bundles:
            work = 0
            pieces = self._pieces(bundle.base)
            for number, layer in bundle.layers.items():
                work = max(work, self._bundle_layer(bundle, number, layer, pieces[number - 1]))
                for (component, _), captured in layer.captured.items():
                    held += self._component(component, bundle.base.length) * sum(len(picked) for _, picked in captured)
            states[bundle] = bundle.state.total * self.state
            earlier = (each for each in (bundle.before, bundle.e, bundle.carried) if each is not None)
            work += 3 * self.state * sum(len(each.rows.order) for each in earlier) + states[bundle]
            read = 0 if bundle.read is None else len(bundle.read)
            held += read * self.classes
            most = max(most, held + work + sum(states.values()) + 3 * read * self.width)
            for each in bundle.forget:
                states.pop(each, None)
        return most

    def _bundle_layer(self, bundle: Bundle, number: int, layer: BundleLayer, pieces: LayerPieces) -> int:
        rows = layer.rows
        explicit = layer.touches("pattern") or not pieces.causal or pieces.softcap is not None
        scores = max((self._scores(group, explicit) for group in layer.groups), default=0)
        context = len(bundle.base.layers[number - 1].base_keys_needed)
        scores += 2 * self.inner * context + self.inner * len(rows.mixed)  # laid out for the examples, and all heads' z
        clone = max(self.inner * max(len(rows.mixed), len(rows.keyed)), self.middle * len(rows.leaving))
        patched = clone if layer.waves else 0
        entering, keyed, mixed, leaving = map(len, (layer.enter.order, rows.keyed, rows.mixed, rows.leaving))
        return self._layer(entering, keyed, mixed, leaving, scores) + patched

    def _scores(self, group: Attending, explicit: bool) -> int:
        """Attention of a group: all scores, or keys and values run by run."""
        rows, seen = len(group.mixed), len(group.columns)
        if not explicit and group.fusible(self.head):
            return group.count * self.inner * (2 * rows + 4 * seen) + rows * seen
        return 5 * self.heads * group.count * rows * seen


def _first(pieces: Pieces) -> Iterable[LayerPieces]:
    """The first layer of every part, which stands for those behind it."""
    return [part[0] for part in (pieces.prelude, *pieces.stacks.values(), pieces.coda) if part]
