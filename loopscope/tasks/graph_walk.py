"""The graph walk: follow the arrows of a permutation graph for a requested number of steps.

A graph on N nodes is a *successor row*: entry j is the node f(j) that the only arrow out of j points to, and every node
is pointed to once, so a row is a permutation.  The model reads

    BOS  EDGE 0 f(0)  EDGE 1 f(1)  ...  EDGE N-1 f(N-1)  QUERY s DEPTH[d] ANSWER

and answers f^d(s) at ANSWER.  Edges stand in source order, so the arrow out of node j always occupies the same rows.

`GraphWalk` knows the tokens and where they stand.  The functions below it work on batches of graphs, one start or node
per graph, all int64, and answer on the device of their input.  Only `check_graphs` and the value checks of
`GraphWalk.tokens` read values back to the host; everything else has shapes known beforehand and never waits for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from loopscope.errors import InputError
from loopscope.tasks.labels import check_int64, check_range, is_listed

DEPTHS = 8
"""A request asks for 1 to 8 steps: there are eight DEPTH tokens."""

SHIFT = 3
"""The other current of a crossed pair is the label `current + 3` (mod N): a shift of the label, not a walk."""

LARGEST_CODED = 15
"""A row of N successors read as a base-N number fits int64 up to N = 15."""


@dataclass(frozen=True)
class GraphWalk:
    """Token ids and token rows of the graph walk on `nodes` nodes.

    Ids 0..N-1 are the nodes, then EDGE, QUERY, ANSWER, BOS and DEPTH[1..8].  Raises InputError for fewer than one node.
    """

    nodes: int = 10

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise InputError(f"a graph walk needs at least 1 node, asked for {self.nodes}")

    @property
    def EDGE(self) -> int:
        """Id of the token before each arrow."""
        return self.nodes

    @property
    def QUERY(self) -> int:
        """Id of the token before the start node."""
        return self.nodes + 1

    @property
    def ANSWER(self) -> int:
        """Id of the last token, where the answer is read."""
        return self.nodes + 2

    @property
    def BOS(self) -> int:
        """Id of the first token."""
        return self.nodes + 3

    def DEPTH(self, depth: int) -> int:
        """Id of the token that requests `depth` steps; InputError outside 1..8."""
        if not 1 <= depth <= DEPTHS:
            raise InputError(f"depth {depth} cannot be requested: depths are 1 to {DEPTHS}")
        return self.BOS + depth

    @property
    def vocabulary(self) -> int:
        """How many token ids there are: N nodes, four marks, eight depths."""
        return self.nodes + 4 + DEPTHS

    @property
    def length(self) -> int:
        """How many tokens an input has: BOS, three for each edge, four for the query."""
        return 1 + 3 * self.nodes + 4

    @property
    def source_rows(self) -> tuple[int, ...]:
        """Row of the source of edge j, for j = 0..N-1."""
        return tuple(2 + 3 * j for j in range(self.nodes))

    @property
    def destination_rows(self) -> tuple[int, ...]:
        """Row of the destination f(j) of edge j, for j = 0..N-1: the only rows in which two graphs differ."""
        return tuple(3 + 3 * j for j in range(self.nodes))

    @property
    def query_row(self) -> int:
        """Row of QUERY."""
        return self.length - 4

    @property
    def start_row(self) -> int:
        """Row of the start node s."""
        return self.length - 3

    @property
    def depth_row(self) -> int:
        """Row of the DEPTH token."""
        return self.length - 2

    @property
    def answer_row(self) -> int:
        """Row of ANSWER: the last."""
        return self.length - 1

    def tokens(
        self,
        graphs: Int[Tensor, "batch nodes"],
        starts: Int[Tensor, " batch"],
        depth: int | Int[Tensor, " batch"] = DEPTHS,
        *,
        check: bool = True,
    ) -> Int[Tensor, "batch tokens"]:
        """The token ids of each (graph, start, depth), on the device of `graphs`.

        `depth` is one request for all or one per graph.  Raises InputError for a shape that does not fit, a row that is
        no permutation of the nodes, or a start or depth out of range.  `check=False` leaves out the checks of tensor
        values, which make a GPU wait; a training loop that draws its own graphs has no use for them.
        """
        _check_labels("graphs", graphs, (None, self.nodes))
        batch = len(graphs)
        _check_labels("starts", starts, (batch,))
        if check:
            check_graphs(graphs, self.nodes)
            check_range("start", starts, 0, self.nodes - 1)
        if isinstance(depth, int):
            depth_token: int | Tensor = self.DEPTH(depth)
        else:
            _check_labels("depths", depth, (batch,))
            if check:
                check_range("depth", depth, 1, DEPTHS)
            depth_token = self.BOS + depth

        tokens = torch.empty(batch, self.length, dtype=torch.int64, device=graphs.device)
        tokens[:, 0] = self.BOS
        edges = tokens[:, 1 : self.query_row].unflatten(1, (self.nodes, 3))
        edges[:, :, 0] = self.EDGE
        edges[:, :, 1] = torch.arange(self.nodes, device=graphs.device)
        edges[:, :, 2] = graphs
        tokens[:, self.query_row] = self.QUERY
        tokens[:, self.start_row] = starts
        tokens[:, self.depth_row] = depth_token
        tokens[:, self.answer_row] = self.ANSWER
        return tokens


def check_graphs(graphs: Int[Tensor, "batch nodes"], nodes: int) -> None:
    """Raise InputError unless every row is a permutation of 0..nodes-1; the message names the first row that is not."""
    _check_labels("graphs", graphs, (None, nodes))
    check_range("node", graphs, 0, nodes - 1)
    wrong = (graphs.sort(dim=1).values != torch.arange(nodes, device=graphs.device)).any(dim=1)
    if bool(wrong.any()):
        first = int(wrong.int().argmax())
        row = " ".join(map(str, graphs[first].tolist()))
        raise InputError(f"graph {first} is not a permutation, some node has two arrows into it: {row}")


def _check_labels(what: str, labels: Tensor, shape: tuple[int | None, ...]) -> None:
    fits = labels.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, labels.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{what} have shape {list(labels.shape)}, but shape [{wanted}] is needed")
    check_int64(what, labels)


# ---- walks -----------------------------------------------------------------------------------------------------------


def all_starts(
    graphs: Int[Tensor, "batch nodes"],
) -> tuple[Int[Tensor, "instances nodes"], Int[Tensor, " instances"]]:
    """Every graph with each of its N starts: graph 0 with starts 0..N-1, then graph 1, and so on."""
    batch, nodes = graphs.shape
    return graphs.repeat_interleave(nodes, dim=0), torch.arange(nodes, device=graphs.device).repeat(batch)


def successor(graphs: Int[Tensor, "batch nodes"], nodes: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """One step: f(node) for each graph."""
    return graphs.gather(1, nodes.unsqueeze(1)).squeeze(1)


def walk(
    graphs: Int[Tensor, "batch nodes"], starts: Int[Tensor, " batch"], steps: int
) -> Int[Tensor, "batch steps_and_one"]:
    """The nodes f^0(s), f^1(s), ..., f^steps(s) as columns; InputError for a negative number of steps."""
    _check_steps(steps)
    path = [starts]
    for _ in range(steps):
        path.append(successor(graphs, path[-1]))
    return torch.stack(path, dim=1)


def advance(graphs: Int[Tensor, "batch nodes"], nodes: Int[Tensor, " batch"], steps: int) -> Int[Tensor, " batch"]:
    """The node `steps` steps after each node; InputError for a negative number of steps (see `start_for`)."""
    _check_steps(steps)
    for _ in range(steps):
        nodes = successor(graphs, nodes)
    return nodes


def _check_steps(steps: int) -> None:
    if steps < 0:
        raise InputError(f"a walk cannot take {steps} steps: the number of steps is 0 or more")


def start_for(
    graphs: Int[Tensor, "batch nodes"], current: Int[Tensor, " batch"], steps: int = DEPTHS
) -> Int[Tensor, " batch"]:
    """The start whose `steps`-th successor is `current`: the walk that ends there, taken backwards."""
    return advance(graphs.argsort(dim=1), current, steps)


# ---- cycles ----------------------------------------------------------------------------------------------------------


def cycle_lengths(graphs: Int[Tensor, "batch nodes"]) -> Int[Tensor, "batch nodes"]:
    """The length of the cycle each node lies on (1 to N), one column per node."""
    home = torch.arange(graphs.shape[1], device=graphs.device).expand_as(graphs)
    lengths = torch.zeros_like(graphs)
    reached = home
    for steps in range(1, graphs.shape[1] + 1):
        reached = graphs.gather(1, reached)
        lengths = torch.where((reached == home) & (lengths == 0), steps, lengths)
    return lengths


def is_ring(graphs: Int[Tensor, "batch nodes"]) -> Bool[Tensor, " batch"]:
    """Whether a graph is one single cycle through all its nodes."""
    return cycle_lengths(graphs)[:, 0] == graphs.shape[1]


def path_position(
    graphs: Int[Tensor, "batch nodes"], starts: Int[Tensor, " batch"], nodes: Int[Tensor, " batch *reads"]
) -> Int[Tensor, " batch *reads"]:
    """How many steps from its start each node is first met (0 for the start itself), or -1 if it is on another cycle.

    `nodes` holds one node for each graph, or several, such as the predictions read after every loop.
    """
    path = walk(graphs, starts, graphs.shape[1] - 1)
    steps = torch.arange(path.shape[1], device=path.device).expand_as(path)
    first = torch.full_like(path, -1).scatter_reduce(1, path, steps, "amin", include_self=False)
    return first.gather(1, nodes.reshape(len(nodes), -1)).reshape(nodes.shape)


# ---- label rules -----------------------------------------------------------------------------------------------------


def distinct(labels: Int[Tensor, "batch labels"]) -> Bool[Tensor, " batch"]:
    """Whether the labels of a row are pairwise distinct, so that a prediction can match at most one of them.

    `distinct(walk(graphs, u, 2))` is the rule "u, f(u), f^2(u)", `distinct(walk(graphs, u, 4))` is "u, ..., f^4(u)" and
    `distinct(crossed_labels(...))` is "B, D, E".
    """
    ordered = labels.sort(dim=1).values
    return (ordered[:, 1:] != ordered[:, :-1]).all(dim=1)


def crossed_current(current: Int[Tensor, " batch"], nodes: int) -> Int[Tensor, " batch"]:
    """The current w = c + 3 (mod N) of the run that gives, when the run that receives is at c."""
    return (current + SHIFT) % nodes


def crossed_labels(
    receiver: Int[Tensor, "batch nodes"], giver: Int[Tensor, "batch nodes"], current: Int[Tensor, " batch"]
) -> Int[Tensor, "batch 3"]:
    """The answers a patch from one run into another can produce, as columns B, D, E.

    The receiving run walks graph f_2 and is at c, the giving run walks f_1 and is at w = c + 3 (mod N).  B = f_2(c) is
    the receiver's own answer, D = f_1(w) the giver's, E = f_2(w) the giver's place looked up in the receiver's graph.
    """
    other = crossed_current(current, receiver.shape[1])
    return torch.stack([successor(receiver, current), successor(giver, other), successor(receiver, other)], dim=1)


# ---- identity --------------------------------------------------------------------------------------------------------


def codes_of(graphs: Int[Tensor, "batch nodes"]) -> Int[Tensor, " batch"]:
    """One integer per graph: its N successors read as the digits of a base-N number.  InputError above 15 nodes."""
    nodes = graphs.shape[1]
    if nodes > LARGEST_CODED:
        raise InputError(
            f"graphs of {nodes} nodes have no int64 code: the largest that have one are {LARGEST_CODED} nodes"
        )
    code = torch.zeros_like(graphs[:, 0])
    for digit in graphs.unbind(dim=1):
        code = code * nodes + digit
    return code


def is_held_out(graphs: Int[Tensor, "batch nodes"], held_out: Int[Tensor, " codes"]) -> Bool[Tensor, " batch"]:
    """Whether each graph's code is in `held_out`, an ascending list of codes on the same device."""
    return is_listed(codes_of(graphs), held_out)
