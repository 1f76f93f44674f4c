"""Inputs of unequal length, and rows named by what stands there.

Examples whose inputs are alike in length, and have what is named in the same rows, form a group.  A group is run as
`executor.run` runs any batch, so every example gets what it would get alone; the results are put together again.  Rows
are counted from the end or named by an `Anchor`: a number counted from the start would mean other places in other
examples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.address import PER_HEAD, Address, Anchor, Row, Site
from loopscope.errors import InputError
from loopscope.execute.runs import MAIN
from loopscope.program import Call, Coda, Given, Patch, Program, Run

Texts = Tensor | Sequence[Sequence[int]]
"""Tokens: a tensor [examples, T], or a list of tokens for every example, of any lengths."""


@runtime_checkable
class Decoder(Protocol):
    """What turns tokens into text, as tokenizers do."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens."""
        ...


def listed(name: str, tokens: Texts, mask: Bool[Tensor, "examples T"] | None = None) -> Texts:
    """Tokens as they are, or as lists where `mask` is False at padding; InputError for what is neither."""
    if isinstance(tokens, Tensor):
        if mask is None or bool(mask.all()):
            return tokens
        if mask.shape != tokens.shape or mask.dtype != torch.bool:
            raise InputError(f"the mask must be booleans {list(tokens.shape)}, not {mask.dtype} {list(mask.shape)}")
        if not bool(mask[:, -1].all()) or bool((mask[:, :-1] & ~mask[:, 1:]).any()):
            raise InputError("the mask is no left padding: each example must be padded at its start only")
        return [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
    if mask is not None:
        raise InputError("a mask belongs to padded tokens [examples, T], not to lists of tokens")
    if not isinstance(tokens, Sequence) or not all(isinstance(text, Sequence) for text in tokens):
        raise InputError(f"input {name!r} must be a tensor [examples, T], or a list of tokens for every example")
    texts = [list(text) for text in tokens]
    if not texts or not all(texts) or not all(type(token) is int for text in texts for token in text):
        raise InputError(f"input {name!r} must hold at least one token for every example, as whole numbers")
    if len(set(map(len, texts))) == 1:
        return torch.tensor(texts)
    return texts


def named_rows(rows: Sequence[Row | str]) -> tuple[Row, ...]:
    """Rows, with texts as anchors; InputError for what is neither numbers nor anchors."""
    if not isinstance(rows, Sequence) or not all(isinstance(row, int | str | Anchor) for row in rows):
        raise InputError(f"rows must be a list of whole numbers such as [-1], or of texts, not {rows!r}")
    return tuple(Anchor(row) if isinstance(row, str) else row for row in rows)


@dataclass(frozen=True)
class Group:
    """Examples that can be run together; `anchors` are the rows of what is named in each input."""

    examples: Int[Tensor, " some"]
    anchors: Mapping[tuple[str, Anchor], int]

    def rows(self, rows: tuple[Row, ...], name: str) -> tuple[int, ...]:
        """Rows of an input as numbers."""
        return tuple(self.anchors[name, row] if isinstance(row, Anchor) else row for row in rows)

    def site(self, site: Site, name: str) -> Site:
        """A site in an input, its rows as numbers."""
        return replace(site, rows=self.rows(site.rows or (), name)) if site.anchors else site

    def address(self, address: Address) -> Address:
        """An address in the programs' own input, its rows as numbers."""
        return replace(address, site=self.site(address.site, MAIN)) if address.site.anchors else address

    def tensors(self, given: Mapping[str, Tensor], programs: Iterable[Program], examples: int) -> dict[str, Tensor]:
        """Given tensors for these of all examples: a part of those that have an entry for each.

        The axis of examples is the first of as many as the component has; with fewer, a tensor is the same for all.
        """
        axes: dict[str, int] = {}
        for patch, _, _ in every_patch(programs):
            if isinstance(patch.giver, Given):
                mine = 4 if patch.site.component in PER_HEAD else 3
                axes[patch.giver.name] = max(mine, axes.get(patch.giver.name, 0))
        found = dict(given)
        for name, tensor in given.items():
            if tensor.dim() == axes.get(name) and tensor.shape[0] == examples > 1:
                found[name] = tensor[self.examples.to(tensor.device)]
        return found

    def program(self, program: Program, name: str = MAIN) -> Program:
        """A program with all rows as numbers, those of its sources in the inputs that these run on."""
        steps = tuple(
            replace(step, patches=self._patches(step.patches, name)) if isinstance(step, Call) else step
            for step in program.steps
        )
        coda = tuple(Coda(each.loop, self._patches(each.patches, name)) for each in program.coda)
        return Program(steps, program.start, self._patches(program.prelude, name), coda)

    def _patches(self, patches: tuple[Patch, ...], name: str) -> tuple[Patch, ...]:
        return tuple(self._patch(patch, name) for patch in patches)

    def _patch(self, patch: Patch, name: str) -> Patch:
        site, source = self.site(patch.site, name), patch.giver
        if not isinstance(source, Run):
            return replace(patch, site=site)
        giver = name if source.input is None else source.input
        rows = source.rows if source.rows is not None else patch.site.rows if patch.site.anchors else None
        there = None if rows is None else self.rows(rows, giver)
        taken = replace(source, program=self.program(source.program, giver), rows=there)
        return replace(patch, site=site).taking(taken)


def every_patch(programs: Iterable[Program]) -> Iterator[tuple[Patch, str, str]]:
    """The patches of programs and of all runs they take values from, each once for every input it acts in.

    With it come the name of that input, and of the one that its values are from.
    """
    waiting = deque((program, MAIN) for program in programs)
    seen: set[tuple[Program, str]] = set()
    while waiting:
        program, name = waiting.popleft()
        if (program, name) in seen:
            continue
        seen.add((program, name))
        for patch in program.patches():
            giver = name
            if isinstance(patch.giver, Run):
                giver = name if patch.giver.input is None else patch.giver.input
                waiting.append((patch.giver.program, giver))
            yield patch, name, giver


def anchors_of(programs: Iterable[Program], keep: Iterable[Address], rows: tuple[Row, ...]) -> set[tuple[str, Anchor]]:
    """What is named instead of numbered, with the input it is looked for in."""
    found = {(MAIN, row) for row in rows if isinstance(row, Anchor)}
    found |= {(MAIN, row) for address in keep for row in address.site.anchors}
    for patch, name, giver in every_patch(programs):
        found.update((name, row) for row in patch.site.anchors)
        if isinstance(patch.giver, Run):
            theirs = patch.site.anchors if patch.giver.rows is None else patch.giver.rows
            found.update((giver, row) for row in theirs if isinstance(row, Anchor))
    return found


def groups(named: Mapping[str, Texts], anchors: set[tuple[str, Anchor]], tokenizer: Decoder | None) -> Iterator[Group]:
    """The examples by the lengths of their inputs and the rows of what is named; InputError where it is not there."""
    examples = len(named[MAIN])
    wanted = sorted(anchors, key=lambda each: (each[0], str(each[1])))
    for name, anchor in wanted:
        if name not in named:
            raise InputError(f"{anchor} is looked up in the tokens of {name!r}, but none were given")
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for example in range(examples):
        lengths = tuple(len(texts[example]) for texts in named.values())
        rows = tuple(
            row_of(anchor, [int(token) for token in named[name][example]], tokenizer, name, example)
            for name, anchor in wanted
        )
        alike.setdefault((lengths, rows), []).append(example)
    for (_, places), some in alike.items():
        yield Group(torch.tensor(some), dict(zip(wanted, places, strict=True)))


def row_of(anchor: Anchor, tokens: list[int], tokenizer: Decoder | None, name: str = MAIN, example: int = 0) -> int:
    """The last row of what is named, counted from 0; InputError unless it occurs exactly once."""
    if isinstance(anchor.what, tuple):
        size = len(anchor.what)
        ends = [at + size - 1 for at in range(len(tokens) - size + 1) if tuple(tokens[at : at + size]) == anchor.what]
    else:
        if tokenizer is None:
            raise InputError(f"{anchor} is a text, so a tokenizer must be given to find it (nearest: <tokens>)")
        text = anchor.what
        whole = tokenizer.decode(tokens)
        ends = [at for at in range(len(whole)) if whole.startswith(text, at)]
        if len(ends) == 1:  # the first row up to which the text is there
            ends = [next(row for row in range(len(tokens)) if text in tokenizer.decode(tokens[: row + 1]))]
    if len(ends) != 1:
        raise InputError(
            f"{anchor} occurs {len(ends)} times in example {example + 1} of input {name!r}; it must occur once"
        )
    return ends[0]


def check_rows(
    named: Mapping[str, Texts], programs: Iterable[Program], keep: Iterable[Address], rows: tuple[Row, ...]
) -> None:
    """InputError for rows counted from the start where examples have unequal lengths, and for kept rows that differ."""
    unequal = {name for name, texts in named.items() if len({len(text) for text in texts}) > 1}
    if MAIN in unequal:
        for row in rows:
            _from_end(row, f"row {row}")
        for address in keep:
            if address.site.rows is None or address.site.component == "pattern":
                raise InputError(
                    f"{address} has another shape in every example, as their lengths are unequal; name rows"
                )
            for row in address.site.rows:
                _from_end(row, str(address))

    for patch, name, giver in every_patch(programs):
        if isinstance(patch.giver, Run) and giver in unequal:
            for row in patch.giver.rows or ():
                _from_end(row, str(patch))
        if name in unequal:
            for row in patch.site.rows or ():
                _from_end(row, str(patch))
            if isinstance(patch.giver, Given) and patch.site.rows is None:
                raise InputError(f"{patch} has another number of rows in every example; name its rows")


def _from_end(row: Row, where: str) -> None:
    if isinstance(row, int) and row >= 0:
        raise InputError(
            f"{where} is counted from the start, and the inputs have unequal lengths: count from the end (row[-1]) or"
            ' name what stands there (row[" France"])'
        )
