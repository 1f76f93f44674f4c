"""Model cards: what a saved map says of itself to people, and to a hub, in README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loopscope.measure.side_by_side import statement
from loopscope.store.manifest import digest

if TYPE_CHECKING:
    from loopscope.training.lm.jobs import Finished
    from loopscope.training.lm.recipe import Recipe
    from loopscope.training.lm.task_results import FittedMap

LIBRARY = "loopscope"

NOT_PEFT = (
    "[Loopscope](https://pypi.org/project/loopscope/) runs it; its files are in PEFT's convention, but PEFT cannot."
)


def card(fitted: FittedMap, command: str = "") -> str:
    """The card of a fitted map: base model, program, command, SHA-256 of its examples, and what was measured."""
    recipe, data = fitted.recipe, fitted.data
    hub = fitted.about.get("hub", {}).get("name")
    rows = [
        f"| {row.label} | `{row.at['program']}` | {row.at.get('steps', 'all')} | {100 * row.estimate.value:.1f} | "
        f"{100 * row.estimate.low:.1f} to {100 * row.estimate.high:.1f} | {row.n:,} |"
        for row in fitted.measured.right().rows
    ]
    weights = fitted.about.get("weights")
    shape = f"{fitted.map.family}, width {fitted.map.width}"
    parts = [
        *_front(hub), f"# A map J for `{recipe.program}`", "",
        f"A token-wise affine map ({shape}) on the states of a frozen looped transformer. It stands where the program "
        f"has `J:{recipe.fitted}`. {NOT_PEFT}", "",
        " ".join(statement(fitted.measured)), "",
        "| | program | steps | right, % | 95 % | n |", "|---|---|---|---|---|---|", *rows, "",
        fitted.measured.right().note, "",
        "## How it was fitted", "",
        *([f"    {command}", ""] if command else []),
        f"- examples: {data.train.name}, {len(data.train):,} for the fit, {len(data.held_out):,} held out, {data.how}",
        f"- SHA-256 of the examples: {data.train.digest} for the fit, {data.held_out.digest} held out",
        *([f"- SHA-256 of the model's weights: {weights}"] if weights else []),
        f"- {fitted.updates:,} updates of {recipe.examples} examples, rate {recipe.rate:g}, answers learned after "
        f"{'the last loop' if recipe.supervision == 'last' else 'every loop from the map on'}",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def recipe_card(recipe: Recipe, done: Finished, about: Mapping[str, Any], command: str = "") -> str:
    """The card of a map that was fitted by a recipe, whose questions are drawn: the last check, by steps.

    `about` is what the saved map says of the model that it was fitted to.
    """
    checks = [row for row in done.history if "accuracy" in row]
    right = (
        "; ".join(f"{cell}: {100 * share:.1f} %" for cell, share in checks[-1]["accuracy"].items()) if checks else ""
    )
    where = {"between": "between", "after-each": "after each of"}[recipe.placement]
    parts = [
        *_front(about.get("hub", {}).get("name")), f"# A map J by the recipe {recipe.name}", "",
        f"A token-wise affine map ({recipe.family}) on the states of a frozen looped language model, {where} "
        f"its {recipe.loops} loops. {NOT_PEFT}", "",
        *([f"Right replies at the last check, by steps ({recipe.checked} each): {right}.", ""] if right else []),
        "## How it was fitted", "",
        *([f"    {command}", ""] if command else []),
        f"- recipe: {recipe.about}; its questions are drawn from seed {recipe.seed}",
        f"- SHA-256 of the recipe: {digest(recipe.to_dict())}",
        f"- SHA-256 of the model's weights: {about.get('weights')}",
        f"- {done.updates:,} updates of {recipe.examples} questions",
    ]  # fmt: skip
    return "\n".join(parts) + "\n"


def _front(hub: str | None) -> list[str]:
    """What a hub reads of a card."""
    front: dict[str, Any] = {"library_name": LIBRARY, "tags": ["loopscope", "looped-transformer", "steering-map"]}
    front |= {"base_model": hub} if hub else {}
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in front.items()), "---", ""]
