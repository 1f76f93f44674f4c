"""A pass gives what a plain run gives on every kind of model: padded, behind a cache, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.models.caches import Cache
from loopscope.models.decoding import generate, pad_left
from loopscope.models.passes import one_pass, states
from loopscope.program import F, Program
from tests.kinds import KINDS, VOCABULARY, D
from tests.own_model import OwnModel
from tests.tiny import tiny_model

LATER = ("full mask", "full, prelude and coda")
"""Kinds whose rows see what comes behind them."""

BESIDE = ("graph", "another make")
"""Models that are no language models: learned positions under `embed(tokens)`, and a layer that takes rows [R] only."""

EVERY = (*KINDS, *BESIDE)


def built(kind: str) -> Any:
    if kind == "another make":
        return OwnModel()
    return tiny_model("graph", dtype=torch.float64) if kind == "graph" else KINDS[kind]()


def usual(model: Any, kind: str) -> Program:
    return Program.parse("F2" if kind in BESIDE else model.usual)


def texts(examples: int = 3, rows: int = 7) -> Tensor:
    return torch.randint(0, VOCABULARY, (examples, rows), generator=torch.Generator().manual_seed(1))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", EVERY)
def test_a_pass_gives_the_states_and_logits_of_a_plain_run(kind: str) -> None:
    model, tokens = built(kind), texts()
    program = usual(model, kind)
    with torch.no_grad():
        found, plain = one_pass(model, tokens, program), plain_run(model, {"main": tokens}, program)
    assert set(found.states) == set(program.points)
    for point in program.points:
        close(found.states[point], plain.states[point])
        close(found.read(point), plain.read(point))
    close(found.read(program.points[-1], -1), plain.read(program.points[-1])[:, -1])


@pytest.mark.parametrize("kind", EVERY)
def test_a_padded_example_has_what_it_has_alone(kind: str) -> None:
    model, program = built(kind), usual(built(kind), kind)
    prompts = [row[-length:].tolist() for row, length in zip(texts(), (4, 7, 5), strict=True)]
    tokens, mask = pad_left(prompts, fill=1)
    with torch.no_grad():
        found = one_pass(model, tokens, program, mask=mask)
        for number, prompt in enumerate(prompts):
            alone = one_pass(model, torch.tensor([prompt]), program)
            for point in program.points:
                close(found.states[point][number, -len(prompt) :], alone.states[point][0])
                close(found.read(point)[number, -len(prompt) :], alone.read(point)[0])


@pytest.mark.parametrize("kind", [kind for kind in EVERY if kind not in LATER])
@pytest.mark.parametrize("padded", [False, True])
def test_a_text_goes_on_behind_a_cache(kind: str, padded: bool) -> None:
    """Row by row and in pieces; keys are kept for the prelude, every call and every coda that is read."""
    model, program, tokens = built(kind), usual(built(kind), kind), texts()
    mask = torch.arange(7) >= torch.tensor([[0], [2], [1]]) if padded else torch.ones(3, 7, dtype=torch.bool)
    given = mask if padded else None
    if kind == "prefix mask" and padded:
        mask = given = torch.arange(7) >= torch.tensor([[0], [1], [0]])  # the prefix stays inside what comes first
    read = program.points[-1]
    with torch.no_grad():
        whole = one_pass(model, tokens, program, mask=given)
        cache, at = Cache(7), 0
        for size in (4, 1, 2):
            part = slice(at, at + size)
            seen = None if given is None else given[:, : at + size]
            found = one_pass(model, tokens[:, part], program, mask=seen, cache=cache)
            real = mask[:, part]
            for point in program.points:
                close(found.states[point][real], whole.states[point][:, part][real])
            close(found.read(read)[real], whole.read(read)[:, part][real])
            at += size


@pytest.mark.parametrize("kind", KINDS)
def test_cached_and_uncached_decoding_agree(kind: str, refused: Callable[..., str]) -> None:
    model, program = built(kind), usual(built(kind), kind)
    prompts, mask = pad_left([row[-length:].tolist() for row, length in zip(texts(), (6, 7, 5), strict=True)])
    anew = generate(model, prompts, program, new=5, mask=mask, cached=False)
    if kind in LATER:
        said = refused(InputError, lambda: generate(model, prompts, program, new=5, mask=mask))
        assert said.startswith("rows of this model see rows behind them, so a cache cannot continue a text")
        return
    assert torch.equal(generate(model, prompts, program, new=5, mask=mask).tokens, anew.tokens)
    text = prompts[:1, -6:]
    for column in range(5):
        plain = plain_run(model, {"main": text}, program).read(program.points[-1])[:, -1].argmax(-1)
        assert plain == anew.tokens[0, column]
        text = torch.cat([text, plain[:, None]], 1)


def test_a_cache_behind_rows_that_see_new_ones_is_refused(refused: Callable[..., str]) -> None:
    cache, model = Cache(7), built("full mask")
    with torch.no_grad():
        one_pass(model, texts()[:, :4], F**2, cache=cache)
        assert "a cache cannot continue" in refused(
            InputError, lambda: one_pass(model, texts()[:, 4:], F**2, cache=cache)
        )
    prompts = texts()[:, :2]  # shorter than the prefix
    assert "a cache cannot continue" in refused(InputError, lambda: generate(built("prefix mask"), prompts, new=2))


def test_a_coda_that_was_not_read_cannot_be_read_later(refused: Callable[..., str]) -> None:
    cache, model = Cache(7), built("prelude and coda")
    with torch.no_grad():
        one_pass(model, texts()[:, :4], F**2, cache=cache)
        late = one_pass(model, texts()[:, 4:], F**2, cache=cache)
        assert "has no keys of coda[2] for the 4 rows before" in refused(InputError, late.read, "h2")


@pytest.mark.parametrize("kind", EVERY)
def test_gradients_go_through(kind: str) -> None:
    """Along one direction of the start of everything, as far as finite differences see."""
    model, program, tokens = built(kind), usual(built(kind), kind), texts(2, 5)
    table = model.table if kind == "another make" else (model.embedding if kind == "graph" else model.table).weight
    table.requires_grad_(True)
    readout = torch.randn(one_pass(model, tokens, program).read(program.points[-1]).shape, dtype=torch.float64)

    def value() -> Tensor:
        return (one_pass(model, tokens, program).read(program.points[-1]) * readout).sum()

    (gradient,) = torch.autograd.grad(value(), table)
    step = 1e-5 * torch.randn(table.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        table += step
        up = value()
        table -= 2 * step
        down = value()
    torch.testing.assert_close((gradient * step).sum(), (up - down) / 2, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("kind", ["everything", "two stacks", "graph"])
def test_layers_computed_anew_give_the_same_gradients(kind: str) -> None:
    model, program, tokens = built(kind), usual(built(kind), kind), texts()
    found = []
    for recompute in (False, True):
        model.zero_grad()
        one_pass(model, tokens, program, recompute=recompute).read(program.points[-1]).square().mean().backward()
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    assert len(found[0]) > 5
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["everything", "prelude and coda", "learned positions", "prefix mask", "full mask"])
def test_examples_leave_and_branches_are_what_they_are_alone(kind: str, refused: Callable[..., str]) -> None:
    model, program, tokens = built(kind), usual(built(kind), kind), texts()
    with torch.no_grad():
        whole = one_pass(model, tokens, program)
        some = one_pass(model, tokens, program, examples=[3, 2, 1])
        for point, count in zip(program.points, (3, 3, 2, 1), strict=True):
            close(some.states[point], whole.states[point][:count])
            close(some.read(point), whole.read(point)[:count])
        branches = torch.tensor([[0, 0, 0, 1, 1, 2, 2]] * 3)
        if kind == "full mask":
            assert "what is shared would see every branch" in refused(
                InputError, lambda: one_pass(model, tokens, program, branches=branches)
            )
            return
        both = one_pass(model, tokens, program, branches=branches, examples=[3, 2, 2])
        for rows in ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6]):  # what is shared, and either branch
            alone = one_pass(model, tokens[:2, rows], program)
            close(both.read("h3")[:, rows], alone.read("h3"))
        # What lies behind all branches, as padding does, is seen by none of them.
        behind = one_pass(model, torch.cat([tokens, tokens[:, :2]], 1), program, branches=nnf.pad(branches, (0, 2)))
        close(behind.read("h1")[:, :7], one_pass(model, tokens, program, branches=branches).read("h1"))


@pytest.mark.parametrize("kind", ["injection", "everything", "two stacks", "value embeddings", "simple"])
def test_a_pass_goes_on_from_a_given_state(kind: str, refused: Callable[..., str]) -> None:
    model, program, tokens = built(kind), usual(built(kind), kind), texts()
    later = Program(program.steps[1:], start=1)
    with torch.no_grad():
        whole = one_pass(model, tokens, program)
        found = one_pass(model, tokens, later, state=whole.states["h1"])
        close(found.read(program.points[-1]), whole.read(program.points[-1]))
        if kind == "simple":
            close(states(model, None, later, state=whole.states["h1"])["h3"], whole.states["h3"])
        else:
            said = refused(InputError, lambda: one_pass(model, None, later, state=whole.states["h1"]))
            assert "needs the tokens beside its state" in said
    width = 2 * D if kind == "two stacks" else D
    said = refused(InputError, lambda: one_pass(model, tokens, later, state=torch.zeros(3, 6, D).double()))
    assert f"must be [3, 7, {width}], not torch.float64 [3, 6, {D}]" in said
    assert "starts from a given state" in refused(InputError, lambda: one_pass(model, tokens, later))
    assert "but a state was given" in refused(
        InputError, lambda: one_pass(model, tokens, program, state=torch.zeros(3, 7, D).double())
    )


def test_starts_are_drawn_row_by_row_and_may_be_zeros(refused: Callable[..., str]) -> None:
    model, tokens = built("drawn start"), texts()
    with torch.no_grad():
        found = {
            text: one_pass(model, tokens, Program.parse(text)).read("h2") for text in ("seed:1 F2", "seed:2 F2", "F2")
        }
        assert not torch.allclose(found["seed:1 F2"], found["seed:2 F2"])
        close(found["F2"], one_pass(model, tokens, Program.parse("seed:0 F2")).read("h2"))
        zeros = Program.parse("zeros F2")
        expected = one_pass(model, tokens, Program.parse("h0 F2"), state=torch.zeros(3, 7, D).double())
        close(one_pass(model, tokens, zeros).read("h2"), expected.read("h2"))
    assert "starts from its input" in refused(InputError, lambda: generate(built("simple"), tokens, "seed:1 F2", new=1))
    assert "forgets its input" in refused(InputError, lambda: one_pass(built("simple"), tokens, zeros))
    assert "new tokens have none" in refused(InputError, lambda: generate(model, tokens, "h0 F2", new=1))


@pytest.mark.parametrize("kind", ["everything", "two stacks"])
def test_patches_on_a_prompt_hold_while_decoding(kind: str) -> None:
    """Keys and values of the prelude, every call and the coda are those of the patched run."""
    model, program, tokens = built(kind), usual(built(kind), kind), texts()
    places = ["loop[2].layer[1].row[3].v"]
    places += ["prelude.layer[1].row[2].k", "coda[3].layer[1].row[4].v"] if kind == "everything" else []
    given = {"x": torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 3}
    patched = program
    for place in places:
        patched = patched.patch(place, "$x")
    found = generate(model, tokens, patched, new=5, given=given)
    text = tokens
    for column in range(5):
        logits = plain_run(model, {"main": text}, patched, given=given).read(program.points[-1])[:, -1]
        assert torch.equal(logits.argmax(-1), found.tokens[:, column])
        text = torch.cat([text, found.tokens[:, column : column + 1]], 1)
