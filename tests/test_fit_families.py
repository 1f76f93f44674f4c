"""Maps are fitted to models of every family: gradients are those of the plain run, and updates lower the loss."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from safetensors.torch import save_file
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense
from loopscope.measure.readouts import behind_puzzles
from loopscope.models.folders import TOLD, build, load
from loopscope.models.steering import check_fitted, load_steering_map
from loopscope.pieces import pieces_of
from loopscope.store.store import Store
from loopscope.training.lm.batches import Unit
from loopscope.training.lm.jobs import Settings, fit, prepared
from loopscope.training.lm.objective import MAP, Objective
from tests.adapters_tiny import CONFIGS, MODELS, PUZZLES, model_folder
from tests.model_folders import put_tokenizer
from tests.tuning_tiny import CHATML, small, sources, words

ALIKE = ("qwen3", "mistral", "qwen2", "olmo2", "gpt_neox", "raven_llama")
FAMILIES = pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[pytest.mark.slow] if each in ALIKE else []) for each in MODELS]
)


def unit(model: Any, family: str) -> Unit:
    """Three lines, of two loops, two and one, each learned at its last rows after all of its loops."""
    texts = behind_puzzles(model, [[1, 2, 3, 4], [4, 3, 2, 1], [5, 5, 1, 2]], [0, 1, 2] if family in PUZZLES else None)
    lead = model.lead
    columns = torch.tensor([2, 3, 2, 3]) + lead
    return Unit(
        tokens=torch.tensor(texts), rows=torch.tensor([0, 1, 1, 2 + 2]), columns=columns,
        targets=torch.tensor([6, 2, 3, 1]), weights=torch.full((4,), 0.25), answers=torch.tensor([0]),
        depths=torch.tensor([1]), after=torch.tensor([2]), loops=(2, 2, 1), reads=(2, 1), kind="task", length=12,
    )  # fmt: skip


def shaken(model: Any) -> Dense:
    """A map of the whole state, away from the identity."""
    step = Dense(pieces_of(model).state_width)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for each in step.parameters():
            each.add_(torch.randn(each.shape, generator=generator) * 0.02)
    return step


def by_plain_runs(model: Any, step: Dense, given: Unit) -> Tensor:
    """The same loss, line by line, through plain runs with gradients."""
    losses = []
    for row, column, target in zip((0, 1, 1, 2), given.columns.tolist(), given.targets, strict=True):
        objective = Objective(model, step)
        program = objective.program(given.loops[row])
        tokens = {"main": given.tokens[row : row + 1]}
        logits = plain_run(model, tokens, program, maps={MAP: step}, gradients=True).read(program.points[-1])[0, column]
        losses.append(nnf.cross_entropy(logits, target))
    return torch.stack(losses).mean()


@FAMILIES
def test_gradients_of_a_map_are_those_of_plain_runs_and_updates_lower_the_loss(family: str) -> None:
    model = deepcopy(MODELS[family]()).requires_grad_(False)
    step, given = shaken(model), unit(model, family)
    objective = Objective(model, step)
    loss, _ = objective(given)
    found = torch.autograd.grad(loss, list(step.parameters()))
    expected_loss = by_plain_runs(model, step, given)
    expected = torch.autograd.grad(expected_loss, list(step.parameters()))
    torch.testing.assert_close(loss, expected_loss, rtol=1e-4, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        assert float(other.abs().max()) > 1e-6
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
    optimiser = torch.optim.Adam(step.parameters(), lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        objective(given)[0].backward()
        optimiser.step()
    with torch.no_grad():
        assert objective(given)[0] < loss
    assert all(each.grad is None for each in model.parameters())


ROOM: dict[str, dict[str, Any]] = {
    "huginn": {"vocab_size": 704, "padded_vocab_size": 704, "block_size": 2048},
    "hrm_text": {"vocab_size": 700, "max_position_embeddings": 2048, "eos_token_id": 2},
    "mistral": {"vocab_size": 700, "max_position_embeddings": 2048, "eos_token_id": 2, "sliding_window": 40},
}
"""Changes of configs that make models which can be spoken to, with cores, several stacks and windows."""


def spoken(folder: Path, family: str) -> Path:
    """A folder with random weights, a tokenizer that knows the tasks' words, and a chat template."""
    folder.mkdir()
    config = CONFIGS[family] | ROOM[family]
    names = tuple(MODELS[family]().state_dict())
    told = TOLD[config["model_type"]](config, names) if config["model_type"] in TOLD else config
    generator = torch.Generator().manual_seed(3)
    tensors = {
        name: torch.randn(each.shape, generator=generator) * 0.1 + (each.dim() == 1)
        for name, each in build(told).state_dict().items()
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(words(), encoding="utf-8")
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=[] if each == "hrm_text" else [pytest.mark.slow]) for each in ROOM]
)
def test_a_recipe_fits_a_map_of_the_whole_state_to_a_folder(tmp_path: Path, family: str) -> None:
    """Two questions of a text share its beginning, so that branches go through windows and several stacks, too."""
    folder = spoken(tmp_path / family, family)
    recipe = small("letter-map", "updates=2", "loops=2", "per_text=2", "rate=0.01", "boundary=null")
    done = fit(folder, recipe, Store(tmp_path / "store"), Settings(torch.device("cpu")), sources=sources())
    assert done.updates == 2
    model = load(folder)
    made = load_steering_map(done.folder, folder, pieces_of(model).state_width)
    assert made.width == {"huginn": 48, "hrm_text": 48, "mistral": 16}[family]
    assert float((made.linear() - torch.eye(made.width)).abs().max()) > 1e-3
    assert check_fitted(done.folder, folder, model.boundary).text == "fitted to this model"


def test_a_model_that_finds_the_next_token_in_its_input_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    for family in PUZZLES:
        folder = put_tokenizer(model_folder(tmp_path / family, family))
        asked = partial(prepared, folder, small("letter-map"), Settings(torch.device("cpu")), sources(), None)
        said = refused(InputError, asked)
        assert said.startswith("rows of this model see rows behind them, so that it would find every next token")
