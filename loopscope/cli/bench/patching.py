"""Benchmarks: the same work done the plain way and ours, in one process, with agreement checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from loopscope.address import Address, Site, grid
from loopscope.cli.bench.timing import CPU, done, each_call
from loopscope.execute.executor import run
from loopscope.execute.plain import PlainRun, plain_run
from loopscope.execute.traces import Result
from loopscope.log import Log, silent
from loopscope.maps import DiagonalLowRank
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.program import Call, F, J, Program, Run
from loopscope.studies.graph_walk.mechanism import battery
from loopscope.tasks.graph_walk import GraphWalk, all_starts, crossed_current, start_for
from loopscope.tasks.populations import mixed_strings, population

LOOPS, DEPTH = 6, 8
REPEATS, PLAIN_REPEATS = 5, 2


@dataclass(frozen=True)
class PatchingCase:
    """Programs on a batch, with everything they name."""

    name: str
    about: str
    programs: tuple[Program, ...]
    tokens: Tensor | None = None
    state: Tensor | None = None
    others: dict[str, Tensor] = field(default_factory=dict)

    def on(self, device: torch.device) -> PatchingCase:
        """The same with all inputs on a device."""
        tokens, state = (None if each is None else each.to(device) for each in (self.tokens, self.state))
        return replace(self, tokens=tokens, state=state, others={n: t.to(device) for n, t in self.others.items()})


@dataclass(frozen=True)
class Timing:
    """One case, both ways.  Work is in forward-equivalents: plain runs of the case's longest program."""

    case: str
    about: str
    examples: int
    programs: int
    plain_s: float
    ours_s: float
    ratio: float
    plain_work: float
    ours_work: float
    max_abs_diff: float
    predictions_equal: bool


def patching_cases() -> Iterator[PatchingCase]:
    """The cases of `loopscope bench patching`, on ten-node graphs, for a model of the paper's main shape (D8L6)."""
    walk = GraphWalk(10)

    def tokens(name: str, graphs: int) -> Tensor:
        return walk.tokens(population(name).graphs[:graphs], torch.arange(graphs) % 10)

    receivers, givers = tokens("pairs-2404-receiver", 64), tokens("pairs-2404-giver", 64)
    subsets = [c for size in range(1, 5) for c in itertools.combinations(range(4), size)]
    steered = F**LOOPS | J("one") | F
    yield PatchingCase(
        "head subsets",
        "all 15 sets of layer-2 heads at ANSWER in call 7: steered pattern into the unsteered run",
        tuple((F ** (LOOPS + 1)).patch(Address(LOOPS + 1, Site(2, "pattern", c, (-1,))), steered) for c in subsets),
        receivers,
    )
    cells = grid("pattern", loops=range(1, LOOPS + 1), layers=(1, 2), heads=range(4), rows=(-1,))
    yield PatchingCase(
        "48-cell sweep",
        "every loop x layer x head: ANSWER-row pattern from a run on another graph",
        tuple((F**LOOPS).patch(cell, Run(F**LOOPS, "giver")) for cell in cells),
        receivers,
        others={"giver": givers},
    )
    names = {1: "one", 2: "two"}
    strings = [Program(tuple(s for c in row for s in (J(names[c]), F)), LOOPS) for row in mixed_strings().tolist()]
    yield PatchingCase(
        "mixed strings",
        "the 32 fixed strings of eight steered calls, continued from a given h6",
        tuple(strings),
        state=torch.randn(16, walk.length, 256, generator=torch.Generator().manual_seed(0)),
    )
    all_ten = walk.tokens(*all_starts(population("confirmation").graphs[:16]))
    yield PatchingCase("ten starts", "six calls on all ten starts of 16 graphs", (F**LOOPS,), all_ten)
    receiver, giver = (population(f"pairs-2404-{side}").graphs[:64] for side in ("receiver", "giver"))
    current = torch.arange(64) % 10
    shifted = crossed_current(current, 10)
    yield PatchingCase(
        "mechanism battery",
        "29 runs on 64 graph pairs, one start each: patterns, outputs, queries, restoration",
        tuple(battery(LOOPS).values()),
        walk.tokens(receiver, start_for(receiver, current, DEPTH)),
        others={
            "giver": walk.tokens(giver, start_for(giver, shifted, DEPTH)),
            "shifted": walk.tokens(receiver, start_for(receiver, shifted, DEPTH)),
        },
    )


def bench_patching(log: Log = silent, device: torch.device = CPU) -> list[Timing]:
    """Time every case both ways; `log` gets the name of each case before it starts.

    The plain way is one full run per program with explicit attention, sources computed once: what tools based on
    hooks do.  Weights are random (seed 0), which time and agreement do not depend on.
    """
    torch.manual_seed(0)
    model = LoopedTransformer(graph_walk_config(10, LOOPS))
    maps = {name: DiagonalLowRank(256, 48, seed=seed) for seed, name in enumerate(("one", "two"), start=1)}
    with torch.no_grad():
        for step in maps.values():
            step.B.normal_(std=0.05, generator=torch.Generator().manual_seed(7))
    for part in (model, *maps.values()):
        part.to(device)
    timings = []
    for case in patching_cases():
        log(case.name)
        timings.append(time_case(model, case.on(device), maps))
    return timings


def time_case(model: LoopedTransformer, case: PatchingCase, maps: dict[str, DiagonalLowRank]) -> Timing:
    """One case both ways, after a warm-up: ours as the median of five, the plain way as the better of two."""
    main = case.tokens if case.tokens is not None else case.state
    assert main is not None
    inputs = {"main": main, **case.others}

    sources = {
        (patch.giver.program, patch.giver.input or "main")
        for program in case.programs
        for step in program.steps
        if isinstance(step, Call)
        for patch in step.patches
        if isinstance(patch.giver, Run)
    }

    def ours() -> Result:
        return run(model, case.tokens, case.programs, state=case.state, maps=maps, others=case.others)

    def plain() -> tuple[dict[Program, Tensor], int]:
        memo: dict[tuple[Program, str], PlainRun] = {}
        logits, calls, kept = {}, 0, set[tuple[Program, str]]()
        for program in case.programs:
            seen = plain_run(model, inputs, program, maps=maps, memo=memo)
            logits[program] = model.read(seen.states[program.points[-1]][:, -1:]).detach()
            calls += sum(key[0].calls for key in memo if key not in kept)
            if (program, "main") not in sources:  # nobody will ask again: hold no memory for it
                memo.pop((program, "main"), None)
            kept = set(memo)
        return logits, calls

    plain_run(model, inputs, case.programs[0], maps=maps)  # warm up both, so that no first allocation is timed
    ours()
    elapsed, result = each_call(partial(done, ours, main.device), REPEATS)
    got = {program: trace.logits for program, trace in result.traces.items()}
    elapsed_plain, (wanted, calls) = each_call(partial(done, plain, main.device), PLAIN_REPEATS)
    plain_s, ours_s = min(elapsed_plain), median(elapsed)
    return Timing(
        case=case.name,
        about=case.about,
        examples=len(main),
        programs=len(case.programs),
        plain_s=plain_s,
        ours_s=ours_s,
        ratio=plain_s / ours_s,
        plain_work=calls / max(program.calls for program in case.programs),
        ours_work=result.work.forwards,
        max_abs_diff=max(float((got[p] - wanted[p]).abs().max()) for p in case.programs),
        predictions_equal=all(torch.equal(got[p].argmax(-1), wanted[p].argmax(-1)) for p in case.programs),
    )
