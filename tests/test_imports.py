"""What tests share lies in plain modules: no test file imports another."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {str(file.relative_to(TESTS)): file for file in sorted(TESTS.rglob("*.py"))}


def imported(text: str, package: str) -> set[str]:
    """The modules that a text imports, inside functions too, with those that may be names in a package."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{each.name}" for each in node.names)}
    return found


def of_tests(modules: set[str]) -> set[str]:
    return {
        each for each in modules if each.startswith("tests.") and any(p.startswith("test_") for p in each.split("."))
    }


def test_no_file_imports_a_test_file() -> None:
    for name, file in FILES.items():
        package = ".".join(("tests", *Path(name).parts[:-1]))
        assert not of_tests(imported(file.read_text(encoding="utf-8"), package)), name


@pytest.mark.parametrize(
    "text",
    [
        "from tests.test_store import put",
        "from tests import test_store",
        "import tests.test_store as other",
        "from . import test_store",
        "from ..test_store import put",
        "def late():\n    from tests.drill.test_drill import GROUPS",
    ],
)
def test_every_way_to_import_one_is_seen(text: str) -> None:
    package = "tests.drill" if ".." in text else "tests"
    assert of_tests(imported(text, package))
