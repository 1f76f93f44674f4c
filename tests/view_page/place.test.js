import assert from "node:assert/strict";
import { test } from "node:test";
import { lostIn } from "../../loopscope/view/page/app.js";
import { firstInput, formatInput, nameInput, parseInput } from "../../loopscope/view/page/inputs.js";
import { DEFAULTS, formatPlace, inMemory, parsePlace, stateIn } from "../../loopscope/view/page/place.js";

const TEXT = 'F6 F[layer[2].row[" a+b&c=d#"].pattern<-(F6 J:one F)@other]';

test("a state comes back from its link, whatever stands in it", () => {
  for (const program of ["F6 J:one F", TEXT, "100 %", "é中\u{1f600}", "+", "a\nb"]) {
    const state = { view: "patch", program, row: "-1", pins: "F6|F7" };
    assert.deepEqual(parsePlace(formatPlace(state)), state);
  }
});

test("what is as by default is not written", () => {
  assert.equal(formatPlace({ ...DEFAULTS }), "");
  assert.equal(formatPlace({ view: "walk", stop: "1", row: "" }), "#view=walk");
});

test("links can be read by people", () => {
  assert.equal(formatPlace({ view: "walk", program: "F6 J:one F" }), "#view=walk&program=F6+J:one+F");
});

test("broken links open the page", () => {
  for (const hash of [
    "#",
    "",
    "#%",
    "#view",
    "#program=%E0%A4%A",
    "#__proto__=1&toString=2",
    `#${"x".repeat(100000)}`,
  ]) {
    assert.deepEqual(parsePlace(hash), {});
  }
});

test("listeners hear of changes once, and of nothing else", () => {
  const state = stateIn(inMemory("#view=walk"));
  /** @type {string[]} */
  const heard = [];
  const stop = state.listen((now) => heard.push(now.view));
  state.set({ view: "walk" });
  state.set({ view: "sweep" });
  state.set({ program: "" });
  stop();
  state.set({ view: "patch" });
  assert.deepEqual(heard, ["sweep"]);
});

const HELLO = /** @type {any} */ ({
  inputs: [
    { id: "walk-1", title: "one", input: { graph: [1, 2, 0], start: 0, depth: 8 }, others: {} },
    { id: "text-1", title: "two", input: { text: "a b", chat: false }, others: {} },
  ],
});

test("inputs come back from their texts", () => {
  for (const input of [
    { graph: [2, 0, 1], start: 1, depth: 3 },
    { tokens: [1, 22, 3] },
    { text: "a:b, c", chat: false },
    { text: "x", chat: true },
  ]) {
    assert.deepEqual(parseInput(formatInput(input), HELLO), input);
  }
  assert.equal(nameInput({ graph: [1, 2, 0], start: 0, depth: 8 }, HELLO), "walk-1");
  assert.deepEqual(parseInput("walk-1", HELLO), HELLO.inputs[0].input);
  assert.equal(firstInput(HELLO), "walk-1");
});

test("what is no input is none", () => {
  for (const text of ["", "graph:0,0:0:8", "graph:0,1:5:8", "graph:0,1:0:x", "tokens:a", "text:", "nobody", "graph:"]) {
    assert.equal(parseInput(text, HELLO), null, text);
  }
});

test("what a link names and the model has not is told", () => {
  const hello = /** @type {any} */ ({ ...HELLO, stacks: [{ name: "F", layers: 2 }] });
  assert.equal(lostIn({ input: "walk-1", layer: "2", other: "tokens:1" }, hello).said, "");
  assert.deepEqual(lostIn({ input: "nobody" }, hello).without, { input: "" });
  assert.deepEqual(lostIn({ other: "nobody" }, hello).without, { other: "" });
  for (const layer of ["9", "0", "-1", "1.5", "x"]) {
    const { without, said } = lostIn({ layer }, hello);
    assert.deepEqual(without, { layer: "" });
    assert.match(said, /but layers are 1 to 2/);
  }
});
