"""Questions and replies: batches, cut replies, replies as bytes; antonym and iteration tests on a small model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loopscope.errors import InputError
from loopscope.maps import AffineMap, load_map
from loopscope.measure.replies import KEPT, WENT_ON, answers_name, as_bytes, as_texts, ask, asked, together
from loopscope.models.decoding import generate
from loopscope.models.folders import load
from loopscope.models.passes import LanguageModel
from loopscope.models.placement import after_each
from loopscope.models.text import Tokenizer, load_tokenizer
from loopscope.program import F, Program
from loopscope.studies.antonyms import tests as antonym_tests
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.tasks.antonyms import is_right, panel
from loopscope.tasks.iterations import bank, score
from tests.worded import worded_folder, worded_map


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Tokenizer, AffineMap]:
    folder: Path = tmp_path_factory.mktemp("worded")
    worded_folder(folder / "model")
    model = load(folder / "model").double()
    return model, load_tokenizer(folder / "model"), load_map(worded_map(folder / "map")).double()


At = tuple[LanguageModel, Tokenizer, AffineMap]


def test_replies_in_batches_are_those_of_each_alone(at: At) -> None:
    model, tokenizer, step = at
    questions = ["hot cold", "near", "hot cold", "Alice letter Bob . Carol 1 2 3", "wet dry fast"]
    program = Program.parse("F J:x F")
    said = ask(model, tokenizer, questions, program, new=5, maps={"x": step}, batch=2)
    assert len(set(said)) > 1
    for question, text in zip(questions, said, strict=True):
        tokens = torch.tensor([asked(tokenizer, question)])
        (alone,) = generate(model, tokens, program, new=5, maps={"x": step}).texts()
        assert text == tokenizer.decode(alone) + (WENT_ON if len(alone) == 5 else "")
    assert said[0] == said[2]
    with pytest.raises(InputError, match="a batch has at least 1 question"):
        ask(model, tokenizer, questions, program, new=5, batch=0)


def test_a_reply_that_went_on_is_never_a_whole_answer() -> None:
    assert is_right("hot cold", "hot cold")
    assert not is_right("hot cold" + WENT_ON, "hot cold")
    request = iteration_tests.requests(1)[0]
    assert score(request, request.answer) == (True, True)
    assert score(request, request.answer + WENT_ON) == (False, True)


def test_texts_survive_as_bytes() -> None:
    texts = ["", "hot cold", "Größe \N{SNOWMAN}\n", "a\0b", "x" * 300, "\N{SNOWMAN}" * 99]
    found = as_texts(as_bytes(texts))
    assert found[:3] == texts[:3]
    assert found[3] == "a b"
    for whole, kept in zip(texts[4:], found[4:], strict=True):
        assert len(kept.encode()) <= KEPT
        assert kept.endswith(WENT_ON)
        assert whole.startswith(kept.removesuffix(WENT_ON))
    assert as_texts(as_bytes([])) == []
    with pytest.raises(InputError, match="prompts must be of one length, not of 1, 2 tokens"):
        together([[1], [1, 2]])


# ---- antonyms --------------------------------------------------------------------------------------------------------


def test_depths_are_asked_with_and_without_the_map(at: At) -> None:
    found = antonym_tests.measure_depths(*at, sequences=3, batch=8)
    model, tokenizer, step = at
    requests = antonym_tests.depth_requests(5, 3)
    assert [(each.k, each.words) for each in requests[:4]] == [*((1, words) for words in panel()[:3]), (2, panel()[0])]
    assert {each.form for each in requests} == {"stepwise"}
    for steered, program in ((False, F**4), (True, after_each("flip", 4))):
        said = as_texts(found[answers_name(5, steered)])
        tokens = torch.tensor([asked(tokenizer, requests[7].prompt)])
        (alone,) = generate(model, tokens, program, new=16, maps={"flip": step}).texts()
        assert said[7].removesuffix(WENT_ON) == tokenizer.decode(alone)
    assert as_texts(found["template 0, J"]) != as_texts(found["template 0, no map"])


def test_a_map_for_more_loops_is_compared_with_the_backbone_as_it_was_trained(at: At, tmp_path: Path) -> None:
    _, tokenizer, step = at
    worded_folder(tmp_path / "model")
    model = load(tmp_path / "model", loops=6).double()
    found = antonym_tests.measure_depths(model, tokenizer, step, sequences=3, batch=8)
    asked_for = [request.prompt for request in antonym_tests.depth_requests(5, 3)]
    native, further = (ask(model, tokenizer, asked_for, F**loops, new=16, batch=8) for loops in (4, 6))
    assert as_texts(found["template 5, no map"]) == as_texts(as_bytes(native)) != as_texts(as_bytes(further))
    steered = ask(model, tokenizer, asked_for, after_each("x", 6), new=16, maps={"x": step}, batch=8)
    assert as_texts(found["template 5, J"]) == as_texts(as_bytes(steered))


@pytest.mark.parametrize(("form", "requests"), [("final-only", 4 * 3), ("stepwise", 3)])
def test_readouts_truncated_and_chosen_begin_alike(at: At, form: str, requests: int) -> None:
    """Both read the same h_t at the prompt's last row; the whole of the last loop is the same."""
    model, tokenizer, _ = at
    asked_for = antonym_tests.readout_requests(form, 3)
    assert [each.k for each in asked_for] == ([1] * 3 + [2] * 3 + [3] * 3 + [4] * 3 if requests == 12 else [4] * 3)
    found = antonym_tests.measure_readouts(model, tokenizer, form, sequences=3)
    assert len(found) == 2 * model.loops
    first = {name: [text.split(" ")[0] for text in as_texts(table)] for name, table in found.items()}
    for loop in range(1, model.loops + 1):
        assert first[f"truncated, loop {loop}"] == first[f"chosen, loop {loop}"]
        assert len(first[f"chosen, loop {loop}"]) == requests
    assert torch.equal(found["truncated, loop 4"], found["chosen, loop 4"])


def test_what_cannot_be_asked_of_antonyms() -> None:
    with pytest.raises(InputError, match=r"no backbone is supervised 'step'.*nearest: stepwise"):
        antonym_tests.readout_requests("step", 3)
    for count in (0, 65):
        with pytest.raises(InputError, match=f"cannot take {count} of 64 sequences"):
            antonym_tests.depth_requests(0, count)


# ---- iterations ------------------------------------------------------------------------------------------------------


def test_the_four_branches() -> None:
    common = "F J:step F J:step F J:step F"
    assert {name: str(program) for name, program in iteration_tests.branches().items()} == {
        "J+F": common + " J:step F" * 4,
        "F": "F J:step F J:step F J:step F5",
        "J": common + " J:step" * 4,
        "stop": common,
    }
    assert all(program.points[7] == "h4" for program in iteration_tests.branches().values())


def test_requests_are_those_of_both_banks() -> None:
    held_out, trained = (iteration_tests.requests(split=split) for split in iteration_tests.STARTS)
    assert (held_out, trained) == (bank("test"), bank("train"))
    assert {request.prompt for request in held_out}.isdisjoint(request.prompt for request in trained)
    assert iteration_tests.requests(2, "train") == bank("train", cases=2)
    with pytest.raises(InputError, match=r"no split 'trained' of starts.*nearest: train"):
        iteration_tests.requests(1, "trained")


def test_all_branches_part_from_the_same_bits(at: At) -> None:
    questions = [request.prompt for request in iteration_tests.requests(1)[:6]]
    one, *others = iteration_tests.common_states(*at, questions).values()
    assert len(others) == 3
    assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("split", ["test", "train"])
def test_every_branch_says_what_its_program_says(at: At, split: str) -> None:
    model, tokenizer, step = at
    found = iteration_tests.measure(*at, cases=1, split=split, batch=16)
    requests = iteration_tests.requests(1, split)
    assert {name: len(table) for name, table in found.items()} == dict.fromkeys(iteration_tests.branches(), 40)
    tokens = torch.tensor([asked(tokenizer, requests[9].prompt)])
    for name, program in iteration_tests.branches().items():
        (alone,) = generate(model, tokens, program, new=12, maps={"step": step}).texts()
        assert as_texts(found[name])[9].removesuffix(WENT_ON) == tokenizer.decode(alone)
    assert len({as_texts(table)[9] for table in found.values()}) > 1
