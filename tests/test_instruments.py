"""Readouts, motion, starts, contraction and exits on toy models of every kind, against what plain runs say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from loopscope import F, LoopedTransformer, graph_walk_config, run
from loopscope.errors import InputError
from loopscope.execute.plain import PlainRun, plain_run
from loopscope.measure import (
    answer_ranks,
    contraction,
    endings,
    exits,
    logit_lens,
    path_independence,
    pattern_changes,
    read_loops,
    record_loops,
    recording_of,
    similarities,
    trajectories,
)
from loopscope.measure.readouts import behind_puzzles
from loopscope.pieces import pieces_of
from loopscope.program import Call, Program
from loopscope.stats import wilson
from tests.adapters_tiny import MODELS
from tests.kinds import KINDS, Kind, normed

TOKENS = torch.tensor([[0, 0, 3, 5], [1, 6, 4, 6], [5, 6, 6, 5]])
TEXTS = [[1, 2, 3, 4], [5, 6], [7, 0, 2]]
FAST = {"draws": 20}
QUICK = ("two stacks", "everything")
EVERY = [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow]) for kind in KINDS]


def seen_by(kind: str, program: str | None = None) -> tuple[Any, Program, PlainRun]:
    model = KINDS[kind]()
    asked = Program.parse(program or model.usual)
    return model, asked, plain_run(model, {"main": TOKENS}, asked)


def calls(program: Program) -> list[tuple[int, str]]:
    stacks = [step.stack for step in program.steps if isinstance(step, Call)]
    return [*enumerate(stacks, start=program.first + 1)]


def close(found: Any, expected: Any, by: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=by, atol=by)


# Readouts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("head", ["coda", "bare"])
def test_readouts_are_those_of_what_is_there(kind: str, head: str) -> None:
    model, program, seen = seen_by(kind)
    pieces = pieces_of(model)

    def said(h: Tensor) -> Tensor:
        if head == "bare" or not pieces.coda:
            return pieces.read(pieces.leave(h)).softmax(-1)
        ended = Program((), start=program.first + loop)
        return plain_run(model, {"main": h}, ended, tokens={"main": TOKENS}).read(ended.points[0]).softmax(-1)

    found = logit_lens(model, TOKENS, program, layers=[1], head=head, rows=[-1, 1], top=3)
    ranks = answer_ranks(model, TOKENS, {"one": [1, 2, 3], "two": [3, 3, 3]}, program, layers=[1], head=head,
                         rows=[-1, 1], **FAST)  # fmt: skip
    several = len(pieces.stacks) > 1
    points = dict(zip((loop for loop, _ in calls(program)), program.points[1:], strict=True))
    for loop, stack in calls(program):
        entered = pieces.close(seen.components[loop, 1, "resid"], seen.states[program.points[loop - 1]], stack)
        places = {"state": seen.states[points[loop]], f"{f'{stack}.' * several}layer[1].resid": entered}
        for place, h in places.items():
            likely = said(h)
            for number in (-1, 1):
                best = likely[:, number].topk(3)
                mine = found.where(place=place, loop=loop, row=number)
                close(mine["probability"], best.values.flatten().detach())
                assert mine["token"].tolist() == best.indices.flatten().tolist()
                assert mine["rank"].tolist() == [1, 2, 3] * 3
                told = ranks.where(place=place, loop=loop, row=number, answer="one")
                chosen = likely[[0, 1, 2], number, [1, 2, 3]][:, None]
                close(told["probability"], [chosen.mean().item()])
                close(told["rank"], [1 + (likely[:, number] > chosen).sum(-1).double().mean()])


# Motion ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_motion_is_that_of_the_states(kind: str) -> None:
    model, program, seen = seen_by(kind)
    h = [seen.states[point][:, -1].detach().numpy() for point in program.points]
    found = trajectories(model, TOKENS, program, layers=[1], memory=1, **FAST).where(place="state")
    norm = [np.linalg.norm(each, axis=-1) for each in h]
    steps = [after - before for before, after in itertools.pairwise(h)]

    def cosine(one: np.ndarray, two: np.ndarray) -> float:
        return float(((one * two).sum(-1) / np.linalg.norm(one, axis=-1) / np.linalg.norm(two, axis=-1)).mean())

    close(found["norm"], [each.mean() for each in norm])
    close(found["distance"], [np.linalg.norm(each - h[-1], axis=-1).mean() for each in h])
    close(found["step"][1:], [np.linalg.norm(each, axis=-1).mean() for each in steps])
    relative = [np.linalg.norm(each, axis=-1) / size for each, size in zip(steps, norm[1:], strict=True)]
    close(found["relative"][1:], [each.mean() for each in relative])
    close(found["cosine"][1:], [cosine(*each) for each in itertools.pairwise(h)])
    close(found["turn"][2:], [cosine(*each) for each in itertools.pairwise(steps)])
    answers = [seen.read(point)[:, -1].argmax(-1) for point in program.points]
    close(found["agreement"], [(each == answers[-1]).double().mean() for each in answers])
    assert np.isnan(found["step"][:1]).all()
    assert np.isnan(found["turn"][:2]).all()
    assert found["loop"].tolist() == list(range(len(h)))
    alike = similarities(model, TOKENS, program, **FAST).grid("cosine", "loop", "other")[0]
    close(alike, [[cosine(one, two) for two in h] for one in h])


@pytest.mark.parametrize("kind", EVERY)
def test_patterns_change_by_their_total_variation(kind: str) -> None:
    model, program, seen = seen_by(kind)
    found = pattern_changes(model, TOKENS, program, layers=[1], rows=[-1, 2], **FAST)
    several = len(pieces_of(model).stacks) > 1
    rows = iter(found)
    for stack in pieces_of(model).stacks:
        mine = [loop for loop, name in calls(program) if name == stack]
        for before, loop in itertools.pairwise(mine):
            change = seen.components[loop, 1, "pattern"] - seen.components[before, 1, "pattern"]
            for number in (-1, 2):
                for head in range(model.heads):
                    row = next(rows)
                    assert row["place"] == f"{f'{stack}.' * several}layer[1].pattern"
                    assert (row["loop"], row["row"], row["head"]) == (loop, number, head)
                    close(row["change"], change[:, head, number].abs().sum(-1).div(2).mean().detach())
    assert next(rows, None) is None


class Moved(Kind):
    """A call that does nothing but what `close` says."""

    def __init__(self, move: Any) -> None:
        super().__init__()
        self.move = move
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
        for layer in self.stack:
            nn.init.zeros_(layer.out.weight)
            nn.init.zeros_(layer.down.weight)
            nn.init.zeros_(layer.down.bias)
        self.double()

    def close(self, x: Tensor) -> Tensor:
        found: Tensor = self.move(x)
        return found


def rolled(x: Tensor) -> Tensor:
    """Every entry moves on by one, of the first three in a ring."""
    return torch.cat([x[..., 1:3], x[..., :1], x[..., 3:]], -1)


@pytest.mark.parametrize(
    ("move", "loops", "ending", "period"),
    [
        (lambda x: 0.5 * x + normed(torch.ones_like(x)), 30, "fixed point", math.nan),
        (lambda x: 0.5 * x + normed(torch.ones_like(x)), 4, "drift", math.nan),
        (torch.neg, 12, "cycle", 2.0),
        (rolled, 12, "cycle", 3.0),
        (lambda x: 1.1 * x, 12, "drift", math.nan),
        (rolled, 4, "drift", math.nan),  # two rounds of three are not there
    ],
)
def test_endings_are_told_by_the_rule(move: Any, loops: int, ending: str, period: float) -> None:
    found = endings(Moved(move), TOKENS, F**loops, **FAST)
    assert dict(zip(found["ending"], found["share"], strict=True))[ending] == 1
    close(found.where(ending="cycle")["period"], [period])
    assert found.about["rule"] == {"tolerance": 0.01, "window": 3, "longest": 6}
    with pytest.raises(InputError, match="the last 9 steps at state need as many calls"):
        endings(Moved(move), TOKENS, "F4", window=9)


# Starts and contraction -----------------------------------------------------------------------------------------------


def test_paths_from_several_starts() -> None:
    model = KINDS["drawn start"]()
    found = path_independence(model, TOKENS, "F4", seeds=[1, 5], **FAST)
    one, two = (plain_run(model, {"main": TOKENS}, Program.parse(f"seed:{seed} F4")) for seed in (1, 5))
    for loop in range(5):
        a, b = (each.states[f"h{loop}"][:, -1] for each in (one, two))
        apart = (a - b).norm(dim=-1) / ((a.norm(dim=-1) + b.norm(dim=-1)) / 2)
        row = found.where(loop=loop)
        close(row["distance"], [apart.mean().item()])
        close(row["cosine"], [torch.cosine_similarity(a, b).mean().item()])
        said = [each.read(f"h{loop}")[:, -1].argmax(-1) for each in (one, two)]
        close(row["agreement"], [(said[0] == said[1]).double().mean()])
    with pytest.raises(InputError, match=r"starts from its input, not from a seed.*\(nearest: noise=0.1\)"):
        path_independence(KINDS["simple"](), TOKENS, "F4")
    halved = path_independence(Moved(lambda x: 0.5 * x), TOKENS, "F4", noise=0.1, seeds=range(3), **FAST)
    close(halved["distance"], halved["distance"][:1].repeat(5))  # both halves of the quotient shrink alike


@pytest.mark.parametrize(
    "kind", ["two stacks", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("injection", "everything"))]
)
def test_contraction_is_the_largest_singular_value(kind: str) -> None:
    model, program, seen = seen_by(kind, "L H" if kind == "two stacks" else "F")
    one = TOKENS[:1]
    found = contraction(model, one, program, iterations=40)
    for loop, (before, step) in enumerate(zip(program.points, program.steps, strict=False), start=1):
        state = seen.states[before][:1].detach()
        call = Program((step,), start=loop - 1)

        def moved(h: Tensor, call: Program = call) -> Tensor:
            return plain_run(model, {"main": h}, call, tokens={"main": one}, gradients=True).states[call.points[-1]]

        jacobian = torch.autograd.functional.jacobian(moved, state).reshape(state.numel(), -1)
        largest = torch.linalg.matrix_norm(jacobian, 2).item()
        assert 0.99 * largest < found.where(loop=loop)["singular"][0] < largest + 1e-9
    assert (found["below"] == (found["singular"] < 1)).all()


# Exits ----------------------------------------------------------------------------------------------------------------


def test_a_recording_is_what_exit_rules_look_at() -> None:
    model, program, seen = seen_by("prelude and coda", "F5")
    points = program.points
    logits = torch.stack([seen.read(point)[:, [-1]] for point in points[1:]]).detach()
    states = torch.stack([seen.states[point][:, [-1]] for point in points]).detach()
    ran = record_loops(model, TOKENS, program, memory=1)
    recorded = recording_of(logits, states[1:])
    assert (ran.answers == recorded.answers).all()
    assert (
        set(ran.numbers)
        == set(recorded.numbers)
        == {"entropy", "confidence", "kl", "stable", "step", "second", "loops"}
    )
    for name in ran.numbers:
        close(ran.numbers[name], recorded.numbers[name])
    p = logits.softmax(-1)
    close(ran.numbers["entropy"], -(p * p.log()).sum(-1))
    close(ran.numbers["kl"][1:], (p[1:] * (p[1:].log() - p[:-1].log())).sum(-1))
    steps = states[1:] - states[:-1]
    close(ran.numbers["step"][1:], (steps.norm(dim=-1) / states[1:].norm(dim=-1))[1:])
    close(ran.numbers["second"][2:], ((steps[1:] - steps[:-1]).norm(dim=-1) / states[2:].norm(dim=-1))[1:])


def test_a_loop_of_several_stacks_ends_where_what_is_read_has_changed() -> None:
    """Between calls of the last stack a readout stays as it is: a rule that compares loops would stop at once."""
    model = KINDS["two stacks"]()
    seen = plain_run(model, {"main": TOKENS}, "(L2 H)3 L H")
    ran = record_loops(model, TOKENS, "(L2 H)3 J:one L H", maps={"one": torch.clone})
    logits = torch.stack([seen.read(point)[:, [-1]] for point in ("h3", "h6", "h9", "h11")]).detach()
    recorded = recording_of(logits)
    assert (ran.answers == recorded.answers).all()
    close(ran.numbers["kl"], recorded.numbers["kl"])
    assert (ran.numbers["kl"][1:] > 1e-3).all()
    own = MODELS["trm"]()
    tokens = torch.tensor(behind_puzzles(own, [[1, 2, 3, 4]], [0]))  # type: ignore[arg-type]
    said = read_loops(own, torch.tensor([[1, 2, 3, 4]]), loops=2, last=True, puzzles=[0]).logits.argmax(-1)  # type: ignore[arg-type]
    assert record_loops(own, tokens, own.program(2)).answers.tolist() == said.tolist()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="'L2' calls H nowhere, so there is no loop to stop after"):
        record_loops(model, TOKENS, "L2")


def test_rules_stop_at_their_thresholds() -> None:
    """Three examples of four loops, whose answers and certainty are planted."""
    answers = torch.tensor([[1, 2, 2, 2], [0, 0, 0, 0], [2, 1, 0, 1]])
    sure = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0], [0.0, 1.0, 0.5, 1.0]])
    logits = torch.nn.functional.one_hot(answers, 3) * sure[..., None]
    gates = torch.tensor([[-9.0, 9.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0], [-9.0, -9.0, -9.0, 0.0]])
    recording = recording_of(logits.mT.permute(2, 0, 1)[:, :, None], gates=gates.T[:, :, None])
    thresholds = {"stable": [1.0, 2.0, 3.0], "loops": [2.0], "gate": [0.9], "confidence": [0.8]}
    found = exits(recording, [2, 0, 1], thresholds=thresholds, rules=thresholds, **FAST)
    stops = {  # after which loop each example stops
        ("stable", 1): [1, 1, 1], ("stable", 2): [3, 2, 4], ("stable", 3): [4, 3, 4], ("loops", 2): [2, 2, 2],
        ("gate", 0.9): [2, 1, 4], ("confidence", 0.8): [3, 1, 4],
    }  # fmt: skip
    for (rule, threshold), loops in stops.items():
        row = found.where(rule=rule, threshold=threshold)
        right = [
            answers[at, loop - 1] == wanted for at, (loop, wanted) in enumerate(zip(loops, [2, 0, 1], strict=True))
        ]
        close(row["loops"], [np.mean(loops)])
        close(row["accuracy"], [sum(right) / 3])
        close(row["stopped"], [np.mean([loop < 4 for loop in loops])])
    agreed = exits(recording, rules=["loops"], **FAST)
    close(agreed["agreement"], [1 / 3, 1, 2 / 3, 1])
    with pytest.raises(InputError, match=r"no rule 'step' was recorded"):
        exits(recording, rules=["step"])
    for wrong, worst in (([2, 0, 3], 3), ([-1, 0, 1], -1)):
        with pytest.raises(InputError, match=f"answers have class {worst}, but the model has 0..2"):
            exits(recording, wrong, **FAST)
    ran = record_loops(KINDS["simple"](), TOKENS)
    with pytest.raises(InputError, match=r"answers have class 99, but the model has 0\.\.7"):
        exits(ran, [1, 99, 2], **FAST)


# All of them ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "column"),
    [
        (lambda model: trajectories(model, TOKENS), "agreement"),
        (lambda model: endings(model, TOKENS, "F5"), "share"),
        (lambda model: path_independence(model, TOKENS, noise=1e-9), "agreement"),
        (lambda model: contraction(model, TOKENS, iterations=2), "below"),
        (lambda model: answer_ranks(model, TOKENS, run(model, TOKENS, "F3")["F3"].predictions[:, 0]), "first"),
        (lambda model: exits(record_loops(model, TOKENS)), "agreement"),
        (lambda model: exits(record_loops(model, TOKENS)), "stopped"),
        (
            lambda model: exits(
                record_loops(model, TOKENS), torch.as_tensor(record_loops(model, TOKENS).answers[-1, :, 0])
            ),
            "accuracy",
        ),
    ],
)
def test_a_share_of_none_or_all_of_few_examples_is_not_certain(asked: Any, column: str) -> None:
    found = asked(KINDS["simple"]())
    certain = (found[column] == 0) | (found[column] == 1)
    assert certain.any()
    widths = (found[f"{column}_high"] - found[f"{column}_low"])[certain]
    close(widths, wilson(3, 3).high - wilson(3, 3).low)


@pytest.mark.parametrize("instrument", [trajectories, pattern_changes, contraction, logit_lens])
def test_texts_of_unequal_length_are_what_each_is_alone(instrument: Any) -> None:
    model = KINDS["everything"]()
    how = {} if instrument is logit_lens else {"draws": 2}
    how |= {"program": "F", "iterations": 2} if instrument is contraction else {}
    together = instrument(model, TEXTS, **how)
    alone = [instrument(model, [text], **how) for text in TEXTS]
    for name in ("norm", "step", "agreement", "change", "singular", "probability"):
        if name in together.names:
            found = together[name] if instrument is not logit_lens else together[name].reshape(3, -1).mean(0)
            close(found, np.mean([each[name] for each in alone], 0), 1e-5)


def test_the_program_is_by_default_the_models_own() -> None:
    model = LoopedTransformer(graph_walk_config(nodes=3, loops=2))
    assert trajectories(model, torch.tensor([[0, 1, 2]]), **FAST).about["program"] == "F2"
    with pytest.raises(InputError, match="'F3' calls F, but the stacks of this model are: L H"):
        trajectories(KINDS["two stacks"](), TOKENS)


def test_maps_and_given_states_are_part_of_the_way() -> None:
    model = KINDS["simple"]()
    state = run(model, TOKENS, "F", keep="loop[1].enter")["F"].kept.popitem()[1] * 1.5  # type: ignore[attr-defined]
    maps = {"one": lambda h: h * 1.5}
    found = trajectories(model, None, "h0 F2", state=state, **FAST)
    steered = trajectories(model, TOKENS, "J:one F2", maps=maps, **FAST)
    close(found["norm"][1:], steered["norm"][1:])


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (lambda model: trajectories(model, TOKENS[0]), r"tokens must be \[examples, rows\], not \[4\]"),
        (lambda model: trajectories(model, TOKENS[:, :0]), r"not \[3, 0\]"),
        (lambda model: trajectories(model, TOKENS[:0]), "there are no examples"),
        (lambda model: answer_ranks(model, TOKENS, {}), "no answers to rank"),
        (lambda model: trajectories(model, TOKENS, layer="all"), r"no argument 'layer'; .* \(nearest: layers\)"),
    ],
)
def test_what_an_instrument_cannot_look_at_gets_one_line(asked: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        asked(KINDS["simple"]())
