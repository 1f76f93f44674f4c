/** The guided tour: nine stops, each with words, a number, and something to try. */

import { el, fill } from "./dom.js";
import { newest } from "./session.js";
import { WORDS } from "./stops.js";
import { LIVE } from "./tourlive.js";
import { troublePlace } from "./trouble.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Stop} Stop
 * @typedef {import("./contract.js").Measured} Measured
 */

/** What is forgotten on the way to another stop. */
const FRESH = { pick: "", loop: "", input: "", program: "" };

/** @param {App} app @returns {View} */
export function tourView(app) {
  const { hello, state } = app;
  const stops = /** @type {Stop[]} */ (hello.tour ?? []);
  const title = el("h2", { tabindex: -1 });
  const place = el("p", { class: "kicker" });
  const says = el("div", { class: "says" });
  const found = el("p", { class: "found" });
  const source = el("p", { class: "key" });
  const look = el("p", { class: "look" });
  const live = el("div", { class: "live" });
  const trouble = troublePlace(hello, live);
  const back = el("button", { type: "button", class: "quiet", onclick: () => turn(-1) }, "← Back");
  const on = el(
    "button",
    {
      type: "button",
      class: "main",
      onclick: () =>
        now() === stops.length - 1 ? app.go({ ...FRESH, view: hello.kind === "graph" ? "walk" : "text" }) : turn(1),
    },
    "Next →",
  );
  const dots = el("div", { class: "dots", role: "group", "aria-label": "Stops" });
  stops.forEach((_, at) =>
    dots.append(
      el("button", {
        type: "button",
        "aria-label": `Stop ${at + 1}: ${wordsOf(stops[at].id)?.title ?? ""}`,
        title: wordsOf(stops[at].id)?.title,
        onclick: () => go(at),
      }),
    ),
  );
  const element = el(
    "section",
    { class: "view tour", "aria-label": "Guided tour" },
    el("div", { class: "words" }, place, title, says, found, source, look),
    el("div", {}, trouble.element, live),
    el("nav", { class: "turns", "aria-label": "Tour" }, back, dots, on),
  );
  const run = newest(trouble.tell);
  /** @type {Map<number, {element: HTMLElement, show: (signal: AbortSignal) => Promise<void>, stop?: () => void}>} */
  const made = new Map();
  let shown = -1;

  const now = () => {
    const told = Number(state.get().stop || 1);
    return told >= 1 && told <= stops.length ? told - 1 : 0;
  };
  /** @param {number} at */
  const go = (at) => {
    if (at < 0 || at >= stops.length) return;
    app.go({ ...FRESH, stop: String(at + 1) });
    // Whoever reads by ear hears where the page is now.
    title.focus({ preventScroll: true });
    element.scrollIntoView({ block: "start" });
  };
  /** @param {number} by */
  const turn = (by) => go(now() + by);
  // Where nothing has the focus, arrow keys turn the pages, too; a notebook has uses of its own for them.
  const heard = app.session.host.kind === "notebook" ? element : document;
  heard.addEventListener("keydown", (/** @type {any} */ event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (!element.isConnected || !(element.contains(target) || target === document.body)) return;
    if (
      target.closest("[role=radiogroup], .board, .calls, select, input, textarea") ||
      event.altKey ||
      event.metaKey ||
      event.ctrlKey
    )
      return;
    if (event.key === "ArrowRight") turn(1);
    if (event.key === "ArrowLeft") turn(-1);
  });

  return {
    element,
    hide: () => made.get(shown)?.stop?.(),
    show: () => {
      const at = now();
      const stop = stops[at];
      const words = wordsOf(stop.id);
      let piece = made.get(at);
      if (!piece) {
        piece = LIVE[stop.id]?.(app, stop) ?? { element: el("div", {}), show: async () => {} };
        made.set(at, piece);
      }
      if (shown !== at) {
        made.get(shown)?.stop?.();
        shown = at;
        place.textContent = `${at + 1} of ${stops.length}`;
        title.textContent = words?.title ?? stop.id;
        fill(says, ...(words?.says ?? []).map((text) => el("p", {}, text)));
        look.textContent = words?.look ?? "";
        tellFound(stop, words);
        fill(live, piece.element);
        back.disabled = at === 0;
        on.textContent = at === stops.length - 1 ? "Explore →" : "Next →";
        [...dots.children].forEach((dot, index) =>
          index === at ? dot.setAttribute("aria-current", "step") : dot.removeAttribute("aria-current"),
        );
      }
      const { show } = piece;
      run((signal) => show(signal));
    },
  };

  /** @param {Stop} stop @param {import("./stops.js").Words | undefined} words */
  function tellFound(stop, words) {
    /** @type {Measured[]} */
    const used = [];
    const told = (/** @type {string} */ name) => {
      const number = stop.numbers.find((each) => each.id === name);
      if (number) used.push(number);
      return number ? shortText(number) : "–";
    };
    const at = (/** @type {string} */ name) =>
      Number(/position=(\d+)/.exec(stop.numbers.find((each) => each.id === name)?.at ?? "")?.[1] ?? NaN);
    const text = stop.numbers.length ? (words?.found(told, at) ?? "") : "";
    found.textContent = text;
    found.hidden = !text;
    const counts = [...new Set(used.map((each) => each.n).filter((n) => n))].map((n) => Number(n).toLocaleString("en"));
    source.hidden = !text;
    const ends = used.map((each) =>
      each.low === null || each.high === null
        ? "–"
        : `[${(100 * each.low).toFixed(1)}, ${(100 * each.high).toFixed(1)}]`,
    );
    const note = words?.note ?? "The walk shown is one on which it comes out clearly.";
    source.textContent =
      `Measured, as in the ledger. 95 % intervals, in this order: ${ends.join(", ")}${counts.length ? `; n = ${counts.join(", ")}` : ""}. ${note}`
        .trim()
        .replaceAll("[-", "[−");
    source.title = used.map((each) => `${each.label}: ${each.text}`).join("\n");
  }
}

/** @param {string} id */
function wordsOf(id) {
  return WORDS.find((each) => each.id === id);
}

/** A measured number in few signs. @param {Measured} number @returns {string} */
function shortText(number) {
  return number.text
    .split(/[,[(;]/)[0]
    .trim()
    .replace(" %", "\u00a0%");
}
