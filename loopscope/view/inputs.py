"""Inputs of requests as tokens, and tokens for people to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from loopscope.errors import InputError
from loopscope.tasks.graph_walk import GraphWalk, walk
from loopscope.view.contract import Json, Settings

if TYPE_CHECKING:
    from loopscope.view.shown_model import ShownModel


def tokens_of(subject: ShownModel, given: Settings) -> tuple[int, ...]:
    """The tokens of an input; InputError where it does not fit the model."""
    if "graph" in given:
        found = _graph(subject, given)
    elif "text" in given:
        found = _text(subject, given)
    else:
        found = given["tokens"]
    if not found:
        raise InputError("an input needs at least one token")
    if len(found) > subject.rows:
        raise InputError(f"an input has at most {subject.rows} rows here, not {len(found)}")
    most = subject.vocabulary
    if most is not None and max(found) >= most:
        raise InputError(f"there is no token {max(found)}: tokens are 0 to {most - 1} (nearest: {most - 1})")
    return tuple(found)


def _walk(subject: ShownModel) -> GraphWalk:
    if subject.walk is None:
        raise InputError(f"{subject.name} reads no graphs: its inputs are {subject.kind}")
    return subject.walk


def _graph(subject: ShownModel, given: Settings) -> list[int]:
    graphs, starts = torch.tensor([given["graph"]], dtype=torch.int64), torch.tensor([given["start"]])
    found: list[int] = _walk(subject).tokens(graphs, starts, given["depth"])[0].tolist()
    return found


def _text(subject: ShownModel, given: Settings) -> list[int]:
    if subject.tokenizer is None:
        raise InputError(f"{subject.name} reads no texts: its inputs are {subject.kind}")
    if given["chat"]:
        return subject.tokenizer.encode_chat([{"role": "user", "content": given["text"]}])
    return subject.tokenizer.encode(given["text"])


def described(subject: ShownModel, given: Settings, tokens: tuple[int, ...]) -> dict[str, Json]:
    """The tokens of an input by name, and the graph if it is one."""
    titles = _titles(subject.walk) if subject.walk and len(tokens) == subject.walk.length else {}
    facts: dict[str, Json] = {
        "tokens": [
            {"id": token, "text": subject.token_name(token), "title": titles.get(row, "")}
            for row, token in enumerate(tokens)
        ],
        "graph": None,
    }
    if "graph" in given:
        facts["graph"] = _graph_facts(_walk(subject), given)
    return facts


def _titles(task: GraphWalk) -> dict[int, str]:
    titles = {0: "the beginning", task.query_row: "the question", task.start_row: "the start"}
    titles |= {task.depth_row: "how many steps", task.answer_row: "where the answer is read"}
    for node, (source, destination) in enumerate(zip(task.source_rows, task.destination_rows, strict=True)):
        titles |= {
            source - 1: f"an arrow out of node {node}",
            source: f"the arrow's source, node {node}",
            destination: f"where the arrow out of node {node} points",
        }
    return titles


def _graph_facts(task: GraphWalk, given: Settings) -> dict[str, Json]:
    graph, start = torch.tensor([given["graph"]]), torch.tensor([given["start"]])
    return {
        "nodes": task.nodes,
        "successors": given["graph"],
        "start": given["start"],
        "depth": given["depth"],
        "answers": walk(graph, start, 2 * task.nodes + given["depth"])[0].tolist(),
        "rows": {
            "source": list(task.source_rows),
            "destination": list(task.destination_rows),
            "query": task.query_row,
            "start": task.start_row,
            "depth": task.depth_row,
            "answer": task.answer_row,
        },
    }
