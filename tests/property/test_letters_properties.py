"""Letter-walk: what must hold for every seed, every set of held graphs and every question."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopscope.tasks import letters
from loopscope.tasks.letters import NAMES, REDRAW, Held, Letter
from loopscope.tasks.letters import pairs as letter_pairs
from loopscope.tasks.letters import training as letter_training

seeds = st.integers(0, 2**40)
permutations = st.permutations(NAMES).map(tuple)
questions = st.builds(
    Letter, permutations, permutations, st.sampled_from(NAMES), k=st.integers(1, 99), template=st.integers(0, 5)
)


@given(seeds, st.integers(0, 6), st.lists(seeds, max_size=20))
def test_a_held_graph_is_never_drawn(seed: int, collisions: int, others: list[int]) -> None:
    """Hold the graphs of the first so many redraws, and some more: the next one that is free is taken."""
    held = Held().with_those_of(letters.draw(seed + REDRAW * i, 1, 0) for i in range(collisions))
    held = held.with_those_of(letters.draw(other, 1, 0) for other in others)
    free = held.free_seed(seed)
    assert letters.draw(free, 8, 5).graph not in held
    skipped = range(seed, free, REDRAW)
    assert len(skipped) >= collisions
    assert (free - seed) % REDRAW == 0
    assert all(letters.draw(earlier, 3, 2).graph in held for earlier in skipped)


@given(st.integers(0, 10**6), st.integers(1, 10), st.data())
def test_no_training_text_has_a_held_graph(update: int, deepest: int, data: st.DataObject) -> None:
    held = letter_training.held()
    count = data.draw(st.integers(deepest, 10))
    texts = letter_training.adaptation(update, texts=3, questions=count, deepest=deepest)
    trained = [
        letter
        for stage in (letter_training.BACKBONE, letter_training.MAP)
        for letter in letter_training.training(stage, update)
    ]
    trained += [letter for text in texts for letter in text.letters]
    assert all(letter.graph not in held for letter in trained)
    assert all(letter.template in letters.TRAIN_TEMPLATES for letter in trained)
    assert all(len({letter.start for letter in text.letters}) == count for text in texts)
    assert all({letter.k for letter in text.letters} == set(range(1, deepest + 1)) for text in texts)


@given(questions)
def test_answers_follow_the_edges(letter: Letter) -> None:
    edges, holder = dict(letter.graph), letter.start
    for _ in range(letter.k):
        holder = edges[holder]
    assert letters.answer(letter) == holder
    assert letter.taker(holder, -letter.k) == letter.start
    text = letters.prompt(letter)
    assert all(f"{giver} passes the letter to {taker}.\n" in text for giver, taker in edges.items())
    assert [line.split()[0] for line in text.split("\n")[1:11]] == list(letter.order)


@given(seeds, st.booleans(), st.integers(1, 12), st.lists(seeds, max_size=10))
def test_pairs_have_no_graph_twice_and_none_seen(seed: int, shared: bool, size: int, others: list[int]) -> None:
    first = letter_pairs.draw_pairs(1, seed, shared_path=shared, unseen=Held())
    seen = Held().with_those_of([*first[0].letters, *(letters.draw(other, 1, 0) for other in others)])
    found = letter_pairs.draw_pairs(size, seed, shared_path=shared, unseen=seen)
    graphs = [letter.graph for pair in found for letter in pair.letters]
    assert len(found) == size
    assert len(set(graphs)) == len(graphs)
    assert not seen.graphs & set(graphs)
    assert all(len({pair.B, pair.D, pair.E}) == 3 for pair in found)
