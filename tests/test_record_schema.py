"""Records that are whole and hashed, and yet not what they say: each is refused in one line that names its file.

Every experiment's released record is written anew with one thing changed, so that its manifest is right and its content
is not.  What is changed is listed by class; whatever class applies to an experiment must be refused.
"""

from __future__ import annotations

import copy
import lzma
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from loopscope.errors import DamagedError
from loopscope.store.store import Artefact, Store
from loopscope.studies.failures import experiments as failures
from loopscope.studies.layouts import LAYOUTS
from loopscope.studies.reading import EVERY_LAYOUT, read
from loopscope.studies.records import ABOUT, RECORD, SUFFIX, open_results
from loopscope.studies.registry import EXPERIMENTS, LANGUAGE
from tests.commands import loopscope


@cache
def tensors_of(artefact: Path) -> dict[str, dict[str, Tensor]]:
    whole = Store(artefact.parent.parent).open(RECORD, artefact.name)
    return {name: whole.tensors(name) for name in whole.manifest.files if name != ABOUT}


class Parts:
    """A record taken apart, to be changed: config and inputs of its manifest, what it says of itself, its tensors."""

    def __init__(self, artefact: Artefact) -> None:
        self.config: dict[str, Any] = copy.deepcopy(artefact.manifest.config)
        self.inputs = dict(artefact.manifest.inputs)
        self.about = artefact.json(ABOUT)
        self.artefact, self.whole = artefact, tensors_of(artefact.folder)
        self.files = dict(self.whole)

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self.about["facts"]
        return found

    @property
    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config["settings"]
        return found

    @property
    def notes(self) -> dict[str, Any]:
        found: dict[str, Any] = self.about["notes"]
        return found

    @property
    def file(self) -> str:
        return min(self.files)

    @property
    def tensor(self) -> str:
        """The largest tensor of the first file."""
        return max(sorted(self.files[self.file]), key=lambda name: self.files[self.file][name].numel())

    def change(self, change: Callable[[Tensor], Tensor]) -> None:
        self.files[self.file] = dict(self.files[self.file])
        self.files[self.file][self.tensor] = change(self.files[self.file][self.tensor].clone())

    def write(self, store: Store) -> Artefact:
        with store.write(RECORD, self.config, self.inputs) as draft:
            draft.json(ABOUT, self.about)
            for name, tensors in self.files.items():
                if tensors is self.whole.get(name):
                    draft.bytes(name, self.artefact.bytes(name))
                else:  # as `draft.tensors` does it, but fast
                    data = safetensors.torch.save({each: found.contiguous() for each, found in tensors.items()})
                    draft.bytes(name, lzma.compress(data, preset=0))
        return draft.artefact


@cache
def released() -> dict[str, Artefact]:
    """One record of every kind: the smallest of each experiment, and of each set of letters."""
    found: dict[str, Artefact] = {}
    for store in open_results():
        for each in sorted(store.every(RECORD), key=lambda one: sum(f.size for f in one.manifest.files.values())):
            config = each.manifest.config
            found.setdefault(f"{config['experiment']}/{config['settings'].get('set', '')}".strip("/"), each)
    return found


def put(place: Callable[[Parts], dict[str, Any]], name: str, value: Any) -> Callable[[Parts], None]:
    def change(parts: Parts) -> None:
        place(parts)[name] = value

    return change


def config(parts: Parts) -> dict[str, Any]:
    return parts.config


def about(parts: Parts) -> dict[str, Any]:
    return parts.about  # type: ignore[no-any-return]


def facts(parts: Parts) -> dict[str, Any]:
    return parts.facts


def settings(parts: Parts) -> dict[str, Any]:
    return parts.settings


def another_subject(parts: Parts) -> None:
    parts.config["subject"] = parts.facts["name"] = "d8l6-7"
    parts.facts["key"] = "0" * 64


def more_fits(parts: Parts) -> None:
    for target in parts.facts["fits"]:
        parts.facts["fits"][target] += 1


def without_fits(parts: Parts) -> None:
    parts.facts["fits"] = {}
    parts.inputs = {role: key for role, key in parts.inputs.items() if not role[-1].isdigit()}


def renamed_file(parts: Parts) -> None:
    parts.files["elsewhere" + SUFFIX] = parts.files.pop(parts.file)


def renamed_tensor(parts: Parts) -> None:
    found = dict(parts.files[parts.file])
    found["another"] = found.pop(parts.tensor)
    parts.files[parts.file] = found


def without_tensor(parts: Parts) -> None:
    parts.files[parts.file] = {k: v for k, v in parts.files[parts.file].items() if k != parts.tensor} or {
        "x": torch.ones(2)
    }


def more_tensors(parts: Parts) -> None:
    parts.files[parts.file] = parts.files[parts.file] | {"another": torch.zeros(4, dtype=torch.uint8)}


def beyond(tensor: Tensor) -> Tensor:
    """A value that no experiment has: of answers two to a byte, both of the first two are too large."""
    if tensor.is_floating_point():
        tensor.view(-1)[0] = math.nan
    else:
        tensor.view(-1)[0] = 253 if tensor.dtype == torch.uint8 else torch.iinfo(tensor.dtype).max
    return tensor


CHANGES: dict[str, Callable[[Parts], None]] = {
    "version 999": put(config, "version", 999),
    "version 1": put(config, "version", 1),
    "version as a word": put(config, "version", "2"),
    "version true": put(config, "version", True),
    "no version": lambda parts: parts.config.pop("version"),
    "another experiment": put(config, "experiment", "trajectory"),
    "experiment as a list": put(config, "experiment", ["targets"]),
    "no settings": lambda parts: parts.config.pop("settings"),
    "settings as a list": put(config, "settings", []),
    "more in the config": put(config, "more", 1),
    "another subject in the manifest": put(config, "subject", "d8l6-99"),
    "another subject": another_subject,
    "another key": put(facts, "key", "0" * 64),
    "key as a number": put(facts, "key", 7),
    "loops 3": put(facts, "loops", 3),
    "loops 5": put(facts, "loops", 5),
    "loops 0": put(facts, "loops", 0),
    "loops of many": put(facts, "loops", 10**9),
    "loops as a word": put(facts, "loops", "6"),
    "loops as a float": put(facts, "loops", 6.0),
    "heads 1": put(facts, "heads", 1),
    "heads of many": put(facts, "heads", 1000),
    "heads null": put(facts, "heads", None),
    "depth -1": put(facts, "depth", -1),
    "nodes as a list": put(facts, "nodes", [10]),
    "nodes of many": put(facts, "nodes", 10**6),
    "fits as a list": put(facts, "fits", []),
    "fits of words": put(facts, "fits", {"one": "two"}),
    "fits below 0": put(facts, "fits", {"one": -1}),
    "more fits": more_fits,
    "more facts": put(facts, "more", 1),
    "no facts": lambda parts: parts.about.pop("facts"),
    "cost as a list": put(about, "cost", []),
    "cost that is NaN": put(about, "cost", {"seconds": math.nan, "device": "CPU"}),
    "cost beyond every float": put(about, "cost", {"seconds": 10**400, "device": "CPU"}),
    "cost without a device": put(about, "cost", {"seconds": 1.0}),
    "cost in words": put(about, "cost", {"seconds": "long", "device": "CPU"}),
    "notes as a list": put(about, "notes", []),
    "raw the other way": lambda parts: parts.about.update(raw=not parts.about["raw"]),
    "raw as a word": put(about, "raw", "yes"),
    "an unknown setting": put(settings, "unheard", 1),
    "a file elsewhere": renamed_file,
    "no files": lambda parts: parts.files.clear(),
    "another tensor": renamed_tensor,
    "a tensor less": without_tensor,
    "a tensor more": more_tensors,
    "another type": lambda parts: parts.change(lambda tensor: tensor.to(torch.float64)),
    "a row less": lambda parts: parts.change(lambda tensor: tensor[:-1]),
    "a column less": lambda parts: parts.change(lambda tensor: tensor[..., :-1]),
    "an axis more": lambda parts: parts.change(lambda tensor: tensor[None]),
    "no axis": lambda parts: parts.change(lambda tensor: tensor.flatten()[0]),
    "empty": lambda parts: parts.change(lambda tensor: tensor[:0]),
    "a value beyond": lambda parts: parts.change(beyond),
}  # fmt: skip


HARMLESS = {
    ("trajectories", "more fits"): "uses no maps, and says how many there are besides",
    ("chains", "loops 3"): "has three",
    ("chains", "a value beyond"): "every byte is eight answers",
    ("antonyms", "a column less"): "replies may be shorter",
}
"""What leaves a record one that could be, by experiment; nobody but the inventory can tell."""


def refusals(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """For every change that applies: what it is, and what was said; nothing where it was accepted."""
    for number, (what, change) in enumerate(CHANGES.items()):
        parts = Parts(released()[name])
        change(parts)
        store = Store(folder / str(number))
        made = parts.write(store)
        try:
            read(store)
        except DamagedError as error:
            told = str(error)
            yield what, told if str(made.folder) in told and "\n" not in told and "expected" in told else ""
        else:
            yield what, ""


BIG = ("eight-calls",)


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.slow] * (each in BIG)) for each in released()])
def test_a_record_that_is_not_what_it_says_is_refused(name: str, tmp_path: Path) -> None:
    whole = Store(tmp_path / "whole")
    Parts(released()[name]).write(whole)
    assert len(read(whole)) == 1  # unchanged it is one
    accepted = [what for what, told in refusals(tmp_path, name) if not told]
    assert accepted == [what for experiment, what in HARMLESS if experiment == name]


def test_every_experiment_has_a_layout_and_a_released_record() -> None:
    assert LAYOUTS.keys() == EXPERIMENTS.keys()
    assert LAYOUTS.keys() | LANGUAGE.keys() == EVERY_LAYOUT.keys()
    waiting = {each.name for each in failures.EXPERIMENTS}  # measured where somebody has fitted their maps
    assert {name.partition("/")[0] for name in released()} | waiting == EVERY_LAYOUT.keys()


def test_what_was_found_and_expected_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A newer version, fewer loops than were read, another subject than the manifest's."""
    for number, (what, says) in enumerate({
        "version 999": "expected a record of version 2, found version 999, written by a newer version of loopscope",
        "loops 3": "expected 6 loops, as its recipe has them, found 3",
        "another subject in the manifest": "expected facts of 'd8l6-99', as the manifest has it, found 'd8l6-16'",
    }.items()):  # fmt: skip
        parts = Parts(next(e for e in open_results()[0].every(RECORD) if e.manifest.config["subject"] == "d8l6-16"))
        CHANGES[what](parts)
        parts.write(Store(tmp_path / str(number)))
        code, out, err = loopscope(capsys, "claims", "--results", str(tmp_path / str(number)))
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert says in err


def test_a_backbone_is_called_as_its_history_says(tmp_path: Path) -> None:
    """All of a record renamed alike: its key says whose it is."""
    results = open_results()[0]
    mine = next(each for each in results.every(RECORD) if each.manifest.config["subject"] == "d8l6-16")
    store, parts = Store(tmp_path), Parts(mine)
    parts.config["subject"] = parts.facts["name"] = "d8l6-17"
    parts.write(store)
    assert len(read(store)) == 1  # nothing here knows better
    key = parts.facts["key"]
    store.adopt(next(each for each in results.every("history") if each.manifest.inputs.get("backbone") == key))
    with pytest.raises(DamagedError, match="a record of d8l6-16, as the history of its backbone, found d8l6-17"):
        read(store)
