"""What tells a language model from another: its weights, its config, its tokenizer and its chat template.

    identify("walker").key      # what records, maps and trainings name as their input "identity"

Version 1, which released records and maps have, is the SHA-256 of the weights alone.  A model with another
`rope_theta`, tokenizer or template is another model of the same version 1; so what has only that is never taken for the
result of a new measurement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loopscope.errors import InputError
from loopscope.models.checksums import sha256
from loopscope.models.folders import CONFIG, check_unchanged, read_config, weights_sha256
from loopscope.models.text import SETTINGS, TOKENIZER, chat_of
from loopscope.store.manifest import KEY, digest

VERSION = 2

LEFT_OUT = ("_name_or_path", "transformers_version")
"""Keys of a config that say where it was, and what wrote it; nothing computes with them."""


@dataclass(frozen=True)
class Identity:
    """SHA-256s of what a model folder computes with; None where a model has no tokenizer, and so no template.

    `weights`: as `folders.weights_sha256`.  `config`: of its values, not of the text: the order of keys, spaces and
    1 against 1.0 do not matter, nor what is LEFT_OUT.  `tokenizer`: of the file.  `template`: of the chat template and
    the special tokens that it is given.
    """

    weights: str
    config: str
    tokenizer: str | None
    template: str | None
    version: int = VERSION

    @property
    def key(self) -> str:
        """One SHA-256 of all of it."""
        return digest(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Identity:
        """What `to_dict` gave; ValueError for anything else."""
        match values:
            case {"version": 2, "weights": str(weights), "config": str(config)}:
                made = cls(weights, config, values.get("tokenizer"), values.get("template"))
                hashes = [each for each in (weights, config, made.tokenizer, made.template) if each is not None]
                if all(isinstance(each, str) and KEY.fullmatch(each) for each in hashes):
                    return made
        raise ValueError("no identity of a model")

    def difference(self, other: Identity) -> tuple[str, str, str] | None:
        """The first part that two differ in, and both SHA-256s of it; None for the same model."""
        names = {"weights": "weights", "config": CONFIG, "tokenizer": TOKENIZER, "template": "chat template"}
        for part, name in names.items():
            mine, theirs = getattr(self, part), getattr(other, part)
            if mine != theirs:
                return name, mine or "none", theirs or "none"
        return None


def identify(folder: str | Path) -> Identity:
    """The identity of the model in a folder, every file that decides it hashed.

    Raises InputError for a folder that is no checkpoint, DamagedError for files that cannot be read or are not what
    the folder's SHA256SUMS says.
    """
    folder = Path(folder)
    config = read_config(folder)
    check_unchanged(folder)
    values = _digest({key: value for key, value in config.items() if key not in LEFT_OUT}, folder / CONFIG)
    weights, file = weights_sha256(folder), folder / TOKENIZER
    if not file.is_file():
        return Identity(weights, values, None, None)
    template, special = chat_of(folder)
    return Identity(weights, values, sha256(file), _digest([template, special], folder / SETTINGS))


def _digest(value: object, file: Path) -> str:
    try:
        return digest(_normal(value))
    except InputError as error:  # NaN, for one
        raise InputError(f"{file}: {error}") from None


def _normal(value: Any) -> Any:
    """The same with whole numbers as such: a config may say 10000.0 or 10000."""
    if isinstance(value, dict):
        return {key: _normal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_normal(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
