"""Maps that keep control: fitted on states that they have led themselves, or on random strings of several maps.

A map fitted for one more call meets, at its second call, states that its fit never saw.  Here it meets them: a state is
steered again and again, and its target moves on with it.  States that pass through the same maps are a *strand*: a
map's own, or one that the maps of a fit share, each example's next letter deciding which of them comes next.

Where states outlive an update, in a *pool*, they depend on every update before, so they are carried (see
`objective.Carrying`): a trainer saves them with the parameters.  Their shapes are fixed and their places reused in a
fixed order, so that an update never waits for the device and can be captured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.model import LoopedTransformer
from loopscope.tasks.graph_walk import all_starts
from loopscope.tasks.populations import held_out, population
from loopscope.training.cohort.cohort import Cohort, State
from loopscope.training.cohort.objective import Step, each_loss
from loopscope.training.cohort.streams import GraphStream, below, bits, stream_key
from loopscope.training.cohort.walks import SCORED_AT_ONCE, WalkFits
from loopscope.training.recipe import LastingFit, MapRecipe

LARGEST = 1e4
"""Entries of a state that lives on: readouts do not mind how large a state is, but J may double it at every call."""


class Walkers(NamedTuple):
    """States on their way, strand by strand: the graph each walks on, and the node that is right for it now."""

    states: Float[Tensor, "G B T d"]
    graphs: Int[Tensor, "G B N"]
    nodes: Int[Tensor, "G B"]


def strands_of(letters: Sequence[int], members: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The members (hops, fit) that each strand passes through, by their places, in the order of letters.

    Without letters every member has a strand of its own.  InputError for a fit without a map for one of the letters.
    """
    if not letters:
        return [[place] for place in range(len(members))]
    fits = list(dict.fromkeys(fit for _, fit in members))
    for fit in fits:
        if missing := [hops for hops in letters if (hops, fit) not in members]:
            listed = ", ".join(map(str, letters))
            raise InputError(
                f"maps of {listed} hops that take turns are fitted together: fit {fit} lacks the one of {missing[0]}"
            )
    return [[list(members).index((hops, fit)) for hops in letters] for fit in fits]


class LastingFits(WalkFits):
    """Maps on one frozen backbone, a member for each (hops, fit), trained on strands of steered states.

    Members of one fit share the new states of every update.  `carried` holds the states that live on, if any do.
    InputError for maps that take turns and are not all there, or a number of fresh states that does not divide the
    batch.
    """

    def __init__(
        self, recipe: MapRecipe, backbone: LoopedTransformer, members: Sequence[tuple[int, int]], device: torch.device
    ) -> None:
        super().__init__(recipe, backbone, members, device)
        assert isinstance(recipe.data, LastingFit)
        assert recipe.data.pool is None  # every state begins on a graph of its own
        self.lasting, batch = recipe.data, recipe.batch
        self.fresh = self.lasting.fresh or (batch,) * len(self.stages)
        for fresh in self.fresh:
            if not 1 <= fresh <= batch or batch % fresh:
                near = min((n for n in range(1, batch + 1) if batch % n == 0), key=lambda n: abs(n - fresh))
                raise InputError(f"{fresh} fresh states do not divide a batch of {batch} (nearest: {near})")
        self.strands = strands_of(self.lasting.letters, members)
        self.steps = torch.tensor([[self.hops[member] for member in strand] for strand in self.strands], device=device)
        fits = list(dict.fromkeys(fit for _, fit in members))
        self.fit_of = self.source[[strand[0] for strand in self.strands]]
        self.strand_of = {member: number for number, strand in enumerate(self.strands) for member in strand}
        names = [f"{recipe.stream}/{stage.name}" for stage in self.stages]
        letter_keys = [[stream_key(name, fit, "letters") for fit in fits] for name in (*names, recipe.stream)]
        *self.letter_keys, self.scored_keys = torch.tensor(letter_keys, device=device)
        codes, nodes = held_out(self.lasting.held_out), self.task.nodes
        self.streams = [
            GraphStream(name, fits, fresh, nodes, codes, device) for name, fresh in zip(names, self.fresh, strict=True)
        ]
        self.asked = all_starts(population(self.lasting.selection).graphs)[0].to(device)
        self.walkers: Walkers | None = None
        if self.lasting.fresh:
            whole = GraphStream(f"{recipe.stream}/pool", fits, batch, nodes, codes, device)
            self.walkers, _ = self._new(whole, torch.zeros((), dtype=torch.int64, device=device))

    @property
    def carried(self) -> Mapping[str, Tensor]:
        """The states that live on, with their graphs and nodes."""
        return {} if self.walkers is None else {f"pool.{name}": part for name, part in self.walkers._asdict().items()}

    def step(self, stage: int, shape: None, update: Int[Tensor, ""]) -> Step:
        """Take every state `calls` steered calls further; a loss after each call, for the map that came before it."""
        calls, batch = self.lasting.calls, self.recipe.batch
        new, drawn = self._new(self.streams[stage], update)
        # A copy, because gradients will look at what the pool held after it has been written to.
        at = new if self.walkers is None else Walkers(*(part.clone() for part in self.walkers))
        letters = self._letters(self.letter_keys[stage], update * calls * batch, calls * batch).unflatten(
            1, (calls, batch)
        )
        if self.lasting.letters:
            drawn = torch.cat([drawn, letters.flatten(1)], 1)
        losses, on_track = [], torch.ones_like(at.nodes, dtype=torch.bool)
        for letter in letters[self.fit_of].unbind(1):
            at, logits = self._call(self.fast, at, letter)
            losses.append(self._own(each_loss(logits, at.nodes), letter))
            on_track &= logits.detach().argmax(-1) == at.nodes
        on_track &= at.states.detach().abs().amax((2, 3)) < LARGEST
        self._carry_on(at, on_track, new, self._turn(stage, update))
        return Step(torch.stack(losses).mean(0), drawn[self.source])

    def scores(self, stage: int) -> list[tuple[float, ...]]:
        """On the selection population, the mean over `scored` calls of the accuracy, or of minus the loss.

        On a GPU with products in fp16, as precise as those of the fit: so many calls are slow in fp32.  Maps
        that take turns share the score of their strand, and so are selected at the same update.
        """
        strands, (states, path) = len(self.strands), self.selection
        total, base = torch.zeros(strands, len(states), device=states.device), self.lasting.base
        start = 0
        for h, graphs, nodes in zip(
            *(part.split(SCORED_AT_ONCE) for part in (states, self.asked, path[:, base])), strict=True
        ):
            at = Walkers(*(part.expand(strands, *part.shape) for part in (h, graphs, nodes)))
            piece = slice(start, start + len(h))
            for call in range(self.lasting.scored):
                first = torch.tensor(call * len(states) + start, device=h.device)
                letter = self._letters(self.scored_keys, first, len(h))[self.fit_of]
                at, logits = self._call(self.ahead, at, letter)
                right = logits.argmax(-1) == at.nodes
                total[:, piece] += -each_loss(logits, at.nodes) if self.lasting.score == "loss" else right
            start += len(h)
        found = (total[:, self.kept].double() / self.lasting.scored).mean(1).tolist()
        return [(found[self.strand_of[member]],) for member in range(len(self.stack))]

    # ---- what an update is made of -----------------------------------------------------------------------------------

    def _new(self, stream: GraphStream, update: Int[Tensor, ""]) -> tuple[Walkers, Int[Tensor, "fits drawn"]]:
        """States after the calls without a map, alike in all strands of a fit, and the integers they were made from."""
        graphs, starts = stream.graphs(update), stream.starts(update)
        h, path = self._states(graphs.flatten(0, 1), starts.flatten(), self.ahead)
        parts = h.unflatten(0, starts.shape), graphs, path[:, self.lasting.base].view(starts.shape)
        return Walkers(*(part[self.fit_of] for part in parts)), torch.cat([graphs.flatten(1), starts], 1)

    def _turn(self, stage: int, update: Int[Tensor, ""]) -> Bool[Tensor, " B"]:
        """The places that begin anew after this update whatever they answer, a part of the batch after the other."""
        batch, fresh = self.recipe.batch, self.fresh[stage]
        return torch.arange(batch, device=update.device) // fresh == update % (batch // fresh)

    def _carry_on(self, at: Walkers, on_track: Bool[Tensor, "G B"], new: Walkers, turn: Bool[Tensor, " B"]) -> None:
        """The states of the next update: those on track go on, unless it is their place's turn to begin anew.

        One that has answered wrong has lost its walk, and nothing it meets later could be learnt from.  New states are
        dealt out to all places over and over, so that there is one for every place that needs it.
        """
        if self.walkers is None:
            return
        goes_on = on_track & ~turn
        dealt = torch.arange(len(turn), device=turn.device) % new.nodes.shape[1]
        for kept, now, begun in zip(self.walkers, at, new, strict=True):
            stays = goes_on.view(*goes_on.shape, *(1,) * (kept.dim() - 2))
            kept.copy_(torch.where(stays, now.detach(), begun[:, dealt]))

    def _letters(self, keys: Int[Tensor, " fits"], first: Int[Tensor, ""], count: int) -> Int[Tensor, "fits count"]:
        """Which of its strand's maps each state meets next: numbers `first`, `first + 1`, ... of each fit's stream."""
        counter = first + torch.arange(count, device=keys.device)
        return below(self.steps.shape[1], bits(keys[:, None], counter))

    def _call(
        self, cohort: Cohort, at: Walkers, letter: Int[Tensor, "G B"]
    ) -> tuple[Walkers, Float[Tensor, "G B classes"]]:
        """One steered call (J F), each state with the map of its letter: where it leads, and what is read there."""
        strands, batch, length, width = at.states.shape
        rows = torch.stack([at.states[self.strand_of[member]] for member in range(len(self.stack))])
        mapped = self.maps(rows.flatten(1, 2)).view(rows.shape)
        steered = []
        for strand, picked in zip(self.strands, letter, strict=True):
            chosen = mapped[strand[0]]
            for number, member in enumerate(strand[1:], 1):
                chosen = torch.where((picked == number)[:, None, None], mapped[member], chosen)
            steered.append(chosen)
        state = cohort.call(State(torch.cat(steered).view(1, -1, width)), length)
        h = cohort.settle(state)
        logits = cohort.read(h[:, length - 1 :: length]).view(strands, batch, -1)
        nodes, steps = at.nodes, self.steps.gather(1, letter)
        for step in range(max(self.hops)):
            nodes = torch.where(step < steps, at.graphs.gather(2, nodes[..., None])[..., 0], nodes)
        return Walkers(h.view(at.states.shape), at.graphs, nodes), logits

    def _own(self, each: Float[Tensor, "G B"], letter: Int[Tensor, "G B"]) -> Float[Tensor, " S"]:
        """Every member's loss: that of the calls it came before, scaled so that its expectation is that of a mean."""
        letters, batch = self.steps.shape[1], each.shape[1]
        found = {
            member: torch.where(letter[number] == place, each[number], 0.0).sum() * (letters / batch)
            for number, strand in enumerate(self.strands)
            for place, member in enumerate(strand)
        }
        return torch.stack([found[member] for member in range(len(found))])
