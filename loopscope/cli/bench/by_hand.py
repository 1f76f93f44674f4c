"""Sweeps as an expert writes them by hand for a looped Llama: transformers' own layers, and a cache of keys and values.

The base run keeps what enters every layer of every loop, its keys and its values.  A patched run then starts in the
layer of its patch and computes the rows that the patch can reach, which attend to cached keys of the rows before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.address import Address


class ByHand:
    """One input [1, T] through a looped Llama, with what its base run computed on the way."""

    def __init__(
        self,
        model: Any,
        tokens: Int[Tensor, "1 T"],
        loops: int,
        address: Address | None = None,
        source: ByHand | None = None,
    ) -> None:
        """With an address, one place of the run is from another; `readouts` are those of the last row, loop by loop."""
        self.model, self.length, self.loops = model, tokens.shape[1], loops
        self.decoders: list[Any] = list(model.body.layers)
        self.places = [(loop, layer) for loop in range(1, loops + 1) for layer in range(1, len(self.decoders) + 1)]
        self.angles = model.body.rotary_emb(model.embed(tokens), torch.arange(self.length)[None])
        self.entered: dict[tuple[int, int], Tensor] = {}
        self.keys: dict[tuple[int, int], Tensor] = {}
        self.values: dict[tuple[int, int], Tensor] = {}
        self.z: dict[tuple[int, int], Tensor] = {}
        self.readouts: list[Tensor] = []
        x = model.embed(tokens)
        for place in self.places:
            x = self._through(x, place, address, source, keep=True)
            if place[1] == len(self.decoders):
                self.readouts.append(model.read(x[:, -1]) if place[0] == loops or address is None else x)
        self.logits = self.readouts[-1]

    def heads(self, loop: int, layer: int, heads: Sequence[int], source: ByHand) -> Float[Tensor, "heads vocabulary"]:
        """Logits of the last row, each with one head's output there from another run; these heads side by side."""
        at, last = self.places.index((loop, layer)), self.length - 1
        place, size = self.places[at], self.model.head_size
        decoder = self.decoders[layer - 1]
        entered = self.entered[place][:, last:]
        z = self.z[place][:, last:].repeat(len(heads), 1, 1)
        for run, head in enumerate(heads):
            cut = slice(head * size, (head + 1) * size)
            z[run, 0, cut] = source.z[place][0, last, cut]
        x = self._rest(decoder, entered.expand(len(heads), -1, -1), z)
        for later in self.places[at + 1 :]:
            x = self._layer(x, later, last)
        return self.model.read(x[:, -1])

    def resid(self, loop: int, layer: int, row: int, source: ByHand) -> Float[Tensor, "1 vocabulary"]:
        """Logits of the last row, with what enters a layer in one row from another run."""
        at = self.places.index((loop, layer))
        x = self.entered[loop, layer][:, row:].clone()
        x[:, 0] = source.entered[loop, layer][:, row]
        for place in self.places[at:]:
            x = self._layer(x, place, row)
        return self.model.read(x[:, -1])

    def whole(self, address: Address, source: ByHand) -> Float[Tensor, "1 vocabulary"]:
        """The plain way: the whole run once more, with one place changed."""
        x = self.entered[self.places[0]]
        for place in self.places:
            x = self._through(x, place, address, source, keep=False)
        return self.model.read(x[:, -1])

    def _through(
        self, x: Tensor, place: tuple[int, int], address: Address | None, source: ByHand | None, keep: bool
    ) -> Tensor:
        """One layer of a whole run, with what enters it or a head's output from another run if the address is here."""
        change = None
        if address is not None and source is not None and place == (address.loop, address.site.layer):
            row = address.site.numbers[0]
            if address.site.component == "resid":
                x = x.clone()
                x[:, row] = source.entered[place][:, row]
            elif address.site.heads is not None:
                (head,) = address.site.heads
                change = (row, slice(head * self.model.head_size, (head + 1) * self.model.head_size), source.z[place])
        if keep:
            self.entered[place] = x
        return self._layer(x, place, 0, keep=keep, change=change)

    def _layer(
        self,
        x: Float[Tensor, "runs R d"],
        place: tuple[int, int],
        first: int,
        keep: bool = False,
        change: tuple[int, slice, Tensor] | None = None,
    ) -> Float[Tensor, "runs R d"]:
        """One layer on the rows from `first` on; rows before them are in the cache."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        decoder = self.decoders[place[1] - 1]
        attention, y = decoder.self_attn, decoder.input_layernorm(x)
        q, k, v = (
            projection(y).unflatten(-1, (-1, self.model.head_size)).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        cos, sin = (each[:, first:] for each in self.angles)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        if keep:
            self.keys[place], self.values[place] = k, v
        if first:
            k = torch.cat([self.keys[place][:, :, :first].expand(len(x), -1, -1, -1), k], 2)
            v = torch.cat([self.values[place][:, :, :first].expand(len(x), -1, -1, -1), v], 2)
        mask = None if q.shape[2] == 1 or not first else torch.ones(q.shape[2], k.shape[2]).tril(first).bool()
        z = nnf.scaled_dot_product_attention(
            q, k, v, mask, is_causal=not first and q.shape[2] > 1, scale=attention.scaling, enable_gqa=True
        )
        z = z.transpose(1, 2).flatten(2)
        if keep:
            self.z[place] = z
        if change is not None:
            row, cut, value = change
            z = z.clone()
            z[:, row, cut] = value[:, row, cut]
        return self._rest(decoder, x, z)

    @staticmethod
    def _rest(decoder: Any, x: Tensor, z: Tensor) -> Tensor:
        """What follows the heads' outputs."""
        x = x + decoder.self_attn.o_proj(z)
        return x + decoder.mlp(decoder.post_attention_layernorm(x))
