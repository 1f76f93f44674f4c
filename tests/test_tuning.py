"""Fine-tuning language models, part by part: passes, optimiser, memory; each against its definition."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import Adafactor as Reference

from loopscope.errors import InputError
from loopscope.maps import Dense
from loopscope.models.caches import Cache
from loopscope.models.folders import load
from loopscope.models.passes import states
from loopscope.models.placement import between
from loopscope.program import F
from loopscope.studies.language.recipes import recipe
from loopscope.training.lm import memory
from loopscope.training.lm.batches import TokenSequence, units
from loopscope.training.lm.objective import Objective, narrow_products
from loopscope.training.lm.optimisers import Adafactor
from tests.ouro_tiny import ouro_map, tiny_ouro
from tests.stack_tiny import tiny_stack
from tests.tuning_tiny import small, tuning_data, tuning_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuning_folder(tmp_path_factory.mktemp("models") / "llama")


# ---- recomputed layers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3", "ouro"])
def test_recomputed_layers_change_no_value_and_no_gradient(kind: str) -> None:
    model = tiny_ouro() if kind == "ouro" else tiny_stack(kind)
    model.requires_grad_(True)
    step = ouro_map() if kind == "ouro" else Dense(16)
    tokens = torch.arange(8).view(2, 4) % 8
    program, found = between("x", 3), []
    for recompute in (False, True):
        model.zero_grad()
        step.zero_grad()
        kept = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            h = states(model, tokens, program, maps={"x": step}, recompute=recompute)["h3"]
        h.square().sum().backward()
        gradients = [each.grad for each in (*model.parameters(), *step.parameters()) if each.grad is not None]
        found.append((kept, h.detach(), gradients))
    (many, plain, wanted), (few, again, got) = found
    assert torch.equal(plain, again)
    assert len(wanted) == len(got) > 10
    assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    assert few < many / 3


@pytest.mark.slow
def test_layers_are_compiled_once_for_all_loops_and_shapes() -> None:
    command = [sys.executable, "-m", "tests.tuning_compiled"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent.parent)
    assert int(done.stdout) == 2  # graphs, of one row and of several, for 70 passes through a layer


@pytest.mark.slow
def test_all_stages_of_a_protocol_can_be_compiled_in_one_process(tmp_path: Path) -> None:
    """Of a function few forms are kept compiled; each stage has its own, and those of another must not count."""
    command = [sys.executable, "-m", "tests.tuning_compiled", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "store" / "lm-map").is_dir()


@pytest.mark.parametrize("placement", ["none", "between", "after-each"])
@pytest.mark.parametrize("recompute", [False, True])
def test_rows_that_leave_a_pass_have_the_loss_and_gradients_of_their_own(placement: str, recompute: bool) -> None:
    """Four rows of 3, 2, 2 and 1 loops in one pass, and each in a pass of its own."""
    model, step = tiny_ouro(), None if placement == "none" else ouro_map()
    model.requires_grad_(step is None)
    rows = [TokenSequence(tuple((i + j) % 8 for j in range(4 + i)), 1, loops) for i, loops in enumerate((2, 1, 3, 2))]
    found = []
    for micro in (4, 1):
        objective = Objective(model, step, "after-each" if placement == "after-each" else "between")
        objective.recompute = recompute
        objective.zero_grad()
        parts = units(rows, micro=micro, averaging="sequence", share=1.0, kind="task")
        assert [unit.loops for unit in parts] == ([(3, 2, 2, 1)] if micro == 4 else [(3,), (2,), (2,), (1,)])
        loss = torch.stack([objective(unit)[0] for unit in parts]).sum()
        loss.backward()
        trained = objective.parameters() if step is None else step.parameters()
        found.append((loss.detach(), [each.grad.clone() for each in trained if each.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    assert max(float(each.abs().max()) for each in found[0][1]) > 0


def test_examples_leave_a_pass_once_and_from_the_end(refused: Callable[..., str]) -> None:
    model, tokens = tiny_ouro(), torch.arange(12).view(3, 4) % 8
    found = states(model, tokens, F**3, examples=[3, 2, 1])
    assert [len(found[f"h{t}"]) for t in range(4)] == [3, 3, 2, 1]
    whole = states(model, tokens, F**3)
    for t, count in ((1, 3), (2, 2), (3, 1)):
        torch.testing.assert_close(found[f"h{t}"], whole[f"h{t}"][:count], rtol=0, atol=1e-5)
    for wrong in ([3, 3], [2, 3, 1], [4, 2, 1], [3, 1, 0]):
        assert "from 3 down to 1" in refused(InputError, partial(states, model, tokens, F**3, examples=wrong))
    for more in ({"cache": Cache(4)}, {"mask": torch.ones(3, 4, dtype=torch.bool)}):
        assert "cannot leave" in refused(InputError, partial(states, model, tokens, F**2, examples=[3, 2], **more))


@pytest.mark.parametrize("kind", ["llama", "qwen3", "ouro"])
def test_a_branch_has_the_states_that_it_has_behind_the_beginning_alone(kind: str, refused: Callable[..., str]) -> None:
    model = tiny_ouro() if kind == "ouro" else tiny_stack(kind)
    step = ouro_map() if kind == "ouro" else Dense(16)
    lines = [([1, 2, 3], [[4], [5, 6], [7, 1, 2]]), ([6, 5], [[3, 3, 1], [2], [4, 4]])]
    length = 9
    tokens, branches = torch.zeros(2, length, dtype=torch.long), torch.zeros(2, length, dtype=torch.long)
    for number, (begin, rest) in enumerate(lines):
        laid = [*begin, *(token for each in rest for token in each)]
        tokens[number, : len(laid)] = torch.tensor(laid)
        branches[number, : len(laid)] = torch.tensor([0] * len(begin) + [n for n, e in enumerate(rest, 1) for _ in e])
    program = between("x", 3)
    steps = len(program.steps)
    maps = {"x": step}
    found = states(model, tokens, program, maps=maps, branches=branches)
    left = states(model, tokens, program, maps=maps, branches=branches, examples=[2] * (steps - 1) + [1])
    torch.testing.assert_close(left["h3"], found["h3"][:1], rtol=0, atol=1e-5)
    for number, (begin, rest) in enumerate(lines):
        end = len(begin)
        for each in rest:
            alone = states(model, torch.tensor([[*begin, *each]]), program, maps=maps)
            for point, h in alone.items():
                mine = found[point][number, [*range(len(begin)), *range(end, end + len(each))]]
                torch.testing.assert_close(mine, h[0], rtol=0, atol=5e-5)  # states are up to 30
            end += len(each)
    # A branch that is not told from the others gives other states: what was compared can differ.
    mixed = states(model, tokens, program, maps=maps)["h3"]
    assert not torch.allclose(mixed[0, 4:], found["h3"][0, 4:], rtol=0, atol=1e-3)
    for more in ({"cache": Cache(length)}, {"mask": torch.ones(2, length, dtype=torch.bool)}):
        asked = partial(states, model, tokens, program, maps=maps, branches=branches, **more)
        assert "branches cannot have" in refused(InputError, asked)


def test_recomputing_with_a_cache_is_refused(refused: Callable[..., str]) -> None:
    def both() -> None:
        states(tiny_ouro(), torch.zeros(1, 2, dtype=torch.long), F**1, cache=Cache(2), recompute=True)

    assert "leave out one" in refused(InputError, both)


def test_frozen_matrices_in_bf16_change_no_value_and_are_kept_once() -> None:
    """As on a GPU: products in bf16 under autocast."""
    found = []
    for narrow in (False, True):
        model, step = tiny_stack("qwen3", "norm"), Dense(16)
        model.requires_grad_(False)
        if narrow:
            narrow_products(model, torch.bfloat16)
        kept: dict[int, int] = {}
        alive = []

        def count(tensor: torch.Tensor, kept: dict[int, int] = kept, alive: list[torch.Tensor] = alive) -> torch.Tensor:
            alive.append(tensor)
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        (unit,) = units([TokenSequence(tuple(range(6)), 2, 3)], micro=1, averaging="token", share=1.0, kind="task")
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(count, lambda each: each):
            loss, _ = Objective(model, step)(unit)
        loss.backward()
        found.append((loss.detach(), step.W.grad, step.b.grad, sum(kept.values())))
    (*wide, much), (*narrow_ones, little) = found
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow_ones, strict=True))
    assert little < 0.8 * much


# ---- optimiser -------------------------------------------------------------------------------------------------------


def test_adafactor_is_that_of_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=generator) for shape in ((6, 4), (5,), (3, 2))]
    ours, theirs = ([torch.nn.Parameter(each.clone()) for each in starts] for _ in range(2))
    mine = Adafactor(ours, lr=1e-2, decay=0.1)
    reference = Reference(
        theirs, lr=1e-2, scale_parameter=False, relative_step=False, warmup_init=False, weight_decay=0.1
    )  # fmt: skip
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=generator) * 3
            b.grad = a.grad.clone()
        mine.step()
        reference.step()
    for a, b, start in zip(ours, theirs, starts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        assert (a - start).abs().max() > 0.01
    assert sum(value.numel() for value in mine.state[ours[0]].values()) == 6 + 4 + 1


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("loops", [(4, 4, 4), (4, 2, 1)])
@pytest.mark.parametrize("kind", ["llama", "ouro"])
def test_the_estimate_is_what_a_pass_keeps(tmp_path: Path, kind: str, loops: tuple[int, ...], recompute: bool) -> None:
    """Of a model large enough that what is in no formula, such as rotary tables, hardly counts."""
    model = load(tuning_folder(tmp_path / kind, kind, hidden_size=64, intermediate_size=160), loops=4)
    model.requires_grad_(True)
    rows = [TokenSequence(tuple(range(300)), 299, each) for each in loops]
    made = units(rows, micro=3, averaging="token", share=1.0, kind="task")
    cpu = torch.device("cpu")
    told = memory.estimate(model, None, recipe("letter"), made, device=cpu, recompute=recompute)
    kept: dict[int, int] = {each.untyped_storage().data_ptr(): 0 for each in model.parameters()}
    alive = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        _ = states(
            model,
            made[0].tokens,
            F**4,
            examples=[sum(each > t for each in loops) for t in range(4)],
            recompute=recompute,
        )
    inside = made[0].tokens.numel() * 4 * (16 * 64 + 4 * 160) if recompute else 0  # of a layer, when it is recomputed
    assert 0.95 <= (told.activations - inside) / sum(kept.values()) <= 1.6
    count_all = sum(each.numel() for each in model.parameters())
    assert told.weights == told.gradients == 4 * count_all
    assert told.optimiser < 4 * count_all / 4
    adamw = memory.estimate(model, None, recipe("smol-letter"), made, device=cpu, recompute=recompute)
    assert adamw.optimiser == 8 * count_all


def test_layers_are_recomputed_where_memory_is_short(folder: Path, refused: Callable[..., str]) -> None:
    model, cpu = load(folder), torch.device("cpu")
    made = tuning_data(small("letter"), folder)(0)
    given = small("letter")

    def planned(free: int) -> memory.Memory:
        return memory.plan(model, None, given, made, device=cpu, free=free)

    much = planned(2**40)
    assert not much.recompute
    less = planned(int(much.total / memory.SPARE) - 1000)
    assert less.recompute
    assert less.total < much.total
    assert "smaller passes take less (micro=2)" in refused(InputError, planned, less.total // 2)
    fitted = memory.estimate(model, Dense(16), recipe("letter-map"), made, device=cpu, recompute=False)
    assert (fitted.gradients, fitted.optimiser) == (4 * 272, 8 * 272)
    assert memory.free_memory(cpu) > 2**20
