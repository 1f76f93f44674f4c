"""Parcae: equal to the public code, alike in batches and alone, told by its weights, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.folders import build, load, outline, read_config
from loopscope.models.parcae import Parcae, ParcaeConfig, told_by_weights
from loopscope.program import F, Program
from loopscope.protocol import Side
from tests.cored_tiny import close_to, config_of, drawn, golden, golden_model, greedy, loaded, released, weights


def parcae() -> Parcae:
    model = golden_model("parcae")
    assert isinstance(model, Parcae)
    return model


# Equal to the public code --------------------------------------------------------------------------------------------


def test_states_and_logits_of_every_loop_equal_the_public_code(tmp_path: Path) -> None:
    model, known = loaded(tmp_path / "model", "parcae"), golden("parcae")
    loops = len(known["logits_by_loop"])
    given, ids = {"main": known["initial_state"]}, {"main": known["input_ids"]}
    found = plain_run(model, given, Program.parse(f"h0 F{loops}"), tokens=ids)
    for loop in range(1, loops + 1):
        close_to(found.states[f"h{loop}"], known["states_by_loop"][loop - 1], 1e-5, 1e-5)
        close_to(found.read(f"h{loop}"), known["logits_by_loop"][loop - 1], 5e-5)


def test_greedy_tokens_equal_the_public_code() -> None:
    known = golden("parcae")
    expected = known["greedy_zero_state_4"]
    assert torch.equal(greedy(parcae(), known["input_ids"], expected.shape[1], "zeros F4"), expected)


SAVED = {
    "head_size": 12, "n_head": 4, "n_query_groups": 4, "n_layer": 8, "num_key_value_heads": 4, "strategy": "single",
    "use_abacus": False, "simple_ops": False, "init": {"init_strategy": "scaled-zero"},
    "_recurrent_block_config": {"n_embd": 48}, "_is_recurrent_block_config": False,
}  # fmt: skip
"""What a config has beside the settings when the public code saved it."""


@pytest.mark.parametrize("named", [{"_class_name": "ParcaeConfig"}, {"model_class_name": "Parcae", **SAVED}])
def test_a_config_has_no_model_type_but_a_class_name(tmp_path: Path, named: dict[str, Any]) -> None:
    folder = released(tmp_path / "model", "parcae")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["model_type"], config["_class_name"]
    config |= named
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert read_config(folder)["model_type"] == "parcae"
    model = load(folder)
    sizes = (model.width, model.heads, model.head_size, model.loops, model.positions, model.vocabulary, model.middle)
    assert sizes == (48, 4, 12, 8, 64, 96, 192)
    assert (model.boundary, model.unread) == ("none", ())


# Values that look at tokens ------------------------------------------------------------------------------------------


def test_values_depend_on_tokens_in_every_second_layer() -> None:
    model, known = parcae(), golden("parcae")
    x, rows = known["initial_state"], torch.arange(10)
    told = []
    with torch.no_grad():
        for layer in (*model.prelude, *model.layers, *model.coda):
            one = layer.project(x, rows, "qkv", Side(known["input_ids"], 1))
            two = layer.project(x, rows, "qkv", Side((known["input_ids"] + 1) % 96, 1))
            assert torch.equal(one[0], two[0])
            assert torch.equal(one[1], two[1])
            told.append(not torch.allclose(one[2], two[2], atol=1e-3))
    assert told == [False, True] * 3


def test_a_patch_of_the_stream_does_not_carry_the_values() -> None:
    """All rows of `resid` from another input, in a layer with a table: v is still that of the own tokens."""
    model, ids = parcae(), golden("parcae")["input_ids"]
    inputs = {"main": ids[:1], "other": ids[1:]}
    other = plain_run(model, {"main": ids[1:]}, F**1)
    carried = plain_run(model, inputs, Program.parse("F[layer[2].resid<-(F)@other]"))
    assert torch.equal(carried.components[1, 2, "resid"], other.components[1, 2, "resid"])
    assert not torch.allclose(carried.components[1, 2, "v"], other.components[1, 2, "v"], atol=1e-3)


def test_a_state_decays_towards_what_is_injected() -> None:
    model = parcae()
    h, e = golden("parcae")["initial_state"], torch.zeros(2, 10, 48)
    decay = model.transformer.adapter.decay.detach()
    assert 0 < float(decay.min()) <= float(decay.max()) < 1
    with torch.no_grad():
        close_to(model.enter(h, e, 1), h * decay, 1e-7)


# Which layers have gates and tables ----------------------------------------------------------------------------------


def test_gates_and_tables_are_told_by_the_names_of_the_weights() -> None:
    config = ParcaeConfig.from_dict(told_by_weights(config_of("parcae"), weights("parcae")))
    assert (config.gates, config.values) == ({1, 3, 5}, {1, 3, 5})
    assert config == ParcaeConfig.from_dict(config_of("parcae"))


def test_a_gate_without_a_table_is_read_by_nobody() -> None:
    """With an odd core and an even number of loops the coda's gates and tables are not those of the same layers."""
    values = config_of("parcae") | {"n_layers_in_recurrent_block": 3, "mean_recurrence": 3, "mean_backprop_depth": 2}
    config = ParcaeConfig.from_dict(values)
    assert (config.gates, config.values) == ({1, 3, 5}, {0, 2, 4, 6})
    model = drawn(values)
    assert isinstance(model, Parcae)
    assert len(model.unread) == 7
    ids = golden("parcae")["input_ids"]
    before = plain_run(model, {"main": ids}, F**2).read("h2")
    with torch.no_grad():
        for each in model.unread:
            each.add_(1)
    assert torch.equal(plain_run(model, {"main": ids}, F**2).read("h2"), before)
    even = ParcaeConfig.from_dict(values | {"mean_recurrence": 4, "mean_backprop_depth": 3})
    assert (even.gates, even.values) == ({0, 2, 4, 5}, {0, 2, 4, 6})


def test_released_sizes_give_the_released_number_of_weights() -> None:
    values = config_of("parcae") | {
        "n_embd": 768, "num_attention_heads": 6, "intermediate_size": 3072, "vocab_size": 32768, "block_size": 2048,
        "padded_vocab_size": 32768, "recurrent_embedding_dimension": 768,
        "recurrent_intermediation_embedding_dimension": 3072,
    }  # fmt: skip
    model = build(values)
    tables = sum(each.numel() for name, each in model.named_parameters() if name.startswith("value_embeds"))
    assert tables == 3 * 32768 * 768  # 75 million
    assert round(sum(each.numel() for each in model.parameters()) / 1e6) == 144
    assert model.head_size == 128


# Rows, batches, sizes ------------------------------------------------------------------------------------------------


def test_a_batch_gives_what_its_examples_give_alone() -> None:
    model, ids = parcae(), golden("parcae")["input_ids"]
    program = Program.parse("seed:2 F3")
    together = plain_run(model, {"main": ids}, program).read("h3")
    for number, one in enumerate(ids):
        alone = plain_run(model, {"main": one[None]}, program).read("h3")
        close_to(together[number : number + 1], alone, 1e-5, 1e-5)
    shorter = plain_run(model, {"main": ids[:, :5]}, program).read("h3")
    close_to(together[:, :5], shorter, 1e-5, 1e-5)


def test_embedding_glue_and_projections_are_row_by_row() -> None:
    model, ids = parcae(), golden("parcae")["input_ids"]
    whole, h = model.embed(ids), golden("parcae")["initial_state"]
    for row in range(ids.shape[1]):
        assert torch.equal(model.embed(ids[:, row : row + 1]), whole[:, row : row + 1])
    with torch.no_grad():
        close_to(model.settle(whole)[:, 3], model.settle(whole[:, 3]), 1e-6)
        close_to(model.enter(h, whole, 1)[:, 3], model.enter(h[:, 3], whole[:, 3], 1), 1e-6)
        close_to(model.leave(h)[:, 3], model.leave(h[:, 3]), 1e-6)
        close_to(model.read(h)[:, 3], model.read(h[:, 3]), 1e-5)
        q, k, v = model.layers[1].project(h, torch.arange(10), "qkv", Side(ids, 1))
        rows = torch.tensor([6, 2])
        side = Side(ids[:, rows], 1)
        (mine,) = model.layers[1].project(h[:, rows], rows, "q", side)
        close_to(mine, q[:, :, rows], 1e-6)
        angles = model.rotary_angles(rows, h[:, rows])
        for where in (torch.stack([rows, rows]), angles):
            keys, values = model.layers[1].project(h[:, rows], where, "kv", side)
            close_to(keys, k[:, :, rows], 1e-6)
            close_to(values, v[:, :, rows], 1e-6)


def test_the_start_has_no_scale() -> None:
    drawn_start = parcae().start(torch.zeros(1, 2048, 48), 0, torch.arange(2048))
    wanted = (2 / (5 * 48)) ** 0.5
    close_to(drawn_start.std(), torch.tensor(0.98658 * wanted), 0.001)
    assert float(drawn_start.abs().max()) <= 3 * wanted * (1 + 1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 6, "n_layers_in_prelude": 1, "n_layers_in_recurrent_block": 3, "n_layers_in_coda": 2},
        {"injection_type": "linear", "prelude_norm": False, "qk_norm": False},
        {"injection_type": "add", "tie_embeddings": False},
        {"recurrent_intermediation_embedding_dimension": 64, "padded_vocab_size": 128},
        {"head_dim": 16, "n_layers_in_prelude": 0, "n_layers_in_coda": 0},
    ],
)
def test_other_sizes_and_settings_run(changes: dict[str, Any]) -> None:
    values = config_of("parcae") | changes
    model, ids = drawn(values), golden("parcae")["input_ids"]
    found = plain_run(model, {"main": ids}, F**2)
    assert found.read("h2").shape == (2, 10, values["padded_vocab_size"])
    assert found.read("h2").isfinite().all()
    again = build(told_by_weights(values, model.state_dict()))
    assert again.state_dict().keys() == model.state_dict().keys()


def test_linear_and_additive_injection_are_what_they_say() -> None:
    h, e = golden("parcae")["initial_state"], golden("parcae")["initial_state"].flip(0)
    linear = drawn(config_of("parcae") | {"injection_type": "linear"})
    add = drawn(config_of("parcae") | {"injection_type": "add"})
    assert isinstance(linear, Parcae)
    assert isinstance(add, Parcae)
    matrix = dict(linear.named_parameters())["transformer.adapter.adapter.weight"]
    with torch.no_grad():
        close_to(linear.enter(h, e, 1), h @ matrix[:, :48].T + e @ matrix[:, 48:].T, 1e-6)
        assert torch.equal(add.enter(h, e, 1), h + e)


# Folders -------------------------------------------------------------------------------------------------------------


def test_weights_that_say_otherwise_than_the_config_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    tensors = weights("parcae")

    def load_with(changed: dict[str, Tensor], **changes: Any) -> str:
        folder = released(tmp_path / f"{len(list(tmp_path.iterdir()))}", "parcae", changed, **changes)
        return refused(InputError, load, folder)

    assert "lacks lm_head.weight" in load_with(tensors, tie_embeddings=False)
    assert "has transformer.ln_prelude.weight, which the model has not" in load_with(tensors, prelude_norm=False)
    assert "transformer.adapter" in load_with(tensors, injection_type="linear")
    assert "lacks transformer.prelude.2" in load_with(tensors, n_layers_in_prelude=3)
    rope = {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 10000}
    assert "freqs_cis is not what config.json says" in load_with(tensors, rope_settings=rope)
    routed = tensors | {"transformer.core_block.0.router.weight": torch.zeros(1, 48)}
    assert "has transformer.core_block.0.router.weight, which the model has not" in load_with(routed)
    beyond = tensors | {"value_embeds.6.weight": torch.zeros(96, 48)}
    assert "there is a tensor value_embeds.6, but the stages have 6 layers" in load_with(beyond)

    def without(*parts: str) -> dict[str, Tensor]:
        return {name: each for name, each in tensors.items() if not any(part in name for part in parts)}

    missing = "the tensor value_embeds.{}.weight is missing, but 6 layers have tables 1, 3, 5"
    assert missing.format(1) in load_with(without("value_embeds"))
    for number in (1, 3, 5):
        assert missing.format(number) in load_with(without(f"value_embeds.{number}."))
    more = tensors | {"value_embeds.2.weight": torch.zeros(96, 48)}
    assert "the tensor value_embeds.2.weight is there, but 6 layers have tables 1, 3, 5" in load_with(more)
    assert "every second must have a gate" in load_with(without("ve_gate"))
    assert "every second must have a gate of values (attn.ve_gate), but those that have are: 1" in load_with(
        without("core_block.1.attn.ve_gate")
    )
    assert "of layers 4 to 5" in load_with(without("coda.1.attn.ve_gate"))


def test_a_model_without_values_loads(tmp_path: Path) -> None:
    none = {name: each for name, each in weights("parcae").items() if "value_embeds" not in name}
    model = loaded(tmp_path / "none", "parcae", {name: each for name, each in none.items() if "ve_gate" not in name})
    assert isinstance(model, Parcae)
    assert (model.config.gates, model.config.values) == (frozenset(), frozenset())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"injection_type": "gated"}, "injection_type 'gated' is not supported; there are diagonal, linear, add"),
        ({"init_strategy": "takase"}, "init_strategy 'takase' is not supported (nearest: 'scaled-zero')"),
        ({"state_init": "zero"}, "state_init 'zero' is not supported"),
        ({"logit_softcap": 30.0}, "logit_softcap 30.0 is not supported (nearest: None)"),
        ({"nonlin_name": "GELU"}, "nonlin_name 'GELU' is not supported"),
        ({"mlp_class_name": "GatedMLP"}, "mlp_class_name 'GatedMLP' is not supported"),
        ({"qk_bias": True}, "qk_bias True is not supported"),
        ({"recurrent_embedding_dimension": 64}, "recurrent_embedding_dimension is 64, but n_embd is 48"),
        ({"recurrent_num_attention_heads": 2}, "recurrent_num_attention_heads is 2, but num_attention_heads is 4"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not supported"),
        ({"n_head": 2}, "n_head is 2, but 4 follows from the other sizes"),
        ({"qk_norm": None}, "qk_norm must be true or false, not missing"),
        ({"vocab_size": 97}, "vocab_size 97 is more than padded_vocab_size 96"),
        ({"rope_settings": {"use_rope": False, "rope_base": 1e4}}, "use_rope False is not supported"),
        ({"rope_settings": {"rope_condense_ratio": 2, "rope_base": 1e4}}, "rope_condense_ratio 2 is not supported"),
        ({"rope_settings": {"rope_base": 1e4, "scale": 2}}, "'scale' among rope_settings is not known here"),
        ({"rope_settings": None}, "rope_settings must be a group of settings, not missing"),
        ({"n_embd": 24, "recurrent_embedding_dimension": 24}, "gates of values look at 32 entries, but n_embd is 24"),
        ({"enable_hyper_connection": True}, "'enable_hyper_connection' is a setting that is not known here"),
        ({"router": "expert-choice"}, "'router' is a setting that is not known here"),
        ({"mlp_t": True}, "'mlp_t' is a setting that is not known here"),
    ],
)
def test_a_config_that_is_not_parcaes_is_refused(
    refused: Callable[..., str], changes: dict[str, Any], says: str
) -> None:
    assert says in refused(InputError, ParcaeConfig.from_dict, config_of("parcae") | changes)


def test_a_boundary_is_none_of_its(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = released(tmp_path / "model", "parcae")
    assert "there is no boundary 'norm'" in refused(InputError, lambda: outline(folder, boundary="norm"))
    assert outline(folder, loops=3).loops == 3
