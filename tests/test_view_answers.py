"""Every answer is what the library itself gives."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pytest
import torch

from loopscope.address import Address
from loopscope.execute import run, sweep
from loopscope.measure.motion import trajectories
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.program import Program
from loopscope.tasks.graph_walk import GraphWalk, advance
from loopscope.view.contract import unpack
from loopscope.view.explorer import Explorer
from loopscope.view.runs import Runs, finish
from loopscope.view.shown_model import ShownModel
from tests.commands import loopscope
from tests.explored import ONE, TWO, asked, tiny_explorer, tiny_subject
from tests.kinds import KINDS
from tests.tiny import ROWS

NEAR = {"atol": 2e-5, "rtol": 1e-4}
TOKENS, OTHERS = torch.tensor([ONE]), {"other": torch.tensor([TWO])}

PROGRAMS = [
    "F3",
    "F2 J:one F J:two J:one F",
    "F2 F[layer[2].head[1].row[-1].pattern<-(F2 J:one F)] F",
    "F2 F[layer[1].z<-(F2 J:one F)@other; layer[2].mlp_out*=0]",
    "F3 F[layer[2].resid+=0.5*(F2 J:one F).loop[2]] F[layer[1].row[3].v<-(F5).row[5]]",
    "F2 F[layer[2].z<-(F F[layer[1].mlp_out<-(F3)@other] F)]",
    "F F[layer[1].resid<-(F2 J:one).loop[2]]",
]

TOP = {"kind": "readouts", "answers": [], "rows": "all", "top": 3}


@pytest.fixture(scope="module")
def explorer() -> Explorer:
    return tiny_explorer()


def own(explorer: Explorer, program: str, **how: Any) -> Any:
    subject = explorer.subject
    return run(subject.model, TOKENS, program, maps=dict(subject.maps), others=OTHERS, **how)[program]


@pytest.mark.parametrize("program", PROGRAMS)
def test_readouts_are_those_of_a_run(explorer: Explorer, program: str) -> None:
    head, arrays = asked(explorer, program, kind="readouts", answers=[2, 0], rows="all", top=3)
    expected = own(explorer, program, read="all", rows=range(ROWS)).logits_at
    assert [point["name"] for point in head["points"]] == list(expected)
    shares = torch.stack([logits[0].softmax(-1) for logits in expected.values()])
    assert np.allclose(arrays["distribution"], shares, **NEAR)
    top = shares.topk(3, -1)
    assert np.allclose(arrays["probability"], top.values, **NEAR)
    assert np.allclose(np.take_along_axis(arrays["distribution"], arrays["top"], -1), arrays["probability"])
    assert np.allclose(arrays["answer"], shares[..., [2, 0]], **NEAR)
    better = (arrays["distribution"][..., None, :] > arrays["answer"][..., None]).sum(-1)
    assert np.array_equal(arrays["rank"], better + 1)
    assert head["rows"] == list(range(ROWS))
    assert set(head["names"]) == {str(each) for each in np.unique(arrays["top"])} | {"0", "2"}


@pytest.mark.parametrize("program", [*PROGRAMS, "F2 F[layer[2].resid*=0.5] F", "F2 F[layer[2].z*=0; layer[1].v*=2]"])
def test_readouts_of_deep_stacks_are_those_of_a_run(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopscope.view.runs.DEEP", 1)
    explorer = tiny_explorer()
    asked(explorer, "F3", **TOP)
    _, arrays = asked(explorer, program, **TOP)
    expected = own(explorer, program, read="all", rows=range(ROWS)).logits_at
    assert np.allclose(arrays["distribution"], torch.stack([each[0].softmax(-1) for each in expected.values()]), **NEAR)
    place = f"loop[{Program.parse(program).calls}].layer[2]"
    _, one = asked(explorer, program, kind="patterns", head=1, place=place, size=0)
    kept = own(explorer, program, keep=f"{place}.pattern").kept
    assert np.allclose(one["pattern"], next(iter(kept.values()))[0, 1], atol=1e-3)
    forgetful = tiny_explorer()
    forgetful.runs.kept.most = 0
    assert np.array_equal(asked(forgetful, program, **TOP)[1]["distribution"], arrays["distribution"])


@pytest.mark.parametrize(
    "program", ["F2 F[layer[2].row[-1].z<-(F2 J:one F)@other] F", f"F F[layer[1].row[<{ONE[2]} {ONE[3]}>].mlp_out*=0]"]
)
def test_other_lengths_and_rows_by_what_stands_there_are_as_the_library_has_them(
    explorer: Explorer, program: str
) -> None:
    shorter = TWO[:5]
    _, arrays = asked(explorer, program, shorter, **{**TOP, "rows": "last"})
    others = {"other": torch.tensor([shorter])}
    expected = run(explorer.subject.model, TOKENS, program, maps=dict(explorer.subject.maps), others=others)
    assert np.allclose(arrays["distribution"][-1, 0], expected[program].logits[0, -1].softmax(-1), **NEAR)
    read = {"kind": "sweep", "by": "layer", "component": "z", "rows": [-1], "source": "(F4)@other"}
    head, _ = asked(explorer, "F2 J:one F2", shorter, **read)
    assert head["base"]["answer"] != head["source"]["answer"]


def test_the_last_row_is_that_of_all_rows(explorer: Explorer) -> None:
    _, last = asked(explorer, PROGRAMS[1], **{**TOP, "rows": "last"})
    _, every = asked(explorer, PROGRAMS[1], **TOP)
    assert np.allclose(last["distribution"][:, 0], every["distribution"][:, -1], **NEAR)


def test_what_is_kept_changes_no_answer() -> None:
    warm, program = tiny_explorer(), PROGRAMS[2]
    for each in PROGRAMS:
        asked(warm, each, **TOP)
    request = warm.request(program, TOP, {"tokens": ONE})
    assert finish(warm.answer(request)) == finish(tiny_explorer().answer(request))
    forgetful = Explorer(tiny_subject(), memory=400_000)
    forgetful.runs.kept.most = 0
    assert finish(forgetful.answer(request)) == finish(warm.answer(request))


@pytest.mark.parametrize("program", PROGRAMS[:4])
def test_patterns_are_those_of_a_run(explorer: Explorer, program: str) -> None:
    address = Address.parse("loop[3].layer[2].pattern")
    expected = own(explorer, program, keep=[address]).kept[address][0]
    head, arrays = asked(explorer, program, kind="patterns", head=None, place="loop[3].layer[2]", size=64)
    assert head["exact"]
    assert np.abs(arrays["patterns"] / 255 - expected.numpy()).max() < 0.5 / 255 + 1e-5
    _, one = asked(explorer, program, kind="patterns", head=1, place="loop[3].layer[2]", size=0)
    assert np.allclose(one["pattern"], expected[1], atol=1e-3)
    small, pooled = asked(explorer, program, kind="patterns", head=None, place="loop[3].layer[2]", size=4)
    assert (small["exact"], small["side"], pooled["patterns"].shape) == (False, 2, (4, 4, 4))
    assert pooled["patterns"][0, 3, 3] == arrays["patterns"][0, 6:, 6:].max()


@pytest.mark.parametrize("program", PROGRAMS[:4])
def test_trajectories_are_those_of_the_instrument(explorer: Explorer, program: str) -> None:
    head, arrays = asked(explorer, program, kind="trajectory", rows="all")
    subject = explorer.subject
    table = trajectories(
        subject.model, TOKENS, program, rows="all", draws=1, maps=dict(subject.maps), others=OTHERS
    )  # fmt: skip
    for name, found in arrays.items():
        assert np.allclose(found, table.grid(name, "loop", "row")[0], equal_nan=True, **NEAR)
    assert head["loops"] == list(range(Program.parse(program).calls + 1))


@pytest.mark.parametrize(
    ("program", "source", "by", "rows"),
    [
        ("F4", "(F2 J:one F2)", "head", "all"),
        ("F2 J:one F2", "(F2 J:one F2)@other", "layer", [-1]),
        ("F2 J:two F[layer[1].mlp_out*=0] F", "(F4)", "head", [-1, 2]),
        ("F3 F[layer[2].z<-(F4)@other]", "F4", "layer", "all"),
        ("F J:two F2", "(F3)@other.loop[2]", "layer", "all"),
    ],
)
def test_a_sweep_is_that_of_the_library(explorer: Explorer, program: str, source: str, by: str, rows: Any) -> None:
    steps = explorer.answer(
        explorer.request(
            program,
            {"kind": "sweep", "by": by, "component": "z", "rows": rows, "source": source},
            {"tokens": ONE},
            {"other": {"tokens": TWO}},
        )
    )
    told = []
    try:
        while True:
            told.append(next(steps))
    except StopIteration as stop:
        head, arrays = unpack(stop.value)
    assert "error" not in head, head
    counts = [each for each in told if each is not None]
    assert counts == sorted(counts)
    assert counts[-1] == (head["cells"], head["cells"])
    subject = explorer.subject
    text = source if source.startswith("(") else f"({source})"
    expected = sweep(
        subject.model, TOKENS, program, head["addresses"], text, metric="recovered", maps=dict(subject.maps),
        others=OTHERS,
    )  # fmt: skip
    assert np.allclose(arrays["recovered"].reshape(-1), expected.values[:, 0, 0], atol=1e-3)
    assert arrays["recovered"].shape == ((len(head["places"]), 4) if by == "head" else (len(head["places"]),))
    logits = own(explorer, program).logits[0, -1]
    assert head["base"]["answer"] == int(logits.argmax())
    assert head["base"]["probability"] == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)


def test_two_programs_are_compared_point_by_point(explorer: Explorer) -> None:
    one, two = PROGRAMS[2], "F2 J:one F2"
    head, arrays = asked(explorer, one, kind="compare", other=two, rows="all")
    mine, theirs = (own(explorer, each, read="all", rows=range(ROWS)).logits_at for each in (one, two))
    for points in (head["points"], head["others"]):  # each beside the state after as many calls, map or no map
        assert [point["name"] for point in points] == [f"h{calls}" for calls in range(5)]
    assert head["places"] == [[0, 0], [1, 1], [2, 2], [3, 4], [4, 5]]
    for at in range(5):
        before, after = mine[f"h{at}"], theirs[f"h{at}"]
        p, q = (each[0].double().log_softmax(-1) for each in (before, after))
        assert np.allclose(arrays["kl"][at], (p.exp() * (p - q)).sum(-1), atol=1e-5)
        assert np.array_equal(arrays["agree"][at], before[0].argmax(-1) == after[0].argmax(-1))
    assert np.allclose(arrays["distance"][:3], 0, atol=1e-4)
    assert np.allclose(arrays["cosine"][:3], 1, atol=1e-5)
    assert (arrays["distance"][3:] > 1e-3).any()


def test_states_behind_maps_stand_beside_each_other(explorer: Explorer) -> None:
    head, arrays = asked(explorer, "F2 J:one F", kind="compare", other="F2 J:two F J:one", rows="last")
    assert [point["name"] for point in head["points"]] == ["h0", "h1", "h2", "h2 J:one", "h3"]
    assert [point["name"] for point in head["others"]] == ["h0", "h1", "h2", "h2 J:two", "h3"]
    assert arrays["distance"][3] > 1e-3


def test_the_mean_is_taken_over_the_examples() -> None:
    explorer = Explorer(tiny_subject())
    examples = explorer.subject.examples
    values = []
    for each in examples:
        address = Address.parse("loop[2].layer[1].row[-1].z")
        kept = run(explorer.subject.model, torch.tensor([each.input["tokens"]]), "F3", keep=[address])["F3"].kept
        values.append(kept[address])
    program = "F F[layer[1].row[-1].z<-$mean] F"
    expected = run(explorer.subject.model, TOKENS, program, given={"mean": torch.stack(values).mean(0)})[program]
    _, arrays = asked(explorer, program, **{**TOP, "rows": "last"})
    assert np.allclose(arrays["distribution"][-1, 0], expected.logits[0, -1].softmax(-1), **NEAR)


@pytest.mark.parametrize(
    ("kind", "programs"),
    [
        ("everything", ["F2", "zeros F2", "seed:3 F2 F[layer[1].z<-(seed:4 F3)] coda:3[layer[1].z*=0]",
                        "prelude[layer[1].mlp_out*=0] F2", "F F[layer[1].resid<-(prelude[layer[1].z*=0] F2)]",
                        "F2 coda:2[layer[1].mlp_out<-(seed:5 F2)]", "F[enter<-(F)@other] F"]),
        ("two stacks", ["(L2 H)2", "L2 H[layer[1].z<-(L2 H)@other] L H"]),
        ("value embeddings", ["F2 F[layer[1].z<-(F3)@other]"]),
    ],
)  # fmt: skip
def test_models_of_every_make_answer_as_they_run(kind: str, programs: list[str]) -> None:
    model = KINDS[kind](dtype=torch.float32)
    explorer = Explorer(ShownModel(model, kind))
    for program in programs:
        head, arrays = asked(explorer, program, **TOP)
        assert "error" not in head, (program, head)
        expected = run(model, TOKENS, program, others=OTHERS, read="all", rows=range(ROWS))[program]
        shares = torch.stack([logits[0].softmax(-1) for logits in expected.logits_at.values()]).detach()
        assert np.allclose(arrays["distribution"], shares, atol=1e-4), program
        place = "loop[2].layer[1]"
        kept = run(model, TOKENS, program, others=OTHERS, keep=f"{place}.pattern")[program].kept
        _, one = asked(explorer, program, kind="patterns", head=0, place=place, size=0)
        assert np.allclose(one["pattern"], next(iter(kept.values()))[0, 0].detach(), atol=1e-3), program


def test_a_graph_is_described_as_it_stands() -> None:
    subject = ShownModel(LoopedTransformer(graph_walk_config(6, 3)).eval(), "walks")
    explorer, task = Explorer(subject), GraphWalk(6)
    assert subject.kind == "graph"
    example = subject.examples[0]
    head, _ = unpack(finish(explorer.answer(explorer.request("F3", {"kind": "input"}, example.input))))
    graph = torch.tensor([example.input["graph"]])
    start = torch.tensor([example.input["start"]])
    assert [each["id"] for each in head["tokens"]] == task.tokens(graph, start)[0].tolist()
    assert head["graph"]["answers"][8:10] == [int(advance(graph, start, steps)) for steps in (8, 9)]
    assert [head["tokens"][row]["text"] for row in head["graph"]["rows"]["destination"]] == [
        str(each) for each in example.input["graph"]
    ]
    assert head["tokens"][-1]["text"] == "ANSWER"


def test_a_program_is_checked_and_said_for_others(explorer: Explorer) -> None:
    text = " F2  F[ layer[2].row[-1].pattern <- (F2 J:one F)@other ] F"
    head, _ = asked(explorer, text, kind="check")
    assert head["program"] == str(Program.parse(text))
    assert (head["maps"], head["inputs"], head["given"], head["calls"]) == (["one"], ["other"], [], 4)
    assert head["patches"] == [
        {
            "address": "loop[3].layer[2].row[-1].pattern",
            "source": "(F2 J:one F)@other",
            "text": "layer[2].row[-1].pattern<-(F2 J:one F)@other",
        }
    ]
    assert [step["loop"] for step in head["steps"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "program",
    [
        "F2 J:tiny-one F[layer[2].z<-(F3)@other]",
        "F2 J:tiny-one F[layer[2].head[1].pattern<-$mean] F",
        "F2 F[layer[1].row[-1].z<-$mean; layer[2].z*=0]",
    ],
)
def test_the_script_and_the_command_of_a_program_give_the_same_numbers(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from loopscope.view.shown_model import open_model

    explorer = Explorer(open_model("tiny-0"))
    example = explorer.subject.examples[0]
    assert explorer.subject.titles["tiny-one"] == "tiny-one-1@tiny-0"

    def ask(read: dict[str, Any]) -> Any:
        request = explorer.request(program, read, example.input, example.others)
        return unpack(finish(explorer.answer(request)))

    said = ask({"kind": "check"})[0]
    head, arrays = ask({**TOP, "rows": "last"})
    exec(compile(said["python"], "script", "exec"), {})
    calls = [at for at, point in enumerate(head["points"]) if point["map"] is None and point["calls"]]
    for line, at in zip(capsys.readouterr().out.splitlines(), calls, strict=True):
        name, best, share = line.split()
        assert (name, int(best)) == (head["points"][at]["name"], arrays["top"][at, 0, 0])
        assert float(share) == pytest.approx(arrays["probability"][at, 0, 0], abs=2e-4)
    code, out, _ = loopscope(capsys, *shlex.split(said["command"])[1:], "--json")
    assert code == 0
    for at, point in enumerate(json.loads(out)["points"]):
        assert [each["class"] for each in point["top"]] == arrays["top"][at, 0].tolist()
        assert [each["probability"] for each in point["top"]] == pytest.approx(arrays["probability"][at, 0].tolist())


@pytest.mark.parametrize(
    ("program", "read", "said"),
    [
        ("F2 x", TOP, "cannot read 'x'"),
        ("F2 J:onk F", TOP, "nearest: one"),
        ("F2 F[layer[3].z*=0]", TOP, "layers 1..2"),
        ("F2 F[layer[1].z<-$mine]", TOP, "no tensor is called 'mine'"),
        ("F2 F[layer[1].z<-(F3)@mine]", TOP, "no input is called 'mine'"),
        ("h3 F", TOP, "starts from a given state"),
        ("F3", {**TOP, "answers": [5]}, "classes are 0 to 4"),
        ("F3", {"kind": "patterns", "head": 4, "place": "loop[1].layer[1]", "size": 0}, "heads are 0 to 3"),
        ("F3", {"kind": "patterns", "head": None, "place": "loop[4].layer[1]", "size": 64}, "loop 4 does not exist"),
        ("F3", {"kind": "patterns", "head": None, "place": "loop[1].layer[1].head[1]", "size": 64}, "a place is"),
        ("F3", {"kind": "patterns", "head": 1, "place": "loop[1].layer[1]", "size": 64}, "with size 0"),
        ("F3", {"kind": "compare", "other": "H3", "rows": "last"}, "stacks of this model"),
        ("F3", {"kind": "sweep", "by": "head", "component": "resid", "rows": "all", "source": "F4"}, "no heads"),
        ("F3", {"kind": "sweep", "by": "head", "component": "z", "rows": "all", "source": "(F3)"}, "answer '4'"),
        ("F3", {"kind": "sweep", "by": "head", "component": "z", "rows": "all", "source": "*=0"}, "from a run"),
        ("F3", {"kind": "sweep", "by": "head", "component": "z", "rows": [], "source": "F4"}, "rows of a sweep"),
        ("F4", {"kind": "sweep", "by": "head", "component": "z", "rows": [7], "source": "F2 J:one F2"}, "rows 0..6"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_answer_in_the_librarys_words(
    explorer: Explorer, program: str, read: dict[str, Any], said: str
) -> None:
    head, arrays = asked(explorer, program, None if "mine" in program else TWO, **read)
    assert (head["kind"], arrays) == ("error", {})
    assert said in head["error"]["message"]
    assert "\n" not in head["error"]["message"]


def test_a_sweep_from_an_input_of_another_length_is_refused_as_it_was_asked(explorer: Explorer) -> None:
    read = {"kind": "sweep", "by": "layer", "component": "pattern", "rows": "all", "source": "(F3)@other"}
    head, _ = asked(explorer, "F3", TWO[:-1], **read)
    assert head["error"]["message"].startswith("layer[1].pattern<-(F3)@other takes a pattern")


def test_where_a_program_is_wrong_is_told(explorer: Explorer) -> None:
    head, _ = asked(explorer, "F2 F[layer[2].q", kind="check")
    assert head["error"]["position"] == len("F2 F[")


def test_a_readout_that_would_take_too_much_memory_is_refused() -> None:
    explorer = Explorer(tiny_subject(), memory=1000)
    head, _ = asked(explorer, "F3", **TOP)
    assert "more than the 0.0 GiB" in head["error"]["message"]
    assert "error" not in asked(explorer, "F3", **{**TOP, "rows": "last"})[0]


def test_another_model_has_another_fingerprint() -> None:
    mine = tiny_subject()
    assert mine.fingerprint == tiny_subject().fingerprint
    maps = {"one": mine.maps["two"], "two": mine.maps["one"]}
    others = [ShownModel(mine.model, "tiny", maps), ShownModel(mine.model, "tiny"), tiny_subject(loading={"loops": 4})]
    assert len({mine.fingerprint, *(each.fingerprint for each in others)}) == 4
    explorer = Explorer(mine)
    request = Explorer(others[0]).request("F3", TOP, {"tokens": ONE})
    assert "another model" in unpack(finish(explorer.answer(request)))[0]["error"]["message"]


def test_runs_forget_what_was_not_used_for_longest() -> None:
    runs = Runs(tiny_subject(), most=3 * ROWS * 16 * 4)
    for each in PROGRAMS[:2]:
        program = Program.parse(each)
        from loopscope.view.runs import Case

        finish(runs.state(Case(tuple(ONE)), program, len(program.points) - 1))
    assert runs.kept.bytes <= runs.kept.most
    assert len(runs.kept) == 3
