"""Where the same key has other bits: artefacts are addressed by what they were made from, not by what came out.

The same step on another device, or with another number of threads, rounds otherwise.  Both results are whole; which one
somebody has is worth knowing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loopscope.errors import LoopscopeError
from loopscope.store.compression import XZ
from loopscope.store.contents import Artefact
from loopscope.store.store import Store


@dataclass(frozen=True)
class Difference:
    """An artefact that another store has under the same key with other content.

    `files`: those that differ, or are in one alone, by the names they are read by; `reason`: why it cannot be compared.
    """

    kind: str
    key: str
    files: tuple[str, ...]
    device: str
    other: Path
    other_device: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"cannot be compared with {self.other}: {self.reason}"
        here, there = f"{self.device} here", f"{self.other_device} there"
        return f"other bits than in {self.other}: {', '.join(self.files)}; made on {here}, on {there}"


def differing(store: Store, others: Iterable[Store], kinds: Iterable[str] | None = None) -> list[Difference]:
    """Every artefact of a store (of these kinds) that another has with other content, by kind, key and store.

    How a file is compressed makes no difference.  What cannot be read in `store` is left to `Store.verify`.
    """
    there = [other for other in others if other.root.resolve() != store.root.resolve()]
    mine = [artefact for kind in (store.kinds() if kinds is None else kinds) for artefact in store.readable(kind)[0]]
    return [found for artefact in mine for other in there for found in _compared(artefact, other)]


def _compared(artefact: Artefact, other: Store) -> Iterator[Difference]:
    manifest = artefact.manifest
    files: tuple[str, ...] = ()
    device = reason = ""
    try:
        twin = other.find(manifest.kind, manifest.config, manifest.inputs)
        if twin is None:
            return
        device, files = twin.manifest.device, _other_files(artefact, twin)
    except LoopscopeError as error:
        reason = str(error)
    if files or reason:
        yield Difference(manifest.kind, artefact.key, files, manifest.device, other.root, device, reason)


def _other_files(one: Artefact, two: Artefact) -> tuple[str, ...]:
    names = ({name.removesuffix(XZ) for name in each.manifest.files} for each in (one, two))
    every = sorted(set().union(*names))
    return tuple(name for name in every if not (one.has(name) and two.has(name) and _same(one, two, name)))


def _same(one: Artefact, two: Artefact, name: str) -> bool:
    promised = [(stored, each.manifest.files[stored].sha256) for each in (one, two) for stored in (each.stored(name),)]
    if len(set(promised)) == 1 or not any(stored.endswith(XZ) for stored, _ in promised):
        return len({sha for _, sha in promised}) == 1
    return len({hashlib.sha256(each.content(name)).digest() for each in (one, two)}) == 1


def in_short(found: Iterable[Difference]) -> list[str]:
    """A sentence for every kind, other store and two devices between which tensors differ, or cannot be compared.

    Other files differ in how long something took, which says nothing.
    """
    counts: Counter[str] = Counter()
    for each in found:
        if each.reason:
            counts[f"a {each.kind} cannot be compared with that of the same key in {each.other.name}"] += 1
        elif any(name.endswith(".safetensors") for name in each.files):
            here = f"a {each.kind} made here on {each.device} has other bits"
            counts[f"{here} than that of the same key in {each.other.name}, made on {each.other_device}"] += 1
    return [f"In {count:,} case{'s' if count > 1 else ''} {text}." for text, count in counts.items()]
