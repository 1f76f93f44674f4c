"""Decoder layers of transformers, cut into the pieces that can be read and replaced; one kind for each way to add up.

| kind | families | attention sees | its output | MLP sees | its output |
|---|---|---|---|---|---|
| `StackLayer` | Llama, Qwen2, Qwen3 | N1 x | added | N2 of the stream | added |
| `WindowedLayer` | Mistral | the same, with one window for all layers | | | |
| `BetweenNormsLayer` | Gemma2 | N1 x, scores capped | N2, added | N3 of the stream | N4, added |
| `AfterNormsLayer` | OLMo2 | x, q and k normed before they are split | N1, added | the stream | N2, added |
| `FusedLayer` | GPT-2 | N1 x, no rotation | added | N2 of the stream | added |
| `ParallelLayer` | GPT-NeoX | N1 x, part of a head rotated | added | N2 x, or of the stream | added |

A layer here owns nothing: the weights stay where they are in the model.  Dropout is never applied.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.models.ouro import in_halves, rotate
from loopscope.models.passes import RotaryAngles

RMS_NORMS = frozenset(f"{family}RMSNorm" for family in ("Llama", "Mistral", "Olmo2", "Qwen2", "Qwen3"))
"""Norms of transformers that are x / rms(x) times a weight and no more."""


def angles_by(rotary: Any, rows: Int[Tensor, "*P R"], x: Float[Tensor, "*B R d"]) -> RotaryAngles:
    """The rotary positions of rows, by transformers' own module."""
    several = rows if rows.dim() > 1 else rows[None]  # some versions of transformers take no fewer axes
    cos, sin = (each[..., : each.shape[-1] // 2].unsqueeze(-3) for each in rotary(x, several))
    return in_halves(cos, sin, x.dtype)


def normed(norm: Any, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
    """What a norm of transformers makes of rows; one of `RMS_NORMS` in one operation on a GPU."""
    if type(norm).__name__ in RMS_NORMS and norm.weight.dtype == x.dtype:
        return nnf.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)
    return norm(x)


def window(size: int, queries: Int[Tensor, " R"], keys: Int[Tensor, " S"]) -> Bool[Tensor, "R S"]:
    """A query row sees itself and the size - 1 rows before it."""
    ahead = queries[:, None] - keys
    return (ahead >= 0) & (ahead < size)


class StackLayer:
    """A layer of Llama, Qwen2 or Qwen3: a norm before each branch; Qwen3 also norms q and k, head by head."""

    parallel = False
    """Whether the MLP sees what entered the layer."""

    softcap: float | None = None
    """What bounds the scores of attention."""

    def __init__(self, decoder: Any, rotary: Any) -> None:
        self.decoder, self.attention, self.rotary = decoder, self._attention_of(decoder), rotary
        self.scale = float(self.attention.scaling)
        self.size = self._size()
        seen = self._window()
        if seen is not None and seen < self.attention.config.max_position_embeddings:
            self.mask = partial(window, seen)  # a layer without this member is causal, which is faster

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """Queries, keys, values ("q", "kv" or "qkv") of these rows, q and k normed and rotated to their positions.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        found = []
        for part, heads in zip(parts, self._split(x, parts), strict=True):
            heads = heads.transpose(-2, -3)
            if part != "v" and self.rotary is not None:
                if not isinstance(rows, RotaryAngles):
                    rows = angles_by(self.rotary, rows, x)
                heads = rotate(heads, rows)
            if part != "q":
                heads = self._repeated(heads)
            found.append(heads)
        return tuple(found)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.attention.o_proj(z.transpose(-2, -3).flatten(-2))

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self._units(normed(self.decoder.post_attention_layernorm, x))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.decoder.mlp.down_proj(hidden)

    def _units(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        mlp = self.decoder.mlp
        return mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x)

    @staticmethod
    def _attention_of(decoder: Any) -> Any:
        return decoder.self_attn

    def _size(self) -> int:
        return int(self.attention.head_dim)

    def _window(self) -> int | None:
        """How many rows a row sees; None for all before it."""
        return getattr(self.attention, "sliding_window", None)

    def _split(self, x: Float[Tensor, "*B R d"], parts: str) -> list[Float[Tensor, "*B R _ k"]]:
        """The named projections, each with the heads that it has, before rotation."""
        y, found = normed(self.decoder.input_layernorm, x), []
        for part in parts:
            heads = getattr(self.attention, f"{part}_proj")(y).unflatten(-1, (-1, self.size))
            norm = getattr(self.attention, f"{part}_norm", None)
            found.append(heads if norm is None else normed(norm, heads))
        return found

    def _repeated(self, heads: Float[Tensor, "*B _ R k"]) -> Float[Tensor, "*B H R k"]:
        """Keys or values shared by several query heads, once for each of them."""
        shared = self.attention.num_key_value_groups
        return heads if shared == 1 else heads.repeat_interleave(shared, -3)


class WindowedLayer(StackLayer):
    """A layer of Mistral: as Llama's, but a row may see a window alone, the same in every layer."""

    def _window(self) -> int | None:
        return self.attention.config.sliding_window


class BetweenNormsLayer(StackLayer):
    """A layer of Gemma2: norms before and after each branch, bounded scores, a window in every other layer."""

    def __init__(self, decoder: Any, rotary: Any) -> None:
        super().__init__(decoder, rotary)
        self.softcap = self.attention.attn_logit_softcapping

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs: after its second norm."""
        return normed(self.decoder.post_attention_layernorm, super().attn_out(z))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self._units(normed(self.decoder.pre_feedforward_layernorm, x))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units: after its second norm."""
        return self.decoder.post_feedforward_layernorm(super().mlp_from(hidden))


class AfterNormsLayer(StackLayer):
    """A layer of OLMo2: norms after the branches alone; q and k are normed over all heads together."""

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs: after its norm."""
        return normed(self.decoder.post_attention_layernorm, super().attn_out(z))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self._units(x)

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units: after its norm."""
        return self.decoder.post_feedforward_layernorm(super().mlp_from(hidden))

    def _split(self, x: Float[Tensor, "*B R d"], parts: str) -> list[Float[Tensor, "*B R _ k"]]:
        found = []
        for part in parts:
            y = getattr(self.attention, f"{part}_proj")(x)
            norm = getattr(self.attention, f"{part}_norm", None)
            found.append((y if norm is None else normed(norm, y)).unflatten(-1, (-1, self.size)))
        return found


class FusedLayer(StackLayer):
    """A layer of GPT-2: LayerNorms, one product for q, k and v, no rotation."""

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.attention.c_proj(z.transpose(-2, -3).flatten(-2).contiguous())  # which it takes a view of

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        mlp = self.decoder.mlp
        return mlp.act(mlp.c_fc(normed(self.decoder.ln_2, x)))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.decoder.mlp.c_proj(hidden.contiguous())

    @staticmethod
    def _attention_of(decoder: Any) -> Any:
        return decoder.attn

    def _split(self, x: Float[Tensor, "*B R d"], parts: str) -> list[Float[Tensor, "*B R _ k"]]:
        every = self.attention.c_attn(normed(self.decoder.ln_1, x)).unflatten(-1, (3, -1, self.size))
        return [every[..., "qkv".index(part), :, :] for part in parts]

    def _repeated(self, heads: Float[Tensor, "*B _ R k"]) -> Float[Tensor, "*B H R k"]:
        return heads


class ParallelLayer(StackLayer):
    """A layer of GPT-NeoX: one product for q, k and v, head by head; both branches may see what entered the layer."""

    def __init__(self, decoder: Any, rotary: Any) -> None:
        super().__init__(decoder, rotary)
        self.parallel = bool(decoder.use_parallel_residual)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.attention.dense(z.transpose(-2, -3).flatten(-2))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.decoder.mlp.dense_4h_to_h(hidden)

    def _units(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        mlp = self.decoder.mlp
        return mlp.act(mlp.dense_h_to_4h(x))

    @staticmethod
    def _attention_of(decoder: Any) -> Any:
        return decoder.attention

    def _size(self) -> int:
        return int(self.attention.head_size)

    def _split(self, x: Float[Tensor, "*B R d"], parts: str) -> list[Float[Tensor, "*B R _ k"]]:
        every = self.attention.query_key_value(normed(self.decoder.input_layernorm, x)).unflatten(
            -1, (-1, 3, self.size)
        )
        return [every[..., "qkv".index(part), :] for part in parts]

    def _repeated(self, heads: Float[Tensor, "*B _ R k"]) -> Float[Tensor, "*B H R k"]:
        return heads
