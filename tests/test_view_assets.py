"""The page's modules in one script, and everything in one file."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from loopscope.errors import DamagedError
from loopscope.view.assets import BUNDLE, LIVE, NOTEBOOK, SCRIPT, STYLE, Page, joined

ONE = 'import { two,\n  three } from "./two.js";\nconst own = 1;\nexport function mount() { return two + own; }\n'
TWO = "const own = 10;\nexport const two = own;\nexport async function three() {}\nexport class Four {}\n"


def test_modules_become_functions_in_the_order_of_their_imports() -> None:
    made = joined({"main.js": ONE, "two.js": TWO, "unused.js": "export const five = 5;\n"})
    assert made.index("const module_two = (() => {") < made.index("const module_main = (() => {")
    assert "const { two,\n  three } = module_two;" in made
    assert "return { two, three, Four };" in made
    assert "five" not in made
    assert made.endswith("const { mount } = module_main;")
    assert not re.search(r"^(import|export)\b", made, re.MULTILINE)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"main.js": 'import { a } from "./a.js";\n'}, "main.js imports a.js, which is not there"),
        ({"main.js": 'import * as a from "./main.js";\n'}, "cannot be joined"),
        ({"main.js": "export default 1;\n"}, "cannot be joined"),
        ({"main.js": 'import { a } from "https://elsewhere";\n'}, "cannot be joined"),
        ({"main.js": 'import { a } from "./a.js";\n', "a.js": 'import { b } from "./main.js";\n'}, "in a circle"),
    ],
)
def test_what_cannot_be_joined_is_refused(modules: dict[str, str], said: str) -> None:
    with pytest.raises(DamagedError, match=said):
        joined(modules)


def test_the_page_names_its_two_files_once_and_asks_nobody_else() -> None:
    page = Page.read()
    assert page.html.count(STYLE) == page.html.count(SCRIPT) == 1
    assert "style=" not in page.html
    assert "onclick" not in page.html
    for text in (page.html, page.css, page.js):
        addresses = set(re.findall(r"(?:https?:)?//[a-z][^\s\"'`)]*\.[a-z]+", text)) - {"http://www.w3.org"}
        assert not {each for each in addresses if each.startswith("http")}, addresses
    assert "innerHTML" not in page.js
    assert "insertAdjacentHTML" not in page.js
    assert "eval(" not in page.js


def test_one_file_allows_itself_two_texts_by_their_hashes() -> None:
    page = Page.read()
    whole = page.whole('{"a":"</script><script>alert(1)</script>"}')
    (script,) = re.findall(r'<script type="module">(.*?)</script>', whole, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", whole, re.DOTALL)
    assert script == page.script(BUNDLE)
    assert whole.count("<script") == 2
    assert "alert(1)<" not in whole
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', whole)
    for text in (script, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src &#x27;none&#x27;;")
    assert whole.index("Content-Security-Policy") < whole.index("<style>")


def test_each_host_is_started_by_a_line_of_its_own() -> None:
    page = Page.read()
    for start in (LIVE, BUNDLE, NOTEBOOK):
        assert page.script(start).rstrip().endswith(start)
        name = re.search(r"\b(\w+Host)\(", start)
        assert name is not None
        assert re.search(rf"const \{{[^}}]*\b{name[1]}\b[^}}]*\}} = module_main;", page.js)
