"""Fit a map to examples of one's own, or fine-tune a model on them: checked first, resumable, measured at the end.

    fitted = fit_map(model, "chains.jsonl", "F J:mine F J:mine F", tokenizer=tokenizer, updates=300)
    print(*fitted.statement, sep="\n")
    fitted.save("mine")

It is the job shell and the trainer of every recipe (`training.job`, `trainer.Tuner`); what is learned from is another.
A finished fit is an artefact of the store, found again by recipe, examples and model; so is what an interrupted one
goes on from.
"""

from __future__ import annotations

import copy
import hashlib
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.maps import AffineMap, load_map, map_files, map_key
from loopscope.measure.answers import Item, check_maps, encode
from loopscope.measure.side_by_side import controls, side_by_side
from loopscope.models.folders import Adapter, check_unchanged, read_looped
from loopscope.models.hub import origin_of
from loopscope.models.identity import identify
from loopscope.models.text import Tokenizer
from loopscope.pieces import pieces_of
from loopscope.program import Program, Step, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of
from loopscope.store.artefacts import IDENTITY, WEIGHTS_SHA
from loopscope.store.manifest import digest, read_json
from loopscope.store.store import Store
from loopscope.tasks.examples import Example, Examples, Split, examples, split
from loopscope.training import job
from loopscope.training.lm.jobs import HISTORY, KEPT_HISTORY, finished_of, trained_folder
from loopscope.training.lm.learned import LEARNED, listed
from loopscope.training.lm.memory import plan
from loopscope.training.lm.processes import Processes, several
from loopscope.training.lm.task_data import TaskChecks, TaskData, TaskLoss
from loopscope.training.lm.task_recipe import TaskRecipe, fitted_name, with_settings
from loopscope.training.lm.task_results import FittedMap, Tuned, about_examples
from loopscope.training.lm.trainer import Tuner

KIND = "task-map"
"""What maps that were fitted to examples are called in a store."""

Task = Examples | Split | str | Path | Iterable[Mapping[str, Any] | Example]
"""What a task may be given as: examples, apart already or not, a file or dataset on disk, mappings in Python."""


@dataclass(frozen=True)
class Progress(job.Progress):
    """Where a job is: the last loss, and the share of watched answers that the last check had right."""

    loss: float | None
    accuracy: float | None

    def __str__(self) -> str:
        loss = "-" if self.loss is None else f"{self.loss:.4f}"
        return f"loss {loss}  right {'-' if self.accuracy is None else f'{self.accuracy:.0%}'}"


def apart(task: Task) -> Split:
    """A task as examples to learn from and examples held out; errors as `tasks.examples`."""
    if isinstance(task, Split):
        return task
    return split(task if isinstance(task, Examples) else examples(task))


@dataclass(frozen=True)
class _Prepared:
    """All that a job is made from, checked before anything is written."""

    model: LoopedModel
    recipe: TaskRecipe
    data: Split
    train: list[Item]
    watched: list[Item]
    held_out: list[Item]
    step: AffineMap | None
    given: Mapping[str, TokenMap]
    inputs: dict[str, str]
    about: dict[str, Any]
    device: torch.device

    @property
    def config(self) -> dict[str, Any]:
        """What an artefact is made by."""
        shown = {name: self.data.__dict__[name].digest for name in ("train", "watched")}
        tokens = [(item.prompt, item.answer) for item in (*self.train, *self.watched)]
        start = {} if self.step is None else {"start": map_key(self.step)}
        given = {"given": {name: _map_key(name, each) for name, each in self.given.items()}} if self.given else {}
        text = hashlib.sha256(repr(tokens).encode()).hexdigest()
        made = {"recipe": self.recipe.to_dict(), "examples": shown, "text": text, **start, **given}
        return made | {name: self.about[name] for name in ("boundary", "loop") if name in self.about}

    @property
    def identity(self) -> dict[str, Any]:
        """What its checkpoints are known by."""
        return {"kind": f"{KIND} {self.recipe.trains}", **self.config, **self.inputs, "device": self.device.type}

    def trainer(self, recompute: bool) -> Tuner:
        """The trainer at its beginning; the model's parameters are asked for gradients where they are trained."""
        if isinstance(self.model, nn.Module):
            self.model.requires_grad_(self.step is None)
            for parameter in getattr(self.model, "unread", ()):
                parameter.requires_grad_(False)
        step = None if self.step is None else copy.deepcopy(self.step).to(self.device).requires_grad_(True)
        loss = TaskLoss(self.model, self.recipe, step, self.given)
        loss.recompute = recompute
        data = TaskData(self.recipe, self.model, self.train)
        return Tuner(self.recipe, loss, data, TaskChecks(self.recipe, self.watched), Processes(0, 1, self.device))


def _map_key(name: str, given: TokenMap) -> str:
    inner = getattr(given, "steering_map", given)
    if not isinstance(inner, AffineMap):
        raise InputError(f"map {name!r} is none of this library's, so a fit beside it could not be found again")
    return map_key(inner)


def fit_map(
    model: LoopedModel,
    task: Task,
    program: Program | Step | str,
    *,
    map: str | AffineMap = "dense",
    rank: int | None = None,
    tokenizer: Tokenizer | None = None,
    maps: Mapping[str, TokenMap] | None = None,
    folder: str | Path | None = None,
    store: Store | None = None,
    settings: job.Settings | None = None,
    log: Log = silent,
    **changes: Any,
) -> FittedMap:
    """Fit the map that a program names to examples, the model frozen, and measure it on examples held out.

    - `task` is examples (`tasks.examples`), or a `Split` of them; texts take the model's `tokenizer`.
    - `program` says where the map stands: "F J:mine F J:mine F".  `maps` are its other maps, which stay as they are.
    - `map` is a family ("dense", "diagonal-low-rank", "residual-low-rank", of a `rank`), or a map to begin with.
    - `changes` are settings of the recipe: updates, rate, examples, supervision="per-loop", chat=True, ...
    - `folder` is where a language model was loaded from: the saved map then says what it belongs to.
    - `log` gets a line after every check and for what is being measured: `log=print`.
    - `settings` say how the job is run (`training.job`), and where lines about checks go instead.
    - `store` keeps checkpoints and the finished map, so that the same call goes on or finds it; without one, nothing
      is kept.

    Raises InputError before anything is written where something does not fit, NotFiniteError when training leaves the
    numbers, StoreError when the disk is full.
    """
    asked, given = as_program(program), dict(maps or {})
    check_maps([asked], {**given, fitted_name(asked, given): _same})
    values = dict(changes)
    values |= {"family": map} if isinstance(map, str) else {"family": map.family}
    values |= {} if rank is None else {"rank": rank}
    recipe = with_settings(TaskRecipe(program=asked, fitted=fitted_name(asked, given)), values)
    made = map if isinstance(map, AffineMap) else recipe.new_map(pieces_of(model).state_width)
    if made.width != pieces_of(model).state_width:
        raise InputError(f"a map of width {made.width} does not fit states of width {pieces_of(model).state_width}")
    prepared = _prepared(model, task, recipe, tokenizer, made, given, folder, needs_key=store is not None)
    if settings is None:
        settings = job.Settings(prepared.device, log=log)
    with ExitStack() as stack:
        for each in model.parameters() if isinstance(model, nn.Module) else ():
            stack.callback(each.requires_grad_, each.requires_grad)  # frozen for the fit alone
        place = store or Store(stack.enter_context(tempfile.TemporaryDirectory(prefix="loopscope-")))
        return _Fitting(prepared, place, settings, kept=store is not None, log=log).run()


def _same(h: Tensor) -> Tensor:
    return h


def _prepared(
    model: LoopedModel, task: Task, recipe: TaskRecipe, tokenizer: Tokenizer | None, step: AffineMap | None,
    given: Mapping[str, TokenMap], folder: str | Path | None, needs_key: bool,
) -> _Prepared:  # fmt: skip
    if several():
        raise InputError("examples are learned from in one process (nearest: without accelerate launch or torchrun)")
    data = apart(task)
    steps = [each for part in (data.train, data.watched) for each in part.steps]
    recipe = replace(recipe, deepest=max(steps, default=1))
    limit = getattr(model, "positions", None)
    positions = limit if isinstance(limit, int) else None
    train, watched, held_out = (
        encode(part, tokenizer, chat=recipe.chat, positions=positions)
        for part in (data.train, data.watched, data.held_out)
    )
    about: dict[str, Any] = {"recipe": recipe.to_dict(), "examples": about_examples(data)}
    if folder is not None:
        source = identify(folder)
        inputs = {WEIGHTS_SHA: source.weights, IDENTITY: source.key}
        loop = getattr(model, "loop", None)
        about |= {WEIGHTS_SHA: source.weights, IDENTITY: source.to_dict(), "boundary": getattr(model, "boundary", None)}
        about |= {**({} if loop is None else {"loop": loop}), **origin_of(folder)}
    else:
        inputs = {WEIGHTS_SHA: fingerprint(model)} if needs_key else {}
    prepared = _Prepared(
        model,
        recipe,
        data,
        train,
        watched,
        held_out,
        step,
        given,
        inputs,
        about,
        device_of(model) or torch.device("cpu"),
    )
    TaskData(recipe, model, prepared.train)(0)  # refuses what could not be learned
    return prepared


def fingerprint(model: LoopedModel) -> str:
    """SHA-256 of a model's kind, parameters and buffers; InputError for one that is no torch module."""
    if not isinstance(model, nn.Module):
        raise InputError("a fit to this model could not be found again: it is no torch module (leave out store=)")
    summed = hashlib.sha256(f"{type(model).__qualname__} {model.extra_repr()}".encode())
    for name, each in sorted(model.state_dict().items()):
        summed.update(f"{name} {each.dtype} {list(each.shape)}".encode())
        summed.update(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return summed.hexdigest()


class _Job(job.Job[Tuner, Any]):
    """What fitting and fine-tuning on examples have in common."""

    def __init__(self, given: _Prepared, store: Store, settings: job.Settings, log: Log) -> None:
        super().__init__(store, settings)
        self.given, self.identity, self.log, self.recompute = given, given.identity, log, False
        self.smaller = (
            f"{given.recipe.name} does not fit the GPU's memory with passes of {given.recipe.micro}; "
            f"smaller ones take less (micro={max(1, given.recipe.micro // 2)})"
        )

    def check(self) -> None:
        given = self.given
        if isinstance(given.model, Adapter):
            passes = TaskData(given.recipe, given.model, given.train)(0)
            self.recompute = plan(given.model, given.step, given.recipe, passes, device=given.device).recompute

    def start(self) -> Tuner:
        return self.given.trainer(self.recompute)

    def window(self, trainer: Tuner) -> Progress:
        recipe, history = self.given.recipe, trainer.history
        checks = [row["accuracy"] for row in history if "accuracy" in row]
        right = sum(checks[-1].values()) / len(checks[-1]) if checks else None
        if "accuracy" in history[-1]:
            cells = history[-1]["accuracy"]
            rest = "of all" if len(cells) == 1 else "where no steps are given"
            right_by = ", ".join(
                f"{share:.0%} {rest if name == 'all' else f'at {name} steps'}" for name, share in cells.items()
            )
            self.settings.log(f"update {trainer.update:,}: whole answers right: {right_by}")
        return Progress(recipe.name, "", trainer.update, recipe.updates, history[-1].get("loss"), right)


class _Fitting(_Job):
    """A map is fitted to the frozen model, and measured."""

    def __init__(self, given: _Prepared, store: Store, settings: job.Settings, *, kept: bool, log: Log) -> None:
        super().__init__(given, store, settings, log)
        self.kept = kept

    def finished(self) -> FittedMap | None:
        there = self.store.find(KIND, self.given.config, self.given.inputs)
        if there is None:
            return None
        return self._measured(load_map(there.folder), there.json(KEPT_HISTORY), there.key)

    def write(self, trainer: Tuner) -> FittedMap:
        given, made = self.given, trainer.objective.step
        assert made is not None
        made = made.requires_grad_(False).cpu()
        if given.recipe.saved == "fp16":
            made = made.half()
        result = {"updates": trainer.update, "history": trainer.history, "seconds": trainer.seconds}
        with self.store.write(KIND, given.config, given.inputs, device=given.device) as draft:
            for name, data in map_files(made).items():
                draft.bytes(name, data)
            draft.json(KEPT_HISTORY, result)
        return self._measured(made, result, draft.artefact.key)

    def _measured(self, made: AffineMap, result: Mapping[str, Any], key: str) -> FittedMap:
        given, recipe = self.given, self.given.recipe
        placed = copy.deepcopy(made).to(given.device).requires_grad_(False)

        def step(h: Tensor) -> Tensor:
            return placed(h.to(placed.b.dtype)).to(h.dtype)

        found = controls(
            given.model, given.held_out, recipe.program, recipe.fitted, maps={**given.given, recipe.fitted: step},
            batch=recipe.micro, log=self.log,
        )  # fmt: skip
        hub = given.about.get("hub", {})
        base = {"base_model_name_or_path": hub.get("name"), "revision": hub.get("commit")} if hub else {}
        return FittedMap(
            made, recipe, given.data, found, result["history"], result["updates"], result["seconds"],
            {**given.about, "measured": found.to_dict()}, key if self.kept else None, base,
        )  # fmt: skip


# ---- all weights -----------------------------------------------------------------------------------------------------


def finetune_on(
    model: Adapter,
    folder: str | Path,
    task: Task,
    out: str | Path,
    store: Store,
    *,
    program: Program | Step | str | None = None,
    tokenizer: Tokenizer,
    maps: Mapping[str, TokenMap] | None = None,
    settings: job.Settings,
    log: Log = silent,
    **changes: Any,
) -> Tuned:
    """Train all weights of the model in a folder on examples, by default in its own loops, and write the folder `out`.

    An `out` that this call has written before is looked up.  Other arguments and errors as of `fit_map`.
    """
    asked = model.program() if program is None else as_program(program)
    check_maps([asked], maps or {})
    recipe = TaskRecipe(trains="weights", program=asked, rate=1e-4, saved="bf16")
    prepared = _prepared(
        model, task, with_settings(recipe, changes), tokenizer, None, maps or {}, folder, needs_key=True
    )
    return _Tuning(prepared, Path(folder), Path(out), store, settings, log).run()


class _Tuning(_Job):
    """All weights are trained, and written as a model folder."""

    def __init__(
        self, given: _Prepared, folder: Path, out: Path, store: Store, settings: job.Settings, log: Log
    ) -> None:
        super().__init__(given, store, settings, log)
        self.folder, self.out = folder, out

    def finished(self) -> Tuned | None:
        out = self.out
        if not (out.exists() or out.is_symlink()):
            return None
        if not out.is_dir() or read_looped(out).get("job") != digest(self.identity):
            raise InputError(f"{out} exists already; give a folder that does not")
        check_unchanged(out)
        result = read_json(out / HISTORY)
        from loopscope.models.folders import load

        model = load(out, device=self.given.device, dtype=torch.float32)
        return self._measured(model, result)

    def write(self, trainer: Tuner) -> Tuned:
        given, model = self.given, self.given.model
        assert isinstance(model, Adapter)
        part = {} if model.loop is None else {"loop": model.loop}
        about = {
            "loops": given.recipe.loops, "boundary": model.boundary, **part, "job": digest(self.identity),
            "from": given.inputs[WEIGHTS_SHA], "recipe": given.recipe.to_dict(), "updates": trainer.update,
            **origin_of(self.folder),
        }  # fmt: skip
        result = {"updates": trainer.update, "history": trainer.history, "tokens": trainer.tokens,
                  "seconds": trainer.seconds}  # fmt: skip
        weights = {name.removeprefix("model."): each for name, each in trainer.weights.items()}
        learned = {LEARNED: listed(given.data.train, self.folder)}
        trained_folder(self.out, self.folder, weights, given.recipe.saved, about, result, learned)
        return self._measured(model.requires_grad_(False), result)

    def _measured(self, model: LoopedModel, result: Mapping[str, Any]) -> Tuned:
        given = self.given
        found = side_by_side(
            model, given.held_out, [given.recipe.program], maps=given.given, batch=given.recipe.micro, log=self.log
        )
        return Tuned(finished_of(self.out, None, result), given.recipe, given.data, found)
