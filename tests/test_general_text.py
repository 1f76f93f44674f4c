"""General text: the split, the chunks and the draws by their rules; the built-in text on this Python."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from loopscope.errors import DamagedError, InputError
from loopscope.tasks import general_text as general
from loopscope.tasks.general_text import Pool, Source


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def documents(side: bool, count: int, length: int) -> list[str]:
    """So many different documents of that length on one side of the split."""
    rng, found = random.Random(length), []
    while len(found) < count:
        text = "".join(rng.choices("abcdefgh", k=length))
        if general.is_validation(text) is side:
            found.append(text)
    return found


# ---- the split and the chunks ----------------------------------------------------------------------------------------


def test_one_in_ten_documents_is_for_validation() -> None:
    texts = [f"document {i}" for i in range(3000)]
    for text in texts[:50]:
        assert general.is_validation(text) == (int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 10 == 0)
    assert 240 < sum(map(general.is_validation, texts)) < 360


@pytest.mark.parametrize(("length", "count"), [(511, 0), (512, 1), (1023, 1), (1024, 2), (4608, 9), (9999, 9)])
def test_chunks_of_a_document(length: int, count: int) -> None:
    text = "".join(random.Random(length).choices("abcdefgh", k=length))
    cut = general.chunks(text, letters)
    assert len(cut) == count
    assert all(len(chunk) == 512 for chunk in cut)
    assert [id for chunk in cut for id in chunk] == letters(text)[: 512 * count]


def test_a_pool_keeps_the_sides_apart_and_the_order() -> None:
    train, validation = documents(False, 3, 1100), documents(True, 2, 1100)
    source = Source("both", (train[0], validation[0], train[1], "short", validation[1], train[2]), 0.7)
    made = general.pool(source, letters)
    assert made[:2] == ("both", 0.7)
    assert made.train == tuple(chunk for text in train for chunk in general.chunks(text, letters))
    assert made.validation == tuple(chunk for text in validation for chunk in general.chunks(text, letters))


def test_a_full_pool_takes_no_further_document() -> None:
    texts = (*documents(False, 80, 5000), *documents(True, 10, 5000))
    made = general.pool(Source("long", texts), letters)
    assert (len(made.train), len(made.validation)) == (603, 45)


@pytest.mark.parametrize(("side", "use"), [(True, "training"), (False, "validation")])
def test_a_pool_needs_both_sides(side: bool, use: str) -> None:
    with pytest.raises(InputError, match=f"of its 0 documents for {use} none has 512 tokens"):
        general.pool(Source("one-sided", tuple(documents(side, 4, 600))), letters)


# ---- draws -----------------------------------------------------------------------------------------------------------


def numbered(name: str, weight: float, first: int) -> Pool:
    """A pool whose chunks are known by their first id."""
    chunks = tuple((first + i, *range(511)) for i in range(5))
    return Pool(name, weight, chunks, chunks[:1] * 6)


POOLS = (numbered("a", 0.7, 1000), numbered("b", 0.3, 2000))


def test_rows_have_the_tokens_asked_for() -> None:
    rows = general.draw(POOLS, 1200, general.BACKBONE_SEED + 3)
    assert [len(row) for row in rows] == [512, 512, 176]
    assert rows == general.draw(POOLS, 1200, 8_000_003) != general.draw(POOLS, 1200, general.MAP_SEED + 3)
    whole = [chunk for pool in POOLS for chunk in pool.train]
    assert all(any(chunk[: len(row)] == row for chunk in whole) for row in rows)
    assert general.draw(POOLS, 0, 1) == ()
    assert [len(row) for row in general.draw(POOLS, 513, 1)] == [512]


def test_sources_are_drawn_by_weight() -> None:
    count = Counter(general.draw(POOLS, 2, seed)[0][0] // 1000 for seed in range(2000))
    assert 1330 < count[1] < 1470
    assert {row[0] for seed in range(100) for row in general.draw(POOLS, 2, seed)} == {
        chunk[0] for pool in POOLS for chunk in pool.train
    }


def test_a_fifth_of_all_tokens_is_general() -> None:
    assert general.tokens_beside(1200) == 300
    assert general.tokens_beside(1201) == 300


def test_the_watched_loss_is_the_mix_over_four_chunks() -> None:
    assert {name: len(chunks) for name, chunks in general.watched(POOLS).items()} == {"a": 4, "b": 4}
    assert general.mixed(POOLS, {"a": 2.0, "b": 1.0}) == pytest.approx(1.7)
    doubled = [pool._replace(weight=2 * pool.weight) for pool in POOLS]
    assert general.mixed(doubled, {"a": 2.0, "b": 1.0}) == pytest.approx(1.7)
    with pytest.raises(InputError, match="no loss was given for b"):
        general.mixed(POOLS, {"a": 2.0})
    with pytest.raises(InputError, match="at least one pool"):
        general.draw([], 10, 1)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_are_positive(weight: float) -> None:
    with pytest.raises(InputError, match="must be positive"):
        Source("text", ("a",), weight)


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_are_documents(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one\ntwo\n", encoding="utf-8")
    lines = [json.dumps({"text": text, "id": 1}, ensure_ascii=False) for text in ("drei", "four\nfive", "se\u2028x")]
    (tmp_path / "many.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    source = general.read([tmp_path / "one.txt", tmp_path / "many.jsonl"])
    assert source == Source("text", ("one\ntwo\n", "drei", "four\nfive", "se\u2028x"), 1.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"story": "b"}\n', "line 2: expected an object"),
        (b'{"text": 3}\n', "line 1: expected an object"),
        (b"[1]\n", "line 1: expected an object"),
        (b"{text}\n", "line 1: expected a JSON object"),
        (b"\xff\xfe\n", "expected UTF-8 text"),
        (b'{"text": "a\\ud800"}\n', "line 1: expected valid Unicode"),
        (b"[" * 100_000, "line 1: expected a JSON object"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "many.jsonl").write_bytes(content)
    with pytest.raises(DamagedError, match=message):
        general.read([tmp_path / "many.jsonl"])


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none.txt: No such file"):
        general.read([tmp_path / "none.txt"])
    with pytest.raises(InputError, match="has no documents"):
        general.read([])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path / "pipe.txt", Path("/dev/zero")):
        with pytest.raises(DamagedError, match="expected a file, found something else"):
            general.read([path])


# ---- the built-in text -----------------------------------------------------------------------------------------------


def test_the_built_in_text_has_both_sides_of_both_sources() -> None:
    prose, code = (general.pool(source, lambda text: letters(text)[::4]) for source in general.built_in())
    assert (prose.name, code.name) == ("prose", "code")
    assert prose.weight == code.weight
    assert len(code.train) >= 600
    assert len(code.validation) >= 40
    assert len(prose.train) > 100
    assert len(prose.validation) >= 4


def test_our_own_prose_is_on_both_sides() -> None:
    """Whatever the docstrings of a Python version are, there is prose to train on and prose to validate with."""
    ferry, clock = general.built_in()[0].documents[:2]
    assert ferry.startswith("The ferry")
    assert clock.startswith("When the clock")
    assert not general.is_validation(ferry)
    assert general.is_validation(clock)
    assert min(len(ferry.split()), len(clock.split())) > 450


def test_the_two_sources_have_no_file_in_common() -> None:
    prose, code = general.built_in()
    library = Path(sysconfig.get_paths()["stdlib"])
    assert set(code.documents) == {path.read_text(encoding="utf-8") for path in library.glob("*.py")}
    assert all((library / package / "__init__.py").exists() for package in general.PACKAGES)
    assert not set(prose.documents) & set(code.documents)
    assert any("JSON" in document for document in prose.documents)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DamagedError, match=r"pipe: expected a file, found something else"):
        general.read([tmp_path / "pipe"])
