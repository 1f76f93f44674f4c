"""The commands of the reproduction: what they list, judge, measure and write, and one line for every mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.maps import map_files
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.store.store import Store
from loopscope.store.zoo import VARIABLE
from loopscope.studies.claims import CLAIMS, NOT_RUN, ROWS, decide
from loopscope.studies.evidence import Evidence
from loopscope.studies.records import records
from loopscope.studies.registry import COHORTS, EXPERIMENTS, LANGUAGE
from loopscope.studies.runner import steps
from tests.commands import loopscope
from tests.planted.graph_walk import (
    CONFIRMED,
    MAIN,
    OTHER,
    PAIRS_OF_GRAPHS,
    SECOND,
    THIRD,
    crossed,
    native,
    target,
    two_calls,
    written,
)
from tests.reading_pages import Reader
from tests.stores import everything_under, flip, put_backbone
from tests.tiny import tiny_map

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored records by which d8l6-5 is the main backbone."""
    folder = tmp_path_factory.mktemp("results")
    walks = [native(MAIN, 0, 1, 3, 4, 6, 7, 8), native(OTHER, 0, 8), native("d8l8-0", 0, 1, 2, 3, 4, 5, 6, 7, 8)]
    written(Store(folder), [*walks, target(MAIN), two_calls(MAIN)])
    return folder


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small d8l6-5 with random weights, and two fits of both its maps."""
    folder = tmp_path_factory.mktemp("zoo")
    store = Store(folder)
    torch.manual_seed(0)
    model = LoopedTransformer(replace(graph_walk_config(10, 6), width=16, heads=4, mlp=32))
    backbone = put_backbone(store, 5, model, data={"task": "graph-walk", "depth": 8})
    for seed, name in enumerate(("one", "two")):
        for fit in (1, 2):
            with store.write(
                "map", {"recipe": {"name": name, "data": {"task": "graph-walk"}}, "fit": fit}, {"backbone": backbone}
            ) as draft:
                for file, data in map_files(tiny_map(10 * seed + fit)).items():
                    draft.bytes(file, data)
    return folder


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zoo: Path, results: Path
) -> Run:
    """Run a command in an empty folder, with the small zoo; the CPU is the only device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, str(zoo))
    monkeypatch.setenv("COLUMNS", "250")

    def command(*arguments: str) -> tuple[int, str, str]:
        told = "--results" in arguments or arguments[0] == "list"
        return loopscope(capsys, *arguments, *([] if told else ["--results", str(results)]))

    return command


def as_json(printed: tuple[int, str, str]) -> dict[str, Any]:
    """What a command with --json printed: strict JSON, so no NaN."""
    code, out, err = printed
    assert (code, err) == (0, "")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(out, parse_constant=refuse)


def times_under(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix != ".lock"}


UNDECIDING = (
    *("lasting", "independent", "parity-fp32"),
    *("switching-long", "switching-next", "continuation-again", "lasting-longer"),
)
"""Experiments that stand beside the rows and decide none."""

# ---- list ------------------------------------------------------------------------------------------------------------


def test_list_names_every_experiment_cohort_and_claim(run: Run) -> None:
    found = as_json(run("list", "--json"))
    assert [each["name"] for each in found["experiments"]] == list(EXPERIMENTS)
    for each in found["experiments"]:
        assert each["question"] == EXPERIMENTS[each["name"]].question
        assert set(each["cohorts"]) <= COHORTS.keys()
        assert bool(each["claims"]) == (each["name"] not in UNDECIDING)
    assert [each["name"] for each in found["language"]] == list(LANGUAGE)
    decided = [claim for each in (*found["experiments"], *found["language"]) for claim in each["claims"]]
    assert sorted(decided) == sorted(claim.id for claim in ROWS if claim.experiment)
    assert found["cohorts"] == json.loads(json.dumps([asdict(each) for each in COHORTS.values()]))
    code, out, err = run("list")
    assert (code, err) == (0, "")
    chosen, told = "; of the chosen: rollout-one", " ".join(out.split())
    for text in (*EXPERIMENTS, *LANGUAGE, *COHORTS, *decided, "3-13", "matched-stepwise", chosen):
        assert text in told


# ---- claims ----------------------------------------------------------------------------------------------------------


def test_claims_are_those_that_the_records_decide(run: Run, results: Path) -> None:
    found = as_json(run("claims", "--json"))["claims"]
    wanted = decide(Evidence(records(Store(results))))
    assert [each["id"] for each in found] == [claim.id for claim in ROWS]
    assert [each["id"] for each in found if each["kind"] == "paper"] == [claim.id for claim in CLAIMS]
    for each, verdict in zip(found, wanted, strict=True):
        assert (each["protocol"], each["changed"]) == (verdict.protocol, list(verdict.changed))
        assert each["numerics"] == list(verdict.numerics)
        assert (each["verdict"], each["ours"], each["n"]) == (verdict.verdict, verdict.ours, verdict.n)
        assert each["estimate"] == (None if verdict.estimate is None else asdict(verdict.estimate))
        assert each["backbones"] == list(verdict.backbones)
        assert each["records"] == {"measured now": 0, "results": verdict.stored}
    by_id = {each["id"]: each for each in found}
    assert (by_id["target.two"]["verdict"], by_id["target.two"]["ours"]) == ("holds", "100.0")
    assert by_id["target.two"]["command"] == "loopscope reproduce --profile paper targets"
    assert by_id["native.endpoint"]["verdict"] == NOT_RUN
    assert by_id["native.endpoint"]["backbones"] == [OTHER, MAIN, "d8l8-0"]
    letter = by_id["letter.steer"]
    assert (letter["verdict"], letter["command"]) == (NOT_RUN, "loopscope lm test letters FOLDER --map MAP")


def test_claims_in_sentences(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run("claims")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "graph_walk"
    assert {"parity", "relations", "letters", "antonyms", "iterations"} <= set(lines)
    assert (
        "  Holds: J_one selects the one-hop target. Here 50.1 -> 100.0, [100.0, 100.0]; published: 48.2 -> 99.6. "
        "[target.one]"
    ) in lines
    assert "  Not run: declines beyond the map range. Published: 42.87 (17-24), 1.65 (25-32). [kg.beyond]" in lines
    for claim in ROWS:
        assert sum(f"[{claim.id}]" in line for line in lines) == 1
    told = " ".join(lines[-3:])
    assert f"{len(CLAIMS)} claims: 4 hold at the paper's protocol, 0 at a changed one" in told
    assert f"{len(CLAIMS) - 4} not run" in told


def test_claims_as_a_table(run: Run) -> None:
    code, out, err = run("claims", "--table")
    assert (code, err) == (0, "")
    told = " ".join(out.split())
    assert f"{len(CLAIMS)} claims: 4 hold at the paper's protocol, 0 at a changed one" in told
    assert f"{len(CLAIMS) - 4} not run" in told
    lines = out.splitlines()
    first = next(number for number, line in enumerate(lines) if "target.one" in line)
    assert [re.split("  +", line.strip()) for line in lines[first : first + 3]] == [
        ["target.one", "48.2 -> 99.6", "50.1 -> 100.0", "holds"], ["[100.0, 100.0]", "published"], ["n = 4,110"],
    ]  # fmt: skip


def test_claims_in_markdown(run: Run) -> None:
    code, out, err = run("claims", "--markdown")
    assert (code, err) == (0, "")
    row = "| `target.one`: J_one selects the one-hop target | 48.2 -> 99.6 | 50.1 -> 100.0, [100.0, 100.0], n = 4,110"
    assert f"{row} | holds | published |" in out
    for two in (("--markdown", "--json"), ("--table", "--json"), ("--table", "--markdown")):
        code, _, err = run("claims", *two)
        assert (code, err.count("\n")) == (2, 1)


def test_a_store_comes_before_the_stored_records(run: Run, tmp_path: Path) -> None:
    mine = target(MAIN)
    for nodes in mine.predictions["confirmation"].values():
        nodes += 1
        nodes %= 10
    written(Store(tmp_path / "mine"), [mine])
    found = {each["id"]: each for each in as_json(run("claims", "--store", "mine", "--json"))["claims"]}
    assert (found["target.two"]["verdict"], found["target.two"]["records"]) == (
        "does not hold", {"measured now": 1, "results": 0},
    )  # fmt: skip
    assert found["compose.one_one"]["records"] == {"measured now": 0, "results": 1}


@pytest.mark.parametrize("by", [-1, 0])
def test_a_damaged_record_is_an_error_that_names_it(run: Run, results: Path, by: int) -> None:
    """Cut short, or of the same length with a bit flipped: without it a verdict would be another one."""
    path = next(results.glob("record/*/rings.safetensors.xz"))
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:by] if by else whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    try:
        code, out, err = run("claims")
    finally:
        path.write_bytes(whole)
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert str(path) in err


def test_no_records_no_verdicts(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, out, err = run("claims", "--results", "empty", "--json")
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("loopscope: there are no records; ")
    found = json.loads(out)["claims"]
    assert {(each["verdict"], each["ours"], each["estimate"], each["n"]) for each in found} == {
        (NOT_RUN, "", None, None)
    }


def test_what_could_not_be_estimated_is_null(run: Run, tmp_path: Path) -> None:
    """No clean run is right, so no pair of graphs counts."""
    names = (MAIN, SECOND, THIRD)
    some = {"graphs": PAIRS_OF_GRAPHS, "confirmation": CONFIRMED}
    made = [native(name, 0, 1, 3, 4, 6, 7, 8) for name in names]
    made += [replace(crossed(name), settings=some) for name in names]
    for answers in (answers for each in made[3:] for answers in each.predictions.values()):
        answers |= {name: (nodes + 5) % 10 for name, nodes in answers.items() if name.endswith("before F")}
    written(Store(tmp_path / "wrong"), made)
    found = {each["id"]: each for each in as_json(run("claims", "--results", "wrong", "--json"))["claims"]}
    assert found["pattern.reroutes"]["verdict"] == "does not hold"
    assert found["pattern.reroutes"]["estimate"]["value"] is None
    assert found["pattern.reroutes"]["estimate"]["n"] == 3
    code, out, _ = run("claims", "--results", "wrong")
    assert code == 0
    assert "nan.." not in out
    assert "± nan" not in out


def test_a_damaged_record_is_named(run: Run, tmp_path: Path) -> None:
    written(Store(tmp_path / "mine"), [target(MAIN)])
    victim = next((tmp_path / "mine").rglob("confirmation.safetensors.xz"))
    flip(victim)
    for arguments in (["claims", "--results", "mine"], ["reproduce", "trajectories", "--results", "mine"]):
        code, out, err = run(*arguments)
        assert (code, out) == (3, "")
        assert err.startswith(f"loopscope: {victim}: expected SHA-256 ")
        assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# ---- reproduce -------------------------------------------------------------------------------------------------------


def test_reproduce_measures_judges_and_writes_once(run: Run, tmp_path: Path) -> None:
    asked = ("reproduce", "trajectories", "targets", "--store", "S", "--out", "O")
    first = as_json(run(*asked, "--json", "--export", "E"))
    assert first["page"] == "O/index.html"
    assert [(each["experiment"], each["backbone"]) for each in first["measured"]] == [
        ("trajectories", MAIN), ("targets", MAIN),
    ]  # fmt: skip
    for each in first["measured"]:
        assert each["seconds"] > 0
        assert 0 < each["forwards"] <= each["plain"]
        assert each["device"].startswith("CPU")
    made = records(Store(tmp_path / "S"))
    assert [(each.experiment, each.facts.name) for each in made] == [("targets", MAIN), ("trajectories", MAIN)]
    assert made[1].settings == {"layered": 64}
    assert made[0].facts.fits == {"one": 2, "two": 2}
    kept = {path: data for path, data in everything_under(tmp_path / "E").items() if not path.endswith(".lock")}
    there = everything_under(tmp_path / "S")
    assert kept
    assert all(there[path] == data for path, data in kept.items())
    assert [each.facts.name for each in records(Store(tmp_path / "E"))] == [MAIN, MAIN]
    page = (tmp_path / "O" / "index.html").read_text(encoding="utf-8")
    Reader(page)
    assert 'id="trajectories"' in page
    assert {path.suffix for path in (tmp_path / "O" / "figures").iterdir()} == {".svg", ".pdf"}

    # Again: nothing is measured, and the page is the same.
    before = times_under(tmp_path / "S")
    again = as_json(run(*asked, "--json"))
    assert times_under(tmp_path / "S") == before
    assert again == first
    assert (tmp_path / "O" / "index.html").read_text(encoding="utf-8") == page
    code, out, err = run(*asked, "--on", "local:1", "--device", "cpu", "--events")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, [each["what"] for each in lines]) == (0, ["found", "found", "result"])
    assert (lines[-1]["result"]["page"], lines[-1]["result"]["claims"]) == (first["page"], first["claims"])
    code, out, err = run(*asked)
    assert (code, err) == (0, "")
    assert "target.one" in out
    assert out.endswith("The report: O/index.html\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["E", "O", "S"]


def test_reproduce_puts_what_was_measured_now_before_what_is_stored(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the profile that measures all there is on weights at hand."""
    amounts: list[object] = []

    def asked(*arguments: Any) -> Any:
        amounts.append(arguments[-1])
        return steps(*arguments)

    monkeypatch.setattr("loopscope.studies.runner.steps", asked)
    found = as_json(run("reproduce", "targets", "--cohort", "mechanism", "--profile", "whole", "--json"))
    assert amounts == ["paper"]
    by_id = {each["id"]: each for each in found["claims"]}
    assert by_id["target.two"]["records"] == {"measured now": 1, "results": 0}
    assert by_id.keys() == {"target.one", "target.two"}  # what was measured is judged
    # The small model's own answers, not the planted ones, and as the store has them.
    (mine,) = records(Store(tmp_path / "store"))
    evidence = Evidence(fresh=[native(MAIN, 0, 1, 3, 4, 6, 7, 8), mine])
    (verdict,) = (each for each in decide(evidence) if each.claim.id == "target.two")
    assert verdict.ours == by_id["target.two"]["ours"] != "100.0"
    index = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f'id="{anchor}"' in index for anchor in ("trajectories", "targets", "composition"))
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "report" / "pages").glob("*.html")}
    assert {"ledger", "cost"} <= pages.keys()
    page = "".join((index, *pages.values()))
    assert "recomputed now" in page
    assert "results/" in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["trajectory"], "no experiment 'trajectory'; there are trajectories, targets, two-calls, eight-calls, "
                         "independent, crossing, switching, matched, lasting, continuation, parity, parity-fp32, "
                         "chains, selecting, switching-long, switching-next, continuation-again, "
                         "lasting-longer (nearest: trajectories)"),
        (["--profile", "papers"], "no profile 'papers'; there are quick, whole, paper (nearest: paper)"),
        (["--cohort", "mechanisms"], "no cohort 'mechanisms'; there are mechanism, matched, matched-long, walkers, "
                                     "eight, parity, relations, next (nearest: mechanism)"),
        (["trajectories", "--cohort", "matched"], "trajectories: not done on matched, but mechanism, walkers"),
        (["--results", "nowhere"], "there is no folder nowhere"),
        (["--zoo", "nowhere"], "there is no zoo at nowhere; name one with --zoo or LOOPSCOPE_ZOO"),
        (["--out", "file"], "file exists already, as a file, so no report is written to file; give another folder"),
        (["--out", "file/deep/report"], "file is no folder, so nothing can be written to file/deep/report"),
        (["--store", "file"], "file is no folder, so nothing can be written to file"),
        (["--export", "file"], "file is no folder, so nothing can be written to file"),
        (["--device", "gpu"], "no device 'gpu'; there are auto, cpu, cuda"),
        (["--device", "cuda"], "no CUDA device is there (nearest: --device cpu)"),
        (["--zoo", "empty"], "{here}/empty has no backbone of the cohorts mechanism, matched, matched-long, walkers, "
                             "eight, parity, relations, next for trajectories, targets, two-calls, eight-calls, "
                             "independent, crossing, switching, matched, lasting (with maps such as rollout-one, "
                             "rollout-two, pool-one, pool-two, strings-one, strings-two), continuation, parity, "
                             "parity-fp32, chains, selecting, switching-long, switching-next, continuation-again, "
                             "lasting-longer; "
                             "mechanism backbones by the stored records: d8l6-5"),
        (["lasting"], "{zoo} has no backbone of the cohorts mechanism for lasting (with maps such as rollout-one, "
                      "rollout-two, pool-one, pool-two, strings-one, strings-two); mechanism backbones by the stored "
                      "records: d8l6-5"),
        (["targets", "--results", "empty"], "{zoo} has no backbone of the cohorts mechanism for targets; mechanism "
                                            "backbones by the stored records: none"),
        (["trajectories", "matched"], "{zoo} has no backbone of the cohorts mechanism, matched, matched-long, "
                                      "walkers for matched; mechanism backbones by the stored records: d8l6-5"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)  # fmt: skip
def test_a_mistake_is_one_line_and_nothing_is_written(
    run: Run, tmp_path: Path, zoo: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    code, out, err = run("reproduce", *arguments)
    assert (code, out, err) == (2, "", f"loopscope: {says.format(here=tmp_path, zoo=zoo)}\n")
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "empty"}
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--results", "nowhere"], "there is no folder nowhere"),
        (["--store", "nowhere"], "there is no store at nowhere; name one with --store"),
    ],
)
def test_claims_of_what_is_not_there(run: Run, tmp_path: Path, arguments: list[str], says: str) -> None:
    assert run("claims", *arguments) == (2, "", f"loopscope: {says}\n")
    assert list(tmp_path.iterdir()) == []
