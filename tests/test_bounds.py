"""Sizes that no real use has are refused in one line, at once and without memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from loopscope.address import MOST_NAMED, Address, Site
from loopscope.bounds import (
    LAYERS,
    LOOPS,
    MOST_MAPS,
    MOST_NESTED,
    MOST_PATCHES,
    MOST_STEPS,
    SHOWN,
    VOCABULARY,
    WIDTH,
    shown,
)
from loopscope.errors import InputError
from loopscope.execute.executor import check_programs, run
from loopscope.execute.runs import Sizes
from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.models.folders import build, load
from loopscope.models.ouro import OuroConfig
from loopscope.models.stacks import stack_from_config
from loopscope.program import F, Given, J, Program, Run, h
from tests.model_folders import ouro_folder
from tests.ouro_tiny import CONFIG
from tests.stack_tiny import CONFIGS
from tests.tiny import tiny_model, tiny_tokens

HUGE = 10**5000  # which Python does not even print


@pytest.fixture(autouse=True)
def _quickly() -> Iterator[None]:
    before = time.process_time()
    yield
    assert time.process_time() - before < 30  # seconds; nearly all of it for the first import of transformers


@pytest.mark.parametrize(
    "text",
    [
        "F999999999", "F100000000", "F999999999999999999", f"F{LOOPS + 1}", "F" + "9" * 100_000, "F " * 30_000,
        "F10000 " * 50_000, "J:one " * 30_000, "J:one " * (MOST_MAPS + 1), "x" * 3_000_000, "(" * 1_000_000,
        "F[layer[1].z<-(" * 500, "F[" * 100_000, "h999999999999999999 F", "J:" + "a" * 100_000,
        "F[" + "; ".join(f"layer[{n}].z<-$x" for n in range(1, MOST_PATCHES + 2)) + "]",
        "F[layer[1].row[" + ",".join(map(str, range(MOST_NAMED + 1))) + "].z<-$x]",
        "F[layer[" + "9" * 30 + "].z<-$x]", "F[layer[999999999999999999].z<-$x]",
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_texts_of_programs_are_bounded(text: str, refused: Callable[..., str]) -> None:
    assert len(refused(InputError, Program.parse, text)) < 4 * SHOWN


@pytest.mark.parametrize(
    "make",
    [
        lambda: F**HUGE, lambda: F ** (10**9), lambda: F**1.5, lambda: F**"2", lambda: F**None,
        lambda: h(HUGE), lambda: h(-HUGE), lambda: h(1.5), lambda: Program((F,) * (MOST_STEPS + 1)),
        lambda: J("a" * 10**6), lambda: Given(HUGE), lambda: Site(HUGE, "z"), lambda: Site("1", "z"),
        lambda: Site(1, "z", (HUGE,)), lambda: Site(1, "z", None, (-HUGE,)), lambda: Site(1, "z", [1]),
        lambda: Site(1, "z" * 10**6), lambda: Address(HUGE, Site(1, "z")), lambda: Address(1.0, Site(1, "z")),
        lambda: Run(F**2, loop=HUGE),
    ],
)  # fmt: skip
def test_programs_and_places_made_in_python_are_bounded(
    make: Callable[[], object], refused: Callable[..., str]
) -> None:
    assert len(refused(InputError, make)) < 4 * SHOWN


def test_sources_inside_each_other_end_without_a_recursion(refused: Callable[..., str]) -> None:
    program = F**1
    for _ in range(MOST_NESTED):
        program = F.patch("layer[1].z", program) | F
    assert hash(program) == hash(Program.parse(str(program)))
    check_programs([program], Sizes(layers=1, heads=1, rows=2))
    run(tiny_model(), tiny_tokens(1), program)
    assert "at most 20 deep" in refused(InputError, F.patch, "layer[1].z", program)


def test_a_program_that_holds_itself_twice_at_every_step_is_bounded(refused: Callable[..., str]) -> None:
    """Its text doubles with every step."""

    def doubled() -> Program:
        program = F**64
        for layer in range(1, 40):
            program = program.patch(f"loop[1].layer[{layer}].z", program)
        return program

    assert "steps and patches" in refused(InputError, doubled)


def test_long_programs_and_lists_are_still_taken() -> None:
    assert Program.parse(f"F{LOOPS}").calls == LOOPS
    many = Site.parse(f"layer[1].row[{','.join(map(str, range(20_000)))}].z")
    call = F.patch(many, Given("x")).patch(Site(1, "z", None, tuple(range(20_000, 40_000))), Given("x"))
    assert len(call.patches) == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layers": 10**9}, f"layers must be at most {LAYERS}, not 1000000000 (nearest: {LAYERS})"),
        ({"width": 2**40}, f"width must be at most {WIDTH}"),
        ({"vocabulary": HUGE}, f"vocabulary must be at most {VOCABULARY}, not a number of more than 40 digits"),
        ({"loops": 10**9}, f"loops must be at most {LOOPS}"),
        ({"positions": -1}, "positions must be at least 0, not -1 (nearest: 0)"),
    ],
)
def test_settings_of_models_are_bounded(changes: dict[str, Any], says: str, refused: Callable[..., str]) -> None:
    plain = {"vocabulary": 8, "classes": 5, "loops": 3}
    assert says in refused(InputError, lambda: ModelConfig(**(plain | changes)))


def test_loops_are_bounded_wherever_they_are_told(tmp_path: Any, refused: Callable[..., str]) -> None:
    most = f"at most {LOOPS}"
    assert most in refused(InputError, OuroConfig.from_dict, CONFIG | {"total_ut_steps": 10**12})
    assert most in refused(InputError, lambda: stack_from_config(CONFIGS["qwen3"], loops=10**12))
    assert most in refused(InputError, lambda: build(CONFIG, loops=HUGE))
    assert most in refused(InputError, lambda: load(ouro_folder(tmp_path / "ouro"), loops=10**9))
    model = LoopedTransformer(ModelConfig(vocabulary=8, classes=5, loops=1, width=8, heads=1, mlp=8))
    assert "cannot run" in refused(InputError, lambda: model(tiny_tokens(1), loops=10**12))


def test_what_is_shown_is_short() -> None:
    assert shown(None) == "missing"
    assert shown("a") == "'a'"
    assert len(shown("a" * 10**6)) < 2 * SHOWN
    assert shown(-HUGE) == "a number of more than 40 digits"
