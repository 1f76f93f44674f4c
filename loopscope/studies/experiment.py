"""What an experiment is: what it measures, on which cohorts of backbones, with which settings, and what it keeps.

A backbone is a trained small model; a cohort is a group of backbones that differ in their seeds, or in one point of
their training.  Everything here is a value: `runner` carries experiments out, `claims` judges what came out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from loopscope.quantity import QuantityTable
from loopscope.store.store import Store
from loopscope.studies.records import LayoutOf, ModelFacts, Predictions, Record
from loopscope.studies.selection import Role, Selection

Profile = Literal["quick", "paper"]
PROFILES: tuple[Profile, ...] = ("quick", "paper")


@dataclass(frozen=True)
class Cohort:
    """Backbones that are trained and judged together: every recipe with every seed, every map with every fit."""

    name: str
    about: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    maps: tuple[str, ...] = ()
    fits: tuple[int, ...] = (1, 2)
    prefix: str = ""
    task: str = "graph-walk"
    more_seeds: tuple[int, ...] = ()
    """Trained, too, where the rule finds fewer than `MECHANISM` backbones among `seeds`."""
    chosen_maps: tuple[tuple[str, ...], ...] = ()
    """Maps that only the backbones chosen by the rule get, and only for experiments that use them.  Those of one group
    are fitted side by side."""

    @property
    def backbones(self) -> list[str]:
        """The names of its backbones, without `more_seeds`."""
        return [f"{recipe}-{seed}" for seed in self.seeds for recipe in self.recipes]

    @property
    def every(self) -> list[str]:
        """The same with `more_seeds`."""
        return [f"{recipe}-{seed}" for seed in (*self.seeds, *self.more_seeds) for recipe in self.recipes]

    def chosen_for(self, experiment: Experiment) -> list[tuple[str, ...]]:
        """The groups of `chosen_maps` that an experiment names among those it uses."""
        used = [self.prefix + target for target in experiment.uses or ()]
        return [group for group in self.chosen_maps if not set(group).isdisjoint(used)]


class Pieces(NamedTuple):
    """How a long measurement is cut into pieces: the settings of each, and one result from theirs."""

    cut: Callable[[Mapping[str, Any]], list[dict[str, Any]]]
    join: Callable[[Sequence[Predictions]], Predictions]


@dataclass(frozen=True)
class Experiment:
    """One kind of record.

    `settings` gives, for a backbone's role and a profile, the arguments of `measure` besides the model: one mapping
    for each record, none where the experiment is not done on such a backbone.
    """

    name: str
    question: str
    cohorts: tuple[str, ...]
    measure: Callable[..., Predictions]
    settings: Callable[[Role, Profile], list[dict[str, Any]]]
    uses: tuple[str, ...] | None = ()
    """The targets whose maps it uses; None: all that there are."""
    tables: Callable[[Predictions, ModelFacts, bool], Sequence[QuantityTable]] | None = None
    """What follows from one record; the last argument asks for the published numbers.  None: it takes several."""
    together: Callable[[Mapping[str, Record]], Sequence[QuantityTable]] | None = None
    """What follows from all of its records, by backbone; None: each speaks for itself."""
    notes: Callable[[Store, Mapping[str, str], str], dict[str, Any]] | None = None
    """What else to keep of the weights, given their store, the keys that the record rests on by role, and the prefix of
    the maps' recipes."""
    raw: bool = False
    """Whether it keeps counts rather than the node answered by every instance."""
    pieces: Pieces | None = None
    """None: a record is measured in one go."""
    lead: Callable[[Mapping[str, Predictions]], str] | None = None
    """The backbone that counts as the main one, by what was measured on all; None: the mechanism's rule decides."""
    apart: tuple[str, ...] = ()
    """Maps that are fitted by commands of their own: then it is done on backbones that have one of these."""
    layout: LayoutOf | None = None
    """The tensors that its records keep, given what a record says of itself; None: these are not compared."""
    backbones: int | None = None
    """On so many backbones of a cohort, see `Selection.first`; None: on all for which there are settings."""

    def on(self, cohort: Cohort, chosen: Selection) -> list[str]:
        """The backbones of a cohort that it is done on, as far as they are trained, in the order of seeds."""
        if self.backbones is None:
            return cohort.every
        first = chosen.first(self.backbones, cohort.every)
        return [name for name in cohort.every if name in first]


def everywhere(role: Role, profile: Profile) -> list[dict[str, Any]]:
    """Settings of an experiment that is done alike on every backbone, in every profile: one record, all defaults."""
    return [{}]
