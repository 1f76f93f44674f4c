"""Composition: strings and their targets, a plain loop over the tiny backbone, planted walkers, numbers of the graphs.

The planted walker is perfect: J_one moves it one node, J_two two, a call without a map none.  What each control scores
then follows from the lengths of the graphs' cycles alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.quantity import Quantity, QuantityTable, every, of_tables, one
from loopscope.store.zoo import open_zoo
from loopscope.studies.graph_walk import composition
from loopscope.studies.graph_walk.composition import (
    CALLS,
    CONDITIONS,
    CONTROLS,
    COPY,
    EVERY,
    FIRST,
    INDEPENDENT,
    NONE,
    ORIGINAL,
    READ_BEFORE,
    SO_FAR,
    TWO_CALLS,
    WITHOUT,
    Answers,
    above_copying,
    at_call,
    beginnings,
    hops,
    landed,
    long_strings,
    measure_long,
    measure_two,
    name_of,
    program,
    spelled,
    tables_long,
    tables_two,
)
from loopscope.studies.records import ModelFacts, pack
from loopscope.studies.trained import TrainedModel, Walks, instances, load_trained, walks
from tests.planted.composition import CPU, perfect, planted

TINY = ModelFacts("tiny", "key", loops=2, depth=2, nodes=6, heads=2, fits={"one": 2, "two": 2})
MAIN = ModelFacts("main", "key", loops=6, depth=8, nodes=10, heads=4, fits={"one": 2, "two": 3})
FEW = 12


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    """The tiny backbone; its maps that stay serve as J_two, since it has none."""
    tiny = load_trained(open_zoo(), "tiny-0", CPU, prefix="tiny-")
    return replace(tiny, maps={"one": tiny.maps["one"], "two": tiny.maps["stay"]})


def values(rows: list[Quantity]) -> list[float]:
    return [row.estimate.value for row in rows]


def rows_of(tables: list[QuantityTable]) -> dict[tuple[str, str], Quantity]:
    """Rows by title, without the population, and name; no two may share both."""
    found = {(table.title.split(" (s")[0].split(" (i")[0], row.label): row for table in tables for row in table.rows}
    assert len(found) == sum(len(table.rows) for table in tables)
    return found


# ---- strings ---------------------------------------------------------------------------------------------------------


def test_strings() -> None:
    assert len(TWO_CALLS) == 9
    kinds = long_strings()
    assert {kind: len(set(strings)) for kind, strings in kinds.items()} == {"one": 1, "two": 1, "mixed": 32}
    assert kinds["mixed"][:3] == ("11121122", "21112111", "22222221")
    assert all(set(string) == {"1", "2"} and len(string) == CALLS for string in kinds["mixed"])
    assert beginnings(["121", "12", "2"]) == ["1", "2", "12", "121"]
    assert [hops(string) for string in ("0", "12", "1221")] == [0, 3, 6]
    assert (spelled("102"), name_of("102", 2), name_of("00", 2)) == ("one-none-two", "102-2", "00")
    controls = {name: control("2112") for name, control in CONTROLS.items()}
    assert controls == {EVERY: "2112", WITHOUT: "2110", FIRST: "2000", NONE: "0000"}


def test_programs() -> None:
    assert str(program("102", 6, fit=2)) == "F6 J:one-2 F2 J:two-2 F"
    assert str(program("12", 6, before=True)) == "F6 J:one-1 F J:two-1"
    with pytest.raises(InputError, match="no letter '3' in string '13': letters are 0, 1, 2"):
        program("13", 6)


# ---- measuring -------------------------------------------------------------------------------------------------------


def plain(trained: TrainedModel, string: str, fit: int, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The answers after the last call of a string and before it, by a loop over its letters."""
    steps = {"1": trained.maps["one"][fit - 1], "2": trained.maps["two"][fit - 1]}
    with torch.no_grad():
        h = trained.model.embed(tokens)
        for _ in range(trained.loops):
            h = trained.model.call(h)
        for letter in string:
            mapped = steps[letter](h) if letter in steps else h
            h = trained.model.call(mapped)
        after, before = (trained.model.read(state)[:, -1].argmax(-1) for state in (h, mapped))
    return after, before


def test_two_calls_are_those_of_a_plain_loop(trained: TrainedModel) -> None:
    found = measure_two(trained, "tiny-test")["tiny-test"]
    assert set(found) == {"00"} | {f"{string}-{fit}" for string in TWO_CALLS if string != "00" for fit in (1, 2)}
    tokens = walks("tiny-test", trained).tokens[: FEW * 6]
    for string in TWO_CALLS:
        for fit in (1, 2):
            after, _ = plain(trained, string, fit, tokens)
            assert torch.equal(found[name_of(string, fit)][: FEW * 6].long(), after)
    assert all(len(nodes) == 432 for nodes in found.values())


def test_long_strings_are_those_of_a_plain_loop_and_fit_the_record(trained: TrainedModel) -> None:
    found = measure_long(trained, "tiny-test", graphs=FEW)["tiny-test"]
    tokens = walks("tiny-test", trained).tokens[: FEW * 6]
    for string in ("1", "21", "12111112"):
        for fit in (1, 2):
            for control in CONTROLS.values():
                after, _ = plain(trained, control(string), fit, tokens)
                assert torch.equal(found[name_of(control(string), fit)].long(), after)
            _, before = plain(trained, string, fit, tokens)
            assert torch.equal(found[f"{string}-{fit} before F"].long(), before)
    # What 512 graphs of ten nodes would take: packed, less than 3 MB.
    assert len(found) == 756
    assert sum(pack(nodes).numel() for nodes in found.values()) * (5120 / (FEW * 6)) < 3e6
    # The first map does what it was fitted for.
    answers = Answers.of({"tiny-test": found}, ModelFacts.of(trained), "tiny-test")
    assert bool(answers.right("1").all())


def test_what_cannot_be_measured(trained: TrainedModel) -> None:
    for graphs, near in ((0, 1), (73, 72)):
        with pytest.raises(InputError, match=rf"cannot take {graphs} of 72 graphs \(nearest: {near}\)"):
            measure_long(trained, "tiny-test", graphs)
    with pytest.raises(InputError, match="tiny-0 has no maps 'two'; there are one"):
        measure_two(replace(trained, maps={"one": trained.maps["one"]}), "tiny-test")


# ---- analysis --------------------------------------------------------------------------------------------------------


def returned(at: Walks, steps: Callable[[str], int], strings: tuple[str, ...], call: int) -> float:
    """How often a walk of so many steps ends where it began, over strings and the instances that count."""
    cycle = torch.stack([at.ahead(k) == at.current for k in range(1, at.graphs.shape[1] + 1)]).int().argmax(0) + 1
    back = torch.stack([steps(string[:call]) % cycle == 0 for string in strings])
    return float(back[:, at.kept].double().mean())


def curves(answers: Answers, kind: str) -> dict[str, list[Quantity]]:
    """Accuracy at calls 1 to 8 by condition."""
    return {each: [at_call(answers, kind, each, call) for call in range(1, 1 + CALLS)] for each in CONDITIONS}


@pytest.mark.parametrize("kind", ["one", "two", "mixed"])
def test_a_perfect_walker_scores_what_cycles_say(kind: str) -> None:
    answers = Answers.of(planted("tiny-test", TINY, 72), TINY, "tiny-test")
    found = curves(answers, kind)
    strings, at = long_strings()[kind], answers.at
    assert 0 < int(at.kept.sum()) < 432
    assert values(found[EVERY]) == values(found[SO_FAR]) == [1] * CALLS
    # Walks of one or two steps never return: only cycles of five or six nodes count.
    assert values(found[WITHOUT]) == values(found[READ_BEFORE]) == [0] * CALLS
    calls = range(1, 1 + CALLS)
    first = [returned(at, lambda string: hops(string[1:]), strings, call) for call in calls]
    copied = [returned(at, hops, strings, call) for call in calls]
    assert values(found[FIRST]) == pytest.approx(first)
    assert values(found[NONE]) == values(found[COPY]) == pytest.approx(copied)
    assert max(copied) > 0


def test_fits_are_averaged_and_one_mistake_ends_the_prefix() -> None:
    """The second fit fails at call 2 alone."""

    def walker(string: str, fit: int, at: Walks) -> Tensor:
        return at.ahead(hops(string) + 1) if fit == 2 and len(string) == 2 else perfect(string, fit, at)

    answers = Answers.of(planted("tiny-test", TINY, FEW, walker), TINY, "tiny-test")
    found = curves(answers, "one")
    assert values(found[EVERY]) == [1, 0.5, 1, 1, 1, 1, 1, 1]
    assert values(found[SO_FAR]) == [1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert {row.n for rows in found.values() for row in rows} == {int(answers.at.kept.sum())}
    assert found[EVERY][0].estimate.n == FEW


def test_two_calls_of_a_walker_that_depends_on_order() -> None:
    """One-two is right on all graphs, two-one on the even ones; a call without a map walks on by one node."""

    def walker(string: str, fit: int, at: Walks) -> Tensor:
        walked = at.ahead(hops(string) + string.count("0"))
        return at.current.where(at.clusters % 2 == 1, walked) if string == "21" else walked

    found = planted(ORIGINAL, MAIN, 16, walker)
    tables = tables_two(found, MAIN, paper=True)
    rows = rows_of(tables)
    at = instances(ORIGINAL, 8, CPU, "five")
    odd = float((at.clusters % 2 == 1)[:160][at.kept[:160]].double().mean())
    nine = {name: row.estimate.value for (title, name), row in rows.items() if title == "Two calls"}
    assert nine == pytest.approx(
        {"none-none": 0, "none-one": 0, "none-two": 0, "one-none": 0, "two-none": 0}
        | {"one-one": 1, "one-two": 1, "two-one": 1 - odd, "two-two": 1}
    )
    second = "What the second map adds"
    assert rows[second, "one-none, asked for one-one"].estimate.value == 1
    assert rows[second, "one-none, asked for one-two"].estimate.value == 0
    assert rows[second, "one-one, gain by the second map"].estimate.value == 0
    assert rows[second, "one-two, gain by the second map"].estimate.value == 1
    order = rows["Order", "one-two minus two-one"]
    assert order.estimate.value == pytest.approx(odd)
    assert order.estimate.low > 0
    # From f(u) each map goes its way, and no map goes one node.
    reached = {name for (title, name), row in rows.items() if title.endswith("J_one(h))") and row.estimate.value == 1}
    assert reached == {"none: f^2(u)", "one: f^2(u)", "two: f^3(u)"}
    assert rows["Answers from F(J_two(h))", "one: other"].estimate.value == pytest.approx(odd)
    assert rows["Answers from F(J_two(h))", "one: f^3(u)"].estimate.value == pytest.approx(1 - odd)
    after = "Which node is answered after two calls"
    ends = {name: row.estimate.value for (title, name), row in rows.items() if title == after}
    assert len(ends) == 9 * 6
    assert {name for name, share in ends.items() if share == 1} == {
        "none-none: f^2(u)", "none-one: f^2(u)", "none-two: f^3(u)", "one-none: f^2(u)", "one-one: f^2(u)",
        "one-two: f^3(u)", "two-none: f^3(u)", "two-two: f^4(u)",
    }  # fmt: skip
    assert (ends["two-one: u"], ends["two-one: f^3(u)"]) == pytest.approx((odd, 1 - odd))
    assert sum(ends.values()) == pytest.approx(9)
    published = {key: row.published for key, row in rows.items() if row.published is not None and key[0] != after}
    beside = {
        name: row.published for (title, name), row in rows.items() if row.published is not None and title == after
    }
    assert beside == {
        "one-none: f^2(u)": 0.483, "one-none: f^3(u)": 0.0134, "one-one: f^2(u)": 0.9364, "one-two: f^3(u)": 0.6528,
        "two-none: f^3(u)": 0.6377, "two-none: f^4(u)": 0.1627, "two-one: f^3(u)": 0.745, "two-two: f^4(u)": 0.6812,
    }  # fmt: skip
    assert published == {
        ("Two calls", "one-one"): 0.9364,
        ("Two calls", "one-two"): 0.6528,
        ("Two calls", "two-one"): 0.745,
        ("Two calls", "two-two"): 0.6812,
        (second, "one-none, asked for one-one"): 0.483,
    }
    assert all(row.published is None for table in tables_two(found, MAIN) for row in table.rows)


def test_answers_that_lead_nowhere_are_others() -> None:
    """Five steps on is none of the five nodes where the cycle is longer than that, and u where it has five nodes."""

    def walker(string: str, fit: int, at: Walks) -> Tensor:
        return at.ahead(5)

    rows = landed(Answers.of(planted(ORIGINAL, MAIN, 16, walker), MAIN, ORIGINAL), ORIGINAL)
    at = instances(ORIGINAL, 8, CPU, "five")
    back = float((at.ahead(5) == at.current)[:160][at.kept[:160]].double().mean())
    assert 0 < back < 1
    for string in TWO_CALLS:
        shares = {row.at["answer"]: row.estimate.value for row in every(rows, "compose.landed", string=string)}
        assert shares == pytest.approx({"u": back, "f(u)": 0, "f^2(u)": 0, "f^3(u)": 0, "f^4(u)": 0, "other": 1 - back})


def test_order_is_a_paired_difference() -> None:
    """Both orders are right on the same graphs: their difference is 0 in every draw, though neither is sure."""

    def walker(string: str, fit: int, at: Walks) -> Tensor:
        return at.current.where(at.clusters % 2 == 1, perfect(string, fit, at))

    found = planted(ORIGINAL, MAIN, 16, walker)
    made = list(of_tables(tables_two(found, MAIN, paper=True)))
    order = one(made, "compose.order").estimate
    assert (order.value, order.low, order.high) == (0, 0, 0)
    alone, gain = (one(made, id, string="11") for id in ("compose.two", "compose.second_gain"))
    assert alone.estimate.low < alone.estimate.value < alone.estimate.high
    assert gain.estimate == alone.estimate
    assert alone.published == 0.9364


def test_decay_of_a_walker_that_stops_after_three_calls() -> None:
    """From call 4 on it answers u, so it scores what copying u does."""

    def walker(string: str, fit: int, at: Walks) -> Tensor:
        return perfect(string, fit, at) if len(string) < 4 else at.current

    found = planted(INDEPENDENT, MAIN, 16, walker)
    assert at_call(Answers.of(found, MAIN, INDEPENDENT), "one", EVERY, 4).estimate.value == 0
    above = above_copying(found, MAIN)
    assert (above.estimate.value, above.estimate.low, above.estimate.high) == pytest.approx((0, 0, 0), abs=1e-12)
    above = above_copying(planted(INDEPENDENT, MAIN, 16), MAIN)
    assert above.estimate.value > 0.5


def test_published_numbers_of_long_strings_stand_beside_their_rows() -> None:
    rows = rows_of(tables_long(planted(INDEPENDENT, MAIN, 16), MAIN, paper=True))
    published = {key: row.published for key, row in rows.items() if row.published is not None}
    assert len(published) == 2 + 2 + 6 * 3 + 4
    assert published["Eight calls, mixed", "current map left out, call 2"] == 0.3293
    assert published["Eight calls, one", "every map, call 3"] == 0.563
    original = rows_of(tables_long(planted(ORIGINAL, MAIN, 16), MAIN, paper=True))
    assert len([row for row in original.values() if row.published is not None]) == 3 * CALLS + 4 + 1
    assert original["Eight calls, mixed", "every map, call 8"].published == 0.1011


@pytest.mark.parametrize(("where", "n"), [(ORIGINAL, 3200), (INDEPENDENT, 3175)])
def test_instances_that_count(where: str, n: int) -> None:
    answers = Answers.of({where: {"00": torch.zeros(5120, dtype=torch.uint8)}}, MAIN, where)
    assert int(answers.at.kept.sum()) == n


def test_copying_u_scores_what_the_reference_found() -> None:
    """On the 3,175 instances of the independent set; 0.00 / 14.25 / 17.08 % at calls 2, 4, 8 of the mixed strings."""
    answers = Answers.of({INDEPENDENT: {"00": torch.zeros(5120, dtype=torch.uint8)}}, MAIN, INDEPENDENT)

    def copied(kind: str, call: int) -> float:
        hits = answers.stacked(COPY, [string[:call] for string in long_strings()[kind]])
        return 100 * float(hits[..., answers.at.kept].double().mean())

    assert [round(copied("mixed", call), 2) for call in (2, 4, 8)] == [0.0, 14.25, 17.08]
    assert [round(copied("one", call), 1) for call in range(1, 9)] == [0, 0, 0, 0, 14.6, 16.6, 15.9, 16.9]
    assert [round(copied("two", call), 1) for call in range(1, 9)] == [0, 0, 16.6, 16.9, 34.2, 16.6, 15.9, 16.9]
    published = composition.PAPER_LONG[INDEPENDENT]["mixed", COPY]
    assert {call: round(copied("mixed", call) / 100, 4) for call in published} == published
