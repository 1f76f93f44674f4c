"""What must never change: how recipes of language models are written, and the questions that they draw.

Keys of artefacts are made of the first, and a run that goes on after an interruption stands on the second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from loopscope.studies.language.recipes import RECIPES, recipe
from loopscope.training.lm.questions import examples, questions, texts
from loopscope.training.lm.recipe import Recipe

CHANGES = {
    "antonym-map": ["form=final-only", "family=dense", "rank=null"],
    "antonym-stepwise": ["deepest=3", "examples=5"],
    "iterations": ["starts=wider", "examples=10"],
    "letter": ["rate=1", "boundary=norm", "gate=0.5", "newline=false"],
    "small-iterations-adapt": ["starts=wider", "pace=2", "per_text=2"],
    "smol-antonym-adapt": ["form=stepwise", "per_text=2", "stepwise=false"],
    "smol-letter-adapt": ["pace=2.5", "grow_every=10", "loops=6"],
    "smol-letter-map": ["loops=4", "pace=2", "grow_from=1", "per_text=8"],
}
"""Some settings of recipes, as `--set` gives them."""

NAMES = [*RECIPES, *(f"{name} changed" for name in CHANGES)]

WRITTEN = {
    "letter": ("31dfef4f3ad2", "f21cedd1a985", "bb200d85914e"),
    "antonym-final": ("4d8d4b0f67e7", "e748fd0c7110", "86872c9792a5"),
    "antonym-stepwise": ("27ad215664d9", "162b950f22dd", "e06b3f9ccc09"),
    "iterations": ("3b030383110f", "56a7b0451055", "876e84457f50"),
    "letter-map": ("376516793808", "07c1dc7c442f", "cfb52daf84b4"),
    "antonym-map": ("17dbcff32e94", "48700d3aa2c9", "423dcc41ab61"),
    "iterations-map": ("304ee455f075", "1f7dd6c85207", "7f8ce850c460"),
    "smol-letter-adapt": ("ffd011a8290b", "63e57bd96f5f", "79aab1be814a"),
    "smol-antonym-adapt": ("4d58e5731e01", "38ede01e7c4c", "86872c9792a5"),
    "smol-iterations-adapt": ("0564054ab71a", "0b8a99fbd66a", "a4bbed57525b"),
    "smol-letter": ("4f7718027b3a", "e35d0dae0303", "bb200d85914e"),
    "smol-antonym-final": ("8e8da2004c9a", "c3f3281699d0", "86872c9792a5"),
    "smol-antonym-stepwise": ("986154070120", "4a1f9ef60d29", "e06b3f9ccc09"),
    "smol-iterations": ("81d6610cf49b", "aad8d7589867", "a4bbed57525b"),
    "smol-letter-map": ("315774158f4a", "d0a44c76ae45", "edc56e05270d"),
    "smol-antonym-map": ("52acabe226e4", "eb470460d9f1", "b96031b9f9b7"),
    "smol-iterations-map": ("23264a10618a", "eaffccbbc93a", "a70c54c1443c"),
    "small-letter-adapt": ("5f41187f8866", "696c5775054b", "79aab1be814a"),
    "small-antonym-adapt": ("0c5551954c6e", "b6a5d1b31a37", "86872c9792a5"),
    "small-iterations-adapt": ("86b05b45fc52", "c3f6768f3756", "a4bbed57525b"),
    "small-letter": ("003b3f2b2823", "611fad66771f", "bb200d85914e"),
    "small-antonym-final": ("4b6158eb13f9", "c3f3281699d0", "86872c9792a5"),
    "small-antonym-stepwise": ("e231abc8d647", "4a1f9ef60d29", "e06b3f9ccc09"),
    "small-iterations": ("eb0f2efde5d1", "aad8d7589867", "a4bbed57525b"),
    "small-letter-map": ("50b9cc317ed0", "3470d4f69ee4", "0accbcb751a3"),
    "small-antonym-map": ("5b9765ea012f", "d7d653bdd79c", "b96031b9f9b7"),
    "small-iterations-map": ("7455d880efd3", "c275cd8020c8", "a70c54c1443c"),
    "antonym-map changed": ("ac17b24b60ef", "1b773ff025d6", "eb23596bcb29"),
    "antonym-stepwise changed": ("49aa45dbb677", "1d68782e46cd", "6977157d0724"),
    "iterations changed": ("484e4004ad36", "f8b99574e16d", "876e84457f50"),
    "letter changed": ("501c05804260", "f21cedd1a985", "bb200d85914e"),
    "small-iterations-adapt changed": ("ec2b38faa384", "028c8eaef34f", "a4bbed57525b"),
    "smol-antonym-adapt changed": ("3c40306e3502", "7bf762b2816a", "99311bffc469"),
    "smol-letter-adapt changed": ("214f42ac04f2", "ab5239b80c02", "7c55c8f19076"),
    "smol-letter-map changed": ("01326b91622d", "39dba23d696c", "6a7c92a403df"),
}  # fmt: skip
"""The first digits of the SHA-256 of: the recipe as JSON, what its updates learn, what its checks ask."""


def given(name: str) -> Recipe:
    """A recipe by its name in the list above."""
    plain = name.removesuffix(" changed")
    return recipe(plain, CHANGES[plain] if plain != name else ())


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def drawn(made: Recipe) -> Iterator[Any]:
    """What updates learn, at the first level, by the schedule, and at the last level."""
    for update, level in ((0, made.first_level), (3, None), (57, None), (57, made.levels)):
        if made.text == "look-ups":
            yield [(each.text, each.loops, each.answers) for each in texts(made, update, level)]
        else:
            asked = examples(made, update, level)
            yield [(each.prompt, each.answer, each.loops, each.depth, each.earlier) for each in asked]


def asked(made: Recipe) -> list[Any]:
    return [(each.prompt, each.loops, each.cell) for each in questions(made)]


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_written_and_draws_as_ever(name: str) -> None:
    made = given(name)
    assert (digest(made.to_dict()), digest([*drawn(made)]), digest(asked(made))) == WRITTEN[name]
