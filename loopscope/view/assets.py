"""The page's files: one script made of its modules, one style sheet, one page; for a server, a bundle, a notebook.

    files = Page.read()
    files.script(LIVE)          all modules in one, and the line that starts them
    files.whole(data, ...)      everything in one HTML file

`page/CONTRACT.md` says how modules are written so that they can be joined without a parser.
"""

from __future__ import annotations

import base64
import graphlib
import hashlib
import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from loopscope.errors import DamagedError

MAIN = "main.js"

LIVE = 'mount(document.getElementById("loopscope"), liveHost());'
BUNDLE = 'mount(document.getElementById("loopscope"), bundleHost());'
NOTEBOOK = "export default { render({ model, el }) { return mount(el, widgetHost(model)); } };"
"""The line that starts the page, for each host."""

STYLE = '<link rel="stylesheet" href="page.css">'
SCRIPT = '<script type="module" src="page.js"></script>'
"""The lines of `index.html` that name the two other files."""

DATA = "loopscope-bundle"
"""The id of the script that holds the data of a bundle."""

_IMPORT = re.compile(r'^import\s*\{([^}]*)\}\s*from\s*"\./([\w-]+\.js)";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function\*? |class |const |let )", re.MULTILINE)
_EXPORTED = re.compile(r"^export (?:(?:async )?function\*?|class|const|let) +([A-Za-z_$][\w$]*)", re.MULTILINE)
_LEFT = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """The texts of the page: HTML, styles, and all modules as one script without a line that starts it."""

    html: str
    css: str
    js: str

    @classmethod
    @cache
    def read(cls) -> Page:
        """The page of this package."""
        folder = resources.files("loopscope.view").joinpath("page")
        modules = {
            each.name: each.read_text("utf-8")
            for each in sorted(folder.iterdir(), key=lambda each: each.name)
            if each.name.endswith(".js")
        }
        return cls(
            folder.joinpath("index.html").read_text("utf-8"),
            folder.joinpath("page.css").read_text("utf-8"),
            joined(modules),
        )

    def script(self, start: str) -> str:
        """The whole script of a host, which is begun by the line `start`."""
        return f"{self.js}\n{start}\n"

    def whole(self, data: str) -> str:
        """One HTML file with everything in it; `data` is the JSON of a bundle.

        It allows itself the two inline texts by their hashes, and no other script, style or address.
        """
        script, style = self.script(BUNDLE), self.css
        if "</script" in script.lower() or "</style" in style.lower():
            raise DamagedError("a text of the page ends itself: it holds </script or </style")
        policy = (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:;"
            " base-uri 'none'; form-action 'none'"
        )
        safe = data.replace("<", "\\u003c")
        parts = {
            '<meta charset="utf-8">': '<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
            STYLE: f"<style>{style}</style>",
            SCRIPT: "",
            "</body>": f'<script type="application/json" id="{DATA}">{safe}</script>\n'
            f'<script type="module">{script}</script>\n</body>',
        }
        return _replaced(self.html, parts)


def joined(modules: Mapping[str, str], main: str = MAIN) -> str:
    """All modules as one script in which the exports of `main` are names.

    Every module is a function of its own, which gives what it exports, so that names of two modules never meet.
    DamagedError for modules that cannot be joined so.
    """
    needs = {name: {found[2] for found in _IMPORT.finditer(text)} for name, text in modules.items()}
    for name, others in needs.items():
        for other in others - modules.keys():
            raise DamagedError(f"{name} imports {other}, which is not there")
    try:
        order = [*graphlib.TopologicalSorter({name: sorted(others) for name, others in needs.items()}).static_order()]
    except graphlib.CycleError as error:
        raise DamagedError(f"modules import each other in a circle: {' <- '.join(error.args[1])}") from None
    needed = _needed(main, needs)
    parts = [_function(name, modules[name]) for name in order if name in needed]
    return "\n".join([*parts, f"const {{ {', '.join(_EXPORTED.findall(modules[main]))} }} = {_variable(main)};"])


def _needed(main: str, needs: Mapping[str, set[str]]) -> set[str]:
    found, left = set[str](), [main]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += needs[name]
    return found


def _function(name: str, text: str) -> str:
    exports = _EXPORTED.findall(text)

    def names(found: re.Match[str]) -> str:
        return f"const {{{found[1]}}} = {_variable(found[2])};"

    body = _EXPORT.sub("", _IMPORT.sub(names, text))
    if left := _LEFT.search(body):
        raise DamagedError(f"{name} has a line that cannot be joined: {left[0][:80]}")
    return f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exports)} }};\n}})();"


def _variable(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _replaced(text: str, parts: Mapping[str, str]) -> str:
    for old, new in parts.items():
        if text.count(old) != 1:
            raise DamagedError(f"index.html must have {old} once, not {text.count(old)} times")
        text = text.replace(old, new)
    return text
