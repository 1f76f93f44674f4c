"""Artefacts on disk: files, manifests, stores, trained models and maps, the zoo."""

from typing import TYPE_CHECKING

from loopscope.lazy import exports

if TYPE_CHECKING:
    from loopscope.store.artefacts import load_backbone as load_backbone
    from loopscope.store.artefacts import load_fit as load_fit
    from loopscope.store.artefacts import load_trail as load_trail
    from loopscope.store.artefacts import name_of as name_of
    from loopscope.store.contents import Artefact as Artefact
    from loopscope.store.store import Store as Store
    from loopscope.store.zoo import entries as entries
    from loopscope.store.zoo import find as find
    from loopscope.store.zoo import open_zoo as open_zoo

__all__, __getattr__ = exports(
    __name__,
    {
        "artefacts": ("load_backbone", "load_fit", "load_trail", "name_of"),
        "contents": ("Artefact",),
        "store": ("Store",),
        "zoo": ("entries", "find", "open_zoo"),
    },
)
