"""Fine-tunes and fits a small model; run by `accelerate launch` in several processes and by a test in one.

python -m tests.tuning_together FOLDER OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from loopscope.store.store import Store
from loopscope.training.lm.jobs import Progress, Settings, finetune, fit
from tests.tuning_tiny import small, sources


class StoppedError(Exception):
    """Stands for a kill: nobody catches it."""


def together(folder: Path, out: Path, stop: int = 0) -> None:
    """`out/adafactor`, `out/adamw`: two fine-tuned models, and a map in the store `out/store`.

    `stop` breaks off the first after that update, where it has a checkpoint.

    Seven questions in passes of two: four passes of the task and one of general text, so two processes have unequal
    shares.
    """

    def watch(now: Progress) -> None:
        if now.done == stop:
            raise StoppedError

    settings, store = Settings(torch.device("cpu"), save_every=0.0, watch=watch), Store(out / "store")
    shape = ("examples=7", "micro=2", "updates=2", "rate=1e-3")
    finetune(folder, small("letter", *shape), out / "adafactor", store, settings, sources=sources())
    finetune(folder, small("smol-letter", *shape), out / "adamw", store, settings, sources=sources())
    fit(folder, small("letter-map", *shape), store, settings, sources=sources())


if __name__ == "__main__":
    torch.set_num_threads(1)
    together(Path(sys.argv[1]), Path(sys.argv[2]))
