"""The README is true: its Python runs, its files exist, its commands are commands."""

from __future__ import annotations

import re
from pathlib import Path

from loopscope.cli import app as cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_quick_start_runs(capsys: object) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]" in printed
    assert "48 patched runs" in printed


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} -> {link}"


def test_the_map_of_the_code_is_complete() -> None:
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "loopscope").rglob("*.py") if p.name != "__init__.py"}
    mapped = set(re.findall(r"\]\((loopscope/[^)]+\.py)\)", README))
    assert modules - mapped <= {"loopscope/errors.py"}
    assert mapped <= modules


def test_commands_in_the_readme_exist() -> None:
    groups = {group.name: group.typer_instance for group in cli.app.registered_groups}
    top = {command.name or command.callback.__name__ for command in cli.app.registered_commands}  # type: ignore[union-attr]
    for line in re.findall(r"^loopscope (.*)$", README, flags=re.MULTILINE):
        first, *rest = line.split()
        assert first in top | set(groups)
        if first in groups and groups[first] is not None:
            names = {command.name for command in groups[first].registered_commands}
            assert set(rest[0].split("|")) <= names
