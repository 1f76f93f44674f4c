"""Scores of stored backbones and maps against a plain loop over the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from loopscope.store.artefacts import load_backbone, load_fit
from loopscope.store.store import Store
from loopscope.studies.graph_walk.scores import score_walks
from loopscope.studies.recipes import backbone_recipe, map_recipe
from loopscope.tasks.graph_walk import GraphWalk, advance, all_starts
from loopscope.tasks.populations import population
from loopscope.training.cohort.jobs import Settings, fit, train

CPU = Settings(torch.device("cpu"))


def test_scores_are_those_of_the_plain_model(tmp_path: Path) -> None:
    recipe = backbone_recipe("tiny")
    recipe = replace(recipe, stages=(replace(recipe.stages[0], updates=3, check_every=3),), batch=4)
    maps = [map_recipe(name) for name in ("tiny-stay", "tiny-one")]
    maps = [replace(each, stages=(replace(each.stages[0], updates=3, check_every=3),), batch=4) for each in maps]
    store = Store(tmp_path)
    (trained,) = train(recipe, [0], store, CPU)
    backbone = store.open("backbone", trained.key)
    fitted = fit(maps, backbone, [1], store, CPU)
    scores = {score.name: score for score in score_walks(store, torch.device("cpu"))}
    assert set(scores) == {"tiny-0", "tiny-stay-1@tiny-0", "tiny-one-1@tiny-0"}

    graphs, starts = all_starts(population("tiny-test").graphs)
    model = load_backbone(backbone)
    h = model.embed(GraphWalk(6).tokens(graphs, starts, 2))
    for _ in range(model.config.loops):
        h = model.call(h)
    found = {"tiny-0": (h, 2)}
    for done, steps in zip(fitted, (2, 3), strict=True):
        found[done.name] = (model.call(load_fit(store.open("map", done.key))(h)), steps)
    for name, (state, steps) in found.items():
        with torch.no_grad():
            right = model.read(state)[:, -1].argmax(-1) == advance(graphs, starts, steps)
        assert scores[name].accuracy == right.double().mean().item()
        assert scores[name].low <= scores[name].accuracy <= scores[name].high
        assert (scores[name].n, scores[name].graphs, scores[name].population) == (432, 72, "tiny-test")
