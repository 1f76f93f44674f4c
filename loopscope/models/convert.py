"""Pickled checkpoints written as safetensors, once and on request: the one place that ever opens a pickle.

    convert(Path("parcae-140m"), Path("parcae"))      a folder with pytorch_model.bin, or with shards and their index
    convert(Path("step_21000.pt"), Path("trm"))       a file, with the JSON and tokenizer files that lie beside it

A pickle is a program.  It is read by `torch.load` with `weights_only`, which runs a small list of harmless instructions
and refuses any other; what is read is what was hashed.  What comes out is a model folder: `model.safetensors` with the
tensors as they are, the JSON and tokenizer files, `source.json` with the SHA-256 of every source, and `SHA256SUMS`.  It
appears whole or not at all.

Three things are changed, and told.  Of a training state (`{"model": ..., "optimizer": ...}`) the model alone is taken.
A prefix that wrappers put before every name (`module.`, `_orig_mod.`) is cut off.  Tensors that share memory, such as a
tied head, are written one by one, under every name: safetensors knows no sharing.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from hashlib import file_digest
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from loopscope.errors import InputError
from loopscope.models.checksums import SUMS
from loopscope.models.folders import INDEX, PICKLES, SINGLE, write_folder
from loopscope.models.hub import TEXTS, check_links, origin_of, snapshot_of
from loopscope.models.text import TOKENIZER_LIMIT
from loopscope.store.files import damaged, first_line, names_in, opened
from loopscope.store.manifest import MANIFEST, check_file_name, read_json
from loopscope.store.outputs import check_folder, parent_of

SOURCE = "source.json"
"""In the folder that is written: what it was made from and what was changed."""

SHARDS = "pytorch_model.bin.index.json"
WHOLE = "pytorch_model.bin"
NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""How the names of pickles begin that trainers write beside the weights."""

STATES = ("model", "state_dict", "model_state_dict")
"""Where in the state of a training its model is."""
DEEPEST = 3
"""Of such states in each other; a pickle may hold itself."""
PREFIXES = ("_orig_mod.", "module.")
"""What torch.compile and data-parallel wrappers put before every name."""

WRITTEN = frozenset({
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
})  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A file that was read."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Converted:
    """What was read, what was changed and what was written.

    `taken` is the path to the model in a training's state, `left` what else was there; `prefix` was before every name.
    `tensors` are the names, types and shapes as written; `shared` names those that shared memory with an earlier one;
    `copied` are the files beside the weights.  `sha256` is that of the weights.
    """

    sources: tuple[Source, ...]
    taken: tuple[str, ...]
    left: tuple[str, ...]
    prefix: str
    tensors: Mapping[str, tuple[str, tuple[int, ...]]]
    shared: Mapping[str, str]
    bytes: int
    copied: tuple[str, ...]
    sha256: str

    @property
    def dtypes(self) -> dict[str, int]:
        """How many tensors there are of each type."""
        return dict(Counter(dtype for dtype, _ in self.tensors.values()))


def convert(source: Path, out: Path) -> Converted:
    """Write the pickled checkpoint in a file or folder as the model folder `out`; the memory must hold it.

    InputError where there is none or several, where the pickle holds anything but tensors in the form of a state, and
    where `out` exists; DamagedError for a file that is no checkpoint or not what an index says.
    """
    parent_of(out)
    check_folder(out)
    folder = source if source.is_dir() else source.parent
    if snapshot_of(folder) is not None:
        check_links(folder)
    state: dict[str, Tensor] = {}
    sources: list[Source] = []
    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    for file, listed in _pickles(source).items():
        content, about = _loaded(file)
        found, taken, left = _state(content, file)
        _check_tensors(found, file, about.bytes)
        if listed is not None and (wrong := listed ^ found.keys()):
            name = min(wrong)
            raise damaged(file, f"what {SHARDS} places there", f"{name} as well" if name in found else f"no {name}")
        state |= found
        sources.append(about)
    prefix = _prefix(state)
    named = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    shared = _shared(named)
    weights = {name: _alone(tensor, name in shared) for name, tensor in named.items()}
    others = _beside(folder)
    notes = {
        "files": [asdict(each) for each in sources], "taken": ".".join(taken), "prefix": prefix, "shared": shared,
        **origin_of(folder),
    }  # fmt: skip
    made = write_folder(out, weights, {SOURCE: notes}, others)
    return Converted(
        tuple(sources), taken, left, prefix,
        {name: (str(each.dtype).removeprefix("torch."), tuple(each.shape)) for name, each in weights.items()},
        shared, (out / SINGLE).stat().st_size, tuple(file.name for file in others), made,
    )  # fmt: skip


# ---- files -----------------------------------------------------------------------------------------------------------


def _pickles(source: Path) -> dict[Path, set[str] | None]:
    """The files that a checkpoint is in, with the names of the tensors in each where an index lists them.

    InputError where there is none, or where it cannot be told which.
    """
    if not source.is_dir():
        if not os.path.lexists(source):
            raise InputError(f"{source} is no checkpoint: there is no such file or folder")
        if source.suffix == ".safetensors":
            raise InputError(f"{source} is safetensors already; there is nothing to convert")
        return {source: None}
    names = names_in(source)
    if SINGLE in names or INDEX in names:
        raise InputError(f"{source} has its weights as safetensors already; there is nothing to convert")
    if WHOLE in names:
        return {source / WHOLE: None}
    if SHARDS in names:
        return _shards(source)
    found = [name for name in names if name.endswith(PICKLES) and not name.startswith(NO_WEIGHTS)]
    if len(found) > 1:
        raise InputError(f"{source} has several pickled files, {', '.join(found[:6])}; give the one with the weights")
    if not found:
        raise InputError(f"{source} has no pickled weights: neither {WHOLE} nor another file in {', '.join(PICKLES)}")
    return {source / found[0]: None}


def _shards(folder: Path) -> dict[Path, set[str] | None]:
    """The files that an index lists, with the names in each; DamagedError for an index that lists none."""
    listed = read_json(folder / SHARDS).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise damaged(folder / SHARDS, "a weight_map", repr(listed)[:60])
    found: dict[str, set[str]] = {}
    for name, shard in listed.items():
        try:
            found.setdefault(check_file_name(shard), set()).add(name)
        except InputError:
            raise damaged(folder / SHARDS, "names of files beside it", repr(shard)[:60]) from None
    return {folder / shard: found[shard] for shard in sorted(found)}


def _beside(folder: Path) -> list[Path]:
    """The JSON and tokenizer files of a folder, but for what lists the files of it; DamagedError for endless ones."""
    lists = (SHARDS, INDEX, SUMS, MANIFEST, SOURCE)
    found = [folder / name for name in names_in(folder) if any(fnmatchcase(name, pattern) for pattern in TEXTS)]
    found = [file for file in found if file.name not in lists and not file.is_dir()]
    for file in found:
        with opened(file, limit=TOKENIZER_LIMIT):
            pass
    return found


# ---- what is in them -------------------------------------------------------------------------------------------------


def _loaded(file: Path) -> tuple[object, Source]:
    """The content of a pickled file, made of tensors, numbers, texts, lists and the like alone."""
    with opened(file) as raw, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old forms of pickles, which are read or refused below
        sha256 = file_digest(raw, "sha256").hexdigest()
        size = raw.tell()
        raw.seek(0)
        try:
            content = torch.load(raw, map_location="cpu", weights_only=True)
        except MemoryError:
            raise
        except UnpicklingError as error:
            raise InputError(_refusal(file, error)) from None
        except Exception as error:  # torch raises whatever a broken file leads to
            raise damaged(file, "a checkpoint that torch has saved", first_line(error)[:160]) from None
    return content, Source(file.name, size, sha256)


def _refusal(file: Path, error: UnpicklingError) -> str:
    """What in a pickle is no data, in a line, from torch's page."""
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"it asks for {named[1][:80]}" if named else first_line(error)[:160]
    return f"{file} holds more than tensors, numbers and texts, and nothing else is loaded: {what}"


def _state(content: object, file: Path) -> tuple[dict[str, Tensor], tuple[str, ...], tuple[str, ...]]:
    """The tensors of a model by name, the path to them, and what lies beside that; InputError where there are none."""
    taken: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    while isinstance(content, Mapping) and not any(isinstance(each, Tensor) for each in content.values()):
        inner = [name for name in STATES if isinstance(content.get(name), Mapping)]
        if len(inner) != 1 or len(taken) == DEEPEST:
            has = ", ".join(str(name)[:40] for name in list(content)[:6]) or "nothing"
            raise InputError(f"{file}: tensors by name, or one of {', '.join(STATES)}, are needed; it has {has}")
        taken, left = (*taken, inner[0]), (*left, *(str(name) for name in content if name != inner[0]))
        content = content[inner[0]]
    if not isinstance(content, Mapping):
        raise InputError(f"{file}: tensors by name are needed; it holds a {type(content).__name__}")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InputError(f"{file}: {name!r:.60} is a {type(tensor).__name__}, not a tensor with a name")
    return dict(content), taken, left


def _check_tensors(state: Mapping[str, Tensor], file: Path, size: int) -> None:
    """InputError for tensors that cannot be written, DamagedError for those that are larger than their file."""
    for name, tensor in state.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        dense = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_meta
        if not dense or tensor.dtype not in WRITTEN:
            what = f"{type(tensor).__name__} of {kind}"
            raise InputError(f"{file}: {name} is {what}, no dense tensor that can be written")
        if tensor.numel() * tensor.element_size() > size:
            raise damaged(file, f"{name} in {size:,} bytes", f"shape {list(tensor.shape)} of {kind}")


def _prefix(state: Mapping[str, Any]) -> str:
    """What wrappers put before every name: one prefix, or several after each other."""
    found = ""
    while put := next((each for each in PREFIXES if all(name.startswith(found + each) for name in state)), ""):
        found += put
    return found


def _shared(state: Mapping[str, Tensor]) -> dict[str, str]:
    """The tensors that lie in the memory of an earlier one, and which that is."""
    first: dict[int, str] = {}
    places = {name: tensor.untyped_storage().data_ptr() for name, tensor in state.items() if tensor.numel()}
    return {name: first[place] for name, place in places.items() if first.setdefault(place, name) != name}


def _alone(tensor: Tensor, shared: bool) -> Tensor:
    """The tensor in memory of its own."""
    plain = tensor.detach().contiguous()
    own = not shared and plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
    return plain if own else plain.clone()
