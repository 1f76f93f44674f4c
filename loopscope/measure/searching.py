"""Which heads carry the steering?  A search on discovery prompts, before any evaluation prompt is looked at.

The *steered* run has the steering map before loops 2..L, the *unsteered* run has none.  A *scope* is some heads in some
loops.  Two patches test it:

    rescue    the unsteered run with the steered run's attention patterns in the scope: how often is it right now?
    damage    the steered run with the unsteered run's patterns there: how often is it still right?

A scope *passes* if rescue keeps nine tenths of the steered score, and damage leaves at most one tenth of it or as
little as the unsteered run has.  The search makes the scope smaller, step by step:

1. Layers: the last third, then the last half, then all, with all their heads in loops 2..L.  The first that passes is
   taken.  If none does, the same is tried in the last loop alone, as a run that is patched loop after loop may drift
   away.  If none does either, all layers are taken, in those loops that rescue with the larger probability, and from
   then on rescue need keep nine tenths of theirs.
2. These layers are cut into four groups, as equal as can be: the fewest groups that pass together.
3. Of their layers, three that pass.  Where no three do: more, in the order of what leaving each out costs.
4. Of their heads, ranked by what leaving each out costs (rescue probability lost plus damage probability gained), the
   smallest leading set that passes.
5. Loops: the last alone if that passes, otherwise those so far.
6. On confirmation prompts: the smallest leading set, from that size on, that passes there.

Where several scopes of a step pass, it is the one with the largest mean rescue probability.  Where none does, the
search goes on with all that the step was given and says so (`passed`).  Every scope that was tried is kept with its
counts.  Layers are counted from 1, as in all addresses; the paper counts them from 0, so its L41.H2 is 42.2 here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.log import Log, silent
from loopscope.measure.heads import Heads, Selection, Tried, late_layers
from loopscope.models.placement import between, names_in, without_maps
from loopscope.pieces import pieces_of
from loopscope.program import Call, Map, Program, ProgramLike, Run, as_program
from loopscope.protocol import LoopedModel, TokenMap

MAP_NAME = "step"
"""What programs call the steering map."""

KEEPS, LEAVES = 0.9, 0.1
"""Shares of the steered score: what rescue must keep, and what damage may leave if the unsteered run has no more."""

GROUPS, LAYERS, MOST_LAYERS = 4, 3, 10
"""Groups of step 2, layers of step 3, and how many layers all triples are tried of."""

AT_ONCE = 48
"""Programs in one run: they share their unpatched runs, and their logits must be held together."""


def may_leave(steered: int, unsteered: int) -> float:
    """How many right answers damage may leave, where the steered and the unsteered run have so many."""
    return max(LEAVES * steered, float(unsteered))


Scope = tuple[Heads, tuple[int, ...]]
"""Some heads in some loops."""


class _Trials:
    """Tries scopes on prompts of one length, each against the steered and the unsteered run."""

    def __init__(
        self, model: LoopedModel, steering_map: TokenMap, steered: Program, tokens: Int[Tensor, "B T"],
        answers: Int[Tensor, " B"], log: Log,
    ) -> None:  # fmt: skip
        self.model, self.tokens, self.answers, self.log = model, tokens, answers, log
        self.plain, self.steered = without_maps(steered), steered
        self.maps = dict.fromkeys(names_in(steered), steering_map)
        self.every = self.used = loops_behind(model, steered)
        self.forwards = 0.0
        self.tried: list[Tried] = []
        (self.unsteered_right, _), (self.steered_right, _) = self._scores([self.plain, self.steered])
        self.rescuable = self.steered_right

    def all_of(self, layers: Iterable[int]) -> Scope:
        """All heads of these layers, in the loops that scopes have: at first all that a map stands before."""
        return Heads.every(layers, self.model.heads), self.used

    def attempt(self, step: str, scopes: Sequence[Scope]) -> list[Tried]:
        """Try scopes, all at once."""
        self.log(f"{step}, {len(scopes)} scopes on {len(self.tokens)} prompts")
        rescues = [heads.patch(self.plain, "pattern", Run(self.steered), loops) for heads, loops in scopes]
        damages = [heads.patch(self.steered, "pattern", Run(self.plain), loops) for heads, loops in scopes]
        scores = self._scores([*rescues, *damages])
        made = []
        for (heads, loops), saved, hurt in zip(scopes, scores[: len(scopes)], scores[len(scopes) :], strict=True):
            spared = may_leave(self.steered_right, self.unsteered_right)
            passed = saved[0] >= max(1, KEEPS * self.rescuable) and hurt[0] <= spared
            made.append(Tried(step, str(heads), loops, saved[0], hurt[0], saved[1], hurt[1], passed))
        self.tried += made
        return made

    def _scores(self, programs: Sequence[Program]) -> list[tuple[int, float]]:
        """For every program, how many answers are right and their mean probability."""
        found = []
        for start in range(0, len(programs), AT_ONCE):
            mine = programs[start : start + AT_ONCE]
            result = run(self.model, self.tokens, mine, maps=self.maps)
            self.forwards += result.work.forwards * len(self.tokens)
            for program in mine:
                logits = result[program].logits[:, 0].float()
                answers = self.answers.to(logits.device)
                likely = logits.softmax(-1).gather(1, answers[:, None])
                found.append((int((logits.argmax(-1) == answers).sum()), float(likely.mean())))
        return found


def select(
    model: LoopedModel,
    steering_map: TokenMap,
    tokens: Int[Tensor, "B T"],
    answers: Int[Tensor, " B"],
    *,
    loops: int | None = None,
    program: ProgramLike | None = None,
    confirmation: tuple[Int[Tensor, "C T"], Int[Tensor, " C"]] | None = None,
    log: Log = silent,
) -> Selection | None:
    """Search as the module says; None where the map brings no more right answers, so that nothing can be rescued.

    `tokens` are the discovery prompts, of one length; `answers` the first token of each answer; `steering_map`
    stands before loops 2..L (`loops`, by default the model's), or where a `program` with one map has it: scopes are
    then searched in the loops behind its first.  `log` gets a line before every step of the search.

    InputError as `execute.run`, for a single loop, before which no map stands, and a program without a map and a loop
    behind it, or with patches.
    """
    steered = _between(model, loops) if program is None else as_program(program)
    check_steered(steered)
    trials = _Trials(model, steering_map, steered, tokens, answers, log)
    if trials.steered_right <= trials.unsteered_right:
        return None
    late, steps = _late(trials)
    layers, grouped = _groups(trials, late)
    layers, three = _three(trials, layers)
    ranked = _ranked(trials, "heads left out", [Heads((each,)) for each in trials.all_of(layers)[0]])
    leading = [Heads(tuple(each for one in ranked[:size] for each in one)) for size in range(1, len(ranked) + 1)]
    found = _first(trials.attempt("leading heads", [(heads, trials.used) for heads in leading]))
    passed = steps and grouped and three and found is not None
    size = len(leading) if found is None else found + 1
    used = trials.used
    if len(used) > 1:
        last, _ = trials.attempt("loops", [(leading[size - 1], used[-1:]), (leading[size - 1], used[:-1])])
        used = used[-1:] if last.passed else used
    if confirmation is not None:
        check = _Trials(model, steering_map, steered, *confirmation, log)
        if not steps:
            (whole,) = check.attempt("confirmation, all", [(Heads.every(late, model.heads), used)])
            check.rescuable = whole.rescued
        found = _first(check.attempt("confirmation", [(heads, used) for heads in leading[size - 1 :]]))
        passed, size = passed and found is not None, size + (found or 0)
        trials.tried += check.tried
        trials.forwards += check.forwards
    return Selection(
        leading[size - 1], used, late, passed, len(tokens), trials.unsteered_right, trials.steered_right,
        trials.forwards, tuple(trials.tried),
    )  # fmt: skip


def _between(model: LoopedModel, loops: int | None) -> Program:
    count: int = getattr(model, "loops", 1) if loops is None else loops
    if count < 2:
        raise InputError(f"a map stands before loops 2..L; with {count} loops there is none (nearest: 2)")
    return between(MAP_NAME, count)


def loops_behind(model: LoopedModel, program: Program) -> tuple[int, ...]:
    """The calls after the first map; with several stacks those of the last, whose layers are the model's `layers`.

    InputError where there is none.
    """
    last = [*pieces_of(model).stacks][-1]
    first = next((at for at, step in enumerate(program.steps) if isinstance(step, Map)), len(program.steps))
    found = tuple(
        program.loop_of(at)
        for at, step in enumerate(program.steps)
        if isinstance(step, Call) and step.stack == last and at > first
    )
    if not found:
        raise InputError(f"'{program}' calls {last} nowhere behind its map (nearest: {program} {last})")
    return found


def check_steered(program: Program) -> None:
    """InputError unless heads can be searched that carry what the only map of a program does, whatever the model."""
    if program != program.skeleton:
        raise InputError(f"'{program}' has patches; heads are searched for one without (nearest: {program.skeleton})")
    if len(names := names_in(program)) != 1:
        raise InputError(f"heads are searched for one map; '{program}' has {', '.join(names) or 'none'}")
    if not any(isinstance(step, Call) for step in program.steps[program.steps.index(Map(names_in(program)[0])) :]):
        raise InputError(f"'{program}' has no call behind its map (nearest: {program} F)")


def _late(trials: _Trials) -> tuple[tuple[int, ...], bool]:
    """The fewest late layers that pass, and whether any do."""
    whole: dict[tuple[int, ...], Tried] = {}
    for loops in dict.fromkeys((trials.every, trials.every[-1:])):
        trials.used = loops
        for share in (3, 2, 1):
            late = late_layers(len(trials.model.layers), share)
            (found,) = trials.attempt("late layers", [trials.all_of(late)])
            if found.passed:
                return late, True
        whole[loops] = found
    trials.used = max(whole, key=lambda loops: whole[loops].rescue)
    trials.rescuable = whole[trials.used].rescued
    return late, False


def _groups(trials: _Trials, late: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """The layers of the fewest groups that pass together, and whether fewer than all did."""
    parts = [tuple(part.tolist()) for part in torch.tensor(late).tensor_split(min(GROUPS, len(late)))]
    for count in range(1, len(parts)):
        joined = [tuple(layer for part in some for layer in part) for some in combinations(parts, count)]
        best = _best(trials.attempt(f"groups, {count} together", [trials.all_of(layers) for layers in joined]))
        if best is not None:
            return joined[best], True
    return late, len(parts) == 1


def _three(trials: _Trials, layers: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """Three of these layers that pass, or the fewest more, and whether fewer than all did."""
    if len(layers) <= LAYERS:
        return layers, True
    ranked: list[int] = []
    if len(layers) > MOST_LAYERS:
        ranked = _ranked_layers(trials, layers)
    triples = list(combinations(sorted(ranked[:MOST_LAYERS] or layers), LAYERS))
    best = _best(trials.attempt("triples of layers", [trials.all_of(each) for each in triples]))
    if best is not None:
        return triples[best], True
    ranked = ranked or _ranked_layers(trials, layers)
    leading = [tuple(sorted(ranked[:size])) for size in range(LAYERS + 1, len(ranked))]
    found = _first(trials.attempt("leading layers", [trials.all_of(each) for each in leading])) if leading else None
    return (layers, False) if found is None else (leading[found], True)


def _ranked_layers(trials: _Trials, layers: tuple[int, ...]) -> list[int]:
    parts = [trials.all_of([layer])[0] for layer in layers]
    return [heads.chosen[0][0] for heads in _ranked(trials, "layers left out", parts)]


def _ranked(trials: _Trials, step: str, parts: list[Heads]) -> list[Heads]:
    """Parts of a scope by what leaving each out costs, the costliest first; of equals, the later in the model first."""
    if len(parts) == 1:
        return parts
    whole = Heads(tuple(each for part in parts for each in part))
    full, *tried = trials.attempt(step, [(whole, trials.used), *((whole - part, trials.used) for part in parts)])
    costs = [(full.rescue - each.rescue) + (each.damage - full.damage) for each in tried]
    return [parts[at] for at in sorted(range(len(parts)), key=lambda at: (-costs[at], -at))]


def _best(tried: Sequence[Tried]) -> int | None:
    """Which of those that passed has the largest rescue probability."""
    passed = [number for number, each in enumerate(tried) if each.passed]
    return max(passed, key=lambda number: tried[number].rescue, default=None)


def _first(tried: Sequence[Tried]) -> int | None:
    """Which is the first that passed."""
    return next((number for number, each in enumerate(tried) if each.passed), None)
