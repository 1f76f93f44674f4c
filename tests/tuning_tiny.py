"""Small model folders that can be fine-tuned: a tokenizer that knows the tasks' words, a chat template, room enough."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from loopscope.models.folders import build
from loopscope.models.text import load_tokenizer
from loopscope.studies.language.recipes import recipe
from loopscope.tasks import antonyms, iterations, letters
from loopscope.tasks.general_text import Source, is_validation, pool
from loopscope.training.lm.batches import Data
from loopscope.training.lm.recipe import Recipe
from tests.model_folders import SPECIAL
from tests.ouro_tiny import CONFIG

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' and enable_thinking is defined %}{{ '<think></think>' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined %}{{ '<think></think>' }}{% endif %}{% endif %}"
)
SIZES = {
    "vocab_size": 700, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 2048,
}  # fmt: skip
LLAMA = {**SIZES, "model_type": "llama", "num_key_value_heads": 1, "rope_theta": 1e4, "tie_word_embeddings": True,
         "eos_token_id": 2, "rms_norm_eps": 1e-5, "dtype": "bfloat16"}  # fmt: skip
OURO = {**CONFIG, **SIZES, "num_key_value_heads": 2, "eos_token_id": 2}
QWEN3 = {**SIZES, "model_type": "qwen3", "num_key_value_heads": 1, "head_dim": 8, "rope_theta": 1e4,
         "tie_word_embeddings": False, "eos_token_id": 2, "rms_norm_eps": 1e-6}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {"llama": LLAMA, "ouro": OURO, "qwen3": QWEN3}


@cache
def words() -> str:
    """A tokenizer whose tokens are the tasks' words, as `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [letters.prompt(letter) for t in range(6) for letter in letters.evaluation(3, t)]
    texts += [antonyms.Request(s, 2, t).prompt for t, s in enumerate(antonyms.quick_sequences()[:5])]
    texts += [request.prompt for request in iterations.bank("train", cases=2, deepest=2)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return str(tokenizer.to_str())


def tuning_folder(folder: Path, kind: str = "llama", **changes: Any) -> Path:
    """A small model with random weights, as released."""
    folder.mkdir(parents=True)
    config = CONFIGS[kind] | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_text(words(), encoding="utf-8")
    settings = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    generator = torch.Generator().manual_seed(3)
    shapes = {name: each.shape for name, each in build(config).state_dict().items()}
    tensors = {name: torch.randn(shape, generator=generator) * 0.2 + ("norm" in name) for name, shape in shapes.items()}
    readout = "model.embed_tokens.weight" if config.get("tie_word_embeddings") else "lm_head.weight"
    tensors[readout][config["eos_token_id"]] *= 6  # replies end, now and then
    save_file(tensors, folder / "model.safetensors")
    return folder


@cache
def sources() -> tuple[Source, ...]:
    """General text: documents of both sides of the split."""
    documents = [f"{number}. " + "one two three four five six seven. " * 300 for number in range(40)]
    learned = [text for text in documents if not is_validation(text)][:2]
    watched = [text for text in documents if is_validation(text)][:1]
    return (Source("counting", tuple(learned + watched)),)


def text_files(folder: Path) -> list[str]:
    """General text as files in the folder that commands run in, and the options that name them."""
    documents = sources()[0].documents
    for number, document in enumerate(documents):
        (folder / f"{number}.txt").write_text(document, encoding="utf-8")
    return [part for number in range(len(documents)) for part in ("--text", f"{number}.txt")]


def tuning_data(given: Recipe, folder: Path) -> Data:
    """What a recipe learns from, with a folder's tokenizer and the general text above."""
    tokenizer = load_tokenizer(folder)
    pools = [pool(source, lambda text: tokenizer.encode(text, special=False)) for source in sources()]
    return Data(given, tokenizer, pools, vocabulary=SIZES["vocab_size"], positions=SIZES["max_position_embeddings"])


def small(name: str, *changes: str) -> Recipe:
    """A recipe with very few and small updates; of questions, each with rules of its own, and all depths at once."""
    fewer = ["updates=3", "examples=5", "micro=5", "check_every=2", "checked=1", "deepest=2", "warmup=1", "horizon=0"]
    if recipe(name).text == "questions":
        fewer += ["per_text=1", "grow_every=0", "grow_at=null", "grow_from=1"]
    return recipe(name, [*fewer, *changes])
