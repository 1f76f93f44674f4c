"""Text and chats become the tokens that transformers makes of them; what cannot be read is refused in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from loopscope.errors import DamagedError, InputError
from loopscope.models.text import giving_up_quietly, load_tokenizer
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


@pytest.mark.parametrize("template", ["hello", "{{ messages | length }}", "{{ messages[0].content[:3] }}"])
def test_a_template_that_leaves_a_question_out_is_refused(
    tmp_path: Path, refused: Callable[..., str], template: str
) -> None:
    words = load_tokenizer(put_tokenizer(tmp_path / "model", chat_template=template))
    said = refused(InputError, words.encode_chat, [{"role": "user", "content": " ab 12\n"}])
    assert said == f"the chat template of {tmp_path / 'model'} leaves out or changes the question 'ab 12'"
    whole = load_tokenizer(put_tokenizer(tmp_path / "whole", chat_template="{{ messages[0].content | trim }}"))
    assert whole.encode_chat([{"role": "user", "content": " ab 12\n"}]) == whole.encode("ab 12")


def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = put_tokenizer(tmp_path / "model")
    whole = (folder / "tokenizer.json").read_text(encoding="utf-8")
    told = json.loads(whole)
    told["added_tokens"].append(told["added_tokens"][0] | {"content": "ab", "id": 500})
    (folder / "tokenizer.json").write_text(json.dumps(told), encoding="utf-8")
    number = told["model"]["vocab"]["ab"]
    assert f"token 'ab' as 500 and as {number}" in refused(DamagedError, load_tokenizer, folder)
    (folder / "tokenizer.json").write_text(whole.replace('"vocab":{', '"vocab":{"ab":3,', 1), encoding="utf-8")
    assert "'ab' twice" in refused(DamagedError, load_tokenizer, folder)
    two = [{"name": "default", "template": text} for text in ("a", "b")]
    assert "one default chat_template, found 2" in refused(
        DamagedError, load_tokenizer, put_tokenizer(tmp_path / "two", chat_template=two)
    )


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


# ---- hostile and odd files -------------------------------------------------------------------------------------------

HOSTILE = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop that calls itself": "{% for a in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
    "text that doubles": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "a long text at once": "{{ 'a' * 10 ** 10 }}",
    "a list at once": "{{ [0] * 10 ** 10 }}",
    "a number at once": "{{ 10 ** (10 ** 10) }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width of a method": "{{ 'a'.ljust(10 ** 10) }}",
    "a width of a filter": "{{ 'a' | center(10 ** 10) }}",
    "a width in a filter": "{{ '%9999999999d' | format(1) }}",
    "a text in a text": "{% set s = 'a' * 100000 %}{{ s | replace('a', s) }}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "deep brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "a long answer": "{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
}


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE)
def test_a_template_neither_hangs_nor_takes_the_memory(
    tmp_path: Path, refused: Callable[..., str], template: str
) -> None:
    words = load_tokenizer(put_tokenizer(tmp_path / "model", chat_template=template))
    before = time.monotonic()
    assert "the chat template of" in refused(InputError, words.render, CHAT)
    assert time.monotonic() - before < 60  # two seconds of computing, on a busy machine
    fine = load_tokenizer(put_tokenizer(tmp_path / "fine", chat_template="fine"))
    assert fine.render(CHAT) == "fine"  # the next one is served


def test_a_template_gives_the_same_text_every_day_and_every_time(tmp_path: Path, refused: Callable[..., str]) -> None:
    asks = "{% if strftime_now is defined %}{{ strftime_now('%d') }}{% else %}26 Jul 2024{% endif %}"
    assert load_tokenizer(put_tokenizer(tmp_path / "asks", chat_template=asks)).render(CHAT) == "26 Jul 2024"
    for template in ("{{ strftime_now('%d') }}", "{{ lipsum() }}", "{{ [1, 2] | random }}"):
        words = load_tokenizer(put_tokenizer(tmp_path / "model", chat_template=template))
        assert "the chat template of" in refused(InputError, words.render, CHAT)


FORKED = """
import os
from loopscope.models import templates
say = lambda text: templates.rendered("{{ text }}", {"text": text})
assert say("before") == "before"
child = os.fork()
if child == 0:
    told = say("in the child")
    templates._end()
    os._exit(0 if told == "in the child" else 1)
assert os.waitpid(child, 0)[1] == 0
worker = templates._worker.pid
assert say("after") == "after"
assert templates._worker.pid == worker
"""


def test_a_forked_process_renders_by_itself(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)


def test_settings_of_a_template_are_plain_values(tmp_path: Path, refused: Callable[..., str]) -> None:
    words = load_tokenizer(put_tokenizer(tmp_path / "model", chat_template="{{ thinking }}"))
    assert words.render(CHAT, thinking=[1, None]) == "[1, None]"
    assert "takes texts" in refused(InputError, lambda: words.render(CHAT, thinking=object()))
    with ThreadPoolExecutor(4) as pool:  # off the main thread, too
        assert list(pool.map(lambda n: words.render(CHAT, thinking=n), range(50))) == [str(n) for n in range(50)]


def changed(folder: Path, **parts: Any) -> Path:
    """A tokenizer with other parts; `model` is merged into the one that is there."""
    file = put_tokenizer(folder) / "tokenizer.json"
    content = json.loads(file.read_bytes())
    content["model"] |= parts.pop("model", {})
    file.write_text(json.dumps(content | parts), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 20}] * 9}},
        {"normalizer": {"type": "Prepend", "prepend": "x" * 2000}},
        {"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 2000}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2000,
                            "pair": [], "special_tokens": {}}},
    ],
)  # fmt: skip
def test_a_tokenizer_that_makes_far_more_of_a_text_is_refused(
    tmp_path: Path, refused: Callable[..., str], parts: dict[str, Any]
) -> None:
    assert "can make more than 1,000" in refused(DamagedError, load_tokenizer, changed(tmp_path / "model", **parts))


@pytest.mark.parametrize("token", [True, 7, ["</s>"], {}, {"content": 7}])
def test_a_special_token_of_another_type_is_not_left_out(
    tmp_path: Path, refused: Callable[..., str], token: object
) -> None:
    folder = put_tokenizer(tmp_path / "model", eos_token=token)
    assert "expected eos_token as a text" in refused(DamagedError, load_tokenizer, folder)
    load_tokenizer(put_tokenizer(tmp_path / "none", pad_token=None))


def test_templates_without_plain_names_are_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    named = [{"name": ["default"], "template": "no"}, {"name": "default", "template": "yes"}]
    assert load_tokenizer(put_tokenizer(tmp_path / "model", chat_template=named)).template == "yes"
    assert "a chat_template" in refused(DamagedError, load_tokenizer, put_tokenizer(tmp_path / "x", chat_template=[7]))


def test_dropout_is_off(tmp_path: Path) -> None:
    """The same text has the same tokens every time: those of the tokenizer without it."""
    text = "ab ab 12 ab " * 20
    whole = load_tokenizer(put_tokenizer(tmp_path / "whole"))
    dropping = load_tokenizer(changed(tmp_path / "dropping", model={"dropout": 0.5}))
    assert {tuple(dropping.encode(text)) for _ in range(10)} == {tuple(whole.encode(text))}
    assert dropping.encode_many([text] * 5) == [whole.encode(text, special=False)] * 5


PANICS: dict[str, dict[str, Any]] = {
    "at once": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "at a merge": {"model": {"continuing_subword_prefix": "####"}},
    "at a text": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAAAAAAAAAAAAA=="}},
    "at a length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "at a pattern": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    },
    "at an unknown token": {"model": {"type": "BPE", "unk_token": "none", "vocab": {"a": 0}, "merges": []}},
}


@pytest.mark.parametrize("parts", PANICS.values(), ids=PANICS)
def test_a_tokenizer_that_gives_up_is_told_in_one_line(
    tmp_path: Path, refused: Callable[..., str], capfd: pytest.CaptureFixture[str], parts: dict[str, Any]
) -> None:
    folder = changed(tmp_path / "model", **parts)
    said = refused(DamagedError, lambda: load_tokenizer(folder).encode_many(["a" * 40 + "!"]))
    assert said.startswith(f"{folder / 'tokenizer.json'}: expected a tokenizer")
    assert capfd.readouterr() == ("", "")


def test_what_others_say_meanwhile_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with giving_up_quietly(), giving_up_quietly():
        os.write(2, b"from elsewhere\n")
    assert capfd.readouterr() == ("", "from elsewhere\n")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_a_pipe_is_neither_waited_for_nor_passed_over(tmp_path: Path, refused: Callable[..., str], name: str) -> None:
    folder = put_tokenizer(tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert f"{name}: expected a file, found something else" in refused(DamagedError, load_tokenizer, folder)
    (folder / name).unlink()
    (folder / name).symlink_to("nowhere")
    assert f"{name}: expected a file, found none" in refused(DamagedError, load_tokenizer, folder)
