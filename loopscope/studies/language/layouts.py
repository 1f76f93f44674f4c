"""What records of all language models keep, whichever study they are of: settings of a run, notes, replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from loopscope.bounds import shown
from loopscope.measure.replies import KEPT, as_texts
from loopscope.models.passes import Boundary
from loopscope.studies.records import Record
from loopscope.studies.schema import Kept, MisfitError, mapping, sha256, truth, whole, word

LETTERS, ANTONYMS, ITERATIONS = "letters", "antonyms", "iterations"
STEPS = 8
"""Requests are for up to so many steps."""

RUN = ("loops", "boundary", "loop", "dtype", "any_map")
"""Settings of every test: the third where it is not fp32, the last for a map of another model."""

BOUNDARIES: tuple[Boundary, ...] = get_args(Boundary)


@dataclass(frozen=True)
class Replies(Kept):
    """Texts, a row each, as `replies.as_bytes` writes them."""

    def check(self, name: str, found: Tensor) -> None:
        """MisfitError also for what is no text."""
        super().check(name, found)
        if found.shape[-1] > KEPT:
            raise MisfitError(f"{name!r} with up to {KEPT} bytes a reply", str(found.shape[-1]))
        try:
            as_texts(found)
        except ValueError:
            raise MisfitError(f"replies in UTF-8 in {name!r}", "other bytes") from None


def check_run(record: Record) -> None:
    """What every test says of the model, its map and how it ran."""
    settings, facts, model = record.settings, record.facts, mapping(record.notes, "model")
    if (facts.nodes, facts.depth) != (0, STEPS):
        raise MisfitError(f"no nodes and requests for up to {STEPS} steps", f"{facts.nodes} and {facts.depth}")
    if dict(facts.fits) != {"J": 1}:
        raise MisfitError("one fit, J", shown(dict(facts.fits)))
    if not record.raw:
        raise MisfitError("answers as they are", "raw: False")
    if settings.get("loops") != facts.loops or type(settings["loops"]) is not int:
        raise MisfitError(f"{facts.loops} loops, as the facts have them", shown(settings.get("loops")))
    if settings.get("boundary") not in BOUNDARIES:
        raise MisfitError(f"a boundary among {', '.join(BOUNDARIES)}", shown(settings.get("boundary")))
    if "loop" in settings:
        word(settings, "loop")
    if "dtype" in settings and settings["dtype"] != model.get("dtype"):
        raise MisfitError("the precision that the notes name", shown(settings["dtype"]))
    truth(settings, "any_map", False)
    if "identity" in record.notes and mapping(record.notes, "identity").get("weights") != facts.key:
        raise MisfitError("the weights that the facts name", shown(record.notes["identity"]))
    word(model, "type")
    word(model, "dtype")
    for name in ("layers", "width"):
        whole(model, name, 1, 10**6)
    whole(model, "parameters", 1, 10**14)
    if whole(model, "heads", 1, 10**6) != facts.heads:
        raise MisfitError(f"{facts.heads} heads, as the facts have them", str(model["heads"]))
    step = mapping(record.notes, "map")
    sha256(step.get("key"), "key of the map")
    word(step, "family")
