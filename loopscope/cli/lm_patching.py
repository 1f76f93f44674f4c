"""Patching looped language models: programs side by side, and a component swept over loops, layers and heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopscope.bounds import VOCABULARY, whole
from loopscope.cli.app import AsJson, print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import check_out, encoded, lm_app, named, quiet_transformers
from loopscope.cli.options import AnyMap, Chat, Force, LanguageModel, Top, bundled, map_named
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from loopscope.measure.patching import Recovery, Said
    from loopscope.models.folders import Adapter
    from loopscope.models.steering import InFull, Provenance
    from loopscope.models.text import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Patched(LanguageModel):
    """A language model that is patched: its maps, how it is spoken to and read, and where results go."""

    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=FOLDER", help="A saved map J, or its zoo name (repeatable)."),
    ] = None
    any_map: AnyMap = False
    chat: Chat = False
    row: Annotated[int, typer.Option(help="The row whose next token is read.")] = -1
    out: Annotated[Path | None, typer.Option(help="A safetensors file for what comes out.")] = None
    force: Force = False
    as_json: AsJson = False


SHOWN = 6
"""Rows in which texts differ that are named."""


@lm_app.command("patch")
@bundled
def lm_patch(
    asked: Patched,
    programs: Annotated[
        list[str], typer.Argument(metavar="PROGRAM...", help='Such as "F3 F[layer[5].row[-1].z<-(F4)@other]".')
    ],
    text: Annotated[str, typer.Option(help="The text that the programs run on.")],
    other: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="A text of as many tokens, @NAME in programs (repeatable)."),
    ] = None,
    top: Top = 5,
) -> None:
    """Run programs with patches on a text; the likeliest next tokens of each, beside those of its plain program.

    A program is compared with itself without its patches or, if it has none, without its maps.
    """
    from loopscope.measure.patching import check, compare
    from loopscope.measure.readouts import write_tensors
    from loopscope.program import Program

    whole("--top", top, 1, VOCABULARY)
    wanted = [Program.parse(each) for each in programs]
    job = _job(asked)
    row, out = asked.row, asked.out
    tokens = job.tokens(["--text"], [text])
    texts = _pairs("--other", "NAME=TEXT", other)
    inputs = {name: job.tokens([f"--other {name}"], [each], like=("--text", tokens)) for name, each in texts.items()}
    check(job.shape, tokens, wanted, maps=job.maps, others=inputs, row=row)
    with spinner() as log:
        model, steps = job.load(log)
        log("running")
        found = compare(model, tokens, wanted, maps=steps, others=inputs, row=row)
        if out is not None:
            import torch

            tensors = {"logits": torch.stack([each.logits for each in found]), "tokens": tokens[0]}
            tensors |= {f"other.{name}": each[0] for name, each in inputs.items()}
            about = {"programs": [str(each.program) for each in found]}
            write_tensors(out, tensors, about, asked.force)
    report = {
        **job.about(),
        "tokens": tokens[0].tolist(),
        "others": {name: each[0].tolist() for name, each in inputs.items()},
        "programs": [_said(each, job.tokenizer, top) for each in found],
        "out": None if out is None else str(out),
    }
    if asked.as_json:
        return print_json(report)
    _print_programs(report, job.name)


@lm_app.command("sweep")
@bundled
def lm_sweep(
    asked: Patched,
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMPONENT",
            help="An address without loop and layer: resid, row[-2].resid, head[3].row[-1].pattern.",
        ),
    ],
    text: Annotated[list[str], typer.Option(help="A text that is patched (repeatable).")],
    source: Annotated[
        list[str], typer.Option("--from", metavar="TEXT", help="The text that it is patched from, one for each --text.")
    ],
    program: Annotated[
        str | None, typer.Option(help="The program that is patched; default: the model's loops.")
    ] = None,
    loop: Annotated[list[int] | None, typer.Option(help="A loop to patch in (repeatable); default: all.")] = None,
    layer: Annotated[list[int] | None, typer.Option(help="A layer to patch in (repeatable); default: all.")] = None,
    each_head: Annotated[bool, typer.Option("--each-head", help="One head at a time instead of all at once.")] = False,
) -> None:
    """Patch a component from another text, one loop and layer at a time: how far does it move the answer?

    In percent of the logit difference between both texts' answers, the likeliest next tokens without a patch.
    """
    from loopscope.address import Site
    from loopscope.measure.patching import check, places, recover
    from loopscope.measure.readouts import write_tensors
    from loopscope.program import F, as_program

    if len(text) != len(source):
        raise InputError(f"every --text needs a --from: {len(text)} and {len(source)} were given")
    site = Site.parse(f"layer[1].{what}")
    given = None if program is None else as_program(program)
    job = _job(asked)
    row, out = asked.row, asked.out
    tokens = job.tokens(_numbered("--text", text), text)
    other = job.tokens(_numbered("--from", source), source, like=("--text", tokens))
    whole_run = F**job.shape.loops if given is None else given
    check(job.shape, tokens, [whole_run], maps=job.maps, others={}, row=row)
    cells = places(job.shape, whole_run, site, tokens.shape[1], loops=loop, layers=layer, each_head=each_head)
    with spinner() as log:
        model, steps = job.load(log)
        found = recover(model, tokens, other, whole_run, cells, maps=steps, row=row, name=job.name, log=log)
        if out is not None:
            tensors = {"recovered": found.recovered, "named": found.named.long(), "answers": found.answers}
            tensors |= {"tokens": tokens, "from": other}
            about = {"program": str(whole_run), "addresses": [str(each) for each in cells]}
            write_tensors(out, tensors, about, asked.force)
    report = {
        **job.about(),
        "program": str(whole_run),
        "component": what,
        "texts": [
            {"tokens": tokens[at].tolist(), "from": other[at].tolist(), 
             "answers": [_token(job.tokenizer, each) for each in pair],
             "before": float(found.before[at]), "after": float(found.after[at])}
            for at, pair in enumerate(found.answers.tolist())
        ],
        "places": [
            {"address": str(place), "recovered": found.recovered[at].tolist(), "named": found.named[at].tolist()}
            for at, place in enumerate(cells)
        ],
        "out": None if out is None else str(out),
    }  # fmt: skip
    if asked.as_json:
        return print_json(report)
    _print_sweep(report, found)


# ---- what both are made from -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Job:
    """A model folder to be loaded: its shape, tokenizer and maps, checked before its weights are read."""

    asked: Patched
    device: torch.device
    shape: Adapter
    tokenizer: Tokenizer
    maps: dict[str, InFull]
    provenance: dict[str, Provenance]

    def tokens(self, names: Sequence[str], texts: Sequence[str], like: tuple[str, Tensor] | None = None) -> Tensor:
        """Texts as tokens [texts, T]; InputError unless all have as many tokens as the first, and as `like`."""
        from loopscope.models.decoding import pad_left

        prompts = [encoded(self.tokenizer, text, self.asked.chat) for text in texts]
        first, wanted = (names[0], len(prompts[0])) if like is None else (like[0], like[1].shape[1])
        for name, prompt in zip(names, prompts, strict=True):
            if len(prompt) != wanted:
                raise InputError(f"{name} has {len(prompt)} tokens, but {first} {wanted}; patches need the same number")
        return pad_left(prompts)[0]

    def load(self, log: Callable[[str], None]) -> tuple[Adapter, dict[str, InFull]]:
        """The model and the maps on their device."""
        from loopscope.models.folders import load

        log("loading")
        asked = self.asked
        model = load(asked.folder, boundary=asked.ending, device=self.device, dtype=asked.precision)
        return model, {name: step.to(self.device) for name, step in self.maps.items()}

    def name(self, token: int) -> str:
        """A token for people to read."""
        return json.dumps(self.tokenizer.name(token), ensure_ascii=False)

    def about(self) -> dict[str, Any]:
        """The model and where its maps are from, for the report."""
        asked, maps = self.asked, {name: each.notes for name, each in self.provenance.items()}
        model = {"folder": str(asked.folder), "boundary": self.shape.boundary, "dtype": asked.dtype, "row": asked.row}
        return {**model, "maps": maps}


def _job(asked: Patched) -> _Job:
    quiet_transformers()
    from loopscope.models.folders import outline
    from loopscope.models.steering import InFull, check_fitted, load_steering_map
    from loopscope.models.text import load_tokenizer

    choose_threads(weights_in(asked.folder))
    ending, _, device = asked.ending, asked.precision, asked.place
    shape = outline(asked.folder, boundary=ending)
    if asked.out is not None:
        check_out(asked.out, asked.folder, asked.force)
    given = _pairs("--map", "NAME=FOLDER", asked.maps)
    places = {name: map_named(Path(each)) for name, each in given.items()}
    steps = {name: InFull(load_steering_map(each, asked.folder, shape.width).float()) for name, each in places.items()}
    origins = {
        name: check_fitted(each, asked.folder, shape.boundary, any_map=asked.any_map) for name, each in places.items()
    }
    return _Job(asked, device, shape, load_tokenizer(asked.folder), steps, origins)


def _pairs(option: str, form: str, given: Iterable[str] | None) -> dict[str, str]:
    """What was given as NAME=VALUE; InputError for anything else, and for a name twice."""
    found: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise InputError(f"{option} takes {form}, not {each[:60]!r}")
        if name in found:
            raise InputError(f"{option} {name} is given twice")
        found[name] = value
    return found


def _numbered(option: str, texts: Sequence[str]) -> list[str]:
    return [option] if len(texts) == 1 else [f"{option} number {number + 1}" for number in range(len(texts))]


# ---- how they are shown ----------------------------------------------------------------------------------------------


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {"id": token, "token": tokenizer.name(token)}


def _said(said: Said, tokenizer: Tokenizer, count: int) -> dict[str, Any]:
    """A program's likeliest tokens and, beside a plain program, what became of that one's first."""
    best = [{**_token(tokenizer, token), "probability": share} for token, share in said.top(count)]
    told: dict[str, Any] = {"program": str(said.program), "plain": None, "top": best}
    if said.plain is not None:
        ((first, before),) = said.plain.top(1)
        moved = {**_token(tokenizer, first), "before": before, "after": float(said.probabilities[first])}
        told |= {"plain": str(said.plain.program), "first": moved, "kl": said.kl}
    return told


def _print_programs(report: dict[str, Any], name: Callable[[int], str]) -> None:
    """A block for each program: its text is often longer than a column of a table could be."""
    tokens, row = report["tokens"], report["row"]
    prose(f"{_model(report)}, next tokens at row {row % len(tokens)} of {len(tokens)}, {name(tokens[row])}")
    for each in report["programs"]:
        say(each["program"])
        prose("  ".join(map(named, each["top"])), " " * 9, "  next   ")
        if each["plain"] is not None:
            first = each["first"]
            token = json.dumps(first["token"], ensure_ascii=False)
            say(f"  plain  {token} {first['before']:.1%} -> {first['after']:.1%}, KL {each['kl']:.3g}")
    for other, theirs in report["others"].items():
        apart = [at for at, pair in enumerate(zip(tokens, theirs, strict=True)) if pair[0] != pair[1]]
        told = [f"row {at} {name(tokens[at])} is {name(theirs[at])}" for at in apart[:SHOWN]]
        more = [f"{len(apart) - SHOWN} rows more"] if len(apart) > SHOWN else []
        prose(f"@{other}: {', '.join([*told, *more]) or 'the same tokens'}")
    _print_out(report)


def _print_sweep(report: dict[str, Any], found: Recovery) -> None:
    """Recovered logit differences in percent, layer by loop, or layer by head for each loop."""
    texts = report["texts"]
    prose(f"{_model(report)}, {report['program']} patched in {report['component']} from another text:")
    for each in texts:
        own, other = (json.dumps(answer["token"], ensure_ascii=False) for answer in each["answers"])
        prose(
            f"logit of {other} less that of {own}: {each['before']:.2f}, in the other text {each['after']:.2f}",
            "    ",
            "  ",
        )
    marked = "*: the other answer is named" if len(texts) == 1 else "1/2: in 1 of 2 texts the other answer is named"
    prose(f"recovered of that difference, in % ({marked})")
    each_head = len({place.site.heads for place in found.addresses}) > 1
    groups: dict[str, dict[tuple[int, int], Text]] = {}
    for at, place in enumerate(found.addresses):
        across = place.site.heads[0] if each_head and place.site.heads else place.loop
        group = groups.setdefault(f"loop {place.loop}" if each_head else "", {})
        group[place.site.layer, across] = _cell(
            float(found.recovered[at].mean()), int(found.named[at].sum()), len(texts)
        )
    for title, cells in groups.items():
        layers, others = (list(dict.fromkeys(place[axis] for place in cells)) for axis in (0, 1))
        widest = max(6, *(len(cell) for cell in cells.values())) + 1
        many = max(1, (Console().width - 6) // widest)
        for first in range(0, len(others), many):
            columns = others[first : first + many]
            table = Table(title=title or None, title_justify="left", box=None, padding=(0, 1, 0, 0))
            for name in ("layer", *(f"H{each}" if each_head else f"loop {each}" for each in columns)):
                table.add_column(name, justify="right", no_wrap=True)
            for layer in layers:
                table.add_row(str(layer), *(cells[layer, each] for each in columns))
            Console().print(table)
    _print_out(report)


def _cell(recovered: float, named: int, texts: int) -> Text:
    mark = "*" if texts == 1 else f" {named}/{texts}"
    far = abs(recovered)
    style = "bold" if far >= 0.5 else "" if far >= 0.05 else "dim"
    return Text(f"{round(100 * recovered)}{mark if named else ' ' * len(mark)}", style)


def _model(report: dict[str, Any]) -> str:
    return f"{report['folder']} (boundary {report['boundary']}, {report['dtype']})"


def _print_out(report: dict[str, Any]) -> None:
    for name, each in report["maps"].items():
        prose(f"J:{name}: {each['provenance']}")
    if report["out"]:
        say(f"written: {report['out']}")
