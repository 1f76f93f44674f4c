"""The three letter tests on a model whose heads are planted, so that every row is known; identities on random ones."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense
from loopscope.measure.heads import Heads
from loopscope.measure.replies import asked
from loopscope.measure.searching import MAP_NAME
from loopscope.studies.letters.tests import (
    BASE,
    CONTENT,
    LAYER,
    OTHER,
    REFERENCE,
    RESTORATION,
    SOURCE,
    STEERING,
    TESTS,
    Chosen,
    Measured,
    answer_tokens,
    conditions,
    in_order,
    measure,
    question_tokens,
    rows,
)
from loopscope.tasks.letters import NAMES
from loopscope.tasks.letters.pairs import pairs
from tests.planted.letters import FIRST_NAME, LATE, PlantedWalker, Words, raising
from tests.stack_tiny import CONFIGS, stack_from_config

COUNT = 12
CHOSEN = Chosen.of(Heads.parse(f"{LATE}.1,3"), PlantedWalker(), [4])


@cache
def measured(test: str, chosen: Chosen | None = CHOSEN, **settings: int) -> Measured:
    return measure(PlantedWalker(), Words(), raising(), test, chosen, **{"count": COUNT, **settings})


def truth(test: str, which: str) -> Tensor:
    return torch.tensor([NAMES.index(getattr(pair, which)) for pair in pairs(test)[:COUNT]], dtype=torch.uint8)


def after(test: str, transfers: int, count: int = COUNT) -> Tensor:
    """Who holds the letter so many transfers after the base's start."""
    letters = [pair.base for pair in pairs(test)[:count]]
    return torch.tensor([NAMES.index(each.taker(each.start, transfers)) for each in letters], dtype=torch.uint8)


def test_steering_rides_on_the_planted_patterns() -> None:
    found = measured(STEERING)
    stays, right = after(STEERING, 2), after(STEERING, 8)  # without J, two transfers in loop 1 and no more
    for name in ("unsteered", "values", "comparison", "complement", "self-pattern", "self-output"):
        assert torch.equal(found.first[name], stays), name
    for name in ("steered", "rescue", "outputs", "late rescue", "comparison damage", "complement damage"):
        assert torch.equal(found.first[name], right), name
    assert torch.equal(found.first["damage"], after(STEERING, 7))
    assert torch.equal(found.first["unrelated"], truth(STEERING, "E"))
    assert torch.equal(found.first["wrong loop"], after(STEERING, 4))  # the late transfer of loop 2
    assert found.errors == {"self-pattern": 0.0, "self-output": 0.0}


def test_the_steering_test_says_whom_every_loop_names() -> None:
    """The planted walker makes two transfers a loop, of which the late one rides on patterns; without J one loop's."""
    found = measured(STEERING)
    for name, transfers in (
        ("unsteered", (2, 2, 2, 2)), ("steered", (2, 4, 6, 8)), ("damage", (2, 4, 6, 7)), ("rescue", (2, 2, 2, 8)),
    ):  # fmt: skip
        expected = torch.stack([after(STEERING, each) for each in transfers], 1)
        assert torch.equal(found.by_loop[name], expected), name
    assert {name: each[:, -1].tolist() for name, each in found.by_loop.items()} == {
        name: each.tolist() for name, each in found.first.items()
    }
    assert not measured(CONTENT).by_loop


def test_patterns_reroute_and_outputs_transfer() -> None:
    found = measured(CONTENT)
    B, D, E = (truth(CONTENT, which) for which in "BDE")
    for name in (BASE, "self-pattern", "self-output", "comparison pattern", "comparison output"):
        assert torch.equal(found.first[name], B), name
    for name, expected in ((SOURCE, D), (REFERENCE, E), ("pattern", E), ("output", D)):
        assert torch.equal(found.first[name], expected), name
    taken = []  # values: who the source's rules send the base's letter to at the last transfer
    for pair in pairs(CONTENT)[:COUNT]:
        taken.append(NAMES.index(pair.source.taker(pair.base.taker(pair.base.start, 7))))
    assert found.first["values"].tolist() == taken


def test_selected_outputs_repair_what_other_queries_break() -> None:
    found = measured(RESTORATION)
    B, E = truth(RESTORATION, "B"), truth(RESTORATION, "E")
    for name in ("clean", "selected", f"layer {LATE}", "all"):
        assert torch.equal(found.first[name], B), name
    for name in (REFERENCE, "replaced", "comparison"):
        assert torch.equal(found.first[name], E), name
    assert found.errors == {"all": 0.0}


@pytest.mark.parametrize("test", TESTS)
def test_whole_names_agree_with_first_tokens_and_batches_do_not_matter(test: str) -> None:
    found = measured(test)
    assert found.whole
    for name, whole in found.whole.items():
        assert torch.equal(whole, found.first[name])
    alone = measured(test, batch=2, count=3)
    assert {name: each[:3].tolist() for name, each in found.first.items()} == {
        name: each.tolist() for name, each in alone.first.items()
    }


@pytest.mark.parametrize("test", TESTS)
def test_without_heads_nothing_is_patched(test: str) -> None:
    made = conditions(test, 4, None)
    assert all(row.program == row.program.skeleton for row in made.values())
    found = measured(test, None, count=4)
    assert found.first.keys() == made.keys()


@pytest.mark.parametrize("test", TESTS)
def test_rows_have_an_order(test: str) -> None:
    """That of `conditions`, whatever order a file gives them in; every row that there may be has a place."""
    made = [*conditions(test, 4, Chosen.of(Heads.parse(f"2.0 {LATE}.1"), PlantedWalker(), [4]))]
    assert in_order(test, sorted(made)) == in_order(test, made[::-1]) == made
    assert tuple(dict.fromkeys(LAYER if row.startswith(LAYER) else row for row in made)) == rows(test)
    assert in_order(RESTORATION, ["all", "layer 10", "layer 9"]) == ["layer 9", "layer 10", "all"]


def test_half_of_the_carriers_carry_half_of_the_names() -> None:
    chosen = Chosen.of(Heads.parse(f"{LATE}.1"), PlantedWalker(), [4])
    found = measured(STEERING, chosen)
    right = after(STEERING, 8)
    assert torch.equal(found.first["rescue"] == right, right < 5)


# ---- identities that hold for any weights ----------------------------------------------------------------------------


class Spread:
    """A model with a vocabulary for `Words`, rows for its prompts and random weights."""

    def __init__(self) -> None:
        sizes = {"vocab_size": 13, "max_position_embeddings": 64, "num_hidden_layers": 3}
        torch.manual_seed(3)
        self.model = stack_from_config(CONFIGS["qwen3"] | sizes, loops=3).double().eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        self.step = Dense(16).double()
        with torch.no_grad():
            self.step.W.add_(torch.randn(16, 16).double() * 0.2)
        self.chosen = Chosen.of(Heads.parse("2.0,2 3.1"), self.model, [3])


@pytest.mark.parametrize("test", TESTS)
def test_random_weights_obey_the_identities_and_the_plain_run(test: str) -> None:
    at = Spread()
    found = measure(at.model, Words(), at.step, test, at.chosen, count=4)
    assert found.errors
    assert max(found.errors.values()) < 1e-9
    letters = {
        BASE: [pair.base for pair in pairs(test)[:4]],
        SOURCE: [pair.source for pair in pairs(test)[:4]],
        REFERENCE: [pair.reference for pair in pairs(test)[:4]],
    }
    inputs = {name: question_tokens(Words(), each) for name, each in letters.items()}
    for name, row in conditions(test, 3, at.chosen).items():
        h = plain_run(at.model, inputs, row.program, maps={MAP_NAME: at.step}, name=row.input).states
        said = []
        for point in ("h1", "h2", "h3"):
            best = at.model.read(h[point][:, -1]).argmax(-1).tolist()
            said.append([t - FIRST_NAME if t >= FIRST_NAME else OTHER for t in best])
        assert found.first[name].tolist() == said[-1], name
        if test == STEERING:
            assert found.by_loop[name].T.tolist() == said, name


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_get_one_line() -> None:
    with pytest.raises(InputError, match=r"cannot take 257 of 256 pairs of 'steering' \(nearest: 256\)"):
        measured(STEERING, count=257)
    with pytest.raises(InputError, match="a batch has at least 1 pair, not 0"):
        measured(STEERING, batch=0)
    with pytest.raises(InputError, match="there is no test 'steer'"):
        conditions("steer", 4, CHOSEN)
    with pytest.raises(InputError, match=r"loops \[5\] do not exist: the model makes loops 1\.\.4"):
        Chosen.of(Heads.parse("5.1"), PlantedWalker(), [5])


def test_names_that_begin_alike_are_refused() -> None:
    class Letters(Words):
        def encode(self, text: str, *, special: bool = True) -> list[int]:
            return [7, *super().encode(text)]

    with pytest.raises(InputError, match="some names have the same first token"):
        answer_tokens(Letters())
    assert asked(Words(), "Bob.") == [FIRST_NAME + 1, 1, 2]
