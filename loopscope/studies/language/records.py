"""Language models with their maps: how they are loaded, and how what is measured on them becomes a record.

The key of a record is made from the identity of the model (`models.identity`), the SHA-256 of its map and what was
asked.  So a test that is done is not done again, and one that was interrupted goes on with what is missing.  Released
records have identity version 1, which is the SHA-256 of the weights alone; none of them is taken for what is asked now.

Answers are kept example by example: who was named (letters), or the replies themselves (antonyms, iterations).  Texts,
pairs and true answers are made again from their recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loopscope.errors import InputError
from loopscope.maps import AffineMap, map_key
from loopscope.measure.replies import ChatTokenizer
from loopscope.models.hub import called, origin_of
from loopscope.models.identity import Identity, identify
from loopscope.models.passes import Boundary, LanguageModel, precision_name
from loopscope.models.steering import UNKNOWN, FullPrecisionMap, Provenance, check_fitted, load_steering_map
from loopscope.store.artefacts import IDENTITY, WEIGHTS_SHA
from loopscope.store.store import Store
from loopscope.studies import recording
from loopscope.studies.language.layouts import STEPS
from loopscope.studies.recording import Outcome, Wanted
from loopscope.studies.records import LayoutOf, ModelFacts, Record

ANY_MAP = "any_map"
"""A setting of records of a map that was fitted to another model or with another boundary; no claim rests on them."""


@dataclass(frozen=True)
class SteeredModel:
    """A language model with its tokenizer and map on one device, and what both are known by.

    `kind` is the architecture, as `model_type` of a config says it.  The map is in fp32, whatever the model is in;
    `map_key` is that of the saved one (`maps.map_key`).  `origin` is the name and the commit of a model of the hub
    (`hub.origin_of`), nothing of any other.
    """

    name: str
    identity: Identity
    kind: str
    model: LanguageModel
    tokenizer: ChatTokenizer
    step: AffineMap
    map_key: str
    provenance: Provenance = UNKNOWN
    origin: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
    def steering(self) -> FullPrecisionMap:
        """The map as it is applied to states of the model's precision."""
        return FullPrecisionMap(self.step)

    @property
    def _weights(self) -> list[nn.Parameter]:
        assert isinstance(self.model, nn.Module)
        return list(self.model.parameters())

    @property
    def facts(self) -> ModelFacts:
        """What analyses must know; there are no nodes, and requests are for up to eight steps."""
        return ModelFacts(self.name, self.key, self.model.loops, STEPS, 0, self.model.heads, {"J": 1})

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
            **self.origin,
        }  # fmt: skip


def load_language(
    folder: Path,
    step: Path,
    *,
    name: str | None = None,
    loops: int | None = None,
    boundary: Boundary | None = None,
    loop: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    any_map: bool = False,
) -> SteeredModel:
    """A model folder and a saved map as a model, called `name` or as its folder is; the model computes in `dtype`.

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
    shape = outline(folder, boundary=boundary, loop=loop)
    loaded = load_steering_map(step, folder, shape.width)
    step_key, identity = map_key(loaded), identify(folder)
    provenance = check_fitted(step, folder, shape.boundary, loop=shape.loop, identity=identity, any_map=any_map)
    model = load_model(
        folder, loops=provenance.loops if loops is None else loops, boundary=boundary, loop=loop, device=device,
        dtype=dtype,
    )  # fmt: skip
    return SteeredModel(
        name or called(folder), identity, str(config["model_type"]), model, tokenizer,
        loaded.float().to(device), step_key, provenance, origin_of(folder),
    )  # fmt: skip


def recorded(
    trained: SteeredModel,
    store: Store,
    experiment: str,
    settings: Mapping[str, Any],
    measure: Callable[[], Outcome],
    layout: LayoutOf,
) -> Record:
    """The record of these settings: from the store, or measured and written to it.

    Precision is a setting where it is not fp32, and a note always; that a map was fitted to another model is both.
    """
    chosen = {**settings, "loops": trained.model.loops, "boundary": trained.model.boundary}
    if (part := getattr(trained.model, "loop", None)) is not None:  # some layers of a pretrained model
        chosen["loop"] = part
    if trained.precision != "fp32":
        chosen["dtype"] = trained.precision
    if trained.provenance.misfit:
        chosen[ANY_MAP] = True
    inputs = {WEIGHTS_SHA: trained.key, IDENTITY: trained.identity.key, "map": trained.map_key}
    wanted = Wanted(experiment, trained.facts, chosen, inputs, trained.device, layout, raw=True)

    def noted() -> Outcome:
        found = measure()
        return found._replace(notes={**trained.about, **found.notes})

    return recording.recorded(wanted, store, noted)
