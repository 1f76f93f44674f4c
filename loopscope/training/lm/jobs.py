"""Fine-tune a model folder, or fit a map to one: find what is finished, go on with what is begun, write what is new.

A fine-tuned model is an ordinary model folder with its tokenizer; `loopscope.json` in it says how it is looped and
where it comes from, `history.json` how training went.  The same goes into the store, as an artefact that can be kept
where the weights are too large to be.  A fitted map is an artefact of the store, in the form of every saved map, which
names the model it was fitted to: its weights and its identity.  Each appears whole or not at all.  Checkpoints are
artefacts of the store too; the same call goes on from the last one.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.log import Log, silent
from loopscope.maps import AffineMap, load_map, make_map, map_files, save_map
from loopscope.models.checksums import SUMS
from loopscope.models.folders import (
    CONFIG,
    LOOPED,
    PICKLES,
    Adapter,
    check_unchanged,
    load,
    outline,
    read_config,
    read_looped,
    tensors_of,
    weights_sha256,
    write_folder,
)
from loopscope.models.hub import origin_of
from loopscope.models.identity import Identity, identify
from loopscope.models.padding import check_learnable
from loopscope.models.passes import PRECISIONS, Boundary
from loopscope.models.steering import FITTED
from loopscope.models.text import TOKENIZER, Tokenizer, load_tokenizer
from loopscope.pieces import pieces_of
from loopscope.store.artefacts import IDENTITY, LM_MAP, WEIGHTS_SHA
from loopscope.store.files import read, remove_dead_drafts
from loopscope.store.manifest import MANIFEST, canonical, digest, read_json
from loopscope.store.store import Store
from loopscope.tasks.general_text import Pool, Source, built_in, pool
from loopscope.training import job
from loopscope.training.lm.batches import Data, Unit
from loopscope.training.lm.cards import recipe_card
from loopscope.training.lm.checks import Checks
from loopscope.training.lm.memory import Memory, plan
from loopscope.training.lm.objective import Objective, narrow_products
from loopscope.training.lm.processes import Processes, join
from loopscope.training.lm.recipe import Recipe
from loopscope.training.lm.trainer import Tuner, answers_since

KIND = LM_MAP
"""What fitted maps of language models are called in a store."""

TRAINING = "lm-training"
"""How a model was trained, by a recipe, from weights ("weights") to weights ("made"), both named by their SHA-256.
The identity of the model that it began with is beside them."""

HISTORY, KEPT_HISTORY = "history.json", "history.json.xz"
"""How training went: in the folder of a model, and in a store."""

LOOKED_AT = 512
"""Rows in which it is looked whether one sees a later one, which would give every answer away."""


@dataclass(frozen=True)
class Progress(job.Progress):
    """Where a job is: the last loss of the task, the mean accuracy of the last check, tokens per second.

    `begun` is, by depth, the share of answers that began right in the updates since the last report, after the fewest
    loops that they are given after.
    """

    loss: float | None
    accuracy: float
    begun: Mapping[str, float]
    tokens_per_second: float

    def __str__(self) -> str:
        loss = "-" if self.loss is None else f"{self.loss:.4f}"
        begun = " ".join(f"{depth}:{share:.0%}" for depth, share in self.begun.items())
        right = f"begun right {begun or '-'}  right {self.accuracy:.0%}"
        return f"loss {loss}  {right}  {self.tokens_per_second:,.0f} tokens/s"


@dataclass(frozen=True)
class Settings(job.Settings):
    """How a job is run; what comes out differs by rounding at most.

    `compiled`: layers are compiled first, which takes a minute, and passes are captured as CUDA graphs; on a GPU this
    makes updates of a small model several times faster.  `log` gets a line about memory before the first window, about
    what is learned after every check, and where depth grows.
    """

    save_every: float = 300.0
    log: Log = silent
    compiled: bool = False


@dataclass(frozen=True)
class Finished:
    """What came out: a model folder or a map's folder, and how it went.  `key` is that of a map."""

    folder: Path
    key: str | None
    updates: int
    history: Sequence[Mapping[str, Any]]
    tokens: int
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """All that a run is made from, checked before a weight is read; `identity` tells it from others."""

    folder: Path
    recipe: Recipe
    model: Adapter  # names and shapes alone
    source: Identity  # of the folder's model
    text: str
    tokenizer: Tokenizer
    pools: Sequence[Pool]
    data: Data
    passes: Sequence[Unit]  # of the first update, and of the last at the largest depth
    step: AffineMap | None
    processes: Processes

    @property
    def config(self) -> dict[str, Any]:
        """What a map's artefact is made by; the recipe may leave out the boundary, and knows no chosen layers."""
        part = {} if self.model.loop is None else {"loop": self.model.loop}
        return {"recipe": self.recipe.to_dict(), "boundary": self.model.boundary, **part, "text": self.text}

    @property
    def inputs(self) -> dict[str, str]:
        """What it is made from."""
        return {WEIGHTS_SHA: self.source.weights, IDENTITY: self.source.key}

    @property
    def memory(self) -> Memory:
        """What it takes on its device; InputError where that is more than there is."""
        processes = self.processes
        return plan(
            self.model, self.step, self.recipe, self.passes, device=processes.device, processes=processes.count
        )  # fmt: skip

    @property
    def identity(self) -> dict[str, Any]:
        """What its checkpoints are known by."""
        kind = {"weights": "finetune", "map": KIND}[self.recipe.trains]
        return {"kind": kind, **self.config, **self.inputs, "device": self.processes.device.type}


def finetune(
    folder: str | Path, recipe: Recipe, out: str | Path, store: Store, settings: Settings, *,
    sources: Sequence[Source] | None = None, boundary: Boundary | None = None, loop: str | None = None,
) -> Finished:  # fmt: skip
    """Train the model in a folder by a recipe and write the folder `out`; checkpoints are in the store meanwhile.

    `sources` are general text (default: what needs no download); `boundary` goes before the recipe's and the folder's,
    `loop` before the layers that the folder loops.
    An `out` that this call has written before is only looked up.  Raises InputError for a recipe of a map, another
    `out` that exists, a model or tokenizer that does not fit, and too little memory; NotFiniteError when training
    leaves the numbers; StoreError when the disk is full.
    """
    if recipe.trains != "weights":
        raise InputError(f"recipe {recipe.name!r} fits a map; `loopscope lm fit` does that")
    folder, out = Path(folder), Path(out)
    given = prepared(folder, recipe, settings, sources, boundary, loop)
    return _Finetuning(given, out, store, settings).run()


def fit(
    folder: str | Path, recipe: Recipe, store: Store, settings: Settings, *, sources: Sequence[Source] | None = None,
    loop: str | None = None,
) -> Finished:  # fmt: skip
    """Fit a map to the frozen model in a folder; it becomes an artefact of the store, and a finished one is looked up.

    `loop` are the layers that are looped (default: as the folder has it).

    Raises as `finetune`.
    """
    if recipe.trains != "map":
        raise InputError(f"recipe {recipe.name!r} trains a model; `loopscope lm finetune` does that")
    return _Fitting(prepared(Path(folder), recipe, settings, sources, None, loop), store, settings).run()


def save_fitted(done: Finished, recipe: Recipe, out: Path, command: str = "") -> None:
    """Save a copy of a fitted map in a new folder, with what it was fitted to and a model card; whole or not at all."""
    card = recipe_card(recipe, done, read_json(done.folder / FITTED), command)
    save_map(load_map(done.folder), out, {FITTED: read(done.folder / FITTED)}, card=card)


def new_map(recipe: Recipe, width: int) -> AffineMap:
    """The map that a recipe begins with, for states of this width (of a model with several stacks, all side by side);
    InputError for a rank that does not fit."""
    shape = {} if recipe.rank is None else {"rank": recipe.rank, "seed": recipe.init}
    try:
        return make_map(recipe.family, width=width, **shape)
    except TypeError:
        raise InputError(f"a {recipe.family} map takes {'no' if shape else 'a'} rank") from None


def prepared(
    folder: Path, recipe: Recipe, settings: Settings, sources: Sequence[Source] | None, boundary: Boundary | None,
    loop: str | None = None,
) -> Prepared:  # fmt: skip
    """What a job is made from; arguments as of `finetune`, and it raises the same."""
    model = outline(folder, loops=recipe.loops, boundary=boundary or recipe.boundary, loop=loop)
    check_learnable(pieces_of(model), min(model.positions, LOOKED_AT))
    tensors_of(model, folder)
    tokenizer = load_tokenizer(folder)
    step = new_map(recipe, pieces_of(model).state_width) if recipe.trains == "map" else None
    pools = [pool(source, lambda text: tokenizer.encode(text, special=False)) for source in sources or built_in()]
    data = Data(recipe, tokenizer, pools, vocabulary=model.vocabulary, positions=model.positions)
    ends = ((0, recipe.level_at(0)), (recipe.updates - 1, recipe.levels))
    passes = [unit for update, level in ends for unit in data(update, level)]
    return Prepared(
        folder, recipe, model, identify(folder), _text_digest(tokenizer, pools), tokenizer, pools, data, passes,
        step, join(settings.device),
    )  # fmt: skip


def tuner_of(job: Prepared, *, recompute: bool, compiled: bool, captured: bool = True) -> Tuner:
    """The trainer of a job, its weights loaded; `captured` says whether compiled passes are also captured."""
    loops, boundary, loop = job.model.loops, job.model.boundary, job.model.loop
    model = load(
        job.folder, loops=loops, boundary=boundary, loop=loop, device=job.processes.device, dtype=torch.float32
    )
    model.requires_grad_(job.step is None)
    if job.step is not None and job.processes.device.type == "cuda":
        narrow_products(model, torch.bfloat16)
    for parameter in model.unread:
        parameter.requires_grad_(False)
    step = None if job.step is None else job.step.to(job.processes.device)
    objective = Objective(model, step, job.recipe.placement)
    objective.recompute, objective.compiled = recompute, compiled
    if compiled:
        torch.compiler.reset()  # of a function few forms are kept compiled, and an earlier job's count
    checks = Checks(job.recipe, job.tokenizer, job.pools, job.processes)
    return Tuner(job.recipe, objective, job.data, checks, job.processes, captured)


class _Tuning(job.Job[Tuner, Finished]):
    """The job of a language model, in one process or several."""

    settings: Settings

    def __init__(self, given: Prepared, store: Store, settings: Settings) -> None:
        super().__init__(store, settings, given.processes)
        self.given, self.identity = given, given.identity
        self.smaller = (
            f"{given.recipe.name} does not fit the GPU's memory with passes of {given.recipe.micro}; "
            f"smaller ones take less (micro={max(1, given.recipe.micro // 2)})"
        )

    def check(self) -> None:
        self.memory = self.given.memory
        if self.group.first:
            self.settings.log(f"{self.given.recipe.name} takes about {self.memory}")

    def start(self) -> Tuner:
        return tuner_of(self.given, recompute=self.memory.recompute, compiled=self.settings.compiled)

    def window(self, trainer: Tuner) -> Progress:
        recipe, history, last = self.given.recipe, trainer.history, trainer.history[-1]
        if "grown" in last:
            depth, pace = recipe.depth_at(last["grown"]), recipe.pace_at(last["grown"])
            now = f"depth {depth}" if pace == 1 else f"{pace:g} steps a loop"
            self.settings.log(f"update {trainer.update:,}: {now} from here on")
        checks = [row for row in history if "accuracy" in row]
        if "accuracy" in last:
            since = _shares(answers_since(history, checks[-2]["update"]))
            begun = ", ".join(f"{share:.1%} at depth {depth}" for depth, share in since.items()) or "none"
            self.settings.log(f"update {trainer.update:,}: answers that began right since the last check: {begun}")
        accuracy = checks[-1]["accuracy"].values() if checks else ()
        return Progress(
            recipe.name, "", trainer.update, recipe.updates, last["loss"], sum(accuracy) / max(1, len(accuracy)),
            _shares(answers_since([last], 0)), trainer.tokens / max(trainer.seconds, 1e-9),
        )  # fmt: skip

    def write(self, trainer: Tuner) -> Finished:
        weights = trainer.weights  # all processes take part in gathering them
        result = {"updates": trainer.update, "history": trainer.history, "tokens": trainer.tokens,
                  "seconds": trainer.seconds}  # fmt: skip
        if self.group.first:
            return self.written(trainer, weights, result)
        return finished_of(self.given.folder, None, result)

    @abstractmethod
    def written(self, tuner: Tuner, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> Finished:
        """Write the outcome; `result` is how training went."""


class _Finetuning(_Tuning):
    """All weights are trained, and written as a model folder."""

    def __init__(self, given: Prepared, out: Path, store: Store, settings: Settings) -> None:
        super().__init__(given, store, settings)
        self.out = out

    def finished(self) -> Finished | None:
        out = self.out
        if not (out.exists() or out.is_symlink()):
            return None
        if not out.is_dir() or read_looped(out).get("job") != digest(self.identity):
            raise InputError(f"{out} exists already; give a folder that does not")
        check_unchanged(out)
        result = read_json(out / HISTORY)
        if self.group.first:
            remove_dead_drafts(out.absolute().parent)  # of a run that was killed after its folder was there
            self._note(weights_sha256(out), result)
        return finished_of(out, None, result)

    def written(self, tuner: Tuner, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> Finished:
        given, model = self.given, self.given.model
        part = {} if model.loop is None else {"loop": model.loop}
        about = {"loops": model.loops, "boundary": model.boundary, **part, "job": digest(self.identity),
                 "from": given.source.weights, "recipe": given.recipe.to_dict(), "updates": tuner.update,
                 **origin_of(given.folder)}  # fmt: skip
        whole = {name.removeprefix("model."): each for name, each in weights.items()}
        self._note(trained_folder(self.out, given.folder, whole, given.recipe.saved, about, result), result)
        return finished_of(self.out, None, result)

    def _note(self, made: str, result: Mapping[str, Any]) -> None:
        """How the model was trained to weights of the SHA-256 `made`, into the store; what is there stays."""
        config, inputs = self.given.config, {**self.given.inputs, "made": made}
        if self.store.find(TRAINING, config, inputs) is None:
            with self.store.write(TRAINING, config, inputs, device=self.given.processes.device) as draft:
                draft.json(KEPT_HISTORY, result)


class _Fitting(_Tuning):
    """A map is fitted to the frozen model, and becomes an artefact."""

    def finished(self) -> Finished | None:
        there = self.store.find(KIND, self.given.config, self.given.inputs)
        return None if there is None else finished_of(there.folder, there.key, there.json(KEPT_HISTORY))

    def written(self, tuner: Tuner, weights: Mapping[str, Tensor], result: Mapping[str, Any]) -> Finished:
        given, made = self.given, tuner.objective.step
        assert made is not None
        about = {**given.config, WEIGHTS_SHA: given.source.weights, IDENTITY: given.source.to_dict()}
        about |= origin_of(given.folder)
        beside = {FITTED: canonical(about, FITTED) + b"\n"}
        with self.store.write(KIND, given.config, given.inputs, device=given.processes.device) as draft:
            for name, data in map_files(made.half() if given.recipe.saved == "fp16" else made, beside).items():
                draft.bytes(name, data)
            draft.json(KEPT_HISTORY, result)
        return finished_of(draft.artefact.folder, draft.artefact.key, result)


def finished_of(folder: Path, key: str | None, result: Mapping[str, Any]) -> Finished:
    """What came out, with how it went as it was written."""
    return Finished(folder, key, *(result[name] for name in ("updates", "history", "tokens", "seconds")))


def _shares(answers: Mapping[int, tuple[int, int]]) -> dict[str, float]:
    return {str(depth): right / asked for depth, (right, asked) in answers.items()}


def trained_folder(
    out: Path, source: Path, weights: Mapping[str, Tensor], saved: str, about: Mapping[str, Any],
    result: Mapping[str, Any], more: Mapping[str, Mapping[str, Any] | None] = MappingProxyType({}),
) -> str:  # fmt: skip
    """The folder of a trained model: what is in `source` beside weights, and new weights in the precision named.

    `more` are JSON files by name; one that is None is left out, even where `source` has it.  Gives the SHA-256 of the
    weights.
    """
    left = (".safetensors", ".safetensors.index.json", *PICKLES)
    dtype = PRECISIONS[saved]
    config = {
        key: str(dtype).removeprefix("torch.") if key in ("dtype", "torch_dtype") else value
        for key, value in read_config(source).items()
    }
    texts = {CONFIG: config, LOOPED: about, HISTORY: result, **{name: e for name, e in more.items() if e is not None}}
    stays = (*texts, *more, SUMS, MANIFEST)  # what lists files lists those of `source`
    others = [file for file in sorted(source.iterdir()) if file.is_file() and not file.name.endswith(left)]
    rounded = {name: each.to(dtype) for name, each in weights.items()}
    return write_folder(out, rounded, texts, [file for file in others if file.name not in stays])


def _text_digest(tokenizer: Tokenizer, pools: Sequence[Pool]) -> str:
    """What tells the tokens of a run from those of another: tokenizer, chat template and general text."""
    summed = hashlib.sha256(read(tokenizer.folder / TOKENIZER))
    summed.update(json.dumps([tokenizer.template, tokenizer.special, pools], sort_keys=True).encode())
    return summed.hexdigest()
