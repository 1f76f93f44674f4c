"""Records of language models with planted answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from loopscope.measure.replies import answers_name, as_bytes
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.records import ModelFacts, Record
from loopscope.tasks.letters import NAMES
from loopscope.tasks.letters.pairs import pairs

KEY = "0" * 64

ABOUT = {"model": {"type": "llama", "layers": 30, "heads": 9, "width": 576, "parameters": 134_515_008}}

LOST = torch.tensor(255, dtype=torch.uint8)


def record(experiment: str, predictions: dict[str, dict[str, Tensor]], settings: dict[str, object]) -> Record:
    facts = ModelFacts("smollm2-135m", KEY, 4, 8, 0, 9, {"J": 1})
    return Record(experiment, facts, predictions, settings, {}, dict(ABOUT), raw=True)


def letters(test: str, counts: Mapping[str, int | Mapping[str, int]]) -> Record:
    """So many B (or D, E) in the first pairs of each condition, nobody in the others."""
    found = {}
    for name, wanted in counts.items():
        answers = LOST.repeat(256)
        start = 0
        for which, count in ({"B": wanted} if isinstance(wanted, int) else wanted).items():
            for place in range(start, start + count):
                answers[place] = NAMES.index(getattr(pairs(test)[place], which))
            start += count
        found[name] = answers
    settings: dict[str, object] = {"set": test, "pairs": 256, "heads": "5.1", "patched": [4], "late": [5]}
    return record(
        "letters", {test: found, f"{test}-whole": {name: each.clone() for name, each in found.items()}}, settings
    )


PAPER_STEERING = {
    "unsteered": 0, "steered": 251, "rescue": 248, "damage": 0, "values": 0, "unrelated": 0, "wrong loop": 0,
    "comparison": 0,
}  # fmt: skip

PAPER_CONTENT = {"base": {"B": 252}, "pattern": {"B": 37, "E": 182}, "output": {"B": 5, "D": 240, "E": 7}}

PAPER_RESTORATION = {"clean": 251, "replaced": 2, "selected": 251, "comparison": 2, "all": 251}


@cache
def antonyms(form: str, deep: int, loop: int, sequences: int = 64) -> Record:
    """The first `deep` requests at depths 5 to 8 are right with J, and the first `loop` readouts of every loop."""
    requests = antonym_tests.depth_requests(0, sequences)
    long = [number for number, request in enumerate(requests) if request.k > 4][:deep]
    said = [request.answer if number in long else "hot" for number, request in enumerate(requests)]
    depths = {
        answers_name(template, steered): as_bytes(said if steered else ["..."] * len(said))
        for template in antonym_tests.TEMPLATES
        for steered in (False, True)
    }
    readouts = {}
    for way in antonym_tests.WAYS:
        for t in range(1, 5):
            mine = antonym_tests.readout_requests(form, sequences)
            right = [f"{each.stages[t - 1] if form == 'stepwise' else each.answer}. And so on" for each in mine]
            readouts[antonym_tests.readout_name(way, t)] = as_bytes(
                [*right[:loop], *["far near"] * (len(right) - loop)]
            )
    made = record("antonyms", {"depths": depths, "readouts": readouts}, {"supervision": form, "sequences": sequences})
    return replace(made, facts=replace(made.facts, name=form))


Counts = tuple[int, int, int, int]
"""By branch, in the order of BRANCHES."""

BRANCHES = ("J+F", "F", "J", "stop")

PAPER_COUNTS = (574, 183, 200, 164)


def iterations(held_out: Counts, trained: Counts = PAPER_COUNTS, cases: int = 32) -> Record:
    """In each branch, so many of the long requests are right, the first ones, and all short ones."""
    found = {}
    for group, split, counts in (("iterations", "test", held_out), ("trained-starts", "train", trained)):
        requests = iteration_tests.requests(cases, split)
        long = [number for number, request in enumerate(requests) if request.k > 4]
        found[group] = {}
        for branch, count in zip(BRANCHES, counts, strict=True):
            wrong = set(long[count:])
            said = ["0x" if n in wrong else f" {each.answer}\n" for n, each in enumerate(requests)]
            found[group][branch] = as_bytes(said)
    return record("iterations", found, {"cases": cases})


def commonest(task: str, split: str, cases: int = 32) -> float:
    """How many of a task's long requests the commonest answer to each k gets right."""
    requests = [each for each in iteration_tests.requests(cases, split) if each.task == task]
    answers = [Counter(each.answer for each in requests if each.k == k) for k in range(5, 9)]
    return sum(max(counts.values()) for counts in answers) / (4 * cases)
