"""Parcae: a prelude, a looped core with a state that decays towards the input, a coda; values that look at tokens.

    e = norm(prelude(embedding(tokens)))                      the input, once
    h_t = core(exp(-dt a) h_{t-1} + dt B e)                   a call; dt = softplus(dt_bias), a = exp(A_log)
    logits_t = head(norm(coda(C h_t)))                        a reading, after any call

    x += A(N1 x);  x += P(0.5 relu(F(N2 x))^2)                a layer; q and k are turned, then normed by head
    v += 2 sigmoid(G y[:32]) * E_n[token]                     in every second layer; y = N1 x, G gives one number a head

What is mapped.  Every part of every layer, in the prelude, the core and the coda.  What a call begins with is `enter`:
the decay above ("diagonal"), W [h ; e] ("linear") or h + e ("add").  C is `leave`; a state is what the core gives,
before C.  The value embeddings come by `side`: v depends on a row's token and not only on the stream, so a patch of
`resid` does not carry them, and a patch of `v` does.  The start is a truncated normal draw by seed and position.

What is not mapped.  Depth that is drawn by sequence or by token belongs to training: every row runs all loops here.
A core of another width, other numbers of heads in the core, keys that heads share, biases, soft caps, other MLPs and
initial strategies that scale the embedding or the logits are refused.

What certifies it: states, logits and greedy tokens of the public code on a small random model with value embeddings,
diagonal injection, prelude norm and C (tests/golden), to 1e-5 of a state's size and 5e-5 (logits) in fp32.  "linear"
and "add" are by construction from the same pieces.

Which layers have a gate and which tables of values there are is told by the names of the weights: where the core has
an odd number of layers, both need not meet, and a gate without a table, or a table without one, is read by nobody.
Where there are any, tables must be those of the sizes, and gates those of every second layer of the prelude and the
core, and of the coda.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import shown, whole
from loopscope.errors import InputError, nearest
from loopscope.models.configs import base_of, check_keys, check_shared, ends_of, eps_of
from loopscope.models.cored import (
    STAGES,
    Cored,
    CoredConfig,
    angles_at,
    check_boundary,
    check_fixed,
    core_sizes,
    flag,
    head_of,
    join_heads,
    layer_names,
    rotate_pairs,
    split_heads,
)
from loopscope.models.ouro import RMSNorm
from loopscope.models.passes import Boundary, RotaryAngles
from loopscope.protocol import Side

Injection = Literal["diagonal", "linear", "add"]

GATE = 32
"""Entries of a normed row that a gate of values looks at."""

GATES, TABLES = "gates_told_by_weights", "tables_told_by_weights"
"""The settings that `told_by_weights` adds to a config: numbers of layers, counted through all stages."""

_FIXED = {
    "bias": False, "qk_bias": False, "nonlin_name": "ReLU2", "mlp_class_name": "BaseMLP", "norm_class_name": "RMSNorm",
    "block_class_name": "TransformerPreNormBlock", "init_strategy": "scaled-zero", "state_init": "like-init",
    "mup_model_scaling_factor": 1, "logit_softcap": None, "clip_qkv": None, "debias_attention": False,
    "center_attention": False, "model_class_name": "Parcae",
}  # fmt: skip
_ROPE = {"use_rope": True, "rope_condense_ratio": 1}
_CORE = {
    "recurrent_embedding_dimension": "n_embd",
    "recurrent_num_attention_heads": "num_attention_heads",
}
"""Sizes of the core that must be those of the other stages, where they are given."""

_CORE_MLP = "recurrent_intermediation_embedding_dimension"
_WORKED_OUT = {"head_size": "head_size", "n_head": "heads", "n_query_groups": "kv_heads"}
"""Sizes that follow from others, which a config that the public code saved has as well."""

_KEYS = {
    *_FIXED, *_CORE, *(key for key, _, _ in CoredConfig.KEYS.values()), *_WORKED_OUT, _CORE_MLP, "norm_eps",
    "rope_settings",
    "qk_norm", "prelude_norm", "tie_embeddings", "injection_type", "mean_backprop_depth", "_class_name", GATES, TABLES,
}  # fmt: skip
_WITHOUT_EFFECT = {
    "name", "hf_config", "padding_multiple", "architecture_class_name", "attn_impl", "init_orthogonal", "lockstep_n",
    "lockstep_k", "sampling_scheme", "recurrent_iteration_method", "activation_checkpoint_impl", "curriculum_target",
    "use_fused_head", "skip_initialization", "randomize_positions_from", "strategy", "n_layer", "init",
    "_recurrent_block_config",
}  # fmt: skip
"""Keys about training, kernels and names, and what the public code works out anew when it reads a config."""


@dataclass(frozen=True, kw_only=True)
class ParcaeConfig(CoredConfig):
    """Sizes and constants of a Parcae model; `from_dict` reads them from a released `config.json`."""

    core_mlp: int
    injection: Injection
    qk_norm: bool
    prelude_norm: bool
    gates: frozenset[int]  # layers that have a gate of values, counted through all stages from 0
    values: frozenset[int]  # layers that have a table of values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ParcaeConfig:
        """Read the keys of a released config; InputError for one that is missing, of a wrong type, or not supported.

        Gates and tables are those that `told_by_weights` added, else those that a new model of these sizes has.
        """
        check_keys(values, _KEYS | _WITHOUT_EFFECT)
        check_fixed(values, _FIXED)
        injection = values.get("injection_type", "diagonal")
        if injection not in get_args(Injection):
            there = ", ".join(get_args(Injection))
            near = nearest(str(injection)[:80], get_args(Injection))
            raise InputError(f"injection_type {shown(injection)} is not supported; there are {there}{near}")
        found: dict[str, Any] = {**core_sizes(values, "num_attention_heads")}
        for key, same in _CORE.items():
            if values.get(key) not in (None, values[same]):
                raise InputError(f"{key} is {shown(values[key])}, but {same} is {values[same]}: both must be the same")
        for key, name in _WORKED_OUT.items():
            if values.get(key) not in (None, found[name]):
                raise InputError(f"{key} is {shown(values[key])}, but {found[name]} follows from the other sizes")
        if found["kv_heads"] != found["heads"]:
            raise InputError(
                f"num_key_value_heads {shown(found['kv_heads'])} is not supported: every head has its keys"
            )
        check_shared(values, found["prelude"] + found["core"] + found["coda"])
        core_mlp = values.get(_CORE_MLP)
        core_mlp = whole(_CORE_MLP, found["mlp"] if core_mlp is None else core_mlp, 1, bounds.WIDTH)
        rope = values.get("rope_settings")
        if not isinstance(rope, Mapping):
            raise InputError(f"rope_settings must be a group of settings, not {shown(rope)}")
        check_fixed(rope, _ROPE)
        if unknown := set(rope) - set(_ROPE) - {"rope_base"}:
            raise InputError(
                f"{shown(min(unknown))} among rope_settings is not known here{nearest(min(unknown), _ROPE)}"
            )
        made = cls(
            **found,
            eps=eps_of(values.get("norm_eps")),
            base=base_of(rope.get("rope_base")),
            tied=flag(values, "tie_embeddings", flag(values, "tie_word_embeddings", False)),
            spread=math.sqrt(2 / (5 * found["width"])),
            core_mlp=core_mlp,
            injection=injection,
            qk_norm=flag(values, "qk_norm"),  # which no tensor tells
            prelude_norm=flag(values, "prelude_norm", False),
            gates=frozenset(),
            values=frozenset(),
        )
        gates, tables = _drawn_up(made, values)
        made = replace(made, gates=gates, values=tables, ends=ends_of(values.get("eos_token_id"), made.vocabulary))
        if made.gates and made.width < GATE:
            raise InputError(f"gates of values look at {GATE} entries, but n_embd is {made.width}")
        return made


def _drawn_up(made: ParcaeConfig, values: Mapping[str, Any]) -> tuple[frozenset[int], frozenset[int]]:
    """Which layers have a gate and a table: those that the weights told, or those of a new model.

    A new model counts the layers of the coda behind all loops for its gates, and behind one for its tables.
    """
    count = made.prelude + made.core + made.coda
    if GATES in values:
        gates, tables = frozenset(values[GATES]), frozenset(values[TABLES])
        if beyond := tables - set(range(count)):
            raise InputError(f"there is a tensor value_embeds.{min(beyond)}, but the stages have {count} layers")
        return gates, tables
    back = whole("mean_backprop_depth", values.get("mean_backprop_depth"), 1, bounds.LOOPS)
    places = [*range(made.prelude + made.core)]
    places += [made.prelude + made.core * made.loops + layer for layer in range(made.coda)]
    gates = frozenset(layer for layer, place in enumerate(places) if place % 2 == (made.core * back - 1) % 2)
    return gates, _tables(count)


def _tables(count: int) -> frozenset[int]:
    """Which of so many layers have a table of values: every second, the last among them."""
    return frozenset(layer for layer in range(count) if layer % 2 == (count - 1) % 2)


def _check_told(coda: int, count: int, gates: set[int], tables: set[int]) -> None:
    """InputError unless tables are those of so many layers, and every second layer has a gate.

    The coda, which begins at layer `coda`, counts its gates anew: the number of loops in training decides which.
    """
    wanted = _tables(count)
    if tables != wanted:
        odd = min(tables ^ wanted)
        said = "is missing" if odd in wanted else "is there"
        there = ", ".join(map(str, sorted(wanted)))
        raise InputError(f"the tensor value_embeds.{odd}.weight {said}, but {count} layers have tables {there}")
    for layers in (range(coda), range(coda, count)):
        mine = gates.intersection(layers)
        if mine not in (set(layers[::2]), set(layers[1::2])):
            where = ", ".join(map(str, sorted(mine))) or "none"
            raise InputError(
                f"of layers {layers[0]} to {layers[-1]}, counted through all stages, every second must have a gate of"
                f" values (attn.ve_gate), but those that have are: {where}"
            )


def told_by_weights(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A config with what only the names of the tensors beside it tell: gates and tables of values.

    InputError where some of them are missing.
    """
    names = list(names)
    before, gates = [0], set()
    layers = layer_names(names)
    for stage in STAGES:
        mine = {number: parts for (each, number), parts in layers.items() if each == stage}
        gates |= {before[-1] + number for number, parts in mine.items() if "attn.ve_gate.weight" in parts}
        before.append(before[-1] + len(mine))
    named = {name.split(".")[1] for name in names if name.startswith("value_embeds.")}
    tables = {int(each) for each in named if each.isdecimal()}
    if (gates or tables) and max(tables, default=0) < before[-1]:  # others are refused where the layers are known
        _check_told(before[-2], before[-1], gates, tables)
    return {**values, GATES: gates, TABLES: tables}


class _Attention(nn.Module):
    """The projections of attention, under their released names."""

    def __init__(self, config: ParcaeConfig, gated: bool) -> None:
        super().__init__()
        full = config.heads * config.head_size
        self.c_q = nn.Linear(config.width, full, bias=False)
        self.c_k = nn.Linear(config.width, full, bias=False)
        self.c_v = nn.Linear(config.width, full, bias=False)
        self.c_proj = nn.Linear(full, config.width, bias=False)
        if gated:
            self.ve_gate = nn.Linear(GATE, config.heads, bias=False)


class _Mlp(nn.Module):
    """A squared ReLU, halved, between two matrices."""

    def __init__(self, width: int, middle: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, middle, bias=False)
        self.proj = nn.Linear(middle, width, bias=False)

    def hidden(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B m"]:
        """Its units."""
        return 0.5 * self.fc(x).relu().square()


class ParcaeLayer(nn.Module):
    """One layer, of any stage."""

    def __init__(self, config: ParcaeConfig, middle: int, gated: bool, table: nn.Embedding | None) -> None:
        super().__init__()
        self.size, self.scale, self.qk_norm = config.head_size, config.head_size**-0.5, config.qk_norm
        self.scaling = {"rope_type": "default", "rope_theta": config.base}
        self.norm_1, self.norm_2 = RMSNorm(config.width, config.eps), RMSNorm(config.width, config.eps)
        self.attn, self.mlp = _Attention(config, gated), _Mlp(config.width, middle)
        # In a tuple, as the table belongs to the model: a module's own would stand in the state dict a second time.
        self.values = (table,) if gated and table is not None else ()

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str, side: Side
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads, q and k turned by their positions and normed.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them;
        `side` has the tokens of these rows.
        """
        angles = rows if isinstance(rows, RotaryAngles) else angles_at(rows, self.size, self.scaling, x.dtype)
        y, found = self.norm_1(x), []
        for part in parts:
            heads = split_heads(getattr(self.attn, f"c_{part}")(y), self.size)
            if part == "v":
                for table in self.values:
                    gate = 2 * self.attn.ve_gate(y[..., :GATE]).sigmoid()
                    heads = heads + gate.transpose(-1, -2)[..., None] * split_heads(table(side.tokens), self.size)
            else:
                heads = rotate_pairs(heads, angles)
                heads = nnf.rms_norm(heads, (self.size,)) if self.qk_norm else heads
            found.append(heads)
        return tuple(found)

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention adds to the residual stream, from the heads' outputs."""
        return cast("Tensor", self.attn.c_proj(join_heads(z)))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(self.norm_2(x))

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream, of its hidden units."""
        return self.mlp.proj(hidden)

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP adds to the residual stream; x is the stream after attention."""
        return self.mlp_from(self.mlp_hidden(x))


class _Diagonal(nn.Module):
    """A decay of every channel of the state, and the input by a matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.B = nn.Parameter(torch.eye(width))

    @property
    def decay(self) -> Float[Tensor, " d"]:
        """What is left of every channel of the state after a call, between 0 and 1."""
        return torch.exp(-nnf.softplus(self.dt_bias) * self.A_log.exp())

    def forward(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        return h * self.decay + nnf.softplus(self.dt_bias) * nnf.linear(e, self.B)


class _Linear(nn.Module):
    """A matrix of state and input, side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.adapter = nn.Linear(2 * width, width, bias=False)

    def forward(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        return self.adapter(torch.cat([h, e], -1))


class _Add(nn.Module):
    """State and input together; no weights."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        return h + e


INJECTIONS: Mapping[Injection, type[nn.Module]] = {"diagonal": _Diagonal, "linear": _Linear, "add": _Add}


class _Trunk(nn.Module):
    """Everything but the head and the tables of values, under the released prefix `transformer.`"""

    def __init__(self, config: ParcaeConfig, tables: Mapping[int, nn.Embedding]) -> None:
        super().__init__()

        def stage(before: int, count: int, middle: int) -> nn.ModuleList:
            places = range(before, before + count)
            return nn.ModuleList(ParcaeLayer(config, middle, n in config.gates, tables.get(n)) for n in places)

        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.prelude = stage(0, config.prelude, config.mlp)
        self.adapter = INJECTIONS[config.injection](config.width)
        self.core_block = stage(config.prelude, config.core, config.core_mlp)
        self.C = nn.Linear(config.width, config.width, bias=False)
        self.coda = stage(config.prelude + config.core, config.coda, config.mlp)
        self.ln_f = RMSNorm(config.width, config.eps)
        self.ln_prelude = RMSNorm(config.width, config.eps) if config.prelude_norm else None


class Parcae(Cored):
    """A Parcae model; a `LanguageModel`.

    A fresh one has PyTorch's initial weights; `folders.load` gives a released one.
    """

    def __init__(self, config: ParcaeConfig) -> None:
        super().__init__()
        self.config: ParcaeConfig = config
        made = {n: nn.Embedding(config.vocabulary, config.heads * config.head_size) for n in sorted(config.values)}
        self.value_embeds = nn.ModuleDict({str(n): table for n, table in made.items()})
        self.transformer, self.lm_head = _Trunk(config, made), head_of(config)

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """The rotary positions that a file also holds."""
        return {"freqs_cis": (1, self.positions, 1, self.head_size // 2, 2)}

    @property
    def middle(self) -> int:
        """Width of the widest MLP inside."""
        return max(self.config.mlp, self.config.core_mlp)

    @property
    def unread(self) -> tuple[nn.Parameter, ...]:
        """Gates without a table, and tables without a gate."""
        layers = [*self.transformer.prelude, *self.transformer.core_block, *self.transformer.coda]
        alone = [layers[n].attn.ve_gate for n in sorted(self.config.gates - self.config.values)]
        alone += [self.value_embeds[str(n)] for n in sorted(self.config.values - self.config.gates)]
        return tuple(each.weight for each in alone)

    def settle(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """The input as the prelude leaves it, normed where the model has a norm for it."""
        return x if self.transformer.ln_prelude is None else self.transformer.ln_prelude(x)

    def enter(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"], call: int) -> Float[Tensor, "*B d"]:
        """What the core sees: what is left of the state, and the input."""
        return cast("Tensor", self.transformer.adapter(h, e))

    def leave(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What the coda sees: C of the state."""
        return cast("Tensor", self.transformer.C(h))


def parcae_from_config(config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None) -> Parcae:
    """The model of a released `config.json` with PyTorch's initial weights; `loops`: by default the config's own.

    InputError for a setting that is not supported, and for a boundary that such a model has not.
    """
    check_boundary("a model with a coda", boundary)
    settings = ParcaeConfig.from_dict(config)
    return Parcae(settings if loops is None else replace(settings, loops=loops))
