/** Who answers: a server that has the model, answers that were recorded, or the kernel of a notebook. */

import { Trouble, canonicalText, nameOf } from "./contract.js";

/**
 * @typedef {import("./contract.js").Hello} Hello
 * @typedef {import("./contract.js").Request} Request
 * @typedef {import("./contract.js").Progress} Progress
 * @typedef {{signal?: AbortSignal, progress?: (how: Progress) => void}} How
 * @typedef {{kind: "live" | "bundle" | "notebook", hello: () => Promise<Hello>,
 *   ask: (request: Request, how?: How) => Promise<Uint8Array>, cancel: (name: string | null) => Promise<void>,
 *   file?: (request: Request, how?: How) => Promise<Blob>}} Host
 */

const GONE =
  "The program behind this page does not answer; nothing is lost, and the page goes on when it is back. If you start it anew: its new address, with the end of this one from # on, shows the same.";
const STOPPED = "stopped, because something else was asked for";

/** @returns {string} sixteen letters and digits that name this tab */
function tabName() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {number} delay @param {AbortSignal | undefined} signal @returns {Promise<void>} */
function pause(delay, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, delay);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** The server that this page came from. @returns {Host} */
export function serverHost() {
  const headers = { "Content-Type": "application/json", "X-Loopscope-Tab": tabName() };

  /** @param {string} path @param {RequestInit} settings @returns {Promise<Response>} */
  const call = async (path, settings) => {
    try {
      return await fetch(path, settings);
    } catch {
      if (settings.signal?.aborted) throw new Trouble("cancelled", STOPPED);
      throw new Trouble("gone", GONE);
    }
  };

  /** @param {Response} reply @returns {Promise<Trouble>} */
  const refusal = async (reply) => {
    let message = `the program behind this page says ${reply.status}`;
    /** @type {number | null} */
    let position = null;
    try {
      const { error } = await reply.json();
      message = error.message;
      position = error.position ?? null;
    } catch {
      // no JSON: the number has to do
    }
    return new Trouble(reply.status === 503 ? "busy" : "refused", message, position);
  };

  /**
   * @param {"ask" | "export"} path @param {Request} request @param {How} how @returns {Promise<Response>}
   */
  const until = async (path, request, how) => {
    const body = canonicalText(request);
    for (;;) {
      const reply = await call(path, { method: "POST", headers, body, signal: how.signal });
      if (reply.status === 200) return reply;
      if (reply.status !== 202) throw await refusal(reply);
      how.progress?.(await reply.json());
      await pause(20, how.signal);
      if (how.signal?.aborted) throw new Trouble("cancelled", STOPPED);
    }
  };

  return {
    kind: "live",
    hello: async () => {
      const reply = await call("hello", { headers: { "X-Loopscope-Tab": headers["X-Loopscope-Tab"] } });
      if (!reply.ok) throw await refusal(reply);
      return reply.json();
    },
    ask: async (request, how = {}) => {
      const reply = await until("ask", request, how);
      try {
        return new Uint8Array(await reply.arrayBuffer());
      } catch {
        throw how.signal?.aborted ? new Trouble("cancelled", STOPPED) : new Trouble("gone", GONE);
      }
    },
    cancel: async (name) => {
      await call("cancel", { method: "POST", headers, body: JSON.stringify({ name }), keepalive: true });
    },
    file: async (request, how = {}) => (await until("export", request, how)).blob(),
  };
}

/** @param {string} text base64 @returns {Promise<ArrayBuffer>} what it is when unpacked */
async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/** Answers that were recorded into this page. @returns {Host} */
export function recordedHost() {
  const holder = document.getElementById("loopscope-bundle");
  const held = JSON.parse(holder?.textContent ?? "{}");
  /** @type {Promise<ArrayBuffer> | null} */
  let data = null;
  return {
    kind: "bundle",
    hello: async () => held.hello,
    ask: async (request) => {
      const place = held.answers[nameOf(request)];
      if (!place) throw new Trouble("unrecorded", "This was not recorded.");
      data ??= unpacked(held.data);
      return new Uint8Array(await data).slice(place[0], place[0] + place[1]);
    },
    cancel: async () => {},
  };
}

/**
 * The kernel of a notebook, by the messages of its widget.
 * @param {{send: (message: object) => void, on: (event: string, heard: (message: any, buffers: any[]) => void) => void}} model
 * @returns {Host}
 */
export function kernelHost(model) {
  let last = 0;
  /** @type {Map<number, {heard: (message: any, buffers: any[]) => void}>} */
  const waiting = new Map();
  model.on("msg:custom", (message, buffers) => waiting.get(message?.id)?.heard(message, buffers ?? []));

  /**
   * @template T @param {object} message @param {How} how @param {(message: any, buffers: any[]) => T | undefined} read
   * @returns {Promise<T>}
   */
  const talk = (message, how, read) =>
    new Promise((resolve, reject) => {
      const id = ++last;
      const done = () => waiting.delete(id);
      how.signal?.addEventListener("abort", () => (done(), reject(new Trouble("cancelled", STOPPED))), { once: true });
      waiting.set(id, {
        heard: (reply, buffers) => {
          if (reply.progress) return how.progress?.(reply.progress);
          done();
          if (reply.error) return reject(new Trouble("refused", reply.error.message, reply.error.position ?? null));
          const found = read(reply, buffers);
          if (found === undefined) reject(new Trouble("refused", "the kernel's reply cannot be read"));
          else resolve(found);
        },
      });
      model.send({ id, ...message });
    });

  return {
    kind: "notebook",
    hello: () => talk({ do: "hello" }, {}, (reply) => reply.hello),
    ask: (request, how = {}) =>
      talk({ do: "ask", request }, how, (_, buffers) => {
        const bytes = buffers[0];
        if (!bytes) return undefined;
        return bytes instanceof ArrayBuffer
          ? new Uint8Array(bytes)
          : new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      }),
    cancel: async (name) => model.send({ id: ++last, do: "cancel", name }),
  };
}
