/** Sweep: every place patched in turn, and how much of the other run's answer each gives back. */

import { runChoices } from "./choices.js";
import { percent, scaleOf } from "./colour.js";
import { el, fill, labelledChoice, picker, save } from "./dom.js";
import { heatMap } from "./heatmap.js";
import { giverNow, othersSay, PARTS } from "./patch.js";
import { formatInput, inputEditor, inputTold, nameInput } from "./inputs.js";
import { newest } from "./session.js";
import { troublePlace } from "./trouble.js";
import { layersAt } from "./patterns.js";
import { visible } from "./textgrid.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Answer} Answer
 */

const AT_ONCE = 240;
const LISTED = 24;
const OTHER = "@other";
const HIGH = 900;

/** @param {App} app @returns {View} */
export function sweepView(app) {
  const { session, state, hello } = app;
  const controls = el("div", { class: "controls" });
  const words = el("p", { class: "sentence", "aria-live": "polite" });
  const beside = inputEditor(hello, "Other input", (text) => state.set({ other: text }));
  const start = el("button", { type: "button", class: "main" }, "Compute the sweep");
  const sorted = el("ol", { class: "effects" });
  /** @type {{answer: Answer, program: string, read: any, other: import("./contract.js").Input | null} | null} */
  let now = null;
  let asked = "";

  const heat = heatMap({
    label: "Share of the other run's answer that each place gives back",
    tell: (row, column) => {
      const place = placeAt(row, column);
      return place ? `${place.address}: ${percent(place.share)}. Enter or a click patches it.` : "";
    },
    pick: (row, column) => {
      const place = placeAt(row, column);
      if (place) patch(place);
    },
  });
  const caption = el("figcaption", {});
  const figure = el(
    "figure",
    {},
    caption,
    heat.element,
    el(
      "div",
      { class: "scale", "aria-hidden": "true" },
      el("span", {}, "nothing"),
      el("i", {}),
      el("span", {}, "all of it"),
    ),
  );
  const stage = el("div", { class: "two sweep" }, figure, el("div", {}, el("h3", {}, "Sorted by effect"), sorted));
  stage.hidden = true;
  const trouble = troublePlace(hello, stage);

  /** @typedef {{address: string, share: number, loop: number, layer: number, head: number | null}} Place */
  /** @param {number} index of the place @param {number} head among the heads of the answer @returns {Place | null} */
  const placeOf = (index, head) => {
    if (!now) return null;
    const { head: about, arrays } = now.answer;
    const many = arrays.recovered.shape.length > 1;
    const heads = many ? arrays.recovered.shape[1] : 1;
    const at = many ? index * heads + head : index;
    return {
      address: about.addresses[at] ?? about.places[index],
      share: arrays.recovered.data[at],
      loop: about.loops[index],
      layer: about.layers[index],
      head: many ? head : null,
    };
  };

  /** Rows are layers, or heads of layers, the last on top; columns are loops. */
  const outline = () => {
    const about = /** @type {Answer} */ (now?.answer).head;
    const loops = /** @type {number[]} */ ([...new Set(about.loops)]);
    const layers = /** @type {number[]} */ ([...new Set(about.layers)]).sort((a, b) => b - a);
    const many = /** @type {Answer} */ (now?.answer).arrays.recovered.shape.length > 1;
    const heads = Array.from({ length: many ? about.heads : 1 }, (_, head) => head);
    return { loops, layers, heads, many };
  };
  /** @param {number} row @param {number} column @returns {Place | null} */
  const placeAt = (row, column) => {
    if (!now) return null;
    const { loops, layers, heads } = outline();
    const layer = layers[Math.floor(row / heads.length)];
    const about = now.answer.head;
    const index = about.loops.findIndex(
      (/** @type {number} */ loop, /** @type {number} */ at) => loop === loops[column] && about.layers[at] === layer,
    );
    return index < 0 ? null : placeOf(index, row % heads.length);
  };

  /** @param {Place} place */
  const patch = (place) => {
    const { by: _, component, rows, source } = /** @type {any} */ (now).read;
    app.go({
      view: "patch",
      loop: String(place.loop),
      layer: String(place.layer),
      head: place.head === null ? "" : String(place.head),
      row: rows === "all" ? "" : String(rows[0]),
      part: component,
      ...(source.endsWith(OTHER) ? { from: "input" } : { from: "run", source: source.slice(1, -1) }),
    });
  };

  const draw = () => {
    if (!now) return;
    stage.hidden = false;
    files.hidden = false;
    const { answer, read } = now;
    const { loops, layers, heads, many } = outline();
    const names = layers.flatMap((layer) =>
      heads.map((head) => (!many ? `layer ${layer}` : head === 0 ? `layer ${layer}  h0` : `h${head}`)),
    );
    const chosen = [-1, -1];
    for (let row = 0; row < names.length; row++) {
      for (let column = 0; column < loops.length; column++) {
        const place = placeAt(row, column);
        const head = state.get().head;
        if (
          place &&
          String(place.loop) === state.get().loop &&
          String(place.layer) === state.get().layer &&
          (!many || String(place.head) === head)
        )
          chosen.splice(0, 2, row, column);
      }
    }
    heat.draw(
      {
        rows: names.length,
        columns: loops.length,
        value: (row, column) => placeAt(row, column)?.share ?? NaN,
        scale: scaleOf([0], { low: 0, high: 1 }),
        rowNames: names,
        columnNames: loops.map(String),
        columnTitle: "loop",
        text: (row, column) => {
          const share = placeAt(row, column)?.share ?? 0;
          return Math.abs(share) >= 0.045 ? String(Math.round(100 * share)).replace("-", "−") : "";
        },
        breaks: {
          rows: layers
            .slice(1)
            .map((__, at) => (at + 1) * heads.length)
            .filter(() => many),
        },
        cell: {
          most: 64,
          high: many ? Math.max(8, Math.min(26, HIGH / names.length)) : Math.max(14, Math.min(40, HIGH / names.length)),
        },
      },
      chosen[0] < 0 ? null : /** @type {[number, number]} */ (chosen),
    );
    const { base, source } = answer.head;
    const named = (/** @type {string} */ text) => (hello.kind === "graph" ? visible(text) : `“${visible(text)}”`);
    const giver = read.source.replace(/^\((.*)\)$/, "$1");
    const whence = now.other ? `${now.program} on ${inputTold(now.other)}` : giver;
    const where = read.rows === "all" ? "" : read.rows[0] === -1 ? ", last row" : `, row ${read.rows[0]}`;
    caption.textContent = `${PARTS[read.component] ?? read.component}${where}, of ${whence} put into ${now.program}: share of its answer that comes back (per cent)`;
    const all = answer.head.places.flatMap((/** @type {string} */ _, /** @type {number} */ index) =>
      heads.map((head) => placeOf(index, head)),
    );
    const best = all
      .filter((/** @type {Place} */ place) => Number.isFinite(place.share))
      .sort((/** @type {Place} */ a, /** @type {Place} */ b) => b.share - a.share);
    fill(
      sorted,
      ...best.slice(0, LISTED).map((/** @type {Place} */ place) => {
        const bar = el("span", { class: "bar" });
        bar.style.width = `${Math.min(100, Math.max(0, 100 * place.share))}%`;
        const go = el("button", { type: "button", class: "link", onclick: () => patch(place) }, place.address);
        return el("li", {}, go, el("span", { class: "share" }, percent(place.share)), bar);
      }),
    );
    fill(
      words,
      el(
        "strong",
        {},
        base.answer === source.answer
          ? "Both runs answer alike, so there is little to give back. "
          : `${named(base.text)} becomes ${named(source.text)}. `,
      ),
      best.length ? `Most of it by ${best[0].address}: ${percent(best[0].share)}. Click a cell to patch it.` : "",
    );
  };

  /** Whether the sweep is so long that it waits to be asked for. */
  let offered = false;
  const run = newest((found) => {
    trouble.tell(found);
    start.hidden = !(offered || found?.kind === "stopped");
  });

  /** @param {string} format */
  const saveAs = async (format) => {
    if (!now) return;
    const name = `sweep-${now.read.component}`;
    if (format === "svg")
      save(new Blob([heat.svg(caption.textContent ?? "")], { type: "image/svg+xml" }), `${name}.svg`);
    if (format === "png") {
      const picture = await heat.png();
      if (picture) save(picture, `${name}.png`);
    }
    if (format === "parquet" && session.host.file) {
      const { program, read } = now;
      run(async (signal) => {
        const about = app.about();
        save(
          await /** @type {any} */ (session.host).file(session.requestOf(program, read, about.input, about.others), {
            signal,
          }),
          `${name}.parquet`,
        );
      });
    }
  };
  const files = el(
    "div",
    { class: "share" },
    ...["parquet", "png", "svg"]
      .filter((format) => format !== "parquet" || session.host.file)
      .map((format) =>
        el(
          "button",
          { type: "button", class: "quiet", onclick: () => saveAs(format) },
          format === "parquet" ? "Save Parquet" : `Save ${format.toUpperCase()}`,
        ),
      ),
  );

  files.hidden = true;

  const settings = () => {
    const told = state.get();
    const component = hello.components.includes(told.part ?? "")
      ? /** @type {string} */ (told.part)
      : hello.components.includes("pattern")
        ? "pattern"
        : hello.components[0];
    const perHead = hello.per_head.includes(component);
    const wanted = told.measure || (hello.kind === "graph" ? "head" : "layer");
    const by = perHead && wanted === "head" ? "head" : "layer";
    const rows = /^-?\d+$/.test(told.row ?? "") ? [Number(told.row)] : "all";
    return { component, perHead, by, rows };
  };
  /** The run that values are from; where there are no maps, another input says more than another call. */
  const sourceNow = () => {
    if (state.get().source) return /** @type {string} */ (state.get().source);
    return othersSay(app) ? OTHER : giverNow(app);
  };
  const compute = () => {
    offered = false;
    start.hidden = true;
    fill(words);
    return run(async (signal) => {
      const about = { ...app.about(), signal };
      const { component, by, rows } = settings();
      const program = await session.canonical(app.program(), about);
      const chosen = sourceNow();
      const source = chosen === OTHER ? `(${program})${OTHER}` : `(${await session.canonical(chosen, about)})`;
      const read = { kind: "sweep", by, component, rows, source };
      stage.classList.add("stale");
      const answer = await session.ask(program, read, about);
      if (signal.aborted) return;
      now = { answer, program, read, other: chosen === OTHER ? about.others.other : null };
      draw();
    });
  };
  start.addEventListener("click", compute);

  return {
    element: el(
      "section",
      { class: "view", "aria-label": "Sweep" },
      words,
      controls,
      beside.element,
      start,
      trouble.element,
      stage,
      files,
    ),
    show: () => {
      const { component, perHead, by, rows } = settings();
      const row = rows === "all" ? "" : String(rows[0]);
      const giver = sourceNow();
      const givers = runChoices(app, giver === OTHER ? undefined : giver);
      const { other } = app.others();
      if (other) givers.push({ value: OTHER, text: `this run on ${inputTold(other)}` });
      fill(
        controls,
        picker(
          "Patch",
          hello.components.map((each) => ({ value: each, text: PARTS[each] ?? each })),
          component,
          (value) => state.set({ part: value }),
        ),
        perHead
          ? labelledChoice(
              "by",
              [
                { value: "head", text: "head" },
                { value: "layer", text: "layer" },
              ],
              by,
              (value) => state.set({ measure: value }),
            )
          : null,
        labelledChoice(
          "rows",
          [
            { value: "", text: "all" },
            { value: "-1", text: "last" },
            ...(row && row !== "-1" ? [{ value: row, text: `row ${row}` }] : []),
          ],
          row,
          (value) => state.set({ row: value }),
        ),
        picker("with those of", givers, giver, (value) => state.set({ source: value })),
      );
      beside.element.hidden = giver !== OTHER;
      if (giver === OTHER) beside.show(nameInput(other ?? app.input(), hello));
      const key = JSON.stringify([app.program(), app.inputText(), app.others(), component, by, rows, giver]);
      if (key === asked) return draw();
      asked = key;
      const cells = app.calls() * layersAt(app) * (by === "head" ? hello.heads : 1);
      now = null;
      const alike = giver === OTHER && other && formatInput(other) === formatInput(app.input());
      offered = !alike && cells > AT_ONCE && session.host.kind !== "bundle";
      if (!alike && !offered) return void compute();
      run(async () => {}); // what is under way is of another question
      stage.hidden = true;
      files.hidden = true;
      words.textContent = alike
        ? "Change a word of the other input: the sweep shows what carries the difference in the answers."
        : `${cells} patched runs; this takes a while.`;
    },
  };
}
