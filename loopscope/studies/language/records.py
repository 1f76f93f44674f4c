"""Experiments on looped language models: which there are, what they are done on, and their records.

A subject is a model folder with a map.  Its records are keyed by the identity of the model (`lm.identity`), the SHA-256
of the map and by what was asked, so a test that is done is not done again, and one that was interrupted goes on with
what is missing.  Released records, of identity version 1, have the SHA-256 of the weights alone; none of them is taken
for what is asked now.
Answers are kept example by example: who was named (letters), or the replies themselves (antonyms, iterations).  Texts,
pairs and true answers are regenerated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loopscope.errors import InputError
from loopscope.maps import AffineMap, map_key
from loopscope.measure.replies import Speaks
from loopscope.models.identity import Identity, identify
from loopscope.models.passes import Boundary, LanguageModel, precision_name
from loopscope.models.steering import UNKNOWN, InFull, Provenance, check_fitted, load_steering_map
from loopscope.store.artefacts import IDENTITY, WEIGHTS_SHA
from loopscope.store.store import Store
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS, LETTERS, STEPS
from loopscope.studies.records import RECORD, Facts, LayoutOf, Predictions, Record, config_of, in_words, load, save

ANY_MAP = "any_map"
"""A setting of records of a map that was fitted to another model or with another boundary; no claim rests on them."""


@dataclass(frozen=True)
class LanguageExperiment:
    """One kind of test: its question, and the model it was published on: its parameters, loops and what ends a loop."""

    name: str
    question: str
    published_on: str
    parameters: int
    loops: int
    boundary: Boundary

    @property
    def command(self) -> str:
        """What measures it."""
        return f"loopscope lm test {self.name} FOLDER --map MAP"


LANGUAGE: Mapping[str, LanguageExperiment] = {
    each.name: each
    for each in (
        LanguageExperiment(
            LETTERS, "Do the attention patterns of a few heads carry what J does to an eight-step letter walk?",
            "Ouro-2.6B", 2_667_974_657, 4, "norm",
        ),
        LanguageExperiment(
            ANTONYMS, "How does supervision decide what each loop says, and what J can reach?", "Ouro-2.6B",
            2_667_974_657, 4, "norm",
        ),
        LanguageExperiment(
            ITERATIONS, "Does it take J, F or both to iterate beyond the trained steps?", "Qwen3-8B", 8_190_735_360, 8,
            "none",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class LanguageSubject:
    """A language model with its tokenizer and map on one device, and what both are known by.

    `kind` is the architecture, as `model_type` of a config says it.  The map is in fp32, whatever the model is in;
    `map_key` is that of the saved one (`maps.map_key`).
    """

    name: str
    identity: Identity
    kind: str
    model: LanguageModel
    tokenizer: Speaks
    step: AffineMap
    map_key: str
    provenance: Provenance = UNKNOWN

    @property
    def key(self) -> str:
        """SHA-256 of the weights, by which the stages of training are found."""
        return self.identity.weights

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self._weights)).device

    @property
    def precision(self) -> str:
        """What the model computes in: fp32 or bf16."""
        return precision_name(next(iter(self._weights)).dtype)

    @property
    def steering(self) -> InFull:
        """The map as it is applied to states of the model's precision."""
        return InFull(self.step)

    @property
    def _weights(self) -> list[nn.Parameter]:
        assert isinstance(self.model, nn.Module)
        return list(self.model.parameters())

    @property
    def facts(self) -> Facts:
        """What analyses must know; there are no nodes, and requests are for up to eight steps."""
        return Facts(self.name, self.key, self.model.loops, STEPS, 0, self.model.heads, {"J": 1})

    @property
    def about(self) -> dict[str, Any]:
        """The model and the map in numbers, for the record."""
        model = self.model
        return {
            "model": {
                "type": self.kind, "layers": len(model.layers), "heads": model.heads, "width": model.width,
                "parameters": sum(each.numel() for each in self._weights), "dtype": self.precision,
            },
            "identity": self.identity.to_dict(),
            "map": {
                "family": self.step.family, "key": self.map_key, **self.step.settings(), **self.provenance.notes,
            },
        }  # fmt: skip


def load_language(
    folder: Path,
    step: Path,
    *,
    name: str | None = None,
    loops: int | None = None,
    boundary: Boundary | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    any_map: bool = False,
) -> LanguageSubject:
    """A model folder and a saved map as a subject, called `name` or as its folder is; the model computes in `dtype`.

    It makes as many loops as are given, or else as the map was fitted in, or as the folder has it.

    InputError where either is none, the map has another width or, unless `any_map`, was fitted to another model or
    with another boundary, or there is no tokenizer with a chat template; DamagedError for files that cannot be read.
    """
    from loopscope.models.folders import load as load_model
    from loopscope.models.folders import outline, read_config
    from loopscope.models.text import load_tokenizer

    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    if tokenizer.template is None:
        raise InputError(f"{folder} has no chat template, and questions are asked in chats")
    loaded = load_steering_map(step, folder, config.get("hidden_size"))
    step_key, ending, identity = map_key(loaded), outline(folder, boundary=boundary).boundary, identify(folder)
    provenance = check_fitted(step, folder, ending, identity=identity, any_map=any_map)
    model = load_model(
        folder, loops=provenance.loops if loops is None else loops, boundary=boundary, device=device, dtype=dtype
    )
    return LanguageSubject(
        name or folder.resolve().name, identity, str(config["model_type"]), model, tokenizer,
        loaded.float().to(device), step_key, provenance,
    )  # fmt: skip


# ---- measuring -------------------------------------------------------------------------------------------------------

Measure = Callable[[], tuple[Predictions, dict[str, Any], float | None]]
"""Gives predictions, notes and what it took in forward-equivalents, where that was counted."""


def recorded(
    subject: LanguageSubject,
    store: Store,
    experiment: str,
    settings: Mapping[str, Any],
    measure: Measure,
    layout: LayoutOf,
) -> Record:
    """The record of these settings: from the store, or measured and written to it.

    Precision is a setting where it is not fp32, and a note always; that a map was fitted to another model is both.
    """
    chosen = {**settings, "loops": subject.model.loops, "boundary": subject.model.boundary}
    if subject.precision != "fp32":
        chosen["dtype"] = subject.precision
    if subject.provenance.misfit:
        chosen[ANY_MAP] = True
    inputs = {WEIGHTS_SHA: subject.key, IDENTITY: subject.identity.key, "map": subject.map_key}
    known = store.find(RECORD, config_of(experiment, subject.name, chosen), inputs)
    if known is not None:
        return load(known, layout)
    started = time.perf_counter()
    predictions, notes, forwards = measure()
    cost: dict[str, Any] = {"seconds": time.perf_counter() - started, "device": in_words(subject.device)}
    if forwards is not None:
        cost["forwards"] = forwards
    made = Record(experiment, subject.facts, predictions, chosen, cost, {**subject.about, **notes}, raw=True)
    save(store, made, inputs, subject.device)
    return made
