"""Looped Qwen3 and looped Llama: a pretrained stack, applied again and again.

    stack = LoopedStack(transformers.Qwen3ForCausalLM.from_pretrained(folder), loops=4)
    run(stack, tokens, ["F4", "F4 J:one F"], maps={"one": J_one})

What is mapped.  F is the whole stack of decoder layers of transformers' own `Qwen3ForCausalLM` or `LlamaForCausalLM`,
every layer from first to last.  The projections, norms and MLPs are transformers' modules, with their own weights and
key names; only the order of computation is written here, so that every part can be read and replaced.  The tokens
enter once, and a row has the same rotary position in every loop.  Keys and values shared by several query heads are
repeated, so that heads are query heads throughout: a patch of `k` or `v` at one head leaves the others of its group
alone.  `q` and `k` are patched after their norms (Qwen3) and their rotation.

The boundary between loops is a setting.  "none": the stream runs on as it is, and the final norm belongs to the
readout.  "norm": the final norm ends every call, as in Ouro, and the readout is the head alone.  With one loop both
are the original model.

What is not mapped, on purpose.  Sliding windows and rotary scalings that change with the length of the input (they
would make a row depend on rows after it) are refused.  Attention dropout, transformers' caches, attention kernels and
generation are not used: padding, the cache with a slot for every (loop, layer) and decoding are those of `passes` and
`decoding`, the same as for Ouro.  There is no exit gate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.errors import InputError
from loopscope.models.adapter import Adapter
from loopscope.models.configs import CLASSES, ends_of, stack_settings
from loopscope.models.extras import extra
from loopscope.models.passes import Boundary, RotaryAngles, boundary_named

LOOPS = 4
"""Loops of a checkpoint that was not made for loops, where nothing is said."""


class StackLayer:
    """One decoder layer of transformers, cut into the pieces that can be read and replaced.

    It owns nothing: the weights stay where they are in the model.
    """

    def __init__(self, decoder: Any, rotary: Any) -> None:
        self.decoder, self.attention, self.rotary = decoder, decoder.self_attn, rotary
        self.scale = float(self.attention.scaling)

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """Queries, keys, values ("q", "kv" or "qkv") of these rows, q and k normed and rotated to their positions.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        attention, y = self.attention, self.decoder.input_layernorm(x)
        cos, sin = rows if isinstance(rows, RotaryAngles) else _angles(self.rotary, rows, x)
        found = []
        for part in parts:
            heads = getattr(attention, f"{part}_proj")(y).unflatten(-1, (-1, attention.head_dim))
            if part != "v":
                norm = getattr(attention, f"{part}_norm", None)
                heads = heads if norm is None else norm(heads)
            heads = heads.transpose(-2, -3)
            if part != "v":
                first, second = heads.chunk(2, -1)
                heads = heads * cos + torch.cat([-second, first], -1) * sin
            if part != "q":
                heads = heads.repeat_interleave(attention.num_key_value_groups, -3)
            found.append(heads)
        return tuple(found)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return self.attention.o_proj(z.transpose(-2, -3).flatten(-2))

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.decoder.mlp(self.decoder.post_attention_layernorm(x))


def _angles(rotary: Any, rows: Int[Tensor, "*P R"], x: Float[Tensor, "*B R d"]) -> RotaryAngles:
    """By transformers' own rotary positions."""
    several = rows if rows.dim() > 1 else rows[None]  # some versions of transformers take no fewer axes
    cos, sin = rotary(x, several)
    return RotaryAngles(cos.unsqueeze(-3), sin.unsqueeze(-3))


class LoopedStack(Adapter):
    """A Qwen3 or Llama model of transformers as a looped model: embed -> F -> F -> ... -> read; a `LanguageModel`.

    The modules of `backbone` are used as they are, not copied.  Attributes are named as in the released files, and a
    head that is tied to the embedding is none of its own, so that a state dict is a file's.  `loops` is the number of
    calls that `forward` makes unless told otherwise; any number may be run.  InputError where the model is of another
    architecture or has something that cannot be mapped.
    """

    def __init__(self, backbone: nn.Module, *, loops: int = LOOPS, boundary: Boundary = "none") -> None:
        super().__init__()
        whole = cast("Any", backbone)  # transformers' attributes are unknown to a type checker
        self.config: Any = whole.config
        stack_settings(self.config.to_dict(), type(self.config)().to_dict())
        self._loops = bounds.whole("loops", loops, 1, bounds.LOOPS)
        self._boundary = boundary_named(boundary)
        self.model: Any = whole.model
        tied = whole.lm_head.weight is whole.model.embed_tokens.weight
        self.lm_head: Any = None if tied else whole.lm_head
        _check_rotary(self.model.rotary_emb)
        self._layers = tuple(StackLayer(each, self.model.rotary_emb) for each in self.model.layers)

    @property
    def layers(self) -> Sequence[StackLayer]:
        """The layers of F, in order."""
        return self._layers

    @property
    def loops(self) -> int:
        """Calls of F that a run makes by default; any number may be run."""
        return self._loops

    @property
    def boundary(self) -> Boundary:
        """What ends every call: nothing, or the final norm."""
        return self._boundary

    @property
    def width(self) -> int:
        """Width d of the state."""
        return int(self.config.hidden_size)

    @property
    def heads(self) -> int:
        """Query heads per layer."""
        return int(self.config.num_attention_heads)

    @property
    def head_size(self) -> int:
        """Size k of a head; in Qwen3 a setting of its own."""
        return int(self.layers[0].attention.head_dim)

    @property
    def positions(self) -> int:
        """The longest input, in tokens."""
        return int(self.config.max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self.config.vocab_size)

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return ends_of(self.config.eos_token_id, self.vocabulary)

    @property
    def copies(self) -> dict[str, str]:
        """Tensors that a file may hold a second time, and which of the model's they are: a head that is tied."""
        return {"lm_head.weight": "model.embed_tokens.weight"} if self.lm_head is None else {}

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """h_0 of tokens that were checked."""
        return self.model.embed_tokens(tokens)

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles:
        """The rotary positions of rows, for all layers and loops."""
        return _angles(self.model.rotary_emb, rows, h)

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What F does after its last layer, row by row: the final norm with boundary "norm", else nothing."""
        return self.model.norm(h) if self.boundary == "norm" else h

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row: the final norm, where F does not end with it, and the head."""
        h = h if self.boundary == "norm" else self.model.norm(h)
        return nnf.linear(h, self.model.embed_tokens.weight) if self.lm_head is None else self.lm_head(h)


def stack_from_config(
    config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None
) -> LoopedStack:
    """A looped stack with fresh weights from the values of a `config.json`; InputError where it cannot be looped.

    `loops` is by default LOOPS, as the checkpoint was not made for loops; `boundary` is by default "none".
    Under `torch.device("meta")` the weights take no memory: names and shapes only, until
    `load_state_dict(tensors, assign=True)` puts weights in their place.
    """
    settings = stack_settings(config)
    transformers = extra("transformers", "a looped Qwen3 or Llama")
    kind = getattr(transformers, CLASSES[config["model_type"]])
    try:
        described = kind.config_class(**settings)
        described._attn_implementation = "sdpa"  # never used, and named here so that no kernel is looked for
        backbone = kind(described)
    except Exception as error:  # transformers checks settings in many places and ways
        said = " ".join(str(error).split())
        raise InputError(f"transformers cannot build {CLASSES[config['model_type']]}: {said[:200]}") from error
    with torch.device("cpu"):  # the rotary frequencies are in no file, so they must not be left on the meta device
        backbone.model.rotary_emb = type(backbone.model.rotary_emb)(backbone.config)
    return LoopedStack(backbone, loops=LOOPS if loops is None else loops, boundary=boundary or "none")


def _check_rotary(rotary: Any) -> None:
    """InputError unless the frequencies are positive and finite: fused attention hides that they are not."""
    if rotary.inv_freq.is_meta:
        return
    low, high = (float(each) for each in torch.aminmax(rotary.inv_freq))  # both NaN if one is
    if not 0 < low <= high < math.inf:
        raise InputError(f"the rotary frequencies are {low:g} to {high:g}, which are no rotations")
    if not 0 < float(rotary.attention_scaling) < math.inf:
        raise InputError(f"the rotary positions scale attention by {rotary.attention_scaling}")
