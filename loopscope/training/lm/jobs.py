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
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import InputError
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
from loopscope.models.identity import Identity, identify
from loopscope.models.passes import PRECISIONS, Boundary
from loopscope.models.steering import FITTED
from loopscope.models.text import TOKENIZER, Tokenizer, load_tokenizer
from loopscope.store.artefacts import IDENTITY, LM_MAP, WEIGHTS_SHA
from loopscope.store.files import read
from loopscope.store.manifest import MANIFEST, canonical, digest, read_json
from loopscope.store.store import Artefact, Store
from loopscope.tasks.general_text import Pool, Source, built_in, pool
from loopscope.training.checkpoints import Checkpoints, alone
from loopscope.training.lm.batches import Data, Unit
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

HISTORY, TRAINED = "history.json", "history.json.xz"
"""How training went: in the folder of a model, and in a store."""


@dataclass(frozen=True)
class Progress:
    """Where a job is: updates, the last loss of the task, the mean accuracy of the last check, tokens per second.

    `begun` is, by depth, the share of answers that began right in the updates since the last report, after the fewest
    loops that they are given after.
    """

    job: str
    update: int
    updates: int
    loss: float | None
    accuracy: float
    begun: Mapping[str, float]
    tokens_per_second: float


@dataclass(frozen=True)
class Settings:
    """How a job is run; what comes out differs by rounding at most.

    `save_every`: seconds between checkpoints.  `compiled`: layers are compiled first, which takes a minute, and passes
    recorded by their shapes; on a GPU this makes updates of a small model several times faster.  `watch` is called
    after every window; `log` with a line about memory before the first, about what is learned after every check, and
    where depth grows.  `stop` is asked after every window: when it says so, there is a checkpoint and then a
    KeyboardInterrupt.
    """

    device: torch.device
    save_every: float = 300.0
    compiled: bool = False
    watch: Callable[[Progress], None] = lambda _: None
    log: Callable[[str], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False


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
class Job:
    """All that a run is made from; `identity` tells it from others."""

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
        """What a map's artefact is made by; the recipe may leave out the boundary."""
        return {"recipe": self.recipe.to_dict(), "boundary": self.model.boundary, "text": self.text}

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
    sources: Sequence[Source] | None = None, boundary: Boundary | None = None,
) -> Finished:  # fmt: skip
    """Train the model in a folder by a recipe and write the folder `out`; checkpoints are in the store meanwhile.

    `sources` are general text (default: what needs no download); `boundary` goes before the recipe's and the folder's.
    An `out` that this call has written before is only looked up.  Raises InputError for a recipe of a map, another
    `out` that exists, a model or tokenizer that does not fit, and too little memory; NotFiniteError when training
    leaves the numbers; StoreError when the disk is full.
    """
    if recipe.trains != "weights":
        raise InputError(f"recipe {recipe.name!r} fits a map; `loopscope lm fit` does that")
    folder, out = Path(folder), Path(out)
    job = prepared(folder, recipe, settings, sources, boundary)
    if out.exists() or out.is_symlink():
        if out.is_dir() and read_looped(out).get("job") == digest(job.identity):
            check_unchanged(out)
            result = read_json(out / HISTORY)
            if job.processes.first:
                _note(job, store, weights_sha256(out), result)
            return Finished(out, None, result["updates"], result["history"], result["tokens"], result["seconds"])
        raise InputError(f"{out} exists already; give a folder that does not")

    def write(tuner: Tuner, weights: Mapping[str, Tensor]) -> Finished:
        whole = {name.removeprefix("model."): each for name, each in weights.items()}
        about = {"loops": job.model.loops, "boundary": job.model.boundary, "job": digest(job.identity),
                 "from": job.source.weights, "recipe": recipe.to_dict(), "updates": tuner.update}  # fmt: skip
        result = _result(tuner)
        made = _write_folder(out, folder, whole, recipe.saved, about, result)
        _note(job, store, made, result)
        return Finished(out, None, tuner.update, tuner.history, tuner.tokens, tuner.seconds)

    return _run(job, store, settings, write)


def fit(
    folder: str | Path, recipe: Recipe, store: Store, settings: Settings, *, sources: Sequence[Source] | None = None
) -> Finished:
    """Fit a map to the frozen model in a folder; it becomes an artefact of the store, and a finished one is looked up.

    Raises as `finetune`.
    """
    if recipe.trains != "map":
        raise InputError(f"recipe {recipe.name!r} trains a model; `loopscope lm finetune` does that")
    job = prepared(Path(folder), recipe, settings, sources, None)
    there = store.find(KIND, job.config, job.inputs)
    if there is not None:
        return _fitted(there)

    def write(tuner: Tuner, weights: Mapping[str, Tensor]) -> Finished:
        step = tuner.objective.step
        assert step is not None
        told = {**job.config, WEIGHTS_SHA: job.source.weights, IDENTITY: job.source.to_dict()}
        beside = {FITTED: canonical(told, FITTED) + b"\n"}
        with store.write(KIND, job.config, job.inputs, device=job.processes.device) as draft:
            for name, data in map_files(step.half() if recipe.saved == "fp16" else step, beside).items():
                draft.bytes(name, data)
            draft.json(TRAINED, _result(tuner))
        return _fitted(draft.artefact)

    return _run(job, store, settings, write)


def save_fitted(done: Finished, out: Path) -> None:
    """Save a copy of a fitted map in a new folder, with what it was fitted to; it appears whole or not at all."""
    save_map(load_map(done.folder), out, {FITTED: read(done.folder / FITTED)})


def new_map(recipe: Recipe, width: int) -> AffineMap:
    """The map that a recipe begins with, for states of this width; InputError for a rank that does not fit."""
    shape = {} if recipe.rank is None else {"rank": recipe.rank, "seed": recipe.init}
    try:
        return make_map(recipe.family, width=width, **shape)
    except TypeError:
        raise InputError(f"a {recipe.family} map takes {'no' if shape else 'a'} rank") from None


def prepared(
    folder: Path, recipe: Recipe, settings: Settings, sources: Sequence[Source] | None, boundary: Boundary | None
) -> Job:
    """Everything that can be checked before a weight is read; arguments as of `finetune`, and it raises the same."""
    model = outline(folder, loops=recipe.loops, boundary=boundary or recipe.boundary)
    tensors_of(model, folder)
    tokenizer = load_tokenizer(folder)
    step = new_map(recipe, model.width) if recipe.trains == "map" else None
    pools = [pool(source, lambda text: tokenizer.encode(text, special=False)) for source in sources or built_in()]
    data = Data(recipe, tokenizer, pools, vocabulary=model.vocabulary, positions=model.positions)
    ends = ((0, recipe.level_at(0)), (recipe.updates - 1, recipe.levels))
    passes = [unit for update, level in ends for unit in data(update, level)]
    return Job(
        folder, recipe, model, identify(folder), _text_digest(tokenizer, pools), tokenizer, pools, data, passes,
        step, join(settings.device),
    )  # fmt: skip


def _run(
    job: Job, store: Store, settings: Settings, write: Callable[[Tuner, Mapping[str, Tensor]], Finished]
) -> Finished:
    """Train from the last checkpoint, if there is one, and write the result."""
    first, memory = job.processes.first, job.memory
    if first:
        settings.log(f"{job.recipe.name} takes about {memory}")
    checkpoints = Checkpoints(store, job.identity, settings.log)
    with ExitStack() as stack:
        if first:
            stack.enter_context(alone(store, job.identity))
            store.gc()  # what a killed run left half-written
        job.processes.wait()
        try:
            tuner = tuner_of(job, recompute=memory.recompute, compiled=settings.compiled)
            checkpoints.load(tuner)
            tuner.run(_Reporter(job, checkpoints, settings))
        except torch.cuda.OutOfMemoryError:
            raise InputError(
                f"{job.recipe.name} does not fit the GPU's memory with passes of {job.recipe.micro}; "
                f"smaller ones take less (micro={max(1, job.recipe.micro // 2)})"
            ) from None
        weights = tuner.weights
        finished = write(tuner, weights) if first else None
        job.processes.wait()
        if finished is None:
            return Finished(job.folder, None, tuner.update, tuner.history, tuner.tokens, tuner.seconds)
        checkpoints.clear()
        return finished


def tuner_of(job: Job, *, recompute: bool, compiled: bool, recorded: bool = True) -> Tuner:
    """The trainer of a job, its weights loaded; `recorded` says whether compiled passes are also recorded."""
    loops, boundary = job.model.loops, job.model.boundary
    model = load(job.folder, loops=loops, boundary=boundary, device=job.processes.device, dtype=torch.float32)
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
    return Tuner(job.recipe, objective, job.data, checks, job.processes, recorded)


class _Reporter:
    """After every window: a checkpoint when it is time, and a word to whoever watches."""

    def __init__(self, job: Job, checkpoints: Checkpoints, settings: Settings) -> None:
        self.job, self.checkpoints, self.settings = job, checkpoints, settings
        self.saved = time.perf_counter()

    def __call__(self, tuner: Tuner) -> None:
        stop = self.job.processes.agreed(self.settings.stop()) and not tuner.done
        due = time.perf_counter() - self.saved >= self.settings.save_every and not tuner.done
        if self.job.processes.agreed(due) or stop:
            if self.job.processes.first:
                self.checkpoints.save(tuner)
            else:
                _ = tuner.state  # all take part in gathering it
            self.saved = time.perf_counter()
        if stop:
            raise KeyboardInterrupt
        if self.job.processes.first:
            accuracy: dict[str, float] = next(
                (row["accuracy"] for row in reversed(tuner.history) if "accuracy" in row), {}
            )
            last = tuner.history[-1]
            self.settings.watch(Progress(
                self.job.recipe.name, tuner.update, self.job.recipe.updates, last["loss"],
                sum(accuracy.values()) / max(1, len(accuracy)), _shares(answers_since([last], 0)),
                tuner.tokens / max(tuner.seconds, 1e-9),
            ))  # fmt: skip
            if "grown" in last:
                recipe = self.job.recipe
                depth, pace = recipe.depth_at(last["grown"]), recipe.pace_at(last["grown"])
                now = f"depth {depth}" if pace == 1 else f"{pace:g} steps a loop"
                self.settings.log(f"update {tuner.update:,}: {now} from here on")
            if "accuracy" in last:
                before = max(row["update"] for row in tuner.history[:-1] if "accuracy" in row)
                since = _shares(answers_since(tuner.history, before))
                begun = ", ".join(f"{share:.1%} at depth {depth}" for depth, share in since.items()) or "none"
                self.settings.log(f"update {tuner.update:,}: answers that began right since the last check: {begun}")


def _shares(answers: Mapping[int, tuple[int, int]]) -> dict[str, float]:
    return {str(depth): right / asked for depth, (right, asked) in answers.items()}


def _result(tuner: Tuner) -> dict[str, Any]:
    return {"updates": tuner.update, "history": tuner.history, "tokens": tuner.tokens, "seconds": tuner.seconds}


def _note(job: Job, store: Store, made: str, result: Mapping[str, Any]) -> None:
    """How a model was trained to weights of the SHA-256 `made`, into the store; what is there stays."""
    inputs = {**job.inputs, "made": made}
    if store.find(TRAINING, job.config, inputs) is None:
        with store.write(TRAINING, job.config, inputs, device=job.processes.device) as draft:
            draft.json(TRAINED, result)


def _fitted(artefact: Artefact) -> Finished:
    result = artefact.json(TRAINED)
    return Finished(
        artefact.folder, artefact.key, result["updates"], result["history"], result["tokens"], result["seconds"]
    )


def _write_folder(
    out: Path, source: Path, weights: Mapping[str, Tensor], saved: str, about: Mapping[str, Any],
    result: Mapping[str, Any],
) -> str:  # fmt: skip
    """The folder of a trained model: what is in `source` beside weights, and new weights in the precision named.

    Gives the SHA-256 of the weights.
    """
    left = (".safetensors", ".safetensors.index.json", *PICKLES)
    dtype = PRECISIONS[saved]
    config = {
        key: str(dtype).removeprefix("torch.") if key in ("dtype", "torch_dtype") else value
        for key, value in read_config(source).items()
    }
    texts = {CONFIG: config, LOOPED: about, HISTORY: result}
    stays = (*texts, SUMS, MANIFEST)  # what lists files lists those of `source`
    others = [file for file in sorted(source.iterdir()) if file.is_file() and not file.name.endswith(left)]
    rounded = {name: each.to(dtype) for name, each in weights.items()}
    return write_folder(out, rounded, texts, [file for file in others if file.name not in stays])


def _text_digest(tokenizer: Tokenizer, pools: Sequence[Pool]) -> str:
    """What tells the tokens of a run from those of another: tokenizer, chat template and general text."""
    told = hashlib.sha256(read(tokenizer.folder / TOKENIZER))
    told.update(json.dumps([tokenizer.template, tokenizer.special, pools], sort_keys=True).encode())
    return told.hexdigest()
