"""Counts of antonyms with planted answers."""

from __future__ import annotations

from loopscope.tasks.antonyms import PARTNER


def by_stack(words):
    """One pass from left to right: a word meets its antonym on top of the stack, or waits there."""
    stack, deleted = [], []
    for place, word in enumerate(words):
        if stack and PARTNER[words[stack[-1]]] == word:
            deleted.append((stack.pop(), place))
        else:
            stack.append(place)
    return deleted
