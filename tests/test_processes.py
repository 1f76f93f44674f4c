"""What a launcher tells its processes: a number that is none is one line, not a traceback or a wait for nobody."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from loopscope.errors import InputError
from loopscope.training.lm.processes import join, several, speaks

WHOLE = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def put(**values: str) -> None:
        for name in WHOLE:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize("value", ["", "two", "-1", "0", "1.5", "1e3", "9" * 30, "\N{ARABIC-INDIC DIGIT TWO}", " 2"])
def test_a_number_of_processes_that_is_none(
    environment: Callable[..., None], refused: Callable[..., str], value: str
) -> None:
    environment(WORLD_SIZE=value)
    assert "WORLD_SIZE must be a number from 1 to" in refused(InputError, several)
    assert "WORLD_SIZE must be" in refused(InputError, join, torch.device("cpu"))


@pytest.mark.parametrize(("name", "value"), [("RANK", "2"), ("RANK", "x"), ("LOCAL_RANK", "-1"), ("MASTER_PORT", "0"),
                                             ("MASTER_PORT", "99999")])  # fmt: skip
def test_a_process_that_is_none_of_them(
    environment: Callable[..., None], refused: Callable[..., str], name: str, value: str
) -> None:
    environment(**{**WHOLE, name: value})
    assert f"{name} must be a number from" in refused(InputError, join, torch.device("cpu"))


def test_others_that_never_come_are_not_waited_for(
    environment: Callable[..., None], refused: Callable[..., str]
) -> None:
    environment(WORLD_SIZE="2", RANK="0")
    said = refused(InputError, join, torch.device("cpu"))
    assert said.startswith("WORLD_SIZE is 2, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set")


def test_one_process_speaks_whatever_it_is_called(environment: Callable[..., None]) -> None:
    environment(RANK="7")
    assert speaks()
    environment(**{**WHOLE, "RANK": "1"})
    assert not speaks()
