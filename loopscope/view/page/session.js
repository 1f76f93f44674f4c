/** Asking the host: answers are kept, the newest question of a kind replaces the one before, waiting is shown. */

import { Trouble, canonicalText, decoded, nameOf } from "./contract.js";
import { formatProgram, parseProgram, unknownIn } from "./program.js";

/**
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {import("./contract.js").Hello} Hello
 * @typedef {import("./contract.js").Input} Input
 * @typedef {import("./contract.js").Progress} Progress
 * @typedef {import("./contract.js").Read} Read
 * @typedef {import("./contract.js").Request} Request
 * @typedef {import("./hosts.js").Host} Host
 * @typedef {{what: string, done: number, total: number, ahead: number}} Waiting
 * @typedef {{waiting: (what: Waiting | null) => void, gone: (message: string | null) => void}} Notices
 */

const KEPT_BYTES = 48 * 2 ** 20;
const SLOW = 500;
const AGAIN = 2000;
const TRIES = 4;
const GRACE = 100;
const ANEW =
  "The program behind this page was started anew. The address that it printed, with the end of this one from # on, shows the same.";

/** About how many bytes an answer takes. @param {Answer} answer @returns {number} */
function sizeOf(answer) {
  return Object.values(answer.arrays).reduce((all, values) => all + 4 * values.data.length, 1000);
}

const UNREADABLE = "This cannot be read as a program, such as F6 J:one F; a page with the model says at which place.";

/**
 * What is wrong with a program, as far as the page can say without the model: a stack or map that is not there.
 * @param {string} text @param {Hello} hello @returns {Trouble | null}
 */
function wrongIn(text, hello) {
  const [stacks, maps] = [hello.stacks, hello.maps].map((all) => all.map((each) => each.name));
  const found = unknownIn(text, { stacks, maps });
  if (!found) return null;
  const there = (found.kind === "map" ? maps : stacks).join(", ") || "none";
  const message = `there is no ${found.kind} named ${found.name} in this page; there are: ${there}`;
  return new Trouble("wrong", message, found.position);
}

/**
 * @param {Host} host @param {Hello} hello @param {Notices} notices
 */
export function sessionWith(host, hello, notices) {
  /** @type {Map<string, {answer: Promise<Answer>, bytes: number}>} */
  const kept = new Map();
  let held = 0;
  let away = false;
  /** @type {Set<{since: number, how: Progress | null, stop: () => void}>} */
  const open = new Set();
  /** @type {(() => void)[]} */
  let back = [];

  const report = () => {
    const slow = [...open].filter((each) => performance.now() - each.since >= SLOW - 5);
    if (away || !slow.length) return notices.waiting(null);
    const first = slow.find((each) => each.how?.total) ?? slow[0];
    const { what = "", done = 0, total = 0, ahead = 0 } = first.how ?? {};
    notices.waiting({ what, done, total, ahead });
  };

  const knock = async () => {
    try {
      const again = await host.hello();
      away = false;
      notices.gone(again.model === hello.model ? null : "Another model answers now. Load the page again to see it.");
      const resume = back;
      back = [];
      for (const go of resume) go();
    } catch (error) {
      if (error instanceof Trouble && error.kind === "refused") notices.gone(ANEW);
      setTimeout(knock, AGAIN);
    }
  };

  /** @param {Trouble} trouble @returns {Promise<void>} settled when the host is back */
  const returned = (trouble) =>
    new Promise((resolve) => {
      back.push(resolve);
      if (away) return;
      away = true;
      notices.gone(trouble.message);
      setTimeout(knock, AGAIN);
    });

  /** @param {Request} request @param {AbortSignal | undefined} signal @param {((how: Progress) => void)} [told] */
  const fetched = async (request, signal, told) => {
    const control = new AbortController();
    let stopped = false;
    const mine = {
      since: performance.now(),
      how: /** @type {Progress | null} */ (null),
      stop: () => {
        stopped = true;
        control.abort();
      },
    };
    signal?.addEventListener("abort", () => control.abort(), { once: true });
    if (signal?.aborted) control.abort();
    open.add(mine);
    const timer = setTimeout(report, SLOW);
    try {
      for (let tries = 1; ; tries++) {
        try {
          return await host.ask(request, {
            signal: control.signal,
            progress: (how) => {
              mine.how = how;
              told?.(how);
              report();
            },
          });
        } catch (error) {
          if (stopped) throw new Trouble("stopped", "Stopped. Choose anything to go on.");
          if (!(error instanceof Trouble) || control.signal.aborted) throw error;
          if (error.kind === "busy" && tries < TRIES) await new Promise((resolve) => setTimeout(resolve, SLOW));
          else if (error.kind === "gone") await returned(error);
          else throw error;
          if (control.signal.aborted) throw new Trouble(stopped ? "stopped" : "cancelled", "stopped");
        }
      }
    } finally {
      clearTimeout(timer);
      open.delete(mine);
      report();
    }
  };

  const trim = () => {
    for (const [name, each] of kept) {
      if (held <= KEPT_BYTES) break;
      if (!each.bytes) continue;
      kept.delete(name);
      held -= each.bytes;
    }
  };

  /**
   * The answer to a request, from memory where it was asked before.
   * @param {string} program canonical text @param {Read} read @param {{input: Input, others?: Record<string, Input>,
   *   signal?: AbortSignal, progress?: (how: Progress) => void}} about @returns {Promise<Answer>}
   */
  const ask = async (program, read, about) => {
    const request = requestOf(program, read, about.input, about.others);
    const name = nameOf(request);
    const known = kept.get(name);
    if (!known) return start(name, request, about);
    kept.delete(name);
    kept.set(name, known);
    try {
      return await known.answer;
    } catch (error) {
      // Whoever asked first may have given up; this one has not.
      const stopped = error instanceof Trouble && error.kind === "cancelled" && !about.signal?.aborted;
      if (stopped) return start(name, request, about);
      throw error;
    }
  };

  /** @param {string} name @param {Request} request @param {{signal?: AbortSignal, progress?: (how: Progress) => void}} about */
  const start = (name, request, about) => {
    const entry = { bytes: 0, answer: fetched(request, about.signal, about.progress).then(decoded) };
    kept.set(name, entry);
    entry.answer.then(
      (answer) => {
        entry.bytes = sizeOf(answer);
        held += entry.bytes;
        trim();
      },
      () => {},
    );
    entry.answer.catch((error) => {
      // What the library says of a program stays so; everything else may be different next time.
      if (!(error instanceof Trouble && error.kind === "wrong") && kept.get(name) === entry) kept.delete(name);
      if (!(error instanceof Trouble && ["cancelled", "stopped"].includes(error.kind))) return;
      // Who asks for the same again at once still wants it.
      setTimeout(() => kept.has(name) || host.cancel(name).catch(() => {}), GRACE);
    });
    return entry.answer;
  };

  /**
   * @param {string} program @param {Read} read @param {Input} input @param {Record<string, Input>} [others]
   * @returns {Request}
   */
  const requestOf = (program, read, input, others = {}) => {
    const named = Object.entries(others).filter(([name]) => canonicalText([program, read]).includes(`@${name}`));
    return { model: hello.model, input, others: Object.fromEntries(named), program, read };
  };

  /**
   * The text of a program as the library writes it. Where there are no patches the page knows; else it asks. Where
   * nobody can be asked, what the page cannot say wrong stands as it is written.
   * @param {string} text @param {{input: Input, others?: Record<string, Input>, signal?: AbortSignal}} about
   * @returns {Promise<string>}
   */
  const canonical = async (text, about) => {
    const parsed = parseProgram(text);
    const plain =
      parsed && /^[^()[\]]*$/.test(text) && parsed.steps.every((step) => step.kind === "map" || step.stack === "F");
    const mapsKnown = parsed?.steps.every(
      (step) => step.kind === "call" || hello.maps.some((map) => map.name === step.name),
    );
    if (parsed && plain && mapsKnown && !parsed.start) return formatProgram(parsed);
    try {
      return (await ask(text.trim(), { kind: "check" }, about)).head.program;
    } catch (error) {
      if (!(error instanceof Trouble && error.kind === "unrecorded")) throw error;
      const wrong = wrongIn(text, hello);
      if (wrong || !parsed) throw wrong ?? new Trouble("wrong", UNREADABLE);
      return formatProgram(parsed);
    }
  };

  return {
    host,
    hello,
    ask,
    canonical,
    requestOf,
    /** Give up everything that is being asked for. */
    stop: () => {
      for (const each of open) each.stop();
    },
  };
}

/** @typedef {ReturnType<typeof sessionWith>} Session */

/** How many things are being brought up to date, and who wants to know. */
const work = { count: 0, heard: /** @type {Set<(busy: boolean) => void>} */ (new Set()) };

/** @param {number} by */
function count(by) {
  work.count += by;
  for (const listener of work.heard) listener(work.count > 0);
}

/** Hear whether anything is being brought up to date. @param {(busy: boolean) => void} listener @returns {() => void} */
export function onWork(listener) {
  work.heard.add(listener);
  return () => void work.heard.delete(listener);
}

/**
 * Runs one thing at a time: a new one stops the one before. What was stopped is forgotten; other trouble goes to `tell`.
 * @param {(trouble: Trouble | null) => void} tell null before something new is tried
 */
export function newest(tell) {
  /** @type {AbortController | null} */
  let now = null;
  /** @param {(signal: AbortSignal) => Promise<void>} work @returns {Promise<void>} */
  return async (work) => {
    now?.abort();
    const mine = new AbortController();
    now = mine;
    count(1);
    try {
      await work(mine.signal);
      if (now === mine) tell(null);
    } catch (error) {
      if (mine.signal.aborted || now !== mine) return;
      if (error instanceof Trouble && error.kind === "cancelled") return;
      tell(error instanceof Trouble ? error : new Trouble("refused", `this page has a mistake: ${error}`));
      if (!(error instanceof Trouble)) console.error(error);
    } finally {
      count(-1);
    }
  };
}
