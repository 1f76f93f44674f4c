"""Fine-tuning jobs: what is written, what is found again, what a kill leaves, several processes, the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from loopscope.errors import DamagedError, InputError, NotFiniteError
from loopscope.maps import load_map
from loopscope.models.decoding import generate
from loopscope.models.folders import load, weights_sha256
from loopscope.models.identity import identify
from loopscope.store.store import Store
from loopscope.training.lm import jobs
from loopscope.training.lm.batches import Unit
from loopscope.training.lm.jobs import Finished, Progress, Settings, finetune, fit
from loopscope.training.lm.objective import Objective
from loopscope.training.lm.recipe import Recipe
from tests.commands import loopscope
from tests.tuning_tiny import small, sources, text_files, tuning_folder
from tests.tuning_together import StoppedError, together

CPU = torch.device("cpu")


def tune(folder: Path, recipe: Recipe, out: Path, store: Path, stop: int = 0) -> Finished:
    """Fine-tune or fit; `stop` breaks off after that update, with a checkpoint after each."""

    def watch(now: Progress) -> None:
        if now.done == stop:
            raise StoppedError

    settings = Settings(CPU, save_every=0.0, watch=watch)
    if recipe.trains == "map":
        return fit(folder, recipe, Store(store), settings, sources=sources())
    return finetune(folder, recipe, out, Store(store), settings, sources=sources())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "smol-letter"),
        ("ouro", "letter-map"),
        pytest.param("ouro", "letter", marks=pytest.mark.slow),
        pytest.param("llama", "antonym-map", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_killed_gives_the_same_bits(tmp_path: Path, kind: str, name: str) -> None:
    folder = tuning_folder(tmp_path / kind, kind)
    recipe = small(name, "updates=4", "rate=0.01", *(["rank=4"] if name == "antonym-map" else []))
    whole = tune(folder, recipe, tmp_path / "whole", tmp_path / "one")
    for stop in (1, 3):
        with pytest.raises(StoppedError):
            tune(folder, recipe, tmp_path / "parts", tmp_path / "two", stop=stop)
        assert not (tmp_path / "parts").exists()
    parts = tune(folder, recipe, tmp_path / "parts", tmp_path / "two")
    assert weights(whole.folder).keys() == weights(parts.folder).keys()
    assert all(torch.equal(tensor, weights(parts.folder)[name]) for name, tensor in weights(whole.folder).items())
    assert list(whole.history) == list(parts.history)
    assert (whole.tokens, whole.updates) == (parts.tokens, 4)
    assert not Store(tmp_path / "two").every("checkpoint")
    assert tune(folder, recipe, tmp_path / "parts", tmp_path / "two", stop=1).history == parts.history  # looked up


def test_a_run_that_is_asked_to_stop_keeps_what_it_has(tmp_path: Path) -> None:
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    recipe = small("smol-letter", "updates=4", "rate=0.01")
    whole = tune(folder, recipe, tmp_path / "whole", tmp_path / "one")
    asked = iter([False, True])
    with pytest.raises(KeyboardInterrupt):
        finetune(folder, recipe, tmp_path / "parts", store, Settings(CPU, stop=lambda: next(asked)), sources=sources())
    assert [each.manifest.config["update"] for each in store.every("checkpoint")] == [2]
    parts = finetune(folder, recipe, tmp_path / "parts", store, Settings(CPU), sources=sources())
    assert list(whole.history) == list(parts.history)
    assert all(torch.equal(tensor, weights(parts.folder)[name]) for name, tensor in weights(whole.folder).items())


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers count as right once the loss is low, as a model this small learns no more than the wording so soon."""
    plain = Objective.forward

    def forward(self: Objective, unit: Unit) -> Any:
        loss, right = plain(self, unit)
        return loss, torch.full_like(right, bool(loss.detach() / unit.weights.sum() < 6))

    monkeypatch.setattr(Objective, "forward", forward)


@pytest.mark.usefixtures("lenient")
def test_a_gate_waits_for_the_highest_level(tmp_path: Path) -> None:
    """Every check passes it; two in a row are asked for since the last level began."""
    folder = tuning_folder(tmp_path / "llama")
    shape = ["updates=14", "grow_every=2", "share=0", "deepest=2", "rate=0.03", "check_every=1", "gate=0", "pace=1"]
    grown = tune(folder, small("small-letter-adapt", *shape, "grow_at=0.75"), tmp_path / "one", tmp_path / "store")
    (began,) = (row["update"] for row in grown.history if "grown" in row)
    assert grown.updates == began + 2
    timed = tune(folder, small("small-letter-adapt", *shape, "grow_at=null"), tmp_path / "two", tmp_path / "store")
    assert timed.updates == 4
    late = tune(
        folder, small("small-letter-adapt", *shape, "grow_at=0.75", "deepest=1"), tmp_path / "three", tmp_path / "store"
    )
    begun = [right / asked for row in late.history[1:] for right, asked in row["answers"].values()]
    assert 2 < late.updates < 14  # the only level had to be learned first
    assert begun[0] < 0.75 <= sum(begun[-2:]) / 2


@pytest.mark.usefixtures("lenient")
def test_depth_and_pace_grow_by_success_and_a_killed_run_knows_its_level(tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "llama")
    changes = ["updates=14", "grow_every=2", "grow_at=0.75", "share=0", "deepest=3", "rate=0.03", "check_every=4"]
    recipe = small("small-letter-adapt", *changes, "stepwise=true", "examples=6", "pace=2")
    whole = tune(folder, recipe, tmp_path / "whole", tmp_path / "one")
    grown = {row["update"]: row["grown"] for row in whole.history if "grown" in row}
    depths = {row["update"]: max(int(name[0]) for name in row["answers"]) for row in whole.history if "answers" in row}
    assert list(grown.values()) == [2, 3, 4, 5]
    assert min(grown) > 2  # the loss had to fall first
    for update, depth in depths.items():
        assert depth == min(3, max([1, *(to for at, to in grown.items() if at < update)]))
    first, second, third, fourth = grown
    assert ["2 in 1" in row["answers"] for row in whole.history if "answers" in row] == [n > fourth for n in depths]
    for stop in (1, first - 1, first, second, third, fourth):
        with pytest.raises(StoppedError):
            tune(folder, recipe, tmp_path / "parts", tmp_path / "two", stop=stop)
    parts = tune(folder, recipe, tmp_path / "parts", tmp_path / "two")
    assert list(whole.history) == list(parts.history)
    assert all(torch.equal(tensor, weights(parts.folder)[name]) for name, tensor in weights(whole.folder).items())


def test_a_fine_tuned_folder_is_an_ordinary_one_that_knows_its_loops(tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "llama")
    recipe = small("smol-letter", "boundary=norm", "loops=3", "rate=0.01", "saved=fp32")
    done = tune(folder, recipe, tmp_path / "tuned", tmp_path / "store")
    model = load(done.folder)
    assert (model.loops, model.boundary, load(folder).boundary) == (3, "norm", "none")
    assert (load(done.folder, loops=5).loops, load(done.folder, boundary="none").boundary) == (5, "none")
    tokens = torch.tensor([[5, 9, 2]])
    plain = AutoModelForCausalLM.from_pretrained(done.folder)
    assert plain.dtype == torch.float32  # though the released config says bf16
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, loops=1), plain(tokens).logits, rtol=0, atol=2e-5)
    about = json.loads((done.folder / "loopscope.json").read_text(encoding="utf-8"))
    assert about["from"] == weights_sha256(folder)
    assert {file.name for file in done.folder.iterdir()} == {
        "SHA256SUMS", "config.json", "history.json", "loopscope.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    before, after = weights(folder), weights(done.folder)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    rounded = tune(folder, replace(recipe, saved="bf16"), tmp_path / "rounded", tmp_path / "store").folder
    assert AutoModelForCausalLM.from_pretrained(rounded).dtype == torch.bfloat16
    assert all(torch.equal(each, after[name].bfloat16()) for name, each in weights(rounded).items())
    (done.folder / "loopscope.json").write_text('{"loops": true, "boundary": "norm"}', encoding="utf-8")
    (done.folder / "SHA256SUMS").unlink()
    with pytest.raises(DamagedError, match=r"loopscope\.json: expected a number of loops"):
        load(done.folder)


def test_the_exit_gate_is_left_alone(tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "ouro", "ouro")
    done = tune(folder, small("letter"), tmp_path / "tuned", tmp_path / "store")
    before, after = weights(folder), weights(done.folder)
    assert {name for name in before if torch.equal(before[name], after[name])} == {
        "model.early_exit_gate.weight", "model.early_exit_gate.bias",
    }  # fmt: skip


def test_a_map_is_fitted_to_the_frozen_model_and_helps(tmp_path: Path) -> None:
    """The loss that is reported is that of the saved map, run by the program that it was fitted for."""
    folder = tuning_folder(tmp_path / "ouro", "ouro")
    before = weights_sha256(folder)
    recipe = small("letter-map", "updates=12", "rate=0.05", "deepest=4", "check_every=12")
    done = tune(folder, recipe, tmp_path / "none", tmp_path / "store")
    losses = [row["loss"] for row in done.history if "loss" in row]
    assert losses[-1] < losses[0] - 1
    assert weights_sha256(folder) == before
    step = load_map(done.folder)
    (artefact,) = Store(tmp_path / "store").every(jobs.KIND)
    assert dict(artefact.manifest.inputs) == {"weights": before, "identity": identify(folder).key}
    said = generate(
        load(folder), torch.tensor([[5, 6]]), "F J:step F J:step F J:step F", new=3, maps={"step": step}, stop=()
    )
    assert said.tokens.shape == (1, 3)


def test_a_map_by_steps_may_grow_from_depth_one(tmp_path: Path) -> None:
    """The general text beside goes through all loops, so that there is a map to learn at depth 1, too."""
    folder = tuning_folder(tmp_path / "llama")
    recipe = small("smol-letter-map", "loops=2", "grow_every=1", "updates=2")
    done = tune(folder, recipe, tmp_path / "none", tmp_path / "store")
    asked = set().union(*(row["answers"] for row in done.history if "answers" in row))
    assert asked == {"1 in 2", "2 in 2"}
    x = torch.ones((1, 1, load(folder).width), dtype=torch.float16)  # as the map is saved
    assert not torch.equal(load_map(done.folder)(x), x)


def test_checks_see_what_was_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the questions of the check as the examples of every update, a small model learns their answers by heart."""
    from loopscope.tasks import letters
    from loopscope.training.lm import batches
    from loopscope.training.lm.questions import Example

    def by_heart(recipe: Recipe, turn: int, deepest: int | None = None) -> tuple[Example, ...]:
        asked = [letters.evaluation(k)[0] for k in (1, 2)]
        return tuple(Example(letters.prompt(each), letters.answer(each), recipe.loops, each.k) for each in asked)

    monkeypatch.setattr(batches, "examples", by_heart)
    folder = tuning_folder(tmp_path / "llama", hidden_size=32)
    recipe = small("smol-letter", "updates=200", "rate=0.01", "check_every=20", "gate=1", "share=0", "loops=2")
    done = tune(folder, recipe, tmp_path / "tuned", tmp_path / "store")
    checks = [row["accuracy"] for row in done.history if "accuracy" in row]
    assert checks[0] == {"1": 0.0, "2": 0.0}
    assert checks[-2:] == [{"1": 1.0, "2": 1.0}] * 2
    assert done.updates == 20 * (len(checks) - 1) < 200  # the gate ended it
    first, last = (row["nll"]["mixed"] for row in done.history if "nll" in row and row["update"] in (0, done.updates))
    assert first != last


def test_numbers_that_are_left_stop_the_run_before_a_checkpoint(tmp_path: Path) -> None:
    folder = tuning_folder(tmp_path / "llama")
    recipe = small("smol-letter", "rate=1e30", "updates=6")
    with pytest.raises(NotFiniteError, match="smol-letter stopped at update"):
        tune(folder, recipe, tmp_path / "tuned", tmp_path / "store")
    kept = Store(tmp_path / "store").every("checkpoint")
    assert all(torch.isfinite(t).all() for each in kept for t in each.tensors("state.safetensors").values())
    assert not (tmp_path / "tuned").exists()


def test_what_cannot_be_done(tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store, out = tuning_folder(tmp_path / "llama"), tmp_path / "store", tmp_path / "out"

    def asked(name: str, *changes: str, out: Path = out) -> Callable[[], Finished]:
        return lambda: tune(folder, small(name, *changes), out, store)

    assert "exists already" in refused(InputError, asked("smol-letter", out=folder))
    assert "a dense map takes no rank" in refused(InputError, asked("letter-map", "rank=3"))
    assert "takes a rank" in refused(InputError, asked("antonym-map", "rank=null"))
    assert "rank 128 does not fit width 16" in refused(InputError, asked("antonym-map"))
    assert "lm fit" in refused(InputError, finetune, folder, small("letter-map"), out, Store(store), Settings(CPU))
    assert "lm finetune" in refused(InputError, fit, folder, small("letter"), Store(store), Settings(CPU))
    monkeypatch.setattr("loopscope.training.lm.memory.free_memory", lambda device: 1000)
    assert "smaller passes take less" in refused(InputError, asked("smol-letter"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama"]


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path: Path) -> None:
    """FSDP for weights, DDP for a map, unequal shares; the first job goes on from the checkpoint of one process."""
    folder = tuning_folder(tmp_path / "ouro", "ouro")
    places = {count: tmp_path / str(count) for count in (1, 2)}
    for place in places.values():
        place.mkdir()
    with pytest.raises(StoppedError):
        together(folder, places[1], stop=1)
    shutil.copytree(places[1] / "store", places[2] / "store")
    together(folder, places[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
               "--rdzv-endpoint", "127.0.0.1:0", "-m", "tests.tuning_together"]  # fmt: skip
    command += [str(folder), str(places[2])]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("adafactor", "adamw"):
        alone, both = (weights(places[count] / name) for count in (1, 2))
        for key, tensor in alone.items():
            torch.testing.assert_close(both[key], tensor, rtol=0, atol=1e-6)
        start = weights(folder)
        assert max((start[key] - tensor).abs().max() for key, tensor in alone.items()) > 1e-3
        told = [json.loads((places[count] / name / "history.json").read_text(encoding="utf-8")) for count in (1, 2)]
        _same_history(*(each["history"] for each in told))
    maps = [Store(places[count] / "store").every(jobs.KIND)[0] for count in (1, 2)]
    assert maps[0].key == maps[1].key
    for a, b in zip(*(load_map(each.folder).parameters() for each in maps), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def _same_history(alone: list[dict[str, Any]], both: list[dict[str, Any]]) -> None:
    assert [row["update"] for row in alone] == [row["update"] for row in both]
    for a, b in zip(alone, both, strict=True):
        assert a.get("accuracy") == b.get("accuracy")
        for key in {"loss", "general", "norm", "rate"} & a.keys():
            assert a[key] == pytest.approx(b[key], rel=1e-5)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning_folder(tmp_path / "llama")
    text = text_files(tmp_path)
    few = ["--updates", "2", "--set", "examples=5", "--set", "checked=1", "--device", "cpu", *text]
    asked = ["lm", "finetune", "llama", "smol-letter-adapt", "--out", "tuned", "--set", "grow_every=1", *few]
    code, out, err = loopscope(capsys, *asked)
    assert code == 0
    assert err.startswith("smol-letter-adapt takes about 0.")
    assert "update 2: answers that began right since the last check: " in err
    assert "% right by depth" in " ".join(out.split())
    code, out, _ = loopscope(capsys, *asked, "--json")  # looked up
    assert (code, json.loads(out)["updates"]) == (0, 2)
    assert load(tmp_path / "tuned").boundary == "norm"
    code, out, err = loopscope(capsys, "lm", "fit", "tuned", "smol-letter-map", "--out", "saved", *few, "--json")
    report = json.loads(out)
    assert (code, report["folder"]) == (0, str(tmp_path / "store" / "lm-map" / report["key"]))
    assert load_map(tmp_path / "saved").width == 16
    code, out, _ = loopscope(capsys, "lm", "recipes")
    assert (code, "smol-antonym-stepwise" in out) == (0, True)
    code, out, _ = loopscope(capsys, "lm", "recipes", "--json")
    assert json.loads(out)["recipes"][0]["name"] == "letter"


def test_mistakes_get_one_line_and_leave_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning_folder(tmp_path / "llama")
    (tmp_path / "file").write_text("short", encoding="utf-8")
    (tmp_path / "bad").write_bytes(b"\xff")
    cases: list[tuple[list[str], str, int]] = [
        (["finetune", "llama", "lettre", "--out", "x"], "no recipe 'lettre'", 2),
        (["finetune", "llama", "letter-map", "--out", "x"], "`loopscope lm fit` does that", 2),
        (["fit", "llama", "letter"], "`loopscope lm finetune` does that", 2),
        (["finetune", "llama", "letter"], "--out", 2),
        (["finetune", "llama", "letter", "--out", "no/x"], "there is no folder", 2),
        (["finetune", "llama", "letter", "--out", "file"], "exists already", 2),
        (["finetune", "nothing", "letter", "--out", "x"], "there is no such folder", 2),
        (["finetune", "llama", "letter", "--out", "x", "--updates", "0"], "updates must be at least 1", 2),
        (["finetune", "llama", "letter", "--out", "x", "--set", "rate"], "name=value", 2),
        (["finetune", "llama", "letter", "--out", "x", "--updates", "2", "--set", "updates=3"], "set twice", 2),
        (["finetune", "llama", "letter", "--out", "x", "--boundary", "nrom"], "(nearest: norm)", 2),
        (["finetune", "llama", "letter", "--out", "x", "--text", "none"], "cannot read none", 2),
        (["finetune", "llama", "letter", "--out", "x", "--text", "file"], "none has 512 tokens", 2),
        (["finetune", "llama", "letter", "--out", "x", "--text", "bad"], "expected UTF-8", 3),
        (["finetune", "llama", "letter", "--out", "x", "--device", "tpu"], "no device 'tpu'", 2),
        (["finetune", "llama", "letter", "--out", "x", "--store", "file"], "is no folder, so no store", 2),
        (["fit", "llama", "letter-map", "--out", "llama"], "llama exists already, as a folder", 2),
    ]
    for arguments, said, wanted in cases:
        code, out, err = loopscope(capsys, "lm", *arguments)
        assert (code, out, err.count("\n")) == (wanted, "", 1), (arguments, err)
        assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad", "file", "llama"]


def test_weights_that_do_not_fit_the_config_get_one_line_and_leave_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told before a word about memory, before general text is looked at, and before there is a store."""
    monkeypatch.chdir(tmp_path)
    whole = load_file(tuning_folder(tmp_path / "llama") / "model.safetensors")
    norm = "model.norm.weight"
    cases = [
        ({name: tensor for name, tensor in whole.items() if name != norm}, f"llama lacks {norm}"),
        ({**whole, "model.other": torch.ones(2)}, "llama has model.other"),
        ({**whole, norm: torch.ones(17)}, f"{norm} has shape [17], but config.json says [16]"),
    ]
    for tensors, said in cases:
        save_file(tensors, tmp_path / "llama" / "model.safetensors")
        for asked in (["finetune", "llama", "smol-letter", "--out", "x"], ["fit", "llama", "smol-letter-map"]):
            code, out, err = loopscope(capsys, "lm", *asked)
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["llama"]
