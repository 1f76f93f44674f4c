"""A task of one's own on a language model: fit a map to it, fine-tune on it, compare programs on it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import whole
from loopscope.cli import training
from loopscope.cli.app import AsJson, note, print_json, print_table, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import lm_app, quiet_transformers
from loopscope.cli.options import AnyMap, Chat, LanguageModel, bundled, map_named
from loopscope.cli.stores import store_to_be
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.errors import InputError

if TYPE_CHECKING:
    import torch

    from loopscope.measure.side_by_side import SideBySide
    from loopscope.models.with_maps import ModelWithMaps
    from loopscope.program import Program
    from loopscope.store.store import Store
    from loopscope.tasks.examples import Examples, Split
    from loopscope.training.job import Settings
    from loopscope.training.lm.learned import Overlap

MAPS = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="[NAME=]FOLDER", help="A saved map J, or its zoo name (repeatable)."),
]


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Which examples are held out."""

    held_out: Annotated[
        Path | None, typer.Option(help="A file of examples that are held out; default: some of --task.")
    ] = None
    split_field: Annotated[
        str | None, typer.Option(help="The key that says train or test; default: `split`, where there is one.")
    ] = None
    split_by: Annotated[
        str | None, typer.Option(help="The key by whose hash some are held out; default: the cluster, else the prompt.")
    ] = None
    share: Annotated[
        float | None, typer.Option("--held-out-share", help="The share that is held out by a hash; default: 0.2.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class TaskOptions(HeldOut):
    """Examples to learn from in place of a recipe's task, and the program that learns."""

    task: Annotated[
        Path | None, typer.Option(help="In place of a recipe: a JSONL file of examples, or a dataset on disk.")
    ] = None
    program: Annotated[str | None, typer.Option(help='With --task: such as "F J:mine F J:mine F".')] = None
    chat: Chat = False
    maps: MAPS = None
    any_map: AnyMap = False

    def refuse_for_recipes(self, recipe: str | None) -> None:
        """InputError unless there is a recipe and none of these options."""
        if recipe is None:
            raise InputError("what is to be learned? give a RECIPE (`loopscope lm recipes` lists them) or --task FILE")
        options = {"program": self.program, "map": self.maps, "held-out": self.held_out, "chat": self.chat or None,
                   "split-field": self.split_field, "split-by": self.split_by,
                   "held-out-share": self.share}  # fmt: skip
        if given := [name for name, value in options.items() if value is not None]:
            raise InputError(f"--{given[0]} goes with --task FILE, not with recipe {recipe!r}")


@dataclass(frozen=True, kw_only=True)
class MapOptions(TaskOptions):
    """The same for a map that is fitted."""

    family: Annotated[
        str | None, typer.Option(help="With --task: dense (default), diagonal-low-rank or residual-low-rank.")
    ] = None
    rank: Annotated[int | None, typer.Option(help="With --task: the rank of a low-rank map; default: 8.")] = None
    push: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="With --task and --out: upload the map to the hub as well.")
    ] = None


# ---- what commands are made from -------------------------------------------------------------------------------------


def split_of(task: Path, asked: HeldOut, learned: bool = True) -> Split:
    """Examples, and which of them are held out; `learned`: the others are learned from, so there must be some."""
    from loopscope.tasks.examples import examples, split

    other = None if asked.held_out is None else examples(asked.held_out)
    return split(examples(task), other, field=asked.split_field, by=asked.split_by, share=asked.share,
                 learned=learned)  # fmt: skip


def model_with_maps(
    asked: LanguageModel, maps: Iterable[str] | None, any_map: bool, programs: list[Program], chat: bool,
    dtype: torch.dtype, fitted: bool = False,
) -> ModelWithMaps:  # fmt: skip
    """The model and maps that options name; `fitted`: one more map may be missing, which is to be fitted."""
    from loopscope.models.with_maps import load_with_maps

    found = map_folders(maps, programs)
    choose_threads(weights_in(asked.folder))
    return load_with_maps(
        asked.folder, programs, found, boundary=asked.ending, loop=asked.loop, device=asked.place, dtype=dtype,
        any_map=any_map, chat=chat, missing=int(fitted),
    )  # fmt: skip


def map_folders(maps: Iterable[str] | None, programs: list[Program]) -> dict[str, Path]:
    """The folders of the maps that options name, by what programs call them."""
    from loopscope.models.with_maps import names_of, places_of

    return {name: map_named(Path(place)) for name, place in places_of(maps or (), names_of(programs)).items()}


def overlaps(folder: Path, maps: Mapping[str, Path], asked: Examples) -> list[Overlap]:
    """How many of these examples a model and its maps have learned, for each of them that learned from examples."""
    from loopscope.training.lm.learned import overlap_of_map, overlap_of_model

    found = [overlap_of_model(folder, asked), *(overlap_of_map(name, each, asked) for name, each in maps.items())]
    return [each for each in found if each is not None]


def tell(found: Iterable[Overlap]) -> None:
    """A line for each that has learned from examples which were asked, or may have."""
    for each in found:
        if not each.clear:
            prose(f"{each.text}.")


def shared(found: Iterable[Overlap]) -> dict[str, int | None]:
    """For a report: of how many examples asked each has learned; None where it does not say."""
    return {each.who: each.shared for each in found}


# ---- fit and finetune ------------------------------------------------------------------------------------------------


def fit_task(
    asked: MapOptions, model: LanguageModel, out: Path | None, changes: list[str] | None, updates: int | None,
    store: Path, save_every: float, as_json: bool,
) -> None:  # fmt: skip
    """`lm fit` with examples: everything is checked, then a map is fitted, measured and saved."""
    quiet_transformers()
    from loopscope.measure.side_by_side import statement
    from loopscope.models import upload
    from loopscope.program import Program
    from loopscope.training.lm.task_jobs import fit_map
    from loopscope.training.lm.task_recipe import settings_in

    if asked.task is None or asked.program is None:
        raise InputError('--task needs --program, such as "F J:mine F J:mine F"')
    program, values = Program.parse(asked.program), _values(asked, changes, updates, settings_in)
    if asked.push is not None and out is None:
        raise InputError("--push uploads the folder of --out; give one")
    sent = None if asked.push is None else upload.target(asked.push)
    if asked.family is not None and "family" in values:
        raise InputError("the family is set twice; give it once")
    values |= {} if asked.rank is None else {"rank": whole("--rank", asked.rank, 1, 2**20)}
    family, data = asked.family or values.pop("family", "dense"), split_of(asked.task, asked)
    with _at_work(model, asked, [program], store, save_every, fitted=True) as (given, target, settings, doing):
        done = fit_map(
            given.model, data, program, map=family, tokenizer=given.tokenizer, maps=given.maps, folder=given.folder,
            store=target, settings=settings, log=doing, **values,
        )  # fmt: skip
    known = overlaps(model.folder, map_folders(asked.maps, [program]), data.held_out)
    if out is not None:
        done.save(out, command())
    address = None if sent is None or out is None else upload.push(out, sent)
    if as_json:
        return print_json(
            {"out": None if out is None else str(out), "hub": address, "learned": shared(known), **done.to_dict()}
        )
    _print_right(f"J:{done.recipe.fitted} in {program}, {done.updates:,} updates", done.measured)
    for sentence in statement(done.measured):
        prose(sentence)
    tell(known)
    say(f"kept in {target.root} as {(done.key or '')[:16]}" if out is None else f"saved: {out}")
    if address is not None:
        say(f"uploaded: {address}")


def finetune_task(
    asked: TaskOptions, model: LanguageModel, out: Path, changes: list[str] | None, updates: int | None, store: Path,
    save_every: float, as_json: bool,
) -> None:  # fmt: skip
    """`lm finetune` with examples."""
    quiet_transformers()
    from loopscope.models.folders import outline
    from loopscope.program import Program
    from loopscope.training.lm.task_jobs import finetune_on
    from loopscope.training.lm.task_recipe import settings_in

    assert asked.task is not None
    shape = outline(model.folder, boundary=model.ending, loop=model.loop)
    program = shape.program() if asked.program is None else Program.parse(asked.program)
    values, data = _values(asked, changes, updates, settings_in), split_of(asked.task, asked)
    with _at_work(model, asked, [program], store, save_every) as (given, target, settings, doing):
        if given.tokenizer is None:
            raise InputError(f"{model.folder} has no tokenizer, so that a fine-tuned model could be given no text")
        done = finetune_on(
            given.model, given.folder, data, out, target, program=program, tokenizer=given.tokenizer, maps=given.maps,
            settings=settings, log=doing, **values,
        )  # fmt: skip
    known = overlaps(model.folder, map_folders(asked.maps, [program]), data.held_out)
    if as_json:
        return print_json({"learned": shared(known), **done.to_dict()})
    _print_right(f"{out}: {program}, {done.finished.updates:,} updates", done.measured)
    tell(known)


def _values(asked: TaskOptions, changes: list[str] | None, updates: int | None, read: Any) -> dict[str, Any]:
    """Settings by name: those of --set, --updates and --chat."""
    values: dict[str, Any] = read([*(changes or ()), *([] if updates is None else [f"updates={updates}"])])
    return values | ({"chat": True} if asked.chat else {})


@contextmanager
def _at_work(
    model: LanguageModel, asked: TaskOptions, programs: list[Program], store: Path, save_every: float,
    fitted: bool = False,
) -> Iterator[tuple[ModelWithMaps, Store, Settings, Any]]:  # fmt: skip
    """The model and what it is trained with, and a display for as long as that takes."""
    import torch

    from loopscope.training.job import Settings

    target = store_to_be(store)
    with training.at_work(model.device, save_every) as (shown, how):
        shown.log("loading")
        given = model_with_maps(model, asked.maps, asked.any_map, programs, asked.chat, torch.float32, fitted)
        shown.log("preparing")
        yield given, target, Settings(**how, log=note), shown.log


def command() -> str:
    """The command that is being run, for a model card."""
    return shlex.join(["loopscope", *sys.argv[1:]])


# ---- evaluate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evaluated(LanguageModel, HeldOut):
    """A language model that answers a task by several programs."""

    maps: MAPS = None
    any_map: AnyMap = False
    chat: Chat = False
    end: Annotated[
        str | None, typer.Option(help="Outside chats, what must follow the answer: a text, or eos for the end.")
    ] = None
    every: Annotated[bool, typer.Option("--all", help="Ask all examples, not those held out alone.")] = False
    batch: Annotated[int, typer.Option(help="Examples at a time.")] = 32
    as_json: AsJson = False


@lm_app.command("evaluate")
@bundled
def lm_evaluate(
    asked: Evaluated,
    task: Annotated[Path, typer.Option(help="A JSONL file of examples, or a dataset on disk.")],
    program: Annotated[
        list[str] | None, typer.Option(help="A program (repeatable); default: the model's loops.")
    ] = None,
) -> None:
    """Which whole answers of a task are right under which program: side by side, with paired intervals.

    Answers are those of greedy decoding; patches act on the prompt alone. Differences are from the first program.
    Outside chats a continuation that begins with the answer is right, unless --end says what must follow.
    """
    quiet_transformers()
    from loopscope.measure.answers import encode
    from loopscope.measure.side_by_side import side_by_side
    from loopscope.models.folders import outline
    from loopscope.program import Program
    from loopscope.tasks.examples import examples

    whole("--batch", asked.batch, 1, 2**20)
    shape = outline(asked.folder, boundary=asked.ending, loop=asked.loop)
    programs = [Program.parse(each) for each in program or ()] or [shape.program()]
    if asked.every:
        found, how = examples(task), "all {:,} examples"
    else:
        data = split_of(task, asked, learned=False)
        found, how = data.held_out, f"{{:,}} examples held out, {data.how}"
    known = overlaps(asked.folder, map_folders(asked.maps, programs), found)
    how = (how if all(each.clear for each in known) else how.replace(" held out", "")).format(len(found))
    with spinner() as log:
        log("loading")
        given = model_with_maps(asked, asked.maps, asked.any_map, programs, asked.chat, asked.precision)
        items = encode(
            found, given.tokenizer, chat=asked.chat, positions=given.model.positions, end=ends_of(given, asked.end)
        )
        measured = side_by_side(given.model, items, programs, maps=given.maps, batch=asked.batch, log=log)
    if asked.as_json:
        return print_json({
            "folder": str(asked.folder), "task": found.name, "sha256": found.digest, "how": how, "dtype": asked.dtype,
            "end": "turn" if asked.chat else asked.end, "learned": shared(known),
            "maps": {name: each.notes for name, each in given.provenance.items()},
            **measured.to_dict(),
        })  # fmt: skip
    _print_right(f"{asked.folder} on {found.name}: {how}", measured)
    tell(known)
    prose(_right_if(asked.chat, asked.end))
    if any(each != each.skeleton for each in programs):
        prose("Patches act on the rows of the prompt alone.")
    differences = measured.differences()
    if differences.rows:
        first = measured.conditions[0].name
        print_table(
            f"Less {first}, in points", ("program", "points", "interval", "n"),
            ((row.at["condition"], *_numbers(row, signed=True)) for row in differences.rows),
        )  # fmt: skip
    for name, each in given.provenance.items():
        prose(f"J:{name}: {each.text}")


END = "eos"
"""What `--end` calls the tokens that end a text of a model."""


def ends_of(given: ModelWithMaps, end: str | None) -> str | Collection[int] | None:
    """What must follow an answer; InputError for the end of a text where a model has no token for it."""
    if end == END and not given.model.ends:
        raise InputError(f"{given.folder} has no token that ends a text (nearest: --end with a text)")
    return given.model.ends if end == END else end


def _right_if(chat: bool, end: str | None) -> str:
    """When an answer counts, in a sentence."""
    if chat:
        return "An answer is right if it is the whole turn."
    if end is None:
        return "An answer is right if the continuation begins with it; what follows is not asked (--end eos)."
    return f"An answer is right if {'the end of the text' if end == END else repr(end)} follows it."


def _print_right(title: str, measured: SideBySide) -> None:
    """Shares of right answers, a line for each program; and by steps, where examples have several numbers of them."""
    table = measured.right()
    rows = [row for row in table.rows if "steps" not in row.at]
    named = any(row.label != row.at["program"] for row in rows)
    columns = ("", "program") if named else ("program",)
    print_table(
        title, (*columns, "right %", "interval", "n"),
        ((row.label, *([row.at["program"]] if named else []), *_numbers(row)) for row in rows), left=len(columns),
    )  # fmt: skip
    if len(measured.steps) > 1:
        by_steps = sorted((row for row in table.rows if "steps" in row.at), key=lambda row: row.at["steps"])
        print_table(
            "By steps", ("steps", *columns[:1], "right %", "interval", "n"),
            ((row.at["steps"], row.label, *_numbers(row)) for row in by_steps), left=2,
        )  # fmt: skip
    prose(table.note)


def _numbers(row: Any, signed: bool = False) -> tuple[str, str, str]:
    each, sign = row.estimate, "+" if signed else ""
    return f"{100 * each.value:{sign}.1f}", f"{100 * each.low:{sign}.1f}..{100 * each.high:{sign}.1f}", f"{row.n:,}"
