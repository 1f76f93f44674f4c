"""What a model folder says about text: tokenizer, template, special tokens; and how Loopscope says it is looped."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.drill import mutations as do
from tests.drill.cases import Case, Group, Scene, World
from tests.drill.classes.models import DOCUMENTS, READ, WRONG, places

LLAMA = READ["llama"]
FRESH = READ["fresh"]
TOKENIZER, SETTINGS, TEMPLATE = "llama/tokenizer.json", "llama/tokenizer_config.json", "llama/chat_template.jinja"


def tokenizer(world: World, seed: int) -> Iterator[Case]:
    """`tokenizer.json`: cut, flipped, of other types, with tokens outside the vocabulary, slow or growing patterns."""
    draw = random.Random(seed)
    size = world.size(Path(TOKENIZER))
    for at, change in do.flips(TOKENIZER, size, 60, draw):
        yield Case("tokenizer", f"byte {at}", LLAMA, change)
    for length in (0, 1, size // 3, size // 2, size - 2):
        yield Case("tokenizer", f"first {length} bytes", LLAMA, do.cut(TOKENIZER, length))
    for name, data in DOCUMENTS.items():
        yield Case("tokenizer", f"is {name}", LLAMA, do.replace(TOKENIZER, data))
    whole = json.loads((world.base / TOKENIZER).read_text(encoding="utf-8"))
    for key in whole:
        for name, value in WRONG.items():
            yield Case("tokenizer", f"{key}={name}", LLAMA, do.put(TOKENIZER, (key,), value))
    for key in whole["model"]:
        for name, value in WRONG.items():
            yield Case("tokenizer", f"model.{key}={name}", LLAMA, do.put(TOKENIZER, ("model", key), value))
    for name, (path, value) in HOSTILE_TOKENIZERS.items():
        yield Case("tokenizer", name, LLAMA, do.put(TOKENIZER, path, value))
    yield from places("tokenizer", LLAMA, TOKENIZER)
    for other in ("ouro", "worded"):
        scene = Scene((*LLAMA.needs, other), LLAMA.command)
        yield Case("tokenizer", f"of {other}", scene, do.copy(f"{other}/tokenizer.json", TOKENIZER))


HOSTILE_TOKENIZERS: dict[str, tuple[tuple[str, ...], Any]] = {
    "ids beyond the vocabulary": (("model", "vocab"), {chr(33 + n): 10_000 + n for n in range(90)}),
    "negative ids": (("model", "vocab"), {"a": -1, "b": -2}),
    "huge ids": (("model", "vocab"), {"a": 2**32, "b": 2**63}),
    "an empty vocabulary": (("model", "vocab"), {}),
    "merges of what is not there": (("model", "merges"), [["q", "zzz"], ["no", "such"]]),
    "dropout": (("model", "dropout"), 0.5),
    "dropout of 2": (("model", "dropout"), 2.0),
    "dropout that is NaN": (("model", "dropout"), float("nan")),
    "a pattern that backtracks": (("pre_tokenizer",), {
        "type": "Split", "pattern": {"Regex": "(a*)*(a*)*b$"}, "behavior": "Isolated", "invert": False}),
    "a pattern that is none": (("pre_tokenizer",), {
        "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
    "a normaliser that grows": (("normalizer",), {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 20}] * 4}),
    "a normaliser that grows to gigabytes": (("normalizer",), {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}] * 6}),
    "a normaliser that removes everything": (("normalizer",), {
        "type": "Replace", "pattern": {"Regex": "(?s)."}, "content": ""}),
    "a kind that nobody knows": (("pre_tokenizer",), {"type": "Nobody"}),
    "truncation": (("truncation",), {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}),
    "truncation with a long stride": (("truncation",), {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 99}),
    "padding to 10^9": (("padding",), {
        "strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "x"}),
    "a template of what is not there": (("post_processor",), {
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "none", "type_id": 0}}], "pair": [],
        "special_tokens": {}}),
    "added tokens of other ids": (("added_tokens",), [
        {"id": 5000, "content": "<|im_start|>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}]),
    "an added token of nothing": (("added_tokens",), [
        {"id": 0, "content": "", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}]),
    "another version": (("version",), "99.0"),
    "a word level model": (("model",), {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "x"}),
    "a unigram without an unknown": (("model",), {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}),
    "a unigram with an unknown beyond": (("model",), {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}),
    "a unigram of NaN": (("model",), {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 0}),
}  # fmt: skip


def template(world: World, seed: int) -> Iterator[Case]:
    """Chat templates that escape, loop, grow, or say nothing."""
    for name, text in TEMPLATES.items():
        yield Case("template", name, LLAMA, do.replace(TEMPLATE, text.encode()))
        yield Case("template", f"{name}, in the settings", LLAMA, do.put(SETTINGS, ("chat_template",), text))
    for name, value in SETTINGS_TEMPLATES.items():
        yield Case("template", f"settings: {name}", LLAMA, do.put(SETTINGS, ("chat_template",), value))
    draw = random.Random(seed)
    given = json.loads((world.base / SETTINGS).read_text(encoding="utf-8"))["chat_template"]
    for at in sorted(draw.sample(range(len(given)), 40)):
        bent = given[:at] + given[at + 1 :]
        yield Case("template", f"without character {at}", LLAMA, do.put(SETTINGS, ("chat_template",), bent))
    yield Case("template", "no UTF-8", LLAMA, do.replace(TEMPLATE, b"\xff\xfe{{ messages }}"))
    yield Case("template", "a file of 8 GiB", LLAMA, do.sparse(TEMPLATE, 8 << 30))
    yield Case("template", "a FIFO", LLAMA, do.fifo(TEMPLATE))
    yield Case("template", "a link to /dev/zero", LLAMA, do.link(TEMPLATE, "/dev/zero"))


TEMPLATES = {
    "nested loops": "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3 + "x",
    "a long loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x",
    "a loop that counts": "{% set n = namespace(i=0) %}"
    + "{% for a in range(90000) %}" * 2
    + "{% set n.i = n.i + 1 %}"
    + "{% endfor %}" * 2
    + "{{ n.i }}",
    "a large range": "{{ range(10**10) | list | length }}",
    "a text that doubles": "{% set n = namespace(s='ab') %}{% for a in range(64) %}{% set n.s = n.s + n.s %}"
    + "{% endfor %}{{ n.s }}",
    "a product of text": "{{ 'a' * 10**10 }}",
    "a wide format": "{{ '%999999999d' | format(1) }}",
    "a wide format method": "{{ '{:>9999999999}'.format(1) }}",
    "a centred text": "{{ 'a' | center(10**10) }}",
    "an indent": "{{ ('a\\n' * 1000) | indent(10**8) }}",
    "a large power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "a large shift": "{{ 1 << 10 ** 12 }}",
    "a batch": "{{ [1] | batch(10**10, 0) | list }}",
    "a slice": "{{ [1] | slice(10**10) | list }}",
    "lipsum": "{{ lipsum(n=10**6) }}",
    "a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion in two macros": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "deep blocks": "{% if 1 %}" * 3000 + "x" + "{% endif %}" * 3000,
    "deep brackets": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "a long sum": "{{ " + "1+" * 20000 + "1 }}",
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "globals by attr": "{{ raise_exception | attr('__globals__') }}",
    "a format escape": "{{ '{0.__class__}'.format(messages) }}",
    "self": "{{ self._TemplateReference__context.environment }}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}x",
    "extends": "{% extends 'x' %}",
    "changing messages": "{{ messages.append({'role': 'x', 'content': 'y'}) }}x",
    "clearing messages": "{% set _ = messages.clear() %}x",
    "a syntax error": "{% for %}",
    "an unknown filter": "{{ messages | nosuch }}",
    "an unknown test": "{{ messages is nosuch }}",
    "an undefined value": "{{ nothing.at.all }}",
    "a division by zero": "{{ 1 / 0 }}",
    "a type error": "{{ 1 + 'a' }}",
    "an attribute error": "{{ none.upper() }}",
    "an assertion": "{{ raise_exception('\x1b[2J\nline two') }}",
    "nothing": "",
    "only spaces": "   \n ",
    "another text": "{{ messages[0]['content'] }}",
    "a time": "{{ strftime_now('%Y') }}",
    "a lone surrogate": "{{ '\\ud800' }}",
    "a null": "\x00",
    "json of everything": "{{ messages | tojson(indent=10**9) }}",
    "sorting": "{{ [1, 'a'] | sort }}",
    "a regular expression": "{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!' | urlize }}x",
}
SETTINGS_TEMPLATES: dict[str, Any] = {
    "a number": 1,
    "a list of numbers": [1, 2],
    "a list without a default": [{"name": "x", "template": "y"}],
    "a default that is none": [{"name": "default", "template": 3}],
    "an object": {"default": "x"},
    "true": True,
    "two defaults": [{"name": "default", "template": "a"}, {"name": "default", "template": "b"}],
    "names that are lists": [{"name": ["default"], "template": "a"}],
}


def special_tokens(world: World, seed: int) -> Iterator[Case]:
    """`tokenizer_config.json` and `special_tokens_map.json`."""
    scene, file = READ["spoken"], "spoken/tokenizer_config.json"
    for role in ("bos", "eos", "pad", "unk"):
        for name, value in {
            **WRONG,
            "an object without content": {"x": 1},
            "content of no text": {"content": 3},
        }.items():
            if value is do.GONE and role != "eos":
                continue
            yield Case("special tokens", f"{role}_token={name}", scene, do.put(file, (f"{role}_token",), value))
    for name, data in DOCUMENTS.items():
        yield Case("special tokens", f"settings are {name}", LLAMA, do.replace(SETTINGS, data))
        file = "llama/special_tokens_map.json"
        yield Case("special tokens", f"the older file is {name}", LLAMA, do.replace(file, data))
    yield from places("special tokens", LLAMA, SETTINGS)


def looped(world: World, seed: int) -> Iterator[Case]:
    """`loopscope.json` and `config.json` of a folder that Loopscope wrote."""
    file = "fresh/loopscope.json"
    whole = json.loads((world.base / file).read_text(encoding="utf-8"))
    numbers = {"0": 0, "-1": -1, "nan": float("nan"), "10^9": 10**9, "10^40": 10**40, "2.0": 2.0, "5": 5}
    for key in whole:
        for name, value in {**WRONG, **numbers}.items():
            yield Case("loopscope.json", f"{key}={name}", FRESH, do.put(file, (key,), value))
    for name, data in DOCUMENTS.items():
        yield Case("loopscope.json", f"is {name}", FRESH, do.replace(file, data))
    yield Case("loopscope.json", "boundary=another", FRESH, do.edit(file, _other_boundary))
    yield from places("loopscope.json", FRESH, file)


def _other_boundary(told: dict[str, Any]) -> None:
    told["boundary"] = "none" if told["boundary"] == "norm" else "norm"


def written_folders(world: World, seed: int) -> Iterator[Case]:
    """A damaged bit anywhere in a model folder that Loopscope wrote, files less, more and of other folders."""
    draw = random.Random(seed)
    scene = FRESH
    for file in world.files("fresh"):
        size = world.size(file)
        for at, change in do.flips(file, size, 25, draw):
            yield Case("written folders", f"{file.name} byte {at}", scene, change)
        for length in (0, size // 2, size - 1):
            yield Case("written folders", f"{file.name} first {length} bytes", scene, do.cut(file, length))
        yield Case("written folders", f"{file.name} gone", scene, do.remove(file))
        yield Case("written folders", f"{file.name} longer", scene, do.append(file, b"\n"))
    swapped = Scene((*scene.needs, "tuned"), scene.command)
    for name in sorted({file.name for file in world.files("fresh")} & {file.name for file in world.files("tuned")}):
        yield Case("written folders", f"{name} of another", swapped, do.copy(f"tuned/{name}", f"fresh/{name}"))
    yield Case("written folders", "a template more", scene, do.replace("fresh/chat_template.jinja", b"{{ 'b' }}"))


SUMS = "fresh/SHA256SUMS"


def sums(world: World, seed: int) -> Iterator[Case]:
    """The list of checksums in a folder that Loopscope wrote."""
    if not (world.base / SUMS).is_file():
        yield Case(
            "SHA256SUMS",
            "is written",
            FRESH,
            do.replace("fresh/config.json", b"there is no list of checksums"),
            codes=(99,),
        )
        return
    lines = (world.base / SUMS).read_text(encoding="utf-8").splitlines()
    one = lines[0]
    changed = {
        "empty": "",
        "no list": "hello\n",
        "one line less": "\n".join(lines[1:]) + "\n",
        "a line twice": "\n".join([*lines, one]) + "\n",
        "a name outside": f"{one[:66]}../map/x\n",
        "an absolute name": f"{one[:66]}/etc/passwd\n",
        "a file that is not there": "\n".join([*lines, f"{'0' * 64}  none"]) + "\n",
        "short digests": "\n".join(line[10:] for line in lines) + "\n",
        "itself": "\n".join([*lines, f"{'0' * 64}  SHA256SUMS"]) + "\n",
        "upper case": "\n".join(line[:64].upper() + line[64:] for line in lines) + "\n",
        "control characters": "\n".join([*lines, f"{'0' * 64}  \x1b[2J"]) + "\n",
        "other digests": "\n".join("0" * 64 + line[64:] for line in lines) + "\n",
        "a long line": "x" * 10_000_000,
        "swapped digests": "\n".join([lines[1][:64] + lines[0][64:], lines[0][:64] + lines[1][64:], *lines[2:]]) + "\n",
    }
    for name, text in changed.items():
        yield Case("SHA256SUMS", name, FRESH, do.replace(SUMS, text.encode()))
    yield Case("SHA256SUMS", "no UTF-8", FRESH, do.replace(SUMS, b"\xff\xfe"))
    yield from places("SHA256SUMS", FRESH, SUMS)


GROUPS: dict[str, Group] = {
    "tokenizer": tokenizer,
    "template": template,
    "special tokens": special_tokens,
    "loopscope.json": looped,
    "written folders": written_folders,
    "SHA256SUMS": sums,
}
