"""Iteration tasks: answers against other arithmetic, the split, decks and banks, scoring, baselines, overlaps."""

from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from loopscope.errors import InputError
from loopscope.tasks import iterations
from loopscope.tasks.iterations import DAYS, SEED, TASKS, TEMPLATES, Request, Score, starts_of, wider_starts

FIBONACCI = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584]


def collatz(n, steps):
    for _ in range(steps):
        n = n // 2 if n % 2 == 0 else 3 * n + 1
    return n


ORACLES = {
    "successor": lambda start, k: str(start + k),
    "weekday": lambda start, k: DAYS[(start + k) % 7],
    "doubling": lambda start, k: str(start << k),
    "fibonacci": lambda start, k: str(FIBONACCI[start + k + 1]),
    "collatz": lambda start, k: str(collatz(start, k)),
}


# ---- answers and prompts ---------------------------------------------------------------------------------------------


def test_domains():
    domains = {name: (task.starts[0], task.starts[-1]) for name, task in TASKS.items()}
    assert domains == {
        "successor": (0, 99),
        "weekday": (0, 6),
        "doubling": (1, 9),
        "fibonacci": (0, 8),
        "collatz": (2, 99),
    }


@pytest.mark.parametrize("name", TASKS)
def test_answers_against_other_arithmetic(name):
    for start in TASKS[name].starts:
        for k in range(1, 9):
            request = Request(name, start, k)
            assert request.answer == ORACLES[name](start, k)
            assert request.answer_after(0) == ORACLES[name](start, 0)


def test_examples():
    assert Request("doubling", 8, 3).answer == "64"
    assert Request("weekday", 6, 1).answer == "Monday"
    assert TASKS["fibonacci"].state(8, 0) == (21, 34)
    assert "(21, 34)" in Request("fibonacci", 8, 2).prompt
    assert [Request("collatz", 2, k).answer for k in (1, 2, 3, 4)] == ["1", "4", "2", "1"]


@pytest.mark.parametrize("name", TASKS)
def test_prompts_say_start_and_two_digits_and_end_in_answer(name):
    task = TASKS[name]
    prompts = set()
    for template in range(len(TEMPLATES)):
        for start in task.starts:
            for k in (1, 8, 12):
                prompt = Request(name, start, k, template).prompt
                question, instruction, last = prompt.rsplit("\n", 2)
                assert last == "Answer:"
                assert instruction == task.instruction
                assert task.said(task.enter(start)) in question
                assert re.findall(r"\b\d\d\b", question).count(f"{k:02d}") >= 1
                assert "{" not in prompt
                prompts.add(prompt)
    assert len(prompts) == len(TEMPLATES) * len(task.starts) * 3


# ---- split -----------------------------------------------------------------------------------------------------------


def test_starts_are_split_by_hash_a_quarter_for_test():
    sizes = {}
    for name, task in TASKS.items():
        train, test = (starts_of(name, split) for split in ("train", "test"))
        assert sorted(train + test) == list(task.starts)
        digest = {start: hashlib.sha256(f"{name} {start}".encode()).hexdigest() for start in task.starts}
        assert max(digest[start] for start in test) < min(digest[start] for start in train)
        sizes[name] = len(test)
    assert sizes == {"successor": 25, "weekday": 2, "doubling": 2, "fibonacci": 2, "collatz": 24}


@pytest.mark.parametrize("deepest", [1, 4, 8])
def test_decks_make_every_task_and_depth_equally_frequent(deepest):
    counted = Counter()
    for update in range(6 * deepest):
        drawn = iterations.requests(update, deepest=deepest)
        assert [request.task for request in drawn] == list(TASKS)
        assert drawn == iterations.requests(update, deepest=deepest)
        assert all(request.start in starts_of(request.task, "train") for request in drawn)
        counted.update((request.task, request.k) for request in drawn)
    assert counted == {(task, k): 6 for task in TASKS for k in range(1, deepest + 1)}


def test_training_draws_every_start_and_template():
    drawn = [request for update in range(1200) for request in iterations.requests(update)]
    for name in TASKS:
        mine = [request for request in drawn if request.task == name]
        assert {request.start for request in mine} == set(starts_of(name, "train"))
        shares = Counter(request.template for request in mine)
        assert all(180 < shares[template] < 300 for template in range(5))
    assert len({tuple(iterations.requests(update)) for update in range(100)}) > 95
    assert iterations.requests(0) != iterations.requests(0, seed=SEED + 1)


# ---- banks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["test", "train"])
def test_the_banks_that_are_asked(split):
    bank = iterations.bank(split)
    assert bank == iterations.bank(split)
    assert Counter((r.task, r.k) for r in bank) == {(task, k): 32 for task in TASKS for k in range(1, 9)}
    assert all(r.start in starts_of(r.task, split) for r in bank)
    for cell in range(0, len(bank), 32):
        assert [r.template for r in bank[cell : cell + 32]] == [case % 5 for case in range(32)]
    for row in iterations.tally(bank):
        starts = len(starts_of(row.task, split))
        assert row.requests == 32
        assert row.prompts == min(32, 5 * starts)
    repeats = Counter(r.prompt for r in bank if r.task == "weekday")
    assert set(repeats.values()) == {"test": {3, 4}, "train": {1, 2}}[split]


@pytest.mark.parametrize(("split", "fingerprint"), [("test", "6ff96c916447e479"), ("train", "2f326e0ebfbdaf6f")])
def test_a_known_bank_stays_what_it_is(split, fingerprint):
    """A bank that changed without notice would make stored numbers wrong."""
    text = "\n".join(f"{r.prompt} {r.answer}" for r in iterations.bank(split))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == fingerprint


def test_the_bank_that_stops_a_run_shares_no_prompt_with_the_test():
    gate = iterations.bank("train", cases=16, deepest=4, seed=SEED + 1000)
    assert len(gate) == 5 * 4 * 16
    assert {r.prompt for r in gate}.isdisjoint(r.prompt for r in iterations.bank("test"))
    assert all(r.start in starts_of(r.task, "train") for r in gate)


def test_dense_requests_come_in_any_order_and_stay_in_the_training_starts():
    asked = iterations.dense_requests(5, longest=4, rounds=3)
    assert asked == iterations.dense_requests(5, longest=4, rounds=3)
    assert asked != iterations.dense_requests(6, longest=4, rounds=3)
    assert all(request.start in starts_of(request.task, "train") for request in asked)
    assert {request.k for request in asked[:15]} == {1, 2, 3, 4}
    first = Counter(iterations.dense_requests(seed, longest=4)[0].k for seed in range(100))
    assert all(10 < first[k] < 50 for k in range(1, 5))
    assert Counter((request.task, request.k) for request in asked) == {(t, k): 3 for t in TASKS for k in range(1, 5)}


def test_wider_starts_are_new_and_not_where_a_test_start_is():
    for name, task in TASKS.items():
        wider = wider_starts(name)
        tested = {task.state(start, 0) for start in starts_of(name, "test")}
        assert not set(wider) & set(task.starts)
        assert not {task.state(start, 0) for start in wider} & tested
        assert bool(wider) == (name != "weekday")
    assert TASKS["fibonacci"].state(9 + 20 * 3 + 7, 1) == (7, 10)


def test_half_of_the_requests_have_wider_starts_where_there_are_any():
    asked = [request for update in range(200) for request in iterations.requests(update, wider=True)]
    asked += [request for seed in range(50) for request in iterations.dense_requests(seed, longest=4, wider=True)]
    for name, task in TASKS.items():
        mine = [request.start for request in asked if request.task == name]
        share = sum(start not in task.starts for start in mine) / len(mine)
        assert share == 0 if name == "weekday" else 0.4 < share < 0.6
        known = {*starts_of(name, "train"), *wider_starts(name)}
        assert set(mine) <= known
    assert all(request.start in TASKS[request.task].starts for request in iterations.requests(0))


# ---- scoring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64", Score(True, True)),
        (" 64\n", Score(True, True)),
        ("64.", Score(False, True)),
        ("It is 64, not 32", Score(False, True)),
        ("32, then 64", Score(False, False)),
        ("064", Score(False, True)),
        ("-64", Score(False, False)),
        ("640", Score(False, False)),
        ("6 4", Score(False, False)),
        ("6,400", Score(False, False)),
        ("sixty-four", Score(False, False)),
        ("٦٤", Score(False, False)),
        ("9" * 5000, Score(False, False)),
        ("", Score(False, False)),
    ],
)
def test_scores_of_numbers(text, expected):
    assert iterations.score(Request("doubling", 8, 3), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Friday", Score(True, True)),
        (" FRIDAY ", Score(True, True)),
        ("friday.", Score(False, True)),
        ("The day is Friday, I think, or Monday", Score(False, True)),
        ("Monday or Friday", Score(False, False)),
        ("Fridays", Score(False, False)),
        ("Fri", Score(False, False)),
        ("5", Score(False, False)),
        ("", Score(False, False)),
    ],
)
def test_scores_of_days(text, expected):
    assert iterations.score(Request("weekday", 3, 1), text) == expected


def test_the_right_answer_scores_in_every_task():
    for request in iterations.bank("test"):
        assert iterations.score(request, request.answer) == (True, True)


# ---- what a score must be compared with ------------------------------------------------------------------------------


def test_baselines_against_the_oracles():
    bank = iterations.bank("test")
    for row in iterations.tally(bank):
        cell = [r for r in bank if (r.task, r.k) == (row.task, row.k)]
        oracle = ORACLES[row.task]
        right = [oracle(r.start, r.k) for r in cell]
        assert row.repeats_start == sum(oracle(r.start, 0) == a for r, a in zip(cell, right, strict=True))
        assert row.stops_early == sum(oracle(r.start, min(4, r.k)) == a for r, a in zip(cell, right, strict=True))
        assert row.says_one_thing == max(map(right.count, right))
        assert row.answers == len(set(right))


def test_baselines_of_the_long_test_requests_as_described():
    rows = [row for row in iterations.tally(iterations.bank("test")) if row.k > 4]
    assert sum(row.requests for row in rows) == 640
    assert sum(row.stops_early for row in rows) == 0
    assert {(row.task, row.k): row.repeats_start for row in rows if row.repeats_start} == {("weekday", 7): 32}
    assert sum(row.says_one_thing for row in rows) == 225


def test_rules_that_run_in_circles_are_right_without_iterating():
    (days,) = iterations.tally([Request("weekday", start, 11) for start in range(7)])
    assert days.stops_early == 7
    (numbers,) = iterations.tally([Request("collatz", start, 7) for start in (2, 4, 5, 7)])
    assert (numbers.stops_early, numbers.repeats_start) == (3, 0)


def slow_overlap(name, k, trained):
    """Write every training request out as the list of its (state, steps left), and look for the test request in it."""
    task = TASKS[name]

    def written(start, steps):
        return [(task.state(start, done), steps - done) for done in range(steps)]

    lists = [written(start, steps) for start in starts_of(name, "train") for steps in range(1, trained + 1)]
    inside = joins = asked = 0
    for start in starts_of(name, "test"):
        mine = written(start, k)
        inside += any(mine == other[-k:] for other in lists if len(other) >= k)
        joins += any(step in other for other in lists for step in mine[1:])
        asked += any(step == other[0] for other in lists for step in mine[1:])
    return inside, joins, asked


@pytest.mark.parametrize("trained", [4, 8])
def test_overlaps_against_written_out_requests(trained):
    rows = iterations.overlaps(trained=trained)
    assert [(row.task, row.k) for row in rows] == [(task, k) for task in TASKS for k in range(1, 9)]
    for row in rows:
        if row.task in ("weekday", "doubling", "fibonacci") or row.k in (1, 3, 5, 8):
            assert (row.inside, row.joins, row.asked) == slow_overlap(row.task, row.k, trained)
        assert row.asked <= row.joins <= row.starts


def test_overlaps_as_described():
    long = [row for row in iterations.overlaps() if row.k > 4]
    sums = {
        task: tuple(sum(getattr(r, f) for r in long if r.task == task) for f in ("inside", "joins", "starts"))
        for task in TASKS
    }
    assert sums == {
        "successor": (59, 99, 100),
        "weekday": (6, 8, 8),
        "doubling": (3, 4, 8),
        "fibonacci": (6, 8, 8),
        "collatz": (40, 85, 96),
    }


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: Request("dubling", 1, 1), "nearest: doubling"),
        (lambda: Request("doubling", 0, 1), "1 to 49"),
        (lambda: Request("weekday", 7, 1), "0 to 6"),
        (lambda: Request("weekday", 0, 0), "1 to 99"),
        (lambda: Request("weekday", 0, 100), "1 to 99"),
        (lambda: Request("weekday", 0, 1, 5), "0 to 4"),
        (lambda: Request("weekday", 0, 1).answer_after(-1), "0 or more"),
        (lambda: starts_of("weekday", "tests"), "nearest: test"),
        (lambda: iterations.requests(-1), "start at 0"),
        (lambda: iterations.requests(0, deepest=0), "depths at 1"),
        (lambda: iterations.bank("test", cases=0), "at least 1"),
        (lambda: iterations.dense_requests(0, longest=100), "1 to 99"),
        (lambda: iterations.dense_requests(0, longest=1, rounds=0), "at least 1"),
        (lambda: iterations.parsed_answer("week", "1"), "nearest: weekday"),
    ],
)
def test_mistakes_are_one_line(ask, said):
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        ask()
    assert "\n" not in str(caught.value)
