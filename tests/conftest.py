"""What holds for every test: shapes are checked at run time, examples and random numbers are the same every time."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

SHAPES_CHECKED = importlib.util.find_spec("beartype") is not None
if SHAPES_CHECKED:  # before anything imports loopscope: only modules loaded from here on are checked
    install_import_hook([f"loopscope.{name}" for name in ("model", "address", "program", "maps", "errors")], "beartype.beartype")

settings.register_profile("loopscope", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("loopscope")

torch.set_num_threads(2)


def pytest_report_header() -> str:
    if SHAPES_CHECKED:
        return "loopscope: type and shape annotations are checked at run time (jaxtyping with beartype)"
    return "loopscope: type and shape annotations are NOT checked, because beartype is not installed"


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same state of torch's global generator."""
    torch.manual_seed(0)
