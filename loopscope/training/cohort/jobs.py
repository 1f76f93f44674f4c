"""Train backbones and fit maps: find what is finished, go on with what is begun, write what is new into the store."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError, LoopscopeError
from loopscope.maps import map_files
from loopscope.model import LoopedTransformer
from loopscope.store.artefacts import BACKBONE, MAP, RESULT, TRAIL, WEIGHTS, load_backbone, name_of, recipe_of
from loopscope.store.files import StoreError, append, make_folder, new_file, refuse_link, reporting
from loopscope.store.manifest import check_file_name
from loopscope.store.store import Artefact, Draft, Store
from loopscope.tasks.populations import population
from loopscope.training.checkpoints import Checkpoints, alone, jobs, warn
from loopscope.training.cohort.controls import ControlFits, other_task
from loopscope.training.cohort.lasting import LastingFits
from loopscope.training.cohort.objective import Objective, new_map
from loopscope.training.cohort.parity import ParityBackbones, ParityFits
from loopscope.training.cohort.relations import RelationBackbones, RelationFits
from loopscope.training.cohort.trainer import Trainer
from loopscope.training.cohort.walks import WalkBackbones, WalkFits
from loopscope.training.recipe import BackboneRecipe, ControlFit, LastingFit, MapRecipe, WalkFit

BACKBONES: Mapping[str, Callable[..., Objective]] = {
    "graph-walk": WalkBackbones, "parity": ParityBackbones, "relations": RelationBackbones
}  # fmt: skip
FITS: Mapping[str, Callable[..., Objective]] = {
    "graph-walk": WalkFits, "parity": ParityFits, "relations": RelationFits
}  # fmt: skip


class MembersFailedError(LoopscopeError):
    """Some members of a job met a loss or gradient that is not finite; the others are finished and stored."""


@dataclass(frozen=True)
class Finished:
    """One trained member.

    Digests are SHA-256 of fp32 parameters at the start, at the end and as selected; `data` sums up every batch.
    """

    name: str
    seed: int
    key: str
    selected_update: int
    score: tuple[float, ...]
    digests: Mapping[str, str]


@dataclass(frozen=True)
class Progress:
    """Where a job is, for whoever watches it; losses and scores are those of the members still running."""

    job: str
    stage: str
    done: int
    total: int
    losses: list[float]
    scores: list[float]
    per_second: float


@dataclass(frozen=True)
class Settings:
    """How a job is run; none of it changes what comes out, but for the device.

    `metrics`: a folder for files of JSON lines, one line per member and window.  `save_every`: seconds between
    checkpoints.  `watch` is called after every window, `log` with a line for every checkpoint that cannot be used.
    `stop` is asked after every window, too: when it says so, there is a checkpoint and then a KeyboardInterrupt.
    """

    device: torch.device
    metrics: Path | None = None
    save_every: float = 30.0
    watch: Callable[[Progress], None] = lambda _: None
    log: Callable[[str], None] = warn
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class _Member:
    """What one member's artefact is made from; `ident` tells members of one recipe apart, `stream` names its data."""

    name: str
    ident: int | tuple[str, int]
    seed: int
    stream: str
    config: dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """A stack of members and how to train it; `objective` gets the members, `write` one member's parameters."""

    kind: str
    name: str
    recipe: BackboneRecipe | MapRecipe
    identity: dict[str, Any]
    inputs: dict[str, str]
    members: Sequence[_Member]
    objective: Callable[[Sequence[_Member]], Objective]
    write: Callable[[Draft, dict[str, Tensor]], None]


def pick_device(name: str) -> torch.device:
    """The device called "auto", "cpu" or "cuda"; InputError for another name or a GPU that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"no device {name!r}; there are auto, cpu, cuda")
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError("no CUDA device is there (nearest: --device cpu)")
    return torch.device("cuda" if name != "cpu" and there else "cpu")


def refuse_unreadable(store: Store) -> None:
    """The error of the first artefact that is not damaged, and yet cannot be read: a newer schema, or no permission."""
    for error in (error for kind in store.kinds() for error in store.readable(kind)[1]):
        if not isinstance(error, DamagedError):
            raise error


def initial_model(recipe: BackboneRecipe, seed: int) -> LoopedTransformer:
    """The model a seed starts from; torch's global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + recipe.init)
        return LoopedTransformer(recipe.model)


def train(recipe: BackboneRecipe, seeds: Sequence[int], store: Store, settings: Settings) -> list[Finished]:
    """Backbones of these seeds, trained together; those already in the store are only looked up.

    Raises MembersFailedError when a seed met NaN or infinity, after the others were stored, and StoreError when the
    disk is full; the same call then goes on from the last checkpoint.
    """

    def objective(members: Sequence[_Member]) -> Objective:
        numbers = [member.seed for member in members]
        models = [initial_model(recipe, seed) for seed in numbers]
        return BACKBONES[recipe.data.task](recipe, models, numbers, settings.device)

    def write(draft: Draft, weights: dict[str, Tensor]) -> None:
        draft.tensors(WEIGHTS, {name: w.to(torch.bfloat16) for name, w in weights.items()})

    def member(seed: int) -> _Member:
        config = {"recipe": recipe.to_dict(), "seed": seed}
        return _Member(f"{recipe.name}-{seed}", seed, seed, f"{recipe.stream}/{seed}", config)

    identity = {"kind": BACKBONE, "recipe": recipe.to_dict(), "device": settings.device.type}
    cohort = _cohort(store, BACKBONE, identity, [member(seed) for seed in seeds], {}, member)
    job = _Job(BACKBONE, recipe.name, recipe, identity, {}, cohort, objective, write)
    return _run(job, [member(seed) for seed in seeds], store, settings)


def fit(
    recipes: Sequence[MapRecipe], backbone: Artefact, fits: Sequence[int], store: Store, settings: Settings
) -> list[Finished]:
    """Maps of every recipe and fit number on one backbone, trained together; finished ones are only looked up.

    Raises InputError when the recipes differ in more than their target, or do not suit the backbone; else as `train`.
    """
    first = recipes[0]
    model = check_fit(recipes, backbone)
    by_name = {recipe.name: recipe for recipe in recipes}
    if first.data.task == "relations" and len(fits) > 1:  # stages end early by each map's own score
        return [done for number in fits for done in fit(recipes, backbone, [number], store, settings)]

    block = other_task(first.data.block) if isinstance(first.data, ControlFit) else None

    def objective(members: Sequence[_Member]) -> Objective:
        pairs = [(getattr(by_name[m.config["recipe"]["name"]].data, "hops", 0), m.seed) for m in members]
        if isinstance(first.data, ControlFit):
            other = None if block is None else load_backbone(block)
            return ControlFits(first, model, pairs, settings.device, other)
        made = LastingFits if isinstance(first.data, LastingFit) else FITS[first.data.task]
        return made(first, model, pairs, settings.device)

    def write(draft: Draft, weights: dict[str, Tensor]) -> None:
        step = new_map(first, model.config.width, 0)
        step.load_state_dict(weights)
        for name, data in map_files(step).items():
            draft.bytes(name, data)

    def member(ident: tuple[str, int]) -> _Member:
        name, number = ident
        config = {"recipe": by_name[name].to_dict(), "fit": number}
        full = f"{name}-{number}@{name_of(backbone)}"
        return _Member(full, ident, number, f"{first.stream}/{number}", config)

    wanted = [member((recipe.name, number)) for recipe in recipes for number in fits]
    targets = [recipe.to_dict() for recipe in recipes]
    identity = {"kind": MAP, "recipes": targets, "backbone": backbone.key, "device": settings.device.type}
    inputs = {BACKBONE: backbone.key} | ({} if block is None else {"block": block.key})
    cohort = _cohort(store, MAP, identity, wanted, inputs, lambda ident: member((ident[0], ident[1])))
    name = f"{'+'.join(by_name)}@{name_of(backbone)}"
    return _run(_Job(MAP, name, first, identity, inputs, cohort, objective, write), wanted, store, settings)


def check_fit(recipes: Sequence[MapRecipe], backbone: Artefact) -> LoopedTransformer:
    """The backbone's model; InputError when these maps cannot be fitted to it, or not side by side."""
    first = recipes[0]
    for other in recipes[1:]:
        if _target_aside(other) != _target_aside(first):
            raise InputError(f"maps {first.name!r} and {other.name!r} cannot be fitted side by side; fit them in turn")
    model = load_backbone(backbone)
    _check_suits(first, backbone, model)
    return model


def _target_aside(recipe: MapRecipe) -> MapRecipe:
    data = replace(recipe.data, hops=0) if isinstance(recipe.data, WalkFit) else recipe.data
    return replace(recipe, name="", about="", data=data)


def _check_suits(recipe: MapRecipe, backbone: Artefact, model: LoopedTransformer) -> None:
    task = recipe_of(backbone)["data"]["task"]
    if task != recipe.data.task:
        raise InputError(f"map {recipe.name!r} is for {recipe.data.task} backbones; {name_of(backbone)} is for {task}")
    if isinstance(recipe.data, WalkFit):
        nodes = population(recipe.data.selection).nodes
        if nodes != model.config.classes:
            raise InputError(
                f"map {recipe.name!r} is for {nodes}-node graphs; {name_of(backbone)} walks {model.config.classes}"
            )


def _cohort(
    store: Store, kind: str, identity: dict[str, Any], wanted: Sequence[_Member], inputs: Mapping[str, str],
    member: Callable[[Any], _Member],
) -> list[_Member]:  # fmt: skip
    """Who is trained: the wanted members that are missing, or all of a job already begun that has them all.

    A job is gone on with as it was begun, since its bits depend on who is trained side by side.
    """
    missing = [each for each in wanted if store.find(kind, each.config, inputs) is None]
    idents = [_stored(each.ident) for each in missing]
    for begun in jobs(store):
        if {key: value for key, value in begun.items() if key != "members"} != _stored(identity):
            continue
        members = _members(begun, member)
        if not members:  # no job of ours
            continue
        if all(store.find(kind, each.config, inputs) for each in members):  # killed before it could tidy up
            Checkpoints(store, begun).clear()
        elif missing and all(ident in begun["members"] for ident in idents):
            return members
    return missing


def _members(begun: Mapping[str, Any], member: Callable[[Any], _Member]) -> list[_Member]:
    """The members of a begun job; none where it names what cannot be one."""
    try:
        found = [member(ident) for ident in begun["members"]]
    except (LookupError, TypeError):
        return []
    whole = all(type(each.seed) is int for each in found)
    return found if whole and [_stored(each.ident) for each in found] == begun["members"] else []


def _stored(value: Any) -> Any:
    """A value as it comes back from a manifest: tuples are lists."""
    return json.loads(json.dumps(value))


def _run(job: _Job, wanted: Sequence[_Member], store: Store, settings: Settings) -> list[Finished]:
    _metrics_name(job)  # before anything is written
    if job.members:
        identity = _stored({**job.identity, "members": [member.ident for member in job.members]})
        with alone(store, identity):
            # Looked up again: another process may have finished the job while this one waited for its turn to look.
            if any(store.find(job.kind, member.config, job.inputs) is None for member in job.members):
                _train_members(job, Checkpoints(store, identity, settings.log), settings)
    return [_finished(member, store, job) for member in wanted]


def _train_members(job: _Job, checkpoints: Checkpoints, settings: Settings) -> None:
    store = checkpoints.store
    with suppress(StoreError):  # what a killed run left half-written; that of another user is not ours to remove
        store.gc()
    try:
        objective = job.objective(job.members)
        trainer = Trainer(objective, job.recipe.keep)
        starts = [_digest(trainer.stack.member(index)) for index in range(len(job.members))]
        checkpoints.load(trainer)
        trainer.run(_Reporter(job, checkpoints, settings, trainer))
    except torch.cuda.OutOfMemoryError:
        raise InputError(f"{len(job.members)} members do not fit the GPU's memory; train fewer at once") from None
    for index, member in enumerate(job.members):
        kept = trainer.selected[index]
        if trainer.failures[index] is not None or kept is None:
            continue
        weights = trainer.stack.member(index, trainer.state["kept"])
        digests = {
            "start": starts[index], "final": _digest(trainer.stack.member(index)), "selected": _digest(weights),
            "data": f"{int(trainer.state['data'][index]) % 2**64:016x}",
        }  # fmt: skip
        if trainer.trail_at:  # before the map: once that is there, nobody comes back for what is missing
            with store.write(TRAIL, member.config, job.inputs, device=settings.device) as draft:
                draft.tensors(WEIGHTS, trainer.trail(index))
        history = [{k: v for k, v in row.items() if k != "member"} for row in trainer.history if row["member"] == index]
        with store.write(job.kind, member.config, job.inputs, device=settings.device) as draft:
            job.write(draft, weights)
            draft.json(RESULT, {
                "selected": vars(kept), "digests": digests, "history": history, "seconds": trainer.seconds,
                "side_by_side": len(job.members),
            })  # fmt: skip
    if not any(trainer.failures):
        return checkpoints.clear()
    checkpoints.save(trainer)
    stages = trainer.objective.stages
    told = [
        f"{member.name} stopped before update {failure.update:,} of {stages[failure.stage].name} "
        f"(stream {member.stream}): {failure}"
        for member, failure in zip(job.members, trainer.failures, strict=True)
        if failure is not None
    ]
    raise MembersFailedError("; ".join(told) + "; its last good parameters are in the last checkpoint")


class _Reporter:
    """After every window: metrics, a checkpoint when it is time, and a word to whoever watches."""

    def __init__(self, job: _Job, checkpoints: Checkpoints, settings: Settings, trainer: Trainer) -> None:
        self.job, self.checkpoints, self.settings = job, checkpoints, settings
        self.total = sum(stage.updates for stage in trainer.objective.stages)
        self.started, self.saved = time.perf_counter(), time.perf_counter()
        self.first = self._done(trainer)
        self.scores: dict[int, float] = {}
        self.file: Path | None = None
        if settings.metrics is not None:
            refuse_link(settings.metrics, "a folder")
            with reporting("write to", settings.metrics):
                make_folder(settings.metrics)
            self.file = settings.metrics / _metrics_name(job)
            new_file(self.file)
            self._lines(trainer.history)

    def __call__(self, trainer: Trainer, rows: list[dict[str, Any]]) -> None:
        self._lines(rows)
        now, done = time.perf_counter(), self._done(trainer)
        stop = self.settings.stop() and not trainer.done
        if stop or (now - self.saved >= self.settings.save_every and not trainer.done):
            self.checkpoints.save(trainer)
            self.saved = now
        if stop:
            raise KeyboardInterrupt
        self.scores |= {row["member"]: row["score"][0] for row in rows if "score" in row}
        stages = trainer.objective.stages
        self.settings.watch(Progress(
            self.job.name, stages[min(trainer.stage, len(stages) - 1)].name, done, self.total,
            [row["loss"] for row in rows], [self.scores[member] for member in sorted(self.scores)],
            (done - self.first) / (now - self.started),
        ))  # fmt: skip

    def _done(self, trainer: Trainer) -> int:
        return sum(stage.updates for stage in trainer.objective.stages[: trainer.stage]) + trainer.update

    def _lines(self, rows: Sequence[dict[str, Any]]) -> None:
        if self.file is None:
            return
        lines = []
        for row in rows:
            member = self.job.members[row["member"]]
            told = {key: value for key, value in row.items() if key != "member"}
            lines.append(json.dumps({"name": member.name, "seed": member.seed, **told}) + "\n")
        append(self.file, "".join(lines).encode())


def _metrics_name(job: _Job) -> str:
    """What the file of a job's metrics is called; InputError where a recipe's name is no part of a file's."""
    told = "-".join(dict.fromkeys(str(job.members[i].seed) for i in (0, -1))) if job.members else ""
    return check_file_name(f"{job.name}-{told}.jsonl")


def _finished(member: _Member, store: Store, job: _Job) -> Finished:
    artefact = store.find(job.kind, member.config, job.inputs)
    assert artefact is not None
    result = artefact.json(RESULT)
    selected = result["selected"]
    return Finished(
        member.name, member.seed, artefact.key, selected["update"], tuple(selected["score"]), result["digests"]
    )


def _digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters, by name."""
    told = hashlib.sha256()
    for name in sorted(weights):
        told.update(name.encode())
        told.update(weights[name].contiguous().numpy().tobytes())
    return told.hexdigest()
