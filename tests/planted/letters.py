"""A looped model that walks the letter's way by hand-made attention, so that what every patch must do is known.

The tokenizer keeps names and full stops: a stop, ten rules of three tokens (giver, taker, stop), the start at token 31,
two stops, and the last of 35 tokens, which asks.  The state of a row holds its own name, the giver of its rule and, at
the asking row, who holds the letter.  Layer 1 tells takers their givers and the asking row the start.  Two layers make
one transfer each: the asking row looks for the taker whose giver is the present holder, and takes over the taker's
name.  They do so in loop 1 and, later, only in loops before which J has raised a flag: four loops make eight transfers
with J, two without.

In the late of the two layers the name is carried half by one head and half by another: these two are the heads to find.
The other heads look at a full stop and bring nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from loopscope.maps import Dense
from loopscope.tasks.letters import NAMES

END, STOP, ASK, FIRST_NAME, VOCABULARY = 0, 1, 2, 3, 13
LAYERS, HEADS, SIZE = 6, 4, 12
EARLY, LATE, CARRIERS = 2, 5, (1, 3)
NAME, GIVER, HOLDER, BROUGHT = (slice(10 * i, 10 * i + 10) for i in range(4))
ASKS, FRESH, GO, WIDTH = 40, 41, 42, 43
START, SINK, SHARP = 31, 10, 60.0


class Words:
    """The tokenizer: names and full stops, everything else is left out."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        found = re.findall(rf"{'|'.join(NAMES)}|\.", text)
        return [STOP if word == "." else FIRST_NAME + NAMES.index(word) for word in found]

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True, **settings: object
    ) -> list[int]:
        return [*self.encode(messages[0]["content"]), ASK]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return " ".join(NAMES[token - FIRST_NAME] for token in tokens if token >= FIRST_NAME)


class PlantedLayer:
    """Layer `number` of F."""

    scale = 1.0

    def __init__(self, number: int) -> None:
        self.number = number

    def project(self, x: Tensor, rows: Tensor, parts: str = "qkv") -> tuple[Tensor, ...]:
        return tuple(getattr(self, part)(x, rows.expand(x.shape[:-1])) for part in parts)

    def q(self, x: Tensor, rows: Tensor) -> Tensor:
        """The asking row looks for the holder's rule, if it walks; everybody else for a full stop."""
        q = x.new_zeros((*x.shape[:-2], HEADS, x.shape[-2], SIZE))
        q[..., SINK] = SHARP
        if self.number == 1:  # by position: the giver is one row before its taker, the start is known
            q = self._at(torch.where(rows < START, rows - 1, torch.full_like(rows, START)), x)
        walks = (x[..., ASKS] > 0.5) & ((x[..., FRESH] > 0.5) | (x[..., GO] > 0.5))
        for head in self.carriers:
            q[..., head, :, :10] = SHARP * x[..., HOLDER] * walks[..., None]
            q[..., head, :, SINK] = SHARP * ~walks
        return q

    def k(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.number == 1:
            return self._at(rows, x) / SHARP
        k = x.new_zeros((*x.shape[:-2], HEADS, x.shape[-2], SIZE))
        takers = (rows % 3 == 2) & (rows < START)
        k[..., :10] = ((x[..., GIVER] > 0.5) & takers[..., None]).to(x)[..., None, :, :]
        k[..., SINK] = (x[..., NAME].sum(-1) < 0.5).to(x)[..., None, :]
        return k

    def v(self, x: Tensor, rows: Tensor) -> Tensor:
        v = x.new_zeros((*x.shape[:-2], HEADS, x.shape[-2], SIZE))
        shares = {1: {0: slice(0, 10)}, EARLY: {0: slice(0, 10)}}.get(
            self.number, dict(zip(self.carriers, (slice(0, 5), slice(5, 10)), strict=False))
        )
        for head, share in shares.items():
            v[..., head, :, share] = x[..., NAME][..., share]
        return v

    @property
    def carriers(self) -> tuple[int, ...]:
        return {EARLY: (0,), LATE: CARRIERS}.get(self.number, ())

    def _at(self, rows: Tensor, x: Tensor) -> Tensor:
        """A position as a point on a circle, so that it is nearest to itself."""
        angle = rows.to(x) * (2 * torch.pi / 64)
        point = torch.stack([angle.cos(), angle.sin()], -1) * SHARP * 200
        return nn.functional.pad(point, (0, SIZE - 2))[..., None, :, :].expand(*x.shape[:-2], HEADS, -1, SIZE).clone()

    def attn_out(self, z: Tensor) -> Tensor:
        added = z.new_zeros((*z.shape[:-3], z.shape[-2], WIDTH))
        added[..., BROUGHT] = z[..., :10].sum(-3)
        return added

    def mlp_out(self, x: Tensor) -> Tensor:
        """What was brought becomes the holder at the asking row and, in layer 1, the giver elsewhere."""
        added = torch.zeros_like(x)
        brought = (x[..., BROUGHT] > 0.5).to(x)
        asks, some = x[..., ASKS, None] > 0.5, brought.sum(-1, keepdim=True) > 0.5
        added[..., BROUGHT] = -x[..., BROUGHT]
        if self.number == 1:
            begins = asks & (x[..., HOLDER].sum(-1, keepdim=True) < 0.5)
            added[..., HOLDER] = brought * begins
            added[..., GIVER] = (brought - x[..., GIVER]) * ~asks
        else:
            added[..., HOLDER] = (brought - x[..., HOLDER]) * (asks & some)
        if self.number == LAYERS:
            added[..., FRESH], added[..., GO] = -x[..., FRESH], -x[..., GO]
        return added


class PlantedWalker(nn.Module):
    """The model; a `LanguageModel`."""

    boundary = "none"
    ends = (END,)
    width, heads, head_size, positions, loops = WIDTH, HEADS, SIZE, 64, 4

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(VOCABULARY, WIDTH))
        with torch.no_grad():
            for number in range(len(NAMES)):
                self.table[FIRST_NAME + number, number] = 1.0
            self.table[ASK, ASKS] = self.table[ASK, FRESH] = 1.0
        self.layers = tuple(PlantedLayer(number) for number in range(1, LAYERS + 1))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]

    def gate_logits(self, h: Tensor) -> None:
        """There is no exit gate."""

    def rotary_angles(self, rows: Tensor, h: Tensor) -> Tensor:
        return rows

    def close(self, h: Tensor) -> Tensor:
        return h

    def read(self, h: Tensor) -> Tensor:
        logits = h.new_zeros((*h.shape[:-1], VOCABULARY))
        logits[..., FIRST_NAME:] = 9 * h[..., HOLDER]
        logits[..., END] = 1.0
        return logits


def raising(by: float = 1.0) -> Dense:
    """The map: it raises the flag in every row, and changes nothing else."""
    step = Dense(WIDTH)
    with torch.no_grad():
        step.b[GO] = by
    return step.requires_grad_(False)
