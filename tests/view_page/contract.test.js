import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { Trouble, canonicalText, decoded, fromHalf, nameOf, valueAt } from "../../loopscope/view/page/contract.js";
import { sha256 } from "../../loopscope/view/page/sha256.js";

test("SHA-256 is that of everybody else, at every length about a block", () => {
  for (let length = 0; length < 200; length++) {
    const text = "é".repeat(length % 7) + "a".repeat(length);
    assert.equal(sha256(text), createHash("sha256").update(text).digest("hex"));
  }
});

test("the canonical text sorts keys at every depth and keeps the order of lists", () => {
  assert.equal(canonicalText({ b: [2, { d: null, c: "é" }], a: true }), '{"a":true,"b":[2,{"c":"é","d":null}]}');
});

test("names do not depend on the order of keys", () => {
  const one = { model: "m", input: { text: "a", chat: false }, others: {}, program: "F", read: { kind: "check" } };
  const two = { read: { kind: "check" }, program: "F", others: {}, input: { chat: false, text: "a" }, model: "m" };
  assert.equal(nameOf(one), nameOf(two));
  assert.match(nameOf(one), /^[0-9a-f]{32}$/);
});

test("numbers of 16 bits are those of 32", () => {
  const bits = new Uint16Array([0x0000, 0x3c00, 0xc000, 0x3555, 0x7bff, 0x0001, 0x7c00, 0x7e00, 0x8000]);
  const numbers = [...fromHalf(bits)];
  assert.deepEqual(numbers.slice(0, 3), [0, 1, -2]);
  assert.ok(Math.abs(numbers[3] - 1 / 3) < 1e-4);
  assert.equal(numbers[4], 65504);
  assert.equal(numbers[5], Math.fround(2 ** -24));
  assert.equal(numbers[6], Infinity);
  assert.ok(Number.isNaN(numbers[7]));
});

/** @param {any} head @param {Uint8Array} data */
function answer(head, data) {
  const text = new TextEncoder().encode(JSON.stringify(head));
  const from = Math.ceil((4 + text.length) / 8) * 8;
  const bytes = new Uint8Array(from + data.length);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 4);
  bytes.set(data, from);
  return bytes;
}

test("answers are read wherever their bytes lie", () => {
  const data = new Uint8Array(16);
  new Float32Array(data.buffer, 0, 2).set([1.5, -2]);
  data.set([7, 8, 9], 8);
  const arrays = { a: { dtype: "float32", shape: [1, 2], offset: 0 }, b: { dtype: "uint8", shape: [3], offset: 8 } };
  const bytes = answer({ kind: "x", name: "n", arrays }, data);
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  for (const each of [bytes, shifted.subarray(3)]) {
    const { arrays: found } = decoded(each);
    assert.equal(valueAt(found.a, 0, 1), -2);
    assert.deepEqual([...Array.from(found.b.data)], [7, 8, 9]);
  }
});

test("an answer that says what was wrong is Trouble with its place", () => {
  const bytes = answer({ kind: "error", name: "n", error: { message: "no", position: 7 } }, new Uint8Array(0));
  assert.throws(
    () => decoded(bytes),
    (error) => error instanceof Trouble && error.kind === "wrong" && error.position === 7,
  );
});
