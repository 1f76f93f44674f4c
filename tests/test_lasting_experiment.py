"""Control that lasts: counts against a plain loop over the tiny backbone, planted walkers, what follows from graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.maps import DiagonalLowRank
from loopscope.quantity import QuantityTable, every, of_tables
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk import lasting
from loopscope.studies.graph_walk.composition import INDEPENDENT, PAPER_LONG, long_strings
from loopscope.studies.graph_walk.lasting import (
    STRINGS,
    Counted,
    eigenvalues,
    limits,
    measure,
    reach,
    spectrum,
    tables,
)
from loopscope.studies.records import ModelFacts
from loopscope.studies.trained import TrainedModel, load_trained, walks
from loopscope.tasks.graph_walk import advance, all_starts, walk
from loopscope.tasks.populations import population
from tests.planted.lasting import always, planted, until
from tests.toys import walked

CPU = torch.device("cpu")
TINY = "tiny-test"
FACTS = ModelFacts("tiny", "key", loops=2, depth=2, nodes=6, heads=2, fits={"one": 2, "two": 2})
MAIN = ModelFacts("main", "key", loops=6, depth=8, nodes=10, heads=4, fits={"one": 2, "two": 2})


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    """The tiny backbone; its maps that stay serve as J_two, and one family has a map for one hop alone."""
    tiny = load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")
    one, stay = tiny.maps["one"], tiny.maps["stay"]
    return replace(
        tiny, maps={"one": one, "two": stay, "pool-one": one[1:], "strings-one": one, "strings-two": stay[:1]}
    )


# ---- measuring -------------------------------------------------------------------------------------------------------


def plain(
    trained: TrainedModel, string: str, maps: dict[str, DiagonalLowRank], tokens: Tensor
) -> tuple[Tensor, Tensor]:
    """Nodes answered [calls, n] and states [1 + calls, n, T, d], by a loop over the letters."""
    with torch.no_grad():
        h = trained.model.embed(tokens)
        for _ in range(trained.loops):
            h = trained.model.call(h)
        states, answers = [h], []
        for letter in string:
            h = trained.model.call(maps[letter](h))
            states.append(h)
            answers.append(trained.model.read(h[:, -1]).argmax(-1))
    return torch.stack(answers), torch.stack(states)


def test_counts_are_those_of_a_plain_loop(trained: TrainedModel) -> None:
    graphs, calls = 5, 9
    found = measure(trained, TINY, calls=calls, graphs=graphs, strings=3)[TINY]
    families = {name.split(" ")[0] for name in found} - {"mixed"}
    assert families == {"published", "pool", "strings"}
    assert not [name for name in found if name.startswith(("pool two", "pool mixed"))]
    at = walks(TINY, trained, "five")
    tokens, kept = at.tokens[: graphs * 6], at.kept[: graphs * 6]
    assert 0 < int(kept.sum()) < graphs * 6
    mixed = [(string * 2)[:calls] for string in long_strings()["mixed"][:3]]
    assert found[STRINGS].tolist() == [[int(letter) for letter in string] for string in mixed]
    for kind, strings in {"one": ["1" * calls], "two": ["2" * calls], "mixed": mixed}.items():
        right, so_far = torch.zeros(2, calls, graphs * 6), torch.zeros(2, calls, graphs * 6)
        for fit in range(2):
            maps = {"1": trained.maps["one"][fit], "2": trained.maps["two"][fit]}
            for string in strings:
                answers, _ = plain(trained, string, maps, tokens)
                hops = [sum(map(int, string[: call + 1])) for call in range(calls)]
                hit = torch.stack([answers[call] == at.ahead(hops[call])[: graphs * 6] for call in range(calls)]) & kept
                right[fit] += hit
                so_far[fit] += torch.stack([hit[: call + 1].all(0) for call in range(calls)])
        assert 0 < right.sum() < right.numel() * len(strings)
        for name, counted in (("right", right), ("so far", so_far)):
            whole = found[f"published {kind} {name}"]
            assert whole.dtype == torch.int32
            assert whole.tolist() == counted.sum(-1).tolist()
            by_graph = counted.sum(0).view(calls, graphs, 6).sum(-1)[[0, 1, 2, 3, 5, 7]]
            assert found[f"published {kind} {name} by graph"].dtype == torch.int16
            assert found[f"published {kind} {name} by graph"].tolist() == by_graph.tolist()
    # One fit of two maps is left where a partner is missing.
    assert found["strings one right"].shape == (2, calls)
    assert found["strings mixed right"].shape == (1, calls)
    assert torch.equal(found["strings mixed right"], found["published mixed right"][:1])


def test_limits_are_those_of_the_states(trained: TrainedModel) -> None:
    calls = 4
    found = measure(trained, TINY, calls=calls, graphs=3, strings=1)
    counted = Counted.of(found, FACTS, TINY)
    tokens = walks(TINY, trained).tokens[: 3 * 6 : 6]
    told = []
    for step in trained.maps["one"]:
        _, states = plain(trained, "1" * calls, {"1": step}, tokens)
        graph, start = states[:, :, :19], states[0, :, :19]
        answer = states[:, :, -1].norm(dim=-1).mean(1)
        moved = ((graph - start).norm(dim=-1) / start.norm(dim=-1)).mean((1, 2))
        told.append(torch.stack([answer, graph.norm(dim=-1).mean((1, 2)), moved]))
    wanted = torch.stack(told).mean(0)
    mine = limits(counted, "published", "one")
    torch.testing.assert_close(torch.tensor([mine.answer, mine.graph, mine.drift]), wanted, rtol=1e-4, atol=1e-5)
    assert mine.drift[0] == 0.0


def test_the_spectrum_of_planted_maps(trained: TrainedModel) -> None:
    """A diagonal of 0.5, a rotation by A B in two dimensions of size 2, an eigenvalue of 3."""
    step = DiagonalLowRank(64, 2, seed=0)
    with torch.no_grad():
        step.D.fill_(0.5)
        step.D[0] = -3.0
        step.A.zero_()
        step.A[1, 0] = step.A[2, 1] = 1.0
        step.B[0, 2], step.B[1, 1] = 2.0, -2.0
        step.B[0, 1], step.B[1, 2] = -0.5, -0.5
    found = measure(replace(trained, maps={"one": [step]}), TINY, calls=2, graphs=2)
    told = spectrum(Counted.of(found, FACTS, TINY), "published", "one")
    assert (told.radius, told.above_one, told.median) == pytest.approx((3.0, 3.0, 0.5))
    sizes = found[TINY]["published one spectrum"].norm(dim=-1)[0].tolist()
    assert sizes == pytest.approx([3.0, 2.0, 2.0, *[0.5] * 61])
    assert eigenvalues(Counted.of(found, FACTS, TINY), "published", "one") == pytest.approx(sizes)


def test_what_cannot_be_measured(trained: TrainedModel) -> None:
    with pytest.raises(InputError, match=r"cannot take 73 of 72 graphs of tiny-test \(nearest: 72\)"):
        measure(trained, TINY, graphs=73)
    with pytest.raises(InputError, match=r"cannot run 0 calls: .* \(nearest: 1\)"):
        measure(trained, TINY, calls=0)
    with pytest.raises(InputError, match=r"cannot run 33 strings: .* \(nearest: 32\)"):
        measure(trained, TINY, strings=33)
    with pytest.raises(InputError, match=r"tiny-0 has none of the maps one, .* strings-two; it has stay"):
        measure(replace(trained, maps={"stay": trained.maps["one"]}), TINY, graphs=2)


# ---- analysis of planted counts --------------------------------------------------------------------------------------


def every_other_call_on_half(call: int, graph: Tensor) -> Tensor:
    """Right on even graphs; on odd ones at odd calls only."""
    return (graph % 2 == 0) | (call % 2 == 1)


def rows_of(made: list[QuantityTable]) -> dict[tuple[str, str], float]:
    return {(table.title, row.label): row.estimate.value for table in made for row in table.rows}


def test_planted_walkers() -> None:
    found = planted(MAIN, INDEPENDENT, 40, {"published": until(3), "rollout": always, "pool": every_other_call_on_half})
    counted = Counted.of(found, MAIN)
    assert counted.kept == int(population(INDEPENDENT).mask("five")[:400].sum())
    for kind in ("one", "two", "mixed"):
        assert counted.curve("published", kind) == pytest.approx([1.0] * 3 + [0.0] * 61)
        assert counted.curve("rollout", kind) == pytest.approx([1.0] * 64)
        assert [reach(counted, name, kind) for name in ("published", "rollout", "pool")] == [3, 64, 1]
    kept = population(INDEPENDENT).mask("five")[:400].view(40, 10).sum(1)
    even = float(kept[::2].sum() / kept.sum())
    assert reach(counted, "pool", "one", level=0.9 * even) == 64
    assert counted.curve("pool", "mixed")[:3] == pytest.approx([1.0, even, 1.0])
    assert counted.curve("pool", "mixed", "so far")[:3] == pytest.approx([1.0, even, even])
    row = counted.row("pool", "one", 2)
    assert row.estimate.value == pytest.approx(even)
    assert row.estimate.low < even < row.estimate.high
    assert (row.n, row.estimate.n, row.estimate.unit) == (counted.kept, 40, "graph")
    assert counted.cost_row("pool", "one", 2).estimate.value == pytest.approx(even - 1)

    made = rows_of(tables(found, MAIN))
    assert made[f"64 calls, rollout maps, mixed ({INDEPENDENT})", "all calls so far right, call 64"] == 1.0
    assert made[f"64 calls, published maps, two ({INDEPENDENT})", "every map, call 4"] == 0.0
    costs = every(of_tables(tables(found, MAIN)), "lasting.cost")
    assert {(row.label, row.at["family"], row.at["kind"], row.estimate.value) for row in costs} == {
        (f"{family}, {kind}, minus published", family, kind, 0.0)
        for family in ("rollout", "pool")
        for kind in ("one", "two")
    }


def test_families_have_one_order_whatever_that_of_the_counts() -> None:
    """A store gives tensors back in an order of its own."""
    found = planted(MAIN, INDEPENDENT, 4, {"strings": always, "mine": always, "published": always, "pool": always})
    turned = dict(reversed(found[INDEPENDENT].items()))
    for each in (found, {INDEPENDENT: turned}):
        families = ("published", "pool", "strings", "mine")
        assert Counted.of(each, MAIN).measured == [(name, kind) for name in families for kind in lasting.KINDS]


def test_published_numbers_stand_beside_published_maps_only() -> None:
    found = planted(MAIN, INDEPENDENT, 8, {"published": always, "pool": always})
    for paper in (True, False):
        beside = {
            (table.title, row.label): row.published
            for table in tables(found, MAIN, paper)
            for row in table.rows
            if row.published
        }
        wanted = {
            (f"64 calls, published maps, {kind} ({INDEPENDENT})", f"every map, call {call}"): value
            for kind in ("one", "two", "mixed")
            for call, value in PAPER_LONG[INDEPENDENT][kind, "every map"].items()
        }
        assert beside == (wanted if paper else {})


def test_a_shorter_run_shows_in_its_tables() -> None:
    found = planted(FACTS, TINY, 6, {"published": always}, calls=10, strings=2)
    made = tables(found, FACTS)
    assert {table.title.split(",")[0] for table in made} == {"10 calls"}
    assert [row.label for row in made[-1].rows] == [f"copy u, call {call}" for call in (1, 2, 3, 4, 6, 8)]


def test_copy_u_follows_from_the_graphs() -> None:
    """By enumeration: u is right again where the string has led around the cycle; the first calls are published."""
    found = planted(MAIN, INDEPENDENT, 512, {"published": always}, strings=32)
    counted = Counted.of(found, MAIN)
    assert counted.kept == 3175
    graphs, starts = all_starts(population(INDEPENDENT).graphs)
    u, kept = advance(graphs, starts, 8), population(INDEPENDENT).mask("five")
    path = walk(graphs, u, 128)
    for kind, hops in (("one", 1), ("two", 2)):
        for call in (1, 8, 64):
            again = (path[:, hops * call] == u)[kept].double().mean()
            assert counted.copy_row(kind, call).estimate.value == pytest.approx(float(again))
    for kind in ("one", "mixed"):
        assert [counted.copy_curve(kind)[call - 1] for call in (1, 8, 64)] == pytest.approx(
            [counted.copy_row(kind, call).estimate.value for call in (1, 8, 64)]
        )
    published = PAPER_LONG[INDEPENDENT]["mixed", "copy u"]
    assert {call: round(counted.copy_row("mixed", call).estimate.value, 4) for call in published} == published
    # A single graph, by hand: the string 2, 1 leads around a cycle of three.
    assert walked([1, 2, 0], 0, 3) == 0


def test_records_stay_small() -> None:
    found = planted(MAIN, INDEPENDENT, 512, dict.fromkeys(lasting.FAMILIES, always), strings=32)[INDEPENDENT]
    spectra = len(lasting.FAMILIES) * 2 * 2 * 256 * 2 * 4
    assert sum(each.numel() * each.element_size() for each in found.values()) + spectra < 400_000
