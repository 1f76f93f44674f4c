import assert from "node:assert/strict";
import { test } from "node:test";
import {
  colourOf,
  contrast,
  hex,
  mix,
  percent,
  rgbOf,
  scaleOf,
  textOn,
  told,
} from "../../loopscope/view/page/colour.js";
import { cyclesOf, layOut, parseSuccessors, stepsTo, walkOn } from "../../loopscope/view/page/graph.js";
import { cellAt, heatScene, svgText } from "../../loopscope/view/page/heat.js";
import { tickNames, ticks } from "../../loopscope/view/page/lines.js";
import { loopsTold, loopTold, readoutTold } from "../../loopscope/view/page/readout.js";

/** @param {Record<string, string>} colours */
const palette = (colours) =>
  /** @type {any} */ (Object.fromEntries(Object.entries(colours).map(([name, text]) => [name, rgbOf(text)])));
const LIGHT = palette({
  paper: "#ffffff",
  ink: "#1d2125",
  faint: "#59616b",
  rule: "#d5d9de",
  heat: "#0a4a86",
  alarm: "#c8102e",
  link: "#0b5fa5",
});
const DARK = palette({
  paper: "#14171b",
  ink: "#e7eaee",
  faint: "#a3acb7",
  rule: "#363d46",
  heat: "#8cc6ff",
  alarm: "#ff7b87",
  link: "#7cbcf5",
});

test("text on every colour of a scale can be read", () => {
  for (const colours of [LIGHT, DARK]) {
    for (let share = 0; share <= 1; share += 0.02) {
      for (const end of [colours.heat, colours.alarm]) {
        const behind = mix(colours.paper, end, share);
        assert.ok(contrast(behind, textOn(behind)) >= 4.5, `${hex(behind)} at ${share}`);
      }
    }
  }
});

test("scales run from the paper to full, and both ways where there are both signs", () => {
  const ramp = scaleOf([0.2, 0.5]);
  assert.deepEqual(colourOf(0, ramp, LIGHT), LIGHT.paper);
  assert.deepEqual(colourOf(0.5, ramp, LIGHT), LIGHT.heat);
  const both = scaleOf([-2, 1]);
  assert.deepEqual(colourOf(-2, both, LIGHT), LIGHT.alarm);
  assert.deepEqual(colourOf(0, both, LIGHT), LIGHT.paper);
  assert.equal(colourOf(NaN, both, LIGHT), null);
});

test("numbers are told in few signs", () => {
  assert.deepEqual([0, 0.1234, -1.239, 12.34, 1234, 1e-5, NaN].map(told), [
    "0.000",
    "0.123",
    "−1.24",
    "12.3",
    "1234",
    "1.0e−5",
    "–",
  ]);
  assert.deepEqual(
    [0, 1, 0.9876, 0.0123, -0.5].map(percent),
    ["0 %", "100 %", "99 %", "1.2 %", "−50 %"].map((text) => text.replace(" ", "\u00a0")),
  );
});

const GRAPHS = [
  [0],
  [1, 0],
  [1, 2, 3, 4, 5, 6, 7, 8, 9, 0],
  [0, 1, 2, 3],
  [2, 0, 1, 4, 3, 5, 7, 8, 9, 6],
  [1, 0, 3, 2, 5, 4, 7, 6, 9, 8],
];

test("every node is drawn once, inside the drawing, away from all others", () => {
  for (const graph of GRAPHS) {
    for (const start of graph) {
      const { spots, width, height, rings } = layOut(graph, start);
      assert.equal(
        rings.reduce((all, ring) => all + ring.nodes.length, 0),
        graph.length,
      );
      spots.forEach((one, node) => {
        assert.ok(one.x >= 18 && one.x <= width - 18 && one.y >= 18 && one.y <= height - 18, `${graph} ${node}`);
        for (const two of spots.slice(node + 1))
          assert.ok(Math.hypot(one.x - two.x, one.y - two.y) > 45, `${graph} ${node}`);
      });
    }
  }
});

test("cycles begin where the walk begins", () => {
  assert.deepEqual(cyclesOf([2, 0, 1, 4, 3, 5], 3), [[3, 4], [0, 2, 1], [5]]);
  assert.equal(stepsTo([1, 2, 0, 3], 1, 0), 2);
  assert.equal(stepsTo([1, 2, 0, 3], 1, 3), -1);
  assert.equal(walkOn([1, 2, 0, 3], 1, 8), 0);
});

test("a graph is read where every node stands once", () => {
  assert.deepEqual(parseSuccessors(" 2, 0 1"), [2, 0, 1]);
  for (const text of ["", "0 0", "1 2", "0 1 x", "-1 0", "0.5 1"]) assert.equal(parseSuccessors(text), null, text);
});

const HEAT = /** @type {import("../../loopscope/view/page/heat.js").Heat} */ ({
  rows: 2,
  columns: 3,
  value: (row, column) => (row === 1 && column === 2 ? NaN : row + column),
  scale: { kind: "ramp", low: 0, high: 3 },
  rowNames: ["a", "<b>"],
  columnNames: ["x", "y", "z"],
});

test("a heat map fits its room, and its cells are found again", () => {
  for (const room of [120, 300, 900]) {
    const scene = heatScene(HEAT, room, LIGHT);
    assert.ok(scene.width <= room + 1);
    for (let row = 0; row < 2; row++) {
      for (let column = 0; column < 3; column++) {
        const x = scene.left + (column + 0.5) * scene.cellWidth;
        const y = scene.top + (row + 0.5) * scene.cellHeight;
        assert.deepEqual(cellAt(scene, x, y), [row, column]);
      }
    }
    assert.equal(cellAt(scene, scene.left - 1, scene.top), null);
    assert.equal(scene.marks.filter((mark) => mark.kind === "hatch").length, 1);
  }
});

test("a name cannot leave its place in a saved picture", () => {
  const text = svgText(heatScene(HEAT, 300, LIGHT), 'a "title" <script>', LIGHT, "x");
  assert.ok(!text.includes("<script>") && !text.includes("<b>"));
  assert.ok(text.includes("&#60;b&#62;"));
});

test("shares that are next to nothing have no sign", () => {
  assert.equal(percent(-0.0001), "0.0\u00a0%");
  assert.equal(percent(-0.012), "−1.2\u00a0%");
  assert.equal(percent(0), "0\u00a0%");
});

test("ticks are round and lie between the ends", () => {
  assert.deepEqual(ticks(0, 1, 4), [0, 0.5, 1]);
  assert.deepEqual(ticks(0, 100, 4), [0, 50, 100]);
  assert.deepEqual(ticks(2, 2, 4), [2]);
  const named = (/** @type {number} */ low, /** @type {number} */ high) => {
    const marks = ticks(low, high, 4);
    return marks.map(tickNames(marks)).join(" ");
  };
  assert.equal(named(0, 40), "0 10 20 30 40");
  assert.equal(named(-0.5, 1), "−0.5 0.0 0.5 1.0");
  assert.equal(named(0, 4e-7), "0.000 1.0e−7 2.0e−7 3.0e−7 4.0e−7");
});

test("names stand upright where they fit beside each other, wider than their cells or not", () => {
  const drawn = (/** @type {string[]} */ names, /** @type {number} */ room) =>
    heatScene(
      { ...HEAT, rows: 1, columns: names.length, rowNames: ["a row"], columnNames: names, breaks: {} },
      room,
      LIGHT,
    ).marks.some((mark) => mark.kind === "text" && mark.turned && names.includes(mark.text));
  assert.equal(drawn(["start", "1", "2", "3"], 150), false);
  assert.equal(drawn(["start", "begin", "2", "3"], 150), true);
  assert.equal(drawn(["1", "2", "3", "answer"], 150), true); // it would stick out
});

test("the more there is the further a cell's colour is from the page's", () => {
  for (const paper of [LIGHT, DARK]) {
    const fills = [0, 0.01, 0.03, 0.1, 0.3, 1].map((value) => {
      const heat = { rows: 1, columns: 1, value: () => value, scale: scaleOf([0], { low: 0, high: 1 }) };
      const [mark] = heatScene(heat, 300, paper).marks;
      return mark.colour.reduce((all, part, at) => all + Math.abs(part - paper.paper[at]), 0);
    });
    assert.ok(fills[0] > 0);
    assert.deepEqual(
      fills,
      [...fills].sort((a, b) => a - b),
    );
  }
});

test("a readout is told from the start, and from u on when the trained loops are over", () => {
  const walk = { graph: [1, 2, 3, 4, 5, 0, 6], start: 0, depth: 1 };
  const told = (/** @type {number} */ node, /** @type {boolean} */ beyond) =>
    readoutTold(walk, node, 1, beyond).split("), ")[1];
  assert.deepEqual([told(1, false), told(0, false)], ["one step from the start", "the start itself"]);
  assert.deepEqual([told(1, true), told(3, true)], ["the answer u", "two steps after u"]);
  assert.deepEqual([told(0, true), told(6, true)], ["5 steps after u", "which the walk never meets"]);
});

test("loops are told in few signs", () => {
  const told = [[], [3], [5, 6], [5, 6, 7], [1, 9, 10, 11, 14], [1, 3, 5, 7], [1, 3, 5, 7, 9]].map(loopsTold);
  assert.deepEqual(told, ["", "3", "5 6", "5–7", "1 9–11 14", "1 3 5 7", "1 3 5 …"]);
});

test("what a loop did is told from where the walk stood", () => {
  const walk = { graph: [1, 2, 3, 4, 0], start: 2, depth: 3 };
  const trail = [4, 3, 0, 0, 3].map((node) => ({ node, share: 0.9 }));
  const told = trail.map((_, at) => loopTold(walk, trail, at, at).trim());
  assert.deepEqual(told, [
    "Before the first loop.",
    "Loop 1 walks one step.",
    "Loop 2 walks two steps.",
    "Loop 3 stays.",
    "Loop 4 goes 3 steps on.",
  ]);
});

test("an unsure readout is not told as a walk, and none is counted from it", () => {
  const walk = { graph: [1, 2, 3, 4, 0], start: 2, depth: 3 };
  const trail = [
    { node: 4, share: 0.2 },
    { node: 3, share: 0.9 },
    { node: 0, share: 0.49 },
    { node: 0, share: 0.5 },
    { node: 1, share: 0.8 },
  ];
  const told = trail.map((_, at) => loopTold(walk, trail, at, at).trim());
  assert.deepEqual(told, [
    "Before the first loop.",
    "Loop 1 walks one step.",
    "Loop 2 is unsure.",
    "Loop 3 is sure.",
    "Loop 4 walks one step.",
  ]);
});
