"""Greedy decoding of a program.

    generate(model, tokens, "F J:step F J:step F J:step F", new=16, maps={"step": J})

The program says how often F is called and where maps stand, and holds for the prompt and for every new token alike:
before loops 2..L, `F J:x F J:x F`; after every loop, `F J:x F J:x`.  Its patches act on the prompt's rows only.  New
tokens find the prompt's keys and values, patched or not, in a cache with one slot for every (loop, layer).

Prompts of several lengths are padded on the left, with a mask (`pad_left`).  A patch names rows, and rows of padded
prompts do not line up, so a program with patches needs prompts of one length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.errors import InputError
from loopscope.execute.checks import check_kinds, check_names, chosen_points, on_device
from loopscope.execute.executor import run
from loopscope.execute.plan import MAIN
from loopscope.finite import Watch
from loopscope.models.passes import Cache, LanguageModel, check_length, check_mask, states
from loopscope.program import Call, F, Map, Program, as_program
from loopscope.protocol import TokenMap, device_of


@dataclass(frozen=True)
class Generation:
    """New tokens of every example; the first `lengths[i]` count, then comes the token that ended it, repeated."""

    tokens: Int[Tensor, "B new"]
    lengths: Int[Tensor, " B"]

    def texts(self) -> list[list[int]]:
        """The tokens of every example without those that ended it."""
        return [row[:length] for row, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]


def pad_left(prompts: Sequence[Sequence[int]], fill: int = 0) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Prompts of any lengths as tokens and the mask that is False at the padding; InputError for an empty one."""
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or min(lengths) == 0:
        raise InputError("every prompt needs at least one token")
    longest = max(lengths)
    tokens = torch.tensor([[fill] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    return tokens, torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    program: Program | Call | Map | str | None = None,
    *,
    new: int,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Tensor] | None = None,
    given: Mapping[str, Tensor] | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    read: str = "last",
    stop: Collection[int] | None = None,
    cached: bool = True,
) -> Generation:
    """Continue every prompt by up to `new` most likely tokens.

    - `program` is by default the model's own number of calls; `maps`, `others` and `given` are as for `execute.run`.
    - `read` is the point whose readout picks the token: "last", or a name such as "h2" (all calls are computed).
    - `stop` are the tokens that end a text (default: the model's); decoding ends when every example has.
    - `cached=False` computes the whole text anew for every token: the definition of what the cache must give.

    Raises InputError before anything is computed when a name, place, shape or length does not fit; NotFiniteError when
    numbers leave the range, as they then name no token.
    """
    asked = F**model.loops if program is None else as_program(program)
    patched = asked != asked.skeleton
    maps = dict(maps or {})
    device = device_of(model)
    tokens = on_device("tokens", tokens, device)
    device = tokens.device
    if new < 1:
        raise InputError(f"cannot generate {new} tokens (nearest: 1)")
    check_length(tokens.shape[1] + new, model.positions)
    (point,) = chosen_points(asked, read)
    if mask is not None:
        mask = mask.to(device)
        check_mask(mask, *tokens.shape)
    if patched and mask is not None and not bool(mask.all()):
        raise InputError(f"'{asked}' has patches, which need prompts of one length, not padded ones")
    if patched and not cached:
        raise InputError(f"'{asked}' has patches; they act on the prompt, so decoding must be cached")
    if not patched:  # what `run` would check
        inputs: dict[bool, dict[str, Tensor]] = {False: {MAIN: tokens}, True: {}}
        used = check_names([asked], maps, given or {}, inputs)
        check_kinds(model, inputs, {name: maps[name] for name in used}, {})

    cache = Cache(tokens.shape[1] + new) if cached else None
    if patched:
        assert cache is not None
        logits = _patched(model, tokens, asked, maps, others, given, point, cache)
    else:
        logits = _next(model, tokens, asked, point, maps, mask, cache)
    ends = torch.tensor(sorted(model.ends if stop is None else stop), dtype=torch.long, device=device)
    chosen: list[Tensor] = []
    ended = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    lengths = torch.zeros(len(tokens), dtype=torch.long, device=device)
    text = tokens
    while True:
        token = logits.argmax(-1)
        if chosen:
            token = torch.where(ended, chosen[-1], token)
        ended = ended | torch.isin(token, ends)
        lengths += ~ended
        chosen.append(token)
        if len(chosen) == new or bool(ended.all()):
            return Generation(torch.stack(chosen, 1), lengths)
        text = torch.cat([text, token[:, None]], 1)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones((len(mask), 1))], 1)
        rows = text if cache is None else token[:, None]
        logits = _next(model, rows, asked.skeleton, point, maps, mask, cache)


def _next(
    model: LanguageModel,
    rows: Int[Tensor, "B R"],
    program: Program,
    point: str,
    maps: Mapping[str, TokenMap],
    mask: Bool[Tensor, "B S"] | None,
    cache: Cache | None,
) -> Float[Tensor, "B vocabulary"]:
    """The logits behind the last of these rows; NotFiniteError where numbers left the range."""
    watch = Watch()
    logits = model.read(states(model, rows, program, maps=maps, mask=mask, cache=cache, watch=watch)[point][:, -1])
    watch.see(logits, "the readout of", point)
    watch.check(f"'{program}'", logits.dtype)
    return logits


def _patched(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    program: Program,
    maps: Mapping[str, TokenMap],
    others: Mapping[str, Tensor] | None,
    given: Mapping[str, Tensor] | None,
    point: str,
    cache: Cache,
) -> Float[Tensor, "B vocabulary"]:
    """Run the program with its patches on the prompt, and fill the cache with the keys and values of that run."""
    slots = [(loop, layer) for loop in range(1, program.calls + 1) for layer in range(1, len(model.layers) + 1)]
    places = {(slot, part): Address(slot[0], Site(slot[1], part)) for slot in slots for part in ("k", "v")}
    trace = run(model, tokens, program, maps=maps, others=others, given=given, read=[point], keep=places.values())[
        program
    ]
    for loop, layer in slots:
        cache.extend(loop, layer, *(trace.kept[places[(loop, layer), part]] for part in ("k", "v")))
    cache.advance(tokens.shape[1])
    return trace.logits_at[point][:, 0]
