"""The command line.  Every command is thin: it parses, calls the library, prints a table or, with --json, one object.

Exit codes: 0 fine, 1 the file system or the machine refused, 2 the request does not fit, 3 a file is damaged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import loopscope
from loopscope.errors import InputError, LoopscopeError, nearest

if TYPE_CHECKING:  # heavy modules are imported by the commands that need them
    from loopscope.model import ModelConfig
    from loopscope.store import Status, Store

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
store_app = typer.Typer(no_args_is_help=True, help="Artefacts on disk: list, verify, clean up.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure this machine: the plain way beside ours.")
maps_app = typer.Typer(no_args_is_help=True, help="Saved maps J.")
app.add_typer(store_app, name="store")
app.add_typer(bench_app, name="bench")
app.add_typer(maps_app, name="maps")

Version = Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
StoreFolder = Annotated[Path, typer.Option("--store", help="Folder of the artefact store.")]


def main() -> None:
    """Entry point of the `loopscope` command."""
    try:
        code = app(standalone_mode=False)
    except LoopscopeError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; say nothing more
            sys.exit(1)
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except (KeyboardInterrupt, EOFError):
        _fail("interrupted", 130)
    except Exception as error:
        # Typer's usage errors, whichever Click they come from; anything else is a bug and keeps its traceback.
        if not hasattr(error, "format_message"):
            raise
        _fail(" ".join(error.format_message().split()), 2)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    if message:  # empty where the help has just been printed
        print(f"loopscope: {message}", file=sys.stderr)
    sys.exit(code)


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], left: int = 1) -> None:
    """A table with `left` text columns, the others aligned to the right as numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)


@app.callback(invoke_without_command=True)
def _root(version: Version = False) -> None:
    """Read, steer and patch looped transformers."""
    if version:
        print(f"loopscope {loopscope.__version__}")
        raise typer.Exit


@app.command()
def populations(as_json: AsJson = False) -> None:
    """List the evaluation populations: name, graphs, kept instances, fingerprint.  All are regenerated and checked."""
    from loopscope.tasks.populations import listing

    rows = listing()
    if as_json:
        return _print_json({"populations": rows})
    _print_table(
        "Evaluation populations (kept: instances that pass the label rule, over all starts)",
        ("name", "rule", "sha256", "graphs", "kept"),
        ((r["name"], r["rule"], r["sha256"][:16], f"{r['graphs']:,}", f"{r['kept']:,}") for r in rows),
        left=3,
    )


@app.command()
def plan(
    programs: Annotated[list[str], typer.Argument(help='Programs, such as "F6 J:one F".')],
    model: Annotated[
        str, typer.Option(help="graph-walk, parity, relations, or a JSON file of settings.")
    ] = "graph-walk",
    tokens: Annotated[int, typer.Option(help="Rows of the input; 0: the model's position table, or 35.")] = 0,
    row: Annotated[list[int] | None, typer.Option(help="A row to read (repeatable; default: the last).")] = None,
    read: Annotated[str, typer.Option(help="Where to read: last, calls or all.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Check programs against a model and say what running them together costs, without running anything."""
    from loopscope.execute import check_programs
    from loopscope.plan import Sizes

    config = _model_config(model)
    length = tokens or config.positions or 35
    if length < 1 or 0 < config.positions < length:
        near = 1 if length < 1 else config.positions
        raise InputError(f"--tokens {length} does not fit: 1..{config.positions or 'any'} (nearest: {near})")
    checked = check_programs(programs, Sizes(config.layers, config.heads, length), read=read, rows=row or [-1])
    calls = [program.calls for program in checked.paths]
    plain = [max(1, config.layers * length * count) for count in calls]
    report: dict[str, Any] = {
        "programs": [
            {"program": str(p), "calls": p.calls, "points": list(p.points), "forwards": cost / max(plain)}
            for p, cost in zip(checked.paths, plain, strict=True)
        ],
        "distinct_calls": checked.calls,
        "forwards": checked.rows / max(plain),
    }
    if as_json:
        return _print_json(report)
    rows = ((p["program"], p["calls"], f"{p['forwards']:.3f}") for p in report["programs"])
    _print_table("Programs (cost alone, in plain runs of the longest)", ("program", "calls", "cost"), rows)
    print(f"together: {report['distinct_calls']} distinct calls, cost {report['forwards']:.3f}")
    print("(before examples share anything; runs on aligned inputs that patches take values from are counted)")


def _model_config(name: str) -> ModelConfig:
    from loopscope.model import ModelConfig, graph_walk_config, parity_config, relations_config

    presets = {"graph-walk": graph_walk_config, "parity": parity_config, "relations": relations_config}
    if name in presets:
        return presets[name]()
    path = Path(name)
    if not path.is_file():
        raise InputError(f"no model {name!r}: neither a file nor one of {', '.join(presets)}{nearest(name, presets)}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold one JSON object of model settings")
    return ModelConfig.from_dict(values)


@maps_app.command("show")
def maps_show(folder: Path, as_json: AsJson = False) -> None:
    """What a saved map is, and how far it is from the identity."""
    import torch

    from loopscope.maps import load_map

    step = load_map(folder)
    W, b = step.linear().detach().double(), step.b.detach().double()
    singular = torch.linalg.svdvals(W - torch.eye(step.width, dtype=torch.float64))
    report = {
        "folder": str(folder),
        "family": step.family,
        **step.settings(),
        "parameters": sum(p.numel() for p in step.parameters()),
        "distance_from_identity": float(singular.norm()),
        "largest_singular_values": [float(s) for s in singular[:5]],
        "bias_norm": float(b.norm()),
    }
    if as_json:
        return _print_json(report)
    _print_table("Map J", ("", "value"), report.items())


@store_app.command("list")
def store_list(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """List the artefacts of a store."""
    _show_store(_open_store(store).list(), as_json)


@store_app.command("verify")
def store_verify(store: StoreFolder = Path("store"), as_json: AsJson = False) -> None:
    """Hash every file of every artefact; exit code 3 when one is damaged."""
    found = _open_store(store).verify()
    _show_store(found, as_json)
    damaged = sum(status.state == "damaged" for status in found)
    if damaged:
        _fail(f"{damaged} of {len(found)} artefacts are damaged", 3)


@store_app.command("gc")
def store_gc(
    store: StoreFolder = Path("store"),
    dry_run: Annotated[bool, typer.Option(help="Say what would be removed, remove nothing.")] = False,
    damaged: Annotated[bool, typer.Option(help="Also remove artefacts that fail their hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what interrupted writers left behind."""
    report = _open_store(store).gc(dry_run=dry_run, damaged=damaged)
    if as_json:
        return _print_json(asdict(report))
    title = f"{'would free' if dry_run else 'freed'} {report.freed:,} bytes; {report.live} writers at work"
    _print_table(
        title, ("path", "reason", "bytes"), ((r.path, r.reason, f"{r.size:,}") for r in report.removed), left=2
    )


def _open_store(folder: Path) -> Store:
    from loopscope.store import Store

    if not folder.is_dir():
        raise InputError(f"there is no store at {folder}; name one with --store")
    return Store(folder)


def _show_store(found: Iterable[Status], as_json: bool) -> None:
    rows = [asdict(status) for status in found]
    if as_json:
        return _print_json({"artefacts": rows})
    columns = ("kind", "key", "state", "created", "reason", "bytes")
    lines = ((r["kind"], r["key"][:16], r["state"], r["created"], r["reason"], f"{r['size']:,}") for r in rows)
    _print_table(f"{len(rows)} artefacts", columns, lines, left=5)


@bench_app.command("patching")
def bench_patching(as_json: AsJson = False) -> None:
    """Patching sweeps the plain way (one full run each, as hook-based tools do) and by the executor."""
    import torch
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from loopscope import bench

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        timings = bench.bench_patching(lambda name: progress.update(task, description=name))
    if as_json:
        machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        return _print_json({**machine, "cases": [asdict(t) for t in timings]})
    _print_table(
        f"Patching, {torch.get_num_threads()} threads; work in forward-equivalents",
        ("case", "examples", "runs", "plain s", "ours s", "ratio", "plain work", "our work", "largest difference"),
        (
            (t.case, t.examples, t.programs, f"{t.plain_s:.2f}", f"{t.ours_s:.3f}", f"{t.ratio:.1f}",
             f"{t.plain_work:.2f}", f"{t.ours_work:.2f}", f"{t.max_abs_diff:.1e}")
            for t in timings
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
