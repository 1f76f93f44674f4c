"""A task of your own: examples from a JSONL file, a dataset on disk, or Python, and what is held out of them.

    {"prompt": "3 + 4 mod 7 =", "answer": "0", "steps": 1, "cluster": "3"}

| key | |
|---|---|
| `prompt` | a text, or a list of tokens |
| `answer` | a text; for a prompt of tokens, a token or class, or several |
| `steps` | optional: how many steps the answer takes, from 1 |
| `corrupt`, `corrupt_answer` | optional: another prompt to patch from, and its answer |
| `cluster` | optional: examples of one cluster stand and fall together: never split, resampled together |
| `split` | optional: train, validation or test |

A key that is none of these is kept as a column.  What cannot be used is refused with the number of its line.

A dataset on disk is what `datasets` saved (`save_to_disk`), a Parquet file, or a folder of JSONL or Parquet files whose
names say the split as on the hub: `train.jsonl`, `data/test-00000-of-00001.parquet`.  None of them takes `datasets`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from loopscope.bounds import shown, whole
from loopscope.errors import InputError, nearest
from loopscope.store.files import first_line, read
from loopscope.store.manifest import parse_json, read_json

Text = str | tuple[int, ...]
"""A text, or tokens."""

KEYS = ("prompt", "answer", "steps", "corrupt", "corrupt_answer", "cluster", "split")
MOST_STEPS = 1000
TRAIN = ("train", "training", "fit")
HELD_OUT = ("test", "held-out", "held_out", "heldout", "eval")
WATCHED = ("validation", "valid", "val", "dev")
"""What a `split` may say; "validation" is held out of training, and what is watched meanwhile where there is a test."""

MOST_BYTES = 2**32
STATE, SPLITS = "state.json", "dataset_dict.json"
"""What tells a dataset that was saved, and one with splits, from other folders."""

JSONL, PARQUET = ".jsonl", ".parquet"
SHARE = 0.2
"""What is held out by a hash, where nothing else is said."""

SEVERAL = 64
"""Folders that are looked into for files of examples."""


@dataclass(frozen=True)
class Example:
    """One question and its answer; `where` is what error lines call it, `columns` what else its line held."""

    prompt: Text
    answer: Text
    steps: int | None = None
    corrupt: Text | None = None
    corrupt_answer: Text | None = None
    cluster: str | None = None
    split: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)
    where: str = field(default="an example", compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As a line of a file: what is not there is left out."""
        mine = {name: getattr(self, name) for name in KEYS if getattr(self, name) is not None}
        return {**mine, **self.columns}

    def value(self, name: str) -> Any:
        """What stands under a key or in a column; None where nothing does."""
        return getattr(self, name) if name in KEYS else self.columns.get(name)


@dataclass(frozen=True)
class Examples(Sequence[Example]):
    """Examples of one task, and what the task is called."""

    name: str
    items: tuple[Example, ...]

    @overload
    def __getitem__(self, at: int) -> Example: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Example, ...]: ...
    def __getitem__(self, at: int | slice) -> Example | tuple[Example, ...]:
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.items)

    def __repr__(self) -> str:
        clusters = len({each.cluster for each in self if each.cluster is not None})
        parts = [f"{len(self):,} examples", *([f"{clusters:,} clusters"] if clusters else [])]
        return f"Examples({self.name!r}, {', '.join(parts)})"

    @property
    def digest(self) -> str:
        """SHA-256 of all that the examples say, in their order."""
        lines = (json.dumps(each.to_dict(), sort_keys=True, ensure_ascii=False, default=str) for each in self)
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()

    @property
    def steps(self) -> list[int]:
        """The numbers of steps that occur, in order."""
        return sorted({each.steps for each in self if each.steps is not None})

    def some(self, items: Iterable[Example]) -> Examples:
        """Some of these examples, under the same name."""
        return replace(self, items=tuple(items))


# ---- reading ---------------------------------------------------------------------------------------------------------


def examples(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Example] | Mapping[str, Iterable[Mapping[str, Any]]],
    name: str = "",
) -> Examples:
    """The examples of a file, of a dataset on disk, or of Python: mappings, or mappings by the name of their split.

    InputError, which names the line, for one that is no JSON object, lacks a prompt or an answer, or has a value that
    cannot be; for a file that is not there or holds no example.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        rows, called = _rows_of(path), path.name.removesuffix(JSONL).removesuffix(PARQUET)
    elif isinstance(source, Mapping):
        rows, called = _by_split(source), "examples"
    else:
        rows, called = ((f"example {number}", each) for number, each in enumerate(source, start=1)), "examples"
    found = Examples(name or called, tuple(_example(where, each) for where, each in rows))
    if not found:
        raise InputError(f"{source if isinstance(source, str | os.PathLike) else 'the task'} has no examples")
    return found


def _rows_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a file or folder, each with what error lines call it."""
    if not path.is_dir():
        return _parquet(path) if path.suffix == PARQUET else _lines(path)
    saved = any((path / each).is_file() for each in (STATE, SPLITS))
    return _saved(path) if saved else _folder(path)


def _by_split(source: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[tuple[str, Any]]:
    for split, rows in source.items():
        if isinstance(rows, str) or not isinstance(rows, Iterable):
            raise InputError(f"a task is given as mappings, or by split as several of them; {split!r} is {shown(rows)}")
        for number, row in enumerate(rows, start=1):
            yield f"{split} example {number}", {**row, "split": row.get("split") or str(split)}


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    if not os.path.lexists(path):
        raise InputError(f"there is no file {path}")
    try:
        text = read(path, limit=MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: byte {error.start} cannot be read") from None
    for number, line in enumerate(re.split("\r?\n", text), start=1):
        if line.strip():
            where = f"{path} line {number}"
            try:
                yield where, parse_json(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is no JSON object: {first_line(error)}") from None


def _folder(folder: Path) -> Iterator[tuple[str, Any]]:
    """Rows of the JSONL or Parquet files of a folder and those below, whose names may say a split."""
    below = [folder, *sorted(each for each in folder.rglob("*") if each.is_dir())[:SEVERAL]]
    files = [each for place in below for each in sorted(place.iterdir()) if each.suffix in (JSONL, PARQUET)]
    if not files:
        raise InputError(
            f"{folder} is a folder, but no dataset on disk: it has no {JSONL}, {PARQUET}, {STATE} or {SPLITS}"
        )
    for file in files:
        said = re.match("[a-z_]+", file.name.lower())
        split = said[0].strip("_") if said else ""
        known = {"split": split} if split in (*TRAIN, *HELD_OUT, *WATCHED) else {}
        for where, row in _rows_of(file):
            yield where, {**row, **known} if isinstance(row, Mapping) and row.get("split") is None else row


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    if not os.path.lexists(path):
        raise InputError(f"there is no file {path}")
    from loopscope.models.extras import extra

    parquet = extra("pyarrow.parquet", "reading a Parquet file", of="tables")
    try:
        rows = parquet.ParquetFile(path).read().to_pylist()
    except Exception as error:  # pyarrow has many
        raise InputError(f"cannot read {path}: {first_line(error)}") from None
    for number, row in enumerate(rows, start=1):
        yield f"{path} row {number}", row


def _saved(folder: Path) -> Iterator[tuple[str, Any]]:
    """Rows of a dataset as `save_to_disk` wrote it; those of one with splits say which is theirs."""
    if (folder / SPLITS).is_file():
        for split in read_json(folder / SPLITS).get("splits", ()):
            for where, row in _saved(folder / str(split)):
                yield where, {**row, "split": row.get("split") or str(split)}
        return
    if not (folder / STATE).is_file():
        raise InputError(f"{folder} is no saved dataset: it has no {STATE}")
    from loopscope.models.extras import extra

    ipc = extra("pyarrow.ipc", "reading a dataset on disk", of="tables")
    state, number = read_json(folder / STATE), 0
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise InputError(f"{folder} is a selection of rows; save it again after `flatten_indices()`")
    for file in state.get("_data_files", ()):
        place = folder / Path(str(file.get("filename"))).name
        try:
            with place.open("rb") as stream:
                rows = ipc.open_stream(stream).read_all().to_pylist()
        except Exception as error:  # pyarrow has many
            raise InputError(f"cannot read {place}: {first_line(error)}") from None
        for row in rows:
            number += 1
            yield f"{folder} row {number}", row


def _example(where: str, found: Any) -> Example:
    if isinstance(found, Example):
        found, kept = found.to_dict(), found.where
        where = where if kept == "an example" else kept
    if not isinstance(found, Mapping):
        raise InputError(f"{where} is no JSON object, but {shown(found)}")
    for key in ("prompt", "answer"):
        if found.get(key) is None:
            there = ", ".join(map(str, found)) or "nothing"
            others = [str(name) for name in found if name not in KEYS]
            raise InputError(f"{where} has no {key!r}; it has {there}{nearest(key, others)}")
    prompt = _text(where, "prompt", found["prompt"], tokens=None)
    tokens = not isinstance(prompt, str)
    values = {
        name: None if found.get(name) is None else _text(where, name, found[name], tokens)
        for name in ("answer", "corrupt", "corrupt_answer")
    }
    if values["corrupt_answer"] is not None and values["corrupt"] is None:
        raise InputError(f"{where} has a corrupt_answer, but no 'corrupt' that it answers")
    steps, split, cluster = (found.get(name) for name in ("steps", "split", "cluster"))
    if steps is not None:
        steps = whole(f"{where}: steps", steps, 1, MOST_STEPS)
    for name, value in (("split", split), ("cluster", cluster)):
        if value is not None and type(value) not in ((str,) if name == "split" else (str, int)):
            raise InputError(f"{where}: {name} is a text, not {shown(value)}")
    columns = {str(name): value for name, value in found.items() if name not in KEYS}
    answer = values.pop("answer")
    assert answer is not None
    return Example(prompt, answer, steps, values["corrupt"], values["corrupt_answer"],
                   None if cluster is None else str(cluster), split, columns, where)  # fmt: skip


def _text(where: str, name: str, value: Any, tokens: bool | None) -> Text:
    """A text or tokens; `tokens` says which of both the prompt is, None of the prompt itself."""
    if isinstance(value, str) and not tokens:
        if not value.strip():
            raise InputError(f"{where} has an empty {name}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InputError(f"{where}: {name} is no valid Unicode") from None
        return value
    if tokens is False:
        near = json.dumps(str(value)[:60])
        raise InputError(f"{where}: {name} is a text where the prompt is one, not {shown(value)} (nearest: {near})")
    several = [value] if type(value) is int and tokens else value
    if not isinstance(several, Sequence) or isinstance(several, str | bytes):
        raise InputError(f"{where}: {name} is a text or a list of tokens, not {shown(value)}")
    if not several:
        raise InputError(f"{where} has an empty {name}")
    if bad := [each for each in several if type(each) is not int or not 0 <= each < 2**31]:
        raise InputError(f"{where}: {shown(bad[0])} in its {name} is no token")
    return tuple(several)


# ---- what is held out ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Split:
    """What is learned from, what is watched meanwhile, and what is measured at the end; `how` it was told apart.

    No cluster, and no prompt, of the first is in the others.
    """

    train: Examples
    watched: Examples
    held_out: Examples
    how: str

    def __repr__(self) -> str:
        parts = {"train": self.train, "watched": self.watched, "held out": self.held_out}
        return f"Split({self.train.name!r}, {', '.join(f'{len(each):,} {name}' for name, each in parts.items())})"


def split(
    found: Examples, held_out: Examples | None = None, *, field: str | None = None, by: str | None = None,
    share: float | None = None, learned: bool = True,
) -> Split:  # fmt: skip
    """Hold examples out: by another file, by a field that says train or test, or by the hash of a field.

    - `held_out`: examples of their own, such as those of another file.
    - `field`: a key that says "train", "validation" or "test".  Default: `split`, where the examples have it.
    - `by`: a key; every value of it is held out or not, `share` of the values (0.2), by their SHA-256.  Default: the
      cluster, and of an example without one the prompt.  White space around a text makes no other value.
    - `learned`: whether any must be left to learn from.

    InputError where nothing is left to learn from or to measure on, or a cluster or prompt would be on both sides.
    """
    if sum(each is not None for each in (held_out, field, by)) > 1:
        raise InputError("examples are held out in one way: by another file, by a field, or by the hash of one")
    _same_kind(found, held_out)
    if held_out is not None:
        made = Split(found, held_out, held_out, f"all of {held_out.name}")
    elif field is not None or (by is None and any(each.split is not None for each in found)):
        made = _by_field(found, field or "split")
    else:
        made, share = _by_hash(found, by, SHARE if share is None else share), None
    if share is not None:
        raise InputError(f"a share is held out by a hash, and here examples are held out otherwise: {made.how}")
    for part, what in ((made.train, "to learn from"), (made.held_out, "held out")):
        if not part and (learned or part is not made.train):
            raise InputError(f"{found.name}: no examples are left {what} of {len(found):,} ({made.how})")
    for other in (made.watched, made.held_out):
        _check_apart(made.train, other)
    return made


def _same_kind(found: Examples, other: Examples | None) -> None:
    kinds = {isinstance(each.prompt, str): each for each in (*found, *(other or ()))}
    if len(kinds) > 1:
        raise InputError(
            f"prompts are all texts or all tokens: {kinds[True].where} has a text, {kinds[False].where} not"
        )


def _by_field(found: Examples, name: str) -> Split:
    parts: dict[str, list[Example]] = {"train": [], "watched": [], "held": []}
    for each in found:
        said = str(each.value(name)).strip().lower()
        kind = "train" if said in TRAIN else "held" if said in HELD_OUT else "watched" if said in WATCHED else None
        if kind is None:
            words = ("train", "validation", "test")
            has = f"has no {name!r}" if each.value(name) is None else f"has {name!r} {shown(each.value(name))}"
            raise InputError(f"{each.where} {has}; it says {', '.join(words)}{nearest(said, words)}")
        parts[kind].append(each)
    held = parts["held"] or parts["watched"]
    return Split(
        found.some(parts["train"]), found.some(parts["watched"] or held), found.some(held), f"by the field {name!r}"
    )


def _by_hash(found: Examples, by: str | None, share: float) -> Split:
    if not 0 < share < 1 or math.isnan(share):
        raise InputError(f"the share that is held out is above 0 and below 1, not {share} (nearest: 0.2)")
    clusters = [each.cluster is not None for each in found]
    name = by or ("cluster" if any(clusters) else "prompt")
    values = [each.prompt if by is None and not there else each.value(name)
              for each, there in zip(found, clusters, strict=True)]  # fmt: skip
    for each, value in zip(found, values, strict=True):
        if value is None:
            raise InputError(f"{each.where} has no {name!r}, by whose hash examples are held out")
    held = [hashed(_bare(value)) < share for value in values]
    sides = [found.some(each for each, out in zip(found, held, strict=True) if out == side) for side in (False, True)]
    how = repr(name) if by is not None or len(set(clusters)) < 2 else "'cluster', else 'prompt'"
    return Split(sides[0], sides[1], sides[1], f"{share:.0%} by the hash of {how}")


def _bare(value: object) -> object:
    """A value without white space around it: with and without, a prompt asks the same."""
    return value.strip() if isinstance(value, str) else value


def hashed(value: object) -> float:
    """From 0 to below 1, by the SHA-256 of a value."""
    return int(hashlib.sha256(str(value).encode()).hexdigest()[:8], 16) / 2**32


def _check_apart(train: Examples, held: Examples) -> None:
    for name in ("cluster", "prompt"):
        here = {value: each for each in train if (value := _bare(each.value(name))) is not None}
        for each in held:
            if (value := _bare(each.value(name))) in here:
                raise InputError(
                    f"{name} {shown(value)} would be both learned from and held out: {here[value].where}, {each.where}"
                )
