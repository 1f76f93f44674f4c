"""Any benchmark of lm-eval under any program: the model class `loopscope` of EleutherAI's evaluation harness.

    python -m loopscope.harness run --model loopscope --tasks arc_easy --batch_size 16 \\
        --model_args pretrained=walker "program=F J:mine F" map=mine=my-map

or in Python, `register()` and then `lm_eval.simple_evaluate(model="loopscope", model_args={...})`.  The harness finds
models by their registration alone, so that its own command knows this one where the module was run or registered first.

| argument | |
|---|---|
| `pretrained` | a model folder, a zoo name, or OWNER/NAME of the hub |
| `program` | such as "F J:mine F"; default: the model's loops |
| `map` | a saved map, NAME=FOLDER; several with `;` between them |
| `loop`, `boundary`, `any_map` | as of `loopscope lm evaluate` |
| `dtype` | "fp32" or "bf16"; `--device` and `--batch_size` are options of the harness |
| `max_length`, `max_gen_toks` | tokens of a text at most, by default the model's positions; of an answer, 256 |

Needs `pip install 'loopscope[lm,eval]'`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from loopscope.bounds import BATCH, POSITIONS, whole
from loopscope.errors import InputError, LoopscopeError, nearest
from loopscope.loading import language_folder, map_folder
from loopscope.measure.likelihoods import Pair, log_likelihoods
from loopscope.models.decoding import generate
from loopscope.models.extras import extra
from loopscope.models.folders import outline
from loopscope.models.passes import boundary_named, precision_named
from loopscope.models.sampling import Sampling
from loopscope.models.text import Tokenizer
from loopscope.models.with_maps import ModelWithMaps, load_with_maps, names_of, places_of
from loopscope.program import Program
from loopscope.training.job import pick_device

NAME = "loopscope"
"""What the harness calls the class: `--model loopscope`."""

BATCH_SIZE, ANSWER = 1, 256
"""Texts at a time, and tokens of an answer at most, where nobody says how many."""

NEEDS = "running benchmarks"


@dataclass(frozen=True)
class Benchmarked:
    """A language model under a program, in terms of what the harness asks: texts in, likelihoods and texts out."""

    given: ModelWithMaps
    program: Program
    batch: int = BATCH_SIZE
    longest: int | None = None
    answer: int = ANSWER

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which it has."""
        assert self.given.tokenizer is not None
        return self.given.tokenizer

    @property
    def positions(self) -> int:
        """Tokens of a text at most."""
        return min(self.longest or POSITIONS, self.given.model.positions)

    @property
    def end(self) -> int:
        """A token that ends a text; InputError for a model that has none."""
        if not self.given.model.ends:
            raise InputError(f"{self.given.folder} has no token that ends a text (eos_token_id)")
        return min(self.given.model.ends)

    def likelihoods(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        """As `measure.likelihoods.log_likelihoods`."""
        return log_likelihoods(
            self.given.model, pairs, self.program, maps=self.given.maps, longest=self.positions, batch=self.batch
        )

    def rolling(self, text: str) -> float:
        """The log-likelihood of a whole text behind the end of another; a long one in windows, each token once.

        A window has as many tokens as there are positions; the last begins earlier, so that it is full, too.
        """
        tokens, pairs = [self.end, *self.tokenizer.encode(text, special=False)], []
        for first in range(1, len(tokens), self.positions):
            asked = tokens[first : first + self.positions]
            pairs.append((tokens[:first][len(asked) - self.positions - 1 :], asked))
        return sum(total for total, _ in self.likelihoods(pairs))

    def continuations(self, asked: Sequence[tuple[list[int], Mapping[str, Any]]]) -> list[str]:
        """What follows each prompt, up to the first of its `until`; what else a task says of decoding is beside it.

        Prompts that are asked for alike go together.  Of one that is too long the first tokens are left out.  Drawn
        texts have seeds of their own, one after another from the task's `seed`.  InputError for what decoding cannot
        do, such as beams.
        """
        found: dict[int, str] = {}
        order = sorted(range(len(asked)), key=lambda at: (repr(sorted(asked[at][1].items())), -len(asked[at][0])))
        for _, group in groupby(order, key=lambda at: repr(sorted(asked[at][1].items()))):
            mine = list(group)
            for start in range(0, len(mine), self.batch):
                part = mine[start : start + self.batch]
                for at, text in zip(part, self._continued([asked[at] for at in part], part), strict=True):
                    found[at] = text
        return [found[at] for at in range(len(asked))]

    def _continued(self, asked: Sequence[tuple[list[int], Mapping[str, Any]]], numbers: Sequence[int]) -> list[str]:
        how = dict(asked[0][1])
        until = how.pop("until", None) or []
        until = [until] if isinstance(until, str) else list(until)
        lengths = [how.pop(name) for name in LENGTHS if how.get(name) is not None]
        new = whole("tokens of an answer", lengths[0] if lengths else self.answer, 1, POSITIONS)
        sampling = _sampling(how, numbers)
        if left := [name for name, value in how.items() if name not in LENGTHS and value is not None]:
            near = nearest(left[0], ("until", *LENGTHS, *DRAWN))
            raise InputError(f"decoding here knows no {left[0]!r}{near}")
        room = self.positions - new
        if room < 1:
            raise InputError(f"an answer of {new} tokens leaves no room for a prompt in {self.positions} positions")
        model, ends = self.given.model, set(self.given.model.ends)
        # A text of one token ends an answer at once; others are looked for in it, and what follows is cut off.
        ends |= {each[0] for text in until if len(each := self.tokenizer.encode(text, special=False)) == 1}
        prompts = [prompt[-room:] for prompt, _ in asked]
        said = generate(
            model, prompts, self.program, new=new, maps=self.given.maps, stop=ends, sampling=sampling
        ).texts()  # fmt: skip
        return [_cut(self.tokenizer.decode(tokens), until) for tokens in said]


LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call the tokens of an answer at most."""

DRAWN = ("do_sample", "temperature", "top_k", "top_p", "seed")
"""What tasks say of how tokens are drawn."""


def _sampling(how: dict[str, Any], numbers: Sequence[int]) -> Sampling | None:
    """How tokens are drawn, taken out of what a task says; None for greedy decoding."""
    said = {name: value for name in DRAWN if (value := how.pop(name, None)) is not None}
    temperature = float(said.get("temperature", 1.0 if said.get("do_sample") else 0.0))
    if temperature == 0 or said.get("do_sample") is False:
        return None
    first, top_k = int(said.get("seed", 0)), said.get("top_k")
    top_p = said.get("top_p")
    return Sampling(
        temperature, None if not top_k else int(top_k), None if top_p is None else float(top_p),
        seed=[first + number for number in numbers],
    )  # fmt: skip


def _cut(text: str, until: Sequence[str]) -> str:
    """A text up to the first of these."""
    for each in until:
        text = text.partition(each)[0] if each else text
    return text


def benchmarked(
    pretrained: str, program: str | None = None, map: str | None = None, *, loop: str | None = None,
    boundary: str | None = None, any_map: bool = False, device: str | None = None, dtype: str = "fp32",
    batch_size: int | str = BATCH_SIZE, max_length: int | None = None, max_gen_toks: int = ANSWER, **others: Any,
) -> Benchmarked:  # fmt: skip
    """What the arguments of the class say; the table above has them.  InputError for others, and where one is wrong."""
    known = ("program", "map", "loop", "boundary", "any_map", "device", "dtype", "batch_size", "max_length")
    if left := [name for name, value in others.items() if name not in IGNORED and value is not None]:
        raise InputError(f"the model class {NAME} has no argument {left[0]!r}{nearest(left[0], known)}")
    folder = language_folder(pretrained)
    ending = None if boundary is None else boundary_named(boundary)
    asked = outline(folder, boundary=ending, loop=loop).program() if program is None else Program.parse(program)
    if not str(batch_size).isdigit():
        raise InputError(f"batch_size is a whole number, not {batch_size!r:.60} (nearest: 16)")
    size = whole("batch_size", int(batch_size), 1, BATCH)
    places = places_of((map or "").split(";") if map else (), names_of([asked]), option="map ")
    saved = {name: map_folder(place) for name, place in places.items()}
    place = pick_device("auto" if device in (None, HARNESS_DEVICE) else device)
    given = load_with_maps(
        folder, [asked], saved, boundary=ending, loop=loop, device=place, dtype=precision_named(dtype),
        any_map=any_map, chat=True,
    )  # fmt: skip
    longest = None if max_length is None else whole("max_length", int(max_length), 2, POSITIONS)
    return Benchmarked(given, asked, size, longest, whole("max_gen_toks", int(max_gen_toks), 1, POSITIONS))


HARNESS_DEVICE = "cuda:0"
"""What the harness says where nobody said anything, on a machine without a GPU, too."""

IGNORED = ("max_batch_size",)
"""What the harness hands to every model, and means nothing here."""


@cache
def register() -> type:
    """The model class, registered with the harness; InputError where that is not installed."""
    api = extra("lm_eval.api.model", NEEDS, of="eval")
    registry = extra("lm_eval.api.registry", NEEDS, of="eval")
    extra("lm_eval.models", NEEDS, of="eval")  # whose own models are registered first

    class Loopscope(api.TemplateLM):  # type: ignore[name-defined, misc]
        """A looped language model under a program."""

        def __init__(self, pretrained: str, **arguments: Any) -> None:
            super().__init__()
            self.model = benchmarked(pretrained, **arguments)
            self.chats = False

        @property
        def eot_token_id(self) -> int:
            return self.model.end

        @property
        def tokenizer_name(self) -> str:
            return str(self.model.given.folder).replace("/", "__")

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            special = not self.chats if add_special_tokens is None else add_special_tokens
            return self.model.tokenizer.encode(string, special=special)

        def chat_template(self, chat_template: bool | str = False) -> str | None:
            return self.model.tokenizer.template if chat_template else None

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            self.chats = True
            return self.model.tokenizer.render(chat_history, answer=add_generation_prompt)

        def _loglikelihood_tokens(self, requests: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
            found = self.model.likelihoods([(before, after) for _, before, after in requests])
            for (texts, _, _), each in zip(requests, found, strict=True):
                self.cache_hook.add_partial("loglikelihood", texts, each)
            return found

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            found = []
            for request in requests:
                found.append(self.model.rolling(request.args[0]))
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
            return found

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            asked = [(self.tok_encode(request.args[0]), request.args[1]) for request in requests]
            found = self.model.continuations(asked)
            for request, said in zip(requests, found, strict=True):
                self.cache_hook.add_partial("generate_until", request.args, said)
            return found

    registry.register_model(NAME)(Loopscope)
    return Loopscope


def main() -> None:
    """The harness's own command, which then knows this model; one line and exit code 2 for what does not fit."""
    try:
        register()
        extra("lm_eval.__main__", NEEDS, of="eval").cli_evaluate()
    except LoopscopeError as error:
        print(f"loopscope: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None


if __name__ == "__main__":
    main()
