"""How many threads torch computes with: by the size of the work, unless somebody said how many."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from loopscope.cli.bench.threads import bench_threads
from loopscope.cli.threads import numbers_of, weights_in
from loopscope.errors import InputError
from loopscope.store.store import Store
from loopscope.studies.recipes import backbone_recipe
from loopscope.threads import EACH, MOST, VARIABLE, asked_for, fixed_threads, suitable, threads_for
from tests.commands import loopscope
from tests.toys import toy_walk


@pytest.fixture(autouse=True)
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that nobody has told how many threads to use, and that has four."""
    for name in (VARIABLE, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def inside(numbers: int) -> int:
    with threads_for(numbers):
        return torch.get_num_threads()


def test_small_work_has_one_thread_and_large_work_all() -> None:
    assert [suitable(numbers, 4) for numbers in (0, EACH, 2 * EACH, 3 * EACH, 100 * EACH)] == [1, 1, 2, 3, 4]
    assert [inside(numbers) for numbers in (0, 2 * EACH, 100 * EACH)] == [1, 2, 4]
    assert torch.get_num_threads() == 4
    with pytest.raises(ZeroDivisionError), threads_for(0):
        _ = 1 / 0
    assert torch.get_num_threads() == 4


def test_whoever_says_how_many_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    with fixed_threads(3):
        assert inside(0) == inside(100 * EACH) == 3
    assert inside(0) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert inside(0) == 4
    monkeypatch.setenv(VARIABLE, "2")
    assert inside(0) == inside(100 * EACH) == 2
    with fixed_threads(3):
        assert inside(0) == 3
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(
    ("text", "says"), [("0", "at least 1"), (str(MOST + 1), f"at most {MOST}"), ("two", "whole number, not 'two'")]
)
def test_what_is_no_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str], text: str, says: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    line = refused(InputError, asked_for)
    assert line.startswith(f"the environment variable {VARIABLE} must be ")
    assert says in line


def test_the_size_of_recipes_and_folders(tmp_path: Path) -> None:
    tiny, large = backbone_recipe("tiny"), backbone_recipe("d8l6")
    assert suitable(numbers_of(tiny.model, tiny.batch, 2), 4) == 1
    assert suitable(numbers_of(large.model, large.batch, 8), 4) == 4
    (tmp_path / "model.safetensors").write_bytes(bytes(400))
    assert weights_in(tmp_path) == 100
    (tmp_path / "other.safetensors").symlink_to("nowhere")
    (tmp_path / "third.safetensors").symlink_to("third.safetensors")
    assert weights_in(tmp_path) == 100  # whoever loads them refuses them
    assert weights_in(tmp_path / "none") == 0


def test_the_option_holds_for_the_command_and_no_longer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device(*first: str) -> str:
        """What a trained backbone says that it was computed on."""
        place = tmp_path / "-".join(("store", *first))
        monkeypatch.setattr("loopscope.studies.recipes.backbone_recipe", lambda _: toy_walk())
        code, out, _ = loopscope(capsys, *first, "train", "tiny", "--seeds", "0", "--device", "cpu", "--store",
                                 str(place), "--json")  # fmt: skip
        assert code == 0
        key = json.loads(out)["members"][0]["key"]
        assert torch.get_num_threads() == 4
        return str(Store(place).open("backbone", key).manifest.device)

    assert device().endswith(", 1 threads")
    assert device("--threads", "3").endswith(", 3 threads")
    monkeypatch.setenv(VARIABLE, "2")
    assert device("--threads", "4").endswith(", 4 threads")
    code, _, err = loopscope(capsys, "--threads", "0", "populations")
    assert (code, err) == (2, "loopscope: --threads must be at least 1, not 0 (nearest: 1)\n")


def test_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopscope.cli.bench import threads as bench

    seen: list[int] = []
    cases = [("small", 10, lambda: seen.append(torch.get_num_threads())), ("large", 9 * EACH, lambda: None)]
    monkeypatch.setattr(bench, "cases", lambda: iter(cases))
    small, large = bench_threads(3, rounds=2)
    assert seen == [1, 2, 3] * 3  # the first of them not timed
    assert (small.chosen, large.chosen) == (1, 3)
    assert list(small.ratios) == [1, 2, 3]
    assert small.ratios[1] == 1.0
    assert torch.get_num_threads() == 4
    monkeypatch.undo()
    assert [numbers for _, numbers, _ in bench.cases()][:2] == [94_208, 188_416]
