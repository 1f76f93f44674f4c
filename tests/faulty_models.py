"""Models that run in plain torch and are not what their members say: those of docs/your-model.md, with one fault."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from loopscope import check_model
from loopscope.errors import InputError


def faulty(page: Mapping[str, Any]) -> dict[str, Callable[[], nn.Module]]:
    """What builds a model for every fault; `page` has the classes Block, Plain, Injecting and Ends."""
    block, plain = page["Block"], page["Plain"]

    def glue(base: str = "Plain", **members: Any) -> Callable[[], nn.Module]:
        return type("Model", (page[base],), members)

    def layered(**members: Any) -> Callable[[], nn.Module]:
        def build() -> nn.Module:
            model = plain()
            model.layers = nn.ModuleList(type("Layer", (block,), members)() for _ in range(2))
            return model

        return build

    def attention(self: Any, x: Tensor, causal: bool = True) -> Tensor:
        return self.attn_out(scaled_dot_product_attention(*self.project(x, None, "qkv"), is_causal=causal))

    def summed(self: Any, x: Tensor) -> Tensor:
        x = self.before(x + attention(self, x))
        return self.after(x + self.mlp_out(x))

    def beside(self: Any, x: Tensor) -> Tensor:
        return x + attention(self, x) + self.mlp_out(x)

    def full(self: Any, x: Tensor) -> Tensor:
        x = x + attention(self, x, causal=False)
        return x + self.mlp_out(x)

    def counted(self: Any, x: Tensor, rows: Tensor, parts: str) -> tuple[Tensor, ...]:
        own = torch.arange(x.shape[-2])[:, None]
        found = zip(parts, block.project(self, x, rows, parts), strict=True)
        return tuple(each if part == "v" else each * (1 + 0.1 * own) for part, each in found)

    def next_row(self: Any, x: Tensor) -> Tensor:
        return x + torch.nn.functional.pad(x[..., 1:, :], (0, 0, 0, 1))

    def by_count(self: Any, rows: Tensor, keys: Tensor) -> Tensor:
        return torch.ones(len(rows), len(keys), dtype=torch.bool).tril()

    return {
        "an injection without `enter`": page["Injecting"],
        "layers before the loop without `prelude`": glue("Ends", prelude=()),
        "layers after the loop without `coda`": glue("Ends", coda=()),
        "what leads from the loop into the coda without `leave`": glue("Ends", leave=lambda self, h: h),
        "a norm of the sum without `join`": layered(forward=summed),
        "an MLP beside attention without `parallel`": layered(forward=beside),
        "attention in both directions without `mask`": layered(forward=full),
        "a `mask` that hides a row from itself": layered(mask=lambda self, rows, keys: keys < rows[:, None]),
        "layers before the loop inside `embed`": glue(embed=lambda self, tokens: self.words(tokens).cumsum(1)),
        "a `close` that takes a mean over rows": glue(close=lambda self, x: x - x.mean(-2, keepdim=True)),
        "a `close` that looks at the next row": glue(close=next_row),
        "a `mask` that goes by how many rows ask": layered(mask=by_count),
        "a `project` that counts positions itself": layered(project=counted),
        "another number of `heads`": glue(heads=2, head_size=16),
        "another `head_size`": glue(head_size=4),
    }


def told(page: Mapping[str, Any]) -> str:
    """The line of every fault under its name, as the page shows them."""
    found = []
    for name, build in faulty(page).items():
        torch.manual_seed(0)
        try:
            said = str(check_model(build().eval(), page["tokens"]))
        except InputError as error:
            said = str(error)
        found.append(f"{name}\n{textwrap.indent(textwrap.fill(said, 120), '    ')}")
    return "\n\n".join(found)
