"""Names of a package that are loaded from their modules when they are first used, so that importing it costs nothing.

    __all__, __getattr__ = exports(__name__, {"executor": ("run", "sweep"), "plain": ("plain_run",)})

A name must not be that of a module of the package: once the module is imported, the name would mean the module.  The
rooms that are named by themselves are modules, of those that can be called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping


def exports(
    package: str, homes: Mapping[str, tuple[str, ...]], rooms: Collection[str] = ()
) -> tuple[list[str], Callable[[str], object]]:
    """A package's `__all__` and `__getattr__` for names by the module, inside the package, that has them.

    `rooms` are names of modules that stand for themselves.
    """
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def load_attribute(name: str) -> object:
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    return sorted([*home_of, *rooms]), load_attribute
