"""Target selection: from one and the same h6, does the map before the next call decide which node is answered?

The extra call is run without a map, and with each; its answer is u (stay), f(u) (one hop), f^2(u) (two hops) or another
node.  Read before F, the mapped state shows whether J itself had moved the answer.  As a control the mapped state is
moved to the next graph: a state holds all that its run knows, so its answers are then those of another graph.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from loopscope.execute import run
from loopscope.experiments.subject import Subject, Walks
from loopscope.program import F, J
from loopscope.stats import Estimate, cluster_bootstrap, tally

ANSWERS = ("u", "one", "two", "other")
BEFORE, MOVED = " before F", " moved"
SEED = 2026092317


def measure(subject: Subject, at: Walks, targets: tuple[str, ...] = ("one", "two")) -> dict[str, UInt8[Tensor, " n"]]:
    """The node answered in every instance, by condition: `unsteered`, `one-1`, `one-1 before F`, ...; uint8."""
    maps = subject.named(*targets)
    start = F**subject.loops
    programs = {"unsteered": start | F}
    for name in maps:
        programs |= {name: start | J(name) | F, name + BEFORE: start | J(name)}
    found = run(subject.model, at.tokens, list(programs.values()), maps=maps)
    return {name: found[program].predictions[:, 0].to(torch.uint8).cpu() for name, program in programs.items()}


def answers(predictions: Mapping[str, UInt8[Tensor, " n"]], at: Walks) -> dict[str, dict[str, Estimate]]:
    """How often each condition gives each of `ANSWERS`, over the instances that count; fits are averaged first.

    Conditions are `unsteered`, a target such as `one`, `one before F` and `one moved`.  Intervals resample graphs.
    """
    nodes = torch.stack([at.ahead(steps) for steps in range(3)]).cpu()
    grouped: dict[str, list[Tensor]] = {}
    for name, found in predictions.items():
        condition, _, before = name.partition(BEFORE[:1]) if name.endswith(BEFORE) else (name, "", "")
        target = condition.rpartition("-")[0] or condition
        grouped.setdefault(target + (BEFORE if before else ""), []).append(found)
        if name != "unsteered" and not before:
            grouped.setdefault(target + MOVED, []).append(found.roll(at.graphs.shape[1]))
    kept = at.kept.cpu()
    outcome: dict[str, dict[str, Estimate]] = {}
    for condition, fits in grouped.items():
        given = torch.stack([fit.long() for fit in fits])
        hits = [given == node for node in nodes]
        hits.append(~torch.stack(hits).any(0))
        outcome[condition] = {
            answer: cluster_bootstrap(tally(np.asarray(hit), at.clusters, kept), seed=SEED)
            for answer, hit in zip(ANSWERS, hits, strict=True)
        }
    return outcome
