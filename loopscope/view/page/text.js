/** The text: what stands behind every row after every loop, and where the answers one asks for rank. */

import { percent } from "./colour.js";
import { valueAt } from "./contract.js";
import { el, fill } from "./dom.js";
import { lineChart } from "./lines.js";
import { pointName } from "./readout.js";
import { textGrid, tokenName } from "./textgrid.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 * @typedef {import("./contract.js").Answer} Answer
 */

/**
 * The token that an answer begins with; marks that a tokenizer puts before every text are passed over.
 * @param {string} text @param {{id: number, text: string}[]} tokens @returns {number}
 */
function firstOf(text, tokens) {
  const plain = (/** @type {string} */ each) => each.replace(/[▁Ġ␣\s]/g, "");
  const found = tokens.find((token) => plain(token.text) && plain(text).startsWith(plain(token.text)));
  return (found ?? tokens[tokens.length - 1]).id;
}

/** @param {App} app @returns {View} */
export function textView(app) {
  const { session, state, hello } = app;
  const field = el("input", {
    type: "text",
    spellcheck: "false",
    placeholder: hello.kind === "text" ? "for example:  Paris |  London" : "for example: 17 | 4",
  });
  const wrong = el("p", { class: "wrong", role: "alert" });
  const ranks = el("div", { class: "ranks" });
  const chart = lineChart((place) => state.set({ loop: String(place) }));

  /** The first token of every text that is asked for. @returns {Promise<number[]>} */
  const answers = async () => {
    const asked = (state.get().answers ?? "").split("|").filter((each) => each.trim() !== "");
    wrong.textContent =
      asked.length > hello.limits.answers ? `At most ${hello.limits.answers} answers can be followed.` : "";
    const ids = asked.slice(0, hello.limits.answers).map(async (text) => {
      if (hello.kind !== "text") return Number(text);
      const { head } = await session.ask(hello.program, { kind: "input" }, { input: { text, chat: false } });
      return firstOf(text, head.tokens);
    });
    return (await Promise.all(ids)).filter(Number.isInteger);
  };

  /** @param {Answer} answer */
  const shown = (answer) => {
    const { rank, answer: share } = answer.arrays;
    const count = rank?.shape[2] ?? 0;
    chart.element.hidden = !count;
    if (!count) return fill(ranks);
    const rows = answer.head.rows;
    const told = rows.indexOf(Number(state.get().row || NaN));
    const row = told < 0 ? rows.length - 1 : told;
    const points = answer.head.points;
    const ids = asked;
    fill(
      ranks,
      el("h3", {}, `Ranks behind row ${rows[row]}`),
      el(
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
              el("th", {}, "answer"),
              ...points.map((/** @type {any} */ point) => el("th", {}, pointName(point))),
            ),
          ),
          el(
            "tbody",
            {},
            ...ids.map((id, at) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, tokenName(answer, id)),
                ...points.map((/** @type {any} */ _, /** @type {number} */ point) =>
                  el(
                    "td",
                    {},
                    valueAt(rank, point, row, at),
                    el("small", {}, ` ${percent(valueAt(share, point, row, at))}`),
                  ),
                ),
              ),
            ),
          ),
        ),
      ),
    );
    chart.show({
      title: "Probability of these answers",
      lines: ids.map((id, at) => ({
        name: tokenName(answer, id),
        values: points.map((/** @type {any} */ _, /** @type {number} */ point) => valueAt(share, point, row, at)),
      })),
      x: points.map(pointName),
      xTitle: "after loop",
      low: 0,
      format: percent,
    });
  };

  /** @type {number[]} */
  let asked = [];
  const grid = textGrid(app, {
    answers: async () => (asked = await answers()),
    shown,
  });
  field.addEventListener("change", () => state.set({ answers: field.value }, { push: true }));
  const element = el(
    "section",
    { class: "view", "aria-label": "Text" },
    el(
      "p",
      { class: "sentence" },
      "What the model would say behind every row, read after every loop. ",
      el("strong", {}, "The stronger the colour, the surer. Underlined: new since the loop before."),
    ),
    grid.element,
    el("label", { class: "field wide" }, el("span", {}, "Answers to follow, with | between them"), field),
    wrong,
    ranks,
    chart.element,
  );
  return {
    element,
    show: () => {
      if (document.activeElement !== field) field.value = state.get().answers ?? "";
      grid.show();
    },
  };
}
