"""The mechanism experiments as programs.

All act in the extra call after the trained ones (call 7 of a six-loop model).  Two experiments use them:

- `crossing`: patches at ANSWER in the second layer, between two graphs, between a steered run and an unsteered one, and
  between two starts of a graph.  The receiver runs on the main input.  Two aligned inputs stand beside it: `giver`,
  another graph whose current node is w, and `shifted`, the same graph with current node w, where w = current + 3 mod N
  as a label.
- `switching`: patches on every row between runs that differ in their map alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from loopscope.address import Address, Site
from loopscope.program import F, J, Program, Run

LAYER = 2
ANSWER = (-1,)
WHOLE = ("resid", "attn_out", "mlp_out")
"""What a layer's result adds up to: the state that enters it and what its two sublayers add."""


# ---- programs --------------------------------------------------------------------------------------------------------


def extra_call(loops: int, map_name: str | None = None) -> Program:
    """The trained calls and one more, which the map of this name comes before."""
    return F**loops | F if map_name is None else F**loops | J(map_name) | F


def exchange(
    receiver: Program,
    giver: Program | Run,
    components: Iterable[str],
    layers: Iterable[int] = (LAYER,),
    heads: tuple[int, ...] | None = None,
    rows: tuple[int, ...] | None = None,
) -> Program:
    """`receiver` with these components in its last call taken from `giver`; heads and rows are all unless named."""
    patched = receiver
    for layer, component in product(layers, components):
        patched = patched.patch(Address(receiver.calls, Site(layer, component, heads, rows)), giver)
    return patched


def crossing_runs(loops: int, heads: int, one: str = "one") -> dict[str, Program]:
    """The runs of `crossing` with the map called `one`, by name.

    `unsteered` and `steered` are the clean runs; `pattern h` and `output h` move head h's pattern or output from the
    other graph; `J->0` puts patterns of the steered run into the unsteered one and `0->J` does the reverse (all heads,
    and each alone); `broken` replaces the queries by those of the shifted run, and `restored ...` puts clean head
    outputs back into it.
    """
    unsteered, steered = extra_call(loops), extra_call(loops, one)
    broken = exchange(steered, Run(steered, "shifted"), ("q",), rows=ANSWER)
    runs = {"unsteered": unsteered, "steered": steered, "broken": broken}
    for head in range(heads):
        for name, component in (("pattern", "pattern"), ("output", "z")):
            patched = exchange(steered, Run(steered, "giver"), (component,), heads=(head,), rows=ANSWER)
            runs[f"{name} {head}"] = patched
    choices = {"all": None} | {str(head): (head,) for head in range(heads)}
    for label, chosen in choices.items():
        runs[f"J->0 {label}"] = exchange(unsteered, steered, ("pattern",), heads=chosen, rows=ANSWER)
        runs[f"0->J {label}"] = exchange(steered, unsteered, ("pattern",), heads=chosen, rows=ANSWER)
        runs[f"restored {label}"] = exchange(broken, steered, ("z",), heads=chosen, rows=ANSWER)
    return runs


def battery(loops: int = 6, heads: int = 4) -> dict[str, Program]:
    """Every run the paper reports on one fit of J_one and J_two: those of `crossing`, and the two switches of patterns.

    `two->one` puts the patterns of the run with J_two, on every row, into the run with J_one.
    """
    one, two = extra_call(loops, "one"), extra_call(loops, "two")
    switches = {
        "two": two,
        "two->one": exchange(one, two, ("pattern",)),
        "one->two": exchange(two, one, ("pattern",)),
    }
    return crossing_runs(loops, heads) | switches
