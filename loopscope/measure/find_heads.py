"""Which heads carry what a map does on a task: a sweep, the search, confirmation, and tests with controls.

Held-out examples are dealt into three parts, whole clusters at a time: a quarter to discover heads on (`searching`,
the search of the paper), a quarter to confirm how many are taken, half to test those on (`controls`).  Patches need
prompts of one length, so those of the commonest are taken, and of these the ones that have an unrelated example: one of
as many tokens with another answer and cluster.  An answer is its first token here: that alone counts, and differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.estimates import means
from loopscope.execute.executor import run
from loopscope.log import Log, silent, under
from loopscope.measure import controls
from loopscope.measure.answers import Item, commonest, partners
from loopscope.measure.heads import Heads, Selection, late_layers
from loopscope.measure.searching import AT_ONCE, check_steered, loops_behind, select
from loopscope.measure.side_by_side import Condition, SideBySide, cluster_ids, share
from loopscope.models.placement import names_in, without_maps
from loopscope.program import Program, ProgramLike, Run, as_program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.results import Tabular, numbered
from loopscope.table import Table
from loopscope.tasks.examples import Example, hashed

FEWEST = 2
"""Examples that every part has at least."""


Interval = tuple[float, float]


@dataclass(frozen=True)
class Swept:
    """One head in one loop: right answers, and mean probability of the right one, with its steered pattern.

    Intervals are of the share of right answers and of the mean, over examples or their clusters; of one cluster
    there is none of the mean.
    """

    loop: int
    layer: int
    head: int
    right: int
    probability: float
    right_interval: Interval
    probability_interval: Interval | None


@dataclass(frozen=True, repr=False)
class FoundHeads(Tabular):
    """What was found: the parts, the sweep, the search (None: the map brings nothing on discovery), and both tests.

    `errors` are the largest differences of logits where a patch must change nothing, by condition.
    """

    program: Program
    length: int
    parts: dict[str, int]
    sweep: tuple[Swept, ...]
    selection: Selection | None
    steering: SideBySide
    restoration: SideBySide | None
    errors: dict[str, float]

    def table(self) -> Table:
        """The sweep, with shares of right answers; of a search without one, the answers of the steering test."""
        if not self.sweep:
            return self.steering.table()
        names = ("loop", "layer", "head")
        columns: dict[str, Any] = {name: [getattr(each, name) for each in self.sweep] for name in names}
        columns["right"] = [each.right / self.parts["discovery"] for each in self.sweep]
        columns |= _ends("right", [each.right_interval for each in self.sweep])
        columns["probability"] = [each.probability for each in self.sweep]
        columns |= _ends("probability", [each.probability_interval for each in self.sweep])
        return Table("sweep", columns, {"program": str(self.program), "examples": self.parts["discovery"]})

    @property
    def best(self) -> Swept:
        """The swept head with most right answers, of equals the one with the largest probability."""
        return max(self.sweep, key=lambda each: (each.right, each.probability))

    def _words(self) -> str:
        heads = "no heads searched" if self.selection is None else f"heads {self.selection.heads}"
        swept = numbered(len(self.sweep), "head")
        return f"{heads}; {swept} swept, {self.parts['test']:,} examples in the test, '{self.program}'"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "program": str(self.program), "tokens": self.length, "parts": self.parts,
            "sweep": [asdict(each) for each in self.sweep],
            "selection": None if self.selection is None else self.selection.to_dict(),
            "steering": self.steering.to_dict(),
            "restoration": None if self.restoration is None else self.restoration.to_dict(), "errors": self.errors,
        }  # fmt: skip


def _ends(name: str, intervals: Sequence[Interval | None]) -> dict[str, list[float]]:
    known = [(math.nan, math.nan) if each is None else each for each in intervals]
    return {f"{name}_low": [low for low, _ in known], f"{name}_high": [high for _, high in known]}


@torch.no_grad()
def find_heads(
    model: LoopedModel,
    step: TokenMap,
    items: Sequence[Item],
    program: ProgramLike,
    *,
    heads: Heads | None = None,
    swept: bool = True,
    batch: int = 32,
    log: Log = silent,
) -> FoundHeads:
    """Find the heads that carry what the only map of a program does, and test them; see the module.

    `heads`: test these, in the last loop, instead of searching.  `swept`: also try every late head alone, in every
    loop behind the map.  Of a model with several stacks it is the heads of the last, in its calls.

    InputError for a program without one map and a loop behind it, heads that the model has not, and too few examples of
    one length with an unrelated one; errors as `execute.run`.
    """
    program = as_program(program)
    check_steered(program)
    behind = loops_behind(model, program)
    if heads is not None:
        heads.check(model)
    parts, length = _parts(items)
    maps = dict.fromkeys(names_in(program), step)
    discovery, confirmation = [(tokens, answers) for tokens, answers, _, _ in parts[:2]]
    examples = [item.example for item in parts[0][3]]
    singles = _sweep(model, maps, program, behind, *discovery, examples, log) if swept else ()
    selection = None
    if heads is None:
        selection = select(
            model, step, *discovery, program=program, confirmation=confirmation, log=under("choosing heads", log)
        )
    chosen = None
    if heads is not None:
        chosen = controls.Chosen.within(heads, model, behind[-1:], program.calls)
    elif selection is not None:
        chosen = controls.Chosen.within(selection.heads, model, selection.loops, program.calls, selection.late)
    tested = _Tested(model, maps, parts[2], batch, log)
    steering = tested("steering", controls.steering(without_maps(program), program, chosen, behind))
    restoration = None if chosen is None else tested("restoration", controls.restoration(program, chosen))
    names = dict(zip(("discovery", "confirmation", "test"), (len(part[1]) for part in parts), strict=True))
    return FoundHeads(program, length, names, singles, selection, steering, restoration, tested.errors)


Part = tuple[Int[Tensor, "B T"], Int[Tensor, " B"], Int[Tensor, "B T"], list[Item]]
"""Prompts, the first tokens of their answers, unrelated prompts, and the items."""


def _parts(items: Sequence[Item]) -> tuple[list[Part], int]:
    """Discovery, confirmation and test."""
    mine = [replace(item, answer=item.answer[:1]) for item in commonest(items)]
    paired = [(item, mine[other]) for item, other in zip(mine, partners(mine), strict=True) if other is not None]
    dealt: list[list[tuple[Item, Item]]] = [[], [], []]
    for pair in paired:
        share = hashed(("part", pair[0].example.cluster or pair[0].prompt))
        dealt[0 if share < 0.25 else 1 if share < 0.5 else 2].append(pair)
    length = len(mine[0].prompt)
    for name, part in zip(("discovery", "confirmation", "the test"), dealt, strict=True):
        if len(part) < FEWEST:
            raise InputError(
                f"{len(part)} examples are left for {name}: of {len(items)} held out, {len(paired)} have the commonest "
                f"length, {length} tokens, and an unrelated example; there must be {FEWEST} or more in each part"
            )
    found = []
    for part in dealt:
        prompts, others = (torch.tensor([each[at].prompt for each in part]) for at in (0, 1))
        answers = torch.tensor([item.answer[0] for item, _ in part])
        found.append((prompts, answers, others, [item for item, _ in part]))
    return found, length


def _sweep(
    model: LoopedModel, maps: dict[str, TokenMap], program: Program, loops: Sequence[int], tokens: Tensor,
    answers: Tensor, examples: Sequence[Example], log: Log,
) -> tuple[Swept, ...]:  # fmt: skip
    """Every late head alone: the unsteered run with the steered run's pattern there."""
    layers = late_layers(len(model.layers), 1 if len(model.layers) <= 6 else 3)
    cells = [(loop, layer, head) for loop in loops for layer in layers for head in range(model.heads)]
    plain, right, likely = without_maps(program), list[Tensor](), list[Tensor]()
    for start in range(0, len(cells), AT_ONCE):
        log(f"sweep: {start} of {len(cells)} heads")
        mine = cells[start : start + AT_ONCE]
        patched = [Heads(((layer, head),)).patch(plain, "pattern", Run(program), [loop]) for loop, layer, head in mine]
        result = run(model, tokens, patched, maps=maps)
        for each in patched:
            logits = result[each].logits[:, 0].float()
            wanted = answers.to(logits.device)
            right.append((logits.argmax(-1) == wanted).cpu())
            likely.append(logits.softmax(-1).gather(1, wanted[:, None])[:, 0].cpu())
    probable = means(torch.stack(likely, 1).numpy(), clusters=cluster_ids(examples))
    found = []
    for at, (cell, hits) in enumerate(zip(cells, right, strict=True)):
        alone, low, high = share(hits, examples), float(probable.low[at]), float(probable.high[at])
        ends = None if math.isnan(low) else (low, high)
        found.append(Swept(*cell, int(hits.sum()), float(probable.value[at]), (alone.low, alone.high), ends))
    return tuple(found)


class _Tested:
    """Runs the conditions of a test on the test part."""

    def __init__(self, model: LoopedModel, maps: dict[str, TokenMap], part: Part, batch: int, log: Log) -> None:
        self.model, self.maps, self.part, self.batch, self.log = model, maps, part, batch, log
        self.errors: dict[str, float] = {}

    def __call__(self, test: str, rows: dict[str, controls.Condition]) -> SideBySide:
        """The conditions on the base's question; what a run on another input says is nobody's answer here."""
        prompts, answers, unrelated, items = self.part
        rows = {name: row for name, row in rows.items() if row.input == controls.BASE}
        right: dict[str, list[Tensor]] = {name: [] for name in rows}
        for start in range(0, len(items), self.batch):
            self.log(f"{test}: {start} of {len(items)} examples")
            at = slice(start, start + self.batch)
            inputs = {controls.BASE: prompts[at], controls.SOURCE: unrelated[at], controls.REFERENCE: unrelated[at]}
            others = {name: each for name, each in inputs.items() if name != controls.BASE}
            programs = [row.program for row in rows.values()]
            result = run(self.model, inputs[controls.BASE], programs, maps=self.maps, others=others)
            logits = {name: result[row.program].logits[:, 0].float() for name, row in rows.items()}
            for name, row in rows.items():
                wanted = answers[at].to(logits[name].device)
                right[name].append((logits[name].argmax(-1) == wanted).cpu())
                if row.like:
                    apart = float((logits[name] - logits[row.like]).abs().max())
                    self.errors[name] = max(self.errors.get(name, 0.0), apart)
        every = tuple(range(len(items)))
        found = [Condition(name, str(row.program), every, torch.cat(right[name])) for name, row in rows.items()]
        return SideBySide(tuple(item.example for item in items), tuple(found))
