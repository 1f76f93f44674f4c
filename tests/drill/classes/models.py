"""Model folders: settings, weights, shards, tokenizers, chat templates, and what Loopscope writes beside them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.drill import mutations as do
from tests.drill.cases import Case, Change, Group, Scene, World

KINDS = ("ouro", "llama", "qwen3")
READ = {
    kind: Scene.of(kind, "lm", "readouts", kind, "--text", "ab a 12", "--chat", "--top", "3", "--json")
    for kind in (*KINDS, "shards", "spoken", "fresh")
}
NUMBERS = {
    "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "0": 0, "-1": -1, "half": 0.5, "1e300": 1e300,
    "-1e300": -1e300, "2^31": 2**31, "2^63": 2**63, "10^40": 10**40, "3": 3, "100000": 100_000,
}  # fmt: skip
WRONG = {
    "text": "x", "digits": "12", "list": [], "object": {}, "null": None, "true": True, "nested": [[1], {"a": [2]}],
    "gone": do.GONE, "control": "\x1b[2J\x07",
}  # fmt: skip


def config_values(world: World, seed: int) -> Iterator[Case]:
    """Numbers in `config.json` that are out of range, or no numbers."""
    for kind in KINDS:
        for path, value in _leaves(_config(world, kind)):
            if isinstance(value, int | float) and not isinstance(value, bool):
                for name, number in NUMBERS.items():
                    change = do.put(f"{kind}/config.json", path, number)
                    yield Case("config values", f"{kind}.{'.'.join(map(str, path))}={name}", READ[kind], change)


def config_types(world: World, seed: int) -> Iterator[Case]:
    """Values in `config.json` of another type, missing or too many keys, and what a loader must not look at."""
    for kind in KINDS:
        config = _config(world, kind)
        for key in config:
            for name, value in WRONG.items():
                yield Case(
                    "config types", f"{kind}.{key}={name}", READ[kind], do.put(f"{kind}/config.json", (key,), value)
                )
        for key, value in FOREIGN.items():
            yield Case("config types", f"{kind}+{key}", READ[kind], do.put(f"{kind}/config.json", (key,), value))
        for name, data in DOCUMENTS.items():
            yield Case("config types", f"{kind} is {name}", READ[kind], do.replace(f"{kind}/config.json", data))


FOREIGN: dict[str, Any] = {
    "_attn_implementation": "kernels-community/flash-attn", "attn_implementation": "eager",
    "_attn_implementation_internal": "somebody/kernel:f", "auto_map": {"AutoModel": "evil.Model"},
    "quantization_config": {"load_in_8bit": True}, "trust_remote_code": True, "torch_dtype": "float8_e4m3fn",
    "use_bfloat16": True, "output_attentions": True, "rope_scaling": {"type": "linear", "factor": float("nan")},
    "sliding_window": 1, "use_sliding_window": True, "pruned_heads": {"0": [0]}, "is_decoder": False,
    "transformers_version": "999.0", "architectures": ["OtherForCausalLM"], "layer_types": ["sliding_attention"] * 2,
    "attention_dropout": 0.9, "pretraining_tp": 7, "num_key_value_heads ": 3,
}  # fmt: skip
DOCUMENTS = {
    "empty": b"", "a list": b"[]", "a number": b"1", "null": b"null", "no UTF-8": b'{"model_type": "\xff"}',
    "nested deeply": b"[" * 100_000, "objects in objects": b'{"a":' * 50_000, "UTF-16": '{"a": 1}'.encode("utf-16"),
    "with a second value": b"{} {}", "zeros": b"\0" * 100, "a long number": b'{"vocab_size": ' + b"9" * 100_000 + b"}",
    "twice the key": b'{"model_type": "llama", "model_type": "ouro"}', "cut": b'{"model_type": "lla',
}  # fmt: skip


def weights(world: World, seed: int) -> Iterator[Case]:
    """Released weights: headers, lengths, types, names, shapes, numbers that are none."""
    draw = random.Random(seed)
    for kind in KINDS:
        file = f"{kind}/model.safetensors"
        size, header = world.size(Path(file)), 8 + _header_size(world.base / file)
        for at in [*range(8), *sorted(draw.sample(range(8, header), 40))]:
            yield Case("weights", f"{kind} header byte {at}", READ[kind], do.flip(file, at, draw.randrange(8)))
        for length in (0, 1, 7, 8, 9, header - 1, header, header + 1, size // 2, size - 1):
            yield Case("weights", f"{kind} first {length} bytes", READ[kind], do.cut(file, length))
        for name, change in tensor_changes().items():
            yield Case("weights", f"{kind} {name}", READ[kind], tensors(file, change))
        for name, data in HEADERS.items():
            yield Case("weights", f"{kind} with {name}", READ[kind], do.replace(file, data))
        yield Case("weights", f"{kind} more at the end", READ[kind], do.append(file, b"\0"))
        yield from places("weights", READ[kind], file)


def _safetensors(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


HEADERS = {
    "a huge header length": _safetensors(b"{}", 2**63),
    "a length of 4 GiB": _safetensors(b"{}", 2**32),
    "an empty header": _safetensors(b"{}"),
    "a header of nothing": _safetensors(b""),
    "a pickle": b"\x80\x04\x95.",
    "a nested header": _safetensors(b'{"a":' * 40_000),
    "a header that is a list": _safetensors(b"[]"),
    "a huge shape": _safetensors(
        b'{"lm_head.weight":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'
    ),
    "an unknown type": _safetensors(b'{"lm_head.weight":{"dtype":"F3","shape":[0],"data_offsets":[0,0]}}'),
    "offsets backwards": _safetensors(b'{"lm_head.weight":{"dtype":"F32","shape":[0],"data_offsets":[8,0]}}'),
    "100,000 tensors": _safetensors(
        json.dumps({f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)}).encode()
    ),
}


def tensor_changes() -> dict[str, Callable[[dict[str, torch.Tensor]], None]]:
    def first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
        def inside(tensors: dict[str, torch.Tensor]) -> None:
            name = sorted(tensors)[1]
            tensors[name] = change(tensors[name])

        return inside

    def every(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda tensors: tensors.update({name: change(tensor) for name, tensor in tensors.items()})

    def at(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def inside(tensor: torch.Tensor) -> torch.Tensor:
            tensor.view(-1)[0] = value
            return tensor

        return inside

    def renamed(tensors: dict[str, torch.Tensor]) -> None:
        tensors["../../x"] = tensors.pop(sorted(tensors)[0])

    return {
        "one NaN": first(at(float("nan"))),
        "one infinity": first(at(float("inf"))),
        "one -infinity": first(at(float("-inf"))),
        "fp64 of 1e300": every(lambda t: t.double() + 1e300),
        "one fp64 of 1e300": first(lambda t: t.double() + 1e300),
        "fp32 of 1e38": every(lambda t: t + 1e38),
        "all as fp64": every(torch.Tensor.double),
        "all as fp16": every(torch.Tensor.half),
        "all as bf16": every(torch.Tensor.bfloat16),
        "one as int64": first(torch.Tensor.long),
        "one as bool": first(lambda t: t > 0),
        "one as uint8": first(lambda t: t.to(torch.uint8)),
        "one as complex": first(lambda t: t.to(torch.complex64)),
        "one as fp8": first(lambda t: t.to(torch.float8_e4m3fn)),
        "all as fp8": every(lambda t: t.to(torch.float8_e4m3fn)),
        "all as fp8 e5m2": every(lambda t: t.to(torch.float8_e5m2)),
        "one transposed": first(lambda t: t.T.contiguous() if t.dim() > 1 else t[:-1]),
        "one with a dimension more": first(lambda t: t[None]),
        "one longer": first(lambda t: torch.cat([t, t])),
        "one empty": first(lambda t: t[:0]),
        "one scalar": first(lambda t: t.sum()),
        "one missing": lambda tensors: tensors.pop(sorted(tensors)[0]) is None or None,
        "one more": lambda tensors: tensors.update({"model.layers.99.mlp.weight": torch.zeros(2)}),
        "one renamed": renamed,
        "a name with controls": lambda tensors: tensors.update({"\x1b[2J\n": torch.zeros(2)}),
        "a long name": lambda tensors: tensors.update({"x" * 100_000: torch.zeros(2)}),
        "all zero": every(torch.zeros_like),
    }


def tensors(file: str, inside: Callable[[dict[str, torch.Tensor]], None]) -> Change:
    def change(work: Path) -> None:
        tensors = load_file(work / file)
        inside(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, work / file, {"format": "pt"})

    return change


def places(group: str, scene: Scene, file: str) -> Iterator[Case]:
    """Something else in a file's place."""
    yield Case(group, f"{file} gone", scene, do.remove(file))
    yield Case(group, f"{file} a FIFO", scene, do.fifo(file))
    yield Case(group, f"{file} a folder", scene, do.folder(file))
    yield Case(group, f"{file} a loop of links", scene, do.link(file, Path(file).name))
    yield Case(group, f"{file} links to /dev/zero", scene, do.link(file, "/dev/zero"))
    yield Case(group, f"{file} links to /dev/null", scene, do.link(file, "/dev/null"))
    yield Case(group, f"{file} links nowhere", scene, do.link(file, "/nowhere/at/all"))
    # A text may be of any size, if the memory holds it.
    codes = (1, 2, 3) if str(file).endswith(".jsonl") else (2, 3)
    yield Case(group, f"{file} of 8 GiB of zeros", scene, do.sparse(file, 8 << 30), codes=codes)
    yield Case(group, f"{file} empty", scene, do.replace(file, b""))


def _config(world: World, kind: str) -> dict[str, Any]:
    return json.loads((world.base / kind / "config.json").read_text(encoding="utf-8"))


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


def _header_size(file: Path) -> int:
    return int.from_bytes(file.read_bytes()[:8], "little")


def shards(world: World, seed: int) -> Iterator[Case]:
    """Weights in several files with an index."""
    draw = random.Random(seed)
    scene, index = READ["shards"], "shards/model.safetensors.index.json"
    size = world.size(Path(index))
    for at, change in do.flips(index, size, 40, draw):
        yield Case("shards", f"index byte {at}", scene, change)
    for name, data in DOCUMENTS.items():
        yield Case("shards", f"index is {name}", scene, do.replace(index, data))
    listed = json.loads((world.base / index).read_text(encoding="utf-8"))["weight_map"]
    first = min(listed)
    other = next(each for each in sorted(set(listed.values())) if each != listed[first])
    named = {
        "../llama/model.safetensors": "outside", "/etc/passwd": "absolute", "": "nothing", ".": "a folder",
        "none.safetensors": "no file", other: "the other file", "config.json": "no weights", "a\0b": "a null",
        "\x1b[2J": "control characters", "x" * 5000: "a long name",
    }  # fmt: skip
    for value, name in named.items():
        yield Case("shards", f"a tensor in {name}", scene, do.put(index, ("weight_map", first), value))
    for name, value in WRONG.items():
        yield Case("shards", f"a tensor in {name} of JSON", scene, do.put(index, ("weight_map", first), value))
        yield Case("shards", f"weight_map={name}", scene, do.put(index, ("weight_map",), value))
        yield Case("shards", f"metadata={name}", scene, do.put(index, ("metadata",), value))
    for file in sorted(set(listed.values())):
        yield from places("shards", scene, f"shards/{file}")
        yield Case("shards", f"{file} cut", scene, do.cut(f"shards/{file}", -1))
    one, two = (f"shards/{each}" for each in sorted(set(listed.values())))
    yield Case("shards", "the second is the first", scene, do.copy(one, two))
    yield from places("shards", scene, index)
    both = Scene((*scene.needs, "other"), scene.command)
    yield Case("shards", "a whole file beside", both, do.copy("other/model.safetensors", "shards/model.safetensors"))


GROUPS: dict[str, Group] = {
    "shards": shards,
    "config values": config_values,
    "config types": config_types,
    "weights": weights,
}
