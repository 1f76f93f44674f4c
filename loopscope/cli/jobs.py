"""Jobs: the plan of a campaign, graphs from files, what is running where."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, prose, say
from loopscope.cli.jobs_shown import carried_out
from loopscope.cli.options import On, SaveEvery, StoreFolder
from loopscope.cli.stores import open_store, store_to_be
from loopscope.errors import InputError, nearest

if TYPE_CHECKING:
    from loopscope.jobs.job import Graph, Job
    from loopscope.jobs.plan import Projection
    from loopscope.studies.experiment import Experiment

jobs_app = typer.Typer(no_args_is_help=True, help="Campaigns as jobs: plan them, run them, look after them.")
app.add_typer(jobs_app, name="jobs")

SIMULATED = (1, 8, 64, 512)
"""Places that a projection is made for, beside those asked for."""


@jobs_app.command("plan")
def jobs_plan(
    named: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT|STUDY]...",
            help="Which experiments, or all of a study; default: all.  A name of both is the experiment's.",
        ),
    ] = None,
    cohort: Annotated[list[str] | None, typer.Option(help="Only these cohorts of backbones.")] = None,
    on: Annotated[str | None, typer.Option("--on", help="How many places, such as ray:8 (with --simulate).")] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Project 1, 8, 64 and 512 places.")] = False,
    share: Annotated[float, typer.Option(help="The part of a GPU that a job takes, such as 0.5.")] = 1.0,
    start: Annotated[float, typer.Option(help="Seconds that a job takes besides, to be started.")] = 0.0,
    every: Annotated[bool, typer.Option("--all", help="Every job in the table, not only the critical path.")] = False,
    as_json: AsJson = False,
) -> None:
    """The jobs of `reproduce --profile paper`: what waits for what, expected minutes, the critical path."""
    from loopscope.cli.reproducing import cohorts_named
    from loopscope.jobs.plan import critical_path, minutes, total
    from loopscope.jobs.plan import simulate as simulated

    if not 0 < share <= 1:
        raise InputError(f"--share is more than 0 and at most 1, not {share:g} (nearest: 1)")
    if not 0 <= start <= 86_400:
        raise InputError(f"--start is 0 to 86,400 seconds, not {start:g} (nearest: {min(max(start, 0), 86_400):g})")
    places = _places(on)
    asked = _experiments(named or ())
    graph, slow = _campaign(cohorts_named(cohort or (), asked), asked)
    path = critical_path(graph)
    counts = [places] if places else SIMULATED
    found = [simulated(graph, count, share, start / 60) for count in counts] if simulate or places else []
    if as_json:
        return print_json({
            **graph.to_json(), "minutes": total(graph.jobs), "critical_path": [job.name for job in path],
            "noted_on_a_cpu": slow, "projections": [_projection(each) for each in found],
        })  # fmt: skip
    hours = total(graph.jobs) / 60
    rows = graph.jobs if every else path
    title = f"{len(graph.jobs)} jobs, {hours:.1f} h one after the other; " + ("all" if every else "the critical path")
    print_table(title, ("job", "waits for", "minutes"), ((j.name, _waits(j), _minutes(j)) for j in rows), left=2)
    say(f"No number of places makes it shorter than {sum(map(minutes, path)) / 60:.2f} h.")
    prose("Minutes are those noted when the released records were made, most of them on one H200.")
    if slow:
        prose(
            f"Noted on one CPU thread alone, and counted so: {', '.join(f'{k} {v:.0f} min' for k, v in slow.items())}"
        )
    if found:
        rows_of = ((f"{p.places:,}", f"{p.minutes / 60:.2f}", f"{100 * p.busy:.0f}", p.limit) for p in found)
        print_table("Projected, by list scheduling", ("places", "hours", "% busy", "limited by"), rows_of, left=0)


@jobs_app.command("run")
def jobs_run(
    file: Annotated[Path, typer.Argument(help="A file of jobs, JSON.")],
    on: On = "local:1",
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print events, one JSON object a line.")] = False,
) -> None:
    """Run the jobs of a file.  What the store holds is not done again; the same command goes on after any end."""
    from loopscope.jobs.job import graph_of, read_value
    from loopscope.studies.job_files import resolved

    graph = graph_of(resolved(read_value(file)))
    report = carried_out(graph, store_to_be(store), on or "local:1", save_every, as_json)
    if not as_json:
        rows = (
            (name, key[:16], what, each.place)
            for name, each in report.outcomes.items()
            for what, key in each.keys.items()
        )
        print_table(f"{len(report.outcomes)} jobs are done", ("job", "key", "what", "where"), rows, left=4)


@jobs_app.command("status")
def jobs_status(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """What is done, running (where, since when), waiting and failed among the jobs that a store has notes on."""
    from loopscope.jobs.journal import journals
    from loopscope.jobs.status import status_of

    found = [status_of(job, journal) for job, journal in journals(open_store(store).root)]
    if as_json:
        return print_json({"jobs": found})
    order = ("failed", "lost", "skipped", "running", "waiting", "stopped", "done")
    found.sort(key=lambda each: order.index(each["state"]))
    counts = [f"{many} {state}" for state in order if (many := sum(e["state"] == state for e in found))]
    rows = ((e["job"], e["state"], e["place"], _since(e["since"]), _in_words(e)) for e in found)
    print_table(
        f"{len(found)} jobs: {', '.join(counts) or 'none'}", ("job", "state", "where", "since", "told"), rows, 5
    )
    for each in found:
        if each["state"] == "failed" and each["log"]:
            say("", f"{each['job']}, last lines of {each['log_file']}:", *(f"    {line}" for line in each["log"]))


def _experiments(named: Iterable[str]) -> list[Experiment]:
    """Those of these names and of these studies, all for none; InputError for what is no name, or no part of a plan."""
    from loopscope.studies.registry import EXPERIMENTS, LANGUAGE, STUDY_OF, chosen

    wanted: list[str] = []
    for name in named:
        study = name.replace("-", "_")
        if name in EXPERIMENTS:
            wanted.append(name)
        elif mine := [each for each, of in STUDY_OF.items() if of == study]:
            wanted += mine
        elif name in LANGUAGE:
            raise InputError(f"{name} is no part of this plan, but done on any language model by `lm reproduce --on`")
        else:
            there = dict.fromkeys((*EXPERIMENTS, *STUDY_OF.values()))
            raise InputError(f"no experiment or study {name!r}; there are {', '.join(there)}{nearest(name, there)}")
    return chosen(wanted)


def _campaign(cohorts: Any, asked: Any) -> tuple[Graph, dict[str, float]]:
    """The expected graph of experiments on cohorts, with recorded times; minutes that were noted on a CPU."""
    from loopscope.jobs.job import Needs
    from loopscope.jobs.plan import minutes
    from loopscope.store.store import Store
    from loopscope.studies.campaign import Campaign
    from loopscope.studies.records import open_results, records
    from loopscope.studies.registry import DECIDING, selection
    from loopscope.studies.times import recorded_times

    times = recorded_times()
    walks = [each for store in open_results() for each in records(store, DECIDING)]
    nowhere = Store(Path())  # a plan looks up nothing
    made = Campaign(cohorts, asked, nowhere, Needs(gpus=1.0), times, selection(walks))
    graph = made.graph().expected()
    slow: dict[str, float] = {}
    for job in graph:
        name = job.settings.get("experiment")
        if name in times.slow:
            slow[name] = slow.get(name, 0.0) + minutes(job)
    return graph, slow


def _places(on: str | None) -> int | None:
    """The number behind an engine's name; InputError where there is none."""
    if on is None:
        return None
    match = re.fullmatch(r"(?:local|ray|slurm):([0-9]{1,6})", on)
    if match is None or int(match[1]) < 1:
        raise InputError(f"--on {on!r}: a plan takes a number of places, such as ray:8{nearest(on, ('ray:8',))}")
    return int(match[1])


def _projection(each: Projection) -> dict[str, Any]:
    return {"places": each.places, "minutes": each.minutes, "busy": each.busy, "limited_by": each.limit}


def _waits(job: Job) -> str:
    return f"{job.after[0]}{f' and {len(job.after) - 1} more' if len(job.after) > 1 else ''}" if job.after else "-"


def _minutes(job: Job) -> str:
    return "?" if job.needs.minutes is None else f"{job.needs.minutes:.1f}"


def _since(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).strftime("%d %b %H:%M:%S")


def _in_words(each: dict[str, Any]) -> str:
    if each["state"] == "running" and each["total"]:
        return f"{each['done']:,} of {each['total']:,}"
    return str(each["line"])[:80] if each["line"] else f"{each['seconds']:.0f} s" if each["seconds"] else ""
