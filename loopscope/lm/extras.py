"""The packages of the extra `[lm]`, imported when they are first needed: the rest of the library runs without them."""

from __future__ import annotations

import importlib
from types import ModuleType

from loopscope.errors import InputError


def extra(name: str, purpose: str) -> ModuleType:
    """The package `name`; InputError says what it is needed for and how it is installed where it is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:  # it is there, but broken: not a matter of installing it
            raise
        raise InputError(f"{purpose} needs the package {name}: pip install 'loopscope[lm]'") from error
