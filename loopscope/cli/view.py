"""The explorer: a looped model in the browser, live or recorded."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, app, print_json, say
from loopscope.cli.display import spinner
from loopscope.cli.options import Device, Ending, LoopedLayers, Precision, ZooFolder, bundled, ending_named, map_named
from loopscope.cli.threads import choose_threads
from loopscope.errors import InputError

if TYPE_CHECKING:
    from loopscope.view.explorer import Explorer
    from loopscope.view.shown_model import ShownModel

MEMORY = 4.0
"""GiB that the weights, and what is kept of runs, may take by default."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """How the model of a command is loaded, and with which maps."""

    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="[NAME=]FOLDER", help="A saved map J, or its zoo name (repeatable)."),
    ] = None
    loops: Annotated[int | None, typer.Option(help="Calls of a language model; default: its own number.")] = None
    boundary: Ending = None
    loop_layers: LoopedLayers = None
    device: Device = "auto"
    dtype: Precision = "fp32"
    zoo: ZooFolder = None

    def subject(self, model: str, memory: int | None = None) -> ShownModel:
        """The model with its maps, and as many threads as suit it; InputError for what cannot be loaded so."""
        from loopscope.models.passes import precision_named
        from loopscope.training.job import pick_device
        from loopscope.view.shown_model import maps_named, open_model

        found = open_model(
            model, maps_named(self.maps or (), map_named), zoo=self.zoo, device=pick_device(self.device),
            dtype=precision_named(self.dtype), memory=memory, loops=self.loops, boundary=ending_named(self.boundary),
            loop=self.loop_layers,
        )  # fmt: skip
        choose_threads(found.numbers)
        return found


@app.command()
@bundled
def view(
    how: Loaded,
    model: Annotated[
        str | None, typer.Argument(help="A zoo name, a model folder or OWNER/NAME of the hub; default: d8l6-5.")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Write the page with recorded answers into a new folder, and end.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    port: Annotated[int, typer.Option(help="A port of this machine; 0: any that is free.")] = 0,
    memory: Annotated[float, typer.Option(help="GiB that the model and what is kept of runs may take.")] = MEMORY,
    as_json: AsJson = False,
) -> None:
    """See a looped model by its loops, steer it and patch it in the browser.  Only this machine can reach the page."""
    from loopscope.models.extras import extra
    from loopscope.store.outputs import check_folder
    from loopscope.view.explorer import Explorer
    from loopscope.view.shown_model import MAIN_MODEL, gibibytes

    most = gibibytes(memory)
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port} does not exist: ports are 0 to 65535 (nearest: {0 if port < 0 else 65535})")
    if bundle is not None:
        check_folder(bundle)
    else:
        for package in ("starlette", "uvicorn"):
            extra(package, "the explorer", "view")
    with spinner() as log:
        log("loading the model")
        explorer = Explorer(how.subject(MAIN_MODEL if model is None else model, most), most // 4)
        if bundle is not None:
            from loopscope.view.bundle import write_bundle

            file = write_bundle(explorer, bundle, log)
    if bundle is None:
        return _serve(explorer, port, browser, as_json)
    size = file.stat().st_size
    if as_json:
        return print_json({"page": str(file), "bytes": size})
    say(f"{file}: {size:,} bytes; open it in a browser")


def _serve(explorer: Explorer, port: int, browser: bool, as_json: bool) -> None:
    import webbrowser

    from loopscope.view.server import Server
    from loopscope.view.worker import Worker

    server = Server(Worker(explorer), port)

    def ready() -> None:
        if as_json:
            print_json({"url": server.url, "model": explorer.subject.name})
        else:
            say(f"{explorer.subject.name} is shown at {server.url}", "End with Ctrl-C.")
        _flush()
        if browser:
            webbrowser.open(server.url)

    with suppress(KeyboardInterrupt):  # how a page is ended
        server.run(ready)


def _flush() -> None:
    import sys

    sys.stdout.flush()
