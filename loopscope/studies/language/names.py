"""How records of language models are named: which model, map and run they are of, its size, how much was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopscope.studies.language.records import ANY_MAP
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE

AMOUNTS = ("pairs", "letters", "sequences", "cases", "dtype")
"""Settings that say how much was asked, and in which precision; of records that differ in them alone, one decides."""


def identity(record: Record) -> tuple[str, ...]:
    """The model, its map and how it was run: name, weights, map, loops, what ends a loop, the rest of the model."""
    settings, step, known = record.settings, record.notes.get("map", {}), identity_of(record)
    part = f", loop {settings['loop']}" if "loop" in settings else ""
    run = (str(settings.get("loops", record.facts.loops)), str(settings.get("boundary", "")) + part)
    rest = " ".join(str(known[part]) for part in ("config", "tokenizer", "template") if part in known)
    return record.facts.name, record.facts.key, str(step.get("key", "")), *run, rest


def identity_of(record: Record) -> Mapping[str, Any]:
    """What tells the model from others; released records have version 1 of that, which is the weights alone."""
    known: Mapping[str, Any] = record.notes.get("identity", {"version": 1, "weights": record.facts.key})
    return known


def loops_in_words(loops: Sequence[int]) -> str:
    """Loops as they are told: loop 8; loops 2, 3; loops 2-8."""
    every = [*loops]
    if len(every) > 2 and every == [*range(every[0], every[-1] + 1)]:
        return f"loops {every[0]}-{every[-1]}"
    return f"loop{'s' * (len(every) > 1)} {', '.join(map(str, every))}"


def question_of(record: Record) -> tuple[str, ...]:
    """The question that a record answers: the identity, and what was asked, however much of it."""
    asked = (f"{name} {value}" for name, value in sorted(record.settings.items()) if name not in AMOUNTS)
    return *identity(record), *asked


def parameters_of(record: Record) -> int:
    """How many parameters the model has."""
    return int(record.notes["model"]["parameters"])


def model_of(record: Record) -> str:
    """The model and its size: smollm2-135m (135M)."""
    return f"{record.facts.name} ({in_millions(parameters_of(record))})"


def scale_of(record: Record) -> str:
    """The model and its size and loops beside the published one's, and how much of the test was asked."""
    published, parameters = LANGUAGE[record.experiment], parameters_of(record)
    model = f"{record.facts.name} ({in_millions(parameters)} parameters)"
    if parameters != published.parameters:
        model = f"{model} in place of {published.published_on}"
    loops, dtype = record.settings.get("loops"), record.settings.get("dtype")
    run = f", {loops} loops instead of {published.loops}" if loops not in (None, published.loops) else ""
    other = ", with a map that was not fitted to it so" if record.settings.get(ANY_MAP) else ""
    return f"{model}{run}, {how_much(record)}" + (f", in {dtype}" if dtype else "") + other


def how_much(record: Record) -> str:
    """How much of the test was asked."""
    return part_of(record) or LANGUAGE[record.experiment].asked(record).whole


def part_of(record: Record) -> str:
    """How much of the test was asked where that is not all of it; nothing where it is."""
    asked = LANGUAGE[record.experiment].asked(record)
    return f"{asked.cases} of {asked.every} {asked.what}" if asked.cases < asked.every else ""


def in_millions(count: int) -> str:
    """A number of parameters as it is told: 2.7B, 135M."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count:,}"
