"""The letter walk in the findings: SmolLM2-135M, and models of 16M trained from nothing."""

from __future__ import annotations

from collections.abc import Callable

from loopscope.measure.heads import Heads
from loopscope.studies.evidence import Evidence, Finding
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.letters import judges as letter_judges
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.records import selection_of
from loopscope.studies.letters.tests import CONTENT, RESTORATION, STEERING
from loopscope.studies.letters.walks import WALKS
from loopscope.studies.records import Record, percent
from tests.told.found import Found
from tests.told.sentences import FINDINGS, Known, Section, table_row


def record(evidence: Evidence, name: str, test: str, patched: tuple[int, ...] | None = None) -> Record:
    """The record of a test, and where there are several, of these patched loops."""
    found = [each for each in evidence.every(LETTERS) if each.facts.name == name and test in each.predictions]
    (only,) = (each for each in found if patched is None or tuple(each.settings["patched"]) == patched)
    return only


def answers(evidence: Evidence, patched: Record) -> Found:
    """Answers of the test of patterns against outputs: `[pattern E]`."""
    return Found.of(evidence, patched, "letters.content", "condition", "answer")


def _short(evidence: Evidence, patched: Record) -> Found:
    """Who has the letter before the last transfer of a run is named: `[pattern donor]`."""
    return Found.of(evidence, patched, "letters.content.short", "condition", "run")


def walked(evidence: Evidence, walks: Record, steered: bool = True) -> Found:
    """Right answers with J or without, by template and transfers: `[5 8]`."""
    return Found.of(evidence, walks, "letters.walks", "template", "k", steered=steered)


def _known(evidence: Evidence, name: str, everywhere: tuple[int, ...] | None = None) -> dict[str, object]:
    """The tables of a model's records; `everywhere`: the loops of patches between graphs that are told first."""
    steering, content = record(evidence, name, STEERING), record(evidence, name, CONTENT, everywhere)
    walks = record(evidence, name, WALKS)
    found = {
        "steering": Found.of(evidence, steering, "letters.steering", "condition"),
        "along": Found.of(evidence, steering, "letters.steering.along", "condition", "loop"),
        "ahead": Found.of(evidence, steering, "letters.steering.ahead", "loop"),
        "content": answers(evidence, content), "short": _short(evidence, content),
        "repaired": Found.of(
            evidence, record(evidence, name, RESTORATION), "letters.restoration.repaired", "condition"
        ),
        "walks": walked(evidence, walks), "alone": walked(evidence, walks, steered=False),
        "loops": Found.of(evidence, walks, "letters.walks.loops", "k", "loop", "transfers", steered=True),
    }  # fmt: skip
    chosen = Heads.parse(steering.settings["heads"])
    return {
        **found, "heads": str(chosen), "many": len(chosen), "patched": steering.settings["patched"],
        "searched": selection_of(record(evidence, name, HEADS)), "graphs": found["walks"]["0 8"].n,
    }  # fmt: skip


def _walked(known: Known, template: int = 0) -> bool:
    """All right to four transfers without J, none beyond."""
    return all(known["alone"].value(template, k) == (k <= 4) for k in range(1, 9))


def _one_each(known: Known) -> bool:
    """With J, loop t names whom t transfers lead to, most often, in requests for all eight."""
    return all(f"8 {loop} {loop}" in known["loops"] for loop in range(1, 9))


# ---- SmolLM2-135M ----------------------------------------------------------------------------------------------------

SMOLLM2 = "smollm2-135m"
LAST, EVERY = (8,), (2, 3, 4, 5, 6, 7, 8)
FOUR = ("small-4x256", "small-4x256-s1", "small-4x256-s2", SMOLLM2)


def _smollm2(evidence: Evidence) -> Known:
    last = record(evidence, SMOLLM2, CONTENT, LAST)
    searches = [selection_of(record(evidence, name, HEADS)) for name in FOUR]
    model = last.notes["model"]
    return _known(evidence, SMOLLM2, EVERY) | {
        "last": answers(evidence, last), "last_short": _short(evidence, last),
        "last_heads": last.settings["heads"], "every": model["layers"] * model["heads"],
        "passed": [each is not None and each.passed for each in searches],
        "small": [
            Found.of(evidence, record(evidence, name, STEERING), "letters.steering", "condition")["wrong loop"]
            for name in FOUR[::2]
        ],
        "small_patched": [tuple(record(evidence, name, STEERING).settings["patched"]) for name in FOUR[::2]],
        "judged": {
            "rescue": letter_judges.rescue(evidence), "damage": letter_judges.damage(evidence),
            "controls": letter_judges.controls(evidence), "restore": letter_judges.restore(evidence),
            "content": letter_judges.content(evidence),
        },
    }  # fmt: skip


def _decided(known: Known) -> bool:
    """By records that patch the last loop: of the content at 135M, of all else at 16M."""
    findings: dict[str, Finding] = known["judged"]
    used = {name: each.used[0] for name, each in findings.items()}
    names = {name: each.facts.name for name, each in used.items()}
    return all(tuple(each.settings["patched"]) == LAST for each in used.values()) and names == {
        "rescue": FOUR[0], "damage": FOUR[0], "controls": FOUR[0], "restore": FOUR[0], "content": SMOLLM2
    }  # fmt: skip


def _changed(which: str) -> Callable[[Known], str]:
    return lambda known: percent(1 - known["content"].value(which, "B"))


def _held_out(first: int, last: int) -> list[str]:
    return [f"{{walks[5 {k}].p}}" for k in range(first, last + 1)]


SMOLLM2_SECTION = Section(
    FINDINGS, "Letters at 135M", lambda evidence: _with_changes(_smollm2(evidence)),
    [
        "With J " + ", ".join(f"{{walks[0 {k}].p}}" for k in range(1, 8))
        + " and {walks[0 8].p} % are right at 1 to 8, and loops make one transfer each. On "
        "{steering[steered].n} new pairs: {steering[unsteered].p} % {steering[unsteered].i} without J, "
        "{steering[steered].p} {steering[steered].i} with it.",
        "in the held-out one J has " + ", ".join(_held_out(3, 7))
        + " and {walks[5 8].p} % {walks[5 8].i} at 3 to 8,",
        "It ends with four of {every}, `{heads}` in loops 2 to 8,",
        "the donor's patterns at these four heads give E in {last[pattern E].p} % {last[pattern E].i} (paper "
        "{last[pattern E].paper}) and the person who has the donor's letter before its last transfer in "
        "{last_short[pattern donor].p} % {last_short[pattern donor].i}; its outputs "
        "give D ({last[output D].p} %; paper {last[output D].paper}).",
        "give the person who has the receiver's letter then ({last_short[values receiver].p} and "
        "{last_short[wrong loop receiver].p} %).",
        "(`lm test letters ... --heads \"{last_heads}\" --test pattern-vs-output`).",
        "the donor's patterns there make the receiver follow its own rules to E ({content[pattern E].p} % "
        "{content[pattern E].i}), the donor's outputs give the donor's answer (D, {content[output D].p} % "
        "{content[output D].i}).",
        "give E in {content[wrong loop E].k} of {content[wrong loop E].n} where the patterns themselves give it in "
        "{content[pattern E].k} (paper {content[wrong loop E].paper_k}), and the donor's values give D in "
        "{content[values D].p} % (paper {content[values D].paper}).",
        "Comparison heads' patterns change {pattern_changes} %; their outputs do something, {output_changes} % "
        "({paper_changes}).",
        "the steered patterns at these heads bring {steering[rescue].p} % {steering[rescue].i} right answers "
        "({steering[rescue].paper}), their outputs {steering[outputs].p} % {steering[outputs].i}; values, patterns of "
        "another graph and comparison heads {steering[values].p}, {steering[unrelated].p} and "
        "{steering[comparison].p} %.",
        "in {along[rescue 4].p} % after loop 4, {along[rescue 5].p} after 5, {along[rescue 6].p}, "
        "{along[rescue 7].p}, {along[rescue 8].p} after 8.",
        "all heads of all layers bring {steering[late rescue].p} % {steering[late rescue].i}.",
        "unsteered patterns leave {steering[damage].p} % {steering[damage].i}; at comparison heads "
        "{steering[comparison damage].p}, but at the fourteen other heads of the two layers together "
        "{steering[complement damage].p} ({steering[complement damage].k} of {steering[complement damage].n}):",
        "a control that should do nothing, bring {steering[wrong loop].p} % {steering[wrong loop].i}:",
        "in {ahead[3].p} % after loop 3, {ahead[4].p} after loop 4 and {ahead[7].p} after loop 7,",
        "they bring {small[0].p} and {small[1].p} %.",
        "Of {repaired[selected].n} answers that other queries break, outputs of the four put back "
        "{repaired[selected].p} % {repaired[selected].i}, of comparison heads {repaired[comparison].p} % "
        "{repaired[comparison].i}; the two of layer 25 alone {repaired[layer 25].p} %.",
    ],
    {
        "After the four loops it was trained in, all of 64 graphs are right at each of 1 to 4 transfers and none at 5 "
        "to 8. With J 100": lambda known: known["graphs"] == "64" and _walked(known) and _one_each(known),
        "Claims on patches are decided by records that patch the last loop, as the paper does: `letter.rescue`, "
        "`.damage`, `.controls` and `.restore` at 16M, seed 0, `letter.content` at 135M.": _decided,
        "This record decides `letter.content`, which does not hold":
            lambda known: known["judged"]["content"].holds is False,
        "where the backbone has all right to 4.": lambda known: _walked(known, 5),
        "none of the four searches passed all of its steps.": lambda known: not any(known["passed"]),
        "where the last loop alone is patched (seeds 0 and 2),":
            lambda known: known["small_patched"] == [LAST, LAST],
        "**In loops 2 to 8** the donor's": lambda known: known["patched"] == [*EVERY] and known["many"] == 4,
    },
)  # fmt: skip


def _with_changes(known: Known) -> dict[str, object]:
    paper = known["content"]["comparison output B"].row.published
    return {
        **known, "pattern_changes": _changed("comparison pattern")(known),
        "output_changes": _changed("comparison output")(known), "paper_changes": percent(1 - paper),
    }  # fmt: skip


# ---- from nothing ----------------------------------------------------------------------------------------------------


def _small(evidence: Evidence) -> Known:
    seeds = [_known(evidence, name) for name in FOUR[:3]]
    controls = [
        rows.value(name)
        for rows in (each["steering"] for each in seeds)
        if isinstance(rows, Found)
        for name in ("values", "unrelated", "wrong loop", "comparison")
        if name in rows
    ]
    first = seeds[0]["steering"]
    assert isinstance(first, Found)
    mine = [first.value(name) for name in ("values", "unrelated", "wrong loop", "comparison")]
    zero, two = (selection_of(record(evidence, name, HEADS)) for name in FOUR[:3:2])
    assert zero is not None
    assert two is not None
    every = str(Heads.parse(" ".join(f"{layer}.0,1,2,3" for layer in range(1, 5))))
    tried = [each for each in zero.tried if not each.step.startswith("confirmation") and each.loops == (8,)]
    return _with_changes({**seeds[0]}) | {
        "two_heads": next(
            each.heads for each in two.tried if each.step == "leading heads" and each.rescued == two.pairs
        ),
        "of_eight": next(each.rescued for each in tried if each.heads == every), "unsteered": two.unsteered,
        "seeds": seeds, "one": seeds[1], "two": seeds[2],
        "least": percent(min(controls)), "most": percent(max(controls)),
        "mine": [percent(min(mine)), percent(max(mine))],
    }  # fmt: skip


def _seed(number: int, where: str, compared: str) -> str:
    rows = f"seeds[{number}]"
    both = f"{{{rows}[steering][unsteered].p}} -> {{{rows}[steering][steered].p}}"
    return table_row(
        str(number), both, f"{{{rows}[many]}}, {where}",
        f"{{{rows}[steering][rescue].p}} {{{rows}[steering][rescue].i}}", f"{{{rows}[steering][outputs].p}}",
        f"{{{rows}[steering][damage].p}}",
        f"{{{rows}[content][pattern E].p}} / {{{rows}[content][output D].p}}",
        f"{{{rows}[repaired][selected].p}}, {compared}",
    )  # fmt: skip


def _compared(number: int) -> str:
    return f"{{seeds[{number}][repaired][comparison].p}}"


SMALL_SECTION = Section(
    FINDINGS, "Letters at 16M", _small,
    [
        "in a wording that neither was trained on {walks[5 8].p} % {walks[5 8].i} at "
        "8.",
        "On {steering[steered].n} new pairs: {steering[unsteered].p} % {steering[unsteered].i} without J, "
        "{steering[steered].p} {steering[steered].i} with it. - **The search",
        "in the last loop, one each of layers 1, 3 and 4 (`{heads}`),",
        "from where the donor is (E, {content[pattern E].p} % {content[pattern E].i}; paper "
        "{content[pattern E].paper}), the donor's outputs give the donor's answer (D, {content[output D].p} % "
        "{content[output D].i}; {content[output D].paper}), its values leave {content[values B].p} % as they were "
        "({content[values B].paper}); comparison heads change {pattern_changes} %.",
        "their patterns bring {steering[rescue].p} % {steering[rescue].i} right answers ({steering[rescue].paper}), "
        "their outputs {steering[outputs].p} % {steering[outputs].i}; values, patterns of another graph or loop and "
        "comparison heads {mine[0]} to {mine[1]} %.",
        "unsteered patterns leave {steering[damage].p} % {steering[damage].i}. So in",
        "Of {repaired[selected].n} answers that other queries break, outputs of the three put back "
        "{repaired[selected].p} % {repaired[selected].i}, of comparison heads {repaired[comparison].p} % "
        "{repaired[comparison].i} (one layer's head alone: layer 1 {repaired[layer 1].p} %, layer 3 "
        "{repaired[layer 3].p} %, layer 4 {repaired[layer 4].p} %).",
        _seed(0, "loop 8", _compared(0)),
        _seed(1, "loops 2-8", _compared(1)),
        _seed(2, "loop 8", "none left to compare"),
        "Controls of the rescue bring {least} to {most} %.",
        "seeds 1 and 2 have {one[walks][5 8].p} % {one[walks][5 8].i} and "
        "{two[walks][5 8].p} {two[walks][5 8].i} at 8.",
        "Of seed 2 two heads, `{two_heads}`, rescued all eight discovery pairs;",
        "(of seed 0, {of_eight} of 8 discovery pairs).",
        table_row(
            *(
                f"{{along[late rescue {loop}].p}}"
                + (f" {{along[late rescue {loop}].i}}" if loop in (4, 8) else "")
                for loop in range(1, 9)
            )
        ),
        "Seed 1 has {one[along][late rescue 4].p} % at loop 4 and {one[along][late rescue 8].p} at loop 8, "
        "seed 2 {two[along][late rescue 6].p} to loop 6 and {two[along][late rescue 8].p} at loop 8.",
    ],
    {
        "With J all are right at each of 1 to 8;": lambda known: _walked(known)
            and all(known["walks"].value(0, k) == 1 for k in range(1, 9)),
        "The loops make one transfer each.": _one_each,
        "in the last loop, one each of layers 1, 3 and 4": lambda known: known["patched"] == [8],
        "nothing where the run without J itself has one of eight right.": lambda known: known["unsteered"] == 1,
        "Two more weight seeds": lambda known: known["one"]["patched"] == [*EVERY] and known["two"]["patched"] == [8]
            and "comparison" not in known["two"]["repaired"],
    },
)  # fmt: skip

SECTIONS = (SMOLLM2_SECTION, SMALL_SECTION)
