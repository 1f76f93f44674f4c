"""A toy model of every kind that the protocol can say: what a model may have beside one stack, one at a time.

KINDS["injection"]() builds one in float64, KINDS["injection"](torch.float32) in another type.  All have width 12, two
heads, two layers a stack and eight tokens, weights large enough that every part counts, and rotary positions.  `usual`
is a program that uses what is special of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from loopscope.protocol import Side

D, H, K, VOCABULARY, POSITIONS, UNITS = 12, 2, 6, 8, 64, 20


def normed(x: Tensor) -> Tensor:
    return x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


class KindLayer(nn.Module):
    """A layer with rotary positions and nothing else beside the usual."""

    scale = K**-0.5

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D, bias=False)
        self.up, self.down = nn.Linear(D, UNITS), nn.Linear(UNITS, D)

    def project(self, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        assert x.shape[-2] == rows.shape[-1] >= 1
        found = []
        for part, y in zip("qkv", self.qkv(normed(x)).chunk(3, -1), strict=True):
            if part not in parts:
                continue
            heads = y.unflatten(-1, (H, -1)).transpose(-2, -3)
            if part != "v":
                angle = rows[..., None, :, None] * torch.tensor([1.0, 0.3, 0.1], dtype=x.dtype, device=x.device)
                a, b = heads.chunk(2, -1)
                heads = torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)
            found.append(heads)
        return tuple(found)

    def attn_out(self, z: Tensor) -> Tensor:
        return self.out(z.transpose(-2, -3).flatten(-2))

    def mlp_hidden(self, x: Tensor) -> Tensor:
        return nnf.gelu(self.up(normed(x)))

    def mlp_from(self, hidden: Tensor) -> Tensor:
        return self.down(hidden)

    def mlp_out(self, x: Tensor) -> Tensor:
        return self.mlp_from(self.mlp_hidden(x))


class Summed(KindLayer):
    """The norm acts on the sum."""

    def join(self, x: Tensor, out: Tensor, which: str) -> Tensor:
        return normed(x + out) * {"attn": 1.2, "mlp": 0.9}[which]


class Full(KindLayer):
    """Every row sees every row."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.ones(len(queries), len(keys), dtype=torch.bool, device=keys.device)


class Prefixed(KindLayer):
    """The first three rows see each other."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries[:, None]) | ((queries[:, None] < 3) & (keys < 3))


class Windowed(KindLayer):
    """A row sees itself and the two before it."""

    def mask(self, queries: Tensor, keys: Tensor) -> Tensor:
        return (keys <= queries[:, None]) & (keys > queries[:, None] - 3)


class Parallel(KindLayer):
    parallel = True


class Capped(KindLayer):
    softcap = 0.8


class Gated(KindLayer):
    """A gate on the heads' outputs that looks at what entered the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, D)

    def attn_out(self, z: Tensor, x: Tensor) -> Tensor:
        return self.out(z.transpose(-2, -3).flatten(-2) * self.gate(normed(x)).sigmoid())


class Valued(KindLayer):
    """Values take something of the token itself, and of the number of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, D)

    def project(self, x: Tensor, rows: Tensor, parts: str, side: Side | None = None) -> tuple[Tensor, ...]:
        assert side is not None
        found = dict(zip(parts, super().project(x, rows, parts), strict=True))
        if "v" in found:
            more = self.table(side.tokens % VOCABULARY).unflatten(-1, (H, -1)).transpose(-2, -3)
            found["v"] = found["v"] + more * (1 + 0.2 * side.call)
        return tuple(found[part] for part in parts)


class Everything(Valued, Summed, Windowed, Capped):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, D)

    def attn_out(self, z: Tensor, x: Tensor) -> Tensor:
        return self.out(z.transpose(-2, -3).flatten(-2) * self.gate(normed(x)).sigmoid())


class Kind(nn.Module):
    """One stack, and nothing that has a default; also what decoding asks of a language model."""

    heads, width, head_size, vocabulary, positions, loops, boundary = H, D, K, VOCABULARY, POSITIONS, 3, "none"
    ends: tuple[int, ...] = ()
    usual = "F3"
    layer: type[KindLayer] = KindLayer

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, D), nn.Linear(D, VOCABULARY)
        self.stack = self.more(2)

    def more(self, count: int) -> nn.ModuleList:
        return nn.ModuleList(self.layer() for _ in range(count))

    @property
    def layers(self) -> Sequence[Any]:
        return tuple(self.stack)

    def rotary_angles(self, rows: Tensor, h: Tensor) -> Tensor:
        return rows

    def embed(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)

    def read(self, h: Tensor) -> Tensor:
        return self.head(normed(h))

    def gate_logits(self, h: Tensor) -> Tensor | None:
        return None


class Injection(Kind):
    """Every call sees the input again."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(2 * D, D, bias=False)

    def enter(self, h: Tensor, e: Tensor, call: int) -> Tensor:
        return self.adapter(torch.cat([h, e], -1))

    def close(self, x: Tensor) -> Tensor:
        return normed(x)


class Ends(Kind):
    """Layers before and after the loop, with glue of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after, self.c = self.more(2), self.more(1), nn.Linear(D, D)

    @property
    def prelude(self) -> Sequence[Any]:
        return tuple(self.before)

    @property
    def coda(self) -> Sequence[Any]:
        return tuple(self.after)

    def settle(self, x: Tensor) -> Tensor:
        return normed(x)

    def leave(self, h: Tensor) -> Tensor:
        return self.c(h)


class TwoStacks(Kind):
    """Two stacks, two states: one looks at the input and the other state, one at both states."""

    usual = "(L2 H)2"

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.begin = self.more(1), nn.Parameter(torch.empty(D))

    @property
    def stacks(self) -> Mapping[str, Sequence[Any]]:
        return {"L": tuple(self.lower), "H": tuple(self.stack)}

    def start(self, e: Tensor, seed: int) -> Tensor:
        return torch.cat([self.begin.expand_as(e), e], -1)

    def enter(self, h: Tensor, e: Tensor, call: int, stack: str) -> Tensor:
        low, high = h.chunk(2, -1)
        return low + high + 0.5 * e if stack == "L" else high + low

    def close(self, x: Tensor) -> Tensor:
        return normed(x)


class Drawn(Injection):
    """A start that is drawn for every row from a seed, and an injection."""

    usual = "seed:3 F3"

    def start(self, e: Tensor, seed: int, rows: Tensor) -> Tensor:
        places = torch.arange(D, dtype=e.dtype, device=e.device)
        drawn = torch.sin((rows[..., None] + 1) * (places + 1.7) * 1.3 + (seed + 1) * (places - 4.1))
        return drawn.to(e.dtype).expand_as(e)


class Fixed(Kind):
    """A start that is learned: no seed changes it."""

    draws = False

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Parameter(torch.empty(D))

    def start(self, e: Tensor, seed: int) -> Tensor:
        return e * 0.7 + self.begin * 4


class Learned(Kind):
    """Learned positions: the input knows where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(POSITIONS, D)

    def embed(self, tokens: Tensor, rows: Tensor) -> Tensor:
        return self.table(tokens) + self.places(rows)


class Whole(Ends, Drawn):
    """All at once, in one stack."""

    layer = Everything


def made(kind: type[Kind], layer: type[KindLayer] | None = None) -> Any:
    """A model of a kind, with layers of a class if one is given, in float64 and with every parameter drawn anew."""
    if layer is not None:
        kind = type("Made", (kind,), {"layer": layer})
    torch.manual_seed(0)
    model = kind().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def _kind(base: type[Kind], layer: type[KindLayer] = KindLayer) -> Callable[..., Any]:
    made = base if layer is KindLayer else type(f"{base.__name__}{layer.__name__}", (base,), {"layer": layer})

    def build(dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
        model = made().to(dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(noise * (0.35 if parameter.dim() > 1 else 0.2))
        return model.requires_grad_(True)

    return build


KINDS: Mapping[str, Callable[..., Any]] = {
    "simple": _kind(Kind),
    "injection": _kind(Injection),
    "prelude and coda": _kind(Ends),
    "norm of the sum": _kind(Kind, Summed),
    "two stacks": _kind(TwoStacks),
    "full mask": _kind(Kind, Full),
    "prefix mask": _kind(Kind, Prefixed),
    "window": _kind(Kind, Windowed),
    "parallel": _kind(Kind, Parallel),
    "value embeddings": _kind(Kind, Valued),
    "softcap": _kind(Kind, Capped),
    "gated": _kind(Kind, Gated),
    "drawn start": _kind(Drawn),
    "fixed start": _kind(Fixed),
    "learned positions": _kind(Learned),
    "full, prelude and coda": _kind(Ends, Full),
    "everything": _kind(Whole),
}
"""What builds a model of each kind; more kinds than one at a time stand at the end."""
