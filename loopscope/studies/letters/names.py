"""How records of the letter walk are named: which heads were patched, in which loops, and who chose them."""

from __future__ import annotations

from collections.abc import Iterable

from loopscope.measure.heads import Heads
from loopscope.studies.language.names import identity, loops_in_words
from loopscope.studies.letters.layouts import HEADS
from loopscope.studies.letters.records import selection_of
from loopscope.studies.records import Record


def of_search(record: Record, records: Iterable[Record]) -> bool | None:
    """Whether heads and loops that were patched are those of the search in the same run; None where none was made."""
    asked = record.settings.get("heads"), record.settings.get("patched")
    searches = (each for each in records if HEADS in each.predictions and identity(each) == identity(record))
    found = [each for each in map(selection_of, searches) if each is not None]
    return any(asked == (str(each.heads), [*each.loops]) for each in found) if found else None


def patched(record: Record) -> str:
    """Which heads were patched, in which loops; records of runs without patches have none."""
    if record.settings.get("heads") is None:
        return "no heads"
    return f"heads {record.settings['heads']} in {loops_in_words(record.settings['patched'])}"


def site(record: Record) -> str:
    """Where patches acted: 4 of 270 heads, loop 8; nothing where no heads were chosen."""
    if record.settings.get("heads") is None:
        return ""
    model = record.notes["model"]
    chosen, every = len(Heads.parse(record.settings["heads"])), model["layers"] * model["heads"]
    return f"{chosen} of {every} heads, {loops_in_words(record.settings['patched'])}"
