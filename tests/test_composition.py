"""Composition: strings and their targets, a plain loop over the tiny backbone, and numbers that need no model."""

from __future__ import annotations

import pytest
import torch

from loopscope.errors import InputError
from loopscope.experiments.composition import (
    TWO_CALLS,
    accuracies,
    copy_u,
    first_only,
    hops,
    long_strings,
    measure,
    program,
    right,
    so_far,
    without_current,
)
from loopscope.experiments.subject import Subject, Walks, load_subject, walks
from loopscope.tasks.graph_walk import DEPTHS
from loopscope.zoo import open_zoo

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load_subject(open_zoo(), "tiny-0", CPU, prefix="tiny-")


@pytest.fixture(scope="module")
def at(subject: Subject) -> Walks:
    return walks("tiny-test", subject, rule="all")


def test_strings() -> None:
    assert len(TWO_CALLS) == 9
    assert len(set(long_strings())) == 34
    assert long_strings()[2:5] == ("11121122", "21112111", "22222221")
    assert hops("1221") == [1, 3, 5, 6]
    assert without_current("121") == ("0", "10", "120")
    assert first_only("2111") == "2000"
    assert str(program("102", 6, fit=2)) == "F6 J:one-2 F2 J:two-2 F"
    with pytest.raises(InputError, match="no letter '3' in string '13': letters are 0, 1, 2"):
        program("13", 6)


def test_answers_are_those_of_a_plain_loop(subject: Subject, at: Walks) -> None:
    found = measure(subject, at, ["11", "10", "01"])
    assert set(found) == {f"{string}-{fit}" for string in ("11", "10", "01") for fit in (1, 2)}
    before = measure(subject, at, ["11"], before=True)
    for name, answers in found.items():
        string, fit = name.split("-")
        step = subject.maps["one"][int(fit) - 1]
        with torch.no_grad():
            h = subject.model.embed(at.tokens)
            for _ in range(subject.loops):
                h = subject.model.call(h)
            for call, letter in enumerate(string):
                h = step(h) if letter == "1" else h
                if string == "11":
                    assert torch.equal(before[name][call].long(), subject.model.read(h)[:, -1].argmax(-1))
                h = subject.model.call(h)
                assert torch.equal(answers[call].long(), subject.model.read(h)[:, -1].argmax(-1))
    # The first call is what the map was fitted for.
    assert accuracies({name: right(found[name], "11", at) for name in ("11-1", "11-2")}, at.kept)[0] == 1.0


def test_planted_answers_are_scored() -> None:
    assert so_far(torch.tensor([[1, 1, 0], [1, 0, 1], [1, 1, 1]]).bool()).tolist() == [
        [True, True, False], [True, False, False], [True, False, False]
    ]  # fmt: skip
    kept = torch.tensor([True, True, False])
    outcomes = {"a": torch.tensor([[1, 0, 0]]).bool(), "b": torch.tensor([[1, 1, 0]]).bool()}
    assert accuracies(outcomes, kept) == [0.75]


def test_copying_u_scores_what_the_reference_found() -> None:
    """0.00 / 14.25 / 17.08 % at calls 2, 4, 8 of the mixed strings, on the 3,175 instances of the independent set."""
    zoo_subject = load_subject(open_zoo(), "d8l6-3", CPU)
    at = walks("independent-3001", zoo_subject)
    assert zoo_subject.depth == DEPTHS
    assert int(at.kept.sum()) == 3175
    found = accuracies({string: copy_u(string, at) for string in long_strings()[2:]}, at.kept)
    assert [round(100 * found[call - 1], 2) for call in (2, 4, 8)] == [0.0, 14.25, 17.08]
