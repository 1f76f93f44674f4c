"""Tokenizers of a task's words: texts come back, names are aligned, nothing is unknown, models are made with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from loopscope.errors import InputError
from loopscope.measure.replies import asked
from loopscope.models.folders import load
from loopscope.models.text import Tokenizer, load_tokenizer
from loopscope.studies.letters.tests import answer_tokens
from loopscope.tasks import letters
from loopscope.tasks.general_text import CHUNK, chunks, read
from loopscope.tasks.letters.pairs import SETS, check_aligned, pairs
from loopscope.tasks.letters.training import held, lookups, retold
from loopscope.training.lm.words import UNKNOWN, write_words
from tests.commands import loopscope


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("words") / "letters"
    count = write_words(folder, "letters")
    found = load_tokenizer(folder)
    assert count == found.parts.get_vocab_size() < 200
    return found


@given(seed=some.integers(0, 2**40), k=some.integers(1, 99), template=some.integers(0, 5))
def test_every_question_comes_back_from_known_tokens(words: Tokenizer, seed: int, k: int, template: int) -> None:
    text = letters.prompt(letters.draw(seed, k, template))
    ids = words.encode(text)
    assert words.decode(ids) == text
    assert words.parts.token_to_id(UNKNOWN) not in [*ids, *asked(words, text)]


def test_a_name_is_one_token_wherever_it_stands(words: Tokenizer) -> None:
    for name in letters.NAMES:
        (token,) = words.encode(name)
        rule = letters.RULE.format(giver=name, taker=name)
        assert words.encode(f"{rule}\n{rule}").count(token) == 4
        assert words.name(token) == name
    assert len(set(answer_tokens(words))) == len(letters.NAMES)


def test_pairs_are_aligned_in_the_chat(words: Tokenizer) -> None:
    for name in SETS:
        for pair in pairs(name)[:8]:
            check_aligned(pair, lambda text: asked(words, text), words.encode)
    lengths = {len(asked(words, letters.prompt(each))) for k in (1, 8) for each in letters.evaluation(k)}
    assert len(lengths) == 1


def test_answers_are_found_in_texts_to_learn_from(words: Tokenizer) -> None:
    found = lookups(7, 2, 4, 10)
    places, text = [], ""
    for before, answer in found.turns:
        places.append(len(text) + len(before))
        text += before + answer
    ((ids, firsts),) = words.encode_with_places([text], [places])
    assert [ids[first] for first in firsts if first is not None] == [words.encode(name)[0] for _, name in found.turns]


def test_rules_are_told_again_about_graphs_that_nobody_is_asked_about(words: Tokenizer) -> None:
    for number in range(20):
        rules = retold(number).split("\n")
        edges = {(line.split()[0], line.split()[-1].rstrip(".")) for line in rules}
        assert (len(rules), len(edges), len({giver for giver, _ in edges})) == (80, 10, 10)
        assert tuple(sorted(edges)) not in held()
        assert all(len({line.split()[0] for line in rules[start : start + 10]}) == 10 for start in range(0, 80, 10))
        assert len(chunks(retold(number), words.encode)) == 80 * 8 // CHUNK == 1


def test_rules_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert loopscope(capsys, "lm", "rules", "--out", "rules.jsonl", "--count", "3")[0] == 0
    assert read([tmp_path / "rules.jsonl"]).documents == (retold(0), retold(1), retold(2))
    for wrong in (["rules.jsonl"], ["rules.txt"], ["new.jsonl", "--count", "0"]):
        code, out, err = loopscope(capsys, "lm", "rules", "--out", *wrong)
        assert (code, out, err.count("\n")) == (2, "", 1)


def test_what_is_no_word_is_unknown_and_bytes_are_always_the_same(
    words: Tokenizer, tmp_path: Path, refused: Callable[..., str]
) -> None:
    assert words.encode("zebra") == [words.parts.token_to_id(UNKNOWN)]
    write_words(tmp_path / "again", "letters")
    for file in words.folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()
    assert "exists already" in refused(InputError, write_words, tmp_path / "again", "letters")
    assert "(nearest: letters)" in refused(InputError, write_words, tmp_path / "other", "leters")


def test_a_new_model_of_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Tokenizer
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ["lm", "new", "--layers", "1", "--width", "16", "--heads", "2", "--out", "new"]
    code, _, err = loopscope(capsys, *sizes)
    assert (code, err.count("\n")) == (2, 1)
    assert "either --tokenizer FOLDER or --words letters" in err
    code, _, err = loopscope(capsys, *sizes, "--words", "leters")
    assert (code, [*tmp_path.iterdir()]) == (2, [])
    assert "(nearest: letters)" in err
    code, _, err = loopscope(capsys, *sizes, "--words", "letters")
    assert (code, err) == (0, "")
    model = load(tmp_path / "new")
    assert model.vocabulary == words.parts.get_vocab_size()
    assert model.ends == (words.parts.token_to_id("<|im_end|>"),)
