"""The guided tour of the main backbone: what each stop shows, and its numbers, which were measured.

The page has the words, and shows a walk on which all stops come out clearly: it was chosen by that, and says so.  The
numbers are of whole populations; they are in `tour.json`, which `packaging/tour.py` writes from the stored records; an
installed package has no records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from loopscope.program import Map, Program, Run
from loopscope.view.contract import Json

if TYPE_CHECKING:
    from loopscope.view.shown_model import ShownModel

OF = "d8l6-5"
"""The model that the tour is about."""

FILE = "tour.json"


@dataclass(frozen=True)
class Stop:
    """One stop: an example, programs, and the quantities behind its sentence.

    `numbers` are, by a name of their own, the id of a quantity and its coordinates, and `of` is the model that they
    were measured on.  `places` are attention patterns that the page shows, `sweep` the source of a sweep of the first
    program.
    """

    id: str
    input: str
    programs: tuple[str, ...]
    numbers: Mapping[str, tuple[str, Mapping[str, Any]]]
    places: tuple[str, ...] = ()
    sweep: str | None = None
    of: str = OF


def _calls(name: str, count: int) -> str:
    return "F6 " + " ".join([f"J:{name} F"] * count)


_CROSSED = "F6 J:one F[layer[2].head[3].row[-1].pattern<-(F6 J:one F)@other]"
_OUTPUT = "F6 J:one F[layer[2].head[3].row[-1].z<-(F6 J:one F)@other]"

STOPS: tuple[Stop, ...] = (
    Stop("loop", "walk-2", ("F6",), {"right": ("native.endpoint", {"loop": 6})}),
    Stop(
        "walks",
        "walk-2",
        ("F6", "F8"),
        {f"loop-{loop}": ("native.mode", {"loop": loop}) for loop in range(1, 7)}
        | {"kept": ("native.retained", {"loop": 16})},
    ),
    Stop(
        "selects",
        "walk-2",
        ("F7", "F6 J:one F", "F6 J:two F"),
        {
            name: ("targets.answer", {"map": name, "read": "after F", "where": "confirmation", "answer": answer})
            for name, answer in (("unsteered", "u"), ("one", "f(u)"), ("two", "f^2(u)"))
        }
        | {
            "before": (
                "targets.answer",
                {"map": "one", "read": "before F", "where": "confirmation", "answer": "f(u)"},
            )
        },
    ),
    Stop(
        "composes",
        "walk-2",
        ("F6 J:one F J:one F", "F6 J:one F J:two F", "F6 J:two F J:one F", "F6 J:two F J:two F"),
        {
            f"{first}-{second}": ("compose.two", {"string": f"{one}{two}", "where": "independent-3001"})
            for one, first in ((1, "one"), (2, "two"))
            for two, second in ((1, "one"), (2, "two"))
        },
    ),
    Stop(
        "patterns",
        "walk-2",
        (
            "F6 J:two F",
            *(f"F6 J:two F[layer[2].head[{head}].pattern<-(F6 J:one F)]" for head in range(4)),
            "F6 J:two F[layer[2].pattern<-(F6 J:one F)]",
        ),
        {
            f"head-{head}": (
                "switching.heads",
                {"heads": str(head), "target": "giver", "giver": "one", "receiver": "two", "where": "switching-2501"},
            )
            for head in range(4)
        }
        | {"all": ("switching.target", {"giver": "one", "receiver": "two", "where": "switching-2501"})},
        ("loop[7].layer[2]",),
        "(F6 J:one F)",
    ),
    Stop(
        "edges",
        "walk-3",
        ("F6 J:one F", _CROSSED, _OUTPUT),
        {
            f"{part}-{answer}": ("crossing.patch", {"part": part, "answer": answer})
            for part in ("pattern", "output")
            for answer in "BDE"
        },
        ("loop[7].layer[2]",),
    ),
    Stop(
        "supervision",
        "walk-2",
        ("F6", "F6 J:one F", "F6 J:two F"),
        {
            f"{group}-{condition}": (
                "matched.accuracy",
                {"group": f"matched-{group}", "condition": condition, "answer": condition},
            )
            for group in ("final", "stepwise")
            for condition in ("one", "two")
        }
        | {
            f"before-{group}-{condition}": (
                "matched.before",
                {"group": f"matched-{group}", "condition": condition},
            )
            for group in ("final", "stepwise")
            for condition in ("one", "two")
        },
    ),
    Stop(
        "lasts",
        "walk-2",
        (_calls("one", 8), _calls("pool-one", 8)),
        {
            f"{family}-{call}": ("lasting.call", {"family": family, "kind": "one", "call": call, "counted": "right"})
            for family in ("published", "pool")
            for call in (1, 8, 64)
        },
    ),
    Stop(
        "yours",
        "walk-2",
        ("F6",),
        {
            name: (
                "switching.heads",
                {"heads": heads, "target": "giver", "giver": "one", "receiver": "two", "where": "switching-2608"},
            )
            for name, heads in (("head-1", "1"), ("head-0", "0"), ("both", "0 3"))
        },
        of="d8l6-8",
    ),
)


@cache
def numbers() -> Mapping[str, Mapping[str, Json]]:
    """The measured numbers of every stop, by stop and name."""
    found: dict[str, dict[str, Json]] = json.loads(resources.files("loopscope.view").joinpath(FILE).read_text("utf-8"))
    return found


def tour_of(subject: ShownModel) -> list[dict[str, Json]] | None:
    """The stops for a model; None for one that the tour is not about.

    Programs with maps that the model was not given are left out, as the package brings some of the zoo's alone.
    """
    if subject.name != OF or subject.walk is None:
        return None
    return [
        {
            "id": stop.id,
            "input": stop.input,
            "programs": [text for text in stop.programs if maps_in(text) <= subject.maps.keys()],
            "places": list(stop.places),
            "sweep": stop.sweep,
            "numbers": [{"id": name, **value} for name, value in numbers()[stop.id].items()],
        }
        for stop in STOPS
    ]


def maps_in(text: str) -> set[str]:
    """The maps that a program and its sources name."""

    def of(program: Program) -> set[str]:
        mine = {step.name for step in program.steps if isinstance(step, Map)}
        givers = [patch.giver for patch in program.patches()]
        return mine.union(*(of(each.program) for each in givers if isinstance(each, Run)))

    return of(Program.parse(text))
