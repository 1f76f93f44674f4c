"""Why claims fail: counts of continuation measured again, and experiments that wait for maps of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from loopscope.errors import InputError
from loopscope.store.zoo import open_zoo
from loopscope.studies.experiment import PROFILES
from loopscope.studies.failures import continuing
from loopscope.studies.failures.experiments import EXPERIMENTS, LONG, LONGER, SWITCHING_LONG
from loopscope.studies.graph_walk import switching
from loopscope.studies.graph_walk.continuation import WITHHELD, measure_strict
from loopscope.studies.layouts import layout_of
from loopscope.studies.records import ModelFacts, Record
from loopscope.studies.registry import COHORTS
from loopscope.studies.runner import steps
from loopscope.studies.schema import MisfitError
from loopscope.studies.selection import Selection
from loopscope.studies.trained import TrainedModel, load_trained
from loopscope.tasks.graph_walk import is_ring
from loopscope.tasks.populations import population

pytestmark = pytest.mark.usefixtures("few_draws")

CPU, FEW = torch.device("cpu"), 6


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    """The zoo's eight-node backbone; its published maps stand for those that were fitted longer."""
    found = load_trained(open_zoo(), "n8-d8l8-103", CPU)
    (one, _) = found.maps["continue16"]
    return replace(found, maps={**found.maps, "continue16-twice": [one]})


def test_counts_are_those_of_continuation_on_single_cycles(trained: TrainedModel) -> None:
    found = continuing.measure(trained, FEW)[WITHHELD]
    rings = is_ring(population(WITHHELD).graphs[:FEW])
    assert list(found) == ["continue16-twice right"]
    right = found["continue16-twice right"]
    assert right.shape == (1, continuing.LOOPS, int(rings.sum()))
    again = measure_strict(trained, WITHHELD, continuing.LOOPS, FEW, "continue16")[WITHHELD]
    assert right[0].sum(-1).tolist() == again["continue16-1"][-1].tolist()


def test_what_cannot_be_measured_is_refused(trained: TrainedModel, refused: Callable[..., str]) -> None:
    plain = replace(trained, maps={})
    assert "has none of the maps continue16-twice, continue16-long" in refused(InputError, continuing.measure, plain, 2)
    first = int(is_ring(population(WITHHELD).graphs).nonzero()[0])
    if first:
        assert "is a single cycle" in refused(InputError, continuing.measure, trained, first)


def planted(share: float, cycles: int = 5) -> Record:
    """Right everywhere up to loop 16, and in a share of the starts beyond."""
    right = torch.full((2, continuing.LOOPS, cycles), 8, dtype=torch.uint8)
    right[:, 16:] = round(8 * share)
    facts = ModelFacts("n8-d8l8-100", "0" * 64, 8, 8, 8, 8, {"continue16-long": 2})
    notes = {"curves": [], "selected": "0" * 64}
    return Record(
        "continuation-again", facts, {WITHHELD: {"continue16-long right": right}}, {"graphs": FEW}, {}, notes, raw=True
    )


def test_rows_are_means_over_the_loops_of_a_range() -> None:
    record = planted(0.25)
    (table,) = continuing.tables(record.predictions, record.facts)
    inside, beyond = table.rows
    assert [(row.at["first"], row.at["last"]) for row in table.rows] == [(9, 16), (17, 32)]
    assert (inside.estimate.value, inside.n) == (1.0, 5 * 8 * 8)
    assert (beyond.estimate.value, beyond.n) == (0.25, 5 * 8 * 16)
    assert {row.at["target"] for row in table.rows} == {"continue16-long"}


def test_records_that_do_not_fit_are_refused() -> None:
    (experiment,) = (each for each in EXPERIMENTS if each.name == "continuation-again")
    layout = layout_of(experiment)
    assert layout is not None
    good = planted(0.5, continuing.cycles_of(FEW))
    (kept,) = layout(good)[WITHHELD].values()
    kept.check("right", good.predictions[WITHHELD]["continue16-long right"])
    for wrong in (
        replace(good, facts=replace(good.facts, fits={"continue16": 2})), replace(good, notes={"curves": []}),
        replace(good, settings={"graphs": FEW, "loops": 3}),
    ):  # fmt: skip
        with pytest.raises(MisfitError):
            layout(wrong)


def test_they_wait_for_maps_of_their_own() -> None:
    """The zoo has none of these, so nothing is measured on it."""
    zoo, cohorts = open_zoo(), list(COHORTS.values())
    for profile in PROFILES:
        assert steps(zoo, cohorts, EXPERIMENTS, Selection(("d8l6-5", "d8l6-8", "d8l6-14")), profile) == []


def test_the_longer_map_stands_for_the_same_hops() -> None:
    (long,) = (each for each in EXPERIMENTS if each.name == SWITCHING_LONG)
    assert (long.uses, long.apart) == (LONG, LONG[1:])
    assert switching.HOPS["two-long"] == switching.HOPS["two"]
    assert [each["targets"] for each in long.settings("mechanism", "paper")] == [list(LONG)]
    assert long.settings("other", "paper") == []
    assert set(LONGER["pool-longer"]) == set(next(e for e in EXPERIMENTS if e.name == "lasting-longer").uses or ())
