"""Families of pretrained stacks: what transformers calls their parts, and of which kind their layers are.

A family is one line of FAMILIES, one of `stack_settings.READERS`, and a kind of layer in `stack_layers` where its
layers add up in a way that none there does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loopscope.models.stack_layers import (
    AfterNormsLayer,
    BetweenNormsLayer,
    FusedLayer,
    ParallelLayer,
    StackLayer,
    WindowedLayer,
)


@dataclass(frozen=True)
class Family:
    """One family.

    - `model`: transformers' class; `layer`: the kind of its layers;
    - `body`: its attribute without the head, and in there `embedding`, `blocks` and `norm` (the last one);
    - `places`: the table of learned positions, where there is one;
    - `scaled`: whether the embedding is multiplied by the square root of the width;
    - `renamed`: beginnings of names that released files have otherwise, and what they are in the model;
    - `spare`: endings of names of tensors that released files hold and nothing reads: masks and frequencies.
    """

    model: str
    layer: type[StackLayer] = StackLayer
    body: str = "model"
    embedding: str = "embed_tokens"
    blocks: str = "layers"
    norm: str = "norm"
    places: str | None = None
    scaled: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def own_name(self, name: str) -> str | None:
        """What the model calls a tensor of a file; None for one that nothing reads."""
        if name.endswith(self.spare):
            return None
        for theirs, ours in self.renamed.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name


FAMILIES: dict[str, Family] = {
    "qwen3": Family("Qwen3ForCausalLM"),
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM", WindowedLayer),
    "qwen2": Family("Qwen2ForCausalLM"),
    "olmo2": Family("Olmo2ForCausalLM", AfterNormsLayer),
    "gemma2": Family("Gemma2ForCausalLM", BetweenNormsLayer, scaled=True),
    "gpt2": Family(
        "GPT2LMHeadModel", FusedLayer, "transformer", "wte", "h", "ln_f", "wpe",
        renamed={part: f"transformer.{part}" for part in ("wte.", "wpe.", "h.", "ln_f.")},
        spare=(".attn.bias", ".attn.masked_bias"),
    ),
    "gpt_neox": Family(
        "GPTNeoXForCausalLM", ParallelLayer, "gpt_neox", "embed_in", norm="final_layer_norm",
        renamed={"embed_out.": "lm_head."},
        spare=(".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"),
    ),
}  # fmt: skip
"""Families by the `model_type` of their configs."""
