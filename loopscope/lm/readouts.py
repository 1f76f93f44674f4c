"""What a language model would say after every loop: logits, the likeliest tokens, Ouro's exit gate.

The same head reads every loop's state, so that a text is read `loops` times over in one pass.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from loopscope.errors import InputError
from loopscope.files import StoreError, first_line, reporting, sync_folder
from loopscope.lm.ouro import Ouro
from loopscope.lm.passes import LanguageModel, states
from loopscope.program import F
from loopscope.protocol import device_of


@dataclass(frozen=True)
class Readouts:
    """Logits after every loop, in float32; `gates` are Ouro's exit gates before their sigmoid, None for others.

    `tokens` and `mask` are what was read; rows where the mask is False are padding, and their readouts mean nothing.
    """

    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    logits: Float[Tensor, "loops B R vocabulary"]
    gates: Float[Tensor, "loops B R"] | None

    def top(self, count: int) -> tuple[Int[Tensor, "loops B count"], Float[Tensor, "loops B count"]]:
        """The likeliest next tokens at the last row, most likely first, and their probabilities."""
        found = self.logits[:, :, -1].softmax(-1).topk(min(count, self.logits.shape[-1]), -1)
        return found.indices, found.values


@torch.no_grad()
def readouts(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    *,
    loops: int | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    last: bool = False,
) -> Readouts:
    """Read every loop of a plain run: all rows, or only the `last`.  `loops` is by default the model's own number.

    `mask` is False at left padding.  InputError as `passes.states`, and where the logits are not finite.
    """
    program = F ** (model.loops if loops is None else loops)
    device = device_of(model)
    tokens = tokens.to(device)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.to(device)
    found = states(model, tokens, program, mask=None if bool(mask.all()) else mask)
    logits, gates = [], []
    for loop in range(1, program.calls + 1):
        h = found[f"h{loop}"][:, -1:] if last else found[f"h{loop}"]
        logits.append(model.read(h).float())
        if not torch.isfinite(logits[-1]).all():
            raise InputError(f"the logits after loop {loop} are not finite; the states are {h.dtype}")
        if isinstance(model, Ouro):
            gates.append(model.gate_logits(h).float())
    return Readouts(tokens, mask, torch.stack(logits), torch.stack(gates) if gates else None)


def write_readouts(file: Path, found: Readouts) -> None:
    """Write readouts as safetensors, a file that appears whole or not at all; one that is there is replaced.

    Tensors: `logits_by_loop` [loops, batch, tokens, vocabulary], `tokens`, `mask` (1 for real rows) and, for Ouro,
    `gate_logits_by_loop` [loops, batch, tokens].  StoreError where the file system refuses.
    """
    tensors = {"logits_by_loop": found.logits, "tokens": found.tokens, "mask": found.mask.long()}
    if found.gates is not None:
        tensors["gate_logits_by_loop"] = found.gates
    write_tensors(file, tensors)


def write_tensors(file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write tensors as safetensors with texts `about` them; as `write_readouts`, whole or not at all."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}.draft")
    with reporting("write", file):
        try:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, draft, dict(about or {}))
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(file)
            sync_folder(file.absolute().parent)
        except SafetensorError as error:  # how safetensors tells that the system refused
            raise StoreError(f"cannot write {file}: {first_line(error)}") from error
        finally:
            draft.unlink(missing_ok=True)
