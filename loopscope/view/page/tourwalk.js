/** A walk at a stop of the tour: choices above it, the graph, and the strip of its loops. */

import { percent } from "./colour.js";
import { choice, el, fill, labelledChoice } from "./dom.js";
import { GRAPH_KEY, graphView } from "./graphview.js";
import { parseInput } from "./inputs.js";
import { callsIn, mapsAfter, parseProgram } from "./program.js";
import { isSure, loopTold, pointAt, readoutTold, sharesAt, trailOf } from "./readout.js";
import { topList } from "./sides.js";
import { runStrip } from "./strip.js";
import { WALK_READ } from "./walk.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {import("./contract.js").Stop} Stop
 * @typedef {{graph: number[], start: number, depth: number}} Walk
 * @typedef {{element: HTMLElement, show: (signal: AbortSignal) => Promise<void>, stop?: () => void}} Live
 * @typedef {{value: string, text: string, program: string, title?: string}} Option
 */

/** The walk of a stop: the one in the link, else the stop's own. @param {App} app @param {Stop} stop @returns {Walk} */
export function walkOf(app, stop) {
  const told =
    parseInput(app.state.get().input ?? "", app.hello) ??
    parseInput(stop.input, app.hello) ??
    app.hello.inputs[0].input;
  return /** @type {Walk} */ (told);
}

/** The second input that belongs to a stop's first. @param {App} app @param {Stop} stop */
export function othersOf(app, stop) {
  const text = app.state.get().input || stop.input;
  const example = app.hello.inputs.find((each) => each.id === text);
  return example?.others ?? app.hello.others;
}

/** Choices among the walks of the page. @param {App} app @param {Stop} stop @returns {HTMLElement} */
export function walkChoice(app, stop) {
  const now = app.state.get().input || stop.input;
  const walks = app.hello.inputs.map((each, at) => ({ value: each.id, text: `walk ${at + 1}`, title: each.title }));
  return choice("Walk", walks, now, (value) => app.state.set({ input: value === stop.input ? "" : value }));
}

/**
 * A walk with choices above it: options are programs, and the strip shows their loops.
 * @param {App} app @param {Stop} stop
 * @param {{options: Option[], label: string, walks?: boolean, beside?: (answer: Answer, walk: Walk, option: Option,
 *   signal: AbortSignal) => Promise<HTMLElement | null> | HTMLElement | null, bare?: boolean,
 *   meaning?: (walk: Walk, node: number) => string | null}} about  `bare`: without the line that explains the drawing;
 *   `meaning`: what a sure answer of the whole run is, where steps from the start say nothing
 * @returns {Live}
 */
export function walkLive(app, stop, about) {
  const choices = el("div", { class: "controls" });
  const graph = graphView();
  const words = el("p", { class: "sentence", "aria-live": "polite" });
  const beside = el("div", { class: "beside" });
  const strip = runStrip({
    maps: [],
    change: () => {},
    choose: (loop) => app.state.set({ loop: String(loop) }),
    fixed: true,
  });
  const element = el(
    "div",
    { class: about.bare ? "walking below" : "walking" },
    choices,
    words,
    el("div", { class: "pair" }, graph.element, beside),
    strip.element,
    about.bare ? null : el("p", { class: "key" }, GRAPH_KEY),
  );
  return {
    element,
    stop: strip.stop,
    show: async (signal) => {
      const { pick = "", loop = "" } = app.state.get();
      const option = about.options.find((each) => each.value === pick) ?? about.options[0];
      const picked =
        about.options.length > 1
          ? labelledChoice(about.label, about.options, option.value, (value) =>
              app.state.set({ pick: value === about.options[0].value ? "" : value }),
            )
          : null;
      fill(choices, picked, about.walks ? walkChoice(app, stop) : null);
      const walk = walkOf(app, stop);
      const answer = await app.session.ask(option.program, WALK_READ, {
        input: walk,
        others: othersOf(app, stop),
        signal,
      });
      if (signal.aborted) return;
      const points = answer.head.points;
      const last = points[points.length - 1].calls;
      const at = /^\d+$/.test(loop) ? Math.min(last, Number(loop)) : last;
      const trail = trailOf(answer);
      strip.show(option.program, at);
      graph.show({ walk, trail, loop: at, shares: sharesAt(answer, pointAt(points, at)) });
      const here = trail[at];
      const meant = at === last && isSure(here) ? about.meaning?.(walk, here.node) : null;
      fill(
        words,
        el("strong", {}, meant ? `${meant}. ` : loopTold(walk, trail, at, at)),
        meant
          ? `Readout: node ${here.node} (${percent(here.share)}).`
          : `Readout: ${readoutTold(walk, here.node, here.share, at >= app.hello.loops)}.`,
      );
      const more = about.beside
        ? await about.beside(answer, walk, option, signal)
        : topList(answer, pointAt(points, at), walk);
      if (!signal.aborted) fill(beside, more);
    },
  };
}

/** @param {string} program @returns {string} the maps of a program, in words */
function mapsTold(program) {
  const parsed = parseProgram(program);
  if (!parsed) return program;
  const names = Array.from({ length: callsIn(parsed) + 1 }, (_, after) => mapsAfter(parsed, after)).flat();
  return names.length ? names.map((name) => `J ${name}`).join(", ") : "no map";
}

/** @param {string[]} programs @returns {Option[]} */
export function optionsOf(programs) {
  return programs.map((program) => ({ value: program, text: mapsTold(program), program }));
}
