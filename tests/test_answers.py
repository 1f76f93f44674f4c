"""Whole answers and a map's controls: tokens of examples, partners, the state of another example, intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from loopscope import F, J, load, run
from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense
from loopscope.measure.answers import (
    Item,
    commonest,
    encode,
    moved_answers,
    partners,
    read_at_map,
    whole_answers,
    without_map,
)
from loopscope.measure.find_heads import find_heads
from loopscope.measure.side_by_side import (
    CHANGE,
    NO_F,
    OUTPUT,
    WITH,
    WITHOUT,
    Condition,
    SideBySide,
    by_steps,
    statement,
)
from loopscope.models.text import load_tokenizer
from loopscope.program import Program
from loopscope.stats import wilson
from loopscope.tasks.examples import Example, examples
from tests.kinds import KINDS
from tests.model_folders import put_tokenizer


def item(prompt: tuple[int, ...], *answer: int, cluster: str | None = None, steps: int | None = None) -> Item:
    return Item(Example(prompt, answer, steps, cluster=cluster), prompt, answer)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_texts_are_prompt_and_answer_with_a_space_between_or_a_chat(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(put_tokenizer(tmp_path / "t"))
    (plain,) = encode(examples([{"prompt": "ab", "answer": "ab"}]), tokenizer)
    assert plain.prompt + plain.answer == tuple(tokenizer.encode("ab ab"))
    assert plain.prompt == tuple(tokenizer.encode("ab"))
    (chat,) = encode(examples([{"prompt": "ab", "answer": "ab"}]), tokenizer, chat=True)
    assert chat.prompt == tuple(tokenizer.encode_chat([{"role": "user", "content": "ab"}]))
    assert chat.answer[-1] == tokenizer.encode("<|im_end|>")[-1]  # the end of the turn belongs to the answer


def test_an_answer_that_makes_no_tokens_is_refused_by_its_line(tmp_path: Path) -> None:
    folder = put_tokenizer(tmp_path / "t")
    small = Tokenizer(models.BPE({"a": 0, "b": 1, " ": 2}, []))  # what it does not know is left out
    small.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "tokenizer.json").write_text(small.to_str(), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    for row, said in (
        ({"prompt": "ab", "answer": "z"}, "example 1: the answer 'z' makes no tokens"),
        ({"prompt": "z", "answer": "ab"}, "example 1: the prompt 'z' makes no tokens"),
    ):
        with pytest.raises(InputError, match=said):
            encode(examples([row]), tokenizer)
    with pytest.raises(InputError, match="example 1 has 4 tokens, but the model has 3 positions"):
        encode(examples([{"prompt": "abab", "answer": "a"}]), tokenizer, positions=3)


def test_an_answer_that_no_vocabulary_has_is_refused_by_its_line(tmp_path: Path) -> None:
    folder = put_tokenizer(tmp_path / "t")
    words = Tokenizer(models.WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (folder / "tokenizer.json").write_text(words.to_str(), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    rows = [{"prompt": "a z", "answer": "b"}, {"prompt": "a", "answer": "z b"}]
    assert encode(examples(rows[:1]), tokenizer)[0].prompt == (1, 0)
    with pytest.raises(InputError, match="example 2: the answer 'z b' has what the model's vocabulary has not"):
        encode(examples(rows), tokenizer)


# ---- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["simple", "full mask", "everything"])
def test_whole_answers_are_those_of_plain_runs_one_at_a_time(kind: str) -> None:
    """Prompts of unequal length, answers of one token or two, right and wrong ones."""
    model = KINDS[kind](torch.float32).requires_grad_(False)
    draws = torch.Generator().manual_seed(0)
    longest = 1 if kind == "full mask" else 2
    items, expected = [], []
    step = Dense(12)
    with torch.no_grad():
        step.W.add_(torch.randn(12, 12, generator=draws) * 0.3)
    program = F | J("mine") | F
    for at in range(12):
        prompt = tuple(torch.randint(0, 8, (2 + at % 3,), generator=draws).tolist())
        said: tuple[int, ...] = ()
        for _ in range(1 + at % longest):  # greedily, token by token
            run = plain_run(model, {"main": torch.tensor([prompt + said])}, program, maps={"mine": step})
            said += (int(run.read(program.points[-1])[0, -1].argmax()),)
        answer = said if at % 2 else (*said[:-1], (said[-1] + 1) % 8)
        items.append(item(prompt, *answer))
        expected.append(bool(at % 2))
    found = whole_answers(model, items, [program, str(program)], maps={"mine": step}, batch=5)
    assert found.tolist() == [expected, expected]


def test_a_rounded_model_and_its_map_in_fp32_run_together() -> None:
    """As they come from `lm finetune` and `lm fit`, without a wrapper around the map."""
    model = KINDS["simple"](torch.bfloat16)
    maps = {"mine": Dense(model.width)}
    items = [item((1, 2, 3), 4), item((5, 6, 7), 0)]
    plain, steered = whole_answers(model, items, [F**2, F | J("mine") | F], maps=maps)
    assert plain.tolist() == steered.tolist()  # the map is the identity
    both = run(model, torch.tensor([[1, 2, 3]]), [F**2, F | J("mine") | F], maps=maps)
    assert torch.equal(both[F**2].logits, both[F | J("mine") | F].logits)


def test_programs_without_a_map_and_read_at_it() -> None:
    program = Program.parse("F2 J:mine F J:other J:mine F2")
    assert str(without_map(program, "mine")) == "F3 J:other F2"
    assert str(read_at_map(program, "mine")) == "F2 J:mine F J:other J:mine"
    assert str(read_at_map(Program.parse("F2 J:mine"), "mine")) == "F J:mine"
    assert read_at_map(Program.parse("F J:mine"), "mine") is None


def test_partners_have_another_answer_and_cluster_and_as_many_tokens() -> None:
    items = [item((1, 2), 3, cluster="a"), item((1, 3), 4, cluster="a"), item((2, 3), 3, cluster="b"),
             item((2, 4), 5, cluster="b"), item((1, 2, 3), 6)]  # fmt: skip
    assert partners(items) == [3, 2, 1, 0, None]
    assert commonest(items) == items[:4]


def test_an_unrelated_example_has_another_first_token_where_heads_are_looked_for() -> None:
    items = [item((at, 1), 3, at) for at in range(40)]
    with pytest.raises(InputError, match="of 40 held out, 0 have the commonest length, 2 tokens, and an unrelated"):
        find_heads(load("tiny-0"), Dense(64), items, "F J:mine F")


def test_heads_are_found_in_a_model_of_several_stacks() -> None:
    """The heads of the last stack, in its calls; patches that must change nothing do not."""
    model, step = KINDS["two stacks"](torch.float32), Dense(24)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        step.W.add_(torch.randn(24, 24, generator=draws) * 0.5)
    program = Program.parse("L H J:mine L H")
    prompts = torch.randint(0, 8, (60, 3), generator=draws)
    said = plain_run(model, {"main": prompts}, program, maps={"mine": step}).read(program.points[-1])[:, -1].argmax(-1)
    items = [item(tuple(each), int(answer)) for each, answer in zip(prompts.tolist(), said, strict=True)]
    found = find_heads(model, step, items, program)
    assert {each.loop for each in found.sweep} == {4}  # the calls of H
    asked = found.parts["discovery"]
    for each in found.sweep:
        exact = wilson(each.right, asked)  # no example has a cluster
        assert each.right_interval == (exact.low, exact.high)
        assert each.probability_interval is not None
        assert each.probability_interval[0] <= each.probability <= each.probability_interval[1]
    assert {"right", "probability"} == {*found.table().estimated}
    assert found.selection is not None
    shares = {each.name: float(each.right.float().mean()) for each in found.steering.conditions}
    assert shares["steered"] == 1 > shares["unsteered"]
    assert max(found.errors.values()) < 1e-4


def test_the_state_and_the_change_of_another_example() -> None:
    """With a constant map, another example's output is one's own; its change takes one's own state elsewhere."""
    model: Any = load("tiny-0")
    tokens = torch.tensor([[0, 6, 1, 7, 2, 8, 3], [1, 6, 2, 7, 3, 8, 4]])
    constant = Dense(model.width)
    with torch.no_grad():
        constant.W.zero_()
        constant.b.copy_(torch.randn(model.width, generator=torch.Generator().manual_seed(0)))
    program = Program.parse("F J:mine F")

    def expected(at: int, other: int, what: str) -> int:
        h = model.call(model.embed(tokens))
        moved = constant(h[other]) if what == "output" else h[at] + constant(h[other]) - h[other]
        return int(model.read(model.call(moved[None]))[0, -1].argmax())

    for what in ("output", "change"):
        said = [expected(at, 1 - at, what) for at in range(2)]
        if said[0] == said[1]:  # answers must differ for these to be partners
            said[1] = (said[0] + 1) % 6
        items = [item(tuple(row.tolist()), answer) for row, answer in zip(tokens, said, strict=True)]
        at, right = moved_answers(model, items, program, "mine", maps={"mine": constant}, what=what)
        assert at == [0, 1]
        assert right.tolist() == [expected(each, 1 - each, what) == said[each] for each in at]


# ---- intervals and sentences -----------------------------------------------------------------------------------------


def compared(with_j: list[int], without: list[int], short: list[int], clusters: bool = False) -> SideBySide:
    n = len(with_j)
    asked = tuple(Example("q", "a", 1 + at % 2, cluster=str(at // 2) if clusters else None) for at in range(n))
    rows = ((WITH, with_j), (WITHOUT, without), (NO_F, short), (OUTPUT, [0] * n), (CHANGE, with_j))
    return SideBySide(
        asked, tuple(Condition(name, "F", tuple(range(n)), torch.tensor(each).bool()) for name, each in rows)
    )


def test_differences_are_paired_and_clusters_are_resampled() -> None:
    """The same share on both sides: paired, the interval is 0 wide; clusters of two make shares less certain."""
    some = [1, 1, 0, 0] * 10
    found = compared(some, some, some[::-1])
    rows = {row.at["condition"]: row.estimate for row in found.differences().rows}
    assert (rows[WITHOUT].value, rows[WITHOUT].low, rows[WITHOUT].high) == (0, 0, 0)
    assert rows[NO_F].value == 0
    assert rows[NO_F].low < -0.2
    single, together = (compared(some, some, some, each).right().rows[0].estimate for each in (False, True))
    assert together.high - together.low > 1.2 * (single.high - single.low)
    assert (single.unit, together.unit) == ("example", "cluster")


def test_the_statement_says_what_the_numbers_say() -> None:
    found = compared([1] * 40, [0] * 40, [1] * 40)
    said = statement(found)
    assert said[0].startswith("With J 100.0 % (91.2 to 100.0) of 40 held-out answers are right, without it 0.0 %")
    assert said[1] == "J brings 100.0 (100.0 to 100.0) points."
    assert said[2].endswith("J may answer by itself.")
    assert said[3].startswith("With J's output of another example it is 0.0 % (0.0 to 8.8).")
    assert "which these examples cannot tell from its own" in said[4]
    assert by_steps(found)[1].startswith("At 2 steps: with J 100.0 % (83.9 to 100.0), without J 0.0 %")
    same = statement(compared([1] * 40, [1] * 40, [1] * 40))
    assert "no difference" in same[1]
    assert same[2].endswith("these examples can tell.")
    worse = statement(compared([0] * 40, [1] * 40, [0, 1] * 20))
    assert worse[1] == "J costs 100.0 (100.0 to 100.0) points."
    assert "points more" in worse[2]
