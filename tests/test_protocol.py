"""Any model with the members of `protocol.py` can be run and patched: here one of another make, with rotary rows."""

from __future__ import annotations

import torch

from loopscope.execute.executor import run
from loopscope.execute.plain import plain_run
from loopscope.execute.sweeping import sweep
from loopscope.program import F, J, Run
from tests.own_model import D, OwnModel
from tests.tiny import ROWS, every_address, tiny_tokens


def test_a_model_of_another_make_is_run_and_patched_exactly() -> None:
    model, tokens, other = OwnModel(), tiny_tokens(4, shared=3), tiny_tokens(4, seed=1)
    maps = {"turn": lambda h: h.roll(1, -1)}
    base = F | J("turn") | F
    places = [each for each in every_address(2, 2)[::3] if each.site.component != "mlp_hidden"]  # its layers say none
    found = sweep(model, tokens, base, places, Run(F**2, "other"), others={"other": other}, maps=maps)
    for place, logits in zip(places, found.logits, strict=True):
        cell = base.patch(place, Run(F**2, "other"))
        plain = plain_run(model, {"main": tokens, "other": other}, cell, maps=maps)
        torch.testing.assert_close(logits, model.read(plain.states["h2"][:, -1:]), rtol=0, atol=1e-11)


def test_nothing_but_an_entering_state_may_be_asked_for() -> None:
    """Keeping only `resid` of a call leaves no row to project; the layer is not called without rows."""
    model, tokens = OwnModel(), tiny_tokens(2)
    trace = run(model, tokens, "F2", read="h1", keep="loop[2].layer[1].resid")["F2"]
    (kept,) = trace.kept.values()
    plain = plain_run(model, {"main": tokens}, F**2)
    torch.testing.assert_close(kept, plain.components[2, 1, "resid"], rtol=0, atol=1e-12)
    assert kept.shape == (2, ROWS, D)
