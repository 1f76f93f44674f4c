"""What may change an answer, or be answered at all, without anything being wrong: the one list, by class.

Everything that is not declared here has to be refused or to change nothing at all.  What is declared must still be
finite, in one piece, in time and without control characters, and leave nothing where it has no business.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from tests.drill.cases import Case

MODEL = "another model: a released folder has no checksum, so other settings are just other settings"
TOKENS = "another tokenizer: a released folder has no checksum, and this one is whole"
TEMPLATE = "another template, which is whole and renders a text"
PROGRAM = "another program, which is whole"
NAME = "the same artefact under another name"

HARMLESS: dict[str, dict[str, str]] = {
    "config values": {
        **{f"*.rope_theta={value}": MODEL for value in ("half", "3", "100000", "2^31", "2^63", "10^40", "1e300")},
        **{f"*.rms_norm_eps={value}": MODEL for value in ("0", "half", "3", "100000", "2^31", "2^63")},
        "ouro.total_ut_steps=3": MODEL,
    },
    "config types": {
        "*.rms_norm_eps=gone": "a setting that is missing is the architecture's own",
        "*.rope_theta=gone": "a setting that is missing is the architecture's own",
    },
    "shards": {"a whole file beside": "one file with all weights comes before an index, as in transformers"},
    "weights": {
        "* all as fp16": MODEL,
        "* all as bf16": MODEL,
        "* all as fp64": MODEL,
        "* all as fp8*": MODEL,
        "* all zero": MODEL,
    },
    "tokenizer": {
        "byte *": TOKENS,
        "added_tokens=*": TOKENS,
        "added tokens of other ids": TOKENS,
        "pre_tokenizer=*": TOKENS,
        "post_processor=*": TOKENS,
        "normalizer=*": TOKENS,
        "decoder=*": TOKENS,
        "model.end_of_word_suffix=*": TOKENS,
        "model.continuing_subword_prefix=*": TOKENS,
        "model.merges=*": TOKENS,
        "merges of what is not there": TOKENS,
        "a pattern that backtracks": TOKENS,
        "a normaliser that grows": TOKENS,
        "an added token of nothing": TOKENS,
        "a unigram*": TOKENS,
        "of *": TOKENS,
    },
    "template": {
        **{
            f"{name}*": TEMPLATE
            for name in ("only spaces", "another text", "a time", "a null", "a regular expression", "a large power")
        },
        "a lone surrogate*": TEMPLATE,
        "changing messages*": TEMPLATE,
        "sorting*": TEMPLATE,
        "without character *": TEMPLATE,
        "settings: two defaults": "of several templates of one name the last counts, as in transformers",
    },
    "special tokens": {
        f"*_token={value}": "another special token, as the template is told it"
        for value in ("text", "digits", "null", "gone", "control")
    },
    "maps": {
        # A map without checksums, as format 1 wrote them, may be of any floating point type.
        "a file more": "a saved map says what is its own; what lies beside it is not read",
    },
    "manifests": {
        "config=object, with its key": "another artefact, whole, whose key says what it was made from",
        "inputs=object, with its key": "another artefact, whole, whose key says what it was made from",
        "a name *, listed": NAME,
        "a name *, verified": NAME,
    },
    "store files": {
        "a draft with a link outside, collected": "a dead writer's draft is removed; what its link names stays",
    },
    "zoo": {"map/* gone": "a zoo with a map less"},
    "forged records": {
        "targets * config.settings=empty": "they are empty in this record",
        "antonyms * facts.nodes=0": "there are none in this record",
        "letters * facts.nodes=0": "there are none in this record",
        "antonyms * answers shorter": "other replies, which may be of any length; a digest is no signature",
        "* cost=object": "what a record cost may be unknown",
        "* notes=object": "a record may have no notes",
        "* facts.fits=object": "a backbone may have no maps",
        "* facts.heads=3": "no analysis looks at the number of heads of this experiment",
    },
    "programs": {
        "bent *": PROGRAM,
        "h alone": "a state that is read without a call",
        "many patches": "a long program, which is whole",
    },
    "settings": {
        **{f"{key}={value}": "another model" for key in ("loops", "layers") for value in ("3", "100000")},
        **{
            f"{key}={value}": "another model" for key in ("vocabulary", "mlp", "positions") for value in ("3", "100000")
        },
        "*=2^31": "another model; it is priced, not made",
        "*=gone": "a setting that is missing has a default",
        "first_class=*": "another model",
        "positions=0": "another model",
        "attention_bias=true": "another model",
        "norm_in_loop=true": "another model",
    },
    "options": {"* --row -1": "the last row"},
    "texts": {
        "text: a null*": "a text with a control character is a text",
        "text: nothing in a chat": "a chat whose question is empty is still a text",
    },
    "environment": {
        "COLUMNS=*": "the width of a table",
        "LINES=*": "the height of a terminal",
        "TERM=*": "how a table is drawn",
        "PYTHONIOENCODING=*": "how a table is drawn",
        "LANG=*": "how a table is drawn",
        "LC_ALL=*": "how a table is drawn",
    },
}
"""By class: patterns of labels, and the reason."""

LOCKS = re.compile(r"(^|/)(\.lock|\.job-[0-9a-f]+\.lock)$")


def declared(case: Case) -> str:
    """Why an answer to this case may differ from the reference, or be given at all; nothing where it may not."""
    for pattern, reason in HARMLESS.get(case.group, {}).items():
        if fnmatchcase(case.label, pattern.replace("[", "[[]")):
            return reason
    return ""


def tolerated(path: str) -> bool:
    """Lock files of a store stay: whoever removed one could take it from a process that has just opened it."""
    return LOCKS.search(path) is not None
