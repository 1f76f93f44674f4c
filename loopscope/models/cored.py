"""What models with a prelude, a looped core and a coda have in common: sizes, a random start, rotation in pairs.

    e = prelude(embedding(tokens))            once
    h_0 = a draw of every row, or zeros, or a given state
    h_t = core(enter(h_{t-1}, e))             the core is F
    logits = read(coda(leave(h_t)))           after any loop

The start is drawn anew by nobody: it is a function of a program's seed and of a row's position, the same for every
example, whatever stands beside a row and however long the input is.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as nnf
from jaxtyping import Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.bounds import shown, whole
from loopscope.errors import InputError
from loopscope.models.adapter import Sized
from loopscope.models.configs import base_of, eps_of
from loopscope.models.passes import Boundary, RotaryAngles
from loopscope.protocol import LoopedLayer

STAGES = {"prelude": "prelude", "core_block": "core", "coda": "coda"}
"""Stages of a model by their names in released files, and the sizes that say how many layers they have."""

BLOCK = 64
"""Rows of a start that are drawn together."""

CUT = 3.0
"""Standard deviations at which a draw is cut."""

Scaling = Mapping[str, Any]
"""Rotary positions as `configs.rotary` gives them."""


@dataclass(frozen=True, kw_only=True)
class CoredConfig:
    """Sizes and constants that all such models have; InputError for values that cannot be."""

    KEYS: ClassVar[Mapping[str, tuple[str, int, int]]] = {
        "vocabulary": ("padded_vocab_size", 1, bounds.VOCABULARY),
        "width": ("n_embd", 1, bounds.WIDTH),
        "mlp": ("intermediate_size", 1, bounds.WIDTH),
        "heads": ("number of heads", 1, bounds.LAYERS),
        "kv_heads": ("num_key_value_heads", 1, bounds.LAYERS),
        "head_size": ("head_dim", 2, bounds.WIDTH),
        "prelude": ("n_layers_in_prelude", 0, bounds.LAYERS),
        "core": ("n_layers_in_recurrent_block", 1, bounds.LAYERS),
        "coda": ("n_layers_in_coda", 0, bounds.LAYERS),
        "positions": ("block_size", 1, bounds.POSITIONS),
        "loops": ("mean_recurrence", 1, bounds.LOOPS),
    }
    """Key of every size in a released config, and its bounds."""

    vocabulary: int
    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_size: int
    prelude: int
    core: int
    coda: int
    positions: int
    loops: int
    eps: float
    base: float  # of the rotary positions
    tied: bool  # whether the embedding is the head, too
    spread: float  # standard deviation of the start, before it is cut
    ends: tuple[int, ...] = ()  # tokens that end a text

    def __post_init__(self) -> None:
        for name, (key, least, most) in self.KEYS.items():
            whole(key, getattr(self, name), least, most)
        if self.head_size % 2:
            raise InputError(
                f"rotary positions pair the entries of a head: its size must be even, not {self.head_size}"
            )
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} heads are no multiple of num_key_value_heads {self.kv_heads}")
        eps_of(self.eps)
        base_of(self.base)


def core_sizes(values: Mapping[str, Any], heads_key: str) -> dict[str, int]:
    """The sizes of `CoredConfig.KEYS` in a released config, with their defaults, each checked."""
    width, heads = whole("n_embd", values.get("n_embd"), 1, bounds.WIDTH), values.get(heads_key)
    heads = whole(heads_key, heads, 1, bounds.LAYERS)
    size = values.get("head_dim")
    if size is None:
        if width % heads:
            raise InputError(f"n_embd {width} is no multiple of {heads_key} {heads}")
        size = width // heads
    vocabulary, used = values.get("padded_vocab_size"), values.get("vocab_size")
    if vocabulary is not None and used is not None:
        vocabulary = whole("padded_vocab_size", vocabulary, 1, bounds.VOCABULARY)
        if whole("vocab_size", used, 1, bounds.VOCABULARY) > vocabulary:
            raise InputError(f"vocab_size {used} is more than padded_vocab_size {vocabulary}")
    found = {name: values.get(key) for name, (key, _, _) in CoredConfig.KEYS.items()}
    kv_heads = values.get("num_key_value_heads")
    found |= {
        "vocabulary": used if vocabulary is None else vocabulary,
        "heads": heads,
        "kv_heads": heads if kv_heads is None else kv_heads,
        "head_size": size,
    }
    return {name: whole(key, found[name], *most) for name, (key, *most) in CoredConfig.KEYS.items()}


def check_fixed(values: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
    """InputError for a setting that has another value than the one that is mapped."""
    for key, only in fixed.items():
        found = values.get(key, only)
        if found != only or (isinstance(found, bool) and not isinstance(only, bool)):
            raise InputError(f"{key} {shown(found)} is not supported (nearest: {only!r})")


def flag(values: Mapping[str, Any], key: str, unsaid: bool | None = None) -> bool:
    """A setting that is true or false; InputError where it is missing and nothing is meant by that."""
    found = values.get(key, unsaid)
    if not isinstance(found, bool):
        raise InputError(f"{key} must be true or false, not {shown(found)}")
    return found


def layer_names(names: Iterable[str]) -> dict[tuple[str, int], set[str]]:
    """The tensors of every layer that a file has, by stage and number within it."""
    found: dict[tuple[str, int], set[str]] = {}
    for name in names:
        start, stage, number, *rest = [*name.split(".", 3), "", "", ""][:4]
        if start == "transformer" and stage in STAGES and number.isdecimal():
            found.setdefault((stage, int(number)), set()).add(rest[0])
    return found


def frequencies(size: int, scaling: Scaling, kind: torch.dtype, device: torch.device) -> Float[Tensor, " half"]:
    """The frequency of every plane of a head: base^(-2i/size), those of long waves slowed down by "llama3"."""
    steps = torch.arange(0, size, 2, device=device).to(kind) / size
    plain = 1.0 / scaling["rope_theta"] ** steps
    if scaling["rope_type"] == "default":
        return plain
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)  # within the original length
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / scaling["factor"])


def angles_at(rows: Int[Tensor, "*P R"], size: int, scaling: Scaling, dtype: torch.dtype) -> RotaryAngles:
    """Cosines and sines of rows in heads of a size, in fp32 or better."""
    kind = torch.promote_types(dtype, torch.float32)
    angle = (rows[..., None].to(kind) * frequencies(size, scaling, kind, rows.device)).unsqueeze(-3)
    return RotaryAngles(angle.cos(), angle.sin())


def rotate_pairs(x: Float[Tensor, "*B H R k"], rotary_angles: RotaryAngles) -> Float[Tensor, "*B H R k"]:
    """x turned by its position, in fp32 or better: entry 2i is paired with entry 2i + 1."""
    cos, sin = rotary_angles
    first, second = x.to(torch.promote_types(x.dtype, cos.dtype)).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2).to(x.dtype)


def split_heads(y: Float[Tensor, "*B R h"], size: int) -> Float[Tensor, "*B H R k"]:
    """Heads of a size, before the rows."""
    return y.unflatten(-1, (-1, size)).transpose(-2, -3)


def join_heads(z: Float[Tensor, "*B H R k"]) -> Float[Tensor, "*B R h"]:
    """Heads side by side again."""
    return z.transpose(-2, -3).flatten(-2)


@lru_cache(maxsize=32)
def _block(seed: int, number: int, width: int) -> Float[Tensor, "block d"]:
    """A block of rows of the start with standard deviation 1 before the cut; a function of its arguments alone."""
    mixed = blake2b(f"start {seed} {number}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(mixed, "big") >> 1)
    with torch.inference_mode(False):
        even = torch.rand(BLOCK, width, generator=generator, dtype=torch.float64, device="cpu")
        # By the inverse of the distribution function between the cuts.
        drawn = math.sqrt(2) * torch.erfinv((2 * even - 1) * math.erf(CUT / math.sqrt(2)))
        return drawn.clamp(-CUT, CUT).float()


def drawn_rows(seed: int, rows: Int[Tensor, "*P R"], width: int) -> Float[Tensor, "*P R d"]:
    """A truncated normal draw for every row, cut at 3, by seed and position alone."""
    rows = rows.cpu()
    blocks, place = torch.unique(rows // BLOCK, return_inverse=True)
    if not len(blocks):
        return torch.empty(*rows.shape, width, device="cpu")
    return torch.stack([_block(seed, number, width) for number in blocks.tolist()])[place, rows % BLOCK]


class Cored(Sized):
    """A model with a prelude, a looped core and a coda; what a family adds is its layers, `enter` and `leave`.

    `transformer` has the modules by their released names: `wte`, `prelude`, `core_block`, `coda`, `ln_f`.
    """

    config: CoredConfig
    transformer: Any
    lm_head: Any  # None where the embedding is the head, too

    @property
    def prelude(self) -> Sequence[LoopedLayer]:
        """The layers before the loop."""
        return tuple(self.transformer.prelude)

    @property
    def layers(self) -> Sequence[LoopedLayer]:
        """The layers of F: the core."""
        return tuple(self.transformer.core_block)

    @property
    def coda(self) -> Sequence[LoopedLayer]:
        """The layers that every reading goes through."""
        return tuple(self.transformer.coda)

    @property
    def boundary(self) -> Boundary:
        """What ends every call: nothing."""
        return "none"

    @property
    def copies(self) -> dict[str, str]:
        """A head that is tied, which a file may hold a second time."""
        return {"lm_head.weight": "transformer.wte.weight"} if self.config.tied else {}

    @property
    def scaling(self) -> Scaling:
        """The rotary positions."""
        return {"rope_type": "default", "rope_theta": self.config.base}

    def table(self, name: str) -> Tensor:
        """Cosines and sines of all positions, [1, positions, 1, k/2, 2]."""
        if name != "freqs_cis":
            raise KeyError(name)
        cos, sin = angles_at(torch.arange(self.positions), self.head_size, self.scaling, torch.float32)
        return torch.stack([cos, sin], -1).transpose(0, 1)[None]

    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """What the prelude sees of tokens that were checked."""
        return cast("Tensor", self.transformer.wte(tokens))

    def start(self, e: Float[Tensor, "*B R d"], seed: int, rows: Int[Tensor, "*P R"]) -> Float[Tensor, "*B R d"]:
        """h_0 of rows by their positions, the same for all examples."""
        drawn = drawn_rows(seed, rows, self.width) * self.config.spread
        return drawn.to(e).expand(e.shape)

    @abstractmethod
    def enter(self, h: Float[Tensor, "*B d"], e: Float[Tensor, "*B d"], call: int) -> Float[Tensor, "*B d"]:
        """What the core sees of a state and the input, row by row."""

    @abstractmethod
    def leave(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What the coda sees of a state, row by row."""

    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """Nothing ends a call."""
        return h

    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles:
        """The rotary positions of rows, for all layers and loops."""
        return angles_at(rows, self.head_size, self.scaling, h.dtype)

    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits of what the coda gives, row by row: the final norm and the head."""
        normed = self.transformer.ln_f(h)
        if self.lm_head is None:
            return nnf.linear(normed, self.transformer.wte.weight)
        return cast("Tensor", self.lm_head(normed))


def check_boundary(family: str, boundary: Boundary | None) -> None:
    """InputError for a boundary that such a model has not."""
    if boundary not in (None, "none"):
        raise InputError(f"{family} ends no loop with a norm; there is no boundary {boundary!r} (nearest: none)")


def head_of(config: CoredConfig) -> nn.Linear | None:
    """A head of its own, or None for one that is tied."""
    return None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
