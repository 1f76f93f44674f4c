"""The packages of extras such as `[lm]`, imported when first needed: the rest of the library runs without them."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from loopscope.errors import InputError

NEEDED = ("transformers", "tokenizers", "jinja2")
"""What a model folder is loaded and spoken to with."""


def lacking() -> str:
    """Which packages a model folder cannot be used without and how they are installed; "" where all are there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(missing)}: pip install 'loopscope[lm]'" if missing else ""


def extra(name: str, purpose: str, of: str | None = "lm") -> ModuleType:
    """The package `name` of an extra; InputError says what it is for and how it is installed where it is missing.

    One that is in no extra (`of` None) is installed by its own name.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # it is there, but broken: not a matter of installing it
            raise
        install = name if of is None else f"'loopscope[{of}]'"
        raise InputError(f"{purpose} needs the package {name}: pip install {install}") from error
