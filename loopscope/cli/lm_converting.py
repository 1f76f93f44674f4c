"""Pickled checkpoints of language models written as safetensors: the one command that opens a pickle."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loopscope.cli.app import AsJson, print_json, prose, say
from loopscope.cli.display import spinner
from loopscope.cli.lm import lm_app, quiet_transformers

if TYPE_CHECKING:
    from loopscope.models.convert import Converted

SHOWN = 6
"""Names that are told of a list."""


@lm_app.command("convert")
def lm_convert(
    source: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER", help="A checkpoint, or the folder it is in.")],
    out: Annotated[Path, typer.Option(help="The model folder to write; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Write a pickled checkpoint (pytorch_model.bin, .pt, .pth) as safetensors; nothing in it is executed."""
    quiet_transformers()
    from loopscope.models.convert import convert
    from loopscope.models.folders import CONFIG

    with spinner() as log:
        log("converting")
        made = convert(source, out)
    if as_json:
        tensors = [{"name": name, "dtype": kind, "shape": shape} for name, (kind, shape) in made.tensors.items()]
        return print_json({"folder": str(out), **asdict(made), "tensors": tensors, "dtypes": made.dtypes})
    _print(out, made)
    if CONFIG not in made.copied:
        say(f"there was no {CONFIG} beside it: a model is loaded by one")


def _print(out: Path, made: Converted) -> None:
    """What was read, changed and written."""
    for each in made.sources:
        say(f"read {each.name}: {each.bytes:,} bytes, SHA-256 {each.sha256}")
    if made.taken:
        prose(f"taken: {'.'.join(made.taken)}; left out: {_some(made.left) or 'nothing'}")
    if made.prefix:
        say(f"cut off from every name: {made.prefix}")
    if made.shared:
        pairs = [f"{name} is {first}" for name, first in made.shared.items()]
        prose(f"written under each name, as they shared memory: {_some(pairs)}")
    types = ", ".join(f"{count:,} {kind}" for kind, count in made.dtypes.items())
    prose(f"{out}: {len(made.tensors):,} tensors ({types}), {made.bytes:,} bytes, SHA-256 {made.sha256}")
    prose(f"names: {_some(list(made.tensors))}")
    prose(f"copied: {_some(made.copied) or 'nothing'}")


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = [f"{len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
