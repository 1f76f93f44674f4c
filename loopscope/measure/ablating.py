"""What does a run lose without a component, or without a call?

    ablations(model, tokens, "F6", "layer[*].z")                            each layer's heads in each loop, as zeros
    ablations(model, tokens, "F6", "layer[2].head[0].z", ["mean", "resampled"], reference=texts)
    ablations(model, tokens, "F6", "loop[*]", ["skipped", "repeated"])      calls left out, and made twice

Of a component, which may be at any address:

    zero        every entry is 0; of a pattern, the head looks at no row
    mean        its mean over a reference set, row by row
    resampled   what it is on another example of the reference set, drawn from the seed

Of a call, "loop[3]", "loop[*]" or "H[2]":

    skipped     the program without it
    repeated    the program with it made twice
    swapped     the program with it and the step behind it exchanged: a map, or a call that differs from it

All of them are programs: `about["programs"]` has one of each kind, as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import PER_HEAD, Address, Site
from loopscope.errors import InputError, nearest
from loopscope.estimates import DRAWS, means
from loopscope.execute.executor import run
from loopscope.execute.metrics import Metric
from loopscope.execute.tables import columns_of_addresses
from loopscope.execute.unequal import Texts, listed
from loopscope.measure.metered import Metered, Places, places_of
from loopscope.measure.streaming import NUMBER, Examples, Inputs, Rows, on
from loopscope.program import Given, Program, ProgramLike, Run, Scale, Source
from loopscope.protocol import LoopedModel
from loopscope.table import Table
from loopscope.wildcards import addresses_of

COMPONENTS = ("zero", "mean", "resampled")
CALLS = ("skipped", "repeated", "swapped")
KINDS = (*COMPONENTS, *CALLS)

_CALL = re.compile(r"\s*(loop|[A-EGHIK-Z])\[[^\]]*\]\s*")
_MEAN, _RESAMPLED = "ablations-mean", "ablations-resampled"
"""What the tensors and the input of ablations are called in their programs."""


def ablations(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None,
    places: Places,
    kinds: str | Iterable[str] = "zero",
    *,
    reference: Texts | None = None,
    metric: str | Metric = "kl",
    answers: Int[Tensor, "examples ..."] | None = None,
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """Take out one place at a time, and read the end of each run by a metric.

    A row for every kind, place and row that is read:

    - `kind`: one of `KINDS`;
    - `place`: the address, "loop[3].layer[2].z", or the call, "loop[3]"; `stage`, `loop`, `layer`, `component`, `head`
      and `at`, its rows, are what it is made of, missing where it does not name one;
    - `row`: the row that is read;
    - `value`: the mean of the metric, and `change`, that of its difference from the program without the ablation; both
      with their intervals; `n` are the examples.

    `places` are sites, which stand for every loop, addresses, also with `*`, and calls.  `reference` are tokens, by
    default those of the examples themselves; it runs through the program without patches.  `metric` is that of `sweep`:
    by default KL(without the ablation, with it), in nats.  `program` None is the model's own.  `inputs` are those of
    `execute.run`; `memory` bounds the bytes that are held at a time; `seed` draws examples and intervals.

    InputError for kinds without a place that they act on, means and examples of other lengths where a place has all
    rows, and a swap that changes nothing; else errors as `sweep`.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    asked = examples.program
    chosen = _chosen(kinds)
    addresses, calls = _split(examples, places, chosen)
    of_others = [kind for kind in chosen if kind in ("mean", "resampled")]
    known = _Reference(examples, reference, of_others) if of_others else None
    given: dict[str, Tensor] = {}
    others: dict[str, Any] = {}
    where: dict[str, list[Any]] = {"kind": []}
    programs: list[Program] = []

    def add(kind: str, columns: dict[str, list[Any]], found: Sequence[Program]) -> None:
        programs.extend(found)
        where["kind"] += [kind] * len(found)
        for name, values in columns.items():
            where.setdefault(name, []).extend(values)

    for kind in chosen:
        if kind in CALLS:
            changed = [(call, _without(kind, asked, call)) for call in calls]
            changed = [(call, each) for call, each in changed if each != asked]
            if not changed:
                raise InputError(f"'{asked}' is the same with a call {kind}, as the step behind it is like it")
            add(kind, _columns_of_calls(asked, [call for call, _ in changed]), [each for _, each in changed])
            continue
        sources: Sequence[Source] = [Scale(0)] * len(addresses)
        if kind == "mean":
            assert known is not None
            tensors = known.means(addresses, memory)
            sources = [Given(f"{_MEAN}-{at}") for at in range(len(addresses))]
            given |= {f"{_MEAN}-{at}": each for at, each in enumerate(tensors)}
        elif kind == "resampled":
            assert known is not None
            others[_RESAMPLED] = known.drawn(seed)
            sources = [Run(asked.skeleton, _RESAMPLED)] * len(addresses)
        patched = [asked.patch(each, source) for each, source in zip(addresses, sources, strict=True)]
        add(kind, columns_of_addresses(examples.program, addresses), patched)
    metered = Metered(examples, metric, answers, None, others, given, memory=memory)
    values, base = metered.read(programs, memory)
    how: dict[str, Any] = {"clusters": clusters, "seed": seed, "draws": draws}
    made, change = means(values, share=metered.share, **how), means(values - base, **how)
    columns = {**metered.columns(where), "value": made.flat(), "change": change.flat(), "n": made.n.reshape(-1)}
    first = {kind: str(programs[where["kind"].index(kind)]) for kind in chosen}
    return Table("ablations", columns, {**metered.about, "programs": first})


def _chosen(kinds: str | Iterable[str]) -> list[str]:
    chosen = [*dict.fromkeys([kinds] if isinstance(kinds, str) else kinds)]
    for kind in chosen:
        if kind not in KINDS:
            raise InputError(f"no ablation is called {kind!r}; there are {', '.join(KINDS)}{nearest(str(kind), KINDS)}")
    if not chosen:
        raise InputError(f"no ablation was asked for; there are {', '.join(KINDS)} (nearest: zero)")
    return chosen


def _split(examples: Examples, places: Places, kinds: Sequence[str]) -> tuple[list[Address], list[Address]]:
    """Addresses of components, and those of calls, for which what enters them stands; each for some of the kinds."""
    asked = [places] if isinstance(places, Site | Address | str) else list(places)
    whole = [each for each in asked if isinstance(each, str) and _CALL.fullmatch(each)]
    inside = [each for each in asked if each not in whole]
    for acting, found, what in (
        (COMPONENTS, inside, "component such as layer[1].z"),
        (CALLS, whole, "call such as loop[*]"),
    ):
        mine = [kind for kind in kinds if kind in acting]
        if mine and not found:
            raise InputError(f"{' and '.join(mine)}: no {what} was named to act on")
        if found and not mine:
            raise InputError(f"{found[0]} was named, but nothing of {', '.join(acting)} was asked for")
    calls = addresses_of([f"{each.strip()}.enter" for each in whole], [examples.program], examples.model)
    return places_of(examples, inside) if inside else [], calls


# ---- components of a reference set -----------------------------------------------------------------------------------


class _Reference:
    """What components are on other examples."""

    def __init__(self, examples: Examples, reference: Texts | None, kinds: Sequence[str]) -> None:
        self.examples = examples
        self.own = reference is None
        asked = examples.program
        if examples.texts is None or asked.given:
            raise InputError(
                f"{' and '.join(kinds)} run a reference set from tokens, and '{asked}' starts from a given state"
            )
        texts = examples.texts if reference is None else listed("reference", reference)
        few: Inputs = {"maps": examples.inputs.get("maps"), "tokenizer": examples.inputs.get("tokenizer")}
        self.set = Examples(examples.model, texts, asked.skeleton, (-1,), few)
        if self.own and len(self.set) < 2 and "resampled" in kinds:
            raise InputError("one example has no other to be resampled from; give a reference set")

    def means(self, addresses: Sequence[Address], memory: int | None) -> list[Tensor]:
        """The mean of every component over the reference set, [1, (heads,) rows, n]."""
        for address in addresses:
            self._check(address)
        skeleton, sums = self.set.program, dict[Address, Tensor]()
        size = sum(_size(self.set, address) for address in addresses)
        dtype = torch.float32
        for part in self.set.parts(size, memory):
            assert part["tokens"] is not None
            found = run(self.set.model, on(self.set.model, part["tokens"]), skeleton, keep=addresses, **part["inputs"])
            for address, kept in found[skeleton].kept.items():
                mine, dtype = kept.double().sum(0, keepdim=True), kept.dtype
                sums[address] = sums[address] + mine if address in sums else mine
        return [(sums[address] / len(self.set)).to(dtype) for address in addresses]

    def drawn(self, seed: int) -> Texts:
        """For every example another of the reference set, drawn from a seed; of its own set never itself."""
        count, there = len(self.examples), len(self.set)
        generator = np.random.default_rng(seed)
        if self.own:
            at = (np.arange(count) + generator.integers(1, there, count)) % there
        else:
            at = generator.integers(0, there, count)
        texts = self.set.texts
        assert texts is not None
        return texts[torch.from_numpy(at).to(texts.device)] if isinstance(texts, Tensor) else [texts[i] for i in at]

    def _check(self, address: Address) -> None:
        whole = address.site.rows is None or address.site.component == "pattern"
        lengths = {*self.set.lengths, *self.examples.lengths}
        if whole and len(lengths) > 1:
            few, many = min(lengths), max(lengths)
            what = "a pattern" if address.site.component == "pattern" else "all rows"
            near = "resampled, zero" if what == "a pattern" else "row[-1]"
            raise InputError(f"{address}: {what} of texts of {few} to {many} tokens has no mean (nearest: {near})")


def _size(examples: Examples, address: Address) -> int:
    """Bytes that a component of one example takes, roughly."""
    site, longest = address.site, max(examples.lengths)
    rows = longest if site.rows is None else len(site.rows)
    heads = examples.model.heads if site.heads is None else len(site.heads)
    if site.component == "pattern":
        return NUMBER * heads * rows * longest
    if site.component in PER_HEAD:
        return NUMBER * heads * rows * examples.model.head_size
    return NUMBER * rows * examples.pieces.width * (4 if site.component == "mlp_hidden" else 1)


# ---- calls -----------------------------------------------------------------------------------------------------------


def _without(kind: str, program: Program, call: Address) -> Program:
    """The program with a call skipped, repeated or swapped with what follows it."""
    loop = program.loop_at(call)
    at = program.index_of(loop)
    before, here, after = program.steps[:at], program.steps[at], program.steps[at + 1 :]
    if kind == "swapped":
        return replace(program, steps=(*before, *after[:1], here, *after[1:]))
    more = -1 if kind == "skipped" else 1
    coda = tuple(replace(each, loop=each.loop + (more if each.loop >= loop else 0)) for each in program.coda)
    middle = () if kind == "skipped" else (here, here)
    return replace(program, steps=(*before, *middle, *after), coda=coda)


def _columns_of_calls(program: Program, calls: Sequence[Address]) -> dict[str, list[Any]]:
    return {
        "place": [str(call).removesuffix(".enter") for call in calls],
        "stage": [call.stage for call in calls],
        "loop": [program.loop_at(call) for call in calls],
        "layer": [np.nan] * len(calls),
        "component": [None] * len(calls),
        "head": [np.nan] * len(calls),
        "at": [None] * len(calls),
    }
