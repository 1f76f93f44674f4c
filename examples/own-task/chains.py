"""Chains of additions modulo 7 as a task of one's own: a file of examples made from facts, offline.

    python chains.py            # writes chains.jsonl (one to four additions) and short.jsonl (one or two of them)

Addition does not mind the order, so all orders of the same numbers are one question.  Their sorted numbers are the
`cluster`, and the SHA-256 of the cluster tells what is held out, the same in both files: of a held-out chain, a model
that learned from either file has seen no order.  Chains of one addition are all learned from.  The corrupt prompt of a
chain has another first number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from pathlib import Path

MODULUS, LONGEST, EACH, SEED = 7, 4, 400, 7
HELD_OUT = 0.5
"""Half of the clusters: three numbers below 7 can be chosen in 84 ways only, and a share needs more than a few."""


def prompt(numbers: tuple[int, ...]) -> str:
    """3 + 5 + 1 ="""
    return f"{' + '.join(map(str, numbers))} ="


def cluster(numbers: tuple[int, ...]) -> str:
    """What all orders of the same numbers have in common: 1+3+5."""
    return "+".join(map(str, sorted(numbers)))


def held_out(numbers: tuple[int, ...]) -> bool:
    """Whether these numbers are held out, in whatever order."""
    return int(hashlib.sha256(cluster(numbers).encode()).hexdigest()[:8], 16) / 2**32 < HELD_OUT


def line(numbers: tuple[int, ...]) -> dict[str, object]:
    """One example: the sum modulo 7, and as many steps as there are additions."""
    first, *rest = numbers
    other = ((first + 1) % MODULUS, *rest)
    return {
        "prompt": prompt(numbers),
        "answer": str(sum(numbers) % MODULUS),
        "steps": len(rest),
        "corrupt": prompt(other),
        "corrupt_answer": str(sum(other) % MODULUS),
        "cluster": cluster(numbers),
        "split": "test" if held_out(numbers) and len(rest) > 1 else "train",
    }


def chains(steps: int) -> list[tuple[int, ...]]:
    """All chains of so many additions, or as many of them as are kept."""
    every = list(itertools.product(range(MODULUS), repeat=steps + 1))
    return every if len(every) <= EACH else sorted(random.Random(SEED).sample(every, EACH))


def write(folder: Path) -> None:
    """Write both files."""
    for name, longest in (("chains.jsonl", LONGEST), ("short.jsonl", 2)):
        found = [line(numbers) for steps in range(1, longest + 1) for numbers in chains(steps)]
        (folder / name).write_text("".join(f"{json.dumps(each)}\n" for each in found), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
