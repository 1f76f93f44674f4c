"""A model from nothing learns to look names up: about ten minutes on one core.

Not collected by default, because of the time.  Run it by name: `python -m pytest -s tests/slow_from_nothing.py`.

The tokenizer has names, digits, line breaks and the whole phrases between them as tokens, so that a text of six
questions is 105 tokens: with tokens of ordinary size, 258 and more, ten minutes on a CPU are not enough.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from loopscope.lm import letter_training, letters
from loopscope.lm.tuning.fresh import Shape, write_fresh
from loopscope.lm.tuning.jobs import Settings, finetune
from loopscope.lm.tuning.recipes import recipe
from loopscope.store import Store
from tests.model_folders import SPECIAL
from tests.tuning_tiny import CHATML

CHANGES = ("loops=2", "deepest=1", "share=0", "examples=16", "micro=16", "warmup=100", "horizon=0", "updates=2600",
           "check_every=200")  # fmt: skip


def phrases(folder: Path) -> Path:
    """A folder with such a tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join([*letters.NAMES, "[0-9]", "\n"])), "isolated")
    tokenizer.decoder = decoders.Fuse()
    drawn = [letter_training.adaptation(update, texts=5, questions=6, deepest=1) for update in range(20)]
    characters = [chr(code) for code in range(32, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=[*characters, "\n"], min_frequency=5,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator([*(text.text for some in drawn for text in some), CHATML, *characters], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def test_a_model_from_nothing_learns_to_look_names_up(tmp_path: Path) -> None:
    """Well beyond the 14 % of who remembers answers and follows no rule; the curve is printed."""
    shape = Shape("llama", layers=2, width=128, heads=4, loops=2)
    write_fresh(tmp_path / "new", shape, phrases(tmp_path / "words"))
    settings = Settings(torch.device("cpu"), tell=print)
    given = recipe("small-letter-adapt", CHANGES)
    done = finetune(tmp_path / "new", given, tmp_path / "tuned", Store(tmp_path / "store"), settings)
    last = [row["answers"]["1"] for row in done.history if row["update"] > given.updates - 100]
    assert sum(right for right, _ in last) > 0.5 * sum(asked for _, asked in last)
