"""Commands with --on, and those that look after jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope import load, run
from loopscope.cli.jobs_shown import needs_of
from loopscope.jobs.job import Needs
from loopscope.jobs.journal import Journal
from loopscope.store.artefacts import BACKBONE, MAP
from loopscope.store.store import Store
from loopscope.studies import recipes
from loopscope.studies.recipes import RECIPES
from loopscope.studies.registry import STUDY_OF
from loopscope.threads import fixed_threads
from tests.campaign_toys import contents, small_graph
from tests.commands import loopscope
from tests.shortened import shortened
from tests.toys import stage_of
from tests.tuning_tiny import text_files, tuning_folder

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """The recipes called tiny, with a few updates; workers get them as values."""
    changed = {name: replace(each, stages=(stage_of(6, 3),)) for name, each in RECIPES.items() if "tiny" in name}
    monkeypatch.setattr(recipes, "RECIPES", {**RECIPES, **changed})
    return changed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "run", "no.json"), "no.json: No such file or directory"),
        (("train", "tiny", "--seeds", "0", "--on", "locl:2"), "loopscope: no engine 'locl:2'; there are local:N, ray:"),
        (
            ("train", "tiny", "--seeds", "0", "--on", "local:2", "--device", "cpu", "--gpus", "1"),
            "--gpus 1 does not go",
        ),
        (("train", "tiny", "--seeds", "0", "--gpus", "2"), "--gpus 2 is about jobs, and goes with --on"),
        (("jobs", "plan", "--on", "ray:auto"), "a plan takes a number of places, such as ray:8"),
        (("jobs", "plan", "--share", "2"), "--share is more than 0 and at most 1"),
        (("jobs", "plan", "--start", "-5"), "--start is 0 to 86,400 seconds, not -5 (nearest: 0)"),
        (
            ("jobs", "plan", "letters"),
            "letters is no part of this plan, but done on any language model by `lm reproduce",
        ),
        (("jobs", "plan", "crosing"), "no experiment or study 'crosing'; there are trajectories, "),
        (("jobs", "plan", "graph_wlak"), "(nearest: graph_walk)"),
        (("train", "tiny", "--seeds", "0", "--events"), "--events is about jobs, and goes with --on"),
        (("jobs", "status", "--store", "nowhere"), "there is no store at nowhere"),
    ],
)
def test_mistakes_get_a_line(capsys: Printed, arguments: tuple[str, ...], said: str, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    code, out, error = loopscope(capsys, *arguments)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error
    assert [*tmp_path.iterdir()] == []


def test_a_plan_of_one_experiment(capsys: Printed) -> None:
    code, out, _ = loopscope(capsys, "jobs", "plan", "chains", "--json", "--on", "ray:8")
    plan = json.loads(out)
    assert code == 0
    names = [job["name"] for job in plan["jobs"]]
    assert names[0] == "train relations 0"
    assert [name for name in names if name.startswith("fit")] == [
        f"fit relations-curriculum on relations-0, fit {number}" for number in (1, 2, 3)
    ]
    assert plan["critical_path"][0] == names[0]
    assert plan["critical_path"][-1] == "chains on relations-0 (relations)"
    (projected,) = plan["projections"]
    assert 0 < projected["minutes"] < plan["minutes"]
    code, out, _ = loopscope(capsys, "jobs", "plan", "chains", "--simulate")
    assert code == 0
    assert "No number of places makes it shorter than" in out


def test_a_plan_of_a_study_is_that_of_its_experiments(capsys: Printed) -> None:
    plans = [loopscope(capsys, "jobs", "plan", name, "--json") for name in ("relations", "chains")]
    assert plans[0] == plans[1]
    names = {
        name: {each["settings"]["experiment"] for each in json.loads(out)["jobs"] if "experiment" in each["settings"]}
        for name in ("graph-walk", "parity")
        for out in [loopscope(capsys, "jobs", "plan", name, "--json")[1]]
    }
    assert names["graph-walk"] == {name for name, study in STUDY_OF.items() if study == "graph_walk"}
    assert names["parity"] == {"parity"}  # an experiment, too


def test_what_jobs_need_by_the_options_of_a_command(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("LOOPSCOPE_THREADS", raising=False)
    assert needs_of("local:2", "auto", None) == Needs()
    assert capsys.readouterr().err == ""
    assert needs_of("slurm:gpu", "auto", None) == Needs()
    assert "no GPU is seen here, so that jobs ask for none" in capsys.readouterr().err
    assert needs_of("slurm:gpu", "cuda", None) == needs_of("ray:auto", "auto", 1.0) == Needs(gpus=1.0)
    assert needs_of("ray:auto", "cuda", 0.5).gpus == 0.5
    with fixed_threads(3):
        assert needs_of("local:2", "cpu", None) == Needs(cpus=3)
    monkeypatch.setenv("LOOPSCOPE_THREADS", "2")
    assert needs_of("local:2", "cpu", None).cpus == 2


def test_the_device_of_workers_need_not_be_here(
    capsys: Printed, tmp_path: Path, short: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a login node: what workers have made with their GPUs is looked up without one."""
    asked = ("train", "tiny", "--seeds", "0", "--store", str(tmp_path / "s"), "--json")
    assert loopscope(capsys, *asked, "--device", "cpu")[0] == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loopscope(capsys, *asked, "--device", "cuda")[0] == 2
    code, out, error = loopscope(capsys, *asked, "--device", "cuda", "--on", "local:1")
    assert (code, json.loads(out)["device"], error) == (0, "local:1", "")


@pytest.mark.slow
def test_events_of_commands_on_workers(capsys: Printed, tmp_path: Path, short: Mapping[str, Any]) -> None:
    """As those of `jobs run --json`, and the result as the last line; done already, there is nothing but that."""
    on = ("--store", str(tmp_path / "s"), "--on", "local:1", "--device", "cpu", "--events")

    def said(*asked: str) -> list[dict[str, Any]]:
        code, out, error = loopscope(capsys, *asked, *on)
        assert (code, error) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    trained = said("train", "tiny", "--seeds", "0")
    assert [each["what"] for each in trained if each["what"] != "on"] == ["waiting", "begun", "done", "result"]
    assert trained[0]["jobs"]["total"] == 1
    (member,) = trained[-1]["result"]["members"]
    fitted = said("fit", "tiny-one", "--backbone", member["key"])
    assert {each["job"] for each in fitted[:-1]} == {"fit tiny-one on tiny-0"}
    assert [each["what"] for each in said("fit", "tiny-one", "--backbone", member["key"], "--json")] == [
        "found", "result"
    ]  # fmt: skip


@pytest.mark.slow
def test_training_and_fitting_on_workers(capsys: Printed, tmp_path: Path, short: Mapping[str, Any]) -> None:
    """The same as without them; status tells; a second time nothing is begun."""
    here, there = tmp_path / "here", tmp_path / "there"
    for store, on in ((here, ()), (there, ("--on", "local:1", "--device", "cpu"))):
        code, out, error = loopscope(capsys, "train", "tiny", "--seeds", "0", "--store", str(store), "--json", *on)
        assert code == 0, error
        assert json.loads(out)["members"][0]["name"] == "tiny-0"
        asked = ("fit", "tiny-one", "--backbone", json.loads(out)["members"][0]["key"], "--store", str(store))
        assert loopscope(capsys, *asked, *on)[0] == 0
    assert contents(Store(there)) == contents(Store(here))
    code, out, _ = loopscope(capsys, "jobs", "status", "--store", str(there), "--json")
    assert [(each["job"], each["state"], each["threads"]) for each in json.loads(out)["jobs"]] == [
        ("fit tiny-one on tiny-0", "done", 1), ("train tiny", "done", 1)
    ]  # fmt: skip


@pytest.mark.slow
def test_a_store_is_checked_with_a_worker(capsys: Printed, tmp_path: Path) -> None:
    code, out, error = loopscope(capsys, "store", "check", "--store", str(tmp_path / "s"), "--on", "local:1")
    assert code == 0, error
    assert "this machine: of others nothing is said" in out
    assert [*(tmp_path / "s").rglob("*")] == [tmp_path / "s" / ".jobs"]


@pytest.mark.slow
def test_a_file_of_jobs_with_a_mistake_in_it(capsys: Printed, tmp_path: Path) -> None:
    """What is independent is done; a line for each failure, exit code 1, the log in status."""
    graph = small_graph(6)
    broken = replace(graph.jobs[1], settings={**graph.jobs[1].settings, "fits": ["one"]})
    file, store = tmp_path / "jobs.json", tmp_path / "store"
    behind = replace(
        graph.jobs[2], name="behind", settings={**graph.jobs[2].settings, "fits": [2]}, after=(broken.name,)
    )
    file.write_text(json.dumps({"jobs": [each.to_json() for each in (graph.jobs[0], broken, graph.jobs[2], behind)]}))
    code, out, error = loopscope(capsys, "jobs", "run", str(file), "--store", str(store))
    assert (code, out) == (1, "")
    said = f"loopscope: {broken.name}: job {broken.name!r}: the setting 'fits' must be a list of whole numbers"
    assert error.splitlines()[-2:] == [said, "loopscope: not begun, as they wait for what failed: behind"]
    assert (len(Store(store).every(BACKBONE)), len(Store(store).every(MAP))) == (2, 1)
    code, out, _ = loopscope(capsys, "jobs", "status", "--store", str(store))
    assert code == 0
    assert "4 jobs: 1 failed, 1 skipped, 2 done" in out  # what was wrong was seen before a worker was asked
    assert "the setting 'fits' must be a list of whole numbers" in " ".join(out.split())
    assert f"not begun, as it waits for {broken.name}" in " ".join(out.split())
    assert Journal(store, graph.jobs[0].key).said() == []


@pytest.mark.slow
def test_sweeping_texts_on_workers(capsys: Printed, tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "model", "ouro")
    texts = torch.randint(3, 700, (40, 3))
    said = load(folder).eval()
    answers = run(said, texts, "F4")["F4"].predictions[:, 0]
    first = int(answers[0])
    pairs = list(zip(texts[answers == first].tolist(), texts[answers != first].tolist(), strict=False))[:3]
    own, other = [each for each, _ in pairs], [each for _, each in pairs]
    asked = ("lm", "sweep", str(folder), "row[-1].resid", "--ids", json.dumps(own), "--json",
             *(part for each in other for part in ("--from", json.dumps([each]))))  # fmt: skip
    code, out, error = loopscope(capsys, *asked)
    assert code == 0, error
    on = ("--on", "local:2", "--each", "2", "--store", str(tmp_path / "store"), "--device", "cpu")
    code, spread, error = loopscope(capsys, *asked, *on)
    assert code == 0, error
    one, two = json.loads(out), json.loads(spread)
    assert len(own) == 3
    assert [each["tokens"] for each in one["texts"]] == [each["tokens"] for each in two["texts"]]
    for a, b in zip(one["places"], two["places"], strict=True):
        assert a["address"] == b["address"]
        assert a["recovered"] == pytest.approx(b["recovered"], abs=1e-4)
    if not torch.cuda.is_available():  # parts that are there need no worker, and this process no GPU
        assert loopscope(capsys, *asked, *on[:-1], "cuda")[:2] == (0, spread)


@pytest.mark.slow
def test_a_protocol_on_a_language_model_as_jobs(
    capsys: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapted, trained, fitted, tested by a worker: the records of one process."""
    folder = tuning_folder(tmp_path / "model", "llama")
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, on in (("here", ("--json",)), ("there", ("--on", "local:1", "--events"))):
        place = tmp_path / name
        asked = ("lm", "reproduce", "letters", str(folder), "--out", str(place / "models"), "--recipes", "smol",
                 *shortened("letters", "smol"), *text_files(tmp_path), "--cases", "2", "--results",
                 str(tmp_path / "none"), "--store", str(place / "store"), "--report", str(place / "report"),
                 "--device", "cpu")  # fmt: skip
        place.mkdir()
        if name == "here":
            assert "--nodes 2 is about jobs" in loopscope(capsys, *asked, "--nodes", "2")[2]
        code, out, error = loopscope(capsys, "--threads", "1", *asked, *on)
        assert code == 0, error
        found = json.loads(out) if name == "here" else json.loads(out.splitlines()[-1])["result"]
        assert {each["experiment"] for each in found["records"]} == {"letters"}
    assert contents(Store(tmp_path / "here" / "store")) == contents(Store(tmp_path / "there" / "store"))
