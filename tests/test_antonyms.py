"""Antonym cancellation: traces against a stack, the split against its hash, requests, dense text, scoring."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from loopscope.errors import InputError
from loopscope.tasks import Antonyms, Draw, antonyms
from loopscope.tasks.antonyms import PAIRS, PARTNER, QUESTIONS, RULES, Deletion, Request
from tests.planted.antonyms import by_stack

EXAMPLE = ("hot", "near", "far", "cold", "open", "closed")
SEEDS = [*range(100_000_000, 100_000_060), *range(300_000_000, 300_000_030), 0, 9_099_999, 9_200_000]


def heights(shape):
    """The nesting height of each pair, in the order the pairs close."""
    stack, closed = [], []
    for number in shape:
        if stack and stack[-1][0] == number:
            height = stack.pop()[1] + 1
            closed.append(height)
            if stack:
                stack[-1][1] = max(stack[-1][1], height)
        else:
            stack.append([number, 0])
    return closed


def every_topology(pairs):
    """All ways to nest so many pairs, numbered by first appearance."""
    found = []

    def grow(shape, waiting, used):
        if len(shape) == 2 * pairs:
            found.append(shape)
        if used < pairs:
            grow((*shape, used), (*waiting, used), used + 1)
        if waiting:
            grow((*shape, waiting[-1]), waiting[:-1], used)

    grow((), (), 0)
    return found


# ---- cancellation ----------------------------------------------------------------------------------------------------


def test_the_example_of_the_paper():
    assert antonyms.deletions(EXAMPLE) == (Deletion(1, 2), Deletion(0, 3), Deletion(4, 5))
    assert antonyms.dependency_depths(antonyms.deletions(EXAMPLE)) == (1, 2, 1)
    assert antonyms.topology(EXAMPLE) == (0, 1, 1, 0, 2, 2)
    assert antonyms.needed_topology(EXAMPLE, 2) == (0, 1, 1, 0)
    assert Request(EXAMPLE, 2).answer == "hot cold"


def test_twenty_four_different_words():
    assert len(PAIRS) == 12
    assert len(PARTNER) == 24
    assert all(PARTNER[PARTNER[word]] == word != PARTNER[word] for word in PARTNER)


def test_what_cannot_cancel_stays():
    assert antonyms.deletions(("hot", "near", "cold", "far")) == ()
    assert antonyms.deletions(()) == ()
    assert antonyms.dependency_depths(()) == ()
    assert not antonyms.is_deep(())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_is_whole_deep_and_of_its_split(seed):
    words = antonyms.sequence(seed)
    assert sorted(words) == sorted(PARTNER)
    deleted = antonyms.deletions(words)
    assert list(deleted) == by_stack(words)
    assert len(deleted) == 12
    assert antonyms.dependency_depths(deleted) == tuple(heights(antonyms.topology(words)))
    assert max(heights(antonyms.topology(words))[:8]) >= 3
    assert antonyms.split(antonyms.topology(words)) == "train"
    assert antonyms.sequence(seed) == words


def test_a_deletion_waits_only_for_what_is_strictly_inside():
    assert antonyms.dependency_depths((Deletion(4, 5), Deletion(3, 6), Deletion(1, 5))) == (1, 2, 1)


def test_depth_counts_only_in_the_first_eight_deletions():
    flat = tuple(word for pair in PAIRS[:8] for word in pair)
    nested = ("full", "wet", "fast", "slow", "dry", "empty")
    assert not antonyms.is_deep((*flat, *nested))
    assert antonyms.is_deep((*nested, *flat[:-2]))
    assert antonyms.is_deep((*flat[:10], *nested))
    assert not antonyms.is_deep((*flat[:12], *nested))


# ---- split -----------------------------------------------------------------------------------------------------------


def test_the_bucket_is_the_hash_of_the_bytes():
    shape = (0, 1, 1, 0, 2, 2)
    assert antonyms.bucket(shape) == int(hashlib.sha256(b"\x00\x01\x01\x00\x02\x02").hexdigest(), 16) % 100


def test_splits_are_by_bucket():
    shapes = every_topology(7)
    assert len(shapes) == 429
    for shape in shapes:
        number = antonyms.bucket(shape)
        expected = {"train": range(80), "validation": range(80, 90), "unused": range(90, 100)}
        assert number in expected[antonyms.split(shape)]


def test_the_counts_in_the_description():
    counted = Counter(antonyms.split(shape) for shape in every_topology(12) if max(heights(shape)[:8]) >= 3)
    assert counted == {"train": 126_802, "validation": 15_595, "unused": 15_831}
    for number in (208_012, counted.total(), *counted.values()):
        assert f"{number:,}" in antonyms.__doc__


def test_validation_seeds_and_only_they_give_validation_topologies():
    for seed in (9_100_000, 9_150_000, 9_199_999):
        assert antonyms.split(antonyms.topology(antonyms.sequence(seed))) == "validation"
    for seed in (9_099_999, 9_200_000):
        assert antonyms.split(antonyms.topology(antonyms.sequence(seed))) == "train"


def test_the_panel():
    panel, quick = antonyms.panel(), antonyms.quick_sequences()
    shapes = {antonyms.topology(words) for words in panel}
    bank = {antonyms.topology(words) for words in quick}
    assert len(panel) == len(shapes) == 64
    assert (len(quick), len(bank)) == (16, 15)
    assert shapes.isdisjoint(bank)
    assert {antonyms.split(shape) for shape in shapes | bank} == {"validation"}
    assert antonyms.panel(10) == panel[:10]
    trained = {antonyms.topology(antonyms.sequence(seed)) for seed in SEEDS}
    assert trained.isdisjoint(shapes | bank)


def test_the_panel_is_the_first_that_qualify():
    expected, taken = [], {antonyms.topology(words) for words in antonyms.quick_sequences()}
    seed = 9_101_000
    while len(expected) < 64:
        words = antonyms.sequence(seed)
        if antonyms.topology(words) not in taken:
            expected.append(words)
            taken.add(antonyms.topology(words))
        seed += 1
    assert antonyms.panel() == tuple(expected)


def test_a_known_sequence_stays_what_it_is():
    """A panel that changed without notice would make stored numbers wrong."""
    text = "\n".join(" ".join(words) for words in antonyms.quick_sequences() + antonyms.panel())
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ea85094a03bde401"


def test_training_shows_most_of_what_an_answer_needs():
    """The numbers of the description, at the longest request."""
    seen = (antonyms.sequence(antonyms.MAP_SEED + 100 * update + j) for update in range(500) for j in range(16))
    known = {antonyms.needed_topology(words, 8) for words in seen}
    assert sum(antonyms.needed_topology(words, 8) in known for words in antonyms.panel()) == 52


# ---- requests --------------------------------------------------------------------------------------------------------


def test_prompts_hold_words_rule_and_request():
    words = antonyms.panel()[0]
    seen = set()
    for template in range(6):
        for k in range(1, 13):
            final, stepwise = (Request(words, k, template, form) for form in ("final-only", "stepwise"))
            for request in (final, stepwise):
                lines = request.prompt.splitlines()
                assert lines[0] == f"Words: {' '.join(words)}"
                assert lines[1] == RULES[template]
                assert re.findall(r"\d+", request.prompt) == [str(k)]
                seen.add(request.prompt)
            assert final.answer == stepwise.answer == " ".join(words[place] for place in by_stack(words)[k - 1])
    assert len(seen) == 6 * 12 * 2


def test_no_wording_names_a_word_of_the_task():
    spoken = set(re.findall(r"\w+", " ".join([*RULES, *QUESTIONS.values()]).lower()))
    assert spoken.isdisjoint(PARTNER)


def test_stages_are_the_answers_so_far():
    words = antonyms.panel()[1]
    request = Request(words, 4, form="stepwise")
    assert request.stages == tuple(Request(words, k).answer for k in (1, 2, 3, 4))
    assert request.answer == request.stages[-1]


def of_backbones(update, form):
    """As the paper's backbones are trained: deletions 1 to 4 in turn, or 4 alone, of which every stage is learned."""
    depths = [1, 2, 3, 4, 1, 2, 3, 4] if form == "final-only" else [4] * 8
    return antonyms.requests(update, antonyms.BACKBONE_SEED, depths, form)


def of_maps(update):
    """As the paper's maps are fitted, to both backbones: deletions 1 to 8, twice each, in the stepwise form."""
    return antonyms.requests(update, antonyms.MAP_SEED, [*range(1, 9), *range(1, 9)], "stepwise")


def learned(task, seed, update, examples, deepest, whole=False):
    asked = task.questions(Draw(seed, update, examples, deepest, only_deepest=whole))
    return [(each.prompt, tuple(each.stages)) for each in asked]


def test_backbones_see_the_same_sequences_in_both_forms():
    templates, depths = Counter(), Counter()
    for update in range(5):
        final, stepwise = of_backbones(update, "final-only"), of_backbones(update, "stepwise")
        for form, wanted in (("final-only", final), ("stepwise", stepwise)):
            found = learned(Antonyms(form), antonyms.BACKBONE_SEED, update, 8, 4, form == "stepwise")
            assert found == [(r.prompt, r.stages) for r in wanted]
        assert [(r.words, r.template) for r in final] == [(r.words, r.template) for r in stepwise]
        assert {r.k for r in stepwise} == {4}
        assert {r.form for r in final} == {"final-only"}
        assert [r.words for r in final] == [antonyms.sequence(100_000_000 + 100 * update + j) for j in range(8)]
        templates.update(r.template for r in final)
        depths.update(r.k for r in final)
    assert templates == dict.fromkeys(range(5), 8)
    assert depths == dict.fromkeys(range(1, 5), 10)


def test_maps_see_every_depth_equally_often():
    templates, depths = Counter(), Counter()
    for update in range(5):
        drawn = of_maps(update)
        found = learned(Antonyms("stepwise"), antonyms.MAP_SEED, update, 16, 8)
        assert found == [(r.prompt, r.stages) for r in drawn]
        assert {r.form for r in drawn} == {"stepwise"}
        assert [r.words for r in drawn] == [antonyms.sequence(300_000_000 + 100 * update + j) for j in range(16)]
        templates.update(r.template for r in drawn)
        depths.update(r.k for r in drawn)
    assert templates == dict.fromkeys(range(5), 16)
    assert depths == dict.fromkeys(range(1, 9), 10)


@pytest.mark.parametrize("form", ["final-only", "stepwise"])
def test_dense_turns_ask_for_every_depth_of_training_sequences(form):
    turns = antonyms.dense_turns(3, longest=6, sequences=5, form=form)
    assert turns == antonyms.dense_turns(3, longest=6, sequences=5, form=form)
    assert turns != antonyms.dense_turns(4, longest=6, sequences=5, form=form)
    blocks = "".join(turn.before + turn.stages[-1] for turn in turns).split("\n\n")
    assert len(blocks) == 5
    orders = []
    for block in blocks:
        first, rule, *lines = block.splitlines()
        words = tuple(first.removeprefix("Words: ").split())
        assert antonyms.split(antonyms.topology(words)) == "train"
        assert rule in RULES[:5]
        asked = {QUESTIONS[form].format(k=k) + " " + Request(words, k).answer: k for k in range(1, 7)}
        orders.append([asked[line] for line in lines])
    assert all(sorted(depths) == [1, 2, 3, 4, 5, 6] for depths in orders)
    assert len(set(map(tuple, orders))) > 1


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Request(EXAMPLE, 4), "deletions 1 to 3"),
        (lambda: Request(EXAMPLE, 0), "deletions 1 to 3"),
        (lambda: Request(EXAMPLE, 1, template=6), "0 to 5"),
        (lambda: Request(EXAMPLE, 1, form="stepwize"), "nearest: stepwise"),
        (lambda: Request(("hot", "colt"), 1), "nearest: cold"),
        (lambda: antonyms.topology(("hott",)), "nearest: hot"),
        (lambda: antonyms.needed_topology(EXAMPLE, 4), "deletions 1 to 3"),
        (lambda: antonyms.requests(-1, 0, [1], "stepwise"), "counted from 0"),
        (lambda: antonyms.requests(0, 0, [1], "final"), "nearest: final-only"),
        (lambda: antonyms.dense_turns(0, longest=13), "1 to 12"),
        (lambda: antonyms.dense_turns(0, longest=0), "1 to 12"),
        (lambda: antonyms.dense_turns(0, longest=1, sequences=0), "at least 1"),
    ],
)
def test_mistakes_are_one_line(ask, said):
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        ask()
    assert "\n" not in str(caught.value)


# ---- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["hot cold", " Hot cold.\n", "HOT\nCOLD", '"hot", "cold"', "hot,  cold!"])
def test_two_words_are_an_answer(text):
    assert antonyms.is_right(text, "hot cold")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hot",
        "cold hot",
        "hot far",
        "hot warm",
        "hot cold hot",
        "hot and cold",
        "hot cold hot cold",
        "hotcold",
        "hot/cold",
        "hot - cold",
        "hot cold. near far.",
        "The words are hot cold",
        "hot cold<|im_end|>",
    ],
)
def test_anything_else_is_not(text):
    assert not antonyms.is_right(text, "hot cold")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("hot cold", True),
        ("hot cold. Then near far go.", True),
        ("\n hot cold\nnear far", True),
        ("Hot cold! no", True),
        ("hot cold? no", True),
        ("hot cold near far. Yes", False),
        ("I say: hot cold.", False),
        ("hot\ncold", False),
        ("cold hot.", False),
        (". hot cold", False),
        ("", False),
    ],
)
def test_a_readout_is_its_first_sentence(text, right):
    assert antonyms.is_read_right(text, "hot cold") is right


def test_read_pair_keeps_the_order_that_was_said():
    assert antonyms.read_pair("Cold hot.") == "cold hot"
    assert antonyms.read_pair("near cold") == "near cold"
    assert antonyms.read_pair("near close") is None


def test_an_update_has_as_many_requests_as_depths() -> None:
    asked = antonyms.requests(2, 7_000, [3, 1, 2], "stepwise")
    assert [(r.words, r.k, r.template) for r in asked] == [
        (antonyms.sequence(7_200 + j), k, (6 + j) % 5) for j, k in enumerate([3, 1, 2])
    ]
    many = [antonyms.requests(update, 0, [1] * 101, "stepwise") for update in range(2)]
    assert not {each.words for each in many[0]} & {each.words for each in many[1]}
    assert many[1][0].words == antonyms.requests(0, 101, [1], "stepwise")[0].words


def test_no_seed_lets_training_meet_what_is_evaluated() -> None:
    """Not even those that evaluated sequences are drawn from."""
    for base in (antonyms.VALIDATION_SEEDS.start, antonyms.PANEL_SEED):
        asked = antonyms.requests(0, base, [4] * 16, "final-only")
        assert {antonyms.split(antonyms.topology(each.words)) for each in asked} == {"train"}
        assert not {each.words for each in asked} & {*antonyms.quick_sequences(), *antonyms.panel()}
