"""Runs, sweeps and decoding at the size of a released model, ours beside the plain way, with the memory they take.

Weights are random: neither time nor memory depends on them.  Times are of the clock, as a GPU is waited for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from loopscope.address import Address, grid
from loopscope.bounds import shown
from loopscope.cli.bench.sweeping import SHORT, llama
from loopscope.cli.bench.timing import in_turn, wait_for
from loopscope.errors import InputError, nearest
from loopscope.execute.executor import run
from loopscope.execute.memory import Memory
from loopscope.execute.plain import PlainRun, plain_run
from loopscope.execute.sweeping import Sweep, sweep
from loopscope.log import Log, silent
from loopscope.models.decoding import generate
from loopscope.models.passes import LanguageModel
from loopscope.models.stacks import stack_from_config
from loopscope.program import F, Program, Run
from loopscope.store.files import read, reporting

ROUNDS, CHECKED = 3, 4
MOST = 2**20
"""Bytes of a file of measurements."""


@dataclass(frozen=True)
class Shape:
    """A looped Llama and the texts it is asked on; `long` are the lengths at which memory is looked at."""

    config: dict[str, Any]
    loops: int
    examples: int
    tokens: int
    long: tuple[int, ...]
    new: int


SHAPES = {
    "2.6b": Shape(
        llama(vocabulary=49152, width=2048, middle=5632, layers=48, heads=16, shared=16),
        loops=4, examples=4, tokens=192, long=(512, 2048, 8192), new=64,
    ),
    "135m": Shape(SHORT, loops=4, examples=4, tokens=64, long=(512, 2048), new=32),
    "tiny": Shape(
        llama(vocabulary=512, width=64, middle=160, layers=4, heads=4, shared=4),
        loops=2, examples=2, tokens=24, long=(48, 96), new=4,
    ),
}  # fmt: skip
"""Ouro-2.6B's, SmolLM2-135M's, and one for a try."""


PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class LargeTiming:
    """One piece of work both ways, in seconds (the median of several rounds in which both take turns).

    `plain_s` of a sweep is a bare whole run for each cell: less than hooks take, which do something besides.  `apart`
    is the largest difference of logits to the definition, in a few cells, and `spread` the standard deviation of the
    logits.  `peak` and `foreseen` are bytes beside the model: what the device held at most, None where it does not
    say, and what was said beforehand.
    """

    case: str
    about: str
    cells: int
    plain_s: float | None
    ours_s: float
    ratio: float | None
    work: float | None
    apart: float | None
    spread: float | None
    peak: int | None
    foreseen: int | None


@dataclass(frozen=True)
class Decoding:
    """Tokens per second of continuing a batch of prompts by the most likely token."""

    way: str
    batch: int
    loops: int
    tokens_s: float


class Kept:
    """Measurements so far: in memory, and in a file where one is named, so that an interrupted benchmark goes on.

    `about` says what they are of.  InputError for a file that is none, or that has those of something else.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, dict(about)
        self.cases: list[LargeTiming] = []
        self.decoding: list[Decoding] = []
        if path is None or not path.exists():
            if path is not None and not path.absolute().parent.is_dir():
                raise InputError(f"{path} cannot be written: there is no folder {path.parent}")
            return
        try:
            found = json.loads(read(path, limit=MOST))
            self.cases = [LargeTiming(**each) for each in found.pop("cases")]
            self.decoding = [Decoding(**each) for each in found.pop("decoding")]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InputError(f"{path} is no file of measurements") from None
        other = [each for each in ("device", "torch", "shape", "precision") if found.get(each) != about[each]]
        if other:
            said = ", ".join(f"{each} {shown(found.get(each))}, not {shown(about[each])}" for each in other)
            raise InputError(f"{path} has measurements of {said}; name another file")
        self.about = found

    def add(self, measured: LargeTiming | Decoding) -> None:
        """One more."""
        if isinstance(measured, LargeTiming):
            self.cases.append(measured)
        else:
            self.decoding.append(measured)
        if self.path is not None:
            with reporting("write", self.path):
                self.path.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        return {
            **self.about, "cases": [asdict(each) for each in self.cases],
            "decoding": [asdict(each) for each in self.decoding],
        }  # fmt: skip


def shape_named(name: str) -> Shape:
    """One of `SHAPES`; InputError for another name."""
    if name not in SHAPES:
        raise InputError(f"no shape is called {name!r}{nearest(name, SHAPES)}")
    return SHAPES[name]


def precision_named(name: str) -> torch.dtype:
    """The dtype of "bf16" or "fp32"; InputError for another name."""
    if name not in PRECISIONS:
        raise InputError(f"weights are in {' or '.join(PRECISIONS)}, not {name!r}{nearest(name, PRECISIONS)}")
    return PRECISIONS[name]


@torch.no_grad()
def bench_large(
    shape: Shape, device: torch.device, dtype: torch.dtype, log: Log = silent, known: Collection[str] = ()
) -> Iterator[LargeTiming]:
    """Whole runs, four sweeps, and last-row sweeps of ever longer texts, but for cases whose names are `known`.

    `log` gets the name of each beforehand.
    """
    model, loops = model_on(shape, device, dtype), shape.loops
    tokens, others = (_tokens(shape, seed, shape.examples, shape.tokens, device) for seed in (1, 2))
    layers = range(1, len(model.layers) + 1)
    for name, whole in (("one run", _whole), ("readouts", _readouts)):
        if name not in known:
            log(name)
            yield whole(model, tokens, loops, device)
    places = partial(_places, model)
    every, last = range(1, loops + 1), (shape.tokens - 1,)
    rows = tuple(range(shape.tokens))
    sweeps = {
        "z, last row": ("every head's output in the last row, last loop", places("z", [loops], last)),
        "pattern, last row": ("every head's pattern in the last row", places("pattern", every, last)),
        "resid, last row": (
            "what enters every layer in the last row",
            grid("resid", loops=every, layers=layers, rows=last),
        ),
        "z, all rows": (
            "64 heads' outputs in all rows, last loop",
            places("z", [loops], rows)[:: max(1, len(layers) * model.heads // 64)][:64],
        ),
    }
    for name, (about, cells) in sweeps.items():
        if name in known:
            continue
        log(f"{name}: {len(cells)} cells")
        yield _swept(model, tokens, others, cells, name, about, device)
    for length in shape.long:
        name = f"z, last row of {length:,}"
        if name in known:
            continue
        log(name)
        mine, theirs = (_tokens(shape, seed, 1, length, device) for seed in (1, 2))
        cells = places("z", [loops], (length - 1,))
        yield _swept(model, mine, theirs, cells, name, "one text", device, plainly=False)


@torch.no_grad()
def bench_decoding(
    shape: Shape, device: torch.device, dtype: torch.dtype, log: Log = silent, known: Collection[int] = ()
) -> Iterator[Decoding]:
    """Ours with one loop and with all, beside transformers' own generation with one, of one prompt and of eight.

    Not of as many as are `known`.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    model = model_on(shape, device, dtype)
    with device:
        whole: Any = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in shape.config.items() if k != "model_type"}))
    whole = whole.to(dtype).eval()
    for batch in (each for each in (1, 8) if each not in known):
        log(f"decoding {batch} prompts")
        tokens = _tokens(shape, 3, batch, shape.tokens, device)
        ways: dict[tuple[str, int], Callable[[], Any]] = {
            ("transformers", 1): partial(
                whole.generate, tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                min_new_tokens=shape.new, max_new_tokens=shape.new, pad_token_id=0,
            )
        }  # fmt: skip
        for loops in (1, shape.loops):
            ways["ours", loops] = partial(generate, model, tokens, F**loops, new=shape.new, stop=())
        for (way, loops), seconds in in_turn(ways, ROUNDS, device=device).items():
            yield Decoding(way, batch, loops, batch * shape.new / seconds)


def model_on(shape: Shape, device: torch.device, dtype: torch.dtype) -> LanguageModel:
    """A looped Llama of a shape with random weights (seed 0), drawn where it will be."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return stack_from_config(shape.config, shape.loops).to(device).eval()
    finally:
        torch.set_default_dtype(before)


def _tokens(shape: Shape, seed: int, examples: int, length: int, device: torch.device) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randint(0, shape.config["vocab_size"], (examples, length), generator=drawn).to(device)


def _places(model: LanguageModel, component: str, loops: Iterable[int], rows: tuple[int, ...]) -> tuple[Address, ...]:
    layers = range(1, len(model.layers) + 1)
    return grid(component, loops=loops, layers=layers, heads=range(model.heads), rows=rows)


def _loops_by_hand(model: LanguageModel, tokens: Tensor, loops: int) -> list[Tensor]:
    """The plain way of a run that is not patched: transformers' layers again and again; the states after every loop."""
    body = cast("Any", model).body
    x = model.embed(tokens)
    angles = body.rotary_emb(x, torch.arange(tokens.shape[1], device=tokens.device)[None])
    states = []
    for _ in range(loops):
        for decoder in body.layers:
            x = decoder(x, attention_mask=None, position_embeddings=angles)
        states.append(x)
    return states


def _whole(model: LanguageModel, tokens: Tensor, loops: int, device: torch.device) -> LargeTiming:
    return _compared(
        "one run", f"{len(tokens)} x {tokens.shape[1]} tokens, {loops} loops: the next token",
        lambda: model.read(_loops_by_hand(model, tokens, loops)[-1][:, -1]),
        lambda: run(model, tokens, F**loops)[F**loops].logits[:, 0], device,
    )  # fmt: skip


def _readouts(model: LanguageModel, tokens: Tensor, loops: int, device: torch.device) -> LargeTiming:
    def ours() -> Tensor:
        found = run(model, tokens, F**loops, read="calls")[F**loops].logits_at
        return torch.stack([each[:, 0] for each in found.values()])

    def plain() -> Tensor:
        return torch.stack([model.read(state[:, -1]) for state in _loops_by_hand(model, tokens, loops)])

    return _compared("readouts", "the same: the next token after every loop", plain, ours, device)


def _compared(
    name: str, about: str, plain: Callable[[], Tensor], ours: Callable[[], Tensor], device: torch.device
) -> LargeTiming:
    wanted = plain().float()
    apart = float((ours().float() - wanted).abs().max())
    peak = _peak(ours, device)
    seconds = in_turn({"plain": plain, "ours": ours}, ROUNDS, device=device)
    ratio = seconds["plain"] / seconds["ours"]
    return LargeTiming(
        name, about, 1, seconds["plain"], seconds["ours"], ratio, None, apart, float(wanted.std()), peak, None
    )


def _swept(
    model: LanguageModel, tokens: Tensor, others: Tensor, cells: tuple[Address, ...], name: str, about: str,
    device: torch.device, plainly: bool = True,
) -> LargeTiming:  # fmt: skip
    program, source = F**model.loops, Run(F**model.loops, "other")
    said: list[Memory] = []

    def ours() -> Sweep:
        return sweep(model, tokens, program, cells, source, others={"other": others}, tell=said.append)

    found: list[Sweep] = []
    peak = _peak(lambda: found.append(ours()), device)
    ways: dict[str, Callable[[], object]] = {"ours": ours}
    if plainly:
        ways["plain"] = lambda: model.read(_loops_by_hand(model, tokens, model.loops)[-1][:, -1])
    seconds = in_turn(ways, ROUNDS, device=device)
    plain_s, apart = None, None
    if plainly:
        plain_s = seconds["plain"] * len(cells)
        chosen = list(range(0, len(cells), max(1, len(cells) // CHECKED)))[:CHECKED]
        apart = _apart(model, tokens, others, program, [cells[i] for i in chosen], source, found[0].logits[chosen])
    return LargeTiming(
        name, about, len(cells), plain_s, seconds["ours"], None if plain_s is None else plain_s / seconds["ours"],
        found[0].work.forwards, apart, float(found[0].base.float().std()), peak, said[0].peak,
    )  # fmt: skip


def _apart(
    model: LanguageModel, tokens: Tensor, others: Tensor, program: Program, cells: list[Address], source: Run,
    ours: Tensor,
) -> float:  # fmt: skip
    """How far the logits of these cells are from those of the definition."""
    memo: dict[tuple[Program, str], PlainRun] = {}
    inputs = {"main": tokens, "other": others}
    plain_run(model, inputs, program, name="other", memo=memo)
    end, far = program.points[-1], 0.0
    for cell, mine in zip(cells, ours, strict=True):
        # A memo of its own: whole runs of a large model are not kept for the next cell.
        theirs = plain_run(model, inputs, program.patch(cell, source), memo=dict(memo)).read(end)[:, -1:]
        far = max(far, float((mine.float() - theirs.float()).abs().max()))
    return far


def _peak(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that the device held at most on the way, beside what it held before; None for a CPU."""
    if device.type != "cuda":
        work()
        return None
    wait_for(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    wait_for(device)
    return torch.cuda.max_memory_allocated(device) - before
