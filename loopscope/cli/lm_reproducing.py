"""A whole protocol on a language model in one command: train, fit, test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, print_json
from loopscope.cli.lm import lm_app
from loopscope.cli.lm_tests import check_batch, print_record, record_json
from loopscope.cli.lm_tuning import Compiled, Text, at_work, print_tuning, tuning_json
from loopscope.cli.options import Device, Ending, ModelFolder, SaveEvery, StoreFolder, ending_named
from loopscope.cli.progress import Steps
from loopscope.cli.reproducing import refuse_files, refuse_incomplete
from loopscope.cli.stores import store_to_be
from loopscope.errors import InputError

if TYPE_CHECKING:
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
    name: Annotated[str | None, typer.Option(help="What records call the model; default: its folder's name.")] = None,
    text: Text = None,
    boundary: Ending = None,
    device: Device = "auto",
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 300.0,
    compiled: Compiled = False,
    export: Annotated[
        Path | None, typer.Option(help="Also copy the records, maps and training histories of the store to this one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model by a protocol, fit its map, test both.  The same command goes on after an interruption."""
    from loopscope.studies.language.protocols import Amount, Trained, carry_out, plan
    from loopscope.studies.language.protocols import export as export_all
    from loopscope.training.lm.processes import several

    if several():
        raise InputError("a test is made by one process; give several `loopscope lm finetune` and `lm fit`")
    check_batch(batch)
    asked = plan(protocol, scale, changes or (), Amount(cases, batch))
    ending = ending_named(boundary)
    refuse_files(out, export)
    refuse_incomplete(store, export)
    target = store_to_be(store)
    outcomes: list[Trained | Record] = []
    with at_work(folder, text, device, save_every, compiled) as (sources, settings, shown):
        bar = Steps(shown, protocol, (asked.adapt is not None) + 3 * len(asked.arms))
        for each in carry_out(
            asked, folder, out, target, settings, name=name, boundary=ending, sources=sources, log=bar.log
        ):
            if isinstance(each, Trained) or isinstance(outcomes[-1], Trained):  # several records are one test
                bar.advance()
            outcomes.append(each)
            if not as_json:
                with shown.aside():
                    print_tuning(*each) if isinstance(each, Trained) else print_record(each)
    if export is not None:
        export_all(target, store_to_be(export))
    if as_json:
        print_json({
            "stages": [tuning_json(*each) for each in outcomes if isinstance(each, Trained)],
            "records": [record_json(each) for each in outcomes if not isinstance(each, Trained)],
        })  # fmt: skip
