"""Relation composition: the world and the queries of record, paths against plain Python, splits that stay apart."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopscope.errors import DamagedError, InputError
from loopscope.tasks import relations as rel
from loopscope.tasks.labels import is_listed

# From the reference study's archive of its evaluation: (length, query) -> start, relations in base 16, answer.
ARCHIVED = {
    (1, 0): (30, "d", 60),
    (1, 1): (1, "6", 5),
    (1, 2): (35, "6", 28),
    (1, 105): (28, "9", 48),
    (32, 972): (31, "e8e850fb109a5bef3213f19bd7c885d1", 21),
    (32, 1023): (6, "50d1483eb8bdc803c4937ecaa18933f5", 50),
}


@st.composite
def queries(draw: st.DrawFn, longest: int = 14) -> tuple[torch.Tensor, torch.Tensor]:
    """Starts and relations of one length, for [rows] or [seeds, rows]."""
    length = draw(st.integers(1, longest))
    shape = draw(st.sampled_from([(), (1,), (4,), (2, 3)]))
    count = torch.Size(shape).numel()
    starts = draw(st.lists(st.integers(0, 63), min_size=count, max_size=count))
    followed = draw(st.lists(st.integers(0, 15), min_size=count * length, max_size=count * length))
    return torch.tensor(starts).view(shape), torch.tensor(followed).view(*shape, length)


@pytest.mark.parametrize(("length", "number"), ARCHIVED)
def test_world_and_evaluation_are_those_of_the_reference_study(length: int, number: int) -> None:
    asked = rel.evaluation(length)
    answer = rel.path(rel.world(), *asked)[:, -1]
    assert asked.relations.shape == (1024, length)
    followed = "".join(f"{relation:x}" for relation in asked.relations[number].tolist())
    assert (int(asked.starts[number]), followed, int(answer[number])) == ARCHIVED[length, number]


def test_the_world_is_sixteen_permutations() -> None:
    world = rel.world()
    assert world.shape == (16, 64)
    assert torch.equal(world.sort(dim=1).values, torch.arange(64).expand(16, -1))
    world.zero_()
    assert bool(rel.world().any()), "a caller who writes into the world must not change it for others"


@given(queries())
def test_tokens_paths_and_codes_against_plain_python(asked: tuple[torch.Tensor, torch.Tensor]) -> None:
    starts, followed = asked
    length, world = followed.shape[-1], rel.world()
    tokens, path, codes = rel.tokens(*asked), rel.path(world, *asked), rel.codes_of(*asked)
    assert tokens.shape == (*starts.shape, length + 2)
    assert path.shape == followed.shape
    facts = world.tolist()
    for start, row, ids, entities, code in zip(
        starts.flatten().tolist(),
        followed.reshape(-1, length).tolist(),
        tokens.reshape(-1, length + 2).tolist(),
        path.reshape(-1, length).tolist(),
        codes.flatten().tolist(),
        strict=True,
    ):
        assert ids == [0, 1 + start, *[65 + relation for relation in row]]
        assert max(ids) < rel.VOCABULARY == 81
        assert code == start * 16**length + int("".join(f"{relation:x}" for relation in row), 16)
        for relation, entity in zip(row, entities, strict=True):
            start = facts[relation][start]
            assert entity == start


@given(queries())
def test_codes_name_compositions(asked: tuple[torch.Tensor, torch.Tensor]) -> None:
    back = rel.queries_of(rel.codes_of(*asked), asked[1].shape[-1])
    assert torch.equal(back.starts, asked[0])
    assert torch.equal(back.relations, asked[1])


def test_the_largest_code_fits() -> None:
    largest = rel.codes_of(torch.tensor(63), torch.full((14,), 15))
    assert int(largest) == 64 * 16**14 - 1
    with pytest.raises(
        InputError, match=r"^compositions of 15 relations have no int64 code: the longest that have one"
    ):
        rel.codes_of(torch.tensor(0), torch.zeros(15, dtype=torch.int64))
    with pytest.raises(InputError, match=r"^compositions of 15 relations"):
        rel.queries_of(torch.tensor(0), 15)


FINGERPRINTS = {
    "selection-1": "21d63487c8d2b23c58fcd3682bb02a94a0aef0c81f8d1d24a7bd8373d41adbbd",
    "selection-2": "86717c368ecda167df48f9177f4298361f3d656e06cf0c3116478f4b64e06f14",
    "selection-3": "d628920b76a75c266f4934f5700e4d0837f715ac3c9a28c692d460b16a0a6d36",
    "test-1": "a566f4ec0c8034152de33d7d300d4e0d4e314fed8a546ce57f8a136dc3618a3d",
    "test-2": "ee7b163872e509c70ec9685d3df4bf5858313a0f89a240a279d335bdd97658b4",
    "test-3": "8885c71d90c2cc3f0edea557166586c795bb5cbc07cd318ecd27888b6071f0ef",
}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_splits_are_distinct_apart_and_as_recorded(length: int) -> None:
    codes = {}
    for split, size in (("selection", 256 if length == 1 else 512), ("test", 256 if length == 1 else 4096)):
        asked = rel.compositions(split, length)  # type: ignore[arg-type]
        assert asked.relations.shape == (size, length)
        codes[split] = rel.codes_of(*asked).tolist()
        assert len(set(codes[split])) == size
        assert rel.fingerprint(codes[split]) == FINGERPRINTS[f"{split}-{length}"]
    assert not set(codes["selection"]) & set(codes["test"])
    if length > 1:
        assert rel.held_out()[length].tolist() == sorted(codes["selection"] + codes["test"])


def test_splits_follow_their_recipe() -> None:
    """Drawn again from one run of the generator's numbers: a start and its relations, those seen skipped."""
    generator = torch.Generator().manual_seed(101 + 50_000 + 100 * 2 + 1)
    numbers = torch.randint(2**20, (3 * 6000,), generator=generator).view(-1, 3).tolist()
    drawn = [(start % 64 * 16 + first % 16) * 16 + second % 16 for start, first, second in numbers]
    selection = set(rel.codes_of(*rel.compositions("selection", 2)).tolist())
    fresh = [code for code in dict.fromkeys(drawn) if code not in selection]
    assert rel.codes_of(*rel.compositions("test", 2)).tolist() == fresh[:4096]


def test_only_lengths_two_and_three_are_held_out() -> None:
    assert {length: len(codes) for length, codes in rel.held_out().items()} == {2: 4608, 3: 4608}


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), min_size=1))
def test_held_out_is_membership(listed: list[int], asked: list[int]) -> None:
    found = is_listed(torch.tensor([asked]), torch.tensor(sorted(listed), dtype=torch.int64))
    assert found.tolist() == [[code in listed for code in asked]]


def test_a_library_that_draws_other_numbers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rel, "WORLD_SEED", 1)
    rel._world.cache_clear()
    with pytest.raises(DamagedError, match=r"^world came out different with torch .*: expected sha256 fd23.*, found "):
        rel.world()
    monkeypatch.undo()
    assert rel.world().shape == (16, 64)


def test_values_are_looked_at_only_when_asked() -> None:
    starts, followed = torch.tensor([64]), torch.tensor([[3]])
    assert rel.tokens(starts, followed, check=False).tolist() == [[0, 65, 68]]
    with pytest.raises(InputError, match=r"^entity 64 does not exist: it is one of 0 to 63$"):
        rel.tokens(starts, followed)
    with pytest.raises(InputError, match=r"^relation -1 does not exist: it is one of 0 to 15$"):
        rel.tokens(torch.tensor([0]), torch.tensor([[-1]]))


def test_mistakes_are_one_line() -> None:
    with pytest.raises(InputError, match=r"^there must be one start for each row of relations, not starts \[2\], rel"):
        rel.tokens(torch.tensor([0, 1]), torch.tensor([[1]]))
    with pytest.raises(InputError, match=r"^relations are torch.int32, but torch.int64 is needed$"):
        rel.tokens(torch.tensor([0]), torch.tensor([[1]], dtype=torch.int32))
    with pytest.raises(InputError, match=r"^no split 'test' of length 4: there are selection 1, selection 2"):
        rel.compositions("test", 4)
    with pytest.raises(InputError, match=r"^0 queries of 4 relations cannot be drawn: both numbers are 1 or more$"):
        rel.evaluation(4, 0)
    with pytest.raises(InputError, match=r"^8 queries of 0 relations cannot be drawn"):
        rel.evaluation(0, 8)
