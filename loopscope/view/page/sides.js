/** Runs side by side, on the same axes: walks as graphs, other models as lists of the likeliest answers. */

import { percent } from "./colour.js";
import { el, fill } from "./dom.js";
import { graphView } from "./graphview.js";
import { pointAt, sharesAt, targetName, trailOf } from "./readout.js";
import { tokenName, topOf } from "./textgrid.js";

/**
 * @typedef {import("./contract.js").Answer} Answer
 * @typedef {import("./contract.js").Input} Input
 */

const LISTED = 5;

/**
 * The likeliest answers of the last row with bars.
 * @param {Answer} answer @param {number} point @param {Input} input @returns {HTMLElement}
 */
export function topList(answer, point, input) {
  const row = answer.head.rows.length - 1;
  const list = topOf(answer, point, row).slice(0, LISTED);
  return el(
    "ol",
    { class: "five" },
    ...list.map((each) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${Math.max(0.5, 100 * each.share)}%`;
      const name = tokenName(answer, each.id);
      const target = "graph" in input ? targetName(input, each.id) : "elsewhere";
      return el(
        "li",
        {},
        el("span", { class: "name" }, name, target !== "elsewhere" ? el("small", {}, ` ${target}`) : null),
        el("span", { class: "share" }, percent(each.share)),
        bar,
      );
    }),
  );
}

/** One run: its title, its last readout, and where the walker is. */
export function runCard() {
  const title = el("h3", {});
  const verdict = el("p", { class: "verdict" });
  const graph = graphView();
  const list = el("div", {});
  const element = el(
    "article",
    { class: "card" },
    title,
    verdict,
    el("div", { class: "card-body" }, graph.element, list),
  );
  element.hidden = true;
  return {
    element,
    /** @param {string} name @param {Answer} answer @param {Input} input @param {number} [loop] */
    show: (name, answer, input, loop) => {
      element.hidden = false;
      const points = answer.head.points;
      const last = points[points.length - 1].calls;
      const at = Math.min(last, loop ?? last);
      const point = pointAt(points, at);
      const walk = "graph" in input ? input : null;
      const trail = trailOf(answer);
      const [best] = topOf(answer, point, answer.head.rows.length - 1);
      title.textContent = name;
      const target = walk ? targetName(walk, best.id) : "";
      fill(
        verdict,
        el("strong", {}, walk ? `node ${best.id}` : `“${tokenName(answer, best.id)}”`),
        ` ${percent(best.share)}`,
        target ? `, ${target}` : "",
        at < last ? ` after loop ${at}` : "",
      );
      graph.element.style.display = walk ? "" : "none";
      element.classList.toggle("drawn", !!walk);
      if (walk)
        graph.show({
          walk,
          trail,
          loop: at - points[0].calls,
          shares: sharesAt(answer, point),
          first: points[0].calls,
        });
      fill(list, topList(answer, point, input));
    },
  };
}
