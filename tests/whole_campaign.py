"""The whole campaign at toy size: every experiment on backbones and every protocol on language models, as jobs.

python -m tests.whole_campaign local:2 ray slurm:tests     runs it on each, and compares with one process; `ray` starts
                                                           a cluster itself

Models are a few numbers wide and learn for two updates.  What is asked of each is what the paper's campaign asks, of
fewer graphs, strings and pairs.  As no toy walks in ones and twos, the rule takes the first three.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from loopscope.jobs.driver import run
from loopscope.jobs.engine import Engine
from loopscope.jobs.job import Graph, Needs
from loopscope.store.store import Store
from loopscope.studies import campaign, recipes
from loopscope.studies.campaign import Campaign
from loopscope.studies.experiment import Cohort, Experiment, Profile
from loopscope.studies.language.experiment import Amount
from loopscope.studies.language.jobs import protocol_graph
from loopscope.studies.language.protocols import plan
from loopscope.studies.recipes import RECIPES
from loopscope.studies.records import RECORD
from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE
from loopscope.studies.selection import MECHANISM, Role, Selection
from loopscope.training.cohort.hops import BLOCKS, HOPS
from loopscope.training.recipe import BackboneRecipe, LastingFit, MapRecipe, ParityData, ParityFit, RelationFit, WalkFit
from tests.campaign_toys import contents
from tests.jobs_here import Here
from tests.ray_cluster import running
from tests.shortened import changes
from tests.shortened import recipes as recipes_of
from tests.toys import stage_of
from tests.tuning_tiny import text_files, tuning_folder

APART = (("two-long",), ("pool-longer-one", "pool-longer-two"), tuple(BLOCKS[0].target(hops) for hops in HOPS))
"""Maps that are fitted by commands of their own; here with the others."""

FEWER: dict[str, dict[str, Any]] = {
    "trajectories": {"rings": "smoke", "loops": 8, "layered": 2},
    **{name: {"where": "smoke"} for name in ("targets", "two-calls", "selecting", "matched")},
    **{name: {"where": "smoke", "graphs": 2} for name in ("eight-calls", "independent")},
    **{name: {"where": "smoke-2501", "graphs": 2} for name in ("switching", "switching-long", "switching-next")},
    **{name: {"where": "smoke", "calls": 4, "graphs": 2, "strings": 1} for name in ("lasting", "lasting-longer")},
    **{name: {"graphs": 8} for name in ("crossing", "continuation", "continuation-again")},
    "parity": {"near": [101, 121, 20], "strings": 2, "far": None, "check": None, "heat": 3, "heat_strings": 2},
    "parity-fp32": {"strings": [[11, 0, 2], [12, 0, 2]]},
    "chains": {"queries": 16},
}
"""What is asked of a toy, instead of what is asked of a model of the paper."""


def toy(recipe: BackboneRecipe | MapRecipe) -> BackboneRecipe | MapRecipe:
    """A recipe of the same name that is done in a blink."""
    every = 2 if recipe.keep == "best" and isinstance(recipe.data, RelationFit) else 0  # their trail is measured, too
    stages = tuple(stage_of(2, every, each.name) for each in recipe.stages)
    if isinstance(recipe, BackboneRecipe):
        model = replace(recipe.model, width=16, heads=4, mlp=32)
        data: Any = ParityData(4, every=2) if isinstance(recipe.data, ParityData) else _briefly_scored(recipe.data)
        return replace(recipe, model=model, data=data, batch=8, stages=stages, keep="last")
    data = _briefly_scored(recipe.data)
    if isinstance(data, ParityFit):
        data = ParityFit(((3, 4, 2, 4),))
    elif isinstance(data, RelationFit):
        data, stages = RelationFit((4, 6), queries=16), stages[:1] * 2
    elif isinstance(data, LastingFit):
        data = replace(data, fresh=tuple(min(each, 4) for each in data.fresh), scored=2)
    rank, keep = recipe.rank and 3, recipe.keep if every else "last"
    return replace(recipe, data=data, batch=4, rank=rank, stages=stages, keep=keep, precision="fp32")


def _briefly_scored(data: Any) -> Any:
    """The same data, with fewer graphs to choose a checkpoint by, or fewer calls where there are no such graphs."""
    if getattr(data, "selection", "") == "eight-selection":
        return replace(data, calls=2) if isinstance(data, WalkFit) else data
    fewer = [each for each in ("selection", "pool") if getattr(data, each, None)]
    return replace(data, **dict.fromkeys(fewer, "smoke"))


def cohorts() -> list[Cohort]:
    """Every cohort, with a few seeds and one fit of each map."""
    changed: dict[str, dict[str, Any]] = {
        "mechanism": {"seeds": (3, 4), "more_seeds": (), "chosen_maps": (*COHORTS["mechanism"].chosen_maps, *APART)},
        "matched": {"seeds": (0,)}, "walkers": {"seeds": (0,)}, "parity": {"seeds": (0, 1)},
        "eight": {"seeds": (100,), "maps": ("continue16", "continue16-fp32")},
    }  # fmt: skip
    return [replace(each, fits=(1,), **changed.get(name, {})) for name, each in COHORTS.items()]


def smaller(experiment: Experiment) -> Experiment:
    """The same experiment, asking less of the same backbones."""

    def settings(role: Role, profile: Profile) -> list[dict[str, Any]]:
        return [{**asked, **FEWER[experiment.name]} for asked in experiment.settings(role, profile)][:1]

    return replace(experiment, settings=settings)


def graph_of(store: Store, folder: Path) -> Graph:
    """Its jobs; models and texts of the protocols on language models are written to a folder."""
    whole = Campaign(cohorts(), [*campaign.EXPERIMENTS.values()], store, Needs()).graph()
    text_files(folder)
    model = tuning_folder(folder / "model")
    for name in LANGUAGE:
        named = [f"{each.name}.{change}" for each in recipes_of(plan(name, "smol")) for change in changes(each)]
        asked = plan(name, "smol", named, Amount(2, 32))
        whole |= protocol_graph(asked, model, folder / "trained", Needs(), text=sorted(folder.glob("*.txt")))
    return whole


def done_on(on: str | Engine, folder: Path) -> dict[str, Any]:
    """Run it to its end, in a store in a folder, and give what it made; AssertionError where something failed."""
    store = Store(folder / "store")
    asked = {name: smaller(each) for name, each in EXPERIMENTS.items()}
    with (
        patch.object(recipes, "RECIPES", {name: toy(each) for name, each in RECIPES.items()}),
        patch.object(campaign, "EXPERIMENTS", asked),
        patch.object(campaign, "selection", first_three),
    ):
        report = run(graph_of(store, folder), store, on)
    assert report.failures == [], report.failures
    return contents(store) | trained(folder)


def first_three(records: object, cohort: Cohort) -> Selection:
    """In the place of the rule: no toy walks in ones and twos."""
    return Selection(tuple(cohort.backbones[:MECHANISM]))


def trained(folder: Path) -> dict[str, Any]:
    """The weights of the language models, by recipe."""
    found = sorted((folder / "trained").glob("*/*.safetensors"))
    return {f"{each.parent.name}/{each.name}": hashlib.sha256(each.read_bytes()).hexdigest() for each in found}


def experiments_in(store: Store) -> set[str]:
    """The experiments of which a store has records."""
    return {each.manifest.config["experiment"] for each in store.every(RECORD)}


def engines(names: list[str]) -> Iterator[str]:
    """These engines; `ray` is a cluster of its own, as long as it is asked for."""
    for on in names:
        if on == "ray":
            with running() as cluster:
                yield f"ray:{cluster.address}"
        else:
            yield on


def main(names: list[str]) -> None:
    """Run it in this process and on these engines; say how they compare."""
    with tempfile.TemporaryDirectory() as place:
        expected: dict[str, Any] = {}
        for number, on in enumerate(("one process", *engines(names))):
            folder, started = Path(place) / str(number), time.monotonic()
            folder.mkdir()
            found = done_on(on if number else Here(), folder)
            expected = expected or found
            asked = experiments_in(Store(folder / "store"))
            assert asked == {*EXPERIMENTS, *LANGUAGE}, {*EXPERIMENTS, *LANGUAGE} ^ asked
            equal = "equal in every hash" if found == expected else "NOT EQUAL"
            seconds = time.monotonic() - started
            print(f"{on}: {len(asked)} experiments, {len(found)} artefacts, {seconds:.0f} s: {equal}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
