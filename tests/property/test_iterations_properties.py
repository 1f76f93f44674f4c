"""Iteration tasks: what must hold for every request and every generated text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loopscope.tasks import iterations
from loopscope.tasks.iterations import TASKS, TEMPLATES, Request, starts_of


@st.composite
def asked(draw):
    name = draw(st.sampled_from(sorted(TASKS)))
    start = draw(st.sampled_from(TASKS[name].starts))
    return Request(name, start, draw(st.integers(1, 99)), draw(st.integers(0, len(TEMPLATES) - 1)))


@given(asked(), st.integers(0, 20), st.integers(0, 20))
def test_steps_add_up(request, first, second):
    task = TASKS[request.task]
    state = task.state(request.start, first)
    for _ in range(second):
        state = task.step(state)
    assert state == task.state(request.start, first + second)


@given(asked(), asked())
def test_different_requests_have_different_prompts(one, other):
    assert (one.prompt == other.prompt) == (one == other)


@given(asked(), st.sampled_from(["", " ", "\n", "\t "]), st.sampled_from(["", " ", "\n\n"]))
def test_blanks_and_case_do_not_count(request, before, after):
    for text in (request.answer, request.answer.lower(), request.answer.upper()):
        assert iterations.score(request, before + text + after) == (True, True)


@given(asked(), st.text())
def test_whole_implies_parsed_and_any_text_has_a_score(request, text):
    whole, parsed = iterations.score(request, text)
    assert parsed or not whole


@given(st.sampled_from(sorted(TASKS)), st.integers(-(10**30), 10**30), st.text(alphabet="abc .,;", max_size=8))
def test_the_first_number_is_read(name, number, after):
    if name != "weekday":
        assert iterations.parsed_answer(name, f"so {number} {after}9") == str(number)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 10**6))
def test_training_never_starts_where_the_test_does(update, deepest, seed):
    for request in iterations.requests(update, deepest=deepest, seed=seed):
        assert request.start not in starts_of(request.task, "test")
        assert 1 <= request.k <= deepest


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(0, 10**6))
def test_a_deck_holds_every_depth_once(number, deepest, seed):
    updates = range(number * deepest, (number + 1) * deepest)
    drawn = [iterations.requests(update, deepest=deepest, seed=seed) for update in updates]
    for task in range(len(TASKS)):
        assert sorted(five[task].k for five in drawn) == list(range(1, deepest + 1))
