"""How long the explorer's page waits: questions over a real socket, each asked for the first time."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, TypeAlias

from loopscope.address import PER_HEAD, Address, Site
from loopscope.log import Log, silent
from loopscope.program import Call, Map, Program
from loopscope.view.bundle import GRID, READOUTS
from loopscope.view.contract import Request, Settings, canonical, unpack
from loopscope.view.examples import Example
from loopscope.view.explorer import Explorer
from loopscope.view.inputs import tokens_of
from loopscope.view.server import Server
from loopscope.view.shown_model import ShownModel
from loopscope.view.worker import Worker

ROUNDS = 9
CELLS = 48
"""Places of the sweep that is timed, as near as the model's heads and layers allow."""

Took: TypeAlias = tuple[float, float]
"""Seconds on the clock, and of the processor."""

AIMS = {"graph": {"J switched": 0.15, "patch": 0.2, "sweep": 1.5}, "text": {"patch": 0.4}}
"""Seconds that are aimed at on two cores, for the main backbone and for SmolLM2-135M."""

TOKENS = 60
"""Rows of the text that a language model is asked about, at least."""


@dataclass(frozen=True)
class Waiting:
    """One kind of question: the median of `rounds` different ones, and the longest; `aim_s` None: there is none.

    `cpu_s` is the median of the processor time, which other work of the machine enters least.
    """

    case: str
    about: str
    rounds: int
    median_s: float
    longest_s: float
    cpu_s: float
    aim_s: float | None


def bench_view(subject: ShownModel, log: Log = silent) -> list[Waiting]:
    """Ask as the page does, in kinds; what one question leaves behind, such as the base run, the next one finds."""
    found = []
    log("first answer")
    example = _example(subject)
    read = READOUTS if subject.kind == "graph" else GRID
    firsts: list[Took] = []
    for _ in range(3):
        with _Line(subject) as line:
            asked = line.explorer.request(str(subject.program), read, example.input)
            tokens = line.explorer.request(str(subject.program), {"kind": "input"}, example.input)
            firsts += [took for took in [line.took([tokens, asked])] if took]
    aims = AIMS.get(subject.kind, {})
    found.append(_waiting("first answer", "tokens and readouts of the model's own program", firsts, aims))
    with _Line(subject) as line:
        every = (example, *subject.examples)
        line.took([line.explorer.request(str(subject.program), read, each.input) for each in every])
        for case, about, several in (
            ("J switched", "a map between two other loops: new readouts", _switched(line.explorer, read)),
            ("patch", "another head takes another run's pattern: new readouts", _patched(line.explorer)),
            ("sweep", f"{_cells(subject)} heads", _swept(line.explorer)),
        ):
            log(case)
            times = [*islice((took for each in several if (took := line.took([each]))), ROUNDS)]
            if times:
                found.append(_waiting(case, about, times, aims))
    return found


def _example(subject: ShownModel) -> Example:
    """The first example; of a language model its text again and again, up to `TOKENS` rows or more."""
    first = subject.examples[0]
    if subject.kind != "text":
        return first
    times = -(-TOKENS // len(tokens_of(subject, first.input)))

    def longer(given: Settings) -> Settings:
        return {**given, "text": " ".join([given["text"]] * times)}

    return replace(first, input=longer(first.input), others={name: longer(each) for name, each in first.others.items()})


def _waiting(case: str, about: str, times: list[Took], aims: Mapping[str, float]) -> Waiting:
    seconds, cpu = zip(*times, strict=True)
    return Waiting(case, about, len(times), median(seconds), max(seconds), median(cpu), aims.get(case))


def _switched(explorer: Explorer, read: Settings) -> Iterator[Request]:
    """The model's own program and a call, with each map between two of its calls, the last ones first."""
    subject = explorer.subject
    own = [*subject.program.steps, _last(subject.program)]
    for at in reversed(range(1, len(own))):
        for name in list(subject.maps)[:2]:
            program = replace(subject.program, steps=(*own[:at], Map(name), *own[at:]))
            yield explorer.request(str(program), read, _example(subject).input)


def _patched(explorer: Explorer) -> Iterator[Request]:
    """The model's own program, one head of its last call at a time with what it has on the other input.

    Layers are spread over the call, as a patch costs the layers behind it.
    """
    subject, example = explorer.subject, _example(explorer.subject)
    program = subject.program
    others = _alike(explorer, example)
    layers = {1 + round(at * (_layers(explorer) - 1) / (ROUNDS - 1)) for at in range(ROUNDS)}
    for head in range(subject.model.heads):
        for rows in (None, (-1,)):
            for layer in sorted(layers, reverse=True):
                place = Address(program.calls, Site(layer, "pattern", (head,), rows))
                source = f"({program})@other" if others else f"({program}).loop[{max(1, program.calls - 1)}]"
                yield explorer.request(str(program.patch(place, source)), READOUTS, example.input, others)


def _alike(explorer: Explorer, example: Example) -> dict[str, Settings]:
    """The other input of an example, where it has as many rows."""
    case = explorer.case(example.input, example.others)
    same = all(len(tokens) == len(case.tokens) for _, tokens in case.others)
    return {name: each for name, each in example.others.items() if same}


def _heads(subject: ShownModel) -> int:
    return subject.model.heads * len(subject.pieces.stack(_last(subject.program).stack))


def _cells(subject: ShownModel) -> int:
    """The heads of so many calls that they are about `CELLS`."""
    return _heads(subject) * max(1, min(subject.program.calls, round(CELLS / _heads(subject))))


def _swept(explorer: Explorer) -> Iterator[Request]:
    """Sweeps of all heads of the longest program that has about so many, for other components and inputs."""
    subject = explorer.subject
    program = Program((_last(subject.program),) * (_cells(subject) // _heads(subject)))
    for component in sorted(PER_HEAD):
        for example in subject.examples:
            if not (others := _alike(explorer, example)):
                continue
            read = {
                "kind": "sweep",
                "by": "head",
                "component": component,
                "rows": "all",
                "source": f"({program})@other",
            }
            yield explorer.request(str(program), read, example.input, others)


def _last(program: Program) -> Call:
    return [step for step in program.steps if isinstance(step, Call)][-1]


def _layers(explorer: Explorer) -> int:
    return len(explorer.subject.pieces.stack(_last(explorer.subject.program).stack))


class _Line:
    """A server of its own and one connection to it, as a page has."""

    def __init__(self, subject: ShownModel) -> None:
        self.explorer = Explorer(subject)
        self.server = Server(Worker(self.explorer))
        self._thread = threading.Thread(target=self._run)
        self._ready = threading.Event()

    def _run(self) -> None:
        self.server.run(self._ready.set)

    def __enter__(self) -> _Line:
        self._thread.start()
        self._ready.wait(60)
        self._http = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self.server.stop()
        self._thread.join(60)

    def took(self, requests: list[Request]) -> Took | None:
        """How long it takes until all are answered, one after the other; None where a sweep has nothing to recover."""
        started, before = time.perf_counter(), time.process_time()
        for request in requests:
            head, _ = unpack(self._answer(request))
            if "error" not in head:
                continue
            if "nothing to recover" in head["error"]["message"]:
                return None
            raise RuntimeError(head["error"]["message"])
        return time.perf_counter() - started, time.process_time() - before

    def _answer(self, request: Request) -> bytes:
        value: dict[str, Any] = {
            "model": request.model, "input": request.input, "others": dict(request.others), "program": request.program,
            "read": request.read,
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "X-Loopscope-Tab": "benchmark"}
        while True:
            self._http.request("POST", f"/{self.server.token}/ask", canonical(value), headers)
            reply = self._http.getresponse()
            body = reply.read()
            if reply.status == 200:
                return body
            if reply.status != 202:
                raise RuntimeError(json.loads(body)["error"]["message"])
