"""Draws `walk.svg`: one frozen block that stays, walks one step or walks two, by the map before its seventh call.

    python docs/images/walk.py

The weights are the zoo's: the main backbone and its first two maps.  Shares are of all walks on the evaluation's rings
of ten nodes.  The walk that is drawn is the first whose readouts never go back; on a ring, step 10 is the start again.
"""

from __future__ import annotations

from pathlib import Path

import torch

from loopscope import F, J, load, load_map, run
from loopscope.tasks.graph_walk import GraphWalk, advance, all_starts
from loopscope.tasks.populations import population

BACKBONE, CALLS, DEPTH, NODES = "d8l6-5", 6, 8, 10
ROWS = (("stay", "it stays", 0), ("one", "it walks one step", 1), ("two", "it walks two", 2))

LEFT, GAP, TOP, HEIGHT = 322, 52, 84, 124
STEPS = 11
STYLE = """
    .card { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .soft { fill: #59636e }
    .f { fill: #dde6f3; stroke: #57749f } .edge { stroke: #b4bdc8 } .node { fill: #f3f5f8; stroke: #8c97a5 }
    .past { stroke: #8c97a5; fill: none } .pasthead { fill: #8c97a5 }
    .stay { stroke: #1f6feb; fill: none } .staybox { fill: #1f6feb } .staytext { fill: #0b57c9 }
    .one { stroke: #d9730d; fill: none } .onebox { fill: #d9730d } .onetext { fill: #b0560a }
    .two { stroke: #8250df; fill: none } .twobox { fill: #8250df } .twotext { fill: #7038d6 }
    .mono { font-family: ui-monospace, DejaVu Sans Mono, Consolas, monospace } .white { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .soft { fill: #9ba6b2 }
      .f { fill: #263448; stroke: #7d9ac7 } .edge { stroke: #4b5563 } .node { fill: #1c232d; stroke: #7b8794 }
      .staytext { fill: #79b0ff } .onetext { fill: #f5a557 } .twotext { fill: #bd9cff }
    }
"""


def measured(graphs: int | None = None) -> tuple[dict[str, float], list[int], dict[str, int], int]:
    """Shares that end where the row says, the drawn walk's steps after calls 1 to 6 and by row, how many walks."""
    model = load(BACKBONE)
    maps = {name: load_map(f"{name}-1@{BACKBONE}") for name in ("one", "two")}
    rings, starts = all_starts(population("rings").graphs[:graphs])
    tokens = GraphWalk(nodes=NODES).tokens(rings, starts, depth=DEPTH)
    programs = {"stay": F ** (CALLS + 1)} | {name: F**CALLS | J(name) | F for name in maps}
    found = run(model, tokens, list(programs.values()), maps=maps, read="calls")
    path = torch.stack([advance(rings, starts, step) for step in range(NODES)], 1)

    def steps(name: str, call: int) -> torch.Tensor:
        """How far along its ring the readout after a call is: 0 to 9."""
        said = found[programs[name]].logits_at[f"h{call}"][:, 0].argmax(-1)
        return (path == said[:, None]).int().argmax(1)

    ends = {name: steps(name, CALLS + 1) for name, _, _ in ROWS}
    right = {name: ends[name] == (DEPTH + hops) % NODES for name, _, hops in ROWS}
    native = torch.stack([steps("stay", call) for call in range(1, CALLS + 1)], 1)
    forward = (native.diff(dim=1) >= 0).all(1) & (native[:, -1] == DEPTH)
    walk = int((forward & right["stay"] & right["one"] & right["two"]).int().argmax())
    drawn = {name: DEPTH + hops for name, _, hops in ROWS}
    return {k: v.double().mean().item() for k, v in right.items()}, native[walk].tolist(), drawn, len(starts)


def arc(begin: int, end: int, base: float, style: str, width: float) -> str:
    """A hop from one step to another, or a small loop above a step where it stays."""
    x, to = LEFT + GAP * begin, LEFT + GAP * end
    if begin == end:
        curve = f"M{x - 7} {base - 13}C{x - 26} {base - 50} {x + 26} {base - 50} {x + 8} {base - 15}"
    else:
        rise = 26 + 9 * (end - begin)
        curve = f"M{x + 4} {base - 14}Q{(x + to) / 2} {base - 14 - rise} {to - 5} {base - 16}"
    return f'<path class="{style}" stroke-width="{width}" marker-end="url(#{style})" d="{curve}"/>'


def row(number: int, name: str, says: str, walk: list[int], end: int, share: float, walks: int) -> list[str]:
    """One program: its blocks, the path, the hops of its calls, where it ends and how often."""
    base = TOP + HEIGHT * number + 58
    out, x = [], 28
    for call in range(CALLS + 1):
        if call == CALLS:
            if name != "stay":
                out += [
                    f'<rect class="{name}box" x="{x}" y="{base - 38}" width="38" height="28" rx="5"/>',
                    f'<text class="mono white" x="{x + 19}" y="{base - 19}" text-anchor="middle">J</text>',
                ]
            else:
                out.append(f'<path class="edge" stroke-width="1.5" d="M{x + 4} {base - 24}H{x + 34}"/>')
            x += 43
        out += [
            f'<rect class="f" x="{x}" y="{base - 38}" width="24" height="28" rx="5"/>',
            f'<text class="mono ink" x="{x + 12}" y="{base - 19}" text-anchor="middle">F</text>',
        ]
        x += 28
    label = f"J:{name}" if name != "stay" else "no map"
    out += [
        f'<text class="{name}text" x="28" y="{base + 16}" font-weight="600">{label}: {says}</text>',
        f'<text class="soft" x="28" y="{base + 36}" font-size="13">{100 * share:.1f} % of {walks:,} walks</text>',
        f'<path class="edge" stroke-width="2" d="M{LEFT} {base}H{LEFT + GAP * STEPS + 16}"/>',
    ]
    at = 0
    for to in walk:
        out.append(arc(at, to, base, "past", 1.6))
        at = to
    if name == "stay":  # beside the loop of a call that stays already
        out.append(f'<g transform="translate({LEFT + GAP * at} {base}) rotate(180)">')
        out += [f'<g transform="translate({-LEFT - GAP * at} {-base})">', arc(at, end, base, name, 3.2), "</g></g>"]
    else:
        out.append(arc(at, end, base, name, 3.2))
    for step in range(STEPS + 1):
        here = f"{name}box" if step == end else "node"
        ink = "white" if step == end else "ink"
        out += [
            f'<circle class="{here}" cx="{LEFT + GAP * step}" cy="{base}" r="12"/>',
            f'<text class="{ink}" x="{LEFT + GAP * step}" y="{base + 4.5}" font-size="12" '
            f'text-anchor="middle">{"s" if step == 0 else step}</text>',
        ]
    return out


def draw(graphs: int | None = None) -> str:
    """The picture."""
    shares, walk, ends, walks = measured(graphs)
    width, height = LEFT + GAP * STEPS + 46, TOP + HEIGHT * 3 - 4
    about = (
        "Three programs of one frozen block: without a map it stays, with one map it walks a step, with another two."
    )
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="7" refY="5" markerWidth="{size}" markerHeight="{size}" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path class="{fill}" d="M0 0L10 5L0 10z"/></marker>'
        for name, fill, size in (
            ("past", "pasthead", 9), ("stay", "staybox", 13), ("one", "onebox", 13), ("two", "twobox", 13)
        )
    )  # fmt: skip
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{about}" '
        'font-family="system-ui, DejaVu Sans, Verdana, Arial, sans-serif" font-size="15">',
        f"<style>{STYLE}</style><defs>{heads}</defs>",
        f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
        '<text class="ink" x="28" y="38" font-size="19" font-weight="600">The same frozen block stays, walks one step, '
        "or walks two</text>",
        '<text class="soft" x="28" y="62" font-size="13.5">Circles: the steps of a walk from s. Arrows: where the '
        "answer moves, call by call; in colour the seventh call of F.</text>",
    ]
    for number, (name, says, _) in enumerate(ROWS):
        lines += row(number, name, says, walk, ends[name], shares[name], walks)
    return "\n".join([*lines, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_name("walk.svg").write_text(draw(), encoding="utf-8")
