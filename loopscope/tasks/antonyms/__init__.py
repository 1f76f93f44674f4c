"""Antonym cancellation as text: which two words does the k-th deletion take away?

Twelve pairs of antonyms stand in one list of 24 words.  A deletion takes the leftmost two neighbours that are antonyms
and closes the gap, so that new neighbours meet.  In `hot near far cold open closed` the deletions are `near far`,
`hot cold`, `open closed`; the answer to k = 2 is `hot cold`.

    request = Request(sequence(seed=100_000_000), k=3, template=0, form="final-only")
    request.prompt, request.answer         # two texts; tokens are somebody else's business

**What is held out** is the *topology* of a sequence, the way its pairs are nested whatever their words.  Of the 208,012
topologies of twelve pairs, 158,228 are deep enough (below): 126,802 are for training, 15,595 for validation, 15,831 are
left alone.  All twelve pairs stand in every sequence, so no word is ever new.  And an answer depends on less than the
whole topology: on the sequence up to the words it names (`needed_topology`).  Of the 64 panel sequences, the 8,000 of a
map's 500 updates show the needed part of 64, 64, 64, 64, 64, 62, 60, 52 at k = 1 to 8: the split holds out whole
sequences, hardly any shape of an answer.

**What the paper leaves out, and what is decided here.**

* How a sequence is drawn.  One `random.Random(seed)`: shuffle the pairs; for each, draw its orientation, then a place
  in the growing list, uniform over all gaps; insert its two words there as neighbours.  Draw again until the sequence
  is deep and its topology is in the split of the seed.  "Deep": the first 8 deletions reach dependency depth 3, where
  the depth of a deletion is one more than that of the deepest deletion it had to wait for.
* The bytes that are hashed: one byte per word, the number of its pair by first appearance.  The bucket is the whole
  SHA-256, as a big-endian number, modulo 100: train below 80, validation 80 to 89.
* The reference study also excludes a bank of 16 older topologies that it does not list.  Ours are the topologies of the
  16 quick evaluation sequences (seeds from 9,100,000; two of them share one): the panel leaves them out, and training
  never meets them anyway.
* Every wording.  The rule has six paraphrases, of which the last is never trained on.
* Case and punctuation around an answer do not count; any third word does.

**What the two forms do not share.**  The *final-only* form names one deletion, and its answer belongs to the last loop.
The *stepwise* form names how many deletions there are and asks for the present one: answer t of `Request.stages`
belongs to loop t.  The stepwise backbone is only ever asked for 4, and learns from four times as many forward passes:
final-only against stepwise is a comparison of two ways to train, not of one changed variable.
"""

from loopscope.tasks.antonyms.prompts import (
    BACKBONE_SEED,
    HELD_OUT_TEMPLATE,
    MAP_SEED,
    QUESTIONS,
    RULES,
    Request,
    dense_turns,
    first_sentence,
    is_read_right,
    is_right,
    read_pair,
    requests,
)
from loopscope.tasks.antonyms.sequences import (
    DEEP,
    LONGEST,
    PAIRS,
    PANEL_SEED,
    PARTNER,
    TRAINED_DEPTH,
    VALIDATION_SEEDS,
    Deletion,
    Words,
    bucket,
    deletion,
    deletions,
    dependency_depths,
    is_deep,
    needed_topology,
    panel,
    quick_sequences,
    sequence,
    split,
    topology,
)

__all__ = [
    "BACKBONE_SEED",
    "DEEP",
    "HELD_OUT_TEMPLATE",
    "LONGEST",
    "MAP_SEED",
    "PAIRS",
    "PANEL_SEED",
    "PARTNER",
    "QUESTIONS",
    "RULES",
    "TRAINED_DEPTH",
    "VALIDATION_SEEDS",
    "Deletion",
    "Request",
    "Words",
    "bucket",
    "deletion",
    "deletions",
    "dense_turns",
    "dependency_depths",
    "first_sentence",
    "is_deep",
    "is_read_right",
    "is_right",
    "needed_topology",
    "panel",
    "quick_sequences",
    "read_pair",
    "requests",
    "sequence",
    "split",
    "topology",
]  # fmt: skip
