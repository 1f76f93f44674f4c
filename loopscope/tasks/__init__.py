"""What models are asked: examples, right answers, populations that evaluations use.

`TASKS` are the language tasks by name; `task.py` says what one is.  A new one is a module and a line here.
"""

from collections.abc import Mapping

from loopscope.tasks.antonyms.task import Antonyms
from loopscope.tasks.iterations.task import Iterations
from loopscope.tasks.letters.task import Letters
from loopscope.tasks.task import Asked, Draw, Task, Turn

__all__ = ["TASKS", "Antonyms", "Asked", "Draw", "Iterations", "Letters", "Task", "Turn"]

TASKS: Mapping[str, type[Task]] = {
    "letters": Letters,
    "antonyms": Antonyms,
    "iterations": Iterations,
}
