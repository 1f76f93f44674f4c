"""The sections on depth, put together from planted records: what they show, with all of the evidence and with some."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from loopscope.quantity import QuantityTable
from loopscope.stats import Estimate
from loopscope.store.store import Store
from loopscope.studies.claims import HOLDS, decide, decided_by
from loopscope.studies.evidence import Evidence
from loopscope.studies.graph_walk.continuation import BROAD, WITHHELD
from loopscope.studies.graph_walk.continuation_curves import hold
from loopscope.studies.parity import counts as parity_counts
from loopscope.studies.records import Record, records, save
from loopscope.studies.registry import COHORTS
from loopscope.studies.relations.report import chains_section
from loopscope.studies.report.contents import Grid, Report, Section
from loopscope.studies.report.figures import Line, lines_in_panels
from loopscope.studies.report.heat import Square, loop_maps
from loopscope.studies.report.page import alone, pages, write_page
from loopscope.studies.report.sections import SECTIONS, report_of
from tests.planted.chains import first
from tests.planted.chains import planted as chain_counts
from tests.planted.continuation import planted as walk_counts
from tests.planted.continuation import raw
from tests.planted.lengths import planted as bands
from tests.planted.lengths import recorded, wave
from tests.reading_pages import Reader, figure, rows_of, told

pytestmark = pytest.mark.usefixtures("few_draws")

EIGHT, BITS = COHORTS["eight"].backbones, COHORTS["parity"].backbones
GRAPHS = 24
"""Of both populations; some of them are single cycles."""


@cache
def walker(name: str, last: int = 16) -> Record:
    """Maps that walk for so many calls, then hold; F alone holds from the beginning."""
    broad = walk_counts(BROAD, (last, last), 40, GRAPHS)
    strict = walk_counts(WITHHELD, (last, last), 48, GRAPHS, strict=True)
    return raw("continuation", name, {BROAD: broad, WITHHELD: strict}, graphs=GRAPHS)


def heat(last: int) -> dict[str, torch.Tensor]:
    """Right at t = n alone without a map, and everywhere with J."""
    right = torch.stack([8 * torch.eye(last), torch.full((last, last), 8.0)]).int()
    return {"lengths": torch.arange(1, last + 1).int(), "strings": torch.tensor([8]).int(), "right": right}


@cache
def bits(name: str) -> Record:
    """Every sixth length up to 500, and beyond as the reference recorded it; of the first one a heat map, too."""
    found = {"near": bands(range(5, 501, 6)), "far": recorded()}
    return raw("parity", name, found | ({"heat": heat(60)} if name == BITS[0] else {}))


def quick(name: str) -> Record:
    near = {"near": bands(range(45, 126, 20), half=4), "heat": heat(16)}
    return replace(raw("parity", name, near), settings=dict(parity_counts.QUICK))


UPDATES = (0, 500, 1000)


@cache
def chain(fits: int = 3, cut: bool = False) -> Record:
    """Of 16 queries all are right up to length 16 with J, and beyond 17 as many as the fit's number and the check."""
    without = first([16] * 3 + [1] * 29, 16)
    each = [
        torch.stack([first([16] * 16 + [fit + check] * 16, 16) for check in range(len(UPDATES))])
        for fit in range(1, fits + 1)
    ]
    made = raw("chains", "relations-0", chain_counts(without, each, updates=UPDATES, cut=cut))
    return replace(made, settings={"queries": 16, "cut": True} if cut else {})


EVERYTHING = 12 + 3 + 1


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """That of all records, as they come back from a store."""
    store = Store(tmp_path_factory.mktemp("results"))
    for each in (*map(walker, EIGHT), *map(bits, BITS), chain()):
        save(store, each, {"backbone": each.facts.key})
    evidence = Evidence(records(store))
    assert len(evidence.records) == EVERYTHING
    return report_of(evidence, decide(evidence))


def checked(made: Section) -> Section:
    assert list(made.claims) == decided_by(made.anchor)
    titles = [table.title for table in (*made.tables, *made.more)]
    assert len(set(titles)) == len(titles)
    for table in (*made.tables, *made.more):
        assert table.lines if isinstance(table, Grid) else table.rows, table.title
    return made


def section(anchor: str, *found: Record, fresh: Sequence[Record] = ()) -> Section:
    made = SECTIONS[anchor](Evidence(found, fresh))
    assert made is not None
    assert made.anchor == anchor
    return checked(made)


# ---- eight nodes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def continued(report: Report) -> Section:
    return checked(report.sections[0])


def test_continuation_shows_walking_and_holding(continued: Section) -> None:
    assert [each.name for each in continued.figures] == ["continuation", "continuation-strict"]
    found = figure(continued, "continuation")
    held = hold(BROAD, 40, GRAPHS)
    for series, expected in (
        ("J F", {9: 1.0, 12: 1.0, 15: 1.0, 18: held[17], 40: held[39]}),
        ("hold f^8(s)", {9: held[8]}),
    ):
        points = told(found, f"all graphs, {8 * GRAPHS} instances, {series}")
        for loop, share in expected.items():
            assert points[loop] == pytest.approx(100 * share, abs=0.051)
    assert "single cycles" in found.description
    assert "up to loop 16 on all graphs, 16 on single cycles." in " ".join(continued.text)
    strict = figure(continued, "continuation-strict")
    assert {told(strict, f"up to {GRAPHS} graphs, {each}")[48] for each in ("J F", "F alone")} == {0.0}
    for each in ("J F", "F alone", "J alone", "J moved"):
        assert f", {each}: " in strict.description


def test_continuation_tables(continued: Section) -> None:
    assert f"12 of 12 backbones were asked about {GRAPHS} of 8,192 graphs of `{BROAD}`." in continued.text
    rows = rows_of(continued.tables, f"Continuation: accuracy over ranges of loops ({WITHHELD})")
    inside = rows["single cycles, J F, loops 9-16"]
    assert (inside.estimate.value, inside.published) == (1.0, 0.9742)
    each = rows_of(continued.tables, f"Continuation: accuracy of J F by backbone ({WITHHELD})")
    assert {name.partition(",")[0] for name in each} == set(EIGHT)
    assert each["n8-d8l8-104, single cycles, loops 17-32"].estimate.value == 0.125
    strict = rows_of(continued.tables, f"Continuation: strict accuracy ({WITHHELD})")
    assert strict["J F, loops 9-16"].estimate.value == 1.0
    assert any("cycle length" in table.title for table in continued.more)


def test_some_backbones_have_no_published_mean_beside_them() -> None:
    made = section("continuation", walker(EIGHT[1], 12))
    rows = rows_of(made.tables, f"Continuation: accuracy over ranges of loops ({BROAD})")
    assert {row.published for row in rows.values()} == {None}
    assert "1 of 12 backbones" in " ".join(made.text)
    assert "up to loop 12 on all graphs" in " ".join(made.text)


def test_continuation_on_one_population_by_a_map_that_leads_nowhere() -> None:
    made = section("continuation", raw("continuation", EIGHT[0], {BROAD: walk_counts(BROAD, (8, 8), 40, GRAPHS)}))
    assert [each.name for each in made.figures] == ["continuation"]
    assert "up to loop none on all graphs, none on single cycles" in " ".join(made.text)


# ---- parity ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parity(report: Report) -> Section:
    return checked(report.sections[1])


def test_parity_by_length_is_smoothed(parity: Section) -> None:
    assert [each.name for each in parity.figures] == ["parity", "parity-heat"]
    points = told(figure(parity, "parity"), "parity-0, native")
    lengths = np.arange(5, 501, 6)
    assert min(points) == pytest.approx(lengths[:10].mean())
    assert points[min(points)] == pytest.approx(100 * wave(-0.0096 * lengths[:10] - 0.12).mean(), abs=0.06)
    assert points[997.5] == pytest.approx(100 * (51 + 47) / 256, abs=0.051)


def test_parity_tables(parity: Section) -> None:
    rows = rows_of(parity.tables, "Right at t = n by range of lengths")
    assert rows["parity-1, 505-1000, native"].estimate.value == pytest.approx(0.4755, abs=1e-4)
    assert rows["parity-1, 505-1000, J"].estimate.value == pytest.approx(0.3640, abs=1e-4)
    drift = rows_of(parity.tables, "Where right answers lie: drift over lengths 41-490")
    native = drift["parity-2, native: drift, the paper's estimator"]
    assert native.estimate.value == pytest.approx(-0.96, abs=0.01)  # loops for every 100 tokens
    assert (native.published, native.n) == (-0.961, 75)
    assert drift["parity-2, J: deviation, robust"].published is None
    exits = rows_of(parity.tables, "Computation or timing? Lengths 41-490, lines of 41-490")
    assert exits["parity-0, J minus native, t = n"].estimate.value > 0.2
    assert abs(exits["parity-0, J minus native, on the line"].estimate.value) < 0.05
    assert exits["parity-0, native, on the line, minus J, t = n"].estimate.value > 0.1  # timing alone does more than J
    assert sum(isinstance(table, QuantityTable) and table.title.startswith("parity-1: ") for table in parity.more) == 6
    assert not any("less than paper scale" in said for said in parity.text)


def test_slips_of_the_papers_estimator_are_told() -> None:
    def slipping(n: np.ndarray) -> np.ndarray:
        return np.asarray(0.0118 * n - 0.3 + 1.5 * (n == 437) + 3.0 * (n == 438))

    made = bands(range(400, 491), (lambda n: 0.0 * n, slipping))
    found = section("parity", raw("parity", BITS[0], {"near": made}))
    assert any(said.endswith(f": {490 - 437} in parity-0, J.") for said in found.text)
    assert [each.name for each in found.figures] == ["parity"]


def test_no_drift_is_told_where_right_answers_lie_nowhere() -> None:
    made = bands(range(41, 491))
    made["right"][0] = torch.randint(3_000, 7_000, made["right"][0].shape, generator=torch.Generator().manual_seed(1))
    found = section("parity", raw("parity", BITS[0], {"near": made}))
    (said,) = [said for said in found.text if said.startswith("No line says")]
    assert "parity-0, native: 0.1" in said
    assert "parity-0, J" not in said
    drift = rows_of(found.tables, "Where right answers lie: drift over lengths 41-490")
    assert drift
    assert all(name.startswith("parity-0, J: ") for name in drift)
    assert not any("another period" in said for said in found.text)


def test_a_quick_record_of_parity_says_so() -> None:
    made = section("parity", quick(BITS[0]))
    assert (
        "Measured at less than paper scale: parity-0: paper's model, no far, heat 16, 8 heat strings, near 45-125 by "
        "20, 8 strings." in made.text
    )
    assert list(told(figure(made, "parity"), "parity-0, J")) == [45, 65, 85, 105, 125]
    rows = rows_of(made.tables, "Right at t = n by range of lengths")
    assert "parity-0, 101-500, J" in rows
    assert "parity-0, 505-1000, J" not in rows


def test_what_lower_precision_changed_is_told() -> None:
    found = {"near": bands(range(1, 501)), "check": bands(range(100, 501, 100))}
    made = section("parity", replace(raw("parity", BITS[0], found), settings={"products": "fp16"}))
    (said,) = [each for each in made.text if "fp16" in each and "in fp32, 5 lengths" in each]
    assert said.startswith(
        "parity-0 was measured with products in fp16. The same strings in fp32, 5 lengths from 100 to"
    )
    assert said.count("a cell differs by 0.0 points in the mean, 0.0 at most") == 2


def test_of_fresh_records_the_largest_is_shown() -> None:
    """Whatever order a store gives them in: the backbone that leads has one record more, with long strings."""
    near = raw("parity", BITS[0], {"near": bands(range(1, 501))})
    whole = raw("parity", BITS[0], near.predictions | {"far": bands(range(500, 1001, 5))})
    for fresh in ([near, whole], [whole, near]):
        assert Evidence(fresh=fresh).of("parity")[BITS[0]] is whole


def test_strings_in_fp32_stand_beside_those_in_fp16() -> None:
    """At 600 bits 64 strings, of which the first half was counted in fp16; at 800 bits all; no counts at 605 bits."""
    far = bands(range(500, 1001, 100), half=64)
    far["right"][:, 0, 1, 10] = torch.tensor([40, 16])
    right = torch.zeros(2, 21, 64, dtype=torch.uint8)
    right[0, 10, :39], right[1, 10, :16] = 1, 1
    first = torch.tensor([0], dtype=torch.int32)
    exact = raw("parity-fp32", BITS[0], {"600": {"right": right, "first": first},
                                         "605": {"right": right[:1], "first": first}})  # fmt: skip
    made = section("parity", raw("parity", BITS[0], {"near": bands(range(5, 501, 6)), "far": far}), exact)
    rows = rows_of(made.tables, "parity-0: Beyond 500 bits: fp32 beside fp16")
    assert {name: (round(64 * row.estimate.value), row.n) for name, row in rows.items()} == {
        "600 bits, native, fp32": (39, 64), "600 bits, native, fp16": (40, 64),
        "600 bits, J, fp32": (16, 64), "600 bits, J, fp16": (16, 64), "605 bits, native, fp32": (39, 64),
    }  # fmt: skip
    (said,) = (said for said in made.text if "in fp32: native" in said)
    assert f"native {100 * 39 / 64 / 21:.1f} % (" in said
    alone = section("parity", raw("parity", BITS[0], {"near": bands(range(5, 501, 6))}), exact)
    assert len(rows_of(alone.tables, "parity-0: Beyond 500 bits: fp32 beside fp16")) == 3


def test_parts_of_parity_that_were_not_measured() -> None:
    only_heat = raw("parity", BITS[0], {"heat": heat(5)})
    unsteered = raw("parity", BITS[1], {"near": bands(range(1, 500, 9), (lambda n: 0.0 * n,))})
    made = section("parity", only_heat, unsteered)
    assert re.findall(r"parity-\d, \w+:", figure(made, "parity").description) == ["parity-1, native:"]
    assert "parity-1" not in figure(made, "parity-heat").description


# ---- chains of relations ---------------------------------------------------------------------------------------------


def test_chains(report: Report) -> None:
    made = checked(report.sections[2])
    assert [each.name for each in made.figures] == ["chains", "chains-checks"]
    drawn, conditions = figure(made, "chains"), ("F only", "J after the curriculum", "J")
    points = {each: told(drawn, f"1 to 32, {each}") for each in conditions}
    assert {each: (found[1], found[32]) for each, found in points.items()} == {
        "F only": (100.0, 6.2), "J after the curriculum": (100.0, 12.5), "J": (100.0, 25.0)
    }  # fmt: skip
    assert "lengths 17-24, fit 3: 18.8 at 0 to 31.2 at 1,000" in figure(made, "chains-checks").description
    assert "16 queries at each of 32 lengths, 1 to 32, with 3 of 3 fits." in made.text[-2]
    rows = rows_of(made.tables, "Right answers by range of lengths")
    assert (rows["17-24, J"].estimate.value, round(rows["17-24, J"].published or 0, 4)) == (0.25, 0.4287)
    spread = rows_of(made.tables, "Spread over the last checks of the continuation")["17-24, fit 2"].estimate
    assert (spread.low, spread.high) == (3 / 16, 4 / 16)
    assert "all fits" in " ".join(rows_of(made.tables, "Spread over fits, right answers with the last map"))
    assert [table.title for table in made.more] == [f"Right answers by length, {each}" for each in conditions]


def test_all_records_of_chains_are_shown_and_the_one_with_most_fits_is_drawn() -> None:
    made = section("chains", chain(), fresh=[chain(1, cut=True)])
    assert "3 of 3 fits" in made.text[-1]
    rows = rows_of(made.tables, "Right answers by range, every record")
    assert {name.partition(":")[0] for name in rows} == {"relations-0, results/", "relations-0, recomputed now"}
    now = "relations-0, recomputed now: 16 queries cut to each of 32 lengths, 1 to 32, 1 fit"
    assert rows[f"{now}, 17-24, J"].estimate.value == 3 / 16


def test_a_single_map_of_each_fit_has_no_course() -> None:
    hits = first([16] * 32, 16)
    found = raw("chains", "relations-0", chain_counts(hits, [hits[None]], updates=(7,)))
    assert [each.name for each in section("chains", found).figures] == ["chains"]


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_every_dot_of_a_long_series_is_drawn() -> None:
    dots = [(float(n), float(np.random.default_rng(n).random())) for n in range(1, 301)]
    line = Line("native", [Estimate(0.5, 0.4, 0.6, 1, "length", 0)] * 2, at=[1.0, 300.0], dots=dots)
    made = lines_in_panels("dots", "t", "c", {"one": [line]}, "length", (20.0, 40.0))
    assert max(path.count("M") for path in re.findall(r' d="([^"]*)"', made.drawings.svg)) == len(dots)


def test_pictures_take_the_colour_of_the_theme() -> None:
    panels: Mapping[str, Square] = {f"panel {n}": Square(np.eye(n), [*range(1, n), None]) for n in (4, 30, 60)}
    made = loop_maps("maps", "t", "c", panels, 40)
    for svg in (made.drawings.svg, made.drawings.narrow):
        masks = re.findall(r'<mask id="([^"]+)"', svg)
        assert len(set(masks)) == 3
        assert re.findall(r'<g mask="url\(#([^)]+)\)"><rect [^>]*var\(--heat, #0a4a86\)', svg) == masks
        assert len(svg) < 60_000
    assert "var(" not in alone(made.drawings.svg)
    assert "panel 30: 1-10 100.0, 11-20 100.0, 21-30 100.0." in made.description


def test_insets_enlarge_the_corner_of_maps_that_have_it() -> None:
    """A picture more for each such map, with the dots of its lengths and loops; smaller maps have none."""
    panels: Mapping[str, Square] = {f"panel {n}": Square(np.eye(n), [*range(1, n + 1)]) for n in (59, 60, 64)}
    plain, made = (loop_maps("maps", "t", "c", panels, 40, part) for part in (None, (54, 60)))
    for without, svg in zip(plain.drawings[:2], made.drawings[:2], strict=True):
        assert [each.count("<image ") for each in (without, svg)] == [3, 5]
        assert svg.count("<use ") - without.count("<use ") >= 2 * 7
        assert ">54</text>" in svg
        assert ">54</text>" not in without
    assert plain.description == made.description


# ---- the page --------------------------------------------------------------------------------------------------------


def test_nothing_measured_has_no_section() -> None:
    for anchor in ("continuation", "parity", "chains"):
        assert SECTIONS[anchor](Evidence()) is None
    assert chains_section(Evidence([replace(chain(), facts=walker(EIGHT[0]).facts)])) is None


def test_raw_records_make_a_page(report: Report, tmp_path: Path) -> None:
    assert [each.anchor for each in report.sections] == ["continuation", "parity", "chains"]
    assert {row.id for row in report.ledger if row.verdict == HOLDS} == {
        *decided_by("continuation", "parity"), "kg.inside"
    }  # fmt: skip
    assert len(report.costs) == EVERYTHING
    assert {(cost.forwards, cost.plain) for cost in report.costs} == {(None, None)}
    write_page(report, tmp_path)
    for place in pages(report):
        reader = Reader((tmp_path / place).read_text(encoding="utf-8"))
        ids = [found for _, attributes in reader.elements if (found := attributes.get("id"))]
        assert len(set(ids)) == len(ids)
        assert "nan" not in " ".join(cell for table in reader.tables for line in table for cell in line)
