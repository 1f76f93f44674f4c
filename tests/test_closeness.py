"""How close records are to the published protocol: labels and lists follow from recipes, the order from no outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from loopscope.errors import DamagedError
from loopscope.store.store import Store
from loopscope.studies.claims import FAILS, HOLDS, Verdict, decide
from loopscope.studies.closeness import CHANGED, PUBLISHED, changes, label_of, numerics, parts_left, rank
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.recipes import recipe
from loopscope.studies.lineage import Lineage, Stage, lineage
from loopscope.studies.recipes import RECIPES
from loopscope.studies.records import Record, open_results, records
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.training_logs import histories
from loopscope.training.lm.jobs import KIND as MAP
from loopscope.training.lm.jobs import TRAINING

pytestmark = pytest.mark.usefixtures("few_draws")

OURS = {"letter", "antonym", "iterate"}
"""Groups of claims on language models, all of which were measured by a changed protocol."""


@cache
def released() -> tuple[tuple[Record, ...], Lineage]:
    stores = open_results()
    return tuple(record for store in stores for record in records(store)), lineage(stores)


@cache
def ledger() -> dict[str, Verdict]:
    found, trained = released()
    return {each.claim.id: each for each in decide(Evidence(found, (), trained))}


def spoken() -> list[Record]:
    return [each for each in released()[0] if each.experiment in LANGUAGE]


# ---- what is released ------------------------------------------------------------------------------------------------


def test_every_verdict_has_its_label() -> None:
    for name, each in ledger().items():
        if each.estimate is None and not each.backbones:
            continue
        expected = CHANGED if name.partition(".")[0] in OURS else PUBLISHED
        assert (name, each.protocol) == (name, expected)
        assert bool(each.changed) == (expected == CHANGED)
        assert each.numerics


def test_claims_on_patches_are_decided_at_the_papers_site() -> None:
    """The last loop, and of those that patch it the larger model; other records stand beside with their verdicts."""
    found = ledger()
    content = found["letter.content"]
    assert (content.backbones, content.verdict) == (("smollm2-135m",), FAILS)
    assert content.ours == "E 2.0, D 98.8 (4 of 270 heads, loop 8)"
    (everywhere,) = [each for each in content.others if each.backbones == ("smollm2-135m",)]
    assert (everywhere.ours, everywhere.verdict) == ("E 99.2, D 99.6 (4 of 270 heads, loops 2-8)", HOLDS)
    wrong = {each.row.label: each for each in everywhere.controls}["wrong loop"]
    assert (wrong.failed, round(wrong.row.estimate.value * 256), wrong.row.published) == (True, 255, 0.0)
    for name in ("letter.rescue", "letter.damage", "letter.controls", "letter.restore"):
        assert found[name].backbones == ("small-4x256",)
        assert not any("patches in" in each for each in found[name].changed)


def test_published_populations_decide() -> None:
    found = ledger()
    assert found["iterate.continue"].ours.endswith("from trained starts")
    assert found["iterate.strict"].ours.endswith("from held-out starts")
    assert (found["iterate.continue"].verdict, found["iterate.strict"].verdict) == (HOLDS, FAILS)
    assert found["iterate.strict"].claim.kind == "ours"
    assert found["antonym.steer"].backbones == ("smollm2-135m-norm",)


def test_changes_follow_from_how_models_were_trained() -> None:
    trained = released()[1]
    by_name = {(each.facts.name, each.settings.get("supervision")): each for each in spoken()}
    four = [each.text for each in changes(by_name["small-4x256-four-loops", "final-only"], trained)]
    assert four[:5] == [
        "begun with random weights (paper: the released Ouro-2.6B)",
        "a stage before the task: texts full of look-ups, step by step, up to 2 steps a loop",
        "the final-only backbone took up to 1,500 updates of 40 at 0.0003 with adamw "
        "(paper: 500 updates of 8 at 1e-05 with adafactor)",
        "the map learned by every loop, 2 steps a loop (paper: by its last loop)",
        "the map took up to 2,000 updates of 200 at 0.001 with adamw (paper: 500 updates of 16 at 0.0001 with adamw)",
    ]
    smol = by_name["smollm2-135m-norm", "final-only"]
    texts = [each.text for each in changes(smol, trained)]
    assert texts[0] == (
        "begun with SmolLM2-135M, never looped and dequantised from 4 bits (paper: the released Ouro-2.6B)"
    )
    assert not any("the map learned" in each for each in texts)
    assert "weights of the backbone are rounded to bf16, before any map is fitted" in numerics(smol, trained)
    unknown = [each.text for each in changes(smol, Lineage())]
    assert unknown[:2] == ["how the backbone was trained is not kept", "how the map was fitted is not kept"]


def test_the_papers_recipes_at_its_size_change_words_alone() -> None:
    """Ouro, trained and fitted by the recipes of the paper: what is left is the wording of prompts and other text."""
    (walk,) = [each for each in spoken() if each.settings.get("set") == "steering" and each.facts.name == "small-4x256"]
    about = {**walk.notes, "model": {**walk.notes["model"], "parameters": LANGUAGE["letters"].parameters}}
    ouro = replace(walk, notes=about, settings={**walk.settings, "loops": 4, "patched": [4]})
    key = ouro.notes["map"]["key"]
    trained = Lineage(
        {ouro.facts.key: Stage(recipe("letter").to_dict(), "f" * 64, "cuda")}, {key: recipe("letter-map").to_dict()}
    )
    assert {each.aspect for each in changes(ouro, trained)} == {"population"}
    assert [each.text for each in changes(ouro, trained)] == list(recipe("letter").deviations)
    assert [*rank(ouro, trained)][:5] == [False, False, False, 0, False]


def test_no_records_have_no_label() -> None:
    assert label_of([], Lineage()) is None


@pytest.mark.parametrize("of", ["letters", "antonyms", "iterations"])
def test_the_order_of_records_does_not_look_at_outcomes(of: str) -> None:
    trained = released()[1]
    for each in (record for record in spoken() if record.experiment == of):
        blank = {
            where: {name: torch.zeros_like(answers) for name, answers in found.items()}
            for where, found in each.predictions.items()
        }
        assert rank(replace(each, predictions=blank), trained) == rank(each, trained)


def test_released_histories_are_of_the_recipes_that_numerics_are_read_from() -> None:
    for store in open_results():
        for each in histories(store):
            made = each.manifest["config"]["recipe"]
            assert made == json.loads(json.dumps(RECIPES[made["name"]].to_dict())), each.name


def test_a_part_of_a_population_is_a_changed_protocol() -> None:
    whole = next(each for each in released()[0] if (each.experiment, each.facts.name) == ("targets", "d8l6-5"))
    assert (parts_left(whole), label_of([whole], Lineage())) == ([], PUBLISHED)
    few = {where: {name: nodes[..., :640] for name, nodes in found.items()}
           for where, found in whole.predictions.items()}  # fmt: skip
    part = replace(whole, predictions=few)
    assert (parts_left(part), label_of([whole, part], Lineage())) == (["64 of 512 graphs"], CHANGED)


# ---- lineage ---------------------------------------------------------------------------------------------------------


def keep(store: Store, kind: str, name: str, inputs: dict[str, str]) -> None:
    keys = {role: key * 64 for role, key in inputs.items()}
    with store.write(kind, {"recipe": recipe(name).to_dict()}, keys) as draft:
        draft.json("history.json.xz", {})
        if kind == MAP:
            draft.json("adapter_config.json", {"of": name})
            draft.tensors("adapter_model.safetensors", {"b": torch.zeros(1)})


def test_stages_are_found_backwards_from_the_weights(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, TRAINING, "small-letter-adapt", {"weights": "a", "made": "b"})
    keep(store, TRAINING, "small-letter", {"weights": "b", "made": "c"})
    keep(store, MAP, "small-letter-map", {"weights": "c"})
    found = lineage([store])
    assert [each.recipe["name"] for each in found.of_weights("c" * 64)] == ["small-letter-adapt", "small-letter"]
    assert [each.start for each in found.of_weights("c" * 64)] == ["a" * 64, "b" * 64]
    assert found.of_weights("a" * 64) == []
    assert [each["name"] for each in found.maps.values()] == ["small-letter-map"]
    assert found.of_map("unknown") is None


def test_weights_that_lead_back_to_themselves_end() -> None:
    stage = Stage({"name": "small-letter"}, "a", "cpu")
    assert len(Lineage({"a": stage}).of_weights("a")) == 2


def test_a_training_without_its_weights_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    keep(store, TRAINING, "small-letter", {"weights": "a"})
    with pytest.raises(DamagedError, match="expected the weights before and after a training"):
        lineage([store])


def test_a_recipe_without_its_settings_is_damage(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.write(TRAINING, {"recipe": {"name": "small-letter"}}, {"weights": "a" * 64, "made": "b" * 64}) as draft:
        draft.json("history.json.xz", {})
    with pytest.raises(DamagedError, match="expected the recipe of a training"):
        lineage([store])
