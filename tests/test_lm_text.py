"""Text and chats become the tokens that transformers makes of them; what cannot be read is refused in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from loopscope.errors import DamagedError, InputError
from loopscope.lm.text import load_tokenizer
from tests.model_folders import TEMPLATE, put_tokenizer, tiny_tokenizer

TEXTS = ["ab 12 a", "", " a", "A! b<|im_end|>a", "000 1,2\n\nab"]
CHAT = [{"role": "user", "content": " ab <|im_end|> "}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_tokens_are_those_of_transformers(tmp_path: Path, first: bool, apart: bool) -> None:
    folder = put_tokenizer(tmp_path / "model", first=first, apart=apart)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.encode_many([text, "b"]) == [ours.encode(text, special=False), ours.encode("b", special=False)]
        for special in (False, True):
            found = ours.decode(theirs.encode(text), special=special)
            assert found == theirs.decode(theirs.encode(text), skip_special_tokens=not special)
    for chat in (CHAT, CHAT[:1], [{"role": "system", "content": "ab"}]):
        for answer in (False, True):
            asked = {"add_generation_prompt": answer, "thinking": answer}
            rendered = theirs.apply_chat_template(chat, tokenize=False, **asked)
            assert ours.render(chat, answer=answer, thinking=answer) == rendered
            tokens = theirs.apply_chat_template(chat, return_dict=False, **asked)
            assert ours.encode_chat(chat, answer=answer, thinking=answer) == tokens
    assert '{"a<b": "ö"}' in ours.render(CHAT, thinking=False)


def test_marks_of_what_the_model_said_are_left_out(tmp_path: Path) -> None:
    marked = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% if true %}{% break %}{% endif %}"
    )
    folder = put_tokenizer(tmp_path / "model", chat_template=marked + "{% endfor %}")
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.render(CHAT) == theirs.apply_chat_template(CHAT, tokenize=False) == " ab <|im_end|> "


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert load_tokenizer(put_tokenizer(tmp_path / "several", chat_template=several)).render(CHAT) == "d"
    (tmp_path / "several" / "chat_template.jinja").write_text("own", encoding="utf-8")
    assert load_tokenizer(tmp_path / "several").render(CHAT) == "own"


def test_every_token_has_a_name(tmp_path: Path) -> None:
    words = load_tokenizer(put_tokenizer(tmp_path / "model"))
    ids = tiny_tokenizer().get_vocab()
    assert [words.name(ids[token]) for token in ("ab", "Ġa", "<|im_end|>")] == ["ab", " a", "<|im_end|>"]
    assert words.name(10_000) == "<10000>"
    assert all(words.name(token) for token in ids.values())


def test_old_folders_name_their_special_tokens_elsewhere(tmp_path: Path) -> None:
    folder = put_tokenizer(tmp_path / "model", bos_token=None)
    (folder / "special_tokens_map.json").write_text('{"unk_token": "<|endoftext|>"}', encoding="utf-8")
    assert load_tokenizer(folder).special == {"eos_token": "<|im_end|>", "unk_token": "<|endoftext|>"}


def test_a_template_cannot_leave_its_sandbox(tmp_path: Path, refused: Callable[..., str]) -> None:
    for attack in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append({}) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.items() }}",
    ):
        words = load_tokenizer(put_tokenizer(tmp_path / "model", chat_template=attack))
        assert "the chat template of" in refused(InputError, words.render, CHAT)


def test_chats_that_cannot_be_rendered_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    words = load_tokenizer(put_tokenizer(tmp_path / "model"))
    assert refused(InputError, words.render, [{"role": "cat", "content": "a"}]).endswith("says: no role cat")
    assert "has no attribute 'role'" in refused(InputError, words.render, [{"content": "a"}])
    assert refused(InputError, words.render, []) == "a chat needs at least one message"
    assert "is no valid Unicode" in refused(InputError, words.encode, "a\ud800")
    broken = load_tokenizer(put_tokenizer(tmp_path / "broken", chat_template="{% if %}"))
    assert "the chat template of" in refused(InputError, broken.render, CHAT)
    none = load_tokenizer(put_tokenizer(tmp_path / "none", chat_template=None))
    assert "has no chat template, neither chat_template.jinja nor" in refused(InputError, none.render, CHAT)


def test_folders_without_a_readable_tokenizer_are_refused(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "has no tokenizer.json" in refused(InputError, load_tokenizer, tmp_path)
    folder = put_tokenizer(tmp_path / "model")
    file = folder / "tokenizer.json"
    whole = file.read_bytes()
    for content in (b"", b"{}", whole[:-10], b"\xff" + whole, json.dumps([1]).encode()):
        file.write_bytes(content)
        assert refused(DamagedError, load_tokenizer, folder).startswith(f"{file}: expected a tokenizer, found ")
    file.write_bytes(whole)
    (folder / "tokenizer_config.json").write_text("[", encoding="utf-8")
    assert "tokenizer_config.json: expected JSON" in refused(DamagedError, load_tokenizer, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": 3}), encoding="utf-8")
    assert "expected a chat_template that is a text, found 3" in refused(DamagedError, load_tokenizer, folder)
    (folder / "chat_template.jinja").write_bytes(TEMPLATE.encode() + b"\xff")
    assert "chat_template.jinja: expected a text in UTF-8" in refused(DamagedError, load_tokenizer, folder)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    said = refused(InputError, load_tokenizer, folder)
    assert said == "reading text needs the package tokenizers: pip install 'loopscope[lm]'"
