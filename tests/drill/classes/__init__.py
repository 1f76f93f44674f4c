"""The classes of cases, by name."""

from __future__ import annotations

from tests.drill.cases import Group
from tests.drill.classes import (
    artefacts,
    identity,
    interruptions,
    maps,
    models,
    reading,
    records,
    requests,
    surroundings,
)

GROUPS: dict[str, Group] = {
    name: group
    for module in (models, reading, identity, maps, artefacts, records, requests, surroundings, interruptions)
    for name, group in module.GROUPS.items()
}
