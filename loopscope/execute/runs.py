"""What a plan is made of: base runs and patched runs, step by step, and what each must compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from loopscope.address import Site
from loopscope.execute.sight import NONE, Rows
from loopscope.patches import Change
from loopscope.pieces import LayerPieces, Pieces, no_stack
from loopscope.program import Call, Patch, Program, Start, Step

Place = tuple[int, str, Rows, bool]
"""Where a patch is as far as others can tell: layer, component, rows, and whether it replaces what was there."""

NOTHING: Mapping[str, Rows] = MappingProxyType({})

MAIN = "main"
"""Name of the input that the programs themselves run on."""


def ordered(rows: Iterable[int]) -> tuple[int, ...]:
    """Rows as a sorted tuple, the order in which tensors hold them."""
    return tuple(sorted(rows))


@dataclass(frozen=True)
class Part:
    """A step that no program writes: "prelude" and "coda" with their patches, or the "start" of a program."""

    kind: str
    patches: tuple[Patch, ...] = ()
    start: Start = None


AnyStep = Step | Part


@dataclass(frozen=True)
class Sizes:
    """What the plan must know of the model and the input.

    `layers` are those of a model with one stack and nothing around it; of any other `pieces` tell.  `lengths` are the
    rows of inputs that have not `rows` rows.
    """

    layers: int
    heads: int
    rows: int
    pieces: Pieces | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, pieces: Pieces, rows: int, lengths: Mapping[str, int] | None = None) -> Sizes:
        """The sizes of a model and an input of so many rows."""
        return cls(len(pieces.model.layers), pieces.model.heads, rows, pieces, lengths or {})

    def part(self, name: str) -> Sequence[LayerPieces | None]:
        """The layers of the prelude, the coda or a stack; None for each where no model is known.

        InputError for a stack that is not there.
        """
        if self.pieces is None:
            if name not in ("F", "prelude", "coda"):
                raise no_stack(name, ("F",))
            return [None] * self.layers if name == "F" else []
        if name in ("prelude", "coda"):
            return self.pieces.prelude if name == "prelude" else self.pieces.coda
        return self.pieces.stack(name)

    def pieces_of(self, part: str) -> Sequence[LayerPieces]:
        """The layers of a part of a known model."""
        return [layer for layer in self.part(part) if layer is not None]

    @property
    def several(self) -> bool:
        """Whether there are several stacks, so that a call leaves some of the state as it was."""
        return self.pieces is not None and len(self.pieces.stacks) > 1

    @property
    def injects(self) -> bool:
        """Whether calls look at the input again."""
        return self.pieces is not None and self.pieces.injects

    def layers_of(self, program: Program) -> int:
        """Layers that a plain run of a program goes through, with one reading."""
        calls = sum(len(self.part(step.stack)) for step in program.steps if isinstance(step, Call))
        return calls + len(self.part("prelude")) + len(self.part("coda"))


@dataclass(slots=True)
class LayerNeed:
    """Rows that one run must produce in one layer of one call.

    - `entering` rows are needed as the layer's input, `keyed` rows get keys and values, `mixed` rows attend to them,
      and `leaving` rows go through the MLP to the next layer.
    - `captured` are rows of components that a patch elsewhere, or the user, asks for.
    - Of a base run, `base_entering_needed` and `base_keys_needed` are rows that its patched runs take from it: as the
      layer's input, and as keys and values.
    """

    entering: Rows = NONE
    keyed: Rows = NONE
    mixed: Rows = NONE
    leaving: Rows = NONE
    captured: Mapping[str, Rows] = field(default_factory=lambda: NOTHING)
    base_entering_needed: Rows = NONE
    base_keys_needed: Rows = NONE

    def needed_of_base(self, component: str) -> Rows:
        """Rows of this component that patched runs take from the base run."""
        if component == "resid":
            return self.base_entering_needed
        return self.base_keys_needed if component in ("k", "v") else NONE

    def captured_rows(self, *components: str) -> Rows:
        """Rows asked for under any of these components."""
        return NONE.union(*(self.captured.get(component, NONE) for component in components)) if self.captured else NONE


@dataclass(frozen=True)
class Origin:
    """Where a patch takes its value: the same component in a run on an input, a given tensor, or nowhere.

    The run is `patched`, or `base` where that is None; `rows` are those of the origin, one for each of the site's.
    """

    base: BaseRun | None
    patched: PatchedRun | None
    input: str
    rows: tuple[int, ...]
    given: str | None = None


@dataclass
class PlacedPatch:
    """A patch with heads and rows written out, and its origin.  `wanted` are the rows that matter to anybody.

    `change` is what it makes of the component itself; None where that is replaced.
    """

    site: Site
    origin: Origin
    change: Change | None = None
    wanted: tuple[int, ...] = ()

    @property
    def place(self) -> Place:
        """What others can tell of it."""
        return self.site.layer, self.site.component, frozenset(self.site.numbers), self.change is None

    def theirs(self, rows: Iterable[int]) -> tuple[int, ...]:
        """The rows of the origin that go into these rows of the site."""
        if self.origin.rows == self.site.rows:
            return tuple(rows)
        places = dict(zip(self.site.numbers, self.origin.rows, strict=True))
        return tuple(places[row] for row in rows)


@dataclass(eq=False)
class BaseRun:
    """One step of an unpatched run, and what it must compute.

    - `step` is None for the run that takes up the input; `loop` counts the calls up to here; `length` are its rows.
    - `given`: whether it started from a given state; `part` names the layers it goes through, "" where there are none.
    - `e` is the run whose state is the input that calls inject; None before there is one, or where nobody injects.
    - `need` are rows of its state that anybody uses, `read` those that are read out.  Patched runs take rows of the
      state before a call (`before_needed`) and of the input (`e_needed`) from here.
    """

    parent: BaseRun | None
    step: AnyStep | None
    loop: int
    length: int
    given: bool
    part: str = ""
    e: BaseRun | None = None
    children: dict[AnyStep, BaseRun] = field(default_factory=dict)
    inputs: set[str] = field(default_factory=set)
    patched_runs: dict[tuple[str, PatchedRun | None, AnyStep], PatchedRun] = field(default_factory=dict)
    need: Rows = NONE
    read: Rows = NONE
    before_needed: Rows = NONE
    e_needed: Rows = NONE
    layers: list[LayerNeed] = field(default_factory=list)

    def capture(self, layer: int, component: str, rows: Rows) -> None:
        """Ask for a component of these rows."""
        need = self.layers[layer - 1]
        before = need.captured.get(component, NONE)
        if not rows <= before:
            need.captured = {**need.captured, component: before | rows}

    @property
    def is_call(self) -> bool:
        """Whether this step is a call of F or of another stack."""
        return isinstance(self.step, Call)

    @property
    def place(self) -> tuple[object, ...]:
        """Words that say where this is."""
        return (self.part, self.loop) if self.part == "coda" else ("prelude",) if self.part == "prelude" else (
            "loop", self.loop
        )  # fmt: skip


@dataclass(eq=False, slots=True)
class Cone:
    """How far patches reach within a part, layer by layer: rows that may differ from the base run.

    - `entering` differ as the layer's input, `differs` after its resid patches, `keyed` in their keys or values, and
      `reached` by the time they leave it; `replaced` are rows of the input that nobody needs, as a patch replaces them.
    - `differing` are those behind the part, `places` the patches.

    Runs whose patches differ in heads or sources alone share one.
    """

    places: tuple[Place, ...]
    entering: tuple[Rows, ...]
    differs: tuple[Rows, ...]
    keyed: tuple[Rows, ...]
    reached: tuple[Rows, ...]
    replaced: tuple[Rows, ...]
    differing: Rows


@dataclass(eq=False, slots=True)
class PatchedRun:
    """One step of a patched run on one input.  `parent` is the step before, None where this has the first patch.

    `rank` is above that of every run that patches take values from; `e` is the patched prelude, if there is one.
    `patches` are those of each layer that has any.  Rows that may differ behind this step are `differing`; in a part
    with layers `cone` says which those are on the way, and `layers` what must be computed.  Both are shared with runs
    of which the same is true.  `captured` are rows of components that others ask for, by layer.
    """

    base: BaseRun
    input: str
    parent: PatchedRun | None
    rank: int
    e: PatchedRun | None = None
    patches: dict[int, list[PlacedPatch]] = field(default_factory=dict)
    cone: Cone | None = None
    differing: Rows = NONE
    need: Rows = NONE
    read: Rows = NONE
    layers: tuple[LayerNeed, ...] = ()
    captured: dict[int, dict[str, Rows]] = field(default_factory=dict)

    @property
    def differing_before(self) -> Rows:
        """Rows in which the state before this step differs."""
        return self.parent.differing if self.parent else NONE

    @property
    def differing_e(self) -> Rows:
        """Rows in which the input that a call injects differs."""
        return self.e.differing if self.e else NONE

    @property
    def reach(self) -> Cone:
        """The cone of a run through layers."""
        assert self.cone is not None
        return self.cone

    def capture(self, layer: int, component: str, rows: Rows) -> None:
        """Ask for a component of these rows."""
        mine = self.captured.setdefault(layer, {})
        mine[component] = mine.get(component, NONE) | rows


Node = tuple[BaseRun, PatchedRun | None]
"""A base run, and the patched run from the first patch on."""
