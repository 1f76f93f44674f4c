"""The training loop: its updates, checks, selection and history, and members that meet NaN."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.training.cohort.cohort import Precision
from loopscope.training.cohort.jobs import initial_model
from loopscope.training.cohort.objective import Step
from loopscope.training.cohort.parity import ParityBackbones
from loopscope.training.cohort.relations import RelationBackbones
from loopscope.training.cohort.stack import Stack
from loopscope.training.cohort.streams import absorb
from loopscope.training.cohort.trainer import LOSS_SCALES, Failure, Selected, Trainer
from loopscope.training.cohort.walks import WalkBackbones
from loopscope.training.recipe import Schedule, Stage
from tests.toys import (
    CPU,
    ends,
    finished,
    graphs_and_starts,
    stage_of,
    toy_parity,
    toy_relations,
    toy_walk,
    update_of,
    walk_tokens,
)

# ---- the trainer -----------------------------------------------------------------------------------------------------


class Bowls:
    """Members that roll down bowls of their own; scores follow a script, and one member can be made to break."""

    precision: Precision = "tf32"

    def __init__(self, stages: Sequence[Stage], members: int = 3, script: Sequence[Sequence[float]] = ()) -> None:
        start = torch.linspace(-1, 1, 7)
        self.stack = Stack([{"w": start[:5] + k, "D": start[5:] * (k + 1)} for k in range(members)])
        self.stages, self.script, self.asked = stages, list(script), 0
        self.breaks: dict[int, tuple[int, str]] = {}  # member -> (update, how)

    def shape(self, stage: int, update: int) -> int:
        return update % 2

    def step(self, stage: int, shape: int, update: Tensor) -> Step:
        assert shape == int(update) % 2
        w, D = self.stack.weights["w"], self.stack.weights["D"]
        members = torch.arange(1, len(w) + 1)
        losses = members.sqrt() * ((w - (update * members[:, None]).sin()).square().sum(1) + D.pow(4).sum(1))
        for member, (at, how) in self.breaks.items():
            if update >= at:
                still = (w[member] - w[member].detach()).square().sum().sqrt()  # it is 0, but its slope is not finite
                bad = still if how == "gradient" else torch.tensor(float(how))
                losses = losses.index_add(0, torch.tensor([member]), bad[None])
        return Step(losses, (update * 10 + members)[:, None])

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        self.asked += 1
        return [(score,) for score in self.script[self.asked - 1]] if self.script else [(0.0,)] * len(self.stack)


def bowl_stages(*updates: int, check_every: int = 0, **optimiser: Any) -> tuple[Stage, ...]:
    settings = {"schedule": Schedule(0.1, warmup=3, decay=40, floor=0.1), "clip": 4.0, **optimiser}
    return tuple(stage_of(n, check_every, f"stage {i}", **settings) for i, n in enumerate(updates))


def plain_bowls(stages: Sequence[Stage], member: int, members: int = 3) -> list[Tensor]:
    """One member alone, by torch's own AdamW, anew for every stage: its parameters after each update."""
    start = Bowls(stages, members).stack.member(member)
    bowl = Bowls(stages, members)
    w, D = (torch.nn.Parameter(start[name]) for name in ("w", "D"))
    told = []
    for number, stage in enumerate(stages):
        adamw = stage.optimiser
        groups = [{"params": [w], "factor": 1.0}, {"params": [D], "factor": adamw.slow[1] if adamw.slow else 1.0}]
        torch_adamw = torch.optim.AdamW(groups, betas=adamw.betas, eps=adamw.eps, weight_decay=adamw.decay)
        for update in range(1, stage.updates + 1):
            for group in torch_adamw.param_groups:
                group["lr"] = adamw.schedule.rate(update) * group["factor"]
            torch_adamw.zero_grad()
            bowl.stack.weights = {name: p[None].expand(members, -1) for name, p in (("w", w), ("D", D))}
            bowl.step(number, update % 2, update_of(update)).losses[member].backward()
            torch.nn.utils.clip_grad_norm_([w, D], adamw.clip)
            torch_adamw.step()
            told.append(torch.cat([w.detach(), D.detach()]))
    return told


def parameters(stack: Stack, member: int) -> Tensor:
    """One member's parameters, one after the other."""
    return torch.cat([tensor.flatten() for tensor in stack.member(member).values()])


@pytest.mark.parametrize("slow", [None, ("D", 0.1)])
def test_every_update_is_torchs_adamw_anew_in_every_stage(slow: tuple[str, float] | None) -> None:
    stages = bowl_stages(12, 9, slow=slow)
    found: list[list[Tensor]] = []
    trainer = Trainer(Bowls(stages), "last")
    trainer.run(lambda trainer: found.append([parameters(trainer.stack, member) for member in range(3)]), window=1)
    assert len(found) == 21
    assert trainer.done
    for member in range(3):
        own = torch.stack(plain_bowls(stages, member))
        torch.testing.assert_close(torch.stack([each[member] for each in found]), own, rtol=1e-5, atol=1e-6)
    norms = [[row["norm"] for row in trainer.history if row["member"] == member] for member in range(3)]
    # The members are clipped each by its own norm: in some updates one is and another is not.
    assert any(min(several) < 4.0 < max(several) for several in zip(*norms, strict=True))


def test_training_a_transformer_is_the_plain_loop() -> None:
    recipe, seeds = toy_walk(updates=20, check_every=0), [3, 8]
    recipe = replace(recipe, stages=(stage_of(20, 0, clip=1.2),))
    trainer = finished(WalkBackbones(recipe, [initial_model(recipe, seed) for seed in seeds], seeds, CPU))
    optimiser = recipe.stages[0].optimiser
    clipped: list[list[bool]] = [[], []]
    for index, seed in enumerate(seeds):
        model = initial_model(recipe, seed)
        adamw = torch.optim.AdamW(
            model.parameters(), betas=optimiser.betas, eps=optimiser.eps, weight_decay=optimiser.decay
        )
        objective = WalkBackbones(recipe, [model], [seed], CPU)
        digest = torch.zeros(1, dtype=torch.int64)
        for update in range(1, 21):
            drawn = objective.step(0, None, update_of(update)).drawn
            graphs, starts, depths = graphs_and_starts(drawn[0], 8, 6)
            rows = zip(graphs, starts, depths, strict=True)
            tokens = torch.tensor([walk_tokens(graph, start, depth) for graph, start, depth in rows])
            adamw.param_groups[0]["lr"] = optimiser.schedule.rate(update)
            adamw.zero_grad()
            nnf.cross_entropy(model(tokens)[:, -1], ends(graphs, starts, depths)).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), optimiser.clip)
            clipped[index].append(bool(norm > optimiser.clip))
            adamw.step()
            digest = absorb(digest, drawn)
        wanted = torch.cat([tensor.flatten() for tensor in model.state_dict().values()])
        torch.testing.assert_close(parameters(trainer.stack, index), wanted, rtol=1e-4, atol=2e-5)
        assert trainer.state["data"][index] == digest[0]
    assert any(one != other for one, other in zip(*clipped, strict=True))


@pytest.mark.parametrize("kind", ["walk", "parity", "relations"])
def test_a_seed_trained_beside_others_is_the_seed_trained_alone(kind: str) -> None:
    recipe = {"walk": toy_walk, "parity": toy_parity, "relations": toy_relations}[kind](updates=9, check_every=0)
    build = {"walk": WalkBackbones, "parity": ParityBackbones, "relations": RelationBackbones}[kind]
    seeds = [5, 0, 9]
    together = finished(build(recipe, [initial_model(recipe, seed) for seed in seeds], seeds, CPU))
    for index, seed in enumerate(seeds):
        alone = finished(build(recipe, [initial_model(recipe, seed)], [seed], CPU))
        assert alone.state["data"][0] == together.state["data"][index]
        torch.testing.assert_close(alone.stack.flat[0], together.stack.flat[index], rtol=1e-3, atol=2e-5)
    assert len(set(together.state["data"].tolist())) == 3


def test_the_size_of_the_windows_changes_no_bit() -> None:
    stages = bowl_stages(11, 7, check_every=5)
    long, short = (finished(Bowls(stages), window=window) for window in (100, 2))
    for name, tensor in long.state.items():
        assert torch.equal(tensor, short.state[name])


def test_scaled_losses_change_no_bit_where_nothing_is_rounded_away() -> None:
    class Scaled(Bowls):
        precision: Precision = "fp16"

    stages = bowl_stages(11, check_every=5)
    scaled, plain = finished(Scaled(stages)), finished(Bowls(stages))
    assert torch.equal(scaled.stack.flat, plain.stack.flat)
    assert scaled.history == plain.history


def test_the_digest_of_the_data_tells_every_batch() -> None:
    trainer = finished(Bowls(bowl_stages(4, 3)))
    digest = torch.zeros(3, dtype=torch.int64)
    for update in (1, 2, 3, 4, 1, 2, 3):
        digest = absorb(digest, torch.tensor([[update * 10 + member] for member in (1, 2, 3)]))
    assert torch.equal(trainer.state["data"], digest)


def after_each_check(objective: Bowls, keep: str, every: int) -> tuple[Trainer, dict[int, Tensor]]:
    """The finished trainer, and the parameters as they were at every check of its only stage."""
    seen: dict[int, Tensor] = {}
    trainer = Trainer(objective, keep)

    def look(trainer: Trainer) -> None:
        update = trainer.history[-1]["update"]
        if update % every == 0:
            seen[update] = trainer.stack.flat.clone()

    trainer.run(look, window=2)
    return trainer, seen


SCRIPT = [(0.2, 0.5, 0.9), (0.6, 0.5, 0.1), (0.6, 0.4, 0.3), (0.5, 0.6, 0.9)]


def test_the_earliest_of_the_best_is_kept() -> None:
    trainer, seen = after_each_check(Bowls(bowl_stages(12, check_every=3), script=SCRIPT), "best", 3)
    assert trainer.selected == [Selected(0, 6, (0.6,)), Selected(0, 12, (0.6,)), Selected(0, 3, (0.9,))]
    for member, update in enumerate((6, 12, 3)):
        assert torch.equal(trainer.state["kept"][member], seen[update][member])
    assert not torch.equal(trainer.state["kept"][0], trainer.stack.flat[0])


def test_the_last_is_kept_if_the_recipe_says_so() -> None:
    trainer, _ = after_each_check(Bowls(bowl_stages(12, check_every=3), script=SCRIPT), "last", 3)
    assert trainer.selected == [Selected(0, 12, (score,)) for score in SCRIPT[-1]]
    assert torch.equal(trainer.state["kept"], trainer.stack.flat)


@pytest.mark.parametrize("before", [0, 5])
def test_a_trail_is_the_start_and_the_checks_of_the_last_stage(before: int) -> None:
    stages = bowl_stages(*([before] if before else []), 7, check_every=3)
    start = Bowls(stages).stack.flat.clone()
    seen: dict[tuple[str, int], Tensor] = {}
    trainer = Trainer(Bowls(stages), "trail")

    def look(trainer: Trainer) -> None:
        row = trainer.history[-1]
        seen[row["stage"], row["update"]] = trainer.stack.flat.clone()

    trainer.run(look)
    assert trainer.trail_at == [0, 3, 6, 7]
    wanted = [seen["stage 0", 5] if before else start, *(seen[stages[-1].name, update] for update in (3, 6, 7))]
    for member in range(3):
        trail = trainer.trail(member)
        assert trail.pop("update").tolist() == [0, 3, 6, 7]
        for name, points in trail.items():
            assert torch.equal(points, torch.stack([trainer.stack.member(member, flat)[name] for flat in wanted]))
    assert len({tuple(flat.flatten().tolist()) for flat in wanted}) == 4
    assert torch.equal(trainer.state["kept"], trainer.stack.flat)
    assert finished(Bowls(stages), "last").trail_at == []


def test_scores_that_tie_are_told_apart_by_what_follows() -> None:
    class Tied(Bowls):
        def scores(self, stage: int) -> list[tuple[float, ...]]:
            self.asked += 1
            return [(1.0, -float(abs(self.asked - best))) for best in (2, 3, 4)]

    trainer = finished(Tied(bowl_stages(12, check_every=3)))
    assert [each and each.update for each in trainer.selected] == [6, 9, 12]


def test_members_are_scored_at_the_end_of_a_stage_too() -> None:
    objective = Bowls(bowl_stages(7, check_every=3))
    trainer = finished(objective)
    assert [row["update"] for row in trainer.history if row["member"] == 0 and "score" in row] == [3, 6, 7]
    never = Bowls(bowl_stages(7, check_every=0))
    assert [row["update"] for row in finished(never).history if "score" in row] == [7, 7, 7]
    assert (objective.asked, never.asked) == (3, 1)


def test_a_stage_ends_when_every_member_is_good_enough() -> None:
    script = [(1.0, 0.2, 1.0), (0.9, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)]
    first, second = bowl_stages(30, 4, check_every=4)
    objective = Bowls((replace(first, stop_at=1.0), replace(second, check_every=0)), script=script)
    trainer = finished(objective, keep="last")
    assert [(row["stage"], row["update"]) for row in trainer.history if row["member"] == 0] == [
        ("stage 0", 4), ("stage 0", 8), ("stage 0", 12), ("stage 1", 4)
    ]  # fmt: skip
    # From there on it is a run of a first stage of twelve updates, with the rates of one of thirty.
    for member in range(3):
        wanted = plain_bowls((replace(first, updates=12), second), member)[-1]
        torch.testing.assert_close(parameters(trainer.stack, member), wanted, rtol=1e-5, atol=1e-6)


def test_history_has_a_row_for_every_member_and_window() -> None:
    (stage,) = stages = bowl_stages(5, check_every=4)
    objective = Bowls(stages, members=2)
    lengths: list[int] = []
    trainer = Trainer(objective, "best")
    trainer.run(lambda trainer: lengths.append(len(trainer.history)), window=3)
    assert lengths == [2, 4, 6]
    assert [row["update"] for row in trainer.history] == [3, 3, 4, 4, 5, 5]
    assert [row["member"] for row in trainer.history] == [0, 1, 0, 1, 0, 1]
    assert all(row["rate"] == stage.optimiser.schedule.rate(row["update"]) for row in trainer.history)
    assert [row.get("score") for row in trainer.history] == [None, None, [0.0], [0.0], [0.0], [0.0]]
    assert all(row["stage"] == "stage 0" for row in trainer.history)
    # The loss is the mean over the window, the norm that of its last update.
    each = Trainer(Bowls(stages, members=2), "best")
    each.run(lambda *_: None, window=1)
    for member in range(2):
        single = [row for row in each.history if row["member"] == member]
        window = next(row for row in trainer.history if row["member"] == member)
        assert window["loss"] == pytest.approx(sum(row["loss"] for row in single[:3]) / 3)
        assert window["norm"] == single[2]["norm"]
    assert json.loads(json.dumps(trainer.history)) == trainer.history
    assert trainer.seconds > 0


def test_a_trainer_goes_on_from_what_it_saved() -> None:
    stages = bowl_stages(9, 8, check_every=3)
    script = [(0.2, 0.5, 0.9), (0.6, 0.5, 0.1)] * 3
    whole = finished(Bowls(stages, script=script))
    saved: list[tuple[dict[str, Tensor], str]] = []

    def save(trainer: Trainer) -> None:
        state = {name: tensor.clone() for name, tensor in trainer.state.items()}
        saved.append((state, json.dumps(trainer.progress())))

    Trainer(Bowls(stages, script=script), "best").run(save)
    assert len(saved) == 6
    for done, (state, progress) in enumerate(saved, 1):
        objective = Bowls(stages, script=script)
        objective.asked = done
        again = Trainer(objective, "best")
        again.restore(state, json.loads(progress))
        again.run(lambda *_: None)
        for name, tensor in whole.state.items():
            assert torch.equal(tensor, again.state[name]), name
        assert (again.history, again.selected, again.failures) == (whole.history, whole.selected, whole.failures)


# ---- what is not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
@pytest.mark.parametrize("at", [1, 5, 6])
def test_a_member_that_breaks_stops_and_the_others_do_not_notice(how: str, at: int) -> None:
    stages = bowl_stages(6, 4, check_every=2)
    script = [(0.1 * k, 0.2 * k, 0.3 * k) for k in range(1, 6)]
    healthy = finished(Bowls(stages, script=script))
    objective = Bowls(stages, script=script)
    objective.breaks = {1: (at, how)}
    trainer = finished(objective)

    failure = trainer.failures[1]
    assert failure is not None
    assert (failure.stage, failure.update) == (0, at)
    assert trainer.failures[::2] == [None, None]
    if how == "gradient":
        assert str(failure).startswith("the gradient is not finite (the loss is ")
    else:
        assert str(failure) == f"the loss is {how}"
    # What it had before that update is what it has.
    before = Bowls((replace(stages[0], updates=at - 1),), script=[script[0]] * 9) if at > 1 else Bowls(stages)
    short = finished(before) if at > 1 else Trainer(before, "best")
    for name in ("flat", "data"):
        assert torch.equal(trainer.state[name][1], short.state[name][1])
    assert all(row["update"] < at for row in trainer.history if row["member"] == 1)
    for name in ("flat", "kept", "data"):
        assert torch.equal(trainer.state[name][::2], healthy.state[name][::2])
    assert trainer.selected[::2] == healthy.selected[::2]
    assert [row for row in trainer.history if row["member"] != 1] == [
        row for row in healthy.history if row["member"] != 1
    ]


class Spiking(Bowls):
    """Bowls with a slope that goes through fp16, and is this steep at some updates of some members."""

    precision: Precision = "fp16"

    def __init__(self, stages: Sequence[Stage], steep: dict[tuple[int, int], float]) -> None:
        super().__init__(stages)
        self.steep = steep

    def step(self, stage: int, shape: int, update: Tensor) -> Step:
        losses, drawn = super().step(stage, shape, update)
        slopes = [[self.steep.get((member, int(update)), 1.0)] for member in range(len(losses))]
        through = self.stack.weights["D"].to(torch.float16) * torch.tensor(slopes, dtype=torch.float16)
        return Step(losses + through.float().sum(1), drawn)


@pytest.mark.parametrize(("steep", "scale"), [(500.0, 32.0), (20_000.0, 1.0)])
@pytest.mark.parametrize("window", [3, 100])
def test_a_gradient_that_overflows_is_taken_again_with_a_smaller_factor(
    monkeypatch: pytest.MonkeyPatch, steep: float, scale: float, window: int
) -> None:
    steeps, stages = {(1, 5): steep, (1, 6): 500.0}, bowl_stages(11, check_every=11)
    found = finished(Spiking(stages, steeps), window=window)
    assert found.failures == [None] * 3
    lower = {(row["member"], row["update"]): row["scale"] for row in found.history if "scale" in row}
    assert lower == {(1, min(window * 2, 11)): scale}
    # Here nothing is rounded away by a factor of one, so that one may be used all along.
    monkeypatch.setitem(LOSS_SCALES, "fp16", (1.0,))
    wanted = finished(Spiking(stages, steeps), window=window)
    for name, tensor in wanted.state.items():
        assert torch.equal(found.state[name], tensor), name
    assert [{**row, "scale": 0} for row in found.history] == [{**row, "scale": 0} for row in wanted.history]


def test_a_gradient_that_overflows_with_the_smallest_factor_stops_its_member_alone() -> None:
    stages = bowl_stages(11, check_every=4)
    found = finished(Spiking(stages, {(0, 2): 500.0, (2, 6): float("inf")}))
    assert [failure and failure.update for failure in found.failures] == [None, None, 6]
    healthy = finished(Spiking(stages, {(0, 2): 500.0}))
    for name in ("flat", "data"):
        assert torch.equal(found.state[name][:2], healthy.state[name][:2])
    assert all("scale" not in row for row in found.history if row["update"] > 4)


def test_a_member_that_breaks_in_a_later_stage_is_told_so() -> None:
    class Late(Bowls):
        def step(self, stage: int, shape: int, update: Tensor) -> Step:
            self.breaks = {2: (3, "nan")} if stage == 1 else {}
            return super().step(stage, shape, update)

    trainer = finished(Late(bowl_stages(4, 4)))
    failure = trainer.failures[2]
    assert failure is not None
    assert (failure.stage, failure.update) == (1, 3)
    assert trainer.done


def test_nothing_is_left_to_do_when_all_members_have_broken() -> None:
    objective = Bowls(bowl_stages(1_000, check_every=2))
    objective.breaks = {0: (3, "nan"), 1: (2, "inf"), 2: (5, "gradient")}
    trainer = finished(objective)
    assert [failure and failure.update for failure in trainer.failures] == [3, 2, 5]
    assert trainer.update == 6
    again = Trainer(Bowls(bowl_stages(1_000, check_every=2)), "best")
    again.restore(trainer.state, json.loads(json.dumps(trainer.progress())))
    assert again.done
    assert isinstance(again.failures[0], Failure)
