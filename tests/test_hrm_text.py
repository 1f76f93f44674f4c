"""HRM-Text: equal to transformers' own model on random weights, and a looped model like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import HrmTextForCausalLM
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig as TheirConfig

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.folders import build, load
from loopscope.models.hrm_text import HrmText, HrmTextConfig, hrm_text_from_config, told_by_weights
from loopscope.models.passes import LanguageModel
from loopscope.program import Program, Run
from tests.ouro_tiny import write_folder

SIZES: dict[str, Any] = {
    "vocab_size": 29, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
    "head_dim": 8, "max_position_embeddings": 32, "H_cycles": 2, "L_cycles": 3,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "wide-heads": {"head_dim": 12, "num_attention_heads": 4, "H_cycles": 3, "L_cycles": 1, "num_hidden_layers": 1},
    "biased": {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "embedding_scale": 3.0},
    "tied": {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e3}},
}


def theirs(kind: str = "plain", **changes: Any) -> Any:
    """transformers' model, every weight large enough to count."""
    model = HrmTextForCausalLM(TheirConfig(**SIZES | KINDS[kind] | changes)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # the start of z_L among them, which is zero in released files
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def weights(model: Any) -> dict[str, Tensor]:
    tied = model.config.tie_word_embeddings
    return {n: t.detach().clone() for n, t in model.state_dict().items() if not (tied and n == "lm_head.weight")}


def ours(model: Any) -> HrmText:
    found = hrm_text_from_config(told_by_weights(model.config.to_dict(), weights(model)))
    found.load_state_dict(weights(model))
    return found.eval()


def some_tokens(examples: int = 3, rows: int = 9) -> Tensor:
    return torch.randint(29, (examples, rows), generator=torch.Generator().manual_seed(1))


def logits_of(model: HrmText, tokens: Tensor, loops: int | None = None) -> Tensor:
    program = model.program(loops)
    return plain_run(model, {"main": tokens}, program).read(program.points[-1])


def close_to(found: Tensor, expected: Tensor, tolerance: float = 5e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


# Equal to transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_with_and_without_a_prefix(kind: str) -> None:
    reference, tokens = theirs(kind), some_tokens()
    model = ours(reference)
    with torch.no_grad():
        expected = reference(tokens).logits
        close_to(logits_of(model, tokens), expected)
        for rows in (4, 9):
            types = (torch.arange(9) < rows).long().expand(3, -1)
            prefixed = reference(tokens, token_type_ids=types).logits
            assert (prefixed - expected).abs().max() > 1e-3
            close_to(logits_of(model.with_prefix(rows), tokens), prefixed)
    assert model.prefix == 0
    close_to(logits_of(model, tokens), expected)
    assert torch.equal(logits_of(model.with_prefix(0), tokens), logits_of(model, tokens))


@pytest.mark.parametrize("loops", [1, 3])
def test_readings_are_the_logits_of_fewer_and_more_cycles(loops: int) -> None:
    reference, tokens = theirs(), some_tokens()
    model = ours(reference)
    other = theirs(H_cycles=loops)
    other.load_state_dict(reference.state_dict())
    run = plain_run(model, {"main": tokens}, model.program(3))
    with torch.no_grad():
        close_to(run.read(model.readings(3)[loops - 1]), other(tokens).logits)
    assert (str(model.program()), model.loops) == ("(L3 H)2", 2)
    assert model.readings(3) == ("h4", "h8", "h12")


def test_states_of_every_call_equal_transformers() -> None:
    reference, tokens = theirs(), some_tokens()
    model = ours(reference)
    seen: list[tuple[str, Tensor]] = []
    for name, module in (("L", reference.model.L_module), ("H", reference.model.H_module)):
        module.register_forward_hook(lambda _, __, out, name=name: seen.append((name, out)))
    with torch.no_grad():
        reference(tokens)
    program = model.program()
    run = plain_run(model, {"main": tokens}, program)
    assert [name for name, _ in seen] == list("LLLHLLLH")
    for point, (name, expected) in zip(program.points[1:], seen, strict=True):
        close_to(run.states[point].chunk(2, -1)["LH".index(name)], expected, 1e-5)


# Rows, batches, folders ----------------------------------------------------------------------------------------------


def test_batch_and_single_answers_are_the_same() -> None:
    model, tokens = ours(theirs()).with_prefix(3), some_tokens()
    together = logits_of(model, tokens)
    for example in range(3):
        close_to(logits_of(model, tokens[example : example + 1]), together[example : example + 1], 2e-6)


def test_rows_see_what_stands_before_them_and_their_prefix() -> None:
    model = ours(theirs())
    tokens = some_tokens(1)
    moved = tokens.clone()
    moved[0, 4] = (moved[0, 4] + 1) % 29
    for rows, same in ((0, 4), (4, 4), (5, 0), (7, 0)):  # row 4 is in a prefix of five
        view = model.with_prefix(rows)
        apart = (logits_of(view, tokens) - logits_of(view, moved)).abs().amax(-1)[0]
        assert (apart[:same] < 1e-6).all()
        assert (apart[same:] > 1e-5).all()


def test_it_goes_on_from_a_state_without_its_tokens() -> None:
    model, tokens = ours(theirs()), some_tokens()
    whole = plain_run(model, {"main": tokens}, model.program(2))
    rest = plain_run(model, {"main": whole.states["h4"]}, Program(model.program(1).steps, start=4))
    assert torch.equal(rest.states["h8"], whole.states["h8"])


def test_patches_reach_each_stack_by_its_address() -> None:
    model, tokens = ours(theirs()), some_tokens()
    base = model.program()
    plain = plain_run(model, {"main": tokens}, base)
    same = base.patch("H[1].layer[1].attn_out", Run(base)).patch("L[2,3].layer[2].head[1].z", Run(base))
    assert torch.equal(plain_run(model, {"main": tokens}, same).states["h8"], plain.states["h8"])
    other = base.patch("L[2,3].layer[2].z", Run(base, loop=1))
    found = plain_run(model, {"main": tokens}, other)
    assert torch.equal(found.states["h6"], plain.states["h6"])
    assert not torch.allclose(found.states["h7"], plain.states["h7"], atol=1e-3)


@pytest.mark.parametrize(("kind", "split"), [("plain", False), ("tied", False), ("tied", True), ("biased", True)])
def test_a_folder_is_loaded_with_projections_together_and_apart(tmp_path: Path, kind: str, split: bool) -> None:
    """transformers writes them as they are released; what it has in memory may be in a file, too."""
    reference, tokens = theirs(kind), some_tokens()
    if split:
        write_folder(tmp_path / "hrm", weights(reference), reference.config.to_dict())
    else:
        reference.save_pretrained(tmp_path / "hrm")
    model = load(tmp_path / "hrm")
    assert sum("attn.gqkv_proj" in name for name in model.state_dict()) == (0 if split else 4)
    assert isinstance(model, HrmText)
    assert isinstance(model, LanguageModel)
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))
    with torch.no_grad():
        close_to(logits_of(model, tokens), reference(tokens).logits)
    assert str(load(tmp_path / "hrm", loops=5).program()) == "(L3 H)5"


def test_released_sizes_come_from_the_config() -> None:
    """The depth of a stack is its own setting; the released config counts 128 layers, one for each use."""
    released = {
        "model_type": "hrm_text", "vocab_size": 65536, "hidden_size": 1536, "intermediate_size": 4096,
        "num_hidden_layers": 128, "num_layers_per_stack": 16, "num_attention_heads": 12, "head_dim": 128,
        "max_position_embeddings": 4096, "H_cycles": 2, "L_cycles": 3, "L_bp_cycles": [2], "prefix_lm": True,
        "initializer_range": 0.02, "embedding_scale": None, "rms_norm_eps": 1e-6, "mlp_bias": False,
    }  # fmt: skip
    model = build(released)
    assert isinstance(model, HrmText)
    assert [len(layers) for layers in model.stacks.values()] == [16, 16]
    assert model.state_dict()["model.H_module.layers.15.attn.gqkv_proj.weight"].shape == (4 * 1536, 1536)
    layer = 5 * 1536 * 1536 + 3 * 1536 * 4096
    assert sum(each.numel() for each in model.parameters()) == 32 * layer + 2 * 65536 * 1536 + 1536
    assert (model.config.scale, model.program().calls, model.boundary) == (50.0, 8, "norm")


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": None}, "hidden_size must be a whole number, not missing"),
        ({"head_dim": 7}, "its size must be even, not 7"),
        ({"num_key_value_heads": 1}, "num_key_value_heads 1: every head has keys of its own"),
        ({"hidden_act": "tanh"}, "hidden_act 'tanh' is not supported; there are silu"),
        ({"prefix_lm": 1}, "prefix_lm must be true or false, not 1"),
        ({"H_cycles": 0}, "H_cycles must be at least 1"),
        ({"L_cycles": True}, "L_cycles must be a whole number, not True"),
        ({"num_layers_per_stack": 0}, "num_layers_per_stack must be at least 1"),
        ({"initializer_range": 0}, "initializer_range must be above 0"),
        ({"embedding_scale": float("inf")}, "embedding_scale must be above 0"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn' is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported where projections share a matrix"),
        ({"gating": "relu"}, "'gating' is a setting that is not known here"),
        ({"eos_token_id": -1}, "eos_token_id must be a token or a list of tokens"),
    ],
)
def test_settings_that_do_not_fit_are_refused(refused: Callable[..., str], changes: dict[str, Any], says: str) -> None:
    assert says in refused(InputError, HrmTextConfig.from_dict, SIZES | changes)


def test_what_does_not_fit_the_model_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    reference = theirs()
    model, tokens = ours(reference), some_tokens()
    assert "the rows of a prefix must be at most 32" in refused(InputError, model.with_prefix, 33)
    strict = hrm_text_from_config(SIZES | {"prefix_lm": False})
    assert "prefix_lm is false in this model's config" in refused(InputError, strict.with_prefix, 3)
    seeded = Program.parse("seed:3 (L3 H)2")
    assert "has a seed, but" in refused(InputError, plain_run, model, {"main": tokens}, seeded)
    empty = Program.parse("zeros (L3 H)2")
    assert "forgets its input" in refused(InputError, plain_run, model, {"main": tokens}, empty)
    config = reference.config.to_dict() | {"num_layers_per_stack": 1}
    folder = write_folder(tmp_path / "deep", weights(reference), config)
    assert "layers.1" in refused(InputError, load, folder)
    biased = HrmTextForCausalLM(TheirConfig(**SIZES | KINDS["biased"]))
    biased.save_pretrained(tmp_path / "biased")
    assert "attention_bias is not supported where" in refused(InputError, load, tmp_path / "biased")
    assert "there is no boundary 'none'" in refused(InputError, lambda: load(folder, boundary="none"))
