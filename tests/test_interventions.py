"""Spans, ablations and attribution on a toy model of every kind, against plain runs of what they stand for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from loopscope import F, run, sweep
from loopscope.address import COMPONENTS, Address
from loopscope.errors import InputError
from loopscope.estimates import rank_correlation
from loopscope.execute import measuring
from loopscope.execute.plain import PlainRun, plain_run
from loopscope.measure import ablations, attribution, paths, spans
from loopscope.pieces import pieces_of
from loopscope.program import Call, Given, Program, Run
from loopscope.table import Table
from tests.kinds import KINDS, Kind, KindLayer, Parallel

TOKENS = torch.tensor([[0, 0, 3, 5], [1, 6, 4, 6], [5, 6, 6, 5]])
OTHER = torch.tensor([[5, 2, 7, 2], [7, 7, 4, 6], [3, 4, 3, 2]])
TEXTS, OTHERS = [[1, 2, 3, 4], [5, 6], [7, 0, 2]], [[2, 2, 2], [3, 4, 5, 6], [1, 1]]
FAST = {"draws": 20}

QUICK = ("simple", "two stacks", "everything")
"""Kinds that are looked at every time; the last has most of what is special of the others."""
EVERY = [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow]) for kind in KINDS]


def apart(logits: Tensor, _base: Tensor, _examples: Tensor) -> Tensor:
    """A difference of two logits, in double precision."""
    return logits[..., 1] - logits[..., 2]


def plainly(model: Any, program: Program | str, tokens: Tensor = TOKENS, **inputs: Any) -> np.ndarray:
    """What `apart` is at the last row, by a whole plain run."""
    program = Program.parse(program) if isinstance(program, str) else program
    named = {"main": tokens, "other": OTHER, **inputs.pop("others", {})}
    logits = plain_run(model, named, program, **inputs).read(program.points[-1])[:, -1:]
    return apart(logits, logits, logits)[:, 0].detach().numpy()


def close(found: Any, expected: Any, by: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=by, atol=by)


# Spans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_a_span_is_the_patch_in_each_of_its_loops(kind: str) -> None:
    model = KINDS[kind]()
    program = Program.parse(model.usual)
    stacks = [step.stack for step in program.steps if isinstance(step, Call)]
    source = Run(program, "other")
    site = "layer[1].head[1].row[-1].z"
    found = spans(model, TOKENS, program, site, source, others={"other": OTHER}, metric=apart, **FAST)
    rows = iter(found)
    for stack in dict.fromkeys(sorted(stacks, key=[*pieces_of(model).stacks].index)):
        loops = [loop for loop, name in enumerate(stacks, start=1) if name == stack]
        for first, last in itertools.combinations_with_replacement(loops, 2):
            patched = program
            for loop in loops[loops.index(first) : loops.index(last) + 1]:
                patched = patched.patch(f"loop[{loop}].{site}", source)
            row = next(rows)
            assert (row["place"], row["first"], row["last"], row["n"]) == (
                site if len(set(stacks)) == 1 else f"{stack}.{site}", first, last, 3,
            )  # fmt: skip
            close(row["value"], plainly(model, patched).mean())
    assert next(rows, None) is None


def test_single_loops_are_those_of_a_sweep_whatever_the_memory() -> None:
    model = KINDS["simple"]()
    asked = (model, TOKENS, F**3, ["layer[1].resid", "loop[*].layer[2].row[-1].mlp_hidden"], "(F3)@other")
    found, tight = (spans(*asked, others={"other": OTHER}, rows=[-1, 1], memory=m, **FAST) for m in (None, 32_000))
    with pytest.raises(InputError, match="one example at a time takes"):
        spans(*asked, others={"other": OTHER}, memory=1, **FAST)
    for name in found.names:
        assert (found[name] == tight[name]).all() or np.allclose(found[name], tight[name], atol=1e-6)
    for site in ("layer[1].resid", "layer[2].row[-1].mlp_hidden"):
        whole = sweep(model, TOKENS, F**3, f"loop[*].{site}", "(F3)@other", others={"other": OTHER}, rows=[-1, 1],
                      metric="recovered")  # fmt: skip
        for loop, values in enumerate(whole.values.mean(1).tolist(), start=1):
            close(found.where(place=site, first=loop, last=loop)["value"], values, 1e-6)
    close(found.where(place="layer[1].resid")["value"], 1, 1e-6)  # all that a call sees
    assert found.about["metric"] == "recovered"
    assert found.about["source"] == "(F3)@other"


def test_spans_go_over_the_loops_that_are_asked_for() -> None:
    model = KINDS["prelude and coda"]()
    found = spans(model, TOKENS, "F4", ["loop[3].layer[1].z", "loop[4].layer[1].z"], "*=0", metric=apart, **FAST)
    assert [(row["first"], row["last"]) for row in found] == [(3, 3), (3, 4), (4, 4)]
    both = (F**4).patch("loop[3].layer[1].z", "*=0").patch("loop[4].layer[1].z", "*=0")
    close(found.where(first=3, last=4)["value"], plainly(model, both).mean())
    for place in ("prelude.layer[1].z", "coda[4].layer[1].z"):
        with pytest.raises(InputError, match="is in no loop"):
            spans(model, TOKENS, "F4", place, "*=0", metric=apart)


def test_a_span_with_a_gap_is_refused() -> None:
    """A row that says 1 to 4 would be of a patch in 1 and 4 alone."""
    gap = ["loop[1].layer[1].z", "loop[4].layer[1].z"]
    said = r"layer\[1\].z is asked in loops 1, 4 without 2 \(nearest: loop\[1\].layer\[1\].z, loop\[2\]"
    with pytest.raises(InputError, match=said):
        spans(KINDS["simple"](), TOKENS, "F4", gap, "*=0", metric=apart)
    model = KINDS["two stacks"]()
    every = spans(model, TOKENS, model.usual, "layer[1].z", "*=0", metric=apart, **FAST)
    stack = every["place"][0].split(".")[0]
    loops = sorted({row["first"] for row in every if row["place"] == f"{stack}.layer[1].z"})
    beside = [f"loop[{loop}].layer[1].z" for loop in loops[:2]]  # calls of another stack may stand between them
    found = spans(model, TOKENS, model.usual, beside, "*=0", metric=apart, **FAST)
    assert [(row["first"], row["last"]) for row in found] == [(loops[0], loops[0]), (*loops[:2],), (loops[1], loops[1])]


# Ablations ------------------------------------------------------------------------------------------------------------


def everywhere(model: Any, program: Program) -> list[str]:
    """A place of every component in the last call, and of those before and behind the loop."""
    last = f"loop[{program.calls}]"
    places = [f"{last}.layer[1].row[-1].{component}" for component in COMPONENTS]
    places += ["prelude.layer[2].row[-2].attn_out"] if pieces_of(model).prelude else []
    places += [f"coda[{program.calls}].layer[1].head[0].v"] if pieces_of(model).coda else []
    return places


def component(seen: PlainRun, place: str) -> Tensor:
    """What a plain run had at a place, [examples, (heads,) rows, n]."""
    address = Address.parse(place)
    where: int | str = {"loop": address.loop, "prelude": "prelude"}.get(address.stage, f"coda[{address.loop}]")
    value = seen.components[where, address.site.layer, address.site.part]
    if address.site.heads is not None:
        value = value[:, list(address.site.heads)]
    return value if address.site.rows is None else value[..., list(address.site.numbers), :]


@pytest.mark.parametrize("kind", EVERY)
def test_components_taken_out_are_given_tensors(kind: str) -> None:
    model = KINDS[kind]()
    program = Program.parse(model.usual)
    places = everywhere(model, program)
    found = ablations(model, TOKENS, program, places, ["zero", "mean", "resampled"], reference=OTHER[:1], metric=apart,
                      **FAST)  # fmt: skip
    seen = plain_run(model, {"main": OTHER[:1]}, program)
    seen.read(program.points[-1])
    before = plainly(model, program)
    for row in found:
        there = component(seen, str(row["place"]))
        given = {"there": torch.zeros_like(there) if row["kind"] == "zero" else there}
        expected = plainly(model, program.patch(str(row["place"]), Given("there")), given=given)
        close(row["value"], expected.mean())  # of one example, the mean is what it is there
        close(row["change"], (expected - before).mean())
    assert len(found) == 3 * len(places)


def test_means_and_draws_are_of_the_reference_set() -> None:
    model = KINDS["simple"]()
    place = "loop[2].layer[1].head[0].row[-1].z"
    kept = [component(plain_run(model, {"main": OTHER}, F**3), place), torch.zeros(0)]
    mean = {"mean": kept[0].mean(0, keepdim=True)}
    for reference in (OTHER, OTHER.tolist()):
        found = ablations(model, TOKENS, F**3, place, "mean", reference=reference, metric=apart, memory=20_000, **FAST)
        close(found["value"], plainly(model, (F**3).patch(place, "$mean"), given=mean).mean())
    two = ablations(model, TOKENS[:2], F**3, place, "resampled", metric=apart, **FAST)  # each can be the other alone
    patched = (F**3).patch(place, "(F3)@swapped")
    close(two["value"], plainly(model, patched, TOKENS[:2], others={"swapped": TOKENS[:2].flip(0)}).mean())
    drawn = {
        float(ablations(model, TOKENS, F**3, place, "resampled", metric=apart, seed=seed, draws=2)["value"][0])
        for seed in (0, 0, 1, 2, 3)
    }
    assert 1 < len(drawn) < 5


def test_the_reference_runs_without_the_patches_of_the_program() -> None:
    model = KINDS["simple"]()
    program = (F**3).patch("loop[1].layer[1].z", "(F3)@other")
    place = "loop[2].layer[2].mlp_hidden"
    found = ablations(model, TOKENS, program, place, "mean", metric=apart, others={"other": OTHER}, **FAST)
    mean = component(plain_run(model, {"main": TOKENS}, F**3), place).mean(0, keepdim=True)
    close(found["value"], plainly(model, program.patch(place, "$mean"), given={"mean": mean}).mean())


@pytest.mark.parametrize(
    ("kind", "program", "place", "ablation", "programs"),
    [
        ("simple", "F2 J:one F", "loop[*]", "skipped", ["F J:one F", "F J:one F", "F2 J:one"]),
        ("simple", "F2 J:one F", "loop[2]", "repeated", ["F3 J:one F"]),
        ("simple", "F2 J:one F", "loop[*]", "swapped", ["F J:one F2"]),
        ("simple", "F[layer[1].z*=0] F2", "loop[*]", "swapped", ["F F[layer[1].z*=0] F"]),
        ("two stacks", "(L H)2", "H[*]", "skipped", ["L L H", "L H L"]),
        ("two stacks", "(L H)2", "loop[*]", "swapped", ["H L L H", "L L H2", "L H2 L"]),
        ("prelude and coda", "F3 coda:3[layer[1].z*=0]", "loop[1]", "skipped", ["F2 coda:2[layer[1].z*=0]"]),
        ("prelude and coda", "F3 coda:3[layer[1].z*=0]", "loop[1]", "repeated", ["F4 coda:4[layer[1].z*=0]"]),
    ],
)
def test_calls_taken_out_are_programs(kind: str, program: str, place: str, ablation: str, programs: list[str]) -> None:
    model = KINDS[kind]()
    maps = {"one": lambda h: h * 1.5}
    found = ablations(model, TOKENS, program, place, ablation, metric=apart, maps=maps, **FAST)
    close(found["value"], [plainly(model, each, maps=maps).mean() for each in programs])
    assert found.about["programs"] == {ablation: str(Program.parse(programs[0]))}
    assert all(str(place).count(".") == 0 for place in found["place"])


@pytest.mark.parametrize(
    ("places", "kinds", "line"),
    [
        ("layer[1].z", "zeros", r"no ablation is called 'zeros'.*\(nearest: zero\)"),
        ("layer[1].z", [], "no ablation was asked for"),
        ("layer[1].z", "skipped", r"layer\[1\].z was named, but nothing of zero, mean, resampled was asked for"),
        ((), "skipped", r"skipped: no call such as loop\[\*\] was named to act on"),
        ("loop[1]", ["zero", "skipped"], r"zero: no component such as layer\[1\].z was named to act on"),
        (["loop[1]", "layer[1].z"], "zero", r"loop\[1\] was named, but nothing of skipped, .* was asked for"),
        ("loop[1]", "swapped", "'F2' is the same with a call swapped, as the step behind"),
        ("loop[9]", "skipped", "loop 9 does not exist"),
        ("layer[9].z", "zero", "does not exist: layers 1..2"),
        ("layer[1].z", "mean", r"all rows of texts of 2 to 4 tokens .* \(nearest: row\[-1\]\)"),
        ("layer[1].row[-1].pattern", "mean", r"a pattern of texts of 2 to 4 tokens .* \(nearest: resampled, zero\)"),
        ("layer[1].row[-1].pattern", "resampled", "its source has 3 rows, this run 4: its keys would be others"),
    ],
)
def test_ablations_that_mean_nothing_get_one_line(places: Any, kinds: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        ablations(KINDS["simple"](), TEXTS, F**2, places, kinds)


# Attribution ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVERY)
def test_attribution_is_gradient_times_difference(kind: str) -> None:
    """Both by plain runs, which hold every component."""
    model = KINDS[kind]()
    program = Program.parse(model.usual)
    places = everywhere(model, program)
    found = attribution(model, TOKENS, program, places, Run(program, "other"), others={"other": OTHER}, metric=apart,
                        rows=[-1, 1], memory=1, **FAST)  # fmt: skip
    own = plain_run(model, {"main": TOKENS}, program, gradients=True)
    logits = own.read(program.points[-1])
    other = plain_run(model, {"main": OTHER}, program)
    other.read(program.points[-1])
    rows = iter(found)
    for place in places:
        address = Address.parse(place)
        where: int | str = {"loop": address.loop, "prelude": "prelude"}.get(address.stage, f"coda[{address.loop}]")
        held = own.components[where, address.site.layer, address.site.part]
        for number in (-1, 1):
            value = apart(logits[:, [number]], logits, logits).sum()
            (gradient,) = torch.autograd.grad(value, held, retain_graph=True, allow_unused=True)
            gradient = torch.zeros_like(held) if gradient is None else gradient
            alike = PlainRun(components={(where, address.site.layer, address.site.part): gradient})
            product = component(alike, place) * (component(other, place) - component(own, place))
            row = next(rows)
            assert (row["place"], row["row"]) == (place, number)
            close(row["approximate"], product.detach().sum() / 3)


class Read(Kind):
    """Logits that are linear in the state."""

    def read(self, h: Tensor) -> Tensor:
        return self.head(h)


class ReadInParallel(Read):
    layer: type[KindLayer] = Parallel


@pytest.mark.parametrize(
    ("kind", "components"), [(Read, ["mlp_out", "mlp_hidden"]), (ReadInParallel, ["mlp_out", "mlp_hidden", "attn_out"])]
)
def test_attribution_is_exact_where_the_readout_is_linear(kind: type[Kind], components: list[str]) -> None:
    torch.manual_seed(0)
    model = kind().double()
    places = [f"loop[3].layer[2].row[{row}].{each}" for each in components for row in (-1, 0)]
    answers = torch.tensor([[1, 2], [3, 2], [7, 4]])
    for metric in ("difference", apart):
        found = attribution(model, TOKENS, F**3, places, "(F3)@other", others={"other": OTHER}, metric=metric,
                            answers=answers if metric == "difference" else None, exact=True, **FAST)  # fmt: skip
        np.testing.assert_allclose(found["approximate"], found["exact"], atol=1e-12 if metric is apart else 1e-6)
        assert (found.where(at="0")["approximate"] == 0).all()  # a row that nobody reads
        assert (found.where(at="-1")["approximate"] != 0).all()


@pytest.mark.parametrize("source", ["*=1.00001", "+=0.00001*$v", "<-J:bit", "+=0.00001*(F3)@other"])
def test_a_small_change_has_its_first_order(source: str) -> None:
    model = KINDS["everything"]()
    found = attribution(model, TOKENS, "F3", "layer[*].row[-1].resid", source, others={"other": OTHER}, metric=apart,
                        given={"v": torch.linspace(-1, 1, 12).double()}, maps={"bit": lambda x: x * 1.00001},
                        exact=True, **FAST)  # fmt: skip
    assert (np.abs(found["exact"]) > 1e-9).all()
    np.testing.assert_allclose(found["approximate"], found["exact"], rtol=1e-2)
    assert found.about["rank correlation"]["value"] == pytest.approx(1)


def test_attribution_beside_the_sweep_of_the_same_metric() -> None:
    model = KINDS["simple"]()
    heads = [f"loop[{loop}].layer[{layer}].head[{head}].z" for loop in (1, 2) for layer in (1, 2) for head in (0, 1)]
    found = attribution(model, TOKENS, F**2, heads, "(F2)@other", others={"other": OTHER}, exact=True)
    values = sweep(model, TOKENS, F**2, heads, "(F2)@other", others={"other": OTHER}, metric="recovered").values
    close(found["exact"], values.mean((1, 2)), 1e-6)
    assert found["head"].tolist() == [0, 1] * 4
    told = found.about["rank correlation"]
    assert told["value"] == pytest.approx(spearmanr(found["approximate"], found["exact"]).statistic)
    assert told["low"] <= told["value"] <= told["high"]
    whole = attribution(model, TOKENS, F**2, "layer[*].z", "(F2)@other", others={"other": OTHER})
    close(whole["approximate"], found["approximate"].reshape(-1, 2).sum(1), 1e-6)
    assert "exact" not in whole.names
    assert "rank correlation" not in whole.about


@pytest.mark.parametrize(
    ("metric", "line"),
    [
        ("kl", r"'kl' is flat where nothing is patched, so that its gradient is 0 \(nearest: difference\)"),
        ("accuracy", r"'accuracy' has no gradient"),
        (lambda logits, _base, _examples: logits.argmax(-1).double(), "has no gradient"),
    ],
)
def test_metrics_without_a_first_order_get_one_line(metric: Any, line: str) -> None:
    with pytest.raises(InputError, match=line):
        attribution(KINDS["simple"](), TOKENS, F**2, "layer[1].z", "*=0", metric=metric)


def test_a_place_that_reaches_no_row_that_is_read_changes_nothing() -> None:
    """With and without a place that does, and whatever the metric: there is nothing to take a gradient of."""
    model, unread, read = (
        KINDS["simple"]().requires_grad_(False),
        "loop[2].layer[2].row[0].mlp_out",
        "loop[2].layer[2].row[-1].mlp_out",
    )
    answers = torch.tensor([[0, 1], [3, 2], [7, 4]])
    asked: dict[str, Any] = {"metric": "difference", "answers": answers, "exact": True}
    alone = attribution(model, TOKENS, F**2, unread, "*=0", **asked)
    both = attribution(model, TOKENS, F**2, [unread, read], "*=0", **asked)
    assert (alone["approximate"], alone["exact"]) == ([0], [0])
    assert both["approximate"][0] == both["exact"][0] == 0
    assert both["approximate"][1] != 0


SAME = torch.cat([OTHER[:1], TOKENS[1:2], OTHER[2:]])
"""Of the second example, the run that patches are from is its own."""


def test_examples_with_nothing_to_recover_are_skipped_on_request() -> None:
    model, place = KINDS["simple"](), "loop[1].layer[1].row[-1].z"
    asked: dict[str, Any] = {"others": {"other": SAME}, "metric": "recovered"}
    with pytest.raises(InputError, match=r"example 2 and its source .* \(nearest: skip=True, or metric=\"kl\"\)"):
        sweep(model, TOKENS, F**2, place, "(F2)@other", **asked)
    found = sweep(model, TOKENS, F**2, place, "(F2)@other", skip=True, **asked)
    some = sweep(model, TOKENS[[0, 2]], F**2, place, "(F2)@other", others={"other": SAME[[0, 2]]}, metric="recovered")
    assert found.values[:, 1].isnan().all()
    torch.testing.assert_close(found.values[:, [0, 2]], some.values)
    table = found.table()
    assert table["n"] == [2]
    close(table["value"], some.table()["value"])
    assert found.table().about["without"] == 0
    where = "layer[1].row[-1].z"
    for asked_of in (spans, attribution):
        made = asked_of(model, TOKENS, F**2, where, "(F2)@other", others={"other": SAME}, skip=True, **FAST)
        two = asked_of(model, TOKENS[[0, 2]], F**2, where, "(F2)@other", others={"other": SAME[[0, 2]]}, **FAST)
        assert (made["n"] == 2).all()
        close(
            made["value" if asked_of is spans else "approximate"], two["value" if asked_of is spans else "approximate"]
        )
    beside = attribution(model, TOKENS, F**2, [where, "layer[2].row[-1].z"], "(F2)@other", others={"other": SAME},
                         skip=True, exact=True)  # fmt: skip
    assert beside.about["rank correlation"]["value"] is not None
    for wrong, said in (({"metric": "kl"}, "are left out by the metric 'recovered'"), ({}, "none was asked for")):
        with pytest.raises(InputError, match=said):
            sweep(model, TOKENS, F**2, place, "(F2)@other", others={"other": SAME}, skip=True, **wrong)
    with pytest.raises(InputError, match="of 3 examples 3 are so"):
        sweep(model, TOKENS, F**2, place, "(F2)@other", others={"other": TOKENS}, metric="recovered", skip=True)


def test_what_is_measured_against_is_run_within_the_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    ran = measuring.carry_out

    def watched(model: Any, tokens: Any, programs: Any, settings: Any, **inputs: Any) -> Any:
        seen.append(settings.memory)
        return ran(model, tokens, programs, settings, **inputs)

    monkeypatch.setattr(measuring, "carry_out", watched)
    asked: dict[str, Any] = {"others": {"other": OTHER}, "memory": 10**7}
    sweep(KINDS["simple"](), TOKENS, F**2, "loop[1].layer[1].z", "(F2)@other", metric="recovered", **asked)
    spans(KINDS["simple"](), TOKENS, F**2, "layer[1].z", "(F2)@other", **asked, **FAST)
    assert len(seen) >= 10
    assert set(seen) == {10**7}


def test_patterns_of_other_lengths_have_no_difference() -> None:
    with pytest.raises(InputError, match=r"pattern has shape \[2, 4, 4\], and \[2, 3, 3\] in its source"):
        attribution(KINDS["simple"](), TOKENS, F**2, "layer[1].pattern", "(F2)@other", others={"other": OTHER[:, :3]},
                    metric=apart)  # fmt: skip


@pytest.mark.parametrize("clusters", [None, [0, 0, 1, 2, 2]])
def test_rank_correlations_are_those_of_means(clusters: list[int] | None) -> None:
    generator = np.random.default_rng(0)
    one = generator.integers(0, 3, (5, 7)).astype(float)  # with ties
    two = one + generator.normal(size=(5, 7))
    found = rank_correlation(one, two, clusters=clusters, draws=200)
    value = spearmanr(one.mean(0), two.mean(0)).statistic
    assert found["value"] == pytest.approx(value)
    low, high = found["low"], found["high"]
    assert low is not None and high is not None and -1 <= low < value < high <= 1  # noqa: PT018
    assert rank_correlation(one[:1], two[:1])["low"] is None
    assert rank_correlation(one[:, :1], two[:, :1])["value"] is None
    assert rank_correlation(np.ones((5, 7)), two)["value"] is None
    with pytest.raises(InputError, match="between two values for each example and cell"):
        rank_correlation(one, two[:, :3])


# All of them ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        lambda model, some, **more: spans(model, some, model.usual, "layer[1].row[-1].z", **more),
        lambda model, some, **more: attribution(model, some, model.usual, "layer[1].row[-2,-1].k", exact=True, **more),
    ],
)
@pytest.mark.parametrize("kind", ["everything", "two stacks"])
def test_texts_of_unequal_length_are_what_each_is_alone(asked: Callable[..., Table], kind: str) -> None:
    model = KINDS[kind]()
    source = f"({model.usual})@other"
    together = asked(model, TEXTS, source=source, others={"other": OTHERS}, metric=apart, **FAST)
    alone = [
        asked(model, [text], source=source, others={"other": [other]}, metric=apart, **FAST)
        for text, other in zip(TEXTS, OTHERS, strict=True)
    ]
    for name in ("value", "approximate", "exact"):
        if name in together.names:
            close(together[name], np.mean([each[name] for each in alone], 0))


def test_ablations_of_texts_of_unequal_length_are_those_of_each_alone() -> None:
    model = KINDS["learned positions"]()
    asked: dict[str, Any] = {"kinds": ["zero", "mean"], "reference": OTHERS, "metric": apart, **FAST}
    together = ablations(model, TEXTS, F**2, "layer[*].row[-1].mlp_hidden", **asked)
    alone = [ablations(model, [text], F**2, "layer[*].row[-1].mlp_hidden", **asked)["value"] for text in TEXTS]
    close(together["value"], np.mean(alone, 0))


def test_intervals_are_over_clusters() -> None:
    model = KINDS["simple"]()
    found = ablations(model, TOKENS, F**2, "layer[1].z", clusters=[0, 0, 0])
    assert np.isnan(found["value_low"]).all()
    apart_from = ablations(model, TOKENS, F**2, "layer[1].z", clusters=[0, 0, 1])
    assert (apart_from["value_low"] < apart_from["value"]).all()
    assert (found["value"] == apart_from["value"]).all()


def test_an_instrument_starts_from_given_states() -> None:
    model = KINDS["simple"]()
    state = run(model, TOKENS, "F", keep="loop[1].layer[1].resid")["F"].kept[Address.parse("loop[1].layer[1].resid")]
    tokens = ablations(model, TOKENS, "F3", "layer[*].mlp_out", metric=apart, **FAST)
    states = ablations(model, None, "h0 F3", "layer[*].mlp_out", metric=apart, state=state, **FAST)
    close(states["value"], tokens["value"])
    values = attribution(model, None, "h0 F3", "layer[*].mlp_out", "*=0", metric=apart, state=state, **FAST)
    close(
        values["approximate"],
        attribution(model, TOKENS, "F3", "layer[*].mlp_out", "*=0", metric=apart, **FAST)["approximate"],
    )
    with pytest.raises(InputError, match="mean run a reference set from tokens, and 'h0 F3' starts from a given state"):
        ablations(model, None, "h0 F3", "layer[1].z", "mean", state=state)


# Paths ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["q", "k", "v", "mlp_out"])
def test_a_path_changes_the_input_of_its_receiver_by_what_the_sender_adds(component: str) -> None:
    """Worked out by hand: the stream that enters loop 2, with what one head of loop 1 adds to it."""
    model = KINDS["simple"]()
    own, other = (plain_run(model, {"main": each}, F**2).components for each in (TOKENS, OTHER))
    z = own[1, 2, "z"].clone()
    z[:, 0] = other[1, 2, "z"][:, 0]
    stream = own[2, 1, "resid"] + model.layers[1].attn_out(z) - own[1, 2, "attn_out"]
    layer, rows = model.layers[0], torch.arange(TOKENS.shape[1])
    becomes = (
        layer.mlp_out(stream + own[2, 1, "attn_out"]) if component == "mlp_out"
        else layer.project(stream, rows, component)[0]
    )  # fmt: skip
    found = paths(model, TOKENS, F**2, "loop[1].layer[2].head[0].z", f"loop[2].layer[1].{component}", "(F2)@other",
                  others={"other": OTHER}, metric=apart, **FAST)  # fmt: skip
    patched = (F**2).patch(f"loop[2].layer[1].{component}", "$new")
    close(found["value"], plainly(model, patched, given={"new": becomes.detach()}).mean())


@pytest.mark.parametrize("kind", ["two stacks", "everything"])
def test_a_path_to_what_a_call_sees_is_the_stream_alone(kind: str) -> None:
    model = KINDS[kind]()
    program = Program.parse(model.usual)
    source = Run(program, "other")
    asked: dict[str, Any] = {"others": {"other": OTHER}, "metric": apart, **FAST}
    last = f"loop[{program.calls}]"
    found = paths(model, TOKENS, program, [f"{last}.layer[1].mlp_out", "loop[1].layer[1].row[-1].z"],
                  [f"{last}.layer[2].resid", f"{last}.layer[1].resid"], source, **asked)  # fmt: skip
    assert [(row["sender"], row["receiver"]) for row in found] == [
        (f"{last}.layer[1].mlp_out", f"{last}.layer[2].resid"),
        ("loop[1].layer[1].row[-1].z", f"{last}.layer[2].resid"),
        ("loop[1].layer[1].row[-1].z", f"{last}.layer[1].resid"),
    ]  # nothing leads back
    neighbours = plainly(model, program.patch(f"{last}.layer[1].mlp_out", source)).mean()
    close(found["value"][0], neighbours)  # nothing stands between them
    assert found["value"][1] != found["value"][2]  # from the entrance of the call its first layer reacts


def test_paths_that_lead_nowhere_get_one_line() -> None:
    model = KINDS["prelude and coda"]()
    for sender, receiver, line in (
        ("loop[2].layer[1].z", "loop[1].layer[2].q", r"no sender is computed .* before loop\[1\].layer\[2\].q"),
        ("loop[2].layer[1].z", "loop[2].layer[1].q", "so no path leads there"),
        ("prelude.layer[1].z", "loop[1].layer[2].q", "is in no call, and paths lead from call to call"),
    ):
        with pytest.raises(InputError, match=line):
            paths(model, TOKENS, F**2, sender, receiver, "*=0", metric=apart)
