"""The small models of tests/golden that have a prelude, a core and a coda, and others of their families."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from loopscope.execute.plain import plain_run
from loopscope.models.adapter import Adapter
from loopscope.models.folders import TOLD, build, load
from loopscope.program import Program
from tests.ouro_tiny import GOLDEN, write_folder


def config_of(name: str) -> dict[str, Any]:
    """A config as released, with a model type."""
    values = json.loads((GOLDEN / f"{name}_tiny.config.json").read_text(encoding="utf-8"))
    return {"model_type": "parcae", **values} if name == "parcae" else values


@cache
def golden(name: str) -> dict[str, Tensor]:
    """Inputs and outputs of the public code."""
    return load_file(GOLDEN / f"{name}_tiny.safetensors")


def weights(name: str) -> dict[str, Tensor]:
    """The weights under their released names."""
    return {key.removeprefix("weights."): t for key, t in golden(name).items() if key.startswith("weights.")}


@cache
def golden_model(name: str) -> Adapter:
    """The small model, without a folder."""
    tensors = weights(name)
    model = build(TOLD[config_of(name)["model_type"]](config_of(name), tensors))
    model.load_state_dict({key: t for key, t in tensors.items() if key not in model.tables}, assign=True)
    return model.eval()


def released(folder: Path, name: str, tensors: Mapping[str, Tensor] | None = None, **changes: Any) -> Path:
    """A folder as released, with other weights or settings where they are given."""
    return write_folder(folder, dict(weights(name) if tensors is None else tensors), config_of(name) | changes)


def drawn(config: Mapping[str, Any], names: tuple[str, ...] = (), seed: int = 0) -> Adapter:
    """A model of a config with random weights in which every part matters."""
    told = TOLD[config["model_type"]](config, names) if names else config
    model = build(told).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(noise + (parameter.dim() == 1))
    return model.eval()


def loaded(folder: Path, name: str, tensors: Mapping[str, Tensor] | None = None, **changes: Any) -> Adapter:
    """The model of a released folder."""
    return load(released(folder, name, tensors, **changes))


def greedy(model: Adapter, ids: Tensor, length: int, text: str) -> Tensor:
    """Tokens continued to a length, each by a whole run of its own."""
    program = Program.parse(text)
    while ids.shape[1] < length:
        logits = plain_run(model, {"main": ids}, program).read(program.points[-1])
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return ids


def close_to(found: Tensor, expected: Tensor, tolerance: float, relative: float = 0) -> None:
    torch.testing.assert_close(found, expected, rtol=relative, atol=tolerance)
