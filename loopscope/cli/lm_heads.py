"""Which heads of a language model carry what a map does on a task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import BATCH, whole
from loopscope.cli.app import AsJson, print_json, print_table, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import check_out, lm_app, quiet_transformers
from loopscope.cli.lm_task import HeldOut, command, model_with_maps, overlaps, shared, split_of, tell
from loopscope.cli.options import AnyMap, Chat, LanguageModel, MapFolder, bundled
from loopscope.errors import InputError
from loopscope.store.outputs import write_file

if TYPE_CHECKING:
    from loopscope.measure.find_heads import FoundHeads
    from loopscope.measure.side_by_side import SideBySide
    from loopscope.program import Program
    from loopscope.tasks.examples import Split

LIKE = "must change nothing"
"""What tables say of a condition that must be like another."""


@dataclass(frozen=True, kw_only=True)
class Searched(LanguageModel, HeldOut):
    """A language model with the map whose heads are searched."""

    steering: MapFolder
    program: Annotated[
        str | None, typer.Option(help="The program with the map; default: the one that it was fitted in.")
    ] = None
    heads: Annotated[
        str | None, typer.Option(help="Test these in the last loop instead of searching: '2.0,3 1.1' (layers from 1).")
    ] = None
    sweep: Annotated[bool, typer.Option(help="Try every late head alone, too.")] = True
    any_map: AnyMap = False
    chat: Chat = False
    batch: Annotated[int, typer.Option(help="Examples at a time.")] = 32
    out: Annotated[Path | None, typer.Option(help="A JSON file for all that was found; it must not exist.")] = None
    report: Annotated[
        Path | None, typer.Option(help="A folder for a page with figures; a report there is replaced.")
    ] = None
    as_json: AsJson = False


@lm_app.command("find-heads")
@bundled
def lm_find_heads(
    asked: Searched, task: Annotated[Path, typer.Option(help="A JSONL file of examples, or a dataset on disk.")]
) -> None:
    """Which heads carry what a map does on held-out examples: sweep, search, confirmation, tests with controls."""
    quiet_transformers()
    from loopscope.measure.answers import encode
    from loopscope.measure.find_heads import find_heads
    from loopscope.measure.heads import Heads
    from loopscope.measure.searching import check_steered
    from loopscope.models.placement import names_in
    from loopscope.program import Program

    whole("--batch", asked.batch, 1, BATCH)
    chosen = None if asked.heads is None else Heads.parse(asked.heads)
    program = _fitted_in(asked.steering) if asked.program is None else Program.parse(asked.program)
    check_steered(program)
    if asked.out is not None:
        check_out(asked.out, asked.folder, force=False)
    if asked.report is not None:
        check_report(asked.report)
    data = split_of(task, asked, learned=False)
    (name,) = names_in(program)
    known = overlaps(asked.folder, {name: asked.steering}, data.held_out)
    with spinner() as log:
        log("loading")
        given = model_with_maps(
            asked, [f"{name}={asked.steering}"], asked.any_map, [program], asked.chat, asked.precision
        )
        items = encode(data.held_out, given.tokenizer, chat=asked.chat, positions=given.model.positions)
        found = find_heads(
            given.model, given.maps[name], items, program, heads=chosen, swept=asked.sweep, batch=asked.batch, log=log
        )
    report = {
        "folder": str(asked.folder), "task": data.held_out.name, "sha256": data.held_out.digest, "how": data.how,
        "dtype": asked.dtype, "learned": shared(known), "map": given.provenance[name].notes, **found.to_dict(),
    }  # fmt: skip
    if asked.out is not None:
        text = f"{json.dumps(report, indent=1)}\n".encode()
        write_file(asked.out, lambda draft: _write(draft, text))
    page = None if asked.report is None else _page(asked.report, found, asked, data, given.provenance[name].text)
    if asked.as_json:
        return print_json(report)
    _print(found, f"{asked.folder} on {data.held_out.name}", given.model.heads)
    tell(known)
    prose(f"J:{name}: {given.provenance[name].text}")
    for written in filter(None, (asked.out, page)):
        say(f"written: {written}")


def check_report(folder: Path) -> None:
    """InputError unless a page can be written there: matplotlib is there, and nothing that is not ours."""
    from loopscope.models.extras import extra
    from loopscope.studies.report.page import check_page

    extra("matplotlib", "the report page", of="plot")
    check_page(folder)


def _page(folder: Path, found: FoundHeads, asked: Searched, data: Split, known: str) -> Path:
    """The report page of what was found; its path."""
    from loopscope.studies.found_heads import report_on
    from loopscope.studies.report.page import write_page

    task = f"{data.held_out.name} (SHA-256 of what is held out: {data.held_out.digest[:16]}, {data.how})"
    return write_page(report_on(found, f"{asked.folder}", task, f"The map is {known}. `{command()}`"), folder)


def _write(draft: Path, text: bytes) -> None:
    from loopscope.store.files import write_synced

    write_synced(draft, text)


def _fitted_in(saved: Path) -> Program:
    """The program that a map was fitted in; InputError where it does not say."""
    from loopscope.maps import load_map
    from loopscope.models.steering import FITTED
    from loopscope.program import Program
    from loopscope.store.manifest import read_json

    load_map(saved)  # refuses what is no map
    written = read_json(saved / FITTED) if (saved / FITTED).is_file() else {}
    match written:
        case {"recipe": {"program": str(program)}}:
            return Program.parse(program)
    raise InputError(f'{saved} does not say in which program it was fitted; give --program "F J:mine F"')


def _print(found: FoundHeads, title: str, heads: int) -> None:
    parts = ", ".join(f"{count} for {name}" for name, count in found.parts.items())
    prose(
        f"{title}: examples of {found.length} tokens, {parts}; '{found.program}'. An answer counts by its first token."
    )
    if found.sweep:
        total = found.parts["discovery"]
        by_place: dict[tuple[int, int], dict[int, int]] = {}
        for each in found.sweep:
            by_place.setdefault((each.loop, each.layer), {})[each.head] = each.right
        print_table(
            f"Each head alone: right of {total} with its steered pattern in the unsteered run",
            ("loop", "layer", *(f"H{head}" for head in range(heads))),
            ((loop, layer, *(row.get(head, "-") for head in range(heads))) for (loop, layer), row in by_place.items()),
            left=2,
        )
        best = found.best
        low, high = (f"{100 * end:.0f}" for end in best.right_interval)
        prose(f"Most by itself: {best.layer}.{best.head} in loop {best.loop}, {best.right} of {total} "
              f"[{low}, {high} %].")  # fmt: skip
    if found.selection is not None:
        chosen = found.selection
        how = "every step had a scope that passed" if chosen.passed else "not every step had a scope that passed"
        prose(f"Chosen: {chosen.heads} (layers from 1) in loop{'s' * (len(chosen.loops) > 1)} "
              f"{', '.join(map(str, chosen.loops))}; {how}. Discovery: "
              f"{chosen.unsteered} of {chosen.pairs} right unsteered, {chosen.steered} steered.")  # fmt: skip
    elif found.restoration is None:
        prose("J brings no more right answers on the examples for discovery, so there is nothing to search for.")
    for name, test in (("Steering", found.steering), ("Restoration", found.restoration)):
        if test is not None:
            _print_test(name, test, found.errors)


def _print_test(name: str, test: SideBySide, errors: dict[str, float]) -> None:
    rows: list[tuple[Any, ...]] = []
    for row in test.right().rows:
        if "steps" not in row.at:
            each, condition = row.estimate, str(row.at["condition"])
            note = f"{LIKE}: {errors[condition]:.1g}" if condition in errors else ""
            rows.append((row.label, note, f"{100 * each.value:.1f}", f"{100 * each.low:.1f}..{100 * each.high:.1f}"))
    print_table(f"{name}, {len(test.examples)} examples", ("condition", "", "right %", "interval"), rows, left=2)
