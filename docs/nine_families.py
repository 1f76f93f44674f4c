"""Asks nine families of looped models the same question; writes the tables and figures of `nine-families.md`.

    python docs/nine_families.py

A small model of every family is trained to name the largest of six numbers, a few minutes on two CPU cores in all, and
then asked the same: what does it say after every loop, how far does its state move, in which call and head does the
last row learn of the number, and what does a sweep cost.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as nnf
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from loopscope import Address, Program, Run, check_model, sweep
from loopscope.address import Site
from loopscope.execute import plain_run
from loopscope.measure import read_loops
from loopscope.models.adapter import Adapter
from loopscope.models.folders import ADAPTERS
from loopscope.models.passes import one_pass
from loopscope.models.raven import KIND

HERE = Path(__file__).parent
NUMBERS, COUNT, ASK = 16, 6, 16  # numbers 0 to 15, six of them, then a row that asks
LOOPS, UPDATES, BATCH, SEED = 4, 250, 64, 0
EXAMPLES = 128

_SIZES = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
}  # fmt: skip
_CORED = {
    "vocab_size": 32, "n_embd": 32, "intermediate_size": 64, "n_layers_in_prelude": 1, "block_size": 32,
    "n_layers_in_recurrent_block": 2, "n_layers_in_coda": 1, "mean_recurrence": LOOPS,
}  # fmt: skip
_RAVEN = {
    **_CORED, "model_type": "huginn_raven", "n_heads": 4, "norm_eps": 1e-6, "rope_base": 50000, "bias": False,
    "init_values": {"std": 0.11, "embed_scale": 1.0},
}  # fmt: skip
_HIERARCHICAL = {
    "vocab_size": 32, "hidden_size": 32, "num_heads": 4, "H_cycles": 1, "L_cycles": 2, "L_layers": 1, "expansion": 4,
    "pos_encodings": "rope", "halt_max_steps": LOOPS, "seq_len": 32, "num_puzzle_identifiers": 1, "puzzle_emb_ndim": 0,
}  # fmt: skip
FAMILIES: Mapping[str, dict[str, Any]] = {
    "Ouro": {**_SIZES, "model_type": "ouro", "num_key_value_heads": 4, "hidden_act": "silu", "rope_theta": 1e6,
             "total_ut_steps": LOOPS, "tie_word_embeddings": False},
    "Nanbeige4.2": {**_SIZES, "model_type": "nanbeige", "head_dim": 16, "kv_channels": 16, "num_loops": LOOPS,
                    "rope_theta": 7e7, "tie_word_embeddings": False},
    "Huginn": {**_RAVEN, KIND: "huginn", "qk_bias": True, "tie_embeddings": True},
    "retrofit of TinyLlama": {**_RAVEN, KIND: "llama", "qk_bias": False, "tie_embeddings": False,
                              "num_key_value_heads": 2, "rope_theta": 1e4},
    "Parcae": {**_CORED, "model_type": "parcae", "num_attention_heads": 4, "norm_eps": 1e-5, "prelude_norm": True,
               "mean_backprop_depth": LOOPS, "qk_norm": True, "tie_embeddings": True, "injection_type": "diagonal",
               "recurrent_embedding_dimension": 32, "rope_settings": {"use_rope": True, "rope_base": 50000}},
    "TRM": {**_HIERARCHICAL, "model_type": "trm", "H_layers": 0},
    "HRM": {**_HIERARCHICAL, "model_type": "hrm", "H_layers": 1},
    "HRM-Text": {**_SIZES, "model_type": "hrm_text", "num_key_value_heads": 4, "head_dim": 8, "num_hidden_layers": 1,
                 "H_cycles": LOOPS, "L_cycles": 2},
    "Llama, looped": {**_SIZES, "model_type": "llama", "tie_word_embeddings": True},
}  # fmt: skip
"""The config of a small model for every family."""


def made(family: str) -> Adapter:
    """A model of a family with random weights."""
    torch.manual_seed(SEED)
    config = FAMILIES[family]
    model = ADAPTERS[config["model_type"]](config, LOOPS if config["model_type"] == "llama" else None, None)
    with torch.no_grad():
        model.draw_weights(0.18)
    return model


def asked(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Six different numbers each, and the row that asks; and the largest."""
    drawn = torch.rand(examples, NUMBERS, generator=torch.Generator().manual_seed(seed))
    numbers = drawn.argsort(1)[:, :COUNT]
    return torch.cat([numbers, torch.full((examples, 1), ASK)], 1), numbers.amax(1)


def train(model: Adapter, updates: int = UPDATES) -> float:
    """Train the readout after the last loop; the seconds it took."""
    began, program = time.perf_counter(), model.program()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for update in range(updates):
        tokens, answers = asked(BATCH, 1000 + update)
        logits = one_pass(model, tokens, program).read(program.points[-1], slice(-1, None))[:, 0]
        optimizer.zero_grad()
        nnf.cross_entropy(logits, answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, update / 50) * (1 - update / updates)
        optimizer.step()
    model.eval().requires_grad_(False)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Found:
    """What one model answers to the same question."""

    family: str
    weights: int
    program: str
    right: Sequence[float]
    moved: Sequence[float]
    calls: Sequence[str]
    carried: Tensor  # [what, calls]: shares of the way to the other answer; what: the state, then every head
    strongest: str
    forwards: float
    patched: int
    seconds: tuple[float, float]


def measure(family: str, model: Adapter) -> Found:
    """Readouts, trajectory, one sweep and its cost, of texts that were not trained on."""
    tokens, answers, other, others = pairs()
    check_model(model, tokens)
    program = model.program()
    right = [float((each[:, -1].argmax(-1) == answers).float().mean()) for each in read_loops(model, tokens).logits]
    states = [one_pass(model, tokens, program).states[point][:, -1] for point in ("h0", *model.readings(LOOPS))]
    moved = [float(((b - a).norm(dim=-1) / b.norm(dim=-1)).mean()) for a, b in pairwise(states)]

    places, times = places_of(model, program), []
    for _ in range(5):
        began = time.perf_counter()
        found = sweep(model, tokens, program, places, Run(program, "other"), others={"other": other})
        times.append(time.perf_counter() - began)
    memo: dict[Any, Any] = {}
    plainly = []
    for place in places:
        patched = program.patch(place, Run(program, "other"))
        began = time.perf_counter()
        again = plain_run(model, {"main": tokens, "other": other}, patched, memo=memo).read(program.points[-1])
        plainly.append(time.perf_counter() - began)
    torch.testing.assert_close(found.logits[-1][:, 0], again[:, -1], rtol=0, atol=1e-4)

    def ahead(logits: Tensor) -> float:
        """By how much the other text's answer is ahead of the own one."""
        both = torch.stack([others, answers], 1)
        return float(logits.gather(1, both).diff(dim=1).mean().neg())

    source = plain_run(model, {"main": other}, program).read(program.points[-1])[:, -1]
    low, high = ahead(found.base[:, 0]), ahead(source)
    shares = [(ahead(logits[:, 0]) - low) / (high - low) for logits in found.logits]
    carried = torch.zeros(1 + model.heads, program.calls)
    for place, share in zip(found.addresses, shares, strict=True):
        row = 0 if place.site.heads is None else 1 + place.site.heads[0]
        carried[row, place.loop - 1] = max(float(carried[row, place.loop - 1]), share)
    best = max(range(len(places)), key=lambda at: shares[at] if places[at].site.heads else -1)
    return Found(
        family, sum(each.numel() for each in model.parameters()), str(program), right, moved,
        [getattr(step, "stack", "F") for step in program.steps], carried, f"`{places[best]}` {shares[best]:.0%}",
        found.work.forwards, len(places), (median(plainly) * (len(places) + 2), median(times)),
    )  # fmt: skip


def pairs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Texts and their answers, and as many others whose answers are different."""
    (tokens, answers), (other, others) = asked(2 * EXAMPLES, 1), asked(2 * EXAMPLES, 2)
    differ = (answers != others).nonzero()[:EXAMPLES, 0]
    return tokens[differ], answers[differ], other[differ], others[differ]


def places_of(model: Adapter, program: Program) -> list[Address]:
    """At the last row, in every layer of every call: the stream that enters it, and what each head gives."""
    stacks = getattr(model, "stacks", {"F": model.layers})
    return [
        Address(loop, Site(layer, *what, (-1,)))
        for loop, step in enumerate(program.steps, start=1)
        for layer in range(1, len(stacks[step.stack]) + 1)
        for what in (("resid", None), *(("z", (head,)) for head in range(model.heads)))
    ]


def tables(every: Sequence[Found]) -> str:
    """The tables of the page."""
    loops = range(1, LOOPS + 1)
    rows = [
        "| family | program | weights | " + " | ".join(f"right after loop {loop}" for loop in loops) + " |",
        "|---|---|" + "---|" * (LOOPS + 1),
        *(
            f"| {each.family} | `{each.program}` | {each.weights:,} | "
            + " | ".join(f"{share:.0%}" for share in each.right)
            + " |"
            for each in every
        ),
        "",
        "| family | " + " | ".join(f"step {loop}" for loop in loops) + " | strongest head, and how far it leads |",
        "|---|" + "---|" * (LOOPS + 1),
        *(
            f"| {each.family} | " + " | ".join(f"{step:.2f}" for step in each.moved) + f" | {each.strongest} |"
            for each in every
        ),
        "",
        "## What it costs",
        "",
        "| family | patched runs | plain runs | forward-equivalents | plain s | ours s | ratio |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {each.family} | {each.patched} | {each.patched + 2} | {each.forwards:.2f} | {each.seconds[0]:.2f} | "
            f"{each.seconds[1]:.3f} | **{each.seconds[0] / each.seconds[1]:.1f}** |"
            for each in every
        ),
    ]
    return "\n".join(rows)


def draw(every: Sequence[Found], readouts: Path, carried: Path) -> None:
    """Two figures: the readouts and steps by loop, and the sweep of every family as heat."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    one, two = figure.subplots(1, 2)
    loops = range(1, LOOPS + 1)
    lines = []
    for number, each in enumerate(every):
        style = {"color": f"C{number}", "marker": "osD^vPX*h"[number], "markersize": 4, "linewidth": 1.2}
        lines += one.plot(loops, [100 * share for share in each.right], label=each.family, **style)
        two.plot(loops, each.moved, **style)
    one.set(xlabel="loop", ylabel="per cent right", xticks=loops, ylim=(-3, 103), title="What a loop would say")
    two.set(xlabel="loop", ylabel="step / length of the state", xticks=loops, title="How far the state moves")
    two.set_yscale("log")
    for axes in (one, two):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(handles=lines, loc="outside right center", frameon=False, fontsize=8)
    figure.savefig(readouts, dpi=120)

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 3).flat
    for axes, each in zip(panels, every, strict=True):
        image = axes.imshow(100 * each.carried, vmin=0, vmax=100, cmap="Blues", aspect="auto")
        axes.set_title(each.family, fontsize=9)
        several = len(set(each.calls)) > 1
        names = [stack if several else f"{call}" for call, stack in enumerate(each.calls, start=1)]
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(each.carried)), ["state", *(f"head {head}" for head in range(len(each.carried) - 1))])
        axes.tick_params(labelsize=8, length=0)
        axes.axhline(0.5, color="white", linewidth=2)
    figure.supxlabel("call", fontsize=9)
    figure.colorbar(image, ax=figure.axes, label="per cent of the way to the other text's answer", shrink=0.8)
    figure.savefig(carried, dpi=120)


def main() -> None:
    """Train, measure, draw, and put the tables into the page."""
    torch.set_num_threads(1)  # another number sums in another order, and trains other weights
    every = []
    for family in FAMILIES:
        model = made(family)
        seconds = train(model)
        every.append(measure(family, model))
        print(f"{family}: trained in {seconds:.0f} s, {every[-1].right[-1]:.0%} right", flush=True)
    draw(every, HERE / "figures" / "nine-families.png", HERE / "figures" / "nine-families-heads.png")
    page = HERE / "nine-families.md"
    text = page.read_text(encoding="utf-8")
    pattern = r"(<!-- made by nine_families.py -->\n).*?(<!-- end -->)"
    page.write_text(
        re.sub(pattern, lambda match: f"{match[1]}\n{tables(every)}\n\n{match[2]}", text, flags=re.DOTALL),
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
