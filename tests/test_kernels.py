"""The GPU kernels against their plain definitions: values, gradients, and what may be left out.

Without a GPU, Triton's interpreter runs the same kernels on the CPU, on small shapes; with one, they are compiled, and
the real model's shapes are added.  The interpreter's products of blocks know no bf16, so attention in bf16 needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")

from loopscope.model import (  # noqa: E402
    LoopedTransformer,
    ModelConfig,
    graph_walk_config,
    parity_config,
    relations_config,
)
from loopscope.studies.parity import counts as parity_counts  # noqa: E402
from loopscope.tasks.graph_walk import GraphWalk  # noqa: E402
from loopscope.training.cohort import collect, kernels, long_attention, norms, ops, streams  # noqa: E402
from loopscope.training.cohort.cohort import Cohort, State  # noqa: E402
from loopscope.training.cohort.layout import Layout, SharedBeginnings  # noqa: E402
from loopscope.training.cohort.ops import Weight  # noqa: E402
from loopscope.training.cohort.parity import ParityBackbones  # noqa: E402
from loopscope.training.cohort.stack import SideStream, Sink, Stack  # noqa: E402
from tests.pairs import pairwise  # noqa: E402
from tests.planted.parity import STEP, backbone  # noqa: E402

BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
pytestmark = pytest.mark.gpu
DTYPES = [FP32, FP16, BF16]
# Largest error relative to the largest value: fp32 sums in another order; results rounded to 16 bits, once or twice.
TOLERANCE = {FP32: 5e-6, FP16: 1.25e-3, BF16: 1e-2}


def numbers(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    """Normal numbers that bf16 and fp16 hold exactly, so that a test in any dtype starts from the same ones."""
    return torch.randn(*shape).to(BF16).to(FP16).to(dtype).to(DEVICE)


def weight(*shape: int) -> Weight:
    return Weight(numbers(*shape))


class Outcome(NamedTuple):
    """What an operation returns, and the gradients of a fixed random combination of its used outputs."""

    outputs: list[Tensor]
    gradients: list[Tensor]  # of its activations
    collected: list[Tensor]  # what was added for each of its weights, nothing for those that are frozen


Operation = str | Callable[..., Any]


def run(
    module: ModuleType, operation: Operation, arguments: Sequence[Any], weights: Sequence[Tensor], used: Sequence[int]
) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
    """Outputs, and gradients of the activations and of the weights as autograd has them."""
    function = getattr(module, operation) if isinstance(operation, str) else partial(operation, module)
    outputs = function(*arguments)
    outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
    torch.manual_seed(1)
    loss = sum((outputs[i] * numbers(*outputs[i].shape, dtype=outputs[i].dtype)).double().sum() for i in used)
    assert isinstance(loss, Tensor)
    leaves = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    found = torch.autograd.grad(loss, [*leaves, *weights], allow_unused=True)
    own = [torch.zeros_like(each) if grad is None else grad for each, grad in zip(leaves, found, strict=False)]
    return outputs, own, list(found[len(leaves) :])


def nothing() -> Tensor:
    return torch.zeros((), dtype=FP64, device=DEVICE)


def leaf(activation: Tensor, learns: bool) -> Tensor:
    return activation.detach().requires_grad_(learns and activation.is_floating_point())


def kernel_outcome(
    operation: Operation, arguments: Sequence[Any], used: Sequence[int] = (0,), frozen: Sequence[int] = ()
) -> Outcome:
    """With weights as they lie in training: in one array, their sinks in another, which holds something already."""
    own = {str(i): each for i, each in enumerate(arguments) if isinstance(each, Weight)}
    *_, last = (each for each in arguments if isinstance(each, Tensor))
    members = [
        {"other": torch.zeros(3), **{name: each.value[seed] for name, each in own.items()}} for seed in range(len(last))
    ]
    stack = Stack(members, DEVICE, lambda name: name in own and int(name) not in frozen)
    torch.manual_seed(2)
    stack.gradient.copy_(numbers(*stack.gradient.shape))
    before = {name: sink.total.clone() for name, sink in stack.sinks.items()}
    whole = stack.gradient.clone()
    given: list[Any] = []
    for i, each in enumerate(arguments):
        if isinstance(each, Weight):
            value = stack.weights[str(i)]
            low = value.detach().to(last.dtype) if value.dim() == 3 else None
            given.append(Weight(value, low, stack.sinks.get(str(i))))
        else:
            given.append(leaf(each, i not in frozen) if isinstance(each, Tensor) else each)
    outputs, gradients, weights = run(kernels, operation, given, [stack.weights[name] for name in own], used)
    assert all(grad is None for grad in weights), "a weight's gradient went to autograd"
    collected = {name: stack.sinks[name].total.double() - before[name] for name in before}
    for name in before:
        stack.sinks[name].total.copy_(before[name])
    assert torch.equal(stack.gradient, whole), "something was written outside of the sinks"
    return Outcome(outputs, gradients, [collected.get(name, nothing()) for name in own])


def plain_outcome(
    operation: Operation, arguments: Sequence[Any], used: Sequence[int] = (0,), frozen: Sequence[int] = ()
) -> Outcome:
    """In fp64, by autograd."""
    given: list[Any] = []
    for i, each in enumerate(arguments):
        if isinstance(each, Weight):
            given.append(Weight(leaf(each.value.double(), i not in frozen)))
        elif isinstance(each, Tensor):
            given.append(leaf(each.double() if each.is_floating_point() else each, i not in frozen))
        else:
            given.append(FP64 if isinstance(each, torch.dtype) else each)
    weights = [each.value for each in given if isinstance(each, Weight)]
    learning = [value for value in weights if value.requires_grad]
    outputs, gradients, found = run(ops, operation, given, learning, used)
    by_weight = iter(found)
    collected = [next(by_weight) if value.requires_grad else None for value in weights]
    return Outcome(outputs, gradients, [nothing() if grad is None else grad for grad in collected])


def assert_near(ours: Tensor, true: Tensor, tolerance: float) -> None:
    """Where all is zero, nothing else will do."""
    assert true.shape in (ours.shape, ()), f"{tuple(ours.shape)} for {tuple(true.shape)}"
    error, largest = (ours - true).abs().max().item(), true.abs().max().item()
    assert error <= tolerance * largest, f"off by {error:.2e} of {largest:.2e}"


def check(
    operation: Operation, arguments: Sequence[Any], used: Sequence[int] = (0,), frozen: Sequence[int] = (),
    tolerance: float | None = None, sums: float = TOLERANCE[FP32],
) -> None:  # fmt: skip
    """Hold a kernel against the plain operation in fp64 on the same numbers.

    Tensors are activations, whose gradients are autograd's; those of weights are collected.  A dtype stands for that of
    what comes out.  `sums`: what the gradients of weights may be off by; they are fp32 unless made from rounded ones.
    """
    got, want = (outcome(operation, arguments, used, frozen) for outcome in (kernel_outcome, plain_outcome))
    rounded = {each.dtype for each in [*got.outputs, *got.gradients]}
    limit = max(TOLERANCE[dtype] for dtype in rounded) if tolerance is None else tolerance
    for ours, true in zip([*got.outputs, *got.gradients], [*want.outputs, *want.gradients], strict=True):
        assert_near(ours, true, limit)
    for ours, true in zip(got.collected, want.collected, strict=True):
        assert_near(ours, true, sums)


@pytest.mark.parametrize("rows", [10, 96])
def test_embed(rows: int) -> None:
    check("embed", [numbers(3, 7, 32), torch.randint(0, 7, (3, rows), device=DEVICE)])


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frozen", [(), (1,)])
def test_linear(frozen: tuple[int, ...], dtype: torch.dtype) -> None:
    check("linear", [numbers(2, 10, 32, dtype=dtype), weight(2, 24, 32)], frozen=frozen)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_by_some_outputs_of_a_weight(dtype: torch.dtype) -> None:
    """Two parts of one weight, each for a product of its own; the rows in between get no gradient."""

    def both(module: ModuleType, x: Tensor, W: Weight) -> tuple[Tensor, Tensor]:
        return module.linear(x, W.rows(slice(8))), module.linear(x, W.rows(slice(16, None)))

    check(both, [numbers(2, 10, 32, dtype=dtype), weight(2, 24, 32)], (0, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_keeps_weight_gradients_in_fp32(dtype: torch.dtype) -> None:
    """513 is no bf16 number; those next to it are 512 and 516.  2049 is no fp16 number."""
    x, W = torch.ones(1, 2049, 1, dtype=dtype, device=DEVICE), torch.ones(1, 1, 1, device=DEVICE)
    for rows in (513, 2049):
        sink = torch.full_like(W, 2**16)
        y = kernels.linear(x[:, :rows].detach().requires_grad_(), Weight(W, W.to(dtype), Sink(sink)))
        y.sum().backward()
        assert sink.item() == 2**16 + rows


@pytest.mark.parametrize("learns", [True, False])
def test_linear_keeps_nothing_for_frozen_weights(learns: bool) -> None:
    kept: list[Tensor] = []
    x, W = numbers(2, 10, 32).requires_grad_(), numbers(2, 24, 32)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kernels.linear(x, Weight(W, W, Sink(torch.zeros_like(W)) if learns else None))
    assert [tuple(t.shape) for t in kept] == [tuple(x.shape)] * learns + [tuple(W.shape)]


# ---- sums ------------------------------------------------------------------------------------------------------------


def sinks_of_one_array(seeds: int, width: int, count: int) -> tuple[Tensor, list[Sink]]:
    """Numbers, and views of some of them, seeds far apart."""
    whole = numbers(seeds, count * (width + 5) + 7)
    return whole, [Sink(whole[:, i * (width + 5) + 3 :][:, :width]) for i in range(count)]


@pytest.mark.parametrize("which", [(0,), (0, 1), (0, 1, 2), (1,), (2,), (0, 2)])
@pytest.mark.parametrize(("rows", "width", "dtype"), [(1, 32, FP32), (64, 7, FP16), (130, 40, BF16)])
def test_collect(rows: int, width: int, dtype: torch.dtype, which: tuple[int, ...]) -> None:
    kinds = max(which) + 1
    part, (whole, sinks) = numbers(2, rows, kinds, width, dtype=dtype), sinks_of_one_array(2, width, kinds)
    before = whole.clone()
    wanted = {i: sinks[i].total.double() + part[:, :, i].double().sum(1) for i in which}
    collect.collect(part, [sink if i in which else None for i, sink in enumerate(sinks)])
    for i, want in wanted.items():
        assert_near(sinks[i].total, want, TOLERANCE[FP32])
        sinks[i].total.copy_(before[:, i * (width + 5) + 3 :][:, :width])
    assert torch.equal(whole, before)


def test_collect_takes_what_lies_anyhow() -> None:
    part, (_, [sink]) = numbers(2, 20, 5).transpose(1, 2), sinks_of_one_array(2, 20, 1)
    want = sink.total.double() + part.double().sum(1)
    collect.collect(part[:, :, None], [sink])
    assert_near(sink.total, want, TOLERANCE[FP32])
    collect.collect(torch.ones(1, 1, 1, device=DEVICE).expand(2, 8, 20)[:, :, None], [sink])
    assert_near(sink.total, want + 8, TOLERANCE[FP32])


def test_collect_refuses_sinks_that_lie_differently() -> None:
    (_, [sink]), other = sinks_of_one_array(2, 8, 1), Sink(torch.zeros(2, 8, device=DEVICE))
    with pytest.raises(AssertionError, match=r"equally far apart, not \[8, 20\]"):
        collect.collect(numbers(2, 4, 2, 8), [sink, other])


@pytest.mark.parametrize("dtype", DTYPES)
def test_collect_product(dtype: torch.dtype) -> None:
    a, b = numbers(2, 40, 8, dtype=dtype).transpose(1, 2), numbers(2, 40, 6, dtype=dtype)
    whole = numbers(2, 8 * 6 + 20)
    sink, before = whole[:, 10:58].unflatten(1, (8, 6)), whole.clone()
    want = sink.double() + a.double() @ b.double()
    collect.collect_product(Sink(sink), a, b)
    assert_near(sink, want, TOLERANCE[FP32])
    assert torch.equal(whole[:, :10], before[:, :10])
    assert torch.equal(whole[:, 58:], before[:, 58:])


# ---- the stream ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [(), (2,), (0,), (1,)])
@pytest.mark.parametrize(("dtype", "other"), [(FP32, FP32), (FP32, BF16), (FP16, FP16), (BF16, FP32)])
def test_add(dtype: torch.dtype, other: torch.dtype, frozen: tuple[int, ...]) -> None:
    x, y = numbers(2, 10, 24, dtype=dtype), numbers(2, 10, 24, dtype=other)
    check("add", [x, y, weight(2, 24)], frozen=frozen)


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_without_some_parts(dtype: torch.dtype) -> None:
    x, y, bias = numbers(2, 10, 24, dtype=dtype), numbers(2, 10, 24, dtype=dtype), weight(2, 24)
    check("add", [x, None, bias])
    check("add", [x, y, None])
    assert kernels.add(x, None, None) is x


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_of_some_rows_and_some_columns(dtype: torch.dtype) -> None:
    """As a state is read at one row, and as keys and values take their part of a bias."""

    def some(module: ModuleType, x: Tensor, y: Tensor, bias: Weight) -> Tensor:
        return module.add(x[:, 2::5, :16], y[:, 2::5, 8:], bias.rows(slice(8, None)))

    check(some, [numbers(2, 20, 24), numbers(2, 20, 24, dtype=dtype), weight(2, 24)])


@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize("used", [(0, 1, 2), (0,), (1,), (2,), (0, 1), (1, 2)])
def test_last_rows(used: tuple[int, ...], low: torch.dtype) -> None:
    check("last_rows", [numbers(2, 15, 32), numbers(2, 15, 32, dtype=low), slice(4, None, 5)], used)


def test_last_rows_adds_to_the_gradient_it_is_given() -> None:
    """No second array of all rows is made: the gradient of the third output is at hand and no one else's."""
    x, n = (numbers(2, 15, 8).requires_grad_() for _ in range(2))
    given = [numbers(2, 3, 8), numbers(2, 3, 8), numbers(2, 15, 8)]
    want = given[2].clone()
    want[:, 4::5] += given[1]
    _, got = torch.autograd.grad(kernels.last_rows(x, n, slice(4, None, 5)), [x, n], given)
    assert got.data_ptr() == given[2].data_ptr()
    assert torch.equal(got, want)


def handed_in(module: ModuleType, h: Tensor, out: Tensor, mine: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """As it may be used: a row is handed in once, and not read again from what it was taken from."""
    others = ~mine.repeat_interleave(tokens, 1)[..., None]
    free = torch.cat([others, torch.ones_like(out[:, h.shape[1] :, :1], dtype=torch.bool)], 1)
    h, out = module.hand_in(h * 1, out * free, mine, tokens)
    return h * others, out


@pytest.mark.parametrize("used", [(0, 1), (1,)])
@pytest.mark.parametrize("examples", [3, 4])
def test_hand_in(examples: int, used: tuple[int, ...]) -> None:
    """Of four examples; those that are finished are left out of h."""
    mine = torch.tensor([[False, True, True, False], [True, False, False, True]], device=DEVICE)[:, :examples]
    check(handed_in, [numbers(2, examples * 5, 32), numbers(2, 4 * 5, 32), mine, 5], used)


def test_hand_in_writes_to_what_it_is_given() -> None:
    h, out = numbers(1, 6, 8), numbers(1, 6, 8)
    want = torch.cat([out[:, :3], h[:, 3:]], 1)
    same, got = kernels.hand_in(h, out, torch.tensor([[False, True]], device=DEVICE), 3)
    assert got is out
    assert torch.equal(out, want)
    assert torch.equal(same, h)


def norm_arguments(width: int, rows: int, y: torch.dtype | None, bias: bool, low: torch.dtype) -> list[Any]:
    return [
        numbers(2, rows, width),
        None if y is None else numbers(2, rows, width, dtype=y),
        weight(2, width) if bias else None,
        weight(2, width),
        weight(2, width),
        low,
    ]


@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize(
    ("y", "bias", "low"),
    [
        (True, True, FP32), (True, True, FP16), (True, True, BF16),
        (True, False, FP32), (True, False, BF16), (False, True, FP32), (False, True, FP16), (False, False, FP32),
    ],
)  # fmt: skip
def test_add_norm(y: bool, bias: bool, low: torch.dtype, used: tuple[int, ...]) -> None:
    check("add_norm", norm_arguments(32, 10, low if y else None, bias, low), used)


@pytest.mark.parametrize("used", [(0, 1), (1,)])
@pytest.mark.parametrize(("y", "bias", "low"), [(True, True, FP32), (True, True, FP16), (False, False, BF16)])
def test_two_norms_as_one(y: bool, bias: bool, low: torch.dtype, used: tuple[int, ...]) -> None:
    """The norm that ends a call and the one that begins the next."""

    def both(module: ModuleType, x: Tensor, y: Tensor, bias: Weight, gain: Weight, shift: Weight, *rest: Any) -> Any:
        low, *close = rest
        return module.add_norm(x, y, bias, gain, shift, low, tuple(close))

    check(both, [*norm_arguments(32, 10, low if y else None, bias, low), weight(2, 32), weight(2, 32)], used)


@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize(("width", "rows"), [(64, 20), (256, 3)] + [(256, 35 * 512)] * GPU)
def test_add_norm_in_several_blocks(width: int, rows: int, low: torch.dtype) -> None:
    check("add_norm", norm_arguments(width, rows, low, True, low), (0, 1))


@pytest.mark.parametrize(
    ("low", "frozen"),
    [(BF16, (2, 3, 4)), (FP32, (3, 4)), (FP16, (2,)), (BF16, (0,)), (FP32, (1, 2, 3, 4)), (FP32, (3,))],
)
@pytest.mark.parametrize("used", [(0, 1), (0,), (1,)])
def test_add_norm_with_frozen_inputs(used: tuple[int, ...], frozen: tuple[int, ...], low: torch.dtype) -> None:
    check("add_norm", norm_arguments(32, 10, low, True, low), used, frozen)


@pytest.mark.parametrize(("low", "other"), [(FP32, BF16), (BF16, FP32), (FP32, FP16)])
def test_add_norm_between_dtypes(low: torch.dtype, other: torch.dtype) -> None:
    """What is added has one dtype, the norm the other."""
    check("add_norm", norm_arguments(32, 10, other, True, low), (0, 1))


def test_add_norm_of_a_faint_stream() -> None:
    """Variances near LayerNorm's epsilon."""
    x, *rest = norm_arguments(32, 10, None, False, FP32)
    check("add_norm", [x / 256, *rest], (0, 1))


def test_add_norm_takes_expanded_gradients() -> None:
    x, gain, shift = numbers(1, 5, 32).requires_grad_(), weight(1, 32), weight(1, 32)
    stream, n = kernels.add_norm(x, None, None, gain, shift, FP32)
    (got,) = torch.autograd.grad(stream.sum() + n.sum(), [x])
    (want,) = torch.autograd.grad(x.sum() + ops.norm(x, gain.value, shift.value).sum(), [x])
    torch.testing.assert_close(got, want)


def test_add_norm_refuses_other_widths() -> None:
    with pytest.raises(AssertionError, match="power of two, not 48"):
        kernels.add_norm(*norm_arguments(48, 5, None, False, FP32))


def test_add_norm_refuses_weights_that_lie_differently() -> None:
    x, _, _, gain, shift, low = norm_arguments(32, 5, None, False, FP32)
    apart = Weight(torch.cat([shift.value, shift.value], 1)[:, :32])
    with pytest.raises(AssertionError, match=r"equally far apart, not \[32, 64\]"):
        kernels.add_norm(x, None, None, gain, apart, low)


# ---- GELU ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "form", "dtype"),
    pairwise([(64, 10), (384, 3), (4, 40)] + [(1024, 35 * 512)] * GPU, ["none", "tanh"], DTYPES),
)
def test_gelu(shape: tuple[int, int], form: str, dtype: torch.dtype) -> None:
    wide, rows = shape
    check("gelu", [numbers(2, rows, wide, dtype=dtype), weight(2, wide), form])


@pytest.mark.parametrize("form", ["none", "tanh"])
@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_gelu_with_frozen_inputs(frozen: tuple[int, ...], form: str) -> None:
    check("gelu", [numbers(2, 10, 64), weight(2, 64), form], frozen=frozen)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of the interpreter; 1 / (1 + inf) = 0 is meant
@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_far_out(form: str) -> None:
    x = torch.tensor([[[-1e4, -100.0, -10.0, -1e-8, 1e-8, 10.0, 100.0, 1e4]]], device=DEVICE, requires_grad=True)
    got = kernels.gelu(x, Weight(x.new_zeros(1, 8)), form)
    want = torch.nn.functional.gelu(x, approximate=form)
    slopes = [torch.autograd.grad(h.sum(), [x])[0] for h in (got, want)]
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-6, atol=1e-6)


def test_gelu_refuses_other_forms() -> None:
    with pytest.raises(AssertionError, match="none and tanh, not erf"):
        kernels.gelu(numbers(1, 2, 8), weight(1, 8), "erf")


@pytest.mark.parametrize("steps", [2, 8])
@pytest.mark.parametrize("frozen", [False, True])
def test_programs_that_go_through_several_blocks(steps: int, frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do at full size; the last of them has blocks that do not exist."""
    for module in (kernels, norms):
        monkeypatch.setattr(module, "steps_of", lambda *_: steps)
    check("add_norm", norm_arguments(32, 8 * 5 + 3, FP16, True, FP16), (0, 1), (2, 3, 4) if frozen else ())
    check("gelu", [numbers(2, 16 * 5 + 3, 64), weight(2, 64), "none"], frozen=(1,) if frozen else ())


@pytest.mark.parametrize("rows", [1, 8 * 1024, 8 * 4096, 8 * 4097, 10**6])
@pytest.mark.parametrize("seeds", [1, 3, 16])
def test_a_program_takes_more_blocks_only_where_there_are_enough(rows: int, seeds: int) -> None:
    steps = norms.steps_of(rows, seeds, 8)
    blocks = rows * seeds / 8
    assert steps in (1, 2, 4, 8)
    assert steps == 1 or blocks / steps >= 1024
    assert steps == 8 or blocks / steps <= 2048


# ---- attention -------------------------------------------------------------------------------------------------------

ATTENTION_DTYPES = DTYPES if GPU else [FP32, FP16]
# A GPU cuts fp32 factors to tf32.  In 16 bits, q, k, v, patterns and their gradients are rounded one after another.
ATTENTION_TOLERANCE = {FP32: 1e-2 if GPU else TOLERANCE[FP32], FP16: 4e-3, BF16: 3e-2}
# (tokens, heads, head dimension)
SMALL = [
    (5, 2, 16), (20, 2, 24), (1, 1, 32),  # a head each
    (20, 4, 4), (5, 8, 4), (3, 4, 8),  # 16 columns together: parity's heads of 4, and others
    (5, 6, 4), (5, 3, 8), (3, 1, 4),  # heads that do not make 16
    (5, 2, 6), (3, 3, 5),  # head dimensions that do not
]  # fmt: skip
REAL = [(35, 4, 64), (22, 64, 4), (42, 64, 4), (64, 8, 32)]


def check_attention(operation: Operation, arguments: Sequence[Any], frozen: Sequence[int] = ()) -> None:
    tolerance = ATTENTION_TOLERANCE[arguments[0].dtype]
    check(operation, arguments, frozen=frozen, tolerance=tolerance, sums=tolerance)


@pytest.mark.parametrize(("tokens", "heads", "each"), SMALL + REAL * GPU)
def test_attention(tokens: int, heads: int, each: int) -> None:
    wide = 3 * heads * each
    check_attention("attention", [numbers(2, 2 * tokens, wide), weight(2, wide), tokens, heads])


@pytest.mark.parametrize(
    ("shape", "biased", "dtype"), pairwise([(5, 1, 16), (3, 2, 4)] + REAL * GPU, [True, False], ATTENTION_DTYPES)
)
def test_attention_in_every_dtype(shape: tuple[int, int, int], biased: bool, dtype: torch.dtype) -> None:
    tokens, heads, each = shape
    wide = 3 * heads * each
    qkv = numbers(2, 2 * tokens, wide, dtype=dtype)
    check_attention("attention", [qkv, weight(2, wide) if biased else None, tokens, heads])


@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_attention_with_frozen_inputs(frozen: tuple[int, ...]) -> None:
    check_attention("attention", [numbers(2, 6, 48), weight(2, 48), 3, 4], frozen)


def test_attention_refuses_what_it_cannot_hold() -> None:
    for rows, tokens in ((10, 4), (140, 65)):
        with pytest.raises(AssertionError, match=f"{rows} rows are no whole number of runs of {tokens}"):
            kernels.attention(numbers(1, rows, 96), None, tokens, 2)
    with pytest.raises(AssertionError, match="attention of 65 tokens has no gradient"):
        kernels.attention(numbers(1, 65, 96).requires_grad_(), None, 65, 2)


def whole_range(*bounds: Any) -> range:
    """Python's, of numbers that the interpreter keeps as arrays: NumPy 2.4 takes only those of no axes for integers."""
    return range(*(each if isinstance(each, int) else each.handle.data.item() for each in bounds))


@pytest.fixture
def _any_range(monkeypatch: pytest.MonkeyPatch) -> None:
    if not GPU:
        monkeypatch.setattr(long_attention, "range", whole_range, raising=False)


# Blocks of 64 tokens: the last of them with one row, some, all; parity's heads of 4, others, such as do not make 16.
LONG = [(65, 8, 4), (100, 4, 4), (128, 2, 16), (193, 1, 8), (70, 1, 5)]


@pytest.mark.usefixtures("_any_range")
@pytest.mark.parametrize("dtype", ATTENTION_DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "each"), LONG + [(502, 64, 4), (1002, 64, 4)] * GPU)
def test_attention_of_many_tokens(tokens: int, heads: int, each: int, dtype: torch.dtype) -> None:
    wide = 3 * heads * each
    qkv = numbers(2, 2 * tokens, wide, dtype=dtype)
    for bias in (weight(2, wide), None) if tokens < 90 else (weight(2, wide),):
        expected = ops.attention(qkv.double(), bias and Weight(bias.value.double()), tokens, heads)
        found = kernels.attention(qkv, bias, tokens, heads)
        assert found.dtype == dtype
        assert_near(found.double(), expected, ATTENTION_TOLERANCE[dtype])


@pytest.mark.usefixtures("_any_range")
def test_attention_of_many_tokens_takes_any_scores() -> None:
    """Scores in the thousands, whose exponentials no float holds; factors of two, so that tf32 holds them all."""
    places = torch.arange(100, device=DEVICE)
    qkv = torch.zeros(1, 100, 12, device=DEVICE)
    qkv[0, :, 0], qkv[0, :, 4], qkv[0, :, 8] = 64.0, 128.0 * (places % 7 - 3), places.float()
    best = torch.stack(
        [torch.where((places <= row) & (places % 7 == min(int(row), 6)))[0].float().mean() for row in places]
    )
    torch.testing.assert_close(kernels.attention(qkv, None, 100, 1)[0, :, 0], best)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "each"), [(5, 2, 16), (20, 1, 4), (1, 1, 6)] + REAL * GPU)
def test_answer_attention(tokens: int, heads: int, each: int, dtype: torch.dtype) -> None:
    """Everything is summed in fp32; what comes out is rounded once."""
    width = heads * each
    q, kv = numbers(2, 2, width, dtype=dtype), numbers(2, 2 * tokens, 2 * width, dtype=dtype)
    check("answer_attention", [q, kv, tokens, heads])


@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_answer_attention_with_frozen_inputs(frozen: tuple[int, ...]) -> None:
    check("answer_attention", [numbers(2, 2, 16), numbers(2, 6, 32), 3, 1], frozen=frozen)


def test_answer_attention_takes_a_question_that_lies_anyhow() -> None:
    check("answer_attention", [numbers(2, 32, 2).transpose(1, 2), numbers(2, 6, 64), 3, 2])


def answers(
    module: ModuleType, x: Tensor, n: Tensor, W: Weight, bias: Weight | None, tokens: int, heads: int
) -> tuple[Tensor, Tensor]:
    """The stream and attention's output at the last row alone, as the last layer of the last call has them."""
    width = n.shape[-1]
    x, last, everywhere = module.last_rows(x, n, slice(tokens - 1, None, tokens))
    q = module.add(module.linear(last, W.rows(slice(width))), None, bias and bias.rows(slice(width)))
    kv = module.linear(everywhere, W.rows(slice(width, None)))
    return x, module.answer_attention(q, module.add(kv, None, bias and bias.rows(slice(width, None))), tokens, heads)


@pytest.mark.parametrize(("biased", "frozen"), [(True, ()), (False, ()), (True, (2, 3)), (True, (3,))])
@pytest.mark.parametrize("low", DTYPES)
@pytest.mark.parametrize(("tokens", "heads", "each"), [(5, 2, 16)] + REAL[:1] * GPU)
def test_the_answers_row_alone(
    tokens: int, heads: int, each: int, low: torch.dtype, biased: bool, frozen: tuple[int, ...]
) -> None:
    """Products, their parts of the weight, and the gradient that two of them share, one after another."""
    width = heads * each
    x, n = numbers(2, 2 * tokens, width), numbers(2, 2 * tokens, width, dtype=low)
    W, bias = Weight(numbers(2, 3 * width, width) / width**0.5), weight(2, 3 * width) if biased else None
    tolerance = {FP32: 1e-5, FP16: 4e-3, BF16: 3e-2}[low]
    check(answers, [x, n, W, bias, tokens, heads], (0, 1), frozen, tolerance, tolerance)


# ---- shared beginnings -----------------------------------------------------------------------------------------------

# (nodes, batch, heads, head dimension): with variants missing, repeated, or both
SHARED = [(3, 2, 1, 16), (4, 3, 2, 16), (3, 17, 1, 20)]
REAL_SHARED = [(10, 32, 4, 64), (6, 64, 2, 32), (19, 5, 1, 64)]


def some_graphs(nodes: int, batch: int) -> Tensor:
    graphs = torch.stack([torch.randperm(nodes) for _ in range(2 * batch)]).view(2, batch, nodes)
    graphs[0, -1] = graphs[0, 0]
    return graphs.to(DEVICE)


def beginnings(nodes: int, batch: int) -> ops.Beginnings:
    return SharedBeginnings(GraphWalk(nodes), some_graphs(nodes, batch)).begun


@pytest.mark.parametrize("dtype", ATTENTION_DTYPES)
@pytest.mark.parametrize(("nodes", "batch", "heads", "each"), SHARED + REAL_SHARED * GPU)
def test_shared_attention(nodes: int, batch: int, heads: int, each: int, dtype: torch.dtype) -> None:
    begun = beginnings(nodes, batch)
    check_attention("shared_attention", [numbers(2, begun.rows, 3 * heads * each, dtype=dtype), begun, heads])


@pytest.mark.parametrize("dtype", ATTENTION_DTYPES)
@pytest.mark.parametrize(("nodes", "batch", "heads", "each"), SHARED + REAL_SHARED * GPU)
def test_shared_answer_attention(nodes: int, batch: int, heads: int, each: int, dtype: torch.dtype) -> None:
    """Parts of the shared rows' gradients are rounded before they are summed."""
    begun, width = beginnings(nodes, batch), heads * each
    q, kv = numbers(2, batch, width, dtype=dtype), numbers(2, begun.rows, 2 * width, dtype=dtype)
    check("shared_answer_attention", [q, kv, begun, heads], tolerance=ATTENTION_TOLERANCE[dtype])


@pytest.mark.parametrize("frozen", [(0,), (1,)])
def test_shared_answer_attention_with_frozen_inputs(frozen: tuple[int, ...]) -> None:
    begun = beginnings(3, 2)
    arguments = [numbers(2, 2, 16), numbers(2, begun.rows, 32), begun, 1]
    check("shared_answer_attention", arguments, frozen=frozen, tolerance=ATTENTION_TOLERANCE[FP32])


def test_a_variant_without_examples_asks_for_nothing_in_the_answer() -> None:
    begun = beginnings(3, 1)
    kv = numbers(2, begun.rows, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(kernels.shared_answer_attention(numbers(2, 1, 16), kv, begun, 1).sum(), [kv])
    used = torch.zeros(2, begun.rows, dtype=torch.bool, device=DEVICE)
    used[:, : begun.own] = True
    used.scatter_(1, begun.places()[:, 0], True)
    assert torch.equal(gradient.abs().sum(-1) > 0, used)


def test_shared_attention_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(AssertionError, match="at most 64 tokens, not 65"):
        kernels.shared_attention(numbers(2, 5, 48), beginnings(20, 1), 1)
    with pytest.raises(AssertionError, match="5 rows, where 2 examples with shared beginnings have 40"):
        kernels.shared_attention(numbers(2, 5, 48), beginnings(3, 2), 1)


# ---- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operation",
    [
        "embed",
        "linear",
        "add",
        "last_rows",
        "hand_in",
        "add_norm",
        "gelu",
        "attention",
        "attention of small heads",
        "answers",
        "shared attention",
        "shared answers",
    ],
)
def test_the_same_bits_every_time(operation: str) -> None:
    begun = beginnings(3, 4)
    cases: dict[str, tuple[Operation, list[Any], list[int]]] = {
        "embed": ("embed", [numbers(2, 7, 32), torch.randint(0, 7, (2, 96), device=DEVICE)], [0]),
        "linear": ("linear", [numbers(2, 130, 32, dtype=FP16), weight(2, 24, 32)], [0]),
        "add": ("add", [numbers(2, 130, 32), numbers(2, 130, 32, dtype=FP16), weight(2, 32)], [0]),
        "last_rows": ("last_rows", [numbers(2, 15, 32), numbers(2, 15, 32), slice(4, 10, 5)], [0, 1, 2]),
        "hand_in": (handed_in, [numbers(2, 15, 32), numbers(2, 20, 32), torch.eye(2, 3, device=DEVICE) > 0, 5], [0, 1]),
        "add_norm": ("add_norm", norm_arguments(32, 20, FP32, True, BF16), [0, 1]),
        "gelu": ("gelu", [numbers(2, 40, 64), weight(2, 64), "tanh"], [0]),
        "attention": ("attention", [numbers(2, 10, 96), weight(2, 96), 5, 2], [0]),
        "attention of small heads": ("attention", [numbers(2, 10, 96), weight(2, 96), 5, 8], [0]),
        "answers": (answers, [numbers(2, 10, 32), numbers(2, 10, 32), weight(2, 96, 32), weight(2, 96), 5, 2], [0, 1]),
        "shared attention": ("shared_attention", [numbers(2, begun.rows, 96), begun, 2], [0]),
        "shared answers": ("shared_answer_attention", [numbers(2, 4, 32), numbers(2, begun.rows, 64), begun, 2], [0]),
    }
    first, second = (kernel_outcome(*cases[operation]) for _ in range(2))
    torch.testing.assert_close(tuple(second), tuple(first), rtol=0, atol=0)


# ---- whole models ----------------------------------------------------------------------------------------------------

MEMBERS, BATCH, CALLS = 2, 2, 2
CONFIGS = {
    "graph walk": replace(graph_walk_config(2, 2), width=64, heads=2, mlp=64),
    "parity": replace(parity_config(), width=32, heads=8, mlp=64),
    "relations": replace(relations_config(), width=32, heads=4, mlp=64),
    "norm in the loop and before the readout": ModelConfig(9, 4, 2, 1, 32, 2, 32, norm_in_loop=True),
}
LENGTHS = {"graph walk": 11}  # else 5
every_config = pytest.mark.parametrize("name", CONFIGS)
# Errors pass through all calls and back; each gradient is measured by the largest of its own weight.
COHORT_TOLERANCE = {FP32: 1.5e-2 if GPU else 2e-5, FP16: 1.5e-2, BF16: 1.2e-1}


class KernelCohort(Cohort):
    """What `Cohort` is on a GPU for products in dtype `low`, on any device; of plain weights, frozen."""

    def __init__(self, config: ModelConfig, stack: Stack | dict[str, Tensor], low: torch.dtype) -> None:
        if isinstance(stack, Stack):
            super().__init__(config, stack.weights, "fp32", stack.sinks)
        else:
            super().__init__(config, stack, "fp32")
        self.ops, self.low = kernels, low
        self.weights = {name: w._replace(low=self._lowered(name, w.value)) for name, w in self.weights.items()}


def states(config: ModelConfig) -> list[dict[str, Tensor]]:
    """Weights of some members; none of them is left at a start of zeros or ones."""
    models = [LoopedTransformer(config) for _ in range(MEMBERS)]
    for model in models:
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return [dict(model.state_dict()) for model in models]


def with_sinks(config: ModelConfig, members: list[dict[str, Tensor]], side: SideStream | None = None) -> Stack:
    """A stack as it is on a GPU."""
    shared = ("layers.", "norm.") if config.norm_in_loop else ("layers.",)
    return Stack(members, DEVICE, lambda name: name.startswith(shared), side)


def some_tokens(name: str) -> Tensor:
    return torch.randint(0, CONFIGS[name].vocabulary, (MEMBERS, BATCH, LENGTHS.get(name, 5)), device=DEVICE)


def answers_of(cohort: Cohort, tokens: Tensor, layout: Layout | None, first: int) -> Tensor:
    """Logits after every call, each at another row, the last at the row that is computed alone."""
    state, rows, found = cohort.embed(tokens, layout), layout or tokens.shape[-1], []
    for call in range(1, CALLS + 1):
        last = call == CALLS
        state = cohort.call(state, rows, last_row=last)
        found.append(cohort.read_row(state, 1, 0) if last else cohort.read_row(state, rows, first + call))
    return torch.stack(found)


def logits_and_gradients(
    cohort: Cohort, stack: Stack, tokens: Tensor, layout: Layout | None = None, first: int = 0
) -> tuple[Tensor, Tensor]:
    logits = answers_of(cohort, tokens, layout, first)
    torch.manual_seed(1)
    return logits.detach(), stack.gradients((logits * numbers(*logits.shape)).sum()).clone()


@pytest.mark.usefixtures("_any_range")
@pytest.mark.parametrize("low", [pytest.param(FP32, marks=pytest.mark.slow), FP16])
def test_long_strings_are_counted_alike(low: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parity beyond 64 tokens, both conditions, as a GPU counts it: the same strings are right as in plain fp32."""
    asked = deepcopy(backbone()).to(DEVICE), deepcopy(STEP).to(DEVICE), [63, 65], 1, 5, range(1, 4)
    expected = parity_counts._right_by_loop(*asked, "fp32")
    monkeypatch.setattr(parity_counts, "Cohort", lambda config, weights, _: KernelCohort(config, weights, low))
    assert torch.equal(parity_counts._right_by_loop(*asked, "fp16"), expected)
    assert 0 < expected.float().mean() < 1


class WatchedStream(SideStream):
    """A side without a stream, which sees to it that what it was given stays as it was until it is joined."""

    def __init__(self) -> None:
        self.given: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def take(self, *tensors: Tensor) -> Iterator[None]:
        self.given += [(tensor, tensor.clone()) for tensor in tensors]
        yield

    def join(self) -> None:
        assert self.given
        assert all(torch.equal(now, then) for now, then in self.given), "overwritten while a side may still read it"
        self.given.clear()


CASES = [(name, FP16 if name == "parity" else FP32) for name in CONFIGS]  # parity is trained in fp16
CASES_ON_A_GPU = [(name, low) for name in CONFIGS for low in DTYPES if (name, low) not in CASES]


@pytest.mark.parametrize("beside", [False] + [True] * GPU)
@pytest.mark.parametrize(("name", "low"), CASES + CASES_ON_A_GPU * GPU)
def test_a_cohort_of_kernels(name: str, low: torch.dtype, beside: bool) -> None:
    """Logits and all gradients, those of shared weights collected over layers, rows and calls."""
    config, members, tokens = CONFIGS[name], states(CONFIGS[name]), some_tokens(name)
    side = SideStream(torch.device(DEVICE)) if beside else WatchedStream()
    plain, collecting = Stack(members, DEVICE), with_sinks(config, members, side)
    want, true = logits_and_gradients(Cohort(config, plain.weights), plain, tokens)
    got, ours = logits_and_gradients(KernelCohort(config, collecting, low), collecting, tokens)
    assert_near(got, want, COHORT_TOLERANCE[low])
    for member in range(MEMBERS):
        own, wanted = collecting.member(member, ours), plain.member(member, true)
        for weight_name, gradient in wanted.items():
            assert gradient.any(), f"{weight_name} does not count"
            assert_near(own[weight_name], gradient, COHORT_TOLERANCE[low])


@pytest.mark.slow
@pytest.mark.parametrize("low", ATTENTION_DTYPES if GPU else [FP32])
def test_a_cohort_of_kernels_with_shared_beginnings(low: torch.dtype) -> None:
    """Against plain operations on plain runs of tokens."""
    config, task = replace(graph_walk_config(3, 2), width=32, heads=2, mlp=32), GraphWalk(3)
    members, graphs = states(config), some_graphs(3, 4)
    flat = graphs.flatten(0, 1)
    tokens = task.tokens(flat, torch.randint(0, 3, (8,), device=DEVICE), 2).unflatten(0, (2, 4))
    plain, collecting = Stack(members, DEVICE), with_sinks(config, members, WatchedStream())
    want, true = logits_and_gradients(Cohort(config, plain.weights), plain, tokens, first=ops.BEGUN)
    cohort, layout = KernelCohort(config, collecting, low), SharedBeginnings(task, graphs)
    got, ours = logits_and_gradients(cohort, collecting, tokens, layout, ops.BEGUN)
    assert_near(got, want, COHORT_TOLERANCE[low])
    for member in range(MEMBERS):
        own, wanted = collecting.member(member, ours), plain.member(member, true)
        for weight_name, gradient in wanted.items():
            assert gradient.any(), f"{weight_name} does not count"
            assert_near(own[weight_name], gradient, COHORT_TOLERANCE[low])


def test_a_cohort_of_kernels_has_the_same_bits_every_time() -> None:
    """What an update left in the sinks does not enter the next."""
    name = "norm in the loop and before the readout"
    config, tokens = CONFIGS[name], some_tokens(name)
    stack = with_sinks(config, states(config))
    first, second = (logits_and_gradients(KernelCohort(config, stack, FP16), stack, tokens) for _ in range(2))
    torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_a_cohort_of_kernels_hands_in_strings_of_many_lengths() -> None:
    """Parity, each string read after as many calls as it has bits; from the third call on two strings are run."""
    config, most = CONFIGS["parity"], 3
    members, tokens = states(config), torch.randint(0, 2, (MEMBERS, 3, most + 2), device=DEVICE)
    lengths = torch.tensor([[3, 2, 1], [3, 3, 1]], device=DEVICE)
    outcomes = []
    for stack in (Stack(members, DEVICE), with_sinks(config, members, WatchedStream())):
        cohort = KernelCohort(config, stack, FP32) if stack.sinks else Cohort(config, stack.weights)
        logits = cohort.read(ParityBackbones._at_own_call(cohort, tokens, lengths, [(1, 3), (3, 2)], most))
        torch.manual_seed(1)
        outcomes.append((logits.detach(), stack.gradients((logits * numbers(*logits.shape)).sum())))
    for want, got in zip(*outcomes, strict=True):
        assert_near(got, want, COHORT_TOLERANCE[FP32])


@every_config
def test_a_plain_cohort_of_weights_with_sinks(name: str) -> None:
    """In fp32 a GPU too runs the plain operations, whose gradients are all autograd's, sinks or not."""
    config, members, tokens = CONFIGS[name], states(CONFIGS[name]), some_tokens(name)
    found = [
        logits_and_gradients(Cohort(config, stack.weights, "fp32", stack.sinks), stack, tokens)[1]
        for stack in (Stack(members, DEVICE), with_sinks(config, members))
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("low", ATTENTION_DTYPES if GPU else [FP32])
@pytest.mark.parametrize("name", ["graph walk", "parity"])
def test_a_cohort_of_frozen_kernels(name: str, low: torch.dtype) -> None:
    """As a map is trained: a steered state goes in, and its gradient is all that is wanted."""
    config, length = CONFIGS[name], LENGTHS.get(name, 5)
    stack = Stack(states(config), DEVICE)
    stack.weights = {name: w.detach() for name, w in stack.weights.items()}
    h = numbers(MEMBERS, BATCH * length, config.width).requires_grad_()
    outcomes = []
    for cohort in (Cohort(config, stack.weights), KernelCohort(config, stack, low)):
        state = cohort.call(State(h), length)
        middle = cohort.read_row(state, length, 1)
        logits = cohort.read(cohort.settle(cohort.call(State(cohort.settle(state)), length, last_row=True)))
        torch.manual_seed(1)
        loss = (logits * numbers(*logits.shape)).sum() + (middle * numbers(*middle.shape)).sum()
        outcomes.append((logits.detach(), *torch.autograd.grad(loss, [h])))
    for want, got in zip(*outcomes, strict=True):
        assert_near(got, want, COHORT_TOLERANCE[low])


# ---- the optimiser ---------------------------------------------------------------------------------------------------

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


def test_mix_is_the_hash_of_the_streams() -> None:
    """Also at the ends of int64, where products wrap around."""
    ends = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 2**62])
    keys = torch.cat([torch.randint(-(2**63), 2**63 - 1, (1500,)), ends])
    x = (keys + (torch.arange(len(keys)) + 1) * streams._signed(streams.GOLDEN)).view(2, -1)
    got = kernels.mix(x.to(DEVICE), (*streams.MIX, (streams.LAST, 1))).cpu()
    assert torch.equal(got.flatten(), streams.bits(keys, torch.arange(len(keys))))
