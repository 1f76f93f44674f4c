"""Iterations and antonyms in the findings."""

from __future__ import annotations

from collections import Counter

from loopscope.measure.replies import answers_name, as_texts
from loopscope.studies.antonyms import claims as antonym_claims
from loopscope.studies.antonyms.tables import PAPER_DEPTHS, PAPER_SEQUENCES, at_depths, at_loop, readout_right
from loopscope.studies.antonyms.tests import DEPTHS, FORMS, depth_requests
from loopscope.studies.evidence import Evidence, Finding
from loopscope.studies.iterations.tables import gain, is_long, iterated
from loopscope.studies.language.layouts import ANTONYMS, ITERATIONS
from loopscope.studies.language.shares import share
from loopscope.studies.records import Record, percent
from loopscope.tasks.antonyms import read_pair
from tests.told.found import Found
from tests.told.sentences import FINDINGS, Known, Said, Section, table_row

# ---- iterations ------------------------------------------------------------------------------------------------------


def _iterations(evidence: Evidence) -> Known:
    found = evidence.of(ITERATIONS)
    plain, wider = (found[name] for name in ("smollm2-135m", "smollm2-135m-wider"))
    known: dict[str, object] = {}
    for name, record in (("plain", plain), ("wider", wider)):
        for split in ("train", "test"):
            known[f"{name}_{split}"] = Found.of(
                evidence, record, "iterations.whole", "task", "length", "branch", split=split
            )
    short = iterated(plain, "test", "stop", lambda each: each.task == "successor" and not is_long(each))
    return known | {
        "gap": Said(gain(wider, "test")), "first_four": Said(share("iterations.whole", "successor, short", short, {})),
    }  # fmt: skip


def _branch(label: str, row: str) -> str:
    ours = (f"{{{where}[{row}].p}} {{{where}[{row}].i}}" for where in ("plain_train", "plain_test"))
    return table_row(label, f"{{plain_train[{row}].paper}}", *ours)


ITERATED = Section(
    FINDINGS, "Five iterations", _iterations,
    [
        "right answers to requests for 5 to 8 steps, per cent, n = {plain_train[all long F].n} each:",
        _branch("J and F", "all long J+F"), _branch("F alone", "all long F"), _branch("J alone", "all long J"),
        _branch("stop", "all long stop"), _branch("requests for 1 to 4 steps, stop at h4", "all short stop"),
        "by task {plain_train[weekday long J+F].p} % at weekday, doubling and Fibonacci, "
        "{plain_train[successor long J+F].p} at successor, {plain_train[collatz long J+F].p} at Collatz (paper "
        "{plain_train[collatz long J+F].paper}).",
        "Where it knows them, at successor ({first_four.p} % of short requests), J and F lead on in "
        "{plain_test[successor long J+F].p} %, F alone in {plain_test[successor long F].p}.",
        "it has {wider_train[all long J+F].p} % {wider_train[all long J+F].i} with J and F and "
        "{wider_train[all long F].p} {wider_train[all long F].i} with F from trained starts; from held-out ones "
        "{wider_test[all long J+F].p} {wider_test[all long J+F].i} and {wider_test[all long F].p} "
        "{wider_test[all long F].i}, a difference of {gap.p} points {gap.i}.",
        "most of all at successor ({wider_test[successor long J+F].p} and {wider_test[successor long F].p} %),",
        "it loses answers even at depths the backbone has ({plain_train[all short J].p} % of short requests from "
        "trained starts).",
    ],
    {
        "% at weekday, doubling and Fibonacci,": lambda known: len(
            {known["plain_train"].value(task, "long", "J+F") for task in ("weekday", "doubling", "fibonacci")}
        ) == 1,
    },
)  # fmt: skip


# ---- antonyms --------------------------------------------------------------------------------------------------------

FOUR, FOUR2, EIGHT, EIGHT1, LARGE, LARGE4 = (
    "small-4x256-four-loops", "small-4x256-s2-four-loops", "small-4x256", "small-4x256-s1", "smollm2-135m-norm",
    "smollm2-135m-four-loops",
)  # fmt: skip
FINAL, STEPWISE = FORMS
DEEP = range(5, 9)


class Antonyms:
    """One record, told: `k[3]` is what J has at deletion 3, `deep` at 5 to 8, `held_out` the same in other words."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.k = [Said(at_depths(record, 0, True, [max(k, 1)])) for k in range(9)]
        self.native = [Said(at_depths(record, 0, False, [max(k, 1)])) for k in range(5)]
        self.deep = Said(at_depths(record, 0, True, DEEP))
        self.held_out = Said(at_depths(record, 5, True, DEEP))

    def after(self, loop: int) -> Said:
        """What a final-only backbone has right after a loop, of all requests; the paper has 255 at loop 3."""
        return Said(at_loop(self.record, loop, 255 / 256 if loop == 3 else None))

    @property
    def steps(self) -> list[int]:
        """How often a stepwise backbone says deletion t after t loops."""
        return [int(readout_right(self.record, "truncated", t, t).sum()) for t in range(1, 5)]

    def said(self, k: int, steered: bool = True) -> Counter[int]:
        """How often each deletion is said when asked for k; what is none counts as 0."""
        replies = as_texts(self.record.predictions[DEPTHS][answers_name(0, steered)])
        asked = depth_requests(0, int(self.record.settings["sequences"]))
        longest = {request.words: request.stages for request in asked if request.k == 8}
        found: Counter[int] = Counter()
        for request, reply in zip(asked, replies, strict=True):
            if request.k == k:
                stages, pair = longest[request.words], read_pair(reply)
                found[stages.index(pair) + 1 if pair in stages else 0] += 1
        return found

    def mode(self, k: int) -> int:
        """The deletion that is said most often when asked for k, with J."""
        return self.said(k).most_common(1)[0][0]


def _antonyms(evidence: Evidence) -> Known:
    every = {(each.facts.name, each.settings["supervision"]): Antonyms(each) for each in evidence.every(ANTONYMS)}
    final = {name: each for (name, form), each in every.items() if form == FINAL}
    stepwise = {name: each for (name, form), each in every.items() if form == STEPWISE}
    paper = {form: PAPER_DEPTHS[form]["template 0, J"] for form in FORMS}
    low = [float(each.p) for name in (FOUR, FOUR2, EIGHT) for each in final[name].native[1:]]
    return {
        "final": final, "stepwise": stepwise, "third": {name: each.after(3) for name, each in final.items()},
        "first": final[LARGE].after(1), "of_second": final[LARGE].said(2, steered=False)[3],
        "paper": {form: ["", *(percent(each / PAPER_SEQUENCES) for each in counts)] for form, counts in paper.items()},
        "paper_deep": {form: percent(sum(each[4:]) / (4 * PAPER_SEQUENCES)) for form, each in paper.items()},
        "judged": antonym_claims.steer(evidence),
        "low": min(low), "high": max(low), "sequences": final[LARGE].k[1].n,
    }  # fmt: skip


def _depths(label: str, name: str, form: str) -> str:
    which = f"{'final' if form == FINAL else 'stepwise'}[{name}]"
    cells = [f"{{{which}.k[{k}].p}}" for k in range(1, 9)]
    return table_row(label, form, *cells, f"{{{which}.deep.p}} {{{which}.deep.i}}")


def _paper(label: str, form: str, whole: tuple[int, ...] = ()) -> str:
    cells = ["100" if k in whole else f"{{paper[{form}][{k}]}}" for k in range(1, 9)]
    return table_row(label, form, *cells, f"{{paper_deep[{form}]}}")


def _both(*rows: str) -> str:
    return " ".join(rows)


def _does_not_read_k(known: Known) -> bool:
    first, second = (known["stepwise"][name] for name in (FOUR, FOUR2))
    return all(first.mode(k) == 6 for k in range(1, 9)) and all(second.mode(k) in (6, 7) for k in DEEP)


def _third_or_fourth(known: Known) -> bool:
    """Asked for 5 to 8 with J, both backbones of 135M say the third or fourth deletion most often."""
    return all(form[LARGE].mode(k) in (3, 4) for form in (known["final"], known["stepwise"]) for k in DEEP)


def _decided(known: Known) -> bool:
    """Not held by the closest record, held by one of 16M with four loops."""
    judged: Finding = known["judged"]
    others = {each.used[0].facts.name: each.holds for each in judged.others}
    return (judged.used[0].facts.name, judged.holds, others[FOUR]) == (LARGE, False, True)


ANTONYM_SECTION = Section(
    FINDINGS, "Antonyms", _antonyms,
    [
        "Right replies with J, per cent, {sequences} sequences of new topologies a depth",
        _both(_paper("four", FINAL, (1, 2, 3, 4, 5)).removeprefix("| "), _paper("", STEPWISE)),
        _both(_depths(f"`{FOUR}` (16M), four", FOUR, FINAL), _depths("", FOUR, STEPWISE)),
        _both(_depths(f"`{FOUR2}` (16M), four", FOUR2, FINAL), _depths("", FOUR2, STEPWISE)),
        _both(_depths(f"`{EIGHT}` (16M), eight", EIGHT, FINAL), _depths("", EIGHT, STEPWISE)),
        _depths(f"`{EIGHT1}` (16M), eight", EIGHT1, FINAL),
        _both(_depths(f"`{LARGE}` (135M), four", LARGE, FINAL), _depths("", LARGE, STEPWISE)),
        _depths(f"`{LARGE4}` (135M), four", LARGE4, FINAL),
        "the final-only one says the third ({of_second} of {sequences}), and J hardly mends it.",
        f"answers by loop 3 at 135M ({{third[{LARGE}].k}} of {{third[{LARGE}].n}}; paper {{third[{LARGE}].paper_k}}), "
        "{first.p} % {first.i} even after the first;",
        f"(at loop 3 {{third[{FOUR}].p}}, {{third[{FOUR2}].p}}, {{third[{EIGHT}].p}} and {{third[{EIGHT1}].p}} % of "
        f"{{third[{FOUR}].n}}).",
        "have {low} to {high} % in this one before their map does (seed 1 "
        + ", ".join(f"{{final[{EIGHT1}].native[{k}].p}}" for k in (1, 2, 3))
        + f" and {{final[{EIGHT1}].native[4].p}} at 1 to 4).",
        f"J has {{final[{FOUR}].held_out.p}} and {{final[{FOUR2}].held_out.p}} % at 5 to 8 (final-only, four loops), "
        f"{{final[{EIGHT}].held_out.p}} and {{final[{EIGHT1}].held_out.p}} (eight).",
    ],
    {
        "in seed 0 the sixth deletion most often, for every k; in seed 2 the sixth or seventh for every k above 4.":
            _does_not_read_k,
        "so it decides: `antonym.steer` does not hold. At 16M it would.": _decided,
        "Asked for 5 to 8, both say the third or fourth deletion;": _third_or_fourth,
        "stepwise backbones of both sizes say deletion t after t loops in 64 of 64,": lambda known: all(
            each.steps == [64, 64, 64, 64] for each in known["stepwise"].values()
        ),
        "those of 16M, which have 100 % in their own form,": lambda known: all(
            known["final"][name].after(4).p == "100.0" for name in (FOUR, FOUR2, EIGHT, EIGHT1)
        ),
    },
)  # fmt: skip

SECTIONS = (ITERATED, ANTONYM_SECTION)
