"""A wheel works without the checkout: it has the code and a part of the zoo, whose inventory fits what is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loopscope.store import inventory
from loopscope.store.artefacts import name_of
from loopscope.store.store import Store
from loopscope.store.zoo import find, open_zoo

ROOT = Path(__file__).parent.parent
PACKAGED = ROOT / "packaging" / inventory.INVENTORY
NAMES = ("d8l6-5", "one-1@d8l6-5", "two-1@d8l6-5", "tiny-0", "tiny-one-1@tiny-0", "tiny-stay-1@tiny-0")


def test_what_is_packaged_is_a_part_of_the_zoo() -> None:
    listed, whole = inventory.listed(PACKAGED.parent), inventory.listed(ROOT / "zoo")
    assert listed is not None
    assert whole is not None
    assert listed.items() <= whole.items()
    zoo = open_zoo(ROOT / "zoo")
    wanted = {f"{each.manifest.kind}/{each.key}" for each in (find(zoo, name) for name in NAMES)}
    assert listed.keys() == wanted


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.slow
def test_a_wheel_has_the_code_and_a_part_of_the_zoo(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path)
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "loopscope").rglob("*.py")}
    assert code <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "results/", "packaging/"))]
    packaged = tmp_path / "loopscope" / "zoo"
    assert inventory.check(packaged, needed=True) == len(NAMES)
    store = Store(packaged)
    assert {status.state for status in store.verify()} == {"ok"}
    assert {name_of(each) for kind in ("backbone", "map") for each in store.every(kind)} == {*NAMES}


@pytest.mark.slow
def test_it_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Unpacked where no checkout is, as pip does it, the command lists the zoo and the quick start runs."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    place = {key: value for key, value in os.environ.items() if not key.startswith("LOOPSCOPE")}
    place["PYTHONPATH"] = str(tmp_path / "site")

    def python(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=place, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert python("-c", "import loopscope; print(loopscope.__file__)").startswith(str(tmp_path / "site"))
    listed = json.loads(python("-m", "loopscope.cli", "zoo", "list", "--json"))
    assert {entry["name"] for entry in listed["entries"]} == {*NAMES}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert f"```\n{python('-c', code)}```" in readme
