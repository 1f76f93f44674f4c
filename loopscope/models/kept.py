"""Model folders as artefacts of a store, so that a small model can be kept beside its map, hashed and found by name.

    lm        config {"name": "letters-4x128"}, inputs {"weights": SHA-256 of the weights, "identity": `identify`}
              config.json, loopscope.json, model.safetensors, tokenizer.json, ... as in its folder, and SHA256SUMS
    lm-map    a map that `training.lm.jobs.fit` made; its inputs name the same weights and identity

The artefact's own folder is a model folder: whatever takes one takes it.
"""

from __future__ import annotations

from pathlib import Path

from loopscope.errors import DamagedError, InputError
from loopscope.maps import not_finite
from loopscope.models.checksums import SUMS, sums_text
from loopscope.models.configs import size_of
from loopscope.models.extras import lacking
from loopscope.models.folders import (
    CONFIG,
    LOOPED,
    SINGLE,
    load,
    outline,
    read_config,
    read_looped,
    tensors_of,
)
from loopscope.models.identity import identify
from loopscope.models.steering import load_steering_map, read_fitted
from loopscope.models.text import OLD_SETTINGS, SETTINGS, TEMPLATE, TOKENIZER, load_tokenizer
from loopscope.pieces import pieces_of
from loopscope.store.artefacts import IDENTITY, LM, WEIGHTS_SHA
from loopscope.store.files import damaged, read
from loopscope.store.manifest import MANIFEST
from loopscope.store.store import Artefact, Store

FILES = (CONFIG, LOOPED, SINGLE, TOKENIZER, SETTINGS, OLD_SETTINGS, TEMPLATE)
"""What is kept of a model folder; how it was trained is an artefact of its own (`lm-training`)."""


def keep(folder: Path, name: str, store: Store) -> Artefact:
    """Write the model in a folder to a store under a name; one that is there is kept.

    InputError for a folder that is no model, has its weights in several files or has no tokenizer, and for a name that
    is empty or has spaces in it.
    """
    if not name or name != "".join(name.split()):
        raise InputError(f"a model is kept under a name without spaces, not {name!r}")
    model = outline(folder)
    tensors_of(model, folder)
    load_tokenizer(folder)
    if not (folder / SINGLE).is_file():
        raise InputError(f"{folder} has its weights in several files; a model that is kept has one, {SINGLE}")
    identity = identify(folder)
    with store.write(LM, {"name": name}, {WEIGHTS_SHA: identity.weights, IDENTITY: identity.key}) as draft:
        for file in FILES:
            if (folder / file).is_file():
                draft.bytes(file, read(folder / file))
        draft.bytes(SUMS, sums_text({file: record.sha256 for file, record in draft.manifest.files.items()}))
    return draft.artefact


def opened(artefact: Artefact) -> Path:
    """The folder of a kept model or map, every file of it hashed; DamagedError where one is not as it was written."""
    artefact.verify()
    return artefact.folder


def check_model(artefact: Artefact) -> int:
    """Load a kept model, and give its width; DamagedError where it is not the model that was kept.

    InputError where the packages for that are not installed (`extras.lacking`), and as `folders.load`.
    """
    folder, inputs = opened(artefact), artefact.manifest.inputs
    identity = identify(folder)
    if inputs.get(WEIGHTS_SHA) != identity.weights:
        raise damaged(folder / MANIFEST, "the SHA-256 of its weights", str(inputs.get(WEIGHTS_SHA)))
    if inputs.get(IDENTITY, identity.key) != identity.key:
        raise damaged(folder / MANIFEST, "the identity of its model", inputs[IDENTITY])
    if missing := lacking():
        raise InputError(missing)
    load_tokenizer(folder)
    model = load(folder)
    if bad := not_finite(model):
        raise damaged(folder / SINGLE, "finite weights", f"NaN or infinity in {bad}")
    return model.width


def check_map(artefact: Artefact, model: Artefact) -> None:
    """Load the kept map of a kept model; InputError or DamagedError where the two do not fit.

    InputError, too, where the packages for that are not installed (`extras.lacking`).
    """
    saved, folder = opened(artefact), model.folder
    if missing := lacking():
        raise InputError(missing)
    load_steering_map(saved, folder, pieces_of(outline(folder)).state_width)
    fitted = read_fitted(saved)
    try:
        misfit = "" if fitted is None else fitted.misfit(saved, folder, identify(folder), None)
    except DamagedError as error:  # of the model, and the map is whole
        raise InputError(f"its model is damaged: {error}") from None
    if misfit:
        raise InputError(misfit)


def about(artefact: Artefact) -> str:
    """A kept model in one line: its kind, its size and how it is looped."""
    config, looped = read_config(artefact.folder), read_looped(artefact.folder)
    layers, width = (size_of(config, name) for name in ("layers", "width"))
    if None in (layers, width):  # a family that calls them otherwise
        model = outline(artefact.folder)
        layers, width = len(model.layers), model.width
    size = f"{layers} layers of width {width}"
    loops = f", {looped['loops']} loops" if looped else ""
    part = f" of layers {looped['loop']}" if looped.get("loop") else ""
    return f"{config.get('model_type')}, {size}{loops}{part}"
