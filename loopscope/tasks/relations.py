"""Relation composition: start at an entity and follow one relation after another.

The world has 64 entities and 16 relations, and each relation is a permutation of the entities.  The model reads

    BOS  e_0  r_1  r_2  ...  r_n

and answers e_n at the last place, where e_t is the entity that relation r_t leads to from e_(t-1).  The facts of the
world are in no input: they have to be learned.  A start with its n relations is a *composition* of length n.

Tokens, paths and codes have shapes known beforehand, take any leading axes ([batch], or [seeds, batch]) and are made on
the device of their input without waiting for it.  Only `tokens` reads values back to the host, and only if it checks.

Every recipe below is the reference study's: the world from seed 20260814; evaluation queries of length n from the seed
`base + 7 n`; the selection and test compositions of length n from the seeds 50,101 + 100 n and 50,102 + 100 n, where
50,101 is that study's model seed, 101, and 50,000.  The fingerprints are our own, as none is on record.  What is drawn
is compared with them each time, so a library that draws other numbers is noticed before a result is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from loopscope.errors import DamagedError, InputError
from loopscope.tasks.labels import check_int64, check_range

ENTITIES, RELATIONS = 64, 16
BOS = 0
FIRST_ENTITY = 1
"""Id of entity 0: entities are the ids 1..64."""

FIRST_RELATION = FIRST_ENTITY + ENTITIES
"""Id of relation 0: relations are the ids 65..80."""

VOCABULARY = FIRST_RELATION + RELATIONS
LONGEST_CODED = 14
"""A composition read as a number of base 16 behind its start fits int64 up to 14 relations."""

WORLD_SEED = 20260814
EVALUATION_SEED = 1_990_000
"""Base seed of the evaluation at every length; the early-stop checks of map training use 990,000."""

LENGTH_FACTOR = 7
SPLIT_SEEDS: Mapping[str, int] = {"selection": 50_101, "test": 50_102}

Split = Literal["selection", "test"]
SIZES: Mapping[tuple[Split, int], int] = {
    ("selection", 1): 256,
    ("selection", 2): 512,
    ("selection", 3): 512,
    ("test", 1): 256,
    ("test", 2): 4096,
    ("test", 3): 4096,
}
"""How many compositions a split has at each length.  At length 1 each takes a quarter of the 1,024 facts."""

HELD_OUT_LENGTHS = (2, 3)
"""Lengths whose selection and test compositions are kept from training.  Every single fact can be learned."""

SHA256: Mapping[str, str] = {
    "world": "fd23460e520a62f302946417b40f3d87dfd9f9c397cac9205bb5bf027e500ddc",
    "selection-1": "21d63487c8d2b23c58fcd3682bb02a94a0aef0c81f8d1d24a7bd8373d41adbbd",
    "selection-2": "86717c368ecda167df48f9177f4298361f3d656e06cf0c3116478f4b64e06f14",
    "selection-3": "d628920b76a75c266f4934f5700e4d0837f715ac3c9a28c692d460b16a0a6d36",
    "test-1": "a566f4ec0c8034152de33d7d300d4e0d4e314fed8a546ce57f8a136dc3618a3d",
    "test-2": "ee7b163872e509c70ec9685d3df4bf5858313a0f89a240a279d335bdd97658b4",
    "test-3": "8885c71d90c2cc3f0edea557166586c795bb5cbc07cd318ecd27888b6071f0ef",
}
"""Fingerprints of the world and of each split."""


class Queries(NamedTuple):
    """Compositions of one length: where each starts and which relations it follows."""

    starts: Int[Tensor, "*batch"]
    relations: Int[Tensor, "*batch length"]


# ---- tokens and paths ------------------------------------------------------------------------------------------------


def tokens(
    starts: Int[Tensor, "*batch"], relations: Int[Tensor, "*batch length"], *, check: bool = True
) -> Int[Tensor, "*batch tokens"]:
    """The token ids of each query: BOS, the start, its relations.

    Raises InputError for a shape or type that does not fit, or an entity or relation that does not exist.
    `check=False` leaves out the checks of tensor values, which make a GPU wait.
    """
    for what, tensor in (("starts", starts), ("relations", relations)):
        check_int64(what, tensor)
    if relations.ndim == 0 or starts.shape != relations.shape[:-1]:
        shapes = f"starts {list(starts.shape)}, relations {list(relations.shape)}"
        raise InputError(f"there must be one start for each row of relations, not {shapes}")
    if check:
        check_range("entity", starts, 0, ENTITIES - 1)
        check_range("relation", relations, 0, RELATIONS - 1)
    entity = starts.unsqueeze(-1) + FIRST_ENTITY
    return torch.cat([torch.full_like(entity, BOS), entity, relations + FIRST_RELATION], dim=-1)


def path(
    world: Int[Tensor, "relations entities"], starts: Int[Tensor, "*batch"], relations: Int[Tensor, "*batch length"]
) -> Int[Tensor, "*batch length"]:
    """The entities e_1, ..., e_n that each query passes through; the last is its answer.  All on one device."""
    entity, entities = starts, []
    for relation in relations.unbind(dim=-1):
        entity = world[relation, entity]
        entities.append(entity)
    return torch.stack(entities, dim=-1)


@cache
def _world() -> tuple[tuple[int, ...], ...]:
    generator = torch.Generator().manual_seed(WORLD_SEED)
    rows = tuple(tuple(torch.randperm(ENTITIES, generator=generator).tolist()) for _ in range(RELATIONS))
    _check_fingerprint("world", (entity for row in rows for entity in row))
    return rows


def world() -> Int[Tensor, "relations entities"]:
    """The facts: entry (r, e) is the entity that relation r leads to from entity e.  A new CPU tensor at every call.

    Raises DamagedError if this machine draws another world than the recorded one.
    """
    return torch.tensor(_world())


# ---- identity --------------------------------------------------------------------------------------------------------


def codes_of(starts: Int[Tensor, "*batch"], relations: Int[Tensor, "*batch length"]) -> Int[Tensor, "*batch"]:
    """One integer per composition: its relations are the base-16 digits behind its start.

    Codes tell compositions of one length apart, not lengths.  Raises InputError above 14 relations.
    """
    _check_coded(relations.shape[-1])
    code = starts
    for relation in relations.unbind(dim=-1):
        code = code * RELATIONS + relation
    return code


def queries_of(codes: Int[Tensor, "*batch"], length: int) -> Queries:
    """The compositions of this length with these codes: the inverse of `codes_of`.  InputError above 14 relations."""
    _check_coded(length)
    digits = [codes // RELATIONS**place % RELATIONS for place in reversed(range(length))]
    return Queries(codes // RELATIONS**length, torch.stack(digits, dim=-1))


def _check_coded(length: int) -> None:
    if length > LONGEST_CODED:
        longest = f"the longest that have one have {LONGEST_CODED}"
        raise InputError(f"compositions of {length} relations have no int64 code: {longest}")


# ---- what is evaluated -----------------------------------------------------------------------------------------------


@cache
def _codes(split: Split, length: int) -> tuple[int, ...]:
    """The codes of a split in the order drawn: compositions one by one, those drawn before skipped."""
    generator = torch.Generator().manual_seed(SPLIT_SEEDS[split] + 100 * length)
    taken = set(_codes("selection", length)) if split == "test" else set()
    drawn: list[int] = []
    while len(drawn) < SIZES[split, length]:
        start = torch.randint(ENTITIES, (), generator=generator)
        relations = torch.randint(RELATIONS, (length,), generator=generator)
        code = int(codes_of(start, relations))
        if code not in taken:
            taken.add(code)
            drawn.append(code)
    _check_fingerprint(f"{split}-{length}", drawn)
    return tuple(drawn)


def compositions(split: Split, length: int) -> Queries:
    """The distinct compositions of a split ("selection" chooses checkpoints, "test" is looked at once), length 1 to 3.

    Raises InputError for a split or length that does not exist, and DamagedError if this machine draws other
    compositions than the recorded ones.
    """
    if (split, length) not in SIZES:
        known = ", ".join(f"{name} {size}" for name, size in SIZES)
        raise InputError(f"no split {split!r} of length {length!r}: there are {known}")
    return queries_of(torch.tensor(_codes(split, length)), length)


def held_out() -> dict[int, Int[Tensor, " codes"]]:
    """For lengths 2 and 3, the codes of the compositions kept from training: selection and test, ascending."""
    return {
        length: torch.tensor(sorted(_codes("selection", length) + _codes("test", length)))
        for length in HELD_OUT_LENGTHS
    }


def evaluation(length: int, count: int = 1024, base: int = EVALUATION_SEED) -> Queries:
    """Uniform queries of one length from a CPU generator with the seed `base + 7 * length`: all starts, then relations.

    Nothing is left out, so a query may be a composition seen in training.  InputError for a length or count below 1.
    """
    if length < 1 or count < 1:
        raise InputError(f"{count} queries of {length} relations cannot be drawn: both numbers are 1 or more")
    generator = torch.Generator().manual_seed(base + LENGTH_FACTOR * length)
    starts = torch.randint(ENTITIES, (count,), generator=generator)
    return Queries(starts, torch.randint(RELATIONS, (count, length), generator=generator))


def fingerprint(numbers: Iterable[int]) -> str:
    """SHA-256 of the numbers in decimal, one a line, without a final newline."""
    return hashlib.sha256("\n".join(map(str, numbers)).encode()).hexdigest()


def _check_fingerprint(name: str, numbers: Iterable[int]) -> None:
    found = fingerprint(numbers)
    if found != SHA256[name]:
        what = f"{name} came out different with torch {torch.__version__}"
        raise DamagedError(f"{what}: expected sha256 {SHA256[name]}, found {found}")
