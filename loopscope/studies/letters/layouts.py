"""What records of the letter walk keep: who was named in walks and tests, and how heads were found."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from loopscope.bounds import shown
from loopscope.measure.controls import Chosen
from loopscope.measure.heads import Heads, Selection
from loopscope.measure.replies import answers_name
from loopscope.studies.language.layouts import RUN, check_run
from loopscope.studies.letters.tests import FEWEST, OTHER, STEERING, TESTS, TRUNCATED, conditions
from loopscope.studies.letters.walks import GRAPHS, LONGEST, TEMPLATES, WALKS
from loopscope.studies.records import Record
from loopscope.studies.schema import Kept, Layout, MisfitError, asked, mapping, number, only, truth, whole, wholes, word
from loopscope.tasks.letters import NAMES
from loopscope.tasks.letters.pairs import SETS

DISCOVERY, CONFIRMATION = "discovery", "confirmation"
HEADS = "heads"
"""Where the record of a head selection has its counts."""

WHOLE, BY_LOOP = "-whole", "-by-loop"
"""Behind the name of a set of pairs: answers by whole generations; by first tokens after every loop."""

MOST_LAYERS = 1024


def letter_layout(record: Record) -> Layout:
    """The tensors of a record of the letter walk, given what it says of itself; MisfitError where that cannot be."""
    check_run(record)
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
    rows = LONGEST * whole(record.settings, "letters", 1, GRAPHS)
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


def _layers(record: Record) -> int:
    return whole(mapping(record.notes, "model"), "layers", 1, MOST_LAYERS)


def selection_in(notes: Mapping[str, object]) -> Selection | None:
    """The selection of heads that the notes of its record have; MisfitError where there is none."""
    try:
        kept = notes["selection"]
        if kept is not None and not isinstance(kept, dict):
            raise TypeError(type(kept).__name__)
        return None if kept is None else Selection.from_dict(kept)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise MisfitError("a selection of heads", "something else") from None
