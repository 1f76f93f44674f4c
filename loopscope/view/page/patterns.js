/** Patterns: all heads of a loop and layer as thumbnails, one in full, and its difference to another loop or run. */

import { runChoices } from "./choices.js";
import { ATTENTION, percent } from "./colour.js";
import { el, fill, labelledChoice, picker } from "./dom.js";
import { heatMap } from "./heatmap.js";
import { parseProgram, stackAt } from "./program.js";
import { newest } from "./session.js";
import { headThumbs } from "./thumbs.js";
import { troublePlace } from "./trouble.js";
import { visible } from "./textgrid.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Values} Values
 */

/** How many cells a thumbnail has along each side. */
export const THUMB = 64;

/** How high a pattern is at most, in pixels, where its rows allow: with its head it fits on a laptop. */
const HIGH = 560;

/** @param {number} loop @param {number} layer @returns {string} */
export function layerPlace(loop, layer) {
  return `loop[${loop}].layer[${layer}]`;
}

/**
 * How many layers a call has: those of the stack it calls, by default in the loop that is looked at.
 * @param {App} app @param {number} [loop] @returns {number}
 */
export function layersAt(app, loop = Math.max(1, app.loop())) {
  const program = parseProgram(app.program());
  const stack = program ? stackAt(program, loop) : "F";
  return (app.hello.stacks.find((each) => each.name === stack) ?? app.hello.stacks[0])?.layers ?? 1;
}

/** The layer that is looked at: the last one unless told. @param {App} app @returns {number} */
export function layerNow(app) {
  const told = Number(app.state.get().layer || NaN);
  return told >= 1 && told <= layersAt(app) ? told : layersAt(app);
}

/** The largest size among numbers, never nothing. @param {ArrayLike<number>} values @returns {number} */
function largest(values) {
  let most = 1e-6;
  for (let at = 0; at < values.length; at++) most = Math.max(most, Math.abs(values[at]));
  return most;
}

/** @param {App} app @returns {View} */
export function patternsView(app) {
  const { session, state, hello } = app;
  const layers = el("div", { class: "slot" });
  const differences = el("div", { class: "slot" });
  const thumbs = headThumbs((head) => state.set({ head: String(head) }));
  const title = el("figcaption", {});
  const says = el("p", {});
  const chips = el("div", { class: "chips", "aria-hidden": "true" });
  const looks = el("div", { class: "looks" }, says, chips);
  /** @type {any[]} the tokens that the chips are of */
  let chipsOf = [];
  /** @type {{values: ArrayLike<number>, side: number, rows: number[], tokens: any[], both: boolean} | null} */
  let now = null;
  let hovered = -1;

  /** @param {number} row */
  const looksOf = (row) => {
    if (!now) return;
    const { values, side, tokens, both } = now;
    const strengths = Array.from({ length: side }, (_, column) => values[row * side + column]);
    const most = Math.max(...strengths.map(Math.abs), 1e-6);
    if (chipsOf !== tokens) {
      fill(
        chips,
        ...tokens.map((token, column) => el("span", { class: "chip", "data-row": column }, visible(token.text))),
      );
      chipsOf = tokens;
    }
    strengths.forEach((strength, column) => {
      const chip = /** @type {HTMLElement | undefined} */ (chips.children[column]);
      if (!chip) return;
      chip.title = `row ${column}, ${tokens[column].title ?? ""}: ${percent(strength)}`;
      chip.style.setProperty("--share", String(both ? Math.abs(strength) / most : Math.sqrt(strength)));
      chip.classList.toggle("less", strength < 0);
      chip.classList.toggle("self", column === row);
    });
    const best = [...strengths.keys()].sort((a, b) => Math.abs(strengths[b]) - Math.abs(strengths[a])).slice(0, 3);
    const words = best.map(
      (column) =>
        `${percent(strengths[column])} row ${column} “${visible(tokens[column]?.text ?? "")}”${tokens[column]?.title ? ` (${tokens[column].title})` : ""}`,
    );
    const name = tokens[row];
    fill(
      says,
      el("strong", {}, `Row ${row}, “${visible(name?.text ?? "")}”${name?.title ? ` (${name.title})` : ""}, `),
      both ? "looks differently at: " : "looks at: ",
      words.join(", "),
    );
  };
  const rowNow = () => {
    const side = now?.side ?? 1;
    const told = state.get().row;
    const row = told === "" || told === undefined ? side - 1 : Number(told);
    return row >= 0 && row < side ? row : side - 1;
  };
  /** @param {Event} event */
  const chipAt = (event) => /** @type {Element} */ (event.target).closest(".chip")?.getAttribute("data-row");
  chips.addEventListener("pointerover", (event) => {
    const row = chipAt(event);
    if (row) looksOf(Number(row));
  });
  chips.addEventListener("pointerleave", () => looksOf(rowNow()));
  chips.addEventListener("click", (event) => {
    const row = chipAt(event);
    if (row) state.set({ row });
  });
  const large = heatMap({
    label: "The pattern of one head: rows look at columns",
    tell: (row, column) =>
      now
        ? `row ${row} “${visible(now.tokens[row]?.text ?? "")}” → row ${column} “${visible(now.tokens[column]?.text ?? "")}”: ${percent(now.values[row * now.side + column])}`
        : "",
    pick: (row) => state.set({ row: String(row) }),
    point: (cell) => {
      const row = cell ? cell[0] : rowNow();
      if (row !== hovered) looksOf(row);
      hovered = row;
    },
  });
  const stage = el(
    "div",
    {},
    thumbs.element,
    el("div", { class: "two pattern" }, el("figure", {}, title, large.element), looks),
  );
  const trouble = troublePlace(hello, stage);
  const element = el(
    "section",
    { class: "view", "aria-label": "Patterns" },
    el("div", { class: "controls" }, layers, differences),
    trouble.element,
    stage,
  );
  const run = newest(trouble.tell);

  const controls = () => {
    const layer = layerNow(app);
    const count = layersAt(app);
    const each = Array.from({ length: count }, (_, at) => ({ value: String(at + 1), text: String(at + 1) }));
    const chooseLayer = (/** @type {string} */ value) => state.set({ layer: value });
    fill(
      layers,
      count > 8
        ? picker("Layer", each, String(layer), chooseLayer)
        : labelledChoice("Layer", each, String(layer), chooseLayer),
    );
    const loops = Array.from({ length: app.calls() }, (_, at) => at + 1).filter((loop) => loop !== app.loop());
    const diff = state.get().diff ?? "";
    const choices = [
      { value: "", text: "nothing: the pattern itself" },
      ...loops.map((loop) => ({ value: `loop:${loop}`, text: `loop ${loop}` })),
      ...runChoices(app)
        .filter((run) => run.value !== app.program())
        .map((run) => ({ value: `run:${run.value}`, text: `run ${run.text}` })),
    ];
    if (diff && !choices.some((one) => one.value === diff)) choices.push({ value: diff, text: diff.replace(":", " ") });
    fill(
      differences,
      picker("Difference to", choices, diff, (value) => state.set({ diff: value })),
    );
  };

  return {
    element,
    show: () => {
      controls();
      run(async (signal) => {
        const about = { ...app.about(), signal };
        const program = await session.canonical(app.program(), about);
        const loop = Math.max(1, app.loop());
        const layer = layerNow(app);
        const head = Math.min(hello.heads - 1, Number(state.get().head || 0));
        const place = layerPlace(loop, layer);
        const diff = state.get().diff ?? "";
        const read = (/** @type {string} */ at) => ({ kind: "patterns", head, place: at, size: 0 });
        const otherProgram = diff.startsWith("run:") ? await session.canonical(diff.slice(4), about) : program;
        const otherPlace = diff.startsWith("loop:") ? layerPlace(Number(diff.slice(5)), layer) : place;
        const [all, one, input, other] = await Promise.all([
          session.ask(program, { kind: "patterns", head: null, place, size: THUMB }, about),
          session.ask(program, read(place), about),
          session.ask(hello.program, { kind: "input" }, about),
          diff ? session.ask(otherProgram, read(otherPlace), about) : null,
        ]);
        if (signal.aborted) return;
        thumbs.show(all.arrays.patterns, head);
        const mine = one.arrays.pattern.data;
        const side = one.arrays.pattern.shape[1];
        const theirs = other?.arrays.pattern.data;
        const values = theirs ? Float32Array.from({ length: mine.length }, (_, at) => mine[at] - theirs[at]) : mine;
        const tokens = input.head.tokens;
        now = { values, side, rows: one.head.rows, tokens, both: !!diff };
        const names = tokens.map((/** @type {any} */ token) => visible(token.text));
        title.textContent = `Loop ${loop}, layer ${layer}, head ${head}${diff ? `, less ${diff.startsWith("loop:") ? `loop ${diff.slice(5)}` : diff.slice(4)}` : ""}: rows look at columns. ${diff ? "Blue: more than there. Red: less" : "The colour goes with the root of the share"}`;
        const row = rowNow();
        large.draw(
          {
            rows: side,
            columns: side,
            value: (r, c) => values[r * side + c],
            scale: diff ? { kind: "both", most: largest(values) } : ATTENTION,
            rowNames: names,
            columnNames: names,
            cell: { most: Math.max(side > 100 ? 3 : 9, Math.min(22, HIGH / side)), least: 3 },
          },
          null,
        );
        hovered = row;
        looksOf(row);
      });
    },
  };
}
