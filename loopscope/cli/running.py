"""One run in a terminal: a program on an input, and what is read along it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from loopscope.cli.app import AsJson, app, print_json, print_table, prose
from loopscope.cli.display import spinner
from loopscope.cli.options import Chat, Top, bundled
from loopscope.cli.view import Loaded
from loopscope.errors import InputError

Given = Mapping[str, Any]


@app.command("run")
@bundled
def run_program(
    how: Loaded,
    model: Annotated[str, typer.Argument(help="A zoo name, a model folder or OWNER/NAME of the hub.")],
    program: Annotated[str, typer.Argument(help='Such as "F6 J:one F"; maps of the zoo have their short names.')],
    ids: Annotated[str | None, typer.Option(help='The input as tokens, such as "[1, 7, 3]".')] = None,
    text: Annotated[
        str | None, typer.Option(help="The input as a text; default: the explorer's first example.")
    ] = None,
    chat: Chat = False,
    other: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=INPUT", help="What @NAME is in the program, given as the input is (repeatable)."),
    ] = None,
    top: Top = 3,
    as_json: AsJson = False,
) -> None:
    """Run a program on an input: what the last row says after every call and map, as the explorer shows it."""
    from loopscope.view.contract import unpack
    from loopscope.view.explorer import Explorer
    from loopscope.view.runs import finish

    inputs: dict[str, Given] = _inputs(ids, text, chat, other or ())
    named = [*inputs][1:]
    with spinner() as log:
        log("loading the model")
        subject = how.subject(model)
        explorer = Explorer(subject)
        if not inputs:
            inputs = {"": subject.examples[0].input, **subject.examples[0].others}
        mine = dict(inputs.pop(""))
        request = explorer.request(
            program, {"kind": "readouts", "answers": [], "rows": "last", "top": top}, mine, inputs
        )
        for name in named:
            if name not in request.others:
                raise InputError(f"--other {name} is given, but nothing in the program is from @{name}")
        head, arrays = unpack(finish(explorer.answer(request)))
    if "error" in head:
        raise InputError(head["error"]["message"])
    points = [
        {
            "point": point["name"],
            "top": [
                {"class": number, "text": head["names"][str(number)], "probability": share}
                for number, share in zip(
                    arrays["top"][at, 0].tolist(), arrays["probability"][at, 0].tolist(), strict=True
                )
            ],
        }
        for at, point in enumerate(head["points"])
    ]
    if as_json:
        return print_json({"model": subject.name, "program": program, "input": mine, "points": points})
    for name, each in {"": mine, **{name: inputs[name] for name in request.others}}.items():
        prose(f"input{f' @{name}' if name else ''}: {_in_words(each)}", "  ", "")
    columns = ("after", *(word for rank in range(1, len(points[0]["top"]) + 1) for word in (_ranked(rank), "%")))
    rows = ((each["point"], *(cell for best in each["top"] for cell in _cells(best))) for each in points)
    print_table(f"{subject.name}: {program}", columns, rows)


def _inputs(ids: str | None, text: str | None, chat: bool, others: Sequence[str]) -> dict[str, Given]:
    """The inputs by name, as the explorer takes them; that of the program itself, where one is given, as ""."""
    from loopscope.cli.lm import tokens_named
    from loopscope.cli.lm_patched import listed, pairs

    if ids is not None and text is not None:
        raise InputError("give either --text or --ids")
    if ids is None and text is None and (others or chat):
        raise InputError(f"{'--other' if others else '--chat'} belongs to an input of one's own; give --text or --ids")

    def made(option: str, given: str) -> Given:
        if text is not None:
            return {"text": given, "chat": chat}
        found = tokens_named(listed(given), option)
        if len(found) != 1:
            raise InputError(f"{option} takes one input, not {len(found)}")
        return {"tokens": found[0]}

    first = text if ids is None else ids
    found: dict[str, Given] = {} if first is None else {"": made("--ids", first)}
    for name, (given,) in pairs("--other", "NAME=INPUT", others, once=True).items():
        found[name] = made(f"--other {name}", given)
    return found


def _in_words(given: Given) -> str:
    """An input as its parts: graph 1 5 4 0, start 0, depth 8."""
    parts = {name: part for name, part in given.items() if part is not False}
    return ", ".join(f"{name} {_part(part)}" for name, part in parts.items())


def _part(part: Any) -> str:
    if isinstance(part, list | tuple):
        return " ".join(map(str, part))
    return "yes" if part is True else json.dumps(part, ensure_ascii=False)


def _ranked(rank: int) -> str:
    """What heads the column of the answers of a rank."""
    if rank == 1:
        return "answer"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th") if rank % 100 not in (11, 12, 13) else "th"
    return f"{rank}{ending}"


def _cells(best: dict[str, Any]) -> tuple[str, str]:
    return best["text"], f"{100 * best['probability']:.1f}"
