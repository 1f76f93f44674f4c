"""The zoo: the trained backbones, language models and fitted maps that come with a checkout, in a store of its own.

    zoo = open_zoo()
    model = load_backbone(find(zoo, "d8l6-3", "backbone"))
    steering_map = load_fit(find(zoo, "one-1@d8l6-3", "map"))

It is the folder `zoo` of the checkout, or the one that the environment variable LOOPSCOPE_ZOO names.  An installed
package brings a part of it, to be read only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import loopscope
from loopscope.errors import DamagedError, InputError, LoopscopeError, nearest
from loopscope.store.artefacts import (
    BACKBONE,
    LM,
    LM_MAP,
    MAP,
    RESULT,
    WEIGHTS,
    WEIGHTS_SHA,
    load_backbone,
    load_fit,
    model_of,
    name_of,
)
from loopscope.store.files import damaged
from loopscope.store.manifest import KEY_OR_PREFIX, MANIFEST
from loopscope.store.store import Artefact, Status, Store

KINDS = (BACKBONE, MAP, LM, LM_MAP)
VARIABLE = "LOOPSCOPE_ZOO"


@dataclass(frozen=True)
class Entry:
    """One backbone, language model or map of the zoo; `about` is one line from its result."""

    name: str
    kind: str
    key: str
    bytes: int
    about: str
    created: str
    device: str


def zoo_folder(folder: Path | None = None) -> Path:
    """Where the zoo is, or would be: `folder` if given, else what LOOPSCOPE_ZOO names, else `zoo` of the checkout.

    Without a checkout it is the part of the zoo that the installed package brings; InputError where it brings none.
    """
    if folder is not None:
        return folder
    if named := os.environ.get(VARIABLE):
        return Path(named)
    packaged = _packaged()
    checkout = packaged.parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / "zoo"
    if not packaged.is_dir():
        raise InputError(f"loopscope runs from {checkout}, which is no checkout; name a zoo with --zoo or {VARIABLE}")
    return packaged


def _packaged() -> Path:
    """Where an installed package has its part of the zoo."""
    return Path(loopscope.__file__).absolute().parent / "zoo"


def open_zoo(folder: Path | None = None) -> Store:
    """The zoo at `zoo_folder(folder)`; InputError if there is none."""
    place = zoo_folder(folder)
    if not place.is_dir():
        raise InputError(f"there is no zoo at {place}; name one with --zoo or {VARIABLE}")
    return Store(place)


def entries(store: Store) -> list[Entry]:
    """Every entry, backbones first and language models last, by name; quick, as `Store.every`, and as strict."""
    found, errors = readable_entries(store)
    for error in errors:
        raise error
    return found


def readable_entries(store: Store) -> tuple[list[Entry], list[LoopscopeError]]:
    """The entries that can be read, sorted as `entries`, and the errors of the others, for a listing to show."""
    read = [store.readable(kind) for kind in KINDS]
    found = [_entry(artefact) for artefacts, _ in read for artefact in artefacts]
    found.sort(key=lambda entry: (KINDS.index(entry.kind), by_number(entry.name), entry.key))
    return found, [error for _, errors in read for error in errors]


def owners(store: Store) -> dict[str, str]:
    """The keys of the models that maps were fitted to, by those of the maps, as far as both can be read."""
    found = {fit.key: fit.manifest.inputs.get(BACKBONE, "") for fit in store.readable(MAP)[0]}
    for fit in store.readable(LM_MAP)[0]:
        with suppress(LoopscopeError):
            if model := model_of(fit, [store]):
                found[fit.key] = model.key
    return found


def matches(known: Iterable[Artefact], asked: str) -> list[Artefact]:
    """The artefacts of this name or, if there are none, those whose keys start so (at least 4 characters)."""
    there = list(known)
    found = [artefact for artefact in there if name_of(artefact) == asked]
    if not found and KEY_OR_PREFIX.fullmatch(asked):
        found = [artefact for artefact in there if artefact.key.startswith(asked)]
    return found


def find(store: Store, asked: str, kind: str | None = None) -> Artefact:
    """The entry of this name, or with the only key that starts so (at least 4 characters).

    `kind` is the kind to look among, None for all.  InputError if there is no such entry, or more than one.  If an
    entry of that kind cannot be read, its error is raised: it might be the one that is asked for.
    """
    kinds = KINDS if kind is None else (kind,)
    what = kind or "backbone or map"
    known = [artefact for each in kinds for artefact in store.every(each)]
    found = matches(known, asked)
    if len(found) > 1:
        raise InputError(f"{what} {asked!r} is ambiguous; give one of the keys {', '.join(each.key for each in found)}")
    if not found:
        entries(store)  # a map goes by another name when its backbone cannot be read
        close = nearest(asked, map(name_of, known))
        raise InputError(f"{store.root} has no {what} {asked!r} among {len(known)}{close}")
    return found[0]


def add(zoo: Store, source: Store, asked: Iterable[str]) -> list[Entry]:
    """Adopt entries of another store, by name or key prefix; a map brings its backbone or model if the zoo has none.

    All are found and loaded before the first is copied: what is missing or damaged leaves the zoo as it was.  Weights
    of backbones and what training noted are stored compressed.  Gives the entries that were asked for and the
    backbones and models of the maps among them.  InputError for the part of the zoo that an installed package brings.
    """
    if zoo.root.absolute() == _packaged():
        raise InputError(f"{zoo.root} came with the package and stays as it is; name a zoo with --zoo or {VARIABLE}")
    chosen: dict[str, Artefact] = {}
    for text in asked:
        artefact = find(source, text)
        if artefact.manifest.kind in (MAP, LM_MAP):
            backbone = _backbone_of(artefact, (zoo, source))
            chosen.setdefault(backbone.key, backbone)
        chosen[artefact.key] = artefact
    widths: dict[str, int] = {}
    for artefact in chosen.values():
        artefact.verify()
        _check(artefact, (zoo, source), widths)
    return [_entry(zoo.adopt(artefact, compress=(WEIGHTS, RESULT))) for artefact in chosen.values()]


def verify(store: Store) -> tuple[Status, ...]:
    """As `Store.verify`; besides, every backbone and map must load, and every map fit a whole backbone beside it.

    Without the packages that language models need, of these only the hashes are compared, which the reason says.
    """
    widths: dict[str, int] = {}
    return tuple(_checked(store, status, widths) for status in store.verify())  # by kind: backbones before maps


def _checked(store: Store, status: Status, widths: dict[str, int]) -> Status:
    if status.state != "ok" or status.kind not in KINDS:
        return status
    try:
        unloaded = _check(store.open(status.kind, status.key), (store,), widths)
    except LoopscopeError as error:
        state = "damaged" if isinstance(error, DamagedError) else "unreadable"
        return replace(status, state=state, reason=str(error))
    return replace(status, reason=f"hashed, not loaded: {unloaded}") if unloaded else status


def _check(artefact: Artefact, stores: Iterable[Store], widths: dict[str, int]) -> str:
    """Load an entry.  A backbone's width is kept under its key in `widths`; a map must fit a backbone kept there.

    Gives "", or of a language model why it could not be loaded: packages that are missing.
    """
    if artefact.manifest.kind in (LM, LM_MAP):
        return _check_language(artefact, stores)
    if artefact.manifest.kind == BACKBONE:
        widths[artefact.key] = load_backbone(artefact).width
        return ""
    width, backbone = load_fit(artefact).width, artefact.manifest.inputs.get(BACKBONE, "")
    if backbone not in widths:
        raise damaged(artefact.folder / MANIFEST, f"its backbone {backbone} in the same zoo", "none that is whole")
    if width != widths[backbone]:
        raise damaged(artefact.folder, f"a map of its backbone's width {widths[backbone]}", f"one of width {width}")
    return ""


def _check_language(artefact: Artefact, stores: Iterable[Store]) -> str:
    from loopscope.models import kept
    from loopscope.models.extras import lacking

    if missing := lacking():
        artefact.verify()
        return missing
    if artefact.manifest.kind == LM:
        kept.check_model(artefact)
    else:
        kept.check_map(artefact, _backbone_of(artefact, stores))
    return ""


def _backbone_of(fit: Artefact, stores: Iterable[Store]) -> Artefact:
    if fit.manifest.kind == LM_MAP:
        if model := model_of(fit, stores):
            return model
        weights, places = fit.manifest.inputs.get(WEIGHTS_SHA, "")[:12], " nor ".join(str(each.root) for each in stores)
        raise InputError(f"map {name_of(fit)} needs the model of weights {weights}, which is neither in {places}")
    key = fit.manifest.inputs.get(BACKBONE, "")
    broken: LoopscopeError | None = None
    for store in stores:
        try:
            return store.open(BACKBONE, key)
        except InputError:  # it has none
            continue
        except LoopscopeError as error:
            broken = broken or error
    if broken is not None:
        raise broken
    places = " nor ".join(str(store.root) for store in stores)
    raise InputError(f"map {name_of(fit)} needs the backbone {key}, which is neither in {places}")


def _entry(artefact: Artefact) -> Entry:
    manifest = artefact.manifest
    size = sum(file.size for file in manifest.files.values())
    return Entry(
        name_of(artefact), manifest.kind, manifest.key, size, _about(artefact), manifest.created, manifest.device
    )


def _about(artefact: Artefact) -> str:
    """When the result was selected and how it scored there; nothing if the result does not say, or why it cannot.

    Of a language model its size, of its map in how many loops it was fitted.
    """
    try:
        if artefact.manifest.kind == LM:
            from loopscope.models import kept

            return kept.about(artefact)
        if artefact.manifest.kind == LM_MAP:
            return f"fitted in {artefact.manifest.config['recipe']['loops']} loops"
        result = artefact.json(RESULT)
    except LoopscopeError as error:
        return str(error)
    match result:
        case {"selected": {"update": int(update), "score": [_, *_] as score}} if all(
            isinstance(s, int | float) for s in score
        ):
            return f"selected at update {update:,}, score {', '.join(f'{s:.4f}' for s in score)}"
    return ""


def by_number(name: str) -> str:
    """A sort key that puts d8l6-10 after d8l6-9."""
    return re.sub(r"[0-9]+", lambda digits: digits[0].zfill(12), name)
