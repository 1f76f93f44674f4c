"""The small TRM of tests/golden, small HRMs, and a forward of both written out."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
import torch.nn.functional as nnf
from safetensors.torch import load_file
from torch import Tensor

from loopscope.models.trm import TRM, trm_from_config
from tests.ouro_tiny import GOLDEN

CONFIG: dict[str, Any] = json.loads((GOLDEN / "trm_tiny.config.json").read_text(encoding="utf-8"))
HRM_CONFIG: dict[str, Any] = {
    "model_type": "hrm", "seq_len": 7, "vocab_size": 13, "num_puzzle_identifiers": 4, "batch_size": 3,
    "puzzle_emb_ndim": 40, "H_cycles": 2, "L_cycles": 2, "H_layers": 1, "L_layers": 2, "hidden_size": 24,
    "expansion": 4, "num_heads": 3, "pos_encodings": "rope", "halt_max_steps": 3, "halt_exploration_prob": 0.1,
}  # fmt: skip


@cache
def golden() -> dict[str, Tensor]:
    """Inputs and outputs of the public code."""
    return load_file(GOLDEN / "trm_tiny.safetensors")


def weights() -> dict[str, Tensor]:
    """The weights of the small model under their released names."""
    return {name.removeprefix("weights."): t for name, t in golden().items() if name.startswith("weights.")}


def tiny_trm() -> TRM:
    """The small model of the public code."""
    model = trm_from_config(CONFIG)
    model.load_state_dict(weights())
    return model.eval()


def drawn(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> TRM:
    """A model of other settings, every weight large enough to count, and small enough for roundings not to grow."""
    model = trm_from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in (*model.parameters(), *model.buffers()):
            each.copy_(torch.randn(each.shape, generator=generator) * 0.1)
    return model.to(dtype).eval()


def written_out(
    config: dict[str, Any], tensors: dict[str, Tensor], tokens: Tensor, puzzles: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Logits [steps, B, T, vocabulary] and q-head [steps, B, 2] of an HRM, from nothing but its weights and settings.

    Written from the order of operations, with none of the library's pieces; a TRM is an HRM whose H is its L.
    """
    w = {name.removeprefix("inner."): tensor for name, tensor in tensors.items()}
    d, heads = config["hidden_size"], config["num_heads"]
    size = d // heads
    x = w["embed_tokens.embedding_weight"][tokens]
    if config["puzzle_emb_ndim"]:
        front = w["puzzle_emb.weights"][puzzles]
        lead = -(-front.shape[1] // d)
        front = nnf.pad(front, (0, lead * d - front.shape[1])).view(len(tokens), lead, d)
        x = torch.cat([front, x], 1)
    if config["pos_encodings"] == "learned":
        x = (x + w["embed_pos.embedding_weight"][: x.shape[1]]) * 0.707106781
    e = x * d**0.5
    angle = torch.outer(torch.arange(e.shape[1]).to(e), 1e4 ** -(torch.arange(0, size, 2).to(e) / size))

    def turned(y: Tensor) -> Tensor:
        if config["pos_encodings"] != "rope":
            return y
        z = torch.complex(y[..., : size // 2], y[..., size // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([z.real, z.imag], -1)

    def norm(y: Tensor) -> Tensor:
        return y / (y.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    def stack(name: str, y: Tensor) -> Tensor:
        for number in range(config[f"{name[0]}_layers"]):
            at = f"{name}.layers.{number}."
            qkv = (y @ w[f"{at}self_attn.qkv_proj.weight"].T).view(*y.shape[:2], 3, heads, size)
            q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
            alpha = (turned(q) @ turned(k).mT / size**0.5).softmax(-1)
            mixed = (alpha @ v).transpose(1, 2).reshape(y.shape)
            y = norm(y + mixed @ w[f"{at}self_attn.o_proj.weight"].T)
            gate, up = (y @ w[f"{at}mlp.gate_up_proj.weight"].T).split(w[f"{at}mlp.down_proj.weight"].shape[1], -1)
            y = norm(y + (gate * gate.sigmoid() * up) @ w[f"{at}mlp.down_proj.weight"].T)
        return y

    low, high = w["L_init"].expand_as(e), w["H_init"].expand_as(e)
    logits, q = [], []
    for _ in range(steps):
        for _ in range(config["H_cycles"]):
            for _ in range(config["L_cycles"]):
                low = stack("L_level", low + high + e)
            high = stack("H_level", high + low)
        logits.append((high @ w["lm_head.weight"].T)[:, e.shape[1] - tokens.shape[1] :])
        q.append(high[:, 0] @ w["q_head.weight"].T + w["q_head.bias"])
    return torch.stack(logits), torch.stack(q)
