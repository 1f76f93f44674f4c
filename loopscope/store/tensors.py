"""Tensors that a user has written to a file (`--out`, `save`), with what they are about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from loopscope.store.files import StoreError, first_line
from loopscope.store.outputs import MARK, write_file


def write_tensors(
    file: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any] | None = None, force: bool = False
) -> None:
    """Write tensors as safetensors, and what they are `about` as JSON in the metadata, under `MARK`.

    The file appears whole or not at all.  InputError where something is there, but for a file of ours with `force`;
    StoreError where the file system refuses.
    """
    metadata = {MARK: json.dumps(dict(about or {}), sort_keys=True)}

    def fill(draft: Path) -> None:
        try:
            save_file({name: each.detach().cpu().contiguous() for name, each in tensors.items()}, draft, metadata)
        except SafetensorError as error:  # how safetensors tells that the system refused
            raise StoreError(f"cannot write {file}: {first_line(error)}") from error

    write_file(file, fill, force)
