"""The README and the other pages are true: their Python runs, their files exist, their commands are commands."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from loopscope import load, load_map
from loopscope.cli import app as cli
from loopscope.models.stacks import stack_from_config
from loopscope.store.store import Store
from loopscope.studies.records import records
from tests.adapters_tiny import MODELS
from tests.commands import loopscope
from tests.faulty_models import told
from tests.model_folders import put_tokenizer
from tests.shortened import shortened
from tests.stack_tiny import CONFIGS
from tests.tuning_tiny import text_files, tuning_folder

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
STEPS = 4
"""Points in per cent by which a share may differ elsewhere: maps that a page fits depend on the machine's sums."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """The Python of a page, block by block, each with what the page says that it prints, if it says so."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\n```\n(.*?)^```$)?",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    return [(code, said) for code, said in found]


def runs(page: Path, capsys: pytest.CaptureFixture[str], known: dict[str, Any] | None = None) -> str:
    """Run the blocks of a page one after the other as they stand; what they printed, compared with what is said.

    `known` are names that the page takes for granted; those that it defines are added.
    """
    names, every = {} if known is None else known, ""
    for number, (code, said) in enumerate(blocks(page), start=1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
        every += (printed := capsys.readouterr().out)
        if said:
            assert shares(printed)[0] == shares(said)[0]
            apart = [abs(ours - theirs) for ours, theirs in zip(shares(printed)[1], shares(said)[1], strict=True)]
            assert max(apart, default=0) <= STEPS, (printed, said)
    return every


def shares(text: str) -> tuple[str, list[int]]:
    """A text with its shares in per cent taken out, and these."""
    every = re.compile(r" *(\d+)%")
    return every.sub("%", text), [int(each) for each in every.findall(text)]


def test_the_readme_is_short() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(README.splitlines()) <= 150
    assert len(code.splitlines()) <= 15


def test_quick_start_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """And ends in the head that the page names."""
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    printed = capsys.readouterr().out
    assert f"```\n{printed}```" in README
    assert re.match(r"\d+%  loop\[7\]\.layer\[2\]\.head\[1\]", printed)
    share = f"turns one step into two in {printed.partition('%')[0]} % of {len(names['tokens'])} walks"
    assert "**Head 1 of layer 2 carries it.**" in README
    assert share in " ".join(README.split())
    assert names["found"].work.forwards < 0.25


def test_first_steps_run(capsys: pytest.CaptureFixture[str]) -> None:
    printed = runs(DOCS / "first-steps.md", capsys)
    assert "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]" in printed
    assert "48 patched runs" in printed
    for program, steps in (("F7        ", 8), ("F6 J:one F", 9), ("F6 J:two F", 10)):
        assert f"{program} answers f^{steps}(s) in 100% of 80 examples" in printed


def test_the_page_on_your_model_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page: dict[str, Any] = {}
    printed = runs(DOCS / "your-model.md", capsys, page)
    assert "h4 [" in printed
    assert printed.count("16 patched runs for") == 3
    text = (DOCS / "your-model.md").read_text(encoding="utf-8")
    plain = text.partition("### A plain one")[0].partition("class Block")[2], text.partition("class Plain")[2]
    ours = [each.partition("# For Loopscope")[2].partition("\n\n\n")[0].partition("```")[0] for each in plain]
    lines = [line for each in ours for line in each.splitlines()[1:] if line.strip()]
    assert len(lines) <= 12
    digits = re.compile(r"F\d+|\d+\.\d+")  # of nearest calls and distances, which depend on the machine's sums
    assert digits.sub("#", told(page)) in digits.sub("#", text)


@pytest.mark.slow
def test_the_page_on_your_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "with J: F2 J:mine F" in runs(DOCS / "your-task.md", capsys)
    assert load_map(tmp_path / "larger").width == 64


@pytest.mark.slow
def test_the_page_on_instruments_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "rank correlation" in runs(DOCS / "instruments.md", capsys)


@pytest.mark.slow
def test_the_commands_on_the_page_on_your_task_give_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as it stands; shares depend on the machine's sums, and so by some points on the machine."""
    text = (DOCS / "your-task.md").read_text(encoding="utf-8")
    (block,) = [
        each for each in re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE) if "chains.py" in each
    ]
    first, *commands = [shlex.split(line, comments=True) for line in block.splitlines()]
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / first[1]), run_name="__main__")
    told = {}
    for command in commands:
        assert command[0] == "loopscope"
        end = ["--json"] if command[2] == "evaluate" else []
        code, out, err = loopscope(capsys, *command[1:], *end)
        assert code == 0, err
        if end:
            told = {row["at"]["program"]: row["estimate"]["value"] for row in json.loads(out)["tables"][0]["rows"]
                    if "steps" not in row["at"]}  # fmt: skip
    found = {
        program: float(share) for program, share in re.findall(r"`(F[^`]*)`[^|]*\|(?:[^|]*\|){3} ([\d.]+) \(", text)
    }
    for program, share in told.items():
        assert abs(100 * share - found[program]) <= 2 * STEPS, program
    assert (tmp_path / "page" / "index.html").is_file()


def test_the_how_tos_run(capsys: pytest.CaptureFixture[str]) -> None:
    printed = runs(DOCS / "how-to.md", capsys)
    assert "(F6 J:one F).loop[3]" in printed
    assert "matters most" in printed


@pytest.mark.slow
def test_the_page_on_pictures_runs_and_shows_what_it_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page: dict[str, Any] = {}
    printed = runs(DOCS / "pictures.md", capsys, page)
    assert "<sweep: 4 rows; place 4, head 4; value>" in printed
    assert [len(page[name].axes) for name in ("dark", "some")] == [7, 2]
    script = runpy.run_path(str(DOCS / "images" / "pictures.py"))
    script["draw"]({picture: page[name] for picture, name in script["TABLES"].items()}, tmp_path)
    for name in ("sweep", "trajectories"):
        ours, kept = tmp_path / f"{name}.svg", DOCS / "images" / f"{name}.svg"
        assert kept.stat().st_size < 60_000
        words = [re.findall(r"<text[^>]*>([^<]*)</text>", file.read_text(encoding="utf-8")) for file in (ours, kept)]
        assert words[0] == words[1]


def test_the_page_on_extending_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs(DOCS / "extending.md", capsys)


def test_the_page_on_the_explorer_runs(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    try:
        runs(DOCS / "explorer.md", capsys, names)
    finally:
        for each in ("shown", "mine"):
            if each in names:
                names[each].close()


def test_the_page_on_many_gpus_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs(DOCS / "scale.md", capsys)


def test_the_page_on_nine_families_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page: dict[str, Any] = {}
    runs(DOCS / "nine-families.md", capsys, page)
    tokens = torch.randint(11, (2, 4), generator=torch.Generator().manual_seed(0))
    said, steps, moved, forwards = page["asked"](MODELS["hrm_text"](), tokens, tokens.flip(0))
    assert (said.shape, len(steps), len(moved)) == ((2, 2), 1 + 6, 2 * 6)
    assert 1 < forwards < len(moved)


def test_the_page_on_execution_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs(DOCS / "execution.md", capsys)


def test_the_example_of_threads_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runs(DOCS / "performance.md", capsys)


def test_the_reference_of_programs_runs(capsys: pytest.CaptureFixture[str]) -> None:
    model = load("tiny-0")
    runs(DOCS / "programs.md", capsys, {"model": model, "tokens": torch.tensor([[0, 1, 2]]), "original_logits": model})


def test_the_example_of_parts_is_prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All but its measurements, which take hours."""
    monkeypatch.chdir(tmp_path)
    ((code, _),) = blocks(DOCS / "reproduction.md")
    names: dict[str, Any] = {}
    before, _, measured = code.partition("\nfor record in ")
    exec(compile(before, "reproduction.md", "exec"), names)
    assert names["todo"]
    assert measured.startswith("carry_out(todo, ")


def test_all_pages_with_python_are_run_here() -> None:
    """So that no page is added whose Python nobody runs."""
    here = Path(__file__).read_text(encoding="utf-8")
    for page in PAGES:
        assert not blocks(page) or page.name in here, page.name


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
    (tmp_path / "none").mkdir()
    *steps, last = lines[1].splitlines()
    assert last == "loopscope claims --store store"  # which goes through all that there is; judged in other tests
    for line in steps:
        program, *asked = line.split()
        little = (*shortened(asked[2], "paper"), *text, "--cases", "2", "--results", "none")
        code, _, err = loopscope(capsys, *asked, *little)
        assert (program, code) == ("loopscope", 0), (line, err)
    measured = {record.experiment for record in records(Store(tmp_path / "store"))}
    assert measured == {"letters", "antonyms", "iterations"}


def headings(page: Path) -> set[str]:
    """What the headings of a page are called in links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", each.lower()) for each in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE))
    return {re.sub(r"\s", "-", each.strip()) for each in plain}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for link, _, part in re.findall(r"\]\(([^)#:]*)(#([^)]+))?\)", page.read_text(encoding="utf-8")):
            there = page.parent / link if link else page
            assert there.exists(), f"{page.name} -> {link}"
            assert not part or there.suffix != ".md" or part in headings(there), f"{page.name} -> {link}#{part}"


def test_blocks_of_the_pages_are_closed() -> None:
    for page in PAGES:
        fences = re.findall(r"^ *(```|~~~)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert len(fences) % 2 == 0, page.name


def test_commands_in_the_pages_exist() -> None:
    groups = {group.name: group.typer_instance for group in cli.app.registered_groups}
    top = {command.name or command.callback.__name__ for command in cli.app.registered_commands}  # type: ignore[union-attr]
    pages = [path.read_text(encoding="utf-8") for path in PAGES]
    for line in (line for page in pages for line in re.findall(r"^loopscope (.*)$", page, flags=re.MULTILINE)):
        first, *rest = line.split()
        assert first in top | set(groups)
        if first in groups and groups[first] is not None:
            inside = groups[first]
            names = {each.name for each in (*inside.registered_commands, *inside.registered_groups)}
            assert set(rest[0].split("|")) <= names


def test_every_command_is_on_its_page() -> None:
    page = (DOCS / "command-line.md").read_text(encoding="utf-8")
    lines = re.findall(r"^loopscope (.*)$", page, flags=re.MULTILINE)
    there = {first: set() for first in (line.split()[0] for line in lines)} | {"": set()}
    for line in lines:
        there[line.split()[0]] |= set(line.split()[1].split("|")) if len(line.split()) > 1 else set()
    for command in cli.app.registered_commands:
        assert (command.name or command.callback.__name__) in there  # type: ignore[union-attr]
    for group in cli.app.registered_groups:
        inside = group.typer_instance
        assert inside is not None
        names = {each.name for each in (*inside.registered_commands, *inside.registered_groups)}
        assert names <= there[str(group.name)], group.name


def test_make_targets_in_the_pages_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for page in PAGES:
        assert set(re.findall(r"^make ([a-z-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)) <= {*targets}


def test_the_site_has_every_page() -> None:
    """In its navigation, but for those that are reached by links alone."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in DOCS.rglob("*.md"):
        assert f"{page.relative_to(DOCS).as_posix()}\n" in nav, page.name


def test_the_tables_of_four_claims_are_those_of_what_was_measured() -> None:
    page = (DOCS / "four-claims.md").read_text(encoding="utf-8")
    kept = json.loads((DOCS / "four-claims.json").read_text(encoding="utf-8"))
    assert runpy.run_path(str(DOCS / "four_claims.py"))["written"](page, kept) == page
    kept["d8l6-5"]["attribution"]["strongest"] = 0.5
    assert runpy.run_path(str(DOCS / "four_claims.py"))["written"](page, kept) != page


@pytest.mark.slow
def test_the_walk_is_drawn_from_the_weights() -> None:
    drawn = runpy.run_path(str(DOCS / "images" / "walk.py"))["draw"]()
    assert drawn == (DOCS / "images" / "walk.svg").read_text(encoding="utf-8")
