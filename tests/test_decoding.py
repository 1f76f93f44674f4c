"""Greedy decoding: the cache gives what computing everything anew gives, with maps, padding and patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.address import Site
from loopscope.errors import InputError
from loopscope.execute.plain import plain_run
from loopscope.maps import Dense
from loopscope.models.caches import Cache
from loopscope.models.decoding import generate, pad_left
from loopscope.models.ouro import Ouro, OuroConfig
from loopscope.models.passes import states
from loopscope.program import Call, F, Program, Run, as_program
from tests.ouro_tiny import CONFIG, golden, ouro_map, tiny_ouro, weights

STEERED = "F J:x F J:x F J:x F"
AFTER = "F J:x F J:x F J:x F J:x"


def ids() -> Tensor:
    return golden()["input_ids"]


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_equal_the_public_code(cached: bool) -> None:
    found = generate(tiny_ouro(), ids()[:1], new=8, cached=cached)
    assert torch.equal(found.tokens, golden()["greedy_ids"][:, 13:])
    assert found.lengths.tolist() == [8]


@pytest.mark.parametrize("program", ["F", "F2", "F4", "F7", STEERED, AFTER])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
def test_cached_and_uncached_decoding_agree(program: str, padded: bool, heads: int) -> None:
    model = tiny_ouro(torch.float64, **({} if heads == 4 else {"num_key_value_heads": heads}))
    maps = {"x": ouro_map(dtype=torch.float64)}
    mask = golden()["padded.attention_mask"].bool() if padded else None
    one, two = (
        generate(model, ids(), program, new=10, maps=maps, mask=mask, cached=cached) for cached in (True, False)
    )
    assert torch.equal(one.tokens, two.tokens)
    assert one.tokens.shape == (3, 10)


def test_cached_states_equal_those_of_one_pass() -> None:
    """Row by row, in pieces, and padded: not only the tokens but the states agree."""
    model, program = tiny_ouro(torch.float64), as_program(STEERED)
    maps = {"x": ouro_map(dtype=torch.float64)}
    for mask in (None, golden()["padded.attention_mask"].bool()):
        with torch.no_grad():
            whole = states(model, ids(), program, maps=maps, mask=mask)
            for pieces in ([6, 1, 1, 1, 1, 1, 1, 1], [5, 8], [13]):
                cache, start = Cache(13), 0
                for size in pieces:
                    seen = None if mask is None else mask[:, : start + size]
                    part = ids()[:, start : start + size]
                    found = states(model, part, program, maps=maps, mask=seen, cache=cache)
                    for point in program.points:
                        expected = whole[point][:, start : start + size]
                        torch.testing.assert_close(found[point], expected, rtol=0, atol=1e-12)
                    start += size
                assert len(cache) == 4 * 3  # one slot for every (loop, layer)
                assert cache.length == 13


def test_the_steering_map_stays_active_while_decoding() -> None:
    """A map that acted on the prompt only would give other tokens: shown by leaving it out after the prompt."""
    model, steered = tiny_ouro(torch.float64), as_program(STEERED)
    maps = {"x": ouro_map(dtype=torch.float64)}
    found = generate(model, ids(), steered, new=10, maps=maps)
    text = ids()
    for column in range(10):
        logits = model.read(plain_run(model, {"main": text}, steered, maps=maps).states["h4"][:, -1])
        assert torch.equal(logits.argmax(-1), found.tokens[:, column])
        text = torch.cat([text, found.tokens[:, column : column + 1]], 1)
    with torch.no_grad():
        cache = Cache(23)
        h = states(model, ids(), steered, maps=maps, cache=cache)["h4"]
        plain = [model.read(h[:, -1]).argmax(-1)]
        for _ in range(9):
            h = states(model, plain[-1][:, None], F**4, cache=cache)["h4"]
            plain.append(model.read(h[:, -1]).argmax(-1))
    assert torch.equal(plain[0], found.tokens[:, 0])
    assert not torch.equal(torch.stack(plain, 1), found.tokens)
    assert not torch.equal(generate(model, ids(), new=10).tokens, found.tokens)
    assert torch.equal(
        generate(model, ids(), STEERED, new=10, maps={"x": Dense(48).double()}).tokens,
        generate(model, ids(), "F4", new=10).tokens,
    )


def on_prompt(program: Program, length: int) -> Program:
    """The program with its patches tied to the rows of the prompt, so that it means the same on a longer text."""
    steps = []
    for step in program.steps:
        plain = F if isinstance(step, Call) else step
        for patch in step.patches if isinstance(step, Call) else ():
            site = patch.site.resolve(layers=3, heads=4, rows=length)
            assert isinstance(plain, Call)
            plain = plain.patch(Site(site.layer, site.component, site.heads, site.rows), patch.source)
        steps.append(plain)
    return Program(tuple(steps))


@pytest.mark.parametrize(
    "address",
    [
        "loop[2].layer[1].pattern",
        "loop[4].layer[3].head[2].v",
        "loop[3].layer[2].row[-1].attn_out",
        "loop[1].layer[2].k",
    ],
)
def test_patches_act_on_the_prompt_and_its_keys_stay_patched(address: str) -> None:
    model, other = tiny_ouro(torch.float64), ids().roll(1, 0)
    maps = {"x": ouro_map(dtype=torch.float64)}
    program = as_program(STEERED).patch(address, Run(as_program(STEERED), "other"))
    found = generate(model, ids(), program, new=6, maps=maps, others={"other": other})
    text = ids()
    for column in range(6):
        # What the other input goes on with cannot matter: attention is causal and only prompt rows are taken from it.
        inputs = {"main": text, "other": torch.cat([other, text[:, 13:]], 1)}
        plain = plain_run(model, inputs, on_prompt(program, 13), maps=maps)
        assert torch.equal(model.read(plain.states["h4"][:, -1]).argmax(-1), found.tokens[:, column])
        text = torch.cat([text, found.tokens[:, column : column + 1]], 1)
    same = as_program(STEERED).patch(address, as_program(STEERED))
    unpatched = generate(model, ids(), STEERED, new=6, maps=maps)
    assert torch.equal(generate(model, ids(), same, new=6, maps=maps).tokens, unpatched.tokens)


def test_some_patch_changes_what_is_said() -> None:
    model, other = tiny_ouro(torch.float64), ids().roll(1, 0)
    program = (F**4).patch("loop[4].layer[3].attn_out", Run(F**4, "other"))
    said = generate(model, ids(), program, new=4, others={"other": other}).tokens
    assert not torch.equal(said, generate(model, ids(), new=4).tokens)


def test_another_loop_can_do_the_talking() -> None:
    model = tiny_ouro(torch.float64)
    for point, loops in (("h1", 1), ("h3", 3)):
        # Rows of a loop depend on that loop and those before it alone, so later calls change nothing.
        assert torch.equal(
            generate(model, ids(), "F4", new=5, read=point).tokens, generate(model, ids(), f"F{loops}", new=5).tokens
        )


def test_a_stop_token_ends_its_example_alone() -> None:
    model = tiny_ouro()
    free = generate(model, ids(), new=8).tokens
    stop = int(free[0, 2])
    found = generate(model, ids(), new=8, stop=[stop])
    for row, tokens in enumerate(free.tolist()):
        length = tokens.index(stop) if stop in tokens else 8
        assert found.lengths[row] == length
        assert found.texts()[row] == tokens[:length]
        assert set(found.tokens[row, length:].tolist()) <= {stop}
    alone = generate(model, ids()[:1], new=8, stop=[stop])
    assert alone.tokens.shape[1] == free[0].tolist().index(stop) + 1  # ends when all have ended
    from_config = Ouro(OuroConfig.from_dict(CONFIG | {"eos_token_id": stop}))
    from_config.load_state_dict(weights())
    assert torch.equal(generate(from_config, ids(), new=8).tokens, found.tokens)
    assert torch.equal(generate(from_config, ids(), new=8, stop=()).tokens, free)


def test_prompts_of_several_lengths_continue_as_each_alone() -> None:
    model = tiny_ouro(torch.float64)
    prompts = [ids()[0].tolist(), ids()[1, :4].tolist(), ids()[2, :1].tolist()]
    tokens, mask = pad_left(prompts)
    assert mask.sum(1).tolist() == [13, 4, 1]
    together = generate(model, tokens, new=6, mask=mask).tokens
    for row, prompt in enumerate(prompts):
        assert torch.equal(generate(model, torch.tensor([prompt]), new=6).tokens[0], together[row])


PADDED = torch.arange(13).expand(3, 13) > 0


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        ("F4", {"new": 0}, "cannot generate 0 tokens (nearest: 1)"),
        ("F4", {"new": 244}, "257 tokens given, but the model has 256 positions"),
        ("F4", {"new": 1, "read": "h5"}, "'F4' has no point 'h5'"),
        ("F J:x F", {"new": 1}, "no map named 'x' was given"),
        ("F J:x F", {"new": 1, "maps": {"x": Dense(47)}}, "map 'x' does not take states of width 48"),
        ("h1 F", {"new": 1}, "starts from a given state"),
        ("F F[layer[1].z<-(F2)]", {"new": 1, "cached": False}, "decoding must be cached"),
        ("F F[layer[4].z<-(F2)]", {"new": 1}, "layer"),
        ("F4", {"new": 1, "mask": ~PADDED}, "the mask is no left padding"),
    ],
)
def test_decoding_that_does_not_fit_is_refused(
    refused: Callable[..., str], program: str, options: dict[str, Any], says: str
) -> None:
    assert says in refused(InputError, lambda: generate(tiny_ouro(), ids(), program, **options))


def test_an_empty_prompt_is_refused(refused: Callable[..., str]) -> None:
    for prompts in ([], [[1], []]):
        assert refused(InputError, pad_left, prompts) == "every prompt needs at least one token"
