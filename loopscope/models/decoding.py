"""Decoding of a program, greedy or drawn.

    generate(model, tokens, "F J:step F J:step F J:step F", new=16, maps={"step": J})
    generate(model, tokens, new=16, sampling=Sampling(temperature=0.8, top_k=40, seed=1))

The program says how often F is called and where maps stand, and holds for the prompt and for every new token alike:
before loops 2..L, `F J:x F J:x F`; after every loop, `F J:x F J:x`.  A start that is drawn, or of zeros, is that of
every row for itself.

How far its patches reach, `patches` says:

- "prompt": they act on the prompt's rows alone.  New tokens go through the program without patches, but find the keys
  and values of the prompt's patched run in a cache, with one slot for every layer of the prelude, of every loop and of
  the coda that is read.
- "text": they hold for every new token.  Each is what the patched program says of the text so far, computed anew:
  `row[-1]` is then the newest row, and a place without rows means all that there are.  Sources that run on the text run
  on all of it; other inputs stay as they were given.

Prompts may have several lengths: lists of tokens, or padded on the left with a mask (`pad_left`).  Each is continued as
it would be alone.  With patches, prompts of one length go together, so rows are counted from the end, or named by what
stands there in the prompt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.address import Address, Site
from loopscope.errors import InputError, nearest
from loopscope.execute.checks import check_examples, check_given, check_kinds, check_names, chosen_points, on_device
from loopscope.execute.executor import check_programs, run
from loopscope.execute.runs import MAIN, Sizes
from loopscope.execute.unequal import Decoder, Group, Texts, anchors_of, check_rows, groups, listed
from loopscope.finite import Watch
from loopscope.models.adapter import program_of
from loopscope.models.caches import Cache, Where
from loopscope.models.padding import check_continued, check_mask
from loopscope.models.passes import LanguageModel, check_length, one_pass
from loopscope.models.sampling import Sampling
from loopscope.pieces import Pieces, pieces_of
from loopscope.program import Call, Given, Program, ProgramLike, as_program
from loopscope.protocol import TokenMap, device_of
from loopscope.results import Tabular, numbered
from loopscope.table import Table

PATCHES = ("prompt", "text")
"""What the patches of a program act on while it is decoded: the prompt alone, or all of the text at every token."""

REACH = {"prompt": "patches acted on the prompt alone", "text": "patches acted on all of the text"}
"""The same, as a generation says it."""


@dataclass(frozen=True, repr=False)
class Generation(Tabular):
    """New tokens of every example; the first `lengths[i]` count, then comes the token that ended it, repeated.

    `patches` is what those of the program acted on, "prompt" or "text"; None of a program without.
    """

    tokens: Int[Tensor, "B new"]
    lengths: Int[Tensor, " B"]
    patches: str | None = None

    def texts(self) -> list[list[int]]:
        """The tokens of every example without those that ended it."""
        return [row[:length] for row, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]

    def table(self, tokenizer: Decoder | None = None) -> Table:
        """The new tokens of every example, as numbers and, with a `tokenizer`, as text."""
        found = self.texts()
        columns: dict[str, Any] = {"example": range(len(found)), "length": self.lengths}
        columns["tokens"] = [" ".join(map(str, each)) for each in found]
        if tokenizer is not None:
            columns["text"] = [tokenizer.decode(each) for each in found]
        return Table("generation", columns, {} if self.patches is None else {"patches": self.patches})

    def _words(self) -> str:
        words = f"{numbered(len(self.tokens), 'example')}, {int(self.lengths.sum()):,} new tokens"
        return words if self.patches is None else f"{words}; {REACH[self.patches]}"

    def _tensors(self) -> dict[str, Tensor]:
        return {"tokens": self.tokens, "lengths": self.lengths}


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
    tokens: Texts,
    program: ProgramLike | None = None,
    *,
    new: int,
    maps: Mapping[str, TokenMap] | None = None,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None = None,
    given: Mapping[str, Tensor] | None = None,
    mask: Bool[Tensor, "B T"] | None = None,
    tokenizer: Decoder | None = None,
    patches: str = "prompt",
    read: str = "last",
    stop: Collection[int] | None = None,
    sampling: Sampling | None = None,
    cached: bool = True,
) -> Generation:
    """Continue every prompt by up to `new` tokens, each the most likely, or drawn.

    - `program` is by default the model's own; `maps`, `others`, `given` and `tokenizer` are as for `execute.run`.
    - `patches` says whether those of the program act on the "prompt" or, at every new token, on the whole "text".
    - `read` is the point whose readout gives the token: "last", or a name such as "h2" (all calls are computed).
    - `stop` are the tokens that end a text (default: the model's); decoding ends when every example has.
    - `sampling` says how tokens are drawn, and from which seeds; without, the most likely one is taken.
    - `cached=False` computes the whole text anew for every token: the definition of what the cache must give.  A model
      whose rows see later ones needs it.  Patches on the text are always computed so, those on a prompt never.

    Raises InputError before anything is computed when a name, place, shape or length does not fit; NotFiniteError when
    numbers leave the range, as they then name no token.
    """
    asked = program_of(model) if program is None else as_program(program)
    patched = asked != asked.skeleton
    if patches not in PATCHES:
        raise InputError(f"patches act on the {' or '.join(PATCHES)}, not on {patches!r}{nearest(patches, PATCHES)}")
    settings = {"new": new, "maps": maps, "patches": patches, "read": read, "stop": stop, "cached": cached}
    if patched:
        tokens = listed("tokens", tokens, mask)
        mask = None
        apart = _apart(tokens, asked, others or {}, tokenizer)
        if apart is not None:
            return _together(
                [(each, _of(each, model, tokens, asked, others, given, sampling, settings)) for each in apart]
            )
    elif not isinstance(tokens, Tensor):
        listed("tokens", tokens, mask)  # refuses what is none
        tokens, mask = pad_left([list(text) for text in tokens])
    assert isinstance(tokens, Tensor)
    held = patched and patches == "text"
    maps = dict(maps or {})
    device = device_of(model)
    tokens = on_device("tokens", tokens, device)
    device = tokens.device
    draws = (Sampling(temperature=0.0) if sampling is None else sampling).draws(len(tokens))
    pieces = pieces_of(model)
    pieces.check(asked)
    if asked.given:
        raise InputError(f"'{asked}' starts from a given state, and new tokens have none (leave out h{asked.start})")
    if new < 1:
        raise InputError(f"cannot generate {new} tokens (nearest: 1)")
    check_length(tokens.shape[1] + new, model.positions)
    (point,) = chosen_points(asked, read)
    if mask is not None:
        mask = mask.to(device)
        check_mask(mask, *tokens.shape)
    if cached and not held:
        check_continued(pieces, [tokens.shape[1]] if mask is None else mask.sum(1).tolist(), new, device)
    if patched and not held and not cached:
        raise InputError(
            f"'{asked}' has patches that act on the prompt, so decoding must be cached (or patches='text')"
        )
    if held:
        _check_growing(pieces, asked, tokens, new, others or {}, given or {})
    if not patched:  # what `run` would check
        inputs: dict[bool, dict[str, Tensor]] = {False: {MAIN: tokens}, True: {}}
        used = check_names([asked], maps, given or {}, inputs)
        check_kinds(pieces, inputs, {name: maps[name] for name in used}, {}, mask)

    cache = Cache(tokens.shape[1] + new) if cached and not held else None

    others, given = others or {}, given or {}
    if held:
        logits = _anew(model, tokens, asked, maps, others, given, point)
    elif patched:
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
        token = draws.next(logits)
        if chosen:
            token = torch.where(ended, chosen[-1], token)
        ended = ended | torch.isin(token, ends)
        lengths += ~ended
        chosen.append(token)
        if len(chosen) == new or bool(ended.all()):
            return Generation(torch.stack(chosen, 1), lengths, patches if patched else None)
        text = torch.cat([text, token[:, None]], 1)
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones((len(mask), 1))], 1)
        if held:
            logits = _anew(model, text, asked, maps, others, given, point)
        else:
            rows = text if cache is None else token[:, None]
            logits = _next(model, rows, asked.skeleton, point, maps, mask, cache)


# ---- patches, and prompts that are continued apart -------------------------------------------------------------------


def _apart(
    tokens: Texts, program: Program, others: Mapping[str, Texts | tuple[Texts, Tensor]], tokenizer: Decoder | None
) -> list[Group] | None:
    """Prompts that go together, where not all do or rows are looked up; None where all go as they are."""
    named = {MAIN: tokens}
    for name, each in others.items():
        text = each[0] if isinstance(each, tuple) else each
        if not isinstance(text, Tensor) or not text.is_floating_point():
            named[name] = listed(name, text)
    anchors = anchors_of([program], [], ())
    if not anchors and all(isinstance(each, Tensor) for each in named.values()):
        return None
    check_examples(named)
    check_rows(named, [program], [], ())
    return list(groups(named, anchors, tokenizer))


def _of(
    group: Group, model: LanguageModel, tokens: Texts, program: Program,
    others: Mapping[str, Texts | tuple[Texts, Tensor]] | None, given: Mapping[str, Tensor] | None,
    sampling: Sampling | None, settings: Mapping[str, Any],
) -> Generation:  # fmt: skip
    """What the prompts of a group are continued by."""
    theirs = {name: _part(each, group) for name, each in (others or {}).items()}
    mine = group.tensors(given or {}, [program], len(tokens))
    drawn = None if sampling is None else sampling.of(group.examples, len(tokens))
    return generate(
        model, _part(tokens, group), group.program(program), others=theirs, given=mine, sampling=drawn, **settings
    )


def _part(value: Any, group: Group) -> Any:
    """Tokens, states or both, of the examples of a group."""
    if isinstance(value, tuple):
        return tuple(_part(each, group) for each in value)
    if isinstance(value, Tensor):
        return value[group.examples.to(value.device)]
    return torch.tensor([list(value[at]) for at in group.examples.tolist()])


def _together(found: Sequence[tuple[Group, Generation]]) -> Generation:
    """The texts of all groups in the order of the examples, the shorter ones filled up with what ended them."""
    longest = max(each.tokens.shape[1] for _, each in found)
    filled = [torch.cat([e.tokens, e.tokens[:, -1:].expand(-1, longest - e.tokens.shape[1])], 1) for _, e in found]
    order = torch.cat([group.examples for group, _ in found]).argsort().to(filled[0].device)
    lengths = torch.cat([each.lengths for _, each in found])[order]
    return Generation(torch.cat(filled)[order], lengths, found[0][1].patches)


def _check_growing(
    pieces: Pieces, program: Program, tokens: Tensor, new: int,
    others: Mapping[str, Texts | tuple[Texts, Tensor]], given: Mapping[str, Tensor],
) -> None:  # fmt: skip
    """InputError unless the patches of a program have a meaning on a text as it is and after its last new token."""
    lengths = {name: (each[0] if isinstance(each, tuple) else each) for name, each in others.items()}
    rows = {name: each.shape[1] for name, each in lengths.items() if isinstance(each, Tensor)}
    names = {patch.giver.name for patch in program.patches() if isinstance(patch.giver, Given)}
    used = {name: each for name, each in given.items() if name in names}
    row = check_kinds(pieces, {False: {MAIN: tokens}, True: {}}, {}, used)
    for length in (tokens.shape[1], tokens.shape[1] + new - 1):
        check_given(check_programs([program], Sizes.of(pieces, length, rows)), used, len(tokens), row)


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
    logits = one_pass(model, rows, program, maps=maps, mask=mask, cache=cache, watch=watch).read(point, -1)
    watch.see(logits, "the readout of", point)
    watch.check(f"'{program}'", logits.dtype)
    return logits


def _anew(
    model: LanguageModel,
    text: Int[Tensor, "B T"],
    program: Program,
    maps: Mapping[str, TokenMap],
    others: Mapping[str, Texts | tuple[Texts, Tensor]],
    given: Mapping[str, Tensor],
    point: str,
) -> Float[Tensor, "B vocabulary"]:
    """The logits behind a text, by the program with its patches on all of it."""
    found = run(model, text, program, maps=maps, others=others, given=given, read=[point])
    return found[program].logits_at[point][:, 0]


def _patched(
    model: LanguageModel,
    tokens: Int[Tensor, "B T"],
    program: Program,
    maps: Mapping[str, TokenMap],
    others: Mapping[str, Texts | tuple[Texts, Tensor]],
    given: Mapping[str, Tensor],
    point: str,
    cache: Cache,
) -> Float[Tensor, "B vocabulary"]:
    """Run the program with its patches on the prompt, and fill the cache with the keys and values of that run."""
    pieces = pieces_of(model)
    parts: list[tuple[Where, str, int, int]] = [("prelude", "prelude", 0, len(pieces.prelude))]
    for index, step in enumerate(program.steps):
        if isinstance(step, Call):
            loop = program.loop_of(index)
            parts.append((loop, "loop", loop, len(pieces.stack(step.stack))))
    read = program.calls_before(point)
    if pieces.coda and point != f"h{read}":
        raise InputError(f"'{program}' has patches, so its coda can be read after a call, not at {point!r}")
    parts.append((f"coda[{read}]", "coda", read, len(pieces.coda)))
    slots = {
        (where, layer): [Address(loop, Site(layer, part), stage) for part in ("k", "v")]
        for where, stage, loop, layers in parts
        for layer in range(1, layers + 1)
    }
    keep = [place for places in slots.values() for place in places]
    trace = run(model, tokens, program, maps=maps, others=others, given=given, read=[point], keep=keep)[program]
    for slot, (keys, values) in slots.items():
        cache.extend(*slot, trace.kept[keys], trace.kept[values], 0)
    cache.advance(tokens.shape[1])
    return trace.logits_at[point][:, 0]
