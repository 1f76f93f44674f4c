"""The reproduction: experiments, claims, the report page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, note, print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import quiet_transformers
from loopscope.cli.options import Device, FirstStore, Results, SaveEvery, StoreFolder, ZooFolder
from loopscope.cli.progress import steps as steps_done
from loopscope.cli.threads import SMALL, choose_threads, numbers_of
from loopscope.cli.training import job
from loopscope.errors import InputError, nearest

if TYPE_CHECKING:
    from loopscope.studies.claims import Verdict
    from loopscope.studies.evidence import Evidence
    from loopscope.studies.experiment import Cohort, Experiment
    from loopscope.studies.records import Record


@app.command("list")
def list_everything(as_json: AsJson = False) -> None:
    """List the experiments and the cohorts of backbones they are done on, and those on language models."""
    from loopscope.studies.claims import decided_by
    from loopscope.studies.language.records import LANGUAGE
    from loopscope.studies.registry import COHORTS, EXPERIMENTS

    names = (*EXPERIMENTS, *LANGUAGE)
    decides = {name: decided_by(name) for name in names}
    if as_json:
        experiments = [
            {"name": each.name, "question": each.question, "cohorts": each.cohorts, "claims": decides[each.name]}
            for each in EXPERIMENTS.values()
        ]
        spoken = [
            {"name": each.name, "question": each.question, "command": each.command, "claims": decides[each.name]}
            for each in LANGUAGE.values()
        ]
        cohorts = [asdict(each) for each in COHORTS.values()]
        return print_json({"experiments": experiments, "cohorts": cohorts, "language": spoken})
    say("Experiments, on cohorts of backbones")
    for each in EXPERIMENTS.values():
        _entry(each.name, each.question, f"on {', '.join(each.cohorts)}", decides[each.name])
    say("", "Cohorts")
    for cohort in COHORTS.values():
        maps = f"; maps {_maps(cohort)}" if cohort.maps else ""
        _entry(cohort.name, cohort.about, f"{', '.join(cohort.recipes)}, seeds {_range(cohort.seeds)}{maps}")
    say("", "Experiments on language models")
    for spoken_of in LANGUAGE.values():
        _entry(spoken_of.name, spoken_of.question, f"`{spoken_of.command}`", decides[spoken_of.name])


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
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables that the README shows.")] = False,
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
    profile: Annotated[str, typer.Option(help="quick: on the zoo's weights; paper: train everything.")] = "quick",
    cohort: Annotated[list[str] | None, typer.Option(help="Only these cohorts of backbones.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report page and its figures.")] = Path("report"),
    store: StoreFolder = Path("store"),
    export: Annotated[Path | None, typer.Option(help="Also copy the records of the store to this one.")] = None,
    zoo: ZooFolder = None,
    results: Results = None,
    device: Device = "auto",
    save_every: SaveEvery = 30.0,
    as_json: AsJson = False,
) -> None:
    """Run the experiments, judge the claims, write the report page.  What the store already holds is not done again."""
    from loopscope.cli.ledger import as_json as in_json
    from loopscope.cli.ledger import print_ledger
    from loopscope.store.store import Store
    from loopscope.store.zoo import zoo_folder
    from loopscope.studies.language.records import LANGUAGE
    from loopscope.studies.reading import check_zoo
    from loopscope.studies.registry import chosen
    from loopscope.studies.report.page import check_page
    from loopscope.studies.runner import export as export_records

    spoken = [name for name in experiments or () if name in LANGUAGE]
    others = [name for name in experiments or () if name not in LANGUAGE]
    asked = chosen(others) if others or not spoken else []
    if cohort and not asked:
        raise InputError(f"{spoken[0]} is done on the zoo's language models, not on cohorts of backbones")
    cohorts = _cohorts(cohort or (), asked) if asked else []
    check_page(out)
    refuse_files(out, store, export)
    refuse_incomplete(store, export)
    stored = _stored(results)
    if profile == "quick":
        check_zoo(zoo)
        _refuse_unspoken(spoken, zoo)
        fresh = _quick(asked, bool(experiments), cohorts, stored, store, zoo, device) if asked else []
        if spoken or not (experiments or cohort):
            fresh += _letters(store, zoo, device)
    elif profile == "paper" and spoken:
        raise InputError(
            f"language models are trained by `loopscope lm reproduce {spoken[0]} FOLDER`, not by --profile"
        )
    elif profile == "paper":
        fresh = _paper(asked, cohorts, store, device, save_every)
    else:
        raise InputError(f"no profile {profile!r}; there are quick, paper{nearest(profile, ('quick', 'paper'))}")
    if export is not None:
        export_records(Store(store), Store(export))
    weights = zoo_folder(zoo) if profile == "quick" else None
    page, verdicts = _page(_evidence(stored, fresh, results, store, weights), out, _other_bits(store, results))
    if as_json:
        costs = [{"experiment": r.experiment, "backbone": r.facts.name, **r.cost} for r in fresh]
        return print_json({"page": str(page), "claims": [in_json(each) for each in verdicts], "measured": costs})
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


def _cohorts(names: list[str] | tuple[()], asked: list[Experiment]) -> list[Cohort]:
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


def _quick(
    asked: list[Experiment], by_name: bool, cohorts: list[Cohort], stored: list[Record], folder: Path,
    zoo: Path | None, device: str,
) -> list[Record]:  # fmt: skip
    """Measure on the zoo's weights.  InputError for what was asked for by name and cannot be done on any of them."""
    from loopscope.store.store import Store
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.graph_walk.experiments import selection
    from loopscope.studies.runner import carry_out, steps
    from loopscope.training.job import pick_device

    weights = open_zoo(zoo)
    chosen = selection(stored)
    todo = steps(weights, cohorts, asked, chosen, "quick")
    done = {step.experiment.name for step in todo}
    idle = [each.name + _needs(each, cohorts) for each in asked if each.name not in done]
    if not todo or (by_name and idle):
        raise InputError(
            f"{weights.root} has no backbone of the cohorts {', '.join(each.name for each in cohorts)} for "
            f"{', '.join(idle)}; mechanism backbones by the stored records: {', '.join(chosen.names) or 'none'}"
        )
    choose_threads(SMALL)
    with steps_done("measuring", len(todo)) as shown:
        return list(shown.each(carry_out(todo, weights, Store(folder), pick_device(device), shown.log)))


def _refuse_unspoken(names: list[str], zoo: Path | None) -> None:
    """InputError for experiments on language models, asked for by name, that the zoo's weights do not allow."""
    from loopscope.models.extras import lacking
    from loopscope.store.zoo import open_zoo
    from loopscope.studies.language.layouts import LETTERS
    from loopscope.studies.language.records import LANGUAGE

    for name in names:
        if missing := lacking():
            raise InputError(f"{name} {missing}")
        from loopscope.studies.language.zoo import walkers

        weights = open_zoo(zoo)
        if name != LETTERS or not walkers(weights):
            raise InputError(f"{weights.root} has no language model for {name}; `{LANGUAGE[name].command}` tests one")


def _letters(folder: Path, zoo: Path | None, device: str) -> list[Record]:
    """Measure the zoo's letter walkers; where packages for that are missing, say so in a line and go on."""
    from loopscope.models.extras import lacking
    from loopscope.store.artefacts import LM_MAP
    from loopscope.store.store import Store
    from loopscope.store.zoo import open_zoo
    from loopscope.training.job import pick_device

    weights = open_zoo(zoo)
    if not weights.every(LM_MAP):
        return []
    if missing := lacking():
        note(f"loopscope: letters are left out: a language model {missing}")
        return []
    quiet_transformers()
    from loopscope.studies.language import zoo as language_zoo

    with spinner() as log:
        at = pick_device(device)
        return list(language_zoo.walked(weights, Store(folder), at, language_zoo.PAIRS, log))


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
    with job(device, folder, save_every) as (store, settings, _, log):
        return [record for cohort in cohorts for record in from_nothing(cohort, asked, store, settings, log)]


def evidence_of(results: Path | None, store: Path | None) -> Evidence:
    """The stored records and, before them, those of a store."""
    from loopscope.cli.stores import open_store
    from loopscope.studies.reading import read

    fresh = [] if store is None else read(open_store(store))
    return _evidence(_stored(results), fresh, results, store)


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
