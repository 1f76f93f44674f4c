"""Results and values as they print: one line, cut where it is long; and as tables, files and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from loopscope import Dense, F, J, Program, ResidualLowRank, Store, grid, run, sweep
from loopscope.address import Address, Site
from loopscope.estimates import means
from loopscope.execute.plain import PlainRun
from loopscope.maps import AffineMap, DiagonalLowRank
from loopscope.measure import exiting
from loopscope.measure.find_heads import FoundHeads, Swept
from loopscope.measure.heads import Heads, Selection, Tried
from loopscope.measure.patching import compare, recover
from loopscope.measure.readouts import read_loops
from loopscope.measure.side_by_side import Condition, SideBySide
from loopscope.models.decoding import generate
from loopscope.models.steering import FullPrecisionMap
from loopscope.patches import Given, Patch, Run
from loopscope.quantity import Quantity, QuantityTable
from loopscope.results import Tabular
from loopscope.stats import Estimate, tally
from loopscope.table import Table
from loopscope.tasks.examples import examples, split
from loopscope.tasks.graph_walk import GraphWalk
from loopscope.tasks.populations import population
from tests.ouro_tiny import golden, tiny_ouro
from tests.tiny import tiny_model, tiny_tokens

LONGEST = 200
"""Characters of what anything prints."""


def side_by_side() -> SideBySide:
    items = examples([{"prompt": f"<b>{n}", "answer": "1", "steps": 1 + n % 2} for n in range(6)])
    every = tuple(range(6))
    right = torch.tensor([True, True, True, False, True, False])
    return SideBySide(
        tuple(items), (Condition("with J", "F J:x F", every, right), Condition("<i>", "F2", every, ~right))
    )


def selection(scopes: int = 3) -> Selection:
    tried = tuple(Tried("layers", "1.0", (2, 3), n, 0, n / 9, 0.1, n > 1) for n in range(scopes))
    return Selection(Heads(((1, 0), (2, 1))), (2, 3), (1, 2), True, 9, 1, 9, 12.5, tried)


def results() -> dict[str, Tabular]:
    model, tokens = tiny_model(), tiny_tokens(3)
    ouro, text = tiny_ouro(), golden()["input_ids"][:2]
    places = grid("z", loops=[2], layers=[1, 2], heads=[0, 1])
    ran = run(model, tokens, ["F2", "F2 J:x F"], maps={"x": Dense(model.width)}, read="calls", keep=places[0])
    plain = Program.parse("F2")
    read = read_loops(ouro, text)
    swept = tuple(Swept(2, layer, 0, layer, 0.5, (0.0, 1.0), None) for layer in (1, 2))
    found = FoundHeads(plain, 3, {"discovery": 4, "test": 6}, swept, selection(), side_by_side(), None, {})
    return {
        "result": ran,
        "trace": ran["F2"],
        "work": ran.work,
        "sweep": sweep(model, tokens, "F2", places, "(F2 J:x)@other", maps={"x": Dense(model.width)},
                       others={"other": tokens.flip(0)}),
        "measured": sweep(model, tokens, "F2", places, "(F2)@other", others={"other": tokens.flip(0)}, metric="kl"),
        "next token": compare(ouro, text[:1], [Program.parse("F J:x F")], maps={"x": Dense(ouro.width)})[1],
        "recovery": recover(ouro, text[:1], text[1:], plain, [Address.parse("loop[2].layer[1].row[-1].resid")]),
        "readouts": read,
        "recording": exiting.recording_of(read.logits[:, :, -1:]),
        "generation": generate(ouro, text, new=2),
        "heads": Heads(((1, 0), (2, 1))),
        "selection": selection(),
        "found heads": found,
        "side by side": side_by_side(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, Tabular]:
    return results()


def every_result() -> set[type]:
    def below(one: type) -> set[type]:
        return {each for mine in one.__subclasses__() for each in (mine, *below(mine))}

    return below(Tabular)


def test_every_result_is_tried_here(made: dict[str, Tabular]) -> None:
    from loopscope.training.lm.task_results import FittedMap, Tuned

    assert every_result() == {type(each) for each in made.values()} | {FittedMap, Tuned}  # these need training


def test_results_print_in_a_line_and_are_tables_and_files(made: dict[str, Tabular], tmp_path: Path) -> None:
    for name, each in made.items():
        assert "\n" not in repr(each), name
        assert len(repr(each)) < LONGEST, repr(each)
        assert repr(each).startswith(f"<{type(each).__name__}: ")
        table, page = each.table(), each._repr_html_()
        assert isinstance(table, Table)
        assert len(table)
        assert [*each.to_frame().columns] == [*table.names]
        assert page.count("<table>") == 1
        assert "<b>" not in page
        assert "<i>" not in page
        each.save(tmp_path / f"{name}.csv")
        assert (tmp_path / f"{name}.csv").read_text().splitlines()[0] == ",".join(table.names)


def test_what_results_say_of_themselves(made: dict[str, Tabular]) -> None:
    said = {name: repr(each) for name, each in made.items()}
    assert said["trace"] == "<Trace: 3 examples, 1 row, 5 classes, 1 kept at 2 points of 'F2'>"
    assert said["sweep"] == "<Sweep: 4 addresses, 3 examples, 1 row of 'F2' from (F2 J:x)@other>"
    assert said["measured"] == "<Measured: kl at 4 addresses, 3 examples of 'F2' from (F2)@other>"
    assert said["heads"] == "<Heads: 1.0 2.1>"
    assert said["selection"] == "<Selection: 2 heads in loops 2, 3, every step passed, 3 scopes tried: 1.0 2.1>"
    assert said["side by side"] == "<SideBySide: 6 examples; right: with J 66.7%, <i> 33.3%>"
    assert len(repr(selection(10_000))) < LONGEST


def test_safetensors_have_all_tensors(made: dict[str, Tabular], tmp_path: Path) -> None:
    result: Any = made["result"]
    result.save(tmp_path / "result.safetensors")
    tensors = load_file(tmp_path / "result.safetensors")
    assert torch.equal(tensors["F2 J:x F/logits/h3"], result["F2 J:x F"].logits)
    assert "F2/kept/loop[2].layer[1].head[0].z" in tensors
    made["work"].save(tmp_path / "work.safetensors")  # no tensors: the table's columns
    assert load_file(tmp_path / "work.safetensors")["calls"].shape == (1,)


def test_tables_hold_what_results_hold(made: dict[str, Tabular]) -> None:
    result: Any = made["result"]
    answers = made["trace"].table()
    trace = result["F2"]
    np.testing.assert_array_equal(answers.where(point="h2")["answer"], trace.predictions[:, 0])
    likely = trace.logits_at["h1"].softmax(-1).amax(-1)[:, 0]
    np.testing.assert_allclose(answers.where(point="h1")["probability"], likely, rtol=1e-5)
    assert len(made["result"].table()) == 3 * (2 + 3)

    found: Any = made["sweep"]
    table = found.table(answers=found.predictions[0, :, 0])
    assert table["loop"].tolist() == [2] * 4
    assert (table["layer"].tolist(), table["head"].tolist()) == ([1, 1, 2, 2], [0, 1, 0, 1])
    assert table["right"][0] == 1.0
    changed = (found.predictions != found.base.argmax(-1))[:, :, 0].double().mean(1)
    np.testing.assert_allclose(table["changed"], changed)
    kl: Any = made["measured"]
    np.testing.assert_allclose(kl.table()["value"], kl.values[:, :, 0].mean(1), rtol=1e-5)
    assert kl.table().about["without"] == float(kl.base.mean())

    read: Any = made["readouts"]
    top = read.table()
    assert len(top) == read.logits.shape[0] * int(read.mask.sum())
    last = top.where(example=1, row=read.tokens.shape[1] - 1, loop=read.logits.shape[0])
    assert last["token"].tolist() == read.top(1)[0][-1, 1].tolist()
    assert last["read"].tolist() == [int(read.tokens[1, -1])]

    right = made["side by side"].table()
    assert right["condition"].tolist() == ["with J"] * 3 + ["<i>"] * 3
    assert right["right"][0] == pytest.approx(4 / 6)
    assert right["more"][3] == pytest.approx(-2 / 6)
    assert made["found heads"].table()["right"].tolist() == [0.25, 0.5]


def test_several_read_rows_have_rows_of_their_own() -> None:
    found = sweep(tiny_model(), tiny_tokens(3), "F2", "loop[1].layer[1].row[0].resid", "(F)", rows=[-1, -2])
    assert found.table(draws=5)["row"].tolist() == [-1, -2]


HALF = Quantity("a.b", "x", Estimate(0.5, 0, 1, 2, "x", 0), 2)
MANY = Program.parse("F" + " J:a F" * 400)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Program.parse("F6  J:one F"), "Program('F6 J:one F')"),
        (F, "Call('F')"),
        (J("one"), "J('one')"),
        (Address.parse("loop[7].layer[2].row[-1].z"), "Address('loop[7].layer[2].row[-1].z')"),
        (Site.parse("layer[2].z"), "Site('layer[2].z')"),
        (Given("a"), "Given(name='a')"),
        (Run(Program.parse("F6"), "other"), "Run('(F6)@other')"),
        (Patch(Site.parse("layer[2].z"), Given("a")), "Patch('layer[2].z<-$a')"),
        (DiagonalLowRank(384, 48), "DiagonalLowRank(384, rank 48: 37,632 numbers)"),
        (FullPrecisionMap(ResidualLowRank(8, 2)), "FullPrecisionMap(ResidualLowRank(8, rank 2: 40 numbers))"),
        (Dense(8), "Dense(8: 72 numbers)"),
        (GraphWalk(), "GraphWalk(nodes=10)"),
        (PlainRun(), "<plain run: 0 states, 0 components>"),
        (population("rings"), "<population 'rings': 512 graphs of 10 nodes, rule all>"),
        (means(np.eye(3), draws=5), "<estimates: [3] from 0.3333 to 0.3333>"),
        (tally(np.array([True, False]), np.array([0, 1])), "<tally: 1 of 2 in 2 clusters>"),
        (QuantityTable("a.b", "Two", [HALF] * 900), "<a.b: 900 quantities; Two>"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)  # fmt: skip
def test_values_print_in_a_line(value: object, said: str) -> None:
    assert repr(value) == said


def test_what_prints_can_be_read_again() -> None:
    assert eval(repr(J("one")), {"J": J}) == J("one")
    address = Address.parse("loop[7].layer[2].z")
    assert eval(repr(address), {"Address": Address.parse}) == address


@pytest.mark.parametrize(
    "value",
    [MANY, MANY.steps, Run(MANY), MANY.patch("loop[1].layer[1].z", MANY), Store("/" + "a" * 1_000)],
    ids=["program", "steps", "run", "patched", "store"],
)
def test_long_values_are_cut(value: object) -> None:
    said = repr(value[:1]) if isinstance(value, tuple) else repr(value)
    assert "\n" not in said
    assert len(said) < LONGEST + 20


def test_models_and_data_print_in_a_line() -> None:
    assert repr(tiny_model()).endswith("layers F 2, width 16, 4 heads, 4,720 numbers>")
    assert repr(tiny_ouro()).startswith("<Ouro: 4 loops of layers F ")
    found = split(examples([{"prompt": str(n), "answer": "1"} for n in range(40)]))
    assert repr(found).startswith("Split('examples', ")
    assert all(len(repr(each)) < LONGEST for each in (tiny_ouro(), tiny_model(), found))
    several: list[AffineMap] = [Dense(4), ResidualLowRank(4, 1)]
    assert repr(several) == "[Dense(4: 20 numbers), ResidualLowRank(4, rank 1: 12 numbers)]"
