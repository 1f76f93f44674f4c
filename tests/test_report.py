"""The report as a file: what it says, that it says all of it, that it is well formed, and how it is written."""

from __future__ import annotations

import posixpath
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from loopscope.errors import InputError
from loopscope.plot import canvas
from loopscope.quantity import Quantity, QuantityTable
from loopscope.store.files import StoreError
from loopscope.studies.report import drawing
from loopscope.studies.report.contents import HOLDS, NOW, Cost, Figure, LedgerRow, Report, Section, percent
from loopscope.studies.report.dots import rates
from loopscope.studies.report.figures import Line, components, lines_by_call, paired, stacked_answers, subsets
from loopscope.studies.report.heat import Walk, heat_maps, label_heat
from loopscope.studies.report.page import alone, html, pages, write_page
from loopscope.studies.report.tables import duration
from tests.browser import demo_report, demo_tables, share, walk
from tests.reading_pages import Reader

STYLE = Path(drawing.__file__).with_name("style.css").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report() -> Report:
    return demo_report()


@pytest.fixture(scope="module")
def page(report: Report) -> Reader:
    return Reader(html(report))


@pytest.fixture(scope="module")
def every(report: Report) -> dict[str, Reader]:
    """All pages by their places in the folder."""
    return {name: Reader(text) for name, text in pages(report).items()}


def drawn(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(figure.drawings.svg.replace(f'xmlns="{drawing.SVG}"', ""))


def coloured(figure: Figure, colour: str) -> list[ElementTree.Element]:
    """The elements of the wide drawing that are filled with a colour."""
    fill = f"fill: var(--{drawing.THEMED[colour]}, {colour})"
    return [element for element in drawn(figure).iter() if element.get("style", "").startswith(fill)]


def widths(figure: Figure, colour: str) -> list[float]:
    """The widths of the bars of a colour, in order."""
    found = []
    for element in coloured(figure, colour):
        if element.tag == "path":
            across = [float(x) for x in re.findall(r"[ML] (-?[\d.]+) ", element.attrib["d"])]
            found.append(max(across) - min(across))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The page


def test_ids_are_unique_and_every_reference_has_its_target(every: dict[str, Reader]) -> None:
    count = 0
    for page in every.values():
        ids = Counter(found for _, attributes in page.elements if (found := attributes.get("id")))
        assert max(ids.values()) == 1
        wanted: set[str] = set()
        for _, attributes in page.elements:
            wanted |= {v[1:] for key in ("href", "xlink:href") if (v := attributes.get(key) or "").startswith("#")}
            for key in ("aria-labelledby", "aria-describedby"):
                wanted |= set((attributes.get(key) or "").split())
            for value in attributes.values():
                wanted |= set(re.findall(r"url\(#([^)]+)\)", value or ""))
        count += len(wanted)
        assert wanted <= set(ids)
    assert count > 100


def test_links_between_pages_lead_to_what_is_there(every: dict[str, Reader], report: Report) -> None:
    ids = {name: {attributes.get("id") for _, attributes in page.elements} for name, page in every.items()}
    drawn = {f"figures/{figure.name}.{kind}" for figure in report.figures for kind in ("svg", "pdf")}
    linked: set[str] = set()
    for name, page in every.items():
        for href in (attributes["href"] or "" for tag, attributes in page.elements if tag == "a"):
            place, _, anchor = href.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), place)) if place else name
            linked.add(there)
            assert there in drawn or not anchor or anchor in ids[there], href
    assert linked == {*drawn, *every}


def test_pages_need_nothing_from_outside_and_run_nothing(every: dict[str, Reader], report: Report) -> None:
    for page in every.values():
        tags = {tag for tag, _ in page.elements}
        assert not tags & {"script", "iframe", "img", "image", "object", "embed"}
        assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
    found = {each for text in pages(report).values() for each in re.findall(r"https?://[^\s\"'<>]+", text)}
    assert found == {drawing.SVG}
    assert "@import" not in STYLE
    assert "url(" not in STYLE


def test_language_headings_and_landmarks(every: dict[str, Reader]) -> None:
    for page in every.values():
        assert ("html", {"lang": "en"}) in page.elements
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
        assert levels == [1] + [2] * (len(levels) - 1)
        assert [tag for tag, _ in page.elements if tag in ("nav", "main", "footer")] == ["nav", "main", "footer"]
        assert page.elements[[tag for tag, _ in page.elements].index("body") + 1][1]["class"] == "skip"


def test_the_first_page_tells_what_was_found_and_the_others_the_rest(every: dict[str, Reader], report: Report) -> None:
    assert list(every) == [*(f"pages/{each.anchor}.html" for each in report.sections), "pages/ledger.html",
                           "pages/cost.html", "index.html"]  # fmt: skip
    first = html(report)
    for section in report.sections:
        own = pages(report)[f"pages/{section.anchor}.html"]
        for text in (first, own):
            assert escape(section.finding) in text
        assert escape(section.question or section.title) in first
        for text in section.text:
            assert text.split("`")[0].split("&")[0] in own
    shown = [figure.name for figure in report.opening] + [
        each.figures[0].name for each in report.sections if each.figures
    ]
    assert re.findall(r'<figure id="figure-(.*?)">', first) == shown
    assert every["index.html"].tables == []
    for row in report.ledger:
        assert (f'href="pages/ledger.html#claim-{row.id}"' in first) == any(row.id in s.claims for s in report.sections)
    assert re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", first) == list(report.terms.items())
    assert "A <dfn>looped transformer</dfn> applies" in first


def test_the_page_that_is_read_is_marked_in_the_contents(every: dict[str, Reader]) -> None:
    for name, page in every.items():
        marked = {attributes["href"] for _, attributes in page.elements if attributes.get("aria-current") == "page"}
        assert marked == (set() if name == "index.html" else {posixpath.basename(name)})


def test_tables_say_what_was_measured_beside_the_paper(every: dict[str, Reader]) -> None:
    first = every["pages/mechanism.html"].tables[0]
    assert first[0] == ["condition", "ours, %", "paper, %", "n"]
    assert first[1] == ["pattern patch gives E", "81.2 [80.0, 82.4]", "79.9", "3,966"]
    assert first[2] == ["pattern patch gives D", "1.5 [1.1, 1.9]", "", "3,966"]


def test_a_table_without_published_numbers_has_no_column_for_them() -> None:
    table = QuantityTable("test", "Ours alone", [Quantity("test.share", "a", share(-0.0001, 0.5), 7)])
    made = pages(Report("T", [], [Section("s", "S", "", tables=[table])]))
    (found,) = Reader(made["pages/s.html"]).tables
    assert found == [["condition", "ours, %", "n"], ["a", "0.0 [0.0, 50.0]", "7"]]


def test_ledger_has_every_field_of_every_claim(every: dict[str, Reader], report: Report) -> None:
    (ledger,) = every["pages/ledger.html"].tables
    for said, row in zip(ledger[1:], report.ledger, strict=True):
        text = "\n".join(said)
        n = "" if row.n is None else f"{row.n:,}"
        assert row.verdict in said[0]
        for part in (row.id, row.where, row.claim, row.paper, row.ours, row.interval, n, row.seeds, row.scale,
                     row.origin, row.command):  # fmt: skip
            assert part in text


def test_verdicts_are_counted(report: Report) -> None:
    found = re.findall(
        r'<li><a href="pages/ledger.html#([a-z-]+)"><strong>(\d+)</strong>.*?</b> ([a-z ]+)</span></a></li>',
        html(report),
    )
    assert found == [
        ("holds", "4", "claims hold"), ("does-not-hold", "1", "claim does not hold"), ("not-run", "1", "claim not run"),
    ]  # fmt: skip


def test_a_changed_protocol_is_counted_apart_and_rows_of_ours_are_not() -> None:
    rows = [
        LedgerRow("a", "3", "c", "1", "holds", protocol="published"),
        LedgerRow("b", "3", "c", "1", "holds", protocol="changed", changed=["8 loops"], numerics=["in <fp16>"]),
        LedgerRow("c", "3", "c", "1", "holds", protocol="published", counted=False),
    ]
    written = pages(Report("T", [], [], rows))
    made = written["pages/ledger.html"]
    (tally,) = re.findall(r'<ul class="tally".*?</ul>', written["index.html"])
    assert re.findall(r"<strong>(\d+)</strong>", tally) == ["1", "0", "0"]
    assert re.findall(r'<span class="side">(.*?)</span>', tally) == ["and 1 at a changed protocol"]
    assert "<summary>changed (1)</summary><ul><li>8 loops</li></ul>" in made
    assert "<li>in &lt;fp16&gt;</li>" in made


def test_controls_that_failed_stand_with_the_verdict_on_the_first_page() -> None:
    row = LedgerRow("a", "3", "c", "1", "holds", "2", failing=["control fails: J alone", "beside, m: <E>"])
    made = pages(Report("T", [], [Section("s", "S", "q", [], claims=["a"])], [row]))["index.html"]
    (listed,) = re.findall(r'<ul class="claims".*?</ul>', made)
    sides = re.findall(r'<span class="side">(.*?)</span>', listed)
    assert sides == ["ours: 2; paper: 1", "control fails: J alone", "beside, m: &lt;E&gt;"]


def test_costs_are_summed_over_what_counts(every: dict[str, Reader]) -> None:
    *_, last = every["pages/cost.html"].tables[-1]
    assert last == ["all steps", "1 min 40 s", "75,093", "525,653", "7.0×"]  # noqa: RUF001


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1 min 0 s"), (119.6, "2 min 0 s"), (3599.7, "1.0 h")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_percentages_have_a_minus_sign_but_zero_has_none() -> None:
    assert [percent(each) for each in (0.9963, -0.091, -0.0001, 1.0)] == ["99.6", "\N{MINUS SIGN}9.1", "0.0", "100.0"]


def test_text_is_text_and_never_markup() -> None:
    evil = "</title><script>alert(1)</script> a < b & `c < d`"
    figure = lines_by_call("f", evil, evil, [Line("<b>&", [share(0.5)])])
    row = LedgerRow("a.b", evil, evil, evil, HOLDS, evil, evil, 1, evil, evil, NOW, evil, [evil], failing=[evil])
    section = Section(
        "s",
        evil,
        evil,
        [evil],
        [figure],
        [QuantityTable("test", evil, [Quantity("test.share", evil, share(0.5), 1)], evil)],
        ["a.b"],
        finding=evil,
    )
    made = pages(Report(evil, [evil], [section], [row], [Cost(evil, 1.0, evil)], terms={evil: evil}))
    for text in made.values():
        assert "script" not in {tag for tag, _ in Reader(text).elements}
        assert "<code>c &lt; d</code>" in text
    assert "".join(made.values()).count("alert(1)") >= 40


def test_the_smallest_report_is_a_page(tmp_path: Path) -> None:
    nothing = Report("Nothing yet", [], [])
    Reader(page := write_page(nothing, tmp_path).read_text(encoding="utf-8"))
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert "explorer" not in page
    (tmp_path / "explorer").mkdir()
    (tmp_path / "explorer" / "index.html").touch()
    assert 'href="explorer/index.html"' in write_page(nothing, tmp_path).read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Themes


def variables() -> list[dict[str, str]]:
    """Light, dark and printed colours, as the style sheet gives them."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
    return [dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block)) for block in blocks]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_every_theme_has_every_colour_and_the_light_one_is_what_figures_are_drawn_in() -> None:
    light, dark, printed = variables()
    assert set(light) == set(dark) == set(printed)
    assert {name: light[name] for name in drawing.THEMED.values()} == {v: k for k, v in drawing.THEMED.items()}


@pytest.mark.parametrize("theme", variables(), ids=("light", "dark", "print"))
def test_colours_stand_out_in_every_theme(theme: dict[str, str]) -> None:
    """As text on paper and panels, and, for the parts of bars, as ground for text in the colour of paper."""
    for name in ("ink", "faint", "link", "green", "alarm", "blue", "orange", "purple", "grey"):
        for ground in ("paper", "panel"):
            dark, light = sorted((luminance(theme[name]), luminance(theme[ground])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, ground)


def test_all_colours_of_figures_follow_the_theme_and_their_files_do_not(report: Report) -> None:
    for figure in report.figures:
        for svg in (figure.drawings.svg, figure.drawings.narrow):
            assert re.sub(r"var\(--[a-z]+, #[0-9a-f]{6}\)", "", svg).count("#") == len(
                re.findall(r'href="#|url\(#', svg)
            )
        assert "var(" not in alone(figure.drawings.svg)
        assert ElementTree.fromstring(alone(figure.drawings.svg)).tag == f"{{{drawing.SVG}}}svg"


# ---------------------------------------------------------------------------------------------------------------------
# Figures


def test_equal_numbers_give_equal_bytes() -> None:
    one, two = (rates("r", "R", "c", demo_tables()) for _ in range(2))
    assert one == two
    assert one.drawings == two.drawings


def test_two_drawings_of_one_kind_share_no_ids() -> None:
    figures = [heat_maps(name, "T", "c", [walk("w", 6, 1, 0)]) for name in ("a", "b")]
    drawings = [svg for figure in figures for svg in (figure.drawings.svg, figure.drawings.narrow)]
    ids = [set(re.findall(r'id="([^"]+)"', svg)) for svg in drawings]
    assert all(ids)
    assert len(set.union(*ids)) == sum(map(len, ids))
    for svg, there in zip(drawings, ids, strict=True):
        pointers = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
        assert {one or other for one, other in pointers} == {each for each in there if each[-1].isdigit()}


def test_heat_map_shows_frequencies_and_unique_modes() -> None:
    frequencies = np.zeros((17, 10))
    frequencies[:, 8], frequencies[:, 3] = 0.8, 0.2
    modes: list[int | None] = [None, *[8] * 16]
    figure = heat_maps("h", "T", "c", [Walk("w", frequencies, 6, modes)])
    cells = [e for group in drawn(figure).iter("g") if group.get("shape-rendering") for e in group]
    opacities = Counter(re.findall(r"fill-opacity: ([\d.]+)", e.attrib["style"])[0] for e in cells[: 17 * 2])
    assert sorted(map(float, opacities)) == pytest.approx([0.2, 0.8], abs=0.005)
    assert set(opacities.values()) == {17}
    assert len([e for e in coloured(figure, canvas.PAPER) if e.tag == "use"]) == 16
    assert "tie 8 8" in figure.description


def test_label_heat_puts_rows_upwards() -> None:
    shares = np.zeros((2, 3))
    shares[1, 2] = 1.0
    figure = label_heat("h", "T", "c", {"p": shares}, "position", "label")
    cell, *_ = (e for group in drawn(figure).iter("g") if group.get("shape-rendering") for e in group)
    xs, ys = (np.array(found, float) for found in zip(*re.findall(r"([\d.]+) ([\d.]+)", cell.attrib["d"]), strict=True))
    frame = [e for e in coloured(figure, canvas.PAPER) if e.tag == "path"][1].attrib["d"]
    right = max(float(x) for x, _ in re.findall(r"([\d.]+) ([\d.]+)", frame))
    top = min(float(y) for _, y in re.findall(r"([\d.]+) ([\d.]+)", frame))
    assert (xs.max(), ys.min()) == pytest.approx((right, top), abs=0.5)
    assert "label 1: 0.0 0.0 100.0" in figure.description


def test_stacked_bars_are_as_long_as_their_shares() -> None:
    answers = {"c": {"a": share(0.5), "b": share(0.3), "z": share(0.2)}}
    figure = stacked_answers("s", "T", "c", answers, {"a": "A", "b": "B", "z": "Z"})
    bars = [max(widths(figure, colour)) for colour in (canvas.GREY, canvas.BLUE, canvas.ORANGE)]
    assert np.array(bars) / sum(bars) == pytest.approx([0.5, 0.3, 0.2], abs=0.002)
    assert figure.description == "c: A 50.0 %, B 30.0 %, Z 20.0 %."


def test_component_and_subset_bars_are_as_long_as_their_shares() -> None:
    bars = {"x": {"q": {"layer 1": share(0.2), "layer 2": share(0.8)}, "k": {"layer 2": share(0.4)}}}
    figure = components("c", "T", "c", bars)
    (one,), two = widths(figure, canvas.BLUE)[:1], widths(figure, canvas.ORANGE)[:2]
    assert [each / one for each in two] == pytest.approx([4, 2], abs=0.02)
    chosen = subsets("u", "T", "c", {"x": {(1,): share(0.3), (0, 1): share(0.9), (0,): share(0.1)}}, 2)
    found = widths(chosen, canvas.BLUE)
    assert [each / found[0] for each in found] == pytest.approx([1, 3, 9], abs=0.05)
    assert chosen.description == "x, per cent: heads 0 10.0; heads 1 30.0; heads 0+1 90.0."


def test_text_of_figures_is_text(report: Report) -> None:
    (trajectories,) = (f for section in report.sections for f in section.figures if f.name == "trajectories")
    for svg in (trajectories.drawings.svg, trajectories.drawings.narrow):
        texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{{{drawing.SVG}}}text")]
        assert "D8L8 seed 4" in texts
    assert trajectories.drawings.pdf.startswith(b"%PDF")


# ---------------------------------------------------------------------------------------------------------------------
# Files and mistakes


def test_page_and_figures_are_written_and_written_over(report: Report, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    names = [figure.name for figure in report.figures]
    for _ in range(2):
        said: list[str] = []
        page = write_page(report, folder, said.append)
        assert said == [*(f"drawing {name}" for name in names), "writing"]
    assert page == folder / "index.html"
    for place, text in pages(report).items():
        assert (folder / place).read_text(encoding="utf-8") == text
    assert {path.name for path in (folder / "figures").iterdir()} == {f"{n}.{k}" for n in names for k in ("svg", "pdf")}
    assert {path.name for path in folder.iterdir()} == {"index.html", "pages", "figures"}
    assert {f"pages/{path.name}" for path in (folder / "pages").iterdir()} == {*pages(report)} - {"index.html"}


def test_refused_by_the_file_system_nothing_is_left(
    report: Report, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "file").touch()
    assert "cannot write" in refused(StoreError, write_page, report, tmp_path / "file" / "report")
    full = tmp_path / "report"
    before = write_page(replace(report, title="the page before"), full).read_text(encoding="utf-8")
    (full / "figures" / f"{report.sections[0].figures[0].name}.svg").unlink()
    (full / "figures" / f"{report.sections[0].figures[0].name}.svg").mkdir()
    refused(StoreError, write_page, report, full)
    assert sorted(path.name for path in full.iterdir()) == ["figures", "index.html", "pages"]
    assert (full / "index.html").read_text(encoding="utf-8") == before


def test_mistakes_in_a_report(report: Report, refused: Callable[..., str]) -> None:
    section = Section("s", "S", "")
    row = LedgerRow("a", "3", "c", "1", HOLDS)
    figure = report.sections[0].figures[0]
    assert "twice" in refused(InputError, Report, "T", [], [section, section])
    assert "twice" in refused(InputError, Report, "T", [], [Section("ledger", "S", "")])
    assert "twice" in refused(InputError, Report, "T", [], [section], [row, row])
    assert "twice" in refused(InputError, Report, "T", [], [replace(section, figures=[figure, figure])])
    assert "letters, digits" in refused(InputError, Report, "T", [], [Section("../s", "S", "")])
    assert "nearest: a" in refused(InputError, Report, "T", [], [replace(section, claims=["aa"])], [row])
    assert "nearest: holds" in refused(InputError, LedgerRow, "a", "3", "c", "1", "hold")
    assert "recomputed now" in refused(InputError, LedgerRow, "a", "3", "c", "1", HOLDS, "", "", 1, "", "", "now")


def test_figures_of_nothing(refused: Callable[..., str]) -> None:
    for draw, *rest in (
        (heat_maps, []), (label_heat, {}, "x", "y"), (stacked_answers, {}, {}), (lines_by_call, []), (rates, []),
        (paired, {}), (components, {}), (subsets, {}, 4),
    ):  # fmt: skip
        assert "nothing to draw" in refused(InputError, draw, "f", "T", "c", *rest)


def test_only_drawing_needs_matplotlib() -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import loopscope.studies.report.page\n"
        "from loopscope.errors import InputError\n"
        "for name in ('figures', 'heat'):\n"
        "    try: __import__(f'loopscope.studies.report.{name}')\n"
        "    except InputError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["drawing figures needs matplotlib: pip install 'loopscope[plot]'"] * 2
