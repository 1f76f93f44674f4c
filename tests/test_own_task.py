"""A task of one's own on the command line: learn, fit, compare, find heads; what cannot be used leaves nothing."""

from __future__ import annotations

import http.server
import json
import re
import runpy
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants

from loopscope import F, load, load_map
from loopscope.errors import DamagedError, InputError
from loopscope.measure.answers import encode, whole_answers
from loopscope.models.decoding import generate
from loopscope.models.passes import states
from loopscope.models.text import load_tokenizer
from loopscope.program import Program
from loopscope.tasks.examples import examples, split
from loopscope.training.lm.learned import overlap_of_map, prompt_hash, read_learned
from loopscope.training.lm.new_model import Shape, write_new
from tests.commands import loopscope

CHAINS = Path(__file__).parent.parent / "examples" / "own-task" / "chains.py"
MINE = "F J:mine F"
FEW = ("--updates", "2", "--set", "examples=8", "--store", "store", "--device", "cpu")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the chains, some of them, and a new model that has their words."""
    place = tmp_path_factory.mktemp("own")
    runpy.run_path(str(CHAINS))["write"](place)
    every = (place / "chains.jsonl").read_text(encoding="utf-8").splitlines()
    (place / "some.jsonl").write_text("\n".join(every[::9]), encoding="utf-8")
    write_new(place / "tiny", Shape("llama", 2, 16, 2, 2, "norm"), None, 0, words=str(place / "chains.jsonl"))
    return place


@pytest.fixture
def here(ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own with links to those."""
    for each in ready.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = loopscope(capsys, "lm", *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_example_file_is_of_facts_and_holds_out_the_same_in_both(ready: Path) -> None:
    """What is held out was learned from in no order: addition does not mind it."""
    made = runpy.run_path(str(CHAINS))
    every = {made["prompt"](chain): made["line"](chain) for steps in range(1, 5) for chain in made["chains"](steps)}
    assert len(every) >= 500
    for prompt, row in every.items():
        assert int(row["answer"]) == eval(prompt.removesuffix("=")) % 7
        assert int(row["corrupt_answer"]) == eval(row["corrupt"].removesuffix("=")) % 7
        assert row["steps"] == prompt.count("+")
    assert {row["split"] for row in every.values() if row["steps"] == 1} == {"train"}

    def numbers(name: str, split: str) -> dict[int, list[tuple[str, ...]]]:
        found: dict[int, list[tuple[str, ...]]] = {}
        for line in (ready / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            mine = tuple(sorted(re.findall(r"[0-9]+", row["prompt"])))
            assert row["cluster"] == "+".join(mine)
            if row["split"] == split:
                found.setdefault(row["steps"], []).append(mine)
        return found

    held_out = numbers("chains.jsonl", "test")
    assert {steps: len(each) >= 40 for steps, each in held_out.items()} == {2: True, 3: True, 4: True}
    for name in ("chains.jsonl", "short.jsonl"):
        for steps, learned in numbers(name, "train").items():
            assert not set(learned) & set(held_out.get(steps, ())), name
    assert numbers("short.jsonl", "test")[2] == held_out[2]


def test_from_a_file_to_a_map_with_its_controls(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = ("fit", "tiny", "--task", "some.jsonl", "--program", MINE, *FEW)
    found = told(capsys, *fit, "--out", "mine")
    assert (found["examples"]["how"], found["updates"]) == ("by the field 'split'", 2)
    assert [row["at"]["condition"] for row in found["tables"][0]["rows"] if "steps" not in row["at"]][:3] == [
        "with J", "without J", "J without the F behind it",
    ]  # fmt: skip
    assert told(capsys, *fit)["key"] == found["key"]  # looked up
    assert load_map(here / "mine").width == 16
    card = (here / "mine" / "README.md").read_text(encoding="utf-8")
    assert "loopscope lm fit tiny --task some.jsonl" in card
    assert found["examples"]["sha256"]["train"] in card
    fitted = json.loads((here / "mine" / "fitted.json").read_text(encoding="utf-8"))
    assert fitted["recipe"]["program"] == MINE

    asked = ("evaluate", "tiny", "--task", "some.jsonl", "--program", MINE, "--program", "F2", "--map", "mine")
    compared = told(capsys, *asked)
    shares = {row["at"]["program"]: row["estimate"]["value"] for row in compared["tables"][0]["rows"]
              if "steps" not in row["at"]}  # fmt: skip
    ours = {row["at"]["program"]: row["estimate"]["value"] for row in found["tables"][0]["rows"]
            if "steps" not in row["at"] and row["at"]["condition"] in ("with J", "without J")}  # fmt: skip
    assert shares == ours
    code, out, _ = loopscope(capsys, "lm", *asked)
    assert code == 0
    assert "Less F J:mine F, in points" in out
    assert "By steps" in out
    assert max(map(len, out.splitlines())) <= 80


def test_answers_are_those_of_greedy_decoding(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: the model's likeliest token behind every held-out prompt, one prompt at a time."""
    found = told(capsys, "evaluate", "tiny", "--task", "some.jsonl", "--program", "F3")
    model, tokenizer = load("tiny"), load_tokenizer(here / "tiny")
    rows = [json.loads(line) for line in (here / "some.jsonl").read_text(encoding="utf-8").splitlines()]
    right = []
    for row in rows:
        if row["split"] == "test":
            h = states(model, torch.tensor([tokenizer.encode(row["prompt"])]), Program.parse("F3"))["h3"]
            said = int(model.read(h[:, -1]).argmax())
            right.append(said == tokenizer.encode(f"{row['prompt']} {row['answer']}")[-1])
    (share,) = [row for row in found["tables"][0]["rows"] if "steps" not in row["at"]]
    assert share["n"] == len(right)
    assert share["estimate"]["value"] == pytest.approx(sum(right) / len(right))


def test_what_follows_an_answer_is_asked_only_where_it_is_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers are the first of three words that the model goes on with."""
    model, tokenizer = load("tiny"), load_tokenizer(here / "tiny")
    every = [f"{one} + {two} =" for one in range(7) for two in range(7)]
    tokens = torch.tensor([tokenizer.encode(each) for each in every])
    going_on = generate(model, tokens, new=2, stop=()).tokens.tolist()
    known = [at for at, (one, two) in enumerate(going_on) if {one, two}.isdisjoint({0, 1, 2})][:3]  # no mark of a chat
    prompts, said = [every[at] for at in known], [going_on[at] for at in known]
    words = [[tokenizer.decode([token], special=True) for token in each] for each in said]
    rows = [{"prompt": each, "answer": first} for each, (first, _) in zip(prompts, words, strict=True)]
    (here / "first.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def right(*options: str) -> tuple[int, Any]:
        found = told(capsys, "evaluate", "tiny", "--task", "first.jsonl", "--all", *options)
        return round(3 * found["tables"][0]["rows"][0]["estimate"]["value"]), found["end"]

    assert right() == (3, None)
    second = words[0][1]
    assert right("--end", f" {second}") == (sum(each == second for _, each in words), f" {second}")
    assert right("--end", "eos") == (sum(each in model.ends for _, each in said), "eos")
    for program in (F**2, (F**2).patch("loop[1].layer[1].mlp_out", "*=1")):  # one is decoded, the other read at once
        for ends in ({one for _, one in said}, {said[0][1]}, {10**6}):
            items = encode(examples(here / "first.jsonl"), tokenizer, end=ends)
            assert whole_answers(model, items, [program])[0].tolist() == [one in ends for _, one in said]
    for options, sentence in (((), "begins with it; what follows is not asked"), (("--end", "eos"), "end of the text")):
        code, out, _ = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "first.jsonl", "--all", *options)
        assert code == 0
        assert sentence in " ".join(out.split())
    code, _, err = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "first.jsonl", "--all", "--chat", "--end", "x")
    assert code == 2
    assert "in a chat the end of the turn follows an answer" in err
    with pytest.raises(InputError, match="behind which no text"):
        encode(examples([{"prompt": [1], "answer": [2]}]), end="x")


def test_all_weights_learn_a_task_in_a_chat(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learn = ("finetune", "tiny", "--task", "some.jsonl", "--chat", "--out", "learned", *FEW)
    found = told(capsys, *learn)
    assert (found["updates"], found["recipe"]["chat"], found["recipe"]["program"]) == (2, True, "F2")
    assert told(capsys, *learn)["history"] == found["history"]  # looked up
    before, after = load("tiny").state_dict(), load("learned").state_dict()
    assert any(not torch.equal(before[name].float(), after[name].float()) for name in before)


def test_what_was_learned_from_is_not_called_held_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fitted by the field `split`; asked by a file without it, whose hash holds out others."""
    rows = [json.loads(line) for line in (here / "some.jsonl").read_text(encoding="utf-8").splitlines()]
    learned = {row["prompt"] for row in rows if row["split"] == "train"}
    for row in rows:
        del row["split"]
    (here / "bare.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    told(capsys, "finetune", "tiny", "--task", "some.jsonl", "--out", "walker", *FEW)
    fit = told(capsys, "fit", "walker", "--task", "some.jsonl", "--program", MINE, *FEW, "--out", "mine")
    assert fit["learned"] == {"walker": 0}
    asked = ("evaluate", "walker", "--program", MINE, "--map", "mine", "--task")
    assert told(capsys, *asked, "some.jsonl")["learned"] == {"walker": 0, "J:mine": 0}

    held = [each for each in split(examples(here / "bare.jsonl")).held_out if each.prompt in learned]
    assert held
    found = told(capsys, *asked, "bare.jsonl")
    assert found["learned"] == {"walker": len(held), "J:mine": len(held)}
    assert "held out" not in found["how"]
    code, out, _ = loopscope(capsys, "lm", *asked, "bare.jsonl")
    text = " ".join(out.split())
    assert code == 0
    assert f"J:mine was fitted to {len(held)} of the {found['tables'][0]['rows'][0]['n']} examples asked here." in text
    assert f"walker was fine-tuned on {len(held)} of" in text
    assert "held out" not in text
    every = told(capsys, *asked, "bare.jsonl", "--all")
    assert every["learned"] == dict.fromkeys(("walker", "J:mine"), len(learned))

    told(capsys, "fit", "tiny", "--task", "bare.jsonl", "--program", MINE, *FEW, "--out", "other")
    again = told(capsys, "fit", "walker", "--task", "bare.jsonl", "--program", MINE, *FEW)
    assert again["learned"] == {"walker": len(held)}  # what is held out of the map, the model has seen


def test_without_a_list_of_prompts_digests_are_compared(here: Path) -> None:
    data = split(examples(here / "some.jsonl"))
    about = {"examples": {"sha256": {"train": data.train.digest, "held_out": data.held_out.digest}}}
    for name, content in (("older", about), ("drawn", {"recipe": {"loops": 2}})):
        (here / name).mkdir()
        (here / name / "fitted.json").write_text(json.dumps(content), encoding="utf-8")
    known = overlap_of_map("mine", here / "older", data.held_out)
    assert known is not None
    assert known.clear
    unsure = overlap_of_map("mine", here / "older", data.train)
    assert unsure is not None
    assert unsure.shared is None
    assert "may have learned from some examples asked here" in unsure.text
    assert overlap_of_map("mine", here / "drawn", data.train) is None
    (here / "older" / "learned.json").write_text('{"prompts": "abc"}', encoding="utf-8")
    with pytest.raises(DamagedError, match="hashes of 16 digits"):
        overlap_of_map("mine", here / "older", data.train)


def test_a_model_that_is_trained_again_keeps_what_it_had_learned(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (here / "some.jsonl").read_text(encoding="utf-8").splitlines()
    halves = rows[::2], rows[1::2]
    source = "tiny"
    for number, some in enumerate(halves):
        (here / f"half-{number}.jsonl").write_text("\n".join(some), encoding="utf-8")
        told(capsys, "finetune", source, "--task", f"half-{number}.jsonl", "--out", f"learned-{number}", *FEW)
        source = f"learned-{number}"
    learned = {prompt_hash(each) for each in split(examples(here / "some.jsonl")).train}
    assert read_learned(here / source) == learned


@pytest.mark.slow
def test_heads_are_swept_searched_confirmed_and_tested_and_told_on_a_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "fit", "tiny", "--task", "some.jsonl", "--program", MINE, *FEW, "--out", "mine")
    asked = ("find-heads", "tiny", "--task", "chains.jsonl", "--map", "mine", "--heads", "2.0")
    found = told(capsys, *asked, "--out", "heads.json", "--report", "page")
    assert json.loads((here / "heads.json").read_text(encoding="utf-8")) == found
    assert found["program"] == MINE  # as the map says
    assert len(found["sweep"]) == 4  # one loop behind the map, two layers, two heads
    names = [row["at"]["condition"] for row in found["steering"]["tables"][0]["rows"] if "steps" not in row["at"]]
    assert {"unsteered", "steered", "rescue", "damage", "values", "unrelated", "wrong loop", "comparison"} <= {*names}
    assert max(found["errors"].values()) < 1e-4
    page = (here / "page" / "index.html").read_text(encoding="utf-8")
    assert "Each head alone" in page
    assert (here / "page" / "figures" / "sweep.svg").stat().st_size > 1000
    assert "control: steered values" in (here / "page" / "pages" / "steering.html").read_text(encoding="utf-8")
    (here / "page" / "index.html").write_text("mine", encoding="utf-8")
    code, _, err = loopscope(capsys, "lm", *asked, "--report", "page")
    assert code == 2
    assert "is no report of ours" in err


def test_a_sweep_takes_from_the_steered_run_of_the_same_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the state that enters the last layer's end nothing is left over; before the map both runs are the same."""
    told(capsys, "fit", "tiny", "--task", "some.jsonl", "--program", MINE, *FEW[2:], "--updates", "20", "--out", "mine",
         "--set", "rate=0.3")  # fmt: skip
    asked = ("sweep", "tiny", "resid", "--program", "F2", "--from-program", MINE, "--map", "mine=mine")
    texts = [text for each in ("3 + 4 =", "1 + 1 =", "6 + 2 =") for text in ("--text", each)]
    for text in texts[1::2]:
        code, out, _ = loopscope(capsys, "lm", *asked, "--text", text, "--json")
        if code == 0:
            break
    assert code == 0
    found = {each["address"]: each["recovered"][0] for each in json.loads(out)["places"]}
    assert found["loop[1].layer[1].resid"] == pytest.approx(0, abs=1e-4)
    assert found["loop[2].layer[1].resid"] == pytest.approx(1, abs=1e-4)
    code, out, _ = loopscope(capsys, "lm", *asked, "--text", text)
    assert "patched in resid from F J:mine F:" in out
    assert loopscope(capsys, "lm", *asked[:5], "--text", text)[0] == 2


BAD = '{"prompt": "1 + 1 =", "answer": "2"'
LONG = json.dumps({"prompt": "1 + " * 4096 + "1 =", "answer": "2", "split": "train"})
OK = json.dumps({"prompt": "1 + 2 =", "answer": "3", "split": "test"})


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (BAD, (), "bad.jsonl line 2 is no JSON object"),
        ('{"prompt": "1 + 1 ="}', (), "bad.jsonl line 2 has no 'answer'; it has prompt"),
        ('{"prompt": "1 + 1 =", "answer": ""}', (), "bad.jsonl line 2 has an empty answer"),
        (LONG, (), "bad.jsonl line 2 has 8194 tokens, but the model has 8192 positions"),
        ("", (), "bad: no examples are left to learn from of 1"),
        ("", ("--task", "none.jsonl"), "there is no file none.jsonl"),
        ("", ("--program", "F J:mine F J:other F"), "no map named"),
        ("", ("--program", "F2"), "names no map that could be fitted"),
        ("", ("--program", "F J:mine F", "--rank", "3"), "a dense map takes no rank"),
        ("", ("--program", "F J:mine F", "--set", "rat=3"), "no setting 'rat'"),
        ("", ("--program", "F J:mine F", "--family", "dens"), "no map family 'dens'"),
        ("", ("--push", "me/mine"), "--push uploads the folder of --out"),
        ("", ("--out", "out", "--push", "mine"), "names no repository of the hub"),
        ("", ("letter-map",), "--task brings its own examples and takes no recipe"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_is_written(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, options: tuple[str, ...], said: str
) -> None:
    (here / "bad.jsonl").write_text(f"{OK}\n{text}\n", encoding="utf-8")
    before = sorted(each.name for each in here.iterdir())
    task = () if "--task" in options else ("--task", "bad.jsonl" if "bad" in said else "some.jsonl")
    program = () if "--program" in options else ("--program", MINE)
    code, out, err = loopscope(capsys, "lm", "fit", "tiny", *task, *program, *FEW, *options)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(each.name for each in here.iterdir()) == before


def test_programs_whose_maps_are_not_given_are_refused_before_anything_is_loaded(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "some.jsonl", "--program", MINE)
    assert (code, out) == (2, "")
    assert "no map named 'mine' was given; there are: none (--map mine=FOLDER)" in err
    code, _, err = loopscope(capsys, "lm", "find-heads", "tiny", "--task", "some.jsonl", "--map", "none")
    assert code == 2
    assert "none is no saved map" in err
    (here / "test.jsonl").write_text(f"{OK}\n", encoding="utf-8")
    code, out, _ = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "test.jsonl")
    assert code == 0
    assert "1 examples held out, by the field 'split'" in " ".join(out.split())
    (here / "train.jsonl").write_text(f"{OK.replace('test', 'train')}\n", encoding="utf-8")
    code, _, err = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "train.jsonl")
    assert code == 2
    assert "no examples are left held out" in err
    code, out, _ = loopscope(capsys, "lm", "evaluate", "tiny", "--task", "train.jsonl", "--all")
    assert code == 0
    assert "all 1 examples" in " ".join(out.split())


# ---- a hub on this machine -------------------------------------------------------------------------------------------


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as an upload asks for; what arrives lies in a folder."""

    folder: Path

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            said = json.loads(body)
            assert said.get("private") is True or said.get("visibility") == "private"
            return self.reply({"url": f"https://huggingface.co/{said.get('organization', 'me')}/{said['name']}"})
        if self.path == "/api/validate-yaml":
            assert "loopscope" in json.loads(body)["content"]
            return self.reply({"errors": [], "warnings": []})
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            return self.reply({"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                                         for each in files]})  # fmt: skip
        assert "/commit/" in self.path
        for line in body.decode().splitlines():
            match json.loads(line):
                case {"key": "file", "value": {"path": str(path), "content": str(content)}}:
                    (self.folder / path).write_bytes(b64decode(content))
        self.reply({"commitUrl": f"https://huggingface.co/me/mine/commit/{'c' * 40}", "commitOid": "c" * 40})

    def do_GET(self) -> None:
        self.reply({"type": "user", "name": "me", "siblings": [], "sha": "c" * 40})

    def reply(self, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which a hub on this machine keeps what it is sent."""
    kept = tmp_path / "kept"
    kept.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Small", (Hub,), {"folder": kept})) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        for name, value in (("HF_ENDPOINT", f"http://127.0.0.1:{serving.server_port}"), ("HF_TOKEN", "hf_none"),
                            ("NO_PROXY", "127.0.0.1")):  # fmt: skip
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # as it was when the package was imported
        yield kept
        serving.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_map_is_uploaded_as_it_is_saved(here: Path, hub: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, "fit", "tiny", "--task", "some.jsonl", "--program", MINE, *FEW, "--out", "mine",
                 "--push", "me/mine")  # fmt: skip
    assert found["hub"].endswith("me/mine")
    assert {each.name: each.read_bytes() for each in hub.iterdir()} == {
        each.name: each.read_bytes() for each in (here / "mine").iterdir()
    }
    assert load_map(hub).width == 16
