"""Measuring a record, whatever the model is: it is looked up, or else measured, timed and written.

Small backbones and language models differ in what they are asked and in what their keys are made from.  How a record
comes about is the same for both, and is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from loopscope.store.store import Store
from loopscope.studies.records import RECORD, LayoutOf, ModelFacts, Predictions, Record, config_of, in_words, load, save


@dataclass(frozen=True)
class Wanted:
    """A record that is wanted: all that decides its key, and the layout that it has.

    `inputs` are the keys of what it is measured on, by role; `settings` what is asked.
    """

    experiment: str
    facts: ModelFacts
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    device: torch.device
    layout: LayoutOf | None
    raw: bool = False


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Outcome(NamedTuple):
    """What a measurement gives; `cost` is what it counted beside the seconds, such as forward-equivalents."""

    predictions: Predictions
    notes: Mapping[str, Any] = _NOTHING
    cost: Mapping[str, Any] = _NOTHING


def recorded(wanted: Wanted, store: Store, measure: Callable[[], Outcome], kind: str = RECORD) -> Record:
    """The record from the store, or as `measure` gives it, written to the store with what it took."""
    config = config_of(wanted.experiment, wanted.facts.name, wanted.settings)
    known = store.find(kind, config, dict(wanted.inputs))
    if known is not None:
        return load(known, wanted.layout)
    started = time.perf_counter()
    found = measure()
    cost = {"seconds": time.perf_counter() - started, "device": in_words(wanted.device), **found.cost}
    made = Record(
        wanted.experiment, wanted.facts, found.predictions, wanted.settings, cost, dict(found.notes), wanted.raw
    )
    return replace(made, key=save(store, made, wanted.inputs, wanted.device, kind).key)
