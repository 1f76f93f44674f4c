"""Trained artefacts: what backbones and fitted maps are called, and how they become modules again.

    backbone   config {"recipe": {"name": "d8l6", "model": {...}, ...}, "seed": 3}
               weights.safetensors (named as in the model's state_dict), result.json
    map        config {"recipe": {"name": "one", ...}, "fit": 1}, inputs {"backbone": its key}
               adapter_config.json, adapter_model.safetensors (a saved map), result.json
    trail      config and inputs of its map
               weights.safetensors: the map's parameters at points of its last stage, and the `update` of each point
    lm, lm-map a language model and its map (`models.kept`), which goes with the model whose weights it names

All loaders hash what they read.  What does not fit is damage, told with file, expectation and finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

import torch

from loopscope.errors import InputError, LoopscopeError
from loopscope.maps import AffineMap, load_map, not_finite
from loopscope.model import LoopedTransformer, ModelConfig
from loopscope.store.files import damaged
from loopscope.store.manifest import MANIFEST, check_file_name
from loopscope.store.store import Artefact, Store

BACKBONE, MAP, TRAIL = "backbone", "map", "trail"
LM, LM_MAP = "lm", "lm-map"
WEIGHTS, RESULT = "weights.safetensors", "result.json"
WEIGHTS_SHA = "weights"
"""Among the inputs of a language model and of its maps: the SHA-256 of the weights."""
IDENTITY = "identity"
"""Beside it, since identity version 2: the key of all that the model computes with (`models.identity`)."""

EXACT = (torch.bfloat16, torch.float16, torch.float32)
"""Types whose every value fp32 holds."""


def name_of(artefact: Artefact) -> str:
    """What people call it: "d8l6-3" (recipe and seed) for a backbone, "one-1@d8l6-3" (recipe, fit, backbone) for a map.

    A language model has a name of its own, "letters-4x128", and its map goes by its recipe and that.
    A backbone that cannot be read from the map's store, and an artefact of another make, go by the first 8 digits of
    their key; so does one whose name could be no file's.  Names are for people: two recipes may share one, keys never
    collide.
    """
    try:
        return check_file_name(_written_name(artefact))
    except LoopscopeError:
        return artefact.key[:8]


def _written_name(artefact: Artefact) -> str:
    manifest = artefact.manifest
    match manifest.kind, manifest.config:
        case "backbone", {"recipe": {"name": str(recipe)}, "seed": int(seed)}:
            return f"{recipe}-{seed}"
        case "map", {"recipe": {"name": str(recipe)}, "fit": int(fit)} if BACKBONE in manifest.inputs:
            return f"{recipe}-{fit}@{_backbone_name(artefact)}"
        case "lm", {"name": str(name)}:
            return name
        case "lm-map", {"recipe": {"name": str(recipe)}} if model := model_of(artefact, [_store_of(artefact)]):
            return f"{recipe}@{name_of(model)}"
    return artefact.key[:8]


def recipe_of(artefact: Artefact, *settings: str) -> dict[str, Any]:
    """The recipe of a backbone or map: its `name`, and its `data` with their `task` and these settings.

    DamagedError where the manifest does not say all that, or of a map not which fit it is.
    """
    match artefact.manifest.config:
        case {"recipe": {"name": str(), "data": {"task": str()} as data} as recipe} if data.keys() >= {*settings}:
            if artefact.manifest.kind != MAP or type(artefact.manifest.config.get("fit")) is int:
                return dict(recipe)
    wanted = ", ".join(("name", "task", *settings, *(["fit"] if artefact.manifest.kind == MAP else [])))
    raise damaged(artefact.folder / MANIFEST, f"a recipe with {wanted}", "something else")


def _backbone_name(fit: Artefact) -> str:
    key = fit.manifest.inputs[BACKBONE]
    try:
        return name_of(_store_of(fit).open(BACKBONE, key))
    except LoopscopeError:
        return key[:8]


def model_of(fitted: Artefact, stores: Iterable[Store]) -> Artefact | None:
    """The language model that a map of one was fitted to, from the first store that has it.

    It is known by its identity or, where either has only version 1 of that, by its weights.  The error of a model that
    cannot be read, where none was found before it: it might be the one.
    """
    models = (model for store in stores for model in store.every(LM))
    return next((model for model in models if _belong(fitted.manifest.inputs, model.manifest.inputs)), None)


def _belong(fitted: Mapping[str, str], model: Mapping[str, str]) -> bool:
    role = IDENTITY if IDENTITY in fitted and IDENTITY in model else WEIGHTS_SHA
    return role in fitted and fitted[role] == model.get(role)


def _store_of(artefact: Artefact) -> Store:
    return Store(artefact.folder.parent.parent)


def load_backbone(artefact: Artefact) -> LoopedTransformer:
    """A trained backbone on the CPU: fp32, in eval mode, its parameters frozen.  Draws no random numbers.

    Raises InputError for an artefact of another kind; DamagedError when the model's settings do not fit, or a tensor is
    missing, unknown, misshapen, of a type that fp32 does not hold, or not finite.
    """
    _expect_kind(artefact, BACKBONE)
    with torch.device("meta"):  # no memory and no random numbers for weights that are replaced at once
        model = LoopedTransformer(_model_config(artefact))
    tensors = artefact.tensors(WEIGHTS)
    path = artefact.folder / WEIGHTS
    expected = model.state_dict()
    for name, parameter in expected.items():
        shape = tuple(tensors[name].shape) if name in tensors else "nothing"
        if shape != tuple(parameter.shape):
            raise damaged(path, f"{name} of shape {tuple(parameter.shape)}", str(shape))
    if extra := tensors.keys() - expected.keys():
        raise damaged(path, f"the {len(expected)} tensors of the model", f"also {min(extra)!r}")
    for name, tensor in tensors.items():
        if tensor.dtype not in EXACT:
            raise damaged(path, f"{name} as bf16, fp16 or fp32", str(tensor.dtype))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    if bad := not_finite(model):
        raise damaged(path, "finite weights", f"NaN or infinity in {bad}")
    return model.eval().requires_grad_(False)


def load_fit(artefact: Artefact) -> AffineMap:
    """A fitted map J, as `load_map` gives it, after hashing its files.

    Raises InputError for an artefact of another kind, DamagedError as `load_map` does.
    """
    _expect_kind(artefact, MAP)
    artefact.verify()
    return load_map(artefact.folder)


def load_trail(store: Store, fit: Artefact) -> dict[int, AffineMap]:
    """The maps that a fit passed through in its last stage, by update: 0 is where the stage began, the last the fit.

    Raises InputError for an artefact of another kind and where the store has no trail of this map, DamagedError as
    `load_fit` does and when the trail is not one of such maps.
    """
    last = load_fit(fit)
    trail = store.find(TRAIL, dict(fit.manifest.config), dict(fit.manifest.inputs))
    if trail is None:
        raise InputError(f"{store.root} has no trail of {name_of(fit)}, only the map itself")
    tensors = trail.tensors(WEIGHTS)
    updates = tensors.pop("update", torch.empty(0)).tolist()
    expected = {name: (len(updates), *parameter.shape) for name, parameter in last.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if not updates or found != expected:
        raise damaged(trail.folder / WEIGHTS, f"an update and {expected}", f"{len(updates)} updates and {found}")
    passed = {update: deepcopy(last) for update in updates}
    for point, steering_map in enumerate(passed.values()):
        steering_map.load_state_dict({name: tensor[point] for name, tensor in tensors.items()})
        if bad := not_finite(steering_map):
            raise damaged(trail.folder / WEIGHTS, "finite weights", f"NaN or infinity in {bad}")
    return passed


def _expect_kind(artefact: Artefact, kind: str) -> None:
    if artefact.manifest.kind != kind:
        raise InputError(f"{artefact.folder} is a {artefact.manifest.kind}, not a {kind}")


def _model_config(backbone: Artefact) -> ModelConfig:
    path = backbone.folder / MANIFEST
    match backbone.manifest.config:
        case {"recipe": {"model": dict(settings)}}:
            try:
                return ModelConfig.from_dict(settings)
            except InputError as error:
                raise damaged(path, "the settings of a model", str(error)) from None
    raise damaged(path, "the settings of a model under config.recipe.model", "none")
