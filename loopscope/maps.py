"""The maps J: token-wise affine maps on the state entering a call.

    DiagonalLowRank   J(h) = h * D + (h A) B + b      graph walk, parity (25,088 parameters at width 256, rank 48)
    ResidualLowRank   J(h) = h + (h A) B + b          antonym cancellation
    Dense             J(h) = h W + b                  letter-walk, relation composition; every merged map

All start as the identity, act on row vectors and treat every token alike, so that only the frozen block F can move
information between tokens.  On disk a map is a folder in the PEFT file convention: `adapter_config.json` beside
`adapter_model.safetensors`.  The config holds the SHA-256 of the weights, of files beside them and a digest of itself,
all checked on loading; maps of format 1, which has none of these, load as they did.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from safetensors.torch import save as serialize
from torch import Tensor, nn

from loopscope.errors import DamagedError, InputError, nearest
from loopscope.finite import has_bad
from loopscope.protocol import STATES
from loopscope.store.files import damaged, first_line, new_folder, read, write_synced
from loopscope.store.manifest import JSON_LIMIT, KEY, check_file_name, digest, parse_tensors, read_json

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
LIMIT = 2**32
"""Bytes of the largest map that is read: a dense one of width 32,768 in fp32."""
PEFT_TYPE, FORMAT = "LOOPSCOPE_AFFINE", 2
SUMS, DIGEST = "sha256", "digest"
"""In a config since format 2: the SHA-256 of files by name, and the digest of the config without this entry."""

BASE = ("base_model_name_or_path", "revision")
"""In a config, for other programs: the model that the map is of.  No part of what the map is known by."""

Files = Mapping[str, bytes]
NONE: Files = MappingProxyType({})
NO_BASE: Mapping[str, str | None] = MappingProxyType({})
CARD = "README.md"


class AffineMap(nn.Module, ABC):
    """A token-wise affine map h -> h W + b of one width."""

    family: ClassVar[str]

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise InputError(f"a map needs width 1 or more, not {width}")
        self.width = width
        self.b = nn.Parameter(torch.zeros(width))

    def forward(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row: formed in the map's own precision, and rounded to that of the states at its end.

        Maps stand near the identity: products in bf16 would round away most of what they do.
        """
        return self.moved(h.to(self.b.dtype)).to(h.dtype)

    @abstractmethod
    def moved(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h) of states in the map's own precision."""

    @abstractmethod
    def linear(self) -> Float[Tensor, "d d"]:
        """W, in the sense of row vectors: J(h) = h W + b."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Constructor arguments, JSON-able."""

    def __repr__(self) -> str:
        rank = f", rank {self.rank}" if isinstance(self, _LowRank) else ""
        return f"{type(self).__name__}({self.width}{rank}: {sum(p.numel() for p in self.parameters()):,} numbers)"

    def merge(self) -> Dense:
        """The same map as one dense matrix and bias."""
        merged = Dense(self.width).to(self.b)
        with torch.no_grad():
            merged.W.copy_(self.linear())
            merged.b.copy_(self.b)
        return merged

    def then(self, after: AffineMap) -> Dense:
        """One dense map that does this one first and `after` next."""
        if after.width != self.width:
            raise InputError(f"maps of width {self.width} and {after.width} cannot follow each other")
        merged = Dense(self.width).to(self.b)
        with torch.no_grad():
            merged.W.copy_(self.linear() @ after.linear())
            merged.b.copy_(self.b @ after.linear() + after.b)
        return merged


class _LowRank(AffineMap):
    """What the low-rank families share: A [d, r], which each family draws in its own way, and B [r, d] = 0."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__(width)
        if not 1 <= rank <= width:
            raise InputError(
                f"rank {rank} does not fit width {width}: 1..{width} (nearest: {max(1, min(width, rank))})"
            )
        self.rank = rank
        self.A = nn.Parameter(torch.empty(width, rank))
        self.B = nn.Parameter(torch.zeros(rank, width))

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, JSON-able."""
        return {"width": self.width, "rank": self.rank}


class DiagonalLowRank(_LowRank):
    """J(h) = h * D + (h A) B + b; D = 1, B = 0, b = 0 at the start.

    A starts normal with standard deviation `std`, by default 1/sqrt(d) (0.0625 at width 256; the matched-supervision
    maps use 0.02).  `seed=None` draws from torch's global generator.
    """

    family = "diagonal-low-rank"

    def __init__(self, width: int, rank: int, *, std: float | None = None, seed: int | None = None) -> None:
        super().__init__(width, rank)
        self.D = nn.Parameter(torch.ones(width))
        nn.init.normal_(self.A, std=width**-0.5 if std is None else std, generator=_generator(seed))

    def moved(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row."""
        return h * self.D + (h @ self.A) @ self.B + self.b

    def linear(self) -> Float[Tensor, "d d"]:
        """diag(D) + A B."""
        return torch.diag(self.D) + self.A @ self.B


class ResidualLowRank(_LowRank):
    """J(h) = h + (h A) B + b; B = 0, b = 0 at the start.

    A starts as torch starts a Linear(d -> r), Kaiming uniform with a = sqrt 5, drawn in that layer's [r, d] layout.
    """

    family = "residual-low-rank"

    def __init__(self, width: int, rank: int, *, seed: int | None = None) -> None:
        super().__init__(width, rank)
        drawn = nn.init.kaiming_uniform_(torch.empty(rank, width), a=math.sqrt(5), generator=_generator(seed))
        with torch.no_grad():
            self.A.copy_(drawn.T)

    def moved(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row."""
        return h + (h @ self.A) @ self.B + self.b

    def linear(self) -> Float[Tensor, "d d"]:
        """1 + A B."""
        return torch.eye(self.width).to(self.A) + self.A @ self.B


class Dense(AffineMap):
    """J(h) = h W + b; W = identity, b = 0 at the start."""

    family = "dense"

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.W = nn.Parameter(torch.eye(width))

    def moved(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """J(h), row by row."""
        return h @ self.W + self.b

    def linear(self) -> Float[Tensor, "d d"]:
        """W itself, not a copy."""
        return self.W

    def settings(self) -> dict[str, Any]:
        """Constructor arguments, JSON-able."""
        return {"width": self.width}


FAMILIES: dict[str, type[AffineMap]] = {cls.family: cls for cls in (DiagonalLowRank, ResidualLowRank, Dense)}


def make_map(family: str, **settings: Any) -> AffineMap:
    """A fresh map of a family by name; InputError names the families when there is no such one."""
    if family not in FAMILIES:
        raise InputError(f"unknown map family {family!r}; there are {', '.join(FAMILIES)}{nearest(family, FAMILIES)}")
    return FAMILIES[family](**settings)


def save_map(
    steering_map: AffineMap, folder: str | Path, beside: Files = NONE, *, base: Mapping[str, str | None] = NO_BASE,
    card: str | None = None,
) -> None:  # fmt: skip
    """Write a map, and files `beside` it, as a new folder, complete or not at all.

    `base` are the entries of `BASE` that the config has; `card` is a text for people, README.md, which may be changed
    afterwards.  Refuses a map with NaN, and a folder that exists.
    """
    folder = Path(folder)
    files = map_files(steering_map, beside, base)
    if card is not None:
        files[CARD] = card.encode()
    if folder.exists() or folder.is_symlink():
        raise InputError(f"{folder} exists already; a saved map is never overwritten")
    if not folder.parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no folder {folder.parent}")
    with new_folder(folder) as draft:
        for name, data in files.items():
            write_synced(draft / name, data)


def map_files(
    steering_map: AffineMap, beside: Files = NONE, base: Mapping[str, str | None] = NO_BASE
) -> dict[str, bytes]:
    """The files of a saved map by name, `beside` among them; InputError for a map with NaN or infinity.

    The config has the SHA-256 of all others, so that files beside a map are checked with it.
    """
    files = {WEIGHTS_FILE: _weights(steering_map), **beside}
    sums = {name: _sha256(data) for name, data in files.items()}
    config = {**base, **_described(steering_map, FORMAT), SUMS: sums}
    return {**files, CONFIG_FILE: _as_text({**config, DIGEST: digest(config)})}


def map_key(steering_map: AffineMap) -> str:
    """What a map is known by in records: SHA-256 over its weights and settings, as the files of format 1 held them."""
    return _key(_as_text(_described(steering_map, 1)), _sha256(_weights(steering_map)))


def saved_map_key(config: bytes, weights: str) -> str:
    """`map_key` of a saved map of any format, by its config and the SHA-256 of its weights.

    ValueError where the config is no JSON object.
    """
    settings = json.loads(config)
    if not isinstance(settings, dict):
        raise ValueError("no JSON object")
    if settings.get("format") == 1:
        return _key(config, weights)
    described = {name: value for name, value in settings.items() if name not in (SUMS, DIGEST, *BASE)}
    return _key(_as_text({**described, "format": 1}), weights)


def _key(config: bytes, weights: str) -> str:
    hashes = {CONFIG_FILE: _sha256(config), WEIGHTS_FILE: weights}
    return _sha256("".join(f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items())).encode())


def _weights(steering_map: AffineMap) -> bytes:
    if bad := not_finite(steering_map):
        raise InputError(f"map holds NaN or infinity in {bad}")
    return serialize({name: p.detach().cpu().contiguous() for name, p in steering_map.named_parameters()})


def _described(steering_map: AffineMap, written: int) -> dict[str, Any]:
    return {"peft_type": PEFT_TYPE, "format": written, "family": steering_map.family, **steering_map.settings()}


def _as_text(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config, indent=2, sort_keys=True).encode() + b"\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def load_map(folder: str | Path) -> AffineMap:
    """Read a map written by `save_map`.

    Raises InputError when the folder is no map or was written in a newer format, DamagedError when a file cannot be
    read or is not what the config's checksums say, settings do not fit together, or a tensor is missing, unknown,
    misshapen, of another type or not finite.
    """
    folder = Path(folder)
    config_file, weights_file = folder / CONFIG_FILE, folder / WEIGHTS_FILE
    for needed in (config_file, weights_file):
        if not needed.is_file():
            raise InputError(f"{folder} is no saved map: it has no {needed.name}")
    config = _read_config(config_file)
    weights = read(weights_file, limit=LIMIT)
    for name, promised in config.get(SUMS, {}).items():
        if (found := _sha256(weights if name == WEIGHTS_FILE else read(folder / name, limit=JSON_LIMIT))) != promised:
            raise damaged(folder / name, f"SHA-256 {promised}", found)
    steering_map = _empty_map(config_file, config)
    tensors = parse_tensors(weights, weights_file)
    for name, parameter in steering_map.named_parameters():
        shape = tuple(tensors[name].shape) if name in tensors else "nothing"
        if shape != tuple(parameter.shape):
            raise DamagedError(f"{weights_file}: expected {name} of shape {tuple(parameter.shape)}, found {shape}")
    if extra := set(tensors) - {name for name, _ in steering_map.named_parameters()}:
        raise DamagedError(f"{weights_file}: expected no tensor {min(extra)!r}")
    types = {tensor.dtype for tensor in tensors.values()}
    if len(types) > 1 or tensors["b"].dtype not in STATES:
        raise DamagedError(
            f"{weights_file}: expected one floating point type, found {', '.join(sorted(map(str, types)))}"
        )
    steering_map = steering_map.to_empty(device="cpu").to(tensors["b"].dtype)
    steering_map.load_state_dict(tensors)
    if bad := not_finite(steering_map):
        raise DamagedError(f"{weights_file} holds NaN or infinity in {bad}")
    return steering_map


def _read_config(config_file: Path) -> dict[str, Any]:
    """The config of a saved map; that of format 2 is what its digest says and names the SHA-256 of the weights."""
    config = read_json(config_file)
    if config.get("peft_type") != PEFT_TYPE:
        raise InputError(
            f"{config_file.parent} is no saved map: its peft_type is {config.get('peft_type')!r}, not {PEFT_TYPE}"
        )
    written = config.get("format")
    if type(written) is not int or written < 1:
        raise DamagedError(f"{config_file}: expected a format number, found {written!r}")
    if written > FORMAT:
        raise InputError(f"{config_file.parent} was written in map format {written}; this version reads up to {FORMAT}")
    if written == 1:
        if later := {SUMS, DIGEST} & config.keys():  # or a single bit could take the checks away
            raise damaged(config_file, "a config of format 1", f"{min(later)}, which it has not")
        return config
    promised = config.pop(DIGEST, None)
    try:
        found = digest(config)
        names = [check_file_name(name) for name in config[SUMS]]
        whole = WEIGHTS_FILE in names and all(KEY.fullmatch(each) for each in config[SUMS].values())
    except (AttributeError, InputError, KeyError, TypeError) as error:
        raise damaged(config_file, "the checksums of format 2", first_line(error)) from None
    if found != promised:
        raise damaged(config_file, f"content of digest {promised}", found)
    if not whole:
        raise damaged(config_file, f"the SHA-256 of {WEIGHTS_FILE}", "something else")
    return config


def _empty_map(config_file: Path, config: Mapping[str, Any]) -> AffineMap:
    """The map that a config describes, without memory for its parameters."""
    settings = {key: config[key] for key in ("width", "rank") if key in config}
    try:
        with torch.device("meta"):  # draws no random numbers, and a wrong width takes no memory
            return make_map(str(config.get("family")), **settings)
    except InputError as error:
        raise DamagedError(f"{config_file}: {error}") from None
    except (TypeError, RuntimeError):
        raise DamagedError(f"{config_file}: settings {settings} do not make a {config['family']} map") from None


def _generator(seed: int | None) -> torch.Generator | None:
    return None if seed is None else torch.Generator().manual_seed(seed)


def not_finite(module: nn.Module) -> str | None:
    """Name of the first parameter that holds NaN or infinity, if there is one."""
    return next((name for name, parameter in module.named_parameters() if has_bad(parameter)), None)
