"""General text: what keeps a language model a language model while it learns a task.

A share of every update's tokens is ordinary text, and the loss on ordinary text that was never trained on is watched.
A `Source` is documents with a weight; `read` makes one from files, `built_in` gives two that need no download.
`pool` cuts a source into chunks of 512 tokens; `draw` gives the rows of an update.  Every token of a row is learned.

The rules are the reference study's.  A document is for validation if its SHA-256, by the first eight hex digits, is 0
mod 10, so the same text is on the same side wherever it occurs.  Chunks do not overlap; a document gives at most nine,
one shorter than a chunk gives none.  A pool takes documents until it has 600 chunks to train on and 40 to validate
with, which is looked at before each document, so up to eight more may come.  An update has a quarter as many tokens of
general text as of the task.  The loss that is watched is the mix of each source's mean over its first four chunks.

Its three sources (0.7 long documents, 0.2 stories, 0.1 code) have to be downloaded; without them the mix is ours: half
code, the top-level modules of Python's standard library as in that study; half prose, which is `prose.txt` and the
docstrings of modules inside the library's packages, a document per module.  Those are not among the top-level modules,
so no file is in both sources.  The text is that of the Python that runs: compare losses within one version of it only.
"""

from __future__ import annotations

import ast
import hashlib
import math
import random
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from loopscope.errors import DamagedError, InputError
from loopscope.store.files import first_line
from loopscope.store.files import read as read_bytes
from loopscope.store.manifest import parse_json

CHUNK = 512
CHUNKS_PER_DOCUMENT = 9
TRAIN_CHUNKS, VALIDATION_CHUNKS = 600, 40
WATCHED_CHUNKS = 4
"""How many validation chunks of each source the watched loss is taken over."""

BACKBONE_SEED, MAP_SEED = 8_000_000, 8_200_000
"""The rows of an update are drawn with its number added to one of these."""

PACKAGES = (
    *("asyncio", "collections", "concurrent", "ctypes", "email", "http", "importlib", "json", "logging"),
    *("multiprocessing", "re", "unittest", "urllib", "wsgiref", "xml", "xmlrpc"),
)
"""Packages of the standard library whose docstrings are prose: those every supported Python has."""

Encode = Callable[[str], Sequence[int]]
"""The token ids of a text, without special tokens."""

Chunk = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """Documents of one kind and how often they are drawn.  Raises InputError unless the weight is positive."""

    name: str
    documents: tuple[str, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise InputError(f"the weight of source {self.name!r} must be positive, not {self.weight}")


class Pool(NamedTuple):
    """A source as chunks of 512 tokens."""

    name: str
    weight: float
    train: tuple[Chunk, ...]
    validation: tuple[Chunk, ...]


# ---- sources ---------------------------------------------------------------------------------------------------------


def read(paths: Iterable[Path], name: str = "text", weight: float = 1.0) -> Source:
    """A source from files.  A file is a document; a .jsonl file is one per line, under the key "text".

    Raises InputError for a file that is not there or no file at all, StoreError for one that cannot be read,
    DamagedError for one that is no regular file or not UTF-8, and for a line that has no text.
    """
    documents = tuple(document for path in paths for document in _documents(path))
    if not documents:
        raise InputError(f"source {name!r} has no documents: name at least one file with text")
    return Source(name, documents, weight)


def _documents(path: Path) -> list[str]:
    if not path.exists():
        raise InputError(f"cannot read {path}: No such file or directory")
    try:
        text = read_bytes(path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DamagedError(f"{path}: expected UTF-8 text, found another byte at {error.start}") from None
    if path.suffix != ".jsonl":
        return [text]
    return [_text_of(line, f"{path} line {number}") for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _text_of(line: str, where: str) -> str:
    try:
        record = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: expected a JSON object, found {first_line(error).lower()}") from None
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise DamagedError(f'{where}: expected an object with a string under "text", found none')
    try:
        record["text"].encode()
    except UnicodeEncodeError:  # an escape may stand for half a character
        raise DamagedError(f"{where}: expected valid Unicode, found half a character") from None
    return str(record["text"])


@cache
def built_in() -> tuple[Source, ...]:
    """Prose and code that need no download, in equal parts.

    Raises InputError if this Python came without the sources of its library.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    prose = resources.files("loopscope.tasks").joinpath("prose.txt").read_text(encoding="utf-8").split("\n---\n")
    modules = [path for package in PACKAGES for path in sorted((library / package).rglob("*.py"))]
    documented = [_docstrings(path) for path in modules if "test" not in path.relative_to(library).parts]
    code = read(sorted(library.glob("*.py")), "code")
    return Source("prose", (*map(str.strip, prose), *documented)), code


def _docstrings(path: Path) -> str:
    """All docstrings of a module, its own first, then those of what is in it, outermost first."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, kinds))
    return "\n\n".join(filter(None, map(ast.get_docstring, nodes)))


# ---- chunks ----------------------------------------------------------------------------------------------------------


def is_validation(document: str) -> bool:
    """On which side of the split a document is, by its text alone."""
    return int(hashlib.sha256(document.encode()).hexdigest()[:8], 16) % 10 == 0


def chunks(document: str, encode: Encode) -> list[Chunk]:
    """The first nine whole chunks of a document, one after another."""
    ids = tuple(encode(document))
    whole = min(len(ids) // CHUNK, CHUNKS_PER_DOCUMENT)
    return [ids[CHUNK * i : CHUNK * (i + 1)] for i in range(whole)]


def pool(source: Source, encode: Encode) -> Pool:
    """A source cut into chunks, in the order of its documents.

    Raises InputError if either side of the split has no chunk: with few documents that is likely, as one in ten is for
    validation.
    """
    sides: dict[bool, list[Chunk]] = {False: [], True: []}
    most = {False: TRAIN_CHUNKS, True: VALIDATION_CHUNKS}
    for document in source.documents:
        side = is_validation(document)
        if len(sides[side]) < most[side]:
            sides[side] += chunks(document, encode)
    for side, use in ((False, "training"), (True, "validation")):
        if not sides[side]:
            there = sum(is_validation(document) == side for document in source.documents)
            raise InputError(f"source {source.name!r}: of its {there} documents for {use} none has {CHUNK} tokens")
    return Pool(source.name, source.weight, tuple(sides[False]), tuple(sides[True]))


# ---- what an update and a validation take ----------------------------------------------------------------------------


def tokens_beside(task_tokens: int) -> int:
    """How many tokens of general text go with so many of the task: a quarter, so a fifth of all."""
    return round(task_tokens / 4)


def draw(pools: Sequence[Pool], tokens: int, seed: int) -> tuple[Chunk, ...]:
    """Rows of general text with that many tokens: sources by weight, chunks uniformly, the last row cut short.

    A function of its arguments alone.  A last row of one token is left out: it has no next token to learn.
    """
    if not pools:
        raise InputError("there is no general text to draw from: give at least one pool")
    rng, rows = random.Random(seed), list[Chunk]()
    while tokens > 0:
        (chosen,) = rng.choices(pools, weights=[pool.weight for pool in pools])
        rows.append(rng.choice(chosen.train)[:tokens])
        tokens -= len(rows[-1])
    return tuple(row for row in rows if len(row) > 1)


def watched(pools: Sequence[Pool]) -> Mapping[str, tuple[Chunk, ...]]:
    """The chunks of each source that the watched loss is taken over."""
    return {pool.name: pool.validation[:WATCHED_CHUNKS] for pool in pools}


def mixed(pools: Sequence[Pool], losses: Mapping[str, float]) -> float:
    """The mean of the sources' losses by their weights.  Raises InputError for a source without a loss."""
    missing = [pool.name for pool in pools if pool.name not in losses]
    if missing or not pools:
        raise InputError(f"no loss was given for {', '.join(missing) or 'any source'}")
    return math.fsum(pool.weight * losses[pool.name] for pool in pools) / math.fsum(pool.weight for pool in pools)
