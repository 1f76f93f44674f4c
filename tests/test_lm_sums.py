"""SHA256SUMS in model folders that Loopscope wrote: what was changed, removed or added since is told, not used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from loopscope.errors import DamagedError, InputError
from loopscope.models import checksums as sums
from loopscope.models.checksums import SUMS, check_files, sha256, write_sums
from loopscope.models.folders import load, outline, weights_sha256
from loopscope.models.identity import identify
from loopscope.models.kept import keep
from loopscope.models.text import load_tokenizer
from loopscope.store.store import Store
from loopscope.training.lm.jobs import Settings, finetune
from loopscope.training.lm.new_model import Shape, write_new
from loopscope.training.lm.words import write_words
from tests.commands import loopscope
from tests.stores import everything_under
from tests.tuning_tiny import small, sources, tuning_folder

PURPOSE = "since Loopscope wrote the folder"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made")
    write_words(made / "words", "letters")
    write_new(made / "model", Shape("llama", layers=1, width=8, heads=2), made / "words")
    return made / "model"


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A small model folder as `lm new` writes it, to be spoiled."""
    return shutil.copytree(written, tmp_path / "model")


def everything(folder: Path) -> None:
    """Whatever a command does with a folder before it computes."""
    load(folder)
    load_tokenizer(folder)


def test_other_programs_read_the_list(folder: Path) -> None:
    listed = dict(reversed(line.split("  ")) for line in (folder / SUMS).read_text().splitlines())
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    del files[SUMS]
    assert listed == files
    everything(folder)
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)


@pytest.mark.parametrize(
    "name", ["config.json", "loopscope.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
)
def test_a_file_that_was_changed_or_removed_is_told(folder: Path, name: str, refused: Callable[..., str]) -> None:
    whole = (folder / name).read_bytes()
    place = len(whole) - 9  # in the weights one of the last bits of one number
    (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    said = refused(DamagedError, everything, folder)
    assert said.startswith(f"{folder / name} was changed {PURPOSE}: expected SHA-256 ")
    assert said.endswith(f"; whoever did that on purpose removes {SUMS}")
    assert refused(DamagedError, identify, folder) == said
    (folder / name).unlink()
    assert refused(DamagedError, everything, folder).startswith(f"{folder / name} was removed {PURPOSE}")


@pytest.mark.parametrize("name", ["chat_template.jinja", "special_tokens_map.json", "model.safetensors.index.json"])
def test_a_file_that_acts_and_was_added_is_told(folder: Path, name: str, refused: Callable[..., str]) -> None:
    (folder / "notes.txt").write_text("mine")
    everything(folder)
    (folder / name).write_text("{}", encoding="utf-8")
    assert refused(DamagedError, everything, folder).startswith(f"{folder / name} was added {PURPOSE}: ")


def test_without_the_list_a_folder_is_taken_as_it_is(folder: Path, refused: Callable[..., str]) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": 500.0}), encoding="utf-8")
    refused(DamagedError, outline, folder)
    (folder / SUMS).unlink()
    everything(folder)


def test_no_byte_of_the_list_can_be_flipped_and_matter(folder: Path) -> None:
    whole = (folder / SUMS).read_bytes()
    accepted = []
    for at, byte in enumerate(whole):
        for other in (byte ^ 1, byte ^ 0x20):
            (folder / SUMS).write_bytes(whole[:at] + bytes([other]) + whole[at + 1 :])
            try:
                check_files(folder, ("config.json",), every=True)
            except DamagedError:
                continue
            accepted.append((whole[at : at + 1], bytes([other])))
    assert not accepted
    for text in (b"", whole[:-40], whole.replace(b"\n", b"\r\n"), whole + whole[:80], b"\xff" * 80, b"\0"):
        (folder / SUMS).write_bytes(text)
        with pytest.raises(DamagedError):
            everything(folder)
    (folder / SUMS).write_bytes(whole.replace(b"  ", b" *"))  # as binary files are listed elsewhere
    everything(folder)
    (folder / SUMS).unlink()
    (folder / SUMS).symlink_to("nowhere")
    with pytest.raises(DamagedError, match="expected a file, found none"):
        everything(folder)


def test_odd_names_come_back(tmp_path: Path) -> None:
    names = ("two\nlines", "back\\slash", "re\rturn", " space ", "\u2028", "*star", os.fsdecode(b"\xff"))
    for name in names:
        (tmp_path / name).write_text(name.strip("\udcff"), encoding="utf-8")
    write_sums(tmp_path)
    check_files(tmp_path, (), every=True)
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=tmp_path, check=True)
    for name in names:
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(b"other")
        with pytest.raises(DamagedError, match="was changed since"):
            check_files(tmp_path, (), every=True)
        (tmp_path / name).write_bytes(whole)


def test_no_other_folder_is_looked_into(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("")
    for name in ("../outside", str(tmp_path / "outside"), "..", "."):
        line = f"{hashlib.sha256(b'').hexdigest()}  {name}\n"
        (folder / SUMS).write_text(line)
        with pytest.raises(DamagedError, match="the name of a file beside it"):
            check_files(folder, (), every=True)


def test_a_file_is_read_once_while_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = tmp_path / "file", []
    plain = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: read.append(1) or plain(*given))
    file.write_bytes(b"one")
    assert sha256(file) == sha256(file) == hashlib.sha256(b"one").hexdigest()
    assert len(read) == 2  # too young to be told from what may be written in the same tick of the clock
    monkeypatch.setattr(sums, "SETTLED", -1)
    assert sha256(file) == sha256(file)
    assert len(read) == 3
    file.write_bytes(b"two more")
    assert sha256(file) == hashlib.sha256(b"two more").hexdigest()


# ---- who writes them, and who reads them -----------------------------------------------------------------------------


def test_a_trained_folder_has_a_list_of_its_own(tmp_path: Path, refused: Callable[..., str]) -> None:
    """That of the folder it was trained from is not copied, and is checked before it."""
    folder, store = tuning_folder(tmp_path / "llama"), Store(tmp_path / "store")
    write_sums(folder)

    def trained(out: str) -> object:
        recipe = small("smol-letter", "updates=1")
        return finetune(folder, recipe, tmp_path / out, store, Settings(torch.device("cpu")), sources=sources())

    trained("out")
    everything(tmp_path / "out")
    assert (tmp_path / "out" / SUMS).read_bytes() != (folder / SUMS).read_bytes()
    assert {each.manifest.inputs["made"] for each in store.every("lm-training")} == {weights_sha256(tmp_path / "out")}
    with (tmp_path / "out" / "model.safetensors").open("r+b") as weights:
        weights.seek(-9, os.SEEK_END)
        weights.write(b"\1")
    assert "model.safetensors was changed" in refused(DamagedError, trained, "out")
    with (folder / "config.json").open("a") as config:
        config.write(" ")
    before = everything_under(tmp_path)
    assert "config.json was changed" in refused(DamagedError, trained, "again")
    assert everything_under(tmp_path) == before


def test_a_kept_model_is_checked_wherever_it_is_loaded_from(
    folder: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    store = Store(tmp_path / "store")
    kept = keep(folder, "small", store)
    assert dict(kept.manifest.inputs) == {"weights": weights_sha256(folder), "identity": identify(folder).key}
    assert identify(kept.folder) == identify(folder)
    everything(kept.folder)
    (kept.folder / "tokenizer_config.json").write_text("{}")
    assert "tokenizer_config.json was changed" in refused(DamagedError, load, kept.folder)
    (folder / "model.safetensors").write_bytes(b"")
    before = everything_under(tmp_path)
    with pytest.raises((DamagedError, InputError)):
        keep(folder, "spoilt", store)
    assert everything_under(tmp_path) == before


def test_damage_is_exit_3_and_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert loopscope(capsys, "lm", "readouts", "model", "--ids", "[[1, 2]]")[0] == 0
    (folder / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    new = ("lm", "new", "--layers", "1", "--width", "8", "--heads", "2", "--tokenizer", "model", "--out", "new")
    for asked in (("lm", "readouts", "model", "--text", "A"), new, ("lm", "keep", "model", "name")):
        code, out, err = loopscope(capsys, *asked)
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert "chat_template.jinja was added since Loopscope wrote the folder" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
