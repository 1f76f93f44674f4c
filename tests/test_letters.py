"""Letter-walk: recipes against a slow re-drawing, pairs against their definitions, alignment against odd tokenizers."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from loopscope.errors import InputError
from loopscope.tasks import letters
from loopscope.tasks.letters import HELD_OUT_TEMPLATE, NAMES, TEMPLATES, Letter
from loopscope.tasks.letters import pairs as letter_pairs
from loopscope.tasks.letters import training as letter_training
from loopscope.tasks.letters.pairs import SETS, Pair
from loopscope.tasks.letters.training import BACKBONE, MAP

ALPHABETICAL = Letter(NAMES, NAMES, "Alice", 2, 0)
ALL_PAIRS = [pair for name in SETS for pair in letter_pairs.pairs(name)]


def follow(text: str, start: str, k: int) -> str:
    """Read the rules off a text and follow them one by one."""
    rules = dict(re.findall(r"^(\w+) passes the letter to (\w+)\.$", text, flags=re.MULTILINE))
    assert len(rules) == 10
    for _ in range(k):
        start = rules[start]
    return start


def words(text: str) -> list[int]:
    """A tokenizer like those in use: a word takes the space before it, digits are apart, and a name that begins a line
    can be two tokens."""
    pieces = re.findall(r" ?[A-Za-z]+|[\s\S]", re.sub(r"^(Carol|Emma|Grace|Iris)", r"\1|", text, flags=re.MULTILINE))
    return [int.from_bytes(piece.encode(), "big") for piece in pieces]


# ---- one question ----------------------------------------------------------------------------------------------------


def test_a_prompt_is_the_intro_ten_rules_and_a_question() -> None:
    lines = letters.prompt(ALPHABETICAL).split("\n")
    assert len(lines) == 12
    assert lines[0] == TEMPLATES[0].intro
    assert lines[1] == "Alice passes the letter to Bob."
    assert lines[10] == "Jack passes the letter to Alice."
    assert " Alice" in lines[11]
    assert " 02 " in lines[11]
    assert letters.answer(ALPHABETICAL) == "Carol"
    assert letters.answer(replace(ALPHABETICAL, k=8)) == "Iris"


@pytest.mark.parametrize("template", range(6))
def test_every_template_asks_once_and_ends_alike(template: int) -> None:
    intro, question = TEMPLATES[template]
    assert question.count("{start}") == 1
    assert question.count("{k}") == 1
    assert " {start}" in question
    assert " {k} " in question
    assert not any(name in intro + question for name in NAMES)
    assert letters.prompt(replace(ALPHABETICAL, template=template)).endswith(f" {letters.ONLY_THE_NAME}")


def test_wordings_differ() -> None:
    assert len({t.intro for t in TEMPLATES}) == len({t.question for t in TEMPLATES}) == 6
    assert {*letters.TRAIN_TEMPLATES, HELD_OUT_TEMPLATE} == set(range(6))


def test_the_order_of_draws_is_cycle_order_start() -> None:
    rng = random.Random(123)
    cycle, order = list(NAMES), list(NAMES)
    rng.shuffle(cycle)
    rng.shuffle(order)
    assert letters.draw(123, 5, 3) == Letter(tuple(cycle), tuple(order), rng.choice(NAMES), 5, 3)


def test_a_graph_has_an_identity() -> None:
    turned = replace(ALPHABETICAL, cycle=(*NAMES[3:], *NAMES[:3]), order=NAMES[::-1], start="Jack", k=7, template=5)
    assert turned.graph == ALPHABETICAL.graph
    assert replace(ALPHABETICAL, cycle=NAMES[::-1]).graph != ALPHABETICAL.graph


@pytest.mark.parametrize(("reply", "right"), [("Carol", True), (" carol.\n", True), ("Carol!", True), ("Bob", False)])
def test_replies_are_judged_by_the_name(reply: str, right: bool) -> None:
    assert letters.is_right(reply, letters.answer(ALPHABETICAL)) is right


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cycle": NAMES[1:]}, "cycle must have each"),
        ({"order": (*NAMES[1:], "Bob")}, "order must have each"),
        ({"start": "Alicia"}, "nearest: Alice"),
        ({"k": 0}, "1 to 99"),
        ({"k": 100}, "1 to 99"),
        ({"template": 6}, "templates 0 to 5"),
    ],
)
def test_what_is_no_question(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(ALPHABETICAL, **wrong)


# ---- training and what is held from it -------------------------------------------------------------------------------


def test_examples_of_an_update() -> None:
    backbone, fitted = letter_training.training(BACKBONE, 7), letter_training.training(MAP, 7)
    assert [letter.k for letter in backbone] == [1, 2, 3, 4] * 2
    assert [letter.k for letter in fitted] == [*range(1, 9)] * 2
    assert [letter.template for letter in backbone] == [(56 + j) % 5 for j in range(8)]
    assert backbone == letter_training.training(BACKBONE, 7) != letter_training.training(BACKBONE, 8)
    assert backbone[3] == letters.draw(100_000_703, 4, 4)
    assert fitted[3] == letters.draw(300_000_703, 4, 0)


def test_no_evaluated_graph_is_trained_on() -> None:
    held = letter_training.held()
    evaluated = {letter.graph for letter in letters.evaluation(3)}
    assert len(evaluated) == 16
    assert held.graphs == evaluated | {letter.graph for pair in ALL_PAIRS for letter in pair.letters}
    assert len(held) == 16 + 2 * sum(wanted.size for wanted in SETS.values()) == 1712
    trained = [letter for update in range(200) for letter in letter_training.training(BACKBONE, update)]
    trained += [letter for update in range(500) for letter in letter_training.training(MAP, update)]
    assert not held.graphs & {letter.graph for letter in trained}
    assert {letter.template for letter in trained} == {0, 1, 2, 3, 4}
    # The reference's own seeds do draw some of them: without the rule this test would fail.
    drawn = [100_000_000 + 100 * update + j for update in range(200) for j in range(8)]
    assert any(letters.draw(seed, 1, 0).graph in held for seed in drawn)


def test_evaluation_asks_the_same_graphs_at_every_depth() -> None:
    shallow, deep = letters.evaluation(1), letters.evaluation(8, HELD_OUT_TEMPLATE)
    assert [replace(letter, k=8, template=5) for letter in shallow] == list(deep)
    assert deep[2] == letters.draw(9_100_002, 8, 5)


# ---- look-up texts ---------------------------------------------------------------------------------------------------


def test_a_lookup_text_answers_every_question_truly() -> None:
    (found,) = letter_training.adaptation(2, texts=1, questions=10, deepest=4)
    assert found.text.startswith(letters.prompt(found.letters[0]) + "\n" + letters.answer(found.letters[0]) + "\n")
    assert found.text == "".join(before + name for before, name in found.turns)
    assert found.text.count(letters.ONLY_THE_NAME) == 1
    for (before, name), letter in zip(found.turns, found.letters, strict=True):
        assert f" {letter.start}" in before.split("\n")[-2]
        assert f" {letter.k:02d} " in before.split("\n")[-2]
        assert name == follow(found.text, letter.start, letter.k)
    assert len(found.turns) == len({letter.start for letter in found.letters}) == 10


def test_depths_are_shuffled_and_the_largest_is_asked_for_most() -> None:
    found = letter_training.adaptation(0, texts=100, questions=10, deepest=4)
    depths = [[letter.k for letter in text.letters] for text in found]
    assert all(Counter(each) == {1: 2, 2: 1, 3: 1, 4: 6} for each in depths)
    first = Counter(each[0] for each in depths)
    assert all(2 < first[k] < 40 for k in (1, 2, 3))
    (few,) = letter_training.adaptation(0, texts=1, questions=4, deepest=4)
    assert sorted(letter.k for letter in few.letters) == [1, 2, 3, 4]


def test_few_answers_can_be_had_from_earlier_ones() -> None:
    """A holder on the way was asked about before, for what is left of it, and that is more than a rule says."""
    asked, nearer = Counter[int](), Counter[int]()
    for update in range(30):
        for text in letter_training.adaptation(update, texts=20, questions=10, deepest=4):
            for n, each in enumerate(text.letters):
                on_the_way = {each.taker(each.start, steps): steps for steps in range(1, each.k)}
                before = [one for one in text.letters[:n] if one.start in on_the_way]
                asked[each.k] += 1
                nearer[each.k] += any(one.k == each.k - on_the_way[one.start] > 1 for one in before)
    assert [round(100 * nearer[k] / asked[k]) for k in (1, 2, 3, 4)] == [0, 0, 8, 11]


def test_texts_of_an_update() -> None:
    texts = letter_training.adaptation(3, texts=6, questions=10, deepest=1)
    assert texts == letter_training.adaptation(3, texts=6, questions=10, deepest=1)
    assert not set(texts) & set(letter_training.adaptation(4, texts=6, questions=10, deepest=1))
    assert [text.letters[0].template for text in texts] == [(18 + j) % 5 for j in range(6)]
    assert all({letter.start for letter in text.letters} == set(NAMES) for text in texts)
    large = [letter_training.adaptation(update, texts=150, questions=4, deepest=4) for update in range(2)]
    assert len({*large[0], *large[1]}) == 300
    many = [
        text for update in range(60) for text in letter_training.adaptation(update, texts=8, questions=1, deepest=1)
    ]
    assert not letter_training.held().graphs & {text.letters[0].graph for text in many}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"questions": 11, "deepest": 1}, "1 to 10 questions"),
        ({"questions": 3, "deepest": 4}, "4 to 10 questions"),
        ({"questions": 11, "deepest": 11}, "no questions"),
        ({"questions": 0, "deepest": 0}, "no questions"),
        ({"update": -1}, "from 0"),
        ({"texts": 0}, "at least 1"),
    ],
)
def test_what_is_no_lookup_text(asked: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        letter_training.adaptation(**{"update": 0, "texts": 1, "questions": 4, "deepest": 1} | asked)


def test_lookup_texts_never_have_the_held_out_wording() -> None:
    with pytest.raises(InputError, match="templates 0 to 4"):
        letter_training.lookups(1, HELD_OUT_TEMPLATE, 1, 1)


# ---- pairs -----------------------------------------------------------------------------------------------------------


def test_sizes_and_seeds() -> None:
    assert {name: len(letter_pairs.pairs(name)) for name in SETS} == {
        "discovery": 8,
        "confirmation": 64,
        "shared-discovery": 8,
        "steering": 256,
        "pattern-vs-output": 256,
        "restoration": 256,
    }
    graphs = [letter.graph for pair in ALL_PAIRS for letter in pair.letters]
    assert len(set(graphs)) == len(graphs)
    with pytest.raises(InputError, match="nearest: steering"):
        letter_pairs.pairs("steer")


def test_answers_of_all_pairs_step_by_step() -> None:
    for pair in ALL_PAIRS:
        base, source = letters.prompt(pair.base), letters.prompt(pair.source)
        before = follow(source, pair.source.start, 7)
        assert follow(base, pair.base.start, 8) == pair.B
        assert pair.D == follow(source, pair.source.start, 8) == follow(source, before, 1)
        assert (pair.before_B, pair.before_D) == (follow(base, pair.base.start, 7), before)
        assert pair.E == follow(base, before, 1) == follow(base, pair.reference.start, 8)
        assert len({pair.B, pair.D, pair.E}) == 3
        assert pair.base.order == pair.source.order == pair.reference.order
        assert {letter.template for letter in pair.letters} == {0}
        assert pair.reference.graph == pair.base.graph


@pytest.mark.parametrize("name", [name for name, wanted in SETS.items() if wanted.shared_path])
def test_shared_paths(name: str) -> None:
    for pair in letter_pairs.pairs(name):
        common = set(pair.base.graph) & set(pair.source.graph)
        c = [follow(letters.prompt(pair.source), pair.source.start, step) for step in range(10)]
        assert common == set(pairwise(c[:8]))
        assert c[8:] == [pair.D, pair.E]
        assert pair.reference.start == pair.source.start != pair.base.start


def test_independent_pairs_are_those_of_the_recorded_number_of_attempts() -> None:
    """The reference study needed 342 attempts for its 256 steering pairs; so do we, with the same seed."""
    seen = {letter.graph for letter in letters.evaluation(1)}
    seen |= {letter.graph for name in list(SETS)[:3] for pair in letter_pairs.pairs(name) for letter in pair.letters}
    rng, attempts, drawn = random.Random(2026092632), 0, []
    while len(drawn) < 256:
        attempts += 1
        base, source = list(NAMES), list(NAMES)
        rng.shuffle(base)
        rng.shuffle(source)
        starts = [rng.choice(NAMES), rng.choice(NAMES)]
        near = source[(source.index(starts[1]) + 7) % 10]
        b, d = base[(base.index(starts[0]) + 8) % 10], source[(source.index(near) + 1) % 10]
        e = base[(base.index(near) + 1) % 10]
        graphs = {tuple(sorted(zip(c, [*c[1:], c[0]], strict=True))) for c in (base, source)}
        if any(x == y for x, y in combinations((b, d, e), 2)) or graphs & seen:
            continue
        seen |= graphs
        order = list(NAMES)
        rng.shuffle(order)
        made = [Letter(tuple(c), tuple(order), s, 8, 0) for c, s in zip((base, source), starts, strict=True)]
        drawn.append(Pair(made[0], made[1]))
    assert tuple(drawn) == letter_pairs.pairs("steering")
    assert attempts == 342


# ---- alignment -------------------------------------------------------------------------------------------------------


def test_all_pairs_are_aligned_and_equally_long() -> None:
    starts = set()
    for pair in ALL_PAIRS:
        where = letter_pairs.check_aligned(pair, words)
        for letter in (*pair.letters, pair.reference):
            ids = words(letters.prompt(letter))
            starts.add((where.start, len(ids)))
            assert [ids[i] for i in where.start] == words(f" {letter.start}")
            for giver, place in zip(letter.order, where.takers, strict=True):
                assert [ids[i] for i in place] == words(f" {letter.taker(giver)}")
    assert len(starts) == 1


def test_a_chat_template_moves_places_only() -> None:
    pair = ALL_PAIRS[0]
    plain = letter_pairs.check_aligned(pair, words)
    chat = letter_pairs.check_aligned(pair, lambda text: [1, 2, *words(text), 3], words)
    assert [place.start - 2 for place in (*chat.takers, chat.start)] == [
        place.start for place in (*plain.takers, plain.start)
    ]


def test_places_may_have_several_tokens() -> None:
    def halves(text: str) -> list[int]:
        return [id for word in words(text) for id in (word, word + 1)]

    where = letter_pairs.check_aligned(ALL_PAIRS[0], halves)
    assert {len(place) for place in (*where.takers, where.start)} == {2}


def test_what_is_not_aligned() -> None:
    pair = ALL_PAIRS[0]
    with pytest.raises(InputError, match="they have lengths"):
        letter_pairs.check_aligned(pair, lambda text: list(text.encode()))
    with pytest.raises(InputError, match="its source prompt differs at token"):
        letter_pairs.check_aligned(Pair(pair.base, replace(pair.source, order=pair.source.order[::-1])), words)
    with pytest.raises(InputError, match="its source prompt has"):
        letter_pairs.check_aligned(Pair(pair.base, replace(pair.source, template=2)), words)
    with pytest.raises(InputError, match="names change 0 places"):
        letter_pairs.check_aligned(pair, lambda text: [0] * 100)
    with pytest.raises(InputError, match="three different first tokens"):
        letter_pairs.check_aligned(pair, words, lambda name: [0, *name.encode()])
