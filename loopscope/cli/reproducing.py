"""The reproduction: experiments, claims, the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, note, print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.jobs_shown import carried_out, needs_of, print_result, refuse_without
from loopscope.cli.lm import quiet_transformers
from loopscope.cli.options import Device, Events, FirstStore, Gpus, On, Results, SaveEvery, StoreFolder, ZooFolder
from loopscope.cli.progress import steps as steps_done
from loopscope.cli.threads import SMALL, choose_threads, numbers_of
from loopscope.cli.training import job
from loopscope.errors import InputError, nearest

if TYPE_CHECKING:
    from loopscope.jobs.job import Needs
    from loopscope.studies.claims import Verdict
    from loopscope.studies.evidence import Evidence
    from loopscope.studies.experiment import Cohort, Experiment, Profile
    from loopscope.studies.language.steps import LanguageStep
    from loopscope.studies.records import Record
    from loopscope.studies.runner import Measurement, Step


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
        _refuse_unmeasurable(language, zoo)
        amount: Profile = "quick" if profile == QUICK else "paper"
        small = _steps(asked, bool(experiments), cohorts, stored, zoo, amount) if asked else []
        todo: list[Measurement] = [] if on else [*small]
        if language or not (experiments or cohort):
            todo += _letters(zoo, profile == WHOLE)
        fresh = _quick_on(on, small, store, zoo, needs_of(on, device, gpus), events) if on and small else []
        fresh += _quick(todo, store, zoo, "auto" if on and device == "cuda" else device) if todo or not on else []
    elif profile == PAPER and language:
        raise InputError(
            f"language models are trained by `loopscope lm reproduce {language[0]} FOLDER`, not by --profile"
        )
    elif profile == PAPER and on:
        fresh = _paper_on(on, asked, cohorts, stored, store, needs_of(on, device, gpus), save_every, events)
    elif profile == PAPER:
        fresh = _paper(asked, cohorts, store, device, save_every)
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


def _quick(todo: list[Measurement], folder: Path, zoo: Path | None, device: str) -> list[Record]:
    """Measure on the zoo's weights."""
    from loopscope.store.store import Store
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.runner import carry_out
    from loopscope.training.job import pick_device

    at = pick_device(device)
    choose_threads(SMALL)
    with steps_done("measuring", len(todo)) as shown:
        return list(carry_out(todo, open_zoo(zoo), Store(folder), at, shown.log, shown.advance))


def _steps(
    asked: list[Experiment], by_name: bool, cohorts: list[Cohort], stored: list[Record], zoo: Path | None,
    amount: Profile,
) -> list[Step]:  # fmt: skip
    """What is measured on the zoo's backbones; InputError for what was asked for by name and cannot be done on any."""
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.graph_walk.experiments import selection
    from loopscope.studies.runner import steps

    weights = open_zoo(zoo)
    chosen = selection(stored)
    todo = steps(weights, cohorts, asked, chosen, amount)
    done = {step.experiment.name for step in todo}
    idle = [each.name + _needs(each, cohorts) for each in asked if each.name not in done]
    if not todo or (by_name and idle):
        raise InputError(
            f"{weights.root} has no backbone of the cohorts {', '.join(each.name for each in cohorts)} for "
            f"{', '.join(idle)}; mechanism backbones by the stored records: {', '.join(chosen.names) or 'none'}"
        )
    return todo


def _refuse_unmeasurable(names: list[str], zoo: Path | None) -> None:
    """InputError for experiments on language models, asked for by name, that the zoo's weights do not allow."""
    from loopscope.models.extras import lacking
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.language.layouts import LETTERS
    from loopscope.studies.registry import LANGUAGE

    for name in names:
        if missing := lacking():
            raise InputError(f"{name} {missing}")
        from loopscope.studies.language.zoo import walkers

        weights = open_zoo(zoo)
        if name != LETTERS or not walkers(weights):
            raise InputError(f"{weights.root} has no language model for {name}; `{LANGUAGE[name].command}` tests one")


def _letters(zoo: Path | None, whole: bool) -> list[LanguageStep]:
    """The zoo's letter walkers, on the first pairs or all; where packages are missing, say so in a line and go on."""
    from loopscope.models.extras import lacking
    from loopscope.store.artefacts import LM_MAP
    from loopscope.store.zoo import open_zoo

    weights = open_zoo(zoo)
    if not weights.every(LM_MAP):
        return []
    if missing := lacking():
        note(f"loopscope: letters are left out: a language model {missing}")
        return []
    quiet_transformers()
    from loopscope.studies.language.zoo import PAIRS, letter_steps

    return letter_steps(weights, None if whole else PAIRS)


def _needs(experiment: Experiment, cohorts: list[Cohort]) -> str:
    """The maps without which an experiment is not done on a backbone, in brackets; nothing where there are none."""
    maps = [each for cohort in cohorts for group in cohort.chosen_for(experiment) for each in group]
    return f" (with maps such as {', '.join(maps)})" if maps else ""


def _paper(
    asked: list[Experiment], cohorts: list[Cohort], folder: Path, device: str, save_every: float
) -> list[Record]:
    from loopscope.studies.recipes import backbone_recipe
    from loopscope.studies.runner import from_nothing

    sizes = [(backbone_recipe(name), len(cohort.seeds)) for cohort in cohorts for name in cohort.recipes]
    choose_threads(max(numbers_of(each.model, each.batch, seeds) for each, seeds in sizes))
    with job(device, folder, save_every) as (store, settings, log):
        return [record for cohort in cohorts for record in from_nothing(cohort, asked, store, settings, log)]


def _paper_on(
    on: str, asked: list[Experiment], cohorts: list[Cohort], stored: list[Record], folder: Path, needs: Needs,
    save_every: float, events: bool,
) -> list[Record]:  # fmt: skip
    """The whole campaign as jobs of an engine."""
    from loopscope.cli.stores import store_to_be
    from loopscope.studies.campaign import Campaign, records_of
    from loopscope.studies.times import recorded_times

    store = store_to_be(folder)
    graph = Campaign(cohorts, asked, store, needs, recorded_times()).graph()
    return records_of(carried_out(graph, store, on, save_every, events), store)


def _quick_on(on: str, todo: list[Step], folder: Path, zoo: Path | None, needs: Needs, events: bool) -> list[Record]:
    """Measurements on the zoo's backbones as jobs of an engine."""
    from loopscope.cli.stores import store_to_be
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.campaign import measuring_graph, records_of
    from loopscope.studies.times import recorded_times

    store = store_to_be(folder)
    graph = measuring_graph(todo, open_zoo(zoo), needs, recorded_times())
    return records_of(carried_out(graph, store, on, events=events), store)


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
