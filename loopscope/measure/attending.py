"""Where heads look: attention patterns of one text, as a table.

found = patterns(model, tokens, "loop[*].layer[2].pattern", tokenizer=tokenizer)
found.plot()                              with the tokens on both axes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from loopscope.address import Address
from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.measure.streaming import Inputs, program_given
from loopscope.program import ProgramLike
from loopscope.protocol import LoopedModel
from loopscope.table import Table
from loopscope.wildcards import addresses_of


def patterns(
    model: LoopedModel,
    tokens: Sequence[int] | Tensor,
    places: Address | str | Iterable[Address | str],
    program: ProgramLike | None = None,
    **inputs: Unpack[Inputs],
) -> Table:
    """The weight that every query row gives to every key row: a row of the table for each, at every place and head.

    - `place`: an address of a pattern; in `places` `*` may stand for loops and layers;
    - `head`, `row`, and `key`, the row that is looked at;
    - `weight`: between 0 and 1; those of a query row sum to 1.

    `about` has the tokens, as text where a `tokenizer` is among the inputs.  `program` is by default the model's own.
    Errors as `execute.run`; InputError for a place that is no pattern.
    """
    text = torch.as_tensor(tokens)
    if text.dim() != 1:
        raise InputError(f"patterns are of one text [rows], not of {list(text.shape)} (nearest: tokens[0])")
    asked = program_given(model, program)
    chosen = addresses_of(places, [asked], model)
    for place in chosen:
        if place.site.component != "pattern":
            near = replace(place, site=replace(place.site, component="pattern"))
            raise InputError(f"{place} is no pattern (nearest: {near})")
        if place.site.anchors:
            raise InputError(f"{place} names a row by what stands there; patterns are of numbered rows, or of all")
    with torch.no_grad():
        trace = run(model, text[None], asked, keep=chosen, **inputs)[asked]
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("place", "head", "row", "key", "weight")}
    for place in chosen:
        kept = trace.kept[place][0].double().cpu().numpy()
        heads = place.site.heads or range(kept.shape[0])
        rows = range(kept.shape[1]) if place.site.rows is None else place.site.numbers
        where = np.array(list(heads)), np.array(list(rows)) % len(text), np.arange(kept.shape[2])
        for name, numbers in zip(("head", "row", "key"), np.meshgrid(*where, indexing="ij"), strict=True):
            columns[name].append(numbers.reshape(-1))
        columns["place"].append(np.full(kept.size, str(place), dtype=object))
        columns["weight"].append(kept.reshape(-1))
    tokenizer = inputs.get("tokenizer")
    said = [str(token) if tokenizer is None else tokenizer.decode([token]) for token in text.tolist()]
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Table("patterns", whole, {"program": str(asked), "tokens": said})
