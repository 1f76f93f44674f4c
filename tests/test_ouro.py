"""Ouro: equal to the public code, and a looped model like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.address import COMPONENTS, PER_HEAD, Address, Site
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.maps import Dense
from loopscope.models.folders import build
from loopscope.models.ouro import OuroConfig, RMSNorm, angles_of, exit_probabilities, rotate
from loopscope.models.passes import LanguageModel, RotaryAngles, states
from loopscope.program import F, Run, as_program
from tests.ouro_tiny import CONFIG, golden, ouro_map, tiny_ouro

RELEASED_2_6B = CONFIG | {
    "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 128, "max_position_embeddings": 65536,
    "layer_types": ["full_attention"] * 48, "rope_scaling": None, "sliding_window": None, "use_sliding_window": False,
    "eos_token_id": 2, "bos_token_id": 1, "early_exit_threshold": 1.0, "attention_dropout": 0.0,
    "auto_map": {"AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM"},
}  # fmt: skip


def close_to(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


# Equal to the public code --------------------------------------------------------------------------------------------


def test_states_gates_and_logits_of_every_loop_equal_the_public_code() -> None:
    model, ids = tiny_ouro(), golden()["input_ids"]
    with torch.no_grad():
        found = states(model, ids, F**4)
        by_loop = torch.stack([found[f"h{t}"] for t in range(1, 5)])
        close_to(by_loop, golden()["hidden_by_loop"])
        close_to(model.gate_logits(by_loop), golden()["gate_logits_by_loop"])
        close_to(model.read(by_loop), golden()["logits_by_loop"])


def test_the_executor_and_the_plain_run_equal_the_public_code_too() -> None:
    model, ids = tiny_ouro(), golden()["input_ids"]
    trace = run(model, ids, "F4", read="calls", rows=range(13))["F4"]
    plain = plain_run(model, {"main": ids}, F**4)
    for t in range(1, 5):
        close_to(trace.logits_at[f"h{t}"], golden()["logits_by_loop"][t - 1])
        close_to(plain.states[f"h{t}"], golden()["hidden_by_loop"][t - 1])


def test_left_padded_logits_equal_the_public_code() -> None:
    model, ids = tiny_ouro(), golden()["input_ids"]
    mask = golden()["padded.attention_mask"].bool()
    with torch.no_grad():
        found = states(model, ids, F**4, mask=mask)
        logits = model.read(torch.stack([found[f"h{t}"] for t in range(1, 5)]))
    assert not mask.all()
    assert logits.isfinite().all()
    close_to(logits[:, mask], golden()["padded.logits_by_loop"][:, mask])


def test_the_number_of_loops_is_chosen_at_run_time() -> None:
    model, ids = tiny_ouro(), golden()["input_ids"]
    with torch.no_grad():
        for loops in range(1, 5):
            close_to(model(ids, loops=loops), golden()["logits_by_loop"][loops - 1])
        assert torch.equal(model(ids), model(ids, loops=4))
        assert not torch.allclose(model(ids, loops=7), model(ids), atol=1e-2)
        with pytest.raises(InputError, match="loops must be at least 1, not 0"):
            model(ids, loops=0)


def test_exit_probabilities_follow_the_gate() -> None:
    gates = golden()["gate_logits_by_loop"].double()
    found = exit_probabilities(gates)
    close_to(found.sum(0), torch.ones(3, 13, dtype=torch.float64), 1e-12)
    leave = gates.sigmoid()
    close_to(found[2], leave[2] * (1 - leave[1]) * (1 - leave[0]), 1e-12)
    close_to(found[3], (1 - leave[2]) * (1 - leave[1]) * (1 - leave[0]), 1e-12)
    assert torch.equal(exit_probabilities(gates[:1]), torch.ones(1, 3, 13, dtype=torch.float64))


def test_all_keys_of_the_released_layout_come_from_its_config() -> None:
    model = build(RELEASED_2_6B)
    norms = ["input_layernorm", "input_layernorm_2", "post_attention_layernorm", "post_attention_layernorm_2"]
    parts = [f"self_attn.{p}_proj" for p in "qkvo"] + [f"mlp.{p}_proj" for p in ("gate", "up", "down")] + norms
    expected = {f"model.layers.{i}.{part}.weight" for i in range(48) for part in parts}
    expected |= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    expected |= {"model.early_exit_gate.weight", "model.early_exit_gate.bias"}
    found = model.state_dict()
    assert set(found) == expected
    assert len(found) == 533
    assert sum(tensor.numel() for tensor in found.values()) == 2_667_974_657
    assert all(tensor.is_meta for tensor in found.values())
    assert (model.loops, model.positions, model.ends, model.layers[0].scale) == (4, 65536, (2,), 128**-0.5)


# The same protocol as every looped model -----------------------------------------------------------------------------


def every_place(loops: int, rows: tuple[int, ...]) -> list[Address]:
    found = []
    for loop in range(1, loops + 1):
        for layer in (1, 2, 3):
            for component in COMPONENTS:
                heads = [None, (loop % 4,)] if component in PER_HEAD else [None]
                found += [Address(loop, Site(layer, component, h, r)) for h in heads for r in (None, rows)]
    return found


@pytest.mark.parametrize("changes", [{}, {"num_key_value_heads": 2}], ids=["own-keys", "grouped-keys"])
def test_programs_maps_and_patches_agree_with_the_plain_run(changes: dict[str, Any]) -> None:
    model = tiny_ouro(torch.float64, **changes)
    ids, other = golden()["input_ids"][:2], golden()["input_ids"][1:]
    maps = {"step": ouro_map(dtype=torch.float64)}
    base, giver = as_program("F J:step F"), Run(as_program("F J:step F"), "other")
    places = every_place(2, (3, 12))[::5]  # every loop, layer and component among them
    found = sweep(model, ids, base, places, giver, maps=maps, others={"other": other})
    memo: dict[Any, Any] = {}
    for place, logits in zip(places, found.logits, strict=True):
        cell = base.patch(place, giver)
        plain = plain_run(model, {"main": ids, "other": other}, cell, maps=maps, memo=memo)
        close_to(logits, model.read(plain.states["h2"][:, -1:]), 1e-11)


def test_grouped_keys_are_keys_of_their_own_that_happen_to_be_equal() -> None:
    """Query heads 1, 2 share the first key and value head, 3, 4 the second: as with its weights written out twice."""
    grouped, own = tiny_ouro(torch.float64, num_key_value_heads=2), tiny_ouro(torch.float64)
    spread = {
        name: t.unflatten(0, (2, 1, 12)).expand(2, 2, 12, 48).reshape(48, 48)
        if "k_proj" in name or "v_proj" in name
        else t
        for name, t in grouped.state_dict().items()
    }
    own.load_state_dict(spread)
    ids = golden()["input_ids"]
    close_to(grouped(ids), own(ids), 1e-12)


def test_patches_from_another_input_change_the_logits() -> None:
    """Every kind of patch reaches the output; a write into a returned pattern that nothing reads would not."""
    model, ids = tiny_ouro(), golden()["input_ids"]
    places = [Address(loop, Site(2, component)) for loop in (1, 4) for component in COMPONENTS]
    found = sweep(model, ids, "F4", places, Run(F**4, "other"), others={"other": ids.roll(1, 0)})
    for place, logits in zip(places, found.logits, strict=True):
        assert (logits - found.base).abs().amax() > 1e-2, place


def test_patches_from_the_same_run_change_nothing() -> None:
    """In float64: in float32 the differences are those of rounding, which every processor does in its own order."""
    model, ids = tiny_ouro(torch.float64), golden()["input_ids"]
    places = every_place(4, (0, 7))
    found = sweep(model, ids, "F4", places, "(F4)", rows=range(13))
    close_to(found.logits, found.base.expand_as(found.logits), 1e-11)
    plain = plain_run(model, {"main": ids}, (F**4).patch("loop[2].layer[3].head[1].pattern", F**4))
    assert torch.equal(plain.states["h4"], plain_run(model, {"main": ids}, F**4).states["h4"])


def test_maps_stand_where_the_program_puts_them() -> None:
    """Before loops 2..4, and after every loop's norm including the last: by hand, with the layers applied plainly."""
    model, ids, step = tiny_ouro(torch.float64), golden()["input_ids"], ouro_map(dtype=torch.float64)

    def call(h: Tensor) -> Tensor:
        return plain_run(model, {"main": h}, as_program("h0 F")).states["h1"]

    before, after = model.embed(ids), model.embed(ids)
    for loop in range(1, 5):
        before = call(before if loop == 1 else step(before))
        after = step(call(after))
    for text, expected in (("F J:x F J:x F J:x F", before), ("F J:x F J:x F J:x F J:x", after)):
        trace = run(model, ids, text, maps={"x": step}, rows=range(13))[text]
        close_to(trace.logits, model.read(expected), 1e-11)
        program = as_program(text)
        close_to(states(model, ids, program, maps={"x": step})[program.points[-1]], expected, 1e-11)
    same = run(model, ids, ["F4", "F J:x F J:x F J:x F"], maps={"x": Dense(48).double()}, rows=range(13))
    close_to(same["F4"].logits, same["F J:x F J:x F J:x F"].logits, 1e-12)


def test_a_map_can_be_fitted_through_the_pass() -> None:
    model, ids, step = tiny_ouro().requires_grad_(False), golden()["input_ids"], Dense(48)
    program = as_program("F J:x F")
    loss = model.read(states(model, ids, program, maps={"x": step})["h2"]).square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in step.parameters())
    assert all(p.grad is None for p in model.parameters())


# Positions, padding, types -------------------------------------------------------------------------------------------


def test_padding_does_not_move_an_example() -> None:
    model, ids = tiny_ouro(torch.float64), golden()["input_ids"]
    padded = torch.cat([torch.full((3, 5), 95), ids], 1)
    mask = torch.arange(18).expand(3, 18) >= 5
    found = states(model, padded, F**4, mask=mask)["h4"][:, 5:]
    close_to(found, states(model, ids, F**4)["h4"], 1e-12)
    other = states(model, padded.where(mask, torch.tensor(7)), F**4, mask=mask)["h4"][:, 5:]
    assert torch.equal(other, found)  # whatever stands in the padding


def test_positions_count_real_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention sees distances, so that shifted positions would go unnoticed until a text nears the longest."""
    model, seen = tiny_ouro(), []
    rotary_angles = model.rotary_angles

    def noting(rows: Tensor, h: Tensor) -> RotaryAngles:
        seen.append(rows)
        return rotary_angles(rows, h)

    monkeypatch.setattr(model, "rotary_angles", noting)
    with torch.no_grad():
        states(model, golden()["input_ids"], F**4, mask=golden()["padded.attention_mask"].bool())
    (rows,) = seen  # once for all layers and loops
    assert torch.equal(rows, golden()["padded.position_ids"])


def at(x: Tensor, rows: Tensor) -> Tensor:
    """x at these positions."""
    return rotate(x, angles_of(rows, x.shape[-1], 1e6, x.dtype))


def test_turned_queries_and_keys_see_distances_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn((2, 3, 5, 8), generator=generator, dtype=torch.float64).unbind(0)
    rows = torch.tensor([0, 1, 2, 4, 7])

    def scores(shift: int) -> Tensor:
        return at(q, rows + shift) @ at(k, rows + shift).transpose(-1, -2)

    close_to(scores(0), scores(1000), 1e-10)
    assert (scores(0) - q @ k.transpose(-1, -2)).abs().max() > 0.1
    assert torch.equal(at(q, torch.zeros(5, dtype=torch.long)), q)


def test_bf16_costs_little_more_than_rounding_the_weights() -> None:
    """Rounded weights in exact arithmetic set the scale: their error grows over the loops, 0.9 % to 2.6 % here."""
    rounded, ids = tiny_ouro(torch.bfloat16), golden()["input_ids"]
    errors = []
    for model in (tiny_ouro(torch.bfloat16).double(), rounded):
        with torch.no_grad():
            found = states(model, ids, F**4)
            logits = model.read(torch.stack([found[f"h{t}"] for t in range(1, 5)]))
        assert {h.dtype for h in found.values()} == {model.lm_head.weight.dtype}
        errors.append((logits.double() - golden()["logits_by_loop"]).abs().mean((1, 2, 3)))
    assert (errors[1] < 2 * errors[0]).all()


def test_norms_and_angles_are_computed_in_fp32_for_bf16_states() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn((4, 6, 12), generator=generator) * 30).bfloat16()
    norm = RMSNorm(12, 1e-6).bfloat16()
    wide = x.float()
    assert torch.equal(norm(x), (wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16())
    rows = torch.arange(65_000, 65_006)  # angles in bf16 would be off by whole turns here
    exact = at(x.double(), rows)
    assert (at(x, rows).double() - exact).abs().max() < 0.02 * exact.abs().max()


def test_ouro_is_a_language_model() -> None:
    assert isinstance(tiny_ouro(), LanguageModel)


# Refusals ------------------------------------------------------------------------------------------------------------

MASK = torch.ones(1, 3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        ("F J:x F", {"maps": {"y": Dense(48)}}, "no map named 'x' was given; there are: y (nearest: y)"),
        ("h2 F", {}, "'h2 F' starts from a given state"),
        ("F F[layer[1].z<-(F2)]", {}, "has patches; a plain pass makes none (nearest: F2)"),
        ("F", {"mask": MASK[:, :2]}, "the mask has shape [1, 2], but the tokens [1, 3]"),
        ("F", {"mask": torch.tensor([[True, True, False]])}, "the mask is no left padding"),
        ("F", {"mask": torch.tensor([[True, False, True]])}, "the mask is no left padding"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(
    refused: Callable[..., str], program: str, options: dict[str, Any], says: str
) -> None:
    model, ids = tiny_ouro(), golden()["input_ids"][:1, :3]
    assert says in refused(InputError, lambda: states(model, ids, as_program(program), **options))


def test_texts_beyond_the_positions_or_the_vocabulary_are_refused(refused: Callable[..., str]) -> None:
    model, ids = tiny_ouro(), golden()["input_ids"][:1]
    long = ids.repeat(1, 20)
    for pass_over in (lambda t: states(model, t, F**1), lambda t: run(model, t, "F")):
        assert refused(InputError, pass_over, long) == "260 tokens given, but the model has 256 positions"
        assert refused(InputError, pass_over, ids + 90).startswith("token 180 is outside 0..95")
        assert "outside 0..95 (nearest: 0)" in refused(InputError, pass_over, ids - 91)
    assert "head" in refused(InputError, lambda: run(model, ids, "F[layer[1].head[4].z<-(F)]"))
    assert "layer" in refused(InputError, lambda: run(model, ids, "F[layer[4].attn_out<-(F)]"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": None}, "hidden_size must be a whole number, not missing"),
        ({"total_ut_steps": True}, "total_ut_steps must be a whole number, not True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
        ({"num_attention_heads": 5}, "hidden_size 48 does not give 5 heads of an even size"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 16}, "head_dim 16 is not supported: hidden_size / num_attention_heads = 12"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings True is not supported"),
        ({"rope_scaling": {"factor": 2}}, "rope_scaling {'factor': 2} is not supported"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
            "rotary scaling 'yarn' is not",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer type 'sliding_attention': ",
        ),
        ({"rope_theta": None}, "rope_theta must be a number, not missing"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0"),
        ({"eos_token_id": "end"}, "eos_token_id must be a token or a list of tokens"),
        ({"eos_token_id": [0, -1]}, "eos_token_id must be a token or a list of tokens"),
    ],
)
def test_a_config_that_is_not_ouro_is_refused(refused: Callable[..., str], changes: dict[str, Any], says: str) -> None:
    assert says in refused(InputError, OuroConfig.from_dict, CONFIG | changes)


def test_both_spellings_of_a_config_mean_the_same() -> None:
    plain = {key: value for key, value in CONFIG.items() if key not in ("rope_theta", "num_key_value_heads")}
    newer = plain | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "eos_token_id": [2, 0]}
    assert OuroConfig.from_dict(newer) == OuroConfig.from_dict(CONFIG | {"eos_token_id": [2, 0]})
    beyond = OuroConfig.from_dict(CONFIG | {"eos_token_id": [2, 10**6]})  # a token that no text has
    assert beyond == OuroConfig.from_dict(CONFIG | {"eos_token_id": 2})
