/** Lines over loops, as a drawing that scales with its frame. */

import { told } from "./colour.js";
import { el, fill, svg } from "./dom.js";

/**
 * @typedef {{name: string, values: number[], faint?: boolean}} Line
 * @typedef {{title: string, lines: Line[], x: string[], xTitle: string, low?: number, high?: number, log?: boolean,
 *   format?: (value: number) => string, at?: number}} Chart
 */

const WIDTH = 420;
const HEIGHT = 210;
const EDGE = { left: 52, right: 14, top: 12, bottom: 36 };
const SERIES = 5;

/**
 * Round numbers between two ends, about so many. @param {number} low @param {number} high @param {number} count
 * @returns {number[]}
 */
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) ?? rough;
  /** @type {number[]} */
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++)
    found.push(Math.abs(at * step) < step * 1e-9 ? 0 : at * step);
  return found;
}

/** Round numbers with no more digits than tell them apart. @param {number[]} marks @returns {(value: number) => string} */
export function tickNames(marks) {
  const digits = marks.length > 1 ? Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9)) : 5;
  const plain = digits < 5 && marks.every((value) => Math.abs(value) < 100000);
  return plain ? (value) => value.toFixed(digits).replace("-", "−") : told;
}

/**
 * @param {(place: number) => void} [pick] when a place of the horizontal axis is clicked
 */
export function lineChart(pick) {
  const legend = el("p", { class: "legend" });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "lines" });
  const title = el("figcaption", {});
  const element = el("figure", { class: "chart" }, title, legend, drawing);
  /** @param {Chart} chart */
  const show = (chart) => {
    const all = chart.lines.flatMap((line) => line.values).filter(Number.isFinite);
    const low = chart.low ?? Math.min(...all, 0);
    const high = chart.high ?? (Math.max(...all, low) || 1);
    const wide = Math.max(1, chart.x.length - 1);
    const x = (/** @type {number} */ at) => EDGE.left + (at / wide) * (WIDTH - EDGE.left - EDGE.right);
    const y = (/** @type {number} */ value) =>
      HEIGHT - EDGE.bottom - ((value - low) / (high - low || 1)) * (HEIGHT - EDGE.top - EDGE.bottom);
    const format = chart.format ?? told;
    title.textContent = chart.title;
    const marks = ticks(low, high, 4);
    const marked = chart.format ?? tickNames(marks);
    const every = Math.ceil(chart.x.length / 12);
    const strong = chart.lines.filter((line) => !line.faint);
    fill(
      drawing,
      svg(
        "title",
        {},
        `${chart.title}. ${strong.map((line) => `${line.name}: ${line.values.map(format).join(", ")}`).join(". ")}`,
      ),
      ...marks.map((value) => svg("path", { class: "rule", d: `M${EDGE.left} ${y(value)}H${WIDTH - EDGE.right}` })),
      ...marks.map((value) =>
        svg("text", { class: "tick", x: EDGE.left - 7, y: y(value) + 4, "text-anchor": "end" }, marked(value)),
      ),
      ...chart.x.map((name, at) =>
        at % every
          ? null
          : svg("text", { class: "tick", x: x(at), y: HEIGHT - EDGE.bottom + 17, "text-anchor": "middle" }, name),
      ),
      svg(
        "text",
        { class: "tick", x: (EDGE.left + WIDTH - EDGE.right) / 2, y: HEIGHT - 4, "text-anchor": "middle" },
        chart.xTitle,
      ),
      chart.at === undefined
        ? null
        : svg("path", { class: "now", d: `M${x(chart.at)} ${EDGE.top}V${HEIGHT - EDGE.bottom}` }),
      ...chart.lines.map((line) => {
        const points = line.values
          .map((value, at) => (Number.isFinite(value) ? `${x(at)} ${y(value)}` : ""))
          .filter(Boolean);
        const place = strong.indexOf(line);
        return points.length
          ? svg("path", {
              class: line.faint ? "line faint" : `line series-${place % SERIES}`,
              d: `M${points.join("L")}`,
            })
          : null;
      }),
      ...strong.flatMap((line, place) =>
        line.values.map((value, at) =>
          Number.isFinite(value)
            ? svg(
                "circle",
                { class: `point series-${place % SERIES}`, cx: x(at), cy: y(value), r: 3.4 },
                svg("title", {}, `${line.name}, ${chart.xTitle} ${chart.x[at]}: ${format(value)}`),
              )
            : null,
        ),
      ),
    );
    legend.hidden = strong.length < 2;
    fill(legend, ...strong.map((line, place) => el("span", { class: `series-${place % SERIES}` }, line.name)));
    drawing.onclick = (event) => {
      const box = drawing.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * WIDTH;
      const place = Math.round(((at - EDGE.left) / (WIDTH - EDGE.left - EDGE.right)) * wide);
      if (place >= 0 && place < chart.x.length) pick?.(place);
    };
  };
  return { element, show };
}
