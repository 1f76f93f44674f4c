"""What holds for every test: shapes are checked at run time, examples and random numbers are the same every time."""

from __future__ import annotations

import gc
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# The tensors here are tiny.  A second thread brings nothing, and on a busy machine waiting for it takes milliseconds
# per operation; in the processes that tests start, too.  Libraries read this when they are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from jaxtyping import install_import_hook

from tests.annotations import next_test

# Tests of these modules hand in wrong types on purpose and expect the library's own one-line error; a type checker in
# front of the function would answer first.
SMALL_TASKS = ("draws", "graph_walk", "labels", "parity", "populations", "relations")
SMALL_TASK_MODULES = {f"loopscope.tasks.{name}" for name in SMALL_TASKS}
ANSWER_THEMSELVES = {"loopscope.execute.executor", "loopscope.execute.unequal", "loopscope.stats", *SMALL_TASK_MODULES}
# The functions inside their functions would be decorated, which means compiled, anew at every call of the outer one.
TOO_SLOW = {"loopscope.execute.engine", "loopscope.execute.plain"}
UNCHECKED = ANSWER_THEMSELVES | TOO_SLOW


def _checked_modules() -> list[str]:
    """Every module that knows shapes but those above, found without importing any; the others are left to mypy."""
    spec = importlib.util.find_spec("loopscope")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    files = [file for file in sorted(package.rglob("*.py")) if "from jaxtyping import" in file.read_text()]
    names = [".".join(file.relative_to(package.parent).with_suffix("").parts) for file in files]
    return [name for name in names if not any(name == out or name.startswith(f"{out}.") for out in UNCHECKED)]


TYPES_CHECKED = importlib.util.find_spec("beartype") is not None
if TYPES_CHECKED:  # here and not in a fixture: only modules imported from now on are checked
    install_import_hook(_checked_modules(), "tests.annotations.first_calls")

if importlib.util.find_spec("hypothesis") is not None:  # tests on a GPU need none
    from hypothesis import settings

    settings.register_profile("loopscope", derandomize=True, deadline=None, print_blob=True)
    settings.load_profile("loopscope")

torch.set_num_threads(1)  # whatever the variable says

# Without a GPU, Triton's interpreter runs the kernels.  Triton reads this when it is imported, which any test may do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A path that is not there may look like the name of a model on the hub.  No test asks for it outside this machine.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    # beartype looks at a random item of a long tuple, also where a strategy builds one.  What is drawn stays the same.
    config.addinivalue_line("filterwarnings", "ignore:Do not use the `random` module inside strategies")


def pytest_report_header() -> str:
    if TYPES_CHECKED:
        left_out = ", ".join(sorted(UNCHECKED))
        return f"annotations: shapes checked at run time by jaxtyping and beartype, except in {left_out}"
    return "annotations: NOT checked at run time, because beartype is not installed"


def pytest_collection_finish() -> None:
    """What is imported stays until the end: no garbage collection need go through it again."""
    gc.collect()
    gc.freeze()


LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            item.config.stash[LEFT_OUT] = item.config.stash.get(LEFT_OUT, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several processes: the first one tells
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All processes choose among the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"left out: {count} slow checks; `make check-slow` runs them")


@pytest.fixture(autouse=True)
def _anew() -> None:
    """Every test starts from the same state of torch's global generator, and annotations are checked again."""
    torch.manual_seed(0)
    next_test()


@pytest.fixture(scope="module")
def few_draws() -> Iterator[None]:
    """Bootstraps of 200 draws at most: for tests of what is judged and told, where no end of an interval decides."""
    from loopscope import resampling, stats

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "draw", lambda seed, draws, units: resampling.draw(seed, min(draws, 200), units))
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty figures: for tests of the page around them, where others draw the same."""
    from loopscope.studies.report.contents import Drawings, Figure

    monkeypatch.setattr(Figure, "drawings", Drawings("<svg></svg>", "<svg></svg>", b"%PDF"))


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """refused(error, function, *arguments): the call must fail with this error in one line, which is returned."""

    def check(error: type[Exception], function: Callable[..., object], *arguments: object) -> str:
        with pytest.raises(error) as caught:
            function(*arguments)
        assert type(caught.value) is error
        message = str(caught.value)
        assert message
        assert message.splitlines() == [message]
        return message

    return check
