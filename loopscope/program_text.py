"""Reads a text from left to right; what is wrong with it is told with its place.

`Scanner` reads anything, `PatchReader` the patches in a program; `program` reads programs with both.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from loopscope import bounds
from loopscope.address import Site, parse_rows
from loopscope.bounds import MOST_NESTED, MOST_TEXT, shown
from loopscope.errors import InputError, nearest
from loopscope.patches import Add, Apply, Given, Patch, Run, Scale, Source

if TYPE_CHECKING:
    from loopscope.program import Program

_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?"


class Scanner:
    """A text and how far it has been read."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InputError(f"a program is read from text, not from {shown(text)}")
        if len(text) > MOST_TEXT:
            raise InputError(f"the text of a program has at most {MOST_TEXT} characters, not {len(text)}")
        self.text, self.at = text, 0

    def fail(self, expected: str, choices: tuple[str, ...] = ()) -> InputError:
        """What stands here and what may stand here; each of the choices is valid wherever one of its kind is."""
        rest = self.text[self.at : self.at + bounds.SHOWN].split(maxsplit=1)
        found = f"cannot read {rest[0]!r}" if rest else "the text ends"
        near = nearest(rest[0] if rest else "", choices)
        return InputError(f"{found} at character {self.at + 1} of program {shown(self.text)}; {expected}{near}")

    def skip(self) -> None:
        """Pass over white space."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def take(self, pattern: str) -> re.Match[str] | None:
        """What stands here, if it has this pattern; then the text is read on behind it."""
        self.skip()
        match = re.compile(pattern).match(self.text, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def end(self) -> None:
        """InputError unless the whole text was read."""
        self.skip()
        if self.at < len(self.text):
            raise self.fail("nothing may follow here")


class PatchReader(Scanner, ABC):
    """Reads `[site<-source; site+=source; ...]`; what a program is, a source's program among them, it is told."""

    SOURCE = "a source is (program), (program)@input, (program).loop[t], (program).row[r], $tensor or J:function"
    SOURCES = ("$name", "(F6).loop[6]", "(F6)@other.loop[6]", "J:name")

    depth = 0

    @abstractmethod
    def program(self) -> Program:
        """A program that stands here."""

    def nest(self) -> None:
        """One bracket deeper; InputError where that is too deep."""
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.fail(f"source programs may stand at most {MOST_NESTED} deep inside each other")

    def bracketed(self) -> tuple[Patch, ...]:
        """Patches up to the closing bracket."""
        patches = [self.patch()]
        while self.take(";"):
            patches.append(self.patch())
        if not self.take(r"\](?=[\s)]|$)"):
            raise self.fail("']' or ';' must follow a patch")
        return tuple(patches)

    def patch(self) -> Patch:
        """A site, and what becomes of it."""
        match = self.take(r'((?:"(?:[^"\\]|\\.)*"|<[0-9 ]+>|[^<;()"=])*)(<-|\+=|\*=)')
        if match is None:
            raise self.fail("a patch is site<-source, site+=source or site*=number", ("layer[1].z<-$name",))
        return Patch(Site.parse(match[1]), self.value(match[2]))

    def operator(self) -> str:
        """What stands before a value; `<-` may be left out."""
        match = self.take(r"<-|\+=|\*=")
        return match[0] if match else "<-"

    def value(self, operator: str) -> Source:
        """What stands behind an operator."""
        if operator == "*=":
            return Scale(self.number())
        if operator == "+=":
            times = None if re.compile(r"\s*[($]").match(self.text, self.at) else self.number()
            if times is not None and not self.take(r"\*"):
                raise self.fail("'*' and a source must follow the number", ("*$name",))
            return Add(self.source(), 1.0 if times is None else times)
        if match := self.take(r"J:([A-Za-z0-9_-]+)(?:#([0-9a-f]+))?(?=[\s\];)]|$)"):
            return Apply(match[1], match[2])
        return self.source()

    def number(self) -> float:
        """A number."""
        match = self.take(_NUMBER)
        if match is None:
            raise self.fail("a number such as 0.5 must stand here", ("0.5",))
        return float(match[0])

    def source(self) -> Given | Run:
        """A tensor, or a place in a run."""
        if match := self.take(r"\$([A-Za-z0-9_-]+)"):
            return Given(match[1])
        if not self.take(r"\("):
            raise self.fail(self.SOURCE, self.SOURCES)
        self.nest()
        program = self.program()
        self.depth -= 1
        if not self.take(r"\)"):
            raise self.fail("')' must close the source program")
        where, when = self.take(r"@([A-Za-z0-9_-]+)"), self.take(r"\.loop\[([0-9]{1,18})\]")
        rows = self.take(r'\.row\[((?:"(?:[^"\\]|\\.)*"|[^\]"])*)\]')
        chosen = parse_rows(rows[1]) if rows else None
        if rows and chosen is None:
            raise self.fail('rows are whole numbers, texts such as " France" or tokens such as <318 9>')
        return Run(program, where[1] if where else None, int(when[1]) if when else None, chosen)


def folded(words: list[str]) -> list[str]:
    """Words with what repeats in brackets: L3 H L3 H as (L3 H)2."""
    out: list[str] = []
    at = 0
    while at < len(words):
        best, times = 1, 1
        for size in range(2, (len(words) - at) // 2 + 1):
            count = 1
            while words[at : at + size] == words[at + count * size : at + (count + 1) * size]:
                count += 1
            if count > 1 and count * size > best * times:
                best, times = size, count
        part = words[at : at + best]
        out.extend(part if times == 1 else [f"({' '.join(part)}){times}"])
        at += best * times
    return out
