"""The tour: its programs run, and its numbers are those of the stored records."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from loopscope.program import Program
from loopscope.tasks.graph_walk import advance, crossed_labels
from loopscope.view.contract import unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import finish
from loopscope.view.shown_model import MAIN_MODEL, open_model
from loopscope.view.tour import STOPS, Stop, maps_in, numbers

ROOT = Path(__file__).parents[1]
IDS = ["loop", "walks", "selects", "composes", "patterns", "edges", "supervision", "lasts", "yours"]


def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tour_writer", ROOT / "packaging" / "tour.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_nine_stops_in_the_order_of_the_page() -> None:
    assert [stop.id for stop in STOPS] == IDS
    words = (ROOT / "loopscope" / "view" / "page" / "stops.js").read_text(encoding="utf-8")
    assert [words.index(f'id: "{each}"') for each in IDS] == sorted(words.index(f'id: "{each}"') for each in IDS)
    for stop in STOPS:
        assert [str(Program.parse(text)) for text in stop.programs] == [*stop.programs]
        assert numbers()[stop.id].keys() == stop.numbers.keys()


def test_maps_of_programs_and_their_sources_are_found() -> None:
    assert maps_in("F6 J:one F[layer[2].z<-(F6 J:two F[layer[1].z<-(F J:three F)@other])]") == {"one", "two", "three"}


def test_the_walks_of_the_tour_do_what_its_stops_say() -> None:
    explorer = Explorer(open_model(MAIN_MODEL))
    examples = {each.id: each for each in explorer.subject.examples}
    stops = {stop.id: stop for stop in STOPS}

    def answers(stop: Stop) -> list[int]:
        example, found = examples[stop.input], []
        for program in stop.programs:
            read = {"kind": "readouts", "answers": [], "rows": "last", "top": 1}
            request = explorer.request(program, read, example.input, example.others)
            found.append(int(unpack(finish(explorer.answer(request)))[1]["top"][-1, 0, 0]))
        return found

    def walked(stop: Stop, steps: int) -> int:
        given = examples[stop.input].input
        return int(advance(torch.tensor([given["graph"]]), torch.tensor([given["start"]]), steps))

    selects, patterns, edges, lasts = (stops[name] for name in ("selects", "patterns", "edges", "lasts"))
    assert answers(stops["loop"]) == [walked(stops["loop"], 8)]
    assert answers(selects) == [walked(selects, 8 + steps) for steps in range(3)]
    graphs = [
        torch.tensor([each["graph"]]) for each in (examples[edges.input].input, examples[edges.input].others["other"])
    ]
    b, d, e = crossed_labels(*graphs, torch.tensor([walked(edges, 8)]))[0].tolist()
    assert answers(edges) == [b, e, d]
    two, *heads, together = answers(patterns)
    one = walked(patterns, 9)
    assert (two, together) == (walked(patterns, 10), one)
    assert heads[1] == one
    assert answers(lasts)[1] == walked(lasts, 16)


@pytest.mark.slow
def test_the_numbers_of_the_tour_are_those_of_the_records() -> None:
    module = writer()
    assert module.HERE.read_text(encoding="utf-8") == module.text()
