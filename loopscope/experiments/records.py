"""Records: what an experiment measured on one backbone, example by example, and the tables that follow from it.

An experiment has two halves.  Measuring needs the model and yields predictions, node by node; everything else (rates,
intervals, tables, figures, claims) is computed from predictions alone, so a stored record can be judged again at any
time, by anybody, without weights.

In a store a record is an artefact of kind `record`: `record.json` and one compressed safetensors file per population,
two nodes to a byte.  Populations are regenerated from their recipes, so a record holds no graphs.  Where single answers
would be too many, a record holds counts; these are stored as they are (`raw`).  Of a record that takes long, each piece
is kept in the same form, as an artefact of kind `piece`, so that an interrupted measurement loses one piece at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

import loopscope
from loopscope.errors import InputError, nearest
from loopscope.experiments.subject import Subject
from loopscope.files import damaged
from loopscope.stats import Estimate
from loopscope.store import Artefact, Store

RECORD, PIECE = "record", "piece"
ABOUT = "record.json"
VERSION = 2
SUFFIX = ".safetensors.xz"

Predictions = dict[str, dict[str, Tensor]]
"""By population and name: the node answered by every instance, uint8 [..., instances], all starts of all graphs.
Those of a raw record are counts or whatever else its experiment makes of answers."""


def percent(share: float) -> str:
    """A share as it is told: per cent with one decimal, and never -0.0."""
    return f"{round(100 * share, 1) + 0.0:.1f}"


@dataclass(frozen=True)
class Row:
    """One number: a share of `n` instances with its interval, beside the published one (both in [0, 1])."""

    name: str
    estimate: Estimate
    n: int
    paper: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows that belong together; `note` says what was counted and what was resampled."""

    title: str
    rows: list[Row]
    note: str = ""

    def under(self, name: str) -> Table:
        """The same, with the name of a backbone before its title."""
        return replace(self, title=f"{name}: {self.title}")


@dataclass(frozen=True)
class Facts:
    """What an analysis must know of the backbone besides its predictions; `fits` counts the fits of each target."""

    name: str
    key: str
    loops: int
    depth: int
    nodes: int
    heads: int
    fits: Mapping[str, int]

    @classmethod
    def of(cls, subject: Subject) -> Facts:
        """Those of a subject at hand."""
        fits = {target: len(maps) for target, maps in sorted(subject.maps.items())}
        model = subject.model
        return cls(subject.name, subject.key, subject.loops, subject.depth, model.config.classes, model.heads, fits)


@dataclass(frozen=True)
class Record:
    """One experiment on one backbone.

    `settings` are the choices that decide what was measured (populations, a subset of graphs); `cost` is what it took:
    seconds, device, forward-equivalents; `notes` are what else is kept of the weights, such as how their maps learned.
    """

    experiment: str
    facts: Facts
    predictions: Predictions
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False


def pack(nodes: UInt8[Tensor, "*lead n"]) -> UInt8[Tensor, "*lead half"]:
    """Two nodes to a byte; nodes must be below 16 and n even."""
    if nodes.dtype != torch.uint8 or nodes.shape[-1] % 2 or (nodes.numel() and int(nodes.max()) > 15):
        raise InputError("only an even number of nodes below 16, as uint8, can be packed")
    return nodes[..., ::2] << 4 | nodes[..., 1::2]


def unpack(packed: UInt8[Tensor, "*lead half"]) -> UInt8[Tensor, "*lead n"]:
    """What `pack` was given."""
    return torch.stack([packed >> 4, packed & 15], -1).flatten(-2)


def in_words(device: torch.device) -> str:
    """A device as the cost of a record names it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def config_of(experiment: str, subject: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a record's key, beside the artefacts it was measured on."""
    return {"experiment": experiment, "version": VERSION, "subject": subject, "settings": dict(settings)}


def save(
    store: Store, record: Record, inputs: Mapping[str, str], device: torch.device | str = "cpu", kind: str = RECORD
) -> Artefact:
    """Write a record or a piece; `inputs` are the keys of the backbone and of the maps it was measured on."""
    config = config_of(record.experiment, record.facts.name, record.settings)
    with store.write(kind, config, dict(inputs), device) as draft:
        about = {"facts": asdict(record.facts), "cost": dict(record.cost), "notes": dict(record.notes)}
        draft.json(ABOUT, about | {"raw": record.raw})
        for where, found in record.predictions.items():
            stored = found if record.raw else {name: pack(nodes) for name, nodes in found.items()}
            draft.tensors(f"{where}{SUFFIX}", stored)
    return draft.artefact


def load(artefact: Artefact) -> Record:
    """A stored record or piece, its files hashed.

    InputError for another kind, DamagedError for one that is not as written.
    """
    manifest = artefact.manifest
    if manifest.kind not in (RECORD, PIECE):
        raise InputError(f"{artefact.folder} is a {manifest.kind}, not a {RECORD}")
    match artefact.json(ABOUT), manifest.config:
        case (
            {"facts": dict(facts), "cost": dict(cost), "notes": dict(notes), "raw": bool(raw)},
            {"experiment": str(experiment), "settings": dict(settings)},
        ):
            pass
        case _:
            raise damaged(artefact.folder / ABOUT, "facts, cost, notes and raw of a record", "something else")
    try:
        known = Facts(**facts)
    except TypeError:
        names = ", ".join(each.name for each in fields(Facts))
        raise damaged(artefact.folder / ABOUT, f"the facts {names}", ", ".join(facts) or "none") from None
    files = [name for name in manifest.files if name.endswith(SUFFIX)]
    predictions = {
        name.removesuffix(SUFFIX): {
            each: nodes if raw else unpack(nodes) for each, nodes in artefact.tensors(name).items()
        }
        for name in files
    }
    return Record(experiment, known, predictions, settings, cost, notes, raw)


def apart(records: Mapping[str, Record]) -> tuple[dict[str, Predictions], dict[str, Facts]]:
    """What was measured and on what, as analyses of several backbones take them."""
    return (
        {name: record.predictions for name, record in records.items()},
        {name: record.facts for name, record in records.items()},
    )


def check_measured(found: Mapping[str, Predictions], facts: Mapping[str, Facts], where: str) -> None:
    """InputError for a backbone without facts, or that was not measured on a population."""
    for name in found:
        if name not in facts:
            raise InputError(f"no facts of {name!r} among {', '.join(facts) or 'none'}{nearest(name, facts)}")
        if where not in found[name]:
            raise InputError(f"{name} was not measured on {where!r}{nearest(where, found[name])}")


RESULTS = ("graph-walks", "language-models")
"""The stores of records in `results/` of a checkout; language models have one of their own."""


def open_results(folder: Path | None = None) -> list[Store]:
    """The store of records at `folder`, or those that come with a checkout, as far as they are there.

    InputError for a folder that does not exist.
    """
    if folder is not None:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        return [Store(folder)]
    shipped = Path(loopscope.__file__).absolute().parent.parent / "results"
    return [Store(shipped / name) for name in RESULTS if (shipped / name).is_dir()]


def records(store: Store, experiment: str | None = None) -> list[Record]:
    """Every record of a store (of one experiment), by name of the backbone.

    DamagedError for the first that cannot be read: a verdict without it would be another one.
    """
    found = [each for each in store.every(RECORD) if experiment in (None, each.manifest.config.get("experiment"))]
    return sorted(map(load, found), key=lambda record: (record.experiment, record.facts.name))


def copy_records(store: Store, results: Store) -> int:
    """Copy all records of a store to another; how many there are.  InputError for none."""
    there = store.all(RECORD)
    if not there:
        raise InputError(f"{store.root} has no records to export")
    for artefact in there:
        results.adopt(artefact)
    return len(there)
