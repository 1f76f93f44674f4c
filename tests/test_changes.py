"""Components that are changed instead of replaced: what a change means, how it is said, what is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from loopscope import F, J, Program, run, sweep
from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.functions import identity
from loopscope.program import Add, Apply, Given, Run, Scale
from tests.kinds import KINDS, UNITS, Kind, KindLayer

TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0], [1, 1, 2, 2]])
OTHER = TOKENS.flip(1)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return KINDS["simple"]()


def clip(x: Tensor) -> Tensor:
    return x.clamp(-0.1, 0.1)


def logits(model: nn.Module, program: Program | str, **more: object) -> Tensor:
    return run(model, TOKENS, program, others={"other": OTHER}, rows=[0, -1], **more)[program].logits  # type: ignore[arg-type]


# What changes mean ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("component", ["resid", "q", "k", "v", "pattern", "z", "attn_out", "mlp_hidden", "mlp_out"])
def test_a_change_is_the_replacement_by_the_changed_value(model: nn.Module, component: str) -> None:
    """A change must equal handing over what the component would become: nothing of the executor's own arithmetic."""
    place = ("loop[2].layer[1]", component)
    site = f"layer[1].{component}"
    seen = plain_run(model, {"main": TOKENS}, F**3)
    theirs = plain_run(model, {"main": OTHER}, F**3).components[2, 1, component]
    own = seen.components[2, 1, component]
    expected = {
        f"F F[{site}+=-0.5*(F3)@other] F": own - 0.5 * theirs,
        f"F F[{site}*=2] F": own * 2,
        f"F F[{site}<-J:square] F": own.square(),
        f"F F[{site}<-(F3)@other; {site}*=2; {site}+=(F3)@other] F": theirs * 3,
    }
    for text, becomes in expected.items():
        found = logits(model, text, maps={"square": torch.square})
        replaced = logits(model, (F**3).patch(".".join(place), Given("new")), given={"new": becomes})
        torch.testing.assert_close(found, replaced, rtol=0, atol=1e-12)


def test_a_change_of_some_heads_and_rows_leaves_the_others(model: nn.Module) -> None:
    found = run(model, TOKENS, "F F[layer[2].head[1].row[-1].z+=$v]", given={"v": torch.ones(6).double()},
                keep="loop[2].layer[2].z")  # fmt: skip
    (kept,) = found["F F[layer[2].head[1].row[-1].z+=$v]"].kept.values()
    plain = plain_run(model, {"main": TOKENS}, F**2).components[2, 2, "z"].clone()
    plain[:, 1, -1] += 1
    torch.testing.assert_close(kept, plain, rtol=0, atol=1e-12)


def test_nothing_times_anything_is_the_plain_program(model: nn.Module) -> None:
    plain = logits(model, F**2)
    for change in ("+=0*(F2)@other", "*=1"):
        torch.testing.assert_close(logits(model, f"F F[layer[1].resid{change}]"), plain, rtol=0, atol=1e-12)


def test_a_sweep_of_changes(model: nn.Module) -> None:
    places = ["loop[1].layer[1].attn_out", "loop[2].layer[2].mlp_out"]
    zero = sweep(model, TOKENS, F**2, places, "*=0")
    assert zero.source == Scale(0)
    for place, found in zip(places, zero.logits, strict=True):
        expected = logits(model, (F**2).patch(place, "*=0"))[:, -1:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert sweep(model, TOKENS, F**2, places, J("clip"), maps={"clip": clip}).source == Apply("clip")
    assert sweep(model, TOKENS, F**2, places, Add(Run(F**2), -1)).source == Add(Run(F**2), -1.0)


def test_changes_hold_for_texts_of_unequal_length(model: nn.Module) -> None:
    texts = [[1, 2, 3, 4], [5, 6]]
    program = "F F[layer[1].row[-1].resid+=0.5*(F2)@other]"
    together = run(model, texts, program, others={"other": [[2, 2, 2], [3, 4, 5, 6]]})[program].logits
    for at, (text, other) in enumerate(zip(texts, [[2, 2, 2], [3, 4, 5, 6]], strict=True)):
        alone = run(model, torch.tensor([text]), program, others={"other": torch.tensor([other])})[program].logits
        torch.testing.assert_close(together[at : at + 1], alone, rtol=0, atol=1e-12)


def test_a_given_tensor_is_parted_where_it_has_an_entry_for_each_text(model: nn.Module) -> None:
    """One with fewer axes is the same for all, though its first may be as long as there are texts."""
    width, texts = model.width, [[1 + at % 6] * (3 + at % 2) for at in range(model.width)]
    for shape, rows in (((width,), "-1"), ((2, width), "-2,-1"), ((width, 1, width), "-1"), ((width, 2, 1), "-2,-1")):
        tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        asked = texts if shape[0] == width else texts[:2]
        program = f"F F[layer[1].row[{rows}].resid<-$a]"
        together = run(model, asked, program, given={"a": tensor})[program].logits
        for at in (0, 1):
            mine = tensor[at : at + 1] if len(shape) == 3 else tensor
            alone = run(model, torch.tensor([asked[at]]), program, given={"a": mine})[program].logits
            torch.testing.assert_close(together[at : at + 1], alone, rtol=0, atol=1e-12)


# How they are said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("F[layer[1].z+=$v]", Add(Given("v"))),
        ("F[layer[1].z+=-0.5*(F)@other.row[0]]", Add(Run(F**1, "other", None, (0,)), -0.5)),
        ("F[layer[1].z*=0]", Scale(0)),
        ("F[layer[1].z*=1e-05]", Scale(1e-5)),
        ("F[layer[1].z<-J:clip]", Apply("clip")),
        ("F[layer[1].z<-J:clip#0123456789ab]", Apply("clip", "0123456789ab")),
    ],
)
def test_changes_survive_text(text: str, value: Add | Scale | Apply) -> None:
    program = Program((F.patch("layer[1].z", value),))
    assert str(program) == text
    assert Program.parse(text) == program
    assert hash(Program.parse(text)) == hash(program)


def test_other_ways_to_write_the_same() -> None:
    assert (
        str(Program.parse("F[ layer[1].z += 1.0 * $v ; layer[1].z *= +.50 ]")) == "F[layer[1].z+=$v; layer[1].z*=0.5]"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("F[layer[1].z*=$v]", "a number such as 0.5 must stand here"),
        ("F[layer[1].z+=0.5]", "'*' and a source must follow the number"),
        ("F[layer[1].z+=J:clip]", "a number such as 0.5 must stand here"),
        ("F[layer[1].z*=1e999]", "a component is changed by a finite number, not by inf"),
        ("F[layer[1].z<-J:clip#12]", "a function is identified by twelve digits"),
        ("F[layer[1].z=$v]", "a patch is site<-source, site+=source or site*=number"),
    ],
)
def test_what_is_no_change_gets_one_line(text: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        Program.parse(text)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


# Functions ------------------------------------------------------------------------------------------------------------


def test_a_function_is_the_one_that_the_program_names(model: nn.Module) -> None:
    program = F | F.patch("layer[1].z", Apply("clip", identity(clip)))
    found = logits(model, program, maps={"clip": clip})
    torch.testing.assert_close(found, logits(model, "F F[layer[1].z<-J:clip]", maps={"clip": clip}))
    with pytest.raises(InputError, match="the function handed over as 'clip' is"):
        logits(model, program, maps={"clip": torch.tanh})


def test_identities_tell_functions_apart() -> None:
    def bounded(most: float) -> object:
        return lambda x: x.clamp(-most, most)

    def shifted(by: Tensor) -> object:
        return lambda x: x + by

    two = [nn.Linear(2, 2), nn.Linear(2, 2)]
    functions = [clip, bounded(1.0), bounded(2.0), shifted(torch.zeros(2)), shifted(torch.ones(2)), torch.relu, *two,
                 functools.partial(torch.clamp, max=1), functools.partial(torch.clamp, max=2)]  # fmt: skip
    found = [identity(each) for each in functions]  # type: ignore[arg-type]
    assert len(set(found)) == len(found)
    assert found == [identity(each) for each in functions]  # type: ignore[arg-type]
    assert identity(bounded(1.0)) == found[1]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cannot be told from others"):
        identity(functools.partial(clip, object()))


@pytest.mark.parametrize(
    ("text", "function", "line"),
    [
        ("F[layer[1].z<-J:f]", None, "no map named 'f' was given"),
        ("F[layer[1].z<-J:f]", lambda x: x[..., :1], "turns float64 of width 6"),
        ("F[layer[1].z<-J:f]", lambda x: x - x.mean(-2, keepdim=True), "must act on every row alone"),
        ("F[layer[1].pattern<-J:f]", lambda x: torch.full_like(x, 0.25), "look at rows that its row does not see"),
        ("F[layer[1].pattern+=$v]", None, "looks at later rows"),
        ("F[layer[1].pattern+=(F2).row[-1]]", None, "from other rows"),
    ],
)
def test_what_cannot_be_changed_gets_one_line(model: nn.Module, text: str, function: object, line: str) -> None:
    maps = {} if function is None else {"f": function}
    with pytest.raises(InputError) as error:
        logits(model, text, maps=maps, given={"v": torch.ones(1).double()})
    assert line in str(error.value)
    assert "\n" not in str(error.value)


# Hidden units of the MLP ----------------------------------------------------------------------------------------------


class Closed(KindLayer):
    """A layer that does not say what its hidden units are."""

    mlp_hidden = property()  # type: ignore[assignment]

    def mlp_out(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class Other(KindLayer):
    def mlp_out(self, x: Tensor) -> Tensor:
        return 2 * super().mlp_out(x)


def with_layers(kind: type[KindLayer]) -> Kind:
    made = type("Made", (Kind,), {"layer": kind})()
    return made.double()


def test_hidden_units_make_the_output_of_the_mlp(model: nn.Module) -> None:
    keep = ["loop[1].layer[2].mlp_hidden", "loop[1].layer[2].mlp_out"]
    hidden, out = run(model, TOKENS, F**1, keep=keep)[F**1].kept.values()
    assert hidden.shape == (*TOKENS.shape, UNITS)
    torch.testing.assert_close(model.layers[1].down(hidden), out, rtol=0, atol=1e-12)


def test_without_hidden_units_there_is_no_such_place() -> None:
    closed = with_layers(Closed)
    for program, keep in (("F[layer[1].mlp_hidden*=0]", ()), ("F", "loop[1].layer[2].mlp_hidden")):
        with pytest.raises(InputError, match=r"do not say what their hidden units are \(nearest: layer\[.\].mlp_out\)"):
            run(closed, TOKENS, program, keep=keep)
    logits(closed, "F F[layer[1].mlp_out*=0]")


def test_hidden_units_that_make_another_output_are_refused() -> None:
    with pytest.raises(InputError, match=r"mlp_from of its mlp_hidden is .* off its mlp_out"):
        run(with_layers(Other), TOKENS, F**1)
