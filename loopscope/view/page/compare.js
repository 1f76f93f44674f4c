/** Compare: two runs on the same axes, where they part, and a shelf of pinned runs. */

import { MOST_PINS, pinsOf, runChoices } from "./choices.js";
import { percent, told } from "./colour.js";
import { valueAt } from "./contract.js";
import { el, fill, picker } from "./dom.js";
import { heatMap } from "./heatmap.js";
import { lineChart } from "./lines.js";
import { pointName, sharesAt } from "./readout.js";
import { giverNow } from "./patch.js";
import { newest } from "./session.js";
import { runCard } from "./sides.js";
import { tokenName, topOf, visible } from "./textgrid.js";
import { troublePlace } from "./trouble.js";
import { inWalkOrder, readoutHeat, WALK_READ } from "./walk.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Answer} Answer
 */

/** @param {App} app @returns {View} */
export function compareView(app) {
  const { session, state, hello } = app;
  const controls = el("div", { class: "controls" });
  const first = runCard();
  const second = runCard();
  const words = el("p", { class: "sentence", "aria-live": "polite" });
  const charts = [lineChart(), lineChart(), lineChart()];
  const loops = (/** @type {number} */ column) =>
    shown && state.set({ loop: String(shown.one.head.points[column]?.calls ?? "") });
  /** @type {{one: Answer, two: Answer, difference: Answer, tokens: any[]} | null} */
  let shown = null;
  /** @param {string} label @param {(row: number, column: number) => string} tell */
  const board = (label, tell) => {
    const map = heatMap({ label, tell, pick: (_, column) => loops(column) });
    return { map, figure: el("figure", {}, el("figcaption", {}, label), map.element) };
  };
  /** @param {"one" | "two"} which @param {number} row @param {number} column */
  const shareAt = (which, row, column) => {
    const input = app.input();
    if (!shown || !("graph" in input)) return NaN;
    return sharesAt(shown[which], column)?.[inWalkOrder(input).nodes[row]] ?? NaN;
  };
  const boards = {
    one: board("Readout of the run", (row, column) => percent(shareAt("one", row, column))),
    two: board("Readout of the other", (row, column) => percent(shareAt("two", row, column))),
    less: board("The other less the run", (row, column) => {
      const [mine, theirs] = shown?.difference.head.places[column] ?? [];
      return percent(shareAt("two", row, theirs) - shareAt("one", row, mine));
    }),
    rows: board("How far readouts are apart, row by row (nats)", (row, column) => {
      if (!shown) return "";
      const at = shown.difference.head.rows[row];
      return `row ${at} “${visible(shown.tokens[at]?.text ?? "")}”: ${told(valueAt(shown.difference.arrays.kl, column, row))} nats`;
    }),
  };
  const maps = el("div", { class: "three" }, boards.one.figure, boards.two.figure, boards.less.figure);
  const rowsDetail = el("details", {}, el("summary", {}, "Row by row"), boards.rows.figure);
  const pins = el("div", { class: "pins" });
  const stage = el(
    "div",
    { class: "compared" },
    el("div", { class: "two cards" }, first.element, second.element),
    maps,
    el("div", { class: "three charts" }, ...charts.map((chart) => chart.element)),
    rowsDetail,
  );
  const trouble = troublePlace(hello, stage);
  const run = newest(trouble.tell);

  /** Unless another is named: the run that a patch would be taken from, as it has as many calls. */
  const otherProgram = () => state.get().against || giverNow(app);

  const pinned = newest(() => {});
  const drawPins = () => {
    const list = pinsOf(app);
    const here = app.program();
    const pin = el(
      "button",
      {
        type: "button",
        class: "quiet",
        disabled: list.includes(here) || list.length >= MOST_PINS,
        onclick: () => state.set({ pins: [...list, here].join("|") }),
      },
      "Pin this run",
    );
    const rows = list.map((program) => ({ program, answer: el("td", {}, "…"), share: el("td", {}, "") }));
    fill(
      pins,
      el("h3", {}, "Pinned runs"),
      list.length
        ? el(
            "div",
            { class: "scroll" },
            el(
              "table",
              { class: "numbers" },
              el(
                "thead",
                {},
                el(
                  "tr",
                  {},
                  el("th", {}, "run"),
                  el("th", {}, "answer"),
                  el("th", {}, "probability"),
                  el("th", {}, ""),
                ),
              ),
              el(
                "tbody",
                {},
                ...rows.map((row) =>
                  el(
                    "tr",
                    {},
                    el("th", { scope: "row" }, row.program),
                    row.answer,
                    row.share,
                    el(
                      "td",
                      { class: "acts" },
                      el(
                        "button",
                        {
                          type: "button",
                          class: "quiet",
                          onclick: () => state.set({ program: row.program }, { push: true }),
                        },
                        "show",
                      ),
                      el(
                        "button",
                        {
                          type: "button",
                          class: "quiet",
                          onclick: () => state.set({ against: row.program }, { push: true }),
                        },
                        "compare",
                      ),
                      el(
                        "button",
                        {
                          type: "button",
                          class: "quiet",
                          "aria-label": `Unpin ${row.program}`,
                          onclick: () => state.set({ pins: list.filter((each) => each !== row.program).join("|") }),
                        },
                        "unpin",
                      ),
                    ),
                  ),
                ),
              ),
            ),
          )
        : el("p", { class: "key" }, "Pinned runs stay in the link, so that several can be set side by side."),
      pin,
    );
    pinned(async (signal) => {
      for (const row of rows) {
        try {
          const answer = await session.ask(row.program, WALK_READ, { ...app.about(), signal });
          if (signal.aborted) return;
          const [best] = topOf(answer, answer.head.points.length - 1, answer.head.rows.length - 1);
          row.answer.textContent = tokenName(answer, best.id);
          row.share.textContent = percent(best.share);
        } catch {
          row.answer.textContent = "–";
        }
      }
    });
  };

  const draw = () => {
    if (!shown) return;
    const { one, two, difference } = shown;
    const input = app.input();
    const loop = app.loop() < app.calls() ? app.loop() : undefined;
    first.show(`The run: ${app.program()}`, one, input, loop);
    second.show(`The other: ${otherProgram()}`, two, input, loop);
    maps.hidden = !("graph" in input);
    if ("graph" in input) {
      const left = readoutHeat(one, input);
      const right = readoutHeat(two, input);
      boards.one.map.draw({ ...left, text: undefined });
      boards.two.map.draw({ ...right, text: undefined });
      const places = difference.head.places;
      boards.less.map.draw({
        ...left,
        columns: places.length,
        columnNames: difference.head.points.map(pointName),
        text: undefined,
        value: (row, column) => right.value(row, places[column][1]) - left.value(row, places[column][0]),
        scale: { kind: "both", most: 1 },
      });
    }
    const { points, rows } = difference.head;
    const { kl, cosine, distance, agree } = difference.arrays;
    const last = rows.length - 1;
    const x = points.map(pointName);
    const of = (/** @type {import("./contract.js").Values} */ values) =>
      x.map((/** @type {string} */ _, /** @type {number} */ at) => valueAt(values, at, last));
    charts[0].show({
      title: "How far the readouts are apart (nats, last row)",
      lines: [{ name: "KL", values: of(kl) }],
      x,
      xTitle: "after loop",
      low: 0,
    });
    charts[1].show({
      title: "Distance of the states (last row)",
      lines: [{ name: "distance", values: of(distance) }],
      x,
      xTitle: "after loop",
      low: 0,
    });
    charts[2].show({
      title: "Cosine of the states (last row)",
      lines: [{ name: "cosine", values: of(cosine) }],
      x,
      xTitle: "after loop",
      high: 1,
    });
    const parts = of(agree).findIndex((/** @type {number} */ same) => !same);
    words.textContent =
      parts < 0
        ? "Both runs read out the same, as far as both go."
        : `The readouts part at ${x[parts] === "start" ? "the start" : `${points[parts].map ? "" : "loop "}${x[parts]}`}.`;
    if (rowsDetail.open) drawRows();
  };
  const drawRows = () => {
    if (!shown) return;
    const { difference, tokens } = shown;
    const { points, rows } = difference.head;
    const kl = difference.arrays.kl;
    boards.rows.map.draw({
      rows: rows.length,
      columns: kl.shape[0],
      value: (row, column) => valueAt(kl, column, row),
      scale: { kind: "ramp", low: 0, high: Math.max(1e-6, ...Array.prototype.filter.call(kl.data, Number.isFinite)) },
      rowNames: rows.map((/** @type {number} */ row) => `${row} ${visible(tokens[row]?.text ?? "")}`),
      columnNames: points.map(pointName),
      columnTitle: "after loop",
      cell: { most: 40, high: 15 },
    });
  };
  rowsDetail.addEventListener("toggle", () => rowsDetail.open && drawRows());

  return {
    element: el("section", { class: "view", "aria-label": "Compare" }, controls, words, trouble.element, stage, pins),
    show: () => {
      const other = otherProgram();
      const swap = el(
        "button",
        {
          type: "button",
          class: "quiet",
          onclick: () => state.set({ program: other, against: app.program() }, { push: true }),
        },
        "Swap",
      );
      fill(
        controls,
        picker("The run above against", runChoices(app, other), other, (value) =>
          state.set({ against: value }, { push: true }),
        ),
        swap,
      );
      drawPins();
      run(async (signal) => {
        const about = { ...app.about(), signal };
        const program = await session.canonical(app.program(), about);
        const against = await session.canonical(other, about);
        const [one, two, difference, input] = await Promise.all([
          session.ask(program, WALK_READ, about),
          session.ask(against, WALK_READ, about),
          session.ask(program, { kind: "compare", other: against, rows: "all" }, about),
          session.ask(hello.program, { kind: "input" }, about),
        ]);
        if (signal.aborted) return;
        shown = { one, two, difference, tokens: input.head.tokens };
        draw();
      });
    },
  };
}
