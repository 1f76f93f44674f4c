/** The walk: the graph with the walker, and the readout of every loop. */

import { percent } from "./colour.js";
import { Trouble } from "./contract.js";
import { el, fill } from "./dom.js";
import { cyclesOf, stepsTo, walkOn } from "./graph.js";
import { GRAPH_KEY, graphView } from "./graphview.js";
import { heatMap } from "./heatmap.js";
import { loopTold, pointAt, pointName, readoutTold, sharesAt, trailOf } from "./readout.js";
import { newest } from "./session.js";
import { textGrid } from "./textgrid.js";
import { troublePlace } from "./trouble.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {{graph: number[], start: number, depth: number}} Walk
 */

/** What is read for a walk. */
export const WALK_READ = { kind: "readouts", answers: [], rows: "last", top: 5 };

/**
 * The nodes in the order in which the walk meets them, those of other cycles behind.
 * @param {Walk} walk @returns {{nodes: number[], met: number}}
 */
export function inWalkOrder(walk) {
  const cycles = cyclesOf(walk.graph, walk.start);
  return { nodes: cycles.flat(), met: cycles[0].length };
}

/** @param {Walk} walk @param {number} node @returns {string} */
function rowName(walk, node) {
  const steps = stepsTo(walk.graph, walk.start, node);
  const goal = node === walkOn(walk.graph, walk.start, walk.depth) ? " u" : "";
  return steps < 0 ? `node ${node}` : `${steps === 0 ? "start" : `+${steps}`}${goal} · ${node}`;
}

/**
 * The readouts as a heat map: nodes in the order of the walk, by point.
 * @param {Answer} answer @param {Walk} walk @returns {import("./heat.js").Heat}
 */
export function readoutHeat(answer, walk) {
  const { nodes, met } = inWalkOrder(walk);
  const points = answer.head.points;
  const columns = points.map((/** @type {any} */ _, /** @type {number} */ at) => sharesAt(answer, at));
  return {
    rows: nodes.length,
    columns: points.length,
    value: (row, column) => columns[column]?.[nodes[row]] ?? NaN,
    scale: { kind: "ramp", low: 0, high: 1 },
    rowNames: nodes.map((node) => rowName(walk, node)),
    columnNames: points.map(pointName),
    columnTitle: "after loop",
    text: (row, column) => {
      const share = columns[column]?.[nodes[row]] ?? 0;
      return share >= 0.045 ? String(Math.round(100 * share)) : "";
    },
    breaks: { rows: met < nodes.length ? [met] : [] },
    cell: { most: 44, high: 27 },
  };
}

/** @param {App} app @returns {View} */
export function walkView(app) {
  const { session, state } = app;
  const graph = graphView();
  const words = el("p", { class: "sentence", "aria-live": "polite" });
  /** @type {{answer: Answer, walk: Walk} | null} */
  let now = null;
  const heat = heatMap({
    label: "Readout of every loop as a distribution over nodes",
    tell: (row, column) => {
      if (!now) return "";
      const node = inWalkOrder(now.walk).nodes[row];
      const point = now.answer.head.points[column];
      return `${point.name}: node ${node} ${percent(sharesAt(now.answer, column)?.[node] ?? NaN)}`;
    },
    pick: (_, column) => now && state.set({ loop: String(now.answer.head.points[column].calls) }),
  });
  const grid = textGrid(app);
  const prompt = el("details", { class: "prompt" }, el("summary", {}, "The prompt, row by row"), grid.element);
  const stage = el(
    "div",
    { class: "walk two" },
    el("div", { class: "drawing" }, graph.element, el("p", { class: "key" }, GRAPH_KEY)),
    el(
      "figure",
      {},
      el("figcaption", {}, "The readout of every loop, as a distribution over nodes (per cent)"),
      heat.element,
    ),
  );
  const trouble = troublePlace(app.hello, stage);
  const element = el("section", { class: "view", "aria-label": "Walk" }, words, trouble.element, stage, prompt);
  const run = newest(trouble.tell);

  const draw = () => {
    if (!now) return;
    const { answer, walk } = now;
    const points = answer.head.points;
    const loop = Math.min(app.loop(), points[points.length - 1].calls);
    const trail = trailOf(answer);
    const first = points[0].calls;
    const at = loop - first;
    graph.show({ walk, trail, loop: at, shares: sharesAt(answer, pointAt(points, loop)), first });
    heat.draw(readoutHeat(answer, walk));
    const here = trail[at];
    fill(
      words,
      el("strong", {}, loopTold(walk, trail, at, loop)),
      `The readout is ${readoutTold(walk, here.node, here.share, loop >= app.hello.loops)}.`,
    );
  };

  /** Bring the rows up to date where they are open. */
  const rows = () => {
    if (prompt.open) grid.show();
  };
  prompt.addEventListener("toggle", rows);

  return {
    element,
    show: () => {
      const input = app.input();
      rows();
      run(async (signal) => {
        const program = await session.canonical(app.program(), { ...app.about(), signal });
        const about = { ...app.about(), signal };
        let walk = /** @type {Walk | null} */ ("graph" in input ? input : null);
        const [answer, read] = await Promise.all([
          session.ask(program, WALK_READ, about),
          walk ? null : session.ask(program, { kind: "input" }, about),
        ]);
        const told = read?.head.graph;
        walk ??= told ? { graph: told.successors, start: told.start, depth: told.depth } : null;
        if (signal.aborted) return;
        if (!walk) throw new Trouble("refused", "This input is tokens, and no graph to draw; the other views show it.");
        now = { answer, walk };
        draw();
      });
    },
  };
}
