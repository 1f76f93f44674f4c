"""Maps that are fitted to examples of one's own: any model, placement and family; controls, resuming, bad input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf

from loopscope import F, J, load, load_map
from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense
from loopscope.measure.answers import encode
from loopscope.measure.readouts import behind_puzzles
from loopscope.measure.side_by_side import NO_F, OUTPUT, WITH, WITHOUT, side_by_side
from loopscope.program import Program
from loopscope.store.store import Store
from loopscope.tasks.examples import examples, split
from loopscope.training import fit_map
from loopscope.training.lm.jobs import Settings
from loopscope.training.lm.task_data import TaskData, TaskLoss
from loopscope.training.lm.task_recipe import TaskRecipe
from tests.adapters_tiny import MODELS, PUZZLES
from tests.kinds import KINDS
from tests.tuning_together import StoppedError

CPU = torch.device("cpu")
FEW = {"updates": 2, "examples": 6, "check_every": 1, "rate": 0.01}
MINE = "F J:mine F J:mine F"


def task(count: int = 30, lead: Any = None) -> list[dict[str, Any]]:
    """Prompts of four tokens, of which the first is the answer."""
    draws = torch.Generator().manual_seed(1)
    prompts = torch.randint(1, 8, (count, 4), generator=draws).tolist()
    return [{"prompt": lead(each) if lead else each, "answer": each[0], "steps": 1 + at % 2, "cluster": f"{each}"}
            for at, each in enumerate(prompts)]  # fmt: skip


def built(name: str) -> tuple[Any, str, list[dict[str, Any]]]:
    """A model of a kind or family, a program with a map in it, and a task for it."""
    model = deepcopy(KINDS[name](torch.float32) if name in KINDS else MODELS[name]()).requires_grad_(False)
    program = MINE if len(getattr(model, "stacks", {"F": ()})) == 1 else "(L2 J:mine H)2"
    lead = (lambda each: behind_puzzles(model, [each], [0])[0]) if name in PUZZLES else None
    return model, program, task(lead=lead)


def plain_loss(model: Any, program: Program, data: list[Any], maps: Mapping[str, Any]) -> float:
    losses = []
    for item in data:
        run = plain_run(model, {"main": torch.tensor([item.prompt])}, program, maps=maps)
        said = run.read(program.points[-1])[0, len(item.prompt) - 1]
        losses.append(nnf.cross_entropy(said, torch.tensor(item.answer[0])))
    return float(torch.stack(losses).mean())


NAMES = ["two stacks", "everything", "huginn", "trm"]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_loss_is_that_of_the_plain_run_and_a_fit_lowers_it(name: str) -> None:
    """On every kind of model, whatever it has beside one stack."""
    model, program, given = built(name)
    data = split(examples(given), share=0.3)
    model.requires_grad_(True)
    made = fit_map(model, data, program, **{**FEW, "updates": 30, "check_every": 30, "examples": 24})
    assert all(each.requires_grad for each in model.parameters())  # it was frozen for the fit alone
    model.requires_grad_(False)
    losses = [row["loss"] for row in made.history if row.get("loss")]
    assert sum(losses[-5:]) < sum(losses[:5])
    recipe = TaskRecipe(program=Program.parse(program), fitted="mine", examples=len(data.train), micro=7)
    items = encode(data.train)
    start = recipe.new_map(made.map.width)
    loss = TaskLoss(model, recipe, start, {})
    ours = sum(float(loss(unit)[0].detach()) for unit in TaskData(recipe, model, items)(0))
    assert ours == pytest.approx(plain_loss(model, recipe.program, items, {"mine": start}), rel=1e-4)


@pytest.mark.parametrize(
    ("program", "supervision", "read"),
    [
        (F | J("mine") | F**2, "per-loop", [2, 3]),
        (F | J("mine") | F | J("mine"), "per-loop", [1, 2]),
        (F**2 | J("mine"), "per-loop", [2]),
        (F | J("mine") | F**2, "last", [3]),
    ],
)
def test_answers_are_learned_after_the_loops_that_the_map_has_acted_in(
    program: Any, supervision: Any, read: Any
) -> None:
    recipe = TaskRecipe(program=program, fitted="mine", supervision=supervision)
    assert recipe.read_after == read


@pytest.fixture(scope="module")
def tiny() -> Any:
    return load("tiny-0").requires_grad_(False)


def walks(model: Any, count: int = 60) -> list[dict[str, Any]]:
    """The zoo's walk of two steps, asked for its end, which the model knows after two calls."""
    from loopscope.tasks.graph_walk import GraphWalk, advance

    draws = torch.Generator().manual_seed(0)
    graphs = torch.stack([torch.randperm(6, generator=draws) for _ in range(count)])
    starts = torch.arange(count) % 6
    tokens = GraphWalk(nodes=6).tokens(graphs, starts, depth=2)
    return [{"prompt": row.tolist(), "answer": int(end), "cluster": str(graph.tolist())}
            for row, end, graph in zip(tokens, advance(graphs, starts, 2), graphs, strict=True)]  # fmt: skip


@pytest.mark.parametrize(("family", "rank"), [("dense", None), ("diagonal-low-rank", 3), ("residual-low-rank", 2)])
def test_every_family_is_fitted_and_saved_in_the_convention_with_a_card(
    tiny: Any, tmp_path: Path, family: str, rank: int | None
) -> None:
    made = fit_map(tiny, walks(tiny), "F J:mine F", map=family, rank=rank, **FEW)
    made.save(tmp_path / "mine", "loopscope lm fit ...")
    assert {each.name for each in (tmp_path / "mine").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "README.md", "learned.json",
    }  # fmt: skip
    back, h = load_map(tmp_path / "mine"), torch.randn(2, tiny.width)
    assert torch.equal(back(h), made.map(h))
    text = (tmp_path / "mine" / "README.md").read_text(encoding="utf-8")
    assert "    loopscope lm fit ..." in text
    assert made.data.train.digest in text
    assert f"token-wise affine map ({family}, width 64)" in text
    share = made.measured.right().rows[0].estimate
    assert f"| {100 * share.value:.1f} | {100 * share.low:.1f} to {100 * share.high:.1f} |" in text


def test_a_map_that_does_nothing_is_told_to_do_nothing(tiny: Any) -> None:
    """The identity: with and without it answers are the same, so the statement says that there is no difference."""
    made = fit_map(tiny, walks(tiny), "F J:mine F", map=Dense(64), **{**FEW, "updates": 1, "rate": 1e-12})
    with_j, without = (made.measured.condition(name) for name in (WITH, WITHOUT))
    assert with_j is not None
    assert without is not None
    assert torch.equal(with_j.right, without.right)
    assert made.statement[1] == "J makes no difference that these examples can tell."
    short = made.measured.condition(NO_F)
    assert short is not None
    assert short.program == "F J:mine"
    moved = made.measured.condition(OUTPUT)
    assert moved is not None  # the state of another walk ends elsewhere
    assert not moved.right.any()


def test_a_fit_that_was_broken_off_gives_the_same_bits_and_is_looked_up(tiny: Any, tmp_path: Path) -> None:
    def fitted(place: str, stop: int = 0) -> Any:
        def watch(now: Any) -> None:
            if now.done == stop:
                raise StoppedError

        settings = Settings(CPU, save_every=0.0, watch=watch)
        few = {**FEW, "updates": 4, "examples": 8}
        return fit_map(tiny, given, MINE, store=Store(tmp_path / place), settings=settings, **few)

    given = walks(tiny)
    whole = fitted("one")
    for stop in (1, 3):
        with pytest.raises(StoppedError):
            fitted("two", stop)
        assert Store(tmp_path / "two").every("checkpoint")
    parts = fitted("two")
    assert not Store(tmp_path / "two").every("checkpoint")
    assert torch.equal(parts.map.W, whole.map.W)
    assert list(parts.history) == list(whole.history)
    assert fitted("two", stop=1).key == parts.key  # looked up
    assert fitted("two", stop=1).statement == parts.statement


def test_maps_beside_it_stay_as_they_are(tiny: Any) -> None:
    draws = torch.Generator().manual_seed(3)
    other = Dense(64)
    with torch.no_grad():
        other.W.add_(torch.randn(other.W.shape, generator=draws) * 0.1)
    before = other.W.clone()
    made = fit_map(tiny, walks(tiny), "F J:given F J:mine F", maps={"given": other.requires_grad_(False)}, **FEW)
    assert torch.equal(other.W, before)
    items = encode(made.data.held_out)
    alone = side_by_side(tiny, items, ["F J:given F2"], maps={"given": other})
    found = made.measured.condition(WITHOUT)
    assert found is not None
    assert torch.equal(found.right, alone.conditions[0].right)


@pytest.mark.parametrize(
    ("program", "how", "said"),
    [
        ("F2", {}, r"names no map that could be fitted \(nearest: F2 J:mine F\)"),
        ("F J:a F J:b F", {}, "names maps a, b; give all but the one"),
        ("F J:mine F[layer[1].z<-(F2)]", {}, "has patches; training takes programs without"),
        ("J:mine", {}, "calls F nowhere"),
        ("F J:mine F", {"map": "dens"}, r"no map family 'dens'; .*\(nearest: dense\)"),
        ("F J:mine F", {"map": Dense(8)}, "a map of width 8 does not fit states of width 64"),
        ("F J:mine F", {"rank": 3}, "a dense map takes no rank"),
        ("F J:mine F", {"updats": 3}, r"no setting 'updats'; .*\(nearest: updates\)"),
        ("F J:mine F", {"supervision": "first"}, "supervision is one of last, per-loop"),
        ("F J:mine F", {"chat": True}, "is of tokens, which cannot be put into a chat"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tiny: Any, tmp_path: Path, program: str, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        fit_map(tiny, walks(tiny), program, store=Store(tmp_path / "store"), **{**FEW, **how})
    assert not (tmp_path / "store").exists()


def test_examples_that_a_model_cannot_learn_are_refused(tiny: Any) -> None:
    given = walks(tiny)
    with pytest.raises(InputError, match="answer 999 is none of the model's"):
        fit_map(tiny, [{**each, "answer": 999} for each in given], "F J:mine F", **FEW)
    with pytest.raises(InputError, match="example 1 is a text, which takes a tokenizer; the model has none"):
        fit_map(tiny, [{"prompt": f"q{at}", "answer": "b"} for at in range(9)], "F J:mine F", **FEW)
    model, program, _ = built("full mask")
    with pytest.raises(InputError, match="an answer is one token"):
        fit_map(model, [{**each, "answer": [1, 2]} for each in task()], program, **FEW)


def test_what_came_out_is_json_and_prints_in_a_line(tiny: Any) -> None:
    said: list[str] = []
    made = fit_map(tiny, walks(tiny), "F J:mine F", log=said.append, **FEW)
    assert said[0].startswith("update 1: whole answers right:")  # how the fit goes, then what is measured
    assert said[-1].startswith("J moved:")
    told = json.loads(json.dumps(made.to_dict()))
    assert told["examples"]["how"] == "20% by the hash of 'cluster'"
    assert told["recipe"]["program"] == "F J:mine F"
    assert repr(made).count("\n") == 0
