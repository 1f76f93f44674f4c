"""The paper's protocols on language models, from a model folder to records: train, fit a map, test.

Every stage is looked up first, so an interrupted protocol goes on where it stopped, and a second run takes no time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from loopscope.errors import InputError, nearest
from loopscope.log import Log, silent
from loopscope.models.folders import outline
from loopscope.models.hub import called
from loopscope.models.passes import Boundary
from loopscope.store.store import Store
from loopscope.studies.language.experiment import ALL, Amount, Arm, LanguageExperiment
from loopscope.studies.language.recipes import recipe
from loopscope.studies.language.scales import SCALES
from loopscope.studies.language.steps import LanguageStep
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.runner import carry_out
from loopscope.tasks.general_text import Source
from loopscope.training.lm.jobs import Finished, Settings, finetune, fit, new_map
from loopscope.training.lm.recipe import Recipe


@dataclass(frozen=True)
class ProtocolPlan:
    """The recipes of a protocol: perhaps one for a stack that was never looped, then each arm's backbone and map."""

    experiment: LanguageExperiment
    adapt: Recipe | None
    arms: tuple[tuple[Recipe, Recipe, Arm], ...]
    amount: Amount


class Trained(NamedTuple):
    """A finished stage."""

    recipe: Recipe
    done: Finished


def plan(name: str, scale: str, changes: Iterable[str] = (), amount: Amount = ALL) -> ProtocolPlan:
    """The plan of a protocol; a change is written "recipe.setting=value".  InputError for what there is not."""
    if name not in LANGUAGE:
        raise InputError(f"no protocol {name!r}; there are {', '.join(LANGUAGE)}{nearest(name, LANGUAGE)}")
    if scale not in SCALES:
        raise InputError(f"no recipes {scale!r}; there are {', '.join(SCALES)}{nearest(scale, SCALES)}")
    experiment = LANGUAGE[name]
    experiment.check(amount)
    prefix = "" if scale == "paper" else f"{scale}-"
    first = (f"{prefix}{experiment.task}-adapt",) if prefix else ()
    used = (*first, *(prefix + each for arm in experiment.arms for each in (arm.backbone, arm.step)))
    changed: dict[str, list[str]] = {each: [] for each in used}
    for change in changes:
        of, _, setting = change.partition(".")
        if of not in changed:
            raise InputError(f"a change is written RECIPE.name=value, with one of {', '.join(changed)}; not {change!r}")
        changed[of].append(setting)
    recipes = {each: recipe(each, settings) for each, settings in changed.items()}
    return ProtocolPlan(
        experiment,
        recipes[first[0]] if first else None,
        tuple((recipes[prefix + arm.backbone], recipes[prefix + arm.step], arm) for arm in experiment.arms),
        amount,
    )


def train_and_test(
    asked: ProtocolPlan, folder: Path, out: Path, store: Store, settings: Settings, *,
    name: str | None = None, boundary: Boundary | None = None, sources: Sequence[Source] | None = None,
    log: Log = silent,
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
    model, start = name or called(folder), folder
    if asked.adapt is not None:
        start = out / asked.adapt.name
        done = finetune(folder, asked.adapt, start, store, settings, sources=sources, boundary=boundary)
        yield Trained(asked.adapt, done)
        _release()
    for backbone, step, arm in asked.arms:
        written = out / backbone.name
        ending = boundary if asked.adapt is None else None  # the adapted folder says it itself
        done = finetune(start, backbone, written, store, settings, sources=sources, boundary=ending)
        yield Trained(backbone, done)
        _release()
        fitted = fit(written, step, store, settings, sources=sources)
        yield Trained(step, fitted)
        _release()
        test = LanguageStep(asked.experiment, arm, asked.amount, model, written, fitted.folder, step.boundary)
        yield from carry_out([test], store, store, settings.device, say)
        _release()


def _release() -> None:
    """Give memory back before the next stage looks at how much there is."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
