"""Models and maps by name: a folder, an entry of the zoo, or a language model of the Hugging Face hub.

    model = load("d8l6-5")                              a backbone of the zoo
    model = load("Ouro-1.4B", dtype=torch.bfloat16)     a language model in a folder
    model = load("ByteDance/Ouro-1.4B")                 one of the hub, from the cache or downloaded (`models.hub`)
    model = load("hf:ByteDance/Ouro-1.4B@main")         a revision of it
    one = load_map("one-1@d8l6-5")                      a map of the zoo
    one = load_map("my-map")                            a map that `save_map` wrote

A folder of that name comes first; where there is none, the zoo is asked, or for a name with an owner the hub.  Zoo
names are those that `loopscope zoo list` prints; the beginning of a key does as well.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loopscope import maps
from loopscope.errors import InputError, nearest
from loopscope.model import LoopedTransformer
from loopscope.store.artefacts import BACKBONE, LM, LM_MAP, MAP, load_backbone, name_of
from loopscope.store.contents import Artefact
from loopscope.store.manifest import MANIFEST, read_manifest
from loopscope.store.zoo import matches, open_zoo

if TYPE_CHECKING:
    from loopscope.models.adapter import Adapter
    from loopscope.models.passes import Boundary

MODELS, MAPS = (BACKBONE, LM), (MAP, LM_MAP)
CONFIG = "config.json"
"""What tells the folder of a language model from others."""


def load(
    name: str | Path,
    *,
    loops: int | None = None,
    boundary: Boundary | None = None,
    loop: str | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    zoo: Path | None = None,
) -> LoopedTransformer | Adapter:
    """The model in a folder, or of that name in the zoo or on the hub, in eval mode.

    - A backbone is a `LoopedTransformer` with frozen weights; it is called as often as its program says, so that it
      takes no `loops`, no `boundary` and no `loop`.
    - A language model is loaded as `loopscope.models.load` does: `loops` calls, each ended by `boundary`, of the layers
      `loop`, such as "11-20".
    - `dtype` is by default that of the files; `zoo` is the folder of the zoo (default: as `store.zoo.zoo_folder`).

    InputError where there is no such model, more than one, or it does not take an argument; DamagedError for files
    that are not what they were; HubError where it would have to be downloaded and cannot.
    """
    place = model_folder(name, zoo)
    if (place / CONFIG).is_file():
        from loopscope.models.folders import load as load_language_model

        return load_language_model(place, loops=loops, boundary=boundary, loop=loop, device=device, dtype=dtype)
    for option, value in (("loops", loops), ("boundary", boundary), ("loop", loop)):
        if value is not None:
            raise InputError(f"{name} is a backbone, which has no {option} to choose: its program says how F is called")
    return load_backbone(_artefact(place)).to(device=device, dtype=dtype)


def load_map(name: str | Path, *, zoo: Path | None = None) -> maps.AffineMap:
    """The map J in a folder, or of that name in the zoo; errors as `load`."""
    return maps.load_map(map_folder(name, zoo))


def model_folder(name: str | Path, zoo: Path | None = None) -> Path:
    """The folder of a model: `name` itself if it is one, else that of the zoo's or the hub's model of that name."""
    place = _folder(name, MODELS, "model", zoo, instead=(MAPS, "a map, which load_map loads"))
    if (place / CONFIG).is_file() or (place / MANIFEST).is_file():
        return place
    if (place / maps.CONFIG_FILE).is_file():
        raise InputError(f"{name} is a saved map, not a model; load_map reads it")
    raise InputError(f"{name} is no model: it has no {CONFIG}")


def language_folder(name: str | Path, zoo: Path | None = None) -> Path:
    """The folder of a language model: `name` itself if it is a folder, else that of the zoo's or the hub's."""
    return _folder(name, (LM,), "language model", zoo, instead=((BACKBONE, *MAPS), "no language model"))


def map_folder(name: str | Path, zoo: Path | None = None) -> Path:
    """The folder of a saved map: `name` itself if it is one, else that of the zoo's map."""
    return _folder(name, MAPS, "saved map", zoo, instead=(MODELS, "a model, which load loads"))


def _folder(
    name: str | Path, kinds: tuple[str, ...], what: str, zoo: Path | None, instead: tuple[tuple[str, ...], str]
) -> Path:
    """A folder that exists, else that of the one entry of the zoo with this name, every file of it hashed.

    For a name that only the hub can have, where a language model is asked for, that of its snapshot.
    For errors: `what` it should be; `instead`, kinds that somebody may have meant and what to say of those.
    """
    asked = os.fspath(name)
    if not asked:
        raise InputError(f"an empty name names no {what}")
    if Path(asked).is_dir():
        return Path(asked)
    missing, of_hub = f"{asked} is no {what}: there is no such folder", ""
    if LM in kinds:
        from loopscope.models import hub

        if (named := hub.parse(asked)) is not None and not os.path.lexists(asked):
            return hub.find(named).folder
        of_hub = f"; a model of the hub is written {hub.HOW}"
    if os.sep in asked:
        raise InputError(missing)
    try:
        store = open_zoo(zoo)
    except InputError as error:
        raise InputError(f"{missing}, nor a zoo to look for the name: {error}{of_hub}") from None
    known = [artefact for kind in kinds for artefact in store.every(kind)]
    found = matches(known, asked)
    if len(found) > 1:
        keys = ", ".join(f"{each.manifest.kind} {each.key[:12]}" for each in found)
        raise InputError(f"{asked!r} is the name of several: {keys}; give the beginning of a key")
    if not found and matches((each for kind in instead[0] for each in store.every(kind)), asked):
        raise InputError(f"{asked} in {store.root} is {instead[1]}")
    if not found:
        close = nearest(asked, map(name_of, known))
        raise InputError(f"{missing}, and {store.root} has none of that name among {len(known)}{close}{of_hub}")
    found[0].verify()
    return found[0].folder


def _artefact(folder: Path) -> Artefact:
    return Artefact(folder, read_manifest(folder))
