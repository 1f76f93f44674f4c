"""What a language model would say after every loop: logits, the likeliest tokens, an exit gate.

The same head reads every loop's state, so that a text is read `loops` times over in one pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from loopscope.finite import Watch
from loopscope.models.passes import LanguageModel, states
from loopscope.program import F
from loopscope.protocol import device_of
from loopscope.store.files import StoreError, first_line
from loopscope.store.outputs import MARK, write_file


@dataclass(frozen=True)
class Readouts:
    """Logits after every loop, in float32; `gates` are exit gates before their sigmoid, None for a model without.

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
def read_loops(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    *,
    loops: int | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    last: bool = False,
) -> Readouts:
    """Read every loop of a plain run: all rows, or only the `last`.  `loops` is by default the model's own number.

    `mask` is False at left padding.  Errors as `passes.states`; NotFiniteError also for logits.
    """
    program = F ** (model.loops if loops is None else loops)
    device = device_of(model)
    tokens = tokens.to(device)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.to(device)
    watch = Watch()
    found = states(model, tokens, program, mask=None if bool(mask.all()) else mask, watch=watch)
    logits, gates = [], []
    for loop in range(1, program.calls + 1):
        h = found[f"h{loop}"][:, -1:] if last else found[f"h{loop}"]
        logits.append(model.read(h).float())
        watch.see(logits[-1], f"the logits after loop {loop}")
        if (gate := model.gate_logits(h)) is not None:
            gates.append(gate.float())
    watch.check(f"'{program}'", found["h0"].dtype)
    return Readouts(tokens, mask, torch.stack(logits), torch.stack(gates) if gates else None)


def write_readouts(file: Path, found: Readouts, force: bool = False) -> None:
    """Write readouts as safetensors, a file that appears whole or not at all.

    Tensors: `logits_by_loop` [loops, batch, tokens, vocabulary], `tokens`, `mask` (1 for real rows) and, for a model
    with exit gates, `gate_logits_by_loop` [loops, batch, tokens].  InputError where something is there, but for a file
    of ours with `force`; StoreError where the file system refuses.
    """
    tensors = {"logits_by_loop": found.logits, "tokens": found.tokens, "mask": found.mask.long()}
    if found.gates is not None:
        tensors["gate_logits_by_loop"] = found.gates
    write_tensors(file, tensors, force=force)


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None, force: bool = False
) -> None:
    """Write tensors as safetensors, and what they are `about` as JSON in the metadata, under `MARK`.

    As `write_readouts`, whole or not at all.
    """
    metadata = {MARK: json.dumps(dict(about or {}), sort_keys=True)}

    def fill(draft: Path) -> None:
        try:
            save_file({name: each.contiguous().cpu() for name, each in tensors.items()}, draft, metadata)
        except SafetensorError as error:  # how safetensors tells that the system refused
            raise StoreError(f"cannot write {file}: {first_line(error)}") from error

    write_file(file, fill, force)
