"""The claims of the paper, each with the predicate that was fixed before our backbones were trained, and its verdict.

Everything is computed from the predictions in records; nothing is written down but what the paper published.  Which
record decides, and how its protocol is labelled, is in `closeness`.  Rows of ours, a stricter population or a question
that the paper does not ask, are judged beside the claims and not counted among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loopscope.stats import Estimate
from loopscope.studies.closeness import Label, changes, label_of, numerics
from loopscope.studies.evidence import Control, Evidence, Finding, Judge, scale
from loopscope.studies.graph_walk import depth_judges, judges
from loopscope.studies.graph_walk.selecting import PREDICATE
from loopscope.studies.graph_walk.selecting_judge import select_native
from loopscope.studies.language import judges as language_judges
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS, LETTERS
from loopscope.studies.language.names import model_of
from loopscope.studies.language.records import LANGUAGE
from loopscope.studies.registry import (
    CHAINS,
    CONTINUATION,
    CROSSING,
    EIGHT_CALLS,
    MATCHED,
    PARITY,
    SELECTING,
    SWITCHING,
    TARGETS,
    TRAJECTORIES,
    TWO_CALLS,
)

HOLDS, FAILS, NOT_RUN = "holds", "does not hold", "not run"
VERDICTS = {True: HOLDS, False: FAILS, None: NOT_RUN}
UNDECIDED = "not decided"


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, what it published, and the predicate that decides it here; or a row of ours."""

    id: str
    where: str
    text: str
    paper: str
    holds_if: str
    experiment: str = ""
    judge: Judge | None = None
    kind: Literal["paper", "ours"] = "paper"


@dataclass(frozen=True)
class Verdict:
    """A claim as it is reported.  Shares are in [0, 1]; `fresh` and `stored` count records measured now and before.

    - `models`: language models with their sizes; `backbones` are the names of whatever was measured.
    - `of`: what the estimate is of, where `ours` shows more; `controls`: of the same test; `beside`: what else is told.
    - `protocol`: its label, with what was `changed` and, apart, the `numerics`; None where nothing was measured.
    - `others`: verdicts by other records, on which this one does not rest.
    """

    claim: Claim
    verdict: str
    ours: str = ""
    estimate: Estimate | None = None
    n: int | None = None
    backbones: tuple[str, ...] = ()
    scale: str = ""
    fresh: int = 0
    stored: int = 0
    others: tuple[Verdict, ...] = ()
    of: str = ""
    controls: tuple[Control, ...] = ()
    beside: tuple[str, ...] = ()
    protocol: Label | None = None
    changed: tuple[str, ...] = ()
    numerics: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What measures it; nothing for a claim that no experiment here decides."""
        if self.claim.experiment in LANGUAGE:
            return LANGUAGE[self.claim.experiment].command
        profile = "" if self.fresh and not self.stored else "--profile paper "
        return f"loopscope reproduce {profile}{self.claim.experiment}" if self.claim.experiment else ""

    @property
    def failed(self) -> tuple[Control, ...]:
        """The controls that failed."""
        return tuple(each for each in self.controls if each.failed)


def decided_by(*experiments: str) -> list[str]:
    """The ids of the rows that these experiments decide."""
    return [claim.id for claim in ROWS if claim.experiment in experiments]


def decide(evidence: Evidence) -> list[Verdict]:
    """The verdict on every claim, then on the rows of ours."""
    return [_decided(claim, evidence) for claim in ROWS]


def _decided(claim: Claim, evidence: Evidence) -> Verdict:
    finding = claim.judge(evidence) if claim.judge is not None else None
    return Verdict(claim, NOT_RUN) if finding is None else _verdict(claim, finding, evidence, NOT_RUN)


def _verdict(claim: Claim, finding: Finding, evidence: Evidence, otherwise: str) -> Verdict:
    """A finding as a verdict; `otherwise` is what one is called that decides nothing."""
    used, lineage = finding.used, evidence.lineage
    fresh = sum(map(evidence.is_fresh, used))
    names = _once(record.facts.name for record in used)
    return Verdict(
        claim, otherwise if finding.holds is None else VERDICTS[finding.holds], finding.ours, finding.estimate,
        finding.n, names, scale(used), fresh, len(used) - fresh,
        tuple(_verdict(claim, each, evidence, UNDECIDED) for each in finding.others),
        finding.of, finding.controls, finding.beside,
        label_of(used, lineage, finding.patches),
        _once(each.text for record in used for each in changes(record, lineage, finding.patches)),
        _once(each for record in used for each in numerics(record, lineage)),
        _once(model_of(record) for record in used if record.experiment in LANGUAGE),
    )  # fmt: skip


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


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
    ),
    Claim(
        "native.hold", "3", "extra loops keep the answer", "\"eventually they stabilise\"",
        "mode at loop 16 is 8 for every backbone; also report retained accuracy", TRAJECTORIES,
        judges.worst("retained", lambda walk: walk.holds),
    ),
    Claim(
        "target.one", "4", "J_one selects the one-hop target", "48.2 -> 99.6",
        ">= 95 % and >= 20 points above unsteered, main backbone", TARGETS, judges.target_one,
    ),
    Claim("target.two", "4", "J_two selects the two-hop target", "98.2", ">= 90 %", TARGETS, judges.target_two),
    Claim(
        "compose.one_one", "4", "J_one can be reused", "93.6 (48.3 without the second map)",
        ">= 80 % and >= 20 points above omitting the second map", TWO_CALLS, judges.one_one,
    ),
    Claim(
        "compose.order", "4", "order matters", "65.3 vs 74.5", "interval of the difference excludes 0", TWO_CALLS,
        judges.order,
    ),
    Claim(
        "compose.decay", "4", "control decays with reuse", "56.3 at call 3, ~10 at call 8",
        "repeated one-hop < 60 % at call 4, and mixed at call 8 no more than 5 points above copy-u", EIGHT_CALLS,
        judges.decay,
    ),
    Claim(
        "pattern.reroutes", "5", "a pattern patch selects the record and reads the receiver's content (E)", "77.8",
        "three-backbone mean >= 60 % E and <= 10 % D", CROSSING, judges.patched("pattern", "E", "D"),
    ),
    Claim(
        "output.transfers", "5", "an output patch transfers D", "80.9", ">= 60 % D and <= 10 % E", CROSSING,
        judges.patched("output", "D", "E"),
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
    ),
    Claim(
        "matched.two", "6", "two-hop with J reverses the order", "50.5 vs 13.2", "final-only higher in all five pairs",
        MATCHED, judges.matched_two,
    ),
    Claim(
        "continue.inside", "A", "eight-node continuation inside the map-training range", "97.42 (cycles, loops 9-16)",
        ">= 90 %", CONTINUATION, depth_judges.continue_inside,
    ),
    Claim(
        "continue.beyond", "A", "and beyond it", "35.11 (17-32)", "every backbone lower than inside", CONTINUATION,
        depth_judges.continue_beyond,
    ),
    Claim(
        "parity.gain", "A", "J improves lengths 101-500", "3 of 3 seeds", "at least 2 of 3", PARITY,
        depth_judges.parity_gain,
    ),
    Claim(
        "parity.limit", "A", "the gain does not last beyond 500", "47.55 vs 36.40",
        "J not above native over 505-1000 for the seed with the largest gain", PARITY, depth_judges.parity_limit,
    ),
    Claim(
        "kg.inside", "H", "relation composition at 4-16", "2.53 -> 99.92", "<= 10 % without, >= 95 % with J", CHAINS,
        depth_judges.chains_inside,
    ),
    Claim(
        "kg.beyond", "H", "declines beyond the map range", "42.87 (17-24), 1.65 (25-32)",
        "17-24 below 4-16, and 25-32 <= 10 %", CHAINS, depth_judges.chains_beyond,
    ),
    Claim(
        "letter.steer", "5", "eight-step letter-walk needs J", "0 -> 251/256", "<= 15 % without, >= 80 % with J",
        LETTERS, language_judges.steer,
    ),
    Claim(
        "letter.rescue", "5", "steered patterns suffice", "248/256", ">= 70 % of the steered score", LETTERS,
        language_judges.rescue,
    ),
    Claim(
        "letter.damage", "5", "unsteered patterns destroy", "0/256", "<= 20 %", LETTERS, language_judges.damage
    ),
    Claim(
        "letter.controls", "5", "values only, unrelated graph, wrong loop, comparison heads do nothing", "0/256 each",
        "each <= 20 %", LETTERS, language_judges.controls,
    ),
    Claim(
        "letter.content", "5", "pattern gives E, output gives D", "71.1 / 93.8", ">= 50 % and >= 70 %", LETTERS,
        language_judges.content,
    ),
    Claim(
        "letter.restore", "5", "selected heads repair", "249/249 vs 0", ">= 80 % vs <= 10 %", LETTERS,
        language_judges.restore,
    ),
    Claim(
        "antonym.native", "6", "stepwise: one deletion per loop; final-only: answers by loop 3", "64/64; 255/256",
        ">= 90 % each", ANTONYMS, language_judges.native,
    ),
    Claim(
        "antonym.steer", "6", "with J at depths 5-8", "98.0 vs 7.8", "final-only >= 70 %, stepwise <= 30 %",
        ANTONYMS, language_judges.antonym_steer,
    ),
    Claim(
        "iterate.continue", "H", "continuing with J and F, five task families", "89.69 vs 28.59 (F only)",
        "long requests: J+F at least 30 points above F only, and above J only and stop",
        ITERATIONS, language_judges.continued("train"),
    ),
)  # fmt: skip
"""The paper's claims that we chose to judge."""

ROWS: tuple[Claim, ...] = (
    *CLAIMS,
    Claim(
        "iterate.strict", "H", "the same from starts that neither the backbone nor the map has seen",
        "no starts held out", "as iterate.continue", ITERATIONS, language_judges.continued("test"), kind="ours",
    ),
    Claim(
        "select.native", "-", "J_k reaches its target for those k that the backbone's own loops show, not for others",
        "not asked", PREDICATE, SELECTING, select_native, kind="ours",
    ),
)  # fmt: skip
"""What the ledger has: the claims, then rows of ours."""
