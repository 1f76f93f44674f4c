"""Which answers programs give, whole, on examples of a task: side by side, beside the controls of a map.

An answer is right if the likeliest token is its own at every place, given those before it: that is what greedy decoding
would say.  It is looked at in one pass over prompt and answer.  In a chat the end of the turn belongs to the answer;
elsewhere nothing is asked of what follows, so that "0" is right where a model goes on with "0 5", unless `encode` is
told what must follow.  A program with patches is decoded, as its patches act on the rows of the prompt.

    items = encode(found, tokenizer, positions=model.positions)
    right = whole_answers(model, items, [F**4, F | J("mine") | F], maps={"mine": step})
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from loopscope.bounds import BATCH, whole
from loopscope.errors import InputError
from loopscope.execute.checks import check_names
from loopscope.execute.runs import MAIN
from loopscope.log import Log, silent
from loopscope.models.decoding import generate
from loopscope.models.padding import check_continued
from loopscope.models.passes import LanguageModel, one_pass
from loopscope.models.text import Tokenizer
from loopscope.pieces import pieces_of
from loopscope.program import Call, Map, Program, ProgramLike, as_program
from loopscope.protocol import LoopedModel, TokenMap, device_of
from loopscope.tasks.examples import Example, Text

CORRUPT = "corrupt"
"""What programs call the corrupt prompt of an example: `F[layer[2].z<-(F4)@corrupt]`."""


@dataclass(frozen=True)
class Item:
    """An example as tokens: the prompt, the answer behind it, the corrupt prompt and answer where it has them."""

    example: Example
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    corrupt: tuple[int, ...] | None = None
    corrupt_answer: tuple[int, ...] | None = None
    ends: frozenset[int] = frozenset()
    """Tokens of which one must follow the answer; none where nothing is asked of what follows."""

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens of prompt and answer."""
        return len(self.prompt), len(self.answer)

    @property
    def tokens(self) -> tuple[int, ...]:
        """What the model sees: all but the last token that is asked for, which is the answer's unless an end is."""
        return (*self.prompt, *(self.answer if self.ends else self.answer[:-1]))

    @property
    def asked(self) -> int:
        """How many tokens are asked for: the answer's, and an end."""
        return len(self.answer) + bool(self.ends)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def encode(
    found: Iterable[Example], tokenizer: Tokenizer | None = None, *, chat: bool = False, positions: int | None = None,
    end: str | Collection[int] | None = None,
) -> list[Item]:  # fmt: skip
    """Examples as tokens; those that are tokens already stay as they are.

    A text is `prompt` and `answer` one after the other, with a space between where neither has white space there; in a
    chat the prompt is the question, and the answer ends with the assistant's turn.

    `end` is what must follow the answer outside of chats: a text, or one of some tokens, such as a model's `ends`.

    InputError, which names the line, for a text without a tokenizer, an answer that makes no tokens or none of its own
    or is not in the vocabulary, and more tokens than the model has `positions`.
    """
    if end is not None and (chat or not end):
        raise InputError(
            "in a chat the end of the turn follows an answer, so no other end is asked for" if chat else
            "an end that must follow an answer is a text, or some tokens; none were given"
        )  # fmt: skip
    text, ends = (end, frozenset[int]()) if isinstance(end, str) else ("", frozenset(end or ()))
    items = [replace(_item(_ending(each, text), tokenizer, chat), example=each, ends=ends) for each in found]
    for item in items:
        if positions is not None and (length := len(item.tokens)) > positions:
            raise InputError(f"{item.example.where} has {length} tokens, but the model has {positions} positions")
    return items


def _ending(each: Example, end: str) -> Example:
    """An example whose answers end with a text; InputError for one of tokens."""
    if not end:
        return each
    if not isinstance(each.answer, str):
        raise InputError(f"{each.where} is of tokens, behind which no text {end[:60]!r} can stand")
    assert each.corrupt_answer is None or isinstance(each.corrupt_answer, str)
    other = None if each.corrupt_answer is None else each.corrupt_answer + end
    return replace(each, answer=each.answer + end, corrupt_answer=other)


def _item(each: Example, tokenizer: Tokenizer | None, chat: bool) -> Item:
    if not isinstance(each.prompt, str) and chat:
        raise InputError(f"{each.where} is of tokens, which cannot be put into a chat")
    prompt, answer = _pair(each, each.prompt, each.answer, tokenizer, chat)
    if each.corrupt is None:
        return Item(each, prompt, answer)
    other = each.answer if each.corrupt_answer is None else each.corrupt_answer
    corrupt, corrupt_answer = _pair(each, each.corrupt, other, tokenizer, chat)
    return Item(each, prompt, answer, corrupt, None if each.corrupt_answer is None else corrupt_answer)


def _pair(
    each: Example, prompt: Text, answer: Text, tokenizer: Tokenizer | None, chat: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not isinstance(prompt, str) or not isinstance(answer, str):
        assert not isinstance(prompt, str)
        assert not isinstance(answer, str)
        return prompt, answer
    if tokenizer is None:
        raise InputError(f"{each.where} is a text, which takes a tokenizer; the model has none")
    if chat:
        start, (rest,) = tokenizer.chat_parts(prompt, [answer])
        before, after = tokenizer.encode_many([start, rest.removesuffix("\n")])
    else:
        between = "" if prompt[-1].isspace() or answer[0].isspace() else " "
        before, every = tokenizer.encode(prompt), tokenizer.encode(prompt + between + answer)
        before, after = before, every[len(before) :]
        if every[: len(before)] != before:
            raise InputError(
                f"{each.where}: one token holds the end of the prompt and the beginning of the answer "
                "(nearest: a prompt that does not end with a space)"
            )
    if not after:
        raise InputError(f"{each.where}: the answer {answer[:60]!r} makes no tokens")
    if tokenizer.unknown in after:
        raise InputError(f"{each.where}: the answer {answer[:60]!r} has what the model's vocabulary has not")
    if not before:
        raise InputError(f"{each.where}: the prompt {prompt[:60]!r} makes no tokens")
    return tuple(before), tuple(after)


# ---- answers ---------------------------------------------------------------------------------------------------------


def whole_answers(
    model: LoopedModel,
    items: Sequence[Item],
    programs: Sequence[ProgramLike],
    *,
    maps: Mapping[str, TokenMap] | None = None,
    batch: int = 32,
    log: Log = silent,
) -> Bool[Tensor, "programs items"]:
    """Which of the items each program answers right.

    InputError for a map that is not given, an answer that is no class of the model, several tokens where rows see those
    behind them, and as `one_pass` and `generate`.
    """
    asked = [as_program(each) for each in programs]
    check_maps(asked, maps or {})
    whole("a batch", batch, 1, BATCH)
    found = torch.zeros(len(asked), len(items), dtype=torch.bool)
    for number, program in enumerate(asked):
        patched = program != program.skeleton
        for at in batches(items, batch, key=lambda item: item.shape[:1] if patched else alike(model, item)):
            log(f"{program}: {int(at[0])} of {len(items)} answers")
            mine = [items[each] for each in at]
            ask = _decoded if patched else _read
            found[number, at] = ask(model, mine, program, maps or {})
    return found


def check_maps(programs: Iterable[Program], maps: Mapping[str, TokenMap]) -> None:
    """InputError for a program that names a map which is not given, or an input that examples have not."""
    tokens = torch.zeros(1, 1, dtype=torch.long)
    check_names(list(programs), dict(maps), {}, {False: {MAIN: tokens, CORRUPT: tokens}, True: {}})


def alike(model: LoopedModel, item: Item) -> Hashable:
    """What items must have in common to be read in one pass of a model: nothing, or where rows see all, their shape."""
    pieces = pieces_of(model)
    text = isinstance(item.example.prompt, str)
    return None if text and all(layer.causal for layer in pieces.layers) else item.shape


def batches(items: Sequence[Item], batch: int, key: Callable[[Item], Hashable]) -> list[list[int]]:
    """The numbers of items in batches of like keys, those of like length together."""
    order = sorted(range(len(items)), key=lambda at: (str(key(items[at])), len(items[at].tokens)))
    found = []
    for _, group in groupby(order, key=lambda at: key(items[at])):
        mine = list(group)
        found += [mine[start : start + batch] for start in range(0, len(mine), batch)]
    return found


def _read(
    model: LoopedModel, items: Sequence[Item], program: Program, maps: Mapping[str, TokenMap]
) -> Bool[Tensor, " items"]:
    """By one pass over prompts and answers, padded on the right, where no row looks."""
    device = device_of(model)
    longest = max(len(item.tokens) for item in items)
    tokens = torch.tensor([[*item.tokens, *[0] * (longest - len(item.tokens))] for item in items], device=device)
    check_answers(model, items)
    with torch.no_grad():
        h = one_pass(model, tokens, program, maps=maps).left(program.points[-1])
    rows = [at for at, item in enumerate(items) for _ in range(item.asked)]
    columns = [len(item.prompt) - 1 + number for item in items for number in range(item.asked)]
    with torch.no_grad():
        said = model.read(h[rows, columns]).float()
    if (largest := max(token for item in items for token in item.answer)) >= said.shape[-1]:
        raise InputError(f"answer {largest} is none of the model's {said.shape[-1]} classes")
    likeliest = iter(said.argmax(-1).tolist())
    return torch.tensor([_answers(item, [next(likeliest) for _ in range(item.asked)]) for item in items])


def _answers(item: Item, said: Sequence[int]) -> bool:
    """Whether these tokens begin with the answer, and go on with one of its ends where it has some."""
    answer = tuple(said[: len(item.answer)]) == item.answer
    return answer and (not item.ends or said[len(item.answer)] in item.ends)


def check_answers(model: LoopedModel, items: Sequence[Item]) -> None:
    """InputError for answers of several tokens where a row sees those behind it, and so the answer itself."""
    longest = max(item.asked for item in items)
    if longest > 1:
        length = max(len(item.tokens) for item in items)
        try:
            check_continued(pieces_of(model), [1], length, torch.device("cpu"))
        except InputError:
            raise InputError("rows of this model see those behind them, so an answer is one token or class") from None


def _decoded(
    model: LoopedModel, items: Sequence[Item], program: Program, maps: Mapping[str, TokenMap]
) -> Bool[Tensor, " items"]:
    """By greedy decoding, for programs with patches; prompts of one length, whose corrupt ones have as many tokens."""
    if not isinstance(model, LanguageModel):
        raise InputError(f"'{program}' has patches, and whole answers of those take a language model")
    others: dict[str, Tensor] = {}
    if f"@{CORRUPT}" in str(program):
        corrupt = []
        for item in items:
            if item.corrupt is None or len(item.corrupt) != len(item.prompt):
                there = "no corrupt prompt" if item.corrupt is None else f"one of {len(item.corrupt)} tokens"
                raise InputError(
                    f"'{program}' patches from @{CORRUPT}: {item.example.where} has {there} for {len(item.prompt)}"
                )
            corrupt.append(list(item.corrupt))
        others = {CORRUPT: torch.tensor(corrupt)}
    tokens = torch.tensor([item.prompt for item in items])
    new = max(item.asked for item in items)
    said = generate(model, tokens, program, new=new, maps=maps, others=others, stop=()).tokens.tolist()
    return torch.tensor([_answers(item, each) for item, each in zip(items, said, strict=True)])


# ---- the controls of a map -------------------------------------------------------------------------------------------


def without_map(program: Program, name: str) -> Program:
    """The program without this map, its calls as they are."""
    steps = tuple(step for step in program.steps if not (isinstance(step, Map) and step.name == name))
    return replace(program, steps=steps)


def read_at_map(program: Program, name: str) -> Program | None:
    """The program up to the last of these maps, which is read at once: what J does without the F behind it.

    Of a program that ends with the map, the call before it is left out.  None where no call is left.
    """
    last = max(at for at, step in enumerate(program.steps) if isinstance(step, Map) and step.name == name)
    steps = program.steps[: last + 1]
    if last + 1 == len(program.steps):
        calls = [at for at, step in enumerate(steps) if isinstance(step, Call)]
        steps = steps[: calls[-1]] + steps[calls[-1] + 1 :] if calls else ()
    return replace(program, steps=steps) if any(isinstance(step, Call) for step in steps) else None


def partners(items: Sequence[Item]) -> list[int | None]:
    """For every item another of as many tokens, with another answer and cluster; None where there is none."""
    by_shape: dict[tuple[int, int], list[int]] = {}
    for at, item in enumerate(items):
        by_shape.setdefault(item.shape, []).append(at)
    found: list[int | None] = [None] * len(items)
    for group in by_shape.values():
        for place, at in enumerate(group):
            for other in (*group[place + 1 :], *group[:place]):
                if items[other].answer != items[at].answer and _apart(items[other].example, items[at].example):
                    found[at] = other
                    break
    return found


def _apart(one: Example, two: Example) -> bool:
    return one.cluster is None or one.cluster != two.cluster


def moved_answers(
    model: LoopedModel,
    items: Sequence[Item],
    program: Program,
    name: str,
    *,
    maps: Mapping[str, TokenMap],
    what: str = "output",
    batch: int = 32,
    log: Log = silent,
) -> tuple[list[int], Bool[Tensor, " pairs"]]:
    """The numbers of the items that have a partner, and which of these are right with the map's work on the partner.

    `what`: "output" gives an item the state J(h) of its partner; "change" adds J(h) - h of the partner to its own h.
    The partner's run is the whole program, beside it; the exchange is in all rows, wherever the map stands.
    """
    step = maps[name]
    with_partner = [(at, other) for at, other in enumerate(partners(items)) if other is not None]
    right: list[Tensor] = []
    order: list[int] = []
    for at in batches([items[one] for one, _ in with_partner], max(1, batch // 2), key=lambda item: item.shape):
        mine = [with_partner[each] for each in at]
        count = len(mine)

        def moving(h: Float[Tensor, "*B d"], count: int = count) -> Float[Tensor, "*B d"]:
            own, others = h[:count], h[count:]
            theirs = step(others)
            return torch.cat([theirs if what == "output" else own + (theirs - others), theirs])

        log(f"J moved: {len(order)} of {len(with_partner)} examples")
        together = [items[one] for one, _ in mine] + [items[other] for _, other in mine]
        right.append(_read(model, together, program, {**maps, name: moving})[:count])
        order += [one for one, _ in mine]
    return order, torch.cat(right) if right else torch.zeros(0, dtype=torch.bool)


def commonest(items: Sequence[Item]) -> list[Item]:
    """Those of the commonest number of prompt tokens: patches need prompts of one length."""
    counts: dict[int, int] = {}
    for item in items:
        counts[len(item.prompt)] = counts.get(len(item.prompt), 0) + 1
    most = max(counts, key=lambda length: (counts[length], -length))
    return [item for item in items if len(item.prompt) == most]
