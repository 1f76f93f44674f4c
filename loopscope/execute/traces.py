"""What a run gives: a trace for every program, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from loopscope.address import Address, Row
from loopscope.errors import InputError, nearest
from loopscope.execute.tables import answers_table
from loopscope.program import Program, ProgramLike, as_program
from loopscope.results import Tabular, numbered
from loopscope.table import Table


@dataclass(frozen=True, repr=False)
class Work(Tabular):
    """What a run cost.

    `rows` counts (example, row, layer) triples for which anything was computed; `plain_rows` is that count for one
    plain run of the longest program; `calls` counts distinct calls of F, base or patched.
    """

    calls: int
    rows: int
    plain_rows: int

    @property
    def forwards(self) -> float:
        """Cost in forward-equivalents."""
        return self.rows / self.plain_rows

    def table(self) -> Table:
        """One row with all counts."""
        return Table("work", {name: [getattr(self, name)] for name in ("calls", "rows", "plain_rows", "forwards")})

    def _words(self) -> str:
        return f"{numbered(self.calls, 'call')}, {numbered(self.rows, 'row')}, {self.forwards:,.3g} forwards"


@dataclass(frozen=True, repr=False)
class Trace(Tabular):
    """What one program showed: logits at each point that was read, and the activations that were kept."""

    program: Program
    rows: tuple[Row, ...]
    logits_at: Mapping[str, Float[Tensor, "examples rows classes"]]
    kept: Mapping[Address, Tensor]

    @property
    def logits(self) -> Float[Tensor, "examples rows classes"]:
        """Logits at the last point that was read."""
        return self.logits_at[list(self.logits_at)[-1]]

    @property
    def predictions(self) -> Int[Tensor, "examples rows"]:
        """The most likely class at the last point that was read."""
        return self.logits.argmax(-1)

    def table(self) -> Table:
        """The most likely class at every point, example and row that was read, and its probability."""
        return answers_table([(self.program, self.rows, self.logits_at)])

    def _words(self) -> str:
        examples, rows, classes = self.logits.shape
        points = list(self.logits_at)
        kept = [f"{len(self.kept):,} kept"] if self.kept else []
        sizes = [numbered(examples, "example"), numbered(rows, "row"), f"{classes:,} classes"]
        read = f"at {points[-1]}" if len(points) == 1 else f"at {len(points):,} points"
        return f"{', '.join([*sizes, *kept])} {read} of '{self.program}'"

    def _tensors(self) -> dict[str, Tensor]:
        logits = {f"logits/{point}": each for point, each in self.logits_at.items()}
        return logits | {f"kept/{address}": each for address, each in self.kept.items()}


class MissingError(InputError, KeyError):
    """A program that was not run; also a KeyError, so that `in` and `get` work as on any mapping."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


@dataclass(frozen=True, repr=False)
class Result(Mapping[ProgramLike, Trace], Tabular):
    """A trace for every program, found by value or text, in the order asked for."""

    traces: Mapping[Program, Trace]
    work: Work

    def __getitem__(self, program: ProgramLike) -> Trace:
        wanted = as_program(program)
        if wanted not in self.traces:
            raise MissingError(f"'{wanted}' was not run{nearest(str(wanted), map(str, self.traces))}")
        return self.traces[wanted]

    def __iter__(self) -> Iterator[Program]:
        return iter(self.traces)

    def __len__(self) -> int:
        return len(self.traces)

    def table(self) -> Table:
        """The tables of all traces, one below the other."""
        return answers_table([(each.program, each.rows, each.logits_at) for each in self.traces.values()])

    def _words(self) -> str:
        first = next(iter(self.traces.values()), None)
        asked = [] if first is None else [f"of {numbered(len(first.logits), 'example')}"]
        return " ".join([numbered(len(self), "program"), *asked, f"for {self.work.forwards:,.3g} forwards"])

    def _tensors(self) -> dict[str, Tensor]:
        return {f"{program}/{name}": each for program, trace in self.traces.items()
                for name, each in trace._tensors().items()}  # fmt: skip
