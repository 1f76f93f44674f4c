"""Text to tokens and back, as a model folder says: its tokenizer and its chat template.

    tokenizer = load_tokenizer("smollm2-135m")
    tokenizer.encode("The capital of France is")
    tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])

The tokenizer is `tokenizer.json` and nothing else: settings beside it that would change how text is split are not
looked at.  The chat template is `chat_template.jinja` or, where there is none, that of `tokenizer_config.json`.  A
template is code that somebody else wrote: it runs in Jinja's sandbox, sees the messages and the names of the special
tokens, and can change neither.  The rendering is that of transformers' `apply_chat_template` without tools and
documents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loopscope.errors import InputError
from loopscope.files import damaged, first_line, read
from loopscope.lm.extras import extra
from loopscope.lm.folders import read_json

TOKENIZER, SETTINGS, OLD_SETTINGS, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class Tokenizer:
    """A folder's tokenizer and chat template; made by `load_tokenizer`."""

    def __init__(self, parts: Any, template: str | None, special: Mapping[str, str], folder: Path) -> None:
        self.parts = parts  # the `tokenizers.Tokenizer`
        self.template, self.special, self.folder = template, dict(special), folder

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text.

        `special` lets the tokenizer add what it adds around a text, such as a first token; a rendered chat has its own.
        InputError for a text that is no Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"the text {ascii(text)[:60]} is no valid Unicode") from None
        return list(self.parts.encode(text, add_special_tokens=special).ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of several texts at once, as `encode` without what a tokenizer adds around a text."""
        return [list(found.ids) for found in self.parts.encode_batch(list(texts), add_special_tokens=False)]

    def encode_with_places(
        self, texts: Sequence[str], places: Sequence[Sequence[int]]
    ) -> list[tuple[list[int], list[int | None]]]:
        """As `encode_many`, each text with the tokens' numbers that hold the characters at its `places`.

        None for a character that is in no token.
        """
        found = self.parts.encode_batch(list(texts), add_special_tokens=False)
        pairs = zip(found, places, strict=True)
        return [(list(each.ids), [each.char_to_token(place) for place in some]) for each, some in pairs]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens, with the special ones or without."""
        return str(self.parts.decode(list(tokens), skip_special_tokens=not special))

    def name(self, token: int) -> str:
        """One token for people to read: its text, or its entry in the vocabulary where it is part of a character."""
        text = self.decode([token], special=True)
        if text and "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        return str(self.parts.id_to_token(token) or f"<{token}>")  # a vocabulary may be padded with no tokens

    def render(self, messages: Sequence[Mapping[str, str]], *, answer: bool = True, **settings: object) -> str:
        """The messages (`role`, `content`) as one text by the chat template.

        `answer` lets it end where the model's answer begins.  Other settings, such as Qwen3's `enable_thinking`, go to
        the template as they are.  InputError where the folder has no template, or the template refuses.
        """
        if self.template is None:
            raise InputError(f"{self.folder} has no chat template, neither {TEMPLATE} nor in {SETTINGS}")
        if not messages:
            raise InputError("a chat needs at least one message")
        given = {"messages": [dict(message) for message in messages], "add_generation_prompt": answer}
        nothing = {"tools": None, "documents": None}
        try:
            return _compiled(self.template).render(**nothing, **self.special, **given, **settings)
        except (jinja2.TemplateError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise InputError(f"the chat template of {self.folder} says: {first_line(error)}") from error

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True, **settings: object
    ) -> list[int]:
        """The tokens of a rendered chat; as `render`."""
        return self.encode(self.render(messages, answer=answer, **settings), special=False)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer and chat template of a model folder.

    InputError where there is no tokenizer, DamagedError for a file that cannot be read.
    """
    folder = Path(folder)
    file = folder / TOKENIZER
    if not file.is_file():
        raise InputError(f"{folder} has no {TOKENIZER}, so it can be given tokens, but no text")
    tokenizers = extra("tokenizers", "reading text")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(read(file).decode())
    except Exception as error:  # tokenizers raises nothing more special
        raise damaged(file, "a tokenizer", first_line(error)) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    older = read_json(folder / OLD_SETTINGS) if (folder / OLD_SETTINGS).is_file() else {}
    return Tokenizer(tokenizer, _template(folder, settings), _special(older | settings), folder)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template in a file of its own or, as before, in the settings: one, or a list of named ones."""
    file = folder / TEMPLATE
    if file.is_file():
        try:
            return read(file).decode()
        except UnicodeDecodeError as error:
            raise damaged(file, "a text in UTF-8", first_line(error)) from None
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is not None and not isinstance(found, str):
        raise damaged(folder / SETTINGS, "a chat_template that is a text", repr(found)[:60])
    return found


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens by the names that templates use: "bos_token" and so on."""
    found = {}
    for role in ROLES:
        token = settings.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[f"{role}_token"] = token
    return found


class _Generation(Extension):
    """`{% generation %}`, which marks what the model said, for those who train on it; here it is left as it is."""

    tags = {"generation"}  # noqa: RUF012  (as Jinja declares it)

    def parse(self, parser: Parser) -> list[Node]:
        """The statements inside."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates are written for: the sandbox, with these few functions."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: object, **form: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **form})  # Jinja's own escapes for HTML

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
