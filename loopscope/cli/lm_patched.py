"""What `lm patch` and `lm sweep` are made from: a model, its maps, texts behind their puzzles, where runs begin."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import shown
from loopscope.cli.app import AsJson
from loopscope.cli.lm import (
    check_out,
    encoded,
    puzzles_named,
    quiet_transformers,
    start_named,
    tokenizer_of,
    tokens_named,
)
from loopscope.cli.options import AnyMap, Begin, Chat, Force, LanguageModel, Puzzles, map_named
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from loopscope.address import Row
    from loopscope.execute.memory import Memory
    from loopscope.models.folders import Adapter
    from loopscope.models.steering import FullPrecisionMap, Provenance
    from loopscope.models.text import Tokenizer
    from loopscope.program import Program, Start


@dataclass(frozen=True, kw_only=True)
class Patched(LanguageModel):
    """A language model that is patched: its texts and maps, how it is spoken to and read, and where results go."""

    text: Annotated[list[str] | None, typer.Option(help="A text that the programs run on (repeatable).")] = None
    ids: Annotated[
        str | None, typer.Option(help='Texts as tokens, such as "[[1, 7, 3]]"; other texts are then tokens, too.')
    ] = None
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=FOLDER", help="A saved map J, or its zoo name (repeatable)."),
    ] = None
    any_map: AnyMap = False
    chat: Chat = False
    start: Begin = None
    puzzles: Puzzles = None
    row: Annotated[
        str, typer.Option(help="The row whose next token is read: a number, or what stands there: '\" France\"'.")
    ] = "-1"
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="What may be held beside the model, such as 8GiB; fewer places at a time."),
    ] = None
    out: Annotated[Path | None, typer.Option(help="A safetensors file for what comes out.")] = None
    force: Force = False
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class Swept(Patched):
    """A language model that is swept; its `--loop` is a loop to patch in."""

    short: None = field(init=False, default=None)


@dataclass(frozen=True)
class Job:
    """A model folder to be loaded: its shape, tokenizer, maps and start, checked before its weights are read."""

    asked: Patched
    shape: Adapter
    tokenizer: Tokenizer | None
    maps: dict[str, FullPrecisionMap]
    provenance: dict[str, Provenance]
    row: Row
    begin: Start
    state: Tensor | None
    memory: int | None
    sized: list[Memory]

    def texts(self) -> list[list[int]]:
        """The texts of `--text` or `--ids`, as tokens."""
        if self.asked.ids is not None:
            found = tokens_named(self.asked.ids)
        else:
            found = [self._encoded(text) for text in self.asked.text or ()]
        if not all(found):
            raise InputError("every prompt needs at least one token")
        return found

    def others(self, option: str, given: Sequence[str], wanted: int) -> list[list[int]]:
        """As many other texts, given one by one; as tokens where the texts are."""
        if self.asked.ids is None:
            found = [self._encoded(text) for text in given]
        else:
            found = [tokens for text in given for tokens in tokens_named(listed(text), option)]
        if len(found) != wanted:
            raise InputError(f"{option} is given for {len(found)} of {wanted} texts; give one for each, in their order")
        if not all(found):
            raise InputError("every prompt needs at least one token")
        return found

    def _encoded(self, text: str) -> list[int]:
        assert self.tokenizer is not None  # loaded, because there is a text
        return encoded(self.tokenizer, text, self.asked.chat)

    def behind_puzzles(self, inputs: Mapping[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        """What the model runs on: the texts behind the rows of their puzzles, where it has such rows.

        The puzzles are those of the first input, and of the others if there are as many more; else these have the same.
        """
        from loopscope.measure.readouts import behind_puzzles

        count = len(next(iter(inputs.values())))
        chosen = None if self.asked.puzzles is None else puzzles_named(self.asked.puzzles)
        if chosen is None or len(chosen) == count:
            return {name: behind_puzzles(self.shape, texts, chosen) for name, texts in inputs.items()}
        if len(chosen) != count * len(inputs):
            most = f" or, with those of the others, {count * len(inputs)}" if len(inputs) > 1 else ""
            raise InputError(f"--puzzles takes {count}{most}, not {len(chosen)}")
        return {
            name: behind_puzzles(self.shape, texts, chosen[at * count : (at + 1) * count])
            for at, (name, texts) in enumerate(inputs.items())
        }

    def begun(self, program: Program) -> Program:
        """A program and its sources, begun where `--start` says; sources may name a start of their own."""
        from loopscope.measure.patching import started

        begin = self.begin if self.state is None else 0
        if begin is not None and program.start not in (None, begin):
            raise InputError(f"'{program}' names its start; --start {shown(self.asked.start)} would be another")
        return started(program, begin)

    def states(self, inputs: Iterable[str]) -> dict[str, Tensor]:
        """The state of `--start FILE`, for every input."""
        if self.state is None:
            return {}
        return dict.fromkeys(inputs, self.state.to(self.asked.precision))

    def load(self, log: Callable[[str], None]) -> tuple[Adapter, dict[str, FullPrecisionMap]]:
        """The model and the maps on their device."""
        from loopscope.models.folders import load

        log("loading")
        asked, device = self.asked, self.asked.place
        model = load(asked.folder, boundary=asked.ending, loop=asked.loop, device=device, dtype=asked.precision)
        return model, {name: step.to(device) for name, step in self.maps.items()}

    def name(self, token: int) -> str:
        """A token for people to read; in front of a text, the puzzle whose row it is."""
        if token >= self.shape.vocabulary and self.shape.lead:
            return f"puzzle {(token - self.shape.vocabulary) // self.shape.lead}"
        return str(token) if self.tokenizer is None else json.dumps(self.tokenizer.name(token), ensure_ascii=False)

    def row_in(self, tokens: Sequence[int]) -> int:
        """The number of the row that is read in a text, from 0."""
        from loopscope.execute.unequal import row_of

        return self.row % len(tokens) if isinstance(self.row, int) else row_of(self.row, list(tokens), self.tokenizer)

    def held(self) -> dict[str, Any]:
        """The memory that was stated before the work started, in bytes beside the model; the most of several times.

        Nothing, where workers did the work.
        """
        if not self.sized:
            return {}
        most = max(self.sized, key=lambda each: each.peak)
        return {"memory": {"peak": most.peak, "allowed": self.memory, "examples": most.chunk, "runs": most.stack}}

    def about(self) -> dict[str, Any]:
        """The model and where its maps are from, for the report."""
        from loopscope.models.hub import origin_of

        asked, maps = self.asked, {name: each.notes for name, each in self.provenance.items()}
        row = self.row if isinstance(self.row, int) else str(self.row)
        model = {"folder": str(asked.folder), "boundary": self.shape.boundary, "dtype": asked.dtype, "row": row}
        settings = {"loop": self.shape.loop, "start": asked.start, "lead": self.shape.lead or None}
        part = {name: value for name, value in settings.items() if value is not None}
        return {**model, **part, **origin_of(asked.folder), "maps": maps}


def job_of(asked: Patched, here: bool = True) -> Job:
    """A job, checked as far as it can be without the weights; InputError or DamagedError where something is wrong.

    Where it is not done `here`, the device that it asks for need not be.
    """
    quiet_transformers()
    from loopscope.execute.memory import memory_named
    from loopscope.models.folders import outline
    from loopscope.models.steering import FullPrecisionMap, check_fitted, load_steering_map
    from loopscope.pieces import pieces_of

    if not asked.text and asked.ids is None:
        raise InputError("give texts to run on, --text or --ids")
    if asked.text and asked.ids is not None:
        raise InputError("give either --text or --ids")
    memory = None if asked.memory is None else memory_named(asked.memory)
    if asked.chat and not asked.text:
        raise InputError("--chat puts a text into the chat template; give --text")
    choose_threads(weights_in(asked.folder))
    ending, _, _ = asked.ending, asked.precision, asked.place if here else None
    row = row_named(asked.row)
    begin, state = start_named(asked.start)
    shape = outline(asked.folder, boundary=ending, loop=asked.loop)
    if asked.out is not None:
        check_out(asked.out, asked.folder, asked.force)
    given = {name: one for name, (one,) in pairs("--map", "NAME=FOLDER", asked.maps, once=True).items()}
    places = {name: map_named(Path(each)) for name, each in given.items()}
    wide = pieces_of(shape).state_width
    saved = {name: load_steering_map(each, asked.folder, wide) for name, each in places.items()}
    steps = {name: FullPrecisionMap(each.float()) for name, each in saved.items()}
    origins = {
        name: check_fitted(each, asked.folder, shape.boundary, loop=shape.loop, any_map=asked.any_map)
        for name, each in places.items()
    }
    tokenizer = tokenizer_of(asked.folder, needed=bool(asked.text))
    return Job(asked, shape, tokenizer, steps, origins, row, begin, state, memory, [])


def pairs(option: str, form: str, given: Iterable[str] | None, once: bool = False) -> dict[str, list[str]]:
    """What was given as NAME=VALUE, by name; InputError for anything else, and for a name twice if `once`."""
    found: dict[str, list[str]] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InputError(f"{option} takes {form}, not {each[:60]!r}")
        if once and name in found:
            raise InputError(f"{option} {name} is given twice")
        found.setdefault(name, []).append(value)
    return found


def row_named(text: str) -> Row:
    """A row by its number, or by what stands there; InputError for anything else, and for several."""
    from loopscope.address import parse_rows

    found = parse_rows(text)
    if found is None or len(found) != 1:
        raise InputError(f"--row takes a number, or what stands there as '\" France\"' or '<318 9>', not {shown(text)}")
    return found[0]


def listed(text: str) -> str:
    """Tokens of one text as a list of lists."""
    return text if text.lstrip().startswith("[[") else f"[{text}]"
