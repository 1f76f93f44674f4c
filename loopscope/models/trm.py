"""TRM and HRM: two states that small stacks of layers refine in turn, looking at the whole puzzle.

    e   = sqrt(width) * (puzzle rows, then token rows)     the input, seen in every call of L
    z_L = L(z_L + (z_H + e))                               several times, then
    z_H = H(z_H + z_L)                                     once; that several times is an outer step
    x = N(x + Attn(x));  x = N(x + MLP(x))                 a layer: RMSNorm of the sum, which has no weight
    logits = head(z_H);  halt, continue = q_head(z_H at row 0)

A TRM uses one stack under both names; an HRM has two.  Every row sees every row.

What is mapped.  A state holds z_L and z_H side by side, in the order of `stacks`, and starts from the fixed vectors of
the file.  A loop, as `loops`, `program` and `readings` count it, is one outer step; the states go on into the next.
In evaluation the public code makes `halt_max_steps` of them, whatever its q-head says.  What stands in front of the
tokens are `lead` rows of a puzzle's own: an input has pseudo-tokens there (`with_puzzles`), whose ids follow the
vocabulary, and logits are read at the rows behind.  `attn_out` and `mlp_out` are what is added before the norm.

What is not mapped.  The q-head is read (`halting`), but nothing halts.  Gradients go through all calls, while the
public code trains on those of the last cycle.  `mlp_t`, where an MLP mixes rows in the place of attention, is refused:
it has no patterns.

The settings.  These models are released without a `config.json`, so that there is one to be written: the settings of
the model (`arch`) as they were trained, beside `seq_len`, `vocab_size` and `num_puzzle_identifiers` of the data and a
`model_type`, "trm" or "hrm".  Keys of weights begin with `inner.`, or with the `model.inner.` of the loss they were
trained in; what other wrappers put before it has to go.  Start vectors may be of another type than the weights: choose
one with `dtype`.

What certifies it.  TRM: the public code's outputs on a small random model (tests/golden): the state after each call,
from its own state before, to 1e-5 in fp32; logits and q-head of three outer steps to 5e-5.  HRM, which differs in
having a stack for H: a forward written out in the tests, which gives the same outputs for TRM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import real, shown, whole
from loopscope.errors import InputError, nearest
from loopscope.models.adapter import Sized
from loopscope.models.configs import MAPPED, base_of, check_keys, eps_of
from loopscope.models.ouro import angles_of, rotate
from loopscope.models.passes import Boundary, RotaryAngles, check_tokens
from loopscope.program import Call, Program, Start

Positions = Literal["rope", "learned", "none"]

_SIZES = {
    "vocabulary": ("vocab_size", bounds.VOCABULARY),
    "tokens": ("seq_len", bounds.VOCABULARY),
    "width": ("hidden_size", bounds.WIDTH),
    "heads": ("num_heads", bounds.LAYERS),
    "l_layers": ("L_layers", bounds.LAYERS),
    "h_cycles": ("H_cycles", bounds.LOOPS),
    "l_cycles": ("L_cycles", bounds.LOOPS),
    "loops": ("halt_max_steps", bounds.LOOPS),
}
_TRAINING = {"batch_size", "halt_exploration_prob", "forward_dtype", "no_ACT_continue", "name", "loss", "H_layers"}
_FURTHER = {
    "expansion", "pos_encodings", "puzzle_emb_ndim", "puzzle_emb_len", "num_puzzle_identifiers", "rope_theta",
    "rms_norm_eps", "mlp_t", "causal",
}  # fmt: skip
_KNOWN = {key for key, _ in _SIZES.values()} | _TRAINING | _FURTHER
_MLP_STEP, _LEAD = 256, 16  # the public code rounds MLPs up to a multiple, and has this `puzzle_emb_len` unless told


@dataclass(frozen=True)
class TRMConfig:
    """Sizes and constants of a TRM or HRM; `from_dict` reads them from a `config.json`."""

    vocabulary: int
    tokens: int  # the longest input, without the rows in front
    width: int
    mlp: int
    heads: int
    l_layers: int
    h_layers: int  # 0: H is L
    h_cycles: int  # of an outer step
    l_cycles: int  # calls of L in each
    loops: int  # outer steps
    lead: int = 0  # rows in front
    puzzles: int = 0
    puzzle_width: int = 0  # entries of a puzzle that are learned; what else its rows hold is zero
    positions: Positions = "rope"
    eps: float = 1e-5
    base: float = 1e4

    def __post_init__(self) -> None:
        for name, (key, most) in _SIZES.items():
            whole(key, getattr(self, name), 1, most)
        pairs = 2 if self.positions == "rope" else 1  # rotary positions pair the entries of a head
        if self.width % (pairs * self.heads):
            size = "an even size" if pairs == 2 else "one size"
            raise InputError(f"hidden_size {self.width} does not give {self.heads} heads of {size}")
        if self.h_cycles * (self.l_cycles + 1) * self.loops > bounds.MOST_CALLS:
            raise InputError(f"{self.loops} outer steps of {self.h_cycles} x ({self.l_cycles} + 1) calls are too many")
        if not bool(self.lead) <= self.puzzle_width <= self.lead * self.width:
            rows = f"{self.lead} rows of {self.width} (puzzle_emb_len x hidden_size)"
            raise InputError(f"puzzle_emb_ndim {self.puzzle_width} does not go into {rows}")
        eps_of(self.eps)
        base_of(self.base)

    @property
    def head_size(self) -> int:
        """Size k of a head: its share of the width."""
        return self.width // self.heads

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TRMConfig:
        """Read the keys of a config; InputError for one that is missing, of a wrong type, or not supported."""
        check_keys(values, _KNOWN)
        for key in sorted(MAPPED - _KNOWN):
            if values.get(key) not in (None, False):
                raise InputError(f"{key} is no setting of a TRM or HRM{nearest(key, _KNOWN)}")
        two = values.get("model_type") == "hrm"
        if values.get("mlp_t", False) is not False:
            raise InputError(
                f"mlp_t {shown(values['mlp_t'])}: rows mixed by an MLP have no patterns; only attention is"
            )
        if values.get("causal", False) is not False:
            raise InputError(f"causal {shown(values['causal'])} is not supported: every row sees every row")
        found = {name: whole(key, values.get(key), 1, most) for name, (key, most) in _SIZES.items()}
        width, puzzle_width = (
            found["width"],
            whole("puzzle_emb_ndim", values.get("puzzle_emb_ndim", 0), 0, bounds.WIDTH),
        )
        fewest = -(-puzzle_width // width)
        unsaid = 0 if two or not puzzle_width else _LEAD
        lead = whole("puzzle_emb_len", values.get("puzzle_emb_len", unsaid), 0, bounds.WIDTH) or fewest
        if two and lead != fewest:
            raise InputError(f"puzzle_emb_len {lead}: an HRM has as many rows in front as its puzzles fill, {fewest}")
        positions = values.get("pos_encodings")
        if positions not in ("rope", "learned", "none"):
            near = nearest(str(positions)[:80], ("rope", "learned"))
            raise InputError(f"pos_encodings {shown(positions)} is not supported; there are rope, learned, none{near}")
        expansion = real("expansion", values.get("expansion"), 0, bounds.WIDTH)
        return cls(
            **found,
            mlp=whole("expansion", -(-round(expansion * width * 2 / 3) // _MLP_STEP) * _MLP_STEP, 1, bounds.WIDTH),
            h_layers=whole("H_layers", values.get("H_layers"), 1, bounds.LAYERS) if two else 0,
            lead=lead,
            puzzles=whole("num_puzzle_identifiers", values.get("num_puzzle_identifiers"), 1, bounds.VOCABULARY),
            puzzle_width=puzzle_width,
            positions=cast("Positions", positions),
            eps=eps_of(values.get("rms_norm_eps", 1e-5)),
            base=base_of(values.get("rope_theta", 1e4)),
        )


def unit(x: Float[Tensor, "*B d"], eps: float) -> Float[Tensor, "*B d"]:
    """x / rms(x) in fp32 or better, back in x's type: an RMSNorm without a weight."""
    return nnf.rms_norm(x, x.shape[-1:], eps=eps)


class _Table(nn.Module):
    """Vectors to choose from, under the name that the public code gives them."""

    def __init__(self, name: str, rows: int, width: int) -> None:
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.randn(rows, width)))


class _Attention(nn.Module):
    """The projections of attention, under their released names."""

    def __init__(self, config: TRMConfig) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(config.width, 3 * config.width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)


class _Mlp(nn.Module):
    """SwiGLU, gate and up in one matrix."""

    def __init__(self, config: TRMConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.width, 2 * config.mlp, bias=False)
        self.down_proj = nn.Linear(config.mlp, config.width, bias=False)

    def hidden(self, x: Float[Tensor, "*B d"]) -> Float[Tensor, "*B m"]:
        """Its units."""
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return nnf.silu(gate) * up


class TRMLayer(nn.Module):
    """One layer of a stack: nothing before a branch, the norm of the sum after it."""

    def __init__(self, config: TRMConfig) -> None:
        super().__init__()
        self.heads, self.size, self.eps = config.heads, config.head_size, config.eps
        self.base, self.turned = config.base, config.positions == "rope"
        self.scale = self.size**-0.5
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)

    def project(
        self, x: Float[Tensor, "*B R d"], rows: Int[Tensor, "*P R"] | RotaryAngles, parts: str = "qkv"
    ) -> tuple[Float[Tensor, "*B H R k"], ...]:
        """The named projections of these rows, split into heads; q and k turned, where positions are rotary.

        `rows` are the positions, [R] for all examples or [B, R] for each, or the model's `rotary_angles` of them.
        """
        d = x.shape[-1]
        first, last = "qkv".index(parts[0]) * d, ("qkv".index(parts[-1]) + 1) * d
        y = nnf.linear(x, self.self_attn.qkv_proj.weight[first:last])
        heads = y.unflatten(-1, (len(parts), self.heads, self.size))  # ... R part H k
        found = [each.transpose(-2, -3) for each in heads.unbind(-3)]
        if not self.turned:
            return tuple(found)
        rotary_angles = rows if isinstance(rows, RotaryAngles) else angles_of(rows, self.size, self.base, x.dtype)
        return tuple(y if part == "v" else rotate(y, rotary_angles) for part, y in zip(parts, found, strict=True))

    def attn_out(self, z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R d"]:
        """What attention gives to `join`, from the heads' outputs."""
        return self.self_attn.o_proj(z.transpose(-2, -3).flatten(-2))

    def mlp_hidden(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R m"]:
        """The MLP's hidden units; x is the stream after attention."""
        return self.mlp.hidden(x)

    def mlp_from(self, hidden: Float[Tensor, "*B R m"]) -> Float[Tensor, "*B R d"]:
        """What the MLP gives to `join`, of its hidden units."""
        return self.mlp.down_proj(hidden)

    def mlp_out(self, x: Float[Tensor, "*B R d"]) -> Float[Tensor, "*B R d"]:
        """What the MLP gives to `join`; x is the stream after attention and its norm."""
        return self.mlp_from(self.mlp_hidden(x))

    def join(self, x: Float[Tensor, "*B R d"], out: Float[Tensor, "*B R d"], which: str) -> Float[Tensor, "*B R d"]:
        """The norm of the sum."""
        return unit(x + out, self.eps)

    def mask(self, queries: Int[Tensor, " R"], keys: Int[Tensor, " S"]) -> Bool[Tensor, "R S"]:
        """Every row sees every row."""
        return torch.ones(len(queries), len(keys), dtype=torch.bool, device=queries.device)


class _Level(nn.Module):
    """A stack."""

    def __init__(self, config: TRMConfig, layers: int) -> None:
        super().__init__()
        # A ModuleList holds layers, but cannot tell a type checker so.
        self.layers = cast("Sequence[TRMLayer]", nn.ModuleList(TRMLayer(config) for _ in range(layers)))


class _Inner(nn.Module):
    """Everything, under the released prefix `inner.`"""

    H_init: Tensor
    L_init: Tensor

    def __init__(self, config: TRMConfig) -> None:
        super().__init__()
        self.embed_tokens: Any = _Table("embedding_weight", config.vocabulary, config.width)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.q_head = nn.Linear(config.width, 2)
        if config.lead:
            self.puzzle_emb: Any = _Table("weights", config.puzzles, config.puzzle_width)
        if config.positions == "learned":
            self.embed_pos: Any = _Table("embedding_weight", config.tokens + config.lead, config.width)
        if config.h_layers:
            self.H_level = _Level(config, config.h_layers)
        self.L_level = _Level(config, config.l_layers)
        for name in ("H_init", "L_init"):
            self.register_buffer(name, nn.init.trunc_normal_(torch.empty(config.width)))


class TRM(Sized):
    """Two states and one stack for both, or, in an HRM, two; `folders.load` gives one with trained weights."""

    def __init__(self, config: TRMConfig) -> None:
        super().__init__()
        self.config = config
        self.inner = _Inner(config)
        lower = tuple(self.inner.L_level.layers)
        self._stacks = {"L": lower, "H": tuple(self.inner.H_level.layers) if config.h_layers else lower}

    @property
    def stacks(self) -> Mapping[str, tuple[TRMLayer, ...]]:
        """L and H; in a TRM the same layers."""
        return self._stacks

    def own_name(self, name: str) -> str:
        """What the model calls a tensor of a file: without the `model.` of the loss around it."""
        return name.removeprefix("model.")

    @property
    def layers(self) -> tuple[TRMLayer, ...]:
        """The layers of H, in order."""
        return self._stacks["H"]

    @property
    def boundary(self) -> Boundary:
        """What ends every call: nothing, as layers end with a norm."""
        return "none"

    @property
    def positions(self) -> int:
        """The longest input, with the rows in front."""
        return self.config.tokens + self.config.lead

    @property
    def ends(self) -> tuple[int, ...]:
        """None: an answer has the length of its puzzle."""
        return ()

    @property
    def draws(self) -> bool:
        """Whether a start is drawn: it is fixed."""
        return False

    @property
    def lead(self) -> int:
        """How many rows of a puzzle's own stand in front of its tokens."""
        return self.config.lead

    @property
    def unread(self) -> tuple[nn.Parameter, ...]:
        """The q-head's parameters."""
        return tuple(self.inner.q_head.parameters())

    def with_puzzles(
        self, tokens: Int[Tensor, "B T"], puzzles: Int[Tensor, " B"] | Sequence[int] | None
    ) -> Int[Tensor, "B lead_and_T"]:
        """Tokens with the pseudo-tokens of their puzzles in front: id = vocabulary + puzzle * lead + row.

        InputError for another number of puzzles than of examples, for a puzzle that the model does not have, for None,
        unless the model has no such rows, and for tokens that are none of the vocabulary, or too many.
        """
        if puzzles is None and not self.lead:
            return tokens
        if not self.lead:
            raise InputError("this model has no puzzle embeddings, so that no rows stand in front (leave out puzzles)")
        if puzzles is None:
            raise InputError(f"{self.lead} rows of a puzzle stand in front of the tokens: name one for every input")
        chosen = torch.as_tensor(puzzles, device=tokens.device)
        if chosen.shape != tokens.shape[:1] or chosen.is_floating_point() or chosen.dtype == torch.bool:
            raise InputError(f"{len(tokens)} inputs need a list of {len(tokens)} puzzles, not {shown(puzzles)}")
        for puzzle in chosen.tolist():
            whole("a puzzle", puzzle, 0, self.config.puzzles - 1)
        check_tokens(tokens, self.vocabulary, self.config.tokens)
        front = self.vocabulary + chosen[:, None] * self.lead + torch.arange(self.lead, device=tokens.device)
        return torch.cat([front.to(tokens.dtype), tokens], 1)

    def check_input(self, tokens: Int[Tensor, "B T"]) -> None:
        """InputError unless the rows of one puzzle stand in front of the tokens of every input, and nowhere else."""
        if not self.lead:
            return
        front = tokens[:, : self.lead] - self.vocabulary
        numbered = front[:, :1] + torch.arange(front.shape[1], device=tokens.device)
        fits = (front == numbered).all(1) & (front[:, 0] >= 0) & (front[:, 0] % self.lead == 0)
        fits &= (tokens[:, self.lead :] < self.vocabulary).all(1)
        if tokens.shape[1] <= self.lead or not bool(fits.all()):
            where = int((~fits).nonzero()[0]) if not bool(fits.all()) else 0
            front_rows = f"the {self.lead} rows of a puzzle"
            raise InputError(f"input {where} does not begin with {front_rows}: give with_puzzles(tokens, puzzles)")

    def program(self, loops: int | None = None, start: Start = None) -> Program:
        """The program of so many outer steps (default: `self.loops`), each `(L3 H)2` or the like."""
        once = self._calls
        count = whole("loops", self.loops if loops is None else loops, 1, bounds.MOST_CALLS // once)
        cycle = (*[Call(stack="L")] * self.config.l_cycles, Call(stack="H"))
        return Program(cycle * self.config.h_cycles * count, start)

    def readings(self, loops: int) -> tuple[str, ...]:
        """The points after each outer step."""
        return tuple(f"h{step * self._calls}" for step in range(1, loops + 1))

    @property
    def _calls(self) -> int:
        """Calls of an outer step."""
        return self.config.h_cycles * (self.config.l_cycles + 1)

    def embed(self, tokens: Tensor, rows: Int[Tensor, "*P T"] | None = None) -> Float[Tensor, "B T d"]:
        """The input of tokens and pseudo-tokens [B, T] at these positions (default: from the first row on).

        InputError for anything but whole numbers of the vocabulary and the puzzles, or too many of them.
        """
        check_tokens(tokens, self.vocabulary + self.config.puzzles * self.lead, self.positions)
        return self.embedded(tokens.long(), rows)

    def embedded(self, tokens: Int[Tensor, "B T"], rows: Int[Tensor, "*P T"] | None = None) -> Float[Tensor, "B T d"]:
        """The input of tokens that were checked."""
        table, d = self.inner.embed_tokens.embedding_weight, self.width
        e = table[tokens.clamp(max=self.vocabulary - 1)]
        if self.lead:
            puzzles, at = self.inner.puzzle_emb.weights, (tokens - self.vocabulary).clamp(min=0)
            columns = at.remainder(self.lead)[..., None] * d + torch.arange(d, device=tokens.device)
            filled = columns < self.config.puzzle_width
            front = puzzles[at.div(self.lead, rounding_mode="floor")[..., None], columns * filled] * filled
            e = torch.where((tokens < self.vocabulary)[..., None], e, front)
        if self.config.positions == "learned":
            where = torch.arange(tokens.shape[1], device=tokens.device) if rows is None else rows
            e = 0.707106781 * (e + self.inner.embed_pos.embedding_weight[where])  # the public code's 1 / sqrt(2)
        return d**0.5 * e

    def start(self, e: Float[Tensor, "*B R d"], seed: int) -> Float[Tensor, "*B R s"]:
        """z_L and z_H before the first call: fixed vectors, alike in every row."""
        both = torch.cat([self.inner.L_init, self.inner.H_init]).to(e.dtype)
        return both.expand(*e.shape[:-1], -1)

    def enter(self, h: Float[Tensor, "*B s"], e: Float[Tensor, "*B d"], call: int, stack: str) -> Float[Tensor, "*B d"]:
        """The sum of both states and, for L, the input."""
        lower, higher = h.chunk(2, -1)
        return lower + (higher + e) if stack == "L" else higher + lower

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """Nothing ends a call but its last layer."""
        return h

    def leave(self, h: Float[Tensor, "*B s"]) -> Float[Tensor, "*B d"]:
        """z_H, which both heads read."""
        return h.chunk(2, -1)[1]

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row, of z_H."""
        return self.inner.lm_head(h)

    def halting(self, h: Float[Tensor, "*B R s"]) -> Float[Tensor, "*B 2"]:
        """What the q-head says of a state, from its first row: halt and continue, before a sigmoid."""
        return self.inner.q_head(self.leave(h[..., 0, :]))

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R s"]) -> RotaryAngles:
        """The rotary angles of rows, for all layers and calls; unused where positions are not rotary."""
        return angles_of(rows, self.head_size, self.config.base, h.dtype)

    def draw_weights(self, spread: float) -> None:
        """Every matrix and table N(0, spread), the q-head's bias zero; start vectors stay."""
        for parameter in self.parameters():
            parameter.normal_(std=spread) if parameter.dim() > 1 else parameter.zero_()


def trm_from_config(config: Mapping[str, Any], loops: int | None = None, boundary: Boundary | None = None) -> TRM:
    """The model of a `config.json` with drawn weights; `loops`, outer steps, are by default the config's own.

    InputError for a setting that is not supported, and for a boundary that the model has not.
    """
    if boundary not in (None, "none"):
        raise InputError(f"nothing ends a call of a TRM or HRM; there is no boundary {boundary!r} (nearest: none)")
    settings = TRMConfig.from_dict(config)
    return TRM(settings if loops is None else replace(settings, loops=loops))
