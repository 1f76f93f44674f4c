"""Numbers with a decimal point that no record gives: where they stand, and why no sentence covers them."""

from __future__ import annotations

from tests.told.sentences import FINDINGS, LEDGER, README

ELSEWHERE: tuple[tuple[str, str, str], ...] = (
    (README, "Python 3.11", "a version"),
    (README, "Apache-2.0", "the name of a licence"),
    (README, "Ouro-2.6B", "the name of a model"),
    (LEDGER, "Ouro-2.6B", "the name of a model"),
    (LEDGER, "A model of 0.2M weights", "how large it is; `docs/looping-smollm2.md` has the count"),
    (
        LEDGER,
        "one run per program would be 5.61 million",
        "the cost of one run of `make reproduce`, of which nothing is kept",
    ),
    (FINDINGS, "Ouro-2.6B", "the name of a model"),
    (
        FINDINGS,
        "follows ours to 0.0006 in loss on the same batches",
        "a fit that was made once; `docs/fits.md` has its losses",
    ),
    (FINDINGS, "as on the paper's five (9.05 to 11.57 %)", "the paper's own numbers"),
    (FINDINGS, "The archive of the paper's main model shows the same: 43.8 % at loop 16.", "the paper's own archive"),
)
"""Page, a fragment of it, and the reason."""
