"""Letter-walk: ten people pass a letter around, and a prompt asks who holds it after k transfers.

Each person passes the letter to one other, and the ten transfers form a single cycle.  The prompt names the rules in
shuffled order, then a start and k; the answer is a name.  Everything here is text, for any tokenizer: where token
positions matter, a function takes an `encode` that turns a text into ids.

`Letter` is one such question, `evaluation` asks about the sixteen test graphs.  The aligned pairs of the attention
experiments are in `pairs`, what is trained on in `training`.  No graph that is evaluated on, alone or in a pair, is
ever in a training text: a training seed that draws one of them is moved on by REDRAW until it draws another.

On a cycle of ten, eight transfers onward are two backward: a right answer at k = 8 does not prove eight steps.

What the paper leaves out, and what is done here.  The order of draws is the reference study's: one `random.Random` per
example draws the cycle, then the order of the sentences, then the start, from the alphabetical names.  Seeds are that
study's too, but not the wording beyond the rule sentence, so its prompts and accuracies are not ours.
"""

from loopscope.tasks.letters.prompts import (
    HELD_OUT_TEMPLATE,
    NAMES,
    ONLY_THE_NAME,
    REDRAW,
    RULE,
    TEMPLATES,
    TRAIN_TEMPLATES,
    Held,
    Letter,
    answer,
    draw,
    evaluation,
    is_right,
    prompt,
)

__all__ = [
    "HELD_OUT_TEMPLATE", "NAMES", "ONLY_THE_NAME", "REDRAW", "RULE", "TEMPLATES", "TRAIN_TEMPLATES", "Held",
    "Letter", "answer", "draw", "evaluation", "is_right", "prompt",
]  # fmt: skip
