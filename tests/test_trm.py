"""TRM and HRM: equal to the public code and to a forward written out, and looped models like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from loopscope.errors import InputError
from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.models.folders import build, load
from loopscope.models.passes import one_pass
from loopscope.models.trm import TRM, TRMConfig, trm_from_config
from loopscope.program import Call, Program, Run
from tests.ouro_tiny import write_folder
from tests.trm_tiny import CONFIG, HRM_CONFIG, drawn, golden, tiny_trm, weights, written_out


def close_to(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def inputs(model: TRM) -> Tensor:
    return model.with_puzzles(golden()["inputs"], golden()["puzzle_identifiers"])


def outer_steps(model: TRM, tokens: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Logits without the rows in front, and the q-head, after every outer step."""
    run = plain_run(model, {"main": tokens}, model.program(steps))
    points = model.readings(steps)
    with torch.no_grad():
        logits = torch.stack([run.read(point)[:, model.lead :] for point in points])
        return logits, torch.stack([model.halting(run.states[point]) for point in points])


# Equal to the public code --------------------------------------------------------------------------------------------


def reference_states(model: TRM, program: Program) -> list[Tensor]:
    """The public code's state at every point of a program, both parts side by side."""
    parts = {"L": model.inner.L_init.expand(2, 11, -1), "H": model.inner.H_init.expand(2, 11, -1)}
    calls = {name: iter(golden()[f"z_{name}_by_call"]) for name in parts}
    found = [torch.cat([parts[name] for name in model.stacks], -1)]
    for step in program.steps:
        assert isinstance(step, Call)
        parts[step.stack] = next(calls[step.stack])
        found.append(torch.cat([parts[name] for name in model.stacks], -1))
    assert not any(list(rest) for rest in calls.values())
    return found


def test_states_of_every_call_equal_the_public_code() -> None:
    """Each call from the public code's state before it, and all calls after one another.

    A rounding grows twentyfold over the 24 calls: exact arithmetic, too, is up to 6e-5 from the public code in fp32.
    """
    model = tiny_trm()
    tokens = inputs(model)
    with torch.no_grad():
        close_to(model.embed(tokens), golden()["input_embeddings"])
    program = model.program(3)
    assert str(program) == "(L3 H)6"
    expected = reference_states(model, program)
    run = plain_run(model, {"main": tokens}, program)
    for call, step in enumerate(program.steps, start=1):
        once = Program((step,), start=call - 1)
        alone = plain_run(model, {"main": expected[call - 1]}, once, tokens={"main": tokens})
        close_to(alone.states[f"h{call}"], expected[call], 1e-5)
        close_to(run.states[f"h{call}"], expected[call], 2e-4)
    for point in model.readings(3):
        close_to(model.leave(run.states[point]), model.leave(expected[int(point[1:])]), 5e-5)


def test_logits_and_q_head_of_every_outer_step_equal_the_public_code() -> None:
    model = tiny_trm()
    assert model.readings(3) == ("h8", "h16", "h24")
    logits, q = outer_steps(model, inputs(model), 3)
    close_to(logits, golden()["logits_by_step"], 5e-5)
    close_to(q, golden()["q_by_step"], 5e-5)
    assert (model.loops, str(model.program())) == (4, "(L3 H)8")


HRMS: dict[str, dict[str, Any]] = {
    "rotary": {}, "learned": {"pos_encodings": "learned", "H_layers": 2, "L_layers": 1}, "no-puzzles":
    {"puzzle_emb_ndim": 0, "H_cycles": 1, "L_cycles": 3}, "one-row": {"puzzle_emb_ndim": 24, "num_heads": 2},
}  # fmt: skip


@pytest.mark.parametrize("changes", HRMS.values(), ids=HRMS)
def test_an_hrm_is_what_is_written_out(changes: dict[str, Any]) -> None:
    config = HRM_CONFIG | changes
    model = drawn(config, torch.float64)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(13, (3, 7), generator=generator)
    puzzles = torch.tensor([0, 3, 1])
    whole = model.with_puzzles(tokens, puzzles) if model.lead else tokens
    assert model.lead == {40: 2, 24: 1, 0: 0}[config["puzzle_emb_ndim"]]
    logits, q = outer_steps(model, whole, 3)
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    expected_logits, expected_q = written_out(config, tensors, tokens, puzzles, 3)
    close_to(logits, expected_logits, 1e-9)
    close_to(q, expected_q, 1e-9)
    assert (logits[0] - logits[2]).abs().max() > 1e-3


def test_the_forward_written_out_equals_the_public_code_too() -> None:
    """A TRM is an HRM whose H is its L, so that the golden outputs stand behind what HRMs are compared with."""
    shared = {n.replace("L_level", "H_level"): t for n, t in weights().items() if "L_level" in n}
    config = CONFIG | {"H_layers": CONFIG["L_layers"]}
    # The second row in front is empty: as many entries of zero as the rows have left.
    table = weights()["inner.puzzle_emb.weights"]
    wide = torch.cat([table, torch.zeros_like(table)], 1)
    both = {**weights(), **shared, "inner.puzzle_emb.weights": wide}
    logits, q = written_out(config, both, golden()["inputs"], golden()["puzzle_identifiers"], 3)
    close_to(logits, golden()["logits_by_step"], 5e-5)
    close_to(q, golden()["q_by_step"], 5e-5)


# Rows, batches, folders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [CONFIG, HRM_CONFIG], ids=["trm", "hrm"])
def test_batch_and_single_answers_are_the_same(config: dict[str, Any]) -> None:
    model = drawn(config)
    tokens = torch.randint(config["vocab_size"], (3, config["seq_len"]), generator=torch.Generator().manual_seed(2))
    whole = model.with_puzzles(tokens, [2, 0, 1])
    together, q = outer_steps(model, whole, 2)
    for example in range(3):
        alone, its = outer_steps(model, whole[example : example + 1], 2)
        close_to(alone, together[:, example : example + 1], 2e-6)
        close_to(its, q[:, example : example + 1], 2e-6)
    others, _ = outer_steps(model, model.with_puzzles(tokens, [1, 1, 1]), 2)
    assert (others[:, 2] - together[:, 2]).abs().max() < 1e-5 < (others[:, 0] - together[:, 0]).abs().max()


def test_pseudo_tokens_are_numbered_behind_the_vocabulary() -> None:
    model = tiny_trm()
    whole = model.with_puzzles(torch.tensor([[4, 5]]), torch.tensor([2]))
    assert whole.tolist() == [[11 + 2 * 2, 11 + 2 * 2 + 1, 4, 5]]
    assert model.positions == 11
    assert torch.equal(model.embed(whole)[:, 1], torch.zeros(1, 32))  # 32 entries fill one row of two


def test_every_row_sees_every_row() -> None:
    model = drawn(HRM_CONFIG)
    tokens = torch.arange(7)[None]
    other = tokens.clone()
    other[0, -1] = 9
    first, second = (outer_steps(model, model.with_puzzles(each, [0]), 1)[0] for each in (tokens, other))
    assert (first - second).abs().amax(-1).min() > 1e-4


def test_patches_reach_each_stack_by_its_address() -> None:
    model = drawn(HRM_CONFIG)
    tokens = model.with_puzzles(torch.arange(7)[None], [0])
    base = model.program(1)
    plain = plain_run(model, {"main": tokens}, base)
    same = base.patch("H[1].layer[1].attn_out", Run(base)).patch("L[2,1].layer[2].head[1].z", Run(base))
    again = plain_run(model, {"main": tokens}, same)
    assert torch.equal(again.states["h6"], plain.states["h6"])
    early = plain_run(model, {"main": tokens}, base.patch("L[2,1].layer[2].z", Run(base, loop=1)))
    assert torch.equal(early.states["h3"], plain.states["h3"])
    assert not torch.allclose(early.states["h4"], plain.states["h4"], atol=1e-3)


@pytest.mark.parametrize("config", [CONFIG, HRM_CONFIG], ids=["trm", "hrm"])
def test_the_executor_agrees_with_the_plain_run(config: dict[str, Any]) -> None:
    model = drawn(config, torch.float64)
    tokens = model.with_puzzles(torch.randint(10, (2, 7), generator=torch.Generator().manual_seed(3)), [0, 1])
    others, base = {"other": tokens.flip(0)}, model.program(2)
    places = ["H[1].layer[1].attn_out", "L[2,1].layer[1].head[1].z", "L[1,2].layer[1].row[-1].mlp_out"]
    found = sweep(model, tokens, base, places, Run(base, "other"), others=others)
    for place, logits in zip(places, found.logits, strict=True):
        plain = plain_run(model, {"main": tokens} | others, base.patch(place, Run(base, "other")))
        close_to(logits, plain.read(base.points[-1])[:, -1:], 1e-9)


def test_it_goes_on_from_a_state() -> None:
    model = tiny_trm()
    tokens = inputs(model)
    whole = plain_run(model, {"main": tokens}, model.program(2))
    rest = Program(model.program(1).steps, start=8)
    found = plain_run(model, {"main": whole.states["h8"]}, rest, tokens={"main": tokens})
    assert torch.equal(found.states["h16"], whole.states["h16"])
    nothing = plain_run(model, {"main": tokens}, Program.parse("zeros (L3 H)2"))
    assert not torch.allclose(nothing.read("h8"), whole.read("h8"), atol=1e-3)


def test_a_folder_gives_the_model_of_the_public_code(tmp_path: Path) -> None:
    model = load(write_folder(tmp_path / "trm", weights(), CONFIG))
    trained = {f"model.{name}": tensor for name, tensor in weights().items()}  # as its loss holds it
    assert model.state_dict().keys() == load(write_folder(tmp_path / "loss", trained, CONFIG)).state_dict().keys()
    assert isinstance(model, TRM)
    assert not model.training
    assert not any(each.is_meta for each in (*model.parameters(), *model.buffers()))
    close_to(outer_steps(model, inputs(model), 3)[0], golden()["logits_by_step"], 5e-5)
    assert load(tmp_path / "trm", loops=7).loops == 7
    two = drawn(HRM_CONFIG)
    again = load(write_folder(tmp_path / "hrm", dict(two.state_dict()), HRM_CONFIG))
    assert isinstance(again, TRM)
    tokens = two.with_puzzles(torch.arange(7)[None], [3])
    assert torch.equal(outer_steps(two, tokens, 2)[0], outer_steps(again, tokens, 2)[0])


def test_released_sizes_come_from_their_settings() -> None:
    """TRM for sudoku is 7M without its puzzles' rows, HRM 27M."""
    released = {
        "seq_len": 81, "vocab_size": 11, "num_puzzle_identifiers": 1, "puzzle_emb_ndim": 512, "hidden_size": 512,
        "num_heads": 8, "expansion": 4, "halt_max_steps": 16, "pos_encodings": "rope", "H_layers": 4,
    }  # fmt: skip
    trm = build(released | {"model_type": "trm", "H_cycles": 3, "L_cycles": 6, "L_layers": 2, "puzzle_emb_len": 16})
    hrm = build(released | {"model_type": "hrm", "H_cycles": 2, "L_cycles": 2, "L_layers": 4})
    layer = 4 * 512 * 512 + 3 * 512 * 1536
    rest = 2 * 11 * 512 + 512 + 2 * 512 + 2
    assert sum(each.numel() for each in trm.parameters()) == 2 * layer + rest
    assert sum(each.numel() for each in hrm.parameters()) == 8 * layer + rest
    assert (trm.lead, hrm.lead, trm.positions, trm.loops) == (16, 1, 97, 16)
    assert str(trm.program(1)) == "(L6 H)3"
    assert trm.program().calls == 16 * 21


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mlp_t": True}, "mlp_t True: rows mixed by an MLP have no patterns"),
        ({"causal": True}, "causal True is not supported"),
        ({"hidden_size": None}, "hidden_size must be a whole number, not missing"),
        ({"num_heads": 5}, "hidden_size 32 does not give 5 heads of an even size"),
        ({"num_heads": 32}, "hidden_size 32 does not give 32 heads of an even size"),
        ({"pos_encodings": "rotary"}, "pos_encodings 'rotary' is not supported; there are rope, learned, none"),
        ({"puzzle_emb_ndim": 0}, "puzzle_emb_ndim 0 does not go into 2 rows of 32"),
        ({"puzzle_emb_ndim": 65}, "puzzle_emb_ndim 65 does not go into 2 rows of 32"),
        ({"expansion": 0}, "expansion must be above 0"),
        ({"halt_max_steps": 0}, "halt_max_steps must be at least 1"),
        ({"halt_max_steps": 9999}, "9999 outer steps of 2 x (3 + 1) calls are too many"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be above 0"),
        ({"rope_theta": "1e4"}, "rope_theta must be a number"),
        ({"hidden_act": "gelu"}, "hidden_act is no setting of a TRM or HRM"),
        ({"mixer": "conv"}, "'mixer' is a setting that is not known here"),
        ({"model_type": "hrm", "puzzle_emb_len": 0}, "H_layers must be at least 1, not 0"),
        ({"model_type": "hrm", "H_layers": 1}, "puzzle_emb_len 2: an HRM has as many rows in front as"),
    ],
)
def test_settings_that_do_not_fit_are_refused(refused: Callable[..., str], changes: dict[str, Any], says: str) -> None:
    assert says in refused(InputError, TRMConfig.from_dict, CONFIG | changes)


def test_keys_that_say_another_thing_than_the_config_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    two = {n.replace("L_level", "H_level"): t.clone() for n, t in weights().items() if "L_level" in n}
    folder = write_folder(tmp_path / "two", weights() | two, CONFIG)
    assert "has inner.H_level" in refused(InputError, load, folder)
    folder = write_folder(
        tmp_path / "one", weights(), CONFIG | {"model_type": "hrm", "H_layers": 2, "puzzle_emb_len": 1}
    )
    assert "lacks inner.H_level" in refused(InputError, load, folder)
    mixed = {n.replace("self_attn.qkv_proj", "mlp_t.gate_up_proj"): t for n, t in weights().items()}
    assert "lacks inner.L_level.layers.0.self_attn" in refused(
        InputError, load, write_folder(tmp_path / "mixed", mixed, CONFIG)
    )
    folder = write_folder(tmp_path / "plain", weights(), CONFIG)
    assert "there is no boundary 'norm'" in refused(InputError, lambda: load(folder, boundary="norm"))


def test_tokens_without_the_rows_of_a_puzzle_are_refused(refused: Callable[..., str]) -> None:
    """Their first tokens would be taken for the rows in front, and every answer would be off by as many."""
    model, right = tiny_trm(), inputs(tiny_trm())
    wrong = {"plain": golden()["inputs"], "later": right.roll(1, 1), "mixed": right.clone(), "alone": right[:, :2]}
    wrong["mixed"][1, 1] = model.vocabulary + 2 * model.lead + 1 - int(right[1, 1] == model.vocabulary + 5) * model.lead
    ways: dict[str, Callable[[Tensor], object]] = {
        "run": lambda tokens: run(model, tokens, "(L3 H)2"),
        "pass": lambda tokens: one_pass(model, tokens, model.program(1)),
    }
    for way in ways.values():
        way(right)
        for name, tokens in wrong.items():
            said = refused(InputError, lambda way=way, tokens=tokens: way(tokens))
            assert "does not begin with the 2 rows of a puzzle: give with_puzzles(tokens, puzzles)" in said
            assert said.startswith("input 1 " if name == "mixed" else "input 0 ")
    padded = torch.cat([torch.zeros_like(right[:, :2]), right[:, :-2]], 1)
    mask = torch.arange(padded.shape[1]).expand_as(padded) >= 2
    one_pass(model, padded, model.program(1), mask=mask)
    said = refused(InputError, lambda: run(model, right, "seed:1 L H"))
    assert "this model has a start that no seed changes (leave out seed:1)" in said


def test_inputs_that_do_not_fit_are_refused(refused: Callable[..., str]) -> None:
    model, tokens = tiny_trm(), golden()["inputs"]
    assert "2 inputs need a list of 2 puzzles" in refused(InputError, model.with_puzzles, tokens, [0])
    assert "a puzzle must be at most 2, not 3" in refused(InputError, model.with_puzzles, tokens, [0, 3])
    assert "token 11 is outside 0..10" in refused(InputError, model.with_puzzles, torch.tensor([[11]]), [0])
    assert "10 tokens given, but the model has 9 positions" in refused(
        InputError, model.with_puzzles, torch.zeros(1, 10, dtype=torch.long), [0]
    )
    assert "12 tokens given" in refused(InputError, model.embed, torch.zeros(1, 12, dtype=torch.long))
    assert "outside 0..16" in refused(InputError, model.embed, torch.tensor([[17]]))
    plain = trm_from_config(CONFIG | {"puzzle_emb_ndim": 0, "puzzle_emb_len": 0})
    assert "2 rows of a puzzle stand in front of the tokens" in refused(InputError, model.with_puzzles, tokens, None)
    assert plain.with_puzzles(tokens, None) is tokens
    assert "no puzzle embeddings" in refused(InputError, plain.with_puzzles, tokens, [0, 0])
    seeded = Program.parse("seed:3 (L3 H)2")
    assert "has a seed, but" in refused(InputError, plain_run, model, {"main": inputs(model)}, seeded)
    assert "loops must be at most 1250" in refused(InputError, model.program, 1251)
    assert "the stacks of this model are: L H" in refused(
        InputError, plain_run, model, {"main": tokens}, Program.parse("F2")
    )
