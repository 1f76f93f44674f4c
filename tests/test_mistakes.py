"""Values of the wrong kind, as a user without a type checker might write them: one line each, never a traceback.

Run in a process of its own, because the test suite's run-time type checks would answer first.
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import torch
from loopscope import Address, Dense, F, Given, J, Program, Run, Site, grid, run, sweep
from loopscope.errors import InputError
from loopscope.measure import trajectories
from tests.tiny import tiny_model, tiny_tokens

m, t = tiny_model(), tiny_tokens(3)
swept = sweep(m, t, F**2, grid("z", loops=(1, 2), layers=(1,)), "(F2)")
zeros = torch.zeros(1, 16)
mistakes = [
    lambda: F**2 | None,
    lambda: F**2 | J,
    lambda: F**2 | "F g",
    lambda: (F**2).patch("loop[1].layer[1].z", torch.zeros(3)),
    lambda: (F**2).patch("loop[1].layer[1].z", None),
    lambda: Run("F 2"),
    lambda: J(3),
    lambda: run(m, [*t.tolist(), "F"], "F"),
    lambda: run(m, t, "F[layer[1].resid<-$x]", given={"x": 0.0}),
    lambda: run(m, t, "F[layer[1].resid<-$x]", given={"x": zeros.double()}),
    lambda: run(m, t, "F J:w F", maps={"w": Dense(8)}),
    lambda: run(m, t, "F J:w F", maps={"w": lambda h: h[..., :3]}),
    lambda: run(m, None, "h1 F", state=torch.zeros(3, 7, 16, dtype=torch.float64)),
    lambda: run(m, t, "F", rows=-1),
    lambda: run(m, t, "F", rows=torch.tensor([1, 2])),
    lambda: run(m, t, "F", read=[]),
    lambda: run(m, t, "J:w", read="calls", maps={"w": Dense(16)}),
    lambda: run(m, torch.full((3, 7), 8), "F", chunk=1),
    lambda: run(m, t, "F")["F3"],
    lambda: swept.rates(torch.zeros(3, 1)),
    lambda: trajectories(m, t, "F4", layers=1),
    lambda: trajectories(m, t, "F4", draws=1.5),
    lambda: trajectories(m, t[0], "F4"),
]
for number, mistake in enumerate(mistakes):
    try:
        mistake()
    except InputError as error:
        assert "\\n" not in str(error), error
    else:
        raise SystemExit(f"mistake {number} was not noticed")

result = run(m, t, ["F", "F2"], keep="loop[1].layer[1].z")
assert "F" in result and "F3" not in result and result.get("F3") is None
for shape in ((), (1,), (1, 1), (7, 1), (3, 7, 16)):  # zero ablation, written in many ways
    x = torch.zeros(shape)
    program = (F**1).patch("loop[1].layer[2].mlp_out", Given("x"))
    (kept,) = run(m, t, program, given={"x": x}, keep="loop[1].layer[2].mlp_out")[program].kept.values()
    assert not kept.any() and kept.shape == (3, 7, 16)
exact, rounded = (run(m, t, "F J:w F", maps={"w": each})["F J:w F"] for each in (Dense(16).double(), Dense(16)))
assert exact.logits.dtype == rounded.logits.dtype and torch.allclose(exact.logits, rounded.logits, atol=1e-5)
print("all mistakes noticed")
"""


def test_mistakes_get_one_line() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "all mistakes noticed\n"
