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

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

import loopscope
from loopscope.bounds import shown
from loopscope.errors import InputError, nearest
from loopscope.store.artefacts import BACKBONE
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Artefact, Store
from loopscope.studies.schema import (
    MOST,
    MOST_FITS,
    Layout,
    MisfitError,
    mapping,
    number,
    only,
    same_names,
    sha256,
    truth,
    whole,
    word,
)
from loopscope.studies.trained import TrainedModel

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
class ModelFacts:
    """What an analysis must know of the backbone besides its predictions; `fits` counts the fits of each target."""

    name: str
    key: str
    loops: int
    depth: int
    nodes: int
    heads: int
    fits: Mapping[str, int]

    @classmethod
    def of(cls, trained: TrainedModel) -> ModelFacts:
        """Those of a model at hand."""
        fits = {target: len(maps) for target, maps in sorted(trained.maps.items())}
        model = trained.model
        return cls(trained.name, trained.key, trained.loops, trained.depth, model.config.classes, model.heads, fits)


@dataclass(frozen=True)
class Record:
    """One experiment on one backbone.

    `settings` are the choices that decide what was measured (populations, a subset of graphs); `cost` is what it took:
    seconds, device, forward-equivalents; `notes` are what else is kept of the weights, such as how their maps learned.
    `key` is that of its artefact, once it is in a store.
    """

    experiment: str
    facts: ModelFacts
    predictions: Predictions
    settings: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    key: str = field(default="", compare=False)


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


def config_of(experiment: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a record's key, beside the artefacts it was measured on."""
    return {"experiment": experiment, "version": VERSION, "subject": name, "settings": dict(settings)}


def save(
    store: Store, record: Record, inputs: Mapping[str, str], device: torch.device | str = "cpu", kind: str = RECORD
) -> Artefact:
    """Write a record or a piece; `inputs` are the keys of the backbone and of the maps it was measured on.

    InputError, and nothing is written, for answers that cannot be packed.
    """
    config = config_of(record.experiment, record.facts.name, record.settings)
    with store.write(kind, config, dict(inputs), device) as draft:
        about = {"facts": asdict(record.facts), "cost": dict(record.cost), "notes": dict(record.notes)}
        draft.json(ABOUT, about | {"raw": record.raw})
        for where, found in record.predictions.items():
            stored = found if record.raw else {name: pack(nodes) for name, nodes in found.items()}
            draft.tensors(f"{where}{SUFFIX}", stored)
    return draft.artefact


LayoutOf = Callable[[Record], Layout]
"""What an experiment keeps, given what a record says of itself; a `MisfitError` where that cannot be."""


def load(artefact: Artefact, layout: LayoutOf | None = None) -> Record:
    """A stored record or piece, its files hashed, and all that it says of itself compared with what a record says.

    `layout` is that of its experiment (`layouts.LAYOUTS`): then its tensors are compared, too.  InputError for another
    kind, DamagedError, which names the file, for one that is not as written, of a newer version, or not what it says.
    """
    manifest = artefact.manifest
    if manifest.kind not in (RECORD, PIECE):
        raise InputError(f"{artefact.folder} is a {manifest.kind}, not a {RECORD}")
    with _fits(artefact.folder / MANIFEST):
        experiment, subject, settings = _config(manifest.config)
    about = artefact.json(ABOUT)
    with _fits(artefact.folder / ABOUT):
        facts, cost, notes, raw = _about(about)
        if facts.name != subject:
            raise MisfitError(f"facts of {subject!r}, as the manifest has it", repr(facts.name))
        _check_inputs(facts, notes, manifest.inputs)
    predictions: Predictions = {}
    for name in (name for name in manifest.files if name != ABOUT):
        with _fits(artefact.folder / name):
            if not name.endswith(SUFFIX):
                raise MisfitError(f"a file of tensors, {SUFFIX} behind its name", "another")
            predictions[name.removesuffix(SUFFIX)] = _tensors(artefact.tensors(name), raw)
    record = Record(experiment, facts, predictions, settings, cost, notes, raw, artefact.key)
    if layout is not None:
        _check_layout(artefact, record, layout)
    return record


@contextmanager
def _fits(path: Path) -> Iterator[None]:
    """Turn what does not fit in the block into damage of this file."""
    try:
        yield
    except MisfitError as error:
        raise damaged(path, error.expected, error.found) from None


def _config(config: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Experiment, subject and settings of a record of this version."""
    only(config, ("experiment", "version", "subject", "settings"), "what a record is made from")
    version = whole(config, "version", 1, 10**9)
    if version != VERSION:
        newer = ", written by a newer version of loopscope" if version > VERSION else ""
        raise MisfitError(f"a record of version {VERSION}", f"version {version}{newer}")
    return word(config, "experiment"), word(config, "subject"), mapping(config, "settings")


def _about(about: Any) -> tuple[ModelFacts, dict[str, Any], dict[str, Any], bool]:
    """ModelFacts, cost, notes and whether tensors are stored as they are."""
    names = ("facts", "cost", "notes", "raw")
    if not isinstance(about, dict) or about.keys() != {*names}:
        raise MisfitError("facts, cost, notes and raw of a record", "something else")
    facts, cost, notes = (mapping(about, name) for name in names[:3])
    known = [each.name for each in fields(ModelFacts)]
    if facts.keys() != {*known}:
        raise MisfitError(f"the facts {', '.join(known)}", ", ".join(facts) or "none")
    bounded = {name: whole(facts, name, *bounds) for name, bounds in MOST.items()}
    fits = mapping(facts, "fits")
    counts = {target: whole(fits, target, 0, MOST_FITS) for target in fits}
    only(cost, ("seconds", "device", "forwards", "plain"), "what a measurement cost")
    if cost:
        word(cost, "device")
    for name in ("seconds", "forwards", "plain") if cost else ():
        number(cost, name, None if name == "seconds" else 0.0)
    return (
        ModelFacts(word(facts, "name"), sha256(facts["key"], "key"), **bounded, fits=counts),
        cost,
        notes,
        truth(about, "raw"),
    )


def _check_inputs(facts: ModelFacts, notes: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """A record names what it was measured on twice: in its facts, and as the keys that its own is made from."""
    key = inputs.get(BACKBONE)
    if facts.key != key if key is not None else facts.key not in inputs.values():
        raise MisfitError("the key of what it was measured on, as the manifest has it", facts.key)
    match notes:
        case {"map": {"key": step}} if inputs.get("map", step) != step:
            raise MisfitError(f"notes on the map {inputs['map']}, as the manifest has it", shown(step))
    used = Counter(role.rpartition("-")[0] for role in inputs if role.rpartition("-")[2].isdigit())
    for target, fits in used.items():
        if facts.fits.get(target) != fits:
            raise MisfitError(f"{fits} fits of {target!r}, as the manifest has them", shown(facts.fits.get(target)))


def _tensors(stored: Mapping[str, Tensor], raw: bool) -> dict[str, Tensor]:
    """The tensors of a population; answers are two to a byte."""
    if not stored:
        raise MisfitError("tensors", "none")
    for name, packed in stored.items() if not raw else ():
        if packed.dtype != torch.uint8 or packed.dim() < 1:
            shape = f"{packed.dtype} of shape {list(packed.shape)}"
            raise MisfitError(f"{name!r} as uint8, two nodes to a byte", shape)
    return {name: each if raw else unpack(each) for name, each in stored.items()}


def _check_layout(artefact: Artefact, record: Record, layout: LayoutOf) -> None:
    with _fits(artefact.folder / MANIFEST):
        expected = layout(record)
        same_names("tensors of", expected, record.predictions)
    for where, tensors in expected.items():
        with _fits(artefact.folder / f"{where}{SUFFIX}"):
            same_names("tensor", tensors, record.predictions[where])
            for name, kept in tensors.items():
                kept.check(name, record.predictions[where][name])


def apart(records: Mapping[str, Record]) -> tuple[dict[str, Predictions], dict[str, ModelFacts]]:
    """What was measured and on what, as analyses of several backbones take them."""
    return (
        {name: record.predictions for name, record in records.items()},
        {name: record.facts for name, record in records.items()},
    )


def check_measured(found: Mapping[str, Predictions], facts: Mapping[str, ModelFacts], where: str) -> None:
    """InputError for a backbone without facts, or that was not measured on a population."""
    for name in found:
        if name not in facts:
            raise InputError(f"no facts of {name!r} among {', '.join(facts) or 'none'}{nearest(name, facts)}")
        if where not in found[name]:
            raise InputError(f"{name} was not measured on {where!r}{nearest(where, found[name])}")


RESULTS = ("graph-walks", "language-models")
"""The stores of records in `results/` of a checkout; language models have one of their own."""


def open_results(folder: Path | None = None) -> list[Store]:
    """The store of records at `folder`, or those that come with a checkout; none where there is no checkout.

    InputError for a folder that does not exist, DamagedError for a checkout that lacks one of its stores.
    """
    if folder is not None:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        return [Store(folder)]
    checkout = Path(loopscope.__file__).absolute().parent.parent
    for name in RESULTS if (checkout / "pyproject.toml").is_file() else ():
        if not (checkout / "results" / name).is_dir():
            raise damaged(checkout / "results" / name, "the records that come with a checkout", "no folder")
    return [Store(checkout / "results" / name) for name in RESULTS if (checkout / "results" / name).is_dir()]


def records(
    store: Store,
    experiment: str | None = None,
    layouts: Mapping[str, LayoutOf] | None = None,
    besides: Collection[str] = (),
) -> list[Record]:
    """Every record of a store (of one experiment) besides those with these keys, by name of the backbone.

    `layouts` are those of all experiments that there are: then each record is compared with that of its own, and one of
    no such experiment is damage.  DamagedError for the first that cannot be read: a verdict without it would be another
    one.
    """
    made = []
    for each in store.every(RECORD):
        name = each.manifest.config.get("experiment")
        if experiment in (None, name) and each.key not in besides:
            layout = None if layouts is None else layouts.get(str(name))
            if layouts is not None and layout is None:
                raise damaged(each.folder / MANIFEST, f"an experiment among {', '.join(layouts)}", shown(name))
            made.append(load(each, layout))
    return sorted(made, key=lambda record: (record.experiment, record.facts.name))


def copy_records(store: Store, results: Store) -> int:
    """Copy all records of a store to another; how many there are.

    InputError for none; DamagedError, and nothing is copied, where one cannot be read.
    """
    there = store.every(RECORD)
    if not there:
        raise InputError(f"{store.root} has no records to export")
    for artefact in there:
        load(artefact)
    for artefact in there:
        results.adopt(artefact)
    return len(there)
