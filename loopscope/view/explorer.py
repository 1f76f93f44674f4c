"""Requests and their answers: one model that is asked, whoever asks.

explorer = Explorer(open_model("d8l6-5"))
finish(explorer.answer(request))        the bytes of an answer
"""

from __future__ import annotations

from collections.abc import Mapping

from loopscope.errors import InputError, NotFiniteError
from loopscope.program import Program
from loopscope.view.checking import check_program, read_check
from loopscope.view.contract import Answer, Request, Settings, failed, pack
from loopscope.view.inputs import tokens_of
from loopscope.view.reads import READS, Read
from loopscope.view.runs import MEMORY, Case, Runs, Steps
from loopscope.view.shown_model import ShownModel
from loopscope.view.sweeps import read_sweep

KINDS: Mapping[str, Read] = {**READS, "check": read_check, "sweep": read_sweep}
"""Everything that can be read, by name."""

LONG = frozenset({"sweep"})
"""What takes a while, so that others are answered in between."""

BUSY = 8
"""Bytes of memory that a number of a readout takes while it is measured."""


class Explorer:
    """Answers requests about one model; `memory` bounds the bytes of what is kept, and of one readout."""

    def __init__(self, subject: ShownModel, memory: int = MEMORY) -> None:
        self.subject, self.memory = subject, memory
        self.runs = Runs(subject, memory // 2)

    def answer(self, request: Request) -> Steps[bytes]:
        """The answer of a request, as bytes; what the library refuses is an answer, too.

        Any other error of the library is raised, and so is that memory is not there.
        """
        try:
            found = yield from self._answer(request)
        except (InputError, NotFiniteError) as error:
            found = failed(error, request.program)
        return pack(found, request.name)

    def _answer(self, request: Request) -> Steps[Answer]:
        if request.model != self.subject.fingerprint:
            raise InputError("the request is for another model than the one that is shown; load the page again")
        case = self.case(request.input, request.others)
        program = Program.parse(request.program)
        check_program(self.subject, case, program)
        self._check_size(request, case, program)
        if request.kind != "check":
            program = yield from self.runs.named(program)
        return (yield from KINDS[request.kind](self.runs, request, case, program))

    def case(self, given: Settings, others: Mapping[str, Settings]) -> Case:
        """Inputs as tokens."""
        named = tuple(sorted((name, tokens_of(self.subject, each)) for name, each in others.items()))
        return Case(tokens_of(self.subject, given), named)

    def _check_size(self, request: Request, case: Case, program: Program) -> None:
        """InputError for readouts that would take more memory than there may be."""
        rows = len(case.tokens) if request.read.get("rows") == "all" else 1
        size = BUSY * len(program.points) * rows * self.subject.classes
        if request.kind in ("readouts", "compare", "trajectory") and size > self.memory:
            raise InputError(
                f"readouts of {len(program.points)} points x {rows} rows x {self.subject.classes:,} classes take"
                f" {size / 2**30:.1f} GiB, more than the {self.memory / 2**30:.1f} GiB there may be"
                " (nearest: rows 'last')"
            )

    def request(
        self, program: str, read: Settings, given: Settings, others: Mapping[str, Settings] | None = None
    ) -> Request:
        """The request that the page sends for this: with those other inputs alone that are named."""
        from loopscope.view.contract import canonical

        text = canonical([program, dict(read)]).decode()
        named = {name: dict(each) for name, each in (others or {}).items() if f"@{name}" in text}
        return Request.of(
            {"model": self.subject.fingerprint, "input": dict(given), "others": named, "program": program,
             "read": dict(read)}
        )  # fmt: skip
