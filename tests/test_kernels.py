"""The GPU kernels against their plain definitions: values, gradients, and what may be left out.

Without a GPU, Triton's interpreter runs the same kernels on the CPU, on small shapes; with one, they are compiled, and
the real model's shapes are added.  The interpreter's products of blocks know no bf16, so attention in bf16 needs a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a kernel is defined
pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from loopscope.training import kernels, ops  # noqa: E402

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
DTYPES = [FP32, BF16]
# Largest error relative to the largest value: fp32 sums in another order; results rounded to bf16, once or twice.
TOLERANCE = {FP32: 5e-6, BF16: 1e-2}


def numbers(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    """Normal numbers that bf16 holds exactly, so that a test in any dtype starts from the same ones."""
    return torch.randn(*shape).to(BF16).to(dtype).to(DEVICE)


def outputs_and_gradients(
    module: ModuleType, name: str, tensors: Sequence[Tensor | None], rest: Sequence[object],
    used: Sequence[int], frozen: Sequence[int],
) -> tuple[list[Tensor], list[Tensor | None]]:  # fmt: skip
    """What an operation returns, and the gradients of a fixed random combination of its used outputs."""
    leaves = [None if t is None else t.detach().requires_grad_(i not in frozen) for i, t in enumerate(tensors)]
    outputs = getattr(module, name)(*leaves, *rest)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    torch.manual_seed(1)
    loss = sum((outputs[i] * numbers(*outputs[i].shape, dtype=outputs[i].dtype)).double().sum() for i in used)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    assert isinstance(loss, Tensor)
    return outputs, list(torch.autograd.grad(loss, wanted, allow_unused=True))


def check(
    name: str, tensors: Sequence[Tensor | None], rest: Sequence[object] = (), used: Sequence[int] = (0,),
    frozen: Sequence[int] = (), plain_rest: Sequence[object] | None = None, tolerance: float | None = None,
) -> None:  # fmt: skip
    """Hold a kernel against the plain operation in fp64 on the same numbers.

    Weights [S, d] are handed in as they lie in the flat array of all parameters: rows far apart.
    """
    lie = [torch.cat([t, t], 1)[:, : t.shape[1]] if t is not None and t.dim() == 2 else t for t in tensors]
    got, got_gradients = outputs_and_gradients(kernels, name, lie, rest, used, frozen)
    wide = [None if t is None else t.to(FP64) for t in tensors]
    want, want_gradients = outputs_and_gradients(
        ops, name, wide, rest if plain_rest is None else plain_rest, used, frozen
    )
    low = BF16 if any(t is not None and t.dtype == BF16 for t in [*tensors, *got]) else FP32
    for ours, true in zip([*got, *got_gradients], [*want, *want_gradients], strict=True):
        if ours is None or true is None:
            assert ours is true
            continue
        assert ours.shape == true.shape
        error = (ours - true).abs().max() / true.abs().max()
        assert error < (TOLERANCE[low] if tolerance is None else tolerance)


@pytest.mark.parametrize("rows", [10, 96])
def test_embed(rows: int) -> None:
    table, tokens = numbers(3, 7, 32), torch.randint(0, 7, (3, rows), device=DEVICE)
    check("embed", [table], [tokens])


@pytest.mark.parametrize("frozen", [(), (0,), (1,)])
def test_linear_in_fp32(frozen: tuple[int, ...]) -> None:
    x, W = numbers(2, 10, 32), numbers(2, 24, 32)
    check("linear", [x, W], [W], frozen=frozen, plain_rest=[W.double()])


@pytest.mark.parametrize("frozen", [(), (0,), (1,)])
def test_linear_in_bf16(frozen: tuple[int, ...]) -> None:
    x, W = numbers(2, 10, 32, dtype=BF16), numbers(2, 24, 32)
    check("linear", [x, W], [W.to(BF16)], frozen=frozen, plain_rest=[W.double()])


def test_linear_keeps_weight_gradients_in_fp32() -> None:
    """513 is no bf16 number; those next to it are 512 and 516."""
    x, W = torch.ones(1, 513, 1, dtype=BF16, device=DEVICE), torch.ones(1, 1, 1, device=DEVICE, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernels.linear(x, W, W.detach().to(BF16)).sum(), [W])
    assert gradient.item() == 513


def test_linear_keeps_nothing_for_frozen_weights() -> None:
    kept: list[Tensor] = []
    x, W = numbers(2, 10, 32).requires_grad_(), numbers(2, 24, 32)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kernels.linear(x, W, W)
    assert [tuple(t.shape) for t in kept] == [tuple(W.shape)]


def norm_arguments(width: int, rows: int, low: torch.dtype, y: bool, bias: bool) -> list[Tensor | None]:
    return [
        numbers(2, rows, width),
        numbers(2, rows, width, dtype=low) if y else None,
        numbers(2, width) if bias else None,
        numbers(2, width),
        numbers(2, width),
    ]


@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize(("y", "bias"), [(True, True), (True, False), (False, True), (False, False)])
def test_add_norm(y: bool, bias: bool, used: tuple[int, ...], low: torch.dtype) -> None:
    arguments = norm_arguments(32, 10, low, y, bias)
    check("add_norm", arguments, [low], used, plain_rest=[FP64])


@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize(("width", "rows"), [(64, 70), (256, 3)] + [(256, 35 * 512)] * GPU)
def test_add_norm_in_several_blocks(width: int, rows: int, low: torch.dtype) -> None:
    check("add_norm", norm_arguments(width, rows, low, True, True), [low], (0, 1), plain_rest=[FP64])


@pytest.mark.parametrize(
    ("low", "frozen"), [(BF16, (2, 3, 4)), (FP32, (3, 4)), (FP32, (2,)), (BF16, (0,)), (FP32, (1, 2, 3, 4))]
)
@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
def test_add_norm_with_frozen_inputs(used: tuple[int, ...], frozen: tuple[int, ...], low: torch.dtype) -> None:
    check("add_norm", norm_arguments(32, 10, low, True, True), [low], used, frozen, plain_rest=[FP64])


@pytest.mark.parametrize(("low", "other"), [(FP32, BF16), (BF16, FP32)])
def test_add_norm_between_dtypes(low: torch.dtype, other: torch.dtype) -> None:
    """What is added has one dtype, the norm the other."""
    check("add_norm", norm_arguments(32, 10, other, True, True), [low], (0, 1), plain_rest=[FP64])


def test_add_norm_of_a_faint_stream() -> None:
    """Variances near LayerNorm's epsilon."""
    x, _, _, gain, shift = norm_arguments(32, 10, FP32, False, False)
    assert x is not None
    check("add_norm", [x / 256, None, None, gain, shift], [FP32], (0, 1), plain_rest=[FP64])


def test_add_norm_takes_expanded_gradients() -> None:
    x, gain, shift = numbers(1, 5, 32).requires_grad_(), numbers(1, 32), numbers(1, 32)
    stream, n = kernels.add_norm(x, None, None, gain, shift, FP32)
    (got,) = torch.autograd.grad(stream.sum() + n.sum(), [x])
    (want,) = torch.autograd.grad(x.sum() + ops.norm(x, gain, shift).sum(), [x])
    torch.testing.assert_close(got, want)


def test_add_norm_refuses_other_widths() -> None:
    with pytest.raises(AssertionError, match="power of two, not 48"):
        kernels.add_norm(*norm_arguments(48, 5, FP32, False, False), FP32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize(("wide", "rows"), [(64, 10), (384, 3), (4, 130)] + [(1024, 35 * 512)] * GPU)
def test_gelu(wide: int, rows: int, form: str, dtype: torch.dtype) -> None:
    check("gelu", [numbers(2, rows, wide, dtype=dtype), numbers(2, wide)], [form])


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_gelu_with_frozen_inputs(frozen: tuple[int, ...], form: str) -> None:
    check("gelu", [numbers(2, 10, 64), numbers(2, 64)], [form], frozen=frozen)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter; 1 / (1 + inf) = 0 is meant
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_far_out(form: str) -> None:
    x = torch.tensor([[[-1e4, -100.0, -10.0, -1e-8, 1e-8, 10.0, 100.0, 1e4]]], device=DEVICE, requires_grad=True)
    got, want = kernels.gelu(x, x.new_zeros(1, 8), form), torch.nn.functional.gelu(x, approximate=form)
    slopes = [torch.autograd.grad(h.sum(), [x])[0] for h in (got, want)]
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-6, atol=1e-6)


ATTENTION_DTYPES = DTYPES if GPU else [FP32]
# A GPU cuts fp32 factors to tf32.  In bf16, q, k, v, patterns and their gradients are rounded one after another.
ATTENTION_TOLERANCE = {FP32: 1e-2 if GPU else TOLERANCE[FP32], BF16: 3e-2}
# (tokens, width, heads): heads of 16; parity's heads of 4; a head dimension that is no power of two; a single token
SMALL = [(5, 32, 2), (20, 16, 4), (3, 48, 2), (1, 32, 1)]
REAL = [(35, 256, 4), (40, 256, 64), (64, 256, 8)]


@pytest.mark.parametrize("dtype", ATTENTION_DTYPES)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("tokens", "width", "heads"), SMALL + REAL * GPU)
def test_attention(tokens: int, width: int, heads: int, biased: bool, dtype: torch.dtype) -> None:
    qkv = numbers(2, 2 * tokens, 3 * width, dtype=dtype)
    biases = numbers(2, 3 * width) if biased else None
    check("attention", [qkv, biases], [tokens, heads], tolerance=ATTENTION_TOLERANCE[dtype])


@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_attention_with_frozen_inputs(frozen: tuple[int, ...]) -> None:
    tensors = [numbers(2, 10, 96), numbers(2, 96)]
    check("attention", tensors, [5, 2], frozen=frozen, tolerance=ATTENTION_TOLERANCE[FP32])


def test_attention_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(AssertionError, match="at most 64 tokens, not 65"):
        kernels.attention(numbers(1, 65, 96), None, 65, 2)
    with pytest.raises(AssertionError, match="10 rows are no whole number of runs of 4"):
        kernels.attention(numbers(1, 10, 96), None, 4, 2)


@pytest.mark.parametrize("name", ["embed", "add_norm", "gelu", "attention"])
def test_the_same_bits_every_time(name: str) -> None:
    arguments: dict[str, tuple[list[Tensor | None], list[object], list[int]]] = {
        "embed": ([numbers(2, 7, 32)], [torch.randint(0, 7, (2, 96), device=DEVICE)], [0]),
        "add_norm": (norm_arguments(32, 130, FP32, True, True), [BF16], [0, 1]),
        "gelu": ([numbers(2, 260, 64), numbers(2, 64)], ["tanh"], [0]),
        "attention": ([numbers(2, 15, 96), numbers(2, 96)], [5, 2], [0]),
    }
    tensors, rest, used = arguments[name]
    first, second = (outputs_and_gradients(kernels, name, tensors, rest, used, []) for _ in range(2))
    for one, two in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True):
        assert one is not None
        assert two is not None
        assert torch.equal(one, two)


BETAS = (0.9, 0.98)
SETTINGS = {"betas": BETAS, "eps": 1e-8, "decay": 0.1}


def corrections(update: int) -> dict[str, Tensor]:
    """1 - beta^t for both betas, on the device."""
    return {f"correction{i}": torch.tensor(1 - beta**update, device=DEVICE) for i, beta in enumerate(BETAS, 1)}


def test_plain_adamw_is_torchs() -> None:
    """Three seeds with rates and clipping factors of their own, two groups of parameters, ten updates."""
    seeds, size = 3, 20
    flat, m, v = numbers(seeds, size), torch.zeros(seeds, size, device=DEVICE), torch.zeros(seeds, size, device=DEVICE)
    factor = torch.tensor([1.0] * 12 + [0.25] * 8, device=DEVICE)
    singles = [[part.clone().requires_grad_() for part in row.split([12, 8])] for row in flat]
    optimizers = [
        torch.optim.AdamW([{"params": [part]} for part in single], betas=BETAS, eps=1e-8, weight_decay=0.1)
        for single in singles
    ]
    for update in range(1, 11):
        rate = torch.tensor([1e-2, 3e-2, 1e-3], device=DEVICE) * update / 10
        scale, grad = torch.tensor([1.0, 0.5, 0.1], device=DEVICE), numbers(seeds, size)
        ok = torch.ones(seeds, dtype=torch.bool, device=DEVICE)
        ops.adamw(flat, grad, m, v, rate, scale, ok, factor=factor, **corrections(update), **SETTINGS)
        for seed, optimizer in enumerate(optimizers):
            for group, part, own, times in zip(
                optimizer.param_groups, singles[seed], (grad[seed] * scale[seed]).split([12, 8]), (1, 0.25), strict=True
            ):
                group["lr"], part.grad = float(rate[seed]) * times, own.clone()
            optimizer.step()
    want = torch.stack([torch.cat([part.detach() for part in single]) for single in singles])
    torch.testing.assert_close(flat, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("one_rate", [True, False])
@pytest.mark.parametrize("with_factor", [True, False])
@pytest.mark.parametrize("adamw", [ops.adamw, kernels.adamw])
def test_adamw_kernel_and_seeds_that_are_not_ok(adamw: Callable[..., None], with_factor: bool, one_rate: bool) -> None:
    seeds, size = 3, 1500
    state = [numbers(seeds, size), numbers(seeds, size) * 0.1, numbers(seeds, size).square()]
    grad, scale = numbers(seeds, size), torch.tensor([1.0, float("nan"), 0.25], device=DEVICE)
    grad[1, ::3], grad[1, 1::3] = float("nan"), float("inf")
    ok = torch.tensor([True, False, True], device=DEVICE)
    rate = torch.tensor(1e-2 if one_rate else [1e-2, 2e-2, 3e-2], device=DEVICE)
    factor = torch.rand(size).to(DEVICE) if with_factor else None
    got = [t.clone() for t in state]
    adamw(got[0], grad, *got[1:], rate, scale, ok, factor=factor, **corrections(7), **SETTINGS)
    want = [t.double() for t in state]
    wide = {name: value.double() for name, value in corrections(7).items()}
    wide_factor = None if factor is None else factor.double()
    ops.adamw(
        want[0], grad.double(), *want[1:], rate.double(), scale.double(), ok, factor=wide_factor, **wide, **SETTINGS
    )
    for ours, true, before in zip(got, want, state, strict=True):
        assert torch.equal(ours[1], before[1])
        assert not torch.equal(ours[0], before[0])
        torch.testing.assert_close(ours.double(), true, rtol=1e-5, atol=1e-5)


def test_adamw_reads_what_changes_on_the_device() -> None:
    """One recorded update, played with another rate: on a GPU as a CUDA graph."""
    flat, grad, m, v = (numbers(2, 50) for _ in range(4))
    v.square_()
    rate, scale = torch.tensor(0.0, device=DEVICE), torch.ones(2, device=DEVICE)
    ok, fixed = torch.ones(2, dtype=torch.bool, device=DEVICE), corrections(3)

    def update() -> None:
        kernels.adamw(flat, grad, m, v, rate, scale, ok, factor=None, **fixed, **SETTINGS)

    update()
    play = update
    if GPU:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            update()
        play = graph.replay
    want = [t.clone() for t in (flat, m, v)]
    rate.fill_(1e-2)
    play()
    ops.adamw(want[0], grad, *want[1:], rate, scale, ok, factor=None, **fixed, **SETTINGS)
    for ours, true in zip((flat, m, v), want, strict=True):
        torch.testing.assert_close(ours, true, rtol=1e-5, atol=1e-5)
