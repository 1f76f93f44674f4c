"""Requests: every option of every command with senseless values, programs, settings, texts and tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import typer

from tests.drill import mutations as do
from tests.drill.cases import Case, Command, Group, Scene, World
from tests.drill.classes.models import DOCUMENTS, NUMBERS, WRONG, places
from tests.drill.world import FEW

LONG = "x" * 100_000
TUNE = ("lm", "finetune", "llama", "smol-letter-adapt", "--out", "made", "--set", "grow_every=1", *FEW, "--json")
SPECS: dict[str, tuple[str, str]] = {
    "populations": ("", ""), "recipes": ("", ""), "list": ("", ""), "lm recipes": ("", ""),
    "plan": ("", "F2"), "maps show": ("small", "small"), "score": ("store", ""),
    "store list": ("store", ""), "store verify": ("store", ""), "store gc": ("store", ""),
    "zoo list": ("zoo", ""), "zoo verify": ("zoo", ""), "zoo add": ("store", "d8l6-3"),
    "claims": ("results", "--results results"), "quantities": ("results", "--results results"),
    "train": ("", "tiny --seeds 0"),
    "fit": ("store", "tiny-one --backbone d8l6-3"), "reproduce": ("zoo results", "trajectories --results results"),
    "lm get": ("", "smollm2-135m"), "lm readouts": ("llama", "llama --text a"),
    "lm patch": ("llama", "llama F2 --text a"), "lm sweep": ("llama", "llama resid --text a --from b"),
    "lm new": ("fresh", "--out made --layers 1 --width 8 --heads 2 --tokenizer fresh"),
    "lm convert": ("llama", "llama --out made"),
    "lm rules": ("", "--out made.jsonl --count 2"), "lm keep": ("fresh", "fresh tiny-lm"),
    "lm finetune": ("llama text.jsonl", " ".join(TUNE[2:-1])),
    "lm fit": ("tuned text.jsonl", " ".join(("tuned", "smol-letter-map", *FEW))),
    "lm reproduce": ("llama text.jsonl", "letters llama --out made --recipes smol --text text.jsonl"),
    "lm test letters": ("worded map", "worded --map map --pairs 1 --test steering --heads 1.1"),
    "lm test antonyms": ("worded map", "worded --map map --supervision stepwise --sequences 1"),
    "lm test iterations": ("worded map", "worded --map map --cases 1"),
    "bench tune": ("llama", "llama"), "bench train": ("", ""), "bench patching": ("", ""),
}  # fmt: skip
"""By command: what it needs and arguments with which it works, or would after minutes."""

SENSELESS = {
    "integer": {"nan": "nan", "a text": "x", "nothing": "", "a fraction": "1.5", "10^30": "1" + "0" * 30, "-1": "-1",
                "a list": "[1]", "hexadecimal": "0x10", "2^63": str(2**63)},
    "float": {"nan": "nan", "a text": "x", "nothing": "", "-1": "-1", "-inf": "-inf", "a list": "[1]"},
    "path": {"nothing": "", "a device": "null", "a file": "senseless.txt", "a long name": LONG[:5000],
             "controls": "no\x1b[2J/such", "a FIFO": "fifo", "an endless device": "zero", "a link nowhere": "nowhere"},
    "text": {"controls": "no\x1b[2Jsuch", "a long text": LONG, "a tab": "a b\tc", "markup": "[red]no[/red]",
             "dots": "../../such", "no UTF-8": "a\udcff"},
}  # fmt: skip
FREE = {"lm readouts --text", "lm patch --text", "lm sweep --text", "lm sweep --from", "lm test letters --name",
        "lm test antonyms --name", "lm test iterations --name", "lm reproduce --name"}  # fmt: skip
"""Options whose text may be anything that can be printed."""


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the command line by its name."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    else:
        yield " ".join(path), command


def options(world: World, seed: int) -> Iterator[Case]:
    """Every option of every command with values it cannot have; arguments left out, unknown, too many."""
    from loopscope.cli.app import app

    put = do.each(
        do.replace("senseless.txt", b"senseless"),
        do.fifo("fifo"),
        do.device("null", 3),
        do.device("zero", 5),
        do.link("nowhere", "/no/such/place"),
    )
    for name, command in leaves(typer.main.get_command(app)):
        needs, usual = SPECS.get(name, ("", ""))
        base = (*name.split(), *usual.split())
        scene = Scene(tuple(needs.split()), Command(("recipes", "--json")))
        for more in (("--nonsense",), ("--help=1",), ("--json=maybe",)):
            yield _asked(f"{name} {more[0]}", scene, (*base, *more), put)
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        if arguments:
            yield _asked(f"{name} without arguments", scene, tuple(name.split()), put)
            for kind, value in SENSELESS["text"].items():
                given = (*name.split(), value, *usual.split()[1:])
                yield _asked(f"{name} of {kind}", scene, given, put)
        for option in (each for each in command.params if each.param_type_name == "option" and not each.is_flag):
            long = max(option.opts, key=len)
            kind = _kind(option)
            if kind == "text" and f"{name} {long}" in FREE:
                continue
            made = long in ("--store", "--out", "--export", "--zoo")  # these may be made, whatever they are called
            for told, value in SENSELESS[kind].items():
                if made and told in ("controls", "a link nowhere"):
                    continue
                yield _asked(f"{name} {long} {told}", scene, (*base, f"{long}={value}"), put)


def _kind(option: Any) -> str:
    """What an option takes: Typer has said it in two ways."""
    described = getattr(getattr(option, "type_descriptor", None), "annotation", "")
    told = f"{described} {getattr(getattr(option, 'type', None), 'name', '')}"
    wanted = {r"\bint(eger)?\b": "integer", r"\bfloat\b": "float", r"\bpath|Path|directory|file\b": "path"}
    return next((kind for pattern, kind in wanted.items() if re.search(pattern, told)), "text")


def _asked(label: str, scene: Scene, argv: tuple[str, ...], change: do.Change) -> Case:
    return Case("options", label, scene, change, refuse=True, rounds=((Command(argv),),), codes=(1, 2, 3))


def programs(world: World, seed: int) -> Iterator[Case]:
    """Programs and addresses: deep, huge, malformed, and random bends of valid ones."""
    for name, text in PROGRAMS.items():
        yield _planned(f"{name}", text)
    draw = random.Random(seed)
    letters = "FJPh0123456789 [](){}<->:@$*|,.^-layerowpthnzid\x1b\0\n\u202e"
    for number in range(120):
        text = draw.choice(VALID)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(["", draw.choice(letters), text]) + text[at + draw.randrange(3) :]
        yield _planned(f"bent {number}", text.replace("\0", ""))


VALID = [
    "F6 J:one F", "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]", "F[layer[1].head[0,2].row[3].z<-(F2)@other] F2",
    "h2 F3", "F2 F[layer[1].resid<-$x]", "F4",
]  # fmt: skip
PROGRAMS = {
    "nothing": "",
    "spaces": "   ",
    "an unknown letter": "Q3",
    "no calls": "F0",
    "10^9 calls": "F1000000000",
    "10^30 calls": "F1" + "0" * 30,
    "negative calls": "F-3",
    "a deep patch": "F[layer[1].z<-(" * 400 + "F" + ")]" * 400,
    "a deeper patch": "F[layer[1].z<-(" * 20_000 + "F" + ")]" * 20_000,
    "open brackets": "F[" * 5000,
    "closed brackets": "F" + "]" * 5000,
    "a million calls in words": "F " * 200_000,
    "a long name": f"F J:{LONG} F",
    "a name of controls": "F J:\x1b[2J F",
    "a name with ../": "F J:../x F",
    "layer 0": "F[layer[0].z<-(F)]",
    "layer 10^9": "F[layer[1000000000].z<-(F)]",
    "layer of 10^30": f"F[layer[1{'0' * 30}].z<-(F)]",
    "head 99": "F[layer[1].head[99].z<-(F)]",
    "row 10^9": "F[layer[1].row[1000000000].z<-(F)]",
    "row -99": "F[layer[1].row[-99].z<-(F)]",
    "rows without end": "F[layer[1].row[" + "1," * 50_000 + "1].z<-(F)]",
    "no component": "F[layer[1]<-(F)]",
    "an unknown component": "F[layer[1].nosuch<-(F)]",
    "from nowhere": "F[layer[1].z<-]",
    "from itself": "F[layer[1].z<-F]",
    "many patches": "F[" + ";".join("layer[1].z<-(F)" for _ in range(5000)) + "]",
    "h of 10^9": "h1000000000 F",
    "h alone": "h3",
    "a fraction": "F1.5",
    "NaN": "Fnan",
    "other digits": "F\u0663",
    "a lone surrogate": "F J:\udcff F",
    "half a patch": "F[layer[1].head[0",
    "twice a patch": "F[layer[1].z<-(F), layer[1].z<-(F2)]",
}


def _planned(label: str, text: str) -> Case:
    scene = Scene.of("", "plan", "F6 J:one F", "--json")
    command = Command(("plan", "--json", "--", text))
    return Case("programs", label, scene, refuse=True, rounds=((command,),))


def settings(world: World, seed: int) -> Iterator[Case]:
    """Model settings in a file, for `plan`."""
    scene = Scene.of("settings.json", "plan", "F2", "--model", "settings.json", "--json")
    for key in ("vocabulary", "classes", "loops", "layers", "width", "heads", "mlp", "positions", "first_class"):
        for name, value in {**WRONG, **NUMBERS}.items():
            yield Case("settings", f"{key}={name}", scene, do.put("settings.json", (key,), value))
    for key in ("read_in", "attention_bias", "gelu", "norm_in_loop", "readout", "init", "more"):
        for name, value in WRONG.items():
            if not (key == "more" and value is do.GONE):
                yield Case("settings", f"{key}={name}", scene, do.put("settings.json", (key,), value))
    for name, data in DOCUMENTS.items():
        yield Case("settings", f"are {name}", scene, do.replace("settings.json", data))
    yield from places("settings", scene, "settings.json")


def texts(world: World, seed: int) -> Iterator[Case]:
    """General text in files, texts and tokens on the command line."""
    tune = Scene(("llama", "text.jsonl"), Command(TUNE), ("made", "store"))
    lines = {
        "no JSON": b"hello\n", "a list": b"[1]\n", "no text": b'{"a": 1}\n', "text of no text": b'{"text": 3}\n',
        "deep": b"[" * 100_000 + b"\n", "no UTF-8": b'{"text": "\xff"}\n', "a surrogate": b'{"text": "\\ud800 a"}\n',
        "nothing": b"", "empty lines": b"\n\n\n", "an empty text": b'{"text": ""}\n', "cut": b'{"text": "abc\n',
        "a long number": b'{"text": ' + b"9" * 100_000 + b"}\n",
    }  # fmt: skip
    for name, data in lines.items():
        yield Case("texts", f"a file of {name}", tune, do.replace("text.jsonl", data))
    yield from places("texts", tune, "text.jsonl")
    read = Scene.of("llama", "lm", "readouts", "llama", "--ids", "[[1, 7, 3]]", "--json")
    for name, value in IDS.items():
        command = Command(("lm", "readouts", "llama", f"--ids={value}", "--json"))
        yield Case("texts", f"ids: {name}", read, refuse=True, rounds=((command,),), codes=(1, 2, 3))
    for name, value in {"nothing": "", "a surrogate": "a\udcff", "10^5 letters": LONG, "a null": "a\x01"}.items():
        for more in ((), ("--chat",)):
            command = Command(("lm", "readouts", "llama", f"--text={value}", *more, "--json"))
            label = f"text: {name}{' in a chat' if more else ''}"
            yield Case("texts", label, read, refuse=True, rounds=((command,),), codes=(1, 2, 3))


IDS = {
    "nothing": "", "no JSON": "x", "an object": "{}", "no lists": "[1]", "an empty list": "[]", "an empty text": "[[]]",
    "negative": "[[-1]]", "beyond the vocabulary": "[[700]]", "2^31": "[[2147483648]]", "10^30": f"[[1{'0' * 30}]]",
    "a fraction": "[[1.5]]", "true": "[[true]]", "null": "[[null]]", "text": '[["1"]]', "deep": "[" * 100_000,
    "NaN": "[[NaN]]", "deeper lists": "[[[1]]]", "too many": str([[1] * 5000]), "very many": str([[1] * 20_000]),
    "a list and no list": "[[1], 2]", "a long number": "[[" + "9" * 50_000 + "]]",
}  # fmt: skip

GROUPS: dict[str, Group] = {"options": options, "programs": programs, "settings": settings, "texts": texts}
