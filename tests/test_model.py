"""The looped transformer against torch's own layers, against plain arithmetic, and against its stated beginnings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as nnf
from scipy import special, stats
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.model import (
    Layer,
    LoopedTransformer,
    ModelConfig,
    attention_pattern,
    causal,
    graph_walk_config,
    parity_config,
    relations_config,
)

CONFIGS = {"graph": graph_walk_config(), "parity": parity_config(), "relations": relations_config()}
SMALL = {"vocabulary": 9, "classes": 5, "loops": 3, "width": 12, "heads": 3, "mlp": 20}
SMALL_KINDS = {
    "graph": {"positions": 8},
    "parity": {"layers": 1, "read_in": "one-hot", "attention_bias": True, "gelu": "tanh", "norm_in_loop": True,
               "readout": "linear", "init": "gpt2"},
    "relations": {"attention_bias": True, "readout": "tied", "first_class": 2, "init": "torch"},
}  # fmt: skip

kinds = pytest.mark.parametrize("kind", CONFIGS)


def shaken(config: ModelConfig, noise: float = 0.02) -> LoopedTransformer:
    """A double-precision model with noise on every parameter, so that no bias is zero and no norm gain is one."""
    generator = torch.Generator().manual_seed(1)
    model = LoopedTransformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def small(kind: str, **changes: object) -> LoopedTransformer:
    return shaken(ModelConfig.from_dict({**SMALL, **SMALL_KINDS[kind], **changes}), noise=0.1)


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def tokens_for(model: LoopedTransformer, batch: int = 3, length: int = 8) -> Tensor:
    return torch.randint(0, model.config.vocabulary, (batch, length))


# Size ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (graph_walk_config(nodes=10), 1_598_208),
        (graph_walk_config(nodes=8), 1_595_648),
        (parity_config(), 793_606),
        (relations_config(), 1_600_768),
    ],
)
def test_parameter_counts_of_the_papers_backbones(config: ModelConfig, count: int) -> None:
    assert sum(p.numel() for p in LoopedTransformer(config).parameters()) == count


def test_graph_walk_config_follows_the_number_of_nodes() -> None:
    config = graph_walk_config(nodes=8, loops=5)
    assert (config.vocabulary, config.classes, config.positions, config.loops) == (20, 8, 29, 5)


@kinds
def test_width_and_heads_are_the_configs(kind: str) -> None:
    model = LoopedTransformer(CONFIGS[kind])
    assert (model.width, model.heads) == (CONFIGS[kind].width, CONFIGS[kind].heads)
    assert len(model.layers) == CONFIGS[kind].layers


# The block, against torch.nn -----------------------------------------------------------------------------------------


def torch_layer(layer: Layer, config: ModelConfig) -> Callable[[Tensor], Tensor]:
    """The same layer built from torch.nn with the weights copied over."""
    d, like = config.width, {"dtype": layer.up.weight.dtype}
    activation = nn.GELU(approximate="none" if config.gelu == "erf" else "tanh")

    def mask(x: Tensor) -> Tensor:
        return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)

    def copy(module: nn.Module, source: nn.Module) -> nn.Module:
        module.load_state_dict(source.state_dict())
        return module

    if config.attention_bias:
        whole = nn.TransformerEncoderLayer(
            d, config.heads, config.mlp, dropout=0.0, activation=activation, batch_first=True, norm_first=True, **like
        )
        for ours, theirs in [
            (layer.norm1, whole.norm1), (layer.out, whole.self_attn.out_proj), (layer.norm2, whole.norm2),
            (layer.up, whole.linear1), (layer.down, whole.linear2),
        ]:  # fmt: skip
            copy(theirs, ours)
        with torch.no_grad():
            whole.self_attn.in_proj_weight.copy_(layer.qkv.weight)
            whole.self_attn.in_proj_bias.copy_(layer.qkv.bias)
        return lambda x: whole(x, src_mask=mask(x))

    norm1, norm2 = copy(nn.LayerNorm(d, **like), layer.norm1), copy(nn.LayerNorm(d, **like), layer.norm2)
    attention = nn.MultiheadAttention(d, config.heads, bias=False, batch_first=True, **like)
    with torch.no_grad():
        attention.in_proj_weight.copy_(layer.qkv.weight)
        attention.out_proj.weight.copy_(layer.out.weight)
    up, down = copy(nn.Linear(d, config.mlp, **like), layer.up), copy(nn.Linear(config.mlp, d, **like), layer.down)
    mlp = nn.Sequential(norm2, up, activation, down)

    def forward(x: Tensor) -> Tensor:
        y = norm1(x)
        x = x + attention(y, y, y, attn_mask=mask(x), need_weights=False)[0]
        return x + mlp(x)

    return forward


@kinds
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
@torch.no_grad()
def test_block_equals_torchs_own_layers_over_several_loops(
    kind: str, fused: bool, dtype: torch.dtype, tolerance: float
) -> None:
    config = CONFIGS[kind]
    model = shaken(config).to(dtype)
    oracles = [torch_layer(layer, config) for layer in model.layers]
    ours = theirs = states(2, 11, config.width).to(dtype)
    for _ in range(5):
        ours = model.call(ours, fused)
        for oracle in oracles:
            theirs = oracle(theirs)
        if config.norm_in_loop:
            theirs = nnf.layer_norm(theirs, (config.width,), model.norm.weight, model.norm.bias)
        assert (ours - theirs).abs().max() <= tolerance


@kinds
@torch.no_grad()
def test_explicit_and_fused_attention_agree(kind: str) -> None:
    model = shaken(CONFIGS[kind])
    h = states(2, 11, model.width)
    torch.testing.assert_close(model.call(h, fused=False), model.call(h, fused=True), rtol=0, atol=1e-11)


# The whole model, against arithmetic on one row at a time ------------------------------------------------------------


def slow_logits(model: LoopedTransformer, tokens: list[int], loops: int) -> np.ndarray:
    """Logits [rows, classes] of one example, in numpy, with a loop over rows, heads and keys."""
    c = model.config
    w = {name: p.detach().numpy() for name, p in model.named_parameters()}
    size = c.width // c.heads

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def affine(x: np.ndarray, name: str) -> np.ndarray:
        return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)

    def gelu(x: np.ndarray) -> np.ndarray:
        if c.gelu == "erf":
            return x * 0.5 * (1 + special.erf(x / math.sqrt(2)))
        return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    h = []
    for row, token in enumerate(tokens):
        if c.read_in == "embedding":
            h.append(w["embedding.weight"][token].copy())
        else:
            h.append(w["read_in.weight"][:, token] + w["read_in.bias"])
        if c.positions:
            h[-1] += w["positions"][row]
    for _ in range(loops):
        for index in range(c.layers):
            qkv = [np.split(affine(norm(x, f"layers.{index}.norm1"), f"layers.{index}.qkv"), 3) for x in h]
            added = []
            for row in range(len(h)):
                z = np.zeros(c.width)
                for head in range(c.heads):
                    part = slice(head * size, (head + 1) * size)
                    scores = [qkv[row][0][part] @ qkv[key][1][part] / math.sqrt(size) for key in range(row + 1)]
                    alpha = special.softmax(scores)
                    z[part] = sum(alpha[key] * qkv[key][2][part] for key in range(row + 1))
                added.append(affine(z, f"layers.{index}.out"))
            h = [x + a for x, a in zip(h, added, strict=True)]
            up = [gelu(affine(norm(x, f"layers.{index}.norm2"), f"layers.{index}.up")) for x in h]
            h = [x + affine(u, f"layers.{index}.down") for x, u in zip(h, up, strict=True)]
        if c.norm_in_loop:
            h = [norm(x, "norm") for x in h]
    if c.readout == "linear":
        logits = [affine(x, "readout") for x in h]
    else:
        matrix = w["embedding.weight" if c.readout == "tied" else "readout.weight"]
        logits = [matrix @ norm(x, "norm") for x in h]
    return np.stack(logits)[:, c.first_class : c.first_class + c.classes]


@kinds
@pytest.mark.parametrize("loops", [0, 1, 4])
@torch.no_grad()
def test_whole_model_equals_plain_arithmetic(kind: str, loops: int) -> None:
    model = small(kind)
    tokens = tokens_for(model)
    logits = model(tokens, loops=loops)
    assert logits.shape == (*tokens.shape, model.config.classes)
    slow = np.stack([slow_logits(model, row, loops) for row in tokens.tolist()])
    np.testing.assert_allclose(logits.numpy(), slow, rtol=0, atol=1e-11)


@kinds
@torch.no_grad()
def test_loops_default_to_the_trained_number(kind: str) -> None:
    model = small(kind)
    tokens = tokens_for(model)
    assert torch.equal(model(tokens), model(tokens, loops=3))
    assert not torch.allclose(model(tokens), model(tokens, loops=2))


def test_negative_loops_are_refused(refused: Callable[..., str]) -> None:
    model = small("graph")
    assert "-1 loops" in refused(InputError, model, tokens_for(model), -1)


@kinds
@pytest.mark.parametrize("fused", [True, False])
@torch.no_grad()
def test_a_token_changes_no_state_before_its_row(kind: str, fused: bool) -> None:
    model = small(kind)
    tokens = tokens_for(model)
    for row in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[:, row] = (changed[:, row] + 1) % model.config.vocabulary
        h, other = model.embed(tokens), model.embed(changed)
        for _ in range(3):
            assert torch.equal(h[:, :row], other[:, :row])
            assert (h[:, row:] != other[:, row:]).any()
            h, other = model.call(h, fused), model.call(other, fused)


@kinds
@torch.no_grad()
def test_later_rows_do_see_an_earlier_token(kind: str) -> None:
    model = small(kind)
    tokens = tokens_for(model)
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % model.config.vocabulary
    assert ((model(tokens) - model(changed))[:, -1].abs().amax(-1) > 1e-6).all()


def test_gradients_reach_every_parameter() -> None:
    for kind in SMALL_KINDS:
        model = small(kind)
        model(tokens_for(model)).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, (kind, name)
            assert parameter.grad.abs().sum() > 0, (kind, name)


# Pieces --------------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("parts", ["q", "kv", "qkv"])
@torch.no_grad()
def test_projecting_some_rows_and_parts_equals_a_slice_of_the_whole(kind: str, parts: str) -> None:
    model = small(kind)
    layer = model.layers[-1]
    x, every = states(2, 3, 8, model.width), torch.arange(8)
    whole = dict(zip("qkv", layer.project(x, every), strict=True))
    for rows in ([0], [7], [1, 4, 6], list(range(8))):
        picked = layer.project(x[..., rows, :], torch.tensor(rows), parts)
        assert len(picked) == len(parts)
        for name, part in zip(parts, picked, strict=True):
            assert part.shape == (2, 3, model.heads, len(rows), model.width // model.heads)
            torch.testing.assert_close(part, whole[name][..., rows, :], rtol=0, atol=1e-13)


@kinds
@torch.no_grad()
def test_the_pieces_put_together_are_the_layer(kind: str) -> None:
    model = small(kind)
    layer = model.layers[0]
    x, rows = states(2, 8, model.width), torch.arange(8)
    q, k, v = layer.project(x, rows)
    alpha = attention_pattern(q, k, layer.scale, causal(rows, rows))
    middle = x + layer.attn_out(alpha @ v)
    torch.testing.assert_close(middle + layer.mlp_out(middle), layer(x), rtol=0, atol=1e-12)


def test_patterns_are_distributions_over_the_visible_keys() -> None:
    q, k = states(2, 3, 4, 5), states(2, 3, 6, 5)
    rows, keys = torch.tensor([0, 5, 2, 3]), torch.arange(6)
    visible = causal(rows, keys)
    assert visible.tolist() == [[key <= row for key in range(6)] for row in rows.tolist()]
    alpha = attention_pattern(q, k, 0.7, visible)
    assert (alpha[..., ~visible] == 0).all()
    assert (alpha[..., visible] > 0).all()
    torch.testing.assert_close(alpha.sum(-1), torch.ones(2, 3, 4, dtype=torch.float64))
    seen_by_all = attention_pattern(q, k, 0.7, None)
    torch.testing.assert_close(seen_by_all, (0.7 * torch.einsum("bhrk,bhsk->bhrs", q, k)).softmax(-1))


# Readouts ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_untied_readout_normalises_and_keeps_the_classes() -> None:
    model = small("graph", first_class=3, classes=4)
    h = states(2, 8, 12)
    whole = model.norm(h) @ model.readout.weight.T
    torch.testing.assert_close(model.read(h), whole[..., 3:7])
    torch.testing.assert_close(model.read(h[:, -1]), whole[:, -1, 3:7])
    assert model.close(h) is h


@torch.no_grad()
def test_tied_readout_uses_the_entities_embeddings() -> None:
    model = LoopedTransformer(relations_config())
    assert model.readout is None
    entities = model.embedding.weight[1:65]
    h = torch.randn(2, 8, 256)
    torch.testing.assert_close(model.read(h), model.norm(h) @ entities.T)
    before = model.read(h)
    model.embedding.weight[0] += 1  # BOS
    model.embedding.weight[65:] += 1  # relations
    assert torch.equal(model.read(h), before)
    model.embedding.weight[64] += 1
    changed = (model.read(h) != before).flatten(0, 1).any(0)
    assert changed.tolist() == [False] * 63 + [True]


@torch.no_grad()
def test_parity_normalises_inside_the_loop_and_not_before_the_readout() -> None:
    model = small("parity", classes=4, first_class=1)
    h = states(2, 8, 12)
    inner = h
    for layer in model.layers:
        inner = layer(inner)
    torch.testing.assert_close(model.call(h), model.norm(inner))
    torch.testing.assert_close(model.read(h), (h @ model.readout.weight.T + model.readout.bias)[..., 1:5])
    fresh = LoopedTransformer(parity_config())
    out = fresh.call(10 * torch.randn(2, 8, 256) + 3)
    torch.testing.assert_close(out.mean(-1), torch.zeros(2, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(out.var(-1, correction=0), torch.ones(2, 8), atol=1e-4, rtol=0)


# Beginnings ----------------------------------------------------------------------------------------------------------


def is_normal(tensor: Tensor, std: float) -> None:
    values = tensor.detach().double().flatten().numpy()
    assert values.std() == pytest.approx(std, rel=5 / math.sqrt(2 * values.size))
    assert stats.kstest(values / std, "norm").pvalue > 1e-3


def is_uniform(tensor: Tensor, bound: float) -> None:
    values = tensor.detach().double().flatten().numpy()
    assert abs(values).max() <= bound * (1 + 1e-6)
    assert stats.kstest(values / bound, stats.uniform(-1, 2).cdf).pvalue > 1e-3


def has_fresh_norms(model: LoopedTransformer) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * model.config.layers + 1
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()
        assert norm.eps == 1e-5


def test_graph_walk_starts_with_small_tables_and_torchs_default_elsewhere() -> None:
    model = LoopedTransformer(graph_walk_config())
    for table in (model.embedding.weight, model.positions, model.readout.weight):
        is_normal(table, 0.02)
    for layer in model.layers:
        for linear in (layer.qkv, layer.out, layer.up, layer.down):
            is_uniform(linear.weight, linear.in_features**-0.5)
        assert layer.qkv.bias is None
        assert layer.out.bias is None
        is_uniform(layer.up.bias, 256**-0.5)
        is_uniform(layer.down.bias, 1024**-0.5)
    has_fresh_norms(model)


@pytest.mark.parametrize("layers", [1, 3])
def test_parity_starts_like_gpt2(layers: int) -> None:
    model = LoopedTransformer(ModelConfig.from_dict({**parity_config().to_dict(), "layers": layers}))
    for layer in model.layers:
        is_normal(layer.qkv.weight, 0.02)
        is_normal(layer.up.weight, 0.02)
        is_normal(layer.out.weight, 0.02 / math.sqrt(2 * layers))
        is_normal(layer.down.weight, 0.02 / math.sqrt(2 * layers))
    is_normal(model.read_in.weight, 0.02)
    is_normal(model.readout.weight, 0.02)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 4 * layers + 2
    assert all((linear.bias == 0).all() for linear in linears)
    has_fresh_norms(model)


def test_relations_start_like_torchs_transformer() -> None:
    model = LoopedTransformer(relations_config())
    is_normal(model.embedding.weight, 1.0)
    for layer in model.layers:
        is_uniform(layer.qkv.weight, math.sqrt(6 / (256 + 3 * 256)))
        is_uniform(layer.out.weight, 256**-0.5)
        assert (layer.qkv.bias == 0).all()
        assert (layer.out.bias == 0).all()
        is_uniform(layer.up.weight, 256**-0.5)
        is_uniform(layer.up.bias, 256**-0.5)
        is_uniform(layer.down.weight, 1024**-0.5)
        is_uniform(layer.down.bias, 1024**-0.5)
    has_fresh_norms(model)


@pytest.mark.parametrize(("init", "std"), [("graph", 0.02), ("gpt2", 0.02), ("torch", 1.0)])
def test_every_table_is_drawn_in_every_combination(init: str, std: float) -> None:
    for read_in, readout in [("embedding", "untied"), ("embedding", "tied"), ("one-hot", "linear")]:
        for bias in (True, False):
            config = ModelConfig.from_dict(
                {"vocabulary": 40, "classes": 5, "loops": 2, "width": 64, "positions": 50, "init": init,
                 "read_in": read_in, "readout": readout, "attention_bias": bias}
            )  # fmt: skip
            model = LoopedTransformer(config)
            is_normal(model.positions, std)
            if read_in == "embedding":
                is_normal(model.embedding.weight, std)
            assert torch.isfinite(model(torch.randint(0, 40, (2, 50)))).all()


@kinds
def test_a_seed_fixes_every_parameter_and_another_one_changes_every_drawn_one(kind: str) -> None:
    def drawn(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return LoopedTransformer(CONFIGS[kind]).state_dict()

    first, again, other = drawn(3), drawn(3), drawn(4)
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name]), name
        constant = bool((tensor == tensor.flatten()[0]).all())  # norms and zeroed biases
        assert torch.equal(tensor, other[name]) == constant, name


# Configuration -------------------------------------------------------------------------------------------------------


@kinds
def test_configs_survive_json(kind: str) -> None:
    config = CONFIGS[kind]
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(ModelConfig.from_dict(config.to_dict())) == hash(config)


def test_defaults_may_be_left_out() -> None:
    assert ModelConfig.from_dict({"vocabulary": 5, "classes": 5, "loops": 1}) == ModelConfig(5, 5, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 7}, ["7 heads do not divide width 12", "(nearest: 6 heads)"]),
        ({"heads": 11}, ["11 heads do not divide width 12", "(nearest: 12 heads)"]),
        ({"heads": 100}, ["100 heads", "(nearest: 12 heads)"]),
        ({"haeds": 4}, ["unknown model setting 'haeds'", "(nearest: heads)"]),
        ({"line\nbreak": 4}, [r"unknown model setting 'line\nbreak'"]),
        *(
            ({name: bad}, [f"{name} must be at least 1, not {bad}"])
            for name in ("vocabulary", "classes", "loops", "layers", "width", "heads", "mlp")
            for bad in (0, -3)
        ),
        ({"positions": -1}, ["positions must be at least 0, not -1"]),
        ({"first_class": -1}, ["first_class must be at least 0, not -1"]),
        ({"classes": 10}, ["classes 0..9 exceed the vocabulary, which is 0..8"]),
        ({"first_class": 5}, ["classes 5..9 exceed the vocabulary, which is 0..8"]),
        ({"layers": "2"}, ["layers must be of type int, not '2'"]),
        ({"layers": 2.0}, ["layers must be of type int, not 2.0"]),
        ({"layers": True}, ["layers must be of type int, not True"]),
        ({"layers": None}, ["layers must be of type int, not None"]),
        ({"width": [12]}, ["width must be of type int, not [12]"]),
        ({"attention_bias": 1}, ["attention_bias must be of type bool, not 1"]),
        ({"attention_bias": "no\n"}, [r"attention_bias must be of type bool, not 'no\n'"]),
        ({"gelu": "tan"}, ["gelu cannot be 'tan'; there are erf, tanh", "(nearest: tanh)"]),
        ({"readout": ["tied"]}, ["readout cannot be ['tied']; there are untied, tied, linear"]),
        ({"init": 3}, ["init cannot be 3; there are graph, gpt2, torch"]),
        ({"read_in": "onehot"}, ["(nearest: one-hot)"]),
        ({"readout": "tied", "read_in": "one-hot"}, ["a tied readout needs an embedding"]),
    ],
)
def test_bad_settings_are_one_line(changes: dict[str, object], words: list[str], refused: Callable[..., str]) -> None:
    message = refused(InputError, ModelConfig.from_dict, {**SMALL, **changes})
    assert [word for word in words if word not in message] == []


def test_missing_settings_are_named(refused: Callable[..., str]) -> None:
    for name in ("vocabulary", "classes", "loops"):
        kept = {key: value for key, value in SMALL.items() if key != name}
        assert f"{name!r} is missing" in refused(InputError, ModelConfig.from_dict, kept)


def test_the_suggested_number_of_heads_is_valid(refused: Callable[..., str]) -> None:
    for width in range(1, 30):
        for heads in range(1, 40):
            if width % heads:
                message = refused(InputError, ModelConfig.from_dict, {**SMALL, "width": width, "heads": heads})
                near = int(message.split("nearest: ")[1].split()[0])
                assert width % near == 0
                assert abs(near - heads) == min(abs(h - heads) for h in range(1, width + 1) if width % h == 0)


# Tokens --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SMALL_KINDS)
@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (torch.tensor([[0, 9]]), ["token 9 is outside 0..8", "(nearest: 8)"]),
        (torch.tensor([[3, -2]]), ["token -2 is outside 0..8", "(nearest: 0)"]),
        (torch.tensor([[-1, 99]]), ["token -1 is outside 0..8", "(nearest: 0)"]),
        (torch.zeros(2, 3), ["whole numbers [batch, tokens], not torch.float32 [2, 3]"]),
        (torch.zeros(2, 3, dtype=torch.bool), ["not torch.bool [2, 3]"]),
        (torch.zeros(2, 3, dtype=torch.complex64), ["not torch.complex64 [2, 3]"]),
        (torch.zeros(3, dtype=torch.long), ["not torch.int64 [3]"]),
        (torch.zeros(1, 2, 3, dtype=torch.long), ["not torch.int64 [1, 2, 3]"]),
        (torch.tensor(3), ["not torch.int64 []"]),
    ],
)
def test_bad_tokens_are_one_line(kind: str, tokens: Tensor, words: list[str], refused: Callable[..., str]) -> None:
    model = small(kind)
    for entrance in (model.embed, model):
        message = refused(InputError, entrance, tokens)
        assert [word for word in words if word not in message] == []


def test_more_tokens_than_positions_are_refused(refused: Callable[..., str]) -> None:
    too_many = torch.zeros(1, 9, dtype=torch.long)
    assert "9 tokens given, but the model has 8 positions" in refused(InputError, small("graph").embed, too_many)
    assert small("relations").embed(too_many).shape == (1, 9, 12)  # no table, no limit


@kinds
@torch.no_grad()
def test_any_integer_type_and_any_number_of_tokens_will_do(kind: str) -> None:
    model = small(kind)
    tokens = tokens_for(model)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(model(tokens.to(dtype)), model(tokens))
    assert model(tokens[:, :1]).shape == (3, 1, 5)
    assert model(tokens[:0]).shape == (0, 8, 5)


@torch.no_grad()
def test_shorter_inputs_use_the_first_positions() -> None:
    model = small("graph")
    tokens = tokens_for(model)
    torch.testing.assert_close(model(tokens[:, :5]), model(tokens)[:, :5], rtol=0, atol=1e-12)
