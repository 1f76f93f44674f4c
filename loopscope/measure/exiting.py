"""When could a run have stopped?  Exit rules of the field, judged on what every loop said, without another forward.

    recording = record_loops(model, tokens)
    exits(recording, answers)            accuracy against the mean number of loops, for every rule and threshold
    exits(recording)                     how often the answer is that of the last loop

A rule stops a row after the first loop t in which its number reaches a threshold, and after the last loop where none
does:

    entropy      the entropy of the answer's distribution p_t, in nats, is at most the threshold
    confidence   the largest probability is at least the threshold
    kl           KL(p_t || p_{t-1}), in nats, is at most the threshold
    step         |h_t - h_{t-1}| / |h_t| is at most the threshold
    second       |(h_t - h_{t-1}) - (h_{t-1} - h_{t-2})| / |h_t| is at most the threshold
    stable       the likeliest class has been the same for so many loops
    gate         the model's own exit gate: 1 - prod(1 - sigmoid(gate_s), s <= t) is at least the threshold
    loops        no look at the run: stop after so many loops

A rule that compares loops cannot stop before it has them: `kl` and `step` in loop 2 at the earliest, `second` in 3.
Only a row's own numbers are looked at; what a run does with rows that stopped is not simulated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from loopscope.errors import InputError, nearest
from loopscope.estimates import DRAWS, means
from loopscope.execute.unequal import Texts
from loopscope.measure.streaming import (
    NUMBER,
    Examples,
    Inputs,
    Rows,
    logits_at,
    logits_size,
    loop_ends,
    states_at,
)
from loopscope.program import ProgramLike
from loopscope.protocol import LoopedModel
from loopscope.results import Tabular, numbered
from loopscope.table import Table

UPWARDS = frozenset({"confidence", "stable", "gate", "loops"})
"""Rules that stop at a threshold or above; the others do at it or below."""

RULES = ("entropy", "confidence", "kl", "step", "second", "stable", "gate", "loops")

THRESHOLDS = 12
"""Thresholds of a rule, where none are given: they part what its number was in this recording evenly."""


@dataclass(frozen=True, eq=False, repr=False)
class Recording(Tabular):
    """What each loop said, in a few numbers for every example and row.

    `numbers` has, by rule, what its threshold is compared with: NaN where a rule cannot look yet.  Rules whose numbers
    were not recorded, such as the gate of a model without one, are not there.
    """

    answers: Int[np.ndarray, "loops examples rows"]
    numbers: Mapping[str, Float[np.ndarray, "loops examples rows"]]
    about: Mapping[str, Any]
    classes: int | None = None
    """How many classes there are; None where it was not recorded."""

    def table(self) -> Table:
        """A row for every loop, example and row: its answer, and the number of every rule."""
        names = ("loop", "example", "row")
        where = dict(zip(names, (each.reshape(-1) for each in np.indices(self.answers.shape)), strict=True))
        numbers = {name: each.reshape(-1) for name, each in self.numbers.items()}
        columns = {**where, "loop": where["loop"] + 1, "answer": self.answers.reshape(-1), **numbers}
        return Table("recording", columns, dict(self.about))

    def _words(self) -> str:
        loops, examples, rows = self.answers.shape
        sizes = f"{numbered(loops, 'loop')}, {numbered(examples, 'example')}, {numbered(rows, 'row')}"
        return f"{sizes}; {', '.join(self.numbers)}"


@torch.no_grad()
def record_loops(
    model: LoopedModel,
    tokens: Texts | None,
    program: ProgramLike | None = None,
    *,
    rows: Rows = (-1,),
    memory: int | None = None,
    **inputs: Unpack[Inputs],
) -> Recording:
    """Run a program and record what exit rules look at, after every loop; errors as `execute.run`.

    A loop is a call, or of a model with several stacks what the model says it is: L2 H, or an outer step.
    """
    examples = Examples(model, tokens, program, rows, inputs)
    points = loop_ends(examples)
    shape = len(points), len(examples), len(examples.rows)
    answers = np.zeros(shape, dtype=np.int64)
    numbers: dict[str, np.ndarray] = {}
    classes = 0
    # Logits of two loops are held in double precision, and their distributions.
    size = NUMBER * len(points) * len(examples.rows) * examples.pieces.state_width
    gates = getattr(model, "gate_logits", None)
    for part in examples.parts(size + 6 * logits_size(examples, len(points)), memory):
        states, _ = states_at(examples, part, points)
        found = _numbers_of(
            (logits for _, logits in logits_at(examples, part, states)),
            [states[point] for point in points],
            None if gates is None else [gates(states[point]) for point in points],
        )
        answers[:, part["at"]], classes = found.pop("answers").cpu().numpy(), int(found.pop("classes"))
        for name, values in found.items():
            whole = numbers.setdefault(name, np.full(shape, np.nan))
            whole[:, part["at"]] = values.double().cpu().numpy()
    return Recording(answers, numbers, {"program": str(examples.program), "examples": len(examples)}, classes)


def recording_of(
    logits: Float[Tensor, "loops B R classes"],
    states: Float[Tensor, "loops B R s"] | None = None,
    gates: Float[Tensor, "loops B R"] | None = None,
) -> Recording:
    """A recording from logits after every loop, such as those of `read_loops`.

    With the `states` after every loop, `step` and `second` are there, too; with `gates` before their sigmoid, `gate`.
    """
    if logits.dim() != 4 or not len(logits):
        raise InputError(f"logits must be [loops, examples, rows, classes], not {list(logits.shape)}")
    if states is not None and states.shape[:3] != logits.shape[:3]:
        raise InputError(f"states must be {list(logits.shape[:3])} and a width, not {list(states.shape)}")
    if gates is not None and gates.shape != logits.shape[:3]:
        raise InputError(f"gates must be {list(logits.shape[:3])}, not {list(gates.shape)}")
    found = _numbers_of(logits, None if states is None else list(states), None if gates is None else list(gates))
    answers, classes = found.pop("answers").cpu().numpy(), int(found.pop("classes"))
    numbers = {name: each.double().cpu().numpy() for name, each in found.items()}
    return Recording(answers, numbers, {"examples": logits.shape[1]}, classes)


def exits(
    recording: Recording,
    answers: Iterable[int] | Tensor | None = None,
    *,
    rules: Iterable[str] | None = None,
    thresholds: Mapping[str, Iterable[float]] | None = None,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Table:
    """What stopping early costs: a row for every rule and threshold.

    - `loops`: the mean number of loops that were made;
    - `accuracy`: how often the answer is then that of `answers`, a class for every example, or for every example and
      row; without answers `agreement`, how often it is that of the last loop;
    - `stopped`: how often the rule stopped before the last loop.

    An example's rows are averaged first.  `rules` are by default all that were recorded.  Every mean has an interval.
    """
    chosen = list(recording.numbers) if rules is None else [*dict.fromkeys(rules)]
    for name in (*chosen, *(thresholds or {})):
        if name not in recording.numbers:
            there = ", ".join(recording.numbers)
            raise InputError(f"no rule {name!r} was recorded; there are {there}{nearest(name, recording.numbers)}")
    right = recording.answers == (recording.answers[-1] if answers is None else _wanted(answers, recording))
    measure = "agreement" if answers is None else "accuracy"
    last = len(recording.answers)
    named: list[str] = []
    at: list[float] = []
    kept: dict[str, list[np.ndarray]] = {"loops": [], measure: [], "stopped": []}
    for rule in chosen:
        numbers = recording.numbers[rule]
        for threshold in _thresholds(rule, numbers, (thresholds or {}).get(rule)):
            stops = _stops(rule, numbers, threshold)
            named.append(rule)
            at.append(threshold)
            kept["loops"].append((stops + 1).mean(-1))
            kept[measure].append(np.take_along_axis(right, stops[None], 0)[0].mean(-1))
            kept["stopped"].append((stops + 1 < last).mean(-1))
    how: dict[str, Any] = {"clusters": clusters, "seed": seed, "draws": draws}
    made = {name: means(np.stack(each, -1), share=name != "loops", **how) for name, each in kept.items()}
    return Table("exits", {"rule": named, "threshold": at, **made, "n": made["loops"].n}, dict(recording.about))


def _stops(
    rule: str, numbers: Float[np.ndarray, "loops examples rows"], threshold: float
) -> Int[np.ndarray, "examples rows"]:
    """The loop, from 0, after which each row stops."""
    with np.errstate(invalid="ignore"):  # a NaN reaches no threshold
        reached = numbers >= threshold if rule in UPWARDS else numbers <= threshold
    reached[-1] = True
    return np.asarray(reached.argmax(0))


def _thresholds(
    rule: str, numbers: Float[np.ndarray, "loops examples rows"], given: Iterable[float] | None
) -> list[float]:
    if given is not None:
        asked = [float(each) for each in given]
        if not asked or not np.isfinite(asked).all():
            raise InputError(f"thresholds of {rule} are finite numbers, at least one, not {asked}")
        return asked
    if rule in ("loops", "stable"):
        return [float(each) for each in range(1, len(numbers) + 1)]
    there = numbers[~np.isnan(numbers)]
    return sorted(set(np.quantile(there, np.linspace(0, 1, THRESHOLDS)).tolist())) if len(there) else []


def _wanted(answers: Iterable[int] | Tensor, recording: Recording) -> Int[np.ndarray, "*examples rows"]:
    found = answers.cpu().numpy() if isinstance(answers, Tensor) else np.asarray(list(answers))
    _, examples, rows = recording.answers.shape
    if found.shape not in ((examples,), (examples, rows)) or found.dtype.kind not in "iu":
        raise InputError(
            f"answers must be a class for each of {examples} examples, not {found.dtype} {list(found.shape)}"
        )
    classes = recording.classes
    if classes is not None and found.size and (found.min() < 0 or found.max() >= classes):
        worst = int(found.max() if found.max() >= classes else found.min())
        raise InputError(f"answers have class {worst}, but the model has 0..{classes - 1}")
    return found if found.ndim == 2 else found[:, None]


def _numbers_of(
    logits: Iterable[Float[Tensor, "B R classes"]],
    states: list[Float[Tensor, "B R s"]] | None,
    gates: list[Tensor | None] | list[Tensor] | None,
) -> dict[str, Tensor]:
    """The answers, and the number of every rule, [loops, B, R] each; `classes` is how many there are."""
    found: dict[str, list[Tensor]] = {"answers": [], "entropy": [], "confidence": [], "kl": [], "stable": []}
    before: Tensor | None = None
    classes = 0
    for each in logits:
        classes = each.shape[-1]
        log = each.double().log_softmax(-1)
        likely = log.exp()
        answer = each.argmax(-1)
        found["entropy"].append(-(likely * log).nan_to_num(0.0).sum(-1))
        found["confidence"].append(likely.amax(-1))
        found["kl"].append(
            torch.full_like(found["entropy"][-1], torch.nan) if before is None
            else (likely * (log - before)).nan_to_num(0.0).sum(-1).clamp(min=0)
        )  # fmt: skip
        same = answer == found["answers"][-1] if found["answers"] else torch.zeros_like(answer, dtype=torch.bool)
        run = found["stable"][-1] if found["stable"] else torch.zeros_like(found["entropy"][-1])
        found["stable"].append(torch.where(same, run + 1, 1.0))
        found["answers"].append(answer)
        before = log
    made = {name: torch.stack(values) for name, values in found.items()} | {"classes": torch.tensor(classes)}
    if states is not None:
        h = [state.double() for state in states]
        size = torch.stack([state.norm(dim=-1) for state in h])
        none = torch.full_like(size[0], torch.nan)
        steps = [after - earlier for earlier, after in pairwise(h)]
        turns = [after - earlier for earlier, after in pairwise(steps)]
        made["step"] = torch.stack([none, *(each.norm(dim=-1) for each in steps)]) / size
        made["second"] = torch.stack([none, none, *(each.norm(dim=-1) for each in turns)])[: len(h)] / size
    if gates is not None and all(isinstance(gate, Tensor) for gate in gates):
        stay = torch.stack([torch.sigmoid(-gate.double()) for gate in gates if gate is not None])
        made["gate"] = 1 - stay.cumprod(0)
    count = torch.arange(1, len(made["answers"]) + 1, dtype=torch.float64, device=made["answers"].device)
    made["loops"] = count[:, None, None].expand_as(made["entropy"])
    return made
