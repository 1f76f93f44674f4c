"""Huginn and the retrofits: equal to the public code and to transformers, alike in batches and alone, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

from loopscope import check_model
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.models.folders import build, load, outline
from loopscope.models.raven import Raven, RavenConfig, told_by_weights
from loopscope.program import F, Program, Run, Zeros
from loopscope.studies.language.recipes import recipe
from loopscope.training.lm import memory
from loopscope.training.lm.batches import TokenSequence, units
from tests.cored_tiny import close_to, config_of, drawn, golden, golden_model, greedy, loaded, released, weights
from tests.ouro_tiny import write_folder

BOTH = pytest.mark.parametrize("name", ["huginn", "raven_llama"])


# Equal to the public code --------------------------------------------------------------------------------------------


@BOTH
def test_states_latents_and_logits_of_every_loop_equal_the_public_code(name: str, tmp_path: Path) -> None:
    model, known = loaded(tmp_path / "model", name), golden(name)
    loops = len(known["logits_by_loop"])
    given, ids = {"main": known["initial_state"]}, {"main": known["input_ids"]}
    found = plain_run(model, given, Program.parse(f"h0 F{loops}"), tokens=ids)
    assert isinstance(model, Raven)
    with torch.no_grad():
        for loop in range(1, loops + 1):
            state = found.states[f"h{loop}"]
            close_to(found.read(f"h{loop}"), known["logits_by_loop"][loop - 1], 5e-5)
            close_to(model.leave(state), known["latents_by_loop"][loop - 1], 1e-5, 1e-5)
            if "states_by_loop" in known:
                close_to(state, known["states_by_loop"][loop - 1], 1e-5, 1e-5)


def test_what_is_injected_is_what_the_prelude_gives() -> None:
    known = golden("huginn")
    model = golden_model("huginn")
    assert isinstance(model, Raven)
    seen = plain_run(model, {"main": known["input_ids"]}, Program.parse("zeros F"))
    entered = seen.components[1, 1, "resid"]
    with torch.no_grad():
        close_to(entered, model.enter(torch.zeros(2, 11, 48), known["injected"], 1), 1e-5)


def test_logits_from_a_zero_state_equal_the_public_code(refused: Callable[..., str]) -> None:
    known, model = golden("huginn"), golden_model("huginn")
    found = plain_run(model, {"main": known["input_ids"]}, Program.parse("zeros F4"))
    close_to(found.read("h4"), known["logits_zero_state_4"], 5e-5)
    assert check_model(model, known["input_ids"], known["logits_zero_state_4"], start=Zeros())
    said = refused(InputError, lambda: check_model(model, known["input_ids"], known["logits_zero_state_4"]))
    assert said.endswith("or the original began elsewhere: start=Zeros() or another Seed")


@pytest.mark.parametrize(("name", "loops"), [("huginn", 4), ("raven_llama", 3)])
def test_greedy_tokens_equal_the_public_code(name: str, loops: int) -> None:
    known = golden(name)
    expected = known[f"greedy_zero_state_{loops}"]
    found = greedy(golden_model(name), known["input_ids"], expected.shape[1], f"zeros F{loops}")
    assert torch.equal(found, expected)


def test_the_config_says_what_the_model_is() -> None:
    model = golden_model("huginn")
    sizes = (model.width, model.heads, model.head_size, model.loops, model.positions, model.vocabulary, model.middle)
    assert sizes == (48, 4, 12, 6, 64, 96, 80)
    assert (model.boundary, model.copies) == ("none", {"lm_head.weight": "transformer.wte.weight"})
    assert golden_model("raven_llama").copies == {}


# Equal to transformers -----------------------------------------------------------------------------------------------

SHARED = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
LONG = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def as_retrofit(original: Any, first: str, second: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A retrofit of layers 0-1, 2-4 and 5 whose first call sees e alone, and so is the original at one loop."""
    source, config = original.state_dict(), original.config
    tensors = {
        "transformer.wte.weight": source["model.embed_tokens.weight"],
        "transformer.ln_f.weight": source["model.norm.weight"],
        "transformer.adapter.weight": torch.cat([torch.zeros(32, 32), torch.eye(32)], 1),
        "lm_head.weight": source["lm_head.weight"],
    }
    for stage, layers in (("prelude", range(2)), ("core_block", range(2, 5)), ("coda", range(5, 6))):
        for number, layer in enumerate(layers):
            mine, theirs = f"transformer.{stage}.{number}", f"model.layers.{layer}"
            attention = [source[f"{theirs}.self_attn.{part}_proj.weight"] for part in "qkv"]
            tensors[f"{mine}.attn.Wqkv.weight"] = torch.cat(attention)
            tensors[f"{mine}.attn.proj.weight"] = source[f"{theirs}.self_attn.o_proj.weight"]
            gates = [source[f"{theirs}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
            tensors[f"{mine}.mlp.fc.weight"] = torch.cat(gates)
            tensors[f"{mine}.mlp.proj.weight"] = source[f"{theirs}.mlp.down_proj.weight"]
            tensors[f"{mine}.norm_1.weight"] = source[f"{theirs}.{first}.weight"]
            tensors[f"{mine}.norm_2.weight"] = source[f"{theirs}.{second}.weight"]
            for part in "qk":
                if f"{theirs}.self_attn.{part}_norm.weight" in source:
                    tensors[f"{mine}.attn.{part}_norm.weight"] = source[f"{theirs}.self_attn.{part}_norm.weight"]
    settings = {
        "model_type": "huginn_raven", "n_embd": 32, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 40, "vocab_size": 61, "block_size": 64, "max_position_embeddings": 4096,
        "n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 3, "n_layers_in_coda": 1, "mean_recurrence": 8,
        "norm_eps": 1e-5, "qk_bias": False, "tie_embeddings": False, "init_values": {"std": 0.1, "embed_scale": 1.0},
        "rope_parameters": config.rope_parameters, "eos_token_id": 65505,
    }  # fmt: skip
    return settings, {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def spread_out(model: Any) -> Any:
    """Weights in which every part matters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.copy_(noise + (parameter.dim() == 1))
    return model.eval()


@pytest.mark.parametrize("kind", ["llama", "llama3", "olmo"])
def test_a_retrofit_that_sees_its_input_alone_is_the_model_it_was_made_from(kind: str, tmp_path: Path) -> None:
    if kind == "olmo":
        original = spread_out(Olmo2ForCausalLM(Olmo2Config(**SHARED, rope_theta=3e4)))
        settings, tensors = as_retrofit(original, "post_attention_layernorm", "post_feedforward_layernorm")
    else:
        rope = LONG if kind == "llama3" else {"rope_type": "default", "rope_theta": 3e4}
        original = spread_out(LlamaForCausalLM(LlamaConfig(**SHARED, rope_parameters=rope)))
        settings, tensors = as_retrofit(original, "input_layernorm", "post_attention_layernorm")
    model = load(write_folder(tmp_path / "retrofit", tensors, settings))
    ids = torch.randint(0, 61, (2, 90), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = original(ids).logits
    for start in ("", "seed:4 ", "zeros "):  # which W forgets
        found = plain_run(model, {"main": ids}, Program.parse(f"{start}F2"))
        close_to(found.read("h1"), expected, 2e-5, 1e-5)
        assert torch.equal(found.states["h2"], found.states["h1"])
    assert model.ends == ()  # Huginn's end is no word of this vocabulary


# The start -----------------------------------------------------------------------------------------------------------


def start_of(model: Raven, seed: int, length: int, batch: int = 1) -> Tensor:
    return model.start(torch.zeros(batch, length, model.width), seed, torch.arange(length))


def test_a_start_is_a_function_of_seed_and_position() -> None:
    model = golden_model("huginn")
    assert isinstance(model, Raven)
    long = start_of(model, 3, 200, 2)
    assert torch.equal(long[0], long[1])
    assert torch.equal(start_of(model, 3, 70), long[:1, :70])
    some = torch.tensor([[5, 130], [199, 0]])
    found = model.start(torch.zeros(2, 2, 48), 3, some)
    assert torch.equal(found, torch.stack([long[0, [5, 130]], long[0, [199, 0]]]))
    assert model.start(torch.zeros(2, 0, 48), 3, torch.arange(0)).shape == (2, 0, 48)
    assert not torch.equal(start_of(model, 4, 64), long[:1, :64])
    assert not torch.equal(long[0, :64], long[0, 64:128])  # blocks differ
    half = model.start(torch.zeros(1, 70, 48, dtype=torch.bfloat16), 3, torch.arange(70))
    assert torch.equal(half, long[:1, :70].bfloat16())


def test_a_start_is_a_normal_draw_cut_at_three_deviations() -> None:
    model = golden_model("huginn")
    assert isinstance(model, Raven)
    wanted = (2 / (5 * 48)) ** 0.5 * 48**0.5
    found = start_of(model, 0, 4096).double() / wanted
    assert float(found.abs().max()) <= 3
    assert float(found.abs().max()) > 2.99
    assert abs(float(found.mean())) < 0.01
    close_to(found.std(), torch.tensor(0.98658, dtype=torch.float64), 0.005)  # a little less than 1, as it is cut
    inside = (found.abs() < 1).double().mean()
    close_to(inside, torch.tensor(0.68269 / 0.99730, dtype=torch.float64), 0.005)


def test_a_program_names_the_seed_and_none_is_seed_zero() -> None:
    model, ids = golden_model("huginn"), {"main": golden("huginn")["input_ids"]}
    unsaid = plain_run(model, ids, F**2).states["h2"]
    assert torch.equal(unsaid, plain_run(model, ids, Program.parse("seed:0 F2")).states["h2"])
    assert not torch.allclose(unsaid, plain_run(model, ids, Program.parse("seed:1 F2")).states["h2"], atol=1e-3)


# Rows, batches, sizes ------------------------------------------------------------------------------------------------


@BOTH
def test_a_batch_gives_what_its_examples_give_alone(name: str) -> None:
    model, ids = golden_model(name), golden(name)["input_ids"]
    program = Program.parse("seed:2 F3")
    together = plain_run(model, {"main": ids}, program).read("h3")
    for number, one in enumerate(ids):
        alone = plain_run(model, {"main": one[None]}, program).read("h3")
        close_to(together[number : number + 1], alone, 1e-5, 1e-5)
    shorter = plain_run(model, {"main": ids[:, :5]}, program).read("h3")
    close_to(together[:, :5], shorter, 1e-5, 1e-5)


@BOTH
def test_embedding_and_glue_are_row_by_row(name: str) -> None:
    model, ids = golden_model(name), golden(name)["input_ids"]
    assert isinstance(model, Raven)
    whole = model.embed(ids)
    for row in range(ids.shape[1]):
        assert torch.equal(model.embed(ids[:, row : row + 1]), whole[:, row : row + 1])
    h = golden(name)["initial_state"]
    with torch.no_grad():
        for glue in (model.leave, model.read, lambda x: model.enter(x, whole, 1)):
            there = glue(h)
            assert there.shape[:2] == h.shape[:2]
        close_to(model.enter(h, whole, 1)[:, 3], model.enter(h[:, 3], whole[:, 3], 1), 1e-5)
        close_to(model.leave(h)[:, 3], model.leave(h[:, 3]), 1e-6)
        close_to(model.read(h)[:, 3], model.read(h[:, 3]), 1e-5)


@BOTH
def test_parts_and_rows_are_projected_apart_as_together(name: str) -> None:
    model, h = golden_model(name), golden(name)["initial_state"]
    layer = model.layers[1]
    with torch.no_grad():
        q, k, v = layer.project(h, torch.arange(h.shape[1]), "qkv")
        assert q.shape == k.shape == v.shape == (2, 4, h.shape[1], 12)
        rows = torch.tensor([6, 2])
        (mine,) = layer.project(h[:, rows], rows, "q")
        close_to(mine, q[:, :, rows], 1e-6)
        each = layer.project(h[:, rows], torch.stack([rows, rows]), "kv")
        close_to(each[0], k[:, :, rows], 1e-6)
        angles = model.rotary_angles(rows, h[:, rows])
        close_to(layer.project(h[:, rows], angles, "kv")[0], k[:, :, rows], 1e-6)
        close_to(each[1], v[:, :, rows], 1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_heads": 6, "num_key_value_heads": 6, "head_dim": 8},
        {"n_heads": 3, "num_key_value_heads": 3, "head_dim": 10, "n_layers_in_prelude": 1, "n_layers_in_coda": 3},
        {"n_heads": 4, "num_key_value_heads": 2, "qk_bias": False, "head_dim": None},
        {"n_layers_in_prelude": 0, "n_layers_in_coda": 0, "n_layers_in_recurrent_block": 1, "block_size": 16},
        {"padded_vocab_size": 128, "vocab_size": 100, "tie_embeddings": False, "init_values": {}},
    ],
)
def test_other_sizes_run(changes: dict[str, Any]) -> None:
    values = config_of("huginn") | changes
    model = drawn(values, ("transformer.core_block.0.norm_4.weight", *_bias(values)))
    ids = golden("huginn")["input_ids"]
    found = plain_run(model, {"main": ids}, Program.parse("F2"))
    assert found.read("h2").shape == (2, 11, values["padded_vocab_size"])
    assert found.read("h2").isfinite().all()
    assert len(model.prelude) == values["n_layers_in_prelude"]


def _bias(values: dict[str, Any]) -> tuple[str, ...]:
    return ("transformer.core_block.0.attn.qk_bias",) if values["qk_bias"] else ()


def test_released_sizes_give_the_released_number_of_weights() -> None:
    huginn = config_of("huginn") | {
        "n_embd": 5280, "n_heads": 55, "num_key_value_heads": 55, "head_dim": 96, "intermediate_size": 17920,
        "vocab_size": 65536, "padded_vocab_size": 65536, "block_size": 4096, "mean_recurrence": 32,
        "init_values": {"std": 0.008703882797784892, "embed_scale": 72.6636084983398},
        "bos_token_id": 65504, "eos_token_id": 65505, "pad_token_id": 65509,
    }  # fmt: skip
    model = build(huginn)
    assert sum(each.numel() for each in model.parameters()) == 3_564_976_800
    assert (model.loops, model.ends, model.tables["freqs_cis"]) == (32, (65505,), (1, 4096, 1, 48, 2))
    llama = config_of("raven_llama") | {
        "n_embd": 2048, "n_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
        "vocab_size": 128256, "padded_vocab_size": 128256, "n_layers_in_prelude": 4, "n_layers_in_coda": 4,
        "n_layers_in_recurrent_block": 6, "eos_token_id": 65505,
    }  # fmt: skip
    model = build(llama)
    assert sum(each.numel() for each in model.parameters()) == 1_385_228_288
    assert model.ends == ()
    assert build(llama | {"eos_token_id": [128001, 65505]}).ends == (128001,)


# Folders -------------------------------------------------------------------------------------------------------------


def test_a_tied_head_may_stand_there_twice_and_the_rotary_table_need_not(tmp_path: Path) -> None:
    tensors = weights("huginn")
    plain = loaded(tmp_path / "plain", "huginn")
    twice = tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}
    del twice["freqs_cis"]
    again = loaded(tmp_path / "twice", "huginn", twice)
    assert plain.state_dict().keys() == again.state_dict().keys() == tensors.keys() - {"freqs_cis"}
    half = {name: t.bfloat16() for name, t in tensors.items()} | {"freqs_cis": tensors["freqs_cis"]}
    assert {p.dtype for p in loaded(tmp_path / "half", "huginn", half).parameters()} == {torch.bfloat16}


def test_weights_that_say_otherwise_than_the_config_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    tensors = weights("huginn")

    def load_with(changed: dict[str, Tensor], **changes: Any) -> str:
        folder = released(tmp_path / f"{len(list(tmp_path.iterdir()))}", "huginn", changed, **changes)
        return refused(InputError, load, folder)

    other = tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1}
    assert "lm_head.weight is not transformer.wte.weight, though config.json says that they are tied" in load_with(
        other
    )
    assert "lacks lm_head.weight" in load_with(tensors, tie_embeddings=False)
    assert "qk_bias is False, but the weights have attn.qk_bias" in load_with(tensors, qk_bias=False)
    unbiased = {name: t for name, t in tensors.items() if "qk_bias" not in name}
    assert "qk_bias is True, but the weights have no attn.qk_bias" in load_with(unbiased)
    mixed = {
        name: t
        for name, t in tensors.items()
        if not name.startswith(("transformer.coda.1.norm_3", "transformer.coda.1.norm_4"))
    }
    said = load_with(mixed)
    assert "all layers must be of one kind, but the weights have transformer." in said
    assert "coda.1 of llama's kind" in said
    assert "has transformer.coda.1.attn" in load_with(tensors, n_layers_in_coda=1)
    assert "lacks transformer.prelude.2" in load_with(tensors, n_layers_in_prelude=3)
    assert "freqs_cis is not what config.json says" in load_with(tensors, rope_base=10000)
    assert "freqs_cis has shape [1, 64, 1, 6, 2], but config.json says [1, 32, 1, 6, 2]" in load_with(
        tensors, block_size=32
    )
    routed = tensors | {"transformer.core_block.0.router.weight": torch.zeros(1, 48)}
    assert "has transformer.core_block.0.router.weight, which the model has not" in load_with(routed)


def test_the_kind_of_layers_is_told_by_their_names() -> None:
    for name, kind in (("huginn", "huginn"), ("raven_llama", "llama")):
        model = golden_model(name)
        assert isinstance(model, Raven)
        assert model.config.kind == kind
    names = [f"transformer.core_block.{n}.attn.{part}_norm.weight" for n in (0, 1) for part in "qk"]
    assert RavenConfig.from_dict(told_by_weights(config_of("raven_llama"), names)).kind == "olmo"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"injection_type": "add"}, "injection_type 'add' is not supported (nearest: 'linear')"),
        ({"initial_state_mode": "embed-init"}, "initial_state_mode 'embed-init' is not supported (nearest: 'random')"),
        ({"state_init": "zero"}, "state_init 'zero' is not supported"),
        ({"test_time_noise": 0.1}, "test_time_noise 0.1 is not supported"),
        ({"bias": True}, "bias True is not supported"),
        ({"nonlin_name": "GELU"}, "nonlin_name 'GELU' is not supported"),
        ({"enable_hyper_connection": True}, "'enable_hyper_connection' is a setting that is not known here"),
        ({"router": {"capacity": 0.5}}, "'router' is a setting that is not known here"),
        ({"mlp_t": True}, "'mlp_t' is a setting that is not known here"),
        ({"loop_share_kv": True}, "'loop_share_kv' is a setting that is not known here"),
        ({"n_heads": 5, "head_dim": None}, "n_embd 48 is no multiple of n_heads 5"),
        ({"head_dim": 11}, "its size must be even, not 11"),
        ({"num_key_value_heads": 3}, "4 heads are no multiple of num_key_value_heads 3"),
        ({"num_key_value_heads": 2}, "qk_bias with 2 key heads for 4 heads is not supported"),
        ({"hidden_size": 64}, "hidden_size is 64, but n_embd is 48"),
        ({"vocab_size": 97}, "vocab_size 97 is more than padded_vocab_size 96"),
        ({"vocab_size": -1}, "vocab_size must be at least 1, not -1"),
        ({"n_layers_in_recurrent_block": 0}, "n_layers_in_recurrent_block must be at least 1"),
        ({"n_layers_in_coda": None}, "n_layers_in_coda must be a whole number, not missing"),
        ({"norm_eps": 0}, "must be above 0"),
        ({"rope_base": None}, "rope_theta must be a number, not missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling is not supported with four norms"),
        ({"qk_bias": 1}, "qk_bias must be true or false, not 1"),
        ({"init_values": [1]}, "init_values must be a group of settings"),
        ({"init_values": {"std": -1}}, "init_values.std must be above 0"),
        ({"eos_token_id": [7, True]}, "eos_token_id must be a token or a list of tokens"),
        ({"layers_told_by_weights": "mamba"}, "there are no layers 'mamba'"),
    ],
)
def test_a_config_that_is_not_huginns_is_refused(
    refused: Callable[..., str], changes: dict[str, Any], says: str
) -> None:
    assert says in refused(InputError, RavenConfig.from_dict, config_of("huginn") | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": None, "layers_told_by_weights": "llama"}, "rope_theta must be a number, not missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rotary scaling 'yarn' is not supported"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "rotary scaling 'llama3' needs low_freq_factor"),
        ({"eos_token_id": [65505, [1]]}, "eos_token_id must be a token or a list of tokens"),
        (
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
            "use_sliding_window with a sliding_window of 8",
        ),
        ({"init_values": {"std": 0.1}}, "init_values.embed_scale must be a number, not missing"),
        ({"init_values": {"embed_scale": 1.0}}, "init_values.std must be a number, not missing"),
        ({"qk_bias": True, "layers_told_by_weights": "llama"}, "qk_bias with two norms a layer is not supported"),
    ],
)
def test_a_config_that_is_no_retrofits_is_refused(
    refused: Callable[..., str], changes: dict[str, Any], says: str
) -> None:
    assert says in refused(InputError, RavenConfig.from_dict, config_of("raven_llama") | changes)


def test_a_boundary_is_none_of_theirs(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = released(tmp_path / "model", "huginn")
    assert "there is no boundary 'norm' (nearest: none)" in refused(
        InputError, lambda: outline(folder, boundary="norm")
    )
    assert outline(folder, boundary="none", loops=9).loops == 9
    assert replace(RavenConfig.from_dict(config_of("huginn")), loops=3).loops == 3


# The executor --------------------------------------------------------------------------------------------------------


@BOTH
def test_the_executor_agrees_with_the_plain_run(name: str, tmp_path: Path) -> None:
    """Every start, a readout after every loop, and patches before, in, and behind the loop from another input."""
    model, ids = load(released(tmp_path / name, name), dtype=torch.float64), golden(name)["input_ids"]
    for text in ("F3", "seed:1 F3", "zeros F3"):
        found = run(model, ids, text, rows=range(ids.shape[1]), read="calls")[text]
        plain = plain_run(model, {"main": ids}, Program.parse(text))
        for point in ("h1", "h2", "h3"):
            close_to(found.logits_at[point], plain.read(point), 1e-11)
    base, inputs = Program.parse("F3"), {"main": ids[:1], "other": ids[1:]}
    unpatched = plain_run(model, inputs, base).read("h3")
    for place in ("prelude.layer[1].z", "loop[2].enter", "loop[2].layer[3].v", "loop[3].layer[2].attn_out",
                  "coda[3].layer[2].row[3,8].k"):  # fmt: skip
        program = base.patch(place, Run(base, "other"))
        found = run(model, ids[:1], [program], others={"other": ids[1:]}, rows=range(ids.shape[1]))[str(program)]
        plain = plain_run(model, inputs, program).read("h3")
        close_to(found.logits, plain, 1e-11)
        assert float((plain - unpatched).abs().max()) > 1e-3, place


# Types and memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["huginn", "raven_llama", "parcae"])
def test_bf16_and_fp64_keep_their_types(name: str, tmp_path: Path) -> None:
    known, folder = golden(name), released(tmp_path / name, name)
    ids, program = {"main": known["input_ids"]}, Program.parse("seed:1 F2")
    exact = plain_run(load(folder, dtype=torch.float64), ids, program)
    rounded = plain_run(load(folder, dtype=torch.bfloat16), ids, program)
    single = plain_run(load(folder), ids, program)
    assert (exact.states["h0"].dtype, rounded.states["h0"].dtype) == (torch.float64, torch.bfloat16)
    assert (exact.read("h2").dtype, rounded.read("h2").dtype) == (torch.float64, torch.bfloat16)
    assert torch.equal(exact.states["h0"].float(), single.states["h0"])
    size = float(exact.read("h2").std())
    assert float((single.read("h2") - exact.read("h2")).abs().max()) < 1e-4 * size
    assert float((rounded.read("h2") - exact.read("h2")).std()) < 0.1 * size


def test_a_prelude_and_a_coda_take_memory_once_an_example() -> None:
    rows = [TokenSequence(tuple(range(50)), 49, each) for each in (4, 2)]
    made = units(rows, micro=2, averaging="token", share=1.0, kind="task")
    cpu = torch.device("cpu")
    known = []
    for prelude, coda in ((0, 0), (2, 2), (0, 6)):
        model = build(config_of("huginn") | {"n_layers_in_prelude": prelude, "n_layers_in_coda": coda})
        known.append(memory.estimate(model, None, recipe("letter"), made, device=cpu, recompute=False))
        assert known[-1].weights == 4 * sum(each.numel() for each in model.parameters())
    layer = 4 * (8 * 48 + 8 * 48 + 4 * 80)
    length = made[0].tokens.shape[1]
    assert [each.activations for each in known] == [length * layer * (6 * 4 + 2 * more) for more in (0, 4, 6)]
