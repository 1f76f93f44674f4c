"""A tokenizer cut to the words of a task, for a model from nothing that is to be small.

    write_words(Path("letters"), "letters")

A released vocabulary has 49,152 tokens or more, and with them the embedding is most of a narrow model.  Letter-walk has
some 140 words in all its wordings, the held-out one included: a token is one of these, a digit, a punctuation mark, the
end of a line or a mark of the chat template.  What is none of them, as most of general text, is one unknown token.
Nothing is learned or drawn: the same task gives the same bytes.

A word is one token, and the same at the beginning of a line as after a space, as in the vocabularies of SentencePiece:
whoever looks for the rule of a name looks for the very token that was asked about.  Lines come back from their tokens
as they were.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from loopscope.errors import InputError, nearest
from loopscope.models.extras import extra
from loopscope.models.text import SETTINGS, TOKENIZER
from loopscope.store.files import new_folder, write_synced
from loopscope.tasks import TASKS
from loopscope.tasks.examples import examples

UNKNOWN, BEGIN, END = MARKS = ("<|unknown|>", "<|im_start|>", "<|im_end|>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for the space before a word, as in SentencePiece."""

ROLES = ("system", "user", "assistant")
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_words(out: Path, task: str) -> int:
    """Write a folder with a tokenizer of a task's words and its chat template; gives the number of tokens.

    `task` is the name of a task, or a file of examples (`tasks.examples`), whose prompts and answers are its words.
    InputError for a task without words and for an `out` that exists.
    """
    known = {name: texts for name, each in TASKS.items() if (texts := tuple(each.words()))}
    if task not in known and os.path.lexists(task):
        known = {task: tuple(_texts_of(Path(task)))}
    if task not in known:
        there = f"there are those of {', '.join(known)}, and of files of examples"
        raise InputError(f"there are no words of {task!r}; {there}{nearest(task, known)}")
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists already; give a folder that does not")
    parts = _tokenizer(known[task])
    settings = {"chat_template": CHAT, "eos_token": END, "pad_token": END, "unk_token": UNKNOWN}
    with new_folder(out) as draft:
        write_synced(draft / TOKENIZER, f"{json.dumps(json.loads(parts.to_str()), ensure_ascii=False)}\n".encode())
        write_synced(draft / SETTINGS, f"{json.dumps(settings, indent=1)}\n".encode())
    return int(parts.get_vocab_size())


def _texts_of(file: Path) -> Iterable[str]:
    """The texts of a file of examples; InputError for one of tokens."""
    for each in examples(file):
        for text in (each.prompt, each.answer, each.corrupt, each.corrupt_answer):
            if text is not None and not isinstance(text, str):
                raise InputError(f"{each.where} is of tokens, which have no words")
            yield text or ""


def _tokenizer(texts: Iterable[str]) -> Any:
    """The `tokenizers.Tokenizer` of the words in texts, of digits and of what a chat is made of."""
    tokenizers = extra("tokenizers", "making a tokenizer")
    split = tokenizers.pre_tokenizers
    cut = split.Sequence(
        [
            split.Split("\n", "isolated"),
            split.Metaspace(replacement=SPACE, prepend_scheme="always"),
            split.Split(tokenizers.Regex(rf"{SPACE}?(\p{{L}}+|\p{{N}}|[^\p{{L}}\p{{N}}])"), "isolated"),
        ]
    )
    digits = (sign + str(digit) for digit in range(10) for sign in (SPACE, ""))
    words = (word for text in (*ROLES, "\n", *texts) for word, _ in cut.pre_tokenize_str(text))
    numbered = {word: number for number, word in enumerate(dict.fromkeys((*MARKS, *digits, *words)))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbered, unk_token=UNKNOWN))
    made.pre_tokenizer = cut
    back = tokenizers.decoders
    made.decoder = back.Sequence(
        [
            back.Fuse(),
            back.Replace(tokenizers.Regex(f"{SPACE}?\n{SPACE}?"), "\n"),
            back.Replace(SPACE, " "),
            back.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return made
