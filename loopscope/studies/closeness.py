"""How close a record is to the published protocol: its label, what was changed, what is numerics, which record decides.

Every verdict carries a label: `published` (the paper's protocol at its size), `scaled` (the same on a smaller model) or
`changed`, with the list of what was changed.  Changes are worked out from recipes and records: what a recipe says it
deviates in, how many loops were made, where patches acted, how much of a population was measured, how a language model
and its map were trained.  Numerics (precision, rounding, random streams) are listed apart and change no label.

Where several records of language models could decide a claim, one of all that is asked comes before one of a part, and
then the closest: (a) the same site of the patch, with the paper's wrong loop, (b) as many loops, (c) the same
supervision of backbone and map, (d) the same population, (e) the larger model, (f) the first by name, in which seeds
are numbered.  Outcomes play no part in it, nor does how heads were named, by a search or by hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from loopscope.models.smollm2 import CONVERTED
from loopscope.studies.language.names import loops_in_words, parameters_of, part_of
from loopscope.studies.language.recipes import RECIPES as TUNED
from loopscope.studies.lineage import Lineage, Recipe, Stage
from loopscope.studies.recipes import RECIPES as TRAINING_RECIPES
from loopscope.studies.records import Record
from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE
from loopscope.studies.selection import Role
from loopscope.tasks.populations import population

Label = Literal["published", "scaled", "changed"]
PUBLISHED, SCALED, CHANGED = get_args(Label)

Aspect = Literal["site", "loops", "backbone", "map", "population", "start", "stages", "protocol"]
"""What a change is of: the site of a patch, the number of loops, the supervision of the backbone, the map (its
supervision or family), what was asked, the weights it began with, added stages of training, a recipe's protocol."""

ROUNDED = "weights of the backbone are rounded to bf16, before any map is fitted"


@dataclass(frozen=True)
class Change:
    """One point in which a record differs from the published protocol."""

    aspect: Aspect
    text: str


def label_of(records: Iterable[Record], lineage: Lineage, patches: bool = True) -> Label | None:
    """The protocol label of what several records show together; None of none."""
    used = list(records)
    if not used:
        return None
    if any(changes(each, lineage, patches) for each in used):
        return CHANGED
    small = any(each.experiment in LANGUAGE and parameters_of(each) != LANGUAGE[each.experiment].parameters
                for each in used)  # fmt: skip
    return SCALED if small else PUBLISHED


def changes(record: Record, lineage: Lineage, patches: bool = True) -> list[Change]:
    """What was changed of the published protocol; `patches`: whether what is asked depends on where patches acted."""
    if record.experiment not in LANGUAGE:
        return [*_deviations(record), *(Change("population", each) for each in parts_left(record))]
    found = _site(record) if patches else []
    published = LANGUAGE[record.experiment]
    loops = record.settings.get("loops", record.facts.loops)
    if loops != published.loops:
        found.append(Change("loops", f"{loops} loops (paper: {published.loops})"))
    boundary = record.settings.get("boundary", published.boundary)
    if boundary != published.boundary:
        found.append(Change("protocol", f"what ends a loop is {boundary} (paper: {published.boundary})"))
    found += _backbone(record, lineage)
    found += _map(record, lineage)
    found += _population(record, lineage)
    return found


def numerics(record: Record, lineage: Lineage) -> list[str]:
    """Precision, rounding and random streams that differ from the reference, of weights, maps and measurement."""
    if record.experiment not in LANGUAGE:
        found = [each for recipe in _recipes(record) for each in recipe.numerics]
        products = record.settings.get("products")
        said = [f"measured with products in {products}"] if products else []
        return list(dict.fromkeys([*found, ROUNDED, *said]))
    found = list(dict.fromkeys(each for name in _published(record) for each in TUNED[name].numerics))
    stages, fitted = lineage.of_weights(record.facts.key), lineage.of_map(_map_key(record))
    if stages and stages[-1].recipe.get("saved") == "bf16":
        found.append(ROUNDED)
    if fitted is not None and fitted.get("saved") == "fp16":
        found.append("maps are rounded to fp16")
    if "dtype" in record.settings:
        found.append(f"measured in {record.settings['dtype']}")
    return found


def rank(record: Record, lineage: Lineage, patches: bool = True) -> tuple[int, ...]:
    """A key that puts closer records of one claim first, by protocol alone; seeds and names come after it."""
    of = {change.aspect for change in changes(record, lineage, patches)}
    ours = any(each in record.predictions for each in LANGUAGE[record.experiment].ours)
    others = ours or _other_starts(record, lineage)
    return (
        not is_whole(record), "site" in of, "loops" in of, sum(_taught(record, lineage)), others, -parameters_of(record)
    )  # fmt: skip


# ---- graph walks -----------------------------------------------------------------------------------------------------


def _recipes(record: Record) -> list[Any]:
    """The recipes of a backbone and of the maps that an experiment uses, as its name and facts say."""
    name = record.facts.name.rpartition("-")[0]
    cohort = next((each for each in COHORTS.values() if name in each.recipes), None)
    uses = EXPERIMENTS[record.experiment].uses
    targets = [each for each in record.facts.fits if uses is None or each in uses]
    named = [name, *((cohort.prefix if cohort else "") + target for target in targets)]
    return [TRAINING_RECIPES[each] for each in named if each in TRAINING_RECIPES]


def _deviations(record: Record) -> list[Change]:
    """What recipes deviate in; maps of ours beyond the paper's do not change what its own maps show."""
    name = record.facts.name.rpartition("-")[0]
    return [Change("protocol", each) for each in TRAINING_RECIPES[name].deviations] if name in TRAINING_RECIPES else []


def is_whole(record: Record) -> bool:
    """Whether a record has the whole of what the paper profile measures, rather than a part of it."""
    return not parts_left(record)


def parts_left(record: Record) -> list[str]:
    """In words, what of its populations or settings a record has only a part of; nothing where it is whole.

    Of language models, how much of the test was asked.  No claim rests on what was only looked at more closely on some
    graphs: the insides of calls, the costly switches.
    """
    if record.experiment in LANGUAGE:
        left = part_of(record)
        return [left] if left else []
    if record.experiment not in EXPERIMENTS:
        return []
    if record.raw:
        settings = EXPERIMENTS[record.experiment].settings
        if not record.settings or any(record.settings in settings(role, "paper") for role in get_args(Role)):
            return []
        return [", ".join(_setting(*each) for each in sorted(record.settings.items()))]
    found = []
    for where, answers in record.predictions.items():
        measured = max(each.shape[-1] for each in answers.values()) // record.facts.nodes
        there = len(population(where).rows)
        if measured < there:
            found.append(f"{measured} of {there} graphs")
    return list(dict.fromkeys(found))


def _setting(name: str, value: Any) -> str:
    """A setting in words: 64 queries, cut, no far, near 45-125 by 20."""
    said = name.replace("_", " ")
    match value:
        case True:
            return said
        case None | False:
            return f"no {said}"
        case int() if said.endswith("s"):
            return f"{value} {said}"
        case [first, last, step]:
            return f"{said} {first}-{last} by {step}"
    return f"{said} {value}"


# ---- language models -------------------------------------------------------------------------------------------------


def _published(record: Record) -> tuple[str, str]:
    """The paper's recipes of the backbone and the map of an experiment."""
    arm = LANGUAGE[record.experiment].arm_of(record)
    return arm.backbone, arm.step


def _map_key(record: Record) -> str:
    return str(record.notes.get("map", {}).get("key", ""))


def _site(record: Record) -> list[Change]:
    """The paper patches its heads at the last loop, and its wrong loop is an early one."""
    patched = record.settings.get("patched")
    if patched is None or [*patched] == [record.settings.get("loops", record.facts.loops)]:
        return []
    where = loops_in_words(patched)
    return [Change("site", f"patches in {where} (paper: in the last), so that the wrong loop is the next one")]


def _taught(record: Record, lineage: Lineage) -> tuple[bool, bool]:
    """Whether the backbone, and the map, learned from other loops than the paper's; what is not kept counts as such."""
    backbone, step = (TUNED[name] for name in _published(record))
    stages, fitted = lineage.of_weights(record.facts.key), lineage.of_map(_map_key(record))
    return (
        not stages or stages[-1].recipe["stepwise"] != backbone.stepwise,
        fitted is None or fitted["stepwise"] != step.stepwise,
    )


def _backbone(record: Record, lineage: Lineage) -> list[Change]:
    """The supervision of the backbone, the weights it began with, and stages that the paper has not."""
    stages = lineage.of_weights(record.facts.key)
    if not stages:
        return [Change("backbone", "how the backbone was trained is not kept")]
    found = []
    if _taught(record, lineage)[0]:
        after, paper = _by_steps(stages[-1].recipe["stepwise"])
        found.append(Change("backbone", f"the backbone learned {after} (paper: {paper})"))
    found += _start(record, stages[0])
    found += [Change("stages", _stage(each)) for each in stages[:-1]]
    found += _budget("backbone", stages[-1].recipe, TUNED[_published(record)[0]].to_dict(), _which(record))
    return found


def _which(record: Record) -> str:
    """Of a backbone, the supervision that tells it from the other one that its claims compare it with."""
    supervision = LANGUAGE[record.experiment].arm_of(record).settings.get("supervision")
    return f"{supervision} " if supervision else ""


def _start(record: Record, first: Stage) -> list[Change]:
    """The weights that training began with; by the paper's recipes and at its size, its released ones."""
    published = LANGUAGE[record.experiment]
    if first.recipe["name"] in _published(record) and parameters_of(record) == published.parameters:
        return []
    begun = "a model that was never looped"
    if first.recipe["name"].startswith("small-"):
        begun = "random weights"
    elif first.start in CONVERTED:
        begun = "SmolLM2-135M, never looped and dequantised from 4 bits"
    return [Change("start", f"begun with {begun} (paper: the released {published.published_on})")]


def _stage(stage: Stage) -> str:
    recipe = stage.recipe
    pace = f", up to {recipe['pace']:g} steps a loop" if recipe["pace"] > 1 else ""
    steps = f", step by step{pace}" if recipe["stepwise"] else ""
    texts = "texts full of look-ups" if recipe["text"] == "look-ups" else "questions"
    return f"a stage before the task: {texts}{steps}"


def _budget(aspect: Literal["backbone", "map"], mine: Recipe, theirs: Recipe, which: str = "") -> list[Change]:
    """Other updates, examples, rates or optimisers; several questions to a set of rules; `which` of several it was."""
    found = []
    words = [f"{each['updates']:,} updates of {each['examples']} at {each['rate']:g} with {each['optimiser']}"
            for each in (mine, theirs)]  # fmt: skip
    if words[0] != words[1]:
        found.append(Change(aspect, f"the {which}{aspect} took up to {words[0]} (paper: {words[1]})"))
    if mine["per_text"] != theirs["per_text"]:
        found.append(Change(aspect, f"of the {which}{aspect}'s questions, {mine['per_text']} share a set of rules"))
    return found


def _by_steps(stepwise: bool) -> tuple[str, str]:
    after = ("by its last loop", "by every loop")
    return (after[1], after[0]) if stepwise else after


def _map(record: Record, lineage: Lineage) -> list[Change]:
    """The supervision and the family of the map."""
    fitted = lineage.of_map(_map_key(record))
    if fitted is None:
        return [Change("map", "how the map was fitted is not kept")]
    step = TUNED[_published(record)[1]]
    found = []
    if _taught(record, lineage)[1]:
        after, paper = _by_steps(fitted["stepwise"])
        pace = f", {fitted['pace']:g} steps a loop" if fitted["pace"] > 1 else ""
        grown = f", depths growing from {fitted['grow_from']}" if fitted.get("grow_every") else ""
        found.append(Change("map", f"the map learned {after}{pace}{grown} (paper: {paper})"))
    family = [(each["family"], each["rank"], each["placement"]) for each in (fitted, step.to_dict())]
    if family[0] != family[1]:
        mine, theirs = (", ".join(str(part) for part in each if part is not None) for each in family)
        found.append(Change("map", f"a map of another family, {mine} (paper: {theirs})"))
    return [*found, *_budget("map", fitted, step.to_dict())]


def _other_starts(record: Record, lineage: Lineage) -> bool:
    return any(each.recipe.get("starts") == "wider" for each in lineage.of_weights(record.facts.key))


def _population(record: Record, lineage: Lineage) -> list[Change]:
    """What was asked: less than the paper did, walks in place of pairs, words and starts of our own."""
    found = parts_left(record)
    found += [said for name, said in LANGUAGE[record.experiment].ours.items() if name in record.predictions]
    if _other_starts(record, lineage):
        found.append("half of the training requests have other starts than the published ones")
    found += TUNED[_published(record)[0]].deviations
    return [Change("population", each) for each in found]
