"""A language model in a folder with the maps that programs name: checked before weights are read, then loaded.

given = load_with_maps(Path("walker"), [Program.parse("F J:mine F")], {"mine": Path("mine")})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from loopscope.errors import InputError, nearest
from loopscope.models.folders import Adapter, load, outline
from loopscope.models.passes import Boundary
from loopscope.models.placement import names_in
from loopscope.models.steering import FullPrecisionMap, Provenance, check_fitted, load_steering_map
from loopscope.models.text import TOKENIZER, Tokenizer, load_tokenizer
from loopscope.pieces import pieces_of
from loopscope.program import Program


@dataclass(frozen=True)
class ModelWithMaps:
    """A language model with its tokenizer and given maps, on its device, and where it was loaded from."""

    folder: Path
    model: Adapter
    tokenizer: Tokenizer | None
    maps: dict[str, FullPrecisionMap]
    provenance: dict[str, Provenance]


def names_of(programs: Iterable[Program]) -> list[str]:
    """The maps that programs name, each once."""
    return list(dict.fromkeys(name for program in programs for name in names_in(program)))


def places_of(given: Iterable[str], names: list[str], option: str = "--map ") -> dict[str, str]:
    """Maps written NAME=FOLDER, or the folder alone where programs name one map; `option` stands before it in errors.

    InputError for a name that no program has, one that is given twice, and a folder without a name where there are
    several.
    """
    found: dict[str, str] = {}
    for each in given:
        name, equals, place = each.partition("=")
        if not equals:
            if len(names) != 1:
                raise InputError(f"{option}{each[:60]!r} is of no name; programs name {', '.join(names) or 'no map'}")
            name, place = names[0], each
        if not name or not place:
            raise InputError(f"{option}takes NAME=FOLDER, not {each[:60]!r}")
        if name not in names:
            raise InputError(f"{option}{name}: no program names it; they name {', '.join(names)}{nearest(name, names)}")
        if name in found:
            raise InputError(f"{option}{name} is given twice")
        found[name] = place
    return found


def load_with_maps(
    folder: Path,
    programs: Iterable[Program],
    maps: Mapping[str, Path],
    *,
    boundary: Boundary | None = None,
    loop: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    any_map: bool = False,
    chat: bool = False,
    missing: int = 0,
) -> ModelWithMaps:
    """Load a model and maps; those that do not fit the model are refused before its weights are read.

    `missing` is how many of the programs' maps need not be given, such as one that is to be fitted; `chat` wants a
    tokenizer, which otherwise is loaded where there is one.
    """
    shape = outline(folder, boundary=boundary, loop=loop)
    if lacking := [name for name in names_of(programs) if name not in maps][missing:]:
        there = ", ".join(maps) or "none"
        raise InputError(f"no map named {lacking[0]!r} was given; there are: {there} (--map {lacking[0]}=FOLDER)")
    width = pieces_of(shape).state_width
    saved = {name: load_steering_map(each, folder, width) for name, each in maps.items()}
    known = {
        name: check_fitted(each, folder, shape.boundary, loop=shape.loop, any_map=any_map)
        for name, each in maps.items()
    }
    tokenizer = load_tokenizer(folder) if chat or (folder / TOKENIZER).is_file() else None
    model = load(folder, boundary=boundary, loop=loop, device=device, dtype=dtype)
    model.requires_grad_(False)
    steps = {name: FullPrecisionMap(each.float()).to(device) for name, each in saved.items()}
    return ModelWithMaps(folder, model, tokenizer, steps, known)
