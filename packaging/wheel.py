"""What a wheel brings besides code: the part of the zoo that `inventory.json` beside this file lists.

An editable install takes nothing of this: there the zoo of the checkout is used.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackagedZoo(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the listed artefacts and the list itself into `loopscope/zoo`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the folders to be taken; `version` is "editable" where none are."""
        if version == "editable":
            return
        root = Path(self.root)
        inventory = root / "packaging" / "inventory.json"
        included = build_data["force_include"]
        included[str(inventory)] = "loopscope/zoo/inventory.json"
        for name in json.loads(inventory.read_text(encoding="utf-8"))["artefacts"]:
            included[str(root / "zoo" / name)] = f"loopscope/zoo/{name}"
