/** The graph of a walk with the walker on it. */

import { colourOf, css, paletteAt, percent, textOn } from "./colour.js";
import { fill, svg } from "./dom.js";
import { layOut, stepsTo, walkOn } from "./graph.js";
import { loopsTold } from "./readout.js";

/**
 * @typedef {import("./graph.js").Layout} Layout
 * @typedef {{graph: number[], start: number, depth: number}} Walk
 * @typedef {{node: number, share: number}[]} Trail  where the readout is after each call, from the start on
 * @typedef {{walk: Walk, trail: Trail, loop: number, shares: ArrayLike<number> | null, first?: number}} Scenery
 */

const NODE = 19;
const HOP = 300;
const MOST_HOPS = 4;

/** What the signs of the drawing mean. */
export const GRAPH_KEY =
  "Orange ring: the walker. Small numbers: the loops after which it is there. Inner ring: u, the answer asked for.";

/** Whether things should move. @returns {boolean} */
function moving() {
  return !matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/**
 * The path of the arrow out of a node, along its ring. @param {Layout} layout @param {number} from @param {number} to
 * @returns {string}
 */
function arrowPath(layout, from, to) {
  const ring = layout.rings[layout.spots[from].ring];
  const { x, y } = layout.spots[from];
  if (from === to)
    return `M${x - 8} ${y - NODE + 1}C${x - 26} ${y - NODE - 30} ${x + 26} ${y - NODE - 30} ${x + 9} ${y - NODE - 3}`;
  const angle = (/** @type {number} */ node) =>
    Math.atan2(layout.spots[node].y - ring.y, layout.spots[node].x - ring.x);
  const clear = 2 * Math.asin(Math.min(1, (NODE + 2) / (2 * ring.radius)));
  const tip = 2 * Math.asin(Math.min(1, (NODE + 8) / (2 * ring.radius)));
  const [one, two] = [angle(from) + clear, angle(to) - tip];
  const point = (/** @type {number} */ at) =>
    `${ring.x + ring.radius * Math.cos(at)} ${ring.y + ring.radius * Math.sin(at)}`;
  return `M${point(one)}A${ring.radius} ${ring.radius} 0 0 1 ${point(two)}`;
}

let drawings = 0;

/** The drawing; `show` brings it up to date, `moved` tells where the walker goes by hops. */
export function graphView() {
  const arrow = `loopscope-arrow-${++drawings}`;
  const title = svg("title");
  const edges = svg("g", { class: "edges" });
  const nodes = svg("g", { class: "nodes" });
  const tags = svg("g", { class: "tags" });
  const walker = svg("circle", { class: "walker", r: NODE + 5 });
  walker.style.display = "none";
  const element = svg(
    "svg",
    { class: "graph", role: "img" },
    title,
    svg(
      "defs",
      {},
      svg(
        "marker",
        {
          id: arrow,
          viewBox: "0 0 10 10",
          refX: 5,
          refY: 5,
          markerWidth: 9,
          markerHeight: 9,
          markerUnits: "userSpaceOnUse",
          orient: "auto",
        },
        svg("path", { class: "tip", d: "M0 0L10 5L0 10z" }),
      ),
    ),
    edges,
    nodes,
    tags,
    walker,
  );
  let drawn = "";
  /** @type {Layout | null} */
  let layout = null;
  /** @type {Scenery | null} */
  let last = null;
  let at = -1;

  /** @param {Walk} walk */
  const outline = (walk) => {
    layout = layOut(walk.graph, walk.start, { node: NODE });
    element.setAttribute("viewBox", `-6 -4 ${layout.width + 12} ${layout.height + 8}`);
    element.style.maxWidth = `${Math.round((layout.width + 12) * 1.6)}px`;
    const made = /** @type {Layout} */ (layout);
    fill(
      edges,
      ...walk.graph.map((to, from) => svg("path", { d: arrowPath(made, from, to), "marker-end": `url(#${arrow})` })),
    );
  };

  /** @param {number} node */
  const transform = (node) => {
    const spot = /** @type {Layout} */ (layout).spots[node];
    return `translate(${spot.x}px, ${spot.y}px)`;
  };

  /** @param {Scenery} scenery @param {number} to */
  const go = (scenery, to) => {
    const from = at;
    at = to;
    walker.style.transform = transform(to);
    if (from < 0 || from === to || !moving() || !walker.animate) return;
    const hops = stepsTo(scenery.walk.graph, from, to);
    const stops =
      hops > 0 && hops <= MOST_HOPS
        ? Array.from({ length: hops + 1 }, (_, hop) => walkOn(scenery.walk.graph, from, hop))
        : [from, to];
    walker.animate(
      stops.map((node) => ({ transform: transform(node) })),
      { duration: HOP * (stops.length - 1), easing: "ease-in-out" },
    );
  };

  /** @param {Scenery} scenery */
  const show = (scenery) => {
    last = scenery;
    const { walk, trail, loop } = scenery;
    const key = `${walk.graph.join()}:${walk.start}`;
    if (key !== drawn) {
      outline(walk);
      drawn = key;
      at = -1;
    }
    const made = /** @type {Layout} */ (layout);
    const palette = paletteAt(element);
    const goal = walkOn(walk.graph, walk.start, walk.depth);
    const here = trail[loop]?.node ?? -1;
    const shares = scenery.shares;
    fill(
      nodes,
      ...walk.graph.map((_, node) => {
        const { x, y } = made.spots[node];
        const colour = colourOf(shares?.[node] ?? 0, { kind: "ramp", low: 0, high: 1 }, palette) ?? palette.paper;
        const circle = svg("circle", { cx: x, cy: y, r: NODE });
        circle.style.fill = css(colour);
        const label = svg("text", { x, y: y + 1, class: "label" }, node);
        label.style.fill = css(textOn(colour));
        const around = node === goal ? svg("circle", { cx: x, cy: y, r: NODE - 4, class: "goal" }) : null;
        if (around) around.style.stroke = css(textOn(colour));
        return svg(
          "g",
          {},
          svg("title", {}, shares ? `node ${node}: ${percent(shares[node])}` : `node ${node}`),
          circle,
          around,
          label,
        );
      }),
    );
    /** @type {Map<number, number[]>} */
    const visits = new Map();
    trail.forEach((each, index) => {
      const first = scenery.first ?? 0;
      if (index === 0 && first === 0) return;
      visits.set(each.node, [...(visits.get(each.node) ?? []), first + index]);
    });
    fill(
      tags,
      ...[...new Set([...visits.keys(), walk.start, goal])].map((node) => {
        const spot = made.spots[node];
        const ring = made.rings[spot.ring];
        const angle = ring.radius ? Math.atan2(spot.y - ring.y, spot.x - ring.x) : Math.PI / 2;
        // Inside the ring there is room, and arrows do not pass.
        const loops = visits.get(node) ?? [];
        const told = loopsTold(loops);
        const text = node === walk.start ? ["start", told].filter(Boolean).join(" · ") : told;
        const wide = Math.max(0, text.length - 1) * 3.3 * Math.abs(Math.cos(angle));
        const near = ring.radius > NODE * 2.2 ? -(NODE + 15 + wide) : NODE + 14 + wide;
        const x = spot.x + near * Math.cos(angle);
        const y = spot.y + near * Math.sin(angle);
        const on = trail[loop]?.node === node && loops.length ? "on" : "";
        return svg("text", { x, y, class: `tag ${on}` }, text);
      }),
    );
    walker.style.display = here < 0 ? "none" : "";
    if (here >= 0) go(scenery, here);
    const words = trail.map((each, index) => `${index + (scenery.first ?? 0)}: node ${each.node}`).join(", ");
    title.textContent = `A walk from node ${walk.start} on a graph of ${walk.graph.length} nodes. The readout after each loop: ${words}.`;
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener(
    "change",
    () => last && element.isConnected && show(last),
  );
  return { element, show };
}
