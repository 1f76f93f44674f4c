"""Looped language models: new ones, recipes, fine-tuning, fitting maps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.cli import training
from loopscope.cli.app import AsJson, note, print_json, print_table, say
from loopscope.cli.display import Display
from loopscope.cli.lm import lm_app, quiet_transformers
from loopscope.cli.lm_task import MapOptions, TaskOptions, command, finetune_task, fit_task
from loopscope.cli.options import (
    Device,
    Ending,
    LanguageModel,
    Looped,
    ModelFolder,
    SaveEvery,
    StoreFolder,
    bundled,
    ending_named,
    tokenizer_named,
)
from loopscope.cli.stores import store_to_be
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.errors import InputError, nearest
from loopscope.store.outputs import check_file, check_folder, parent_of, write_file

if TYPE_CHECKING:
    from loopscope.cli.display import Display
    from loopscope.store.store import Store
    from loopscope.tasks.general_text import Source
    from loopscope.training.lm.jobs import Finished, Settings
    from loopscope.training.lm.recipe import Recipe

Name = Annotated[str, typer.Argument(metavar="RECIPE", help="`loopscope lm recipes` lists them.")]
MaybeName = Annotated[
    str | None, typer.Argument(metavar="[RECIPE]", help="`loopscope lm recipes` lists them; or give --task FILE.")
]
Updates = Annotated[int | None, typer.Option(help="End after so many updates; default: the recipe's.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="Change a setting, such as rate=1e-4 (repeatable).")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the layers first: faster updates on a GPU.")]
Text = Annotated[list[Path] | None, typer.Option(help="A file of general text (repeatable); default: built in.")]

MOST_RULES = 100_000
"""Texts of `lm rules`, about a kilobyte each; training takes a few thousand of them at most."""


@lm_app.command("recipes")
def lm_recipes(as_json: AsJson = False) -> None:
    """List the recipes for language models."""
    from loopscope.studies.language.recipes import RECIPES

    if as_json:
        rows = [
            {"about": r.about, "deviations": list(r.deviations), "numerics": list(r.numerics), **r.to_dict()}
            for r in RECIPES.values()
        ]
        return print_json({"recipes": rows})
    print_table(
        "Recipes for language models",
        ("name", "about", "updates", "batch", "rate"),
        ((r.name, r.about, f"{r.updates:,}", r.examples, f"{r.rate:g}") for r in RECIPES.values()),
        left=2,
    )


@lm_app.command("new")
def lm_new(
    out: Annotated[Path, typer.Option(help="The model folder to write; it must not exist.")],
    layers: Annotated[int, typer.Option(help="Layers of F.")],
    width: Annotated[int, typer.Option(help="Width of the state.")],
    heads: Annotated[int, typer.Option(help="Heads of a layer.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="A model whose tokenizer is taken.", callback=tokenizer_named)
    ] = None,
    words: Annotated[
        str | None, typer.Option(help="Instead, a tokenizer of words alone: letters, or those of a JSONL task.")
    ] = None,
    like: Annotated[str, typer.Option(help="llama or ouro.")] = "llama",
    loops: Annotated[int, typer.Option(help="Calls of F.")] = 4,
    boundary: Annotated[str, typer.Option(help="What ends a loop: none or norm.")] = "norm",
    seed: Annotated[int, typer.Option(help="What the weights are drawn from.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Write a model folder with random weights, to be trained from nothing."""
    quiet_transformers()
    from loopscope.models.passes import boundary_named
    from loopscope.training.lm.new_model import Shape, like_named, write_new

    shape = Shape(like_named(like), layers, width, heads, loops, boundary_named(boundary))
    if (tokenizer is None) == (words is None):
        raise InputError(
            "a new model has a tokenizer: give either --tokenizer FOLDER or --words letters (or FILE.jsonl)"
        )
    count = write_new(out, shape, tokenizer, seed, words=words)
    if as_json:
        return print_json({"folder": str(out), "weights": count, **asdict(shape), "seed": seed})
    say(f"{out}: like {like}, {count:,} weights, {loops} loops, boundary {boundary}, seed {seed}")


@lm_app.command("rules")
def lm_rules(
    out: Annotated[Path, typer.Option(help="The file to write, .jsonl; it must not exist.")],
    count: Annotated[int, typer.Option(help="Texts.")] = 676,
) -> None:
    """Write the rules of letter-walk graphs, told again and again, as general text that looking up is learned from."""
    from loopscope.store.files import write_synced
    from loopscope.tasks.letters.training import retold

    check_file(out)
    if out.suffix != ".jsonl":
        raise InputError(f"texts are written as .jsonl, not to {out.name}")
    if not 1 <= count <= MOST_RULES:
        near = 1 if count < 1 else MOST_RULES
        raise InputError(f"from 1 to {MOST_RULES:,} texts are written, not {count} (nearest: {near})")
    lines = (json.dumps({"text": retold(number)}) for number in range(count))
    write_file(out, lambda draft: write_synced(draft, "".join(f"{line}\n" for line in lines).encode()))
    say(f"{out}: {count:,} texts")


@lm_app.command("examples")
def lm_examples(
    task: Annotated[str, typer.Argument(help="letters, antonyms or iterations.")],
    out: Annotated[Path, typer.Option(help="The file to write, .jsonl; it must not exist.")],
    count: Annotated[int, typer.Option(help="Examples to learn from.")] = 400,
    deepest: Annotated[int, typer.Option(help="Steps that an answer takes at most.")] = 4,
    seed: Annotated[int, typer.Option(help="What they are drawn from.")] = 0,
) -> None:
    """Write a task of the paper as a JSONL task, for --task: questions to learn from, and of its checks, held out."""
    from loopscope.store.files import write_synced
    from loopscope.tasks import TASKS
    from loopscope.tasks.drawn import drawn

    check_file(out)
    if out.suffix != ".jsonl":
        raise InputError(f"examples are written as .jsonl, not to {out.name}")
    if task not in TASKS:
        raise InputError(f"no task {task!r}; there are {', '.join(TASKS)}{nearest(task, TASKS)}")
    found = drawn(TASKS[task](), count, deepest, seed)
    lines = (json.dumps(each.to_dict(), ensure_ascii=False) for each in found)
    write_file(out, lambda draft: write_synced(draft, "".join(f"{line}\n" for line in lines).encode()))
    say(f"{out}: {count:,} examples to learn from, {len(found) - count:,} held out")


@lm_app.command("keep")
def lm_keep(
    folder: ModelFolder,
    name: Annotated[str, typer.Argument(help="What it is called from now on, such as letters-4x128.")],
    store: StoreFolder = Path("store"),
    as_json: AsJson = False,
) -> None:
    """Keep a small model in a store under a name, hashed; `loopscope zoo add` takes it and its map from there."""
    quiet_transformers()
    from loopscope.models.kept import keep

    made = keep(folder, name, store_to_be(store))
    size = sum(file.size for file in made.manifest.files.values())
    if as_json:
        return print_json({"name": name, "key": made.key, "folder": str(made.folder), "bytes": size})
    say(f"{name}: {size:,} bytes in {made.folder}")


@lm_app.command("finetune")
@bundled
def lm_finetune(
    folder: ModelFolder,
    out: Annotated[Path, typer.Option(help="The model folder to write; it must not exist.")],
    own: TaskOptions,
    layers: Looped,
    recipe: MaybeName = None,
    updates: Updates = None,
    changes: Changes = None,
    text: Text = None,
    boundary: Ending = None,
    device: Device = "auto",
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 300.0,
    compiled: Compiled = False,
    as_json: AsJson = False,
) -> None:
    """Train a model by a recipe, or on examples of a task, and write it as a model folder.

    The same command goes on after an interruption.
    """
    from loopscope.models.folders import LOOPED
    from loopscope.training.lm.jobs import finetune

    kind = ending_named(boundary)
    parent_of(out)
    check_folder(out, ours=LOOPED)
    if own.task is not None:
        model = _only_task(folder, recipe, boundary, layers.loop, device, text, compiled)
        return finetune_task(own, model, out, changes, updates, store, save_every, as_json)
    own.refuse_for_recipes(recipe)
    asked = _job(folder, recipe, updates, changes, text, device, store, save_every, compiled)
    with asked as (chosen, sources, target, settings):
        done = finetune(folder, chosen, out, target, settings, sources=sources, boundary=kind, loop=layers.loop)
    _show(chosen, done, as_json)


@lm_app.command("fit")
@bundled
def lm_fit(
    folder: ModelFolder,
    own: MapOptions,
    layers: Looped,
    recipe: MaybeName = None,
    out: Annotated[Path | None, typer.Option(help="A folder to save the map in as well; it must not exist.")] = None,
    updates: Updates = None,
    changes: Changes = None,
    text: Text = None,
    boundary: Ending = None,
    device: Device = "auto",
    store: StoreFolder = Path("store"),
    save_every: SaveEvery = 300.0,
    compiled: Compiled = False,
    as_json: AsJson = False,
) -> None:
    """Fit a map to a frozen model, by a recipe or to examples of a task; it is kept in the store.

    The same command goes on after an interruption.
    """
    from loopscope.training.lm.jobs import fit, save_fitted

    if out is not None:
        parent_of(out)
        check_folder(out)
    if own.task is not None:
        model = _only_task(folder, recipe, boundary, layers.loop, device, text, compiled)
        return fit_task(own, model, out, changes, updates, store, save_every, as_json)
    own.refuse_for_recipes(recipe)
    if own.family is not None or own.rank is not None or boundary is not None:
        raise InputError("--family, --rank and --boundary go with --task FILE; a recipe has its own (--set family=...)")
    if own.push is not None:
        raise InputError("--push goes with --task FILE, not with a recipe")
    asked = _job(folder, recipe, updates, changes, text, device, store, save_every, compiled)
    with asked as (chosen, sources, target, settings):
        done = fit(folder, chosen, target, settings, sources=sources, loop=layers.loop)
    if out is not None and done.key is not None:
        save_fitted(done, chosen, out, command())
    _show(chosen, done, as_json)


def _only_task(
    folder: Path, recipe: str | None, boundary: str | None, loop: str | None, device: str, text: list[Path] | None,
    compiled: bool,
) -> LanguageModel:  # fmt: skip
    """The model that learns from examples; InputError for what goes with recipes alone."""
    for given, what in ((recipe is not None, f"recipe {recipe!r}"), (text, "--text"), (compiled, "--compile")):
        if given:
            raise InputError(f"--task brings its own examples and takes no {what}")
    return LanguageModel(folder=folder, boundary=boundary, loop=loop, device=device)


@contextmanager
def _job(
    model: Path, name: str | None, updates: int | None, changes: list[str] | None, text: list[Path] | None, device: str,
    folder: Path, save_every: float, compiled: bool,
) -> Iterator[tuple[Recipe, list[Source] | None, Store, Settings]]:  # fmt: skip
    """What a job is made from, checked before anything is written, with a display for as long as it runs."""
    from loopscope.studies.language.recipes import recipe
    from loopscope.training.lm.processes import several

    several()  # InputError where the environment says something odd
    store = store_to_be(folder)
    asked = [*(changes or ()), *([] if updates is None else [f"updates={updates}"])]
    names = [change.partition("=")[0] for change in asked]
    for each in names:
        if names.count(each) > 1:
            raise InputError(f"the recipe's {each!r} is set twice; give it once")
    assert name is not None  # refused before
    chosen = recipe(name, asked)
    with at_work(model, text, device, save_every, compiled) as (sources, settings, _):
        yield chosen, sources, store, settings


@contextmanager
def at_work(
    folder: Path, text: list[Path] | None, device: str, save_every: float, compiled: bool
) -> Iterator[tuple[list[Source] | None, Settings, Display]]:
    """General text, how jobs are run, and the display that shows them."""
    quiet_transformers()
    from loopscope.tasks.general_text import read
    from loopscope.training.lm.jobs import Settings

    sources = None if text is None else [read(text)]
    choose_threads(weights_in(folder))
    with training.at_work(device, save_every) as (shown, how):
        yield sources, Settings(**how, compiled=compiled, log=note), shown


def _show(recipe: Recipe, done: Finished, as_json: bool) -> None:
    from loopscope.training.lm.processes import speaks

    if not speaks():
        return
    if as_json:
        return print_json(tuning_json(recipe, done))
    print_tuning(recipe, done)


def tuning_json(recipe: Recipe, done: Finished) -> dict[str, Any]:
    """A finished stage, for --json."""
    return {
        "recipe": recipe.to_dict(), "folder": str(done.folder), "key": done.key, "updates": done.updates,
        "tokens": done.tokens, "seconds": done.seconds, "history": list(done.history),
    }  # fmt: skip


def print_tuning(recipe: Recipe, done: Finished) -> None:
    """A finished stage: the checks on its way."""
    checks = [row for row in done.history if "accuracy" in row]
    cells = list(checks[-1]["accuracy"])
    speed = f"{done.tokens / max(done.seconds, 1e-9):,.0f} tokens/s"
    print_table(
        f"{done.folder}: {recipe.name}, {done.updates:,} updates in {done.seconds:.1f} s, {speed}; % right by depth",
        ("update", "loss", "general text", *cells),
        (
            (f"{row['update']:,}", f"{row['loss']:.4f}" if row.get("loss") is not None else "-",
             f"{row['nll']['mixed']:.4f}", *(f"{100 * row['accuracy'][cell]:.1f}" for cell in cells))
            for row in checks
        ),
        left=0,
    )  # fmt: skip
