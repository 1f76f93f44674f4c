"""Patching looped language models: programs side by side, and a component swept over loops, layers and heads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopscope.bounds import VOCABULARY, whole
from loopscope.cli.app import print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.jobs_shown import carried_out, needs_of, refuse_without
from loopscope.cli.lm import called, lm_app, named
from loopscope.cli.lm_patched import Job, Patched, Swept, job_of, pairs
from loopscope.cli.options import Gpus, On, Plot, StoreFolder, Top, bundled, map_named
from loopscope.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from loopscope.address import Address
    from loopscope.execute.memory import Memory
    from loopscope.measure.patching import NextToken, Recovery
    from loopscope.program import Program

SHOWN = 6
"""Rows in which texts differ that are named."""


@lm_app.command("patch")
@bundled
def lm_patch(
    asked: Patched,
    programs: Annotated[
        list[str], typer.Argument(metavar="PROGRAM...", help='Such as "F3 F[layer[5].row[-1].z<-(F4)@other]".')
    ],
    other: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="What @NAME is in programs (repeatable; one for each text, in order)."),
    ] = None,
    top: Top = 5,
) -> None:
    """Run programs with patches on texts; the likeliest next tokens of each, beside those of its plain program.

    A program is compared with itself without its patches or, if it has none, without its maps.  Texts may have unequal
    lengths; rows are then counted from the end, or named by what stands there: row[" France"].
    """
    from loopscope.execute.runs import MAIN
    from loopscope.measure.patching import check, compare_texts
    from loopscope.program import Program
    from loopscope.store.tensors import write_tensors

    whole("--top", top, 1, VOCABULARY)
    job = job_of(asked)
    wanted = [job.begun(Program.parse(each)) for each in programs]
    texts = job.texts()
    named = {
        name: job.others(f"--other {name}", given, len(texts))
        for name, given in pairs("--other", "NAME=TEXT", other).items()
    }
    inputs = job.behind_puzzles({MAIN: texts, **named})
    states = job.states(inputs)
    tokens, others = inputs[MAIN], {name: inputs[name] for name in named}
    with_rows: dict[str, Any] = {"others": others, "states": states, "row": job.row, "tokenizer": job.tokenizer}
    check(job.shape, tokens, wanted, maps=job.maps, **with_rows)
    with spinner() as log:
        model, steps = job.load(log)

        def tell(held: Memory) -> None:
            job.sized.append(held)
            log(f"running: {held}")

        found = compare_texts(model, tokens, wanted, maps=steps, memory=job.memory, tell=tell, **with_rows)
        if asked.out is not None:
            import torch

            logits = torch.stack([torch.stack([each.logits for each in text]) for text in found], 1)
            tensors = {"logits": logits} | _padded("tokens", "mask", tokens)
            for name, each in others.items():
                tensors |= _padded(f"other.{name}", f"mask.{name}", each)
            if len(tokens) == 1:
                tensors = {
                    "logits": logits[:, 0],
                    **{name: each[0] for name, each in tensors.items() if name != "logits"},
                }
            write_tensors(asked.out, tensors, {"programs": [str(each.program) for each in found[0]]}, asked.force)
    blocks = [
        {
            "tokens": text,
            "others": {name: each[at] for name, each in others.items()},
            "programs": [_said(each, job, top) for each in found[at]],
        }
        for at, text in enumerate(tokens)
    ]
    report = {
        **job.about(),
        **(blocks[0] if len(blocks) == 1 else {"examples": blocks}),
        **job.held(),
        "out": None if asked.out is None else str(asked.out),
    }
    if asked.as_json:
        return print_json(report)
    _print_programs(report, blocks, job)


@lm_app.command("sweep")
@bundled
def lm_sweep(
    asked: Swept,
    what: Annotated[
        str,
        typer.Argument(
            metavar="COMPONENT",
            help="An address without loop and layer: resid, row[-2].resid, head[3].row[-1].pattern.",
        ),
    ],
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="TEXT", help="The text that it is patched from, one for each text."),
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="The program that is patched; default: the model's loops.")
    ] = None,
    giving: Annotated[
        str | None,
        typer.Option("--from-program", help="The program that it is patched from, such as one with a map."),
    ] = None,
    loops: Annotated[
        list[str] | None,
        typer.Option(
            "--loop",
            help="Where to patch (repeatable): a number, prelude, coda, or a call such as L[2,1]; default: all loops.",
        ),
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(help="A layer to patch in (repeatable); default: all.")] = None,
    each_head: Annotated[bool, typer.Option("--each-head", help="One head at a time instead of all at once.")] = False,
    plot: Plot = None,
    on: On = None,
    gpus: Gpus = None,
    store: StoreFolder = Path("store"),
    texts_each: Annotated[int | None, typer.Option("--each", help="Texts of a job, with --on.  [default: 16]")] = None,
) -> None:
    """Patch a component from another text or program, one loop and layer at a time: how far does it move the answer?

    In percent of the logit difference between the answers of both, the likeliest next tokens without a patch.
    """
    from loopscope.execute.runs import MAIN
    from loopscope.measure.cells import places, site_named
    from loopscope.measure.patching import OTHER, check, recover
    from loopscope.models.adapter import program_of
    from loopscope.plot.files import check_picture, write_picture
    from loopscope.program import Run, as_program
    from loopscope.store.tensors import write_tensors

    refuse_without(on, gpus=gpus, each=texts_each)
    if source is None and giving is None:
        raise InputError("what is it patched from? give --from TEXT for each text, or --from-program (or both)")
    if source is not None and asked.ids is None and len(asked.text or ()) != len(source):
        raise InputError(f"every --text needs a --from: {len(asked.text or ())} and {len(source)} were given")
    site = site_named(what)
    if plot is not None:
        check_picture(plot)
    given = None if program is None else as_program(program)
    job = job_of(asked, here=on is None)
    texts = job.texts()
    others = texts if source is None else job.others("--from", source, len(texts))
    inputs = job.behind_puzzles({MAIN: texts, OTHER: others})
    states = job.states(inputs)
    tokens, other = inputs[MAIN], inputs[OTHER]
    whole_run = job.begun(program_of(job.shape) if given is None else given)
    donor = whole_run if giving is None else job.begun(as_program(giving))
    lengths = {len(text) for text in (*tokens, *other)}
    length = lengths.pop() if len(lengths) == 1 and not site.anchors else None
    chosen = None if loops is None else [int(each) if each.isdecimal() else each for each in loops]
    with_rows: dict[str, Any] = {"states": states, "row": job.row, "tokenizer": job.tokenizer}
    check(job.shape, tokens, [whole_run, donor], maps=job.maps, others={OTHER: other}, **with_rows)
    cells = places(job.shape, whole_run, site, length, loops=chosen, layers=layer, each_head=each_head)
    first = {(cell.stage, cell.loop, cell.inner): cell for cell in reversed(cells)}  # rows mean the same in all layers
    patched = [whole_run.patch(cell, Run(donor, OTHER)) for cell in first.values()]
    check(job.shape, tokens, patched, maps=job.maps, others={OTHER: other}, **with_rows)
    if on is not None:
        if giving is not None or job.memory is not None:
            other_option = "--memory; --each says how many texts a job has" if giving is None else "--from-program"
            raise InputError(f"--on does not go with {other_option}")
        where = _Elsewhere(on, gpus, store, 16 if texts_each is None else texts_each)
        found = _recovered_on(where, asked, job, whole_run, cells, tokens, other, bool(states))
    with spinner() as log:
        if on is None:
            model, steps = job.load(log)
            found = recover(
                model, tokens, other, whole_run, cells, maps=steps, source=donor, name=job.name, memory=job.memory,
                tell=job.sized.append, log=log, **with_rows,
            )  # fmt: skip
        if asked.out is not None:
            tensors = {"recovered": found.recovered, "named": found.named.long(), "answers": found.answers}
            tensors |= _padded("tokens", "mask", tokens) | _padded("from", "from_mask", other)
            about = {"program": str(whole_run), "addresses": [str(each) for each in cells]}
            write_tensors(asked.out, tensors, about, asked.force)
        if plot is not None:
            log("drawing")
            write_picture(found.plot(), plot)
    report = {
        **job.about(),
        "program": str(whole_run),
        **({} if giving is None else {"from_program": str(donor)}),
        "component": what,
        "texts": [
            {"tokens": tokens[at], "from": other[at], "answers": [_token(job, each) for each in pair],
             "before": float(found.before[at]), "after": float(found.after[at])}
            for at, pair in enumerate(found.answers.tolist())
        ],
        "places": [
            {"address": str(place), "recovered": found.recovered[at].tolist(), "named": found.named[at].tolist()}
            for at, place in enumerate(cells)
        ],
        **job.held(),
        "out": None if asked.out is None else str(asked.out),
        **({} if plot is None else {"plot": str(plot)}),
    }  # fmt: skip
    if asked.as_json:
        return print_json(report)
    _print_sweep(report, found)


class _Elsewhere(NamedTuple):
    """An engine, what a job needs there, where its parts are kept, and how many texts a part has."""

    on: str
    gpus: float | None
    store: Path
    each: int


def _recovered_on(
    where: _Elsewhere, asked: Swept, job: Job, program: Program, cells: Sequence[Address],
    tokens: list[list[int]], other: list[list[int]], states: bool,
) -> Recovery:  # fmt: skip
    """What `recover` gives, a part of the texts a job; parts that the store has are not done again."""
    from loopscope.cli.stores import store_to_be
    from loopscope.jobs.recovering import Asked
    from loopscope.jobs.sweeping import parts_of

    if states:
        raise InputError("--start FILE does not go with --on; a number or zeros does")
    given = pairs("--map", "NAME=FOLDER", asked.maps, once=True)
    maps = {name: map_named(Path(one)) for name, (one,) in given.items()}
    how = {"boundary": asked.ending, "loop": asked.loop}
    wanted = Asked(asked.folder, maps, program, cells, job.row, asked.dtype, how)
    target = store_to_be(where.store)
    graph = wanted.graph(tokens, other, where.each, needs_of(where.on, asked.device, where.gpus))
    return wanted.joined(parts_of(graph, carried_out(graph, target, where.on), target))


def _padded(name: str, mask: str, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Texts as a tensor; where they are of unequal length, padded on the left, and the mask (1 for real rows)."""
    from loopscope.models.decoding import pad_left

    tokens, real = pad_left(texts)
    return {name: tokens} if bool(real.all()) else {name: tokens, mask: real.long()}


# ---- how they are shown ----------------------------------------------------------------------------------------------


def _token(job: Job, token: int) -> dict[str, Any]:
    return {"id": token, "token": None if job.tokenizer is None else job.tokenizer.name(token)}


def _said(said: NextToken, job: Job, count: int) -> dict[str, Any]:
    """A program's likeliest tokens and, beside a plain program, what became of that one's first."""
    best = [{**_token(job, token), "probability": share} for token, share in said.top(count)]
    out: dict[str, Any] = {"program": str(said.program), "plain": None, "top": best}
    if said.plain is not None:
        ((first, before),) = said.plain.top(1)
        moved = {**_token(job, first), "before": before, "after": float(said.probabilities[first])}
        out |= {"plain": str(said.plain.program), "first": moved, "kl": said.kl}
    return out


def _print_programs(report: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], job: Job) -> None:
    """A block for each program: its text is often longer than a column of a table could be."""
    for number, block in enumerate(blocks, start=1):
        tokens = block["tokens"]
        row = job.row_in(tokens)
        which = f"{_model(report)}, " if number == 1 else ""
        text = f"text {number}: " if len(blocks) > 1 else ""
        prose(f"{which}{text}next tokens at row {row} of {len(tokens)}, {job.name(tokens[row])}")
        for each in block["programs"]:
            say(each["program"])
            prose("  ".join(map(named, each["top"])), " " * 9, "  next   ")
            if each["plain"] is not None:
                first = each["first"]
                token = _shown(first)
                say(f"  plain  {token} {first['before']:.1%} -> {first['after']:.1%}, KL {each['kl']:.3g}")
        for other, theirs in block["others"].items():
            prose(f"@{other}: {_apart(tokens, theirs, job)}")
    _print_out(report)


def _apart(tokens: Sequence[int], theirs: Sequence[int], job: Job) -> str:
    """In which rows another text differs; counted from the end where it has another length."""
    short = min(len(tokens), len(theirs))
    same = len(tokens) == len(theirs)
    rows = [*range(short)] if same else [*range(-1, -short - 1, -1)]
    apart = [row for row in rows if tokens[row] != theirs[row]]
    first = [f"row {row} {job.name(tokens[row])} is {job.name(theirs[row])}" for row in apart[:SHOWN]]
    more = [f"{len(apart) - SHOWN} rows more"] if len(apart) > SHOWN else []
    length = [] if same else [f"{len(theirs)} rows, not {len(tokens)}"]
    return ", ".join([*length, *first, *more]) or "the same tokens"


def _shown(token: Mapping[str, Any]) -> str:
    return str(token["id"]) if token["token"] is None else json.dumps(token["token"], ensure_ascii=False)


def _print_sweep(report: Mapping[str, Any], found: Recovery) -> None:
    """Recovered logit differences in percent, layer by loop, or layer by head for each loop."""
    texts = report["texts"]
    giving = report.get("from_program")
    whence = "another text" if giving is None else giving
    there = "in the other text" if giving is None else "there"
    prose(f"{_model(report)}, {report['program']} patched in {report['component']} from {whence}:")
    for each in texts:
        own, other = map(_shown, each["answers"])
        prose(
            f"logit of {other} less that of {own}: {each['before']:.2f}, {there} {each['after']:.2f}",
            "    ",
            "  ",
        )
    marked = "*: the other answer is named" if len(texts) == 1 else "1/2: in 1 of 2 texts the other answer is named"
    prose(f"recovered of that difference, in % ({marked})")
    each_head = len({place.site.heads for place in found.addresses}) > 1
    groups: dict[str, dict[tuple[int, int | str], Text]] = {}
    for at, place in enumerate(found.addresses):
        across = place.site.heads[0] if each_head and place.site.heads else _part(place)
        group = groups.setdefault(_part(place) if each_head else "", {})
        group[place.site.layer, across] = _cell(
            float(found.recovered[at].mean()), int(found.named[at].sum()), len(texts)
        )
    for title, cells in groups.items():
        layers, others = list(dict.fromkeys(at for at, _ in cells)), list(dict.fromkeys(where for _, where in cells))
        widest = max(6, *(len(cell) for cell in cells.values()), *(len(str(each)) for each in others)) + 1
        many = max(1, (Console().width - 6) // widest)
        for first in range(0, len(others), many):
            columns = others[first : first + many]
            table = Table(title=title or None, title_justify="left", box=None, padding=(0, 1, 0, 0))
            for name in ("layer", *(f"H{each}" if each_head else str(each) for each in columns)):
                table.add_column(name, justify="right", no_wrap=True)
            for layer in layers:
                table.add_row(str(layer), *(cells.get((layer, each), Text("")) for each in columns))
            Console().print(table)
    _print_out(report)


def _part(place: Address) -> str:
    """What a sweep calls the part of a run that a place is in."""
    if place.stage in ("prelude", "coda"):
        return place.stage
    inner = "" if place.inner is None else f",{place.inner}"
    return f"loop {place.loop}" if place.stage == "loop" else f"{place.stage}[{place.loop}{inner}]"


def _cell(recovered: float, named: int, texts: int) -> Text:
    mark = "*" if texts == 1 else f" {named}/{texts}"
    far = abs(recovered)
    style = "bold" if far >= 0.5 else "" if far >= 0.05 else "dim"
    return Text(f"{round(100 * recovered)}{mark if named else ' ' * len(mark)}", style)


def _model(report: Mapping[str, Any]) -> str:
    return f"{called(report)} (boundary {report['boundary']}, {report['dtype']})"


def _print_out(report: Mapping[str, Any]) -> None:
    for name, each in report["maps"].items():
        prose(f"J:{name}: {each['provenance']}")
    for name in ("out", "plot"):
        if report.get(name):
            say(f"written: {report[name]}")
