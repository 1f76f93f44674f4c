"""Every family of pretrained stacks: one loop is transformers' own model, whole or with some layers looped.

Each small model has what sets its family apart, at sizes at which leaving it out is seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.loading import load
from loopscope.models.folders import ADAPTERS, build, outline
from loopscope.models.loop_layers import LoopLayers
from loopscope.models.stacks import LoopedStack
from loopscope.pieces import pieces_of
from loopscope.program import F, J, Run, as_program
from tests.stack_tiny import FAMILY_CONFIGS, original, tiny_stack
from tests.tiny import ROWS, every_address, tiny_tokens

FAMILIES = pytest.mark.parametrize("kind", list(FAMILY_CONFIGS))
NEW = [kind for kind in FAMILY_CONFIGS if kind not in ("qwen3", "llama")]
MAPS = {"turn": lambda h: h.roll(1, -1)}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)


def theirs(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits


def ours(stack: LoopedStack, tokens: Tensor, program: str = "F") -> Tensor:
    """Logits of every row at the end of a program, by the definition."""
    parsed = as_program(program)
    return plain_run(stack, {"main": tokens}, parsed, maps=MAPS).read(parsed.points[-1])


@FAMILIES
def test_one_loop_is_the_original_model(kind: str) -> None:
    whole, tokens = original(kind), tiny_tokens(3)
    expected = theirs(whole, tokens)
    stack = LoopedStack(whole)
    close(ours(stack, tokens), expected)
    close(run(stack, tokens, "F", rows=range(ROWS))["F"].logits, expected)
    close(ours(LoopedStack(whole, boundary="norm"), tokens), expected)
    assert (ours(stack, tokens, "F2") - expected).abs().max() > 0.1  # a loop does something


@FAMILIES
def test_a_loop_of_some_layers_is_the_original_model_at_one_loop(kind: str) -> None:
    tokens, whole = tiny_tokens(3), tiny_stack(kind)
    expected, layers = theirs(original(kind, whole), tokens), len(whole.layers)
    for loop in ("1", "2", f"2-{layers}", f"1-{layers}"):
        stack = tiny_stack(kind, loop=loop)
        close(ours(stack, tokens), expected)
        assert len(stack.prelude) + len(stack.layers) + len(stack.coda) == layers
    stack = tiny_stack(kind, loop="2")
    close(run(stack, tokens, "F", rows=range(ROWS))["F"].logits, expected)
    assert (ours(stack, tokens, "F3") - expected).abs().max() > 0.1


@FAMILIES
def test_more_loops_are_these_layers_again(kind: str) -> None:
    """By transformers' own model with the looped layer named several times."""
    stack, tokens = tiny_stack(kind, loop="2"), tiny_tokens(2)
    longer = original(kind, tiny_stack(kind))
    body = getattr(longer, stack.family.body)
    every = list(getattr(body, stack.family.blocks))
    setattr(body, stack.family.blocks, torch.nn.ModuleList([every[0], every[1], every[1], every[1], *every[2:]]))
    longer.config.num_hidden_layers += 2
    if kind in ("gemma2", "qwen2", "qwen3"):  # which choose a mask by the number of a layer
        kinds = longer.config.layer_types
        longer.config.layer_types = [kinds[0], kinds[1], kinds[1], kinds[1], *kinds[2:]]
    close(ours(stack, tokens, "F3"), theirs(longer, tokens))


@pytest.mark.parametrize("kind", NEW)
def test_patches_equal_the_plain_definition(kind: str) -> None:
    stack, tokens, other = tiny_stack(kind), tiny_tokens(2, shared=3), tiny_tokens(2, seed=1)
    base = F | J("turn") | F
    places = every_address(2, 2)[::47]
    source = Run(base, "other")
    found = sweep(stack, tokens, base, places, source, others={"other": other}, maps=MAPS)
    inputs = {"main": tokens, "other": other}
    moved = 0
    for place, logits in zip(places, found.logits, strict=True):
        plain = plain_run(stack, inputs, base.patch(place, source), maps=MAPS)
        close(logits, plain.read("h2")[:, -1:])
        moved += bool((logits - found.logits[0]).abs().max() > 1e-3)
    assert moved


@FAMILIES
def test_layers_before_and_behind_the_loop_are_patched(kind: str) -> None:
    stack, tokens, other = tiny_stack(kind, loop="2"), tiny_tokens(2), tiny_tokens(2, seed=1)
    inputs = {"main": tokens, "other": other}
    base = as_program("F2")
    for place in ("prelude.layer[1].z", *(("coda[2].layer[1].attn_out",) if stack.coda else ())):
        cell = base.patch(place, Run(base, "other"))
        expected = plain_run(stack, inputs, cell).read("h2")
        close(run(stack, tokens, cell, others={"other": other}, rows=range(ROWS))[cell].logits, expected)
        assert (expected - ours(stack, tokens, "F2")).abs().max() > 1e-3


LEFT_OUT: dict[str, list[dict[str, Any]]] = {
    "mistral": [{"sliding_window": None}],
    "gemma2": [
        {"sliding_window": 16}, {"attn_logit_softcapping": None}, {"final_logit_softcapping": None},
        {"query_pre_attn_scalar": 6}, {"layer_types": ["full_attention"] * 3},
    ],
    "olmo2": [{"rope_theta": 1e2}, {"attention_bias": False}],
    "gpt2": [{"scale_attn_by_inverse_layer_idx": False}, {"activation_function": "relu"}],
    "gpt_neox": [{"rotary_pct": 0.25}, {"rotary_pct": 1.0}, {"use_parallel_residual": False}, {"rotary_emb_base": 9}],
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_what_sets_a_family_apart_matters_and_follows_its_setting(kind: str) -> None:
    stack, tokens = tiny_stack(kind), tiny_tokens(2)
    logits = ours(stack, tokens)
    for changes in LEFT_OUT[kind]:
        other = build(FAMILY_CONFIGS[kind] | changes)
        weights = {name: each for name, each in stack.state_dict().items() if name in other.state_dict()}
        other.load_state_dict(weights, assign=True)
        found = plain_run(other, {"main": tokens}, F**1).read("h1")
        assert (found - logits).abs().max() > 1e-3, changes
        if "attention_bias" not in changes:
            close(found, theirs(original(kind, stack, **changes), tokens))


@FAMILIES
def test_layers_take_parts_that_lie_in_memory_as_views_of_others(kind: str) -> None:
    stack = tiny_stack(kind)
    layer, generator = stack.layers[0], torch.Generator().manual_seed(0)
    shapes = {"attn_out": (stack.heads, 1, stack.head_size), "mlp_from": (1, stack.middle), "mlp_out": (1, stack.width)}
    for member, shape in shapes.items():
        part = torch.randn(2, *shape, generator=generator, dtype=next(stack.parameters()).dtype).expand(3, 2, *shape)
        torch.testing.assert_close(getattr(layer, member)(part), getattr(layer, member)(part.contiguous()))


def test_only_layers_with_a_window_have_a_mask_of_their_own() -> None:
    pieces = {kind: pieces_of(tiny_stack(kind)).stacks["F"] for kind in FAMILY_CONFIGS}
    windowed = {kind: [not layer.causal for layer in layers] for kind, layers in pieces.items()}
    assert windowed.pop("mistral") == [True] * 3
    assert windowed.pop("gemma2") == [True, False, True]
    assert not any(any(each) for each in windowed.values())
    rows = torch.arange(5)
    seen = pieces["mistral"][0].visible(rows, rows)
    assert [row.nonzero().flatten().tolist() for row in seen] == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    wide = build(FAMILY_CONFIGS["mistral"] | {"sliding_window": 16})
    assert all(layer.causal for layer in pieces_of(wide).stacks["F"])  # no input is longer


def test_learned_positions_are_looked_up_at_the_rows_told(refused: Callable[..., str]) -> None:
    stack, tokens = tiny_stack("gpt2"), tiny_tokens(2)
    whole = stack.embed(tokens)
    shifted = torch.stack([torch.arange(ROWS), torch.arange(ROWS) + 4])
    moved = stack.embed(tokens, shifted)
    assert torch.equal(moved[0], whole[0])
    assert (moved[1] - whole[1]).abs().max() > 0.1
    assert torch.equal(stack.embed(tokens[:, 3:], torch.arange(3, ROWS)), whole[:, 3:])
    assert "17 tokens given, but the model has 16 positions" in refused(
        InputError, stack.embed, torch.ones(1, 17).long()
    )


def test_dropout_is_never_applied() -> None:
    for kind in ("gpt2", "gpt_neox"):
        stack, tokens = tiny_stack(kind), tiny_tokens(2)
        expected = ours(stack, tokens)
        assert torch.equal(ours(stack.train(), tokens), expected)


# Folders --------------------------------------------------------------------------------------------------------------


def released(folder: Path, kind: str, stack: LoopedStack) -> Path:
    """A folder as released: with the names of its family, and with what files hold that nothing reads."""
    folder.mkdir()
    tensors = {name: each.contiguous() for name, each in stack.state_dict().items()}
    if kind == "gpt2":
        tensors = {name.removeprefix("transformer."): each for name, each in tensors.items()}
        tensors |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 16, 16).tril() for layer in range(3)}
    if kind == "gpt_neox":
        tensors["embed_out.weight"] = tensors.pop("lm_head.weight")
        for layer in range(3):
            name = f"gpt_neox.layers.{layer}.attention"
            tensors |= {
                f"{name}.bias": torch.ones(1, 1, 16, 16).tril().bool(),
                f"{name}.masked_bias": torch.tensor(-1e9),
            }
            tensors |= {f"{name}.rotary_emb.inv_freq": torch.ones(2)}
    (folder / "config.json").write_text(json.dumps(FAMILY_CONFIGS[kind]), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", NEW)
def test_released_folders_are_loaded(kind: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    stack, tokens = tiny_stack(kind), tiny_tokens(2)
    folder = released(tmp_path / kind, kind, stack)
    loaded = load(folder, loops=1)
    assert {name: each.shape for name, each in loaded.state_dict().items()} == {
        name: each.shape for name, each in stack.state_dict().items()
    }
    torch.testing.assert_close(ours(loaded, tokens), ours(stack, tokens), rtol=0, atol=0)
    half = load(folder, dtype=torch.bfloat16)
    assert ours(half, tokens).dtype == torch.bfloat16
    save_file({"odd": torch.ones(2)}, folder / "model.safetensors")
    assert "lacks" in refused(InputError, load, folder)


def test_a_loop_is_chosen_on_loading_and_kept_by_a_folder(tmp_path: Path, refused: Callable[..., str]) -> None:
    stack, tokens = tiny_stack("olmo2"), tiny_tokens(2)
    folder = released(tmp_path / "olmo2", "olmo2", stack)
    part = load(folder, loop="2", loops=4)
    assert (part.loop, part.loops, len(part.prelude), len(part.layers), len(part.coda)) == ("2", 4, 1, 1, 1)
    close(ours(part, tokens), theirs(original("olmo2", stack), tokens))
    assert (load(folder).loop, load(folder, loop="1-3").loop) == (None, None)
    (folder / "loopscope.json").write_text(json.dumps({"loops": 5, "boundary": "none", "loop": "2-3"}))
    assert (outline(folder).loop, outline(folder).loops) == ("2-3", 5)
    assert (outline(folder, loop="1-2").loop, outline(folder, loop="1-3").loop) == ("1-2", None)
    (folder / "loopscope.json").write_text(json.dumps({"loops": 5, "boundary": "none", "loop": "3-2"}))
    assert "which layers are looped" in refused(DamagedError, outline, folder)


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("2-9", "loop 2-9 does not exist: the model has 3 layers (nearest: 2-3)"),
        ("7", "loop 7 does not exist: the model has 3 layers (nearest: 3)"),
        ("3-2", "loop 3-2 goes backwards (nearest: 2-3)"),
        ("0-2", "not '0-2'"),
        ("two", 'a loop is some layers of a model, such as "11-20" or "7", not \'two\''),
    ],
)
def test_a_loop_that_is_none_is_refused(loop: Any, message: str, refused: Callable[..., str]) -> None:
    assert message in refused(InputError, tiny_stack("olmo2").choose_loop, loop)


def test_a_norm_ends_a_call_of_the_last_layers_alone(refused: Callable[..., str]) -> None:
    stack = tiny_stack("llama", "norm")
    assert "loop 1 ends before the last of 2 layers (nearest: none)" in refused(InputError, stack.choose_loop, "1")
    assert stack.loop is None
    stack.choose_loop("2")
    tokens = tiny_tokens(2)
    close(ours(stack, tokens), theirs(original("llama", tiny_stack("llama")), tokens))
    assert (ours(stack, tokens, "F2") - ours(tiny_stack("llama", "none", loop="2"), tokens, "F2")).abs().max() > 0.1


def test_loops_are_written_as_they_are_read() -> None:
    assert [str(LoopLayers.parse(text)) for text in ("11-20", "7", "7-7")] == ["11-20", "7", "7"]
    assert LoopLayers.parse("1-4").of(4) is None
    with pytest.raises(InputError, match="not 3"):
        LoopLayers.parse(3)


def test_a_model_with_a_loop_of_its_own_has_none_to_choose(refused: Callable[..., str]) -> None:
    from tests.ouro_tiny import CONFIG

    said = refused(InputError, lambda: build(CONFIG, loop="1"))
    assert said == "config.json: loop '1' cannot be chosen: the model was made with a loop of its own"


# Configs --------------------------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {"torch_dtype": "bfloat16", "use_cache": True, "initializer_range": 0.02}
RELEASED: dict[str, tuple[dict[str, Any], int]] = {
    "mistral-7b-v0.1": (COMMON | {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32000,
    }, 7_241_732_096),
    "qwen2.5-0.5b": (COMMON | {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
        "vocab_size": 151936,
    }, 494_032_768),
    "olmo-2-1b": (COMMON | {
        "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
        "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-6, "rope_scaling": None,
        "rope_theta": 500000, "tie_word_embeddings": False, "vocab_size": 100352,
    }, 1_484_916_736),
    "gemma-2-2b": (COMMON | {
        "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
        "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
        "num_key_value_heads": 4, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "sliding_window": 4096, "vocab_size": 256000,
    }, 2_614_341_888),
    "gpt2": ({
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
        "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
    }, 124_439_808),
    "pythia-160m": ({
        "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-5,
        "max_position_embeddings": 2048, "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16",
        "use_cache": True, "use_parallel_residual": True, "vocab_size": 50304,
    }, 162_322_944),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_released_configs_give_models_of_the_released_size(name: str) -> None:
    config, size = RELEASED[name]
    model = build(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(each.numel() for each in model.parameters()) == size
    assert model.ends


REFUSED = [
    ("mistral", {"sliding_window": 0}, "sliding_window must be at least 1"),
    ("mistral", {"attention_bias": True}, "attention_bias is not supported: a mistral has no such biases"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "disagree with a sliding_window of 3 for all layers"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "use_sliding_window with a"),
    ("olmo2", {"clip_qkv": 8.0}, "'clip_qkv' is a setting that is not known here"),
    ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer_types must be a list of 3 among full_attention and"),
    ("gemma2", {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is a setting that is not known"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping must be above 0"),
    ("gemma2", {"hidden_act": "relu", "hidden_activation": "silu"}, "hidden_act 'relu' is not hidden_activation"),
    ("gpt2", {"add_cross_attention": True}, "'add_cross_attention' is a setting that is not known here"),
    ("gpt2", {"hidden_size": 16}, "hidden_size is no setting of a gpt2, whose sizes are vocab_size, n_embd"),
    ("gpt2", {"n_head": 3}, "n_embd 16 is no multiple of n_head 3"),
    ("gpt_neox", {"rotary_pct": 0.1}, "an even number of them must turn, not 0"),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "rotary_pct and partial_rotary_factor differ"),
    ("gpt_neox", {"rope_theta": 7.0}, "rotary_emb_base 1000 and rope_theta 7.0 differ"),
    ("gpt_neox", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rotary scaling 'dynamic' changes with the"),
    ("gpt_neox", {"num_key_value_heads": 2}, "num_key_value_heads is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "changes", "message"), REFUSED)
def test_settings_that_are_not_computed_are_refused(
    kind: str, changes: dict[str, Any], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused(InputError, build, FAMILY_CONFIGS[kind] | changes)


def test_every_family_is_in_the_registry() -> None:
    assert set(FAMILY_CONFIGS) <= set(ADAPTERS)
