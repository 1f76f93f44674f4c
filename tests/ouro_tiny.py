"""The small Ouro model of tests/golden, and folders as they are released."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from loopscope.maps import Dense
from loopscope.models.ouro import Ouro, OuroConfig

GOLDEN = Path(__file__).parent / "golden"
CONFIG: dict[str, Any] = json.loads((GOLDEN / "ouro_tiny.config.json").read_text(encoding="utf-8"))


@cache
def golden() -> dict[str, Tensor]:
    """Inputs and outputs of the public code."""
    return load_file(GOLDEN / "ouro_tiny.safetensors")


def weights() -> dict[str, Tensor]:
    """The weights of the small model under their released names."""
    return {name.removeprefix("weights."): t for name, t in golden().items() if name.startswith("weights.")}


def tiny_ouro(dtype: torch.dtype = torch.float32, **changes: Any) -> Ouro:
    """The small model; with changed settings, the same architecture with weights drawn alike."""
    model = Ouro(OuroConfig.from_dict(CONFIG | changes))
    if not changes:
        model.load_state_dict(weights())
        return model.to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(noise + (parameter.dim() == 1))
    return model.to(dtype).eval()


def ouro_map(seed: int = 0, dtype: torch.dtype = torch.float32) -> Dense:
    """A dense map far enough from the identity to change what is said."""
    step = Dense(48)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return step.to(dtype)


def write_folder(
    folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None, shards: int = 1
) -> Path:
    """A folder as released: one file, or shards with an index."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config), encoding="utf-8")
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    placed: dict[str, str] = {}
    names = sorted(tensors)
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number::shards]
        save_file({name: tensors[name] for name in mine}, folder / file)
        placed |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": 0}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder
