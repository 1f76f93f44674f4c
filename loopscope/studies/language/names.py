"""How records of language models are told: which model, map and run they are of, its size, how much was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.language.records import ANY_MAP, LANGUAGE
from loopscope.studies.letters.walks import LETTERS as WALKED
from loopscope.studies.records import Record
from loopscope.tasks.letters.pairs import SETS

AMOUNTS = ("pairs", "letters", "sequences", "cases", "dtype")
"""Settings that say how much was asked, and how exactly; of records that differ in them alone, one is enough."""


def identity(record: Record) -> tuple[str, ...]:
    """The model, its map and how it was run: name, weights, map, loops, what ends a loop, the rest of the model."""
    settings, step, told = record.settings, record.notes.get("map", {}), identity_of(record)
    run = (str(settings.get("loops", record.facts.loops)), str(settings.get("boundary", "")))
    rest = " ".join(str(told[part]) for part in ("config", "tokenizer", "template") if part in told)
    return record.facts.name, record.facts.key, str(step.get("key", "")), *run, rest


def identity_of(record: Record) -> Mapping[str, Any]:
    """What tells the model from others; released records have version 1 of that, which is the weights alone."""
    told: Mapping[str, Any] = record.notes.get("identity", {"version": 1, "weights": record.facts.key})
    return told


def loops_in_words(loops: Sequence[int]) -> str:
    """Loops as they are told: loop 8; loops 2, 3; loops 2-8."""
    every = [*loops]
    if len(every) > 2 and every == [*range(every[0], every[-1] + 1)]:
        return f"loops {every[0]}-{every[-1]}"
    return f"loop{'s' * (len(every) > 1)} {', '.join(map(str, every))}"


def subject_of(record: Record) -> tuple[str, ...]:
    """What one record is enough of: the identity, and what was asked, however much of it."""
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
    if part := part_of(record):
        return part
    match record.settings:
        case {"set": str(), "pairs": int(count)}:
            return f"{count} pairs"
        case {"letters": int(count)}:
            return f"{count} graphs"
        case {"sequences": int(count)}:
            return f"{count} sequences"
        case {"cases": int()}:
            return "2,560 requests, half of them from held-out starts"
    return "discovery pairs"


def part_of(record: Record) -> str:
    """How much of the test was asked where that is not all of it; nothing where it is."""
    match record.settings:
        case {"set": str(name), "pairs": int(count)}:
            every, what = SETS[name].size, "pairs"
        case {"letters": int(count)}:
            every, what = WALKED, "graphs"
        case {"sequences": int(count)}:
            every, what = antonym_tests.SEQUENCES, "sequences"
        case {"cases": int(count)}:
            every, what = iteration_tests.CASES, "cases for each task, k and set of starts"
        case _:
            return ""
    return f"{count} of {every} {what}" if count < every else ""


def in_millions(count: int) -> str:
    """A number of parameters as it is told: 2.7B, 135M."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count >= 1e6 else f"{count:,}"
