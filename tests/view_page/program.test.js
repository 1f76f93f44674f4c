import assert from "node:assert/strict";
import { test } from "node:test";
import {
  callsIn,
  formatProgram,
  indexOfLoop,
  mapsAfter,
  parseProgram,
  patchesOf,
  siteOf,
  siteText,
  splitOutside,
  withCall,
  withMaps,
  withPatch,
  withoutCall,
  withoutPatches,
} from "../../loopscope/view/page/program.js";

/** @param {string} text */
const read = (text) => {
  const program = parseProgram(text);
  assert.ok(program, text);
  return program;
};

const TEXTS = [
  "F6",
  "F6 J:one F",
  "J:a F J:b J:c F",
  "h6 J:one F",
  "seed:3 F8",
  "zeros F8",
  "F6 F[layer[2].row[-1].pattern<-(F6 J:one F)]",
  'F[layer[1].row[" a;b] "].z<-$name; layer[2].q*=0.5]',
  "F6 F[layer[2].z<-(F6 F[layer[2].q<-(F7)])@other.loop[7]] F2",
  "prelude[layer[1].z<-$a] F8 coda:8[layer[2].z<-$b]",
];

test("a text that the library writes is written again as it was", () => {
  for (const text of TEXTS) assert.equal(formatProgram(read(text)), text);
});

test("equal calls become one word, groups are written out", () => {
  assert.equal(formatProgram(read("F F F  J:one F F")), "F3 J:one F2");
  assert.equal(formatProgram(read("(L3 H)2")), "L3 H L3 H");
});

test("what is no program is not read", () => {
  for (const text of ["", "G[", "F6 X:one", "F[layer[1]", "one", "F6F", "F(2)", "J:", "F6 J:one#", "(F2"]) {
    assert.equal(parseProgram(text), null, text);
  }
});

test("calls and loops are counted as the library counts them", () => {
  const program = read("F6 J:one F");
  assert.equal(callsIn(program), 7);
  assert.equal(indexOfLoop(program, 7), 7);
  assert.equal(indexOfLoop(read("h6 F2"), 8), 1);
  assert.equal(indexOfLoop(program, 8), -1);
});

test("maps are set at any boundary and taken away again", () => {
  for (let after = 0; after <= 6; after++) {
    const program = withMaps(read("F6"), after, ["one", "two"]);
    assert.deepEqual(mapsAfter(program, after), ["one", "two"]);
    for (let other = 0; other <= 6; other++) if (other !== after) assert.deepEqual(mapsAfter(program, other), []);
    assert.equal(formatProgram(withMaps(program, after, [])), "F6");
  }
  assert.equal(formatProgram(withMaps(read("F6 J:one F"), 6, ["two"])), "F6 J:two F");
  assert.equal(formatProgram(withMaps(read("h6 F"), 6, ["two"])), "h6 J:two F");
});

test("calls are added behind and left out with the maps before them", () => {
  assert.equal(formatProgram(withCall(read("F6 J:one F"))), "F6 J:one F2");
  assert.equal(formatProgram(withoutCall(read("F6 J:one F"))), "F6");
  assert.equal(formatProgram(withoutCall(read("F"))), "F");
  assert.equal(formatProgram(withoutCall(read("F2 coda:2[layer[1].z*=0]"))), "F");
});

test("a patch stands in the call that its loop names, and replaces one at its site", () => {
  const site = siteText({ layer: 2, head: 1, row: -1, component: "pattern" });
  assert.equal(site, "layer[2].head[1].row[-1].pattern");
  const one = withPatch(read("F6 J:one F"), 7, site, "<-(F6 J:two F)");
  assert.equal(formatProgram(one), `F6 J:one F[${site}<-(F6 J:two F)]`);
  assert.deepEqual(patchesOf(one), [{ loop: 7, text: `${site}<-(F6 J:two F)` }]);
  assert.equal(formatProgram(withPatch(one, 7, site, "*=0")), `F6 J:one F[${site}*=0]`);
  assert.equal(formatProgram(withPatch(read("F3"), 2, "layer[1].z", "*=0")), "F F[layer[1].z*=0] F");
  assert.equal(formatProgram(withoutPatches(one)), "F6 J:one F");
});

test("the site of a patch ends before its operator, not at one inside quotes", () => {
  assert.equal(siteOf('layer[1].row["<-"].z<-$a'), 'layer[1].row["<-"].z');
  assert.equal(siteOf("layer[1].z+=0.5*$a"), "layer[1].z");
});

test("separators inside brackets and quotes do not separate", () => {
  assert.deepEqual(splitOutside('a; b[c; d]; "e;f"; (g; h)', ";"), ["a", "b[c; d]", '"e;f"', "(g; h)"]);
});
