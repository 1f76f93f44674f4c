"""A study is one folder and one line: the example of `docs/extending.md`, built from that page and carried out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
LINE = """
import sys
from loopscope import studies
studies.__path__.append({folder!r})
studies.STUDIES = (*studies.STUDIES, "tiny_walk")
from loopscope.cli import main
for arguments in {commands!r}:
    sys.argv = ["loopscope", *arguments]
    try:
        main()
    except SystemExit as done:
        assert not done.code
    print(end={END!r})
"""
END = "\0"
"""After what each command prints."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("studies")
    files = re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', PAGE.read_text(encoding="utf-8"), re.DOTALL | re.M)
    assert [name for name, _ in files] == ["experiments.py", "claims.py", "report.py"]
    (made / "tiny_walk").mkdir()
    (made / "none").mkdir()
    for name, code in (("__init__.py", '"""An example."""\n'), *files):
        (made / "tiny_walk" / name).write_text(code, encoding="utf-8")
    return made


def commands(folder: Path, *asked: str) -> list[str]:
    """What commands print, one after another in one process, with the study among the others."""
    code = LINE.format(folder=str(folder), commands=[each.split() for each in asked], END=END)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(END)[:-1]


def test_a_study_is_one_folder_and_one_line(folder: Path) -> None:
    listed, reproduced, quantities = commands(
        folder,
        "list",
        "reproduce tiny-loops --results none --json",
        "quantities tiny_walk --store store --results none --json",
    )
    assert "tiny-loops" in listed
    found = json.loads(reproduced)
    (verdict,) = found["claims"]
    assert (verdict["id"], verdict["verdict"], verdict["n"]) == ("tiny.answers", "holds", 432)
    assert [each["experiment"] for each in found["measured"]] == ["tiny-loops"]
    pages = "".join(page.read_text(encoding="utf-8") for page in (folder / "report").rglob("*.html"))
    assert "Right answers of the tiny backbone" in pages
    assert re.search(r"the tiny backbone answers after its last loop: \d", pages)  # its finding
    rows = json.loads(quantities)["quantities"]
    assert [(row["id"], row["at"], row["n"]) for row in rows] == [
        ("tiny.right", "loop=1", 432), ("tiny.right", "loop=2", 432),
    ]  # fmt: skip
