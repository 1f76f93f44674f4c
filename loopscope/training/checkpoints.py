"""Checkpoints of a training job: artefacts of the store, the last few of them.

A job is known by its identity: what is trained, the recipe, the members and the kind of device.  A checkpoint is whole
or absent (see `store.py`); one that is damaged, or is none, is logged and passed over for the one before it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from loopscope.errors import BusyError, DamagedError, LoopscopeError
from loopscope.store.files import damaged, first_line, locked, make_folder, refuse_link, reporting
from loopscope.store.manifest import MANIFEST, digest
from loopscope.store.store import Artefact, Store

KIND, KEPT = "checkpoint", 2
STATE, PROGRESS = "state.safetensors", "progress.json"


class Resumable(Protocol):
    """A trainer that can be saved and gone on with: what it is at, all it needs as tensors and as JSON."""

    stage: int
    update: int

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        ...

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Its tensors by name."""
        ...

    def progress(self) -> dict[str, Any]:
        """What is no tensor, as JSON."""
        ...

    def restore(self, state: Mapping[str, Tensor], progress: Mapping[str, Any]) -> None:
        """Go on from what both were when they were saved."""
        ...

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        ...

    def run(self, report: Callable[[Any], None]) -> None:
        """Train to the end; after every window of updates, `report` gets the trainer and may save or raise."""
        ...


def warn(line: str) -> None:
    """Log a line as a warning, where nobody said how else."""
    warnings.warn(line, stacklevel=2)


class Checkpoints:
    """The checkpoints of one job in a store; `log` gets a line for each that is passed over."""

    def __init__(self, store: Store, job: dict[str, Any], log: Callable[[str], None] = warn) -> None:
        self.store, self.job, self.log = store, job, log

    def save(self, trainer: Resumable) -> None:
        """Write where the trainer is, then let go of all but the last two.  StoreError when the disk is full."""
        config = {"job": self.job, "stage": trainer.stage, "update": trainer.update}
        with self.store.write(KIND, config, device=trainer.device) as draft:
            draft.tensors(STATE, trainer.state)
            draft.json(PROGRESS, trainer.progress())
        for old in self._found()[KEPT:]:
            self.store.remove(KIND, old.key)

    def load(self, trainer: Resumable) -> bool:
        """Bring the trainer to the last whole checkpoint; False when there is none.

        Raises `DamagedError` for one that is as it was written, but no trainer wrote it, and the error of one that
        cannot be read though it is not damaged.
        """
        found, errors = _read(self.store)
        for error in errors:
            self._pass_over(error)
        for artefact in self._mine(found):
            try:
                state, progress = artefact.tensors(STATE), artefact.json(PROGRESS)
                _check_fits(artefact, trainer, state, progress)
            except DamagedError as error:
                self._pass_over(error)
                continue
            try:
                trainer.restore(state, progress)
            except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
                reason = f"{type(error).__name__}: {first_line(error)}"
                raise damaged(artefact.folder, "a checkpoint of this job", reason) from error
            return True
        return False

    def _pass_over(self, error: LoopscopeError) -> None:
        if not isinstance(error, DamagedError):
            raise error
        self.log(f"a checkpoint is passed over: {error}")

    def clear(self) -> None:
        """Remove them all: the job is finished."""
        for artefact in self._found():
            self.store.remove(KIND, artefact.key)

    def _found(self) -> list[Artefact]:
        return self._mine(_read(self.store)[0])

    def _mine(self, found: Iterable[Artefact]) -> list[Artefact]:
        """Those of this job, the latest first."""
        mine = [each for each in found if each.manifest.config["job"] == self.job]
        return sorted(mine, key=lambda each: (each.manifest.config["stage"], each.manifest.config["update"]))[::-1]


def jobs(store: Store) -> list[dict[str, Any]]:
    """The identities of all jobs that have a checkpoint that can be read; `Checkpoints.load` logs the others."""
    found = {digest(each.manifest.config["job"]): each.manifest.config["job"] for each in _read(store)[0]}
    return list(found.values())


def _read(store: Store) -> tuple[list[Artefact], list[LoopscopeError]]:
    """The checkpoints of a store, and the errors of those that cannot be read or are none."""
    there, unread = store.readable(KIND)
    found, errors = [], list(unread)
    for each in there:
        match each.manifest.config:
            case {"job": dict(), "stage": int(stage), "update": int(update)} if stage >= 0 and update >= 0:
                found.append(each)
            case other:
                errors.append(damaged(each.folder / MANIFEST, "job, stage and update", f"{other}"[:80]))
    return found, errors


def _check_fits(artefact: Artefact, trainer: Resumable, state: Mapping[str, Tensor], progress: object) -> None:
    """`DamagedError` unless the tensors are of the trainer's names, shapes and types, and the progress fits."""
    path = artefact.folder / STATE
    for name, tensor in trainer.state.items():
        if name not in state:
            raise damaged(path, f"a tensor {name!r}", "none")
        for expected, found in ((tensor.shape, state[name].shape), (tensor.dtype, state[name].dtype)):
            if expected != found:
                raise damaged(path, f"{name!r} of {expected}", f"{found}")
    update = artefact.manifest.config["update"]
    if not isinstance(progress, dict) or progress.get("update") != update:
        raise damaged(artefact.folder / PROGRESS, f"the progress at update {update}", f"{progress}"[:80])


@contextmanager
def alone(store: Store, job: dict[str, Any]) -> Iterator[None]:
    """Hold a job's lock, so that no other process works on it.  BusyError when one does.

    The lock file stays: whoever removed it could take it from a process that has just opened it.
    """
    folder = store.root / KIND
    path = folder / f".job-{digest(job)[:16]}.lock"
    with reporting("write to", folder):
        refuse_link(folder, "a folder of artefacts")
        make_folder(folder)
        with locked(path, wait=False) as held:
            if not held:
                raise BusyError(f"another process is at work on this job in {store.root}; wait for it or end it")
            yield
