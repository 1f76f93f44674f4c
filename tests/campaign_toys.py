"""A campaign of toy size as a graph of jobs: graph walks, parity and relations, trained, fitted and measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from loopscope.jobs.cohort import backbone_keys, map_keys
from loopscope.jobs.job import Graph, Job, Needs
from loopscope.jobs.perform import perform
from loopscope.store.artefacts import BACKBONE, LM_MAP, MAP, RESULT
from loopscope.store.store import Store
from loopscope.studies.measuring import WHAT
from loopscope.studies.records import ABOUT, PIECE, RECORD
from loopscope.training.recipe import BackboneRecipe, MapRecipe, ParityFit
from tests.campaigns_elsewhere import Campaign
from tests.toys import stage_of, toy_map, toy_parity, toy_relation_map, toy_relations, toy_walk
from tests.tuning_tiny import small, tuning_folder

NATIVE = {"rings": "tiny-test", "loops": 4, "layered": 2}
STEERED = {"where": "tiny-test"}


def training(recipe: BackboneRecipe, seeds: list[int], threads: int = 1) -> Job:
    settings = {"recipe": recipe.to_dict(), "seeds": seeds}
    return Job(f"train {recipe.name}", "train", settings, needs=Needs(cpus=threads))


def wide_walk() -> BackboneRecipe:
    """A walker that is wide enough for two threads to share its operations; other numbers of them give other bits."""
    walk = toy_walk(updates=2, check_every=1)
    return replace(walk, name="toy-wide", batch=64, model=replace(walk.model, width=32, mlp=128))


def fitting(recipes: list[MapRecipe], backbone: BackboneRecipe, seed: int, fits: list[int]) -> Job:
    settings = {"recipes": [each.to_dict() for each in recipes], "fits": fits}
    inputs = {BACKBONE: key_of(backbone, seed)}
    names = "+".join(each.name for each in recipes)
    return Job(f"fit {names} on {backbone.name}-{seed}", "fit", settings, inputs, after=(f"train {backbone.name}",))


def key_of(backbone: BackboneRecipe, seed: int) -> str:
    return backbone_keys(backbone, [seed])[f"{backbone.name}-{seed}"]


def measuring(
    experiment: str, backbone: BackboneRecipe, seed: int, settings: dict[str, Any], fit: Job | None = None,
    task: str = "graph-walk",
) -> Job:  # fmt: skip
    name = f"{backbone.name}-{seed}"
    inputs = {BACKBONE: key_of(backbone, seed)}
    if fit is not None:
        keys = map_keys([_map_of(each) for each in fit.settings["recipes"]], inputs[BACKBONE], fit.settings["fits"])
        inputs |= {role.removeprefix("toy-"): key for role, key in keys.items()}
    asked = {
        "experiment": experiment, "backbone": name, "cohort": "toys", "prefix": "toy-", "task": task,
        "settings": settings,
    }  # fmt: skip
    after = (f"train {backbone.name}",) if fit is None else (fit.name,)
    return Job(f"{experiment} on {name}", WHAT, asked, inputs, after=after)


def _map_of(value: dict[str, Any]) -> MapRecipe:
    from loopscope.training.recipe_values import recipe_from

    made = recipe_from(value)
    assert isinstance(made, MapRecipe)
    return made


def toy_parity_map() -> MapRecipe:
    from loopscope.studies.recipes import map_recipe

    made = map_recipe("parity-staged")
    stages = (stage_of(2, 0, "short"),)
    data = ParityFit(((3, 4, 2, 4),))
    return replace(made, name="toy-bits", data=data, batch=4, rank=3, stages=stages, keep="last")


TELLING = (RESULT, ABOUT, "fitted.json", "history.json.xz")
"""Files in which seconds stand beside what was made; the first that an artefact has is compared without them."""


def toy_graph(updates: int = 6) -> Graph:
    """Every task: two walkers with a map, and what they are measured on; parity and relations with a map each.

    `updates` of the walkers: many give whoever harms them time to do so.  A wider one is trained by two threads.
    """
    walk, parity, relations = toy_walk(updates=updates), toy_parity(), toy_relations()
    steps = [fitting([toy_map("one"), toy_map("two")], walk, seed, [1, 2]) for seed in (0, 1)]
    chain = fitting([toy_relation_map()], relations, 0, [1])
    bits = fitting([toy_parity_map()], parity, 0, [1])
    return Graph((
        training(walk, [0, 1]), training(parity, [0]), training(relations, [0]), training(wide_walk(), [0], threads=2),
        *steps, chain, bits,
        *(measuring("trajectories", walk, seed, NATIVE) for seed in (0, 1)),
        *(measuring("targets", walk, seed, STEERED, steps[seed]) for seed in (0, 1)),
    ))  # fmt: skip


def small_graph(updates: int = 60) -> Graph:
    """Two backbones and a map of each."""
    walk = toy_walk(updates=updates)
    return Graph((training(walk, [0, 1]), *(fitting([toy_map()], walk, seed, [1]) for seed in (0, 1))))


def check_two_nodes(campaign: Campaign, tmp_path: Path) -> None:
    """A tiny language model trained by a process on each of two nodes (gloo): as by one process, but for rounding."""
    folder = tuning_folder(tmp_path / "ouro", "ouro")
    recipe = small("letter", "examples=7", "micro=2", "updates=2", "rate=1e-3")

    def job(out: str, nodes: int) -> Job:
        settings = {"folder": str(folder), "recipe": recipe.to_dict(), "out": str(tmp_path / out)}
        return Job(f"train in {nodes}", "lm-finetune", settings, needs=Needs(nodes=nodes))

    assert perform(job("alone", 1), tmp_path / "own").state == "done"
    campaign.file.write_text(json.dumps(Graph((job("both", 2),)).to_json()))
    assert campaign.run() == 0
    alone, both = (load_file(next((tmp_path / out).glob("*.safetensors"))) for out in ("alone", "both"))
    for name, tensor in alone.items():
        torch.testing.assert_close(both[name], tensor, rtol=0, atol=1e-6)
    start = load_file(next(folder.glob("*.safetensors")))
    assert max((start[name] - tensor).abs().max() for name, tensor in alone.items()) > 1e-3
    log = next((campaign.store.root / ".jobs").glob("*/log.txt")).parent
    assert "done" in (log / "outcome.json").read_text()


def undisturbed_in(folder: Path, graph: Graph) -> dict[str, Any]:
    """What a graph makes in this process, one job after the other."""
    store = Store(folder / "undisturbed")
    for job in graph:
        assert perform(job, store.root).state == "done"
    return contents(store)


def contents(store: Store) -> dict[str, Any]:
    """What a campaign has made, by kind and key: all that must not depend on where and in which order it was made.

    Seconds, dates and how many were trained side by side are left out.
    """
    return dict(_contents(store))


def _contents(store: Store) -> Iterator[tuple[str, Any]]:
    for kind in (BACKBONE, MAP, LM_MAP, RECORD, PIECE):
        for each in store.every(kind):
            files = {
                name: hashlib.sha256(each.bytes(name)).hexdigest()
                for name in each.manifest.files
                if name not in TELLING
            }
            told = each.json(next(name for name in TELLING if each.has(name)))
            told = {name: value for name, value in told.items() if name not in ("seconds", "cost", "side_by_side")}
            yield f"{kind}/{each.key}", [files, told]
