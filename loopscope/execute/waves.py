"""Patches of many runs that are made at once: one gather of what they put in, and one scatter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from loopscope.address import PER_HEAD
from loopscope.execute.places import Places
from loopscope.execute.runs import PatchedRun, PlacedPatch
from loopscope.patches import Apply


@dataclass(eq=False, slots=True)
class Wave:
    """Patches of one component in a layer that are made at once, since none touches what another does.

    They take their values from one place: `patch` is the first of them, and the only one where values are given, or
    functions of what was there.  `heads` and `into` say where they write, `theirs` which of the `rows` of the origin
    they take.
    """

    patch: PlacedPatch
    heads: Places | None
    into: Places
    theirs: Places
    rows: tuple[int, ...]


def waves_of(
    run: PatchedRun, number: int, component: str, places: Callable[[tuple[int, ...]], Sequence[int]]
) -> Iterator[tuple[int, Wave]]:
    """Every patch of a component of a run in a layer as a wave of its own, and how many of its patches come before.

    `places` says where rows of the run are in the block.
    """
    mine = (patch for patch in run.patches.get(number, ()) if patch.site.component == component and patch.wanted)
    for turn, patch in enumerate(mine):
        into, rows = places(patch.wanted), patch.theirs(patch.wanted)
        heads = patch.site.heads if component in PER_HEAD else None
        times = 1 if heads is None else len(heads)
        chosen = None if heads is None else Places([head for head in heads for _ in into])
        yield turn, Wave(patch, chosen, Places(list(into) * times), Places(list(range(len(rows))) * times), rows)


def together(waves: list[tuple[int, Wave]]) -> list[Wave]:
    """Waves joined where the values come from one base run, by one change, and none overwrites another's."""
    found: dict[tuple[Hashable, ...], list[Wave]] = {}
    for turn, wave in waves:
        origin, change = wave.patch.origin, wave.patch.change
        alone = origin.given is not None or origin.patched is not None or isinstance(change, Apply)
        key = (turn, id(wave) if alone else 0, origin.base, origin.input, change)
        found.setdefault(key, []).append(wave)
    return [_joined(some) for _, some in sorted(found.items(), key=lambda each: each[0][0])]  # type: ignore[arg-type,return-value]


def _joined(waves: list[Wave]) -> Wave:
    if len(waves) == 1:
        return waves[0]
    rows = tuple(sorted({row for wave in waves for row in wave.rows}))
    at = {row: place for place, row in enumerate(rows)}
    first = waves[0]
    return Wave(
        first.patch,
        None if first.heads is None else Places([head for w in waves if w.heads for head in w.heads.numbers]),
        Places([place for wave in waves for place in wave.into.numbers]),
        Places([at[wave.rows[place]] for wave in waves for place in wave.theirs.numbers]),
        rows,
    )
