"""Sweeps cut by examples: each part is a job, and what they give is put together again in order.

    from loopscope.jobs import sweep

    found = sweep("d8l6-5", tokens, "F6 F", "loop[7].layer[*].z", "(F6 J:one F)", maps={"one": "one-1@d8l6-5"},
                  metric="recovered", on="local:4", store="store", each=64)

A model and maps go by name or folder, because workers load them.  What a part holds decides the last bits of its sums,
who computes it does not: with equal `each` and threads, every engine and every number of workers gives equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscope import maps as saved
from loopscope.address import Address
from loopscope.bounds import whole
from loopscope.errors import InputError
from loopscope.execute.sweeping import Measured, Sweep
from loopscope.execute.sweeping import sweep as swept
from loopscope.execute.traces import Work
from loopscope.execute.unequal import named_rows
from loopscope.jobs.driver import JobsFailedError, OnEvent, Report, run
from loopscope.jobs.engine import Engine
from loopscope.jobs.job import Graph, Job, Needs
from loopscope.jobs.task import Keys, Place, Task, object_of, text_of
from loopscope.loading import CONFIG, load, load_map, map_folder, model_folder
from loopscope.models.passes import precision_named
from loopscope.program import as_program, as_source
from loopscope.store.files import sha256_of
from loopscope.store.manifest import MANIFEST, artefact_key, read_manifest
from loopscope.store.store import Artefact, Store

KIND, TENSORS, ABOUT = "sweep-part", "values.safetensors", "about.json"
EACH = 64
"""Examples of a part."""

Texts = Tensor | Sequence[Sequence[int]]


class Chunk(Task):
    """A part of something that is cut by examples; `compute` gives its tensors and whatever else is to be known."""

    def __init__(self, compute: Callable[[Job, Place], tuple[dict[str, Tensor], dict[str, Any]]]) -> None:
        self.compute = compute

    def found(self, job: Job, store: Store) -> Keys | None:
        """The part, if the store has it."""
        key = artefact_key(KIND, _config(job), dict(job.inputs))
        return {KIND: key} if store.has(KIND, key) else None

    def run(self, job: Job, at: Place) -> Keys:
        """The part, computed and written if it is not there."""
        there = self.found(job, at.store)
        if there is not None:
            return there
        tensors, about = self.compute(job, at)
        with at.store.write(KIND, _config(job), dict(job.inputs), at.device) as draft:
            draft.tensors(TENSORS, tensors)
            draft.json(ABOUT, about)
        return {KIND: draft.artefact.key}


def _config(job: Job) -> dict[str, Any]:
    """What a part is made from: threads and all, but no path; what is loaded is known by its hash."""
    settings = {name: value for name, value in job.settings.items() if name not in ("model", "maps")}
    return {**settings, "maps": sorted(job.settings["maps"]), "what": job.what, "threads": job.needs.cpus}


def _sweep(job: Job, at: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    asked = job.settings
    model, steps = loaded(job, at)
    answers = asked["answers"]
    found = swept(
        model, _given(asked["tokens"]), asked["program"], list(asked["addresses"]), asked["source"],
        metric=asked["metric"], answers=None if answers is None else torch.tensor(answers), maps=steps,
        others={name: _given(each) for name, each in object_of(job, "others").items()}, rows=asked["rows"],
    )  # fmt: skip
    values = found.logits if isinstance(found, Sweep) else found.values
    tensors = {"values": values.cpu(), "base": found.base.cpu()}
    metric = None if isinstance(found, Sweep) else found.metric
    return tensors, {"work": vars(found.work), "metric": metric, "addresses": [str(each) for each in found.addresses]}


SWEEP = Chunk(_sweep)


def sweep(
    model: str | Path,
    tokens: Texts,
    program: str,
    addresses: str | Address | Iterable[str | Address],
    source: str,
    *,
    metric: str | None = None,
    answers: Tensor | None = None,
    maps: Mapping[str, str | Path] | None = None,
    others: Mapping[str, Texts] | None = None,
    rows: Sequence[int | str] = (-1,),
    on: str | Engine = "local:1",
    store: Store | str | Path = "store",
    each: int = EACH,
    needs: Needs | None = None,
    dtype: str = "fp32",
    tell: OnEvent = lambda event, now: None,
    **how: Any,
) -> Sweep | Measured:
    """`loopscope.sweep`, `each` examples a job; `how` are `boundary` and `loop` of a language model.

    InputError for a metric that is no name, and as the sweep itself; JobsFailedError where parts could not be done.
    """
    places = [addresses] if isinstance(addresses, str | Address) else [*addresses]
    begin: dict[str, Any] = {
        "program": str(as_program(program)), "addresses": [str(each) for each in places], "source": source,
        "metric": metric, "rows": [*rows],
    }  # fmt: skip
    texts = {name: _listed(given) for name, given in (others or {}).items()}

    def part(first: int, last: int) -> dict[str, Any]:
        return {
            **begin, "tokens": _listed(tokens)[first:last],
            "answers": None if answers is None else answers[first:last].tolist(),
            "others": {name: given[first:last] for name, given in texts.items()},
        }  # fmt: skip

    jobs = cut("sweep", len(tokens), each, part, model, maps or {}, needs or Needs(), dtype, how)
    parts = done(jobs, store, on, tell)
    tensors = [found.tensors(TENSORS) for found in parts]
    values, base = (torch.cat([each[name] for each in tensors], at) for name, at in (("values", 1), ("base", 0)))
    about = [found.json(ABOUT) for found in parts]
    work = Work(*(sum(one["work"][name] for one in about) for name in ("calls", "rows", "plain_rows")))
    cells = tuple(Address.parse(text) for text in about[0]["addresses"])
    origin = as_source(source if source.lstrip().startswith(("(", "$", "+=", "*=", "<-")) else f"({source})")
    if metric is None:
        return Sweep(as_program(program), origin, cells, values, base, work, named_rows(rows))
    return Measured(as_program(program), origin, cells, about[0]["metric"], values, base, work, named_rows(rows))


# ---- parts of anything -----------------------------------------------------------------------------------------------


def cut(
    what: str, examples: int, each: int, part: Callable[[int, int], dict[str, Any]], model: str | Path,
    maps: Mapping[str, str | Path], needs: Needs, dtype: str, how: Mapping[str, Any],
) -> Graph:  # fmt: skip
    """A job for every `each` examples; the model and the maps are found here, and known by their hashes."""
    whole("each", each, 1, 2**20)
    if examples < 1:
        raise InputError("there are no examples to cut into parts")
    place = model_folder(model)
    folders = {name: map_folder(given) for name, given in maps.items()}
    inputs = {"model": _hash(place)} | {
        f"map-{name}": sha256_of(folder / saved.WEIGHTS_FILE) for name, folder in folders.items()
    }
    common: dict[str, Any] = {
        "model": str(place.absolute()), "maps": {name: str(folder.absolute()) for name, folder in folders.items()},
        "dtype": dtype, "how": dict(how),
    }  # fmt: skip
    made = []
    for first in range(0, examples, each):
        last = min(examples, first + each)
        title = f"{what}: examples {first + 1} to {last}"
        made.append(Job(title, what, common | part(first, last), inputs, needs))
    return Graph(tuple(made))


def done(
    graph: Graph, store: Store | str | Path, on: str | Engine, tell: OnEvent = lambda event, now: None
) -> list[Artefact]:
    """The parts of a graph, in order; JobsFailedError where one could not be made."""
    place = store if isinstance(store, Store) else Store(store)
    return parts_of(graph, run(graph, place, on, tell=tell), place)


def parts_of(graph: Graph, report: Report, store: Store) -> list[Artefact]:
    """The parts that a run of their graph has made, in order; JobsFailedError where one is missing."""
    if report.failures:
        raise JobsFailedError("; ".join(report.failures))
    return [store.open(KIND, report.outcomes[job.name].keys[KIND]) for job in graph]


def loaded(job: Job, at: Place) -> tuple[Any, dict[str, Any]]:
    """The model and the maps of a part, on its device."""
    precision = precision_named(text_of(job, "dtype"))
    model = load(text_of(job, "model"), device=at.device, dtype=precision, **object_of(job, "how"))
    steps = {name: load_map(folder).to(at.device) for name, folder in object_of(job, "maps").items()}
    return model, steps


def _hash(place: Path) -> str:
    """What tells a model from others: the key of its artefact, or the identity of a language model's folder."""
    if not (place / CONFIG).is_file() and (place / MANIFEST).is_file():
        return read_manifest(place).key
    from loopscope.models.identity import identify

    return identify(place).key


def _listed(texts: Texts) -> list[list[int]]:
    return texts.tolist() if isinstance(texts, Tensor) else [[*each] for each in texts]


def _given(texts: list[list[int]]) -> Tensor | list[list[int]]:
    """Tokens as `sweep` was given them: a tensor, where they are of one length."""
    return torch.tensor(texts) if len({len(each) for each in texts}) == 1 else texts
