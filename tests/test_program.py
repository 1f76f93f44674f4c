"""Programs: what they print, what they read, what they count, and what they say when they do not fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from loopscope.address import Address, Site
from loopscope.bounds import MOST_CALLS, MOST_NESTED
from loopscope.errors import InputError
from loopscope.execute.executor import check_programs
from loopscope.execute.runs import Sizes
from loopscope.program import Add, Apply, Call, F, Given, J, Map, Patch, Program, Run, as_program, h

PATTERN = Site(2, "pattern", None, (-1,))
Z = Site(1, "z")


def suggestion(message: str) -> str:
    """What an error line proposes instead."""
    found = re.search(r"\(nearest: (.+)\)$", message)
    assert found is not None, message
    return found[1]


# Text ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("F", Program((F,))),
        ("F6 J:one F", F**6 | J("one") | F),
        ("J:one", Program((J("one"),))),
        ("h6 J:one F", h(6) | J("one") | F),
        ("h6", h(6)),
        ("h0 F", h(0) | F),
        ("F3 J:a-1 J:B_2 F2", F**3 | J("a-1") | J("B_2") | F**2),
        ("F[layer[1].z<-$mean]", Program((F.patch(Z, Given("mean")),))),
        ("F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]", F**6 | F.patch(PATTERN, F**6 | J("one") | F)),
        ("F F[layer[1].z<-(F2)@other]", F | F.patch(Z, Run(F**2, "other"))),
        ("F F[layer[1].z<-(F7).loop[3]]", F | F.patch(Z, Run(F**7, None, 3))),
        ("F F[layer[1].z<-(F7)@other.loop[3]]", F | F.patch(Z, Run(F**7, "other", 3))),
        ("F[layer[1].z<-(h0 F)]", Program((F.patch(Z, h(0) | F),))),
        ("F[layer[1].z<-(F[layer[1].q<-(F)@a])]", Program((F.patch(Z, Program((F.patch("layer[1].q", "(F)@a"),))),))),
        (
            "F[layer[1].q<-$x; layer[1].head[0].z<-(F); layer[2].z<-(F)] F",
            F.patch("layer[2].z", F**1).patch("layer[1].q", "$x").patch("layer[1].head[0].z", "(F)") | F,
        ),
    ],
)
def test_text_and_value_are_the_same_program(text: str, value: Program) -> None:
    assert Program.parse(text) == value
    assert hash(Program.parse(text)) == hash(value)
    assert str(value) == text


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("  F  F F\tF3 \n", "F6"),
        ("F1 F01", "F2"),
        ("F[ layer[1].z <- ( F ) @other ;layer[1].q<-$x ]", "F[layer[1].q<-$x; layer[1].z<-(F)@other]"),
        ("F[layer[1].head[*].z<-(F) .loop[1]]", "F[layer[1].z<-(F).loop[1]]"),
    ],
)
def test_white_space_and_spelling_do_not_matter(text: str, canonical: str) -> None:
    assert str(Program.parse(text)) == canonical


def test_as_program_takes_values_steps_and_text() -> None:
    program = F**2 | J("one")
    assert as_program(program) is program
    assert as_program(F) == Program((F,))
    assert as_program(J("one")) == Program((Map("one"),))
    assert as_program("F2 J:one") == program


def test_sources_may_be_values_programs_steps_or_text() -> None:
    run = Run(Program((F,)))
    for source in (run, Program((F,)), F, "(F)", " ( F ) "):
        assert F.patch(Z, source) == Call((Patch(Z, run),))
    assert F.patch(Z, "$mean") == F.patch(Z, Given("mean")) == F.patch("layer[1].z", Given("mean"))
    assert F.patch(Z, J("one")) == F.patch(Z, "J:one") == Call((Patch(Z, Apply("one")),))
    assert F.patch(Z, "+=2*$mean") == F.patch(Z, Add(Given("mean"), 2))


# Building ------------------------------------------------------------------------------------------------------------


def test_joining_is_associative() -> None:
    parts = [F, J("one"), F**3, Program.parse("J:two F"), F.patch(Z, "$x")]
    for a, b, c in itertools.product(parts, repeat=3):
        assert (a | b) | c == a | (b | c)
    assert (h(6) | J("one")) | F == h(6) | (J("one") | F)


def test_equal_programs_are_one_key_however_they_were_built() -> None:
    spelled = {
        F**7,
        F**6 | F,
        F | F**6,
        Program.parse("F7"),
        Program((F,) * 7),
        (F**7).patch("loop[3].layer[1].z", "$x").skeleton,
    }
    assert len(spelled) == 1
    assert len({F**7, F**6, h(0) | F**7, h(1) | F**7, F**6 | J("one") | F, J("one") | F**7}) == 6


def test_patching_a_program_patches_the_call_of_that_loop() -> None:
    program = F**2 | J("one") | F**2
    patched = program.patch("loop[3].layer[2].row[-1].pattern", F**4)
    assert patched == F**2 | J("one") | F.patch(PATTERN, F**4) | F
    assert patched == program.patch(Address(3, PATTERN), "(F4)")
    assert patched.patch("loop[3].layer[1].z", "$x").steps[3].patches == (
        Patch(Z, Given("x")),
        Patch(PATTERN, Run(F**4)),
    )
    assert (h(6) | F**2).patch("loop[8].layer[1].z", "$x") == h(6) | F | F.patch(Z, "$x")
    assert program == F**2 | J("one") | F**2  # values do not change


def test_the_skeleton_drops_patches_and_nothing_else() -> None:
    program = h(2) | F.patch(Z, "$x") | J("one") | F | F.patch(PATTERN, "$y")
    assert program.skeleton == h(2) | F | J("one") | F**2
    assert program.skeleton.skeleton == program.skeleton
    assert program.skeleton.points == program.points


# Order of patches ----------------------------------------------------------------------------------------------------

APART = [
    "layer[2].resid", "layer[1].z", "layer[1].head[1].row[0].q", "layer[1].head[0].row[0].q",
    "layer[1].head[0].row[2,1].q", "layer[1].head[1].row[-1].v",
]  # fmt: skip


def test_patches_on_different_places_make_one_call_in_any_order() -> None:
    patches = [Patch(Site.parse(text), Given(f"x{index}")) for index, text in enumerate(APART)]
    calls = {Call(tuple(order)) for order in itertools.permutations(patches)}
    assert len(calls) == 1
    (call,) = calls
    assert [str(patch.site) for patch in call.patches] == [
        "layer[1].head[0].row[0].q", "layer[1].head[0].row[2,1].q", "layer[1].head[1].row[0].q",
        "layer[1].head[1].row[-1].v", "layer[1].z", "layer[2].resid",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("layer[1].z", "layer[1].z"),
        ("layer[1].z", "layer[1].head[2].row[0].z"),
        ("layer[1].head[0,1].z", "layer[1].head[1,2].z"),
        ("layer[1].row[0,1].resid", "layer[1].row[3,1].resid"),
        ("layer[1].row[-1].resid", "layer[1].row[6].resid"),  # the same row of a seven-token input
        ("layer[1].head[0].q", "layer[1].row[0].q"),
    ],
)
def test_patches_that_can_overlap_keep_their_order(one: str, two: str) -> None:
    first, second = Patch(Site.parse(one), Given("first")), Patch(Site.parse(two), Given("second"))
    assert Call((first, second)).patches == (first, second)
    assert Call((second, first)).patches == (second, first)
    between = Patch(Site.parse("layer[3].k"), Given("between"))
    assert Call((second, between, first)) == Call((second, first, between)) == Call((between, second, first))


def test_order_is_kept_along_a_chain_of_overlaps() -> None:
    low, all_rows, high = (Patch(Site.parse(f"layer[1].{where}z"), Given("x")) for where in ("row[0].", "", "row[5]."))
    assert Call((high, all_rows, low)).patches == (high, all_rows, low)
    assert Call((high, low, all_rows)) == Call((low, high, all_rows))
    assert Call((high, low, all_rows)) != Call((high, all_rows, low))


# Counting ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["F", "F6 J:one F", "J:one J:two F2 J:one", "h6 J:one F2", "h3", "J:one"])
def test_loops_and_indices_are_inverse(text: str) -> None:
    program = Program.parse(text)
    first = (program.start or 0) + 1
    loops = range(first, first + program.calls)
    for loop in loops:
        assert program.steps[program.index_of(loop)] == F
        assert program.loop_of(program.index_of(loop)) == loop
    for index, step in enumerate(program.steps):
        if step == F:
            assert program.index_of(program.loop_of(index)) == index
        else:
            assert program.loop_of(index) == first - 1 + program.steps[:index].count(F)
    assert len(loops) == sum(step == F for step in program.steps)


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("F2 J:one F", ("h0", "h1", "h2", "h2 J:one", "h3")),
        ("h6 J:one J:two F", ("h6", "h6 J:one", "h6 J:one J:two", "h7")),
        ("J:one", ("h0", "h0 J:one")),
        ("h2", ("h2",)),
    ],
)
def test_points_name_the_states_along_the_way(text: str, points: tuple[str, ...]) -> None:
    assert Program.parse(text).points == points


# What cannot be a program --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the text ends at character 1 of program ''; a step is F, F6"),
        ("   ", "the text ends at character 4"),
        ("g6", "cannot read 'g6' at character 1 of program 'g6'"),
        ("F6 J:one f", "cannot read 'f' at character 10"),
        ("F F-6", "cannot read 'F-6'"),
        ("F h6", "cannot read 'h6'"),
        ("h6x F", "cannot read 'h6x'"),
        ("h-1 F", "cannot read 'h-1'"),
        ("J:", "cannot read 'J:'"),
        ("J:o/ne", "cannot read 'J:o/ne'"),
        ("J: one", "cannot read 'J:'"),
        ("F2F2", "cannot read 'F2F2'"),
        ("F" + "9" * 5000, "cannot read 'F999"),
        ("h" + "9" * 5000, "cannot read 'h999"),
        ("F²", "cannot read 'F²'"),
        ("F٣", "cannot read 'F٣'"),
        ("F\x00", r"cannot read 'F\x00'"),
        ("F6[layer[1].z<-$x]", "cannot read 'F6[layer[1].z<-$x]'"),
        ("F[]", "a patch is site<-source"),
        ("F[layer[1].z]", "a patch is site<-source"),
        ("F[layer[1].z->(F)]", "a patch is site<-source"),
        ("F[layer[1].z<-F]", "cannot read 'F]' at character 15"),
        ("F[layer[1].z<-]", "a source is (program), (program)@input"),
        ("F[layer[1].z<-$]", "a source is"),
        ("F[layer[1].z<-", "the text ends at character 15"),
    ],
)  # fmt: skip
def test_bad_text_is_one_line_with_a_valid_suggestion(text: str, words: str, refused: Callable[..., str]) -> None:
    message = refused(InputError, Program.parse, text)
    assert words in message
    near = suggestion(message)
    if near.startswith(("$", "(")):
        near = f"layer[1].z<-{near}"
    if near.startswith("layer"):
        near = f"F[{near}]"
    Program.parse(near)
    Program.parse(f"F3 J:one {near} F")  # and not only at the beginning


@pytest.mark.parametrize(("text", "near"), [("F0", "F"), ("F00", "F"), ("F10001", "F10000")])
def test_too_few_and_too_many_calls_are_refused(text: str, near: str, refused: Callable[..., str]) -> None:
    message = refused(InputError, Program.parse, f"J:one {text}")
    assert "does not exist: F may be called 1 to 10000 times" in message
    assert suggestion(message) == near
    assert Program.parse(near).calls in (1, MOST_CALLS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("F)", "cannot read ')' at character 2 of program 'F)'; nothing may follow here"),
        ("F[layer[1].z<-(F", "the text ends at character 17 of program 'F[layer[1].z<-(F'; ')' must close"),
        ("F[layer[1].z<-(F)", "the text ends at character 18 of program 'F[layer[1].z<-(F)'; ']' or ';' must follow"),
        ("F[layer[1].z<-(F)]F", "']' or ';' must follow"),
        ("F[layer[1].z<-(F)@]", "cannot read '@]'"),
        ("F[layer[1].z<-(F).loop[x]]", "cannot read '.loop[x]]'"),
        ("F[layer[1].z<-(F).loop[" + "1" * 5000 + "]]", "cannot read '.loop[111"),
        ("F[layer[1].z<-$x y]", "cannot read 'y]'"),
    ],
)
def test_what_must_follow_is_said(text: str, words: str, refused: Callable[..., str]) -> None:
    assert words in refused(InputError, Program.parse, text)


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("F[layer[1].patern<-$x]", "pattern"),
        ("F[layer[1].head[0].resid<-$x]", "layer[1].resid"),
        ("F[loop[1].layer[1].z<-$x]", "layer[1].z"),
    ],
)
def test_bad_sites_in_patches_are_the_addresses_business(text: str, near: str, refused: Callable[..., str]) -> None:
    assert suggestion(refused(InputError, Program.parse, text)) == near


@pytest.mark.parametrize(
    ("program", "words", "loop"),
    [
        ("F F[layer[1].z<-(F)]", "loop 2 does not exist in 'F': it has loops 1..1", 1),
        ("F[layer[1].z<-(h6 F)]", "loop 1 does not exist in 'h6 F': it has loops 7..7", 7),
        ("F[layer[1].z<-(F3).loop[4]]", "loop 4 does not exist in 'F3': it has loops 1..3", 3),
        ("F[layer[1].z<-(F3).loop[0]]", "loop 0 does not exist in 'F3': it has loops 1..3", 1),
        ("F[layer[1].z<-(J:one)]", "loop 1 does not exist in 'J:one': it has no calls", None),
    ],
)
def test_a_source_must_have_the_loop_it_is_read_at(
    program: str, words: str, loop: int | None, refused: Callable[..., str]
) -> None:
    message = refused(InputError, lambda text: check_programs([text], Sizes(layers=2, heads=4, rows=7)), program)
    assert words in message
    if loop is not None:
        assert suggestion(message) == f"loop[{loop}]"
        source = re.search(r"in '(.+)': it has", message)
        assert source is not None
        Program.parse(source[1]).index_of(loop)


def test_a_part_of_a_program_is_not_asked_which_loop_it_will_be() -> None:
    """Where a call ends up is known only when the program is whole."""
    patched = F.patch("layer[1].z", h(6) | F**2)
    assert (F**6 | (patched | F)) == ((F**6 | patched) | F)
    check_programs([F**6 | patched], Sizes(layers=2, heads=4, rows=7))


def test_addresses_outside_the_program(refused: Callable[..., str]) -> None:
    for program, loop, near in [(F**3, 4, 3), (h(6) | F**2, 3, 7), (h(6) | F**2, 9, 8)]:
        message = refused(InputError, program.patch, f"loop[{loop}].layer[1].z", "$x")
        assert suggestion(message) == f"loop[{near}]"
        program.patch(f"loop[{near}].layer[1].z", "$x")
    assert "it has no calls" in refused(InputError, h(3).patch, "loop[4].layer[1].z", "$x")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "naïve", "one\n", "\n", "a.b", "$x"])
def test_bad_names_are_refused(name: str, refused: Callable[..., str]) -> None:
    for make, kind in [(J, "map"), (Given, "tensor"), (lambda text: Run(F**1, text), "input")]:
        assert refused(InputError, make, name).startswith(f"{kind} name {name!r} may hold only letters, digits")


@pytest.mark.parametrize("text", ["(F", "$", "", "(F))", "F6 J:", "+=F"])
def test_bad_sources_are_refused(text: str, refused: Callable[..., str]) -> None:
    refused(InputError, F.patch, Z, text)


def test_programs_made_in_python_are_checked_too(refused: Callable[..., str]) -> None:
    assert suggestion(refused(InputError, lambda: F**0)) == "F"
    assert suggestion(refused(InputError, lambda: F**-2)) == "F"
    assert suggestion(refused(InputError, lambda: F ** (10**15))) == f"F{MOST_CALLS}"
    assert suggestion(refused(InputError, lambda: h(-1))) == "h0"
    assert suggestion(refused(InputError, lambda: Program(()))) == "F"
    assert suggestion(refused(InputError, lambda: F**MOST_CALLS | F)) == f"F{MOST_CALLS}"
    assert suggestion(refused(InputError, Program.parse, f"F{MOST_CALLS} F")) == f"F{MOST_CALLS}"
    assert Program.parse(f"F{MOST_CALLS}").calls == MOST_CALLS
    for left in (F**6, F, J("one")):
        message = refused(InputError, lambda left=left: left | (h(6) | F))
        assert "'h6 F' starts from a given state and cannot follow" in message
        assert "leave out h6" in message


def nested(depth: int) -> str:
    """A program whose source has a source, and so on, `depth` deep."""
    return "F[layer[1].z<-(" * depth + "F" + ")]" * depth


def test_sources_may_be_nested_up_to_the_limit() -> None:
    program = Program.parse(nested(MOST_NESTED))
    assert str(program) == nested(MOST_NESTED)
    assert hash(program) == hash(Program.parse(nested(MOST_NESTED)))
    assert program != Program.parse(nested(MOST_NESTED - 1))
    beside = f"F[{'; '.join(f'layer[{n}].z<-(F)' for n in range(1, 200))}]"
    assert len(Program.parse(beside).steps[0].patches) == 199


@pytest.mark.parametrize("depth", [MOST_NESTED + 1, 2_000, 100_000])
def test_deeper_nesting_is_refused(depth: int, refused: Callable[..., str]) -> None:
    assert f"at most {MOST_NESTED} deep" in refused(InputError, Program.parse, nested(depth))
    refused(InputError, Program.parse, "(" * depth + ")" * depth)
    refused(InputError, F.patch, Z, "(" * depth + ")" * depth)
    refused(InputError, Program.parse, "F[layer[1].z<-" * depth)


def test_a_stack_must_be_there_where_only_sizes_are_known(refused: Callable[..., str]) -> None:
    sizes = Sizes(layers=2, heads=4, rows=7)
    assert "no stack Q" in refused(InputError, lambda text: check_programs([text], sizes), "Q3")


@pytest.mark.parametrize("text", ["F3", "seed:3 F3", "zeros F", "(L2 H)2", "F6 J:one F", "(F3) F", "h2 F"])
def test_text_of_a_program_is_a_source(text: str) -> None:
    where = "loop[1].layer[1].z"
    patched = Program.parse("F3").patch(where, text)
    assert patched == Program.parse("F3").patch(where, Program.parse(text))
    assert patched == Program.parse("F3").patch(where, f"({text})")


def test_text_that_is_neither_source_nor_program_names_both(refused: Callable[..., str]) -> None:
    for text, says in {
        "F3 G[": "the text ends at character 6",
        "$": "a source is (program)",
        "(L2 H)2 @": "cannot read '@' at character 9",
        "(F3)@other J": "nothing may follow here",
    }.items():
        said = refused(InputError, lambda text=text: Program.parse("F3").patch("loop[1].layer[1].z", text))
        assert says in said
        assert said.endswith("a patch takes a source such as (F6)@other or $name, or a program: F6 J:one F")
