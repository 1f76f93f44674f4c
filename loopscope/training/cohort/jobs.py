"""Train backbones and fit maps: find what is finished, go on with what is begun, write what is new into the store."""

from __future__ import annotations

import hashlib
import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope.errors import InputError, LoopscopeError
from loopscope.maps import map_files
from loopscope.model import LoopedTransformer
from loopscope.store.artefacts import BACKBONE, MAP, RESULT, TRAIL, WEIGHTS, load_backbone, name_of, recipe_of
from loopscope.store.files import append, make_folder, new_file, refuse_link, reporting
from loopscope.store.manifest import check_file_name
from loopscope.store.store import Artefact, Draft, Store
from loopscope.tasks.populations import population
from loopscope.training import job
from loopscope.training.checkpoints import Checkpoints, jobs
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
class Progress(job.Progress):
    """Where a cohort is; losses and scores are those of the members still running."""

    losses: list[float]
    scores: list[float]
    per_second: float

    def __str__(self) -> str:
        mean = sum(self.losses) / max(1, len(self.losses))
        ends = [f"{score:.4f}" for score in (min(self.scores), max(self.scores))] if self.scores else ["-"]
        score = "..".join(dict.fromkeys(ends))
        return f"loss {mean:.4f}  score {score}  {self.per_second:.1f} updates/s"


@dataclass(frozen=True)
class Settings(job.Settings):
    """How a cohort is trained; none of it changes what comes out, but for the device.

    `metrics`: a folder for files of JSON lines, one line per member and window.
    """

    metrics: Path | None = None


@dataclass(frozen=True)
class _Member:
    """What one member's artefact is made from; `ident` tells members of one recipe apart, `stream` names its data."""

    name: str
    ident: Any
    seed: int
    stream: str
    config: dict[str, Any]


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
    return _Backbones(recipe, seeds, store, settings).run()


def fit(
    recipes: Sequence[MapRecipe], backbone: Artefact, fits: Sequence[int], store: Store, settings: Settings
) -> list[Finished]:
    """Maps of every recipe and fit number on one backbone, trained together; finished ones are only looked up.

    Raises InputError when the recipes differ in more than their target, or do not suit the backbone; else as `train`.
    """
    model = check_fit(recipes, backbone)
    if recipes[0].data.task == "relations" and len(fits) > 1:  # stages end early by each map's own score
        return [done for number in fits for done in fit(recipes, backbone, [number], store, settings)]
    return _Fits(recipes, backbone, model, fits, store, settings).run()


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


class _Cohort(job.Job[Trainer, list[Finished]]):
    """A stack of members trained side by side; subclasses say what the members are.

    Who is trained: the wanted members that are missing, or all of a job already begun that has them all.  Such a job is
    gone on with as it was begun, since its bits depend on who is trained side by side.
    """

    settings: Settings
    kind: str
    name: str
    recipe: BackboneRecipe | MapRecipe
    inputs: dict[str, str]

    def __init__(self, about: dict[str, Any], wanted: Sequence[Any], store: Store, settings: Settings) -> None:
        super().__init__(store, settings)
        self.about = _as_stored({"kind": self.kind, **about, "device": settings.device.type})
        self.wanted = [self.member(ident) for ident in wanted]
        self.members = self._to_train()
        self.identity = {**self.about, "members": [_as_stored(each.ident) for each in self.members]}
        self.smaller = f"{len(self.members)} members do not fit the GPU's memory; train fewer at once"

    @abstractmethod
    def member(self, ident: Any) -> _Member:
        """The member of an identifier, as it is or as it comes back from a manifest."""

    @abstractmethod
    def objective(self) -> Objective:
        """What the members learn."""

    @abstractmethod
    def write_weights(self, draft: Draft, weights: dict[str, Tensor]) -> None:
        """Put a member's parameters into its artefact."""

    # ---- who is trained ----------------------------------------------------------------------------------------------

    def _found(self, member: _Member) -> Artefact | None:
        return self.store.find(self.kind, member.config, self.inputs)

    def _to_train(self) -> list[_Member]:
        missing = [each for each in self.wanted if self._found(each) is None]
        idents = [_as_stored(each.ident) for each in missing]
        for begun in jobs(self.store):
            if {key: value for key, value in begun.items() if key != "members"} != self.about:
                continue
            members = self._members(begun)
            if not members:  # no job of ours
                continue
            if all(map(self._found, members)):  # killed before it could tidy up
                Checkpoints(self.store, begun).clear()
            elif missing and all(ident in begun["members"] for ident in idents):
                return members
        return missing

    def _members(self, begun: Mapping[str, Any]) -> list[_Member]:
        """The members of a begun job; none where it names what cannot be one."""
        try:
            found = [self.member(ident) for ident in begun["members"]]
        except (LookupError, TypeError):
            return []
        whole = all(type(each.seed) is int for each in found)
        return found if whole and [_as_stored(each.ident) for each in found] == begun["members"] else []

    # ---- the job -----------------------------------------------------------------------------------------------------

    def finished(self) -> list[Finished] | None:
        if not all(map(self._found, self.members)):
            return None
        found = []
        for member in self.wanted:
            artefact = self._found(member)
            assert artefact is not None
            result = artefact.json(RESULT)
            at, score = (result["selected"][key] for key in ("update", "score"))
            found.append(Finished(member.name, member.seed, artefact.key, at, tuple(score), result["digests"]))
        return found

    def check(self) -> None:
        seeds = dict.fromkeys(str(self.members[i].seed) for i in (0, -1))
        self.metrics_name = check_file_name(f"{self.name}-{'-'.join(seeds)}.jsonl")

    def start(self) -> Trainer:
        trainer = Trainer(self.objective(), self.recipe.keep)
        self.starts = [_digest(trainer.stack.member(index)) for index in range(len(self.members))]
        return trainer

    def begin(self, trainer: Trainer) -> None:
        self.began, self.first, self.seen = time.perf_counter(), _updates_done(trainer), 0
        self.scores: dict[int, float] = {}
        self.file: Path | None = None
        folder = self.settings.metrics
        if folder is not None:
            refuse_link(folder, "a folder")
            with reporting("write to", folder):
                make_folder(folder)
            self.file = folder / self.metrics_name
            new_file(self.file)
        self._add_metrics(trainer)

    def window(self, trainer: Trainer) -> Progress:
        rows = self._add_metrics(trainer)
        self.scores |= {row["member"]: row["score"][0] for row in rows if "score" in row}
        stages, done = trainer.objective.stages, _updates_done(trainer)
        return Progress(
            self.name, stages[min(trainer.stage, len(stages) - 1)].name, done, sum(stage.updates for stage in stages),
            [row["loss"] for row in rows], [self.scores[member] for member in sorted(self.scores)],
            (done - self.first) / (time.perf_counter() - self.began),
        )  # fmt: skip

    def _add_metrics(self, trainer: Trainer) -> list[dict[str, Any]]:
        """Write the rows of history that are new, and give them."""
        rows, self.seen = trainer.history[self.seen :], len(trainer.history)
        if self.file is not None:
            owners = (self.members[row["member"]] for row in rows)
            whole = [
                {"name": own.name, "seed": own.seed, **_member_aside(row)}
                for own, row in zip(owners, rows, strict=True)
            ]
            append(self.file, "".join(f"{json.dumps(each)}\n" for each in whole).encode())
        return rows

    def write(self, trainer: Trainer) -> list[Finished]:
        """Every member that came through; MembersFailedError where one did not, with a checkpoint to look at."""
        device = self.settings.device
        for index, member in enumerate(self.members):
            kept = trainer.selected[index]
            if trainer.failures[index] is not None or kept is None:
                continue
            weights = trainer.stack.member(index, trainer.state["kept"])
            digests = {
                "start": self.starts[index], "final": _digest(trainer.stack.member(index)),
                "selected": _digest(weights), "data": f"{int(trainer.state['data'][index]) % 2**64:016x}",
            }  # fmt: skip
            if trainer.trail_at:  # before the map: once that is there, nobody comes back for what is missing
                with self.store.write(TRAIL, member.config, self.inputs, device=device) as draft:
                    draft.tensors(WEIGHTS, trainer.trail(index))
            history = [_member_aside(row) for row in trainer.history if row["member"] == index]
            with self.store.write(self.kind, member.config, self.inputs, device=device) as draft:
                self.write_weights(draft, weights)
                draft.json(RESULT, {
                    "selected": vars(kept), "digests": digests, "history": history, "seconds": trainer.seconds,
                    "side_by_side": len(self.members),
                })  # fmt: skip
        if any(trainer.failures):
            self.checkpoints.save(trainer)
            stages = trainer.objective.stages
            lines = [
                f"{member.name} stopped before update {failure.update:,} of {stages[failure.stage].name} "
                f"(stream {member.stream}): {failure}"
                for member, failure in zip(self.members, trainer.failures, strict=True)
                if failure is not None
            ]
            raise MembersFailedError("; ".join(lines) + "; its last good parameters are in the last checkpoint")
        found = self.finished()
        assert found is not None
        return found


class _Backbones(_Cohort):
    """Backbones of one recipe; a member is a seed."""

    kind = BACKBONE
    recipe: BackboneRecipe

    def __init__(self, recipe: BackboneRecipe, seeds: Sequence[int], store: Store, settings: Settings) -> None:
        self.recipe, self.name, self.inputs = recipe, recipe.name, {}
        super().__init__({"recipe": recipe.to_dict()}, seeds, store, settings)

    def member(self, ident: int) -> _Member:
        config = {"recipe": self.recipe.to_dict(), "seed": ident}
        return _Member(f"{self.recipe.name}-{ident}", ident, ident, f"{self.recipe.stream}/{ident}", config)

    def objective(self) -> Objective:
        seeds = [member.seed for member in self.members]
        models = [initial_model(self.recipe, seed) for seed in seeds]
        return BACKBONES[self.recipe.data.task](self.recipe, models, seeds, self.settings.device)

    def write_weights(self, draft: Draft, weights: dict[str, Tensor]) -> None:
        draft.tensors(WEIGHTS, {name: w.to(torch.bfloat16) for name, w in weights.items()})


class _Fits(_Cohort):
    """Maps on one backbone; a member is the name of a recipe and the number of a fit."""

    kind = MAP
    recipe: MapRecipe

    def __init__(
        self, recipes: Sequence[MapRecipe], backbone: Artefact, model: LoopedTransformer, fits: Sequence[int],
        store: Store, settings: Settings,
    ) -> None:  # fmt: skip
        self.recipe, self.backbone, self.model = recipes[0], backbone, model
        self.by_name = {recipe.name: recipe for recipe in recipes}
        self.name = f"{'+'.join(self.by_name)}@{name_of(backbone)}"
        data = self.recipe.data
        self.block = other_task(data.block) if isinstance(data, ControlFit) else None
        self.inputs = {BACKBONE: backbone.key} | ({} if self.block is None else {"block": self.block.key})
        about = {"recipes": [recipe.to_dict() for recipe in recipes], "backbone": backbone.key}
        wanted = [(recipe.name, number) for recipe in recipes for number in fits]
        super().__init__(about, wanted, store, settings)

    def member(self, ident: Sequence[Any]) -> _Member:
        name, number = ident[0], ident[1]
        config = {"recipe": self.by_name[name].to_dict(), "fit": number}
        full = f"{name}-{number}@{name_of(self.backbone)}"
        return _Member(full, (name, number), number, f"{self.recipe.stream}/{number}", config)

    def objective(self) -> Objective:
        pairs = [(getattr(self.by_name[each.ident[0]].data, "hops", 0), each.seed) for each in self.members]
        first, data, device = self.recipe, self.recipe.data, self.settings.device
        if isinstance(data, ControlFit):
            other = None if self.block is None else load_backbone(self.block)
            return ControlFits(first, self.model, pairs, device, other)
        made = LastingFits if isinstance(data, LastingFit) else FITS[data.task]
        return made(first, self.model, pairs, device)

    def write_weights(self, draft: Draft, weights: dict[str, Tensor]) -> None:
        made = new_map(self.recipe, self.model.config.width, 0)
        made.load_state_dict(weights)
        for name, data in map_files(made).items():
            draft.bytes(name, data)


def _updates_done(trainer: Trainer) -> int:
    return sum(stage.updates for stage in trainer.objective.stages[: trainer.stage]) + trainer.update


def _member_aside(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "member"}


def _as_stored(value: Any) -> Any:
    """A value as it comes back from a manifest: tuples are lists."""
    return json.loads(json.dumps(value))


def _digest(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 of parameters, by name."""
    summed = hashlib.sha256()
    for name in sorted(weights):
        summed.update(name.encode())
        summed.update(weights[name].contiguous().numpy().tobytes())
    return summed.hexdigest()
