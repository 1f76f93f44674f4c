"""The paper's three protocols on language models, from a model folder to records: train, fit a map, test.

Every stage is looked up first, so an interrupted protocol goes on where it stopped, and a second run takes no time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from loopscope.errors import InputError, nearest
from loopscope.measure.replies import Log
from loopscope.models.folders import outline
from loopscope.models.passes import Boundary
from loopscope.store.store import Store
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.antonyms.records import measure_antonyms
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.iterations.records import measure_iterations
from loopscope.studies.language.recipes import recipe
from loopscope.studies.language.records import LanguageSubject, load_language
from loopscope.studies.letters import tests as letter_tests
from loopscope.studies.letters.records import measure_letters
from loopscope.studies.records import Record, copy_records
from loopscope.tasks.general_text import Source
from loopscope.training.lm.jobs import KIND as MAP
from loopscope.training.lm.jobs import TRAINING, Finished, Settings, finetune, fit, new_map
from loopscope.training.lm.recipe import Recipe


class Amount(NamedTuple):
    """How much a test asks: the first `cases` of its pairs, sequences or requests (None: all), `batch` at a time."""

    cases: int | None = None
    batch: int = 32


ALL = Amount()

Measure = Callable[[LanguageSubject, Store, Amount, Log], list[Record]]


@dataclass(frozen=True)
class Arm:
    """A backbone, its map and their test: recipes by the paper's names."""

    backbone: str
    step: str
    measure: Measure


@dataclass(frozen=True)
class Protocol:
    """The arms of one protocol.

    `task` names the stage that a model which was never looped needs before them; `check` refuses a number of cases.
    """

    name: str
    task: str
    check: Callable[[int | None], object]
    arms: tuple[Arm, ...]


def _letters(subject: LanguageSubject, store: Store, amount: Amount, log: Log) -> list[Record]:
    return measure_letters(subject, store, count=amount.cases, batch=amount.batch, log=log)


def _antonyms(supervision: str) -> Measure:
    def measure(subject: LanguageSubject, store: Store, amount: Amount, log: Log) -> list[Record]:
        sequences = _given(amount.cases, antonym_tests.SEQUENCES)
        return [measure_antonyms(subject, store, supervision, sequences=sequences, batch=amount.batch, log=log)]

    return measure


def _iterations(subject: LanguageSubject, store: Store, amount: Amount, log: Log) -> list[Record]:
    cases = _given(amount.cases, iteration_tests.CASES)
    return [measure_iterations(subject, store, cases=cases, batch=amount.batch, log=log)]


def _given(cases: int | None, most: int) -> int:
    return most if cases is None else cases


PROTOCOLS: Mapping[str, Protocol] = {
    each.name: each
    for each in (
        Protocol(
            "letters", "letter", lambda cases: [letter_tests.first_pairs(test, cases) for test in letter_tests.TESTS],
            (Arm("letter", "letter-map", _letters),),
        ),
        Protocol(
            "antonyms", "antonym",
            lambda cases: antonym_tests.readout_requests("final-only", _given(cases, antonym_tests.SEQUENCES)),
            (Arm("antonym-final", "antonym-map", _antonyms("final-only")),
             Arm("antonym-stepwise", "antonym-map", _antonyms("stepwise"))),
        ),
        Protocol(
            "iterations", "iterations", lambda cases: iteration_tests.requests(_given(cases, iteration_tests.CASES)),
            (Arm("iterations", "iterations-map", _iterations),),
        ),
    )
}  # fmt: skip
"""Every protocol by name."""

SCALES = ("paper", "smol", "small")
"""Which recipes: the paper's; those for a small model that was never looped; or for one that has random weights."""


@dataclass(frozen=True)
class Plan:
    """The recipes of a protocol: perhaps one for a stack that was never looped, then each arm's backbone and map."""

    adapt: Recipe | None
    arms: tuple[tuple[Recipe, Recipe, Measure], ...]
    amount: Amount


class Trained(NamedTuple):
    """A finished stage."""

    recipe: Recipe
    done: Finished


def plan(name: str, scale: str, changes: Iterable[str] = (), amount: Amount = ALL) -> Plan:
    """The plan of a protocol; a change is written "recipe.setting=value".  InputError for what there is not."""
    if name not in PROTOCOLS:
        raise InputError(f"no protocol {name!r}; there are {', '.join(PROTOCOLS)}{nearest(name, PROTOCOLS)}")
    if scale not in SCALES:
        raise InputError(f"no recipes {scale!r}; there are {', '.join(SCALES)}{nearest(scale, SCALES)}")
    protocol = PROTOCOLS[name]
    protocol.check(amount.cases)
    prefix = "" if scale == "paper" else f"{scale}-"
    first = (f"{prefix}{protocol.task}-adapt",) if prefix else ()
    used = (*first, *(prefix + each for arm in protocol.arms for each in (arm.backbone, arm.step)))
    changed: dict[str, list[str]] = {each: [] for each in used}
    for change in changes:
        of, _, setting = change.partition(".")
        if of not in changed:
            raise InputError(f"a change is written RECIPE.name=value, with one of {', '.join(changed)}; not {change!r}")
        changed[of].append(setting)
    recipes = {each: recipe(each, settings) for each, settings in changed.items()}
    return Plan(
        recipes[first[0]] if first else None,
        tuple((recipes[prefix + arm.backbone], recipes[prefix + arm.step], arm.measure) for arm in protocol.arms),
        amount,
    )


def carry_out(
    asked: Plan, folder: Path, out: Path, store: Store, settings: Settings, *,
    name: str | None = None, boundary: Boundary | None = None, sources: Sequence[Source] | None = None,
    log: Log = lambda _: None,
) -> Iterator[Trained | Record]:  # fmt: skip
    """Train the model in `folder`, fit its maps, test them; every stage's outcome as it is there.

    Model folders go into `out`, called by their recipes; maps, checkpoints and records into the store.  Records call
    the model `name`, or as its folder is called.  Raises as `finetune`, `fit` and `load_language`.
    """

    def say(doing: str) -> None:
        if settings.stop():  # what a test has is lost but for its finished records
            raise KeyboardInterrupt
        log(doing)

    width = outline(folder, loops=1, boundary=boundary).width
    for _, step, _ in asked.arms:  # a map that does not fit is refused before anything is trained for it
        new_map(step, width)
    called, start = name or folder.resolve().name, folder
    if asked.adapt is not None:
        start = out / asked.adapt.name
        done = finetune(folder, asked.adapt, start, store, settings, sources=sources, boundary=boundary)
        yield Trained(asked.adapt, done)
        _release()
    for backbone, step, measure in asked.arms:
        trained = out / backbone.name
        ending = boundary if asked.adapt is None else None  # the adapted folder says it itself
        done = finetune(start, backbone, trained, store, settings, sources=sources, boundary=ending)
        yield Trained(backbone, done)
        _release()
        fitted = fit(trained, step, store, settings, sources=sources)
        yield Trained(step, fitted)
        _release()
        subject = load_language(trained, fitted.folder, name=called, boundary=step.boundary, device=settings.device)
        yield from measure(subject, store, asked.amount, say)
        del subject
        _release()


def export(store: Store, results: Store) -> int:
    """Copy all records of a store to another, with the maps they are of and how models were trained; how many records.

    InputError where there is none.
    """
    count = copy_records(store, results)
    for kind in (MAP, TRAINING):
        for artefact in store.every(kind):
            results.adopt(artefact)
    return count


def _release() -> None:
    """Give memory back before the next stage looks at how much there is."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
