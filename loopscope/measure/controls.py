"""Patches that say what some heads carry of a map, with their controls: the steering test and the restoration test.

The *steered* program has a map, the *unsteered* one the same calls without it.  Patches act on every row.

**steering**: does the pattern of these heads carry what the map does?  Patterns of the steered run go into the
unsteered one (`rescue`) and back (`damage`); `outputs` say what the heads carry altogether.  Controls: values instead,
patterns of the steered run on an unrelated input, of another loop (`wrong loop`: the next one, and loop 2 for the
last; none of a program with a single call), at comparison heads, at the other heads of the same layers (`complement`),
at all heads of the late layers, and the run's own pattern and output, which must change nothing.

**restoration**: all queries of the heads' layers are replaced by those of the steered run on a reference input; then
outputs of the clean run are put back: at the chosen heads, at comparison heads, at one layer's chosen heads, at all
heads of these layers, which must restore the clean run exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loopscope.errors import InputError
from loopscope.measure.heads import Heads, Selection, late_layers
from loopscope.models.passes import LanguageModel
from loopscope.program import Call, Program, Run
from loopscope.protocol import LoopedModel

BASE, SOURCE, REFERENCE = "base", "source", "reference"
"""Inputs: what is asked, an unrelated or other question, and the one whose queries are taken to be restored from."""

LAYER = "layer "
"""What rows of the restoration test are called that put back the chosen heads of one layer, before its number."""


@dataclass(frozen=True)
class Chosen:
    """The heads that are patched, in which loops, those they are compared with, and the late layers of the model."""

    heads: Heads
    comparison: Heads
    complement: Heads
    late: Heads
    loops: tuple[int, ...]

    @classmethod
    def of(cls, heads: Heads, model: LanguageModel, loops: Iterable[int], late: Iterable[int] | None = None) -> Chosen:
        """The comparisons of some heads; InputError for heads or loops that the model has not."""
        return cls.within(heads, model, loops, model.loops, late)

    @classmethod
    def within(
        cls, heads: Heads, model: LoopedModel, loops: Iterable[int], calls: int, late: Iterable[int] | None = None
    ) -> Chosen:
        """The same in programs of so many calls, for any model."""
        heads.check(model)
        used = tuple(loops)
        if not used or not set(used) <= set(range(1, calls + 1)):
            raise InputError(f"loops {list(used)} do not exist: the model makes loops 1..{calls}")
        layers = late_layers(len(model.layers)) if late is None else late
        every = Heads.every(heads.by_layer, model.heads)
        return cls(heads, heads.comparison(model.heads), every - heads, Heads.every(layers, model.heads), used)

    @classmethod
    def selected(cls, selection: Selection, model: LanguageModel) -> Chosen:
        """Those of a selection."""
        return cls.of(selection.heads, model, selection.loops, selection.late)


@dataclass(frozen=True)
class Condition:
    """One row of a test: a program on one of the inputs; `whole` rows are also generated.

    `like` names a condition whose logits this one must have, up to rounding.
    """

    program: Program
    input: str = BASE
    whole: bool = False
    like: str = ""


def steering(
    plain: Program, steered: Program, chosen: Chosen | None, every: Iterable[int], unrelated: str = SOURCE
) -> dict[str, Condition]:
    """The rows of the steering test; without chosen heads, those that patch nothing.

    `every` are the loops that the map has acted before, in which all late heads are patched.
    """
    found = {"unsteered": Condition(plain, whole=True), "steered": Condition(steered, whole=True)}
    if chosen is None:
        return found
    all_loops = tuple(every)

    def rescue(heads: Heads, source: Run, component: str = "pattern", at: Iterable[int] = chosen.loops) -> Program:
        return heads.patch(plain, component, source, at)

    def damage(heads: Heads, at: Iterable[int] = chosen.loops) -> Program:
        return heads.patch(steered, "pattern", Run(plain), at)

    heads, donor = chosen.heads, Run(steered)
    found |= {
        "rescue": Condition(rescue(heads, donor), whole=True),
        "damage": Condition(damage(heads), whole=True),
        "outputs": Condition(rescue(heads, donor, "z")),
        "values": Condition(rescue(heads, donor, "v"), whole=True),
        "unrelated": Condition(rescue(heads, Run(steered, unrelated)), whole=True),
    }
    if all(_others(steered, loop) for loop in chosen.loops):
        found["wrong loop"] = Condition(wrong_loop(plain, heads, chosen.loops, steered), whole=True)
    found |= {
        "late rescue": Condition(rescue(chosen.late, donor, at=all_loops)),
        "late damage": Condition(damage(chosen.late, all_loops)),
        "self-pattern": Condition(rescue(heads, Run(plain)), like="unsteered"),
        "self-output": Condition(rescue(heads, Run(plain), "z"), like="unsteered"),
    }
    for name, others in (("comparison", chosen.comparison), ("complement", chosen.complement)):
        if others:
            found[name] = Condition(rescue(others, donor), whole=name == "comparison")
            found[f"{name} damage"] = Condition(damage(others))
    return found


def wrong_loop(
    program: Program, heads: Heads, loops: Iterable[int], donor: Program, given: str | None = None
) -> Program:
    """Patterns of another loop of the donor: of the next one; for the last, of loop 2, or of 1 where 2 is the last.

    With several stacks, loops are the calls of the same stack.  A donor that calls it once has no wrong loop.
    """
    for loop in loops:
        program = heads.patch(program, "pattern", Run(donor, given, _others(donor, loop)[0]), [loop])
    return program


def _others(donor: Program, loop: int) -> list[int]:
    """The other calls of the stack that is called in this loop, in the order in which they stand for a wrong one."""
    stacks = {donor.loop_of(at): step.stack for at, step in enumerate(donor.steps) if isinstance(step, Call)}
    alike = [each for each, stack in stacks.items() if stack == stacks[loop]]
    at = alike.index(loop)
    return [*alike[at + 1 :], *alike[1:at], *alike[: min(at, 1)]]


def restoration(steered: Program, chosen: Chosen | None, reference: str = REFERENCE) -> dict[str, Condition]:
    """The rows of the restoration test; without chosen heads, those that patch nothing."""
    found = {"clean": Condition(steered, whole=True), reference: Condition(steered, reference)}
    if chosen is None:
        return found
    affected = Heads((*chosen.heads, *chosen.complement))
    replaced = affected.patch(steered, "q", Run(steered, reference), chosen.loops)

    def restored(heads: Heads) -> Program:
        return heads.patch(replaced, "z", Run(steered), chosen.loops)

    found["replaced"] = Condition(replaced, whole=True)
    found["selected"] = Condition(restored(chosen.heads), whole=True)
    if chosen.comparison:
        found["comparison"] = Condition(restored(chosen.comparison), whole=True)
    for layer in chosen.heads.by_layer:
        found[f"{LAYER}{layer}"] = Condition(restored(chosen.heads.of_layer(layer)))
    found["all"] = Condition(restored(affected), whole=True, like="clean")
    return found
