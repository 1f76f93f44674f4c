"""The section on antonyms in language models: how deep J leads, and what each loop says without it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product, zip_longest

import numpy as np
from jaxtyping import Float

from loopscope.measure.replies import answers_name
from loopscope.quantity import Quantity, one
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.antonyms.tables import PAPER_DEPTHS, PAPER_READOUTS, PAPER_SEQUENCES, PAPER_WAY, at_depths
from loopscope.studies.claims import decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.language.layouts import ANTONYMS
from loopscope.studies.records import Record
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.contents import Figure, Grid, Section
from loopscope.studies.report.figures import lines_in_panels
from loopscope.studies.report.heat import matrices
from loopscope.studies.report.models import INTERVALS, bare, by_depth, labelled, measured_on, models, published
from loopscope.tasks.antonyms import LONGEST, TRAINED_DEPTH

SHADED = (0.7, TRAINED_DEPTH + 0.5)
"""Grey: steps that backbones were trained on."""

WORDINGS = {template: "" if template == 0 else ", held-out wording" for template in antonym_tests.TEMPLATES}
DEEP = range(TRAINED_DEPTH + 1, LONGEST + 1)

HOW = (
    "Antonyms that stand side by side are deleted one pair at a time; asked is which pair goes at deletion k. "
    "Backbones were trained on deletions 1 to 4, maps on 1 to 8, and J stands after every loop. A final-only backbone "
    "learned the answer after its last loop, a stepwise one deletion t after t loops. Both are asked for depths in the "
    f"form that maps are fitted in; a reply is right as a whole. {INTERVALS.format('sequences')}"
)


def antonyms_section(evidence: Evidence) -> Section | None:
    """Depths with and without J, and native readouts, of whatever models were measured; None without any."""
    records = evidence.every(ANTONYMS)
    if not records:
        return None
    found = by_form(records)
    mine: dict[str, list[Record]] = {}
    for label, _, record in found:
        mine.setdefault(label, []).append(record)
    more = [table.under(label) for label, _, record in found for table in evidence.tables(record)]
    return Section(
        ANTONYMS, "Language models: antonyms", LANGUAGE[ANTONYMS].question,
        [measured_on(ANTONYMS, mine), HOW], [_depths(evidence, found), _readouts(evidence, found)],
        [models(ANTONYMS, mine), *depth_tables(found)], decided_by(ANTONYMS), more,
    )  # fmt: skip


def by_form(records: Sequence[Record]) -> list[tuple[str, str, Record]]:
    """Name, supervision and record of all models: final-only and stepwise ones by turns, the largest first.

    Two backbones of one model may have one name: supervision tells them apart.  They stand together, before models that
    have one of them alone.
    """
    alike = {form: [each for each in records if each.settings["supervision"] == form] for form in antonym_tests.FORMS}
    named = {form: labelled(some) for form, some in alike.items()}
    both = set.intersection(*map(set, named.values()))
    forms = [
        [(label, form, found[label]) for label in sorted(found, key=lambda each: each not in both)]
        for form, found in named.items()
    ]
    return [each for some in zip_longest(*forms) for each in some if each is not None]


def _depths(evidence: Evidence, found: Sequence[tuple[str, str, Record]]) -> Figure:
    panels = {}
    for label, form, record in found:
        quantities = evidence.quantities(record)
        panels[f"{form}: {label}"] = by_depth(quantities, "antonyms.right", antonym_tests.TEMPLATES)
    caption = (
        "Right replies by the deletion that was asked for, with 95 % intervals; without a map, after the four loops "
        "that backbones were trained in. Dashed: a wording that neither backbone nor map was trained on. Diamonds: the "
        "paper's, in the trained wording. Grey: deletions that backbones were trained on."
    )
    return lines_in_panels("antonyms-depths", "How deep J leads", caption, panels, "deletion k", SHADED)


def _readouts(evidence: Evidence, found: Sequence[tuple[str, str, Record]]) -> Figure:
    forms = list(dict.fromkeys(form for _, form, _ in found))
    panels = {f"{form}, {published(ANTONYMS)}": np.array(PAPER_READOUTS[form]) / PAPER_SEQUENCES for form in forms}
    for label, form, record in found:
        panels[f"{form}, {label}"] = readout_matrix(evidence, record, form)
    caption = (
        "Without J, right readouts after every loop, as the paper reads them: of stepwise backbones, which deletion a "
        "run of so many loops says when four are asked for; of final-only ones, whether loop t of a whole run says the "
        "deletion that is asked for. The other way to read is in the folded tables."
    )
    return matrices("antonyms-readouts", "What each loop says", caption, panels, "loop", "deletion")


def readout_matrix(evidence: Evidence, record: Record, form: str) -> Float[np.ndarray, "deletions loops"]:
    """Right readouts by deletion and loop, in the way that the paper reads this form."""
    there = evidence.quantities(record)

    def right(loop: int, deletion: int) -> float:
        return one(there, "antonyms.readouts", way=PAPER_WAY[form], loop=loop, deletion=deletion).estimate.value

    loops = range(1, record.facts.loops + 1)
    return np.array([[right(loop, deletion) for loop in loops] for deletion in range(1, TRAINED_DEPTH + 1)])


def depth_tables(found: Sequence[tuple[str, str, Record]]) -> list[Grid]:
    """By supervision, a line for every wording, J or none, and model; columns are depths, untrained ones together."""
    depths = {**{f"k = {k}": (k,) for k in range(1, LONGEST + 1)}, f"{DEEP[0]}-{DEEP[-1]}": tuple(DEEP)}
    note = "Wilson's intervals, which in the last column take the depths of one sequence as independent."
    made = []
    for form in dict.fromkeys(form for _, form, _ in found):
        mine = {label: record for label, which, record in found if which == form}
        lines: dict[str, dict[str, Quantity]] = {}
        for template, steered in product(WORDINGS, (False, True)):
            said = f"{'J' if steered else 'no map'}{WORDINGS[template]}"
            for label, record in mine.items():
                lines[f"{said}, {label}"] = {
                    name: at_depths(record, template, steered, asked, label=name, unit="sequence")
                    for name, asked in depths.items()
                }
            counts = PAPER_DEPTHS[form].get(answers_name(template, steered))
            if counts is not None:
                lines[f"{said}, {published(ANTONYMS)}"] = {
                    name: bare(
                        "antonyms.published",
                        sum(counts[k - 1] for k in asked) / PAPER_SEQUENCES / len(asked),
                        PAPER_SEQUENCES,
                    )
                    for name, asked in depths.items()
                }
        made.append(Grid(f"Right replies by depth, {form}", list(depths), lines, note, "model"))
    return made


SECTIONS = {ANTONYMS: antonyms_section}
