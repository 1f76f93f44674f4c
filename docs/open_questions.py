"""Does what open questions of the ledger still need, the most telling first, on one GPU, within a time.

    python docs/open_questions.py --list                      the steps, what they answer, expected minutes
    python docs/open_questions.py --work W --minutes 60       stops at an hour; the same command goes on
    python docs/open_questions.py --work W --only select-zoo  some steps alone

A step is a few `loopscope` commands.  Steps of one lane are done in turn, lanes side by side: small kernels of a
language model leave room on a GPU for a stack of backbones.  A command that is done is noted in `W/steps` and not begun
again; one that is interrupted makes a checkpoint, if it trains.  A step that must end in one go is not begun where the
time left would not do.  Records lie in `W/records` and `W/language`, and are copied to two stores in `W/results`, as
those in `results/`.  `docs/failures.md` and `docs/select-or-create.md` say what the questions are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SPARE = 1.25
"""A step that must end in one go is begun with this many times its expected minutes left."""
LEAST, GRACE, LOOK = 15.0, 40.0, 0.3
"""Seconds that a command is begun with, that it gets to make a checkpoint, and between two looks at it."""


@dataclass(frozen=True)
class Step:
    """Commands that answer something together; `minutes` are expected on an H200 without company.

    - `after`: steps that must be done before; `whole`: what an interruption leaves is too large to be kept.
    - `drop`: folders in W that nobody needs once the step is done.
    - `start`: the model folder that the first command makes; without its weights all begins again.
    """

    name: str
    answers: str
    lane: str
    minutes: float
    commands: tuple[str, ...]
    after: tuple[str, ...] = ()
    whole: bool = False
    drop: tuple[str, ...] = ()
    start: str = ""


# ---- the plan --------------------------------------------------------------------------------------------------------

HOPS = ("minus1", "0", "1", "2", "3", "4")
GROUPS = {1: (3, 4, 6), 2: (7, 9, 10), 3: (11, 12, 13)}
"""D8L6 seeds of `select.native` that are not in the zoo, three to a stack."""
FIVE = (3, 4)
"""Those that composition on five backbones lacks."""
RESULTS = "--export W/results"
"""Two stores, as those in `results/`: graph-walks and language-models."""


def hops(control: str, where: str, *backbones: str) -> str:
    """All J_k under a control, on these backbones, one fit each."""
    names = " ".join(f"hops-{k}{control}" for k in HOPS)
    asked = " ".join(f"--backbone {name}" for name in backbones)
    return f"fit {names} --fits 1 {asked} --store W/{where} --device DEVICE"


def measured(where: str, *experiments: str) -> str:
    """Experiments on the weights of a store; "" is the zoo of the checkout."""
    names, weights = " ".join(experiments), f"--zoo W/{where} " if where else ""
    out = f"--out W/report-{where or 'zoo'} {RESULTS}/graph-walks"
    return f"reproduce {names} --profile whole {weights}--store W/records --device DEVICE {out}"


def selecting(
    name: str, about: str, *backbones: str, after: tuple[str, ...] = (), more: tuple[str, ...] = (),
    experiments: tuple[str, ...] = ("selecting",),
) -> list[Step]:  # fmt: skip
    """J_k with F as trained and permuted and without F, `more` fits, then the records; the weights are not kept."""
    controls = {"": 0.6, "-permuted": 0.6, "-none": 0.3}
    fits = tuple(hops(control, name, *backbones) for control in controls)
    minutes = len(backbones) * sum(controls.values()) + 0.8 * len(more)
    fitted = Step(name, about, "backbones", minutes, fits + more, after)
    record = Step(f"{name}-record", about, "records", 1.5, (measured(name, *experiments),), (name,), drop=(name,))
    return [fitted, record]


def group(number: int) -> list[Step]:
    """Three backbones of the paper's main recipe, trained again, and what J selects on them.

    On seeds 3 and 4 also the composition that the paper has of five backbones, and we of three.
    """
    seeds, name = GROUPS[number], f"select-{number}"
    about = f"select.native: seeds {', '.join(map(str, seeds))}"
    train = f"train d8l6 --seeds {','.join(map(str, seeds))} --store W/{name} --device DEVICE"
    trained = Step(f"train-{number}", about, "backbones", 3.8, (train,), whole=True)
    both = " ".join(f"--backbone d8l6-{seed}" for seed in seeds if seed in FIVE)
    more = (f"fit one two --fits 1,2 {both} --store W/{name} --device DEVICE",) if both else ()
    experiments = ("selecting", "independent") if both else ("selecting",)
    names = [f"d8l6-{seed}" for seed in seeds]
    return [trained, *selecting(name, about, *names, after=(trained.name,), more=more, experiments=experiments)]


def letters(width: int) -> Step:
    """A letter model of the task's own words, with its map: small enough for the zoo."""
    name = f"letters-4x{width}"
    plain = " ".join(f"--set small-letter{stage}.share=0" for stage in ("-adapt", "", "-map"))
    return Step(
        name, "a language model in the zoo", "language", 6.0,
        (
            f"lm new --words letters --layers 4 --width {width} --heads 4 --out W/{name}",
            f"lm reproduce letters W/{name} --recipes small --out W/{name}-trained --compile --batch 128 --name {name} "
            f"{plain} --store W/language --device DEVICE --report W/report-{name} {RESULTS}/language-models",
            f"lm keep W/{name}-trained/small-letter {name} --store W/language",
        ),
        drop=(f"{name}-trained",), start=name,
    )  # fmt: skip


def as_published(seed: int) -> Step:
    """Letters at 16M by the paper's supervision: four loops, backbone and map learn from the last alone."""
    name = f"published-s{seed}"
    changes = ("small-letter.stepwise=false", "small-letter-map.stepwise=false", "small-letter-map.loops=4")
    return Step(
        name, "letter.*: four loops, backbone and map by the last loop alone, 16M", "language", 6.0,
        (
            f"lm new --layers 4 --width 256 --heads 4 --tokenizer TOKENIZER --seed {seed} --out W/{name}",
            f"lm reproduce letters W/{name} --recipes small --out W/{name}-trained --compile --batch 128 --name {name} "
            f"{' '.join(f'--set {each}' for each in changes)} --store W/language --device DEVICE "
            f"--report W/report-{name} {RESULTS}/language-models",
        ),
        whole=True, drop=(f"{name}-trained", name), start=name,
    )  # fmt: skip


def dense_antonyms() -> Step:
    """Antonyms at 135M with a dense map that is asked for more than four deletions from the first update on."""
    name, map_ = "antonyms-dense", "smol-antonym-map"
    changes = ("family=dense", "rank=null", "examples=200", "micro=200", "grow_every=50", "grow_from=5")
    return Step(
        name, "antonym.steer: dense map, eight loops, 200 questions, 135M", "language", 25.0,
        (
            f"lm reproduce antonyms TOKENIZER --recipes smol --out W/{name} --compile --batch 128 "
            f"--name smollm2-135m-dense {' '.join(f'--set {map_}.{each}' for each in changes)} --store W/language "
            f"--device DEVICE --report W/report-{name} {RESULTS}/language-models",
        ),
        whole=True, drop=(name,),
    )  # fmt: skip


def lasting(seed: int) -> list[Step]:
    """One hop for 64 calls, from states that live longer."""
    name = f"longer-{seed}"
    fits = f"fit pool-longer-one pool-longer-two --fits 1,2 --backbone d8l6-{seed} --store W/{name} --device DEVICE"
    about = f"control that lasts: call 64 on d8l6-{seed}"
    return [
        Step(name, about, "backbones", 9.0, (fits,)),
        Step(f"{name}-record", about, "records", 3.0, (measured(name, "lasting-longer"),), (name,), drop=(name,)),
    ]


def matched(first: int, last: int) -> list[Step]:
    """Further pairs of final-only and stepwise supervision."""
    name, seeds = f"matched-{first}-{last}", range(first, last + 1)
    about, pairs = f"matched.two: pairs {first}-{last}", [f"matched-{kind}" for kind in ("final", "stepwise")]
    backbones = " ".join(f"--backbone {kind}-{seed}" for kind in pairs for seed in seeds)
    trained = [
        Step(f"{name}-{kind[8:]}", about, "backbones", 2.0 * len(seeds),
             (f"train {kind} --seeds {first}-{last} --store W/{name} --device DEVICE",), whole=True)
        for kind in pairs
    ]  # fmt: skip
    fits = (
        f"fit matched-stay matched-one matched-two --fits 1,2 {backbones} --store W/{name} --device DEVICE",
        f"score --store W/{name} --device DEVICE",
    )
    return [*trained, Step(name, about, "backbones", 0.7 * len(seeds), fits, tuple(each.name for each in trained))]


def again(recipe: str, minutes: float) -> Step:
    """Maps for sixteen calls where the published protocol's did not come down."""
    maps = " ".join(f"--backbone n8-d8l8-{seed}" for seed in (100, 107, 111))
    fits = f"fit {recipe} --fits 1,2 {maps} --store W/eight --device DEVICE"
    about = f"continue.inside: {recipe} on backbones 100, 107, 111"
    return Step(recipe, about, "backbones", minutes, (fits, measured("eight", "continuation-again")), ("train-eight",))


MAIN_PARTS = ("-other", "-answer", "-edges", "-query", "-rank-1", "-rank-4", "-rank-16")
ZOO = "select.native: the zoo's backbones"
PLAN: tuple[Step, ...] = (
    Step("parity-fp32", "parity.limit: 600, 800 and 1,000 bits with products in fp32", "records", 2.0,
         (measured("", "parity-fp32"),)),
    letters(128),
    Step("two-long", "switch.two_to_one: J_two of seed 14 with 32,000 updates", "backbones", 1.5,
         ("fit one --fits 1,2 --backbone d8l6-14 --store W/two-long --device DEVICE",
          "fit two-long --fits 1,2 --backbone d8l6-14 --store W/two-long --device DEVICE")),
    Step("two-long-record", "switch.two_to_one: seed 14", "records", 1.5, (measured("two-long", "switching-long"),),
         ("two-long",), drop=("two-long",)),
    *group(1),
    *selecting("select-zoo", ZOO, "d8l6-5", "d8l6-8", "d8l8-1"),
    *group(2),
    *group(3),
    as_published(0),
    Step("select-parts", "J on some rows, of small rank, before another task's F: d8l6-5", "backbones", 3.5,
         ("fit " + " ".join(f"hops-{k}" for k in HOPS) + " --fits 1 --backbone d8l6-5 --store W/parts --device DEVICE",
          *(hops(part, "parts", "d8l6-5") for part in MAIN_PARTS))),
    Step("select-parts-record", "the same", "records", 1.5, (measured("parts", "selecting"),), ("select-parts",),
         drop=("parts",)),
    Step("next-seed", "switch.two_to_one: seed 16, the next that qualifies", "backbones", 2.2,
         ("train d8l6 --seeds 16 --store W/next --device DEVICE",
          "fit one two --fits 1,2 --backbone d8l6-16 --store W/next --device DEVICE"), whole=True),
    Step("next-seed-record", "switch.two_to_one: seed 16", "records", 1.5, (measured("next", "switching-next"),),
         ("next-seed",), drop=("next",)),
    as_published(1), as_published(2), letters(256), dense_antonyms(),
    *(step for seed in (14, 8, 5) for step in lasting(seed)),
    *matched(5, 7), *matched(8, 9),
    Step("train-eight", "continue.inside", "backbones", 4.5,
         ("train n8-d8l8 --seeds 100,107,111 --store W/eight --device DEVICE",), whole=True),
    again("continue16-twice", 31.0), again("continue16-fp32", 40.0), again("continue16-long", 62.0),
)  # fmt: skip
"""In the order of their value; the last are those that take long."""


# ---- doing it --------------------------------------------------------------------------------------------------------


class Campaign:
    """Steps, what is noted of them in a folder, and how much time is left."""

    def __init__(
        self, steps: Sequence[Step], work: Path, minutes: float, words: dict[str, str],
        program: Sequence[str] = (sys.executable, "-m", "loopscope.cli"),
    ) -> None:  # fmt: skip
        self.steps, self.work, self.words, self.program = steps, work.absolute(), words, program
        self.end = time.monotonic() + 60 * minutes
        self.told = {step.name: "" for step in steps}  # what became of it in this run
        self.seconds = dict.fromkeys(self.told, 0.0)
        self._lock = threading.Lock()
        for folder in ("steps", "logs"):
            (self.work / folder).mkdir(parents=True, exist_ok=True)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def stop(self, *_: object) -> None:
        """End what runs, with checkpoints, and begin nothing more."""
        self.end = time.monotonic()

    def done(self, step: Step) -> int:
        """How many of a step's commands are done."""
        note = self.work / "steps" / step.name
        many = len(json.loads(note.read_text())["done"]) if note.exists() else 0
        gone = step.start and not (self.work / step.start / "model.safetensors").exists()
        return 0 if gone and many < len(step.commands) else many

    def finished(self, step: Step) -> bool:
        """Whether all are."""
        return self.done(step) == len(step.commands)

    def run(self) -> int:
        """Do all lanes side by side; how many steps failed."""
        lanes = [threading.Thread(target=self._lane, args=(lane,)) for lane in {step.lane for step in self.steps}]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        return sum(told.startswith("failed") for told in self.told.values())

    def _lane(self, lane: str) -> None:
        while self.left > LEAST:
            with self._lock:
                open_ = [step for step in self.steps if not (self.finished(step) or self.told[step.name])]
                open_ = [step for step in open_ if not self._failed_before(step)]
                mine = [step for step in open_ if step.lane == lane and self._ready(step)]
                if mine:
                    self.told[mine[0].name] = "begun"
            if mine:
                self._do(mine[0])
            elif not any(step.lane == lane for step in open_):
                return
            else:  # some step of another lane may be waited for
                time.sleep(LOOK)

    def _ready(self, step: Step) -> bool:
        before = [each for each in self.steps if each.name in step.after]
        return all(map(self.finished, before)) and (not step.whole or self.left >= 60 * SPARE * step.minutes)

    def _failed_before(self, step: Step) -> str:
        """A step that this one comes after and that failed, so that nobody need wait; "" where there is none."""
        before = [each for each in self.steps if each.name in step.after]
        failed = (
            each.name if self.told[each.name].startswith("failed") else self._failed_before(each) for each in before
        )
        return next(filter(None, failed), "")

    def _do(self, step: Step) -> None:
        started = time.monotonic()
        for folder in (step.start, *step.drop) if step.start and not self.done(step) else ():
            self._remove(folder)
        for number in range(self.done(step), len(step.commands)):
            code = self._command(step, step.commands[number])
            self.seconds[step.name] = time.monotonic() - started
            if code is None:
                return
            if code:
                self.told[step.name] = f"failed (exit code {code})"
                return
            note = {"done": step.commands[: number + 1], "seconds": self.seconds[step.name]}
            (self.work / "steps" / step.name).write_text(json.dumps(note, indent=1))
        self.told[step.name] = "done"
        for folder in step.drop:
            self._remove(folder)

    def _remove(self, folder: str) -> None:
        shutil.rmtree(self.work / folder, ignore_errors=True)

    def _command(self, step: Step, command: str) -> int | None:
        """Its exit code; None where the time was out."""
        if self.left < LEAST:
            return None
        words = [self.words.get(word, word) for word in shlex.split(command)]
        words = [f"{self.work}{word[1:]}" if word.startswith("W/") else word for word in words]
        with (self.work / "logs" / f"{step.name}.txt").open("ab") as log:
            log.write(f"$ loopscope {shlex.join(words)}\n".encode())
            log.flush()
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            process = subprocess.Popen(
                [*self.program, *words], stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            while process.poll() is None and self.left > 0:
                time.sleep(LOOK)
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                return None
        return process.returncode

    def table(self) -> str:
        """What became of every step, and the last lines of those that failed."""
        rows = []
        for step in self.steps:
            said = "done" if self.finished(step) else self.told[step.name] or self._why_not(step)
            parts = f"{self.done(step)} of {len(step.commands)}"
            rows.append(f"{step.name:20} {said:22} {parts:8} {self.seconds[step.name]:6.0f} s  {step.answers}")
        for step in self.steps:
            if self.told[step.name].startswith("failed"):
                lines = (self.work / "logs" / f"{step.name}.txt").read_text(errors="replace").splitlines()
                rows += ["", f"{step.name}:", *(f"    {line[:200]}" for line in lines[-12:])]
        return "\n".join(rows)

    def _why_not(self, step: Step) -> str:
        if failed := self._failed_before(step):
            return f"waits for {failed}"
        late = step.whole and self.left < 60 * SPARE * step.minutes
        return "not begun: too late" if late else "not begun"


def chosen(names: Iterable[str]) -> tuple[Step, ...]:
    """The steps of these names, and those that they come after; all without a name."""
    known = {step.name: step for step in PLAN}
    wanted: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in known:
            raise SystemExit(f"no step {name!r}; there are {', '.join(known)}")
        wanted.add(name)
        todo += known[name].after
    return tuple(step for step in PLAN if not wanted or step.name in wanted)


def main() -> int:
    """The command line."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--work", type=Path, default=Path("open-questions"), help="the folder of everything made")
    asked.add_argument("--minutes", type=float, default=60.0, help="when to stop what runs; checkpoints come after")
    asked.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    asked.add_argument("--tokenizer", default="smollm2-135m", help="SmolLM2-135M, as `loopscope lm get` writes it")
    asked.add_argument("--only", nargs="+", default=(), metavar="STEP")
    asked.add_argument("--list", action="store_true")
    given = asked.parse_args()
    steps = chosen(given.only)
    if given.list:
        for step in steps:
            print(f"{step.name:20} {step.lane:9} {step.minutes:5.1f} min  {step.answers}")
        return 0
    words = {"DEVICE": given.device, "TOKENIZER": given.tokenizer}
    campaign = Campaign(steps, given.work, given.minutes, words)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, campaign.stop)
    failed = campaign.run()
    print(campaign.table())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
