"""The page with recorded answers: one HTML file that needs no server and no network.

    write_bundle(Explorer(open_model("d8l6-5")), Path("walks"))

What is recorded are answers, byte by byte those of the live page: of a few inputs and programs all that the page shows
of itself, and what the tour shows.  The same model gives the same file.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

from loopscope.address import Address, Site
from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.program import Call, Program
from loopscope.store.files import new_folder, write_synced
from loopscope.store.outputs import check_folder
from loopscope.view.assets import Page
from loopscope.view.checking import check_program, options_of
from loopscope.view.contract import Json, Request, Settings, canonical, unpack
from loopscope.view.examples import OTHER, Example
from loopscope.view.explorer import Explorer
from loopscope.view.runs import finish

FILE = "index.html"

MOST = 3 * 2**20
"""Bytes of the bundle of the main backbone, at most."""

READOUTS: Settings = {"kind": "readouts", "answers": [], "rows": "last", "top": 5}
GRID: Settings = {"kind": "readouts", "answers": [], "rows": "all", "top": 5}
"""What the page reads of a run, and of its rows."""

THUMBNAIL = 64
"""Cells of a thumbnail's side on the page."""

WHOLE = 2
"""Examples of which everything is recorded; of the others what a run answers."""

LONGEST_SWEEP = 600
"""Cells of a sweep that is recorded."""

TOLD = frozenset({"sweep", "check"})
"""What may be answered by an error, which is shown: two runs that agree, or an input of another length."""


def requests_of(explorer: Explorer) -> Iterator[Request]:
    """What is recorded of a model: the questions that the page asks when one goes through it."""
    hello = explorer.subject.hello()
    programs = [str(each["program"]) for each in hello["programs"]]
    for number, example in enumerate(explorer.subject.examples):
        ask = _Asking(explorer, example)
        yield ask(hello["program"], {"kind": "input"})
        for stop in hello["tour"] or ():
            for program in stop["programs"]:
                yield from ask.run(program)
                if stop["input"] == example.id:
                    yield from ask.places(program, stop["places"])
        for program in programs:
            yield from ask.run(program)
            if hello["kind"] != "graph" or number < WHOLE:
                yield ask(program, GRID)
            yield ask(program, {"kind": "trajectory", "rows": "all"})
        if number < WHOLE:
            yield from _whole(ask, hello, programs)
    for example in explorer.subject.examples:  # the other input of an example, as it is shown beside it
        for name, other in example.others.items():
            beside = _Asking(explorer, Example(name, name, other))
            yield beside(hello["program"], {"kind": "input"})
            for program in programs:
                yield from beside.run(program)


class _Asking:
    """Requests about one example."""

    def __init__(self, explorer: Explorer, example: Example) -> None:
        self.explorer, self.example = explorer, example

    def __call__(self, program: str, read: Settings) -> Request:
        return self.explorer.request(program, read, self.example.input, self.example.others)

    def run(self, program: str) -> Iterator[Request]:
        """What is shown of a run at once."""
        yield self(program, READOUTS)
        yield self(program, {"kind": "check"})

    def fits(self, program: str) -> bool:
        """Whether a program can be run, as what it takes from another input is of as many rows."""
        explorer, example = self.explorer, self.example
        try:
            check_program(explorer.subject, explorer.case(example.input, example.others), Program.parse(program))
        except InputError:
            return False
        return True

    def places(self, program: str, places: Iterable[str], heads: int | None = None) -> Iterator[Request]:
        """The patterns of layers: thumbnails of all heads, and each head."""
        count = self.explorer.subject.model.heads if heads is None else heads
        for place in places:
            yield self(program, {"kind": "patterns", "head": None, "place": place, "size": THUMBNAIL})
            for head in range(count):
                yield self(program, {"kind": "patterns", "head": head, "place": place, "size": 0})


def _whole(ask: _Asking, hello: dict[str, Json], programs: list[str]) -> Iterator[Request]:
    """Everything of an example: patterns, comparisons, sweeps, and patches of the last call."""
    layers = {each["name"]: each["layers"] for each in hello["stacks"]}
    for program in programs:
        calls = [step for step in Program.parse(program).steps if isinstance(step, Call)]
        places = [
            f"loop[{loop}].layer[{layer}]"
            for loop, call in enumerate(calls, start=1)
            for layer in range(1, layers[call.stack] + 1)
        ]
        yield from ask.places(program, places)
    for one, two in permutations(programs, 2):
        yield ask(one, {"kind": "compare", "other": two, "rows": "all"})
    for program in programs:
        yield from _patched(ask, hello, programs, Program.parse(program))


def _patched(ask: _Asking, hello: dict[str, Json], programs: list[str], program: Program) -> Iterator[Request]:
    """A sweep of all patterns, and single patches of the last call, from the run that the page takes by itself."""
    source = _source(ask, hello, programs, program)
    if source is None:
        return
    layers = next(each["layers"] for each in hello["stacks"] if each["name"] == _last(program).stack)
    places, heads = program.calls * layers, hello["heads"]
    by = "head" if hello["kind"] == "graph" else "layer"
    if places * (heads if by == "head" else 1) <= LONGEST_SWEEP:
        for component in ("pattern", "z"):
            read = {"kind": "sweep", "by": by, "component": component, "rows": "all", "source": source}
            yield ask(str(program), read)
    single = [(head,) for head in range(heads)] if places * heads <= LONGEST_SWEEP else []
    for layer in range(1, layers + 1):
        for component in ("pattern", "z"):
            for chosen in (None, *single):
                for rows in (None, (-1,)):
                    place = Address(program.calls, Site(layer, component, chosen, rows))
                    patched = str(program.patch(place, source))
                    yield from ask.run(patched) if ask.fits(patched) else [ask(patched, {"kind": "check"})]


def _source(ask: _Asking, hello: dict[str, Json], programs: list[str], program: Program) -> str | None:
    """The run that the page takes values from by itself: without maps this one on the other input."""
    if not hello["maps"] and OTHER in ask.example.others:
        return f"({program})@{OTHER}"
    others = [Program.parse(each) for each in programs if each != str(program)]
    givers = [each for each in others if each.calls >= program.calls]
    return f"({givers[-1]})" if givers else None


def _last(program: Program) -> Call:
    return [step for step in program.steps if isinstance(step, Call)][-1]


def record(explorer: Explorer, log: Log = silent) -> tuple[dict[str, list[int]], bytes]:
    """All answers one after the other, and where each begins and how long it is, by name."""
    asked = {request.name: request for request in requests_of(explorer)}
    places: dict[str, list[int]] = {}
    data = bytearray()
    for number, (name, request) in enumerate(asked.items(), start=1):
        if number % 50 == 1:
            log(f"recording answer {number:,} of {len(asked):,}")
        answer = finish(explorer.answer(request))
        head, _ = unpack(answer)
        if "error" in head and request.kind not in TOLD:
            raise InputError(f"'{request.program}' cannot be recorded: {head['error']['message']}")
        places[name] = [len(data), len(answer)]
        data += answer
    return places, bytes(data)


def bundle_of(explorer: Explorer, log: Log = silent) -> str:
    """The page as one HTML file."""
    places, data = record(explorer, log)
    subject = explorer.subject
    folder = subject.folder
    command = None if folder is None else shlex.join(["loopscope", "view", folder, *options_of(subject, subject.maps)])
    hello = {**subject.hello(), "live": False, "recorded": sorted(places), "made_with": command}
    packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    return Page.read().whole(canonical({"hello": hello, "answers": places, "data": packed}).decode())


def write_bundle(explorer: Explorer, folder: Path, log: Log = silent) -> Path:
    """Write a folder with the page as `index.html`, and give that file.

    InputError where something is there already; StoreError where the file system refuses.
    """
    check_folder(folder)
    page = bundle_of(explorer, log).encode()
    with new_folder(folder) as draft:
        write_synced(draft / FILE, page)
    return folder / FILE


def read_bundle(file: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Hello and the answers of a bundle, by name; InputError for a file that is none."""
    found = re.search(r'<script type="application/json" id="loopscope-bundle">(.*?)</script>', file.read_text("utf-8"))
    if not found:
        raise InputError(f"{file} is no page with recorded answers")
    held = json.loads(found[1])
    data = gzip.decompress(base64.b64decode(held["data"]))
    return held["hello"], {name: data[at : at + size] for name, (at, size) in held["answers"].items()}
