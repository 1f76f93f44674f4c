"""Verdicts: does what was measured bear out each claim of the paper?

A claim is a sentence of the paper with a predicate, which was fixed before our backbones were trained.  A judge looks
up measured quantities and evaluates the predicate; a verdict is its answer with everything that stands beside it.
Numbers come from records alone; only what the paper published is written down.  `closeness` says which record decides
and labels its protocol.

Rows of ours ask for a stricter population, or something that the paper does not ask.  They are judged beside the claims
and not counted among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from loopscope.stats import Estimate
from loopscope.studies import parts
from loopscope.studies.claim import Claim
from loopscope.studies.closeness import Label, changes, label_of, numerics
from loopscope.studies.evidence import Control, Evidence, Finding, scale
from loopscope.studies.language.names import model_of
from loopscope.studies.registry import LANGUAGE

HOLDS, FAILS, NOT_RUN = "holds", "does not hold", "not run"
VERDICTS = {True: HOLDS, False: FAILS, None: NOT_RUN}
UNDECIDED = "not decided"


@dataclass(frozen=True)
class Verdict:
    """A claim as it is reported.  Shares are in [0, 1]; `fresh` and `stored` count records measured now and before.

    - `models`: language models with their sizes; `backbones` are the names of whatever was measured.
    - `of`: what the estimate is of, where `ours` shows more; `controls`: of the same test; `beside`: what else is told.
    - `protocol`: its label, with what was `changed` and, apart, the `numerics`; None where nothing was measured.
    - `told`: numbers by name, for sentences.
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
    told: Mapping[str, str] = field(default_factory=dict, hash=False)

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
        finding.told,
    )  # fmt: skip


def _once(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


CLAIMS: tuple[Claim, ...] = tuple(claim for part in parts("claims") for claim in part.CLAIMS)
"""The paper's claims that we chose to judge."""

ROWS: tuple[Claim, ...] = (*CLAIMS, *(row for part in parts("claims") for row in getattr(part, "OURS", ())))
"""The same, and rows of ours: a stricter population, or a question that the paper does not ask."""
