"""What a language model would say after every loop: logits, the likeliest tokens, an exit gate.

The same head reads every loop's state, so that a text is read `loops` times over in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.execute.unequal import Decoder
from loopscope.finite import Watch, has_bad
from loopscope.models.adapter import program_of, readings_of
from loopscope.models.decoding import pad_left
from loopscope.models.passes import LanguageModel, one_pass
from loopscope.program import Start
from loopscope.protocol import device_of
from loopscope.results import Tabular, numbered
from loopscope.store.files import first_line
from loopscope.store.tensors import write_tensors
from loopscope.table import Table


@dataclass(frozen=True, repr=False)
class Readouts(Tabular):
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

    def table(self, top: int = 1, tokenizer: Decoder | None = None) -> Table:
        """The likeliest next tokens of every example, row and loop; padding is left out.

        `read` is the token that stands in the row.  With a `tokenizer` both are texts, too: `text` and `read_text`.
        """
        loops, _, rows, vocabulary = self.logits.shape
        best = [each.softmax(-1).topk(min(top, vocabulary), -1) for each in self.logits]
        likely = torch.stack([each.values for each in best], 2).double().cpu()
        tokens, first = torch.stack([each.indices for each in best], 2).cpu(), self.tokens.shape[1] - rows
        at = [(example, row) for example, row in self.mask[:, first:].nonzero().tolist()]
        places = [(*place, loop, rank) for place in at for loop in range(loops) for rank in range(likely.shape[-1])]
        columns: dict[str, list[Any]] = {
            "example": [place[0] for place in places],
            "place": ["state"] * len(places),
            "row": [first + place[1] for place in places],
            "read": [int(self.tokens[place[0], first + place[1]]) for place in places],
            "loop": [place[2] + 1 for place in places],
            "rank": [place[3] + 1 for place in places],
            "token": [int(tokens[place]) for place in places],
            "probability": [float(likely[place]) for place in places],
        }
        if tokenizer is not None:
            for name, of in (("read_text", "read"), ("text", "token")):
                text = {token: tokenizer.decode([token]) for token in set(columns[of])}
                columns[name] = [text[token] for token in columns[of]]
        return Table("readouts", columns)

    def _words(self) -> str:
        loops, examples, rows, vocabulary = self.logits.shape
        gates = "" if self.gates is None else ", exit gates"
        sizes = [numbered(loops, "loop"), numbered(examples, "example"), numbered(rows, "row")]
        return f"{', '.join(sizes)}, {vocabulary:,} tokens{gates}"

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {"logits_by_loop": self.logits, "tokens": self.tokens, "mask": self.mask.long()}
        return tensors if self.gates is None else {**tensors, "gate_logits_by_loop": self.gates}


@torch.no_grad()
def read_loops(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    *,
    loops: int | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    last: bool = False,
    start: Start = None,
    state: Float[Tensor, "B rows s"] | None = None,
    puzzles: Sequence[int] | None = None,
) -> Readouts:
    """Read every loop of a plain run: all rows, or only the `last`.  `loops` is by default the model's own number.

    - `mask` is False at left padding.
    - `start` is where the model starts, such as `Seed(3)` or `Zeros()`; `state`, in its place, is a given h0.
    - `puzzles` are those whose rows stand in front of each example, for a model that has such rows; these are not read.

    Errors as `passes.one_pass`; NotFiniteError also for logits.
    """
    loops = model.loops if loops is None else loops
    program = program_of(model, loops, start if state is None else 0)
    device = device_of(model)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    rows, seen = _with_puzzles(model, tokens, mask, puzzles)
    tokens, mask, rows = (each.to(device) for each in (tokens, mask, rows))
    watch = Watch()
    found = one_pass(
        model, rows, program, mask=None if bool(seen.all()) else seen.to(device), watch=watch,
        state=None if state is None else state.to(device, _kind(model)),
    )  # fmt: skip
    own = slice(-1 if last else rows.shape[1] - tokens.shape[1], None)
    logits, gates = [], []
    for loop, point in enumerate(readings_of(model, program, loops), start=1):
        logits.append(found.read(point, own).float())
        watch.see(logits[-1], f"the logits after loop {loop}")
        if (gate := model.gate_logits(found.states[point][:, own])) is not None:
            gates.append(gate.float())
    watch.check(f"'{program}'", found.states[program.points[0]].dtype)
    return Readouts(tokens, mask, torch.stack(logits), torch.stack(gates) if gates else None)


def behind_puzzles(
    model: LanguageModel, texts: Sequence[Sequence[int]], puzzles: Sequence[int] | None
) -> list[list[int]]:
    """What a model runs on: every text behind the rows of its puzzle, for a model that has such rows.

    InputError for puzzles that the model has not, for another number of them, and for none where there must be some.
    """
    put: Callable[..., Tensor] | None = getattr(model, "with_puzzles", None)
    if put is None or (puzzles is None and not getattr(model, "lead", 0)):
        if puzzles is not None:
            raise InputError("this model has no rows for puzzles")
        return [list(text) for text in texts]
    if puzzles is not None and len(puzzles) != len(texts):
        raise InputError(f"{len(texts)} texts need as many puzzles, not {len(puzzles)}")
    return [
        put(torch.tensor([list(text)]), None if puzzles is None else [puzzles[number]])[0].tolist()
        for number, text in enumerate(texts)
    ]


def _with_puzzles(
    model: LanguageModel, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], puzzles: Sequence[int] | None
) -> tuple[Int[Tensor, "B rows"], Bool[Tensor, "B rows"]]:
    """What the model runs on, padded on the left: every text behind the rows of its puzzle."""
    texts = [text[real].tolist() for text, real in zip(tokens, mask, strict=True)]
    if (found := behind_puzzles(model, texts, puzzles)) == texts:
        return tokens, mask
    return pad_left(found)


def _kind(model: LanguageModel) -> torch.dtype | None:
    """The type that a model computes in, by its parameters."""
    return next((each.dtype for each in model.parameters()), None) if isinstance(model, nn.Module) else None


def given_state(file: Path) -> Float[Tensor, "B rows s"]:
    """The tensor `state` of a safetensors file, alone in it; InputError for anything else.

    Texts are padded on the left: the rows of a shorter one are the last of its part of the state.
    """
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"cannot read a state from {file}: {first_line(error)}") from error
    if set(found) != {"state"}:
        raise InputError(f"{file} must hold one tensor 'state', not {', '.join(sorted(found)) or 'none'}")
    state = found["state"]
    if state.dim() != 3 or not state.is_floating_point() or has_bad(state):
        kind = f"{str(state.dtype).removeprefix('torch.')} {list(state.shape)}"
        raise InputError(f"the state of {file} must be finite numbers [batch, rows, d], not {kind}")
    return state


def write_readouts(file: Path, found: Readouts, force: bool = False) -> None:
    """Write readouts as safetensors, a file that appears whole or not at all.

    Tensors: `logits_by_loop` [loops, batch, tokens, vocabulary], `tokens`, `mask` (1 for real rows) and, for a model
    with exit gates, `gate_logits_by_loop` [loops, batch, tokens].  InputError where something is there, but for a file
    of ours with `force`; StoreError where the file system refuses.
    """
    write_tensors(file, found._tensors(), force=force)
