"""Checkpoints of a training job: artefacts of the store, the last few of them.

A job is told by its identity: what is trained, the recipe, the members and the kind of device.  A checkpoint is whole
or absent (see `store.py`); one that turns out damaged is passed over for the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.files import locked, make_folder, reporting
from loopscope.manifest import digest
from loopscope.store import Artefact, Store

KIND, KEPT = "checkpoint", 2


@runtime_checkable
class Resumable(Protocol):
    """Training that can be saved and gone on with: what it is at, all it needs as tensors and as JSON."""

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


class Checkpoints:
    """The checkpoints of one job in a store."""

    def __init__(self, store: Store, job: dict[str, Any]) -> None:
        self.store, self.job = store, job

    def save(self, trainer: Resumable) -> None:
        """Write where the trainer is, then let go of all but the last two.  StoreError when the disk is full."""
        config = {"job": self.job, "stage": trainer.stage, "update": trainer.update}
        with self.store.write(KIND, config, device=trainer.device) as draft:
            draft.tensors("state.safetensors", trainer.state)
            draft.json("progress.json", trainer.progress())
        for old in self._found()[KEPT:]:
            self.store.remove(KIND, old.key)

    def load(self, trainer: Resumable) -> bool:
        """Bring the trainer to the last whole checkpoint; False when there is none."""
        for artefact in self._found():
            try:
                state, progress = artefact.tensors("state.safetensors"), artefact.json("progress.json")
            except DamagedError:
                continue
            trainer.restore(state, progress)
            return True
        return False

    def clear(self) -> None:
        """Remove them all: the job is finished."""
        for artefact in self._found():
            self.store.remove(KIND, artefact.key)

    def _found(self) -> list[Artefact]:
        """Those of this job, the latest first."""
        mine = [each for each in self.store.all(KIND) if each.manifest.config["job"] == self.job]
        return sorted(mine, key=lambda each: (each.manifest.config["stage"], each.manifest.config["update"]))[::-1]


def jobs(store: Store) -> list[dict[str, Any]]:
    """The identities of all jobs that have a checkpoint."""
    found = {digest(each.manifest.config["job"]): each.manifest.config["job"] for each in store.all(KIND)}
    return list(found.values())


@contextmanager
def alone(store: Store, job: dict[str, Any]) -> Iterator[None]:
    """Hold a job's lock, so that no other process works on it.  InputError when one does.

    The lock file stays: whoever removed it could take it from a process that has just opened it.
    """
    folder = store.root / KIND
    path = folder / f".job-{digest(job)[:16]}.lock"
    with reporting("write to", folder):
        make_folder(folder)
        with locked(path, wait=False) as held:
            if not held:
                raise InputError(f"another process is at work on this job in {store.root}; wait for it or end it")
            yield
