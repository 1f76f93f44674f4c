"""What a case's answer is worth: an honest refusal, a harmless change, or one of the things that must not happen."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.drill.cases import Case
from tests.drill.harmless import declared, tolerated
from tests.drill.listing import changes, without
from tests.drill.running import Outcome, Played

GOOD = ("refused", "harmless")
BAD = ("silent", "traceback", "hang", "memory", "left behind", "unclear")
LONGEST_LINE = 2000
MOST_MEMORY = 4 << 30
SCARCE = 1 << 30
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
STARVED = re.compile(
    r"^(MemoryError|.*(bad_alloc|can't allocate memory|Cannot allocate memory|memory allocation of))", re.M
)


@dataclass(frozen=True)
class Verdict:
    """One of `GOOD` or `BAD`, and why."""

    kind: str
    why: str


@dataclass(frozen=True)
class Reference:
    """What a scene's command says and writes when nothing is changed; `fault` where it does not even work then."""

    said: object
    written: dict[str, str]
    stderr: str
    fault: str = ""

    @classmethod
    def of(cls, played: Played) -> Reference:
        """From a case that changes nothing."""
        if played.fault:
            return cls(None, {}, "", played.fault)
        outcome = played.outcomes[-1][0]
        fault = ""
        if outcome.code != 0:
            fault = f"unchanged inputs: exit code {outcome.code}, {outcome.stderr[-300:]!r}"
        elif wrong := _misplaced(played):
            fault = f"unchanged inputs: {wrong}"
        return cls(said(outcome, played.root), written(played), _plain(outcome.stderr, played.root), fault)


def judge(played: Played, reference: Reference) -> Verdict:
    """The verdict on a case, by the outcomes of its last round and what it left."""
    case = played.case
    if fault := played.fault or reference.fault:
        return Verdict("unclear", fault)
    every = [outcome for group in played.outcomes for outcome in group]
    for outcome in every:
        expected = {command.death.number for group in case.played() for command in group if command.death}
        expected |= {signal.SIGABRT} if _aborted(case, outcome) else set()
        if bad := _broken(outcome, expected):
            return bad
    for outcome in [outcome for group in played.outcomes[:-1] for outcome in group]:
        if outcome.code not in (0, *case.earlier) and -outcome.code not in case.earlier:
            return Verdict("unclear", f"an earlier command ended with {outcome.code}: {outcome.stderr[-300:]!r}")
        if outcome.code > 0 and not (outcome.stderr.splitlines() or [""])[-1].startswith("loopscope: "):
            return Verdict("unclear", f"an earlier command says {outcome.stderr[-300:]!r}")
    last = played.outcomes[-1]
    if any(_aborted(case, outcome) for outcome in last):
        return _left(played, reference) or Verdict("refused", "a library aborted for want of memory, without a word")
    answered = [outcome for outcome in last if outcome.code == 0]
    for outcome in last:
        codes = (*case.codes, *(case.earlier if answered else ()))
        if outcome.code and (bad := _refusal(outcome, codes, reference.stderr)):
            return bad
    if not answered:
        return _left(played, reference) or Verdict("refused", f"exit code {last[0].code}: {last[0].stderr.strip()}")
    return _answer(played, answered[0], reference)


def _aborted(case: Case, outcome: Outcome) -> bool:
    """Whether a library in C++ or Rust ended a process that was denied memory: nobody can catch that."""
    starved = any(command.limits.memory < SCARCE for group in case.played() for command in group)
    return starved and outcome.code == -signal.SIGABRT


def _broken(outcome: Outcome, expected: Iterable[int]) -> Verdict | None:
    """What must never happen, however the case ends."""
    tail = outcome.stderr[-600:]
    if outcome.late:
        return Verdict("hang", f"still at work after {outcome.seconds:.0f} s; {tail!r}")
    if -outcome.code in expected:
        return None
    if outcome.peak > MOST_MEMORY or outcome.code == -9:
        return Verdict("memory", f"{outcome.peak / 2**30:.1f} GiB, exit code {outcome.code}; {tail!r}")
    trace = "Traceback (most recent call last)" in outcome.stderr or "panicked at" in outcome.stderr
    if (trace or outcome.code < 0) and STARVED.search(outcome.stderr):
        return Verdict("memory", tail)
    if trace or outcome.code < 0:
        return Verdict("traceback", f"exit code {outcome.code}; {tail}")
    if found := CONTROLS.search((outcome.stdout + outcome.stderr).replace("\x1b[?25h", "")):
        return Verdict("unclear", f"the control character {found[0]!r} was printed")
    return None


def _refusal(outcome: Outcome, codes: tuple[int, ...], usual: str) -> Verdict | None:
    """What is wrong with a refusal; what the command also says when all is well does not count as a line."""
    if outcome.code not in codes:
        return Verdict("unclear", f"exit code {outcome.code}, not one of {codes}: {outcome.stderr[-300:]!r}")
    lines = [line for line in outcome.stderr.splitlines(keepends=True) if line not in usual.splitlines(keepends=True)]
    wrong = _not_one_line("".join(lines))
    return Verdict("unclear", wrong) if wrong else None


def _not_one_line(stderr: str) -> str:
    if stderr.count("\n") != 1 or not stderr.startswith("loopscope: ") or not stderr.endswith("\n"):
        return f"not one line that starts with 'loopscope: ': {stderr[-600:]!r}"
    return f"a line of {len(stderr)} characters: {stderr[:200]!r}" if len(stderr) > LONGEST_LINE else ""


def _answer(played: Played, outcome: Outcome, reference: Reference) -> Verdict:
    """Of a case that ends with exit code 0."""
    if wrong := _misplaced(played):
        return Verdict("left behind", wrong)
    found = said(outcome, played.root)
    if number := _not_finite(found):
        return Verdict("silent", f"the answer holds {number}")
    if played.case.check is not None:
        fault = played.case.check(played)
        return Verdict("silent", fault) if fault else Verdict("harmless", "as it should be")
    reason = declared(played.case)
    same = found == reference.said and written(played) == reference.written
    if same and not played.case.refuse:
        quiet = _plain(outcome.stderr, played.root) == reference.stderr or played.case.earlier or played.case.tells
        return Verdict("harmless", "the same answer") if quiet or reason else Verdict("unclear", outcome.stderr[-300:])
    if reason:
        return Verdict("harmless", reason)
    told = "although it is senseless" if played.case.refuse else difference(reference.said, found)
    return Verdict("silent", f"exit code 0, {told}; {outcome.stdout[:160]!r} {outcome.stderr[-160:]!r}")


def _left(played: Played, reference: Reference) -> Verdict | None:
    """What a refused command left; what it had finished, whole and right, before it could not go on may stay."""
    there = _changed(played)
    made = _files(written(played))
    folders = set(map(os.path.dirname, made))
    whole = {path: each for path, each in _files(reference.written).items() if os.path.dirname(path) in folders}
    if made and made == whole and not _misplaced(played):
        return None
    return Verdict("left behind", f"changed: {', '.join(there[:6])}") if there else None


def _files(listing: Mapping[str, str]) -> dict[str, str]:
    return {path: each for path, each in listing.items() if not each.startswith("d")}


def _changed(played: Played) -> list[str]:
    """What differs from before, but for lock files and the new folders that hold nothing else."""
    found = [path for path in changes(played.before, played.after) if not tolerated(path)]
    folders = {path for path in found if path not in played.before and played.after[path][0].startswith("d")}
    locked = {path for path in folders if any(each.startswith(f"{path}/") for each in played.after if tolerated(each))}
    kept = [path for path in found if path not in locked]
    return [*kept, *(path for path in locked if any(each.startswith(f"{path}/") for each in kept))]


def _misplaced(played: Played) -> str:
    """What an answer changed that it had no business with."""
    allowed = tuple(f"work/{name}" for name in played.case.scene.writes)
    there = [
        path for path in _changed(played) if not any(path == each or path.startswith(f"{each}/") for each in allowed)
    ]
    return f"changed: {', '.join(there[:6])}" if there else ""


def written(played: Played) -> dict[str, str]:
    """What the command made or changed, as far as it counts."""
    gone, counted = ("", ""), tuple(f"work/{name}" for name in played.case.scene.counted)
    paths = [path for path in changes(played.before, played.after) if not tolerated(path)]
    return {path: played.after.get(path, gone)[1] for path in paths if not counted or path.startswith(counted)}


def said(outcome: Outcome, root: str) -> Any:
    """Standard output, as JSON where it is: without times and places."""
    text = _plain(outcome.stdout, root)
    try:
        return without(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _plain(text: str, root: str) -> str:
    return text.replace(root, "")


def _not_finite(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(_not_finite, parts)), "")


def difference(expected: Any, found: Any, where: str = "answer") -> str:
    """The first place where two answers differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in {**expected, **found}:
            if expected.get(name) != found.get(name):
                return difference(expected.get(name), found.get(name), f"{where}.{name}")
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for at, pair in enumerate(zip(expected, found, strict=True)):
            if pair[0] != pair[1]:
                return difference(*pair, f"{where}[{at}]")
    if expected == found:
        return "what is written differs"
    return f"{where}: {str(expected)[:80]!r} became {str(found)[:80]!r}"


def reference_case(case: Case) -> Case:
    """The same scene with nothing changed."""
    return Case("reference", " ".join(case.scene.command.argv), case.scene)
