import assert from "node:assert/strict";
import { test } from "node:test";
import { Trouble } from "../../loopscope/view/page/contract.js";
import { kernelHost } from "../../loopscope/view/page/hosts.js";
import { newest, sessionWith } from "../../loopscope/view/page/session.js";

const HELLO = /** @type {any} */ ({
  model: "m",
  maps: [{ name: "one", title: "one" }],
  stacks: [{ name: "F", layers: 2 }],
});
const INPUT = { tokens: [1] };

/** @param {any} head */
function answer(head) {
  const text = new TextEncoder().encode(JSON.stringify({ arrays: {}, ...head }));
  const bytes = new Uint8Array(Math.ceil((4 + text.length) / 8) * 8);
  new DataView(bytes.buffer).setUint32(0, text.length, true);
  bytes.set(text, 4);
  return bytes;
}

/** @param {(request: any, how: any) => Promise<Uint8Array>} ask */
function session(ask) {
  /** @type {string[]} */
  const cancelled = [];
  /** @type {(string | null)[]} */
  const gone = [];
  const host = /** @type {any} */ ({
    kind: "live",
    hello: async () => HELLO,
    ask,
    cancel: async (/** @type {string} */ name) => void cancelled.push(name),
  });
  return { ...sessionWith(host, HELLO, { waiting: () => {}, gone: (message) => gone.push(message) }), cancelled, gone };
}

test("the same question is asked once", async () => {
  let asked = 0;
  const { ask } = session(async (request) => (asked++, answer({ said: request.program })));
  const [one, two] = await Promise.all([
    ask("F", { kind: "x" }, { input: INPUT }),
    ask("F", { kind: "x" }, { input: INPUT }),
  ]);
  assert.equal(one, two);
  assert.equal((await ask("F", { kind: "x" }, { input: INPUT })).head.said, "F");
  assert.equal(asked, 1);
  await ask("F2", { kind: "x" }, { input: INPUT });
  assert.equal(asked, 2);
});

test("other inputs travel only where they are named", () => {
  const { requestOf } = session(async () => answer({}));
  const others = { other: { tokens: [2] } };
  assert.deepEqual(requestOf("F", { kind: "x" }, INPUT, others).others, {});
  assert.deepEqual(requestOf("F[layer[1].z<-(F)@other]", { kind: "x" }, INPUT, others).others, others);
  assert.deepEqual(requestOf("F", { kind: "x", source: "(F)@other" }, INPUT, others).others, others);
});

test("whoever gives up does not stop another who asks for the same", async () => {
  let asked = 0;
  const { ask } = session(
    (_, how) =>
      new Promise((resolve, reject) => {
        if (asked++) return resolve(answer({ said: 2 }));
        how.signal.addEventListener("abort", () => reject(new Trouble("cancelled", "stopped")));
      }),
  );
  const first = new AbortController();
  const one = ask("F", { kind: "x" }, { input: INPUT, signal: first.signal });
  const two = ask("F", { kind: "x" }, { input: INPUT });
  first.abort();
  await assert.rejects(one, /stopped/);
  assert.equal((await two).head.said, 2);
});

test("an error of the library stays, one of the way there is asked again", async () => {
  let asked = 0;
  const { ask } = session(async () => {
    if (asked++ === 0) throw new Trouble("refused", "not now");
    return answer({ error: { message: "no such map", position: 3 } });
  });
  await assert.rejects(ask("F", { kind: "x" }, { input: INPUT }), /not now/);
  for (let time = 0; time < 2; time++) {
    await assert.rejects(
      ask("F", { kind: "x" }, { input: INPUT }),
      (error) => error instanceof Trouble && error.position === 3,
    );
  }
  assert.equal(asked, 2);
});

test("when nobody answers, the page says so, waits, and goes on", async () => {
  let asked = 0;
  const { ask, gone } = session(async () => {
    if (asked++ === 0) throw new Trouble("gone", "nobody there");
    return answer({ said: 1 });
  });
  assert.equal((await ask("F", { kind: "x" }, { input: INPUT })).head.said, 1);
  assert.deepEqual(gone, ["nobody there", null]);
});

test("texts without patches need not be asked for, others are", async () => {
  /** @type {string[]} */
  const asked = [];
  const { canonical } = session(async (request) => (asked.push(request.program), answer({ program: "F2 known" })));
  assert.equal(await canonical("F F  J:one F", { input: INPUT }), "F2 J:one F");
  assert.deepEqual(asked, []);
  assert.equal(await canonical(" F J:nobody F ", { input: INPUT }), "F2 known");
  assert.deepEqual(asked, ["F J:nobody F"]);
});

test("of two things only the newer is finished", async () => {
  /** @type {(string | null)[]} */
  const told = [];
  const run = newest((trouble) => told.push(trouble?.message ?? null));
  /** @type {string[]} */
  const done = [];
  const slow = run(async (signal) => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    if (signal.aborted) throw new Trouble("cancelled", "stopped");
    done.push("slow");
  });
  const quick = run(async () => void done.push("quick"));
  await Promise.all([slow, quick]);
  assert.deepEqual(done, ["quick"]);
  assert.deepEqual(told, [null]);
});

test("a kernel's replies find whoever asked", async () => {
  /** @type {(message: any, buffers: any[]) => void} */
  let hear = () => {};
  /** @type {any[]} */
  const sent = [];
  const host = kernelHost({ send: (message) => sent.push(message), on: (_, heard) => void (hear = heard) });
  /** @type {any[]} */
  const progress = [];
  const one = host.ask(/** @type {any} */ ({ program: "F" }), { progress: (how) => progress.push(how) });
  const two = host.hello();
  const three = host.ask(/** @type {any} */ ({ program: "X" }));
  assert.deepEqual(
    sent.map((each) => each.do),
    ["ask", "hello", "ask"],
  );
  hear({ id: sent[1].id, hello: { model: "m" } }, []);
  hear({ id: sent[0].id, progress: { done: 1 } }, []);
  hear({ id: sent[2].id, error: { message: "no", position: null } }, []);
  const bytes = answer({ said: 1 });
  hear({ id: sent[0].id, answer: true }, [new DataView(bytes.buffer)]);
  hear({ id: 99, answer: true }, []);
  assert.deepEqual(/** @type {any} */ (await two), { model: "m" });
  assert.deepEqual([...(await one)], [...bytes]);
  assert.deepEqual(progress, [{ done: 1 }]);
  await assert.rejects(three, /no/);
});

test("what is asked for can be stopped, and says so", async () => {
  const { ask, stop } = session(
    (_, how) =>
      new Promise((__, reject) =>
        how.signal.addEventListener("abort", () => reject(new Trouble("cancelled", "stopped"))),
      ),
  );
  const one = ask("F", { kind: "x" }, { input: INPUT });
  stop();
  await assert.rejects(one, (error) => error instanceof Trouble && error.kind === "stopped");
});

test("where nothing was recorded, a wrong program is told as wrong and another one stands", async () => {
  const { canonical } = session(async () => {
    throw new Trouble("unrecorded", "not recorded");
  });
  for (const [text, said, position] of /** @type {[string, RegExp, number | null][]} */ ([
    ["F6 X", /no stack named X .* there are: F$/, 3],
    ["F6 J:nobody F", /no map named nobody .* there are: one$/, 3],
    ["F6 F[layer[2].z<-(F6 J:two F)@other]", /no map named two/, null],
    ["F7 nonsense", /cannot be read as a program/, null],
  ]))
    await assert.rejects(
      canonical(text, { input: INPUT }),
      (error) =>
        error instanceof Trouble && error.kind === "wrong" && said.test(error.message) && error.position === position,
    );
  const fine = "F6 F[layer[2].z<-(F6 J:one F)@other]";
  assert.equal(await canonical(fine, { input: INPUT }), fine);
});
