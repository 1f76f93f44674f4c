"""How long jobs of a campaign take, by what was noted when the paper's were done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from loopscope.store.artefacts import BACKBONE, MAP
from loopscope.studies.records import ABOUT, RECORD, open_results
from loopscope.studies.training_logs import histories


@dataclass(frozen=True)
class Times:
    """Minutes of backbones and of maps by name, each its share of what was trained side by side; of records."""

    backbones: Mapping[str, float] = field(default_factory=dict)
    maps: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    slow: frozenset[str] = frozenset()
    """The experiments whose times were noted on a CPU alone; of all others, those on a GPU count."""

    def training(self, recipe: str, seeds: Sequence[int]) -> float | None:
        """Backbones of one recipe, trained side by side."""
        return _total([_known(self.backbones, f"{recipe}-{seed}", f"{recipe}-") for seed in seeds])

    def fitting(self, maps: Sequence[str], fits: Sequence[int], backbone: str) -> float | None:
        """Maps of one backbone, fitted side by side."""
        names = [f"{each}-{fit}" for each in maps for fit in fits]
        return _total([_known(self.maps, f"{name}@{backbone}", f"{name}@") for name in names])

    def measuring(self, experiment: str, backbone: str, settings: Mapping[str, Any]) -> float | None:
        """One record; by others of the same experiment where there is none of this backbone."""
        alike = {key: each for key, each in self.measured.items() if key[0] == experiment}
        for chosen in (
            [each for key, each in alike.items() if key[1:] == (backbone, repr(sorted(settings)))],
            [each for key, each in alike.items() if key[1] == backbone],
            [*alike.values()],
        ):
            if chosen:
                return fmean(chosen)
        return None


def recorded_times() -> Times:
    """Those of the records and training histories that come with a checkout; none where there is no checkout."""
    trained: dict[str, dict[str, float]] = {BACKBONE: {}, MAP: {}}
    measured: dict[bool, dict[tuple[str, str, str], float]] = {True: {}, False: {}}
    for store in open_results():
        for each in histories(store):
            seconds, beside = each.result.get("seconds"), each.result.get("side_by_side", 1)
            if isinstance(seconds, int | float):
                trained[each.kind][each.name] = seconds / beside / 60
        for artefact in store.every(RECORD):  # without its answers, which take longer to read than all the rest
            config, cost = artefact.manifest.config, artefact.json(ABOUT)["cost"]
            if "seconds" in cost:
                asked = repr(sorted(config["settings"]))
                slow = str(cost.get("device", "CPU")).startswith("CPU")
                measured[slow][config["experiment"], config["subject"], asked] = cost["seconds"] / 60
    fast = {experiment for experiment, _, _ in measured[False]}
    left = {key: each for key, each in measured[True].items() if key[0] not in fast}
    return Times(trained[BACKBONE], trained[MAP], measured[False] | left, frozenset(key[0] for key in left))


def _known(times: Mapping[str, float], name: str, alike: str) -> float | None:
    """A time by name, or the mean of those whose names begin alike."""
    if name in times:
        return times[name]
    others = [each for key, each in times.items() if key.startswith(alike)]
    return fmean(others) if others else None


def _total(times: Sequence[float | None]) -> float | None:
    known = [each for each in times if each is not None]
    return sum(known) if len(known) == len(times) else None
