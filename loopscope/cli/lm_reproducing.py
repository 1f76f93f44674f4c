"""A whole protocol on a language model in one command: train, fit, test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.cli.app import AsJson
from loopscope.cli.jobs_shown import carried_out, needs_of, print_result, refuse_without
from loopscope.cli.lm import lm_app
from loopscope.cli.lm_tests import check_batch, print_record, record_json
from loopscope.cli.lm_tuning import Compiled, Text, at_work, print_tuning, tuning_json
from loopscope.cli.options import (
    Device,
    Ending,
    Events,
    Gpus,
    ModelFolder,
    On,
    Results,
    SaveEvery,
    StoreFolder,
    ending_named,
)
from loopscope.cli.progress import Steps
from loopscope.cli.reproducing import conclude, print_conclusion, refuse_files, refuse_incomplete
from loopscope.cli.stores import store_to_be
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.store.store import Store
    from loopscope.studies.records import Record


@lm_app.command("reproduce")
def lm_reproduce(
    protocol: Annotated[str, typer.Argument(help="letters, antonyms or iterations.")],
    folder: ModelFolder,
    out: Annotated[Path, typer.Option(help="A folder for the trained models, one for each recipe.")],
    scale: Annotated[
        str, typer.Option("--recipes", help="paper; smol: for a small model; small: for one with random weights.")
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as letter.rate=1e-4 (repeatable).")
    ] = None,
    cases: Annotated[int | None, typer.Option(help="Test only the first so many pairs, sequences or requests.")] = None,
    batch: Annotated[int, typer.Option(help="Questions of a test at a time.")] = 32,
    name: Annotated[
        str | None, typer.Option(help="What records call it; default: as its folder or on the hub.")
    ] = None,
    text: Text = None,
    boundary: Ending = None,
    device: Device = "auto",
    on: On = None,
    gpus: Gpus = None,
    nodes: Annotated[int, typer.Option(help="Machines that train together, with --on.")] = 1,
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 300.0,
    compiled: Compiled = False,
    export: Annotated[
        Path | None, typer.Option(help="Also copy the records, maps and training histories of the store to this one.")
    ] = None,
    report: Annotated[Path, typer.Option(help="Folder for the report page and its figures.")] = Path("report"),
    results: Results = None,
    events: Events = False,
    as_json: AsJson = False,
) -> None:
    """Train a model by a protocol, fit its map, test both, judge.  The same command goes on after an interruption."""
    from loopscope.studies.language.experiment import Amount
    from loopscope.studies.language.jobs import protocol_graph, records_of
    from loopscope.studies.language.protocols import Trained, plan, train_and_test
    from loopscope.studies.reading import read_results
    from loopscope.studies.report.page import check_page
    from loopscope.training.lm.processes import several

    if several():
        raise InputError("a test is made by one process; give several `loopscope lm finetune` and `lm fit`")
    refuse_without(on, gpus=gpus, nodes=None if nodes == 1 else nodes, events=events)
    check_batch(batch)
    asked = plan(protocol, scale, changes or (), Amount(cases, batch))
    ending = ending_named(boundary)
    check_page(report)
    refuse_files(out, export, report)
    refuse_incomplete(store, export)
    stored = read_results(results)
    target = store_to_be(store)
    if on is not None:
        needs = replace(needs_of(on, device, gpus), nodes=nodes)
        graph = protocol_graph(asked, folder, out, needs, name=name, boundary=ending, text=text, compiled=compiled)
        made = records_of(carried_out(graph, target, on, save_every, events), asked, target)
        return _concluded(made, [], target, export, stored, report, store, results, as_json, events)
    outcomes: list[Trained | Record] = []
    with at_work(folder, text, device, save_every, compiled) as (sources, settings, shown):
        bar = Steps(shown, protocol, (asked.adapt is not None) + 3 * len(asked.arms))
        for each in train_and_test(
            asked, folder, out, target, settings, name=name, boundary=ending, sources=sources, log=bar.log
        ):
            if isinstance(each, Trained) or isinstance(outcomes[-1], Trained):  # several records are one test
                bar.advance()
            outcomes.append(each)
            if not as_json:
                with shown.aside():
                    print_tuning(*each) if isinstance(each, Trained) else print_record(each)
    made = [each for each in outcomes if not isinstance(each, Trained)]
    stages = [tuning_json(*each) for each in outcomes if isinstance(each, Trained)]
    _concluded(made, stages, target, export, stored, report, store, results, as_json)


def _concluded(
    made: list[Record], stages: list[dict[str, Any]], target: Store, export: Path | None, stored: list[Record],
    report: Path, store: Path, results: Path | None, as_json: bool,
    events: bool = False,
) -> None:  # fmt: skip
    """Export, judge, write the page, and say so."""
    from loopscope.cli.ledger import as_json as in_json
    from loopscope.studies.runner import export as export_records

    if export is not None:
        export_records(target, store_to_be(export))
    page, verdicts = conclude(stored, made, report, store, results)
    if as_json or events:
        found = {
            "stages": stages, "records": [record_json(each) for each in made],
            "page": str(page), "claims": [in_json(each) for each in verdicts],
        }  # fmt: skip
        return print_result(found, events)
    print_conclusion(page, verdicts)
