"""The house: who may import whom."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

from loopscope.studies import STUDIES

PACKAGE = Path(__file__).parents[1] / "loopscope"


def _name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(file): file for file in sorted(PACKAGE.rglob("*.py"))}


def imports(module: str) -> set[str]:
    """The modules of this package that a module imports, inside functions too, but for typing alone."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in (node for node in ast.walk(tree) if id(node) not in typing_only):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names} & MODULES.keys() or {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & MODULES.keys() - {module}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_only_studies_and_commands_know_the_studies(module: str) -> None:
    room = module.split(".")[1] if "." in module else ""
    if room not in ("studies", "cli"):
        assert not {name for name in imports(module) if name.startswith("loopscope.studies")}
    if room != "cli":
        assert not {name for name in imports(module) if name.startswith("loopscope.cli")}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_studies_share_knows_none_of_them(module: str) -> None:
    inside = module.removeprefix("loopscope.studies.").split(".")[0]
    if not module.startswith("loopscope.studies") or inside in STUDIES:
        return
    assert not {name for name in imports(module) if name.removeprefix("loopscope.studies.").split(".")[0] in STUDIES}


def test_no_module_imports_one_that_stands_on_it() -> None:
    graph = {module: imports(module) - {"loopscope"} for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the modules
