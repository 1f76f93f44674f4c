"""What language models are fine-tuned on: rows, readings, units and texts; each against its definition."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as nnf
from transformers import AutoTokenizer

from loopscope.errors import InputError
from loopscope.models.folders import load
from loopscope.models.passes import states
from loopscope.models.text import load_tokenizer
from loopscope.studies.language.recipes import RECIPES, recipe
from loopscope.tasks import Turn, antonyms, general_text, iterations, letters
from loopscope.tasks.general_text import tokens_beside
from loopscope.tasks.letters import training as letter_training
from loopscope.training.lm.batches import Line, Reading, TokenSequence, chat_rows, text_rows, units
from loopscope.training.lm.objective import Objective
from loopscope.training.lm.questions import Earlier, Example, Text, examples, joined, questions, texts
from loopscope.training.lm.trainer import answers_since
from tests.ouro_tiny import ouro_map, tiny_ouro
from tests.tuning_tiny import small, tuning_data, tuning_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuning_folder(tmp_path_factory.mktemp("models") / "llama")


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_learned_is_what_the_assistant_says_to_the_end_of_its_turn(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    (row, bare) = (chat_rows([Example("Who?", "Alice", 4, 1)], tokenizer, newline)[0] for newline in (True, False))
    assert tokenizer.decode(row.tokens[row.first :], special=True) == "Alice<|im_end|>\n"
    assert tokenizer.decode(bare.tokens[bare.first :], special=True) == "Alice<|im_end|>"
    assert tokenizer.decode(row.tokens[: row.first], special=True).endswith("assistant\n<think></think>")
    assert list(row.tokens[: row.first]) == tokenizer.encode_chat(
        [{"role": "user", "content": "Who?"}], enable_thinking=False
    )
    whole = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Alice"}],
        return_dict=False, enable_thinking=False,
    )  # fmt: skip
    assert list(row.tokens) == whole


def test_a_template_that_answers_elsewhere_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    tokenizer = load_tokenizer(tuning_folder(tmp_path / "odd"))
    tokenizer.template = "{{ messages | length }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert "elsewhere" in refused(InputError, chat_rows, [Example("a", "b", 1, 1)], tokenizer)


def test_examples_are_those_of_the_tasks() -> None:
    asked = examples(recipe("letter"), 7)
    assert [each.loops for each in asked] == [4] * 8
    assert [letters.RULE.split("{")[0] in each.prompt for each in asked] == [True] * 8
    assert [(e.prompt, e.answer) for e in examples(recipe("antonym-final"), 3)] == [
        (r.prompt, r.answer) for r in antonyms.requests(3, 100_000_000, [1, 2, 3, 4, 1, 2, 3, 4], "final-only")
    ]
    assert [(e.prompt, e.answer) for e in examples(recipe("antonym-map"), 3)] == [
        (r.prompt, r.answer) for r in antonyms.requests(3, 300_000_000, [*range(1, 9), *range(1, 9)], "stepwise")
    ]
    stepwise = examples(recipe("antonym-stepwise"), 3)
    assert [each.loops for each in stepwise] == [1, 2, 3, 4] * 8
    wanted = [answer for r in antonyms.requests(3, 100_000_000, [4] * 8, "stepwise") for answer in r.stages]
    assert [each.answer for each in stepwise] == wanted
    for starts in ("published", "wider"):
        drawn = [each.answer for each in examples(recipe("smol-iterations", [f"starts={starts}"]), 1)]
        wanted = [iterations.requests(update, wider=starts == "wider") for update in range(8, 16)]
        assert drawn == [request.answer for some in wanted for request in some]


@pytest.mark.parametrize("task", ["letter", "antonym", "iterations"])
def test_a_map_by_steps_learns_after_every_loop_that_has_a_map(task: str) -> None:
    by_step = recipe(f"small-{task}-map", ["examples=40"])
    whole = replace(by_step, stepwise=False, pace=1.0)
    runs = tuple(by_step.read_after(by_step.levels))
    assert runs == ((1,) if task == "antonym" else ()) + (2, 3, 4, 5, 6, 7, 8)
    for mine, plain in zip(examples(by_step, 3), examples(whole, 3), strict=True):
        assert replace(mine, earlier=()) == plain
        assert tuple(each.loops for each in mine.earlier) == runs[:-1]
        for each in mine.earlier:
            assert each.depth == min(mine.depth, int(by_step.pace * each.loops))
            assert each.answer == mine.answer or each.depth < mine.depth
    assert {each.depth for each in examples(by_step, 3)} == set(range(1, 9))
    assert {each.loops for each in questions(by_step)} == {by_step.loops}  # checks are of the whole run
    if task == "letter":  # the answers after fewer steps are those of the same graph
        letter = letter_training.training(letter_training.Stage(by_step.seed, 40, 8), 0)[7]
        assert letter.k == 8
        wanted = [(letter.taker(letter.start, steps), steps, steps) for steps in range(2, 8)]
        assert list(examples(by_step, 0)[7].earlier) == wanted
        faster = examples(replace(by_step, loops=4, pace=2.0), 0)[7]
        assert list(faster.earlier) == [(letter.taker(letter.start, 2 * loops), loops, 2 * loops) for loops in (2, 3)]


def test_weights_by_steps_learn_after_every_loop_of_one_run() -> None:
    by_step = recipe("small-letter")
    asked = examples(by_step, 0)
    assert len(asked) == by_step.examples
    for mine, letter in zip(
        asked, letter_training.training(letter_training.Stage(by_step.seed, 40, 4), 0), strict=True
    ):
        assert (mine.loops, mine.depth, mine.answer) == (4, letter.k, letter.taker(letter.start, letter.k))
        steps = [min(loops, letter.k) for loops in (1, 2, 3)]
        wanted = [(letter.taker(letter.start, most), loops, most) for loops, most in zip((1, 2, 3), steps, strict=True)]
        assert list(mine.earlier) == wanted
    assert {each.earlier for each in examples(recipe("small-letter", ["stepwise=false"]), 0)} == {()}


@pytest.mark.parametrize("trained", ["map", "weights"])
@pytest.mark.parametrize("averaging", ["micro-batch", "sequence", "token"])
def test_rows_in_one_line_have_the_loss_and_gradients_of_rows_apart(averaging: str, trained: str) -> None:
    model = tiny_ouro()
    step = ouro_map() if trained == "map" else None
    model.requires_grad_(step is None)
    objective = Objective(model, step)
    learned = [each for each in (step or model).parameters() if each.requires_grad]
    begin = (9, 8, 7, 6)
    loops = 3 if averaging == "micro-batch" else 2  # otherwise lines may leave a pass
    rows = [
        TokenSequence((*begin, 1, 2, 3), 6, 3, ((6, 2),), (Reading((4,), 2, 1),)),
        TokenSequence((*begin, 5, 1, 4, 4, 2), 7, 3, ((7, 3),)),
        TokenSequence((*begin, 1, 2, 5), 6, 3, ((6, 1),), (Reading((5,), 2, 1), Reading((7,), 1, 1))),
        TokenSequence((3, 2, 1, 5), 2, loops, ((2, 2),)),
        TokenSequence((3, 2, 4, 5), 2, loops, ((2, 2),)),
        TokenSequence((3, 2, 1, 5), 2, loops, ((2, 2),)),
    ]
    found = []
    for together in (1, 3):
        made = units(
            rows, micro=6 // together, averaging=averaging, share=0.8, kind="task", emphasis=2.0, together=together
        )  # type: ignore[arg-type]
        assert len(made) == 1
        objective.zero_grad()
        loss, right = objective(made[0])
        loss.backward()
        gradients = [each.grad.clone() for each in learned if each.grad is not None]
        answers = sorted(zip(made[0].after.tolist(), made[0].depths.tolist(), right.tolist(), strict=True))
        found.append((loss.detach(), gradients, answers))
    torch.testing.assert_close(found[0][:2], found[1][:2], rtol=1e-4, atol=1e-5)
    assert found[0][2] == found[1][2]
    assert max(float(each.abs().max()) for each in found[0][1]) > 0
    assert made[0].branches is not None
    assert made[0].branches.tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3], [0, 0, 1, 1, 2, 2, 3, 3, *[0] * 7],
    ]  # fmt: skip
    assert made[0].length == 15 + 8  # of 29 + 12 - 3 tokens
    wrong = [rows[0]._replace(loops=2), rows[1]]
    with pytest.raises(ValueError, match="unlike numbers of loops"):
        Line.of(wrong)


def test_earlier_answers_are_learned_as_far_as_they_follow_the_same_text(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    asked = Example("Who?", "17 18", 4, 8, (Earlier("17 19", 3, 6), Earlier("25", 2, 4), Earlier("17 18", 1, 8)))
    (row,) = chat_rows([asked], tokenizer)
    said = [tokenizer.decode(each.tokens, special=True) for each in row.earlier]
    assert said == ["17 19", "2", "17 18<|im_end|>\n"]
    assert [(each.loops, each.depth) for each in row.earlier] == [(3, 6), (2, 4), (1, 8)]
    assert row.learned == (len(row.tokens) - row.first, *(len(each.tokens) for each in row.earlier))


@pytest.mark.parametrize("averaging", ["micro-batch", "sequence", "token"])
@pytest.mark.parametrize("placement", ["between", "after-each"])
def test_readings_on_the_way_have_the_loss_and_gradients_of_runs_of_fewer_loops(averaging: str, placement: str) -> None:
    model, step = tiny_ouro(), ouro_map()
    model.requires_grad_(False)
    objective = Objective(model, step, placement)  # type: ignore[arg-type]
    rows = [
        TokenSequence((1, 2, 3, 4, 5), 3, 3, ((3, 6),), (Reading((4, 6), 2, 4), Reading((7,), 1, 2))),
        TokenSequence((5, 4, 3, 2), 2, 3, ((2, 5),), (Reading((3, 2), 2, 4),)),
    ]
    apart = [
        TokenSequence((1, 2, 3, 4, 5), 3, 3, ((3, 6),)), TokenSequence((1, 2, 3, 4, 6), 3, 2, ((3, 4),)),
        TokenSequence((1, 2, 3, 7), 3, 1, ((3, 2),)), TokenSequence((5, 4, 3, 2), 2, 3, ((2, 5),)),
        TokenSequence((5, 4, 3, 2), 2, 2, ((2, 4),)),
    ]  # fmt: skip
    found = []
    for some in (rows, apart):
        (unit, *more) = units(some, micro=8, averaging=averaging, share=0.8, kind="task", emphasis=2.0)  # type: ignore[arg-type]
        parts = [unit, *more]
        if averaging == "micro-batch":  # passes of one number of loops, each with its own mean
            weights = 0.8 / sum(len(each.targets) for each in parts)
            parts = [replace(each, weights=torch.full_like(each.weights, weights)) for each in parts]
        step.zero_grad()
        loss = torch.stack([objective(each)[0] for each in parts]).sum()
        loss.backward()
        counts = Counter(pair for each in parts for pair in zip(each.after.tolist(), each.depths.tolist(), strict=True))
        gradients = [each.grad.clone() for each in step.parameters() if each.grad is not None]
        found.append((loss.detach(), gradients, sum(float(each.weights.sum()) for each in parts), counts))
    torch.testing.assert_close(found[0][:3], found[1][:3], rtol=1e-5, atol=1e-6)
    assert found[0][3] == found[1][3] == {(3, 6): 1, (2, 4): 2, (1, 2): 1, (3, 5): 1}
    assert max(float(each.abs().max()) for each in found[0][1]) > 0
    (unit,) = units(rows, micro=8, averaging="sequence", share=1.0, kind="task")
    assert (unit.loops, unit.reads, unit.tokens.shape) == ((3, 3), (3, 2, 1), (2, 5))
    _, right = objective(unit)
    for number, answer in enumerate(unit.answers.tolist()):
        h = states(model, unit.tokens, objective.program(int(unit.after[number])), maps={"step": step})
        last = list(h.values())[-1][int(unit.rows[answer]) % 2, unit.columns[answer]]
        assert bool(right[number]) == bool(model.read(last).argmax() == unit.targets[answer])


def test_depths_grow_from_one() -> None:
    for task in ("letter", "antonym", "iterations"):
        grown = recipe(f"smol-{task}-adapt", ["grow_every=10", "examples=4", "pace=1"])
        assert [grown.level_at(update) for update in (0, 9, 10, 29, 30, 2_000)] == [1, 1, 2, 3, 4, 4]
        depths = [{depth for each in texts(grown, update) for _, depth in each.answers} for update in (0, 10, 20, 30)]
        assert depths == [{1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}]
        assert [grown.loops_at(grown.level_at(update)) for update in (0, 10, 30)] == [1, 2, 4]
        assert replace(grown, stepwise=False).loops_at(1) == 4
        assert texts(grown, 3) == texts(grown, 3) != texts(grown, 4)


def test_a_map_may_begin_with_a_depth_and_has_loops_for_it() -> None:
    for task in ("letter", "antonym", "iterations"):
        grown = recipe(f"smol-{task}-map", ["grow_every=10", "grow_from=5"])
        assert [grown.level_at(update) for update in (0, 9, 10, 29, 30, 900)] == [5, 5, 6, 7, 8, 8]
        assert [grown.loops_at(level) for level in (1, 5, 7, 8)] == [grown.first_read, 5, 7, 8]
        for update, level in ((0, 5), (25, 7), (40, 8)):
            asked = examples(grown, update)
            assert {each.loops for each in asked} == {level}
            assert {each.depth for each in asked} == set(range(1, level + 1))
            for each in asked:
                assert [one.loops for one in each.earlier] == [*range(grown.first_read, level)]
                assert [one.depth for one in each.earlier] == [min(each.depth, one.loops) for one in each.earlier]
    faster = recipe("smol-letter-map", ["grow_every=10", "loops=4", "pace=2"])
    assert [faster.loops_at(level) for level in (1, 4, 5, 6, 7, 8)] == [2, 2, 3, 3, 4, 4]
    assert replace(grown, stepwise=False).loops_at(5) == 8
    held = recipe("smol-letter-adapt", ["loops=6"])  # two loops more at every level, in which answers stay
    assert [held.loops_at(level) for level in (1, 2, 4)] == [3, 4, 6]
    for level in (1, 3):
        found = texts(held, 0, level)
        assert {each.loops for each in found} == set(range(1, level + 3))
        assert all(max(depth for _, depth in each.answers) == min(level, each.loops) for each in found)


def test_several_questions_about_one_set_of_rules(folder: Path) -> None:
    given = recipe("smol-letter-map", ["grow_every=10", "grow_from=5", "examples=6", "per_text=10"])
    asked = examples(given, 3)
    drawn = letter_training.adaptation(3, texts=6, questions=10, deepest=5, first_seed=given.seed)
    assert [each.prompt for each in asked] == [letters.prompt(each) for text in drawn for each in text.letters]
    for start in range(0, 60, 10):
        depths = Counter(each.depth for each in asked[start : start + 10])
        assert depths == {1: 1, 2: 1, 3: 1, 4: 1, 5: 6}
    assert len({each.prompt for each in asked}) == 60
    task, *_ = tuning_data(given, folder)(3)
    rows = chat_rows(asked, load_tokenizer(folder))
    assert (len(task.loops), task.branches is not None) == (6, True)
    assert len(task.answers) == sum(1 + len(row.earlier) for row in rows) == 60 * 4
    assert 2 * task.length < sum(len(row.tokens) for row in rows)


@pytest.mark.parametrize("name", RECIPES)
def test_checks_ask_for_every_depth_and_know_the_answer(name: str) -> None:
    given = recipe(name, ["checked=2"])
    asked = questions(given)
    cells = Counter(each.cell for each in asked)
    tasks = len(iterations.TASKS) if given.task.name == "iterations" else 1
    assert set(cells.values()) == {2}
    assert len(cells) == given.deepest * tasks
    assert not any(each.right("nothing of the kind") for each in asked)
    first = asked[0]
    if given.task.name == "letters":
        assert sum(first.right(name) for name in letters.NAMES) == 1
        assert first.prompt.startswith(letters.prompt(letters.evaluation(1)[0]))


# ---- units -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("averaging", ["micro-batch", "sequence", "token"])
@pytest.mark.parametrize("rows_at_once", [4096, 5])
def test_losses_of_passes_add_up_to_the_average(
    folder: Path, averaging: str, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against every row alone, unpadded, with the model's own logits."""
    monkeypatch.setattr("loopscope.training.lm.objective.ROWS", rows_at_once)
    model = load(folder)
    lengths = [(9, 5), (12, 10), (7, 1), (5, 3), (12, 4)]
    loops = [3] * 5 if averaging == "micro-batch" else [3, 1, 2, 3, 1]
    rows = [TokenSequence(tuple(range(3 * i, 3 * i + n)), first, loops[i]) for i, (n, first) in enumerate(lengths)]

    def costs(row: TokenSequence) -> torch.Tensor:
        logits = model(torch.tensor([row.tokens]), loops=row.loops)[0, row.first - 1 : -1]
        return nnf.cross_entropy(logits, torch.tensor(row.tokens[row.first :]), reduction="none")

    each = [costs(row) for row in rows]
    wanted = {
        "micro-batch": torch.stack([torch.cat(each[i : i + 2]).mean() for i in (0, 2, 4)]).mean(),
        "sequence": torch.stack([one.mean() for one in each]).mean(),
        "token": torch.cat(each).mean(),
    }[averaging]
    found = units(rows, micro=2, averaging=averaging, share=0.8, kind="task")  # type: ignore[arg-type]
    objective = Objective(model)
    sums = [objective(unit)[0] for unit in found]
    torch.testing.assert_close(torch.stack(sums).sum(), 0.8 * wanted)
    assert sum(unit.length for unit in found) == sum(n for n, _ in lengths)
    (-sums[0]).backward()  # through the parts, too
    assert model.model.norm.weight.grad.abs().max() > 0


def test_answers_count_as_often_as_they_are_emphasised(folder: Path) -> None:
    model = load(folder)
    rows = [
        TokenSequence(tuple(range(9)), 1, 2, ((3, 1), (7, 2))),
        TokenSequence(tuple(range(20, 25)), 1, 2),
        TokenSequence((5, 4), 1, 2, ((1, 1),)),
    ]
    cost, count = 0.0, 0.0
    for row in rows:
        logits = model(torch.tensor([row.tokens]), loops=2)[0, :-1]
        each = nnf.cross_entropy(logits, torch.tensor(row.tokens[1:]), reduction="none").tolist()
        weights = [10 if place in dict(row.answers) else 1 for place in range(1, len(row.tokens))]
        cost, count = cost + sum(a * b for a, b in zip(each, weights, strict=True)), count + sum(weights)
    for micro in (1, 2, 3):
        found = units(rows, micro=micro, averaging="token", share=0.8, kind="task", emphasis=10.0)
        loss = sum(float(Objective(model)(unit)[0].detach()) for unit in found)
        assert loss == pytest.approx(0.8 * cost / count, rel=1e-5)
        assert sum(float(unit.weights.sum()) for unit in found) == pytest.approx(0.8)


def test_an_update_has_a_fifth_of_general_text(folder: Path) -> None:
    made = tuning_data(recipe("letter"), folder)
    found = made(3)
    task, general = ([unit for unit in found if unit.kind == kind] for kind in ("task", "general"))
    assert [len(unit.tokens) for unit in task] == [2] * 4
    assert sum(unit.length for unit in general) == tokens_beside(sum(unit.length for unit in task))
    assert math.isclose(sum(float(u.weights.sum()) for u in task), 0.8, rel_tol=1e-5)
    assert math.isclose(sum(float(u.weights.sum()) for u in general), 0.2, rel_tol=1e-5)
    drawn = general_text.draw(made.pools, sum(unit.length for unit in general), 8_000_003)
    seen = sorted(tuple(row[: len(chunk)].tolist()) for unit in general for row, chunk in [(unit.tokens[0], drawn[0])])
    assert seen[0] == drawn[0]
    again = made(3)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(found, again, strict=True))
    none = tuning_data(recipe("letter", ["share=0"]), folder)(0)
    assert {unit.kind for unit in none} == {"task"}


def test_stages_are_run_for_as_many_loops(folder: Path) -> None:
    found = [unit for unit in tuning_data(recipe("antonym-stepwise", ["micro=8"]), folder)(0) if unit.kind == "task"]
    assert [unit.loops for unit in found] == [(t,) * 8 for t in (4, 3, 2, 1)]
    assert [len(unit.tokens) for unit in found] == [8] * 4
    for unit in found:
        assert math.isclose(float(unit.weights.sum()), 0.2, rel_tol=1e-5)


def test_in_stepwise_look_ups_every_number_of_loops_is_learned_up_to_the_largest_depth(folder: Path) -> None:
    made = tuning_data(recipe("smol-letter-adapt", ["examples=8", "micro=8"]), folder)
    for depth in (1, 3, 4):
        found = made(5, depth)
        (task,), general = ([unit for unit in found if unit.kind == kind] for kind in ("task", "general"))
        taking_turns = [1 + j % depth for j in range(4)]
        assert task.loops == tuple(sorted([depth] * 4 + taking_turns, reverse=True))
        assert {loops for unit in general for loops in unit.loops} == {depth}
        for loops in range(1, depth + 1):
            assert task.depths[task.after == loops].max() == loops
        assert not any(len(unit.depths) for unit in general)


def test_general_text_instead_of_the_task_leaves_decks_whole(folder: Path) -> None:
    given = recipe("iterations", ["updates=400"])
    made = tuning_data(given, folder)
    kinds = [made(update)[0].kind for update in range(40)]
    assert 5 < kinds.count("general") < 20
    assert all(unit.tokens.shape == (5, 256) for unit in made(kinds.index("general")))
    (task,) = made(kinds.index("task"))
    tokenizer = load_tokenizer(folder)
    first = {tokenizer.decode(row) for row in task.tokens.tolist()}
    assert {request.prompt in text for request in iterations.requests(0) for text in first} == {True, False}
    assert all(any(request.prompt in text for text in first) for request in iterations.requests(0))


def test_texts_that_do_not_fit_the_model_are_refused(folder: Path, refused: Callable[..., str]) -> None:
    made = tuning_data(small("letter"), folder)
    made.positions = 100
    assert "but the model has 100 positions" in refused(InputError, made, 0)
    made.positions, made.vocabulary = 2048, 50
    assert "is outside 0..49" in refused(InputError, made, 0)


def test_look_ups_are_learned_from_the_second_token_on(folder: Path) -> None:
    tokenizer = load_tokenizer(folder)
    (row,) = text_rows([Text("ab ab", 2, ())], tokenizer)
    assert (row.first, row.loops) == (1, 2)
    assert list(row.tokens) == tokenizer.encode("ab ab", special=False)


@pytest.mark.parametrize("name", ["smol-letter-adapt", "smol-antonym-adapt", "smol-iterations-adapt", "smol-letter"])
def test_answers_are_where_they_begin_and_known_by_their_depth(folder: Path, name: str) -> None:
    """Each is the target behind the text that asks for it; what is read at a check is judged the same way."""
    tokenizer, given = load_tokenizer(folder), recipe(name, ["examples=4", "micro=3", "share=0"])
    found = tuning_data(given, folder)(3, 2)
    wanted = Counter()
    if given.text == "look-ups":
        wanted.update(depth for each in texts(given, 3, 2) for _, depth in each.answers)
        assert all(each.text[place - 1] in " \n" for each in texts(given, 3, 2) for place, _ in each.answers)
    else:
        wanted.update(one.depth for each in examples(given, 3, 2) for one in (each, *each.earlier))
    assert Counter(depth for unit in found for depth in unit.depths.tolist()) == wanted
    assert set(wanted) == {1, 2}
    for unit in found:
        for number, loops in zip(unit.answers.tolist(), unit.after.tolist(), strict=True):
            more = sum(mine >= other for other in unit.reads if other > loops for mine in unit.loops)
            row, column = int(unit.rows[number]) - more, int(unit.columns[number])
            before = tokenizer.decode(unit.tokens[row, : column + 1].tolist(), special=True)
            answer = tokenizer.decode([int(unit.targets[number])]).strip()
            assert before.endswith(("\n", "alone, the left one first.", "Answer:", "Answer: ", "</think>"))
            assert answer
            if given.task.name == "letters":
                assert any(name.startswith(answer) for name in letters.NAMES)


def test_look_up_texts_are_those_of_the_tasks() -> None:
    given = recipe("small-antonym-adapt", ["examples=2", "stepwise=false", "pace=1"])
    seeds = [given.seed + 2 * 5 + j for j in range(2)]
    turns = [antonyms.dense_turns(s, longest=3, sequences=given.per_text) for s in seeds]
    wanted = ["".join(turn.before + turn.stages[-1] for turn in some) + "\n" for some in turns]
    assert [each.text for each in texts(given, 5, 3)] == wanted
    given = recipe("small-iterations-adapt", ["examples=2", "stepwise=false", "pace=1", "starts=wider"])
    asked = [iterations.dense_requests(seed, longest=3, wider=True) for seed in seeds]
    wanted = ["\n\n".join(f"{each.prompt} {each.answer}" for each in some) + "\n" for some in asked]
    assert [each.text for each in texts(given, 5, 3)] == wanted
    given = recipe("small-letter-adapt", ["examples=2", "stepwise=false", "pace=1"])
    drawn = letter_training.adaptation(5, texts=2, questions=given.per_text, deepest=3, first_seed=given.seed)
    assert [each.text for each in texts(given, 5, 3)] == [each.text for each in drawn]
    assert [each.loops for each in texts(given, 5, 3)] == [4, 4]


@pytest.mark.parametrize("task", ["letter", "antonym", "iterations"])
def test_a_stepwise_look_up_text_answers_after_as_many_steps_as_it_has_loops(task: str) -> None:
    """Its questions are those of the plain text, less those whose answer would be there already.

    An answer for which there are loops enough is that of the plain text.
    """
    by_step, plain = (
        recipe(f"smol-{task}-adapt", ["examples=6", "pace=1", f"stepwise={told}"]) for told in ("true", "false")
    )
    whole, found = texts(plain, 2, 3), texts(by_step, 2, 3)
    assert [each.loops for each in found] == [1, 3, 2, 3, 3, 3]
    for text, same in zip(found, whole, strict=True):
        assert {depth for _, depth in same.answers} == {1, 2, 3}
        asked = zip(_said(same), same.answers, strict=True)
        for (before, answer), (_, depth) in zip(_said(text), text.answers, strict=True):
            wanted, steps = next((name, steps) for (question, name), (_, steps) in asked if question == before)
            assert depth == min(steps, text.loops)
            assert answer == wanted or depth < steps
        assert (text.text == same.text) == (text.loops == 3)


@pytest.mark.parametrize("task", ["antonym", "iterations"])
def test_a_stepwise_look_up_text_has_no_answer_that_could_be_copied(task: str) -> None:
    """Of a subject that is asked about for more steps than there are loops, one answer is there; others are left."""
    given = recipe(f"smol-{task}-adapt", ["examples=4"])
    counts = [Counter(depth for _, depth in text.answers) for text in texts(given, 2, 4)]
    if task == "antonym":  # every sequence is asked about for each number of deletions
        assert counts == [dict.fromkeys(range(1, loops + 1), given.per_text) for loops in (1, 4, 2, 4)]
    turns = [Turn("a", "A? ", ["x", "y", "z"]), Turn("b", "B? ", ["x", "z"]), Turn("a", "A! ", ["x", "y"])]
    assert joined(turns, loops=1, most=1).text == "A? xB? x"
    assert joined(turns, loops=2, most=2).text == "A? yB? z"
    assert joined(turns, loops=3, most=3) == Text("A? zB? zA! y", 3, ((3, 3), (7, 2), (11, 2)))


def test_after_depth_the_pace_grows_and_a_loop_is_taught_several_steps() -> None:
    given = recipe("smol-letter-adapt", ["examples=8", "pace=2.5", "grow_every=10"])
    assert given.levels == 7
    assert [(given.depth_at(n), given.pace_at(n), given.loops_at(n)) for n in range(1, 8)] == [
        (1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4), (4, 1.5, 4), (4, 2, 4), (4, 2.5, 4),
    ]  # fmt: skip
    assert [given.level_at(update) for update in (0, 39, 40, 59, 2_000)] == [1, 4, 5, 6, 7]
    for level, most in {4: (1, 2, 3, 4), 5: (1, 3, 4, 4), 6: (2, 4, 4, 4), 7: (2, 4, 4, 4)}.items():
        found = texts(given, 7, level)
        assert [each.loops for each in found] == [1, 4, 2, 4, 3, 4, 4, 4]
        assert [max(depth for _, depth in each.answers) for each in found[::2]] == [*most]


def test_the_answers_that_let_a_level_grow_are_those_after_the_fewest_loops() -> None:
    rows = [
        {"update": 0, "accuracy": {}},
        {"update": 10, "answers": {"1 in 1": [9, 10], "2 in 2": [1, 10]}},
        {"update": 20, "answers": {"1 in 1": [10, 10], "2 in 1": [3, 10], "2 in 2": [5, 10], "4 in 10": [1, 2]}},
    ]
    assert answers_since(rows, 10) == {1: (10, 10), 2: (3, 10), 4: (1, 2)}
    assert answers_since(rows, 0) == {1: (19, 20), 2: (3, 10), 4: (1, 2)}
    assert answers_since(rows[:2], 0) == {1: (9, 10), 2: (1, 10)}


def _said(text: Text) -> list[tuple[str, str]]:
    """What comes before each answer from the end of the line of the one before, and the rest of the answer's line."""
    places, found, end = [place for place, _ in text.answers], [], 0
    for place in places:
        before = text.text[end:place]
        end = text.text.find("\n", place) if "\n" in text.text[place:] else len(text.text)
        found.append((before, text.text[place:end]))
    return found


def test_an_answer_begins_right_if_its_first_token_is_the_likeliest(folder: Path) -> None:
    model = load(folder)
    (unit,) = tuning_data(recipe("smol-letter-adapt", ["examples=3", "share=0"]), folder)(0)
    with torch.no_grad():
        logits = model(unit.tokens, loops=unit.loops[0])[unit.rows[unit.answers], unit.columns[unit.answers]]
        _, right = Objective(model)(unit)
        said = replace(unit, targets=unit.targets.index_copy(0, unit.answers[:2], logits[:2].argmax(-1)))
        _, both = Objective(model)(said)
    assert right.tolist() == (logits.argmax(-1) == unit.targets[unit.answers]).tolist()
    assert both[:2].all()
