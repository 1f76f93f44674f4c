/** The run as a strip: every call of F, and between two calls the place where a map may stand. */

import { el, fill } from "./dom.js";
import {
  callsIn,
  firstCall,
  formatProgram,
  mapsAfter,
  parseProgram,
  patchesOf,
  stackAt,
  withCall,
  withMaps,
  withoutCall,
} from "./program.js";

const PACE = 850;
const MOST_SHOWN = 64;
const EDGE = 4;

/**
 * @typedef {{maps: {name: string, title: string}[], change: (program: string) => void, choose: (loop: number) => void,
 *   fixed?: boolean, least?: number}} StripSettings  `fixed` hides what changes the program
 */

/**
 * Maps for a list to choose from: those with plain names first, other fits and families behind them.
 * @param {{name: string, title: string}[]} maps @returns {{label: string, maps: {name: string, title: string}[]}[]}
 */
export function groupsOf(maps) {
  const plain = (/** @type {{name: string}} */ map) => !map.name.includes("-");
  return [
    { label: "Maps", maps: maps.filter(plain) },
    { label: "Other fits", maps: maps.filter((map) => !plain(map)) },
  ].filter((group) => group.maps.length);
}

/**
 * The strip. `show(program, loop)` draws it; clicks and keys call `change` with another program or `choose` with a loop.
 * @param {StripSettings} settings
 */
export function runStrip(settings) {
  const calls = el("div", { class: "calls", role: "group", "aria-label": "Loops: choose one to look at" });
  const play = el(
    "button",
    { type: "button", class: "play", "aria-label": "Play the loops one after the other" },
    "▶ Play",
  );
  const element = el("div", { class: "strip" }, play, calls);
  let now = { program: "", loop: 0, from: 0, to: 0 };
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;

  const stop = () => {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "▶ Play";
    play.setAttribute("aria-label", "Play the loops one after the other");
  };
  play.addEventListener("click", () => {
    if (timer) return stop();
    play.textContent = "❚❚ Stop";
    play.setAttribute("aria-label", "Stop");
    settings.choose(now.loop >= now.to ? now.from : now.loop + 1);
    timer = setInterval(() => {
      if (!element.isConnected || now.loop >= now.to) return stop();
      settings.choose(now.loop + 1);
      if (now.loop >= now.to) stop();
    }, PACE);
  });
  calls.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (!target.dataset.loop) return;
    const next = { ArrowLeft: now.loop - 1, ArrowRight: now.loop + 1, Home: now.from, End: now.to }[event.key];
    if (next === undefined || next < now.from || next > now.to) return;
    event.preventDefault();
    settings.choose(next);
    /** @type {HTMLElement | null} */ (calls.querySelector(`[data-loop="${next}"]`))?.focus();
  });

  /** @param {import("./program.js").Program} program @param {number} after @returns {HTMLElement} */
  const joint = (program, after) => {
    const names = mapsAfter(program, after);
    const text = names.join(" ");
    if (settings.fixed || (!settings.maps.length && !text))
      return el("span", { class: names.length ? "joint set" : "joint" }, names.length ? `J ${text}` : "");
    const select = el("select", {
      class: names.length ? "joint set" : "joint",
      "aria-label": `Map before loop ${after + 1}`,
      "data-after": after,
    });
    const option = (/** @type {string} */ value, /** @type {string} */ shown, /** @type {string} */ title = "") =>
      el("option", { value, selected: value === text, title: title || null }, shown);
    const known = settings.maps.some((map) => map.name === text);
    fill(
      select,
      option("", names.length ? "no map" : "J"),
      ...groupsOf(settings.maps).map((group) =>
        el(
          "optgroup",
          { label: group.label },
          ...group.maps.map((map) => option(map.name, `J ${map.name}`, map.title)),
        ),
      ),
      text && !known ? option(text, `J ${text}`) : null,
    );
    select.title = names.length ? `map ${text} before loop ${after + 1}` : `no map before loop ${after + 1}`;
    select.addEventListener("change", () => {
      const chosen = select.value ? select.value.split(" ") : [];
      settings.change(formatProgram(withMaps(program, after, chosen)));
    });
    return select;
  };

  /** @param {number} loop @param {string} text @param {number} patches */
  const call = (loop, text, patches) =>
    el(
      "button",
      {
        type: "button",
        class: patches ? "call patched" : "call",
        "data-loop": loop,
        "aria-pressed": String(loop === now.loop),
        "aria-label": `${loop === now.from ? `start, state h${loop}` : `loop ${loop}`}${patches ? `, ${patches} patched` : ""}`,
        tabindex: loop === now.loop ? 0 : -1,
        onclick: () => settings.choose(loop),
      },
      text,
    );

  /** A long strip scrolls by itself: the loop that is looked at stays in sight, and the page where it is. */
  const followLoop = () => {
    const chosen = /** @type {HTMLElement | null} */ (calls.querySelector('[aria-pressed="true"]'));
    if (!chosen || calls.scrollHeight <= calls.clientHeight) return;
    const [box, inner] = [calls.getBoundingClientRect(), chosen.getBoundingClientRect()];
    if (inner.top < box.top) calls.scrollTop += inner.top - box.top - EDGE;
    if (inner.bottom > box.bottom) calls.scrollTop += inner.bottom - box.bottom + EDGE;
  };

  return {
    element,
    stop,
    /** @param {string} text @param {number} loop */
    show: (text, loop) => {
      const program = parseProgram(text);
      element.hidden = !program;
      if (!program) return;
      const from = firstCall(program);
      const to = from + callsIn(program);
      const same = text === now.program && from === now.from && calls.childElementCount > 0;
      now = { program: text, loop: Math.min(to, Math.max(from, loop)), from, to };
      if (same) {
        for (const button of calls.querySelectorAll("[data-loop]")) {
          const on = button.getAttribute("data-loop") === String(now.loop);
          button.setAttribute("aria-pressed", String(on));
          button.setAttribute("tabindex", on ? "0" : "-1");
        }
        return followLoop();
      }
      const focus = document.activeElement;
      const after = focus instanceof HTMLElement && calls.contains(focus) ? focus.dataset.after : undefined;
      const button = focus instanceof HTMLElement && calls.contains(focus) ? focus.dataset.act : undefined;
      const patched = patchesOf(program);
      /** @type {HTMLElement[]} */
      const cells = [call(from, from ? `h${from}` : "start", 0)];
      for (let at = from; at < Math.min(to, from + MOST_SHOWN); at++) {
        cells.push(joint(program, at));
        const stack = stackAt(program, at + 1);
        cells.push(
          call(
            at + 1,
            stack === "F" ? String(at + 1) : `${stack} ${at + 1}`,
            patched.filter((each) => each.loop === at + 1).length,
          ),
        );
      }
      if (to - from > MOST_SHOWN) cells.push(el("span", { class: "key" }, " … "), call(to, String(to), 0));
      if (!settings.fixed) {
        const fewer = el(
          "button",
          {
            type: "button",
            class: "quiet step",
            "aria-label": "Leave out the last call",
            "data-act": "fewer",
            onclick: () => settings.change(formatProgram(withoutCall(program))),
          },
          "−",
        );
        const more = el(
          "button",
          {
            type: "button",
            class: "quiet step",
            "aria-label": "Add a call of F",
            "data-act": "more",
            onclick: () => settings.change(formatProgram(withCall(program))),
          },
          "+",
        );
        fewer.disabled = to - from <= (settings.least ?? 1);
        cells.push(fewer, more);
      }
      fill(calls, ...cells);
      const again = after !== undefined ? `[data-after="${after}"]` : button ? `[data-act="${button}"]` : null;
      if (again) /** @type {HTMLElement | null} */ (calls.querySelector(again))?.focus();
      followLoop();
    },
  };
}
