"""A small Llama folder whose tokenizer has the words of the tests, one token each; everything else is unknown."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from loopscope.maps import Dense, save_map
from loopscope.models.stacks import stack_from_config
from loopscope.tasks.antonyms import PARTNER
from loopscope.tasks.letters import NAMES
from tests.model_folders import SPECIAL, TEMPLATE

WORDS = [*SPECIAL, *NAMES, *PARTNER, *map(str, range(10)), "Monday", "Tuesday", ".", "user", "assistant", "letter"]
CONFIG = {
    "model_type": "llama", "vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "eos_token_id": 2,
}  # fmt: skip


def worded_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def worded_folder(folder: Path, *, template: bool = True) -> Path:
    """The model as released, with weights that count."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    stack = stack_from_config(CONFIG)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn(each.shape, generator=generator) * 0.4 + ("norm" in name)
        for name, each in stack.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(worded_tokenizer().to_str(), encoding="utf-8")
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | ({"chat_template": TEMPLATE} if template else {})), encoding="utf-8"
    )
    return folder


def worded_map(folder: Path, width: int = 16) -> Path:
    """A map that changes what is said."""
    step = Dense(width)
    with torch.no_grad():
        step.W.add_(torch.randn(step.W.shape, generator=torch.Generator().manual_seed(2)) * 0.3)
    save_map(step, folder)
    return folder
