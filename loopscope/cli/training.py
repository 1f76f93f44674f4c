"""Training: recipes, backbones, maps."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from loopscope.cli.app import AsJson, app, note, print_json, print_table, say
from loopscope.cli.display import Display, display, spinner
from loopscope.cli.jobs_shown import carried_out, needs_of, print_result, refuse_without
from loopscope.cli.options import Device, Events, Gpus, On, SaveEvery, StoreFolder
from loopscope.cli.stopping import asked_to_stop
from loopscope.cli.stores import open_store, store_to_be
from loopscope.cli.threads import SMALL, choose_threads, numbers_of
from loopscope.errors import InputError, nearest

if TYPE_CHECKING:
    from loopscope.jobs.job import Graph, Needs
    from loopscope.store.store import Artefact, Store
    from loopscope.training.cohort.jobs import Finished, Settings
    from loopscope.training.recipe import BackboneRecipe, MapRecipe


@app.command()
def recipes(
    every: Annotated[bool, typer.Option("--all", help="Maps for k hops and their controls, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the recipes with what they cost."""
    from loopscope.studies.costs import training_flops
    from loopscope.studies.recipes import RECIPES
    from loopscope.training.cohort.hops import BUDGETS, CONTROLS, HOPS
    from loopscope.training.recipe import BackboneRecipe

    controls = {control.target(k, budget) for budget in BUDGETS for control in CONTROLS for k in HOPS}

    rows = [
        {
            "name": recipe.name,
            "kind": "backbone" if isinstance(recipe, BackboneRecipe) else "map",
            "about": recipe.about,
            "updates": sum(stage.updates for stage in recipe.stages),
            "batch": recipe.batch,
            "petaflop": training_flops(recipe) / 1e15,
            "deviations": list(recipe.deviations),
            "numerics": list(recipe.numerics),
            "settings": recipe.to_dict(),
        }
        for recipe in RECIPES.values()
    ]
    if as_json:
        return print_json({"recipes": rows})
    for kind in ("backbone", "map"):
        print_table(
            f"Recipes of {kind}s (PFLOP: 10^15 operations of a seed or fit, at most)",
            ("name", "about", "updates", "batch", "PFLOP"),
            (
                (r["name"], r["about"], f"{r['updates']:,}", r["batch"], f"{r['petaflop']:.3g}")
                for r in rows
                if r["kind"] == kind and (every or r["name"] not in controls)
            ),
            left=2,
        )
    if not every:
        say(f"and {len(controls)} for k hops and their controls, such as {min(controls)}; --all lists them")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A backbone recipe; `loopscope recipes` lists them.")],
    seeds: Annotated[str, typer.Option(help="Seeds, such as 3-13 or 0,4,7.")],
    device: Device = "auto",
    on: On = None,
    gpus: Gpus = None,
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 30.0,
    events: Events = False,
    as_json: AsJson = False,
) -> None:
    """Train backbones, one for each seed, side by side.  The same command goes on after an interruption."""
    refuse_without(on, gpus=gpus, events=events)
    numbers = _numbers("--seeds", seeds)
    from loopscope.studies.recipes import backbone_recipe
    from loopscope.training.cohort.jobs import train as train_backbones

    chosen = backbone_recipe(recipe)
    started = time.perf_counter()
    if on is not None:
        graph = _training_graph(chosen, numbers, needs_of(on, device, gpus))
        device = _elsewhere(on, graph, store, save_every, events)
    choose_threads(numbers_of(chosen.model, chosen.batch, len(numbers)))
    with job(device, store, save_every) as (target, settings, _):
        _show(train_backbones(chosen, numbers, target, settings), settings, started, on, as_json, events)


@app.command()
def fit(
    recipes: Annotated[list[str], typer.Argument(help="Map recipes that differ in their target, such as: one two.")],
    backbone: Annotated[list[str], typer.Option(help="Name or key of a backbone in the store or the zoo.")],
    fits: Annotated[str, typer.Option(help="Numbers of the fits, such as 1,2.")] = "1",
    device: Device = "auto",
    on: On = None,
    gpus: Gpus = None,
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 30.0,
    events: Events = False,
    as_json: AsJson = False,
) -> None:
    """Fit maps to frozen backbones; all targets and fits of a backbone side by side."""
    refuse_without(on, gpus=gpus, events=events)
    numbers = _numbers("--fits", fits)
    from loopscope.studies.recipes import RECIPES, map_recipe
    from loopscope.training.cohort.jobs import check_fit
    from loopscope.training.cohort.jobs import fit as fit_maps

    # `--backbone A B` leaves B among the arguments; a backbone is never called like a recipe.
    chosen = [map_recipe(name) for name in dict.fromkeys(recipes) if name in RECIPES or name == recipes[0]]
    wanted = [*backbone, *(name for name in recipes[1:] if name not in RECIPES)]
    started = time.perf_counter()
    if on is not None:
        graph = _fitting_graph(chosen, dict.fromkeys(wanted), numbers, store_to_be(store), needs_of(on, device, gpus))
        device = _elsewhere(on, graph, store, save_every, events)
    with job(device, store, save_every) as (target, settings, _):
        found = [_backbone(target, name) for name in dict.fromkeys(wanted)]
        models = [check_fit(chosen, artefact) for artefact in found]
        choose_threads(numbers_of(models[0].config, chosen[0].batch, len(chosen) * len(numbers)))
        done = [each for one in found for each in fit_maps(chosen, target.adopt(one), numbers, target, settings)]
        _show(done, settings, started, on, as_json, events)


def _elsewhere(on: str, graph: Graph, folder: Path, save_every: float, events: bool) -> str:
    """Have jobs done by an engine; gives the device of this process, which then only looks up what they made."""
    carried_out(graph, store_to_be(folder), on, save_every, events)
    return "cpu"


def _training_graph(recipe: BackboneRecipe, seeds: list[int], needs: Needs) -> Graph:
    from loopscope.jobs.job import Graph, Job

    settings = {"recipe": recipe.to_dict(), "seeds": seeds}
    return Graph((Job(f"train {recipe.name}", "train", settings, needs=needs),))


def _fitting_graph(
    maps: list[MapRecipe], backbones: Iterable[str], fits: list[int], store: Store, needs: Needs
) -> Graph:  # fmt: skip
    """One job for each backbone, which is copied into the store first."""
    from loopscope.jobs.job import Graph, Job
    from loopscope.store.artefacts import BACKBONE, name_of
    from loopscope.training.cohort.jobs import check_fit

    found = [_backbone(store, name) for name in backbones]
    for each in found:
        check_fit(maps, each)
    settings = {"recipes": [each.to_dict() for each in maps], "fits": fits}
    names = "+".join(each.name for each in maps)
    return Graph(tuple(
        Job(f"fit {names} on {name_of(each)}", "fit", settings, {BACKBONE: store.adopt(each).key}, needs)
        for each in found
    ))  # fmt: skip


@app.command()
def score(store: StoreFolder = Path("store"), device: Device = "auto", as_json: AsJson = False) -> None:
    """Test the graph-walk backbones and maps of a store on graphs they never saw, each at what it was trained for."""
    from dataclasses import asdict

    from loopscope.studies.graph_walk.scores import score_walks
    from loopscope.training.job import pick_device

    there, chosen = open_store(store), pick_device(device)
    choose_threads(SMALL)
    found = []
    with spinner() as log:
        for each in score_walks(there, chosen):
            found.append(each)
            log(f"{each.name} scored")
    if as_json:
        return print_json({"scores": [asdict(each) for each in found]})
    print_table(
        f"{len(found)} scores (95 % intervals over graphs)",
        ("name", "program", "target", "population", "accuracy %", "interval", "n"),
        (
            (s.name, s.program, s.target, s.population, f"{100 * s.accuracy:.2f}",
             f"{100 * s.low:.2f}..{100 * s.high:.2f}", f"{s.n:,}")
            for s in found
        ),
        left=4,
    )  # fmt: skip


MOST = 1000
"""Seeds or fits of one command."""


def _numbers(option: str, text: str) -> list[int]:
    """3-5,8 -> [3, 4, 5, 8]."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MOST:
            raise InputError(f"{option} {text[:60]!r} is no list of numbers such as 3-13 or 0,4,7")
        found += range(first, last + 1)
        if len(found) > MOST:
            raise InputError(
                f"{option} {text[:60]!r} names more than {MOST:,} numbers; that many are not trained at once"
            )
    return list(dict.fromkeys(found))


def _backbone(store: Store, name: str) -> Artefact:
    """A backbone by name or key, from the store or else from the zoo."""
    from loopscope.store.artefacts import BACKBONE, name_of
    from loopscope.store.zoo import find, matches, open_zoo

    places = [store]
    with suppress(InputError):  # there may be no zoo
        places.append(open_zoo(None))
    known: list[str] = []
    for place in places:
        there = place.every(BACKBONE)
        if matches(there, name):
            return find(place, name, BACKBONE)
        known += [name_of(artefact) for artefact in there]
    there_are = ", ".join(dict.fromkeys(known)) or "none"
    raise InputError(f"no backbone {name!r} in {store.root} or the zoo; there are {there_are}{nearest(name, known)}")


class Job(NamedTuple):
    """What a command that trains works with; `log` is for what it does besides."""

    store: Store
    settings: Settings
    log: Callable[[str], None]


@contextmanager
def job(device: str, folder: Path, save_every: float) -> Iterator[Job]:
    """A job with its display; everything is checked before anything is written."""
    from loopscope.training.cohort.jobs import Settings
    from loopscope.training.job import refuse_unreadable

    store = store_to_be(folder)
    refuse_unreadable(store)
    with at_work(device, save_every) as (shown, how):
        settings = Settings(**how, metrics=folder / "metrics", log=lambda line: note(f"loopscope: {line}"))
        yield Job(store, settings, shown.log)


@contextmanager
def at_work(device: str, save_every: float) -> Iterator[tuple[Display, dict[str, Any]]]:
    """A display that follows jobs, and the settings by which they show themselves there and stop when asked to."""
    from loopscope.training.job import Progress, pick_device

    chosen = pick_device(device)
    with display() as shown, asked_to_stop(note) as stop:

        def watch(now: Progress) -> None:
            title = f"{now.job} ({now.stage})" if now.stage else now.job
            shown.show(now.job, title, now.done, now.total, str(now))

        yield shown, {"device": chosen, "save_every": save_every, "watch": watch, "stop": stop}


def _show(
    done: list[Finished], settings: Settings, started: float, on: str | None, as_json: bool, events: bool
) -> None:
    seconds, where = time.perf_counter() - started, on or settings.device.type
    if as_json or events:
        members = [
            {"key": each.key, "seed": each.seed, "name": each.name, "selected_update": each.selected_update,
             "score": list(each.score), "digests": dict(each.digests)}
            for each in done
        ]  # fmt: skip
        report = {"device": where, "seconds": seconds, "metrics": str(settings.metrics)}
        return print_result({**report, "members": members}, events)
    print_table(
        f"{len(done)} ready after {seconds:.1f} s on {where}; metrics in {settings.metrics}",
        ("name", "key", "final weights", "selected weights", "selected at", "score"),
        (
            (each.name, each.key[:16], each.digests["final"][:12], each.digests["selected"][:12],
             f"{each.selected_update:,}", f"{each.score[0]:.4f}")
            for each in done
        ),
        left=4,
    )  # fmt: skip
