"""Which places would matter if they were patched?  Gradient times difference, for all of them in two passes.

    attribution(model, tokens, "F6", "layer[*].z", "(F6)@other", others={"other": other})
    attribution(..., exact=True)      beside it what patching each place really does, and how alike the orders are

To first order, a patch that moves a component by d moves a metric by g d, g the gradient of the metric by that
component in the unpatched run (attribution patching).  One forward on the source and one forward and backward on the
program give this for every place; `sweep` needs a run for each.  **It is an approximation**, good where the metric is
nearly linear in what is patched, and bad where a softmax saturates or a patch is large: it says where to look, and
`exact` says what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.address import PER_HEAD, Address
from loopscope.bounds import MOST_PATCHES
from loopscope.errors import InputError
from loopscope.estimates import DRAWS, means, rank_correlation
from loopscope.execute.changing import changed
from loopscope.execute.executor import run
from loopscope.execute.measuring import skipped, source_inputs
from loopscope.execute.metrics import Metric
from loopscope.execute.runs import Sizes
from loopscope.execute.sweeping import source_or_program
from loopscope.execute.tables import columns_of_addresses
from loopscope.execute.unequal import Texts
from loopscope.measure.metered import Metered, Places, places_of
from loopscope.measure.streaming import NUMBER, Examples, Inputs, Part, Rows, on
from loopscope.patches import Patch
from loopscope.program import Add, Call, Given, ProgramLike, Run, Source
from loopscope.protocol import LoopedModel
from loopscope.table import Table

FLAT = {
    "kl": "is flat where nothing is patched, so that its gradient is 0 (nearest: difference)",
    "accuracy": "has no gradient (nearest: difference)",
}
"""Metrics without a first order, and why."""

_ZERO = "attribution-zero"
"""What the tensors of zeros are called whose gradients are those of the places that they are added at."""


def attribution(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None,
    places: Places,
    source: Source | ProgramLike,
    *,
    metric: str | Metric = "recovered",
    answers: Int[Tensor, "examples ..."] | None = None,
    exact: bool = False,
    skip: bool = False,
    rows: Rows = (-1,),
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """What patching each place would change, approximated from one gradient; with `exact`, also what it does change.

    A row for every place and row that is read:

    - `place`: the address, "loop[3].layer[2].head[0].z"; `stage`, `loop`, `layer`, `component`, `head` and `at`, its
      rows, are what it is made of, missing where it does not name one;
    - `row`: the row that is read;
    - `approximate`: the mean over examples of gradient times difference, the first order of how much a patch from
      `source` changes the metric;
    - `exact`, where it is asked for: the mean of what the patch does change it by, as `sweep` finds it;
    - `n`: the examples.  Both means have their intervals.

    With `exact`, `about["rank correlation"]` is Spearman's between both over all places and rows, with its interval
    over examples or clusters.  `places`, `source`, `metric` and `skip` are those of `sweep`, changes such as "*=0"
    among the sources; a metric must have a gradient at the unpatched run.  A place that reaches no row that is read
    has 0.  Every row that is read is a backward of its own.

    Errors as `sweep`; InputError for the metrics in `FLAT`, and for values of other shapes in the source, such as
    patterns of texts of unequal length.
    """
    if isinstance(metric, str) and metric in FLAT:
        raise InputError(f"the metric {metric!r} {FLAT[metric]}")
    examples = Examples(model, tokens, program, rows, inputs)
    origin = source_or_program(source)
    addresses = places_of(examples, places)
    metered = Metered(examples, metric, answers, origin, memory=memory, skip=skip)
    found = np.zeros((len(examples), len(addresses), len(examples.rows)))
    for part in examples.parts(_size(examples), memory):
        for first in range(0, len(addresses), MOST_PATCHES):
            some = addresses[first : first + MOST_PATCHES]
            products = _products(examples, part, some, origin, metered.metric)
            found[part["at"], first : first + len(some)] = products.double().cpu().numpy()
    if (nothing := skipped(metered.metric[1])) is not None:
        found[np.broadcast_to(nothing.cpu().numpy()[:, None], found.shape)] = np.nan
    how: dict[str, Any] = {"clusters": clusters, "seed": seed, "draws": draws}
    made = means(found, **how)
    columns = {**metered.columns(columns_of_addresses(examples.program, addresses)), "approximate": made.flat()}
    about = {**metered.about, "approximation": "first order: gradient times difference"}
    if exact:
        values, base = metered.read([examples.program.patch(each, origin) for each in addresses], memory)
        columns["exact"] = means(values - base, **how).flat()
        about["rank correlation"] = _correlation(found, values - base, clusters, seed, draws)
    return Table("attribution", {**columns, "n": made.n.reshape(-1)}, about)


def _correlation(
    one: Float[np.ndarray, "examples places R"], two: Float[np.ndarray, "examples places R"],
    clusters: ArrayLike | None, seed: int, draws: int,
) -> dict[str, float | None]:  # fmt: skip
    """The rank correlation of both, over the examples that have all values: those that were skipped have not."""
    there = ~np.isnan(one).any((1, 2))
    ids = None if clusters is None else np.asarray(clusters)[there]
    return rank_correlation(one[there], two[there], clusters=ids, seed=seed, draws=draws)


def _products(
    examples: Examples,
    part: Part,
    addresses: Sequence[Address],
    origin: Source,
    metric: tuple[str, Metric],
) -> Float[Tensor, "B places R"]:
    """Gradient times difference at every place for some examples of one length."""
    giver = Patch(addresses[0].site, origin).giver
    # All heads of a place share a tensor of zeros; a given tensor has the heads that were asked for.
    wide = {each: each if isinstance(giver, Given) else _whole(each) for each in addresses}
    together = list(dict.fromkeys(wide.values()))
    zeros = {each: _zeros(examples, part, each) for each in together}
    names = {each: f"{_ZERO}-{number}" for number, each in enumerate(together)}
    asked = examples.program
    for each, name in names.items():
        asked = asked.patch(each, Add(Given(name)))
    with torch.enable_grad():
        inputs: Inputs = {**part["inputs"]}
        inputs["given"] = {**(inputs.get("given") or {}), **{names[each]: zeros[each] for each in together}}
        tokens = None if part["tokens"] is None else on(examples.model, part["tokens"])
        trace = run(examples.model, tokens, asked, rows=examples.rows, keep=together, gradients=True, **inputs)[asked]
        values = metric[1](trace.logits, trace.logits.detach(), torch.tensor(part["at"], device=trace.logits.device))
        if not trace.logits.requires_grad:  # no place reaches a row that is read, whatever the metric makes of it
            return values.detach().new_zeros((len(part["at"]), len(addresses), values.shape[1]))
        if not values.requires_grad:
            raise InputError(f"the metric {metric[0]!r} has no gradient (nearest: difference)")
        own = {each: trace.kept[each].detach() for each in together}
        moved = _differences(examples, part, origin, own)
        found = values.new_zeros((len(part["at"]), len(addresses), values.shape[1]))
        for row in range(values.shape[1]):
            gradients = torch.autograd.grad(
                values[:, row].sum(), list(zeros.values()), retain_graph=True, allow_unused=True, materialize_grads=True
            )
            products = {
                each: (gradient * moved[each]).flatten(2 if each.site.component in PER_HEAD else 1).sum(-1)
                for each, gradient in zip(together, gradients, strict=True)
            }
            for at, address in enumerate(addresses):
                found[:, at, row] = _of(address, products[wide[address]])
    return found.detach()


def _whole(address: Address) -> Address:
    return replace(address, site=replace(address.site, heads=None))


def _of(address: Address, products: Float[Tensor, "B ..."]) -> Float[Tensor, " B"]:
    """The heads of an address of those that have their products here."""
    if address.site.component not in PER_HEAD:
        return products
    heads = address.site.heads
    some = products if heads is None or len(heads) == products.shape[1] else products[:, list(heads)]
    return some.sum(-1)


def _zeros(examples: Examples, part: Part, address: Address) -> Float[Tensor, "B ..."]:
    """Zeros of the shape of a component, with a gradient."""
    model, pieces, site = examples.model, examples.pieces, address.site
    length = examples.lengths[part["at"][0]]
    rows = length if site.rows is None else len(site.rows)
    heads = (model.heads if site.heads is None else len(site.heads),) if site.component in PER_HEAD else ()
    row = _row(examples, part)
    if site.component == "mlp_hidden":
        layers = {"prelude": pieces.prelude, "coda": pieces.coda}.get(address.stage)
        if layers is None:
            call = examples.program.steps[examples.program.index_of(examples.program.loop_at(address))]
            assert isinstance(call, Call)
            layers = pieces.stack(call.stack)
        with torch.no_grad():
            last = layers[site.layer - 1].mlp_hidden(row, row).shape[-1] if site.layer <= len(layers) else 1
    else:
        last = length if site.component == "pattern" else model.head_size if heads else pieces.width
    return row.new_zeros((len(part["at"]), *heads, rows, last)).requires_grad_()


def _row(examples: Examples, part: Part) -> Float[Tensor, "1 1 d"]:
    """A row like those of the stream: its type, where it is."""
    state = part["inputs"].get("state")
    if part["tokens"] is None:
        assert state is not None
        return on(examples.model, state).new_zeros((1, 1, examples.pieces.width))
    tokens = on(examples.model, part["tokens"][:1])
    with torch.no_grad():
        embedded = examples.pieces.embed(tokens, torch.arange(tokens.shape[1], device=tokens.device))
    return embedded.new_zeros((1, 1, examples.pieces.width))


def _differences(
    examples: Examples, part: Part, origin: Source, own: Mapping[Address, Tensor]
) -> dict[Address, Tensor]:
    """By how much a patch from the origin moves the component at each place."""
    patch = {address: Patch(address.site, origin) for address in own}
    giver = next(iter(patch.values())).giver
    values: Mapping[Address, Tensor | None] = dict.fromkeys(own)
    if isinstance(giver, Run):
        values = _source(examples, part, giver, own)
    elif giver is not None:
        tensor = on(examples.model, (part["inputs"].get("given") or {})[giver.name])
        values = {address: tensor.expand(each.shape) for address, each in own.items()}
    moved = {}
    for address, here in own.items():
        value, change = values[address], patch[address].change
        if value is not None and value.shape != here.shape:
            raise InputError(
                f"{address} has shape {list(here.shape[1:])}, and {list(value.shape[1:])} in its source '{origin}'"
            )
        with torch.no_grad():
            if change is not None:
                becomes = changed(change, here, value, examples.inputs.get("maps") or {}, None)
            else:
                assert value is not None
                becomes = value
            moved[address] = becomes - here
    return moved


def _source(examples: Examples, part: Part, origin: Run, places: Iterable[Address]) -> dict[Address, Tensor]:
    """The components that patches at these places take from a run."""
    theirs: dict[Address, Address] = {}
    for place in places:
        site = place.site if origin.rows is None else replace(place.site, rows=origin.rows)
        if place.stage == "prelude":
            theirs[place] = replace(place, site=site)
            continue
        stage = "coda" if place.stage == "coda" else "loop"
        loop = place.loop if stage == "coda" else examples.program.loop_at(place)
        theirs[place] = Address(loop if origin.loop is None else origin.loop, site, stage)
    tokens, beside = source_inputs(part["tokens"], origin, part["inputs"])
    if isinstance(tokens, Tensor):
        tokens = on(examples.model, tokens)
    kept = run(examples.model, tokens, origin.program, keep=theirs.values(), **beside)[origin.program].kept
    return {place: kept[there] for place, there in theirs.items()}


def _size(examples: Examples) -> int:
    """Bytes that one example takes with all that a gradient needs, roughly."""
    model, longest = examples.model, max(examples.lengths)
    inner = model.heads * model.head_size
    layers = Sizes.of(examples.pieces, longest).layers_of(examples.program)
    return NUMBER * layers * longest * (14 * model.width + 3 * inner + 3 * model.heads * longest)
