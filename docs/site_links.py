"""For the site: links that leave `docs/` lead to the Python pages or, where there is nothing to lead to, become text.

The same Markdown is read beside the code, where such a link opens the file.  This is an extension of Python-Markdown,
so that every generator which uses that can take it; `make docs` puts this folder on the path.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

UP = "../"
SHOWN = {
    module: f"api/{page.name}#{module}"
    for page in sorted((Path(__file__).parent / "api").glob("*.md"))
    for module in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
}
"""Where a module's docstrings are, by the module's name."""


class Links(Treeprocessor):
    """Replaces the links of a page that stands in `docs/` itself; the pages below it have none that leave."""

    def run(self, root: Element) -> None:
        """After links have become elements, before a generator looks at where they lead."""
        for link in root.iter("a"):
            target = link.get("href", "")
            if target.startswith(UP):
                module = target.removeprefix(UP).removesuffix(".py").replace("/", ".")
                shown = SHOWN.get(module)
                link.tag, link.attrib = ("a", {"href": shown}) if shown else ("span", {})


class SiteLinks(Extension):
    """The extension."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Hang it between inline markup (20) and the generator's own look at links (0)."""
        md.treeprocessors.register(Links(md), "site_links", 10)


def makeExtension(**settings: object) -> SiteLinks:
    """What Python-Markdown calls."""
    return SiteLinks(**settings)
