"""What tests of language models keep: names, shapes and bounds of a record's tensors, given what it says of itself.

Letters keep who was named; antonyms and iterations keep replies, in UTF-8.  As `layouts`, of which this is the part
that stands below the tests' own records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import get_args

import torch
from torch import Tensor

from loopscope.bounds import shown
from loopscope.measure.heads import Heads, Selection
from loopscope.measure.replies import KEPT, answers_name, as_texts
from loopscope.models.passes import Boundary
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.letters.tests import FEWEST, OTHER, STEERING, TESTS, TRUNCATED, Chosen, conditions
from loopscope.studies.letters.walks import LETTERS as MOST_LETTERS
from loopscope.studies.letters.walks import LONGEST as WALKED
from loopscope.studies.letters.walks import TEMPLATES, WALKS
from loopscope.studies.records import LayoutOf, Record
from loopscope.studies.schema import (
    Kept,
    Layout,
    MisfitError,
    asked,
    mapping,
    number,
    only,
    sha256,
    truth,
    whole,
    wholes,
    word,
)
from loopscope.tasks.antonyms import LONGEST
from loopscope.tasks.letters import NAMES
from loopscope.tasks.letters.pairs import SETS

LETTERS, ANTONYMS, ITERATIONS = "letters", "antonyms", "iterations"
STEPS = 8
"""Requests are for up to so many steps."""
DISCOVERY, CONFIRMATION = "discovery", "confirmation"
HEADS = "heads"
"""Where the record of a head selection has its counts."""

REPLIES = {"test": ITERATIONS, "train": "trained-starts"}
"""Where the record of iterations has the replies to requests from held-out and from trained starts."""

WHOLE, BY_LOOP = "-whole", "-by-loop"
"""Behind the name of a set of pairs: answers by whole generations; by first tokens after every loop."""

RUN = ("loops", "boundary", "dtype", "any_map")
"""Settings of every test: the third where it is not fp32, the last for a map of another model."""

BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)
MOST_LAYERS = 1024


@dataclass(frozen=True)
class Replies(Kept):
    """Texts, a row each, as `asking.as_bytes` writes them."""

    def check(self, name: str, found: Tensor) -> None:
        """MisfitError also for what is no text."""
        super().check(name, found)
        if found.shape[-1] > KEPT:
            raise MisfitError(f"{name!r} with up to {KEPT} bytes a reply", str(found.shape[-1]))
        try:
            as_texts(found)
        except ValueError:
            raise MisfitError(f"replies in UTF-8 in {name!r}", "other bytes") from None


def _said(rows: int) -> Kept:
    return Replies((rows, None))


def selection_in(notes: Mapping[str, object]) -> Selection | None:
    """The selection of heads that the notes of its record have; MisfitError where there is none."""
    try:
        kept = notes["selection"]
        if kept is not None and not isinstance(kept, dict):
            raise TypeError(type(kept).__name__)
        return None if kept is None else Selection.from_dict(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise MisfitError("a selection of heads", "something else") from None


def _letters(record: Record) -> Layout:
    test = word(record.settings, "set")
    if test == WALKS:
        return _walks(record)
    if test == DISCOVERY:
        return _heads(record)
    if test not in TESTS:
        raise MisfitError(f"a set among {', '.join((WALKS, DISCOVERY, *TESTS))}", shown(test))
    return _pairs(record, test)


def _walks(record: Record) -> Layout:
    only(record.settings, ("set", "letters", *RUN), "settings")
    rows = WALKED * whole(record.settings, "letters", 1, MOST_LETTERS)
    steps = Kept((rows, record.facts.loops), high=len(NAMES) - 1, also=(OTHER,))
    return {WALKS: {answers_name(template, steered): steps for template in TEMPLATES for steered in (False, True)}}


def _heads(record: Record) -> Layout:
    only(record.settings, ("set", *RUN), "settings")
    found = selection_in(record.notes)
    if found is None:
        # Without heads nothing was tried.
        nothing = Kept((0,), torch.int16)
        return {HEADS: {"rescued": nothing, "damaged": nothing}}
    layers, loops, pairs = _layers(record), record.facts.loops, SETS[DISCOVERY].size
    _check_heads(found.heads, layers, record.facts.heads)
    values = vars(found) | {"loops": [*found.loops], "late": [*found.late]}
    wholes(values, "loops", 1, loops)
    wholes(values, "late", 1, layers)
    truth(values, "passed")
    whole(values, "pairs", 1, pairs)
    for name in ("unsteered", "steered"):
        whole(values, name, 0, found.pairs)
    number(values, "forwards")
    if not found.tried:
        raise MisfitError("scopes that were tried", "none")
    for each in found.tried:
        tried = vars(each)
        word(tried, "step")
        truth(tried, "passed")
        for name in ("rescue", "damage"):
            number(tried, name)
        for name in ("rescued", "damaged"):
            whole(tried, name, 0, 10**4)
    counts = {name: torch.tensor([getattr(each, name) for each in found.tried]) for name in ("rescued", "damaged")}
    return {HEADS: {name: Kept((len(found.tried),), torch.int16, same=each) for name, each in counts.items()}}


def _pairs(record: Record, test: str) -> Layout:
    settings, facts = record.settings, record.facts
    only(settings, ("set", "pairs", "heads", "patched", "late", *RUN), "settings")
    pairs = whole(settings, "pairs", FEWEST, SETS[test].size)
    rows = conditions(test, 2, _chosen(record))
    named = Kept((pairs,), high=len(NAMES) - 1, also=(OTHER, TRUNCATED))
    layout = {test: dict.fromkeys(rows, named), f"{test}{WHOLE}": {name: named for name in rows if rows[name].whole}}
    if test == STEERING:
        by_loop = Kept((pairs, facts.loops), high=len(NAMES) - 1, also=(OTHER,))
        layout[f"{test}{BY_LOOP}"] = dict.fromkeys(rows, by_loop)
    for name in (errors := mapping(record.notes, "errors")):
        number(errors, name)
    return layout


def _chosen(record: Record) -> Chosen | None:
    """As many heads as were chosen of, in a model of two loops: the names of a test's rows do not depend on more."""
    settings, facts = record.settings, record.facts
    if settings.get("heads") is None:
        only({name: value for name, value in settings.items() if name in ("patched", "late")}, (), "settings")
        return None
    layers = _layers(record)
    heads = asked(lambda: Heads.parse(word(settings, "heads")), "heads")
    _check_heads(heads, layers, facts.heads)
    wholes(settings, "patched", 1, facts.loops)
    wholes(settings, "late", 1, layers)
    every = Heads.every(heads.by_layer, facts.heads)
    return Chosen(heads, heads.comparison(facts.heads), every - heads, late=heads, loops=(2,))


def _check_heads(heads: Heads, layers: int, each: int) -> None:
    for layer, head in heads:
        if not (1 <= layer <= layers and 0 <= head < each):
            raise MisfitError(f"heads of a model of {layers} layers with {each} heads", f"{layer}.{head}")


def _antonyms(record: Record) -> Layout:
    only(record.settings, ("supervision", "sequences", *RUN), "settings")
    form, sequences = (
        word(record.settings, "supervision"),
        whole(record.settings, "sequences", 1, antonym_tests.SEQUENCES),
    )
    depths = _said(LONGEST * sequences)
    read = _said(len(asked(lambda: antonym_tests.readout_requests(form, sequences), "a way to supervise")))
    ways = product(antonym_tests.WAYS, range(1, record.facts.loops + 1))
    return {
        antonym_tests.DEPTHS: {
            answers_name(template, steered): depths for template in antonym_tests.TEMPLATES for steered in (False, True)
        },
        antonym_tests.READOUTS: {antonym_tests.readout_name(*each): read for each in ways},
    }


def _iterations(record: Record) -> Layout:
    only(record.settings, ("cases", *RUN), "settings")
    cases = whole(record.settings, "cases", 1, iteration_tests.CASES)
    truth(record.notes, "same_h4")
    return {
        where: dict.fromkeys(iteration_tests.branches(), _said(len(iteration_tests.requests(cases, split))))
        for split, where in REPLIES.items()
    }


def _layers(record: Record) -> int:
    return whole(mapping(record.notes, "model"), "layers", 1, MOST_LAYERS)


def _check_run(record: Record) -> None:
    """What every test says of the model, its map and how it ran."""
    settings, facts, model = record.settings, record.facts, mapping(record.notes, "model")
    if (facts.nodes, facts.depth) != (0, STEPS):
        raise MisfitError(f"no nodes and requests for up to {STEPS} steps", f"{facts.nodes} and {facts.depth}")
    if dict(facts.fits) != {"J": 1}:
        raise MisfitError("one fit, J", shown(dict(facts.fits)))
    if not record.raw:
        raise MisfitError("answers as they are", "raw: False")
    if settings.get("loops") != facts.loops or type(settings["loops"]) is not int:
        raise MisfitError(f"{facts.loops} loops, as the facts have them", shown(settings.get("loops")))
    if settings.get("boundary") not in BOUNDARIES:
        raise MisfitError(f"a boundary among {', '.join(BOUNDARIES)}", shown(settings.get("boundary")))
    if "dtype" in settings and settings["dtype"] != model.get("dtype"):
        raise MisfitError("the precision that the notes name", shown(settings["dtype"]))
    truth(settings, "any_map", False)
    if "identity" in record.notes and mapping(record.notes, "identity").get("weights") != facts.key:
        raise MisfitError("the weights that the facts name", shown(record.notes["identity"]))
    word(model, "type")
    word(model, "dtype")
    for name in ("layers", "width"):
        whole(model, name, 1, 10**6)
    whole(model, "parameters", 1, 10**14)
    if whole(model, "heads", 1, 10**6) != facts.heads:
        raise MisfitError(f"{facts.heads} heads, as the facts have them", str(model["heads"]))
    step = mapping(record.notes, "map")
    sha256(step.get("key"), "key of the map")
    word(step, "family")


_OF: Mapping[str, LayoutOf] = {LETTERS: _letters, ANTONYMS: _antonyms, ITERATIONS: _iterations}


def _of(name: str) -> LayoutOf:
    def layout(record: Record) -> Layout:
        _check_run(record)
        return _OF[name](record)

    return layout


LANGUAGE_LAYOUTS: Mapping[str, LayoutOf] = {name: _of(name) for name in _OF}
"""By experiment on language models."""
