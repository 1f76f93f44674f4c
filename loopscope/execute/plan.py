"""What must be computed for a set of programs, and no more.

Programs without their patches form a tree: equal beginnings are one `Node`.  A node's **base** is the unpatched run up
to there.  Every patched run with the same steps is a `Lane` of that node.  A lane differs from its base only

- from its first patch on (before that it *is* the base), and
- with causal attention, only in rows a patch can have reached: a row that differs reaches, through its key and value,
  the rows after it.

So a lane computes its differing rows alone, against the base's keys and values for the others.  A second sweep, from
the readouts backwards, drops what nobody asks for: when only the last row is read, the last layer needs keys and values
everywhere but queries, mixing, output projection and MLP for that row alone.

This module decides which rows each node and lane computes in which layer.  It touches no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from loopscope.address import COMPONENTS, Address, Site
from loopscope.program import Call, F, Given, Map, Patch, Program, Step

MAIN = "main"
"""Name of the input that the programs themselves run on."""

Rows = frozenset[int]
NONE: Rows = frozenset()


def ordered(rows: Iterable[int]) -> tuple[int, ...]:
    """Rows as a sorted tuple, the order in which tensors hold them."""
    return tuple(sorted(rows))


@dataclass(frozen=True)
class Sizes:
    """What the plan must know of the model and the input."""

    layers: int
    heads: int
    rows: int


@dataclass
class LayerNeed:
    """Rows that one run must produce in one layer of one call.

    `entering` rows are needed as the layer's input, `keyed` rows get keys and values, `mixed` rows attend, and
    `leaving` rows go through the MLP to the next layer.  `noted` are components that patches elsewhere or the user ask
    for; `lent_entering` and `lent_keys` are rows of the base that lanes stand on.
    """

    entering: set[int] = field(default_factory=set)
    keyed: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    noted: dict[str, set[int]] = field(default_factory=dict)
    lent_entering: set[int] = field(default_factory=set)
    lent_keys: set[int] = field(default_factory=set)

    def note(self, component: str, rows: Iterable[int]) -> None:
        """Ask for a component of these rows."""
        self.noted.setdefault(component, set()).update(rows)

    def noted_rows(self, *components: str) -> set[int]:
        """Rows asked for under any of these components."""
        return set().union(*(self.noted.get(component, ()) for component in components))


@dataclass(frozen=True)
class Origin:
    """Where a patch takes its value: a run (node, lane or base, input) at the patch's own site, or a given tensor."""

    node: Node | None
    lane: Lane | None
    input: str
    given: str | None = None


@dataclass
class Placed:
    """A patch with heads and rows written out, and its origin.  `wanted` are the rows that matter to anybody."""

    site: Site
    origin: Origin
    wanted: tuple[int, ...] = ()


@dataclass(eq=False)
class Node:
    """The base run up to one step."""

    parent: Node | None
    step: Step | None
    loop: int
    start: int | None
    children: dict[Step, Node] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    lanes: dict[tuple[str, Lane | None, Step], Lane] = field(default_factory=dict)
    need: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    layers: list[LayerNeed] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        """Whether this node's step is a call of F."""
        return isinstance(self.step, Call)


@dataclass(eq=False)
class Lane:
    """A patched run at one node, on one input.  `parent` is the same lane one step before, None before its first patch.

    Rows that may differ from the base, for each layer of the call: `entering` it, `differs` after its resid patches,
    and `reached` by the time they leave it.  `rank` is above that of every lane that patches take values from.
    """

    node: Node
    input: str
    parent: Lane | None
    rank: int
    patches: list[list[Placed]] = field(default_factory=list)
    entering: list[Rows] = field(default_factory=list)
    differs: list[Rows] = field(default_factory=list)
    reached: list[Rows] = field(default_factory=list)
    differing: Rows = NONE  # in the state after this step
    need: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    layers: list[LayerNeed] = field(default_factory=list)


class Plan:
    """The tree of runs for some programs, with what each must compute.

    `order` lists nodes parents first; `lanes` lists lanes so that parents and sources come first.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        sizes: Sizes,
        reads: Mapping[Program, Iterable[str]],
        read_rows: tuple[int, ...],
        keep: Mapping[Program, Iterable[Address]],
    ) -> None:
        self.sizes = sizes
        self.roots: dict[int | None, Node] = {}
        self.paths: dict[Program, list[tuple[Node, Lane | None]]] = {}
        for program in programs:
            self.paths[program] = self._walk(program, MAIN, len(program.steps))
        self.order = list(self._nodes())
        depth_first = {node: index for index, node in enumerate(self.order)}
        every = [lane for node in self.order for lane in node.lanes.values()]
        self.lanes = sorted(every, key=lambda lane: (lane.rank, depth_first[lane.node]))
        for program, path in self.paths.items():
            for point in reads[program]:
                node, lane = path[program.points.index(point)]
                mine = set(read_rows) & lane.differing if lane else set()
                node.read.update(set(read_rows) - mine)
                if lane:
                    lane.read.update(mine)
            for address in keep[program]:
                node, lane = path[program.index_of(address.loop) + 1]
                site = self.resolve(address.site)
                (node if lane is None else lane).layers[site.layer - 1].note(site.component, site.rows or ())
        runs: list[Node | Lane] = [*self.order, *self.lanes]
        for run in runs:
            run.need |= run.read
        for lane in reversed(self.lanes):
            self._demand_lane(lane)
        for node in reversed(self.order):
            self._demand_base(node)

    def resolve(self, site: Site) -> Site:
        """The site with heads and rows written out; raises InputError when the model has no such place."""
        return site.resolve(layers=self.sizes.layers, heads=self.sizes.heads, rows=self.sizes.rows)

    @property
    def calls(self) -> int:
        """Distinct calls of F, base (once for every input it runs on) or patched."""
        base = sum(len(node.inputs) for node in self.order if node.is_call)
        return base + sum(lane.node.is_call for lane in self.lanes)

    @property
    def rows(self) -> int:
        """(row, layer) pairs computed for one example and the inputs beside it, before examples share anything."""
        base = sum(len(node.inputs) * len(need.keyed | need.mixed) for node in self.order for need in node.layers)
        return base + sum(len(need.keyed | need.mixed) for lane in self.lanes for need in lane.layers)

    # Building the tree -----------------------------------------------------------------------------------------------

    def _nodes(self) -> Iterator[Node]:
        stack = list(reversed(self.roots.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def _walk(self, program: Program, name: str, steps: int) -> list[tuple[Node, Lane | None]]:
        """Nodes and lanes along the first `steps` steps of a program on one input, made where they are missing."""
        node = self.roots.setdefault(program.start, Node(None, None, program.start or 0, program.start))
        node.inputs.add(name)
        lane: Lane | None = None
        path = [(node, lane)]
        for step in program.steps[:steps]:
            bare: Step = F if isinstance(step, Call) else step
            if bare not in node.children:
                fresh = Node(node, bare, node.loop + isinstance(bare, Call), program.start)
                fresh.layers = [LayerNeed() for _ in range(self.sizes.layers)] if fresh.is_call else []
                node.children[bare] = fresh
            node = node.children[bare]
            node.inputs.add(name)
            if lane is not None or (isinstance(step, Call) and step.patches):
                key = (name, lane, step)
                if key not in node.lanes:
                    node.lanes[key] = self._lane(node, name, lane, step)
                lane = node.lanes[key]
            path.append((node, lane))
        return path

    def _lane(self, node: Node, name: str, parent: Lane | None, step: Step) -> Lane:
        lane = Lane(node, name, parent, rank=max(1, parent.rank if parent else 1))
        before = parent.differing if parent else NONE
        if isinstance(step, Map):
            lane.differing = before
            return lane
        lane.layers = [LayerNeed() for _ in range(self.sizes.layers)]
        lane.patches = [[] for _ in range(self.sizes.layers)]
        for patch in step.patches:
            placed = self._place(patch, node, name)
            lane.patches[placed.site.layer - 1].append(placed)
            if placed.origin.lane is not None:
                lane.rank = max(lane.rank, 1 + placed.origin.lane.rank)
        for patches in lane.patches:
            rows = {component: Plan.patched(patches, component) for component in COMPONENTS}
            lane.entering.append(before)
            differs = before | rows["resid"]
            lane.differs.append(differs)
            keyed = differs | rows["k"] | rows["v"]
            seeing = frozenset(range(min(keyed), self.sizes.rows)) if keyed else NONE
            before = seeing.union(*(rows[component] for component in ("q", "pattern", "z", "attn_out", "mlp_out")))
            lane.reached.append(before)
        lane.differing = before
        return lane

    def _place(self, patch: Patch, node: Node, name: str) -> Placed:
        site, source = self.resolve(patch.site), patch.source
        if isinstance(source, Given):
            return Placed(site, Origin(None, None, name, source.name))
        giver = name if source.input is None else source.input
        steps = source.program.index_of(node.loop if source.loop is None else source.loop) + 1
        where, lane = self._walk(source.program, giver, steps)[-1]
        return Placed(site, Origin(where, lane, giver))

    @staticmethod
    def patched(patches: list[Placed], *components: str) -> Rows:
        """Rows in which any of these components is patched."""
        return frozenset(r for p in patches if p.site.component in components for r in p.site.rows or ())

    # Dropping what nobody asks for -----------------------------------------------------------------------------------

    def _demand_lane(self, lane: Lane) -> None:
        base, wanted = lane.node, lane.need
        assert wanted <= lane.differing
        if not base.is_call:
            assert lane.parent is not None
            lane.parent.need |= wanted
            return
        for index in reversed(range(self.sizes.layers)):
            need, below = lane.layers[index], base.layers[index]
            differs, reached, patches = lane.differs[index], lane.reached[index], lane.patches[index]
            keyed = differs | Plan.patched(patches, "k", "v")
            own = {"resid": differs, "k": keyed, "v": keyed}
            for component, rows in need.noted.items():
                below.note(component, rows - own.get(component, reached))
                rows &= own.get(component, reached)
            need.leaving = wanted | need.noted_rows("attn_out", "mlp_out")
            need.mixed = need.leaving | need.noted_rows("q", "pattern", "z")
            last = max(need.mixed, default=-1)
            need.keyed = {r for r in keyed if r <= last} | need.noted_rows("k", "v")
            below.lent_keys |= set(range(last + 1)) - need.keyed
            need.entering = need.mixed | need.keyed | need.noted_rows("resid")
            below.lent_entering |= need.entering - differs
            for patch in patches:
                self._want(patch, need)
            wanted = (need.entering & lane.entering[index]) - Plan.patched(patches, "resid")
        if lane.parent is not None:
            lane.parent.need |= wanted

    @staticmethod
    def _want(patch: Placed, need: LayerNeed) -> None:
        """Ask the patch's origin for the rows that matter here."""
        component = patch.site.component
        by_stage = {"resid": need.entering, "k": need.keyed, "v": need.keyed}
        relevant = by_stage.get(component, need.leaving if component in ("attn_out", "mlp_out") else need.mixed)
        patch.wanted = tuple(r for r in patch.site.rows or () if r in relevant)
        giver = patch.origin.node if patch.origin.lane is None else patch.origin.lane
        if giver is not None and patch.wanted:
            giver.layers[patch.site.layer - 1].note(component, patch.wanted)

    def _demand_base(self, node: Node) -> None:
        wanted = node.need
        if node.is_call:
            for need in reversed(node.layers):
                need.leaving = wanted | need.noted_rows("attn_out", "mlp_out")
                need.mixed = need.leaving | need.noted_rows("q", "pattern", "z")
                need.keyed = set(range(max(need.mixed, default=-1) + 1)) | need.noted_rows("k", "v") | need.lent_keys
                need.entering = need.mixed | need.keyed | need.noted_rows("resid") | need.lent_entering
                wanted = need.entering
        if node.parent is not None:
            node.parent.need |= wanted
