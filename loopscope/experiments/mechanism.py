"""The mechanism battery: which patched runs decide what carries the choice made by J.

All act in the extra call after the trained ones (call 7 of a six-loop model), in its second layer.  The receiver runs
on the main input.  Two aligned inputs stand beside it: `giver`, another graph whose current node is w, and `shifted`,
the same graph with current node w, where w = current + 3 mod 10 as a label.
"""

from __future__ import annotations

from loopscope.address import Address, Site
from loopscope.program import F, J, Program, Run

LAYER = 2
ANSWER = (-1,)


def battery(loops: int = 6, heads: int = 4) -> dict[str, Program]:
    """Every run of the battery by name.

    `unsteered`, `one`, `two` are the clean runs; `pattern h` and `output h` move head h's pattern or output from the
    other graph; `steered->unsteered` and `unsteered->steered` exchange patterns (all heads, and each alone); `two->one`
    and `one->two` put one map's patterns, on every row, into the other's run; `broken` replaces the queries by those of
    the shifted run, and `restored ...` puts clean head outputs back into it.
    """
    clean = {
        "unsteered": F**loops | F,
        "one": F**loops | J("one") | F,
        "two": F**loops | J("two") | F,
    }
    one, unsteered = clean["one"], clean["unsteered"]

    def at(component: str, head: int | None, rows: tuple[int, ...] | None = ANSWER) -> Address:
        return Address(loops + 1, Site(LAYER, component, None if head is None else (head,), rows))

    runs = dict(clean)
    for head in range(heads):
        runs[f"pattern {head}"] = one.patch(at("pattern", head), Run(one, "giver"))
        runs[f"output {head}"] = one.patch(at("z", head), Run(one, "giver"))
    choices: list[tuple[str, int | None]] = [("all", None), *((str(h), h) for h in range(heads))]
    for label, chosen in choices:
        runs[f"steered->unsteered {label}"] = unsteered.patch(at("pattern", chosen), one)
        runs[f"unsteered->steered {label}"] = one.patch(at("pattern", chosen), unsteered)
    runs["two->one"] = one.patch(at("pattern", None, None), clean["two"])
    runs["one->two"] = clean["two"].patch(at("pattern", None, None), one)
    broken = one.patch(at("q", None), Run(one, "shifted"))
    runs["broken"] = broken
    for label, chosen in choices:
        runs[f"restored {label}"] = broken.patch(at("z", chosen), one)
    return runs
