"""The process that chat templates are rendered in: a script, which imports nothing of Loopscope.

A template is code that somebody else wrote.  It runs in Jinja's sandbox, in a process of little memory that the system
ends after a few seconds of computing, whatever it does: loops in loops, texts that double, numbers that take years.

It reads requests as lines of JSON, {"template", "values"}, and answers each by a line, {"text"} or {"error"}.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, MEMORY, LONGEST = 2.0, 2**30, 4_000_000
"""Of computing for one text, and of compiling its template; bytes of the process; characters of a text."""


class Generation(Extension):
    """`{% generation %}`, which marks what the model said, for those who train on it; here it is left as it is."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> list[Node]:
        """The statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=64)
def compiled(template: str) -> jinja2.Template:
    """A template, ready to be rendered."""
    return environment().from_string(template)


def environment() -> ImmutableSandboxedEnvironment:
    """What templates are written for: the sandbox, with these few functions.

    Without what gives another text every time: the date, and what draws at random.
    """

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: object, **form: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **form})  # Jinja's own escapes for HTML

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = refuse
    del made.globals["lipsum"], made.filters["random"]
    return made


def render(template: str, values: dict[str, Any]) -> str:
    """The text of a template; `TemplateError` where it grows too long."""
    parts, length = [], 0
    for part in compiled(template).generate(values):
        parts.append(part)
        length += len(part)
        if length > LONGEST:
            raise jinja2.TemplateError(f"more than {LONGEST:,} characters")
    return "".join(parts)


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is meant for the command that asks
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process, in the midst of any operation
        try:
            request = json.loads(line)
            answer = {"text": render(request["template"], request["values"])}
        except Exception as error:
            answer = {"error": (str(error).splitlines() or [type(error).__name__])[0][:300]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
