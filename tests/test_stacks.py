"""Looped Qwen3 and Llama: one loop is transformers' model, more loops are its stack applied again, all can be patched.

The oracle is transformers' own forward, fed with the state instead of the tokens.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import transformers
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.maps import Dense
from loopscope.models.decoding import generate, pad_left
from loopscope.models.passes import LanguageModel, known_tokens, states
from loopscope.models.placement import between
from loopscope.models.stack_families import FAMILIES
from loopscope.models.stacks import LoopedStack, stack_from_config
from loopscope.program import F, J, Run, as_program
from tests.ouro_tiny import tiny_ouro
from tests.stack_tiny import CONFIGS, tiny_stack
from tests.tiny import ROWS, VOCABULARY, every_address, tiny_tokens

BOTH = pytest.mark.parametrize("kind", list(CONFIGS))
BOUNDARIES = pytest.mark.parametrize("boundary", ["none", "norm"])
MAPS = {"turn": lambda h: h.roll(1, -1)}


def reapplied(stack: LoopedStack, tokens: Tensor, loops: int) -> Tensor:
    """Logits by transformers' own forward, called `loops` times on states; without a norm between, or with."""
    inner = stack.model
    if stack.boundary == "none":
        inner = copy.copy(inner)  # shares everything but the norm
        inner._modules = {**inner._modules, "norm": nn.Identity()}
    h = inner.embed_tokens(tokens)
    for _ in range(loops):
        h = inner(inputs_embeds=h, use_cache=False).last_hidden_state
    head = stack.model.embed_tokens if stack.lm_head is None else stack.lm_head
    return (stack.model.norm(h) if stack.boundary == "none" else h) @ head.weight.T


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)


@BOTH
@BOUNDARIES
def test_one_loop_is_the_original_model(kind: str, boundary: Any) -> None:
    weights, tokens = tiny_stack(kind).state_dict(), tiny_tokens(3)
    original = getattr(transformers, FAMILIES[kind].model)
    original = original(original.config_class.from_dict(CONFIGS[kind])).eval()
    missing, unknown = original.load_state_dict(weights, strict=False)
    assert (missing, unknown) == (["lm_head.weight"] if kind == "llama" else [], [])  # llama's is tied
    stack = LoopedStack(original, boundary=boundary)
    with torch.no_grad():
        expected = original(input_ids=tokens, use_cache=False).logits
        close(stack(tokens, loops=1), expected)
    close(run(stack, tokens, "F", rows=range(ROWS))["F"].logits, expected)


@BOTH
def test_weights_are_assigned_to_a_stack_without_memory(kind: str) -> None:
    """As a folder of released weights is loaded."""
    stack, tokens = tiny_stack(kind), tiny_tokens(2)
    with torch.device("meta"):
        empty = stack_from_config(CONFIGS[kind], loops=3)
    assert all(parameter.is_meta for parameter in empty.parameters())
    empty.load_state_dict(stack.state_dict(), assign=True)
    torch.testing.assert_close(empty(tokens), stack(tokens), rtol=0, atol=0)


@BOTH
@BOUNDARIES
@pytest.mark.parametrize("loops", [2, 3, 5])
def test_more_loops_are_the_stack_applied_again(kind: str, boundary: str, loops: int) -> None:
    stack, tokens = tiny_stack(kind, boundary), tiny_tokens(3)
    with torch.no_grad():
        expected = reapplied(stack, tokens, loops)
        close(stack(tokens, loops), expected)
        assert (expected - stack(tokens, loops - 1)).abs().max() > 0.1  # a loop does something
    traced = run(stack, tokens, f"F{loops}", read="calls", rows=range(ROWS))[f"F{loops}"]
    close(traced.logits, expected)
    close(traced.logits_at["h2"], reapplied(stack, tokens, 2).detach())


def test_the_boundary_is_one_setting_and_matters() -> None:
    plain, normed = tiny_stack("qwen3", "none"), tiny_stack("qwen3", "norm")
    tokens = tiny_tokens(2)
    assert (plain(tokens, 2) - normed(tokens, 2)).abs().max() > 0.1
    torch.testing.assert_close(plain(tokens), plain(tokens, 3))  # its own number of loops


@BOTH
@BOUNDARIES
def test_gradients_are_those_of_the_plain_re_application(kind: str, boundary: str) -> None:
    stack, tokens = tiny_stack(kind, boundary), tiny_tokens(2)

    def gradients(logits: Tensor) -> list[Tensor]:
        loss = logits[:, -1].logsumexp(-1).sum() - logits[:, -1, 0].sum()
        return list(torch.autograd.grad(loss, list(stack.parameters())))

    for found, expected in zip(gradients(stack(tokens)), gradients(reapplied(stack, tokens, 3)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@BOTH
@BOUNDARIES
def test_programs_and_patches_equal_the_plain_definition(kind: str, boundary: str) -> None:
    stack, tokens, other = tiny_stack(kind, boundary), tiny_tokens(3, shared=3), tiny_tokens(3, seed=1)
    base = F | J("turn") | F
    places = every_address(2, 2)[::17]
    source = Run(F | J("turn") | F, "other")
    found = sweep(stack, tokens, base, places, source, others={"other": other}, maps=MAPS)
    inputs = {"main": tokens, "other": other}
    with torch.no_grad():
        for place, logits in zip(places, found.logits, strict=True):
            plain = plain_run(stack, inputs, base.patch(place, source), maps=MAPS)
            close(logits, stack.read(plain.states["h2"][:, -1:]))


@BOTH
def test_patterns_of_another_input_change_the_logits_and_own_values_do_not(kind: str) -> None:
    stack, tokens, other = tiny_stack(kind), tiny_tokens(3), tiny_tokens(3, seed=1)
    rows = range(ROWS)
    base = F**2
    expected = run(stack, tokens, base, rows=rows)[base].logits
    places = every_address(2, 2)
    own = sweep(stack, tokens, base, places[::5], base, rows=rows)
    close(own.logits, expected.expand_as(own.logits))
    patterns = [p for p in places if p.site.component == "pattern" and p.site.rows is None]
    changed = sweep(stack, tokens, base, patterns, Run(base, "other"), others={"other": other}, rows=rows)
    assert ((changed.logits - expected).abs().amax((1, 2, 3)) > 1e-3).all()


@BOTH
def test_heads_are_query_heads(kind: str) -> None:
    """Keys shared by several query heads are patched for one of them alone."""
    stack, tokens, other = tiny_stack(kind), tiny_tokens(2), tiny_tokens(2, seed=1)
    seen = plain_run(stack, {"main": tokens}, F**1).components
    size = stack.heads // stack.config.num_key_value_heads
    assert torch.equal(seen[1, 1, "k"][:, 0], seen[1, 1, "k"][:, size - 1])
    cell = (F**1).patch("loop[1].layer[1].head[1].k", Run(F**1, "other"))
    patched = plain_run(stack, {"main": tokens, "other": other}, cell).components
    same = [torch.equal(patched[1, 1, "pattern"][:, h], seen[1, 1, "pattern"][:, h]) for h in range(4)]
    assert same == [h != 1 for h in range(4)]


@BOTH
def test_positions_turn_queries_and_keys_together(kind: str) -> None:
    """Scores depend on distances only; positions may differ between examples, and values know none."""
    layer = tiny_stack(kind).layers[0]
    x, rows = torch.randn(2, ROWS, 16), torch.arange(ROWS)
    q, k, v = layer.project(x, rows)
    shifted = torch.stack([rows, rows + 4])
    q2, k2, v2 = layer.project(x, shifted)
    torch.testing.assert_close(q2 @ k2.mT, q @ k.mT, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(k2[0], k[0])
    assert (k2[1] - k[1]).abs().max() > 0.1
    torch.testing.assert_close(v2, v)
    (alone,) = layer.project(x[:, 3:5], rows[3:5], "q")
    torch.testing.assert_close(alone, q[:, :, 3:5])


def test_given_tensors_have_the_size_of_the_heads() -> None:
    """Heads of size 8 in a stream of 16 with four heads: a given z is as wide as a head, not as its share of d."""
    stack, tokens = tiny_stack("qwen3"), tiny_tokens(2)
    assert (stack.width, stack.heads, stack.head_size) == (16, 4, 8)
    cell = as_program("F[layer[2].head[1].row[-1].z<-$z]")
    given = torch.randn(2, 1, 1, 8)
    trace = run(stack, tokens, cell, given={"z": given}, keep="loop[1].layer[2].head[1].row[-1].z")[cell]
    assert torch.equal(next(iter(trace.kept.values())), given)
    plain = plain_run(stack, {"main": tokens}, cell, given={"z": given})
    close(trace.logits, stack.read(plain.states["h1"][:, -1:]).detach())
    with pytest.raises(InputError, match=r"does not fit layer\[2\]"):
        run(stack, tokens, cell, given={"z": given[..., :4]})


# Padding and decoding -------------------------------------------------------------------------------------------------


@BOTH
def test_padding_does_not_move_an_example(kind: str) -> None:
    stack, tokens = tiny_stack(kind), tiny_tokens(3)
    padded = torch.cat([torch.full((3, 4), 7), tokens], 1)
    mask = torch.arange(ROWS + 4).expand(3, -1) >= 4
    with torch.no_grad():
        close(stack(padded, mask=mask)[:, 4:], stack(tokens))
        assert (stack(padded)[:, 4:] - stack(tokens)).abs().max() > 0.1


@BOTH
def test_one_loop_says_what_transformers_generates(kind: str) -> None:
    """Prompts of several lengths, padded on the left: the tokens of transformers' own greedy decoding."""
    stack = tiny_stack(kind)
    original = getattr(transformers, FAMILIES[kind].model)
    original = original(original.config_class.from_dict(CONFIGS[kind])).eval()
    original.load_state_dict(stack.state_dict(), strict=False)
    tokens, mask = pad_left([[1, 5, 3, 2], [4], [7, 0]])
    asked = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = original.generate(tokens, attention_mask=mask.long(), **asked)[:, 4:]
    assert torch.equal(generate(stack, tokens, "F", new=6, mask=mask, stop=()).tokens, expected)


@BOTH
@BOUNDARIES
def test_cached_and_uncached_decoding_agree_and_maps_stay_active(kind: str, boundary: str) -> None:
    stack = tiny_stack(kind, boundary).double()
    tokens, mask = pad_left([[1, 5, 3, 2], [4], [7, 0]])
    program = between("turn", 3)
    asked = {"new": 8, "maps": MAPS, "mask": mask, "stop": ()}
    found = generate(stack, tokens, program, **asked).tokens
    assert torch.equal(found, generate(stack, tokens, program, cached=False, **asked).tokens)
    assert not torch.equal(found, generate(stack, tokens, F**3, **asked).tokens)


@BOTH
def test_patches_act_on_the_prompt_while_decoding(kind: str) -> None:
    stack, tokens, other = tiny_stack(kind).double(), tiny_tokens(3), tiny_tokens(3, seed=1)
    base = between("turn", 3)
    said = generate(stack, tokens, base, new=4, maps=MAPS, stop=())
    same = generate(stack, tokens, base.patch("loop[2].layer[1].pattern", base), new=4, maps=MAPS, stop=())
    assert torch.equal(same.tokens, said.tokens)
    patched = base.patch("loop[3].layer[1].resid", Run(base, "other"))
    changed = generate(stack, tokens, patched, new=4, maps=MAPS, others={"other": other}, stop=())
    first = run(stack, tokens, patched, maps=MAPS, others={"other": other})[patched].predictions[:, 0]
    assert torch.equal(changed.tokens[:, 0], first)
    assert not torch.equal(changed.tokens, said.tokens)


@BOTH
def test_a_map_can_be_fitted_through_the_pass(kind: str) -> None:
    stack, step = tiny_stack(kind).requires_grad_(False), Dense(16)
    program = between("x", 3)
    stack.read(states(stack, tiny_tokens(2), program, maps={"x": step})["h3"]).square().mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in step.parameters())


@pytest.mark.parametrize("kind", ["qwen3", "llama", "ouro"])
def test_positions_are_worked_out_once_and_are_those_of_every_layer(kind: str) -> None:
    model: LanguageModel = tiny_ouro() if kind == "ouro" else tiny_stack(kind)
    h = torch.randn(2, 5, model.width, generator=torch.Generator().manual_seed(5))
    for rows in (torch.arange(3, 8), torch.tensor([[0, 0, 0, 1, 2], [4, 5, 6, 7, 8]])):
        for layer in model.layers:
            alone, given = (
                layer.project(h, rows, "qkv"),
                layer.project(h, cast("Any", model.rotary_angles(rows, h)), "qkv"),
            )
            assert all(torch.equal(a, b) for a, b in zip(alone, given, strict=True))


def test_a_stack_is_a_language_model() -> None:
    assert isinstance(tiny_stack("qwen3"), LanguageModel)
    assert tiny_stack("llama", "norm").boundary == "norm"


def test_keys_and_sizes_of_qwen3_8b() -> None:
    config = {
        "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "head_dim": 128,
        "num_key_value_heads": 8, "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
        "rope_theta": 1000000, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip
    with torch.device("meta"):
        stack = stack_from_config(config, loops=4)
    tensors = stack.state_dict()
    assert (len(tensors), sum(t.numel() for t in tensors.values())) == (399, 8_190_735_360)
    assert tensors["model.layers.35.self_attn.k_norm.weight"].shape == (128,)
    assert (stack.width, stack.heads, len(stack.layers), stack.positions, stack.ends) == (4096, 32, 36, 40960, ())


def test_tied_embeddings_are_one_tensor_and_ends_are_the_configs() -> None:
    stack = tiny_stack("llama")
    assert "lm_head.weight" not in stack.state_dict()
    assert stack.ends == (2, 5)
    assert "lm_head.weight" in tiny_stack("qwen3").state_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gptj"}, "model type 'gptj' cannot be looped; there are qwen3, llama, mistral, qwen2,"),
        ({"model_type": "qwen4"}, "gpt2, gpt_neox (nearest: qwen3)"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "rotary scaling 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rotary scaling 'longrope'"),
        ({"hidden_size": "wide"}, "hidden_size must be a whole number, not 'wide'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number, not True"),
        ({"vocab_size": None}, "vocab_size must be a whole number, not missing"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"rope_parameters": 3}, "rope_parameters must be a group of settings"),
        ({"layer_types": "full"}, "layer_types must be a list of 2 kinds of layers"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number, not 'small'"),
        ({"hidden_act": "bent"}, "hidden_act 'bent' is not supported; there are silu"),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "layers with a sliding window"),
    ],
)
def test_what_cannot_be_looped_is_refused(changes: dict[str, Any], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(InputError, stack_from_config, {**CONFIGS["qwen3"], **changes})


def test_mistakes_in_use_are_refused(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    stack = tiny_stack("qwen3")
    assert "token 8 is outside 0..7 (nearest: 7)" in refused(InputError, stack, torch.tensor([[1, 8]]))
    assert "17 tokens given, but the model has 16 positions" in refused(InputError, stack, torch.ones(1, 17).long())
    assert "whole numbers [batch, tokens]" in refused(InputError, stack.embed, torch.ones(2, 2))
    assert "loops must be at least 1, not -1" in refused(InputError, stack, tiny_tokens(1), -1)
    assert "loops must be at least 1" in refused(InputError, lambda: stack_from_config(CONFIGS["qwen3"], loops=0))
    monkeypatch.setitem(sys.modules, "transformers", None)
    missing = refused(InputError, stack_from_config, CONFIGS["llama"])
    assert missing == "a looped pretrained model needs the package transformers: pip install 'loopscope[lm]'"


def test_tokens_that_are_known_are_not_looked_at() -> None:
    """For a pass that must not wait for a GPU; what they are is then up to whoever made them."""
    stack, wrong = tiny_stack("llama"), torch.tensor([[VOCABULARY]])
    with pytest.raises(InputError, match="is outside"):
        stack.embed(wrong)
    with known_tokens(), pytest.raises(IndexError):
        stack.embed(wrong)
    with pytest.raises(InputError, match="is outside"):
        stack.embed(wrong)
    with known_tokens(), pytest.raises(InputError, match="positions"):
        stack.embed(torch.zeros(1, 17, dtype=torch.long))
