/** Requests and answers, as CONTRACT.md beside this file has them. */

import { sha256 } from "./sha256.js";

/**
 * @typedef {{graph: number[], start: number, depth: number} | {text: string, chat: boolean} | {tokens: number[]}} Input
 * @typedef {{kind: string, [setting: string]: any}} Read
 * @typedef {{model: string, input: Input, others: Record<string, Input>, program: string, read: Read}} Request
 * @typedef {{data: ArrayLike<number>, shape: number[]}} Values
 * @typedef {{head: any, arrays: Record<string, Values>}} Answer
 * @typedef {{name: string, done: number, total: number, ahead: number, what: string}} Progress
 * @typedef {{id: string, label: string, value: number, low: number | null, high: number | null, n: number | null,
 *   text: string, title: string, at: string}} Measured
 * @typedef {{id: string, input: string, programs: string[], numbers: Measured[], places: string[],
 *   sweep: string | null}} Stop
 * @typedef {{contract: number, loopscope: string, model: string, name: string, kind: "graph" | "text" | "tokens",
 *   program: string, stacks: {name: string, layers: number}[], prelude: number, coda: number, heads: number,
 *   width: number, loops: number, rows: number, vocabulary: number, classes: number, class_names: string[] | null,
 *   nodes: number | null, chat: boolean, maps: {name: string, title: string}[],
 *   inputs: {id: string, title: string, input: Input, others: Record<string, Input>}[], others: Record<string, Input>,
 *   programs: {id: string, title: string, program: string}[], tour: Stop[] | null, components: string[],
 *   per_head: string[], limits: {rows: number, text: number, program: number, answers: number}, live: boolean,
 *   recorded: string[] | null, made_with: string | null}} Hello
 */

/** What went wrong, in one line; `kind` says what the page can do about it. */
export class Trouble extends Error {
  /**
   * @param {"wrong" | "gone" | "unrecorded" | "cancelled" | "stopped" | "refused" | "busy"} kind
   * @param {string} message @param {number | null} [position]
   */
  constructor(kind, message, position = null) {
    super(message);
    this.kind = kind;
    this.position = position;
  }
}

/** The JSON of a value with keys sorted and no blanks. @param {any} value @returns {string} */
export function canonicalText(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalText).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const keys = Object.keys(value).sort();
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonicalText(value[key])}`).join(",")}}`;
}

/** The name of a request and of its answer. @param {Request} request @returns {string} */
export function nameOf(request) {
  return sha256(canonicalText(request)).slice(0, 32);
}

/** Numbers of 16 bits as numbers of 32. @param {Uint16Array} bits @returns {Float32Array} */
export function fromHalf(bits) {
  const out = new Float32Array(bits.length);
  for (let at = 0; at < bits.length; at++) {
    const sign = bits[at] & 0x8000 ? -1 : 1;
    const exponent = (bits[at] >> 10) & 0x1f;
    const part = bits[at] & 0x3ff;
    if (exponent === 0) out[at] = sign * part * 2 ** -24;
    else if (exponent === 31) out[at] = part ? NaN : sign * Infinity;
    else out[at] = sign * (1 + part / 1024) * 2 ** (exponent - 15);
  }
  return out;
}

/** @param {ArrayBuffer} buffer @param {number} from @param {{dtype: string, shape: number[]}} told @returns {Values} */
function valuesAt(buffer, from, told) {
  const count = told.shape.reduce((all, size) => all * size, 1);
  const makers = /** @type {Record<string, () => ArrayLike<number>>} */ ({
    float32: () => new Float32Array(buffer, from, count),
    int32: () => new Int32Array(buffer, from, count),
    uint8: () => new Uint8Array(buffer, from, count),
    float16: () => fromHalf(new Uint16Array(buffer, from, count)),
  });
  const make = makers[told.dtype];
  if (!make) throw new Trouble("refused", `an array of type ${told.dtype} cannot be read by this page`);
  return { data: make(), shape: told.shape };
}

/**
 * The head and the arrays of an answer's bytes. Trouble where it says that the request cannot be answered.
 * @param {Uint8Array} bytes @returns {Answer}
 */
export function decoded(bytes) {
  // Arrays must begin at multiples of 8 of their own buffer.
  const buffer = /** @type {ArrayBuffer} */ (
    bytes.byteOffset === 0 && bytes.byteLength === bytes.buffer.byteLength ? bytes.buffer : bytes.slice().buffer
  );
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  if (head.error) throw new Trouble("wrong", head.error.message, head.error.position ?? null);
  const from = Math.ceil((4 + length) / 8) * 8;
  /** @type {Record<string, Values>} */
  const arrays = {};
  for (const [name, told] of Object.entries(head.arrays ?? {}))
    arrays[name] = valuesAt(buffer, from + told.offset, told);
  return { head, arrays };
}

/** One number of an array. @param {Values} values @param {...number} place @returns {number} */
export function valueAt(values, ...place) {
  let index = 0;
  values.shape.forEach((size, axis) => (index = index * size + place[axis]));
  return values.data[index];
}
