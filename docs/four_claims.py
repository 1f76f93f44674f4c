"""Asks models at hand what four papers claim of looped models; writes the tables of `four-claims.md`.

    python docs/four_claims.py                            the zoo's backbones
    python docs/four_claims.py --smollm2 smollm2-135m     and SmolLM2, from a folder of `loopscope lm get`
    python docs/four_claims.py --only parity-1            one of them
    python docs/four_claims.py --kept                     none: the tables of what was measured before

What was measured is kept in `four-claims.json`; a model that is not asked again keeps its numbers.  The rules are on
the page and were fixed before the first run.  A test compares the page with that file.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from loopscope import load, run
from loopscope.measure import (
    attribution,
    endings,
    exits,
    pattern_changes,
    record_loops,
    spans,
    trajectories,
)
from loopscope.protocol import LoopedModel
from loopscope.tasks import relations
from loopscope.tasks.graph_walk import GraphWalk, advance
from loopscope.tasks.parity import evaluation_bits, fixed_length
from loopscope.tasks.populations import population

HERE = Path(__file__).parent
EXAMPLES, PAIRS = 128, 64
"""Examples of claims 1, 4 and 5; pairs of inputs of claim 2 and of attribution."""

CARRIES, FROM, ENOUGH = 0.5, 0.5, 0.8
"""Claim 2: what a site must recover in all calls, what a span to the end must have of that, what a shorter one."""

CAPITALS = ("France", "Japan", "Italy", "Spain", "Russia", "China", "Egypt", "Greece", "Germany", "Poland", "Cuba",
            "Peru", "Kenya", "Norway", "Canada", "Brazil")  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """A model, its inputs and the row that answers; `others` are inputs whose answers are others."""

    name: str
    model: LoopedModel
    calls: int
    tokens: Tensor
    others: Tensor
    row: int
    answers: Tensor | None = None
    layers: Sequence[int] = ()  # that are looked at; none: all
    normed: bool = False  # whether a norm ends every call
    stepwise: bool = False  # whether it was trained by a loss in every call

    @property
    def looked_at(self) -> Sequence[int]:
        """The layers that patches and attribution go to."""
        return self.layers or range(1, len(cast("Any", self.model).layers) + 1)

    def program(self, times: int = 1) -> str:
        """So many times the calls of training."""
        return f"F{self.calls * times}"


@dataclass
class Verdict:
    """What a rule says of a model: None where it cannot be asked."""

    claim: str
    model: str
    holds: bool | None
    numbers: dict[str, float]
    place: str = ""  # of claim 2


# ---- models and inputs ----------------------------------------------------------------------------------------------


def walkers() -> Iterable[Asked]:
    """Backbones that walk on graphs; every example is another graph, the other input another still."""
    for name, nodes, studied in (
        ("d8l6-5", 10, "confirmation"), ("d8l6-8", 10, "confirmation"), ("d8l6-14", 10, "confirmation"),
        ("d8l8-1", 10, "confirmation"), ("n8-d8l8-103", 8, "eight-test"),
        ("matched-final-0", 10, "matched-test"), ("matched-stepwise-0", 10, "matched-test"),
    ):  # fmt: skip
        graphs = population(studied).graphs[: 2 * EXAMPLES]
        starts = torch.arange(len(graphs)) % nodes
        answers = advance(graphs, starts, 8)
        tokens = GraphWalk(nodes=nodes).tokens(graphs, starts, depth=8)
        ours, theirs = slice(None, EXAMPLES), slice(EXAMPLES, None)
        yield Asked(
            name, load(name), 6 if name.startswith("d8l6") else 8, tokens[ours],
            _apart(tokens[theirs], answers[theirs], answers[ours]), -1, answers[ours],
            stepwise=name.startswith("matched-stepwise"),
        )  # fmt: skip


def chains() -> Iterable[Asked]:
    """Parity of ten bits in ten calls, and three relations in three."""
    bits = evaluation_bits(10, 2 * EXAMPLES, 0)
    answers, batch = bits.sum(-1) % 2, fixed_length(bits)
    mine, theirs = slice(None, EXAMPLES), slice(EXAMPLES, None)
    yield Asked(
        "parity-1", load("parity-1"), 10, batch.tokens[mine],
        _apart(batch.tokens[theirs], answers[theirs], answers[mine]), 10, answers[mine], normed=True,
    )  # fmt: skip
    asked = relations.evaluation(3, 2 * EXAMPLES)
    path = relations.path(relations.world(), *asked)[:, -1]
    tokens = relations.tokens(*asked)
    yield Asked(
        "relations-0", load("relations-0"), 3, tokens[mine], _apart(tokens[theirs], path[theirs], path[mine]), -1,
        path[mine], stepwise=True,
    )  # fmt: skip


def untrained(folder: str) -> Iterable[Asked]:
    """SmolLM2 with all of its layers looped as they are, with and without the final norm behind every call."""
    for boundary in ("none", "norm"):
        model = cast("Any", load(folder, loops=4, boundary=boundary))
        texts = _encoded(folder, [f"The capital of {name} is" for name in CAPITALS])
        yield Asked(
            f"SmolLM2-135M, {boundary} between calls", model, 4, texts, texts.roll(1, 0), -1, layers=(5, 15, 25),
            normed=boundary == "norm",
        )  # fmt: skip


def _encoded(folder: str, texts: Sequence[str]) -> Tensor:
    from tokenizers import Tokenizer

    tokens = [each.ids for each in Tokenizer.from_file(str(Path(folder) / "tokenizer.json")).encode_batch(texts)]
    length = max(set(map(len, tokens)), key=[len(each) for each in tokens].count)
    return torch.tensor([each for each in tokens if len(each) == length])


def _apart(tokens: Tensor, theirs: Tensor, mine: Tensor) -> Tensor:
    """Other inputs, one for each of ours and each with another answer."""
    picked = []
    for at, answer in enumerate(mine.tolist()):
        several = (theirs != answer).nonzero()[:, 0].tolist()
        picked.append(several[at % len(several)])
    return tokens[torch.tensor(picked)]


# ---- the claims -----------------------------------------------------------------------------------------------------


def settled(asked: Asked) -> Verdict:
    """Claim 1."""
    program = asked.program(4)
    every = range(1, len(cast("Any", asked.model).layers) + 1)
    ends = endings(asked.model, asked.tokens, program, layers=every, rows=[asked.row]).where(ending="fixed point")
    layers = np.array([str(place).startswith("layer") for place in ends["place"]])
    share = float(ends["share"][layers].min())
    changes = pattern_changes(asked.model, asked.tokens, program, rows=[asked.row]).where(loop=4 * asked.calls)
    most = float(changes["change"].max())
    return Verdict("1", asked.name, share >= 0.9 and most <= 0.01, {"fixed": share, "pattern": most})


def paired(asked: Asked) -> Asked:
    """Some of the examples, each with an input on which the model itself says something else."""
    said = [
        run(asked.model, tokens, asked.program(), rows=[asked.row])[asked.program()].predictions[:, 0]
        for tokens in (asked.tokens, asked.others)
    ]
    apart = (said[0] != said[1]).nonzero()[:PAIRS, 0]
    return replace(asked, tokens=asked.tokens[apart], others=asked.others[apart], answers=None)


def lasting(asked: Asked) -> list[Verdict]:
    """Claims 2a and 2b, for every site that carries the answer."""
    asked = paired(asked)
    sites = [
        f"layer[{n}].{site}"
        for n in asked.looked_at
        for site in ("v", f"row[{asked.row}].z", f"row[{asked.row}].resid")
    ]
    found = spans(
        asked.model, asked.tokens, asked.program(), sites, "(" + asked.program() + ")@other",
        others={"other": asked.others}, rows=[asked.row],
    )  # fmt: skip
    verdicts = []
    for place in dict.fromkeys(found["place"].tolist()):
        matrix = found.where(place=place).grid("value", "first", "last")[0]
        whole = matrix[0, -1]
        if not whole >= CARRIES:
            verdicts.append(Verdict("2", asked.name, None, {"whole": float(whole)}, place))
            continue
        starts = [t for t in range(len(matrix)) if matrix[t, -1] >= FROM * whole]
        early = [(t, last) for t in starts for last in range(t, len(matrix) - 1)
                 if matrix[t, last] >= ENOUGH * matrix[t, -1]]  # fmt: skip
        width, _, first = min(
            (last - t + 1, -matrix[t, last], t + 1) for t in range(len(matrix)) for last in range(t, len(matrix))
            if matrix[t, last] >= ENOUGH * whole
        )  # fmt: skip
        numbers = {"whole": whole, "width": width, "first": first, "calls": len(matrix)}
        numbers = {name: float(value) for name, value in numbers.items()}
        verdicts.append(Verdict("2a", asked.name, not early, numbers, place))
        verdicts.append(Verdict("2b", asked.name, width <= 2, numbers, place))
    return verdicts


def stepping(asked: Asked) -> list[Verdict]:
    """Claims 4a, 4b and 4c."""
    moved = trajectories(asked.model, asked.tokens, asked.program(), rows=[asked.row])
    step = {int(row["loop"]): row for row in moved}  # type: ignore[arg-type]
    last = step[asked.calls]
    verdicts = [
        Verdict(
            "4a", asked.name, bool(last["step_high"] < step[2]["step_low"]),  # type: ignore[operator]
            {"second": float(step[2]["step"]), "last": float(last["step"])},  # type: ignore[arg-type]
        )
    ]  # fmt: skip
    turns = [float(step[loop]["turn"]) for loop in range(3, asked.calls + 1)]  # type: ignore[arg-type]
    verdicts.append(
        Verdict(
            "4b", asked.name, all(abs(turn) <= 0.3 for turn in turns),
            {"least": min(turns), "most": max(turns)},
        )
    )  # fmt: skip
    if asked.answers is not None and asked.calls > 3:
        recording = record_loops(asked.model, asked.tokens, asked.program(), rows=[asked.row])
        cost = {rule: _cheapest(recording, asked.answers, rule) for rule in ("second", "kl")}
        verdicts.append(Verdict("4c", asked.name, cost["second"] < cost["kl"], cost))
    return verdicts


def _cheapest(recording: Any, answers: Tensor, rule: str) -> float:
    """The fewest calls on average within one point of the accuracy after the last."""
    numbers = recording.numbers[rule]
    ladder = np.unique(np.quantile(numbers[~np.isnan(numbers)], np.linspace(0, 1, 101)))
    full = float((recording.answers[-1][:, 0] == answers.numpy()).mean())
    found = exits(recording, answers, rules=[rule], thresholds={rule: [*ladder, -1.0]})
    return float(found["loops"][found["accuracy"] >= full - 0.01].min())


def growing(asked: Asked) -> Verdict:
    """Claims 5a and 5b; a model of neither kind is only measured."""
    moved = trajectories(asked.model, asked.tokens, asked.program(4), rows=[asked.row])
    norm = {loop: float(value) for loop, value in zip(moved["loop"], moved["norm"], strict=True)}
    numbers = {"one": norm[1], "trained": norm[asked.calls], "four times": norm[4 * asked.calls]}
    ratio = numbers["four times"] / numbers["trained"]
    if asked.normed:
        return Verdict("5b", asked.name, ratio <= 1.5, numbers)
    return Verdict("5a", asked.name, ratio >= 10 if asked.stepwise else None, numbers)


def attributed(asked: Asked) -> dict[str, Any]:
    """First-order attribution of every head output at the row of the answer, beside the exact sweep."""
    asked = paired(asked)
    found = attribution(
        asked.model, asked.tokens, asked.program(), _heads(asked), "(" + asked.program() + ")@other",
        others={"other": asked.others}, rows=[asked.row], exact=True,
    )  # fmt: skip
    rank = found.about["rank correlation"]
    best = [int(np.argmax(np.abs(found[name]))) for name in ("approximate", "exact")]
    return {"model": asked.name, "places": len(found), "rank": rank, "same": best[0] == best[1],
            "strongest": float(np.abs(found["exact"]).max())}  # fmt: skip


def _heads(asked: Asked) -> list[str]:
    """Every head of every call, in the layers that are looked at."""
    heads = range(asked.model.heads)
    return [f"loop[*].layer[{layer}].head[{head}].row[{asked.row}].z" for layer in asked.looked_at for head in heads]


# ---- the page -------------------------------------------------------------------------------------------------------

QUESTIONS: Sequence[Callable[[Asked], Any]] = (settled, lasting, stepping, growing)


def judged(asked: Asked) -> dict[str, Any]:
    """All verdicts on a model, and attribution beside its exact sweep."""
    verdicts: list[Verdict] = []
    for question in QUESTIONS:
        found = question(asked)
        verdicts += found if isinstance(found, list) else [found]
    return {"verdicts": [asdict(each) for each in verdicts], "attribution": attributed(asked)}


CLAIMS = ("1", "2a", "2b", "4a", "4b", "4c", "5a", "5b")
COLUMNS: Mapping[str, Callable[[Mapping[str, float]], str]] = {
    "1: at a fixed point": lambda found: f"{found['fixed']:.0%}",
    "1: patterns change": lambda found: f"{found['pattern']:.3f}",
    "4a: step of call 2, L": lambda found: f"{found['second']:.3g}, {found['last']:.3g}",
    "4b: cosines": lambda found: f"{found['least']:.2f} to {found['most']:.2f}",
    "4c: calls by second difference, KL": lambda found: f"{found['second']:.2f}, {found['kl']:.2f}",
    "5: norm after call 1, L, 4L": lambda found: ", ".join(f"{value:.3g}" for value in found.values()),
}
"""What the second table has of a model: the claim that a column is of, and its cell."""


def tables(kept: Mapping[str, Any]) -> Mapping[str, str]:
    """What the page shows, by the names of its marks."""
    verdicts = {name: [Verdict(**each) for each in model["verdicts"]] for name, model in kept.items()}
    sites = ("v", "z", "resid")
    return {
        "verdicts": _table(
            ("model", *CLAIMS), ([name, *(_held(mine, claim) for claim in CLAIMS)] for name, mine in verdicts.items())
        ),
        "measured": _table(
            ("model", *COLUMNS), ([name, *(_cell(mine, each) for each in COLUMNS)] for name, mine in verdicts.items())
        ),
        "spans": _table(
            ("model", "layer", *(f"`{site}`" for site in sites)),
            (
                [name, layer, *(_span(mine, layer, site) for site in sites)]
                for name, mine in verdicts.items()
                for layer in dict.fromkeys(_layer(each.place) for each in mine if each.place)
            ),
        ),
        "attribution": _table(
            ("model", "places", "rank correlation", "same strongest", "its exact effect"),
            (_ranked(model["attribution"]) for model in kept.values()),
        ),
    }  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _held(mine: Sequence[Verdict], claim: str) -> str:
    """Whether a claim holds for a model, or for how many of the sites that could be asked."""
    there = [each.holds for each in mine if each.claim == claim and each.holds is not None]
    if len(there) > 1:
        return f"{sum(there)} of {len(there)}"
    return "-" if not there else "holds" if there[0] else "no"


def _cell(mine: Sequence[Verdict], column: str) -> str:
    found = [each.numbers for each in mine if each.claim.startswith(column.partition(":")[0])]
    return COLUMNS[column](found[0]) if found else "-"


def _span(mine: Sequence[Verdict], layer: str, site: str) -> str:
    """How many calls are enough at a site; where it does not carry the answer, what all of them recover."""
    found = next(each for each in mine if _layer(each.place) == layer and each.place.endswith(f".{site}"))
    if found.holds is None:
        return f"({found.numbers['whole']:.2f})"
    return "{width:.0f} of {calls:.0f}, from {first:.0f}".format(**found.numbers)


def _layer(place: str) -> str:
    return place.partition("]")[0].removeprefix("layer[")


def _ranked(each: Mapping[str, Any]) -> Sequence[str]:
    rank = "{value:.2f} [{low:.2f}, {high:.2f}]".format(**each["rank"])
    return each["model"], str(each["places"]), rank, "yes" if each["same"] else "no", f"{each['strongest']:.3f}"


def written(page: str, kept: Mapping[str, Any]) -> str:
    """The page with its tables as they follow from what was measured."""
    for name, table in tables(kept).items():
        begin, end = f"<!-- {name}, by four_claims.py -->", "<!-- end -->"
        made = f"{begin}\n\n{table}\n\n{end}"
        page, times = re.subn(f"{begin}.*?{end}", lambda _, made=made: made, page, flags=re.DOTALL)
        assert times == 1, f"{name} has its marks on the page once"
    return page


def main() -> None:
    """Measure, keep it, and write what came out between the marks of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smollm2", metavar="FOLDER")
    parser.add_argument("--only", metavar="NAME")
    parser.add_argument("--kept", action="store_true", help="ask nothing, only write the tables")
    options = parser.parse_args()
    page, file = HERE / "four-claims.md", HERE / "four-claims.json"
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if not options.kept:
        for asked in (*walkers(), *chains(), *(untrained(options.smollm2) if options.smollm2 else ())):
            if options.only in (None, asked.name):
                print(asked.name, flush=True)
                kept[asked.name] = judged(asked)
                file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page.write_text(written(page.read_text(encoding="utf-8"), kept), encoding="utf-8")


if __name__ == "__main__":
    main()
