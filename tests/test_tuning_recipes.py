"""Recipes of language models: the paper's numbers, and what can be changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from loopscope.errors import InputError
from loopscope.studies.language.recipes import RECIPES, recipe
from loopscope.training.lm.recipe import changed


def test_numbers_of_the_paper() -> None:
    letter, fitted = recipe("letter"), recipe("letter-map")
    assert letter.schedule.rate(200) == pytest.approx(7.75e-6)
    assert (letter.updates, letter.horizon, letter.optimiser, letter.examples, letter.micro) == (
        200, 500, "adafactor", 8, 2,
    )  # fmt: skip
    assert (fitted.rate, fitted.examples, fitted.deepest, fitted.placement) == (1e-4, 16, 8, "between")
    antonym = recipe("antonym-map")
    assert (antonym.family, antonym.rank, antonym.placement, antonym.form) == (
        "residual-low-rank", 128, "after-each", "stepwise",
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
        ("starts=wider", "wider starts are there for iterations, not for letter"),
        ("horizon=20", "must come after 50 updates"),
        ("beta2=1", "beta2 is from 0 to below 1"),
        ("warmup=-1", "warmup cannot be negative"),
        ("task=antonym", "no setting 'task'"),
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
    made = changed(recipe("letter"), ["rate=1", "boundary=norm", "gate=0.5", "rank=null", "newline=false"])
    assert (made.rate, made.boundary, made.gate, made.rank, made.newline) == (1.0, "norm", 0.5, None, False)
    with pytest.raises(InputError, match="nearest: letter"):
        recipe("lettre")
    with pytest.raises(InputError, match="five tasks"):
        recipe("iterations", ["examples=4"])
