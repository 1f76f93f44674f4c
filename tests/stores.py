"""What tests put into a store, what they damage there, and all that lies under a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope.maps import AffineMap, map_files
from loopscope.model import LoopedTransformer
from loopscope.store.store import Artefact, Store
from tests.tiny import tiny_map, tiny_model

RESULT = {"selected": {"update": 15000, "score": [1.0]}, "digests": {}, "history": []}


def bf16(model: LoopedTransformer) -> dict[str, Tensor]:
    return {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}


def put_backbone(
    store: Store,
    seed: int = 3,
    model: LoopedTransformer | None = None,
    tensors: dict[str, Tensor] | None = None,
    settings: dict[str, Any] | None = None,
    result: object = RESULT,
    **recipe: object,
) -> Artefact:
    """A backbone as training writes it: tiny, random, and with parts replaced if asked."""
    model = model or tiny_model(seed=seed)
    settings = model.config.to_dict() if settings is None else settings
    with store.write("backbone", {"recipe": {"name": "d8l6", "model": settings, **recipe}, "seed": seed}) as draft:
        draft.tensors("weights.safetensors", bf16(model) if tensors is None else tensors)
        draft.json("result.json", result)
    return draft.artefact


def put_fit(store: Store, backbone: Artefact | str, fit: int = 1, step: AffineMap | None = None) -> Artefact:
    """A map as training writes it."""
    with store.write("map", {"recipe": {"name": "one"}, "fit": fit}, {"backbone": backbone}) as draft:
        for name, data in map_files(step or tiny_map(fit)).items():
            draft.bytes(name, data)
        draft.json("result.json", {"selected": {"update": 1200, "score": [0.98765, 0.5]}})
    return draft.artefact


def flip(path: Path) -> None:
    """One bit of the last byte."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def everything_under(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def put(store: Store, config: dict, kind: str = "map", data: bytes = b"content") -> Artefact:
    with store.write(kind, config) as draft:
        draft.bytes("data.bin", data)
    return draft.artefact
