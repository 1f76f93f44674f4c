/** Small pictures of the patterns of all heads, to choose one. */

import { ATTENTION, colourOf, paletteAt } from "./colour.js";
import { el, fill } from "./dom.js";

/** @typedef {import("./contract.js").Values} Values */

/**
 * Paint one head's pattern, a cell a pixel; the style sheet makes it large.
 * @param {HTMLCanvasElement} canvas @param {Values} patterns [heads, cells, cells] of 0 to 255 @param {number} head
 */
function paintHead(canvas, patterns, head) {
  const [, rows, columns] = patterns.shape;
  canvas.width = columns;
  canvas.height = rows;
  const brush = canvas.getContext("2d");
  if (!brush) return;
  const palette = paletteAt(canvas);
  const image = brush.createImageData(columns, rows);
  const from = head * rows * columns;
  for (let at = 0; at < rows * columns; at++) {
    const colour = colourOf(patterns.data[from + at] / 255, ATTENTION, palette) ?? palette.paper;
    image.data.set([colour[0], colour[1], colour[2], 255], 4 * at);
  }
  brush.putImageData(image, 0, 0);
}

/**
 * The thumbnails; `choose` gets the head that is clicked.
 * @param {(head: number) => void} choose
 */
export function headThumbs(choose) {
  const element = el("div", { class: "thumbs", role: "group", "aria-label": "Heads" });
  /** @type {{patterns: Values, chosen: number | null} | null} */
  let last = null;
  /** @param {Values} patterns @param {number | null} chosen */
  const show = (patterns, chosen) => {
    const focused = element.contains(document.activeElement);
    const same = last?.patterns.shape[0] === patterns.shape[0] && element.childElementCount > 0;
    if (!same) {
      fill(
        element,
        ...Array.from({ length: patterns.shape[0] }, (_, head) =>
          el(
            "button",
            { type: "button", class: "thumb", "data-head": head, onclick: () => choose(head) },
            el("canvas", {}),
            el("span", {}, `head ${head}`),
          ),
        ),
      );
    }
    [...element.children].forEach((button, head) => {
      const on = head === chosen;
      button.setAttribute("aria-pressed", String(on));
      button.setAttribute("tabindex", on || (chosen === null && head === 0) ? "0" : "-1");
      const canvas = button.querySelector("canvas");
      if (canvas && (!same || last?.patterns !== patterns)) paintHead(canvas, patterns, head);
      if (on && focused) /** @type {HTMLElement} */ (button).focus();
    });
    last = { patterns, chosen };
  };
  element.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = /** @type {HTMLElement[]} */ ([...element.children]);
    const at = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next?.focus();
    next?.click();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    const { patterns, chosen } = last ?? { patterns: null, chosen: null };
    last = null;
    if (patterns && element.isConnected) show(patterns, chosen);
  });
  return { element, show };
}
