"""What a program means for a model, without running it: its steps and patches, and the same run elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from loopscope.address import Address
from loopscope.errors import InputError, nearest
from loopscope.execute.executor import check_programs
from loopscope.execute.runs import Sizes
from loopscope.execute.unequal import anchors_of
from loopscope.patches import Given, Patch, Run
from loopscope.program import Call, Program
from loopscope.view.contract import Answer, Json, Request
from loopscope.view.inputs import tokens_of
from loopscope.view.reads import points_of
from loopscope.view.runs import MEAN, Case, Runs, Steps, names_in, whole_rows
from loopscope.view.shown_model import short_name

if TYPE_CHECKING:
    from loopscope.view.shown_model import ShownModel


def check_program(subject: ShownModel, case: Case, program: Program) -> None:
    """InputError where a model has no such place, map, tensor or input."""
    subject.pieces.check(program)
    names = names_in(program)
    inputs = {name for name, _ in case.others}
    for what, used, there in (
        ("map", names["maps"], [*subject.maps]),
        ("tensor", names["given"], [MEAN]),
        ("input", names["inputs"], sorted(inputs)),
    ):
        for name in used:
            if name not in there:
                raise InputError(
                    f"no {what} is called {name!r}; there are: {', '.join(there) or 'none'}{nearest(name, there)}"
                )
    if not program.given and not anchors_of([program], [], ()):
        lengths = {name: len(tokens) for name, tokens in case.others}
        check_programs([program], Sizes.of(subject.pieces, len(case.tokens), lengths))


def read_check(runs: Runs, request: Request, case: Case, program: Program) -> Steps[Answer]:
    """The program's canonical text, what it is made of, and the same run for a script and a shell."""
    yield None
    steps: list[dict[str, Json]] = []
    patches: list[dict[str, str]] = [_patch(each, Address(0, each.site, "prelude")) for each in program.prelude]
    for index, step in enumerate(program.steps):
        loop, call = program.loop_of(index), isinstance(step, Call)
        stack, name = (step.stack, None) if isinstance(step, Call) else (None, step.name)
        steps.append({"text": str(step), "kind": "call" if call else "map", "stack": stack, "loop": loop, "name": name})
        if isinstance(step, Call):
            patches += [_patch(each, Address(loop, each.site)) for each in step.patches]
    for coda in program.coda:
        patches += [_patch(each, Address(coda.loop, each.site, "coda")) for each in coda.patches]
    facts = {
        "program": str(program),
        "calls": program.calls,
        "points": points_of(program),
        "steps": steps,
        **names_in(program),
        "patches": patches,
        "python": python_of(runs.subject, request, case, program),
        "command": command_of(runs.subject, request, case, program),
    }
    return Answer("check", facts)


def _patch(patch: Patch, address: Address) -> dict[str, str]:
    return {"address": str(address), "source": str(patch.source), "text": str(patch)}


def python_of(subject: ShownModel, request: Request, case: Case, program: Program) -> str:
    """A script that runs the program on the input: the likeliest class at the last row of every call, how likely."""
    names = names_in(program)
    known = subject.folder is not None
    used = "load, load_map, run" if names["maps"] and known else "load, run" if known else "run"
    lines = ["import torch", "", f"from loopscope import {used}", ""]
    settings = "".join(f", {key}={_literal(value)}" for key, value in subject.loading.items())
    if subject.precision not in (None, torch.float32):
        settings += f", dtype={subject.precision}"
    lines.append(
        f"model = load({_literal(subject.folder)}{settings})" if known else "# model, maps: as they were shown"
    )
    how = [""]
    if names["maps"]:
        if known:
            titled = {name: title for name, title in subject.titles.items() if name in names["maps"]}
            loaded = (
                f"{_literal(name)}: load_map({_literal(titled[name])})" for name in names["maps"] if name in titled
            )
            lines.append(f"maps = {{{', '.join(loaded)}}}")
            lines += [
                f"maps[{_literal(name)}] = ...  # as it was given" for name in names["maps"] if name not in titled
            ]
        how.append("maps=maps")
    lines.append(f"tokens = torch.tensor([{list(case.tokens)}])")
    others = [(name, tokens) for name, tokens in case.others if name in names["inputs"]]
    if others:
        given = ", ".join(f"{_literal(name)}: torch.tensor([{list(tokens)}])" for name, tokens in others)
        lines.append(f"others = {{{given}}}")
        how.append("others=others")
    if names["given"]:
        lines += _mean(subject, program, ", maps=maps" if names["maps"] else "")
        how.append("given=given")
    lines += [
        f"program = {_literal(str(program))}",
        f'found = run(model, tokens, program{", ".join(how)}, read="calls")[program]',
        "for point, logits in found.logits_at.items():",
        "    share, best = logits[0, -1].softmax(-1).max(-1)",
        '    print(point, best.item(), f"{share:.4f}")',
    ]
    return "\n".join(lines) + "\n"


def _mean(subject: ShownModel, program: Program, maps: str) -> list[str]:
    """Lines that compute `$mean`: of the one place that takes it, in the program itself; of several, a hint."""
    patches = [(Address(0, each.site, "prelude"), each) for each in program.prelude]
    for index, step in enumerate(program.steps):
        if isinstance(step, Call):
            patches += [(Address(program.loop_of(index), each.site), each) for each in step.patches]
    for coda in program.coda:
        patches += [(Address(coda.loop, each.site, "coda"), each) for each in coda.patches]
    places = [address for address, each in patches if each.giver == Given(MEAN)]
    if len(places) != 1 or any(
        MEAN in names_in(each.giver.program)["given"] for _, each in patches if isinstance(each.giver, Run)
    ):
        return ['given = {"mean": ...}  # the mean of each of these places over examples, under names of their own']
    examples = [list(tokens_of(subject, each.input)) for each in subject.examples]
    rows = "" if whole_rows(subject, places[0]) else ".mean(-2, keepdim=True)"
    return [
        f"examples = {examples}",
        f"plain, place = {_literal(str(program.skeleton))}, {_literal(str(places[0]))}",
        f"runs = [run(model, torch.tensor([each]), plain{maps}, keep=[place])[plain] for each in examples]",
        f'given = {{"mean": torch.stack([next(iter(each.kept.values())){rows} for each in runs]).mean(0)}}',
    ]


def command_of(subject: ShownModel, request: Request, case: Case, program: Program) -> str:
    """A command that runs the program on the input; "" where the model or one of its maps is known by no name."""
    names = names_in(program)
    if subject.folder is None or not {*names["maps"]} <= subject.titles.keys():
        return ""
    words = ["loopscope", "run", subject.folder, str(program), *options_of(subject, names["maps"])]
    inputs = {name: (request.others[name], tokens) for name, tokens in case.others if name in names["inputs"]}
    every = [request.input, *(given for given, _ in inputs.values())]
    spoken = all("text" in each and each["chat"] == request.input.get("chat") for each in every)
    if spoken:
        words += ["--text", request.input["text"], *(["--chat"] if request.input["chat"] else [])]
    else:
        words += ["--ids", json.dumps(list(case.tokens))]
    for name, (given, tokens) in inputs.items():
        words += ["--other", f"{name}={given['text'] if spoken else json.dumps(list(tokens))}"]
    return shlex.join(words)


def options_of(subject: ShownModel, maps: Iterable[str]) -> list[str]:
    """The options of a command that load the model in the same way, with these of its maps."""
    named = {"boundary": "--boundary", "loop": "--loop-layers", "loops": "--loops"}
    words = [word for key, value in subject.loading.items() if key in named for word in (named[key], str(value))]
    if subject.precision == torch.bfloat16:
        words += ["--dtype", "bf16"]
    for name in maps:
        title = subject.titles.get(name)
        if title is not None and short_name(title) != name:  # the zoo's come by themselves
            words += ["--map", f"{name}={title}"]
    return words


def _literal(value: object) -> str:
    """A text as Python writes it, in double quotes."""
    return json.dumps(value, ensure_ascii=False)
