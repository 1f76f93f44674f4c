"""What each section found, in a sentence or two: words are fixed here, and every number comes from a verdict.

Words claim nothing: they say what was counted, so that they stay true whatever the numbers are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loopscope.studies.claims import Verdict
from loopscope.studies.graph_walk.experiments import CONTINUATION, MATCHED, TARGETS, TRAJECTORIES
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS, LETTERS
from loopscope.studies.parity.experiments import PARITY
from loopscope.studies.relations.experiments import CHAINS
from loopscope.studies.report.contents import percent

UNDECIDED = "The records that are here do not decide it."

SENTENCES: Mapping[str, Mapping[str, str]] = {
    TRAJECTORIES: {
        "native.variety": "By the nodes that most of their loops advance, backbones that were trained alike differ: "
        "{ours}.",
        "native.hold": "Answers that are still right after 16 loops, in per cent: {ours}.",
    },
    TARGETS: {
        "target.one": "h6, the state after six loops, answers some node u. One more call of the frozen block then "
        "answers the next node, f(u), in {share} % after the map J_one.",
        "target.two": "After the map J_two it answers the node after that in {share} %.",
    },
    "composition": {
        "compose.one_one": "J_one before two calls in a row leads two hops in {share} %.",
        "compose.decay": "Before every call, it is still right at the fourth in {share} %.",
    },
    "mechanism": {
        "pattern.reroutes": "A head that is given its attention pattern from a run on another graph looks where that "
        "run looked and reads its own graph there (answer E) in {share} %.",
        "output.transfers": "Given its output from that run, it repeats that run's answer (D) in {share} %.",
    },
    MATCHED: {
        "matched.one": "With J, backbones supervised at the end only and at every loop reach one hop in {ours} %.",
        "matched.two": "Two hops: {ours}.",
    },
    CONTINUATION: {
        "continue.inside": "In the range of calls that maps were trained through, eight-node walks go on right in "
        "{share} %.",
        "continue.beyond": "Beyond it, {share} % are right.",
    },
    PARITY: {
        "parity.gain": "At lengths of 101 to 500, beyond those trained, J adds {share} points on average.",
        "parity.limit": "Beyond 500, without J and with it, per cent right: {ours}.",
    },
    CHAINS: {
        "kg.inside": "With J, chains of 4 to 16 relations are right in {share} %.",
        "kg.beyond": "Longer ones than maps were trained for, per cent right: {ours}.",
    },
    LETTERS: {
        "letter.steer": "Eight transfers, without J and with it: {ours} right.",
        "letter.rescue": "With only the steered attention patterns of the chosen heads: {ours}.",
    },
    ANTONYMS: {
        "antonym.native": "Without J: {ours}.",
        "antonym.steer": "With J at depths 5 to 8, supervised at the end only and at every loop: {ours} % right.",
    },
    ITERATIONS: {
        "iterate.continue": "Beyond the trained steps, with J and F in turn, per cent right: {ours}.",
        "iterate.strict": "The same, where starts are new: {ours}.",
    },
}
"""By section, a sentence for each row of the ledger: `share` is the number its verdict rests on, `ours` all it says."""


def finding(section: str, verdicts: Mapping[str, Verdict], claims: Sequence[str] = ()) -> str:
    """The sentences of a section whose rows were measured, or that there are none.

    A section without sentences here has its claims with what was measured.
    """
    if section not in SENTENCES:
        found = (verdicts[claim] for claim in claims)
        return " ".join(f"{each.claim.text}: {each.ours}." for each in found if each.ours) or UNDECIDED
    said = [
        sentence.format(share=percent(verdict.estimate.value) if verdict.estimate else "", ours=verdict.ours)
        for row, sentence in SENTENCES[section].items()
        if _measured(verdict := verdicts[row], needs_share="{share}" in sentence)
    ]
    return " ".join(said) or UNDECIDED


def _measured(verdict: Verdict, needs_share: bool) -> bool:
    if needs_share:
        return verdict.estimate is not None and not math.isnan(verdict.estimate.value)
    return bool(verdict.ours)
