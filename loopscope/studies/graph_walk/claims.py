"""The claims on graph walks, each with the predicate that was fixed before our models were trained."""

from __future__ import annotations

from loopscope.studies.claim import Claim
from loopscope.studies.graph_walk import judges
from loopscope.studies.graph_walk.experiments import (
    CONTINUATION,
    CROSSING,
    EIGHT_CALLS,
    MATCHED,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "native.endpoint", "3", "every D8L6 and D8L8 backbone answers at its last trained loop", "~100 %",
        "each >= 99 % on rings", TRAJECTORIES,
        judges.worst("endpoint", lambda walk: walk.endpoint >= 0.99),
    ),
    Claim(
        "native.variety", "3", "D8L8 backbones differ: some advance mainly one node per loop, some mainly two",
        "5 of 12 one, 3 two",
        "at least one of each (majority of increments to loops 2..L before the endpoint is first reached)",
        TRAJECTORIES, judges.variety,
        finding="Of {all} backbones that were trained alike, {one} walk by mainly one node a loop, {two} by mainly "
                "two, and {neither} by neither.",
    ),
    Claim(
        "native.hold", "3", "extra loops keep the answer", "\"eventually they stabilise\"",
        "mode at loop 16 is 8 for every backbone; also report retained accuracy", TRAJECTORIES,
        judges.worst("retained", lambda walk: walk.holds),
        finding="After 16 loops, answers are still right in {share} % on the backbone that keeps fewest.",
    ),
    Claim(
        "target.one", "4", "J_one selects the one-hop target", "48.2 -> 99.6",
        ">= 95 % and >= 20 points above unsteered, main backbone", TARGETS, judges.target_one,
        finding="h6, the state after six loops, answers some node u. One more call of the frozen block then "
                "answers the next node, f(u), in {share} % after the map J_one.",
        in_short="One more call of the frozen block after the map J_one walks one hop, right in {share} % of walks.",
    ),
    Claim(
        "target.two", "4", "J_two selects the two-hop target", "98.2", ">= 90 %", TARGETS, judges.target_two,
        finding="After the map J_two it answers the node after that in {share} %.",
        in_short="After J_two, from the same state, it walks two, right in {share} %.",
    ),
    Claim(
        "compose.one_one", "4", "J_one can be reused", "93.6 (48.3 without the second map)",
        ">= 80 % and >= 20 points above omitting the second map", TWO_CALLS, judges.one_one,
        finding="Two more calls, each after J_one, walk two hops in {share} %.",
    ),
    Claim(
        "compose.order", "4", "order matters", "65.3 vs 74.5", "interval of the difference excludes 0", TWO_CALLS,
        judges.order,
    ),
    Claim(
        "compose.decay", "4", "control decays with reuse", "56.3 at call 3, ~10 at call 8",
        "repeated one-hop < 60 % at call 4, and mixed at call 8 no more than 5 points above copy-u", EIGHT_CALLS,
        judges.decay,
        finding="With J_one before every call, the fourth is still right in {share} %.",
        in_short="Put before every call, J_one is still right at the fourth in {share} %.",
    ),
    Claim(
        "pattern.reroutes", "5", "a pattern patch selects the record and reads the receiver's content (E)", "77.8",
        "three-backbone mean >= 60 % E and <= 10 % D", CROSSING, judges.patched("pattern", "E", "D"),
        finding="A head that is given its attention pattern from a run on another graph looks where that run "
                "looked and reads its own graph there (answer E) in {share} %.",
        in_short="A head that is made to look where it looked on another graph reads its own graph there in "
                 "{share} %.",
    ),
    Claim(
        "output.transfers", "5", "an output patch transfers D", "80.9", ">= 60 % D and <= 10 % E", CROSSING,
        judges.patched("output", "D", "E"),
        finding="Given its output from that run, it repeats that run's answer (D) in {share} %.",
    ),
    Claim(
        "steer.rescue", "5", "the steered pattern helps the unsteered run", "39.2 -> 61.6", "mean gain >= 10 points",
        CROSSING, judges.steered("J->0", "unsteered", 1),
    ),
    Claim(
        "steer.damage", "5", "the unsteered pattern hurts the steered run", "99.7 -> 68.1", "mean loss >= 10 points",
        CROSSING, judges.steered("0->J", "steered", -1),
    ),
    Claim(
        "switch.two_to_one", "5", "two-hop patterns give two-hop answers", "0.1 -> 65.9",
        "mean >= 40 %, each backbone >= 20 %", SWITCHING, judges.switched("two", "one", 0.40),
    ),
    Claim(
        "switch.one_to_two", "5", "and the reverse", "0.5 -> 78.5", "mean >= 50 %, each backbone >= 20 %", SWITCHING,
        judges.switched("one", "two", 0.50),
    ),
    Claim(
        "restore.selected", "5", "restoring the selected head repairs", "74.0 vs 0.5",
        ">= 50 % and comparison head <= 5 %; all four heads exactly 100 %", CROSSING, judges.restored,
    ),
    Claim(
        "matched.native", "6", "unsteered: final-only stays, stepwise advances", "100 / 100",
        "both >= 99 % in all five pairs", MATCHED, judges.matched_native,
    ),
    Claim(
        "matched.one", "6", "one-hop with J", "66.5 vs 100", "stepwise >= 99 %, final-only at least 10 points lower",
        MATCHED, judges.matched_one,
        finding="With J, backbones that were supervised after the last loop alone walk one hop in {share} %, those "
                "supervised after every loop in {stepwise} %.",
    ),
    Claim(
        "matched.two", "6", "two-hop with J reverses the order", "50.5 vs 13.2", "final-only higher in all five pairs",
        MATCHED, judges.matched_two,
        finding="Two hops are right more often on the first kind, by {share} points on average.",
    ),
    Claim(
        "continue.inside", "A", "eight-node continuation inside the map-training range", "97.42 (cycles, loops 9-16)",
        ">= 90 %", CONTINUATION, judges.continue_inside,
        finding="In the range of calls that maps were trained through, eight-node walks go on right in {share} %.",
    ),
    Claim(
        "continue.beyond", "A", "and beyond it", "35.11 (17-32)", "every backbone lower than inside", CONTINUATION,
        judges.continue_beyond,
        finding="Beyond it, {share} % are right.",
    ),
)  # fmt: skip
