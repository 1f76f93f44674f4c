"""The letter walk: do the attention patterns of a few heads carry what J does?"""

from __future__ import annotations

from loopscope.log import Log
from loopscope.store.store import Store
from loopscope.studies.language.experiment import Amount, Arm, Asked, LanguageExperiment
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.language.records import SteeredModel
from loopscope.studies.letters.layouts import letter_layout
from loopscope.studies.letters.records import measure_letters
from loopscope.studies.letters.tables import letter_tables
from loopscope.studies.letters.tests import TESTS, first_pairs
from loopscope.studies.letters.walks import GRAPHS, WALKS
from loopscope.studies.records import Record
from loopscope.tasks.letters.pairs import SETS


def _measure(trained: SteeredModel, store: Store, _: Arm, amount: Amount, log: Log) -> list[Record]:
    return measure_letters(trained, store, count=amount.cases, batch=amount.batch, log=log)


def _asked(record: Record) -> Asked:
    match record.settings:
        case {"set": str(name), "pairs": int(count)}:
            return Asked(count, SETS[name].size, "pairs", f"{count} pairs")
        case {"letters": int(count)}:
            return Asked(count, GRAPHS, "graphs", f"{count} graphs")
    return Asked(0, 0, "pairs", "discovery pairs")


LANGUAGE = (
    LanguageExperiment(
        LETTERS, "Do the attention patterns of a few heads carry what J does to an eight-step letter walk?",
        "Ouro-2.6B", 2_667_974_657, 4, "norm",
        {"layers": "48", "heads": "16", "width": "2,048", "loops": "4", "boundary": "norm", "J": "dense"},
        "letter", (Arm("letter", "letter-map"),),
        _measure, lambda amount: [first_pairs(test, amount.cases) for test in TESTS],
        letter_layout, letter_tables, _asked,
        ours={WALKS: "graphs of walks are asked about, pairs of graphs in the paper"}, in_zoo=Amount(32, batch=16),
    ),
)  # fmt: skip
