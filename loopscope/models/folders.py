"""Released checkpoints: a folder with `config.json` and safetensors, loaded as it is.

    model = load("Ouro-2.6B", device="cuda", dtype=torch.bfloat16)
    model = load("Qwen3-8B", loops=8)
    model = load("smollm2-135m", boundary="norm")

The weights are `model.safetensors`, or the shards that `model.safetensors.index.json` lists.  Nothing in the folder is
executed and no pickle is opened.  Names and shapes are compared with the config before the first weight is read.

A folder written by fine-tuning also has `loopscope.json`, which says with how many loops and which boundary it was
trained, and which of its layers were looped if not all; those are then the defaults.  Other programs take it for what
it is without: an ordinary checkpoint.

A folder that Loopscope wrote lists the SHA-256 of its files in `SHA256SUMS` (`sums`): a file that was changed, removed
or added since is a DamagedError.

A folder that is whole but not what was asked for (another architecture, no weights, weights that disagree with the
config) is an InputError; a file that cannot be read, or is not what the index says, a DamagedError.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from loopscope import bounds
from loopscope.bounds import shown
from loopscope.errors import InputError, nearest
from loopscope.finite import has_bad
from loopscope.models.adapter import Adapter as Adapter
from loopscope.models.checksums import check_files, sha256, write_sums
from loopscope.models.hrm_text import hrm_text_from_config
from loopscope.models.hrm_text import told_by_weights as hrm_text_told
from loopscope.models.loop_layers import LoopLayers
from loopscope.models.nanbeige import nanbeige_from_config
from loopscope.models.ouro import ouro_from_config
from loopscope.models.parcae import parcae_from_config
from loopscope.models.parcae import told_by_weights as parcae_told
from loopscope.models.passes import Boundary
from loopscope.models.raven import raven_from_config
from loopscope.models.raven import told_by_weights as raven_told
from loopscope.models.stack_families import FAMILIES
from loopscope.models.stacks import LOOPS as LOOPS
from loopscope.models.stacks import stack_from_config
from loopscope.models.trm import trm_from_config
from loopscope.protocol import STATES
from loopscope.store.files import damaged, first_line, new_folder, opened, reporting, write_synced
from loopscope.store.manifest import HEADER_LIMIT, check_file_name, digest, read_json

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LOOPED = "loopscope.json"
"""How a folder that was fine-tuned is looped: `loops`, `boundary` and perhaps `loop`, beside how it came about."""
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

TABLE = 0.02
"""How far a table that follows from a config may be from it: more than it is rounded in half precision."""

ADAPTERS: dict[str, Callable[[Mapping[str, Any], int | None, Boundary | None], Adapter]] = {
    "ouro": ouro_from_config,
    "nanbeige": nanbeige_from_config,
    **dict.fromkeys(FAMILIES, stack_from_config),
    "huginn_raven": raven_from_config,
    "parcae": parcae_from_config,
    "trm": trm_from_config,
    "hrm": trm_from_config,
    "hrm_text": hrm_text_from_config,
}
"""What builds the model of a config (with loops and boundary where they are given), by the config's `model_type`."""

TOLD: dict[str, Callable[[Mapping[str, Any], Iterable[str]], Mapping[str, Any]]] = {
    "huginn_raven": raven_told,
    "parcae": parcae_told,
    "hrm_text": hrm_text_told,
}
"""For model types whose config does not tell all: what adds to it the rest, from the names of the folder's tensors."""

CLASS_NAMES = {("_class_name", "ParcaeConfig"): "parcae", ("model_class_name", "Parcae"): "parcae"}
"""Model types of configs that have none, by a key that names a class in its place."""


@dataclass(frozen=True)
class Stored:
    """Where a tensor is, and its shape according to that file."""

    file: Path
    shape: tuple[int, ...]


def load(
    folder: str | Path,
    *,
    loops: int | None = None,
    boundary: Boundary | None = None,
    loop: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
) -> Adapter:
    """The model in a released folder, on this device, in this dtype (default: that of the files), in eval mode.

    - `loops` is the number of calls that a run makes by default: that of the folder's `loopscope.json`, else that of a
      model which was made for loops, and 4 for any other.
    - `boundary` says what ends a call: "norm" for Ouro; for a pretrained stack "none" or "norm" (default: that of
      `loopscope.json`, else "none").
    - `loop` says which layers of a pretrained stack are looped, "11-20": those before are the prelude, those after the
      coda (default: those of `loopscope.json`, else all).

    Raises InputError or DamagedError as the module says; the message names the file or key, what was expected and
    what was found.
    """
    folder = Path(folder)
    model = outline(folder, loops=loops, boundary=boundary, loop=loop)
    check_unchanged(folder)
    stored = tensors_of(model, folder)
    copies = {name: original for name, original in model.copies.items() if name in stored}
    tensors: dict[str, Tensor] = {}
    for file in dict.fromkeys(place.file for place in stored.values()):
        with _opened(file) as content:
            for name in content.keys():  # noqa: SIM118  (an open file is no dict)
                if (own := model.own_name(name)) is not None:
                    # A copy: what safetensors gives is the file itself, mapped into memory.
                    tensors[own] = _cast(file, name, content.get_tensor(name), device, dtype)
    for name in [name for name in tensors if name in model.tables]:
        if not torch.allclose(tensors.pop(name).cpu().float(), model.table(name), rtol=0, atol=TABLE):
            raise InputError(f"{stored[name].file}: {name} is not what {CONFIG} says, by which it is worked out here")
    kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    if len(kinds) > 1:
        raise InputError(f"{folder} holds weights of several types, {' and '.join(kinds)}; choose one with dtype")
    for name, original in copies.items():
        if not torch.equal(tensors.pop(name), tensors[original]):
            raise InputError(f"{stored[name].file}: {name} is not {original}, though {CONFIG} says that they are tied")
    model.load_state_dict(tensors, assign=True)
    return model.to(device).eval()  # what is in no file, too: rotary frequencies


def outline(
    folder: str | Path, *, loops: int | None = None, boundary: Boundary | None = None, loop: str | None = None
) -> Adapter:
    """The model in a folder on the meta device: names and shapes without weights; arguments and errors as `load`."""
    folder = Path(folder)
    check_files(folder, (CONFIG, LOOPED))
    looped, config = read_looped(folder), read_config(folder)
    if complete := TOLD.get(str(config.get("model_type"))):
        names = find_tensors(folder)
        with _about(folder / CONFIG):
            config = {**complete(config, names)}
    return build(
        config,
        folder / CONFIG,
        loops=looped.get("loops") if loops is None else loops,
        boundary=looped.get("boundary") if boundary is None else boundary,
        loop=looped.get("loop") if loop is None else loop,
    )


def tensors_of(model: Adapter, folder: Path) -> dict[str, Stored]:
    """Where in a folder the tensors of its model are, by the model's names; headers are read, it may be an outline.

    InputError unless they are exactly the model's, in its shapes, perhaps with copies, tables and tensors that nothing
    reads; else as `find_tensors`.
    """
    stored: dict[str, Stored] = {}
    for name, place in find_tensors(folder).items():
        own = model.own_name(name)
        if own in stored:
            raise InputError(f"{folder} has {own} under two names, {name} among them")
        if own is not None:
            stored[own] = place
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    copies = {name: shapes[original] for name, original in model.copies.items() if name in stored}
    tables = {name: shape for name, shape in model.tables.items() if name in stored}
    _compare(folder, shapes | copies | tables, stored)
    return stored


def read_looped(folder: str | Path) -> dict[str, Any]:
    """What a folder's `loopscope.json` says, {} where there is none.

    DamagedError if its loops, its boundary or the layers that are looped are none.
    """
    file = Path(folder) / LOOPED
    if not os.path.lexists(file):
        return {}
    looped = read_json(file)
    loops, boundary, loop = looped.get("loops"), looped.get("boundary"), looped.get("loop")
    if type(loops) is not int or not 1 <= loops <= bounds.LOOPS or boundary not in get_args(Boundary):
        raise damaged(file, "a number of loops and a boundary", f"{loops!r} and {boundary!r}"[:60])
    try:
        if loop is not None:
            LoopLayers.parse(loop)
    except InputError:
        raise damaged(file, "which layers are looped", repr(loop)[:60]) from None
    return looped


def weight_files(folder: str | Path) -> tuple[Path, ...]:
    """The files that hold a folder's weights, by name; errors as `find_tensors`."""
    return tuple(sorted({place.file for place in find_tensors(Path(folder)).values()}))


def check_unchanged(folder: Path) -> None:
    """DamagedError where a file of a folder that Loopscope wrote is not what it was; every listed file is hashed."""
    check_files(folder, (CONFIG, LOOPED, SINGLE, INDEX), every=True)


def weights_sha256(folder: str | Path) -> str:
    """What tells a folder's weights from others: the SHA-256 of the one file, or of its shards' names and SHA-256s."""
    hashes = [(file.name, sha256(file)) for file in weight_files(folder)]
    return hashes[0][1] if len(hashes) == 1 else digest(hashes)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The settings in a folder's `config.json`, a `model_type` among them where it is known by another name.

    InputError without one, DamagedError if it is no JSON object."""
    file = Path(folder) / CONFIG
    if not file.is_file():
        missing = f"it has no {CONFIG}" if file.parent.is_dir() else "there is no such folder"
        raise InputError(f"{folder} is no checkpoint: {missing}")
    config = read_json(file)
    kind = next((kind for (key, name), kind in CLASS_NAMES.items() if config.get(key) == name), None)
    return config if kind is None else {"model_type": kind, **config}


def build(
    config: Mapping[str, Any],
    name: str | Path = CONFIG,
    *,
    loops: int | None = None,
    boundary: Boundary | None = None,
    loop: str | None = None,
) -> Adapter:
    """The model that a config describes, on the meta device: names and shapes, no memory.

    InputError for an unknown architecture or a setting that does not fit; `name` is the file named in it.
    """
    if loops is not None:
        bounds.whole("loops", loops, 1, bounds.LOOPS)
    kind = str(config.get("model_type", ""))
    if kind not in ADAPTERS:
        what, near = (
            (f"model_type {shown(kind)} is unknown", nearest(kind, ADAPTERS)) if kind else ("no model_type", "")
        )
        raise InputError(f"{name}: {what}; there are: {', '.join(ADAPTERS)}{near}")
    with _about(name):
        with torch.device("meta"):
            model = ADAPTERS[kind](config, loops, boundary)
        if loop is not None:
            model.choose_loop(loop)
        return model


@contextmanager
def _about(name: str | Path) -> Iterator[None]:
    """What is wrong inside is said of this file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def find_tensors(folder: Path) -> dict[str, Stored]:
    """File and shape of every tensor in a folder, by the tensor's name; only headers are read.

    InputError if there are no safetensors, DamagedError for a file that is not safetensors and an index that lists
    what is not there.
    """
    if (folder / SINGLE).is_file():
        return _header(folder / SINGLE)
    index = folder / INDEX
    if not index.is_file():
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
        if pickles:
            raise InputError(
                f"{folder} has only pickled weights, {pickles[0]}, which are never opened unasked; "
                f"loopscope lm convert {folder} --out FOLDER writes them as {SINGLE}"
            )
        raise InputError(f"{folder} has no weights: neither {SINGLE} nor {INDEX}")
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise damaged(index, "a weight_map", repr(listed)[:60])
    shards: dict[str, set[str]] = {}
    for name, shard in listed.items():
        try:
            check_file_name(shard)
        except InputError:
            raise damaged(index, "names of files beside it", repr(shard)[:60]) from None
        shards.setdefault(shard, set()).add(name)
    stored: dict[str, Stored] = {}
    for shard, names in shards.items():
        found = _header(folder / shard)
        if missing := names - set(found):
            raise damaged(folder / shard, f"{min(missing)}, which {INDEX} places there", "no such tensor")
        if extra := set(found) - names:
            raise damaged(folder / shard, f"what {INDEX} places there", f"{min(extra)} as well")
        stored |= found
    return stored


def _compare(folder: Path, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]) -> None:
    """InputError unless the folder has exactly the model's tensors, in its shapes."""
    missing, extra = [n for n in shapes if n not in stored], [n for n in stored if n not in shapes]
    counts = f"expected {len(shapes)} tensors, found {len(stored)}"
    if missing:
        raise InputError(f"{folder} lacks {missing[0]}: {counts}, {len(missing)} of the expected missing")
    if extra:
        close = nearest(extra[0], shapes)
        raise InputError(f"{folder} has {extra[0]}, which the model has not: {counts}, {len(extra)} unknown{close}")
    for name, shape in shapes.items():
        if stored[name].shape != shape:
            found = list(stored[name].shape)
            raise InputError(f"{stored[name].file}: {name} has shape {found}, but {CONFIG} says {list(shape)}")


def _header(file: Path) -> dict[str, Stored]:
    """The tensors that a safetensors file names; one named twice, which safetensors lets pass, is refused."""
    with _opened(file) as content:
        stored = {name: Stored(file, tuple(content.get_slice(name).get_shape())) for name in content.keys()}  # noqa: SIM118
    with reporting("read", file), file.open("rb") as raw:
        header = raw.read(int.from_bytes(raw.read(8), "little"))
    counts: Counter[str] = Counter()
    json.loads(header, object_pairs_hook=lambda pairs: counts.update(name for name, _ in pairs if name in stored))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise damaged(file, "every tensor once", f"{twice[0]} twice")
    return stored


def _opened(file: Path) -> Any:
    """An open safetensors file, as a context; what cannot be one is refused before it is mapped into memory."""
    with opened(file) as raw:
        length, size = int.from_bytes(raw.read(8), "little"), os.fstat(raw.fileno()).st_size
    if not 2 <= length <= min(HEADER_LIMIT, size - 8):
        raise damaged(file, "a safetensors file", f"{size:,} bytes with a header of {length:,}")
    try:
        return safe_open(file, "pt")
    except (OSError, SafetensorError) as error:
        raise damaged(file, "a safetensors file", first_line(error)) from None


def _cast(file: Path, name: str, tensor: Tensor, device: str | torch.device, dtype: torch.dtype | None) -> Tensor:
    """A copy of a tensor on a device, in a type; finite before and after, as a large number may be none in there."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype not in STATES:
        there = ", ".join(str(each).removeprefix("torch.") for each in STATES)
        raise InputError(f"{file}: {name} is of type {kind}, not of a floating point type that is computed in: {there}")
    if has_bad(tensor):
        raise damaged(file, f"finite numbers in {name}", "NaN or infinity")
    cast = tensor.to(device=device, dtype=dtype or tensor.dtype, copy=True)
    if cast.dtype != tensor.dtype and has_bad(cast):
        size, wanted = float(tensor.abs().amax()), str(cast.dtype).removeprefix("torch.")
        raise InputError(f"{file}: {name} holds {size:.3g} as {kind}, which {wanted} has not")
    return cast


def write_folder(
    out: Path, weights: Mapping[str, Tensor], texts: Mapping[str, Mapping[str, Any]], others: Iterable[Path]
) -> str:
    """A model folder with these weights, JSON files by name and copies of other files, whole or not at all.

    Its files are listed in `SHA256SUMS`.  Gives the SHA-256 of the weights.  StoreError where the disk refuses.
    """
    with new_folder(out) as draft:
        return fill_folder(draft, weights, texts, others)


def fill_folder(
    draft: Path, weights: Mapping[str, Tensor], texts: Mapping[str, Mapping[str, Any]], others: Iterable[Path]
) -> str:
    """As `write_folder`, into a folder that is to become `out` (`files.new_folder`); OSError where the disk refuses."""
    for file in others:
        with reporting("copy", file):
            write_synced(draft / file.name, file.read_bytes())
    for name, values in texts.items():
        write_synced(draft / name, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    try:
        save_file(tensors, draft / SINGLE, {"format": "pt"})
    except SafetensorError as error:  # of a full disk, too
        raise OSError(first_line(error)) from error  # which `new_folder` tells
    (draft / SINGLE).chmod(0o644)  # which safetensors makes for its owner alone
    with (draft / SINGLE).open("rb") as written:
        os.fsync(written.fileno())
    return write_sums(draft)[SINGLE]
