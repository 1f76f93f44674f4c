/** Loop by row: the likeliest token everywhere; the last loop is always in sight. */

import { colourOf, css, paletteAt, percent, textOn } from "./colour.js";
import { valueAt } from "./contract.js";
import { el, fill } from "./dom.js";
import { pointAt, pointName } from "./readout.js";
import { newest } from "./session.js";
import { troublePlace } from "./trouble.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {{id: number, text: string, title: string}} Token
 */

/** White space and line ends as signs that can be seen. @param {string} text @returns {string} */
export function visible(text) {
  return text === "" ? "∅" : text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣");
}

/** @param {Answer} answer @param {number} id @returns {string} */
export function tokenName(answer, id) {
  return visible(answer.head.names[id] ?? String(id));
}

/**
 * The likeliest tokens of a cell with their probabilities.
 * @param {Answer} answer @param {number} point @param {number} row @returns {{id: number, share: number}[]}
 */
export function topOf(answer, point, row) {
  return Array.from({ length: answer.arrays.top.shape[2] }, (_, rank) => ({
    id: valueAt(answer.arrays.top, point, row, rank),
    share: valueAt(answer.arrays.probability, point, row, rank),
  }));
}

/**
 * @param {App} app @param {{answers?: () => Promise<number[]>, shown?: (answer: Answer, tokens: Token[]) => void,
 *   picked?: (row: number) => void}} [more]
 */
export function textGrid(app, more = {}) {
  const { session, state } = app;
  const table = el("table", {
    class: "tokens",
    role: "grid",
    "aria-label": "The likeliest token of every row after every loop",
  });
  const scroll = el("div", { class: "scroll both" }, table);
  const top = el("aside", { class: "top five", "aria-live": "polite" });
  const hint = "Point at a cell to see its five likeliest tokens.";
  const body = el("div", { class: "grid-and-top" }, scroll, top);
  const trouble = troublePlace(app.hello, body);
  const element = el("div", {}, trouble.element, body);
  /** @type {{answer: Answer, tokens: Token[]} | null} */
  let now = null;
  let drawn = "";
  /** The rows that were drawn last: other ones are shown from their end, or from the row that a link names. */
  let before = "";
  /** The cell whose tokens are told. @type {{point: number, index: number} | null} */
  let told = null;

  /** @param {number} point @param {number} index */
  const tell = (point, index) => {
    if (!now) return;
    told = { point, index };
    const { answer, tokens } = now;
    const row = answer.head.rows[index];
    const list = topOf(answer, point, index).map((each) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${Math.max(0.5, 100 * each.share)}%`;
      return el(
        "li",
        {},
        el("span", { class: "name" }, tokenName(answer, each.id)),
        el("span", { class: "share" }, percent(each.share)),
        bar,
      );
    });
    const loop = answer.head.points[point];
    fill(
      top,
      el("h3", {}, `Behind row ${row}, “${visible(tokens[row]?.text ?? "")}”`),
      el(
        "p",
        { class: "key" },
        loop.map ? `after map ${loop.map}` : loop.calls ? `after loop ${loop.calls}` : "before the first loop",
        answer.head.gates ? `; exit gate ${percent(valueAt(answer.arrays.gate, point, index))}` : null,
      ),
      el("ol", {}, ...list),
    );
  };

  /** @param {HTMLElement | null} cell */
  const enter = (cell) => {
    if (!cell?.dataset.point) return;
    tell(Number(cell.dataset.point), Number(cell.dataset.index));
  };
  table.addEventListener("pointerover", (event) => enter(/** @type {Element} */ (event.target).closest("td")));
  table.addEventListener("focusin", (event) => enter(/** @type {Element} */ (event.target).closest("td")));
  table.addEventListener("click", (event) => {
    const cell = /** @type {Element} */ (event.target).closest("td");
    if (!cell?.dataset.point || !now) return;
    const loop = String(now.answer.head.points[Number(cell.dataset.point)].calls);
    const row = String(now.answer.head.rows[Number(cell.dataset.index)]);
    cell.focus();
    state.set({ loop, row });
  });
  table.addEventListener("keydown", (event) => {
    const cell = /** @type {HTMLElement} */ (event.target).closest("td");
    if (!cell?.dataset.point) return;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" || event.key === " ") cell.click();
    if (!step && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    if (!step) return;
    const next = cellOf(Number(cell.dataset.index) + step[0], Number(cell.dataset.point) + step[1]);
    if (!next) return;
    for (const each of table.querySelectorAll('td[tabindex="0"]')) each.setAttribute("tabindex", "-1");
    next.tabIndex = 0;
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  /** @param {number} index @param {number} point @returns {HTMLElement | null} */
  const cellOf = (index, point) => table.querySelector(`td[data-index="${index}"][data-point="${point}"]`);

  /** Tell the cell anew, as the run may be another; where a link names a row and a loop, this one. */
  const tellAgain = () => {
    const { points, rows } = /** @type {Answer} */ (now?.answer).head;
    const loop = app.loop();
    const row = rows.indexOf(Number(state.get().row || NaN));
    const kept = told && (row < 0 || (told.index === row && points[told.point]?.calls === loop));
    const cell = kept ? told : row < 0 ? null : { point: pointAt(points, loop), index: row };
    const point = Math.min(cell?.point ?? 0, points.length - 1); // a run may have become shorter
    if (cell && cellOf(cell.index, point)) tell(point, cell.index);
    else fill(top, el("p", { class: "key" }, hint));
  };

  /** Begin where a text is read: at the row that a link names, else at the last one, behind the last loop. */
  const begin = () => {
    const { points, rows } = /** @type {Answer} */ (now?.answer).head;
    const row = rows.indexOf(Number(state.get().row || NaN));
    told = row < 0 ? { point: points.length - 1, index: rows.length - 1 } : null;
    const index = row < 0 ? rows.length - 1 : row;
    const line = cellOf(index, 0)?.closest("tr");
    if (line) scroll.scrollTop = line.offsetTop - scroll.clientHeight / 2;
    if (row < 0) scroll.scrollTop = scroll.scrollHeight;
  };

  const draw = () => {
    if (!now) return;
    const { answer, tokens } = now;
    const palette = paletteAt(element);
    const points = answer.head.points;
    const last = points.length - 1;
    const loop = app.loop();
    const chosenRow = state.get().row;
    const head = el(
      "tr",
      {},
      el("th", { scope: "col", class: "row" }, "row"),
      ...points.map((/** @type {any} */ point, /** @type {number} */ at) =>
        el(
          "th",
          {
            scope: "col",
            class: at === last ? "last" : "",
            "aria-current": !point.map && point.calls === loop ? "true" : null,
          },
          pointName(point),
        ),
      ),
    );
    const rows = answer.head.rows.map((/** @type {number} */ row, /** @type {number} */ index) => {
      const name = tokens[row];
      const cells = points.map((/** @type {any} */ _, /** @type {number} */ at) => {
        const [best] = topOf(answer, at, index);
        const before = at > 0 ? topOf(answer, at - 1, index)[0].id : best.id;
        const colour = colourOf(best.share, { kind: "ramp", low: 0, high: 1 }, palette) ?? palette.paper;
        const text = tokenName(answer, best.id);
        const classes = [at === last ? "last" : "", best.id !== before ? "changed" : ""].filter(Boolean).join(" ");
        const cell = el(
          "td",
          {
            class: classes,
            role: "gridcell",
            tabindex: -1,
            "data-point": at,
            "data-index": index,
          },
          el("span", {}, text),
        );
        cell.style.backgroundColor = css(colour);
        cell.style.color = css(textOn(colour));
        return cell;
      });
      const chosen = chosenRow === String(row);
      return el(
        "tr",
        { "aria-selected": chosen ? "true" : null },
        el(
          "th",
          { scope: "row", class: "row", title: name?.title },
          el("span", { class: "number" }, row),
          " ",
          visible(name?.text ?? ""),
        ),
        ...cells,
      );
    });
    const held = scroll.scrollTop;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const [index, point] = table.contains(focused) ? [focused?.dataset.index, focused?.dataset.point] : [];
    fill(table, el("thead", {}, head), el("tbody", {}, ...rows));
    scroll.scrollTop = held;
    const shown = tokens.map((token) => token.id).join();
    if (shown !== before) begin();
    before = shown;
    if (index !== undefined) cellOf(Number(index), Number(point))?.focus({ preventScroll: true });
    tellAgain();
    const stop = told ?? { point: last, index: rows.length - 1 };
    cellOf(stop.index, stop.point)?.setAttribute("tabindex", "0");
    more.shown?.(answer, tokens);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => element.isConnected && draw());

  const run = newest(trouble.tell);
  return {
    element,
    show: () =>
      run(async (signal) => {
        const program = await session.canonical(app.program(), { ...app.about(), signal });
        const about = { ...app.about(), signal };
        const answers = (await more.answers?.()) ?? [];
        const read = { kind: "readouts", answers, rows: "all", top: 5 };
        const [answer, input] = await Promise.all([
          session.ask(program, read, about),
          session.ask(app.hello.program, { kind: "input" }, about),
        ]);
        if (signal.aborted) return;
        now = { answer, tokens: input.head.tokens };
        const key = JSON.stringify([answer.head.name, app.loop(), state.get().row]);
        if (key !== drawn) draw();
        drawn = key;
      }),
  };
}
