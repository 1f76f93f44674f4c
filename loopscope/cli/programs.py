"""Programs and what they run on: the evaluation populations, the price of a program, saved maps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, prose, say
from loopscope.cli.options import map_named
from loopscope.errors import InputError, nearest
from loopscope.store.files import first_line, read

if TYPE_CHECKING:
    from loopscope.model import ModelConfig
    from loopscope.store.store import Artefact

maps_app = typer.Typer(no_args_is_help=True, help="Saved maps J.")
app.add_typer(maps_app, name="maps")

MOST_TOKENS = 1_000_000
"""Rows of an input whose programs are priced where the model has no position table."""


@app.command()
def populations(as_json: AsJson = False) -> None:
    """List the evaluation populations: name, graphs, kept instances, fingerprint.  All are regenerated and checked."""
    from loopscope.tasks.populations import listing

    rows = listing()
    if as_json:
        return print_json({"populations": rows})
    print_table(
        "Evaluation populations (kept: instances that pass the label rule, over all starts)",
        ("name", "rule", "sha256", "graphs", "kept"),
        ((r["name"], r["rule"], r["sha256"][:16], f"{r['graphs']:,}", f"{r['kept']:,}") for r in rows),
        left=3,
    )


@app.command()
def plan(
    programs: Annotated[list[str], typer.Argument(help='Programs, such as "F6 J:one F".')],
    model: Annotated[
        str, typer.Option(help="graph-walk, parity, relations, a backbone of the zoo, or a JSON file of settings.")
    ] = "graph-walk",
    tokens: Annotated[int, typer.Option(help="Rows of the input; 0: the model's position table, or 35.")] = 0,
    row: Annotated[list[int] | None, typer.Option(help="A row to read (repeatable; default: the last).")] = None,
    read: Annotated[str, typer.Option(help="Where to read: last, calls or all.")] = "last",
    as_json: AsJson = False,
) -> None:
    """Check programs against a model and say what running them together costs, without running anything."""
    from loopscope.execute.executor import check_programs
    from loopscope.execute.runs import Sizes

    config = _model_config(model)
    length = tokens or config.positions or 35
    most = config.positions or MOST_TOKENS
    if not 1 <= length <= most:
        raise InputError(f"--tokens {length} does not fit: 1..{most} (nearest: {1 if length < 1 else most})")
    checked = check_programs(programs, Sizes(config.layers, config.heads, length), read=read, rows=row or [-1])
    calls = [program.calls for program in checked.programs]
    plain = [max(1, config.layers * length * count) for count in calls]
    report: dict[str, Any] = {
        "programs": [
            {"program": str(p), "calls": p.calls, "points": list(p.points), "forwards": cost / max(plain)}
            for p, cost in zip(checked.programs, plain, strict=True)
        ],
        "distinct_calls": checked.calls,
        "forwards": checked.rows / max(plain),
    }
    if as_json:
        return print_json(report)
    rows = ((p["program"], p["calls"], f"{p['forwards']:.3f}") for p in report["programs"])
    print_table("Programs (cost alone, in plain runs of the longest)", ("program", "calls", "cost"), rows)
    say(f"together: {report['distinct_calls']} distinct calls, cost {report['forwards']:.3f}")
    prose("(before examples share anything; runs on aligned inputs that patches take values from are counted)")


def _model_config(name: str) -> ModelConfig:
    from loopscope.model import ModelConfig, graph_walk_config, parity_config, relations_config
    from loopscope.store.manifest import JSON_LIMIT, parse_json

    presets = {"graph-walk": graph_walk_config, "parity": parity_config, "relations": relations_config}
    if name in presets:
        return presets[name]()
    path = Path(name)
    if not path.is_file():
        return _of_zoo(name, presets)
    try:
        values = parse_json(read(path, limit=JSON_LIMIT))
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path} is not JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold one JSON object of model settings")
    return ModelConfig.from_dict(values)


def _of_zoo(name: str, presets: Iterable[str]) -> ModelConfig:
    """The settings of a backbone of the zoo; InputError where it has none of that name."""
    from loopscope.store.artefacts import BACKBONE, load_backbone, name_of
    from loopscope.store.zoo import matches, open_zoo

    known: list[Artefact] = []
    with suppress(InputError):  # there may be no zoo
        known += open_zoo(None).every(BACKBONE)
    if len(found := matches(known, name)) == 1:
        return load_backbone(found[0]).config
    close = nearest(name, [*presets, *map(name_of, known)])
    raise InputError(f"no model {name!r}: neither a file, a backbone of the zoo nor one of {', '.join(presets)}{close}")


@maps_app.command("show")
def maps_show(
    folder: Annotated[Path, typer.Argument(help="A saved map J, or its zoo name.", callback=map_named)],
    as_json: AsJson = False,
) -> None:
    """What a saved map is, and how far it is from the identity."""
    import torch

    from loopscope.loading import load_map

    shown = load_map(folder)
    W, b = shown.linear().detach().double(), shown.b.detach().double()
    singular = torch.linalg.svdvals(W - torch.eye(shown.width, dtype=torch.float64))
    report = {
        "folder": str(folder),
        "family": shown.family,
        **shown.settings(),
        "parameters": sum(p.numel() for p in shown.parameters()),
        "distance_from_identity": float(singular.norm()),
        "largest_singular_values": [float(s) for s in singular[:5]],
        "bias_norm": float(b.norm()),
    }
    if as_json:
        return print_json(report)
    rows = ((name.replace("_", " "), _rounded(value)) for name, value in report.items() if name != "folder")
    print_table(f"The map J in {folder}", ("", "value"), rows, left=2)


def _rounded(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_rounded, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
