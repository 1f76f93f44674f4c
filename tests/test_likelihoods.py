"""Likelihoods of texts under programs, and what benchmarks ask of a model: against plain runs, one text at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.harness import Benchmarked, benchmarked
from loopscope.maps import Dense, save_map
from loopscope.measure.likelihoods import Pair, log_likelihoods
from loopscope.models.decoding import generate
from loopscope.program import Program
from tests.kinds import KINDS
from tests.tuning_tiny import tuning_folder

PAIRS: list[Pair] = [([1, 2], [3]), ([4], [5, 6, 7]), ([1, 2, 3, 4], [5]), ([2], []), ([0, 7, 1], [1, 1])]


def moved(width: int) -> Dense:
    step = Dense(width)
    with torch.no_grad():
        step.W.add_(torch.randn(width, width, generator=torch.Generator().manual_seed(0)) * 0.2)
    return step.requires_grad_(False)


def by_hand(model: Any, pair: Pair, program: str, maps: Any) -> tuple[float, bool]:
    """One token after another, each read at the end of the text before it."""
    total, greedy = 0.0, True
    for at, token in enumerate(pair[1]):
        text = torch.tensor([[*pair[0], *pair[1][:at]]])
        asked = Program.parse(program)
        said = plain_run(model, {"main": text}, asked, maps=maps).read(asked.points[-1])[0, -1].double()
        total += float(said.log_softmax(-1)[token])
        greedy &= int(said.argmax()) == token
    return total, greedy


@pytest.mark.parametrize("kind", ["simple", "prelude and coda", "everything"])
@pytest.mark.parametrize("program", ["F3", "F J:mine F", "F2[layer[2].head[0].pattern<-(F J:mine F)]"])
def test_likelihoods_are_those_of_plain_runs(kind: str, program: str) -> None:
    model = KINDS[kind]().requires_grad_(False)
    maps = {"mine": moved(12).double()}
    if "[" in program:
        program = "F F[layer[2].head[0].pattern<-(F J:mine F)]"
    found = log_likelihoods(model, PAIRS, Program.parse(program), maps=maps, batch=2)
    for pair, (total, greedy) in zip(PAIRS, found, strict=True):
        expected = by_hand(model, pair, program, maps)
        assert total == pytest.approx(expected[0], abs=1e-5)
        assert greedy == expected[1]
    best = int(
        plain_run(model, {"main": torch.tensor([[1, 2]])}, Program.parse("F3"), maps={}).read("h3")[0, -1].argmax()
    )
    assert log_likelihoods(model, [([1, 2], [best])], "F3")[0][1]


def test_a_text_that_is_too_long_loses_its_beginning() -> None:
    model = KINDS["simple"]().requires_grad_(False)
    program = Program.parse("F2")
    long, cut = (log_likelihoods(model, [([*([1] * more), 2, 3], [4, 5])], program, longest=3)[0] for more in (9, 0))
    assert long[0] == pytest.approx(cut[0])
    with pytest.raises(InputError, match="text 1 asks for 4 tokens, but there are 3 positions"):
        log_likelihoods(model, [([1], [2, 3, 4, 5])], program, longest=3)


@pytest.mark.parametrize(
    ("kind", "pair", "program", "said"),
    [
        ("simple", ([], [1]), "F2", "text 1 has no tokens before those"),
        ("simple", ([1], [2]), "F J:mine F", "mine"),
        ("simple", ([1], [2]), "F F[layer[1].row[-1].z<-(F2)]", "patches a row counted from the end, and a text grows"),
        ("full mask", ([1, 2], [3]), "F2", "see"),
    ],
)
def test_what_has_no_likelihood_is_refused(kind: str, pair: Pair, program: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        log_likelihoods(KINDS[kind]().requires_grad_(False), [pair], Program.parse(program))


# ---- what benchmarks ask ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tuning_folder(tmp_path_factory.mktemp("lm") / "llama")
    save_map(moved(benchmarked(str(place)).given.model.width), place.parent / "mine")
    return place


@pytest.fixture(scope="module")
def asked(folder: Path) -> Benchmarked:
    return benchmarked(str(folder), "F J:mine F", f"mine={folder.parent / 'mine'}", batch_size=3, device="cpu")


def test_the_arguments_say_what_is_run(asked: Benchmarked, folder: Path) -> None:
    assert str(asked.program) == "F J:mine F"
    assert str(benchmarked(str(folder)).program) == f"F{asked.given.model.loops}"
    for arguments, said in (
        ({"program": "F J:mine F"}, "no map named 'mine' was given"),
        ({"map": "mine=x"}, "map mine: no program names it"),
        ({"batch_size": "auto"}, "batch_size is a whole number, not 'auto'"),
        ({"progam": "F"}, r"has no argument 'progam' \(nearest: program\)"),
        ({"dtype": "fp16"}, "no precision 'fp16'"),
    ):
        with pytest.raises(InputError, match=said):
            benchmarked(str(folder), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("longest", [None, 2, 3, 5])
def test_a_rolling_likelihood_has_every_token_once(folder: Path, longest: int | None) -> None:
    """Against plain runs: a window of so many tokens, as full as it can be, each token predicted once."""
    model = benchmarked(str(folder), max_length=longest, device="cpu")
    text = "abab aba b"
    tokens = model.tokenizer.encode(text, special=False)
    every, expected = [model.end, *tokens], 0.0
    size = longest or len(tokens)
    for first in range(0, len(tokens), size):
        last = min(first + size, len(tokens))
        window = every[max(0, last - size) : last]  # what is seen, of which the last rows are asked
        loops = str(model.program)
        points = Program.parse(loops)
        said = plain_run(model.given.model, {"main": torch.tensor([window])}, points, maps={}).read(points.points[-1])[
            0
        ]
        for at in range(first, last):
            expected += float(said[at - last].double().log_softmax(-1)[tokens[at]])
    assert model.rolling(text) == pytest.approx(expected, rel=1e-5)


def test_continuations_are_those_of_each_prompt_alone_and_end_at_until(asked: Benchmarked) -> None:
    model, tokenizer = asked.given.model, asked.tokenizer
    prompts = [tokenizer.encode(text) for text in ("ab", "abab ab", "b", "a b a b a")]
    greedy = [generate(model, [prompt], asked.program, new=6, maps=asked.given.maps).texts()[0] for prompt in prompts]
    said = asked.continuations([(prompt, {"max_gen_toks": 6}) for prompt in prompts])
    assert said == [tokenizer.decode(each) for each in greedy]
    end = next(text[1] for text in said if len(text) > 2)
    cut = asked.continuations([(prompt, {"max_gen_toks": 6, "until": [end]}) for prompt in prompts])
    assert cut == [text.partition(end)[0] for text in said]
    with pytest.raises(InputError, match=r"decoding here knows no 'num_beams'"):
        asked.continuations([(prompts[0], {"num_beams": 2})])


def test_drawn_texts_have_seeds_of_their_own(asked: Benchmarked) -> None:
    prompt = asked.tokenizer.encode("ab")
    how = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.5}
    several = asked.continuations([(prompt, how)] * 5)
    assert len(set(several)) > 1
    assert asked.continuations([(prompt, how)] * 5) == several
    assert asked.continuations([(prompt, {**how, "seed": 1})] * 4) == several[1:]
    greedy = asked.continuations([(prompt, {"max_gen_toks": 8})])
    assert asked.continuations([(prompt, {**how, "temperature": 0.0})]) == greedy
    assert asked.continuations([(prompt, {**how, "do_sample": False})]) == greedy
