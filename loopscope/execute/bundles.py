"""Which patched runs are computed together, and where the rows of each are.

A **bundle** is one step of patched runs that follow the same base run on the same input.  In a layer all their rows
stand side by side in one block [examples, rows of all runs, d], so that what acts row by row is one operation for
all of them, however many rows each run has; only attention goes by groups of runs that compute the same rows.

Runs of which the same must be computed form a **cohort**: their rows lie behind each other, run by run.  So what is
found here takes work for every cohort and layer, not for every run and layer.  It holds for every chunk of examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

from loopscope.address import COMPONENTS
from loopscope.execute.places import Gather, LayerRows, Picked, Places
from loopscope.execute.plan import Plan
from loopscope.execute.runs import BaseRun, LayerNeed, PatchedRun, ordered
from loopscope.execute.sight import Rows
from loopscope.execute.waves import Wave, together, waves_of

K = TypeVar("K", bound=Hashable)
OWN, BASE, ZEROS = "own", "base", "zeros"
"""What enters a layer: rows that left the one before, rows of the base run, and rows that are about to be replaced."""


@dataclass(eq=False, slots=True)
class Cohort:
    """Runs of which the same rows are computed in every layer of a step."""

    runs: tuple[PatchedRun, ...]


class Layout:
    """Where rows of cohorts are in a block: cohort by cohort, run by run, the same rows of each run of a cohort."""

    def __init__(self, rows: Iterable[tuple[Cohort, Rows]]) -> None:
        self.rows: dict[Cohort, tuple[int, ...]] = {}
        self.starts: dict[Cohort, int] = {}
        self.total = 0
        for cohort, some in rows:
            if some:
                self.rows[cohort], self.starts[cohort] = ordered(some), self.total
                self.total += len(cohort.runs) * len(some)

    def places(self, cohort: Cohort, rows: tuple[int, ...]) -> Sequence[int]:
        """Where these rows of all runs of a cohort are."""
        held, start, count = self.rows.get(cohort, ()), self.starts.get(cohort, 0), len(cohort.runs)
        if rows == held:
            return range(start, start + count * len(rows))
        offsets = _offsets(held, rows)
        return [first + offset for first in range(start, start + count * len(held), len(held)) for offset in offsets]

    def of_run(self, cohort: Cohort, number: int, rows: tuple[int, ...]) -> Sequence[int]:
        """Where these rows of one run of a cohort are."""
        held = self.rows[cohort]
        first = self.starts[cohort] + number * len(held)
        if rows == held:
            return range(first, first + len(held))
        return [first + offset for offset in _offsets(held, rows)]

    def picked(self, chosen: Layout) -> Picked:
        """The rows of another layout, which are all among those of this one."""
        places: list[int] = []
        numbers: list[int] = []
        for cohort, rows in chosen.rows.items():
            places.extend(self.places(cohort, rows))
            numbers.extend(rows * len(cohort.runs))
        return Picked.of(places, numbers, self.total)


@dataclass(frozen=True, slots=True)
class Attending:
    """Runs that attend alike: how many, and from where on their queries and their own keys are in the blocks of these.

    Each has the rows `mixed` and its own keys of the rows `keyed`; `context` are the rows whose keys and values are the
    base run's.  `columns` are all keys, the base run's first.
    """

    count: int
    queries: int
    keys: int
    mixed: Places
    keyed: tuple[int, ...]
    context: tuple[int, ...]
    columns: Places

    def fusible(self, head: int) -> bool:
        """Whether scores of all rows take more room than keys and values of this head size, laid out run by run."""
        return len(self.mixed) > head and tuple(self.mixed.numbers) == self.keyed


@dataclass(frozen=True, slots=True)
class Under:
    """Rows of the base run, some of them many times: which, and in which order."""

    rows: tuple[int, ...]
    order: Picked

    @classmethod
    def of(cls, rows: Sequence[int]) -> Under | None:
        """These rows; None where there are none."""
        distinct = tuple(sorted(set(rows)))
        return cls(distinct, Picked.among(rows, distinct)) if rows else None


@dataclass(eq=False, slots=True)
class BundleLayer:
    """A layer of a bundle: where its rows come from, what is done with which, and what is patched and captured.

    Of the base run it takes the rows `under`; `zeros` rows are about to be replaced.  Places in patterns, of `waves`
    and of what is `captured` of a run, are those in the block of a group.  `counted` rows are computed for an example.
    """

    enter: Gather
    under: Under | None
    zeros: int
    rows: LayerRows
    groups: list[Attending]
    waves: dict[tuple[str, int], list[Wave]]
    captured: dict[tuple[str, int], list[tuple[PatchedRun, Picked]]]
    counted: int

    def touches(self, component: str) -> bool:
        """Whether somebody patches or reads a component."""
        return any(name == component for name, _ in (*self.waves, *self.captured))


@dataclass(eq=False, slots=True)
class Earlier:
    """Rows of what came before the runs of a bundle: `under` are those of the base run that it takes."""

    rows: Gather
    under: Under | None


@dataclass(eq=False, slots=True)
class Bundle:
    """One step of patched runs side by side.

    - `first` are the rows that differ as they enter the step: of the state before it, and of the input it injects;
    - `state` are those behind it, as they stand behind the last layer (`leaves`), and the state before of the same rows
      (`carried`), where there are several stacks;
    - `read` says which rows of the state are read out, and of which run they are.
    - `forget` are bundles whose state nobody needs after this one.
    """

    base: BaseRun
    input: str
    cohorts: list[Cohort]
    state: Layout
    layers: dict[int, BundleLayer] = field(default_factory=dict)
    before: Earlier | None = None
    e: Earlier | None = None
    positions: Places = field(default_factory=lambda: Places(()))
    leaves: Picked | None = None
    carried: Earlier | None = None
    read: Picked | None = None
    readers: list[tuple[PatchedRun, tuple[int, ...]]] = field(default_factory=list)
    forget: list[Bundle] = field(default_factory=list)


class Bundles:
    """The bundles of a plan in the order of computation, of at most `stack` runs each."""

    def __init__(self, plan: Plan, stack: int) -> None:
        self.plan = plan
        self.every: list[Bundle] = []
        self._at: dict[PatchedRun, tuple[Bundle, Cohort, int]] = {}
        self._base_rows: dict[tuple[tuple[int, ...], int], LayerRows] = {}
        self._picked: dict[tuple[tuple[int, ...], tuple[int, ...]], Picked] = {}
        last: dict[Bundle, Bundle] = {}
        for (_, base), group in itertools.groupby(plan.patched_runs, key=lambda each: (each.rank, each.base)):
            for name, runs in _grouped(group, lambda patched: patched.input).items():
                for start in range(0, len(runs), stack):
                    bundle = self._bundle(base, name, runs[start : start + stack])
                    self.every.append(bundle)
                    last[bundle] = bundle
                    for earlier in (bundle.before, bundle.e, bundle.carried):
                        keys = () if earlier is None else (key for key, _ in earlier.rows.pieces)
                        last.update((key, bundle) for key in keys if isinstance(key, Bundle))
        for bundle, user in last.items():
            user.forget.append(bundle)

    def __iter__(self) -> Iterator[Bundle]:
        return iter(self.every)

    def forget(self) -> None:
        """Take bundles apart that name each other, as `Plan.forget` does runs."""
        for bundle in self.every:
            bundle.forget.clear()

    def of_base(self, rows: tuple[int, ...], need: LayerNeed) -> LayerRows:
        """What these rows of a base run do in a layer."""
        key = rows, id(need)  # which the plan holds
        if key not in self._base_rows:
            keyed, mixed, leaving = (
                tuple(row for row in rows if row in some) for some in (need.keyed, need.mixed, need.leaving)
            )
            one, two, three = (self._among(some, rows) for some in (keyed, mixed, leaving))
            self._base_rows[key] = LayerRows(one, two, three, self._among(leaving, mixed))
        return self._base_rows[key]

    def _among(self, rows: tuple[int, ...], held: tuple[int, ...]) -> Picked:
        if (rows, held) not in self._picked:
            self._picked[rows, held] = Picked.among(rows, held)
        return self._picked[rows, held]

    def _bundle(self, base: BaseRun, name: str, runs: list[PatchedRun]) -> Bundle:
        alike = _grouped(runs, lambda patched: (patched.cone, id(patched.layers) if patched.layers else patched.need))
        cohorts = [Cohort(tuple(some)) for some in alike.values()]
        bundle = Bundle(base, name, cohorts, Layout((each, each.runs[0].need) for each in cohorts))
        self._at.update((run, (bundle, each, number)) for each in cohorts for number, run in enumerate(each.runs))
        if base.layers:
            self._part(bundle)
        else:  # a map or a start
            bundle.before = self._earlier(bundle.state, lambda patched: patched.parent)
            bundle.positions = bundle.state.picked(bundle.state).rows
        places: list[int] = []
        for cohort in cohorts:
            for number, patched in enumerate(cohort.runs):
                if patched.read:
                    rows = ordered(patched.read)
                    places.extend(bundle.state.of_run(cohort, number, rows))
                    bundle.readers.append((patched, rows))
        if places:
            bundle.read = Picked.of(places, places, bundle.state.total)
        return bundle

    def _part(self, bundle: Bundle) -> None:
        base = bundle.base
        leaving = Layout(())
        for number in range(1, len(base.layers) + 1):
            groups: dict[tuple[Rows, Rows], list[Cohort]] = {}
            for cohort in bundle.cohorts:
                need = cohort.runs[0].layers[number - 1]
                if need.entering:
                    groups.setdefault((need.mixed, need.keyed), []).append(cohort)
            # Those that attend come first, so that a group has the same number among those as among all.
            attending = sorted(groups.items(), key=lambda each: not each[0][0])
            active = [cohort for _, group in attending for cohort in group]
            if not active:
                continue
            if number == 1:
                leaving = Layout((each, _own(each, 1)) for each in active)
                self._first(bundle, leaving)
            layer, leaving = self._layer(bundle, number, [group for _, group in attending], leaving)
            bundle.layers[number] = layer
        bundle.leaves = leaving.picked(bundle.state)
        if base.is_call and self.plan.sizes.several:
            bundle.carried = self._earlier(bundle.state, lambda patched: patched.parent)

    def _first(self, bundle: Bundle, own: Layout) -> None:
        """What the first layer takes from the runs' own past."""
        if not own.total:
            return
        bundle.before = self._earlier(own, lambda patched: patched.parent)
        if bundle.base.is_call and bundle.base.e is not None:
            bundle.e = self._earlier(own, lambda patched: patched.e)

    def _earlier(self, layout: Layout, before: Callable[[PatchedRun], PatchedRun | None]) -> Earlier:
        """These rows of what came before, where that differs, and of the base run elsewhere."""
        parts: list[tuple[Hashable, Sequence[int]]] = []
        held: dict[Hashable, int] = {}
        under: list[int] = []
        for cohort, rows in layout.rows.items():
            for run in cohort.runs:
                earlier = before(run)
                for own, some in _sides(rows, earlier.differing if earlier else frozenset()):
                    if own:
                        assert earlier is not None
                        bundle, theirs, number = self._at[earlier]
                        held[bundle] = bundle.state.total
                        parts.append((bundle, bundle.state.of_run(theirs, number, some)))
                    else:
                        parts.append((BASE, range(len(under), len(under) + len(some))))
                        under.extend(some)
        held[BASE] = len(under)
        return Earlier(Gather.of(parts, held), Under.of(under))

    def _layer(
        self, bundle: Bundle, number: int, groups: list[list[Cohort]], before: Layout
    ) -> tuple[BundleLayer, Layout]:
        """A layer of cohorts that attend alike group by group, and the layout of what leaves it."""
        active = [cohort for group in groups for cohort in group]
        need = {cohort: cohort.runs[0].layers[number - 1] for cohort in active}
        entering = Layout((cohort, need[cohort].entering) for cohort in active)
        keyed = Layout((cohort, need[cohort].keyed) for cohort in active)
        mixed = Layout((cohort, need[cohort].mixed) for cohort in active)
        leaving = Layout((cohort, need[cohort].leaving) for cohort in active)
        parts: list[tuple[Hashable, Sequence[int]]] = []
        under: list[int] = []
        zeros = 0
        for cohort in active:
            own, replaced = _own(cohort, number), cohort.runs[0].reach.replaced[number - 1]
            rows = entering.rows[cohort]
            if own.issuperset(rows):
                parts.append((OWN, before.places(cohort, rows)))
                continue
            for at in range(len(cohort.runs)):
                for mine, some in _sides(rows, own):
                    if mine:
                        parts.append((OWN, before.of_run(cohort, at, some)))
                        continue
                    for new, others in _sides(some, replaced):
                        first = zeros if new else len(under)
                        parts.append((ZEROS if new else BASE, range(first, first + len(others))))
                        if new:
                            zeros += len(others)
                        else:
                            under.extend(others)
        enter = Gather.of(parts, {OWN: before.total, BASE: len(under), ZEROS: zeros})
        sight = self.plan.sight(bundle.base, number)
        attending = []
        for group in groups:
            alike = need[group[0]]
            if alike.mixed:
                context = ordered(sight.seen(alike.mixed) - alike.keyed)
                attending.append(
                    Attending(
                        sum(len(cohort.runs) for cohort in group),
                        mixed.starts[group[0]],
                        keyed.starts.get(group[0], 0),
                        Places(ordered(alike.mixed)),
                        ordered(alike.keyed),
                        context,
                        Places((*context, *ordered(alike.keyed))),
                    )
                )
        layer = BundleLayer(
            enter, Under.of(under), zeros,
            LayerRows(entering.picked(keyed), entering.picked(mixed), entering.picked(leaving), mixed.picked(leaving)),
            attending, {}, {},
            sum(len(each.keyed | each.mixed) * len(cohort.runs) for cohort, each in need.items()),
        )  # fmt: skip
        layouts = {"resid": entering, "q": mixed, "k": keyed, "v": keyed, "z": mixed}
        waves: dict[tuple[str, int], list[tuple[int, Wave]]] = {}
        for at, group in enumerate(groups):
            layouts["pattern"] = Layout((cohort, need[cohort].mixed) for cohort in group)
            for cohort in group:
                touched = {place[1] for place in cohort.runs[0].reach.places if place[0] == number}
                for component in (name for name in COMPONENTS if name in touched or name in need[cohort].captured):
                    key, layout = (component, at if component == "pattern" else 0), layouts.get(component, leaving)
                    for index, run in enumerate(cohort.runs):
                        waves.setdefault(key, []).extend(
                            waves_of(run, number, component, partial(layout.of_run, cohort, index))
                        )
                    rows = ordered(need[cohort].captured.get(component, ()))
                    if rows:
                        layer.captured.setdefault(key, []).extend(
                            (run, Picked.of(layout.of_run(cohort, index, rows), rows, layout.total))
                            for index, run in enumerate(cohort.runs)
                        )
        layer.waves = {key: together(some) for key, some in waves.items() if some}
        return layer, leaving


def _own(cohort: Cohort, number: int) -> Rows:
    """Rows that enter a layer from the runs' own past."""
    reach, need = cohort.runs[0].reach, cohort.runs[0].layers[number - 1]
    return (need.entering & reach.entering[number - 1]) - reach.replaced[number - 1]


def _sides(rows: tuple[int, ...], own: Rows) -> Iterator[tuple[bool, tuple[int, ...]]]:
    """Rows that are among some, and those that are not, in turns."""
    for mine, some in itertools.groupby(rows, lambda row: row in own):
        yield mine, tuple(some)


@lru_cache(maxsize=4096)
def _offsets(held: tuple[int, ...], rows: tuple[int, ...]) -> tuple[int, ...]:
    at = {row: place for place, row in enumerate(held)}
    return tuple(at[row] for row in rows)


def _grouped(items: Iterable[object], key: Callable[..., K]) -> dict[K, list]:  # type: ignore[type-arg]
    """Items with equal keys together, in order of first appearance."""
    groups: dict[K, list] = {}  # type: ignore[type-arg]
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
