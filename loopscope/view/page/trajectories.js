/** Trajectories: how far each loop moves the state, whether it turns, and which rows still move. */

import { told } from "./colour.js";
import { valueAt } from "./contract.js";
import { el } from "./dom.js";
import { heatMap } from "./heatmap.js";
import { lineChart } from "./lines.js";
import { newest } from "./session.js";
import { visible } from "./textgrid.js";
import { troublePlace } from "./trouble.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Answer} Answer
 */

const SHOWN = [
  { name: "norm", title: "Norm of the state" },
  { name: "step", title: "Step: how far a loop moves it" },
  { name: "cosine", title: "Cosine with the state before" },
  { name: "turn", title: "Turn: cosine of a step with the one before" },
  { name: "distance", title: "Distance to the last state" },
];
const MOST_FAINT = 60;

/** The start has no step that leads to it. @param {Answer} answer @returns {number} */
function skipped(answer) {
  return answer.head.loops[0] === 0 ? 1 : 0;
}

/** @param {App} app @returns {View} */
export function trajectoriesView(app) {
  const { session, state } = app;
  /** @type {{answer: Answer, tokens: any[]} | null} */
  let now = null;
  const charts = SHOWN.map(() =>
    lineChart((place) => now && state.set({ loop: String(now.answer.head.loops[place]) })),
  );
  const rows = heatMap({
    label: "How much each row still moves: the step as a share of the norm",
    tell: (row, column) => {
      if (!now) return "";
      const at = now.answer.head.rows[row];
      const loop = column + skipped(now.answer);
      return `row ${at} “${visible(now.tokens[at]?.text ?? "")}”, loop ${now.answer.head.loops[loop]}: ${told(valueAt(now.answer.arrays.relative, loop, row))}`;
    },
    pick: (row, column) =>
      now &&
      state.set({
        row: String(now.answer.head.rows[row]),
        loop: String(now.answer.head.loops[column + skipped(now.answer)]),
      }),
  });
  const words = el("p", { class: "sentence" });
  const stage = el(
    "div",
    { class: "two motion" },
    el("div", { class: "charts" }, ...charts.map((chart) => chart.element)),
    el("figure", {}, el("figcaption", {}, "Which rows still move: step as a share of the norm"), rows.element),
  );
  const trouble = troublePlace(app.hello, stage);
  const run = newest(trouble.tell);

  const draw = () => {
    if (!now) return;
    const { answer, tokens } = now;
    const { loops, rows: numbers } = answer.head;
    const chosen = numbers.indexOf(Number(state.get().row || NaN));
    const row = chosen < 0 ? numbers.length - 1 : chosen;
    const at = loops.indexOf(app.loop());
    const others = numbers.length <= MOST_FAINT ? [...numbers.keys()].filter((each) => each !== row) : [];
    SHOWN.forEach(({ name, title }, index) => {
      const values = answer.arrays[name];
      charts[index].element.hidden = !values;
      if (!values) return;
      const of = (/** @type {number} */ each) =>
        loops.map((/** @type {number} */ _, /** @type {number} */ loop) => valueAt(values, loop, each));
      const cosine = name === "cosine" || name === "turn";
      charts[index].show({
        title,
        lines: [
          ...others.map((each) => ({ name: "", values: of(each), faint: true })),
          { name: `row ${numbers[row]}`, values: of(row) },
        ],
        x: loops.map(String),
        xTitle: "loop",
        low: cosine ? undefined : 0,
        high: cosine ? 1 : undefined,
        at: at < 0 ? undefined : at,
      });
    });
    const relative = answer.arrays.relative;
    const from = skipped(answer);
    rows.draw(
      {
        rows: numbers.length,
        columns: loops.length - from,
        value: (r, c) => valueAt(relative, c + from, r),
        scale: { kind: "ramp", low: 0, high: 1 },
        rowNames: numbers.map((/** @type {number} */ each) => `${each} ${visible(tokens[each]?.text ?? "")}`),
        columnNames: loops.slice(from).map(String),
        columnTitle: "loop",
        cell: { most: 44, high: 15 },
      },
      null,
    );
    words.textContent = `Thick: row ${numbers[row]}, “${visible(tokens[numbers[row]]?.text ?? "")}”. Thin: the other rows. Choose a row in the picture of all rows.`;
  };

  return {
    element: el("section", { class: "view", "aria-label": "Trajectories" }, words, trouble.element, stage),
    show: () =>
      run(async (signal) => {
        const about = { ...app.about(), signal };
        const program = await session.canonical(app.program(), about);
        const [answer, input] = await Promise.all([
          session.ask(program, { kind: "trajectory", rows: "all" }, about),
          session.ask(app.hello.program, { kind: "input" }, about),
        ]);
        if (signal.aborted) return;
        now = { answer, tokens: input.head.tokens };
        draw();
      }),
  };
}
