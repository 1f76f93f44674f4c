"""Engines by name.

local:4            four worker processes on this machine
ray:auto           the Ray cluster that this machine belongs to; ray:HOST:PORT another one
slurm:PARTITION    a partition of a Slurm cluster
"""

from __future__ import annotations

import re

from loopscope.bounds import whole
from loopscope.errors import InputError, nearest
from loopscope.jobs.engine import Engine

ENGINES = ("local", "ray", "slurm")

MOST_WORKERS = 1024


def parse(on: str) -> tuple[str, str]:
    """The kind of an engine and what comes behind it; InputError for what is no engine."""
    kind, _, rest = on.partition(":")
    if kind not in ENGINES:
        raise InputError(
            f"no engine {on!r}; there are local:N, ray:auto, ray:HOST:PORT, slurm:PARTITION" + nearest(kind, ENGINES)
        )
    if kind == "local":
        if not re.fullmatch(r"[0-9]{1,4}", rest):
            raise InputError(f"{on!r}: local takes a number of processes (nearest: local:2)")
        whole("the number of processes", int(rest), 1, MOST_WORKERS)
    elif kind == "ray" and rest != "auto" and not re.fullmatch(r"[^\s:/]+:[0-9]{1,5}", rest):
        raise InputError(f"{on!r}: Ray is ray:auto or ray:HOST:PORT (nearest: ray:auto)")
    elif kind == "slurm" and not re.fullmatch(r"[\w.-]+", rest):
        raise InputError(f"{on!r}: name a partition, as `sinfo` lists them (nearest: slurm:PARTITION)")
    return kind, rest


def engine_of(on: str) -> Engine:
    """The engine of this name, started; InputError where it cannot be reached, or a package is missing."""
    kind, rest = parse(on)
    if kind == "local":
        from loopscope.jobs.local import Local

        return Local(int(rest))
    if kind == "ray":
        from loopscope.jobs.on_ray import Ray

        return Ray(rest)
    from loopscope.jobs.on_slurm import Slurm

    return Slurm(rest)
