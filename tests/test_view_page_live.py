"""The explorer's page in a real browser, by doing what a person does with it.

Left out, with a word in pytest's summary, on a machine without Chromium.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from loopscope.view.contract import Request
from loopscope.view.explorer import Explorer
from loopscope.view.runs import Steps
from tests.browser import chromium, installed
from tests.explored import tiny_subject
from tests.looking import look
from tests.viewing import LAPTOP, PHONE, main_explorer, sentence, served, settled, shown, text_explorer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from loopscope.view.server import Server

pytest.importorskip("starlette")
PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the explorer was not looked at in a browser"),
]

VIEWS = ("tour", "walk", "patterns", "patch", "sweep", "trajectories", "compare")
TWO = "program=F6+J:two+F&source=F6+J:one+F"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def live() -> Iterator[Server]:
    with served(main_explorer()) as server:
        yield server


@pytest.fixture
def page(browser: Browser, live: Server) -> Iterator[Page]:
    """The page as it opens."""
    with shown(browser, live.url) as found:
        yield found


def at(page: Page, place: str) -> None:
    """Go to a view by its link."""
    page.evaluate("place => { location.hash = place; }", place)
    settled(page)


# ---- the tour --------------------------------------------------------------------------------------------------------


def test_the_tour_goes_from_start_to_end(page: Page) -> None:
    titles = []
    for number in range(1, 10):
        settled(page)
        assert page.locator(".kicker").inner_text() == f"{number} of 9"
        titles.append(page.locator(".tour h2").inner_text())
        found = page.locator(".found").inner_text()
        assert re.search(r"\d\s%", found), found
        assert "\u2013" not in found  # every number is there
        assert "n = " in page.locator(".tour .words .key").inner_text()
        assert page.locator(".trouble:visible").count() == 0
        assert page.locator(".live > *").count() == 1
        page.locator(".turns .main").click()
    assert len(set(titles)) == 9
    assert "view=walk" in page.url


def test_every_choice_of_the_tour_can_be_made(page: Page) -> None:
    for stop in range(1, 10):
        at(page, f"stop={stop}")
        for group in range(page.locator(".live .choice").count()):
            for button in range(page.locator(".live .choice").nth(group).locator("button").count()):
                page.locator(".live .choice").nth(group).locator("button").nth(button).click()
                settled(page)
                assert page.locator(".trouble:visible").count() == 0


def test_the_map_decides_where_the_walker_goes(page: Page) -> None:
    at(page, "stop=3")
    told = {}
    for name in ("no map", "J one", "J two"):
        page.get_by_role("radio", name=name, exact=True).click()
        told[name] = sentence(page)
    assert "stays" in told["no map"]
    assert "walks one step" in told["J one"]
    assert "walks two steps" in told["J two"]


def test_what_a_patch_from_another_graph_brings_is_told_by_its_letter(page: Page) -> None:
    at(page, "stop=6")
    words = page.locator(".tour .words").inner_text()
    assert "head 3 of layer 2" in words
    assert all(f": {letter}." in words for letter in "BED")
    told = {}
    for name in ("nothing", "its pattern", "its output"):
        page.get_by_role("radio", name=name, exact=True).click()
        told[name] = sentence(page)
    assert told["nothing"].startswith("This is B: the run's own next node. Readout: node ")
    assert told["its pattern"].startswith("This is E: the arrow of the other's place, in this graph. Readout: node ")
    assert told["its output"].startswith("This is D: what the other run answers. Readout: node ")
    page.locator("[data-loop='6']").click()
    assert sentence(page).startswith("Loop 6 ")


def box(page: Page, of: str) -> dict[str, float]:
    """Where the first element of a kind is in the window, with its other two ends."""
    found = page.locator(of).first.bounding_box()
    assert found is not None, of
    return {**found, "right": found["x"] + found["width"], "bottom": found["y"] + found["height"]}


def test_on_a_phone_the_walker_is_in_sight_when_the_map_is_switched(browser: Browser, live: Server) -> None:
    with shown(browser, f"{live.url}#stop=3", PHONE) as page:
        settled(page)
        for name in ("J one", "J two"):
            page.get_by_role("radio", name=name, exact=True).click()
            settled(page)
            assert page.evaluate("scrollY") == 0
            walker = box(page, ".live .walker")
            assert walker["x"] >= 0
            assert walker["right"] <= PHONE[0]
            assert box(page, ".live .controls")["bottom"] <= walker["y"]
            assert walker["bottom"] <= box(page, ".turns")["y"]
        # The story is there, behind what can be tried.
        assert box(page, ".says")["y"] >= box(page, ".live")["bottom"]


@pytest.mark.parametrize("width", [320, PHONE[0]])
def test_the_tour_fits_a_narrow_phone(browser: Browser, live: Server, width: int) -> None:
    with shown(browser, live.url, (width, 640)) as page:
        for stop in range(1, 10):
            at(page, f"stop={stop}")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, stop
            small = [
                each.inner_text()
                for each in page.locator(".tour button:visible:not(.link)").all()
                if min((each.bounding_box() or {})[side] for side in ("width", "height")) < 24
            ]
            assert small == [], stop
            assert box(page, ".tabs")["height"] < 60  # one line, which scrolls


# ---- the views -------------------------------------------------------------------------------------------------------


def test_a_map_is_put_between_two_calls(page: Page) -> None:
    at(page, "view=walk&program=F7")
    before = sentence(page)
    assert "Loop 7 stays" in before
    page.get_by_label("Map before loop 7").select_option("one")
    assert "Loop 7 walks one step" in sentence(page)
    assert page.get_by_label("Program", exact=True).input_value() == "F6 J:one F"
    page.get_by_label("Map before loop 7").select_option("two")
    assert "Loop 7 walks two steps" in sentence(page)
    page.get_by_label("Map before loop 7").select_option("")
    assert sentence(page) == before
    groups = page.get_by_label("Map before loop 7").locator("optgroup")
    assert [groups.nth(each).get_attribute("label") for each in range(groups.count())] == ["Maps", "Other fits"]
    assert groups.first.locator("option").evaluate_all("all => all.map(each => [each.value, each.title])") == [
        ["one", "one-1@d8l6-5"],
        ["two", "two-1@d8l6-5"],
    ]
    page.get_by_role("button", name="Add a call of F").click()
    settled(page)
    assert "program=F8" in page.url
    page.get_by_role("button", name="Leave out the last call").click()
    page.go_back()
    settled(page)
    assert page.get_by_label("Program", exact=True).input_value() == "F8"


def test_the_start_keeps_its_name_when_a_loop_comes_back_to_it(page: Page) -> None:
    for program, told in (("F6", "start"), ("F6+J:two+F", "start · 7")):
        at(page, f"view=walk&program={program}&input=walk-2")
        assert [text for text in page.locator(".graph .tag").all_text_contents() if "start" in text] == [told]


def test_the_strip_stays_small_and_stands_on_one_line_with_play(browser: Browser, live: Server) -> None:
    with shown(browser, f"{live.url}#view=walk&program=F40", PHONE) as page:
        settled(page)
        assert box(page, ".runbar .calls")["height"] < 220
        last, calls = box(page, ".runbar [data-loop='40']"), box(page, ".runbar .calls")
        assert calls["y"] <= last["y"]  # the loop that is looked at is in sight
        assert last["bottom"] <= calls["bottom"]
        assert page.evaluate("scrollY") == 0
        at(page, "view=walk&program=F7")
        play, call = box(page, ".runbar .play"), box(page, ".runbar .call")
        assert abs(play["height"] - call["height"]) < 1
        assert abs(play["y"] - call["y"]) < 1


def test_loops_are_played(page: Page) -> None:
    at(page, "view=walk&program=F6+J:two+F&loop=5")
    page.get_by_role("button", name="Play the loops one after the other").click()
    page.wait_for_url(re.compile("loop=7"))
    page.get_by_role("button", name="Play the loops one after the other").wait_for()
    assert "Loop 7 walks two steps" in sentence(page)


def test_a_graph_of_ones_own_is_walked(page: Page) -> None:
    at(page, "view=walk&program=F6")
    page.get_by_label("arrows to").fill("1 2 3 4 5 6 7 8 9 0")
    page.get_by_label("arrows to").press("Enter")
    page.get_by_label("start", exact=True).select_option("3")
    assert "node 1 " in sentence(page)  # eight steps from 3
    page.get_by_label("arrows to").fill("0 0 1")
    page.get_by_label("arrows to").press("Enter")
    assert "has to stand here once" in page.locator(".input .wrong").inner_text()
    assert "node 1 " in sentence(page)


def test_a_place_is_patched_by_clicks(page: Page) -> None:
    at(page, f"view=patch&{TWO}")
    page.get_by_role("gridcell", name="loop 7, layer 2").click()
    page.get_by_label("Rows", exact=True).select_option("-1")
    page.locator(".choose .thumb").nth(1).click()
    settled(page)
    text = page.get_by_label("The patched run, as text")
    assert text.input_value() == "F6 J:two F[layer[2].head[1].row[-1].pattern<-(F6 J:one F)]"
    change = page.locator(".sentence").nth(1)
    assert "The answer changes" in change.inner_text()
    assert page.locator(".card:visible").count() == 2
    page.get_by_label("From", exact=True).select_option("mean")
    settled(page)
    assert "$mean" in text.input_value()
    assert page.locator(".trouble:visible, .wrong:visible").count() == 0
    page.get_by_label("What", exact=True).select_option("z")
    page.get_by_label("From", exact=True).select_option("zero")
    settled(page)
    assert text.input_value().endswith("z*=0]")


@pytest.mark.parametrize("source", ["loop:3", "input"])
def test_other_sources_of_a_patch(page: Page, source: str) -> None:
    at(page, f"view=patch&{TWO}&loop=7&layer=2&part=z")
    page.get_by_label("From", exact=True).select_option(source)
    settled(page)
    text = page.get_by_label("The patched run, as text").input_value()
    assert ("@other" if source == "input" else ".loop[3]") in text
    assert page.locator(".trouble:visible, .wrong:visible").count() == 0
    if source == "input":  # what is shown as the other input is what is patched from
        other = main_explorer().subject.examples[0].others["other"]
        fields = page.get_by_role("group", name="Other input")
        assert fields.get_by_label("arrows to").input_value() == " ".join(map(str, other["graph"]))
        assert fields.get_by_label("start").input_value() == str(other["start"])


def test_a_program_is_broken_and_mended(page: Page) -> None:
    at(page, "view=walk&program=F6+J:one+F")
    before = sentence(page)
    field = page.get_by_label("Program", exact=True)
    for broken, said in (
        ("F6 J:nobody F", "nobody"),
        ("F6 X", "X"),
        ("F6 F[layer[9].z<-(F7)]", "layer"),
        ("<img src=x onerror=alert(1)>", "<img"),
    ):
        field.fill(broken)
        field.press("Enter")
        settled(page)
        wrong = page.locator("#program-wrong")
        assert said in wrong.inner_text()
        assert "\n" not in wrong.inner_text().strip()
        assert sentence(page) == before  # nothing is lost
        assert field.input_value() == broken
    field.fill("F6   J:two F")
    field.press("Enter")
    assert "two steps" in sentence(page)
    assert field.input_value() == "F6 J:two F"
    assert not page.locator("#program-wrong").is_visible()


def test_the_text_of_a_patch_is_broken_and_mended(page: Page) -> None:
    at(page, f"view=patch&{TWO}&loop=7&layer=2&head=1&row=-1")
    text = page.get_by_label("The patched run, as text")
    text.fill("F6 J:two F[layer[2].head[11].pattern<-(F6 J:one F)]")
    text.press("Enter")
    settled(page)
    assert "head" in page.locator("#patched-wrong").inner_text()
    assert page.locator(".card:visible").count() == 2
    assert page.locator(".sentence").nth(1).inner_text() == ""  # it spoke of another run
    text.fill("F6 J:two F[layer[2].pattern<-(F6 J:one F)]")
    text.press("Enter")
    settled(page)
    assert not page.locator("#patched-wrong").is_visible()
    page.get_by_role("button", name="Keep as the run").click()
    settled(page)
    assert page.get_by_label("Program", exact=True).input_value() == "F6 J:two F[layer[2].pattern<-(F6 J:one F)]"


def test_a_run_is_copied_for_elsewhere(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    at(page, f"view=patch&{TWO}&loop=7&layer=2&head=1")
    for name, begun in (
        ("Copy Python", "import torch\n"),
        ("Copy command", "loopscope run d8l6-5 'F6 J:two F[layer[2].head[1].pattern<-(F6 J:one F)]' --ids '[13, "),
    ):
        page.locator(".view").get_by_role("button", name=name).click()
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()").startswith(begun)
        page.get_by_role("button", name="Copied").wait_for(state="hidden")


def test_a_model_without_a_name_has_no_command(browser: Browser) -> None:
    with served(Explorer(tiny_subject())) as server, shown(browser, f"{server.url}#view=text") as page:
        settled(page)
        page.get_by_role("button", name="Copy command").click()
        page.locator("#program-wrong", has_text="There is no command").wait_for()


def test_a_sweep_is_computed_and_a_cell_clicked(page: Page) -> None:
    at(page, f"view=sweep&{TWO}&row=-1")
    page.locator(".effects li").first.wait_for()
    assert "layer[2].head[1]" in page.locator(".effects li").first.inner_text()
    board = page.get_by_role("application")
    box = board.bounding_box()
    assert box is not None
    # The best cell: the last loop, second row from above.
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 39)
    told = page.locator(".sweep .told").inner_text()
    assert "loop[7].layer[2].head[1]" in told
    page.mouse.click(box["x"] + box["width"] - 20, box["y"] + 39)
    settled(page)
    assert "view=patch" in page.url
    assert "head[1].row[-1].pattern<-(F6 J:one F)" in page.get_by_label("The patched run, as text").input_value()
    page.go_back()
    settled(page)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save SVG").click()
    assert saved.value.suggested_filename == "sweep-pattern.svg"
    assert "<svg" in saved.value.path().read_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save Parquet").click()
    assert saved.value.path().read_bytes().startswith(b"PAR1")


def test_patterns_are_chosen_and_read(page: Page) -> None:
    at(page, "view=patterns&program=F6+J:one+F&loop=7&layer=2")
    page.locator(".thumb").nth(1).click()
    settled(page)
    assert page.locator(".thumb").nth(1).get_attribute("aria-pressed") == "true"
    looks = page.locator(".looks p")
    assert "Row 34" in looks.inner_text()
    box = page.get_by_role("application").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 30, box["y"] + 40)
    assert "Row 2" in looks.inner_text()
    page.locator(".chip").nth(33).hover()
    assert "Row 33" in looks.inner_text()
    page.locator(".chip").nth(33).click()
    page.mouse.move(0, 0)
    settled(page)
    assert "Row 33" in looks.inner_text()
    page.get_by_label("Difference to", exact=True).select_option("run:F6 J:two F")
    settled(page)
    assert "looks differently" in looks.inner_text()
    page.get_by_label("Difference to", exact=True).select_option("loop:6")
    settled(page)
    assert "less loop 6" in page.locator(".pattern figcaption").inner_text()


def test_a_run_with_a_map_is_compared_with_one_without(page: Page) -> None:
    at(page, "view=compare&program=F6+J:one+F&against=F7")
    assert sentence(page) == "The readouts part at loop 7."
    assert page.locator(".charts .chart").first.locator("circle").count() == 8  # the start and seven loops


def test_runs_are_compared_and_pinned(page: Page) -> None:
    at(page, "view=compare&program=F6+J:two+F&against=F6+J:one+F")
    assert "part at" in sentence(page)
    page.get_by_role("button", name="Pin this run").click()
    page.get_by_role("button", name="Swap").click()
    settled(page)
    page.get_by_role("button", name="Pin this run").click()
    settled(page)
    rows = page.locator(".pins tbody tr")
    assert rows.count() == 2
    assert {rows.nth(each).locator("th").inner_text() for each in range(2)} == {"F6 J:one F", "F6 J:two F"}
    rows.nth(0).get_by_role("button", name="Unpin").click()
    assert rows.count() == 1


def test_the_prompt_is_read_row_by_row(page: Page) -> None:
    at(page, "view=walk&program=F6")
    page.get_by_text("The prompt, row by row").click()
    settled(page)
    assert page.locator(".tokens tbody tr").count() == 35
    page.locator(".tokens tbody tr").nth(34).locator("td").last.click()
    settled(page)
    assert "row=34" in page.url
    assert page.locator(".top li").count() == 5


def test_trajectories_have_a_line_for_every_row(page: Page) -> None:
    at(page, "view=trajectories&program=F6")
    assert page.locator(".chart").first.locator("path.line").count() == 35


# ---- language models -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speaker() -> Iterator[Server]:
    with served(text_explorer()) as server:
        yield server


def trouble(page: Page) -> str:
    """What the page says that went wrong."""
    return page.locator(".trouble:visible").inner_text()


HOSTILE = '<b>bold</b> "&amp;" <img src=x onerror=alert(1)>'


def test_a_text_is_read_loop_by_loop(browser: Browser, speaker: Server) -> None:
    with shown(browser, f"{speaker.url}#view=text", PHONE) as page:
        settled(page)
        page.locator(".runbar summary").click()
        page.get_by_label("text", exact=True).fill(HOSTILE)
        page.get_by_label("text", exact=True).press("Enter")
        settled(page)
        tokens = page.locator(".tokens tbody th").all_inner_texts()
        assert "<" in "".join(tokens)
        assert page.locator(".loopscope img, .loopscope b").count() == 0
        last = page.locator(".tokens tbody tr").nth(3).locator("td").last
        box = last.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= PHONE[0]  # the last loop is in sight wherever one scrolls
        last.hover()
        assert page.locator(".top li").count() == 5
        last.click()
        settled(page)
        assert "row=3" in page.url
        field = page.get_by_label("Answers to follow")
        field.fill("a|b")
        field.press("Enter")
        settled(page)
        assert page.locator(".ranks tbody tr").count() == 2
        assert "row 3" in page.locator(".ranks h3").inner_text()
        cell = page.locator(".tokens td").first
        cell.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("[document.activeElement.dataset.index, document.activeElement.dataset.point]") == [
            "1",
            "1",
        ]


def test_a_long_text_opens_at_its_end(browser: Browser, speaker: Server) -> None:
    with shown(browser, f"{speaker.url}#view=text&input=text:{'a+b+' * 40}b") as page:
        settled(page)
        rows = page.locator(".tokens tbody tr")
        count, scroll = rows.count(), box(page, ".scroll.both")
        assert count > 40
        assert f"Behind row {count - 1}," in page.locator(".top").inner_text()
        assert "after loop 4" in page.locator(".top").inner_text()
        end = rows.last.bounding_box()
        assert end is not None
        assert scroll["y"] < end["y"] < scroll["bottom"]
        assert page.locator(".tokens td[tabindex='0']").count() == 1
        page.locator(".scroll.both").evaluate("e => { e.scrollTop = 0; }")
        page.locator(".tokens td").first.click()  # where one reads is kept
        settled(page)
        assert page.locator(".scroll.both").evaluate("e => e.scrollTop") == 0
        at(page, f"view=text&row=30&input=text:{'a+b+' * 40}a")
        line = rows.nth(30).bounding_box()
        assert line is not None
        assert scroll["y"] < line["y"] < scroll["bottom"]


def test_a_text_of_ones_own_is_swept_against_a_changed_copy(browser: Browser, speaker: Server) -> None:
    with shown(browser, f"{speaker.url}#view=patch&input=text:abba+ab") as page:
        settled(page)
        assert page.locator(".trouble:visible, .wrong:visible").count() == 0
        other = page.get_by_role("group", name="Other input").get_by_label("text")
        assert other.input_value() == "abba ab"
        at(page, "view=sweep&input=text:abba+ab")
        assert sentence(page).startswith("Change a word of the other input")
        assert page.locator(".trouble:visible").count() == 0
        other = page.get_by_role("group", name="Other input").get_by_label("text")
        other.fill("a b b a a b b a")
        other.press("Enter")
        settled(page)
        assert re.search(r"\(F4\)@other takes a pattern, but its source has \d+ rows, this run \d+: ", trouble(page))
        other.fill("abbb ab")
        other.press("Enter")
        settled(page)
        assert "takes a pattern" not in page.locator(".stage").inner_text()
        assert "other=text:abbb+ab" in page.url


def test_a_link_to_a_row_tells_its_tokens(browser: Browser, speaker: Server) -> None:
    with shown(browser, f"{speaker.url}#view=text&row=3&loop=2") as page:
        settled(page)
        top = page.locator(".top")
        assert "Behind row 3" in top.inner_text()
        assert "after loop 2; exit gate" in top.inner_text()
        before = top.inner_text()
        at(page, "view=text&row=3&loop=4")
        assert "after loop 4" in top.inner_text()
        at(page, "view=text&row=3&loop=2&program=F3+F[layer[1].z*=0]&input=text:abba+ab")
        assert top.inner_text() != before  # it is of the run that is shown now


def test_the_rows_of_a_sweep_are_those_that_are_shown(page: Page) -> None:
    at(page, f"view=sweep&{TWO}&row=33")
    assert page.locator('[aria-label="rows"] [aria-checked="true"]').inner_text() == "row 33"
    assert "row 33" in page.locator(".sweep figcaption").inner_text()


@pytest.mark.parametrize("view", ["patterns", "patch", "patch&from=loop:2", "sweep", "trajectories", "compare"])
def test_every_view_shows_a_language_model(browser: Browser, speaker: Server, view: str) -> None:
    with shown(browser, f"{speaker.url}#view={view}", PHONE) as page:
        settled(page)
        said = page.locator(".trouble:visible, .wrong:visible").all_inner_texts()
        assert all("nothing to recover" in each for each in said), said  # random weights answer most texts alike
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


# ---- links, tabs, trouble --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_reproduces_the_view(browser: Browser, live: Server, page: Page, view: str) -> None:
    at(page, f"view={view}&program=F6+J:two+F&loop=6&layer=1&head=2&row=5&stop=4&against=F6+J:one+F")
    before = page.locator(".stage").inner_text()
    with shown(browser, page.url) as again:
        settled(again)
        assert again.locator(".stage").inner_text() == before


def test_a_link_that_names_what_is_not_there_says_so(page: Page) -> None:
    banner = page.locator(".banner")
    for place, said in (
        ("view=walk&input=nobody", "an input that this page cannot read"),
        ("view=patch&other=graph:0,0", "another input that this page cannot read"),
        ("view=patch&layer=9", "layer 9, but layers are 1 to 2"),
    ):
        at(page, place)
        assert said in banner.inner_text()
        assert page.locator(".trouble:visible, .wrong:visible").count() == 0
        assert place.partition("&")[2] not in page.url  # the address says what is shown
        at(page, "view=walk&program=F7")
        assert not banner.is_visible()
    with shown_anew(page, "view=patch&layer=9") as again:
        assert "layer 9" in again.locator(".banner").inner_text()


@contextmanager
def shown_anew(page: Page, place: str) -> Iterator[Page]:
    """The same page at another place, opened by its link."""
    browser = page.context.browser
    assert browser is not None
    with shown(browser, f"{page.url.partition('#')[0]}#{place}") as found:
        settled(found)
        yield found


def test_two_tabs_do_not_meet(browser: Browser, live: Server) -> None:
    places = (f"{live.url}#view=walk&program=F6+J:{name}+F" for name in ("one", "two"))
    with shown(browser, next(places)) as one, shown(browser, next(places)) as two:
        assert "one step" in sentence(one)
        assert "two steps" in sentence(two)


def test_the_server_ends_and_comes_back(browser: Browser) -> None:
    explorer = main_explorer()
    with served(explorer) as first:
        context = browser.new_context(viewport={"width": LAPTOP[0], "height": LAPTOP[1]}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(f"{first.url}#view=walk&program=F6+J:one+F")
        before = sentence(page)
    page.get_by_label("Map before loop 7").select_option("two")
    banner = page.locator(".banner")
    banner.wait_for()
    assert "does not answer" in banner.inner_text()
    assert page.locator(".sentence").first.inner_text() == before  # nothing is lost
    with served(explorer, like=SimpleNamespace(port=first.port, token="of-another-start")) as second:
        page.locator(".banner", has_text="was started anew").wait_for()
        with shown(browser, second.url + "#" + page.url.partition("#")[2]) as new:
            assert "two steps" in sentence(new)
    with served(explorer, like=first):
        banner.wait_for(state="hidden")
        page.locator(".sentence", has_text="two steps").wait_for()
    context.close()


class Slow(Explorer):
    """Takes its time over a sweep until it need not."""

    def __init__(self) -> None:
        super().__init__(main_explorer().subject)
        self.pause, self.pieces = 0.3, 0

    def answer(self, request: Request) -> Steps[bytes]:
        steps = super().answer(request)
        while True:
            try:
                told = next(steps)
            except StopIteration as stop:
                return stop.value
            if told:
                self.pieces += 1
                time.sleep(self.pause)
            yield told


def test_what_takes_long_is_told_can_be_stopped_and_asked_for_again(browser: Browser) -> None:
    explorer = Slow()
    with served(explorer) as server, shown(browser, f"{server.url}#view=sweep&{TWO}") as page:
        told = page.locator(".progress.on")
        told.locator("span", has_text=re.compile(r"^sweep: \d+ of 56$")).wait_for()
        with shown(browser, f"{server.url}#view=walk&program=F6+J:one+F") as other:
            assert "one step" in sentence(other)  # nobody waits for it
        told.get_by_role("button", name="Stop").click()
        settled(page)
        assert page.locator(".trouble:visible").inner_text().startswith("Stopped.")
        assert told.count() == 0
        page.wait_for_timeout(700)
        done = explorer.pieces
        page.wait_for_timeout(700)
        assert explorer.pieces == done  # the model is left alone, too
        explorer.pause = 0.0
        page.get_by_role("button", name="Compute the sweep").click()
        assert "Most of it by loop[7].layer[2].head[1].pattern" in sentence(page)
        assert page.locator(".trouble:visible").count() == 0


def test_what_is_too_large_is_told_in_a_sentence(browser: Browser) -> None:
    little = Explorer(main_explorer().subject, memory=10_000)
    with served(little) as server, shown(browser, f"{server.url}#view=compare&{TWO}") as page:
        settled(page)
        said = page.locator(".trouble:visible").inner_text()
        assert "more than the 0.0 GiB there may be" in said
        assert "\n" not in said


# ---- how it looks and is reached ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [PHONE, LAPTOP], ids=["phone", "laptop"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read(browser: Browser, live: Server, size: tuple[int, int], theme: str) -> None:
    places = [*(f"stop={stop}" for stop in range(1, 10)), *(f"view={view}&{TWO}" for view in VIEWS[1:])]
    with shown(browser, live.url, size, theme) as page:
        for place in places:
            at(page, place)
            look(page, "document.querySelectorAll('details').forEach(e => e.open = true)")
            settled(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0], place
            weak = look(page, TEXTS)
            assert weak == [], (place, weak)
            assert look(page, NAMELESS) == [], place


# Texts whose contrast is too small: less than 4.5, or 3 for large ones; what cannot be used just now may be weaker.
TEXTS = """const found = [];
const walker = document.createTreeWalker(document.querySelector('.loopscope'), NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
    if (!text || e.closest('title, option, :disabled, .graph .nodes') || !shown(e)) continue;
    const style = getComputedStyle(e);
    const colour = e.ownerSVGElement ? style.fill : style.color;
    const back = e.ownerSVGElement ? behind(e.ownerSVGElement.parentElement) : behind(e);
    const value = contrast(rgba(colour), back);
    const large = parseFloat(style.fontSize) >= 24;
    if (value < (large ? 3 : 4.5)) found.push([Math.round(value * 100) / 100, text]);
}
return found;"""

# Controls that a screen reader could not name.
NAMELESS = """const wanted = 'button, a, select, input, textarea, [role=application], svg[role=img]';
return [...document.querySelectorAll(wanted)]
    .filter(shown)
    .filter(e => !(e.getAttribute('aria-label') || e.innerText || e.labels?.[0]?.innerText ||
        e.querySelector?.('title')?.textContent))
    .map(e => e.className.toString());"""


def reach(page: Page, wanted: str) -> None:
    """Press Tab until what is wanted has the focus, which must be seen."""
    for _ in range(80):
        page.keyboard.press("Tab")
        found: Any = page.evaluate(
            "wanted => { const e = document.activeElement; return [e.matches(wanted), e.matches(':focus-visible'), "
            "getComputedStyle(e).outlineStyle, e.outerHTML.slice(0, 80)]; }",
            wanted,
        )
        assert found[1:3] == [True, "solid"], found
        if found[0]:
            return
    raise AssertionError(f"Tab does not reach {wanted}")


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    settled(page)
    reach(page, ".turns .main")
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator(".kicker").inner_text() == "2 of 9"
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.locator(".kicker").inner_text() == "3 of 9"
    reach(page, ".live [role=radio][aria-checked=true]")
    page.keyboard.press("ArrowRight")
    assert "walks one step" in sentence(page)
    at(page, "view=walk&program=F7")
    page.locator("body").press("Home")
    page.evaluate("document.activeElement.blur()")
    reach(page, "[data-loop][aria-pressed=true]")
    page.keyboard.press("ArrowLeft")
    settled(page)
    assert "loop=6" in page.url
    reach(page, "select[data-after='6']")
    page.keyboard.press("ArrowDown")
    settled(page)
    assert "program=F6+J:one+F" in page.url
    assert page.evaluate("document.activeElement.dataset.after") == "6"
    reach(page, ".board")
    assert page.locator(".cursor").is_visible()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    settled(page)
    assert "loop=3" in page.url
    at(page, f"view=patch&{TWO}&loop=7&layer=2")
    page.evaluate("document.activeElement.blur()")
    reach(page, "[role=gridcell][aria-selected=true]")
    page.keyboard.press("ArrowDown")
    settled(page)
    assert "layer=1" in page.url
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "loop 7, layer 1"


def test_motion_can_be_turned_off(browser: Browser, live: Server) -> None:
    for motion, moves in (("reduce", 0), ("no-preference", 1)):
        context = browser.new_context(viewport={"width": 1000, "height": 800}, reduced_motion=motion)
        page = context.new_page()
        page.goto(f"{live.url}#view=walk&program=F6&loop=3")
        settled(page)
        page.locator("[data-loop='4']").click()
        count = page.evaluate("document.querySelector('.walker').getAnimations().length")
        settled(page)
        count = max(count, page.evaluate("document.querySelector('.walker').getAnimations().length"))
        assert (count > 0) == bool(moves)
        context.close()
