"""What fits to examples of one's own come to: the map or the model, and what held-out examples say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopscope.maps import AffineMap, save_map
from loopscope.measure.side_by_side import SideBySide, by_steps, statement
from loopscope.models.steering import FITTED
from loopscope.results import Tabular
from loopscope.store.artefacts import WEIGHTS_SHA
from loopscope.store.manifest import canonical
from loopscope.table import Table
from loopscope.tasks.examples import Split
from loopscope.training.lm.cards import card
from loopscope.training.lm.jobs import Finished
from loopscope.training.lm.learned import learned_file
from loopscope.training.lm.task_recipe import TaskRecipe


@dataclass(frozen=True, repr=False)
class FittedMap(Tabular):
    """A map that was fitted, how that went, and what held-out examples say of it and its controls."""

    map: AffineMap
    recipe: TaskRecipe
    data: Split
    measured: SideBySide
    history: Sequence[Mapping[str, Any]]
    updates: int
    seconds: float
    about: Mapping[str, Any]
    key: str | None = None
    base: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def statement(self) -> list[str]:
        """What came out, in plain sentences: of all held-out examples, and by steps."""
        return [*statement(self.measured), *by_steps(self.measured)]

    def table(self) -> Table:
        """Right answers of the map and its controls."""
        return self.measured.table()

    def _words(self) -> str:
        return f"'{self.recipe.program}', {self.map.family}, {self.updates:,} updates. {self.statement[0]}"

    def save(self, folder: str | Path, command: str = "") -> None:
        """Save the map as a new folder in PEFT's convention of files, with what it was fitted to and a model card."""
        beside = {FITTED: canonical(dict(self.about), FITTED) + b"\n"} if WEIGHTS_SHA in self.about else {}
        beside |= learned_file(self.data.train)
        save_map(self.map, folder, beside, base=self.base, card=card(self, command))

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "recipe": self.recipe.to_dict(), "examples": about_examples(self.data), "updates": self.updates,
            "seconds": self.seconds, "key": self.key, "statement": self.statement, **self.measured.to_dict(),
            "history": list(self.history),
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Tuned(Tabular):
    """A model that was fine-tuned on examples: what was written, and its answers on held-out ones."""

    finished: Finished
    recipe: TaskRecipe
    data: Split
    measured: SideBySide

    def table(self) -> Table:
        """Right answers on held-out examples."""
        return self.measured.table()

    def _words(self) -> str:
        return f"{self.finished.folder}, {self.finished.updates:,} updates; {self.measured._words()}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "recipe": self.recipe.to_dict(), "examples": about_examples(self.data), "folder": str(self.finished.folder),
            "updates": self.finished.updates, "seconds": self.finished.seconds, **self.measured.to_dict(),
            "history": list(self.finished.history),
        }  # fmt: skip


def about_examples(data: Split) -> dict[str, Any]:
    """What a report says of examples: how many there are on each side, how they were told apart, their SHA-256."""
    return {
        "name": data.train.name, "train": len(data.train), "held_out": len(data.held_out), "how": data.how,
        "sha256": {"train": data.train.digest, "held_out": data.held_out.digest},
    }  # fmt: skip
