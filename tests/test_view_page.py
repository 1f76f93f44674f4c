"""The files of the explorer's page: nothing is put in as markup, nothing is fetched, modules are small and typed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import loopscope
from loopscope.address import COMPONENTS

PAGE = Path(loopscope.__file__).parent / "view" / "page"
CHECKS = Path(__file__).parent / "view_page"
MODULES = sorted(PAGE.glob("*.js"))

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|DOMParser|document\.write|srcdoc"
    r"|setHTMLUnsafe|\beval\(|new Function|setAttribute\(\s*[\"']on"
)
ELSEWHERE = re.compile(r"https?://(?!www\.w3\.org/)|\bimport\(|@import|url\(")

needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="no node: the page's modules were not checked")


def rules(css: str) -> Iterator[str]:
    """Every selector of a style sheet, also those inside of media queries."""
    plain = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    for found in re.finditer(r"([^{}]+)\{", plain):
        text = found[1].strip()
        if not text.startswith("@"):
            yield from (each.strip() for each in text.split(","))


def test_nothing_is_put_in_as_markup() -> None:
    assert len(MODULES) > 20
    for path in [*MODULES, PAGE / "index.html"]:
        assert MARKUP.findall(path.read_text()) == [], path.name


def test_nothing_is_fetched_from_elsewhere() -> None:
    for path in [*MODULES, PAGE / "index.html", PAGE / "page.css"]:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL).replace("url(#${arrow})", "")
        assert ELSEWHERE.findall(text) == [], path.name


def test_modules_are_small() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in MODULES}
    assert max(lengths.values()) <= 400, lengths


def test_the_page_has_no_style_and_no_script_of_its_own() -> None:
    text = (PAGE / "index.html").read_text()
    assert " style=" not in text
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module" src="page.js">']
    assert "<style" not in text


def test_styles_stay_below_the_page() -> None:
    """A notebook keeps its own looks; the one rule above is for a page whose body we are."""
    every = list(rules((PAGE / "page.css").read_text()))
    assert len(every) > 100
    assert {each for each in every if ".loopscope" not in each} == set()
    assert {each for each in every if not each.startswith(".loopscope")} == {"body:has(> #loopscope.loopscope)"}


def test_one_typeface() -> None:
    """Every font is the page's own stack."""
    css = (PAGE / "page.css").read_text()
    assert re.findall(r"font-family:", css) == []
    assert {each.split()[-1].rstrip(";") for each in re.findall(r"\bfont: [^;]+;", css)} <= {"var(--sans)", "inherit"}


@pytest.fixture(scope="module")
def tools() -> Path:
    """The folder of node's checks, with what they need."""
    if not all((CHECKS / "node_modules" / each).is_dir() for each in ("typescript", "prettier")):
        subprocess.run(["npm", "ci", "--no-fund", "--no-audit"], cwd=CHECKS, check=True, capture_output=True)
    return CHECKS


@needs_node
@pytest.mark.slow
def test_the_logic_of_the_page_is_right() -> None:
    done = subprocess.run(["node", "--test"], cwd=CHECKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@needs_node
def test_every_component_has_words_of_its_own() -> None:
    code = f"console.log(JSON.stringify((await import({json.dumps((PAGE / 'patch.js').as_uri())})).PARTS))"
    done = subprocess.run(
        ["node", "--input-type=module", "-e", code], cwd=CHECKS, capture_output=True, text=True, check=True
    )
    titles = json.loads(done.stdout)
    assert [*titles] == [*COMPONENTS]
    assert len(set(titles.values())) == len(titles)
    assert not any("_" in each for each in titles.values())


@needs_node
@pytest.mark.slow
@pytest.mark.parametrize("check", ["types", "format"])
def test_the_page_is_typed_and_formatted(tools: Path, check: str) -> None:
    done = subprocess.run(["npm", "run", check], cwd=tools, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
