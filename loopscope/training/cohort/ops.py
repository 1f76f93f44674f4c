"""The few operations a stacked layer is made of, in plain PyTorch: the definition, and what a CPU runs.

Tensors carry a leading axis of seeds: activations [S, M, d] with M = examples x tokens rows, weights [S, out, in].  The
stream x and all weights are fp32; what a product reads and writes may be of lower precision.  `kernels.py` offers the
same operations under the same names for a GPU; the tests hold both together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.training.cohort.stack import Sink


class Weight(NamedTuple):
    """A weight of every seed, [S, ...].

    `value` is fp32 and all that is needed here.  The kernels multiply by `low`, a matrix in the dtype of the products,
    and add the weight's gradient to `sink` instead of handing it to autograd: a weight that every call shares would
    otherwise have its gradients formed and summed one by one.  A kernel takes a weight without a sink as frozen.
    """

    value: Float[Tensor, "S ..."]
    low: Float[Tensor, "S ..."] | None = None
    sink: Sink | None = None

    def rows(self, part: slice) -> Weight:
        """The same for some of its outputs."""
        low, sink = None if self.low is None else self.low[:, part], self.sink and self.sink.rows(part)
        return Weight(self.value[:, part], low, sink)


BEGUN = 9
"""How many rows at the beginning of every example are shared (see `Beginnings`)."""


class Beginnings(NamedTuple):
    """Which rows of graph walks on N nodes are computed once for the whole batch, and where they lie.

    Attention is causal, so a row depends on the tokens up to it alone.  Rows 0-2 (BOS, EDGE, 0) are the same in every
    example, rows 3-5 (f(0), EDGE, 1) depend on f(0), rows 6-8 (f(1), EDGE, 2) on f(0) and f(1), of which there are
    V = N (N - 1) variants; variant f(0) (N - 1) + place of f(1) among the other nodes.  The rows of a seed are those
    from the tenth on of each of its B examples, then 3 shared by all, 3 for each f(0), and 3 for each variant.

    `variant` is that of each example, then 0..V-1: every variant is run once as a beginning alone.  `tokens` is the
    length T of a whole example.
    """

    variant: Int[Tensor, "S B_and_V"]
    batch: int
    tokens: int
    nodes: int

    @property
    def variants(self) -> int:
        """V."""
        return self.nodes * (self.nodes - 1)

    @property
    def own(self) -> int:
        """How many rows an example has for itself."""
        return self.tokens - BEGUN

    @property
    def rows(self) -> int:
        """How many rows there are for each seed."""
        return self.batch * self.own + shared_rows(self.nodes)

    def places(self) -> Int[Tensor, "S B_and_V 9"]:
        """Where the shared rows of each example, and of each variant, lie among the rows of a seed."""
        row, variant, others = torch.arange(BEGUN, device=self.variant.device), self.variant[..., None], self.nodes - 1
        group = torch.where(row < 3, 0, torch.where(row < 6, variant // others, others + variant))
        return self.batch * self.own + 3 * group + row

    def pack(self, own: Float[Tensor, "S B own d"], begun: Float[Tensor, "S V 9 d"]) -> Float[Tensor, "S M d"]:
        """All rows of a seed, from the examples' own and the variants', of which each shared row is taken once."""
        once = begun[:, 0, :3], begun[:, :: self.nodes - 1, 3:6].flatten(1, 2), begun[:, :, 6:].flatten(1, 2)
        return torch.cat([own.flatten(1, 2), *once], 1)


def shared_rows(nodes: int) -> int:
    """How many rows examples of graph walks on so many nodes share: 3 for all, 3 for each f(0), 3 for each variant."""
    return 3 + 3 * nodes + 3 * nodes * (nodes - 1)


def embed(table: Float[Tensor, "S V d"], tokens: Int[Tensor, "S M"]) -> Float[Tensor, "S M d"]:
    """Rows of each seed's table."""
    seeds = torch.arange(len(table), device=table.device)[:, None]
    if table.device.type == "cpu":  # where threads sum the gradient of an index in any order, but not that of a look-up
        return nnf.embedding(seeds * table.shape[1] + tokens, table.flatten(0, 1))
    return table[seeds, tokens]


def linear(x: Float[Tensor, "S M i"], W: Weight) -> Float[Tensor, "S M o"]:
    """x W', seed by seed, in the dtype of x."""
    return torch.bmm(x, W.value.to(x.dtype).transpose(1, 2))


def add(x: Float[Tensor, "S M d"], y: Float[Tensor, "S M d"] | None, bias: Weight | None) -> Float[Tensor, "S M d"]:
    """x + y + bias, in the dtype of x."""
    total = x if y is None else x + y
    return (total if bias is None else total + bias.value[:, None]).to(x.dtype)


def add_norm(
    x: Float[Tensor, "S M d"],
    y: Float[Tensor, "S M d"] | None,
    bias: Weight | None,
    gain: Weight,
    shift: Weight,
    low: torch.dtype,
    close: tuple[Weight, Weight] | None = None,
) -> tuple[Float[Tensor, "S M d"], Float[Tensor, "S M d"]]:
    """(h, its LayerNorm in dtype `low`): h = x + y + bias or, where F ends with a norm, `close` of that."""
    x = add(x, y, bias)
    if close is not None:
        x = norm(x, close[0].value, close[1].value)
    return x, norm(x, gain.value, shift.value).to(low)


def norm(x: Float[Tensor, "S M d"], gain: Float[Tensor, "S d"], shift: Float[Tensor, "S d"]) -> Float[Tensor, "S M d"]:
    """LayerNorm over the last axis, with each seed's own gain and shift."""
    return nnf.layer_norm(x, x.shape[-1:]) * gain[:, None] + shift[:, None]


def gelu(x: Float[Tensor, "S M f"], bias: Weight, form: str) -> Float[Tensor, "S M f"]:
    """GELU(x + bias) in the dtype of x; `form` is torch's name, "none" (erf) or "tanh"."""
    return nnf.gelu(x + bias.value[:, None], approximate=form).to(x.dtype)


def attention(
    qkv: Float[Tensor, "S M three_d"], bias: Weight | None, tokens: int, heads: int
) -> Float[Tensor, "S M d"]:
    """Causal attention inside each run of `tokens` rows, from q, k, v side by side; heads' outputs side by side.

    The bias of q, k, v is added in fp32 and the sum rounded to the dtype of qkv.
    """
    qkv = add(qkv, None, bias)
    seeds, rows, wide = qkv.shape
    parts = qkv.reshape(-1, tokens, 3, heads, wide // (3 * heads)).permute(2, 0, 3, 1, 4)
    z = nnf.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    return z.transpose(1, 2).reshape(seeds, rows, wide // 3)


def shared_attention(qkv: Float[Tensor, "S M three_d"], begun: Beginnings, heads: int) -> Float[Tensor, "S M d"]:
    """Causal attention inside each example and each variant, whose beginnings lie as `begun` says."""
    first = _rows(qkv, begun.places())
    whole = torch.cat([first[:, : begun.batch], _own(qkv, begun)], 2)
    own = attention(whole.flatten(1, 2), None, begun.tokens, heads).unflatten(1, (begun.batch, -1))
    variants = attention(first[:, begun.batch :].flatten(1, 2), None, BEGUN, heads).unflatten(1, (begun.variants, -1))
    return begun.pack(own[:, :, BEGUN:], variants)


def _own(x: Float[Tensor, "S M c"], begun: Beginnings) -> Float[Tensor, "S B own c"]:
    return x[:, : begun.batch * begun.own].unflatten(1, (begun.batch, begun.own))


def _rows(x: Float[Tensor, "S M c"], places: Int[Tensor, "S P 9"]) -> Float[Tensor, "S P 9 c"]:
    """Rows of each seed.  A look-up, whose gradient is summed in a fixed order, which that of an index is not."""
    seeds, rows, _ = x.shape
    first = torch.arange(seeds, device=x.device)[:, None, None] * rows
    return nnf.embedding(first + places, x.flatten(0, 1))


def last_rows(
    x: Float[Tensor, "S M d"], n: Float[Tensor, "S M d"], last: slice
) -> tuple[Float[Tensor, "S B d"], Float[Tensor, "S B d"], Float[Tensor, "S M d"]]:
    """(x at the examples' last rows, n there, n everywhere); the third is for one product alone."""
    return x[:, last], n[:, last], n


def hand_in(
    h: Float[Tensor, "S m d"], out: Float[Tensor, "S M d"], mine: Bool[Tensor, "S B"], tokens: int
) -> tuple[Float[Tensor, "S m d"], Float[Tensor, "S M d"]]:
    """(h, out with the rows of those examples that are `mine` taken from h); h may have fewer examples than out."""
    here = mine.repeat_interleave(tokens, 1)[..., None]
    rows = h.shape[1]
    return h, torch.cat([torch.where(here, h, out[:, :rows]), out[:, rows:]], 1)


def answer_attention(
    q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], tokens: int, heads: int
) -> Float[Tensor, "S B d"]:
    """Attention of one row an example over all of its `tokens` rows of keys and values, side by side in kv."""
    (seeds, batch, width), each = q.shape, q.shape[-1] // heads
    k, v = kv.view(-1, tokens, 2, heads, each).permute(2, 0, 3, 1, 4)
    scores = q.reshape(-1, heads, 1, each) @ k.transpose(-1, -2) * each**-0.5
    return (nnf.softmax(scores, -1) @ v).view(seeds, batch, width)


def shared_answer_attention(
    q: Float[Tensor, "S B d"], kv: Float[Tensor, "S M two_d"], begun: Beginnings, heads: int
) -> Float[Tensor, "S B d"]:
    """Attention of one row an example over all of its rows of keys and values, which lie as `begun` says."""
    first = _rows(kv, begun.places()[:, : begun.batch])
    return answer_attention(q, torch.cat([first, _own(kv, begun)], 2).flatten(1, 2), begun.tokens, heads)


@torch.no_grad()
def adamw(
    flat: Float[Tensor, "S P"],
    grad: Float[Tensor, "S P"],
    m: Float[Tensor, "S P"],
    v: Float[Tensor, "S P"],
    rate: Float[Tensor, " S"] | Float[Tensor, ""],
    scale: Float[Tensor, " S"],
    ok: Bool[Tensor, " S"],
    correction1: Float[Tensor, ""],
    correction2: Float[Tensor, ""],
    factor: Float[Tensor, " P"] | None,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One AdamW update of parameters `flat` and moments m, v, in place; the gradient is `grad` times each seed's scale.

    The learning rate is `rate`, times `factor` where given; it scales the decoupled weight decay too.  The corrections
    are 1 - beta^t at update t.  A seed that is not ok keeps everything as it was, whatever its gradient is.
    """
    step = rate.reshape(-1, 1) if factor is None else rate.reshape(-1, 1) * factor
    g = grad * scale[:, None]
    new_m = betas[0] * m + (1 - betas[0]) * g
    new_v = betas[1] * v + (1 - betas[1]) * g * g
    new = flat * (1 - step * decay) - step * (new_m / correction1) / ((new_v / correction2).sqrt() + eps)
    for old, fresh in ((flat, new), (m, new_m), (v, new_v)):
        old.copy_(torch.where(ok[:, None], fresh, old))
