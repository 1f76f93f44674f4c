"""What the explorer shows: a model with its maps and tokenizer, examples of its inputs, and what to call all that.

subject = open_model("d8l6-5")
subject.fingerprint     32 digits of what it computes with
subject.hello()         facts for the page
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from loopscope import loading
from loopscope.bounds import shown
from loopscope.errors import InputError, nearest
from loopscope.functions import identity
from loopscope.model import LoopedTransformer, graph_walk_config
from loopscope.models.adapter import program_of
from loopscope.patches import check_name
from loopscope.pieces import Pieces, pieces_of
from loopscope.program import Program
from loopscope.protocol import LoopedModel, TokenMap
from loopscope.store.artefacts import LM_MAP, MAP, load_fit, name_of
from loopscope.store.store import Store
from loopscope.store.zoo import by_number, open_zoo, owners
from loopscope.tasks.graph_walk import GraphWalk
from loopscope.view.contract import ANSWERS, CONTRACT, DIGITS, PROGRAM, ROWS, TEXT, Json

if TYPE_CHECKING:
    from loopscope.models.text import Tokenizer
    from loopscope.view.examples import Example

MAIN_MODEL = "d8l6-5"
"""What is shown where nothing is named: the backbone of the paper's main results that the package brings."""

NAMED = 256
"""The most classes whose names and whole distributions are told."""


@dataclass(frozen=True)
class ShownModel:
    """A model that is shown, with what belongs to it.

    - `maps` are the maps J by the names they have in programs; `titles` say where they are from.
    - `folder` is what `loopscope.load` takes for the model; None where it is known by no name.
    - `tokenizer` is that of a language model; without one its inputs are tokens.
    - `loading` are the settings that the model was loaded with, for a script to repeat.
    """

    model: LoopedModel
    name: str
    maps: Mapping[str, TokenMap] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    tokenizer: Tokenizer | None = None
    loading: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, each in self.maps.items():
            check_name("map", name)
            width = getattr(each, "width", self.pieces.state_width)
            if width != self.pieces.state_width:
                raise InputError(
                    f"map {name!r} has width {width}, but the states of {self.name} have {self.pieces.state_width}"
                )

    @cached_property
    def pieces(self) -> Pieces:
        """The model's pieces."""
        return pieces_of(self.model)

    @cached_property
    def walk(self) -> GraphWalk | None:
        """The graph walk that the model is about; None for a model of other things."""
        if not isinstance(self.model, LoopedTransformer):
            return None
        mine = self.model.config
        like = graph_walk_config(mine.classes, mine.loops)
        same = (mine.vocabulary, mine.positions, mine.first_class) == (like.vocabulary, like.positions, 0)
        return GraphWalk(mine.classes) if same else None

    @property
    def kind(self) -> str:
        """Of what the inputs are made: "graph", "text" or "tokens"."""
        return "graph" if self.walk else "text" if self.tokenizer else "tokens"

    @cached_property
    def program(self) -> Program:
        """The model's own."""
        if not hasattr(self.model, "loops"):
            return Program.parse(" ".join(self.pieces.stacks))
        return program_of(self.model)

    @cached_property
    def rows(self) -> int:
        """The longest input that is shown."""
        found = self._size("positions") or ROWS
        return min(ROWS, found)

    @cached_property
    def vocabulary(self) -> int | None:
        """How many tokens there are; None where the model does not say."""
        return self._size("vocabulary")

    def _size(self, name: str) -> int | None:
        """A whole number that a model, or its settings, say of it."""
        every = (getattr(each, name, None) for each in (self.model, getattr(self.model, "config", None)))
        return next((each for each in every if isinstance(each, int) and each > 0), None)

    @cached_property
    def classes(self) -> int:
        """How many classes a readout has."""
        row = torch.zeros(1, 1, self.pieces.state_width, dtype=self.precision, device=self._device)
        with torch.no_grad():
            return int(self.pieces.read(self.pieces.leave(row)).shape[-1])

    @property
    def precision(self) -> torch.dtype | None:
        """What the model computes in; None where it has no weights of its own."""
        return next((each.dtype for each in self._tensors() if each.is_floating_point()), None)

    @property
    def numbers(self) -> int:
        """On how many numbers its operations are, for `threads_for`: of a language model its weights."""
        small = isinstance(self.model, LoopedTransformer)
        return self.model.width * self.rows if small else sum(each.numel() for each in self._tensors())

    @property
    def _device(self) -> torch.device | None:
        return next((each.device for each in self._tensors()), None)

    def _tensors(self) -> Iterator[Tensor]:
        return iter(self.model.parameters()) if isinstance(self.model, nn.Module) else iter(())

    def token_name(self, token: int) -> str:
        """A token for people to read."""
        if self.tokenizer is not None:
            return self.tokenizer.name(token)
        if (walk := self.walk) is None:
            return str(token)
        marks = {walk.EDGE: "EDGE", walk.QUERY: "QUERY", walk.ANSWER: "ANSWER", walk.BOS: "BOS"}
        return str(token) if token < walk.nodes else marks.get(token, f"DEPTH {token - walk.BOS}")

    def class_name(self, number: int) -> str:
        """A class of the readout for people to read."""
        return self.token_name(number + getattr(getattr(self.model, "config", None), "first_class", 0))

    @cached_property
    def fingerprint(self) -> str:
        """Digits of what the model and the maps compute with: their settings and weights, by content."""
        seen = hashlib.sha256()
        for name, each in [("", self.model), *sorted(self.maps.items())]:
            for piece in _content(name, each):
                seen.update(len(piece).to_bytes(8, "little"))
                seen.update(piece)
        seen.update(repr(sorted(self.loading.items())).encode())
        return seen.hexdigest()[:DIGITS]

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """Inputs to begin with."""
        from loopscope.view.examples import examples_of

        return examples_of(self)

    def hello(self) -> dict[str, Json]:
        """What the page must know of the model before it asks; `page/CONTRACT.md` says what each key is."""
        import loopscope
        from loopscope.address import COMPONENTS, PER_HEAD
        from loopscope.view.examples import other_of, programs_of
        from loopscope.view.tour import tour_of

        units = any(layer.units for layer in self.pieces.layers)
        return {
            "contract": CONTRACT,
            "loopscope": loopscope.__version__,
            "model": self.fingerprint,
            "name": self.name,
            "kind": self.kind,
            "program": str(self.program),
            "stacks": [{"name": name, "layers": len(layers)} for name, layers in self.pieces.stacks.items()],
            "prelude": len(self.pieces.prelude),
            "coda": len(self.pieces.coda),
            "heads": self.model.heads,
            "width": self.model.width,
            "loops": self.program.calls,
            "rows": self.rows,
            "vocabulary": self.vocabulary,
            "classes": self.classes,
            "class_names": [*map(self.class_name, range(self.classes))] if self.classes <= NAMED else None,
            "nodes": self.walk.nodes if self.walk else None,
            "chat": self.tokenizer is not None and self.tokenizer.template is not None,
            "maps": [{"name": name, "title": self.titles.get(name, name)} for name in self.maps],
            "inputs": [each.to_dict() for each in self.examples],
            "others": other_of(self),
            "programs": programs_of(self),
            "tour": tour_of(self),
            "components": [each for each in COMPONENTS if units or each != "mlp_hidden"],
            "per_head": [each for each in COMPONENTS if each in PER_HEAD],
            "limits": {"rows": self.rows, "text": TEXT, "program": PROGRAM, "answers": ANSWERS},
            "live": True,
            "recorded": None,
            "made_with": None,
        }


def _content(name: str, each: object) -> Iterator[bytes]:
    """The bytes that decide what a model or a map computes."""
    yield f"{name} {type(each).__name__}".encode()
    config = getattr(each, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        yield repr(sorted(config.to_dict().items())).encode()
    if not isinstance(each, nn.Module):
        try:
            yield identity(each).encode()  # type: ignore[arg-type]  # what is no function is refused in a line
        except InputError:  # it cannot be told from others of its kind, so nothing that was asked of another is its
            yield secrets.token_bytes()
        return
    for key, tensor in sorted(each.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        yield f"{key} {data.dtype} {list(data.shape)}".encode()
        yield data.flatten().view(torch.uint8).numpy().tobytes()


# ---- by name ---------------------------------------------------------------------------------------------------------


def open_model(
    name: str | Path = MAIN_MODEL,
    maps: Mapping[str, Path] | None = None,
    *,
    zoo: Path | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    memory: int | None = None,
    **settings: Any,
) -> ShownModel:
    """The model in a folder, or of that name in the zoo or on the hub, with the zoo's maps for it and those given.

    - `maps` are saved maps by the names that programs call them; they come before those of the zoo.
    - `memory` is the most bytes that weights may have; None for any.
    - `settings` are those of `loopscope.load`: loops, boundary, loop.

    InputError where there is no such model, a map does not fit, or the weights are too large.
    """
    place = loading.model_folder(name, zoo)
    size = sum(file.stat().st_size for file in place.iterdir() if file.is_file())
    if memory is not None and size > memory:
        raise InputError(
            f"the weights of {name} take {size / 2**30:.1f} GiB, more than the {memory / 2**30:.1f} GiB that the"
            " explorer may use; --memory sets another bound"
        )
    language = (place / loading.CONFIG).is_file()
    chosen = {key: value for key, value in settings.items() if value is not None}
    model = loading.load(place, device=device, dtype=dtype, zoo=zoo, **chosen)
    found, titles = _zoo_maps(place, model, zoo)
    for key, saved in (maps or {}).items():
        check_name("map", key)
        found[key], titles[key] = _map(saved, place if language else None, model), _title(saved)
    return ShownModel(
        model, str(name) if not Path(name).is_dir() else place.name, found, titles, str(name),
        _tokenizer(place) if language else None, dict(sorted(chosen.items())),
    )  # fmt: skip


def _zoo_maps(place: Path, model: LoopedModel, zoo: Path | None) -> tuple[dict[str, TokenMap], dict[str, str]]:
    """The maps of the model's own store that were fitted to it, by short names: "one" for one-1@d8l6-5."""
    try:
        store = Store(place.parent.parent) if _is_artefact(place) else open_zoo(zoo)
    except InputError:  # there may be no zoo
        return {}, {}
    owner = owners(store)
    every = [each for kind in (MAP, LM_MAP) for each in store.readable(kind)[0]]
    mine = [each for each in every if owner.get(each.key) == place.name]
    short = {each.key: short_name(name_of(each)) for each in mine}
    mine.sort(key=lambda each: (short[each.key].count("-"), by_number(short[each.key])))  # the plain ones first
    maps, titles = {}, {}
    for each in mine:
        maps[short[each.key]] = load_fit(each) if each.manifest.kind == MAP else _map(each.folder, place, model)
        titles[short[each.key]] = name_of(each)
    return maps, titles


def short_name(title: str) -> str:
    """What programs call a map of the zoo: "one" is one-1@d8l6-5."""
    return title.partition("@")[0].removesuffix("-1")


def _title(saved: Path) -> str:
    """By what `load_map` finds a saved map: its name in the zoo, or its folder."""
    return (
        name_of(Store(saved.parent.parent).open(saved.parent.name, saved.name)) if _is_artefact(saved) else str(saved)
    )


def _is_artefact(place: Path) -> bool:
    from loopscope.store.manifest import MANIFEST

    return (place / MANIFEST).is_file()


def _map(saved: Path, folder: Path | None, model: Any) -> TokenMap:
    """A saved map; of a language model in a folder one that was fitted to it, in the map's own precision."""
    from loopscope.models.steering import FullPrecisionMap, check_fitted, load_steering_map

    if folder is None:
        return loading.load_map(saved).requires_grad_(False)
    found = load_steering_map(saved, folder, pieces_of(model).state_width)
    check_fitted(saved, folder, model.boundary, loop=model.loop)
    return FullPrecisionMap(found).to(next(model.parameters()).device)


def _tokenizer(place: Path) -> Tokenizer | None:
    """The tokenizer of a model folder; None where it has none."""
    from loopscope.models.text import TOKENIZER, load_tokenizer

    return load_tokenizer(place) if (place / TOKENIZER).is_file() else None


def maps_named(asked: Sequence[str], folder_of: Callable[[Path], Path]) -> dict[str, Path]:
    """Maps that a command names as NAME=FOLDER, the name optional; InputError where a name comes twice."""
    found: dict[str, Path] = {}
    for each in asked:
        name, equals, folder = each.partition("=")
        if not equals:
            name, folder = short_name(Path(each).name), each
        check_name("map", name)
        if name in found:
            raise InputError(f"--map names {shown(name)} twice{nearest(name, found)}")
        found[name] = folder_of(Path(folder))
    return found


def gibibytes(value: float) -> int:
    """Bytes of so many GiB; InputError for what is no size."""
    if not 0 < value < math.inf:
        raise InputError(f"--memory takes GiB above 0, not {value:g} (nearest: 4)")
    return int(value * 2**30)
