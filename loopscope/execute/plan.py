"""What must be computed for a set of programs, and no more.

A **base run** is a program without its patches.  Base runs form a tree: programs that begin alike share their
beginning, and every step after it is one `BaseRun`.  A **patched run** follows a base run step by step, with patches; a
`PatchedRun` is one step of it.  It differs from its base run only

- from its first patch on: before that it *is* the base run, and
- in rows that a patch can have reached: with causal attention, a row that differs reaches, through its key and value,
  the rows after it.  These rows are the **cone** of the patch.

So a patched run computes its cone alone, and takes the base run's keys and values for all other rows.

A second pass, `demands`, goes from the readouts backwards and drops what nobody asks for.

A run goes through **parts**: the prelude, calls of stacks, and a coda for every reading, each a stack of layers, with
the start and maps between them, which act row by row.  A model that injects its input looks at it in every call; so a
row in which the input differs differs from the first call on.

This module decides which rows each run computes in which layer.  It touches no tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from loopscope.address import COMPONENTS, Address, Row, Site
from loopscope.errors import InputError
from loopscope.execute.demands import Demands
from loopscope.execute.runs import (
    MAIN,
    AnyStep,
    BaseRun,
    Cone,
    LayerNeed,
    Node,
    Origin,
    Part,
    PatchedRun,
    Place,
    PlacedPatch,
    Sizes,
)
from loopscope.execute.sight import NONE, Causal, Rows, Sight, sight_of
from loopscope.program import Call, Map, Patch, Program, Run, Seed, Zeros, step_bare

AFTER_KEYS = tuple(component for component in COMPONENTS if component not in ("resid", "k", "v"))
"""Components that another row can no longer see within their layer."""


class Plan:
    """The tree of runs for some programs, with what each must compute.

    `base_runs` lists parents first; `patched_runs` lists parents and sources of patches first.  `readings` says by
    program and point which run is read out, `places` by program and address which one has it.
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
        self.roots: dict[tuple[object, ...], BaseRun] = {}
        self._sights: dict[tuple[str, int, int], Sight] = {}
        self._cones: dict[tuple[object, ...], Cone] = {}
        self._resolved: dict[tuple[Site, str, int], Site] = {}
        self._givers: dict[tuple[Program, str, int], Node] = {}
        self.readings: dict[tuple[Program, str], Node] = {}
        self.places: dict[tuple[Program, Address], Node] = {}
        self.programs = tuple(programs)
        for program in self.programs:
            if sizes.pieces is not None:
                sizes.pieces.check(program)
            prelude, path = self._walk(program, MAIN, len(program.steps))
            for point in reads[program]:
                self.readings[program, point] = self._reading(program, MAIN, path, point)
            for address in keep[program]:
                self.places[program, address] = self._at(program, MAIN, address, prelude, path)
            for coda in program.coda:  # to be refused where a patch cannot be, read or not
                self._reading(program, MAIN, path, f"h{coda.loop}")
        self.base_runs = list(self._parents_first())
        depth_first = {base: index for index, base in enumerate(self.base_runs)}
        every = [patched for base in self.base_runs for patched in base.patched_runs.values()]
        self.patched_runs = sorted(every, key=lambda patched: (patched.rank, depth_first[patched.base]))
        for base, patched in self.readings.values():
            mine = patched.differing.intersection(read_rows) if patched else NONE
            base.read |= frozenset(read_rows) - mine
            if patched:
                patched.read |= mine
        for (_, address), (base, patched) in self.places.items():
            site = self.resolve(address.site, base)
            (base if patched is None else patched).capture(site.layer, site.part, frozenset(site.numbers))
        runs: list[BaseRun | PatchedRun] = [*self.base_runs, *self.patched_runs]
        for run in runs:
            run.need |= run.read
        demands = Demands(sizes, self.sight)
        for patched in reversed(self.patched_runs):
            demands.patched(patched)
        for base in reversed(self.base_runs):
            demands.base(base)

    def resolve(self, site: Site, base: BaseRun) -> Site:
        """The site with heads and rows written out; raises InputError when this part of a run has no such place."""
        key = site, base.part, base.length
        if key not in self._resolved:
            self._resolved[key] = self._resolve(site, base)
        return self._resolved[key]

    def _resolve(self, site: Site, base: BaseRun) -> Site:
        found = site.resolve(layers=len(base.layers), heads=self.sizes.heads, rows=base.length)
        layer = self.sizes.part(base.part)[site.layer - 1] if site.component == "mlp_hidden" else None
        if layer is not None and not layer.units:
            raise InputError(
                f"{site} does not exist: layers of this model do not say what their hidden units are (nearest:"
                f" {replace(site, component='mlp_out')})"
            )
        return found

    def sight(self, base: BaseRun, number: int) -> Sight:
        """Who sees whom in a layer of a run."""
        key = (base.part, number, base.length)
        if key not in self._sights:
            layer = self.sizes.part(base.part)[number - 1]
            self._sights[key] = Causal() if layer is None else sight_of(layer, base.length)
        return self._sights[key]

    def forget(self) -> None:
        """Take runs apart, which know each other: their memory is free at once, not when garbage is next looked for."""
        for base in self.base_runs:
            base.children.clear()
            base.patched_runs.clear()

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

    def _walk(self, program: Program, name: str, steps: int) -> tuple[Node | None, list[Node]]:
        """The runs along the first `steps` steps of a program on one input, made where they are missing.

        The prelude, or what stands for it where there are no layers before the loop, and the states from h_0 on.
        """
        pieces, length = self.sizes.pieces, self.sizes.lengths.get(name, self.sizes.rows)
        tokens = not program.given or (pieces is not None and pieces.needs_tokens)
        key = ("tokens", length) if tokens else ("state", program.start, length)
        if key not in self.roots:
            self.roots[key] = BaseRun(None, None, 0 if tokens else program.first, length, not tokens)
        node: Node = self.roots[key], None
        node[0].inputs.add(name)
        prelude = None
        if tokens:
            if self.sizes.part("prelude"):
                node = self._step(node, Part("prelude", program.prelude), name)
            prelude = node
            if program.start is not None or (pieces is not None and (pieces.starts or self.sizes.several)):
                start = Seed(0) if program.start is None else program.start  # what a model begins with by itself
                node = self._step(node, Part("start", start=start), name)
        path = [node]
        for step in program.steps[:steps]:
            node = self._step(node, step, name)
            path.append(node)
        return prelude, path

    def _behind(self, program: Program, name: str, loop: int) -> Node:
        """The run behind a call of a program on one input; thousands of patches take from the same few."""
        key = program, name, loop
        if key not in self._givers:
            _, path = self._walk(program, name, program.index_of(loop) + 1)
            self._givers[key] = path[-1]
        return self._givers[key]

    def _step(self, node: Node, step: AnyStep, name: str) -> Node:
        """The run that follows `node` by a step, made where it is missing."""
        base, patched = node
        bare = step_bare(step) if isinstance(step, Call | Map) else replace(step, patches=())
        if bare not in base.children:
            base.children[bare] = self._base(base, bare)
        base = base.children[bare]
        base.inputs.add(name)
        patches = () if isinstance(step, Map) else step.patches
        if patched is None and not patches:
            return base, None
        key = (name, patched, step)
        if key not in base.patched_runs:
            base.patched_runs[key] = self._patched(base, name, patched, step, patches)
        return base, base.patched_runs[key]

    def _base(self, parent: BaseRun, step: AnyStep) -> BaseRun:
        """A new step behind a base run."""
        part = step.stack if isinstance(step, Call) else step.kind if isinstance(step, Part) else ""
        loop, given = parent.loop + isinstance(step, Call), parent.given
        if isinstance(step, Part) and step.kind == "start" and isinstance(step.start, int):
            loop, given = step.start, True
        e = parent.e
        if self.sizes.injects and e is None and part != "prelude":  # the input is what comes before the start
            e = parent
        run = BaseRun(parent, step, loop, parent.length, given, "" if part == "start" else part, e)
        run.layers = [LayerNeed() for _ in self.sizes.part(run.part)] if run.part else []
        return run

    def _reading(self, program: Program, name: str, path: list[Node], point: str) -> Node:
        """The run that is read out at a point: that of the state, or the coda behind it."""
        at = program.points.index(point)
        if not self.sizes.part("coda"):
            return path[at]
        loop = program.calls_before(point)
        patches = program.coda_patches(loop) if point == f"h{loop}" else ()
        return self._step(path[at], Part("coda", patches), name)

    def _at(self, program: Program, name: str, address: Address, prelude: Node | None, path: list[Node]) -> Node:
        """The run that has an address."""
        if address.stage == "prelude":
            if prelude is None or not self.sizes.part("prelude"):
                raise InputError(f"{address} does not exist: there is no prelude in '{program}' on this model")
            return prelude
        if address.stage == "coda":
            if not self.sizes.part("coda"):
                raise InputError(f"{address} does not exist: this model has no coda")
            first, last = program.first, program.first + program.calls
            if not first <= address.loop <= last:
                near = max(first, min(last, address.loop))
                raise InputError(f"{address} does not exist in '{program}' (nearest: coda[{near}].{address.site})")
            return self._reading(program, name, path, f"h{address.loop}")
        return path[program.index_of(program.loop_at(address)) + 1]

    def _patched(
        self, base: BaseRun, name: str, parent: PatchedRun | None, step: AnyStep, patches: tuple[Patch, ...]
    ) -> PatchedRun:
        patched = PatchedRun(base, name, parent, rank=max(1, parent.rank if parent else 1))
        before = patched.differing_before
        if isinstance(step, Part) and step.kind == "start":
            patched.e = parent if self.sizes.injects else None
            patched.differing = NONE if isinstance(step.start, Zeros | int) else before
            return patched
        if parent is not None and base.e is not None:  # the patched prelude, or what its successors know of it
            patched.e = parent if parent.base is base.e else parent.e
        if isinstance(step, Map):
            patched.differing = before
            return patched
        for patch in patches:
            placed_patch = self._place(patch, base, name)
            patched.patches.setdefault(placed_patch.site.layer, []).append(placed_patch)
            if placed_patch.origin.patched is not None:
                patched.rank = max(patched.rank, 1 + placed_patch.origin.patched.rank)
        entering = before | patched.differing_e if base.is_call else before
        patched.cone = self._cone(base, entering, tuple(p.place for each in patched.patches.values() for p in each))
        patched.differing = patched.cone.differing
        if self.sizes.several and base.is_call:
            patched.differing |= before
        return patched

    def _cone(self, base: BaseRun, before: Rows, places: tuple[Place, ...]) -> Cone:
        """How far patches at these places reach, where rows `before` differ as they enter."""
        key = base, before, places
        if key in self._cones:
            return self._cones[key]
        found: list[tuple[Rows, ...]] = []
        for number in range(1, len(base.layers) + 1):
            here = [place for place in places if place[0] == number]

            def at(components: tuple[str, ...], here: list[Place] = here) -> Rows:
                return NONE.union(*(rows for _, component, rows, _ in here if component in components))

            differs = before | at(("resid",))
            keyed = differs | at(("k", "v"))
            reached = self.sight(base, number).reached(keyed, base.length)
            if not differs <= reached:  # where a row does not see itself
                reached |= differs
            reached |= at(AFTER_KEYS)
            replaced = NONE.union(*(rows for _, component, rows, all_of in here if all_of and component == "resid"))
            found.append((before, differs, keyed, reached, replaced))
            before = reached
        entering, differed, keys, reaching, gone = zip(*found, strict=True)
        self._cones[key] = Cone(places, entering, differed, keys, reaching, gone, before)
        return self._cones[key]

    def _place(self, patch: Patch, base: BaseRun, name: str) -> PlacedPatch:
        site, source = self.resolve(patch.site, base), patch.giver
        site = site if site.component == site.part else replace(site, component=site.part)
        if not isinstance(source, Run):
            tensor = None if source is None else source.name
            return PlacedPatch(site, Origin(None, None, name, site.numbers, tensor), patch.change)
        giver = name if source.input is None else source.input
        loop = base.loop if source.loop is None else source.loop
        if base.is_call:
            node = self._behind(source.program, giver, loop)
            if node[0].part != base.part:
                raise InputError(
                    f"loop {loop} of '{source.program}' calls {node[0].part}, not {base.part}: no such place"
                )
        else:
            prelude, path = self._walk(source.program, giver, len(source.program.steps))
            where = Address(0 if base.part == "prelude" else loop, patch.site, base.part)
            node = self._at(source.program, giver, where, prelude, path)
        rows = self._rows_there(patch, source.rows, site, base.length, node[0])
        return PlacedPatch(site, Origin(*node, giver, rows), patch.change)

    def _rows_there(
        self, patch: Patch, rows: tuple[Row, ...] | None, site: Site, here: int, giver: BaseRun
    ) -> tuple[int, ...]:
        """The rows of the origin; InputError where it has no rows that stand for those of the site."""
        if rows is None and giver.length == here:
            return site.numbers
        if site.component == "pattern" and giver.length != here:
            raise InputError(
                f"{patch} takes a pattern, but its source has {giver.length} rows, this run {here}: its keys would be"
                " others; give it as many rows"
            )
        if site.component == "pattern":
            raise InputError(f"{patch} takes a pattern from other rows: its keys would be others")
        if rows is None and any(isinstance(row, int) and row >= 0 for row in patch.site.rows or (0,)):
            raise InputError(
                f"{patch} names rows from the start, and the inputs have {here} and {giver.length} rows; rows from the"
                " end, by what stands there, or of the source (.row[...]) have a meaning in both"
            )
        theirs = self.resolve(replace(patch.site, rows=patch.site.rows if rows is None else rows), giver).numbers
        if len(theirs) != len(site.numbers):
            raise InputError(f"{patch} has {len(site.numbers)} rows, but its source {len(theirs)}")
        return theirs
