"""Pictures as files that a user names: checked first, then written whole or not at all."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from loopscope.errors import InputError
from loopscope.store.outputs import check_file, write_file

PICTURES = (".png", ".svg", ".pdf")


def check_picture(file: Path) -> None:
    """InputError unless a picture can be drawn and put there: its name, the folder, what is there, and matplotlib."""
    check_file(file)
    if file.suffix not in PICTURES:
        raise InputError(f"pictures are {', '.join(PICTURES[:-1])} or {PICTURES[-1]} files, not {file.name}")
    importlib.import_module("loopscope.plot.canvas")  # says that matplotlib is missing, before anything is computed


def write_picture(drawn: Any, file: Path) -> None:
    """Write a figure as a new file in the format of its name; StoreError where the file system refuses."""
    kind = file.suffix.removeprefix(".")
    write_file(file, lambda draft: drawn.savefig(draft, format=kind, dpi=144))
