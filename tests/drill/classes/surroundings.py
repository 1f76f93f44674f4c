"""Where a command runs: what stands at its output, environment, names of folders, permissions, full disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.drill import mutations as do
from tests.drill.cases import Case, Change, Command, Group, Limits, Scene, World
from tests.drill.classes.requests import TUNE

READ = Scene.of("llama", "lm", "readouts", "llama", "--text", "ab", "--out", "made", "--json", writes="made")
NEW = Scene.of(
    "fresh", "lm", "new", "--out", "made", "--layers", "1", "--width", "8", "--heads", "2", "--tokenizer", "fresh",
    "--json", writes="made",
)  # fmt: skip
RULES = Scene.of("", "lm", "rules", "--out", "made.jsonl", "--count", "2", writes="made.jsonl")
KEEP = Scene.of("fresh", "lm", "keep", "fresh", "tiny-lm", "--store", "made", "--json", writes="made")
ADD = Scene.of("store", "zoo", "add", "d8l6-3", "--store", "store", "--zoo", "made", "--json", writes="made")
TUNED = Scene(("llama", "text.jsonl"), Command(TUNE), ("made", "store"))
PATCH = Scene.of("llama", "lm", "patch", "llama", "F2", "--text", "ab", "--out", "made", "--json", writes="made")
WRITERS = {"readouts": READ, "new": NEW, "rules": RULES, "keep": KEEP, "add": ADD, "finetune": TUNED, "patch": PATCH}


def targets(world: World, seed: int) -> Iterator[Case]:
    """Something stands where a command is to write: it must stay as it is."""
    for name, scene in WRITERS.items():
        target = scene.writes[0]
        unfit = {told: change for told, change in _standing(target).items() if name not in STORES or told not in FINE}
        for told, change in unfit.items():
            yield Case("targets", f"{name}: {told}", scene, change, refuse=True, codes=(1, 2, 3))
        for told, place in PLACES.items():
            if (name in STORES and told in FINE) or (place.startswith("llama") and "llama" not in scene.needs):
                continue
            argv = tuple(place if each == target else each for each in scene.command.argv)
            rounds = ((Command(argv),),)
            yield Case("targets", f"{name}: {told}", scene, refuse=True, rounds=rounds, codes=(1, 2, 3))


STORES = ("keep", "add")
FINE = ("a folder with a file", "a link to a folder", "a dot", "a file of the input", "in a folder that is not there")
"""What may be named as a store: it is a folder to which artefacts are added."""

PLACES = {
    "nothing": "",
    "a dot": ".",
    "in a folder that is not there": "no/such/place",
    "a long name": "x" * 300,
    "beneath a file": "../outside/kept/x",
    "a file of the input": "llama/config.json",
}


def _standing(target: str) -> dict[str, Change]:
    return {
        "a file": do.replace(target, b"precious"), "a folder with a file": do.replace(f"{target}/precious", b"x"),
        "a link to a file": do.link(target, "../outside/kept"), "a link to a folder": do.link(target, "../outside"),
        "a link nowhere": do.link(target, "../outside/new"), "a FIFO": do.fifo(target),
        "a device": do.device(target, 3),
        "a full device": do.device(target, 7),
        "a link to a device": do.each(do.device("null", 3), do.link(target, "null")),
    }  # fmt: skip


def environment(world: World, seed: int) -> Iterator[Case]:
    """Variables with values that nobody expects."""
    listed = Scene.of("zoo", "zoo", "list", "--json")
    table = Scene.of("zoo", "zoo", "list")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        for value in ("", "x", "-1", "nan", "1.5", "1" + "0" * 30, "2"):
            more = {"WORLD_SIZE": "2"} if name != "WORLD_SIZE" else {}
            told = "10^30" if len(value) > 20 else value or "nothing"
            yield _with("environment", f"{name}={told}", TUNED, {**more, name: value})
    for value in ("/no/such", "/dev/null", "x" * 5000, "/etc/passwd", "no\x1b[2J"):
        yield _with("environment", f"LOOPSCOPE_ZOO={value[:10]!a}", listed, {"LOOPSCOPE_ZOO": value})
    yield _with("environment", "LOOPSCOPE_ZOO with a slash", listed, {"LOOPSCOPE_ZOO": "zoo/"})
    for name, values in {
        "LANG": ("C", "xx_YY", "", None),
        "LC_ALL": ("C", "tr_TR.UTF-8", "x"),
        "TERM": ("", "x", None),
        "COLUMNS": ("0", "-1", "x", "1", "999999999"),
        "LINES": ("0", "-1", "x"),
        "TMPDIR": ("/no/such", "/dev/null"),
        "HOME": (None, "/no/such", ""),
        "PYTHONIOENCODING": ("ascii", "latin-1"),
        "NO_COLOR": ("1",),
        "PATH": (None, ""),
        "TZ": ("x", "Mars/Olympus"),
        "OMP_NUM_THREADS": ("x", "0", "-1"),
        "USER": (None,),
        "PYTHONPATH": ("/no/such",),
        "TRANSFORMERS_VERBOSITY": ("x", "debug"),
        "CUDA_VISIBLE_DEVICES": ("x", "99"),
        "TOKENIZERS_PARALLELISM": ("x", "true"),
        "PYTORCH_ENABLE_MPS_FALLBACK": ("x",),
        "TORCH_LOGS": ("x",),
        "HF_HOME": ("/no/such",),
        "RUST_BACKTRACE": ("full",),
    }.items():
        for value in values:
            told = "unset" if value is None else value or "nothing"
            yield _with("environment", f"{name}={told}, listed", table, {name: value})
            yield _with("environment", f"{name}={told}, read", READ, {name: value})
            yield _with("environment", f"{name}={told}, made", NEW, {name: value})


def _with(group: str, label: str, scene: Scene, env: dict[str, str | None]) -> Case:
    return Case(group, label, scene, rounds=((Command(scene.command.argv, env),),), codes=(1, 2, 3))


def names(world: World, seed: int) -> Iterator[Case]:
    """Inputs in folders of odd names: the same answer, nothing odd on a terminal."""
    shown = {
        "readouts": (Scene.of("llama", "lm", "readouts", "llama", "--text", "ab", "--json"), "llama"),
        "maps": (Scene.of("small", "maps", "show", "small", "--json"), "small"),
        "store": (Scene.of("store", "store", "verify", "--store", "store", "--json"), "store"),
        "zoo": (Scene.of("zoo", "zoo", "verify", "--zoo", "zoo", "--json"), "zoo"),
        "claims": (Scene.of("results", "claims", "--results", "results", "--json"), "results"),
    }
    for what, (scene, old) in shown.items():
        for name, new in ODD.items():
            argv = tuple(f"./{new}" if each == old else each for each in scene.command.argv)
            yield Case("names", f"{what} in {name}", scene, _renamed(old, new), rounds=((Command(argv),),))
            plain = tuple(each for each in argv if each != "--json")
            lost = do.each(_renamed(old, new), _broken(new))
            yield Case("names", f"{what} in {name}, damaged", scene, lost, refuse=True, rounds=((Command(plain),),))


ODD = {
    "controls": "a\x1b[2J\x07b",
    "two lines": "a\nb",
    "no UTF-8": "a\udcffb",
    "spaces": " a  b ",
    "markup": "[red]a[bold]",
    "a long name": "n" * 250,
    "turned round": "a\u202eb",
    "a dash": "-a",
    "dots": "...",
    "a percent": "%s%n{0}",
    "an accent": "e\u0301",
}


def _renamed(old: str, new: str) -> Change:
    return lambda work: (work / old).rename(work / new) and None


def _broken(name: str) -> Change:
    def change(work: Path) -> None:
        for file in sorted(each for each in (work / name).rglob("*") if each.is_file()):
            file.write_bytes(b"")

    return change


def refusals(world: World, seed: int) -> Iterator[Case]:
    """A machine that refuses: no permission, a full disk, a full output, little memory."""
    powerless = Limits(powerless=True)
    for name, scene in WRITERS.items():
        command = scene.command
        for told, change in {
            "a folder that cannot be written to": lambda work: work.chmod(0o500),
            **{f"{need} that cannot be read": do.mode(need, 0o000) for need in scene.needs},
            **{f"files of {need} that cannot be read": _unreadable(need) for need in scene.needs},
        }.items():
            rounds = ((Command(command.argv, limits=powerless),),)
            yield Case("refusals", f"{name}: {told}", scene, change, codes=(1, 2, 3), rounds=rounds)
        for size in (0, 1, 100, 1000, 4000):
            rounds = ((Command(command.argv, limits=Limits(file_size=size)),),)
            yield Case("refusals", f"{name}: files of {size} bytes", scene, codes=(1, 2, 3), rounds=rounds)
        for megabytes in (16, 64):
            rounds = ((Command(command.argv, limits=Limits(memory=megabytes << 20)),),)
            yield Case("refusals", f"{name}: {megabytes} MiB of memory", scene, codes=(1,), rounds=rounds)
    for told, scene in TELLERS.items():
        for more in (("--json",), ()):
            rounds = ((Command((*scene.command.argv, *more), stdout="/dev/full"),),)
            label = f"{told}{' in JSON' if more else ''}: an output that is full"
            yield Case("refusals", label, scene, codes=(1,), rounds=rounds, refuse=True)


TELLERS = {
    "maps": Scene.of("small", "maps", "show", "small"),
    "verify": Scene.of("store", "store", "verify", "--store", "store"),
    "plan": Scene.of("", "plan", "F2"),
    "zoo": Scene.of("zoo", "zoo", "list"),
    "recipes": Scene.of("", "recipes"),
}


def _unreadable(need: str) -> Change:
    def change(work: Path) -> None:
        for file in [work / need, *(work / need).rglob("*")]:
            if file.is_file():
                file.chmod(0)

    return change


GROUPS: dict[str, Group] = {"targets": targets, "environment": environment, "names": names, "refusals": refusals}
