"""What an adapter is: a pretrained language model with the members that every looped model here has.

An adapter is one file (`ouro.py`, `stacks.py`): a subclass of `Adapter` and a function that builds it from a
`config.json`.  One line in `folders.ADAPTERS` says for which `model_type`.  Nothing outside that file asks which
adapter a model is: what differs between models is a member, with a default where most have nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from loopscope import bounds
from loopscope.errors import InputError
from loopscope.models.passes import Boundary, RotaryAngles, check_tokens, one_pass
from loopscope.program import F, Program, Start
from loopscope.protocol import LoopedLayer, LoopedModel, in_a_line


class Adapter(nn.Module, ABC):
    """embed -> F -> F -> ... -> read, one shared F; a `LanguageModel`.

    Its state dict has the names and shapes of the released files.
    """

    def __repr__(self) -> str:
        return in_a_line(self)

    @property
    @abstractmethod
    def layers(self) -> Sequence[LoopedLayer]:
        """The layers of F, in order."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Width d of the state."""

    @property
    @abstractmethod
    def heads(self) -> int:
        """Query heads per layer."""

    @property
    @abstractmethod
    def head_size(self) -> int:
        """Size k of a head."""

    @property
    @abstractmethod
    def loops(self) -> int:
        """Calls of F that a run makes by default; any number may be run."""

    @property
    @abstractmethod
    def boundary(self) -> Boundary:
        """What ends every call."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """The longest input, in tokens."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many tokens there are."""

    @property
    @abstractmethod
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text."""

    @property
    def copies(self) -> dict[str, str]:
        """Tensors that a file may hold a second time, by name, and which of the model's they are; often none."""
        return {}

    def own_name(self, name: str) -> str | None:
        """What the model calls a tensor of a file; None for one that nothing reads."""
        return name

    def choose_loop(self, loop: str) -> None:
        """Loop these layers alone, "11-20"; InputError for a model that was made with a loop of its own."""
        raise InputError(f"loop {loop!r} cannot be chosen: the model was made with a loop of its own")

    @property
    def loop(self) -> str | None:
        """Which layers are looped, where they were chosen; None for the loop that the model has by itself."""
        return None

    @property
    def tables(self) -> dict[str, tuple[int, ...]]:
        """Tensors that a file may hold though they follow from its config, by name, and their shapes; often none."""
        return {}

    def table(self, name: str) -> Tensor:
        """What one of `tables` holds."""
        raise KeyError(name)

    @property
    def middle(self) -> int:
        """Width of the widest MLP inside."""
        return next(each.shape[0] for name, each in self.named_parameters() if name.endswith("mlp.up_proj.weight"))

    @property
    def unread(self) -> tuple[nn.Parameter, ...]:
        """Parameters that no logit depends on, so that no loss trains them; often none."""
        return ()

    def program(self, loops: int | None = None, start: Start = None) -> Program:
        """The program of so many loops (default: `self.loops`); F each, unless a model says otherwise."""
        count = bounds.whole("loops", self.loops if loops is None else loops, 1, bounds.LOOPS)
        return Program((F**count).steps, start)

    @property
    def lead(self) -> int:
        """Rows that stand in front of a text's own, whose readouts are none of the text; 0 for most."""
        return 0

    def with_puzzles(self, tokens: Int[Tensor, "B T"], puzzles: Sequence[int] | None) -> Int[Tensor, "B rows"]:
        """Tokens behind the rows of their puzzles, by number; a model without such rows takes None only."""
        if puzzles is not None:
            raise InputError("this model has no rows for puzzles (leave out --puzzles)")
        return tokens

    def readings(self, loops: int) -> tuple[str, ...]:
        """The points of `program(loops)` that stand for its loops: the states that are read after each."""
        return tuple(f"h{loop}" for loop in range(1, loops + 1))

    @abstractmethod
    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """h_0 of tokens that were checked."""

    def embed(self, tokens: Tensor) -> Float[Tensor, "B T d"]:
        """h_0 of tokens [B, T]; InputError for anything but whole numbers of the vocabulary, or too many of them."""
        check_tokens(tokens, self.vocabulary, self.positions)
        return self.embedded(tokens.long())

    @abstractmethod
    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles | Tensor:
        """The rotary angles of rows, for all layers and loops; the rows where there are none."""

    @abstractmethod
    def close(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B d"]:
        """What F does after its last layer, row by row."""

    @abstractmethod
    def read(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B vocabulary"]:
        """Logits over the vocabulary, row by row."""

    def gate_logits(self, h: Float[Tensor, "*B d"]) -> Float[Tensor, "*B"] | None:
        """An exit gate before its sigmoid, row by row; None for a model without one, which most are."""
        return None

    def draw_weights(self, spread: float) -> None:
        """Draw a new model's weights where its constructor did not draw them with this standard deviation."""

    def forward(
        self, tokens: Tensor, loops: int | None = None, mask: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T vocabulary"]:
        """Logits at every row of tokens after `loops` calls (default: `self.loops`); `mask` is False at padding."""
        program = self.program(loops)
        return one_pass(self, tokens, program, mask=mask).read(program.points[-1])


class Sized(Adapter):
    """An adapter whose config names what is asked of it, from `width` to the `ends` of a text."""

    config: Any

    @property
    def width(self) -> int:
        """Width d of the stream and, where there are several, of each state."""
        return self.config.width

    @property
    def heads(self) -> int:
        """Query heads per layer."""
        return self.config.heads

    @property
    def head_size(self) -> int:
        """Size k of a head."""
        return self.config.head_size

    @property
    def vocabulary(self) -> int:
        """How many tokens there are, with those that only fill up the embedding."""
        return self.config.vocabulary

    @property
    def middle(self) -> int:
        """Width of the widest MLP inside."""
        return self.config.mlp

    @property
    def loops(self) -> int:
        """Loops that a run makes by default: those of training or of its evaluation; any number may be run."""
        return self.config.loops

    @property
    def positions(self) -> int:
        """The longest input, in tokens."""
        return self.config.positions

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        return self.config.ends


def program_of(model: LoopedModel, loops: int | None = None, start: Start = None) -> Program:
    """The program of so many loops of a model (default: its own number): what it says, or that many calls of F."""
    own: Callable[..., Program] | None = getattr(model, "program", None)
    if own is not None:
        return own(loops, start)
    count = bounds.whole("loops", getattr(model, "loops", None) if loops is None else loops, 1, bounds.LOOPS)
    return Program((F**count).steps, start)


def readings_of(model: LoopedModel, program: Program, loops: int) -> tuple[str, ...]:
    """The points of such a program that stand for its loops: what the model says, or those after every call."""
    own: Callable[[int], tuple[str, ...]] | None = getattr(model, "readings", None)
    return tuple(f"h{program.first + loop}" for loop in range(1, loops + 1)) if own is None else own(loops)
