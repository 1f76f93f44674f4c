"""The published recipes of language models, shortened until a test can run them."""

from __future__ import annotations

from loopscope.studies.language.protocols import ProtocolPlan, plan
from loopscope.training.lm.recipe import Recipe

SHORT = ("updates=2", "examples=5", "micro=5", "checked=1", "rate=0.01")


def recipes(asked: ProtocolPlan) -> list[Recipe]:
    """All recipes of a plan, in order."""
    first = [] if asked.adapt is None else [asked.adapt]
    return [*first, *(each for backbone, step, _ in asked.arms for each in (backbone, step))]


def changes(recipe: Recipe) -> list[str]:
    """What makes a recipe short."""
    grown = ["grow_every=1"] if recipe.grow_every else []
    return [*SHORT, *grown, *(["rank=4"] if recipe.rank else [])]


def shortened(protocol: str, scale: str) -> list[str]:
    """Options that make a protocol short."""
    named = {each.name: each for each in recipes(plan(protocol, scale))}
    return [part for name, each in named.items() for change in changes(each) for part in ("--set", f"{name}.{change}")]
