"""Models by their names on the hub: from a cache on disk, or from a hub on this machine; nothing else is asked."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope import load, save_map
from loopscope.errors import DamagedError, InputError
from loopscope.maps import DiagonalLowRank
from loopscope.models import folders, hub
from loopscope.models.adapter import Adapter
from loopscope.models.hub import HubName, find, parse, snapshot_of
from loopscope.store.store import Store
from loopscope.store.zoo import open_zoo
from loopscope.studies.language.records import load_language, recorded
from loopscope.studies.recording import Outcome
from loopscope.training.lm.jobs import Settings, finetune, fit
from tests.commands import loopscope
from tests.hub_cache import COMMIT, NAME, put_snapshot
from tests.model_folders import ouro_folder
from tests.tuning_tiny import small, sources, tuning_folder

OTHER = "f" * 40
READ = ("--ids", "[[1, 7, 3]]", "--json")


@pytest.fixture
def ouro(tmp_path: Path) -> Path:
    """A model folder as it is uploaded, with code and pickles beside it that fail where they are opened."""
    folder = ouro_folder(tmp_path / "ouro")
    (folder / "modeling_ouro.py").write_text("raise SystemExit('run')", encoding="utf-8")
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a machine that is offline, and on which nobody opens a connection."""

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home" / "hub"


# ---- names -----------------------------------------------------------------------------------------------------------


def test_names_of_the_hub() -> None:
    assert parse("ByteDance/Ouro-1.4B") == HubName("ByteDance/Ouro-1.4B", "main")
    assert parse("ByteDance/Ouro-1.4B@v1.0") == HubName("ByteDance/Ouro-1.4B", "v1.0")
    assert parse("hf:ByteDance/Ouro-1.4B@refs/pr/1") == HubName("ByteDance/Ouro-1.4B", "refs/pr/1")
    assert parse("hf:gpt2") == HubName("gpt2", "main")
    assert str(parse("hf:gpt2@x")) == "gpt2@x"
    for path in ("gpt2", "a/b/c", "/a/b", "./a", "../a", "a/..", "a/", "a--b/c", "a/b..c", "a/b.git", "a b/c", "a/é"):
        assert parse(path) is None, path


@pytest.mark.parametrize("asked", ["hf:", "hf:../x", "hf:a/../b", "hf:a/b/c", "hf:/etc/passwd", "hf:a--b"])
def test_what_can_be_no_name_is_refused(asked: str, refused: Callable[..., str]) -> None:
    assert refused(InputError, parse, asked) == (
        f"'{asked}' names no model of the hub; it is written OWNER/NAME or hf:OWNER/NAME@REVISION"
    )


@pytest.mark.parametrize("revision", ["", "../../x", "a/../b", "/etc", "a//b", "a\nb", "-x"])
def test_what_can_be_no_revision_is_refused(revision: str, refused: Callable[..., str]) -> None:
    assert "can be no revision" in refused(InputError, parse, f"a/b@{revision}")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    assert hub.cache_folder() == Path("/somebody/.cache/huggingface/hub")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub.cache_folder() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "~/hf")
    assert hub.cache_folder() == Path("/somebody/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "$HOME/elsewhere")
    assert hub.cache_folder() == Path("/somebody/elsewhere")


# ---- from the cache --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_a_cached_model_is_the_model(cache: Path, ouro: Path, links: bool) -> None:
    """Also where the cache has files instead of links, as on systems that know none."""
    put_snapshot(cache, ouro, links=links)
    plain, tokens = folders.load(ouro), torch.tensor([[1, 7, 3]])
    for asked in (NAME, f"hf:{NAME}", f"hf:{NAME}@main", f"{NAME}@{COMMIT}"):
        model = load(asked, loops=2)
        assert isinstance(model, Adapter)
        assert model.loops == 2
        assert torch.equal(model(tokens), plain(tokens, loops=2))


def test_revisions_are_told_apart(cache: Path, ouro: Path, tmp_path: Path) -> None:
    put_snapshot(cache, ouro)
    (other := ouro_folder(tmp_path / "other", total_ut_steps=3)).joinpath("README.md").write_text("of a request")
    put_snapshot(cache, other, commit=OTHER, ref="refs/pr/1")
    found = find(HubName(NAME, "refs/pr/1"))
    assert (found.commit, found.folder.name, str(found)) == (OTHER, OTHER, f"{NAME} at commit {OTHER}")
    assert [load(f"{NAME}@{revision}").loops for revision in ("main", "refs/pr/1", OTHER)] == [4, 3, 3]


def test_a_folder_comes_first(cache: Path, ouro: Path, tmp_path: Path) -> None:
    put_snapshot(cache, ouro)
    mine = ouro_folder_at(tmp_path / NAME, total_ut_steps=2)
    assert load(NAME).loops == 2
    assert load(f"hf:{NAME}").loops == 4
    shutil.rmtree(mine)
    assert load(NAME).loops == 4


def ouro_folder_at(place: Path, **changes: Any) -> Path:
    place.parent.mkdir()
    return ouro_folder(place, **changes)


def test_nothing_but_what_is_needed_is_opened(cache: Path, ouro: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ouro / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch ran'\ntR.")
    snapshot = put_snapshot(cache, ouro)
    for name in ("modeling_ouro.py", "pytorch_model.bin"):
        (snapshot / name).resolve().unlink()  # whoever opened it would fail
    assert isinstance(load(NAME), Adapter)


def test_what_is_not_there_offline_is_one_line(cache: Path, ouro: Path, refused: Callable[..., str]) -> None:
    nothing = "and HF_HUB_OFFLINE is set, so that nothing is downloaded"
    assert refused(InputError, load, "no/such") == (
        f"there is no folder no/such, the cache {cache} has no no/such, {nothing}"
    )
    snapshot = put_snapshot(cache, ouro)
    for revision in ("v2", OTHER):
        assert refused(InputError, load, f"{NAME}@{revision}") == (
            f"there is no folder {NAME}@{revision}, the cache {cache} has {NAME} with revision main alone, {nothing}"
        )
    (snapshot / "tokenizer.json").unlink()
    assert load(NAME).loops == 4
    (snapshot / "model.safetensors").resolve().unlink()
    assert refused(InputError, load, NAME) == (
        f"{NAME} at commit {COMMIT} is in the cache without model.safetensors, {nothing}"
    )
    shutil.rmtree(snapshot)
    assert f"with revision main alone, {nothing}" in refused(InputError, load, NAME)


def test_a_lacking_shard_is_named(cache: Path, ouro: Path, refused: Callable[..., str]) -> None:
    listed = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (ouro / "model.safetensors").rename(ouro / "model-1.safetensors")
    (ouro / "model.safetensors.index.json").write_text(json.dumps(listed), encoding="utf-8")
    put_snapshot(cache, ouro)
    assert "is in the cache without model-2.safetensors" in refused(InputError, load, NAME)


def test_pickles_alone_name_the_command_that_converts_them(
    cache: Path, ouro: Path, refused: Callable[..., str]
) -> None:
    (ouro / "model.safetensors").rename(ouro / "pytorch_model.bin")
    snapshot = put_snapshot(cache, ouro)
    said = refused(InputError, load, NAME)
    assert "has only pickled weights, pytorch_model.bin, which are never opened unasked" in said
    assert f"loopscope lm convert {snapshot} --out FOLDER" in said


def test_links_that_lead_out_of_the_blobs_are_refused(
    cache: Path, ouro: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    snapshot = put_snapshot(cache, ouro)
    outside = tmp_path / "outside"
    shutil.copytree(ouro, outside)
    blobs = snapshot.parents[1] / "blobs"
    (blobs / "deep").mkdir()
    (blobs / "deep" / "file").write_bytes(b"{}")
    through = blobs / "through"
    through.symlink_to(outside / "config.json")
    for name in ("config.json", "model.safetensors", "notes.txt"):
        for target in (outside / "config.json", through, blobs / "deep" / "file", outside, blobs, Path("/dev/zero")):
            put_snapshot(cache, ouro, "bad/one")
            victim = cache / "models--bad--one" / "snapshots" / COMMIT / name
            victim.unlink(missing_ok=True)
            victim.symlink_to(target)
            said = refused(DamagedError, load, "bad/one")
            assert said.startswith(f"{victim}: expected a link to a file in ")
            shutil.rmtree(cache / "models--bad--one")
    assert load(NAME).loops == 4


def test_folders_of_a_cache_that_are_links_are_refused(cache: Path, ouro: Path, refused: Callable[..., str]) -> None:
    snapshot = put_snapshot(cache, ouro)
    for folder in (snapshot, snapshot.parent, snapshot.parents[1] / "blobs"):
        moved = folder.rename(folder.with_name("moved"))
        folder.symlink_to(moved)
        assert refused(DamagedError, load, NAME).startswith(f"{folder}: expected a folder, found a link to ")
        folder.unlink()
        moved.rename(folder)
    assert load(NAME).loops == 4


@pytest.mark.parametrize("content", ["", "main", "../../../outside", "0" * 39, "0" * 3000])
def test_a_ref_that_names_no_commit_is_damage(
    cache: Path, ouro: Path, content: str, refused: Callable[..., str]
) -> None:
    ref = put_snapshot(cache, ouro).parents[1] / "refs" / "main"
    ref.write_text(content, encoding="utf-8")
    assert refused(DamagedError, load, NAME).startswith(f"{ref}: expected ")
    ref.unlink()
    ref.symlink_to(ouro / "config.json")
    assert "which is not followed" in refused(DamagedError, load, NAME)


def test_a_snapshot_says_what_it_is(cache: Path, ouro: Path) -> None:
    snapshot = put_snapshot(cache, ouro)
    found = snapshot_of(snapshot)
    assert found is not None
    assert (found.name, found.commit, found.folder) == (NAME, COMMIT, snapshot)
    assert hub.origin_of(snapshot) == {"hub": {"name": NAME, "commit": COMMIT}}
    assert hub.called(snapshot) == "Tiny-Ouro.v1"
    assert (hub.origin_of(ouro), hub.called(ouro), snapshot_of(snapshot.parent)) == ({}, "ouro", None)


# ---- commands and records --------------------------------------------------------------------------------------------


def test_commands_take_names_and_tell_the_commit(capsys: pytest.CaptureFixture[str], cache: Path, ouro: Path) -> None:
    snapshot = put_snapshot(cache, ouro)
    code, out, err = loopscope(capsys, "lm", "readouts", NAME, *READ)
    assert (code, err) == (0, f"{NAME} at commit {COMMIT}\n")
    named = json.loads(out)
    assert (named["folder"], named["hub"]) == (str(snapshot), {"name": NAME, "commit": COMMIT})
    code, out, err = loopscope(capsys, "lm", "readouts", str(ouro), *READ)
    assert (code, err) == (0, "")
    assert "hub" not in json.loads(out)
    assert json.loads(out)["examples"] == named["examples"]
    code, out, err = loopscope(capsys, "lm", "patch", f"hf:{NAME}@main", "F2", "--text", "ab", "--json")
    assert (code, json.loads(out)["hub"]["commit"]) == (0, COMMIT)
    made = ("--out", "made", "--layers", "1", "--width", "8", "--heads", "2")
    code, out, err = loopscope(capsys, "lm", "new", *made, "--tokenizer", NAME)
    assert (code, err) == (0, f"{NAME} at commit {COMMIT}\n")
    assert Path("made/tokenizer.json").read_bytes() == (ouro / "tokenizer.json").read_bytes()


def test_a_name_of_nothing_is_one_line(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    code, out, err = loopscope(capsys, "lm", "readouts", "d8l6-55", *READ)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "there is no such folder" in err
    assert err.endswith("; a model of the hub is written OWNER/NAME or hf:OWNER/NAME@REVISION\n")
    code, out, err = loopscope(capsys, "lm", "readouts", "d8l6-5", *READ)
    assert (code, out, err) == (2, "", f"loopscope: d8l6-5 in {open_zoo().root} is no language model\n")
    code, out, err = loopscope(capsys, "lm", "readouts", "no/such", *READ)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "HF_HUB_OFFLINE is set" in err


def test_a_tokenizer_is_enough_for_a_new_model_alone(
    cache: Path, ouro: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (part := tmp_path / "part").mkdir()
    shutil.copy(ouro / "tokenizer.json", part)
    snapshot = put_snapshot(cache, part)
    assert find(HubName(NAME), weights=False).folder == snapshot
    assert "without config.json" in refused(InputError, find, HubName(NAME))


def test_records_keep_the_commit(cache: Path, ouro: Path, tmp_path: Path) -> None:
    """Beside the hashes; what is measured on the same files under another name is the same."""
    snapshot, store = put_snapshot(cache, ouro), Store(tmp_path / "store")
    save_map(DiagonalLowRank(48, 2, seed=0), tmp_path / "map")
    there, here = (load_language(folder, tmp_path / "map") for folder in (snapshot, ouro))
    assert (there.name, here.name) == ("Tiny-Ouro.v1", "ouro")
    assert there.about.pop("hub") == {"name": NAME, "commit": COMMIT}
    assert there.identity == here.identity
    assert {**here.about, "hub": there.origin["hub"]} == there.about
    made = recorded(there, store, "language-iterations", {}, lambda: Outcome({}), lambda _: ())
    assert made.notes["hub"] == {"name": NAME, "commit": COMMIT}


def test_what_is_trained_on_a_model_of_the_hub_says_so(cache: Path, tmp_path: Path) -> None:
    snapshot = put_snapshot(cache, tuning_folder(tmp_path / "llama"))
    store, settings = Store(tmp_path / "store"), Settings(torch.device("cpu"))
    tuned = finetune(
        snapshot, small("smol-letter", "updates=1"), tmp_path / "tuned", store, settings, sources=sources()
    )
    fitted = fit(snapshot, small("smol-letter-map", "updates=1"), store, settings, sources=sources())
    for file in (tuned.folder / "loopscope.json", fitted.folder / "fitted.json"):
        assert json.loads(file.read_text(encoding="utf-8"))["hub"] == {"name": NAME, "commit": COMMIT}
    subject = load_language(snapshot, fitted.folder)
    assert (subject.provenance.text, subject.name) == ("fitted to this model", "Tiny-Ouro.v1")


# ---- downloads, from a hub on this machine ---------------------------------------------------------------------------


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a download asks for: a revision, its files, and each of them."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(f"{self.command} {path}")
        if path == f"/api/models/{NAME}/revision/main":
            return self.reply(json.dumps({"id": NAME, "sha": COMMIT}).encode())
        if path == f"/api/models/{NAME}/tree/{COMMIT}":
            tree = [{"type": "file", "path": n, "size": len(c), "oid": self.mark(n)} for n, c in self.files.items()]
            return self.reply(json.dumps(tree).encode())
        name = path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")
        if name in self.files:
            return self.reply(self.files[name], {"ETag": f'"{self.mark(name)}"', "X-Repo-Commit": COMMIT})
        return self.reply(b"{}", {"X-Error-Code": "RepoNotFound"}, 404)

    def mark(self, name: str) -> str:
        return f"{sorted(self.files).index(name):040x}"

    def reply(self, content: bytes, headers: dict[str, str] | None = None, code: int = 200) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(ouro: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with the small model, code, pickles and folders beside it; and what it is asked for."""
    files = {file.name: file.read_bytes() for file in ouro.iterdir()}
    files |= {name: b"never asked for" for name in ("pytorch_model.bin", "onnx/model.safetensors", "README.md")}
    files |= {name: b"never asked for" for name in ("consolidated.safetensors", "setup.pt", "data/some.json")}
    handler = type("Small", (Hub,), {"files": files, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", handler.asked
        serving.shutdown()
        thread.join()


def asking(endpoint: str, home: Path, script: str) -> str:
    """What a script prints in a process of its own, as the hub's library reads its address when it is imported."""
    given = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "NO_PROXY": "127.0.0.1"}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_VERBOSITY": "error"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **quiet, **given}, check=True
    )
    return done.stdout


FIND = "from loopscope.models.hub import *; "


def test_what_is_missing_is_downloaded_and_no_more(server: tuple[str, list[str]], tmp_path: Path, ouro: Path) -> None:
    """Once; what is gone from the cache is downloaded again, of the commit that the cache knows."""
    (endpoint, asked), home = server, tmp_path / "home"
    script = f"""{FIND}
for name in ({NAME!r}, {NAME!r}, 'hf:{NAME}@main'):
    found = find(parse(name), log=print)
    print(found)
    if name.startswith('some'):
        print('again')
(found.folder / 'model.safetensors').resolve().unlink()
print(find(parse({NAME!r}), log=print))
try:
    find(parse('no/such'))
except InputError as error:
    print(error)
print(found.folder)
"""
    fetching, told = f"fetching {NAME} from the hub", f"{NAME} at commit {COMMIT}"
    *lines, place = asking(endpoint, home, script).splitlines()
    assert lines == [
        *(fetching, told, "again", told, "again", told, fetching, told),
        "there is no folder no/such, and the hub shows you no model of that name",
    ]
    wanted = {"config.json": 1, "model.safetensors": 2, "tokenizer.json": 1, "tokenizer_config.json": 1}
    assert sorted(file.name for file in Path(place).iterdir()) == sorted(wanted)
    assert all((Path(place) / name).read_bytes() == (ouro / name).read_bytes() for name in wanted)
    got = Counter(line.rpartition("/")[2] for line in asked if line.startswith("GET") and "/resolve/" in line)
    assert got == wanted
    assert sum(line.endswith("/revision/main") and NAME in line for line in asked) == 1


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        script = f"{FIND}\ntry:\n    find(parse({NAME!r}))\nexcept HubError as error:\n    print(error)"
        (said,) = asking(nobody, tmp_path / "home", script).splitlines()
    assert said.startswith(f"there is no folder {NAME}, and it cannot be downloaded into {tmp_path}/home/hub: ")
