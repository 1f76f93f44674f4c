"""Draw `explorer.gif`, README's picture of the explorer, from the real page: the third stop of its tour, map by map.

    python docs/images/explorer.py

Needs Chromium, and the packages of the extras `dev` and `view`.
"""

from __future__ import annotations

import io
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from playwright.sync_api import sync_playwright

from loopscope.view.explorer import Explorer
from loopscope.view.server import Server
from loopscope.view.shown_model import open_model
from loopscope.view.worker import Worker

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZE = (1240, 680)
MAPS = ("no map", "J one", "J two")
SHOWN = 1800
"""Milliseconds that every picture is shown."""

COLOURS = 64
MOST = 250_000
"""Bytes of the file, at most."""


def pictures(page: Page) -> list[Image.Image]:
    """The stop with each map."""
    found = []
    for name in MAPS:
        page.get_by_role("radio", name=name, exact=True).click()
        page.locator('.loopscope[aria-busy="false"]').wait_for()
        page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(300)
        found.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
    return found


def draw(url: str) -> bytes:
    """The moving picture."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        width, height = SIZE
        page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
        page.goto(f"{url}#stop=3")
        found = pictures(page)
        browser.close()
    # One set of colours for all pictures, so that only what moves changes.
    palette = found[-1].quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in found]
    made = io.BytesIO()
    frames[0].save(
        made, "GIF", save_all=True, append_images=frames[1:], duration=SHOWN, loop=0, optimize=True, disposal=1
    )
    return made.getvalue()


def main() -> None:
    """Write the file beside this one; SystemExit where it would be too large."""
    server = Server(Worker(Explorer(open_model())))
    ready = threading.Event()
    thread = threading.Thread(target=server.run, args=(ready.set,))
    thread.start()
    try:
        ready.wait(60)
        made = draw(server.url)
    finally:
        server.stop()
        thread.join()
    if len(made) > MOST:
        raise SystemExit(f"the picture has {len(made):,} bytes, more than {MOST:,}")
    Path(__file__).with_name("explorer.gif").write_bytes(made)


if __name__ == "__main__":
    main()
