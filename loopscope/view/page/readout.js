/** What readouts say: names of points, the likeliest answer after each call, walks in words. */

import { percent } from "./colour.js";
import { stepsTo, walkOn } from "./graph.js";
import { valueAt } from "./contract.js";

/**
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {{name: string, calls: number, map: string | null}} Point
 * @typedef {{graph: number[], start: number, depth: number}} Walk
 */

/** More than this would run over what stands beside. */
const MOST_PARTS = 4;

/** A readout that gives less than this to its likeliest node is told as unsure. */
const SURE = 0.5;

/** A short name of a point for an axis: the number of calls, or the map. @param {Point} point @returns {string} */
export function pointName(point) {
  return point.map ? `J ${point.map}` : point.calls === 0 ? "start" : String(point.calls);
}

/** Where a point stands that has been through so many calls, behind no map. @param {Point[]} points @param {number} calls
 * @returns {number} */
export function pointAt(points, calls) {
  const found = points.findIndex((point) => point.calls === calls && !point.map);
  return found < 0 ? points.length - 1 : found;
}

/** Whether a readout names one node rather than several. @param {{share: number}} readout @returns {boolean} */
export function isSure(readout) {
  return readout.share >= SURE;
}

/** The points behind calls, by their places. @param {Point[]} points @returns {number[]} */
function callPoints(points) {
  return [...points.keys()].filter((at) => !points[at].map);
}

/**
 * The likeliest class after each call in the last row, with its probability.
 * @param {Answer} answer of kind readouts @returns {{node: number, share: number}[]}
 */
export function trailOf(answer) {
  const row = answer.head.rows.length - 1;
  return callPoints(answer.head.points).map((point) => ({
    node: valueAt(answer.arrays.top, point, row, 0),
    share: valueAt(answer.arrays.probability, point, row, 0),
  }));
}

/** The distribution over all classes at a point in the last row, or null where there is none.
 * @param {Answer} answer @param {number} point @returns {ArrayLike<number> | null} */
export function sharesAt(answer, point) {
  const all = answer.arrays.distribution;
  if (!all) return null;
  const [, rows, classes] = all.shape;
  const from = (point * rows + rows - 1) * classes;
  return Array.prototype.slice.call(all.data, from, from + classes);
}

/** How far a readout is from the start, in words. @param {Walk} walk @param {number} node @returns {string} */
function distanceTold(walk, node) {
  const steps = stepsTo(walk.graph, walk.start, node);
  if (node >= walk.graph.length) return "which is no node";
  if (steps < 0) return "which the walk never meets";
  return steps === 0 ? "the start itself" : steps === 1 ? "one step from the start" : `${steps} steps from the start`;
}

/**
 * What a loop did to the readout, in words; the first one walks from the start, whatever was guessed before it.
 * Steps are told only from one readout that is sure to another.
 * @param {Walk} walk @param {{node: number, share: number}[]} trail the readout after each call
 * @param {number} at its place there @param {number} loop @returns {string}
 */
export function loopTold(walk, trail, at, loop) {
  if (at === 0) return "Before the first loop. ";
  if (!isSure(trail[at])) return `Loop ${loop} is unsure. `;
  if (loop > 1 && !isSure(trail[at - 1])) return `Loop ${loop} is sure. `;
  const steps = stepsTo(walk.graph, loop === 1 ? walk.start : trail[at - 1].node, trail[at].node);
  if (steps < 0) return `Loop ${loop} leaves the path. `;
  return `Loop ${loop} ${["stays", "walks one step", "walks two steps"][steps] ?? `goes ${steps} steps on`}. `;
}

const NEAR = ["the answer u", "one step after u", "two steps after u", "three steps after u"];

/** How many steps behind the answer u a node is met, or -1. @param {Walk} walk @param {number} node @returns {number} */
function stepsAfter(walk, node) {
  return stepsTo(walk.graph, walkOn(walk.graph, walk.start, walk.depth), node);
}

/** How a node is called: by its distance from the answer u that was asked for. @param {Walk} walk @param {number} node */
export function targetName(walk, node) {
  return NEAR[stepsAfter(walk, node)] ?? "elsewhere";
}

/**
 * A readout in words; `beyond` the trained loops it is told from u on.
 * @param {Walk} walk @param {number} node @param {number} share @param {boolean} beyond @returns {string}
 */
export function readoutTold(walk, node, share, beyond) {
  const steps = beyond ? stepsAfter(walk, node) : -1;
  const place = steps < 0 ? distanceTold(walk, node) : (NEAR[steps] ?? `${steps} steps after u`);
  return `node ${node} (${percent(share)}), ${place}`;
}

/** Loops in few signs: those in a row as their ends. @param {number[]} loops in order @returns {string} */
export function loopsTold(loops) {
  /** @type {number[][]} */
  const rows = [];
  for (const loop of loops) {
    const row = rows[rows.length - 1];
    if (row?.[row.length - 1] === loop - 1) row.push(loop);
    else rows.push([loop]);
  }
  const parts = rows.flatMap((row) => (row.length > 2 ? [`${row[0]}–${row[row.length - 1]}`] : row.map(String)));
  return parts.length > MOST_PARTS ? `${parts.slice(0, MOST_PARTS - 1).join(" ")} …` : parts.join(" ");
}
