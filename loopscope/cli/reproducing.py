"""The reproduction: experiments, claims, the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, note, print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.jobs_shown import needs_of, print_result, refuse_without
from loopscope.cli.measuring import (
    backbone_steps,
    language_steps,
    measure,
    measure_on,
    refuse_unmeasurable,
    train_and_measure,
    train_and_measure_on,
)
from loopscope.cli.options import Device, Events, FirstStore, Gpus, On, Results, SaveEvery, StoreFolder, ZooFolder
from loopscope.errors import InputError, nearest

if TYPE_CHECKING:
    from loopscope.studies.claims import Verdict
    from loopscope.studies.evidence import Evidence
    from loopscope.studies.experiment import Cohort, Experiment, Profile
    from loopscope.studies.records import Record
    from loopscope.studies.runner import Measurement


QUICK, WHOLE, PAPER = PROFILES = ("quick", "whole", "paper")
"""Parts of populations on weights that are there; all of them on these; everything trained first."""


@app.command("list")
def list_everything(as_json: AsJson = False) -> None:
    """List the experiments and the cohorts of backbones they are done on, and those on language models."""
    from loopscope.studies.claims import decided_by
    from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE

    names = (*EXPERIMENTS, *LANGUAGE)
    decides = {name: decided_by(name) for name in names}
    if as_json:
        experiments = [
            {"name": each.name, "question": each.question, "cohorts": each.cohorts, "claims": decides[each.name]}
            for each in EXPERIMENTS.values()
        ]
        language = [
            {"name": each.name, "question": each.question, "command": each.command, "claims": decides[each.name]}
            for each in LANGUAGE.values()
        ]
        cohorts = [asdict(each) for each in COHORTS.values()]
        return print_json({"experiments": experiments, "cohorts": cohorts, "language": language})
    say("Experiments, on cohorts of backbones")
    for each in EXPERIMENTS.values():
        _entry(each.name, each.question, f"on {', '.join(each.cohorts)}", decides[each.name])
    say("", "Cohorts")
    for cohort in COHORTS.values():
        maps = f"; maps {_maps(cohort)}" if cohort.maps else ""
        _entry(cohort.name, cohort.about, f"{', '.join(cohort.recipes)}, seeds {_range(cohort.seeds)}{maps}")
    say("", "Experiments on language models")
    for test in LANGUAGE.values():
        _entry(test.name, test.question, f"`{test.command}`", decides[test.name])


def _entry(name: str, about: str, more: str, claims: Sequence[str] = ()) -> None:
    prose(f"{name}: {about}", "    ", "  ")
    prose(f"{more}; decides {', '.join(claims)}" if claims else more, "    ")


@app.command()
def claims(
    store: FirstStore = None,
    results: Results = None,
    as_table: Annotated[
        bool, typer.Option("--table", help="Print a table, with everything that stands beside it.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables of docs/ledger.md.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge every claim by the records that are there: the paper's value, ours, does it hold, by which protocol?"""
    from loopscope.cli.ledger import as_json as in_json
    from loopscope.cli.ledger import print_ledger
    from loopscope.studies.claims import decide
    from loopscope.studies.report.ledger import markdown as in_markdown

    ways = {"--table": as_table, "--markdown": markdown, "--json": as_json}
    if len(given := [way for way, asked in ways.items() if asked]) > 1:
        raise InputError(f"{given[0]} and {given[1]} are two ways to print the ledger; give one")
    with spinner() as log:
        log("judging")
        verdicts = decide(evidence_of(results, store))
    if as_json:
        return print_json({"claims": [in_json(each) for each in verdicts]})
    if markdown:
        return say(*in_markdown(verdicts).split("\n"))
    print_ledger(verdicts, as_table)


@app.command()
def reproduce(
    experiments: Annotated[list[str] | None, typer.Argument(help="Which; default: all.  `loopscope list`.")] = None,
    profile: Annotated[
        str, typer.Option(help="quick: on the zoo's weights; whole: all of it on them; paper: train everything.")
    ] = "quick",
    cohort: Annotated[list[str] | None, typer.Option(help="Only these cohorts of backbones.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report page and its figures.")] = Path("report"),
    store: StoreFolder = Path("store"),
    export: Annotated[Path | None, typer.Option(help="Also copy the records of the store to this one.")] = None,
    zoo: ZooFolder = None,
    results: Results = None,
    device: Device = "auto",
    on: On = None,
    gpus: Gpus = None,
    save_every: SaveEvery = 30.0,
    events: Events = False,
    as_json: AsJson = False,
) -> None:
    """Run the experiments, judge the claims, write the report page.  What the store already holds is not done again."""
    from loopscope.cli.ledger import as_json as in_json
    from loopscope.store.store import Store
    from loopscope.store.zoo import zoo_folder
    from loopscope.studies.reading import check_zoo
    from loopscope.studies.registry import LANGUAGE, chosen
    from loopscope.studies.report.page import check_page
    from loopscope.studies.runner import export as export_records

    refuse_without(on, gpus=gpus, events=events)
    language = [name for name in experiments or () if name in LANGUAGE]
    others = [name for name in experiments or () if name not in LANGUAGE]
    asked = chosen(others) if others or not language else []
    if cohort and not asked:
        raise InputError(f"{language[0]} is done on the zoo's language models, not on cohorts of backbones")
    cohorts = cohorts_named(cohort or (), asked) if asked else []
    check_page(out)
    refuse_files(out, store, export)
    refuse_incomplete(store, export)
    stored = _stored(results)
    there = profile in (QUICK, WHOLE)
    if there:
        check_zoo(zoo)
        refuse_unmeasurable(language, zoo)
        amount: Profile = "quick" if profile == QUICK else "paper"
        small = backbone_steps(asked, bool(experiments), cohorts, stored, zoo, amount) if asked else []
        todo: list[Measurement] = [] if on else [*small]
        if language or not (experiments or cohort):
            todo += language_steps(language, zoo, profile == WHOLE)
        fresh = measure_on(on, small, store, zoo, needs_of(on, device, gpus), events) if on and small else []
        fresh += measure(todo, store, zoo, "auto" if on and device == "cuda" else device) if todo or not on else []
    elif profile == PAPER and language:
        raise InputError(
            f"language models are trained by `loopscope lm reproduce {language[0]} FOLDER`, not by --profile"
        )
    elif profile == PAPER and on:
        fresh = train_and_measure_on(on, asked, cohorts, stored, store, needs_of(on, device, gpus), save_every, events)
    elif profile == PAPER:
        fresh = train_and_measure(asked, cohorts, store, device, save_every)
    else:
        raise InputError(f"no profile {profile!r}; there are {', '.join(PROFILES)}{nearest(profile, PROFILES)}")
    if export is not None:
        export_records(Store(store), Store(export))
    weights = zoo_folder(zoo) if there else None
    page, verdicts = conclude(stored, fresh, out, store, results, weights)
    if as_json or events:
        costs = [{"experiment": r.experiment, "backbone": r.facts.name, **r.cost} for r in fresh]
        found = {"page": str(page), "claims": [in_json(each) for each in verdicts], "measured": costs}
        return print_result(found, events)
    print_conclusion(page, verdicts)


def conclude(
    stored: list[Record], fresh: list[Record], out: Path, store: Path, results: Path | None, zoo: Path | None = None
) -> tuple[Path, list[Verdict]]:
    """Write the page of all records, and judge what was measured: the verdicts that rest on its experiments.

    Records of language models that the store has from before count as stored ones do.
    """
    from loopscope.store.store import Store
    from loopscope.studies.reading import read
    from loopscope.studies.registry import LANGUAGE

    others = read(Store(store), besides={record.key for record in fresh})
    before = [each for each in others if each.experiment in LANGUAGE]
    evidence = _evidence([*stored, *before], fresh, results, store, zoo)
    page, verdicts = _page(evidence, out, _other_bits(store, results))
    measured = {record.experiment for record in fresh}
    return page, [each for each in verdicts if each.claim.experiment in measured]


def print_conclusion(page: Path, verdicts: Sequence[Verdict]) -> None:
    """The verdicts in sentences, and where the page is."""
    from loopscope.cli.ledger import print_ledger

    if verdicts:
        print_ledger(verdicts)
    say(f"The report: {page}")


def refuse_files(*folders: Path | None) -> None:
    """InputError where a file stands in the place of a folder that is to be written, before anything is measured."""
    for folder in filter(None, folders):
        there = next(each for each in (folder, *folder.parents, Path()) if each.exists())
        if not there.is_dir():
            raise InputError(f"{there} is no folder, so nothing can be written to {folder}")


def refuse_incomplete(*folders: Path | None) -> None:
    """DamagedError for a store in one of these folders that is not as its inventory says, before it is written to."""
    from loopscope.store.inventory import check

    for folder in filter(None, folders):
        check(folder)


def cohorts_named(names: list[str] | tuple[()], asked: list[Experiment]) -> list[Cohort]:
    """Those named, or all that the experiments are done on."""
    from loopscope.studies.registry import COHORTS

    for name in names:
        if name not in COHORTS:
            raise InputError(f"no cohort {name!r}; there are {', '.join(COHORTS)}{nearest(name, COHORTS)}")
    needed = dict.fromkeys(name for experiment in asked for name in experiment.cohorts)
    found = [each for each in COHORTS.values() if each.name in needed and (not names or each.name in names)]
    if not found:
        raise InputError(f"{', '.join(e.name for e in asked)}: not done on {', '.join(names)}, but {', '.join(needed)}")
    return found


def evidence_of(results: Path | None, store: Path | None) -> Evidence:
    """The stored records and, before them, those of a store; where there are none, that is said."""
    from loopscope.cli.stores import open_store
    from loopscope.studies.reading import read

    fresh = [] if store is None else read(open_store(store))
    found = _evidence(_stored(results), fresh, results, store)
    if not found.records:
        note(
            "loopscope: there are no records; those of a checkout are in its results/, others with --results or --store"
        )
    return found


def _stored(folder: Path | None) -> list[Record]:
    """The records that came with the checkout or lie in a folder; none where there is no checkout."""
    from loopscope.studies.reading import read_results

    return read_results(folder)


def _evidence(
    stored: list[Record], fresh: list[Record], results: Path | None, store: Path | None, zoo: Path | None = None
) -> Evidence:
    """Records with how their models were trained, as far as results, the store they were written to, the zoo say it."""
    from loopscope.store.store import Store
    from loopscope.studies.evidence import Evidence
    from loopscope.studies.lineage import lineage
    from loopscope.studies.records import open_results

    mine = [Store(each) for each in (store, zoo) if each is not None and each.is_dir()]
    return Evidence(stored, fresh, lineage([*open_results(results), *mine]))


def _other_bits(store: Path, results: Path | None) -> list[str]:
    """Sentences on records of the store that the results have under the same key with other answers."""
    from loopscope.store.differences import differing, in_short
    from loopscope.store.store import Store
    from loopscope.studies.records import RECORD, open_results

    return in_short(differing(Store(store), open_results(results), [RECORD]))


def _page(evidence: Evidence, out: Path, notes: Sequence[str] = ()) -> tuple[Path, list[Verdict]]:
    from loopscope.studies.claims import decide
    from loopscope.studies.report.page import write_page
    from loopscope.studies.report.sections import report_of

    with spinner() as log:
        log("judging")
        verdicts = decide(evidence)
        report = report_of(evidence, verdicts, log)
        report = replace(report, lead=(*report.lead, *notes))
        return write_page(report, out, log), verdicts


def _range(numbers: tuple[int, ...]) -> str:
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _maps(cohort: Cohort) -> str:
    """The maps of every backbone, and those of the chosen ones."""
    more = ", ".join(each for group in cohort.chosen_maps for each in group)
    return ", ".join(cohort.maps) + (f"; of the chosen: {more}" if more else "")
