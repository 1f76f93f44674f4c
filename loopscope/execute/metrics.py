"""What is measured of a patched run, so that its logits need not be kept.

    sweep(model, tokens, "F6", places, "(F6)@other", others={"other": other}, metric="recovered")

| name | of every row that is read | answers |
|---|---|---|
| `logit`, `probability` | of the answer | [examples] |
| `accuracy` | 1 where the answer is the likeliest class, else 0 | [examples] |
| `difference` | logit of the answer less that of the other answer | [examples, 2] |
| `kl` | of the patched run from the unpatched, KL(unpatched, patched) in nats | |
| `recovered` | how far the patch goes from this run's answer to the source's | [examples, 2] or none |

`recovered` is (d(patched) - d(unpatched)) / (d(source) - d(unpatched)), d the logit of the source's answer less that of
the run's own: 0 as without the patch, 1 as in the source.  Answers that are not given are the likeliest classes of both
at the row that is read.

A metric of one's own is a function of (logits, those of the unpatched run, the numbers of the examples), both
[examples, rows, classes], that gives [examples, rows].  It treats every example alone: it is handed some of them at a
time, and those of several patched runs one behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from loopscope.errors import InputError, nearest

Logits: TypeAlias = Float[Tensor, "examples rows classes"]
Metric: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]

ANSWERS = {"logit": 1, "probability": 1, "accuracy": 1, "difference": 2, "kl": 0, "recovered": 2}
"""Answers of an example that a metric takes."""

SHARES = ("accuracy",)
"""Metrics that are 0 or 1, so that their mean is a share."""


def metric_of(metric: str | Metric, answers: Int[Tensor, "examples ..."] | None, examples: int) -> tuple[str, Metric]:
    """A metric by name, or the name of a function; InputError for answers that do not fit."""
    if not isinstance(metric, str):
        if not callable(metric):
            raise InputError(f"a metric is a name or a function, not a {type(metric).__name__}")
        if answers is not None:
            raise InputError("answers belong to a metric by name; a function knows its own")
        return getattr(metric, "__name__", type(metric).__name__), _shaped(metric)
    if metric not in ANSWERS:
        raise InputError(f"no metric {metric!r}; there are {', '.join(ANSWERS)}{nearest(metric, ANSWERS)}")
    if metric == "kl":
        if answers is not None:
            raise InputError("the metric 'kl' compares all classes and takes no answers")
        return metric, _kl
    wanted = [examples] if ANSWERS[metric] == 1 else [examples, 2]
    if answers is None or list(answers.shape) != wanted or answers.is_floating_point():
        found = "none" if answers is None else f"{str(answers.dtype).removeprefix('torch.')} {list(answers.shape)}"
        raise InputError(f"the metric {metric!r} takes answers as whole numbers {wanted}, not {found}")
    return metric, _shaped(_named(metric, answers.long()))


def difference(logits: Logits, pairs: Int[Tensor, "examples some 2"]) -> Float[Tensor, "examples rows"]:
    """Logit of the first answer less that of the second, [examples, rows]."""
    one, two = logits.gather(-1, pairs.expand(-1, logits.shape[1], -1)).float().unbind(-1)
    return one - two


def best(logits: Tensor, _base: Tensor, _examples: Tensor) -> Tensor:
    """The likeliest class, as a float."""
    return logits.argmax(-1).double()


def _named(name: str, answers: Tensor) -> Metric:
    def measured(logits: Tensor, _: Tensor, examples: Tensor) -> Tensor:
        mine = answers.to(logits.device)[examples]
        if int(mine.amax()) >= logits.shape[-1] or int(mine.amin()) < 0:
            low, high = int(mine.amin()), int(mine.amax())
            raise InputError(f"answers {low} to {high} are not among the classes 0..{logits.shape[-1] - 1}")
        if mine.dim() == 2:
            return difference(logits, mine[:, None])
        if name == "accuracy":
            return (logits.argmax(-1) == mine[:, None]).to(torch.float32)
        values = logits.float().softmax(-1) if name == "probability" else logits.float()
        return values.gather(-1, mine[:, None, None].expand(-1, logits.shape[1], -1))[..., 0]

    return measured


def _kl(logits: Tensor, base: Tensor, _: Tensor) -> Tensor:
    before, after = base.double().log_softmax(-1), logits.double().log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1).clamp(min=0).float()


def _shaped(metric: Metric) -> Metric:
    def checked(logits: Tensor, base: Tensor, examples: Tensor) -> Tensor:
        found = metric(logits, base, examples)
        if not isinstance(found, Tensor) or found.shape != logits.shape[:2]:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"a metric gives [examples, rows], here {list(logits.shape[:2])}, not {shape}")
        return found

    return checked
