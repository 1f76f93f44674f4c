"""Looped stacks: a pretrained model of transformers, its layers applied again and again.

    stack = LoopedStack(transformers.Qwen3ForCausalLM.from_pretrained(folder), loops=4)
    run(stack, tokens, ["F4", "F4 J:one F"], maps={"one": J_one})

    stack = LoopedStack(model, loops=4, loop="11-20")      layers 1 to 10 once, 11 to 20 four times, then the rest

What is mapped.  Llama, Mistral, Qwen2, Qwen3, OLMo2, Gemma2, GPT-2 and GPT-NeoX (Pythia).  F is the whole stack of
decoder layers, from first to last, or some of them (`loop`): then those before are the prelude and those after the coda
of every reading.  The projections, norms and MLPs are transformers' modules, with their own weights and key names; only
the order of computation is written here (`stack_layers`), so that every part can be read and replaced.  The tokens
enter once, and a row has the same position in every loop.  Keys and values shared by several query heads are repeated,
so that heads are query heads throughout: a patch of `k` or `v` at one head leaves the others of its group alone.  `q`
and `k` are patched after their norms and their rotation, `attn_out` and `mlp_out` after the norms that some families
have there.  Windows are the layers' `mask`, bounds on scores their `softcap`, parallel branches their `parallel`.

The boundary between loops is a setting.  "none": the stream runs on as it is, and the final norm belongs to the
readout.  "norm": the final norm ends every call, as in Ouro, and the readout is the head alone; a loop that ends before
the last layer has no such norm.  With one loop all are the original model.

What is not mapped, on purpose.  Sliding windows of Qwen2 and Qwen3 and rotary scalings that change with the length of
the input (they would make a row depend on rows after it) are refused.  Dropout, transformers' caches, attention kernels
and generation are not used: padding, the cache with a slot for every (loop, layer) and decoding are those of `passes`
and `decoding`, the same as for Ouro.  There is no exit gate.

What certifies it: transformers' own logits at one loop, on random weights of each family, to 5e-5 in fp32.
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
from loopscope.models.configs import ends_of
from loopscope.models.extras import extra
from loopscope.models.loop_layers import LoopLayers
from loopscope.models.passes import Boundary, RotaryAngles, boundary_named, check_tokens
from loopscope.models.stack_families import FAMILIES
from loopscope.models.stack_layers import StackLayer, angles_by, normed
from loopscope.models.stack_settings import stack_settings

LOOPS = 4
"""Loops of a checkpoint that was not made for loops, where nothing is said."""


class LoopedStack(Adapter):
    """A model of transformers as a looped model: embed -> F -> F -> ... -> read; a `LanguageModel`.

    The modules of `backbone` are used as they are, not copied.  Attributes are named as in the released files, and a
    head that is tied to the embedding is none of its own, so that a state dict is a file's.  `loops` is the number of
    calls that `forward` makes unless told otherwise; any number may be run.  InputError where the model is of another
    architecture or has something that cannot be mapped.
    """

    def __init__(
        self, backbone: nn.Module, *, loops: int = LOOPS, boundary: Boundary = "none", loop: str | None = None
    ) -> None:
        super().__init__()
        whole = cast("Any", backbone)  # transformers' attributes are unknown to a type checker
        self.config: Any = whole.config
        stack_settings(self.config.to_dict(), type(self.config)().to_dict())
        self.family = FAMILIES[self.config.model_type]
        self._loops = bounds.whole("loops", loops, 1, bounds.LOOPS)
        self._boundary = boundary_named(boundary)
        self.add_module(self.family.body, getattr(whole, self.family.body))
        head = whole.lm_head if hasattr(whole, "lm_head") else whole.get_output_embeddings()  # of other versions
        self.lm_head: Any = None if head.weight is self.embedding.weight else head
        rotary = self.rotary
        if rotary is not None:
            _check_rotary(rotary)
        self._every = tuple(self.family.layer(each, rotary) for each in getattr(self.body, self.family.blocks))
        self._loop: LoopLayers | None = None
        if loop is not None:
            self.choose_loop(loop)

    @property
    def body(self) -> Any:
        """All but the head, as transformers has it."""
        return getattr(self, self.family.body)

    @property
    def embedding(self) -> Any:
        """The embedding."""
        return getattr(self.body, self.family.embedding)

    @property
    def norm(self) -> Any:
        """The final norm."""
        return getattr(self.body, self.family.norm)

    @property
    def rotary(self) -> Any:
        """What gives the rotary positions; None for a model without them."""
        return getattr(self.body, "rotary_emb", None)

    def choose_loop(self, loop: str) -> None:
        """Loop these layers alone, "11-20"; InputError where there are none such, and for a norm amid the layers."""
        chosen = LoopLayers.parse(loop).of(len(self._every))
        if chosen is not None and chosen.last < len(self._every) and self._boundary == "norm":
            raise InputError(
                f"boundary 'norm' ends a call with the final norm, but loop {chosen} ends before the last of"
                f" {len(self._every)} layers (nearest: none)"
            )
        self._loop = chosen

    @property
    def loop(self) -> str | None:
        """Which layers are looped, where it is not all of them."""
        return None if self._loop is None else str(self._loop)

    @property
    def layers(self) -> Sequence[StackLayer]:
        """The layers of F, in order."""
        return self._every if self._loop is None else self._every[self._loop.first - 1 : self._loop.last]

    @property
    def prelude(self) -> Sequence[StackLayer]:
        """The layers before the loop."""
        return () if self._loop is None else self._every[: self._loop.first - 1]

    @property
    def coda(self) -> Sequence[StackLayer]:
        """The layers after the loop, which every reading goes through."""
        return () if self._loop is None else self._every[self._loop.last :]

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
        """Size k of a head; in many families a setting of its own."""
        return self._every[0].size

    @property
    def middle(self) -> int:
        """Width of the MLPs inside."""
        inner = getattr(self.config, "intermediate_size", None) or self.config.n_inner
        return int(4 * self.width if inner is None else inner)

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
        return {"lm_head.weight": f"{self.family.body}.{self.family.embedding}.weight"} if self.lm_head is None else {}

    def own_name(self, name: str) -> str | None:
        """What the model calls a tensor of a file; None for one that nothing reads."""
        return self.family.own_name(name)

    def embed(self, tokens: Tensor, rows: Int[Tensor, "*P T"] | None = None) -> Float[Tensor, "B T d"]:
        """h_0 of tokens [B, T] at these positions, [T] or [B, T] (default: from the first), which GPT-2 looks up.

        InputError for anything but whole numbers of the vocabulary, or too many of them.
        """
        check_tokens(tokens, self.vocabulary, self.positions)
        h = self.embedded(tokens.long())
        if self.family.places is None:
            return h
        rows = torch.arange(tokens.shape[1], device=tokens.device) if rows is None else rows
        return h + getattr(self.body, self.family.places)(rows)

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """h_0 of tokens that were checked; of a model with learned positions, before these are added."""
        weight = self.embedding.weight
        found = nnf.embedding(tokens, weight, self.embedding.padding_idx)
        return found * torch.tensor(self.width**0.5, dtype=weight.dtype) if self.family.scaled else found

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles | Tensor:
        """The rotary positions of rows, for all layers and loops; the rows themselves where nothing is rotated."""
        return rows if self.rotary is None else angles_by(self.rotary, rows, h)

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What F does after its last layer, row by row: the final norm with boundary "norm", else nothing."""
        return normed(self.norm, h) if self.boundary == "norm" else h

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row: the final norm, where F does not end with it, and the head."""
        h = h if self.boundary == "norm" else normed(self.norm, h)
        logits = nnf.linear(h, self.embedding.weight) if self.lm_head is None else self.lm_head(h)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return logits if cap is None else cap * torch.tanh(logits / cap)


def stack_from_config(
    config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None
) -> LoopedStack:
    """A looped stack with fresh weights from the values of a `config.json`; InputError where it cannot be looped.

    `loops` is by default LOOPS, as the checkpoint was not made for loops; `boundary` is by default "none".
    Under `torch.device("meta")` the weights take no memory: names and shapes only, until
    `load_state_dict(tensors, assign=True)` puts weights in their place.
    """
    settings = stack_settings(config)
    transformers = extra("transformers", "a looped pretrained model")
    family = FAMILIES[config["model_type"]]
    kind = getattr(transformers, family.model)
    try:
        described = kind.config_class(**settings)
        # Never used, and named here so that no kernel is looked for.
        described._attn_implementation = "sdpa" if kind._supports_sdpa else "eager"
        backbone = kind(described)
    except Exception as error:  # transformers checks settings in many places and ways
        said = " ".join(str(error).split())
        raise InputError(f"transformers cannot build {family.model}: {said[:200]}") from error
    body = getattr(backbone, family.body)
    with torch.device("cpu"):  # what is in no file must not be left on the meta device
        if hasattr(body, "rotary_emb"):
            body.rotary_emb = type(body.rotary_emb)(backbone.config)
        table = getattr(body, family.embedding)
        for name, buffer in list(table.named_buffers()):  # the factor of a scaled embedding, which is not used
            setattr(table, name, torch.full(buffer.shape, float(described.hidden_size**0.5), dtype=buffer.dtype))
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
