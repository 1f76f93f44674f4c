"""Text to tokens and back, as a model folder says: its tokenizer and its chat template.

    tokenizer = load_tokenizer("smollm2-135m")
    tokenizer.encode("The capital of France is")
    tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])

The tokenizer is `tokenizer.json` and nothing else: settings beside it that would change how text is split are not
looked at, and a dropout of merges is off.  The chat template is `chat_template.jinja` or, where there is none, that of
`tokenizer_config.json`.  A template is code that somebody else wrote: it runs in Jinja's sandbox, in a process of
little time and memory, sees the messages and the names of the special tokens, and can change neither.  The rendering is
that of transformers' `apply_chat_template` without tools and documents, but for the date: there is no `strftime_now`,
so that the same chat gives the same tokens on every day.  Templates that ask whether it is there take the date they
were written with; those that do not ask are refused.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import IO, Any

from loopscope.errors import InputError
from loopscope.models.checksums import check_files
from loopscope.models.extras import extra
from loopscope.models.templates import rendered
from loopscope.store.files import damaged, first_line, read
from loopscope.store.manifest import JSON_LIMIT, parse_json, read_json

FILES = TOKENIZER, SETTINGS, OLD_SETTINGS, TEMPLATE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
TOKENIZER_LIMIT = 256 * 2**20
"""Bytes of the largest tokenizer that is read; the largest released ones have some 40 MB."""
MOST_GROWTH = 1000
"""Characters that a tokenizer may make of one; those of released models make three."""
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class GaveUpError(Exception):
    """A library written in Rust could not go on (a "panic"), which Python is told by no ordinary exception."""


_errors = RLock()


@contextmanager
def giving_up_quietly() -> Iterator[None]:
    """Turn a panic inside the block into a `GaveUpError`, without the lines that it writes to standard error.

    They go there past Python, so that the file behind it is another one meanwhile; what else came is passed on.
    """
    with _errors, _file_of_nobody() as aside:
        try:
            before = os.dup(2)
        except OSError:  # there is no standard error
            before = None
        if before is not None:
            os.dup2(aside.fileno(), 2)
        gave_up = False
        try:
            yield
        except BaseException as error:
            gave_up = type(error).__name__ == "PanicException"
            if gave_up:
                raise GaveUpError(first_line(error)) from None
            raise
        finally:
            if before is not None:
                os.dup2(before, 2)
                os.close(before)
                aside.seek(0)
                if not gave_up and (said := aside.read()):
                    with suppress(OSError):
                        os.write(2, said)


def _file_of_nobody() -> IO[bytes]:
    """A file without a name, in memory where the system can do that: text is encoded a thousand times a second."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("loopscope"), "w+b")
    return tempfile.TemporaryFile()


class Tokenizer:
    """A folder's tokenizer and chat template; made by `load_tokenizer`."""

    def __init__(self, parts: Any, template: str | None, special: Mapping[str, str], folder: Path) -> None:
        self.parts = parts  # the `tokenizers.Tokenizer`
        self.template, self.special, self.folder = template, dict(special), folder

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.parts.get_vocab_size():,} tokens, {'a' if self.template else 'no'} chat template>"

    @property
    def unknown(self) -> int | None:
        """The token of all that a vocabulary has not; None for a tokenizer that has tokens for everything."""
        name = getattr(self.parts.model, "unk_token", None)
        found: int | None = self.parts.token_to_id(name) if name else None
        return found

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text.

        `special` lets the tokenizer add what it adds around a text, such as a first token; a rendered chat has its own.
        InputError for a text that is no Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"the text {ascii(text)[:60]} is no valid Unicode") from None
        with self._asked():
            return list(self.parts.encode(text, add_special_tokens=special).ids)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of several texts at once, as `encode` without what a tokenizer adds around a text."""
        with self._asked():
            found = self.parts.encode_batch(list(texts), add_special_tokens=False)
        return [list(each.ids) for each in found]

    def encode_with_places(
        self, texts: Sequence[str], places: Sequence[Sequence[int]]
    ) -> list[tuple[list[int], list[int | None]]]:
        """As `encode_many`, each text with the tokens' numbers that hold the characters at its `places`.

        None for a character that is in no token.
        """
        with self._asked():
            found = self.parts.encode_batch(list(texts), add_special_tokens=False)
        pairs = zip(found, places, strict=True)
        return [(list(each.ids), [each.char_to_token(place) for place in some]) for each, some in pairs]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens, with the special ones or without."""
        with self._asked():
            return str(self.parts.decode(list(tokens), skip_special_tokens=not special))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """DamagedError where the tokenizer cannot do what it is asked for inside the block."""
        try:
            with giving_up_quietly():
                yield
        except MemoryError:
            raise
        except Exception as error:  # tokenizers raises nothing more special
            raise damaged(self.folder / TOKENIZER, "a tokenizer that can do its work", first_line(error)) from None

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
            return rendered(self.template, {**nothing, **self.special, **given, **settings})
        except InputError as error:
            raise InputError(f"the chat template of {self.folder} says: {error}") from None

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], *, answer: bool = True, **settings: object
    ) -> list[int]:
        """The tokens of a rendered chat; as `render`, and InputError where the template leaves a question out."""
        text = self.render(messages, answer=answer, **settings)
        self.check_asked(messages, text)
        return self.encode(text, special=False)

    def chat_parts(self, question: str, answers: Sequence[str]) -> tuple[str, list[str]]:
        """A question up to where its answer begins, and for each answer what follows there, to the end of the turn.

        Thinking is disabled where a template knows of it.  InputError where the template leaves the question out, or
        does not put an answer right behind the prompt that it gives for generation.
        """
        asked = {"role": "user", "content": question}
        start = self.render([asked], enable_thinking=False)
        self.check_asked([asked], start)
        rests = []
        for answer in answers:
            said = {"role": "assistant", "content": answer}
            whole = self.render([asked, said], answer=False, enable_thinking=False)
            if not whole.startswith(start):
                raise InputError(f"the chat template of {self.folder} writes an answer elsewhere than it asks for it")
            rests.append(whole[len(start) :])
        return start, rests

    def check_asked(self, messages: Sequence[Mapping[str, str]], text: str) -> None:
        """InputError unless a rendered text holds what the user says in a chat, but for blanks around it."""
        for message in messages:
            if message.get("role") == "user" and (said := message["content"].strip()) not in text:
                raise InputError(f"the chat template of {self.folder} leaves out or changes the question {said[:60]!r}")


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer and chat template of a model folder.

    InputError where there is no tokenizer, DamagedError for a file that cannot be read or is not what SHA256SUMS says.
    """
    folder = Path(folder)
    file = folder / TOKENIZER
    check_files(folder, FILES)
    if not file.is_file():
        raise InputError(f"{folder} has no {TOKENIZER}, so it can be given tokens, but no text")
    tokenizers = extra("tokenizers", "reading text")
    content = read(file, limit=TOKENIZER_LIMIT)
    try:
        settings = parse_json(content)
        _check_growth(settings)
        with giving_up_quietly():
            tokenizer = tokenizers.Tokenizer.from_str(content.decode())
            for each in settings.get("added_tokens") or ():  # one that the vocabulary has, too, keeps its number there
                if (number := tokenizer.token_to_id(each["content"])) != each["id"]:
                    raise ValueError(f"token {each['content'][:60]!r} as {each['id']} and as {number}")
            tokenizer.no_truncation()
            tokenizer.no_padding()
            if getattr(tokenizer.model, "dropout", None):
                tokenizer.model.dropout = None
    except Exception as error:  # tokenizers raises nothing more special
        raise damaged(file, "a tokenizer", first_line(error)) from None
    return Tokenizer(tokenizer, *chat_of(folder), folder)


def _check_growth(settings: Any) -> None:
    """ValueError for a tokenizer that can make far more of a text than it is: no real one does, and memory would end.

    Each replacement can put its content, and each "sequence" of a template the text, wherever there was a character.
    """
    growth, open_parts = (
        1,
        [settings.get(part) for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder")],
    )
    while open_parts and growth <= MOST_GROWTH:
        match open_parts.pop():
            case {"type": "Replace" | "Prepend" | "Append", **rest}:
                growth *= 1 + max((len(each) for each in rest.values() if isinstance(each, str)), default=0)
            case {"type": "TemplateProcessing", **rest}:
                growth *= max(1, *(len(each) for each in rest.values() if isinstance(each, list)))
            case dict(group):
                open_parts += group.values()
            case list(several):
                open_parts += several
    if growth > MOST_GROWTH:
        raise ValueError(f"one that can make more than {MOST_GROWTH:,} characters of one")


def chat_of(folder: Path) -> tuple[str | None, dict[str, str]]:
    """A folder's chat template and the special tokens that it is given by name; DamagedError as `load_tokenizer`."""
    # What is there and no file is refused by `read_json`, not passed over.
    settings = read_json(folder / SETTINGS) if os.path.lexists(folder / SETTINGS) else {}
    older = read_json(folder / OLD_SETTINGS) if os.path.lexists(folder / OLD_SETTINGS) else {}
    return _template(folder, settings), _special(older | settings, folder / SETTINGS)


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The template in a file of its own or, as before, in the settings: one, or a list of named ones."""
    file = folder / TEMPLATE
    if os.path.lexists(file):
        try:
            return read(file, limit=JSON_LIMIT).decode()
        except UnicodeDecodeError as error:
            raise damaged(file, "a text in UTF-8", first_line(error)) from None
    found = settings.get("chat_template")
    if isinstance(found, list) and all(isinstance(each, dict) for each in found):
        defaults = [each.get("template") for each in found if each.get("name") == "default"]
        if len(defaults) > 1:
            raise damaged(folder / SETTINGS, "one default chat_template", f"{len(defaults)}")
        found = defaults[0] if defaults else None
    if found is not None and not isinstance(found, str):
        raise damaged(folder / SETTINGS, "a chat_template that is a text", repr(found)[:60])
    return found


def _special(settings: Mapping[str, Any], file: Path) -> dict[str, str]:
    """The special tokens by the names that templates use: "bos_token" and so on; DamagedError for one that is none."""
    found = {}
    for name in (f"{role}_token" for role in ROLES):
        match settings.get(name):
            case None:
                pass
            case str(token) | {"content": str(token)}:
                found[name] = token
            case other:
                raise damaged(file, f"{name} as a text", repr(other)[:60])
    return found
