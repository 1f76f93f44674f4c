"""A small looped model from nothing: random weights in the layout of a released one, with a tokenizer that there is.

    write_new(Path("small"), Shape("llama", layers=4, width=256, heads=4), tokenizer=Path("smollm2-135m"))

The tokenizer is taken as it is, with its whole vocabulary: prompts, alignments, chat template and every command are
then those of the model it comes from.  The price is a large embedding (49,152 tokens of width 256: 12.6 million
numbers, once, as a Llama's head is tied to it), but little work on a GPU: a row of it is looked up, and the head is
applied where a token is learned.  Where that is too much, as on a CPU, give a folder with a smaller tokenizer.

Matrices are drawn with a standard deviation of 1 / sqrt(width), norms are 1 and biases 0: a Llama's by transformers,
Ouro's here, as it has no such code of its own.  The usual 0.02 is that of width 2,500; a narrow model begins with
attention all but uniform by it, and of two that were tried at width 128 it was the slower to learn.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from loopscope.bounds import WIDTH, whole
from loopscope.errors import InputError, nearest
from loopscope.models.folders import (
    ADAPTERS,
    CONFIG,
    LOOPED,
    LOOPS,
    Adapter,
    build,
    fill_folder,
    read_config,
)
from loopscope.models.passes import Boundary
from loopscope.models.text import FILES, Tokenizer, load_tokenizer
from loopscope.store.files import new_folder
from loopscope.store.outputs import check_folder, parent_of
from loopscope.training.lm.memory import SPARE, free_memory
from loopscope.training.lm.words import write_words

Like = Literal["llama", "ouro"]

MOST = {"layers": 1000, "loops": 1000}
"""Bounds of what can be made; each layer is an object, though it has no weights yet, and each loop takes its time."""

POSITIONS = 8192
"""Rotary positions take no weights, so there are more than any text here needs."""

OF_KIND: Mapping[Like, Mapping[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 1e4, "attention_bias": False,
              "mlp_bias": False, "tie_word_embeddings": True},
    "ouro": {"architectures": ["OuroForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e6,
             "tie_word_embeddings": False},
}  # fmt: skip
"""What the configs of the two kinds of models say beyond sizes."""


def like_named(name: str) -> Like:
    """A kind of model by its name; InputError where there is none of that name."""
    for known in OF_KIND:
        if name == known:
            return known
    raise InputError(f"no model like {name!r} can be made; there are {', '.join(OF_KIND)}{nearest(name, OF_KIND)}")


@dataclass(frozen=True)
class Shape:
    """What a new model is like; InputError for sizes that cannot be.

    The MLP is 8/3 as wide as the state, up to the next multiple of 16; every head has keys of its own.
    """

    like: Like
    layers: int
    width: int
    heads: int
    loops: int = LOOPS
    boundary: Boundary = "norm"

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "loops"):
            whole(name, getattr(self, name), 1, MOST.get(name, WIDTH))
        if self.width % (2 * self.heads):
            near = 2 * self.heads * max(1, round(self.width / (2 * self.heads)))
            raise InputError(f"width {self.width} does not give {self.heads} heads of an even size (nearest: {near})")

    def config(self, vocabulary: int, special: Mapping[str, Any]) -> dict[str, Any]:
        """The values of `config.json`; `special` are the tokens that begin, end and pad a text."""
        sizes = {
            "vocab_size": vocabulary, "hidden_size": self.width, "intermediate_size": -(-8 * self.width // 48) * 16,
            "num_hidden_layers": self.layers, "num_attention_heads": self.heads, "num_key_value_heads": self.heads,
            "max_position_embeddings": POSITIONS,
        }  # fmt: skip
        loops = {"total_ut_steps": self.loops} if self.like == "ouro" else {}
        kind = {"model_type": self.like, "hidden_act": "silu", **OF_KIND[self.like], "dtype": "float32"}
        return {**kind, **sizes, **loops, **special, "initializer_range": self.spread}

    @property
    def spread(self) -> float:
        """Standard deviation of random matrices."""
        return float(self.width**-0.5)


def write_new(out: Path, shape: Shape, tokenizer: Path | None, seed: int = 0, *, words: str | None = None) -> int:
    """Write a model folder with random weights, drawn from `seed`, and the tokenizer of another folder.

    `words`: instead, one of a task's words alone (`words`).  Gives the number of weights.  Raises InputError for an
    `out` that exists or has no folder to lie in, a folder without a tokenizer, an Ouro without its norm and a model
    that the memory does not hold; nothing is left behind.
    """
    if (tokenizer is None) == (words is None):
        raise InputError("a new model has a tokenizer: that of a folder, or one of a task's words")
    check_folder(out)
    parent_of(out)
    if not 0 <= seed < 2**63:
        raise InputError(f"a seed is from 0 to 2^63 - 1, not {seed}")
    # A tokenizer that is made for this lies in the draft, so that a run that was killed leaves nothing else.
    with new_folder(out) as draft, tempfile.TemporaryDirectory(dir=draft) as place:
        source = tokenizer or Path(place) / "words"
        if words is not None:
            write_words(source, words)
        model, texts, files = _new(shape, source, seed)
        fill_folder(draft, model.state_dict(), texts, files)
    return sum(each.numel() for each in model.parameters())


def _new(shape: Shape, tokenizer: Path, seed: int) -> tuple[Adapter, dict[str, Any], list[Path]]:
    """The model, the JSON files of its folder by name, and the files of its tokenizer."""
    text = load_tokenizer(tokenizer)
    config = shape.config(1 + max(text.parts.get_vocab(with_added_tokens=True).values()), _special(text))
    outline = build(config, loops=shape.loops, boundary=shape.boundary)
    count = sum(each.numel() for each in outline.parameters())
    there = free_memory(torch.device("cpu"))
    if 2 * 4 * count > SPARE * there:  # once more while it is written
        raise InputError(f"{count:,} weights take {4 * count / 2**30:.1f} GiB; {there / 2**30:.1f} GiB are free")
    about = {"loops": shape.loops, "boundary": shape.boundary, "new": {**asdict(shape), "seed": seed}}
    files = [tokenizer / name for name in FILES if (tokenizer / name).is_file()]
    return _drawn(config, shape, seed), {CONFIG: config, LOOPED: about}, files


def _special(tokenizer: Tokenizer) -> dict[str, Any]:
    """The ids of the tokens that begin, end and pad a text: those of the tokenizer's folder, which may know more."""
    roles = ("bos", "eos", "pad")
    if (tokenizer.folder / CONFIG).is_file():
        config = read_config(tokenizer.folder)
        return {f"{role}_token_id": config.get(f"{role}_token_id") for role in roles}
    named = {role: tokenizer.special.get(f"{role}_token") for role in roles}
    return {
        f"{role}_token_id": None if name is None else tokenizer.parts.token_to_id(name) for role, name in named.items()
    }


def _drawn(config: Mapping[str, Any], shape: Shape, seed: int) -> Adapter:
    """The model with weights drawn from a seed; the generator of the process is left as it was."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = ADAPTERS[shape.like](config, shape.loops, shape.boundary)
        model.draw_weights(shape.spread)
    return model
