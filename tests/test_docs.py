"""The README and the other pages are true: their Python runs, their files exist, their commands are commands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from loopscope.cli import app as cli
from loopscope.models.stacks import stack_from_config
from loopscope.store.store import Store
from loopscope.studies.records import records
from tests.commands import loopscope
from tests.model_folders import put_tokenizer
from tests.shortened import shortened
from tests.stack_tiny import CONFIGS
from tests.tuning_tiny import text_files, tuning_folder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_quick_start_runs(capsys: object) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out  # type: ignore[attr-defined]
    assert "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]" in printed
    assert "48 patched runs" in printed


@pytest.mark.slow
def test_the_page_on_language_models_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a small model in the place of the one that has to be fetched."""
    small = CONFIGS["llama"] | {"vocab_size": 96, "max_position_embeddings": 256, "attention_bias": False}
    folder = put_tokenizer(tmp_path / "smollm2-135m")
    (folder / "config.json").write_text(json.dumps(small), encoding="utf-8")
    save_file(stack_from_config(small).state_dict(), folder / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(code, "language-models.md", "exec"), {})
    printed = capsys.readouterr().out
    for line in ("row -2: {1: ", "row -1: {1: ", "F: [", "F J:step F J:step F J:step F: ["):
        assert line in printed


@pytest.mark.slow
def test_the_papers_protocols_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Line by line on small models of both architectures, with little text and few updates, pairs and questions."""
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    section = page.partition("## The paper's protocols on its own models\n")[2]
    lines = re.search(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    assert lines is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tuning_folder(tmp_path / "Ouro-2.6B", "ouro")
    tuning_folder(tmp_path / "Qwen3-8B", "qwen3")
    text = text_files(tmp_path)
    *steps, last = lines[1].splitlines()
    assert last == "loopscope claims --store store"  # which goes through all that there is; judged in other tests
    for line in steps:
        program, *asked = line.split()
        code, _, err = loopscope(capsys, *asked, *shortened(asked[2], "paper"), *text, "--cases", "2")
        assert (program, code) == ("loopscope", 0), (line, err)
    measured = {record.experiment for record in records(Store(tmp_path / "store"))}
    assert measured == {"letters", "antonyms", "iterations"}


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name} -> {link}"


def test_commands_in_the_pages_exist() -> None:
    groups = {group.name: group.typer_instance for group in cli.app.registered_groups}
    top = {command.name or command.callback.__name__ for command in cli.app.registered_commands}  # type: ignore[union-attr]
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    for line in (line for page in pages for line in re.findall(r"^loopscope (.*)$", page, flags=re.MULTILINE)):
        first, *rest = line.split()
        assert first in top | set(groups)
        if first in groups and groups[first] is not None:
            inside = groups[first]
            names = {each.name for each in (*inside.registered_commands, *inside.registered_groups)}
            assert set(rest[0].split("|")) <= names
