import assert from "node:assert/strict";
import { test } from "node:test";
import { pinsOf, runChoices } from "../../loopscope/view/page/choices.js";
import { groupsOf } from "../../loopscope/view/page/strip.js";

/** @param {string} pins */
const app = (pins) =>
  /** @type {any} */ ({
    hello: { programs: [{ id: "own", title: "As it was trained", program: "F6" }] },
    state: { get: () => ({ pins }) },
  });

test("pinned runs are split where no bracket and no quotes are open", () => {
  assert.deepEqual(pinsOf(app("")), []);
  const quoted = 'F5 F[layer[1].row["a|b"].z*=0]';
  assert.deepEqual(pinsOf(app(`F7|${quoted}`)), ["F7", quoted]);
  assert.equal(pinsOf(app(Array.from({ length: 40 }, (_, at) => `F${at}`).join("|"))).length, 12);
});

test("runs to choose from are named once, with the pinned and the chosen one", () => {
  const values = (/** @type {string | undefined} */ chosen) =>
    runChoices(app("F6|F7"), chosen).map((each) => each.value);
  assert.deepEqual(values(undefined), ["F6", "F7"]);
  assert.deepEqual(values("F8"), ["F6", "F7", "F8"]);
  assert.equal(runChoices(app(""))[0].text, "As it was trained (F6)");
});

test("maps with plain names stand before other fits", () => {
  const maps = ["one", "one-2", "two", "pool-one"].map((name) => ({ name, title: `${name}@x` }));
  const named = groupsOf(maps).map((group) => [group.label, ...group.maps.map((map) => map.name)]);
  assert.deepEqual(named, [
    ["Maps", "one", "two"],
    ["Other fits", "one-2", "pool-one"],
  ]);
  assert.deepEqual(groupsOf([]), []);
});
