"""Names of a package that are loaded from their modules when they are first used, so that importing it costs nothing.

    __all__, __getattr__ = exports(__name__, {"executor": ("run", "sweep"), "plain": ("plain_run",)})

A name must not be that of a module of the package: once the module is imported, the name would mean the module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def exports(package: str, homes: Mapping[str, tuple[str, ...]]) -> tuple[list[str], Callable[[str], object]]:
    """A package's `__all__` and `__getattr__` for names by the module, inside the package, that has them."""
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def load_attribute(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    return sorted(home_of), load_attribute
