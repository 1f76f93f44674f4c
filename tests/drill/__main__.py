"""`python -m tests.drill`: run the drill, all of it or a part, and say what came out."""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.drill.cases import Case, World
from tests.drill.classes import GROUPS
from tests.drill.confining import guarded
from tests.drill.judging import BAD, GOOD, Reference, Verdict, judge, reference_case
from tests.drill.running import Played, fork, play, warm

# Libraries read these when they are imported, and start their threads then.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main() -> int:
    """Exit code 0 when nothing happened that must not happen."""
    asked = _arguments()
    print(f"seed {asked.seed}", flush=True)
    started = time.monotonic()
    before = guarded()
    warm()
    with tempfile.TemporaryDirectory(prefix="drill-") as place:
        world = _world(Path(place))
        cases = _cases(world, asked)
        print(f"{len(cases)} cases; ready after {time.monotonic() - started:.0f} s", flush=True)
        found = _run(cases, world, Path(place), asked)
    if asked.json:
        _write(asked, found)
    _print(found, asked.markdown)
    assert guarded() == before, "a device of this machine was replaced; put it back"
    used = sum(os.times()[:4])
    print(f"{len(found)} cases, {time.monotonic() - started:.0f} s, {used:.0f} s of CPU time")
    return int(any(verdict.kind in BAD for _, verdict in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--class", dest="groups", action="append", choices=list(GROUPS), help="only this class")
    parser.add_argument("--case", action="append", help="only this case, with its output; a pattern with * fits many")
    parser.add_argument("--seed", type=int, default=0, help="what random places are drawn from")
    parser.add_argument("--count", type=int, default=100, help="of every class so many cases, drawn at random; 0: all")
    parser.add_argument("--at-once", type=int, default=2, help="children side by side")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/reliability.md shows it")
    parser.add_argument("--list", action="store_true", help="name the cases, run nothing")
    return parser.parse_args()


def _world(place: Path) -> World:
    """The valid inputs, made by a child so that this process stays as it is."""
    from tests.drill.world import build

    base = place / "base"
    base.mkdir()

    def make() -> int:
        log = os.open(place / "base.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        build(base)
        return 0

    _, status = os.waitpid(fork(make), 0)
    if status:
        sys.exit(f"the valid inputs could not be made:\n{(place / 'base.log').read_text(encoding='utf-8')}")
    return World(base)


def _cases(world: World, asked: argparse.Namespace) -> list[Case]:
    groups = asked.groups or list({each.partition(":")[0] for each in asked.case or ()} & set(GROUPS)) or list(GROUPS)
    cases: list[Case] = []
    for name in groups:
        made = list(GROUPS[name](world, asked.seed))
        twice = [label for label, count in Counter(case.label for case in made).items() if count > 1]
        assert not twice, f"{name}: {twice[:3]} twice"
        if not asked.case and 0 < asked.count < len(made):
            chosen = set(random.Random(asked.seed).sample(range(len(made)), asked.count))
            made = [case for at, case in enumerate(made) if at in chosen]
        cases += made
    if asked.case:
        cases = [case for case in cases if any(fnmatch.fnmatchcase(case.id, each) for each in asked.case)]
    if asked.list:
        print("\n".join(case.id for case in cases))
        sys.exit(0)
    return cases


def _run(cases: list[Case], world: World, place: Path, asked: argparse.Namespace) -> list[tuple[Played, Verdict]]:
    """The verdict on every case; scenes are first played with nothing changed."""
    scratch = place / "scratch"
    scratch.mkdir()
    scenes = {case.scene.key: reference_case(case) for case in cases}
    references = {
        played.case.scene.key: Reference.of(played)
        for played in play(list(scenes.values()), world, scratch, asked.at_once)
    }
    found = []
    for played in play(cases, world, scratch, asked.at_once):
        verdict = judge(played, references[played.case.scene.key])
        found.append((played, verdict))
        if verdict.kind in BAD or asked.case:
            print(f"{verdict.kind}: {played.case.id}\n  loopscope {told(played)}\n  {verdict.why}", flush=True)
        if asked.case and not asked.json:
            for outcome in (outcome for group in played.outcomes for outcome in group):
                print(f"  {outcome.seconds:.1f} s, {outcome.peak >> 20} MiB, exit code {outcome.code}")
                print(outcome.stdout[:2000], outcome.stderr[:4000], sep="\n")
    shutil.rmtree(scratch, ignore_errors=True)
    order = {case.id: at for at, case in enumerate(cases)}
    return sorted(found, key=lambda each: order[each[0].case.id])


def told(played: Played) -> str:
    """The commands of a case as one line."""
    lines = [" ".join(map(ascii, command.argv))[:300] for group in played.case.played() for command in group]
    return " / ".join(dict.fromkeys(lines))


def _write(asked: argparse.Namespace, found: list[tuple[Played, Verdict]]) -> None:
    rows = [
        {"id": played.case.id, "class": played.case.group, "verdict": verdict.kind, "why": verdict.why,
         "command": told(played), "seconds": round(sum(o.seconds for g in played.outcomes for o in g), 3)}
        for played, verdict in found
    ]  # fmt: skip
    asked.json.write_text(json.dumps({"seed": asked.seed, "cases": rows}, indent=1), encoding="utf-8")


def _print(found: list[tuple[Played, Verdict]], markdown: bool) -> None:
    columns = ("class", "cases", *GOOD, *BAD)
    rows = []
    for name in dict.fromkeys(played.case.group for played, _ in found):
        kinds = Counter(verdict.kind for played, verdict in found if played.case.group == name)
        rows.append((name, sum(kinds.values()), *(kinds[kind] for kind in (*GOOD, *BAD))))
    rows.append(("all", *(sum(row[at] for row in rows) for at in range(1, len(columns)))))
    if markdown:
        print("| " + " | ".join(columns) + " |\n|---|" + "---:|" * (len(columns) - 1))
        print(
            "\n".join(
                "| " + " | ".join(f"{each:,}" if at else each for at, each in enumerate(row)) + " |" for row in rows
            )
        )
        return
    wide = max(len(row[0]) for row in rows)
    print("  ".join([columns[0].ljust(wide), *columns[1:]]))
    for row in rows:
        numbers = (str(value).rjust(len(name)) for name, value in zip(columns[1:], row[1:], strict=True))
        print("  ".join([row[0].ljust(wide), *numbers]))


if __name__ == "__main__":
    if not ONE_THREAD.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "tests.drill", *sys.argv[1:]], {**os.environ, **ONE_THREAD})
    sys.exit(main())
