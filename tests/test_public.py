"""The public surface: what rooms export, what importing them costs, and models and maps by name."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import loopscope
from loopscope import LoopedTransformer, load, load_map, save_map
from loopscope.cli import main
from loopscope.errors import InputError
from loopscope.maps import DiagonalLowRank
from loopscope.models import Adapter
from loopscope.models.kept import keep
from loopscope.store import Store, find, open_zoo
from loopscope.store.zoo import VARIABLE
from tests.model_folders import ouro_folder, put_tokenizer

PACKAGE = Path(loopscope.__file__).parent
ROOMS = ("loopscope", *(f"loopscope.{room}" for room in ("execute", "jobs", "measure", "models", "store", "training")))


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_that_a_room_exports_is_there_and_no_module(room: str) -> None:
    package = importlib.import_module(room)
    folder = Path(str(package.__file__)).parent
    for name in package.__all__:
        assert not (folder / name).exists() or callable(getattr(package, name))  # a room that is a function, too
        assert not (folder / f"{name}.py").exists()
        assert getattr(package, name) is not None
    assert not hasattr(package, "nothing_of_that_name")


@pytest.mark.parametrize("room", ROOMS)
def test_what_a_room_exports_is_what_type_checkers_see(room: str) -> None:
    package = importlib.import_module(room)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    (typed,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(package.__all__)


def test_importing_rooms_is_cheap() -> None:
    asked = f"import sys, loopscope.store.files, {', '.join(ROOMS)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_models_and_maps_of_the_zoo_by_name() -> None:
    model, one = load("d8l6-5"), load_map("one-1@d8l6-5")
    assert isinstance(model, LoopedTransformer)
    assert one.width == model.width
    key = find(open_zoo(), "d8l6-5", "backbone").key
    same = load(key[:12], dtype=torch.float64)
    assert torch.equal(same.norm.weight, model.norm.weight.double())


def test_folders_come_before_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ouro_folder(tmp_path / "d8l6-5")
    model = load("d8l6-5", loops=3, dtype=torch.bfloat16)
    assert isinstance(model, Adapter)
    assert (model.loops, next(model.parameters()).dtype) == (3, torch.bfloat16)
    mine = DiagonalLowRank(8, 2, seed=0)
    save_map(mine, tmp_path / "one-1@d8l6-5")
    assert torch.equal(load_map("one-1@d8l6-5").b, mine.b)
    assert load_map("one-1@d8l6-5").width == 8


def test_a_language_model_of_the_zoo_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    keep(put_tokenizer(ouro_folder(tmp_path / "folder")), "walker", Store(tmp_path / "zoo"))
    model = load("walker", loops=2, zoo=tmp_path / "zoo")
    assert isinstance(model, Adapter)
    assert model.loops == 2
    monkeypatch.setenv(VARIABLE, str(tmp_path / "zoo"))
    monkeypatch.setattr(sys, "argv", ["loopscope", "lm", "readouts", "walker", "--ids", "[[1, 2, 3]]", "--json"])
    with suppress(SystemExit):
        main()
    assert '"model_type": "ouro"' in capsys.readouterr().out


def test_names_that_name_nothing_get_one_line_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "d8l6-55 is no model: there is no such folder" in (said := refused(InputError, load, "d8l6-55"))
    assert said.endswith("(nearest: d8l6-5); a model of the hub is written OWNER/NAME or hf:OWNER/NAME@REVISION")
    assert "(nearest: one-" in refused(InputError, load_map, "one-9@d8l6-5")
    assert "a map, which load_map loads" in refused(InputError, load, "one-1@d8l6-5")
    assert "a model, which load loads" in refused(InputError, load_map, "d8l6-5")
    assert "an empty name" in refused(InputError, load, "")
    assert refused(InputError, load, "no/such/folder") == "no/such/folder is no model: there is no such folder"
    assert "no loops to choose" in refused(InputError, lambda: load("d8l6-5", loops=3))
    save_map(DiagonalLowRank(8, 2, seed=0), tmp_path / "map")
    assert "load_map reads it" in refused(InputError, load, "map")
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused(InputError, load, "empty")
    assert "nor a zoo to look" in refused(InputError, lambda: load("d8l6-5", zoo=tmp_path / "none"))


ADAPTER_FILES = ("models/ouro.py", "models/stacks.py", "models/nanbeige.py", "models/folders.py", "models/__init__.py")


def test_nobody_asks_which_adapter_a_model_is() -> None:
    """What differs between adapters is a member: their classes are named in their files and the registry alone."""
    for file in PACKAGE.rglob("*.py"):
        if str(file.relative_to(PACKAGE)) in ADAPTER_FILES:
            continue
        names = {
            node.id for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Name)
        }
        assert not names & {"Ouro", "LoopedStack"}, file
