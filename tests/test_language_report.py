"""The sections on language models, put together from planted records: what they show of one model, and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loopscope.errors import InputError
from loopscope.measure.heads import Heads, Selection, Tried
from loopscope.measure.replies import answers_name
from loopscope.plot.canvas import BLUE, ORANGE
from loopscope.quantity import Quantity, one
from loopscope.stats import Estimate, wilson
from loopscope.store.store import Store
from loopscope.studies.antonyms.report import by_form, depth_tables
from loopscope.studies.antonyms.tables import PAPER_READOUTS
from loopscope.studies.claims import HOLDS, decide, decided_by
from loopscope.studies.evidence import Evidence, in_short
from loopscope.studies.iterations import tests as iteration_tests
from loopscope.studies.language.layouts import LETTERS
from loopscope.studies.letters.report import Walkers
from loopscope.studies.letters.search import search_table, steps, taken
from loopscope.studies.records import Record, records, save
from loopscope.studies.registry import LANGUAGE
from loopscope.studies.report.contents import Figure, Grid, Listing, Report, Section
from loopscope.studies.report.dots import Search, Spot, Step, dots, searches
from loopscope.studies.report.drawing import THEMED
from loopscope.studies.report.figures import Line, lines_in_panels, stacked_panels
from loopscope.studies.report.heat import matrices
from loopscope.studies.report.models import labels, side_by_side
from loopscope.studies.report.page import pages, write_page
from loopscope.studies.report.sections import LEAD, SECTIONS, report_of
from tests.browser import installed
from tests.looking import phone_width
from tests.planted.language import (
    BRANCHES,
    PAPER_CONTENT,
    PAPER_RESTORATION,
    PAPER_STEERING,
    Counts,
    antonyms,
    commonest,
    iterations,
    letters,
    record,
)
from tests.reading_pages import Reader, figure, told

pytestmark = pytest.mark.usefixtures("few_draws")

EVERY = (2, 3, 4)
CASES = 4
LONG = "a-model-with-quite-a-long-name-of-its-own"


def tried(step: str, heads: str, rescued: int, damaged: int, passed: bool, loops: tuple[int, ...] = EVERY) -> Tried:
    return Tried(step, heads, loops, rescued, damaged, rescued / 8, damaged / 8, passed)


FOUND = Selection(
    Heads.parse("5.1,3 6.0"), (4,), (5, 6), True, 8, 0, 8, 120.0,
    (
        tried("late layers", "5.0,1,2,3 6.0,1,2,3", 8, 0, True), tried("groups, 1 together", "5.0,1,2,3", 7, 0, False),
        tried("groups, 1 together", "6.0,1,2,3", 0, 8, False),
        tried("heads left out", "5.0,1,2,3 6.0,1,2,3", 8, 0, True), tried("heads left out", "5.1,2,3 6.0", 8, 0, True),
        tried("leading heads", "5.1", 4, 4, False), tried("leading heads", "5.1,3", 8, 0, True),
        tried("leading heads", "5.1,3 6.0", 8, 0, True), tried("loops", "5.1,3", 8, 0, True, (4,)),
        tried("loops", "5.1,3", 0, 8, False, (2, 3)), tried("confirmation", "5.1,3", 32, 16, False, (4,)),
        tried("confirmation", "5.1,3 6.0", 63, 2, True, (4,)),
    ),
)  # fmt: skip


def searched(found: Selection | None = FOUND) -> Record:
    made = record("letters", {"heads": {}}, {"set": "discovery"})
    return replace(made, notes={**made.notes, "selection": found and found.to_dict()})


def as_model(made: Record, name: str, parameters: int | None = None, key: str = "", **settings: Any) -> Record:
    """The same record of another model: its name, size, map and how it is looped."""
    model = {**made.notes["model"], "parameters": parameters or made.notes["model"]["parameters"]}
    step = {"family": "dense", "key": key or "0" * 64}
    facts = replace(made.facts, name=name)
    return replace(
        made, facts=facts, notes={**made.notes, "model": model, "map": step}, settings={**made.settings, **settings}
    )


def walked(name: str = "smol", parameters: int | None = None, key: str = "", **settings: Any) -> list[Record]:
    """The paper's answers, and the search above."""
    by_layer = PAPER_RESTORATION | {"layer 5": 127, "layer 6": 2}
    chosen = {"heads": str(FOUND.heads)}
    made = [
        replace(each, settings={**each.settings, **chosen})
        for each in (letters("steering", PAPER_STEERING), letters("pattern-vs-output", PAPER_CONTENT),
                     letters("restoration", by_layer))
    ]  # fmt: skip
    return [as_model(each, name, parameters, key, **settings) for each in (searched(), *made)]


def section(anchor: str, *found: Record) -> Section:
    made = SECTIONS[anchor](Evidence(found))
    assert made is not None
    return checked(made)


def checked(made: Section) -> Section:
    assert list(made.claims) == decided_by(made.anchor)
    titles = [table.title for table in (*made.tables, *made.more)]
    assert len(set(titles)) == len(titles)
    for table in (*made.tables, *made.more):
        assert table.lines if isinstance(table, (Grid, Listing)) else table.rows, table.title
    return made


def grid(made: Section, title: str) -> Grid:
    (found,) = [each for each in made.tables if isinstance(each, Grid) and each.title == title]
    return found


def listing(made: Section, title: str) -> Listing:
    (found,) = [each for each in made.tables if isinstance(each, Listing) and each.title == title]
    return found


def values(rows: dict[str, Quantity]) -> list[float]:
    return [row.estimate.value for row in rows.values()]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of two models in each experiment, as their records come back from a store."""
    store = Store(tmp_path_factory.mktemp("results"))
    small = as_model(branched((8, 0, 0, 0), (72, 0, 0, 0), same=False), "scratch", 9_876_000)
    found = [
        *walked(LONG, 9_876_000), *walked(boundary="none"), antonyms("stepwise", 5, 16, 16),
        antonyms("final-only", 63, 64, 16), small, branched((80, 16, 0, 8), (64, 32, 16, 0)),
    ]  # fmt: skip
    for each in found:
        if "heads" in each.predictions:
            each = replace(each, predictions={"heads": {"rescued": torch.zeros(1, dtype=torch.int16)}})
        save(store, replace(each, cost={"seconds": 2.0, "device": "CPU", "forwards": 9.0}), {"weights": each.facts.key})
    evidence = Evidence(records(store))
    return report_of(evidence, decide(evidence))


# ---- none, one, several ----------------------------------------------------------------------------------------------


def test_without_records_there_are_no_sections_and_no_word_of_them() -> None:
    assert all(SECTIONS[anchor](Evidence()) is None for anchor in LANGUAGE)
    made = report_of(Evidence(), decide(Evidence()))
    assert (tuple(made.lead), list(made.sections)) == (LEAD, [])


def test_models_are_told_apart_by_as_little_as_is_enough() -> None:
    one = searched()
    both = [as_model(one, "a", boundary="none"), as_model(one, "a", boundary="norm")]
    assert list(labels(both).values()) == ["a (135M, boundary none)", "a (135M, boundary norm)"]
    maps = [as_model(one, "a", key="1" * 64), as_model(one, "a", key="2" * 64), as_model(one, "b", 9_876_000)]
    assert list(labels(maps).values()) == ["a (135M, map 111111)", "a (135M, map 222222)", "b (10M)"]
    seeds = [replace(each, facts=replace(each.facts, key=key * 64)) for each, key in zip(both, "45", strict=True)]
    assert list(labels(seeds).values()) == list(labels(both).values())
    third = replace(both[0], facts=replace(both[0].facts, key="6" * 64))
    assert list(labels([*seeds, third]).values()) == [
        "a (135M, boundary none, weights 444444)", "a (135M, boundary norm)", "a (135M, boundary none, weights 666666)",
    ]  # fmt: skip
    large = as_model(one, "ouro", LANGUAGE[LETTERS].parameters)
    assert next(iter(labels([*both, large]).values())) == "ouro (2.7B)"


def test_evidence_keeps_every_model_map_boundary_and_set_of_heads_and_of_amounts_the_largest() -> None:
    whole = letters("steering", PAPER_STEERING)
    few = {where: {name: each[:20] for name, each in found.items()} for where, found in whole.predictions.items()}
    less = replace(whole, predictions=few, settings={**whole.settings, "pairs": 20})
    others = [
        as_model(whole, "a", key="1" * 64), as_model(whole, "a", key="2" * 64), as_model(whole, "a", boundary="norm"),
        as_model(whole, "a", heads="6.0"),
    ]  # fmt: skip
    assert len(Evidence([whole, less]).records) == 1
    assert Evidence([less, whole]).records == [whole]
    assert len(Evidence([whole, *others]).records) == 5
    assert in_short(["a", "b", "a"]) == "a; b"


# ---- the letter walk -------------------------------------------------------------------------------------------------


def test_the_papers_letters_stand_beside_themselves(report: Report) -> None:
    made = checked(report.sections[0])
    steering = grid(made, "Steering: right answers")
    assert steering.columns == ["smol (135M)", f"{LONG} (10M)", "paper: Ouro-2.6B"]
    for name, line in steering.lines.items():
        assert line["smol (135M)"].n == 256
        assert len(set(values(line))) == 1, name
    said = f"rescue: steered into unsteered: smol (135M) 96.9 %, {LONG} (10M) 96.9 % (paper 96.9)"
    assert said in figure(made, "letters-steering").description
    content = grid(made, "Pattern against output: what is answered")
    assert values(content.lines["output: D"]) == [240 / 256] * 3
    described = figure(made, "letters-content").description
    ours, paper = described.split("paper: Ouro-2.6B: ")
    assert "pattern: B, own answer 14.5 %, E, rerouted 71.1 %, D, donor's answer 0.0 %, other 14.5 %." in ours
    assert "pattern: B, own answer 14.5 %, E, rerouted 71.1 %, D, donor's answer 0.0 %, other 14.5 %." in paper
    assert "values" not in described  # which was not run here
    repaired = grid(made, "Restoration: repaired of what other queries broke")
    assert [(line["smol (135M)"].estimate.value, line["smol (135M)"].n) for line in repaired.lines.values()] == [
        (1.0, 249), (0.0, 249), (1.0, 249), (125 / 249, 249), (0.0, 249),
    ]  # fmt: skip
    assert "at the chosen heads of layer 5: smol (135M) 50.2 %, " in figure(made, "letters-restoration").description
    differences = grid(made, "Paired differences").lines
    assert values(differences["steered - rescue"]) == [3 / 256] * 3


def test_models_are_named_beside_the_published_one(report: Report) -> None:
    made = report.sections[0]
    assert made.text[0] == (
        f"The paper's model is Ouro-2.6B, of 2.7B parameters. Measured here: smol (135M); {LONG} (10M)."
    )
    about = listing(made, "Models")
    assert about.head == "model"
    assert about.lines["smol (135M)"] == {
        "kind": "llama", "parameters": "134,515,008", "layers": "30", "heads": "9", "width": "576", "loops": "4",
        "boundary": "none", "J": "dense", "precision": "fp32", "asked": "discovery pairs; 256 pairs",
    }  # fmt: skip
    assert about.lines["paper: Ouro-2.6B"]["parameters"] == "2,667,974,657"


def test_several_models_stand_side_by_side(report: Report) -> None:
    made = report.sections[0]
    both = ["smol (135M)", f"{LONG} (10M)"]
    for name in ("steering", "content", "restoration", "search", "heads"):
        drawn = figure(made, f"letters-{name}")
        assert all(each in drawn.description for each in both), name
    assert [each.title for each in made.tables if each.title.startswith("How")] == [
        f"How the heads were found, {each}" for each in both
    ]


def walkers(*found: Record) -> Walkers:
    return Walkers(Evidence(found), found, labels(found))


def test_the_order_of_records_does_not_matter() -> None:
    found = [*walked(boundary="none"), *walked(boundary="norm"), *walked("scratch", 9_876_000)]
    one, other = walkers(*found), walkers(*reversed(found))
    assert one.series == other.series == ["smol (135M, boundary none)", "smol (135M, boundary norm)", "scratch (10M)"]
    assert list(one.searched) == list(other.searched) == one.series


def test_the_path_of_the_search() -> None:
    by_step = steps(FOUND)
    assert {step: taken(FOUND, step, scopes) for step, scopes in by_step.items()} == {
        "late layers": 0, "groups, 1 together": None, "heads left out": None, "leading heads": 1, "loops": 0,
        "confirmation": 1,
    }  # fmt: skip
    best = [
        tried("triples of layers", "5.0", 8, 0, True),
        replace(tried("triples of layers", "6.0", 8, 0, True), rescue=2.0),
    ]
    assert taken(FOUND, "triples of layers", best) == 1
    assert search_table("smol", FOUND, heads=9).lines == {
        "late layers": {
            "tried": "1", "passed": "1", "rescued": "8/8", "damaged": "0/8",
            "went on with": "5.0,1,2,3 6.0,1,2,3, loops 2-4",
        },
        "groups, 1 together": {"tried": "2", "passed": "0", "went on with": "none"},
        "heads left out": {"tried": "2", "passed": "2", "went on with": "a ranking"},
        "leading heads": {
            "tried": "3", "passed": "2", "rescued": "8/8", "damaged": "0/8", "went on with": "5.1,3, loops 2-4",
        },
        "loops": {"tried": "2", "passed": "1", "rescued": "8/8", "damaged": "0/8", "went on with": "5.1,3, loop 4"},
        "confirmation": {
            "tried": "2", "passed": "1", "rescued": "63/64", "damaged": "2/64", "went on with": "5.1,3 6.0, loop 4",
        },
    }  # fmt: skip
    whole = search_table("smol", FOUND, heads=4).lines["late layers"]
    assert whole["went on with"] == "layers 5, 6, loops 2-4"


def test_the_search_in_figures_and_words(report: Report) -> None:
    made = report.sections[0]
    described = figure(made, "letters-search").description
    assert "confirmation: 2 tried, taken: rescue 98.4 %, damage 3.1 %" in described
    assert "groups, 1 together: 2 tried, none taken" in described
    sizes = figure(made, "letters-heads")
    assert told(sizes, "smol (135M): 3 heads chosen, rescue, discovery") == {1: 50.0, 2: 100.0, 3: 100.0}
    assert told(sizes, "smol (135M): 3 heads chosen, damage, confirmation") == {2: 25.0, 3: 3.1}
    assert "smol (135M): 3 in loop 4, `5.1,3 6.0` (layer.heads), every step had a scope that passed; " in made.text[3]


def test_without_heads_there_are_only_runs_without_patches() -> None:
    made = section("letters", searched(None), letters("steering", {"unsteered": 0, "steered": 3}))
    assert "none, as J brings no more right answers" in made.text[-1]
    assert [each.name for each in made.figures] == ["letters-steering"]
    assert len(grid(made, "Steering: right answers").lines) == 2


def test_walks_are_drawn_by_the_transfers_asked_for() -> None:
    """With J, all are right but at eight transfers; without, those up to four, after which four are answered for."""
    depths, loops = torch.arange(1, 9).repeat_interleave(10), torch.arange(1, 5)
    said = {
        answers_name(template, steered): torch.minimum((2 if steered else 1) * loops, depths[:, None]).to(torch.uint8)
        for template in (0, 5)
        for steered in (False, True)
    }
    said["template 0, J"][-5:, -1] = 255
    made = record("letters", {"walks": said}, {"set": "walks", "letters": 10})
    found = section("letters", made)
    assert [each.name for each in found.figures] == ["letters-walks"]
    (drawn,) = found.figures
    assert "(135M), J: " + "".join(f"100.0 at {k}, " for k in range(1, 8)) + "50.0 at 8 (paper: " in drawn.description
    assert "(135M), no map: 100.0 at 1, 100.0 at 2, 100.0 at 3, 100.0 at 4, 0.0 at 5, " in drawn.description
    _, native, steered = found.more
    for table, expected in ((native, (2, 4)), (steered, (3, 8))):
        cells = [one(table.rows, "letters.walks.loops", k=k, loop=loop) for k, loop in ((3, 2), (8, 4))]
        assert [each.at["transfers"] for each in cells] == [*expected]
        assert cells[0].label == f"k = 3, loop 2: {expected[0]}"
    assert cells[1].estimate.value == 0.5


def test_a_walker_that_forgets_beyond_its_trained_loops_is_read_where_it_was_trained() -> None:
    """Eight loops: with J all is right at the eighth; without J at the fourth, after which nobody is named."""
    depths, loops = torch.arange(1, 9).repeat_interleave(10), torch.arange(1, 9)
    steered = torch.minimum(loops, depths[:, None]).to(torch.uint8)
    native = torch.where(loops <= 4, steered, 255).to(torch.uint8)
    said = {answers_name(t, with_j): steered if with_j else native for t in (0, 5) for with_j in (False, True)}
    made = record("letters", {"walks": said}, {"set": "walks", "letters": 10})
    (drawn,) = section("letters", replace(made, facts=replace(made.facts, loops=8))).figures
    assert "(135M), no map: 100.0 at 1, 100.0 at 2, 100.0 at 3, 100.0 at 4, 0.0 at 5, " in drawn.description
    assert "(135M), J: " + "".join(f"100.0 at {k}, " for k in range(1, 8)) + "100.0 at 8" in drawn.description


def test_what_patterns_lead_to_is_drawn_loop_by_loop() -> None:
    """Of 256 pairs, patched runs go with the steered one in all at loop 2, in half at loop 3, in none at loop 4."""
    made = letters("steering", PAPER_STEERING)
    steered = torch.arange(256)[:, None].remainder(5).expand(-1, 4).to(torch.uint8)
    rescue = steered.clone()
    rescue[:128, 2], rescue[:, 3] = 9, 9
    said = {"unsteered": torch.full_like(steered, 9), "steered": steered, "rescue": rescue}
    found = section("letters", replace(made, predictions={**made.predictions, "steering-by-loop": said}))
    drawn = figure(found, "letters-along")
    assert told(drawn, "(135M), patterns of the chosen heads") == {1: 100.0, 2: 100.0, 3: 50.0, 4: 0.0}
    assert told(drawn, "(135M), nothing") == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}
    assert "letters-along" not in {each.name for each in section("letters", made).figures}


def test_a_search_alone_is_shown() -> None:
    made = section("letters", searched())
    assert [each.name for each in made.figures] == ["letters-search", "letters-heads"]


def test_heads_that_were_given_are_named_beside_those_selected() -> None:
    given = as_model(letters("steering", PAPER_STEERING | {"rescue": 5}), "smol", heads="6.2")
    rows = walkers(given, *walked()).by_condition("steering", "letters.steering")
    assert {label: found["rescue"].estimate.value for label, found in rows.items()} == {
        "smol (135M)": 248 / 256, "smol (135M), heads 6.2 in loop 4": 5 / 256,
    }  # fmt: skip
    alone = walkers(given).tested("steering")
    assert list(alone) == ["smol (135M)"]
    bare = as_model(letters("steering", {"unsteered": 0, "steered": 3}), "smol")
    bare = replace(bare, settings={"set": "steering", "pairs": 256, "heads": None})
    both = walkers(as_model(searched(None), "smol"), bare, given).tested("steering")
    assert list(both) == ["smol (135M), no heads", "smol (135M), heads 6.2 in loop 4"]


def quantity(name: str, estimate: Estimate, n: int, published: float | None = None) -> Quantity:
    return Quantity("letters.steering", name, estimate, n, published, {"condition": name})


def test_models_that_were_asked_less_say_so() -> None:
    rows = {
        "a": [quantity("x", wilson(8, 16), 16, 0.25)],
        "b": [quantity("x", wilson(1, 2), 2), quantity("y", wilson(1, 2), 2)],
    }
    made = side_by_side("T", "letters", rows)
    space = "\N{NO-BREAK SPACE}"
    assert made.columns == [f"a, n{space}={space}16", f"b, n{space}={space}2", "paper: Ouro-2.6B"]
    assert [len(line) for line in made.lines.values()] == [3, 1]
    assert values(made.lines["x"]) == [0.5, 0.25, 0.5]
    assert side_by_side("T", "letters", {"a": rows["a"]}).columns == ["a", "paper: Ouro-2.6B"]
    assert side_by_side("T", "letters", {"b": rows["b"]}).columns == ["b"]


def test_rows_that_only_some_models_have_stand_after_their_neighbours() -> None:
    names = {"a": ["all", "layer 24"], "b": ["all", "layer 1", "layer 3"], "c": ["all", "layer 1", "layer 2"]}
    rows = {label: [quantity(name, wilson(1, 2), 2) for name in mine] for label, mine in names.items()}
    made = side_by_side("T", "letters", rows)
    assert list(made.lines) == ["all", "layer 1", "layer 2", "layer 3", "layer 24"]
    assert {name: list(line) for name, line in made.lines.items()}["layer 1"] == ["b", "c"]


# ---- antonyms --------------------------------------------------------------------------------------------------------


def test_published_readouts_are_those_of_the_paper() -> None:
    """Of 256 requests the final-only backbone answers 81, 112, 255, 256 after loops 1 to 4."""
    assert np.array(PAPER_READOUTS["final-only"]).sum(0).tolist() == [81, 112, 255, 256]


def test_antonyms_by_depth_and_loop(report: Report) -> None:
    made = checked(report.sections[1])
    drawn = figure(made, "antonyms-depths")
    final = drawn.description.index("final-only: final-only (135M), J: ")
    assert final < drawn.description.index("stepwise: stepwise (135M), J: ")
    assert "J: 0.0 at 1, 0.0 at 2, 0.0 at 3, 0.0 at 4, 31.2 at 5, 0.0 at 6, 0.0 at 7, 0.0 at 8 (paper: 21.9 at 1, " in (
        drawn.description
    )
    readouts = figure(made, "antonyms-readouts").description
    assert (
        "stepwise, stepwise (135M), per cent by loop: deletion 1: 100.0 0.0 0.0 0.0; deletion 2: 0.0 100.0" in readouts
    )
    assert "final-only, paper: Ouro-2.6B, per cent by loop: deletion 1: 89.1 98.4 100.0 100.0; " in readouts
    table = grid(made, "Right replies by depth, stepwise")
    assert table.columns == [*(f"k = {k}" for k in range(1, 9)), "5-8"]
    ours, paper = table.lines["J, stepwise (135M)"], table.lines["J, paper: Ouro-2.6B"]
    assert (ours["5-8"].estimate.value, ours["5-8"].n) == (5 / 64, 64)
    assert round(paper["5-8"].estimate.value, 3) == 0.078
    assert "J, held-out wording, paper: Ouro-2.6B" in table.lines
    assert (
        grid(made, "Right replies by depth, final-only").lines["J, final-only (135M)"]["5-8"].estimate.value == 63 / 64
    )


def test_one_kind_of_supervision_alone() -> None:
    made = section("antonyms", antonyms("stepwise", 2, 4, 8))
    assert "final-only" not in figure(made, "antonyms-readouts").description
    assert [each.title for each in made.tables] == ["Models", "Right replies by depth, stepwise"]


def test_two_backbones_of_one_supervision_are_both_shown() -> None:
    few = antonyms("stepwise", 2, 4, 8)
    found = [("one", "stepwise", few), ("other", "stepwise", antonyms("stepwise", 4, 4, 8))]
    (table,) = depth_tables(found)
    assert [table.lines[f"J, {name}"]["5-8"].estimate.value for name in ("one", "other")] == [2 / 32, 4 / 32]
    forms = by_form([few, antonyms("final-only", 2, 4, 8), as_model(few, "zed")])
    assert [(label, form) for label, form, _ in forms] == [
        ("final-only (135M)", "final-only"), ("stepwise (135M)", "stepwise"), ("zed (135M)", "stepwise"),
    ]  # fmt: skip
    same = by_form([as_model(antonyms(form, 2, 4, 8), "m", key=form) for form in ("final-only", "stepwise")])
    assert [(label, form) for label, form, _ in same] == [("m (135M)", "final-only"), ("m (135M)", "stepwise")]
    named = {"final-only": "ab", "stepwise": "bc"}
    mixed = by_form([as_model(antonyms(form, 2, 4, 8), name) for form, names in named.items() for name in names])
    assert [(label[0], form) for label, form, _ in mixed] == [
        ("b", "final-only"), ("b", "stepwise"), ("a", "final-only"), ("c", "stepwise"),
    ]  # fmt: skip


# ---- iterations ------------------------------------------------------------------------------------------------------


HELD_OUT, TRAINED = "smollm2-135m (135M), held-out starts", "smollm2-135m (135M), trained starts"


def branched(held_out: Counts, trained: Counts, same: bool = True) -> Record:
    """So many of 80 long requests are right in each branch, the first tasks first, and all short ones."""
    made = iterations(held_out, trained, CASES)
    return replace(made, notes={**made.notes, "same_h4": same})


def test_four_branches_by_task_and_steps(report: Report) -> None:
    """A fifth of the long requests are those of the first task."""
    made = report.sections[2]
    drawn = figure(made, "iterations-1")
    assert told(drawn, "successor, F alone") == dict.fromkeys(range(1, 9), 100.0)
    assert told(drawn, "weekday, F alone") == {k: 100.0 if k <= 4 else 0.0 for k in range(1, 9)}
    assert told(drawn, "all tasks, F alone")[8] == 20.0
    assert told(drawn, "weekday, best baseline")[7] == 100.0  # a week later it is the same day
    table = grid(made, "Four ways on, by task")
    assert table.lines[f"successor, long, {HELD_OUT}"]["F alone"].estimate.value == 1.0
    line = table.lines[f"all long, {HELD_OUT}"]
    assert [line[each].estimate.value for each in ("J and F", "F alone", "J alone", "stop")] == [1.0, 0.2, 0.0, 0.1]
    assert line["F alone"].n == 20 * CASES
    assert round(table.lines["all long, paper: Qwen3-8B"]["F alone"].estimate.value, 4) == 0.2859
    assert table.lines[f"all short, {HELD_OUT}"]["stops after 4 steps"].estimate.value == 1.0
    assert table.lines[f"all long, {HELD_OUT}"]["repeats the start"].estimate.value == 0.05
    assert table.lines[f"weekday, long, {HELD_OUT}"]["repeats the start"].estimate.value == 0.25


def test_trained_starts_stand_beside_held_out_ones(report: Report) -> None:
    made = report.sections[2]
    assert (figure(made, "iterations-1").title, figure(made, "iterations-2").title) == (
        f"Four ways on from h4, {HELD_OUT}", f"Four ways on from h4, {TRAINED}",
    )  # fmt: skip
    drawn = figure(made, "iterations-2")
    assert told(drawn, "weekday, F alone") == dict.fromkeys(range(1, 9), 100.0)
    for branch, right in (("J and F", 80.0), ("F alone", 40.0), ("J alone", 20.0), ("stop", 0.0)):
        assert told(drawn, f"all tasks, {branch}")[8] == right
    assert f"{CASES} requests from trained starts" in drawn.caption
    table = grid(made, "Four ways on, by task")
    lines = [name for name in table.lines if name.startswith("all long")]
    assert lines[:2] == [f"all long, {HELD_OUT}", f"all long, {TRAINED}"]
    assert lines[-1] == "all long, paper: Qwen3-8B"
    line = table.lines[f"all long, {TRAINED}"]
    assert [line[each].estimate.value for each in ("J and F", "F alone", "J alone", "stop")] == [0.8, 0.4, 0.2, 0.0]
    assert table.note.endswith("The paper's requests have trained starts.")
    one, other = (table.lines[f"doubling, long, {each}"]["says one thing"] for each in (HELD_OUT, TRAINED))
    assert one.estimate.value == commonest("doubling", "test", CASES)
    assert other.estimate.value == commonest("doubling", "train", CASES) < one.estimate.value


def test_several_models_iterate_side_by_side(report: Report) -> None:
    made = report.sections[2]
    assert [each.name for each in made.figures] == [*(f"iterations-{n}" for n in range(1, 5)), "iterations-long"]
    said = (
        f"all long, J and F: {HELD_OUT} 100.0 %, {TRAINED} 80.0 %, scratch (10M), held-out starts 10.0 %, "
        "scratch (10M), trained starts 90.0 % (paper 89.7)"
    )
    assert said in figure(made, "iterations-long").description
    assert figure(made, "iterations-long").caption.endswith("Diamonds: the paper's numbers, from trained starts.")
    assert "h4 was the same in all branches, bit by bit, but not in scratch (10M)." in made.text


# ---- figures ---------------------------------------------------------------------------------------------------------


def half() -> Any:
    return wilson(8, 16)


def test_dots_of_several_series_differ_by_colour_and_marker() -> None:
    drawn = dots(
        "d", "t", "c", {"g": [Spot("one", {"a": half(), "b": half()}, 0.25), Spot("two", {"b": half()})]}, ["a", "b"]
    )
    assert drawn.description == "g, one: a 50.0 %, b 50.0 % (paper 25.0); g, two: b 50.0 %."
    for svg in (drawn.drawings.svg, drawn.drawings.narrow):
        assert all(f"var(--{THEMED[colour]}, {colour})" in svg for colour in (BLUE, ORANGE))
        assert svg.count(">50.0<") == 3
    without = dots("d", "t", "c", {"g": [Spot("two", {"b": half()})]}, ["a", "b"])
    assert (">b<" in without.drawings.svg, ">a<" in without.drawings.svg) == (True, False)
    assert f"var(--{THEMED[ORANGE]}, {ORANGE})" in without.drawings.svg


def test_the_papers_values_on_lines_are_told() -> None:
    line = Line("J", [half(), half()], paper=[(1.0, 0.25)])
    drawn = lines_in_panels("l", "t", "c", {"p": [line]}, "k")
    assert drawn.description == "Per cent right by k. p, J: 50.0 at 1, 50.0 at 2 (paper: 25.0 at 1)."
    assert ">paper<" in drawn.drawings.svg


def test_matrices_have_their_numbers_in_them() -> None:
    drawn = matrices("m", "t", "c", {"p": np.array([[0.25, 1.0], [0.0, 0.5]])}, "loop", "deletion")
    assert drawn.description == "p, per cent by loop: deletion 1: 25.0 100.0; deletion 2: 0.0 50.0."
    for number in ("25", "100", "0", "50"):
        assert f">{number}<" in drawn.drawings.svg


@pytest.mark.parametrize("draw", [stacked_panels, searches, dots, matrices])
def test_nothing_to_draw_is_refused(draw: Any, refused: Any) -> None:
    rest: dict[Any, Sequence[Any]] = {
        stacked_panels: ({}, {}),
        searches: ({},),
        dots: ({}, []),
        matrices: ({}, "x", "y"),
    }
    assert "nothing to draw" in refused(InputError, draw, "f", "T", "c", *rest[draw])


def test_a_search_is_drawn_with_what_it_took() -> None:
    search = Search([Step("first", [(0.5, 0.5), (1.0, 0.0)], 1), Step("then", [(0.25, 0.75)])], 0.9, 0.1)
    drawn = searches("s", "t", "c", {"m": search})
    assert drawn.description == "m, first: 2 tried, taken: rescue 100.0 %, damage 0.0 %; m, then: 1 tried, none taken."


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_has_the_sections_their_claims_and_their_cost(report: Report) -> None:
    assert [each.anchor for each in report.sections] == list(LANGUAGE)
    assert {row.verdict for row in report.ledger if row.id in decided_by(*LANGUAGE)} == {HOLDS}
    assert report.lead[-1].startswith("Looped language models stand at the end")
    costs = [cost.step for cost in report.costs]
    assert {"letters, steering, on smol", "antonyms, stepwise, on stepwise", "iterations on smollm2-135m"} <= set(costs)
    assert len(set(costs)) == len(costs)


def test_the_page_is_well_formed(report: Report, tmp_path: Path) -> None:
    write_page(report, tmp_path)
    for place, text in pages(report).items():
        assert (tmp_path / place).read_text(encoding="utf-8") == text
        reader = Reader(text)
        ids = [found for _, attributes in reader.elements if (found := attributes.get("id"))]
        assert len(set(ids)) == len(ids)
        assert "nan" not in " ".join(cell for table in reader.tables for line in table for cell in line)
    drawn: list[Figure] = [each for made in report.sections for each in made.figures]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{each.name}.{kind}" for each in drawn for kind in ("svg", "pdf")
    }


@pytest.mark.slow
@pytest.mark.skipif(installed() is None, reason="no Chromium: the page was not looked at in a browser")
def test_the_page_never_scrolls_sideways_on_a_phone(report: Report, tmp_path: Path) -> None:
    needed, there = phone_width(report, tmp_path)
    assert needed <= there


def test_branches_are_those_that_are_measured() -> None:
    assert tuple(iteration_tests.branches()) == BRANCHES
