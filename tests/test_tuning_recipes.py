"""Recipes of language models: the paper's numbers, and what can be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from loopscope.errors import InputError
from loopscope.studies.language.recipes import RECIPES, recipe
from loopscope.tasks import Antonyms, Iterations, Letters
from loopscope.training.lm.recipe import Recipe, changed


def test_numbers_of_the_paper() -> None:
    letter, fitted = recipe("letter"), recipe("letter-map")
    assert letter.schedule.rate(200) == pytest.approx(7.75e-6)
    assert (letter.updates, letter.horizon, letter.optimiser, letter.examples, letter.micro) == (
        200, 500, "adafactor", 8, 2,
    )  # fmt: skip
    assert (fitted.rate, fitted.examples, fitted.deepest, fitted.placement) == (1e-4, 16, 8, "between")
    antonym = recipe("antonym-map")
    assert (antonym.family, antonym.rank, antonym.placement, antonym.task) == (
        "residual-low-rank", 128, "after-each", Antonyms(form="stepwise"),
    )  # fmt: skip
    qwen = recipe("iterations-map")
    assert (qwen.loops, qwen.rate, qwen.averaging, qwen.updates) == (8, 1e-6, "sequence", 12_000)
    assert qwen.schedule.rate(12_000) == 1e-6
    for each in RECIPES.values():
        assert each.about
        assert replace(each) == each
        assert "deviations" not in each.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rate", "written name=value"),
        ("raet=1", "no setting 'raet'"),
        ("rate=fast", "rate=fast is none"),
        ("rate=-1", "rate and clip must be positive"),
        ("rate=NaN", "rate and clip must be positive"),
        ("examples=0", "examples must be at least 1"),
        ("examples=true", "examples=true is none"),
        ("examples=2.5", "examples=2.5 is none"),
        ("share=1", "from 0 to below 1"),
        ("optimiser=adma", "(nearest: adamw)"),
        ("boundary=nrom", "boundary=nrom is none"),
        ("starts=wider", "starts is a setting of iterations, not of letters"),
        ("form=stepwise", "form is a setting of antonyms, not of letters"),
        ("form=stepwize", "form is one of final-only, stepwise, not 'stepwize' (nearest: stepwise)"),
        ("horizon=20", "must come after 50 updates"),
        ("beta2=1", "beta2 is from 0 to below 1"),
        ("warmup=-1", "warmup must be at least 0, not -1 (nearest: 0)"),
        ("task=antonym", "no setting 'task'"),
        ("about=this", "no setting 'about'"),
        ("grow_at=0.9", "looked at every grow_every updates"),
        ("emphasis=10", "and 1 unless tokens of look-up texts are averaged"),
        ("emphasis=-1", "emphasis is positive"),
        ("grow_from=2", "depth grows from 1 to"),
        ("pace=2", "a pace of 2 steps is for stepwise learning of maps, or of look-ups that grow"),
        ("pace=0", "from 1 to 4 steps a loop at most, not to 0.0"),
        ("pace=1.2", "pace grows by halves"),
        ("saved=fp16", "a map is in fp16, a model in bf16"),
        ("pace=5", "from 1 to 4 steps a loop at most"),
    ],
)
def test_what_is_no_change(change: str, message: str, refused: Callable[..., str]) -> None:
    assert message in refused(InputError, changed, recipe("letter"), [change])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loops=3", "stepwise learning takes a loop per step, not 4 steps in 3 loops"),
        ("general=instead", "stepwise learning of look-ups takes general text beside them"),
        ("stepwise=1", "stepwise=1 is none of the values"),
        ("pace=4.5", "from 1 to 4 steps a loop at most"),
    ],
)
def test_what_is_no_change_of_stepwise_look_ups(change: str, message: str, refused: Callable[..., str]) -> None:
    assert message in refused(InputError, changed, recipe("smol-letter-adapt"), [change])


def test_changes() -> None:
    wider = changed(recipe("iterations"), ["starts=wider", "examples=10", "form=final-only"])
    assert (wider.task, wider.examples, wider.about) == (Iterations(starts="wider"), 10, recipe("iterations").about)
    assert recipe("letter", ["starts=published"]) == recipe("letter")
    with pytest.raises(InputError, match="every question of antonyms stands alone: per_text is 1, not 2"):
        recipe("antonym-map", ["per_text=2"])
    assert recipe("letter-map", ["per_text=10"]).task == Letters()
    made = changed(recipe("letter"), ["rate=1", "boundary=norm", "gate=0.5", "rank=null", "newline=false"])
    assert (made.rate, made.boundary, made.gate, made.rank, made.newline) == (1.0, "norm", 0.5, None, False)
    with pytest.raises(InputError, match="nearest: letter"):
        recipe("lettre")
    with pytest.raises(InputError, match="five tasks"):
        recipe("iterations", ["examples=4"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_read_as_it_was_written(name: str) -> None:
    made = RECIPES[name]
    read = Recipe.from_dict(made.to_dict())
    assert replace(read, about=made.about, deviations=made.deviations, numerics=made.numerics) == made
    assert made.to_dict().keys() == recipe("letter").to_dict().keys()  # settings of other tasks are there, too


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "lettre"}, "there is no task 'lettre'; there are letter, antonym, iterations (nearest: letter)"),
        ({"task": None}, "there is no task None"),
        ({"raet": 1}, "no setting 'raet'"),
        ({"starts": "wider"}, "starts is a setting of iterations, not of letters"),
    ],
)
def test_what_no_recipe_was_written_as(change: dict[str, object], message: str, refused: Callable[..., str]) -> None:
    assert message in refused(InputError, Recipe.from_dict, recipe("letter").to_dict() | change)
