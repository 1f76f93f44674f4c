"""`loopscope lm patch` and `lm sweep` say what plain runs say; one line and nothing left where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from loopscope import F, J, Program
from loopscope.address import Address, Site
from loopscope.errors import InputError, NotFiniteError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense, save_map
from loopscope.measure import patching
from loopscope.measure.cells import places
from loopscope.measure.patching import compare, plain_of, recover, started
from loopscope.models.folders import load
from loopscope.models.passes import states
from loopscope.models.steering import FullPrecisionMap, load_steering_map
from loopscope.models.text import load_tokenizer
from loopscope.program import Run, Seed
from tests.adapters_tiny import model_folder
from tests.commands import loopscope
from tests.kinds import KINDS
from tests.model_folders import ouro_folder, stack_folder
from tests.ouro_tiny import golden, ouro_map, tiny_ouro
from tests.worded import worded_folder

TEXT, OTHER = "ab a 12", "ab a 34"
PATCHED = [
    "F F[layer[2].head[1].row[3,4].pattern<-(F2)@other]",
    "F[layer[1].row[3].resid<-(F)@other] F2",
    "F J:step F[layer[1].z<-(F2)]",
]


@pytest.fixture
def ouro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    save_map(ouro_map(), tmp_path / "map")
    return str(ouro_folder(tmp_path / "ouro"))


def tokens(folder: str, *texts: str) -> Tensor:
    return torch.tensor([load_tokenizer(folder).encode(text) for text in texts])


def patch(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = loopscope(capsys, "lm", *arguments, "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


# ---- programs side by side -------------------------------------------------------------------------------------------


def test_every_program_says_what_its_plain_run_says(capsys: pytest.CaptureFixture[str], ouro: str) -> None:
    named = ("--text", TEXT, "--other", f"other={OTHER}", "--map", "step=map")
    report = patch(capsys, "patch", ouro, *PATCHED, *named, "--out", "out", "--top", "3", "--row", "-2")
    plain = ["F2", "F3", "F J:step F"]
    assert [each["program"] for each in report["programs"]] == [
        p for pair in zip(plain, PATCHED, strict=True) for p in pair
    ]
    model, inputs = load(ouro), {"main": tokens(ouro, TEXT), "other": tokens(ouro, OTHER)}
    written = load_file("out")
    assert written["tokens"].tolist() == report["tokens"] == inputs["main"][0].tolist()
    assert written["other.other"].tolist() == report["others"]["other"]
    with safe_open("out", "pt") as file:
        assert json.loads(file.metadata()["loopscope"])["programs"] == [each["program"] for each in report["programs"]]
    expected: dict[str, Tensor] = {}
    for logits, each in zip(written["logits"], report["programs"], strict=True):
        program = Program.parse(each["program"])
        seen = plain_run(model, inputs, program, maps={"step": ouro_map()})
        expected[each["program"]] = model.read(seen.states[program.points[-1]])[0, -2].detach()
        torch.testing.assert_close(logits, expected[each["program"]], rtol=0, atol=1e-5)
        best = logits.softmax(-1).topk(3)
        assert [t["id"] for t in each["top"]] == best.indices.tolist()
        assert [t["probability"] for t in each["top"]] == pytest.approx(best.values.tolist())
        if each["plain"] is None:
            assert each["program"] in plain
            continue
        before, after = expected[each["plain"]], expected[each["program"]]
        first = int(before.argmax())
        assert each["first"]["id"] == first
        assert each["first"]["before"] == pytest.approx(float(before.softmax(-1)[first]), abs=1e-5)
        assert each["first"]["after"] == pytest.approx(float(after.softmax(-1)[first]), abs=1e-5)
        apart = torch.nn.functional.kl_div(
            after.log_softmax(-1), before.log_softmax(-1), reduction="sum", log_target=True
        )
        assert each["kl"] == pytest.approx(float(apart), abs=1e-5)
        assert each["kl"] > 1e-7


def test_programs_are_printed_in_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ouro: str
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    code, out, err = loopscope(capsys, "lm", "patch", ouro, PATCHED[0], "--text", TEXT, "--other", f"other={OTHER}")
    assert (code, err) == (0, "")
    first, plain, plain_next, program, after, change, other = out.splitlines()
    assert first == f'{ouro} (boundary norm, fp32), next tokens at row 4 of 5, "2"'
    assert (plain, program) == ("F2", PATCHED[0])
    assert plain_next.startswith("  next   ")
    assert after.count("%") == 5
    assert change.startswith("  plain  ")
    assert ", KL " in change
    assert other == '@other: row 3 "1" is "3", row 4 "2" is "4"'


def test_patching_a_run_by_itself_changes_nothing(capsys: pytest.CaptureFixture[str], ouro: str) -> None:
    own = "F3 F[layer[2].pattern<-(F4); layer[1].head[0].z<-(F4)@same]"
    report = patch(capsys, "patch", ouro, own, "--text", TEXT, "--other", f"same={TEXT}")
    assert report["programs"][1]["kl"] < 1e-9
    assert report["programs"][1]["first"]["before"] == pytest.approx(report["programs"][1]["first"]["after"], abs=1e-6)


def test_what_a_program_is_compared_with() -> None:
    cases = {
        "F3 F[layer[1].z<-(F)]": "F4",
        "F J:one F[layer[1].z<-(F)]": "F J:one F",
        "F J:one F": "F2",
        "F4": "F4",
        "J:one": "J:one",
    }
    assert {text: str(plain_of(Program.parse(text))) for text in cases} == cases
    model = tiny_ouro()
    found = compare(model, torch.tensor([[1, 2, 3]]), [F**2, F | J("one") | F], maps={"one": ouro_map()})
    assert [(str(each.program), each.plain and str(each.plain.program)) for each in found] == [
        ("F2", None),
        ("F J:one F", "F2"),
    ]
    assert found[0].kl == 0.0 < found[1].kl


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def test_a_sweep_recovers_what_plain_runs_recover(
    capsys: pytest.CaptureFixture[str], ouro: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("--text", TEXT, "--from", OTHER, "--text", OTHER, "--from", TEXT)
    asked = ("sweep", ouro, "row[3,-1].z", *texts, "--program", "F J:step F", "--map", "step=map", "--each-head")
    report = patch(capsys, *asked, "--layer", "2", "--out", "out")
    model = load(ouro)
    assert len(report["places"]) == 2 * model.heads
    assert report["places"][0]["address"] == "loop[1].layer[2].head[0].row[3,-1].z"
    both, maps = tokens(ouro, TEXT, OTHER), {"step": ouro_map()}
    inputs = {"main": both, "other": both.flip(0)}

    def logits(program: Program) -> Tensor:
        return model.read(plain_run(model, inputs, program, maps=maps).states["h2"])[:, -1].detach()

    program = Program.parse("F J:step F")
    base = logits(program)
    own = base.argmax(-1)
    assert [[a["id"] for a in each["answers"]] for each in report["texts"]] == [own.tolist(), own.flip(0).tolist()]
    assert own[0] != own[1]

    def difference(found: Tensor) -> Tensor:
        return (found.gather(1, own.flip(0)[:, None]) - found.gather(1, own[:, None]))[:, 0]

    before, after = difference(base), difference(base.flip(0))
    assert [each["before"] for each in report["texts"]] == pytest.approx(before.tolist(), abs=1e-5)
    assert [each["after"] for each in report["texts"]] == pytest.approx(after.tolist(), abs=1e-5)
    for place in report["places"]:
        patched = logits(program.patch(place["address"], f"({program})@other"))
        recovered = (difference(patched) - before) / (after - before)
        assert place["recovered"] == pytest.approx(recovered.tolist(), abs=1e-5)
        assert place["named"] == (patched.argmax(-1) == own.flip(0)).tolist()
    written = load_file("out")
    assert written["recovered"].tolist() == [place["recovered"] for place in report["places"]]
    assert written["from"].tolist() == both.flip(0).tolist()
    assert report["memory"]["allowed"] is None
    less = report["memory"]["peak"] // 2
    held = patch(capsys, *asked, "--layer", "2", "--memory", str(less))
    assert held["memory"]["peak"] <= held["memory"]["allowed"] == less
    for one, other in zip(held["places"], report["places"], strict=True):
        assert one["recovered"] == pytest.approx(other["recovered"], abs=1e-5)
    monkeypatch.setattr(patching, "AT_ONCE", 3)  # in pieces, the last of them not full
    again = patch(capsys, *asked, "--layer", "2")
    for one, other in zip(again["places"], report["places"], strict=True):
        assert one["recovered"] == pytest.approx(other["recovered"], abs=1e-5)


def test_the_whole_state_carries_the_whole_answer_and_a_later_row_none(
    capsys: pytest.CaptureFixture[str], ouro: str
) -> None:
    texts = ("--text", TEXT, "--from", OTHER)
    whole = patch(capsys, "sweep", ouro, "resid", *texts)
    assert len(whole["places"]) == 4 * len(load(ouro).layers)  # every layer of the model's own four loops
    assert [place["recovered"][0] for place in whole["places"]] == pytest.approx([1.0] * len(whole["places"]), abs=1e-4)
    assert all(place["named"] == [True] for place in whole["places"])
    later = patch(capsys, "sweep", ouro, "row[-1].resid", *texts, "--row", "-2", "--loop", "1", "--loop", "3")
    assert {place["address"].split(".")[0] for place in later["places"]} == {"loop[1]", "loop[3]"}
    assert [place["recovered"][0] for place in later["places"]] == pytest.approx([0.0] * len(later["places"]), abs=1e-5)
    assert not any(place["named"][0] for place in later["places"])


def test_a_llama_is_swept_in_a_chat(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = worded_folder(tmp_path / "worded")
    texts = ("--text", "Monday 1", "--from", "Tuesday 2", "--chat", "--boundary", "norm", "--device", "cpu")
    found = patch(capsys, "sweep", str(folder), "resid", *texts, "--program", "F2")
    asked = load_tokenizer(folder).encode_chat([{"role": "user", "content": "Monday 1"}])
    assert (found["texts"][0]["tokens"], found["boundary"]) == (asked, "norm")
    assert [place["recovered"][0] for place in found["places"]] == pytest.approx([1.0] * 4, abs=1e-4)


def test_sweeps_are_printed_as_grids(capsys: pytest.CaptureFixture[str], ouro: str) -> None:
    code, out, err = loopscope(capsys, "lm", "sweep", ouro, "resid", "--text", TEXT, "--from", OTHER)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["layer", "loop", "1", "loop", "2", "loop", "3", "loop", "4"] in lines
    assert ["1", "100*", "100*", "100*", "100*"] in lines
    several = ("--text", TEXT, "--from", OTHER, "--text", OTHER, "--from", TEXT)
    code, out, _ = loopscope(capsys, "lm", "sweep", ouro, "z", *several, "--each-head", "--program", "F2")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert [line for line in lines if line[:1] == ["loop"]] == [["loop", "1"], ["loop", "2"]]
    assert lines.count(["layer", *(f"H{head}" for head in range(load(ouro).heads))]) == 2


def test_places_of_a_sweep() -> None:
    model, program = tiny_ouro(), F**2
    assert [str(each) for each in places(model, program, Site(1, "resid", rows=(0,)), 3, loops=[2])] == [
        f"loop[2].layer[{layer}].row[0].resid" for layer in range(1, len(model.layers) + 1)
    ]
    alone = places(model, program, Site(1, "z", heads=(0, 1)), 3, loops=[1], layers=[1], each_head=True)
    assert [each.site.heads for each in alone] == [(0,), (1,)]
    (together,) = places(model, program, Site(1, "z", heads=(0, 1)), 3, loops=[1], layers=[1])
    assert together.site.heads == (0, 1)
    with pytest.raises(InputError, match="calls F nowhere"):
        places(model, Program.parse("J:one"), Site(1, "z"), 3)


def test_texts_with_nothing_to_recover_are_skipped_on_request() -> None:
    model, place = tiny_ouro(), ["loop[1].layer[1].row[-1].resid"]
    text, other = golden()["input_ids"][:2]
    for two in (other, text):
        asked = (model, torch.stack([text, text]), torch.stack([two, text]), F**2, place)
        with pytest.raises(InputError, match="are both continued by"):
            recover(*asked, skip=two is text)  # where all are so, there is nothing to skip to
    found = recover(model, torch.stack([text, text]), torch.stack([other, text]), F**2, place, skip=True)
    alone = recover(model, text[None], other[None], F**2, place)
    assert found.recovered.isnan().tolist() == [[False, True]]
    torch.testing.assert_close(found.recovered[:, :1], alone.recovered)
    assert found.table()["value"] == pytest.approx(alone.table()["value"])
    assert "nan" not in repr(found)
    together = recover(model, torch.stack([text] * 3), torch.stack([other] * 3), F**2, place, clusters=[0, 0, 0])
    assert together.table()["value_low"] != together.table()["value_low"]  # one cluster says nothing of others


def test_logits_that_are_not_finite_are_told() -> None:
    model = tiny_ouro()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.inf)
    with pytest.raises(NotFiniteError, match="from h1 of F on, in float32"):
        compare(model, torch.tensor([[1, 2]]), [Program.parse("F")])
    with pytest.raises(NotFiniteError, match="not finite"):
        recover(model, torch.tensor([[1, 2]]), torch.tensor([[1, 3]]), F**1, places(model, F**1, Site(1, "z"), 2))


# ---- precision -------------------------------------------------------------------------------------------------------


def test_a_map_keeps_its_precision_among_bf16_states(tmp_path: Path) -> None:
    save_map(ouro_map(), tmp_path / "map")
    step = load_steering_map(tmp_path / "map", tmp_path, 48)
    h = torch.randn(2, 3, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(FullPrecisionMap(step)(h), step(h))
    low = h.bfloat16()
    assert torch.equal(FullPrecisionMap(step)(low), step(low.float()).bfloat16())
    assert not torch.equal(FullPrecisionMap(step)(low), ouro_map(dtype=torch.bfloat16)(low))
    with pytest.raises(InputError, match="is a map of width 48, but the states of"):
        load_steering_map(tmp_path / "map", tmp_path, 47)


def test_bf16_is_near_fp32(capsys: pytest.CaptureFixture[str], ouro: str) -> None:
    asked = ("patch", ouro, *PATCHED, "--text", TEXT, "--other", f"other={OTHER}", "--map", "step=map", "--out")
    assert patch(capsys, *asked, "full")["dtype"] == "fp32"
    assert patch(capsys, *asked, "half", "--dtype", "bf16")["dtype"] == "bf16"
    full, half = (load_file(name)["logits"] for name in ("full", "half"))
    assert half.dtype == torch.float32
    assert not torch.equal(full, half)
    assert (full - half).abs().max() < 0.1 * full.abs().max()
    whole = patch(capsys, "sweep", ouro, "resid", "--text", TEXT, "--from", OTHER, "--dtype", "bf16")
    assert all(place["named"] == [True] for place in whole["places"])


# ---- mistakes --------------------------------------------------------------------------------------------------------


def test_mistakes_get_one_line_and_leave_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str) -> None:
    stack_folder(tmp_path / "mute", "llama")
    save_map(ouro_map().merge(), tmp_path / "same")
    save_map(Dense(17), tmp_path / "wide")
    both = ["--text", TEXT, "--other", f"other={OTHER}"]
    cases: list[tuple[list[str], str]] = [
        (["F"], "--text"),
        (["F g", *both], "cannot read 'g' at character 3 of program 'F g'"),
        (["F G", *both], "'F G' calls G, but the stacks of this model are: F"),
        (["F[layer[9].z<-(F)]", *both], "layer[9].z does not exist: layers 1.."),
        (["F[layer[1].head[9].z<-(F)]", *both], "does not exist: layers 1.."),
        (["F[layer[1].row[9].z<-(F)]", *both], "rows 0..4 (nearest: layer[1].row[4].z)"),
        (["F[layer[1].z<-(F).loop[2]]", *both], "loop 2 does not exist in 'F': it has loops 1..1"),
        (["F2 F[layer[1].z<-(F2)]", *both], "loop 3"),
        (["F[layer[1].z<-(F)@oter]", *both], "no aligned input of tokens named 'oter' was given"),
        (["F[layer[1].z<-$given]", *both], "no tensor named 'given' was given"),
        (["h1 F", *both], "starts from a given state h1, but no state was given"),
        (["F J:step F", *both], "no map named 'step' was given; there are: none"),
        (["F J:stop F", *both, "--map", "step=map"], "no map named 'stop' was given; there are: step (nearest: step)"),
        (["F", *both, "--map", "map"], "--map takes NAME=FOLDER, not 'map'"),
        (["F", *both, "--map", "step=map", "--map", "step=same"], "--map step is given twice"),
        (["F", *both, "--map", "step=nowhere"], "nowhere is no saved map"),
        (["F", *both, "--map", "step=wide"], "wide is a map of width 17, but the states of"),
        (["F", *both, "--other", "ab"], "--other takes NAME=TEXT, not 'ab'"),
        (["F", *both, "--other", "other=ab"], "--other other is given for 2 of 1 texts; give one for each"),
        (["F", *both, "--text", "ab"], "--other other is given for 1 of 2 texts; give one for each, in their order"),
        (
            ["F[layer[1].z<-(F)@short]", *both, "--other", "short=ab"],
            "the inputs have 5 and 1 rows; rows from the end,",
        ),
        (["F[layer[1].row[-1].pattern<-(F)@short]", *both, "--other", "short=ab"], "its keys would be others"),
        (['F[layer[1].row["ba"].z<-(F)@other]', *both], "occurs 0 times in example 1 of input 'main'"),
        (["F", *both, "--ids", "[[1]]"], "give either --text or --ids"),
        (["F", "--ids", "[1]"], '--ids takes a list of lists of tokens, such as "[[1, 7, 3]]"'),
        (["F", "--ids", "[[1]]", "--chat"], "--chat puts a text into the chat template; give --text"),
        (
            ["F", "--ids", "[[1]]", "--other", "x=ab"],
            '--other x takes a list of lists of tokens, such as "[[1, 7, 3]]"',
        ),
        (["F", *both, "--puzzles", "[0]"], "no rows for puzzles"),
        (["F", *both, "--start", "seed:1"], "'seed:1 F' has a seed, but this model starts from its input"),
        (["L", *both], "'L' calls L, but the stacks of this model are: F"),
        (["prelude[layer[1].z<-(F)] F", *both], "patches a prelude, which this model does not have"),
        (["F**2", *both], "as text, F**6 | J('one') | F is F6 J:one F"),
        (["seed:2 F", *both, "--start", "seed:1"], "'seed:2 F' names its start; --start 'seed:1' would be another"),
        (["F", *both, "--row", "1,2"], "--row takes a number, or what stands there as"),
        (["F", "--text", ""], "every prompt needs at least one token"),
        (["F", "--text", "1" * 257], "257 tokens given, but the model has 256 positions"),
        (["F", *both, "--row", "5"], "row 5 does not exist: rows are 0..4 (nearest: 4)"),
        (["F", *both, "--top", "0"], "--top must be at least 1"),
        (["F", *both, "--dtype", "bf61"], "no precision 'bf61'; there are fp32, bf16 (nearest: bf16)"),
        (["F", *both, "--boundary", "none"], "Ouro ends every loop with its norm"),
        (["F", *both, "--device", "tpu"], "no device 'tpu'"),
        (["F", *both, "--out", "none/out"], "there is no folder"),
        (["F", *both, "--out", f"{ouro}/out"], "among the model's own files"),
    ]
    pair = ["--text", TEXT, "--from", OTHER]
    sweeps: list[tuple[list[str], str]] = [
        (["resid", "--text", TEXT], "--from"),
        (["resid", *pair, "--text", TEXT], "every --text needs a --from: 2 and 1 were given"),
        (["resdi", *pair], "unknown component 'resdi'"),
        (["loop[1].resid", *pair], "'loop[1].resid' says where; what is swept is as head[3].row[-1].z"),
        (["prelude.layer[1].z", *pair], "'prelude.layer[1].z' says where"),
        (["z", *pair, "--program", "h0 F", "--start", "zeros"], "'h0 F' names its start; --start 'zeros' would be"),
        (["row[9].resid", *pair], "rows 0..4"),
        (["resid", *pair, "--loop", "5"], "loop 5 does not exist in 'F4': it has loops 1..4"),
        (["resid", *pair, "--layer", "9"], "layer[9].resid does not exist"),
        (["resid", *pair, "--each-head"], "resid has no heads"),
        (["resid", *pair, "--each", "4"], "--each 4 is about jobs, and goes with --on"),
        (["resid", "--text", TEXT, "--from", "ab"], "names rows from the start, and the inputs have 5 and 1 rows"),
        (["z", *pair, "--text", "ab", "--from", OTHER], "the inputs have 1 and 5 rows"),
        (["row[0].z", *pair, "--text", "ab", "--from", OTHER], "counted from the start, and the inputs have unequal"),
        (["row[-1].pattern", "--text", TEXT, "--from", "ab"], "its keys would be others"),
        (["z", *pair, "--loop", "prelude"], "this model has no prelude (its loops: 1 to 4)"),
        (["z", *pair, "--loop", "L[1]"], "'F4' has no stack L"),
        (["z", *pair, "--loop", "one"], "cannot read"),
        (["z", "--text", TEXT, "--from", TEXT], "text 1 and its other are both continued by "),
        (["z", *pair, "--program", "F J:step F"], "no map named 'step' was given"),
        (["z", *pair, "--program", "J:step", "--map", "step=map"], "calls F nowhere"),
        (["z", *pair, "--program", "six"], "cannot read 'six'"),
        (["z", *pair, "--out", "none/out"], "there is no folder"),
        (["z", *pair, "--row", "7", "--out", "out"], "row 7 does not exist"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for name, several in (("patch", cases), ("sweep", sweeps)):
        for arguments, message in several:
            code, out, err = loopscope(capsys, "lm", name, ouro, *arguments)
            assert (code, out, err.count("\n")) == (2, "", 1), (arguments, err)
            assert message in err, (arguments, err)
    for name, rest in (("patch", ["F", *both]), ("sweep", ["z", *pair])):
        for folder, message in (("nowhere", "there is no such folder"), ("mute", "has no tokenizer.json")):
            code, out, err = loopscope(capsys, "lm", name, folder, *rest)
            assert (code, out, err.count("\n")) == (2, "", 1)
            assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_of_puzzles_are_called_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("H[layer[1].row[-1].z*=0]", "--ids", "[[1, 2]]", "--puzzles", "[1, 0]", "--other", "other=[[3, 2]]")
    code, out, err = loopscope(capsys, "lm", "patch", str(model_folder(tmp_path / "trm", "trm")), *asked)
    assert (code, err) == (0, "")
    assert "@other: row 0 puzzle 1 is puzzle 0, row 1 puzzle 1 is puzzle 0, row 2 1 is 3" in " ".join(out.split())


def test_sources_of_every_kind_begin_where_the_program_does() -> None:
    program = Program.parse(
        "F F[layer[1].z<-(F2)@a; layer[1].mlp_out+=0.5*(F[layer[1].z+=(seed:2 F2)])@a; layer[2].z*=0]"
    )
    begun = "F F[layer[1].z<-(seed:7 F2)@a; layer[1].mlp_out+=0.5*(seed:7 F[layer[1].z+=(seed:2 F2)])@a; layer[2].z*=0]"
    assert str(started(program, Seed(7))) == f"seed:7 {begun}"


def test_programs_and_places_are_taken_as_text() -> None:
    model, (text, other) = KINDS["two stacks"](), torch.tensor([[1, 2, 3], [5, 6, 4]])[:, None]
    with torch.no_grad():
        model.head.bias.zero_()  # or it would say the same after both
    program, place = Program.parse("L2 H"), "L[2].layer[1].row[-1].resid"
    assert Run("L2 H", "other") == Run(program, "other")
    assert Program.parse("L") | "L H" == program
    assert places(model, "L2 H", "row[-1].z", 3) == places(model, program, Site.parse("layer[1].row[-1].z"), 3)
    for one, two in (
        (plain_run(model, {"main": text}, "L2 H").read("h3"), plain_run(model, {"main": text}, program).read("h3")),
        (states(model, text, "L2 H")["h3"], states(model, text, program)["h3"]),
        (compare(model, text, "L2 H")[0].logits, compare(model, text, [program])[0].logits),
        (
            recover(model, text, other, "L2 H", place, source="L2 H2").recovered,
            recover(model, text, other, program, [Address.parse(place)], source=Program.parse("L2 H2")).recovered,
        ),
    ):
        assert torch.equal(one, two)


def test_a_coda_that_is_not_read_is_refused(refused: Callable[..., str]) -> None:
    model, text = KINDS["prelude and coda"](), torch.tensor([[1, 2, 3]])
    program = Program.parse("F2 coda:1[layer[1].z*=0]")
    said = refused(InputError, lambda: compare(model, text, [program]))
    assert said.endswith("patches coda:1, but what it says next is read through coda:2 (nearest: coda:2)")


def test_what_enters_is_swept_call_by_call() -> None:
    found = places(KINDS["two stacks"](), Program.parse("(L2 H)2"), Site.parse("row[-1].enter"), 4)
    assert [str(each) for each in found[:3]] == ["L[1,1].row[-1].enter", "L[1,2].row[-1].enter", "H[1].row[-1].enter"]
    assert len(found) == 6


def test_damage_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, ouro: str) -> None:
    asked = ("F J:step F", "--text", TEXT, "--map", "step=map", "--out", "out")
    for victim in (
        Path(ouro) / "model.safetensors",
        Path(ouro) / "tokenizer.json",
        Path("map") / "adapter_model.safetensors",
    ):
        whole = victim.read_bytes()
        victim.write_bytes(whole[:-20])
        code, out, err = loopscope(capsys, "lm", "patch", ouro, *asked)
        assert (code, out, err.count("\n")) == (3, "", 1), err
        assert victim.name in err
        victim.write_bytes(whole)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))
