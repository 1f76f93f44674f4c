"""Wildcards, metrics of sweeps and gradients through runs, against what they stand for."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from loopscope import F, Program, run, sweep
from loopscope.address import grid
from loopscope.errors import InputError
from loopscope.estimates import means
from loopscope.execute.metrics import ANSWERS
from loopscope.execute.plain import plain_run
from loopscope.measure import ablations
from loopscope.program import Run
from loopscope.stats import wilson
from tests.kinds import KINDS, VOCABULARY
from tests.tiny import tiny_model

TOKENS = torch.tensor([[0, 0, 3, 5], [1, 6, 4, 6], [5, 6, 6, 5]])
OTHER = torch.tensor([[5, 2, 7, 2], [7, 7, 4, 6], [3, 4, 3, 2]])  # other answers in both rows that are read
PLACES = [f"loop[{loop}].layer[{layer}].resid" for loop in (1, 2) for layer in (1, 2)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return KINDS["simple"]()


# Wildcards ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "loops", "layers"),
    [
        ("simple", "loop[*].layer[*].row[-1].resid", (1, 2, 3), (1, 2)),
        ("simple", "loop[ * ].layer[2].head[*].z", (1, 2, 3), (2,)),
        ("simple", "loop[2].layer[*].mlp_hidden", (2,), (1, 2)),
        ("simple", "loop[*].enter", (1, 2, 3), (None,)),
        ("prelude and coda", "coda[*].layer[*].z", (0, 1, 2, 3), (1,)),
        ("prelude and coda", "prelude.layer[*].attn_out", (None,), (1, 2)),
        ("two stacks", "L[*].layer[*].z", (1, 2), (1,)),
    ],
)
def test_keeping_everywhere_is_keeping_at_each_place(
    kind: str, text: str, loops: tuple[int | None, ...], layers: tuple[int | None, ...]
) -> None:
    model = KINDS[kind]()
    program = "(L H)2" if kind == "two stacks" else "F3"
    found = run(model, TOKENS, program, keep=text)[program].kept
    stage, _, _ = text.partition("[")
    tail = text.rpartition("].")[2] if "].row" not in text and "].head" not in text else text.partition("].")[2]
    tail = tail.partition("].")[2] if tail.startswith("layer[*") else tail
    expected = []
    for loop, layer in itertools.product(loops, layers):
        expected.append(text.replace("[ * ]", "[*]"))
        if loop is not None:
            expected[-1] = expected[-1].replace(f"{stage}[*]", f"{stage}[{loop}]", 1)
        if layer is not None:
            expected[-1] = expected[-1].replace("layer[*]", f"layer[{layer}]")
    one_by_one = run(model, TOKENS, program, keep=expected)[program].kept
    assert list(found) == list(one_by_one)
    assert len(found) == len(loops) * len(layers)
    for place, value in found.items():
        torch.testing.assert_close(value, one_by_one[place], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("L[*,*].layer[1].z", ["L[1,1]", "L[1,2]", "L[2,1]", "L[2,2]"]),
        ("L[2, *].layer[*].z", ["L[2,1]", "L[2,2]"]),
        ("L[*,2].layer[1].z", ["L[1,2]", "L[2,2]"]),
        ("H[*,*].layer[2].z", ["H[1,1]", "H[2,1]"]),
    ],
)
def test_calls_in_series_are_spread(text: str, calls: list[str]) -> None:
    model, program = KINDS["two stacks"](), "(L2 H)2"
    found = run(model, TOKENS, program, keep=text)[program].kept
    layer = text.partition("layer[")[2][:1].replace("*", "1")
    assert list(map(str, found)) == [f"{call}.layer[{layer}].z" for call in calls]
    assert sweep(model, TOKENS, program, text, "*=0").addresses == tuple(found)


def test_a_sweep_takes_the_coda_that_is_read() -> None:
    model = KINDS["prelude and coda"]()
    found = sweep(model, TOKENS, "F3", "coda[*].layer[*].z", "*=0")
    assert list(map(str, found.addresses)) == ["coda[3].layer[1].z"]


def test_a_patched_coda_that_is_not_read_is_refused_by_run(refused: Callable[..., str]) -> None:
    """It would change nothing, and say so of the place."""
    model, maps = KINDS["prelude and coda"](), {"one": lambda h: 1.1 * h}
    program = Program.parse("F3 coda:2[layer[1].z*=0]")
    said = refused(InputError, run, model, TOKENS, program)
    assert said.endswith("patches coda:2, which reads h2, but what is read is h3 (nearest: read=['h2'])")
    with_map = Program.parse("F3 J:one coda:3[layer[1].z*=0]")
    said = refused(InputError, lambda: run(model, TOKENS, with_map, maps=maps))
    assert said.endswith("patches coda:3, which reads h3, but what is read is h3 J:one (nearest: read=['h3'])")
    changed, plain = (run(model, TOKENS, each, read="calls")[each].logits_at for each in (program, F**3))
    assert not torch.allclose(changed["h2"], plain["h2"])
    torch.testing.assert_close(changed["h3"], plain["h3"])
    kept = run(model, TOKENS, program, keep="coda[2].layer[1].attn_out")[program].kept
    assert len(kept) == 1


def test_each_program_keeps_what_it_has(model: nn.Module) -> None:
    found = run(model, TOKENS, ["F", "F2"], keep="loop[*].layer[1].z")
    assert [len(found[each].kept) for each in ("F", "F2")] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "programs", "text", "line"),
    [
        ("simple", ["F2"], "coda[*].layer[1].z", "no program has a place for 'coda\\[\\*\\].layer\\[1\\].z'"),
        ("simple", ["F2"], "loop[9].layer[*].z", "no program has a place for"),
        ("simple", ["F2"], "loop[*].layer[3].z", "does not exist: layers 1..2"),
        ("simple", ["F2"], "loop[*].layer[1,*].z", "must name one layer"),
        ("two stacks", ["L H", "H L"], "loop[*].layer[*].z", "name a stack instead of the loop"),
    ],
)
def test_wildcards_that_stand_for_nothing_get_one_line(kind: str, programs: list[str], text: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        run(KINDS[kind](), TOKENS, programs, keep=text)


@pytest.mark.parametrize(
    ("program", "place", "line"),
    [
        ("F3", "coda[0].layer[1].z", r"patches coda:0, but what .* is read through coda:3 \(nearest: coda:3\)"),
        ("F3", "coda[2].layer[1].z", "patches coda:2, but what it says next is read through coda:3"),
        ("F3 J:one", "coda[3].layer[1].z", "coda:3, which reads h3, but what it says next is read at 'h3 J:one'"),
    ],
)
def test_patches_in_a_coda_that_nothing_is_read_through_get_one_line(program: str, place: str, line: str) -> None:
    """They would change nothing, and a sweep would say that the place does not matter."""
    model, maps = KINDS["prelude and coda"](), {"one": lambda h: 1.1 * h}
    with pytest.raises(InputError, match=line):
        sweep(model, TOKENS, program, place, "*=0", maps=maps)
    with pytest.raises(InputError, match=line):
        ablations(model, TOKENS, program, place, maps=maps)


# Metrics --------------------------------------------------------------------------------------------------------------


def expected(name: str, logits: Tensor, base: Tensor, source: Tensor, answers: Tensor) -> Tensor:
    """By its definition, one example and row at a time."""
    values = torch.empty(logits.shape[:2], dtype=torch.float64)
    for i, r in itertools.product(*map(range, values.shape)):
        one = logits[i, r].log_softmax(-1)
        a, b = (answers[i].tolist(), 0)[: 1 + (answers.dim() == 1)] if answers.dim() == 1 else answers[i].tolist()
        if name == "kl":
            values[i, r] = (base[i, r].softmax(-1) * (base[i, r].log_softmax(-1) - one)).sum()
        elif name == "recovered":
            first, last = int(source[i, r].argmax()), int(base[i, r].argmax())
            d = [float(each[i, r, first] - each[i, r, last]) for each in (logits, base, source)]
            values[i, r] = (d[0] - d[1]) / (d[2] - d[1])
        else:
            values[i, r] = {
                "logit": logits[i, r, a], "probability": one[a].exp(), "accuracy": logits[i, r].argmax() == a,
                "difference": logits[i, r, a] - logits[i, r, b],
            }[name]  # fmt: skip
    return values


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("chunk", [None, 1])
def test_a_metric_of_a_sweep_is_that_of_its_logits(model: nn.Module, name: str, chunk: int | None) -> None:
    answers = torch.tensor([[0, 1], [3, 2], [7, 4]])[:, : max(1, ANSWERS[name])].squeeze(-1)
    given = None if name in ("kl", "recovered") else answers
    kept = sweep(model, TOKENS, F**2, PLACES, Run(F**2, "other"), others={"other": OTHER}, rows=[-1, 2])
    source = run(model, OTHER, F**2, rows=[-1, 2])[F**2].logits
    found = sweep(model, TOKENS, F**2, "loop[*].layer[*].resid", Run(F**2, "other"), others={"other": OTHER},
                  rows=[-1, 2], metric=name, answers=given, chunk=chunk)  # fmt: skip
    assert [str(each) for each in found.addresses] == PLACES
    assert found.metric == name
    for logits, values in zip([*kept.logits, kept.base], [*found.values, found.base], strict=True):
        wanted = expected(name, logits, kept.base, source, answers)
        torch.testing.assert_close(values.double(), wanted, rtol=0, atol=2e-5)


def test_recovered_is_one_where_everything_is_taken_from_the_source(model: nn.Module) -> None:
    found = sweep(
        model, TOKENS, F**2, "loop[1].layer[1].resid", "(F2)@other", others={"other": OTHER}, metric="recovered"
    )
    torch.testing.assert_close(found.values, torch.ones_like(found.values))
    torch.testing.assert_close(found.base, torch.zeros_like(found.base))


def test_a_metric_of_ones_own_sees_the_unpatched_run_and_which_examples_they_are(model: nn.Module) -> None:
    texts, other = [[1, 2, 3], [4, 5], [6, 7, 0]], [[3, 2, 1], [5, 5], [7, 7, 7]]
    seen: list[int] = []

    def moved(logits: Tensor, base: Tensor, examples: Tensor) -> Tensor:
        seen.extend(examples.tolist())
        return (logits - base).norm(dim=-1) + 100 * examples[:, None]

    found = sweep(model, texts, F**2, PLACES, "(F2)@other", others={"other": other}, metric=moved)
    assert found.metric == "moved"
    assert set(seen) == {0, 1, 2}
    for example, (text, mine) in enumerate(zip(texts, other, strict=True)):
        alone = sweep(model, torch.tensor([text]), F**2, PLACES, "(F2)@other", others={"other": torch.tensor([mine])})
        wanted = (alone.logits - alone.base).norm(dim=-1)[:, 0] + 100 * example
        torch.testing.assert_close(found.values[:, example], wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("metric", "answers", "line"),
    [
        ("probabilty", None, r"no metric 'probabilty'; .* \(nearest: probability\)"),
        ("probability", None, r"takes answers as whole numbers \[3\], not none"),
        ("difference", torch.tensor([0, 1, 2]), r"takes answers as whole numbers \[3, 2\], not int64 \[3\]"),
        ("accuracy", torch.tensor([0, 1, VOCABULARY]), "are not among the classes 0..7"),
        ("kl", torch.tensor([0, 1, 2]), "takes no answers"),
        (None, torch.tensor([0, 1, 2]), "answers belong to a metric"),
        (lambda logits, base, examples: logits, None, r"a metric gives \[examples, rows\], here \[15, 1\]"),
    ],
)
def test_metrics_that_do_not_fit_get_one_line(model: nn.Module, metric: object, answers: Tensor, line: str) -> None:
    with pytest.raises(InputError, match=line):
        sweep(model, TOKENS, F**2, PLACES, "(F2)@other", others={"other": OTHER}, metric=metric, answers=answers)  # type: ignore[call-overload]


def test_recovery_needs_a_way_to_go(model: nn.Module) -> None:
    with pytest.raises(InputError, match=r"example 1 and its source both say .* of 3 examples 3 are so"):
        sweep(model, TOKENS, F**2, PLACES, "(F2)", metric="recovered")
    with pytest.raises(InputError, match="measures against the run that a patch is from"):
        sweep(model, TOKENS, F**2, PLACES, "*=0", metric="recovered")


# Intervals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [None, "kl"])
def test_tables_of_sweeps_resample_clusters_wherever_they_go(model: nn.Module, metric: Any, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"others": {"other": OTHER}, "metric": metric}
    clusters, column = np.array(["a", "b", "a"]), "value" if metric else "kl"
    plain, found = (sweep(model, TOKENS, F**2, PLACES, "(F2)@other", **asked, **more)
                    for more in ({}, {"clusters": clusters, "seed": 3}))  # fmt: skip
    values = sweep(model, TOKENS, F**2, PLACES, "(F2)@other", others=asked["others"], metric="kl").values[..., 0]
    by_hand = means(values.double().numpy().T, clusters=clusters, seed=3)
    np.testing.assert_allclose(found.table()[f"{column}_low"], by_hand.low, rtol=1e-4)
    assert (plain.table()[f"{column}_low"] != found.table()[f"{column}_low"]).any()
    found.save(tmp_path / "found.csv")
    with (tmp_path / "found.csv").open(encoding="utf-8") as file:
        kept = [float(row[f"{column}_low"]) for row in csv.DictReader(file)]
    np.testing.assert_allclose(kept, by_hand.low, rtol=1e-4)
    one = sweep(model, TOKENS, F**2, PLACES, "(F2)@other", **asked, clusters=[1, 1, 1])
    assert np.isnan(one.table()[f"{column}_low"]).all()
    with pytest.raises(InputError, match=r"3 examples need as many cluster ids, not \[2\]"):
        sweep(model, TOKENS, F**2, PLACES, "(F2)@other", **asked, clusters=[1, 2])
    with pytest.raises(InputError, match="seed -1 is neither"):
        sweep(model, TOKENS, F**2, PLACES, "(F2)@other", **asked, seed=-1)


def test_shares_of_sweeps_that_are_none_or_all_are_not_certain(model: nn.Module) -> None:
    source = run(model, OTHER, F**2)[F**2].predictions[:, 0]
    everything = sweep(model, TOKENS, F**2, PLACES[:1], "(F2)@other", others={"other": OTHER})
    table = everything.table(source)
    assert (table["right"], table["right_low"]) == ([1], [wilson(3, 3).low])
    measured = sweep(model, TOKENS, F**2, PLACES[:1], "(F2)@other", others={"other": OTHER}, metric="accuracy",
                     answers=source)  # fmt: skip
    assert measured.table()["value_low"] == [wilson(3, 3).low]


# Gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["simple", "everything", "two stacks", "full mask"])
def test_gradients_are_those_of_the_plain_run(kind: str) -> None:
    model = KINDS[kind]()
    program = Program.parse(
        "L H[layer[2].row[1].z+=$v] L" if kind == "two stacks" else "F J:one F[layer[1].row[1].z+=$v]"
    )
    program = program.patch(
        f"loop[{program.calls}].layer[1].row[-1].resid", "+=0.5*(" + str(program.skeleton) + ")@other"
    )
    found = []
    for plainly in (True, False):
        v = torch.zeros(2, 1, 6, dtype=torch.float64, requires_grad=True)
        scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        maps = {"one": lambda h, scale=scale: h * scale}
        if plainly:
            inputs = {"main": TOKENS, "other": OTHER}
            seen = plain_run(model, inputs, program, maps=maps, given={"v": v}, gradients=True)
            logits = seen.read(program.points[-1])[:, [-1, 1]]
        else:
            logits = run(model, TOKENS, program, maps=maps, given={"v": v}, others={"other": OTHER}, rows=[-1, 1],
                         gradients=True, chunk=2)[program].logits  # fmt: skip
        weights = [v, *model.parameters(), *([] if kind == "two stacks" else [scale])]
        found.append(torch.autograd.grad(logits.square().sum(), weights, allow_unused=True))
    for one, two in zip(*found, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)


class Operations(TorchDispatchMode):
    """Counts what torch is asked for, but for views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("component", ["v", "pattern", "z"])
def test_cells_cost_rows_and_not_operations(component: str) -> None:
    """A GPU waits for each operation, however small it is."""
    model, counts = tiny_model("relations"), []
    tokens, other = (torch.randint(0, 8, (2, 12), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for heads in (2, 4, 2, 4):  # indices are made once
        places = grid(component, loops=(1, 2), layers=(1, 2), heads=range(heads), rows=(-1,))
        with Operations() as asked:
            sweep(model, tokens, F**2, places, Run(F**2, "other"), others={"other": other}, metric="kl")
        counts.append(asked.count)
    assert counts[2] == counts[3]


def test_without_asking_there_are_no_gradients(model: nn.Module) -> None:
    v = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    program = "F[layer[1].z+=$v]"
    assert not run(model, TOKENS, program, given={"v": v})[program].logits.requires_grad
    assert run(model, TOKENS, program, given={"v": v}, gradients=True)[program].logits.requires_grad
