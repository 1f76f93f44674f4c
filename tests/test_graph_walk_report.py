"""The report on graph walks, put together from planted records: what it shows, where it says its numbers come from."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from loopscope.quantity import of_tables
from loopscope.store.store import Store
from loopscope.studies.claims import CLAIMS, NOT_RUN, ROWS, Verdict, decide
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk import composition, switching
from loopscope.studies.graph_walk import matched_tables as matching
from loopscope.studies.graph_walk.experiments import QUICK_PARTS
from loopscope.studies.graph_walk.report import composing
from loopscope.studies.records import Record, apart
from loopscope.studies.registry import COHORTS, LANGUAGE
from loopscope.studies.report import sections as graph_walks
from loopscope.studies.report.contents import BOTH, NOW, STORED, Grid, Report, Section
from loopscope.studies.report.page import pages, write_page
from loopscope.studies.report.sections import report_of
from loopscope.studies.trained import instances
from loopscope.tasks.populations import population
from tests.browser import chromium, installed
from tests.looking import SIZES, every_page, look, opened
from tests.planted.composition import planted as composed
from tests.planted.graph_walk import (
    COST,
    CPU,
    EIGHT,
    LAYERED,
    MAIN,
    OTHER,
    PAIRS_OF_GRAPHS,
    SECOND,
    THIRD,
    crossed,
    forgetful,
    native,
    record,
    target,
    two_calls,
    written,
)
from tests.planted.matched import planted as steered
from tests.planted.matched import right_on
from tests.reading_pages import Reader, rows_of

pytestmark = pytest.mark.usefixtures("few_draws")

FINAL = [name for name in COHORTS["matched"].backbones if "final" in name]


SECTIONS = ["trajectories", "targets", "composition", "mechanism", "matched"]
DEPTH = ["lasting", "continuation", "parity", "chains"]
"""What the report can have, and what is planted here is of the first ones."""

OTHERS = [*DEPTH, *LANGUAGE, "selecting", "failures"]
"""Experiments that nothing here has records of."""


# ---- planted records -------------------------------------------------------------------------------------------------


def eight_calls(name: str) -> Record:
    facts = record("eight-calls", name, {}).facts
    where = composition.INDEPENDENT
    return record("eight-calls", name, composed(where, facts, EIGHT, forgetful), where=where, graphs=EIGHT)


def switched(name: str) -> Record:
    """Patterns of layer 2 carry the target, in head 2; so does the state that enters any layer; nothing else does."""
    at = instances(switching.WHERE, 8, CPU)
    nodes = {"raw": at.current, "one": at.ahead(1), "two": at.ahead(2)}
    narrow, wide = switching.programs(6, 4, ("one", "two"), fits=2)

    def answer(called: str) -> Tensor:
        runs, _, what = called.partition("/")
        giver, _, receiver = runs.partition("->")
        part, _, place = what.partition(", ")
        carried = part == "entering state" or (part in ("pattern", "queries+keys") and "2" in place.partition(",")[0])
        heads = re.search(r"heads (.*)", place)
        takes = receiver and carried and (heads is None or "2" in heads[1])
        return nodes[(giver if takes or not receiver else receiver).partition("-")[0]]

    found = {each: answer(each)[: 10 * PAIRS_OF_GRAPHS] for each in narrow}
    found |= {each: answer(each)[: 10 * QUICK_PARTS] for each in wide}
    found = {each: answers.to(torch.uint8) for each, answers in found.items()}
    return record("switching", name, {switching.WHERE: found}, where=switching.WHERE, graphs=QUICK_PARTS)


def matched(name: str) -> Record:
    """Final-only: stays; one hop in the first 1,000 instances, two in the first 800.  Stepwise: one hop, two in 100."""
    at = instances("matched-test", 8, CPU, "three")
    right = {"stay": 0, "one": 1000, "two": 800} if "final" in name else {"stay": 0, "one": 10**6, "two": 100}
    given = {
        which: [at.current if which == "stay" else right_on(count, hops, at)] * 2
        for hops, (which, count) in enumerate(right.items())
    }
    unsteered = 0 if "final" in name else 1
    return record("matched", name, steered(at, "matched-test", unsteered, **given))


def of_the_main_one() -> list[Record]:
    return [
        native(MAIN, 0, 1, 3, 4, 6, 7, 8, layered=LAYERED), target(MAIN), two_calls(MAIN), eight_calls(MAIN),
        crossed(MAIN), switched(MAIN),
    ]  # fmt: skip


def everything() -> list[Record]:
    """Three mechanism backbones (not all with everything), one that walks otherwise, two with eight loops, all matched
    ones."""
    walks = [
        native(OTHER, 0, 3, 4, 5, 6, 7, 8), native(SECOND, 0, 1, 2, 4, 5, 6, 8), native(THIRD, 0, 2, 4, 6, 7, 8, 8),
        native("d8l8-0", 0, 1, 2, 3, 4, 5, 6, 7, 8), native("d8l8-1", 0, 2, 4, 6, 8, 8, 8, 8, 8),
    ]  # fmt: skip
    made = [target(SECOND), two_calls(SECOND), switched(SECOND), *map(crossed, (OTHER, SECOND, THIRD))]
    return [*of_the_main_one(), *walks, *made, *map(matched, COHORTS["matched"].backbones)]


JUST_NOW = {("trajectories", MAIN), ("targets", MAIN), ("eight-calls", MAIN), ("crossing", MAIN)}


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    found = written(Store(tmp_path_factory.mktemp("results")), everything())
    fresh = [each for each in found if (each.experiment, each.facts.name) in JUST_NOW]
    return Evidence([each for each in found if not any(each is one for one in fresh)], fresh)


@pytest.fixture(scope="module")
def verdicts(evidence: Evidence) -> list[Verdict]:
    return decide(evidence)


@pytest.fixture(scope="module")
def report(evidence: Evidence, verdicts: list[Verdict]) -> Report:
    return report_of(evidence, verdicts)


def made_of(*found: Record) -> Report:
    evidence = Evidence(found)
    return report_of(evidence, decide(evidence))


def alone(anchor: str, *found: Record) -> Section:
    """One section of the report on these records."""
    made = graph_walks.SECTIONS[anchor](Evidence(found))
    assert made is not None
    assert made.anchor == anchor
    return made


def section(report: Report, anchor: str) -> Section:
    return next(each for each in report.sections if each.anchor == anchor)


def described(report: Report, figure: str) -> str:
    return next(each.description for one in report.sections for each in one.figures if each.name == figure)


# ---- the whole report ------------------------------------------------------------------------------------------------


def test_nothing_measured_gives_a_page_without_sections(tmp_path: Path) -> None:
    report = made_of()
    assert (report.sections, report.costs) == ([], [])
    assert [row.id for row in report.ledger] == [claim.id for claim in ROWS]
    assert {row.verdict for row in report.ledger} == {NOT_RUN}
    assert {(row.ours, row.interval, row.n, row.seeds, row.scale, row.origin) for row in report.ledger} == {
        ("", "", None, "", "", "")
    }
    page = write_page(report, tmp_path / "report")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["index.html", "pages"]
    assert [path.name for path in (tmp_path / "report" / "pages").iterdir()] == ["ledger.html"]
    Reader(page.read_text(encoding="utf-8"))
    Reader((tmp_path / "report" / "pages" / "ledger.html").read_text(encoding="utf-8"))


def test_every_section_has_figures_tables_and_claims(report: Report) -> None:
    assert [each.anchor for each in report.sections] == SECTIONS
    for each in report.sections:
        assert each.question
        assert all(each.text)
        assert each.figures
        assert each.claims
        for table in (*each.tables, *each.more):
            assert table.lines if isinstance(table, Grid) else table.rows, table.title
        titles = [table.title for table in (*each.tables, *each.more)]
        assert len(set(titles)) == len(titles)
    claims = [claim for each in report.sections for claim in each.claims]
    assert sorted(claims) == sorted(claim.id for claim in CLAIMS if claim.experiment not in OTHERS)


def test_figures_show_every_backbone_under_names_of_their_own(report: Report) -> None:
    names = {each.anchor: [figure.name for figure in each.figures] for each in report.sections}
    assert names == {
        "trajectories": ["native-d8l8", "native-d8l6", "native-labels"],
        "targets": ["targets"],
        "composition": ["two-calls", "two-calls-answers", "eight-calls-independent-3001"],
        "mechanism": [
            "crossing",
            "crossing-others",
            *(f"{kind}-{name}" for name in (MAIN, SECOND) for kind in ("switching", "heads")),
        ],
        "matched": ["matched"],
    }
    figures = [figure for each in report.sections for figure in each.figures]
    assert len({figure.title for figure in figures}) == len(figures)
    for figure in figures:
        assert figure.caption
        assert figure.drawings.svg.startswith("<svg")
        assert figure.drawings.pdf.startswith(b"%PDF")


def test_the_page_is_well_formed_and_its_links_lead_somewhere(report: Report, tmp_path: Path) -> None:
    page = write_page(report, tmp_path)
    readers = {place: Reader((tmp_path / place).read_text(encoding="utf-8")) for place in pages(report)}
    ids = {}
    for place, reader in readers.items():
        ids[place] = [found for _, attributes in reader.elements if (found := attributes.get("id"))]
        assert len(set(ids[place])) == len(ids[place])
    links = set()
    for place, reader in readers.items():
        for href in (attributes["href"] for tag, attributes in reader.elements if tag == "a"):
            assert href is not None
            file, _, anchor = href.partition("#")
            there = ((tmp_path / place).parent / file).resolve() if file else tmp_path / place
            assert there.is_file(), href
            assert not anchor or anchor in ids[there.relative_to(tmp_path.resolve()).as_posix()], href
            links.add(href)
    assert {f"pages/ledger.html#claim-{claim.id}" for claim in CLAIMS if claim.experiment not in OTHERS} <= links
    assert len(readers[page.name].tables) == 0
    for each in report.sections:
        mine = readers[f"pages/{each.anchor}.html"].tables
        for table, lines in zip((*each.tables, *each.more), mine, strict=True):
            names = list(table.lines) if isinstance(table, Grid) else [row.label for row in table.rows]
            assert [line[0] for line in lines[1:]] == names
    assert [len(readers[f"pages/{name}.html"].tables) for name in ("ledger", "cost")] == [1, 1]
    every = [table for reader in readers.values() for table in reader.tables]
    assert "nan" not in " ".join(cell for table in every for line in table for cell in line)


def test_id_and_coordinates_name_one_quantity(evidence: Evidence) -> None:
    """Of a record, and of matched supervision, whose tables take several; so that nothing is found by its label."""
    made = [evidence.quantities(each) for each in evidence.records]
    made.append(list(of_tables(matching.tables(*apart(evidence.of("matched"))))))
    assert sum(map(len, made)) > 1000
    for quantities in made:
        known = [(each.id, frozenset(each.at.items())) for each in quantities]
        assert len(set(known)) == len(known)


def test_the_order_of_records_does_not_matter() -> None:
    found = [native("d8l8-2", 0, 2, 4, 6, 8), native("d8l8-11", 0, 1, 2, 4, 5, 6, 8), matched(FINAL[0])]
    assert pages(made_of(*found)) == pages(made_of(*reversed(found)))


def test_every_section_is_announced() -> None:
    said: list[str] = []
    report_of(Evidence(), decide(Evidence()), said.append)
    assert said == [f"working out {name}" for name in (*SECTIONS, *OTHERS)]


def test_the_lead_says_who_was_chosen_and_by_which_rule(report: Report) -> None:
    said = report.lead[-1]
    assert "nothing else but zero" in said
    assert f"`{MAIN}`, the main one, `{SECOND}`, `{THIRD}`." in said
    assert made_of(target(OTHER)).lead == report.lead[:-1]


def test_the_lead_says_when_threes_had_to_be_allowed() -> None:
    cohort = COHORTS["mechanism"]
    names = [f"d8l6-{seed}" for seed in (*cohort.seeds, *cohort.more_seeds)]
    walks = [native(name, 0, 1, 2, 4, 5, 8, 8) if name == OTHER else native(name, 0, 8) for name in names]
    (said,) = graph_walks._who(Evidence(walks))
    assert f"nothing else but zero and, as too few walk so, three. The main one is `{OTHER}`." in said


def test_costs_are_those_of_what_was_measured_now_or_else_of_everything(report: Report) -> None:
    assert [cost.step for cost in report.costs] == [f"{what} on {name}" for what, name in sorted(JUST_NOW)]
    for cost in report.costs:
        assert (cost.seconds, cost.device, cost.forwards, cost.plain) == tuple(COST.values())
    unpriced = replace(target(OTHER), cost={})
    stored = made_of(target(SECOND), target(MAIN), unpriced)  # no walks, so no section
    assert [cost.step for cost in stored.costs] == [f"targets on {MAIN}", f"targets on {SECOND}"]


# ---- the ledger ------------------------------------------------------------------------------------------------------


def test_the_ledger_says_what_was_found(report: Report, verdicts: list[Verdict]) -> None:
    for row, verdict in zip(report.ledger, verdicts, strict=True):
        assert (row.id, row.where, row.paper) == (verdict.claim.id, verdict.claim.where, verdict.claim.paper)
        assert (row.verdict, row.ours, row.n, row.scale) == (verdict.verdict, verdict.ours, verdict.n, verdict.scale)
        assert row.claim == f"{verdict.claim.text} (holds if {verdict.claim.holds_if})"
    found = {row.id: row for row in report.ledger}
    assert (found["target.two"].ours, found["target.two"].interval) == ("100.0", "[100.0, 100.0]")
    assert found["target.two"].n == 4110
    assert (found["compose.order"].ours, found["compose.order"].interval) == (
        "100.0 vs 50.0",
        "difference [50.0, 50.0]",
    )
    assert found["pattern.reroutes"].interval == "± 0.0 SD over 3 backbones"
    assert found["matched.two"].interval == "final-only minus stepwise ± 0.0 SD over 5 pairs"
    assert found["native.variety"].interval == ""
    too_few = {"native.endpoint", "native.hold", "switch.two_to_one", "switch.one_to_two"}
    judged = {claim.id for claim in CLAIMS if claim.experiment not in OTHERS} - too_few
    assert {row.id: row.verdict for row in report.ledger} == {
        claim.id: "holds" if claim.id in judged else NOT_RUN for claim in ROWS
    }


def test_the_ledger_says_where_numbers_come_from(report: Report) -> None:
    found = {row.id: row for row in report.ledger}
    origins = {
        "native.variety": STORED, "native.hold": BOTH, "target.one": NOW, "target.two": NOW,
        "compose.one_one": STORED, "compose.decay": NOW, "pattern.reroutes": BOTH, "restore.selected": BOTH,
        "matched.one": STORED, "letter.steer": "", "kg.inside": "",
    }  # fmt: skip
    assert {name: found[name].origin for name in origins} == origins
    assert found["target.one"].command == "loopscope reproduce targets"
    assert found["pattern.reroutes"].command == "loopscope reproduce --profile paper crossing"
    assert found["matched.two"].command == "loopscope reproduce --profile paper matched"
    assert found["letter.steer"].command == "loopscope lm test letters FOLDER --map MAP"


def test_the_ledger_says_on_what_it_was_measured(report: Report) -> None:
    found = {row.id: row for row in report.ledger}
    assert found["target.one"].seeds == "d8l6-5"
    assert found["pattern.reroutes"].seeds == "d8l6-5, 8, 10"
    assert found["native.hold"].seeds == "d8l6-3, 5, 8, 10; d8l8-0, 1"
    assert found["matched.native"].seeds == "matched-final-0..4; matched-stepwise-0..4"
    assert found["target.one"].scale == found["native.hold"].scale == "paper scale"
    assert found["compose.decay"].scale == f"paper's model, {EIGHT} of 512 graphs"
    assert found["output.transfers"].scale == f"paper's model, {PAIRS_OF_GRAPHS} of 512 graphs"


def test_a_claim_that_rests_on_nothing_countable_has_no_interval() -> None:
    """No clean run is right, so no pair of graphs counts."""
    walks = [native(name, 0, 1, 3, 4, 6, 7, 8) for name in (MAIN, SECOND, THIRD)]
    wrong = []
    for name in (MAIN, SECOND, THIRD):
        made = crossed(name)
        for answers in made.predictions.values():
            answers |= {run: (nodes + 5) % 10 for run, nodes in answers.items() if run.endswith("before F")}
        wrong.append(made)
    row = next(row for row in made_of(*walks, *wrong).ledger if row.id == "pattern.reroutes")
    assert (row.verdict, row.interval) == ("does not hold", "")


# ---- the sections ----------------------------------------------------------------------------------------------------


def test_native_trajectories(report: Report) -> None:
    found = section(report, "trajectories")
    assert found.text[-1].startswith(("Recomputed now: `trajectories` on ", "From stored records: `trajectories` on "))
    rows = rows_of(found.tables, "Steps and right answers of native loops")
    walked = f"{OTHER}: +1 +1 +1 +1 +1"
    assert list(rows)[:2] == [f"{walked}, endpoint", f"{walked}, retained"]
    assert f"{MAIN}: +2 +1 +2 +1 +1, endpoint" in rows
    assert "d8l8-1: +2 +2 +2 +0 +0 +0 +0, endpoint" in rows
    assert {(row.estimate.value, row.n) for row in rows.values()} == {(1.0, 5120)}
    assert f"{MAIN} (trained for 6 loops): positions read most often at loops 0, 1, …: 0 1 3 4 6 7 8 8" in described(
        report, "native-d8l6"
    )
    # At loop 2 starts 0, 1, 2 are late: the start explains it all.
    labels = next(figure for figure in found.figures if figure.name == "native-labels")
    assert "loop 2: 100.0 % by the start" in labels.caption
    assert "loop 3: " not in labels.caption
    inside = rows_of(found.more, f"{MAIN}: Where in a call the reading changes")
    assert inside["loop 1, layer 1 attention"].estimate.value == 1


def test_a_walk_that_labels_do_not_bear_on_has_nothing_explained() -> None:
    made = native(MAIN, 0, 1, 3, 4, 6, 7, 8)
    made.predictions["rings"]["native"][2] = native(MAIN, 0, 1, 2, 3).predictions["rings"]["native"][3]
    (labels,) = (each for each in alone("trajectories", made).figures if each.name == "native-labels")
    assert labels.caption == "Rows: label of the start. Nobody is ahead of anybody at these loops."


def test_targets(report: Report) -> None:
    said = described(report, "targets")
    assert "no map: u (stay) 49.9 %, one hop 50.1 %, two hops 0.0 %, other 0.0 %." in said
    assert "J_one: u (stay) 0.0 %, one hop 100.0 %, two hops 0.0 %, other 0.0 %." in said
    assert "J_two before F: u (stay) 100.0 %" in said
    assert "J_one moved: " in said
    rows = rows_of(section(report, "targets").tables, "The target of each map, every backbone")
    assert len(rows) == 2 * 6
    assert (rows[f"{MAIN}, one: f(u)"].estimate.value, rows[f"{MAIN}, one: f(u)"].published) == (1.0, 0.996)
    assert (rows[f"{SECOND}, two: f^2(u)"].estimate.value, rows[f"{SECOND}, two: f^2(u)"].published) == (1.0, None)


def test_composition(report: Report) -> None:
    found = section(report, "composition")
    rows = rows_of(found.tables, "Two maps in a row, every backbone")
    assert {name: row.estimate.value for name, row in rows.items()} == {
        f"{name}, {pair}": 0.5 if pair == "two-one" else 1.0
        for name in (MAIN, SECOND)
        for pair in ("one-one", "one-two", "two-one", "two-two")
    }
    assert "one-none, asked for one-one: 0.0 % (paper 48.3)" in described(report, "two-calls")
    assert f"Eight calls were run on {EIGHT} of 512 graphs of `independent-3001`." in found.text
    answers = rows_of(found.tables, f"Which node is answered after two calls, {MAIN} (`{composition.ORIGINAL}`)")
    assert (answers["one-two, f^3(u)"].estimate.value, answers["one-two, f^3(u)"].published) == (1.0, 0.6528)
    assert answers["two-one, u"].estimate.value == answers["two-one, f^3(u)"].estimate.value == 0.5
    assert answers["one-two, the paper's backbone, f^3(u)"].estimate.value == 0.6528
    assert "two-one: u 50.0 %, " in described(report, "two-calls-answers")
    beside = rows_of(found.tables, "Composition on independent graphs, by backbone")
    assert (beside[f"{MAIN}, one-one"].estimate.value, beside[f"{MAIN}, one-one"].n) == (
        1.0, int(population("independent-3001").mask("five")[: 10 * EIGHT].sum())
    )  # fmt: skip
    assert beside["the paper's seed 7, two-two"].estimate.value == 0.9172
    assert len(beside) == (1 + 5) * 5
    assert any(said.endswith(f"Not measured: {SECOND}, {THIRD}, d8l6-3, d8l6-4.") for said in found.text)
    figure = found.figures[2]
    kept = int(population("independent-3001").mask("five")[: 10 * EIGHT].sum())
    assert f"; {kept} instances with five distinct labels" in figure.caption
    assert "one: 100.0 100.0 100.0 0.0 " in figure.description
    series = re.findall(r"([a-zA-Z ]+): [0-9.]+ [0-9.]+ ", figure.description)
    assert [each.strip() for each in series] == ["one", "two", "mixed", *composing.CONTROLS]
    assert any(table.title == f"{MAIN}: Eight calls, mixed (independent-3001)" for table in found.more)


def test_mechanism(report: Report) -> None:
    found = section(report, "mechanism")
    rows = {
        name.replace(f"{chosen}, head 2", chosen): row
        for name, row in rows_of(found.tables, "Patterns and outputs, every backbone").items()
        for chosen in [name.partition(",")[0]]
    }
    for name in (OTHER, MAIN, SECOND, THIRD):
        assert rows[f"{name}, pattern -> E"].estimate.value == rows[f"{name}, output -> D"].estimate.value == 1
        assert rows[f"{name}, restored, comparison"].estimate.value == 0
    assert rows[f"{MAIN}, restored, selected"].published == 0.601
    parts = described(report, f"switching-{MAIN}")
    assert "two -> one, per cent: pattern layer 2 100.0, layer 1 0.0, layers 1+2 100.0; queries layer 2 0.0" in parts
    assert "entering state layer 2 100.0, layer 1 100.0, layers 1+2 100.0. one -> two" in parts
    heads = described(report, f"heads-{SECOND}")
    assert "heads 0 0.0; heads 1 0.0; heads 2 100.0; heads 3 0.0; heads 0+1 0.0; heads 0+2 100.0" in heads
    assert any(f"{QUICK_PARTS} of 512 graphs" in said for said in found.text)
    switches = rows_of(found.more, f"{MAIN}: Target switching, two -> one (switching-2501)")
    kept = population("switching-2501").mask("three")
    assert switches["pattern, layer 2: f^2(u)"].n == int(kept[: 10 * PAIRS_OF_GRAPHS].sum())
    assert switches["pattern, layer 1: f^2(u)"].n == int(kept[: 10 * QUICK_PARTS].sum())


def test_matched(report: Report) -> None:
    found = section(report, "matched")
    assert "Measured: 10 of 10 backbones." in found.text[0]
    rows = rows_of(found.tables, "Matched supervision: target accuracy after one more call, by supervision")
    n = rows["matched-final, J_one: one"].n
    assert rows["matched-final, J_one: one"].estimate.value == pytest.approx(1000 / n)
    assert rows["matched-final, J_one: one"].published == 0.665
    assert rows["matched-stepwise, J_two: two"].estimate.value == pytest.approx(100 / n)
    assert f"J_two, final-only and stepwise: {80000 / n:.1f} {10000 / n:.1f}; " in described(report, "matched")


def test_longer_fits_of_matched_maps_are_shown() -> None:
    """Twice as many updates of one map, and 500 more right: its curve has a panel, its gain a table of its own."""
    at, short = instances("matched-test", 8, CPU, "three"), matched(FINAL[0])
    more = dict.fromkeys(("one-long-1", "one-long-1 before F"), right_on(1500, 1, at).to(torch.uint8))
    found = {"matched-test": short.predictions["matched-test"] | more}
    curves = [
        {"backbone": FINAL[0], "target": target, "fit": 1, "updates": [5, last], "scores": [0.1, 0.5], "kept": last}
        for target, last in (("one", 10), ("one-long", 20))
    ]
    fits = {**short.facts.fits, "one-long": 1}
    longer = replace(short, facts=replace(short.facts, fits=fits), predictions=found, notes={"curves": curves})
    part = section(made_of(longer), "matched")
    assert "Some were fitted once more" in part.text[1]
    row = rows_of(part.tables, "Matched supervision: what a longer fit adds")[f"{FINAL[0]}, J_one-long - J_one"]
    assert row.estimate.value == pytest.approx(500 / row.n)
    assert "J_one, longer, final-0: 10.0 at 5 to 50.0 at 20" in part.figures[-1].description


# ---- parts of the evidence -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_only_the_main_backbone() -> None:
    report = made_of(*of_the_main_one())
    assert f"The main one is `{MAIN}`." in report.lead[-1]
    assert [each.anchor for each in report.sections] == SECTIONS[:-1]
    judged = {row.id for row in report.ledger if row.verdict != NOT_RUN}
    assert judged == {"target.one", "target.two", "compose.one_one", "compose.order", "compose.decay"}
    assert {row.origin for row in report.ledger} == {STORED, ""}
    assert [figure.name for figure in section(report, "mechanism").figures] == [
        "crossing", f"switching-{MAIN}", f"heads-{MAIN}",
    ]  # fmt: skip
    for text in pages(report).values():
        Reader(text)


@pytest.mark.usefixtures("undrawn")
def test_only_final_backbones_of_the_matched_ones() -> None:
    report = made_of(*map(matched, FINAL[:2]))
    (found,) = report.sections
    assert (found.anchor, found.figures) == ("matched", [])
    assert "Measured: 2 of 10 backbones." in found.text[0]
    rows = rows_of(found.tables, "Matched supervision: target accuracy after one more call, by supervision")
    assert {row.published for row in rows.values()} == {None}
    assert {row.verdict for row in report.ledger} == {NOT_RUN}
    for text in pages(report).values():
        Reader(text)


def test_one_matched_pair_is_drawn() -> None:
    found = alone("matched", *map(matched, COHORTS["matched"].backbones[:2]))
    assert [figure.name for figure in found.figures] == ["matched"]


def test_only_native_walks() -> None:
    report = made_of(native("d8l8-3", 0, 2, 4, 6, 8))
    (found,) = report.sections
    assert [figure.name for figure in found.figures] == ["native-d8l8"]
    assert found.more == []


def test_eight_calls_without_two() -> None:
    found = alone("composition", native(MAIN, 0, 1, 3, 4, 6, 7, 8), eight_calls(MAIN))
    assert [figure.name for figure in found.figures] == ["eight-calls-independent-3001"]
    assert [table.title for table in found.tables] == ["Composition on independent graphs, by backbone"]
    assert found.more


def test_crossing_elsewhere_than_on_mechanism_backbones_is_a_table() -> None:
    found = alone("mechanism", native(MAIN, 0, 1, 3, 4, 6, 7, 8), native(OTHER, 0, 8), crossed(OTHER), switched(MAIN))
    assert [figure.name for figure in found.figures] == [f"switching-{MAIN}", f"heads-{MAIN}"]
    (table,) = found.tables
    assert isinstance(table, Grid)
    assert [name.partition(",")[0] for name in table.lines] == [OTHER]


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(report, tmp_path_factory.mktemp("page"))


@pytest.mark.slow
@pytest.mark.skipif(installed() is None, reason="no Chromium: the page was not looked at in a browser")
def test_the_page_never_scrolls_sideways(shown: Path) -> None:
    program = installed()
    assert program is not None
    with chromium(program) as browser:
        for size, place in product(SIZES.values(), every_page(shown).values()):
            for page in opened(browser, place, size):
                look(page, "document.querySelectorAll('details').forEach(e => e.open = true)")
                assert look(page, "return document.documentElement.scrollWidth") <= size[0]
                outside = look(page, """return [...document.querySelectorAll('main *')].filter(
                    e => !e.closest('.scroll table, svg') && e.getBoundingClientRect().right > innerWidth + 0.5)
                    .map(e => e.outerHTML.slice(0, 80))""")  # fmt: skip
                assert outside == []
