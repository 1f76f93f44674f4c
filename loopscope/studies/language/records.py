"""Experiments on looped language models: which there are, what they are done on, and their records.

A subject is a model folder with a map.  Its records are keyed by the identity of the model (`lm.identity`), the SHA-256
of the map and by what was asked, so a test that is done is not done again, and one that was interrupted goes on with
what is missing.  Released records, of identity version 1, have the SHA-256 of the weights alone; none of them is taken
for what is asked now.
Answers are kept example by example: who was named (letters), or the replies themselves (antonyms, iterations).  Texts,
pairs and true answers are regenerated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from loopscope.errors import InputError, nearest
from loopscope.maps import AffineMap, map_key
from loopscope.measure.heads import Heads, Selection, select
from loopscope.measure.replies import Log, Speaks, under
from loopscope.models.identity import Identity, identify
from loopscope.models.passes import Boundary, LanguageModel, precision_name
from loopscope.models.steering import UNKNOWN, InFull, Provenance, check_fitted, load_steering_map
from loopscope.store.artefacts import IDENTITY, WEIGHTS_SHA
from loopscope.store.files import damaged
from loopscope.store.store import Store
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.language.layouts import (
    ANTONYMS,
    BY_LOOP,
    CONFIRMATION,
    DISCOVERY,
    HEADS,
    ITERATIONS,
    LANGUAGE_LAYOUTS,
    LETTERS,
    REPLIES,
    STEPS,
    WHOLE,
    selection_in,
)
from loopscope.studies.letters import tests as letter_tests
from loopscope.studies.letters.tests import Chosen
from loopscope.studies.letters.walks import LETTERS as WALKED
from loopscope.studies.letters.walks import WALKS, measure_walks
from loopscope.studies.records import RECORD, Facts, Predictions, Record, config_of, in_words, load, save
from loopscope.studies.schema import MisfitError
from loopscope.tasks.letters.pairs import SETS

ANY_MAP = "any_map"
"""A setting of records of a map that was fitted to another model or with another boundary; no claim rests on them."""

LETTER_TESTS = (WALKS, *letter_tests.TESTS)
"""How far a letter walker goes, and the tests on pairs, for which heads are chosen."""


@dataclass(frozen=True)
class LanguageExperiment:
    """One kind of test: its question, and the model it was published on: its parameters, loops and what ends a loop."""

    name: str
    question: str
    published_on: str
    parameters: int
    loops: int
    boundary: Boundary

    @property
    def command(self) -> str:
        """What measures it."""
        return f"loopscope lm test {self.name} FOLDER --map MAP"


LANGUAGE: Mapping[str, LanguageExperiment] = {
    each.name: each
    for each in (
        LanguageExperiment(
            LETTERS, "Do the attention patterns of a few heads carry what J does to an eight-step letter walk?",
            "Ouro-2.6B", 2_667_974_657, 4, "norm",
        ),
        LanguageExperiment(
            ANTONYMS, "How does supervision decide what each loop says, and what J can reach?", "Ouro-2.6B",
            2_667_974_657, 4, "norm",
        ),
        LanguageExperiment(
            ITERATIONS, "Does it take J, F or both to iterate beyond the trained steps?", "Qwen3-8B", 8_190_735_360, 8,
            "none",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class LanguageSubject:
    """A language model with its tokenizer and map on one device, and what both are known by.

    `kind` is the architecture, as `model_type` of a config says it.  The map is in fp32, whatever the model is in;
    `map_key` is that of the saved one (`maps.map_key`).
    """

    name: str
    identity: Identity
    kind: str
    model: LanguageModel
    tokenizer: Speaks
    step: AffineMap
    map_key: str
    provenance: Provenance = UNKNOWN

    @property
    def key(self) -> str:
        """SHA-256 of the weights, by which the stages of training are found."""
        return self.identity.weights

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self._weights)).device

    @property
    def precision(self) -> str:
        """What the model computes in: fp32 or bf16."""
        return precision_name(next(iter(self._weights)).dtype)

    @property
    def steering(self) -> InFull:
        """The map as it is applied to states of the model's precision."""
        return InFull(self.step)

    @property
    def _weights(self) -> list[nn.Parameter]:
        assert isinstance(self.model, nn.Module)
        return list(self.model.parameters())

    @property
    def facts(self) -> Facts:
        """What analyses must know; there are no nodes, and requests are for up to eight steps."""
        return Facts(self.name, self.key, self.model.loops, STEPS, 0, self.model.heads, {"J": 1})

    @property
    def about(self) -> dict[str, Any]:
        """The model and the map in numbers, for the record."""
        model = self.model
        return {
            "model": {
                "type": self.kind, "layers": len(model.layers), "heads": model.heads, "width": model.width,
                "parameters": sum(each.numel() for each in self._weights), "dtype": self.precision,
            },
            "identity": self.identity.to_dict(),
            "map": {
                "family": self.step.family, "key": self.map_key, **self.step.settings(), **self.provenance.notes,
            },
        }  # fmt: skip


def load_language(
    folder: Path,
    step: Path,
    *,
    name: str | None = None,
    loops: int | None = None,
    boundary: Boundary | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    any_map: bool = False,
) -> LanguageSubject:
    """A model folder and a saved map as a subject, called `name` or as its folder is; the model computes in `dtype`.

    It makes as many loops as are given, or else as the map was fitted in, or as the folder has it.

    InputError where either is none, the map has another width or, unless `any_map`, was fitted to another model or
    with another boundary, or there is no tokenizer with a chat template; DamagedError for files that cannot be read.
    """
    from loopscope.models.folders import load as load_model
    from loopscope.models.folders import outline, read_config
    from loopscope.models.text import load_tokenizer

    config = read_config(folder)
    tokenizer = load_tokenizer(folder)
    if tokenizer.template is None:
        raise InputError(f"{folder} has no chat template, and questions are asked in chats")
    loaded = load_steering_map(step, folder, config.get("hidden_size"))
    step_key, ending, identity = map_key(loaded), outline(folder, boundary=boundary).boundary, identify(folder)
    provenance = check_fitted(step, folder, ending, identity=identity, any_map=any_map)
    model = load_model(
        folder, loops=provenance.loops if loops is None else loops, boundary=boundary, device=device, dtype=dtype
    )
    return LanguageSubject(
        name or folder.resolve().name, identity, str(config["model_type"]), model, tokenizer,
        loaded.float().to(device), step_key, provenance,
    )  # fmt: skip


# ---- measuring -------------------------------------------------------------------------------------------------------

Measure = Callable[[], tuple[Predictions, dict[str, Any], float | None]]
"""Gives predictions, notes and what it took in forward-equivalents, where that was counted."""


def _recorded(
    subject: LanguageSubject, store: Store, experiment: str, settings: Mapping[str, Any], measure: Measure
) -> Record:
    """The record of these settings: from the store, or measured and written to it.

    Precision is a setting where it is not fp32, and a note always; that a map was fitted to another model is both.
    """
    chosen = {**settings, "loops": subject.model.loops, "boundary": subject.model.boundary}
    if subject.precision != "fp32":
        chosen["dtype"] = subject.precision
    if subject.provenance.misfit:
        chosen[ANY_MAP] = True
    inputs = {WEIGHTS_SHA: subject.key, IDENTITY: subject.identity.key, "map": subject.map_key}
    known = store.find(RECORD, config_of(experiment, subject.name, chosen), inputs)
    if known is not None:
        return load(known, LANGUAGE_LAYOUTS[experiment])
    started = time.perf_counter()
    predictions, notes, forwards = measure()
    cost: dict[str, Any] = {"seconds": time.perf_counter() - started, "device": in_words(subject.device)}
    if forwards is not None:
        cost["forwards"] = forwards
    made = Record(experiment, subject.facts, predictions, chosen, cost, {**subject.about, **notes}, raw=True)
    save(store, made, inputs, subject.device)
    return made


def selected_heads(subject: LanguageSubject, store: Store, log: Log = lambda _: None) -> tuple[Record, Chosen | None]:
    """The record of the head selection, and the heads; None where the map does nothing that heads could carry."""

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        log("choosing heads")
        at = [letter_tests.discovery(subject.tokenizer, name) for name in (DISCOVERY, CONFIRMATION)]
        found = select(subject.model, subject.steering, *at[0], confirmation=at[1], log=under("choosing heads", log))
        tried = found.tried if found else ()
        counts = {
            "rescued": torch.tensor([each.rescued for each in tried], dtype=torch.int16),
            "damaged": torch.tensor([each.damaged for each in tried], dtype=torch.int16),
        }
        return {HEADS: counts}, {"selection": found and found.to_dict()}, found.forwards if found else None

    record = _recorded(subject, store, LETTERS, {"set": DISCOVERY}, measure)
    found = selection_of(record)
    return record, None if found is None else Chosen.selected(found, subject.model)


def selection_of(record: Record) -> Selection | None:
    """The selection in its record; DamagedError where there is none."""
    try:
        return selection_in(record.notes)
    except MisfitError as error:
        raise damaged(f"record of {record.facts.name}", error.expected, error.found) from None


def check_letters(tests: Iterable[str], count: int | None) -> None:
    """InputError for a test of letters that there is not, or a number of pairs that one does not take."""
    for test in tests:
        if test not in LETTER_TESTS:
            raise InputError(f"no test {test!r}; there are {', '.join(LETTER_TESTS)}{nearest(test, LETTER_TESTS)}")
        letter_tests.first_pairs(letter_tests.STEERING if test == WALKS else test, count)


def measure_letters(
    subject: LanguageSubject,
    store: Store,
    *,
    tests: tuple[str, ...] = LETTER_TESTS,
    heads: Heads | None = None,
    count: int | None = None,
    batch: int = 16,
    log: Log = lambda _: None,
) -> list[Record]:
    """A record per test, and that of the head selection before those on pairs.

    If heads are given, none are selected, and these are patched at the last loop.  Without a selection, only runs
    without patches are recorded: the map did nothing that heads could carry.
    """
    check_letters(tests, count)
    on_pairs = [test for test in tests if test != WALKS]
    chosen = None if heads is None else Chosen.of(heads, subject.model, [subject.model.loops])
    made: list[Record] = []
    if WALKS in tests:
        made.append(_walks(subject, store, min(count or WALKED, WALKED), batch, log))
    if on_pairs and heads is None:
        record, chosen = selected_heads(subject, store, log)
        made.append(record)
    for test in on_pairs:
        settings: dict[str, Any] = {"set": test, "pairs": count or SETS[test].size, "heads": None}
        if chosen is not None:
            late = [*chosen.late.by_layer]
            settings |= {"heads": str(chosen.heads), "patched": [*chosen.loops], "late": late}
        made.append(_recorded(subject, store, LETTERS, settings, _letters(subject, test, chosen, count, batch, log)))
    return made


def _walks(subject: LanguageSubject, store: Store, count: int, batch: int, log: Log) -> Record:
    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        found = measure_walks(
            subject.model, subject.tokenizer, subject.steering, count=count, batch=batch, log=under(WALKS, log)
        )
        return {WALKS: found}, {}, None

    return _recorded(subject, store, LETTERS, {"set": WALKS, "letters": count}, measure)


def _letters(
    subject: LanguageSubject, test: str, chosen: Chosen | None, count: int | None, batch: int, log: Log
) -> Measure:
    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        found = letter_tests.measure(
            subject.model, subject.tokenizer, subject.steering, test, chosen, count=count, batch=batch, log=log
        )
        predictions = {test: found.first, f"{test}{WHOLE}": found.whole}
        if found.by_loop:
            predictions[f"{test}{BY_LOOP}"] = found.by_loop
        return predictions, {"errors": found.errors}, found.forwards

    return measure


def measure_antonyms(
    subject: LanguageSubject,
    store: Store,
    supervision: str,
    *,
    sequences: int = antonym_tests.SEQUENCES,
    batch: int = 32,
    log: Log = lambda _: None,
) -> Record:
    """Depths with and without the map, and native readouts, of a backbone that was supervised in this way."""
    antonym_tests.readout_requests(supervision, sequences)  # refuse before anything is computed

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        at = {"sequences": sequences, "batch": batch}
        depths = antonym_tests.measure_depths(
            subject.model, subject.tokenizer, subject.steering, **at, log=under("depths", log)
        )
        readouts = antonym_tests.measure_readouts(
            subject.model, subject.tokenizer, supervision, **at, log=under("readouts", log)
        )
        return {antonym_tests.DEPTHS: depths, antonym_tests.READOUTS: readouts}, {}, None

    return _recorded(subject, store, ANTONYMS, {"supervision": supervision, "sequences": sequences}, measure)


def measure_iterations(
    subject: LanguageSubject,
    store: Store,
    *,
    cases: int = iteration_tests.CASES,
    batch: int = 32,
    log: Log = lambda _: None,
) -> Record:
    """The four branches from a common h4, asked from held-out and from trained starts.

    The record notes whether h4 was the same, bit by bit.
    """
    first = [request.prompt for request in iteration_tests.requests(cases)[: min(batch, 8)]]

    def measure() -> tuple[Predictions, dict[str, Any], float | None]:
        one, *others = iteration_tests.common_states(subject.model, subject.tokenizer, subject.steering, first).values()
        same = all(torch.equal(one, other) for other in others)
        said = {
            group: iteration_tests.measure(
                subject.model, subject.tokenizer, subject.steering, cases=cases, split=split, batch=batch,
                log=under(iteration_tests.STARTS[split], log),
            )
            for split, group in REPLIES.items()
        }  # fmt: skip
        return said, {"same_h4": same}, None

    return _recorded(subject, store, ITERATIONS, {"cases": cases}, measure)
