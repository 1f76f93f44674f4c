"""What an adapter is: a pretrained language model with the members that every looped model here has.

An adapter is one file (`ouro.py`, `stacks.py`): a subclass of `Adapter` and a function that builds it from a
`config.json`.  One line in `folders.ADAPTERS` says for which `model_type`.  Nothing outside that file asks which
adapter a model is: what differs between models is a member, with a default where most have nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from loopscope.models.passes import Boundary, RotaryAngles, check_tokens, states
from loopscope.program import F
from loopscope.protocol import LoopedLayer


class Adapter(nn.Module, ABC):
    """embed -> F -> F -> ... -> read, one shared F; a `LanguageModel`.

    Its state dict has the names and shapes of the released files.
    """

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

    @property
    def unread(self) -> tuple[nn.Parameter, ...]:
        """Parameters that no logit depends on, so that no loss trains them; often none."""
        return ()

    @abstractmethod
    def embedded(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T d"]:
        """h_0 of tokens that were checked."""

    def embed(self, tokens: Tensor) -> Float[Tensor, "B T d"]:
        """h_0 of tokens [B, T]; InputError for anything but whole numbers of the vocabulary, or too many of them."""
        check_tokens(tokens, self.vocabulary, self.positions)
        return self.embedded(tokens.long())

    @abstractmethod
    def rotary_angles(self, rows: Int[Tensor, "*P R"], h: Float[Tensor, "*B R d"]) -> RotaryAngles:
        """The rotary angles of rows, for all layers and loops."""

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
        program = F ** (self.loops if loops is None else loops)
        return self.read(states(self, tokens, program, mask=mask)[program.points[-1]])
