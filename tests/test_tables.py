"""What is printed keeps its words and numbers whole at any width."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from loopscope import cli
from loopscope.cli.tables import table, wrapped
from tests.commands import loopscope

WORDS = st.text(st.characters(blacklist_categories=["C", "Z"]), min_size=1, max_size=12)
CELLS = st.lists(WORDS, max_size=6).map(" ".join)
ROWS = st.integers(1, 5).flatmap(
    lambda many: st.lists(st.lists(CELLS.map(lambda cell: (cell,)), min_size=many, max_size=many), max_size=4)
)


@given(ROWS, st.integers(1, 120), st.integers(0, 5))
def test_a_table_keeps_every_word_whole_and_in_its_width(rows: list[list[tuple[str]]], width: int, left: int) -> None:
    heads = [f"head {at}" for at in range(len(rows[0]) if rows else 3)]
    head, body = table(heads, rows, width, left)
    words = Counter(word for row in rows for cell in row for word in cell[0].split(" ") if word)
    printed = " ".join(body)
    if head:
        assert Counter(word for line in body for word in line.split(" ") if word) == words
        assert all(cell_len(line) <= width for line in (*head, *body))
    else:  # a paragraph for each row, its cells with their heads
        assert all(word in printed for word in words)
        longest = max((cell_len(word) for word in words), default=0)
        assert all(cell_len(line) <= max(width, longest + len("head 0: ;")) for line in body)


def test_a_table_becomes_paragraphs_where_it_is_too_narrow() -> None:
    heads, rows = ("name", "about", "largest difference"), [[("one",), ("a map of one step",), ("1.2e-05",)]]
    assert table(heads, rows, 80, left=2) == (
        ["name  about              largest difference", "----  -----------------  ------------------"],
        ["one   a map of one step             1.2e-05"],
    )
    assert table(heads, rows, 35, left=2).head[:2] == [
        "name  about                 largest",
        "                         difference",
    ]
    assert table(heads, rows, 30, left=2) == (
        [], ["one", "    about: a map of one step;", "    largest difference:", "    1.2e-05"]
    )  # fmt: skip


def test_columns_without_content_are_left_out() -> None:
    assert table(("a", "b", "c"), [[("1",), ("",), ("2",)]], 80).head[0] == "a  c"
    assert table(("a", "b"), [], 80).head[0] == "a  b"


def test_sentences_are_wrapped_between_words() -> None:
    assert wrapped("a path/that/is/long b", 6, "  ", "") == ["a", "  path/that/is/long", "  b"]
    assert wrapped("", 6) == [""]
    assert wrapped("  two  spaces", 80) == ["  two  spaces"]


PRINTED = [
    ["populations"], ["plan", "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]", "F6 J:one F"], ["list"], ["zoo", "list"],
    ["zoo", "list", "--long"], ["recipes", "--all"], ["lm", "recipes"], ["store", "list", "--store", "zoo"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", PRINTED, ids=" ".join)
def test_no_command_breaks_a_word_or_a_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(Path(cli.__file__).parent.parent.parent)
    printed = {}
    for width in (60, 80, 120, 1000):
        monkeypatch.setenv("COLUMNS", str(width))
        code, printed[width], _ = loopscope(capsys, *arguments)
        assert code == 0
    whole = _words(printed.pop(1000))
    for width, out in printed.items():
        assert _words(out) <= whole
        assert all(len(line) <= width or " " not in line.strip() for line in out.splitlines())


def _words(text: str) -> set[str]:
    """Without what joins the cells of a paragraph."""
    return {word.strip(":;,") for word in text.split() if set(word) != {"-"}}


def test_no_help_breaks_a_word(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    commands = typer.main.get_command(sys.modules["loopscope.cli.app"].app)
    asked = [path for path in _paths(commands, [])]
    assert len(asked) > 25

    def helped(path: list[str], width: int) -> str:
        monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", width)
        commands.main([*path, "--help"], prog_name="loopscope", standalone_mode=False)  # built once, not for each
        return capsys.readouterr().out

    for path in asked:
        narrow, wide = helped(path, 80), helped(path, 1000)
        assert "Usage" in narrow
        strange = _told(narrow) - _told(wide)
        assert not strange, (path, strange)


def _told(text: str) -> set[str]:
    return {word for word in text.split() if not set(word) & set("│╭╮╰╯─")}


def _paths(command: object, path: list[str]) -> list[list[str]]:
    inside = getattr(command, "commands", {})
    return [path, *(each for name, one in inside.items() for each in _paths(one, [*path, name]))]
