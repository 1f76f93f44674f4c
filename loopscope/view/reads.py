"""What the page can read of a run: tokens, readouts, patterns, trajectories, and two runs beside each other.

Each is a generator that yields as `runs` do, and gives an `Answer`; `page/CONTRACT.md` says what is in it.  Everything
is measured by the library: states, logits and components by `loopscope.run`, movement by `measure.motion`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from loopscope.address import Address
from loopscope.bounds import shown
from loopscope.errors import InputError
from loopscope.execute.metrics import metric_of
from loopscope.measure.motion import trajectories
from loopscope.program import Map, Program
from loopscope.view.contract import Answer, Json, Request
from loopscope.view.inputs import described
from loopscope.view.runs import Case, Runs, Steps
from loopscope.view.shown_model import NAMED

MOTION = ("norm", "step", "relative", "turn", "cosine", "distance")


def points_of(program: Program) -> list[dict[str, Json]]:
    """The points of a program, by name, calls so far and the map that leads there."""
    steps = [None, *program.steps]
    return [
        {"name": name, "calls": program.calls_before(name), "map": step.name if isinstance(step, Map) else None}
        for name, step in zip(program.points, steps, strict=True)
    ]


def rows_of(case: Case, asked: str) -> list[int]:
    """The rows that "last" or "all" are, counted from 0."""
    count = len(case.tokens)
    return list(range(count)) if asked == "all" else [count - 1]


def numbers(values: Tensor) -> np.ndarray:
    """Values as an array of single precision."""
    return values.detach().float().cpu().numpy()


def read_input(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """The input's tokens, and the graph if it is one."""
    yield None
    return Answer("input", described(runs.subject, request.input, case.tokens))


def read_readouts(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """The likeliest classes at every point and row, ranks of given answers, all probabilities where classes are few."""
    read, subject = request.read, runs.subject
    rows, answers = rows_of(case, read["rows"]), read["answers"]
    for each in answers:
        if each >= subject.classes:
            raise InputError(f"there is no class {each}: classes are 0 to {subject.classes - 1}")
    found: dict[str, list[Tensor]] = {}
    for at in range(len(program.points)):
        logits = yield from runs.logits(case, program, at, rows)
        shares = logits.softmax(-1)
        top = shares.topk(min(read["top"], subject.classes), -1)
        every = {"top": top.indices.int(), "probability": top.values}
        if answers:
            chosen = logits[:, answers]
            every["rank"] = (logits[:, None, :] > chosen[..., None]).sum(-1).int() + 1
            every["answer"] = shares[:, answers]
        if subject.classes <= NAMED:
            every["distribution"] = shares
        if (gate := getattr(subject.model, "gate_logits", None)) is not None:
            state = yield from runs.state(case, program, at)
            if (opened := gate(state[0, rows])) is not None:
                every["gate"] = opened.detach().float().sigmoid()
        for name, value in every.items():
            found.setdefault(name, []).append(value)
    arrays = {name: torch.stack(values).cpu().numpy() for name, values in found.items()}
    ids = sorted({*np.unique(arrays["top"]).tolist(), *answers})
    names = {str(each): subject.class_name(each) for each in ids}
    facts = {"points": points_of(program), "rows": rows, "names": names, "gates": "gate" in arrays}
    return Answer("readouts", facts, arrays)


def read_patterns(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """The attention patterns of all heads of a layer in 8 bits, or of one head."""
    head, size, place = (request.read[name] for name in ("head", "size", "place"))
    if (head is None) != (size > 0):
        raise InputError("patterns are read of all heads with a size, or of one head with size 0")
    address = Address.parse(f"{place}.pattern")
    if address.site.heads is not None or address.site.rows is not None:
        raise InputError(f"a place is a layer of a loop such as loop[7].layer[2], not {shown(place)}")
    pattern = (yield from runs.component(case, program, address))[0].float()
    rows = list(range(pattern.shape[1]))
    if head is not None:
        if head >= len(pattern):
            raise InputError(
                f"there is no head {head}: heads are 0 to {len(pattern) - 1} (nearest: {len(pattern) - 1})"
            )
        return Answer("patterns", {"rows": rows}, {"pattern": pattern[head].half().cpu().numpy()})
    side = -(-max(pattern.shape[1:]) // size)
    small = torch.nn.functional.max_pool2d(pattern[None], side, ceil_mode=True)[0] if side > 1 else pattern
    bits = (small * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
    return Answer("patterns", {"rows": rows, "exact": side == 1, "side": side}, {"patterns": bits})


def read_trajectory(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """How the state of every row moves from loop to loop."""
    rows = rows_of(case, request.read["rows"])
    yield None
    table = trajectories(
        runs.subject.model, runs.tokens(case.tokens), program, rows=rows, draws=1, **runs.inputs(case)
    )  # fmt: skip
    arrays, axes = {}, None
    for name in MOTION:
        values, axes = table.grid(name, "loop", "row")
        arrays[name] = values.astype(np.float32)
    assert axes is not None
    return Answer("trajectory", {"rows": rows, "loops": [int(str(each)) for each in axes[0]]}, arrays)


def read_compare(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """Two programs on one input, point by point: how far their readouts and states are from each other."""
    other = yield from runs.named(Program.parse(request.read["other"]))
    runs.subject.pieces.check(other)
    both = side_by_side(program, other)
    if not both:
        raise InputError(f"'{program}' and '{other}' have no point in common: one begins where the other has ended")
    rows = rows_of(case, request.read["rows"])
    _, kl = metric_of("kl", None, 1)
    found: dict[str, list[Tensor]] = {name: [] for name in ("kl", "distance", "cosine", "agree")}
    for at, beside in both:
        mine = yield from runs.logits(case, program, at, rows)
        theirs = yield from runs.logits(case, other, beside, rows)
        found["kl"].append(kl(theirs[None], mine[None], torch.zeros(1, dtype=torch.long))[0])
        found["agree"].append((mine.argmax(-1) == theirs.argmax(-1)).to(torch.uint8))
        one = (yield from runs.state(case, program, at))[0, rows].double()
        two = (yield from runs.state(case, other, beside))[0, rows].double()
        found["distance"].append((one - two).norm(dim=-1).float())
        found["cosine"].append(torch.nn.functional.cosine_similarity(one, two, -1).float())
    points, others = points_of(program), points_of(other)
    facts = {
        "points": [points[at] for at, _ in both],
        "others": [others[at] for _, at in both],
        "places": [list(each) for each in both],
        "rows": rows,
    }
    return Answer("compare", facts, {name: torch.stack(values).cpu().numpy() for name, values in found.items()})


def side_by_side(program: Program, other: Program) -> list[tuple[int, int]]:
    """The points of two programs that are set side by side, by their numbers.

    These are the points after as many calls and as many maps since: h7 is beside h7, whether or not a map led there.
    """

    def places(each: Program) -> dict[tuple[int, int], int]:
        seen: Counter[int] = Counter()
        found: dict[tuple[int, int], int] = {}
        for number, calls in enumerate(map(each.calls_before, each.points)):
            found[calls, seen[calls]] = number
            seen[calls] += 1
        return found

    mine, theirs = places(program), places(other)
    return [(at, theirs[place]) for place, at in mine.items() if place in theirs]


Read: TypeAlias = Callable[[Runs, Request, Case, Program], Steps[Answer]]

READS: Mapping[str, Read] = {
    "input": read_input,
    "readouts": read_readouts,
    "patterns": read_patterns,
    "trajectory": read_trajectory,
    "compare": read_compare,
}
"""What is read of one run, by name."""


def likeliest(runs: Runs, case: Case, program: Program) -> Steps[dict[str, Any]]:
    """What a program answers at the last row: the class, its text and its probability."""
    logits = (yield from runs.logits(case, program, len(program.points) - 1, [len(case.tokens) - 1]))[0]
    answer = int(logits.argmax())
    share = float(logits.softmax(-1)[answer])
    return {"answer": answer, "text": runs.subject.class_name(answer), "probability": round(share, 6)}


def choose(values: Sequence[int] | str, what: str) -> tuple[int, ...] | None:
    """Rows of places: None for all."""
    if values == "all":
        return None
    if isinstance(values, str) or not values:
        raise InputError(f"{what} are 'all' or a list such as [-1], not {shown(values)}")
    return tuple(values)
