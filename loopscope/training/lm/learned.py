"""Which prompts a saved map or model has learned from, so that what is asked later can be told from what was learned.

Beside the weights lies `learned.json`, with a short hash of every prompt.  A model that is trained again keeps what it
learned before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscope.models.folders import read_looped
from loopscope.models.steering import FITTED
from loopscope.store.files import damaged
from loopscope.store.manifest import canonical, read_json
from loopscope.tasks.examples import Example, Examples

LEARNED = "learned.json"
DIGITS = 16
"""Hexadecimal digits of a prompt's hash that are kept: among a million prompts two alike are most unlikely."""

MOST = 500_000
"""Prompts that are listed; of more, no list is kept, and it is said that some may have been learned from."""


def prompt_hash(each: Example) -> str:
    """The beginning of the SHA-256 of a prompt: of its text without white space around it, or of its tokens."""
    text = each.prompt.strip() if isinstance(each.prompt, str) else repr(each.prompt)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def listed(train: Iterable[Example], source: Path | None = None) -> dict[str, Any] | None:
    """The content of `learned.json` for examples and for what the model in `source` had learned.

    None where there are too many, or where the source learned from examples that it does not list.
    """
    earlier = set() if source is None else read_learned(source)
    if earlier is None and source is not None:
        earlier = None if _tuned_on_examples(source) else set()
    hashes = {prompt_hash(each) for each in train}
    if earlier is None or len(hashes | earlier) > MOST:
        return None
    return {"prompts": "".join(sorted(hashes | earlier))}


def learned_file(train: Iterable[Example]) -> dict[str, bytes]:
    """`listed` as a file by name; no file for too many."""
    found = listed(train)
    return {} if found is None else {LEARNED: canonical(found, LEARNED) + b"\n"}


def read_learned(folder: Path) -> set[str] | None:
    """The hashes that a folder lists; None where it has no list, DamagedError where the list cannot be read."""
    file = folder / LEARNED
    if not os.path.lexists(file):
        return None
    said = read_json(file).get("prompts")
    if not isinstance(said, str) or len(said) % DIGITS or not set(said) <= set("0123456789abcdef"):
        raise damaged(file, f"hashes of {DIGITS} digits each", repr(said)[:60])
    return {said[at : at + DIGITS] for at in range(0, len(said), DIGITS)}


@dataclass(frozen=True)
class Overlap:
    """How many of `asked` examples a map or model has learned from: `shared`, None where that cannot be known."""

    who: str
    how: str
    shared: int | None
    asked: int

    @property
    def clear(self) -> bool:
        """Whether none of the examples was learned from, as far as is known."""
        return self.shared == 0

    @property
    def text(self) -> str:
        """In a line."""
        if self.shared is None:
            return f"{self.who} does not list what it was {self.how}: it may have learned from some examples asked here"
        return f"{self.who} was {self.how} {self.shared:,} of the {self.asked:,} examples asked here"


def overlap_of_map(name: str, folder: Path, asked: Examples) -> Overlap | None:
    """What a saved map learned of these examples; None of a map that was fitted to no examples, or does not say so."""
    about = read_json(folder / FITTED) if (folder / FITTED).is_file() else {}
    return _overlap(f"J:{name}", "fitted to", folder, about.get("examples"), asked)


def overlap_of_model(folder: Path, asked: Examples) -> Overlap | None:
    """What a model folder learned of these examples; None of a model that was tuned on no examples."""
    return _overlap(str(folder), "fine-tuned on", folder, {} if _tuned_on_examples(folder) else None, asked)


def _tuned_on_examples(folder: Path) -> bool:
    recipe = read_looped(folder).get("recipe")
    return isinstance(recipe, Mapping) and "program" in recipe  # which a recipe that draws its questions has not


def _overlap(who: str, how: str, folder: Path, examples: object, asked: Examples) -> Overlap | None:
    hashes = read_learned(folder)
    if hashes is not None:
        return Overlap(who, how, sum(prompt_hash(each) in hashes for each in asked), len(asked))
    if not isinstance(examples, Mapping):
        return None
    sums = examples.get("sha256")
    known = isinstance(sums, Mapping) and sums.get("held_out") == asked.digest
    return Overlap(who, how, 0 if known else None, len(asked))
