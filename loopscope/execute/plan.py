"""What must be computed for a set of programs, and no more.

A **base run** is a program without its patches.  Base runs form a tree: programs that begin alike share their
beginning, and every step after it is one `BaseRun`.  A **patched run** follows a base run step by step, with patches; a
`PatchedRun` is one step of it.  It differs from its base run only

- from its first patch on: before that it *is* the base run, and
- in rows that a patch can have reached: with causal attention, a row that differs reaches, through its key and value,
  the rows after it.  These rows are the **cone** of the patch.

So a patched run computes its cone alone, and takes the base run's keys and values for all other rows.

A second pass goes from the readouts backwards and drops what nobody asks for.  Say only the last row is read: then the
last layer needs keys and values of all rows, but queries, output projection and MLP of that row alone.

This module decides which rows each run computes in which layer.  It touches no tensors.
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

    - `entering` rows are needed as the layer's input, `keyed` rows get keys and values, `mixed` rows attend to them,
      and `leaving` rows go through the MLP to the next layer.
    - `captured` are rows of components that a patch elsewhere, or the user, asks for.
    - Of a base run, `base_entering_needed` and `base_keys_needed` are rows that its patched runs take from it: as the
      layer's input, and as keys and values.
    """

    entering: set[int] = field(default_factory=set)
    keyed: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    captured: dict[str, set[int]] = field(default_factory=dict)
    base_entering_needed: set[int] = field(default_factory=set)
    base_keys_needed: set[int] = field(default_factory=set)

    def capture(self, component: str, rows: Iterable[int]) -> None:
        """Ask for a component of these rows."""
        self.captured.setdefault(component, set()).update(rows)

    def needed_of_base(self, component: str) -> set[int]:
        """Rows of this component that patched runs take from the base run."""
        if component == "resid":
            return self.base_entering_needed
        return self.base_keys_needed if component in ("k", "v") else set()

    def captured_rows(self, *components: str) -> set[int]:
        """Rows asked for under any of these components."""
        return set().union(*(self.captured.get(component, ()) for component in components))


@dataclass(frozen=True)
class Origin:
    """Where a patch takes its value: the same site in a run on an input, or a given tensor.

    The run is `patched`, or `base` where that is None.
    """

    base: BaseRun | None
    patched: PatchedRun | None
    input: str
    given: str | None = None


@dataclass
class PlacedPatch:
    """A patch with heads and rows written out, and its origin.  `wanted` are the rows that matter to anybody."""

    site: Site
    origin: Origin
    wanted: tuple[int, ...] = ()


@dataclass(eq=False)
class BaseRun:
    """One step of an unpatched run, and what it must compute.

    `loop` counts the calls up to here; `start` is the number of the given state it began with, None for tokens.
    `need` are rows of its state that anybody uses, `read` those that are read out.
    """

    parent: BaseRun | None
    step: Step | None
    loop: int
    start: int | None
    children: dict[Step, BaseRun] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    patched_runs: dict[tuple[str, PatchedRun | None, Step], PatchedRun] = field(default_factory=dict)
    need: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    layers: list[LayerNeed] = field(default_factory=list)

    @property
    def is_call(self) -> bool:
        """Whether this step is a call of F."""
        return isinstance(self.step, Call)


@dataclass(eq=False)
class PatchedRun:
    """One step of a patched run on one input.  `parent` is the step before, None where this has the first patch.

    Rows that may differ from the base run, for each layer of the call: `entering` it, `differs` after its resid
    patches, and `reached` by the time they leave it.  `rank` is above that of every run that patches take values from.
    """

    base: BaseRun
    input: str
    parent: PatchedRun | None
    rank: int
    patches: list[list[PlacedPatch]] = field(default_factory=list)
    entering: list[Rows] = field(default_factory=list)
    differs: list[Rows] = field(default_factory=list)
    reached: list[Rows] = field(default_factory=list)
    differing: Rows = NONE  # in the state after this step
    need: set[int] = field(default_factory=set)
    read: set[int] = field(default_factory=set)
    layers: list[LayerNeed] = field(default_factory=list)


class Plan:
    """The tree of runs for some programs, with what each must compute.

    `base_runs` lists parents first; `patched_runs` lists parents and sources of patches first.  `paths` are the steps
    of each program: the base run, and the patched run from the first patch on.
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
        self.roots: dict[int | None, BaseRun] = {}
        self.paths: dict[Program, list[tuple[BaseRun, PatchedRun | None]]] = {}
        for program in programs:
            self.paths[program] = self._walk(program, MAIN, len(program.steps))
        self.base_runs = list(self._parents_first())
        depth_first = {base: index for index, base in enumerate(self.base_runs)}
        every = [patched for base in self.base_runs for patched in base.patched_runs.values()]
        self.patched_runs = sorted(every, key=lambda patched: (patched.rank, depth_first[patched.base]))
        for program, path in self.paths.items():
            for point in reads[program]:
                base, patched = path[program.points.index(point)]
                mine = set(read_rows) & patched.differing if patched else set()
                base.read.update(set(read_rows) - mine)
                if patched:
                    patched.read.update(mine)
            for address in keep[program]:
                base, patched = path[program.index_of(address.loop) + 1]
                site = self.resolve(address.site)
                (base if patched is None else patched).layers[site.layer - 1].capture(site.component, site.rows or ())
        runs: list[BaseRun | PatchedRun] = [*self.base_runs, *self.patched_runs]
        for run in runs:
            run.need |= run.read
        for patched in reversed(self.patched_runs):
            self._demand_patched(patched)
        for base in reversed(self.base_runs):
            self._demand_base(base)

    def resolve(self, site: Site) -> Site:
        """The site with heads and rows written out; raises InputError when the model has no such place."""
        return site.resolve(layers=self.sizes.layers, heads=self.sizes.heads, rows=self.sizes.rows)

    @property
    def calls(self) -> int:
        """Distinct calls of F, base (once for every input it runs on) or patched."""
        unpatched = sum(len(base.inputs) for base in self.base_runs if base.is_call)
        return unpatched + sum(patched.base.is_call for patched in self.patched_runs)

    @property
    def rows(self) -> int:
        """(row, layer) pairs computed for one example and the inputs beside it, before examples share anything."""
        unpatched = sum(
            len(base.inputs) * len(need.keyed | need.mixed) for base in self.base_runs for need in base.layers
        )
        return unpatched + sum(len(need.keyed | need.mixed) for patched in self.patched_runs for need in patched.layers)

    # Building the tree -----------------------------------------------------------------------------------------------

    def _parents_first(self) -> Iterator[BaseRun]:
        stack = list(reversed(self.roots.values()))
        while stack:
            base = stack.pop()
            yield base
            stack.extend(reversed(base.children.values()))

    def _walk(self, program: Program, name: str, steps: int) -> list[tuple[BaseRun, PatchedRun | None]]:
        """The runs along the first `steps` steps of a program on one input, made where they are missing."""
        base = self.roots.setdefault(program.start, BaseRun(None, None, program.start or 0, program.start))
        base.inputs.add(name)
        patched: PatchedRun | None = None
        path = [(base, patched)]
        for step in program.steps[:steps]:
            bare: Step = F if isinstance(step, Call) else step
            if bare not in base.children:
                new_run = BaseRun(base, bare, base.loop + isinstance(bare, Call), program.start)
                new_run.layers = [LayerNeed() for _ in range(self.sizes.layers)] if new_run.is_call else []
                base.children[bare] = new_run
            base = base.children[bare]
            base.inputs.add(name)
            if patched is not None or (isinstance(step, Call) and step.patches):
                key = (name, patched, step)
                if key not in base.patched_runs:
                    base.patched_runs[key] = self._patched(base, name, patched, step)
                patched = base.patched_runs[key]
            path.append((base, patched))
        return path

    def _patched(self, base: BaseRun, name: str, parent: PatchedRun | None, step: Step) -> PatchedRun:
        patched = PatchedRun(base, name, parent, rank=max(1, parent.rank if parent else 1))
        before = parent.differing if parent else NONE
        if isinstance(step, Map):
            patched.differing = before
            return patched
        patched.layers = [LayerNeed() for _ in range(self.sizes.layers)]
        patched.patches = [[] for _ in range(self.sizes.layers)]
        for patch in step.patches:
            placed_patch = self._place(patch, base, name)
            patched.patches[placed_patch.site.layer - 1].append(placed_patch)
            if placed_patch.origin.patched is not None:
                patched.rank = max(patched.rank, 1 + placed_patch.origin.patched.rank)
        for patches in patched.patches:
            rows = {component: Plan.patched_rows(patches, component) for component in COMPONENTS}
            patched.entering.append(before)
            differs = before | rows["resid"]
            patched.differs.append(differs)
            keyed = differs | rows["k"] | rows["v"]
            seeing = frozenset(range(min(keyed), self.sizes.rows)) if keyed else NONE
            before = seeing.union(*(rows[component] for component in ("q", "pattern", "z", "attn_out", "mlp_out")))
            patched.reached.append(before)
        patched.differing = before
        return patched

    def _place(self, patch: Patch, base: BaseRun, name: str) -> PlacedPatch:
        site, source = self.resolve(patch.site), patch.source
        if isinstance(source, Given):
            return PlacedPatch(site, Origin(None, None, name, source.name))
        giver = name if source.input is None else source.input
        steps = source.program.index_of(base.loop if source.loop is None else source.loop) + 1
        where, patched = self._walk(source.program, giver, steps)[-1]
        return PlacedPatch(site, Origin(where, patched, giver))

    @staticmethod
    def patched_rows(patches: list[PlacedPatch], *components: str) -> Rows:
        """Rows in which any of these components is patched."""
        return frozenset(r for p in patches if p.site.component in components for r in p.site.rows or ())

    # Dropping what nobody asks for -----------------------------------------------------------------------------------

    def _demand_patched(self, patched: PatchedRun) -> None:
        base, wanted = patched.base, patched.need
        assert wanted <= patched.differing
        if not base.is_call:
            assert patched.parent is not None
            patched.parent.need |= wanted
            return
        for index in reversed(range(self.sizes.layers)):
            need, under = patched.layers[index], base.layers[index]
            differs, reached, patches = (
                patched.differs[index],
                patched.reached[index],
                patched.patches[index],
            )
            keyed = differs | Plan.patched_rows(patches, "k", "v")
            own = {"resid": differs, "k": keyed, "v": keyed}
            for component, rows in need.captured.items():
                under.capture(component, rows - own.get(component, reached))
                rows &= own.get(component, reached)
            need.leaving = wanted | need.captured_rows("attn_out", "mlp_out")
            need.mixed = need.leaving | need.captured_rows("q", "pattern", "z")
            last = max(need.mixed, default=-1)
            need.keyed = {r for r in keyed if r <= last} | need.captured_rows("k", "v")
            under.base_keys_needed |= set(range(last + 1)) - need.keyed
            need.entering = need.mixed | need.keyed | need.captured_rows("resid")
            under.base_entering_needed |= need.entering - differs
            for patch in patches:
                self._want(patch, need)
            wanted = (need.entering & patched.entering[index]) - Plan.patched_rows(patches, "resid")
        if patched.parent is not None:
            patched.parent.need |= wanted

    @staticmethod
    def _want(patch: PlacedPatch, need: LayerNeed) -> None:
        """Ask the patch's origin for the rows that matter here."""
        component = patch.site.component
        by_stage = {"resid": need.entering, "k": need.keyed, "v": need.keyed}
        relevant = by_stage.get(component, need.leaving if component in ("attn_out", "mlp_out") else need.mixed)
        patch.wanted = tuple(r for r in patch.site.rows or () if r in relevant)
        giver = patch.origin.base if patch.origin.patched is None else patch.origin.patched
        if giver is not None and patch.wanted:
            giver.layers[patch.site.layer - 1].capture(component, patch.wanted)

    def _demand_base(self, base: BaseRun) -> None:
        wanted = base.need
        if base.is_call:
            for need in reversed(base.layers):
                need.leaving = wanted | need.captured_rows("attn_out", "mlp_out")
                need.mixed = need.leaving | need.captured_rows("q", "pattern", "z")
                need.keyed = (
                    set(range(max(need.mixed, default=-1) + 1)) | need.captured_rows("k", "v") | need.base_keys_needed
                )
                need.entering = need.mixed | need.keyed | need.captured_rows("resid") | need.base_entering_needed
                wanted = need.entering
        if base.parent is not None:
            base.parent.need |= wanted
