"""Options that several commands have, each declared once, and bundles of them.

    @lm_app.command("readouts")
    @bundled
    def lm_readouts(model: LanguageModel, top: Top = 5, as_json: AsJson = False) -> None: ...

A bundle is a dataclass whose fields are options: a command with a parameter of its type has all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from loopscope.cli.app import note
from loopscope.errors import InputError

if TYPE_CHECKING:
    import torch

    from loopscope.models.passes import Boundary


def _seconds(value: float) -> float:
    """InputError for what is no span of time: then there would be a checkpoint after every update, or never one."""
    if not 0 <= value < math.inf:
        raise InputError(f"--save-every takes seconds, 0 or more, not {value} (nearest: {0 if value < 0 else 30})")
    return value


def model_named(name: Path) -> Path:
    """A path that is there; else the folder of the zoo's model of that name, or of the hub's, which is told.

    InputError where there is none.  A path that can be no name is given back: whoever takes the folder refuses it.
    """
    return _model(name, weights=True)


def tokenizer_named(name: Path | None) -> Path | None:
    """As `model_named`, of a model whose tokenizer alone is wanted."""
    return None if name is None else _model(name, weights=False)


def _model(name: Path, weights: bool) -> Path:
    if os.path.lexists(name):
        return name
    from loopscope.models import hub

    if (asked := hub.parse(str(name))) is None:
        return _in_zoo(name, "language_folder")
    found = hub.find(asked, weights=weights, log=note)
    note(found)
    return found.folder


def map_named(name: Path) -> Path:
    """A path that is there; else the folder of the zoo's map of that name; else the path, which is then refused."""
    try:
        return name if os.path.lexists(name) else _in_zoo(name, "map_folder")
    except InputError:
        return name


def _in_zoo(name: Path, finder: str) -> Path:
    if os.sep in str(name):
        return name
    from loopscope import loading

    try:
        found: Path = getattr(loading, finder)(name)
    except OSError:  # a name that is too long, for one
        return name
    return found


StoreFolder = Annotated[Path, typer.Option("--store", help="Folder of the artefact store.")]
FirstStore = Annotated[Path | None, typer.Option("--store", help="A store whose records come before the stored ones.")]
ZooFolder = Annotated[Path | None, typer.Option("--zoo", help="Folder of the zoo; default: that of the checkout.")]
Results = Annotated[
    Path | None, typer.Option(help="Folder with the stored records; default: those in results/ of the checkout.")
]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
On = Annotated[
    str | None,
    typer.Option("--on", help="local:N, ray:auto, ray:HOST:PORT or slurm:PARTITION; default: this process alone."),
]
Gpus = Annotated[
    float | None, typer.Option("--gpus", help="GPUs of a job with --on, such as 0.5; default: 1 with --device cuda.")
]
Events = Annotated[
    bool, typer.Option("--events", help="With --on: print events, one JSON object a line; the last is the result.")
]
SaveEvery = Annotated[float, typer.Option(help="Seconds between checkpoints.", callback=_seconds)]
ModelFolder = Annotated[
    Path,
    typer.Argument(
        help="A model folder (config, weights, tokenizer), a zoo name, or OWNER/NAME[@REVISION] of the hub.",
        callback=model_named,
    ),
]
MapFolder = Annotated[Path, typer.Option("--map", help="A saved map J, or its zoo name.", callback=map_named)]
Begin = Annotated[
    str | None,
    typer.Option(
        "--start",
        help="zeros, seed:K, or a safetensors file with one tensor `state` (texts, rows, d; shorter texts at its end); "
        "default: the model's.",
    ),
]
Puzzles = Annotated[
    str | None, typer.Option("--puzzles", help='The puzzle of every text (TRM, HRM), such as "[0, 2]".')
]
Chat = Annotated[bool, typer.Option("--chat", help="Put each text into the chat template, as a question.")]
Precision = Annotated[str, typer.Option("--dtype", help="What the model computes in: fp32 or bf16; maps stay fp32.")]
Force = Annotated[bool, typer.Option("--force", help="Replace --out if it is a file that Loopscope wrote.")]
Ending = Annotated[str | None, typer.Option(help="What ends a loop of a pretrained stack: none or norm.")]
LoopedLayers = Annotated[
    str | None,
    typer.Option(
        "--loop-layers",
        metavar="LAYERS",
        help="Layers of a pretrained stack that are looped, such as 11-20; default: all.",
    ),
]
AnyMap = Annotated[
    bool, typer.Option("--any-map", help="Take a map that was fitted to another model or boundary; no claim does.")
]
Top = Annotated[int, typer.Option(help="How many tokens to show each time.")]
Plot = Annotated[
    Path | None, typer.Option(metavar="FILE.svg|png|pdf", help="A new file for a picture of what is found.")
]


@dataclass(frozen=True, kw_only=True)
class Looped:
    """Which layers of a pretrained stack are looped; `short` is what `--loop` gives, as the option was once called."""

    loop: LoopedLayers = None
    short: Annotated[str | None, typer.Option("--loop", hidden=True)] = None

    def __post_init__(self) -> None:
        """InputError where both are given."""
        if self.short is not None and self.loop is not None:
            raise InputError("--loop and --loop-layers are one option; give --loop-layers")
        object.__setattr__(self, "loop", self.loop if self.short is None else self.short)
        object.__setattr__(self, "short", None)  # so that a copy of this is one, too


@dataclass(frozen=True, kw_only=True)
class LanguageModel(Looped):
    """A language model and how it is run."""

    folder: ModelFolder
    boundary: Ending = None
    device: Device = "auto"
    dtype: Precision = "fp32"

    @property
    def ending(self) -> Boundary | None:
        """What --boundary names; InputError where there is nothing of that name."""
        return ending_named(self.boundary)

    @property
    def precision(self) -> torch.dtype:
        """What --dtype names; InputError where there is nothing of that name."""
        from loopscope.models.passes import precision_named

        return precision_named(self.dtype)

    @property
    def place(self) -> torch.device:
        """What --device names; InputError where there is none."""
        from loopscope.training.job import pick_device

        return pick_device(self.device)


def ending_named(boundary: str | None) -> Boundary | None:
    """What --boundary names; InputError where there is nothing of that name."""
    from loopscope.models.passes import boundary_named

    return None if boundary is None else boundary_named(boundary)


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its bundles in the place of each; all of a name must be one."""
    kinds = get_type_hints(command, include_extras=True)
    bundles: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}
    options: list[Parameter] = []
    for name, each in signature(command).parameters.items():
        if name in bundles:
            inner = get_type_hints(bundles[name], include_extras=True)
            options += [_option(field, inner[field.name]) for field in fields(bundles[name]) if field.init]
        else:
            options.append(each.replace(kind=Parameter.KEYWORD_ONLY, annotation=kinds[name]))

    @wraps(command)
    def run(**given: Any) -> None:
        for name, bundle in bundles.items():
            given[name] = bundle(**{field.name: given.pop(field.name) for field in fields(bundle) if field.init})
        command(**given)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _option(field: Field[Any], kind: object) -> Parameter:
    default = Parameter.empty if field.default is MISSING else field.default
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
