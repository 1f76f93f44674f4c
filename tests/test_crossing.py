"""The mechanism battery on pairs of runs: planted answers, and identities on the tiny backbone of the zoo."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.experiments.crossing import Pairs, broken, eligible, label_rates, measure, pairs, select_head
from loopscope.experiments.subject import Subject, load_subject
from loopscope.tasks.graph_walk import advance, successor
from loopscope.tasks.populations import population
from loopscope.zoo import open_zoo

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load_subject(open_zoo(), "d8l6-5", CPU)


@pytest.fixture(scope="module")
def at(subject: Subject) -> Pairs:
    return pairs("discovery-2608-receiver", subject)


def planted(at: Pairs, subject: Subject) -> dict[str, Tensor]:
    """Runs that all answer as the labels say: patterns of head 2 give E, its outputs D, everything else B."""
    B, D, E = at.labels.T
    found = {f"{name} before F": at.currents[name] for name in ("receiver", "giver", "shifted")}
    found |= {"one": at.targets["receiver"], "giver": at.targets["giver"], "shifted": at.targets["shifted"]}
    found |= {f"pattern {head}": E if head == 2 else B for head in range(4)}
    found |= {f"output {head}": D if head == 2 else B for head in range(4)}
    found["broken"] = at.targets["shifted"]
    return {name: nodes.to(torch.uint8) for name, nodes in found.items()}


def test_pairs_are_aligned(subject: Subject, at: Pairs) -> None:
    receiver = at.receiver
    assert torch.equal(at.currents["giver"], (receiver.current + 3) % 10)
    for name, graphs in (("receiver", receiver.graphs), ("shifted", receiver.graphs)):
        starts = at.tokens[name][:, -3]
        assert torch.equal(advance(graphs, starts, 8), at.currents[name])
    given = population("discovery-2608-giver").graphs.repeat_interleave(10, 0)
    assert torch.equal(at.tokens["giver"][:, 3:31:3], given)
    assert torch.equal(advance(given, at.tokens["giver"][:, -3], 8), at.currents["giver"])
    assert torch.equal(at.labels[:, 2], successor(receiver.graphs, at.currents["giver"]))
    assert int(at.distinct.sum()) == 256  # as on record


def test_planted_answers_are_counted(subject: Subject, at: Pairs) -> None:
    found = planted(at, subject)
    counted = eligible(found, at)
    assert int(counted.sum()) == 256
    assert label_rates(found, at, "pattern 2", counted).tolist() == [0, 0, 1]
    assert label_rates(found, at, "output 2", counted).tolist() == [0, 1, 0]
    assert label_rates(found, at, "pattern 0", counted).tolist() == [1, 0, 0]
    assert select_head([found, found], at, 4) == (2, [0.0, 0.0, 1.0, 0.0])
    assert bool(broken(found, at).all())  # one step from w is never one step from c


def test_a_wrong_clean_run_is_not_counted(subject: Subject, at: Pairs) -> None:
    for name in ("one", "giver", "receiver before F", "giver before F"):
        found = planted(at, subject)
        found[name] = found[name].clone()
        found[name][:10] = (found[name][:10] + 1) % 10
        assert not bool(eligible(found, at)[:10].any())
        assert torch.equal(eligible(found, at)[10:], at.distinct[10:])
    found = planted(at, subject)
    found["giver"] = (found["giver"] + 1) % 10
    assert select_head([found, planted(at, subject)], at, 4) == (2, [-0.5, -0.5, 0.0, -0.5])


def test_no_pairs(subject: Subject) -> None:
    with pytest.raises(InputError, match="population 'rings' has no giver"):
        pairs("rings", subject)


def test_identities_of_the_battery(subject: Subject, at: Pairs) -> None:
    """On 20 pairs: restoring all heads repairs every run; clean runs are those of the model."""
    few = slice(0, 20)
    receiver = replace(
        at.receiver, **{name: getattr(at.receiver, name)[few] for name in vars(at.receiver)}
    )  # fmt: skip
    small = Pairs(
        receiver, *({name: part[few] for name, part in each.items()} for each in (at.tokens, at.currents, at.targets)),
        at.labels[few], at.distinct[few],
    )  # fmt: skip
    found = measure(subject, small)
    assert len(found) == 29 + 5
    assert torch.equal(found["restored all"], found["one"])
    with torch.no_grad():
        h = subject.model.embed(small.tokens["giver"])
        for _ in range(6):
            h = subject.model.call(h)
        h = subject.maps["one"][0](h)
        assert torch.equal(found["giver before F"].long(), subject.model.read(h)[:, -1].argmax(-1))
        assert torch.equal(found["giver"].long(), subject.model.read(subject.model.call(h))[:, -1].argmax(-1))
