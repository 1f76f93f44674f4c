"""The explorer's page with recorded answers, from disk, in a real browser: no server, no network.

Left out, with a word in pytest's summary, on a machine without Chromium.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loopscope.view.bundle import write_bundle
from loopscope.view.explorer import Explorer
from loopscope.view.shown_model import ShownModel
from tests.browser import chromium, installed
from tests.explored import tiny_subject
from tests.tiny import tiny_model
from tests.viewing import PHONE, main_explorer, sentence, settled, shown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium: the explorer was not looked at in a browser"),
]

VIEWS = ("walk", "patterns", "patch", "sweep", "trajectories", "compare")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert PROGRAM is not None
    with chromium(PROGRAM) as running:
        yield running


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the bundle of the main backbone."""
    folder: Path = tmp_path_factory.mktemp("bundles") / "walks"
    return write_bundle(main_explorer(), folder).as_uri()


def test_the_tour_is_whole_without_a_server(browser: Browser, bundle: str) -> None:
    with shown(browser, bundle) as page:
        for number in range(1, 10):
            settled(page)
            assert page.locator(".kicker").inner_text() == f"{number} of 9"
            for at in range(page.locator(".live .choice").first.locator("button").count()):
                page.locator(".live .choice").first.locator("button").nth(at).click()
                settled(page)
                assert page.locator(".trouble:visible").count() == 0, (number, at)
            page.locator(".turns .main").click()


def test_a_bundle_is_painted_within_a_second_from_disk(browser: Browser, bundle: str) -> None:
    """The best of three, as others may use the machine meanwhile."""
    painted = []
    for _ in range(3):
        with shown(browser, bundle) as page:
            settled(page)
            painted.append(
                page.evaluate("performance.getEntriesByName('first-contentful-paint').map(each => each.startTime)[0]")
            )
    assert 0 < min(painted) < 1000, painted


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_something_to_show(browser: Browser, bundle: str, view: str) -> None:
    with shown(browser, f"{bundle}#view={view}", PHONE) as page:
        settled(page)
        assert page.locator(".trouble:visible").count() == 0
        assert page.locator("canvas:visible, svg:visible").count() > 0


@pytest.mark.parametrize("maps", [True, False], ids=["maps", "no-maps"])
def test_every_view_of_a_model_of_tokens_is_recorded(browser: Browser, tmp_path: Path, maps: bool) -> None:
    subject = tiny_subject() if maps else ShownModel(tiny_model(seed=3), "tiny")
    url = write_bundle(Explorer(subject), tmp_path / "tokens").as_uri()
    for view in ("text", *VIEWS[1:]):
        with shown(browser, f"{url}#view={view}") as page:
            settled(page)
            assert page.locator(".unrecorded").count() == 0, view
            said = page.locator(".trouble:visible, .wrong:visible").all_inner_texts()
            assert all("nothing to recover" in each for each in said), (view, said)


def test_the_prompt_is_read_row_by_row_without_a_server(browser: Browser, bundle: str) -> None:
    with shown(browser, f"{bundle}#view=walk") as page:
        page.get_by_text("The prompt, row by row").click()
        settled(page)
        assert page.locator(".unrecorded").count() == 0
        assert page.locator(".tokens tbody tr").count() == 35


def test_maps_are_switched_without_a_server(browser: Browser, bundle: str) -> None:
    with shown(browser, f"{bundle}#view=walk&program=F7") as page:
        assert "stays" in sentence(page)
        page.get_by_label("Map before loop 7").select_option("two")
        assert "walks two steps" in sentence(page)
        link = page.url
        before = page.locator(".stage").inner_text()
    with shown(browser, link) as page:
        settled(page)
        assert page.locator(".stage").inner_text() == before


def test_what_was_not_recorded_is_hatched_and_says_how_to_get_it(browser: Browser, bundle: str) -> None:
    with shown(browser, f"{bundle}#view=walk&program=F7") as page:
        settled(page)
        page.get_by_label("Map before loop 2").select_option("two")
        settled(page)
        assert page.locator(".unrecorded").count() == 1
        # What was drawn before is of another run: nothing of it is told, and nothing shows through.
        assert not page.locator(".unrecorded figcaption").first.is_visible()
        assert not page.locator(".sentence").first.is_visible()
        assert "background-image" in page.evaluate(
            "() => { const style = getComputedStyle(document.querySelector('.unrecorded'), '::after');"
            " return style.backgroundImage.includes('gradient') ? 'background-image' : 'none'; }"
        )
        assert "loopscope view d8l6-5" in page.locator(".trouble code").inner_text()
        assert "from # on" in page.locator(".trouble:visible").inner_text()
        assert page.get_by_label("Program", exact=True).input_value() == "F J:two F6"
        page.get_by_label("Map before loop 2").select_option("")
        assert "stays" in sentence(page)
        assert page.locator(".sentence").first.is_visible()
        assert page.locator(".unrecorded").count() == 0
        field = page.get_by_label("Program", exact=True)
        before = sentence(page)
        for wrong, said in (
            ("F7 nonsense", "cannot be read"),
            ("F6 X", "no stack named X"),
            ("F6 J:x F", "no map named x"),
        ):
            field.fill(wrong)
            field.press("Enter")
            settled(page)
            assert said in page.locator("#program-wrong").inner_text()
            assert page.locator(".unrecorded, .trouble:visible").count() == 0
            assert sentence(page) == before
