"""Small model folders of every architecture, with a tokenizer where one is wanted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from tests.ouro_tiny import CONFIG, weights, write_folder
from tests.stack_tiny import CONFIGS, tiny_stack

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{%- for message in messages %}\n"
    "    {%- if loop.first and message.role != 'system' %}{{ bos_token + 'system\\nBe brief.' + eos_token + '\\n' }}"
    "{%- endif %}\n"
    "    {%- if message.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('no role ' + message.role) }}"
    "{%- endif %}\n"
    "    {{- bos_token + message['role'] + '\\n' + message['content'] | trim + eos_token }}\n"
    "{% endfor %}\n"
    "{%- if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
    "{% if thinking is defined and not thinking %}{{ {'a<b': 'ö'} | tojson }}{% endif %}"
)


def tiny_tokenizer(first: bool = False) -> Tokenizer:
    """Byte-level BPE with digits apart, as SmolLM2's; `first` puts a first token before every text."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet())[:80], "Ġ"]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *dict.fromkeys(letters)])}
    vocabulary |= {token: len(vocabulary) + number for number, token in enumerate(["ab", "Ġa"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("Ġ", "a")], unk_token=SPECIAL[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if first:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    return tokenizer


def put_tokenizer(folder: Path, *, first: bool = False, apart: bool = False, **settings: Any) -> Path:
    """Write a tokenizer into a folder, the template among its settings or in a file `apart`."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tiny_tokenizer(first).to_str(), encoding="utf-8")
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": {"content": "<|im_end|>", "special": True, "__type": "AddedToken"},
        "clean_up_tokenization_spaces": False,
    }
    if apart:
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    else:
        values["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(values | settings), encoding="utf-8")
    return folder


def ouro_folder(folder: Path, **changes: Any) -> Path:
    """The small Ouro as it would be released, with a tokenizer."""
    return put_tokenizer(write_folder(folder, weights(), CONFIG | changes))


def stack_folder(folder: Path, kind: str, copied: bool = False) -> Path:
    """A small Qwen3 or Llama as released; `copied` writes a tied head a second time, as some files have it."""
    folder.mkdir()
    config = CONFIGS[kind] | {"tie_word_embeddings": kind == "llama" or copied}
    tensors = {name: tensor.contiguous() for name, tensor in tiny_stack(kind).state_dict().items()}
    if copied:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    return folder
