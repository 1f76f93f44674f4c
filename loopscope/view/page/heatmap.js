/** A heat map on a canvas that can be hovered, clicked, and walked through with arrow keys. */

import { paletteAt } from "./colour.js";
import { el } from "./dom.js";
import { cellAt, heatScene, paint, svgText } from "./heat.js";

/**
 * @typedef {import("./heat.js").Heat} Heat
 * @typedef {import("./heat.js").Scene} Scene
 * @typedef {{label: string, tell: (row: number, column: number) => string, pick?: (row: number, column: number) => void,
 *   point?: (cell: [number, number] | null) => void, quiet?: boolean}} Gestures
 */

/**
 * @param {Gestures} gestures `tell` says a cell in words; `pick` is a click or Enter; `point` the cell under the pointer;
 *   `quiet` leaves out the line below that says the cell
 */
export function heatMap(gestures) {
  const canvas = el("canvas", {});
  const cursor = el("div", { class: "cursor", hidden: true });
  const chosen = el("div", { class: "chosen", hidden: true });
  const board = el(
    "div",
    {
      class: "board",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "heat map",
      "aria-label": `${gestures.label}. Arrow keys move, Enter chooses.`,
    },
    canvas,
    chosen,
    cursor,
  );
  const line = el("p", { class: "told", "aria-live": "polite" });
  const scroll = el("div", { class: "scroll" }, board);
  const element = el("div", { class: "heat" }, scroll, gestures.quiet ? null : line);
  /** @type {Heat | null} */
  let heat = null;
  /** @type {Scene | null} */
  let scene = null;
  /** @type {[number, number] | null} */
  let at = null;
  /** @type {[number, number] | null} */
  let marked = null;

  /** @param {HTMLElement} frame @param {[number, number] | null} cell */
  const frameAt = (frame, cell) => {
    frame.hidden = !cell || !scene;
    if (!cell || !scene) return;
    const { left, top, cellWidth, cellHeight } = scene;
    frame.style.transform = `translate(${left + cell[1] * cellWidth - 1}px, ${top + cell[0] * cellHeight - 1}px)`;
    frame.style.width = `${cellWidth + 1}px`;
    frame.style.height = `${cellHeight + 1}px`;
  };

  const draw = () => {
    if (!heat || !element.isConnected) return;
    const room = scroll.clientWidth;
    if (room < 20) return;
    const style = getComputedStyle(element);
    scene = heatScene(heat, room, paletteAt(element));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.ceil(scene.width * ratio);
    canvas.height = Math.ceil(scene.height * ratio);
    canvas.style.width = `${scene.width}px`;
    canvas.style.height = `${scene.height}px`;
    const brush = canvas.getContext("2d");
    if (!brush) return;
    brush.scale(ratio, ratio);
    paint(brush, scene, style.fontFamily);
    frameAt(cursor, at);
    frameAt(chosen, marked);
  };

  /** @param {[number, number] | null} cell */
  const move = (cell) => {
    if (cell?.[0] === at?.[0] && cell?.[1] === at?.[1]) return;
    at = cell;
    frameAt(cursor, cell);
    line.textContent = cell ? gestures.tell(...cell) : marked ? gestures.tell(...marked) : "";
    gestures.point?.(cell);
  };

  /** @param {PointerEvent | MouseEvent} event */
  const under = (event) => {
    if (!scene) return null;
    const box = canvas.getBoundingClientRect();
    return cellAt(scene, event.clientX - box.left, event.clientY - box.top);
  };
  board.addEventListener("pointermove", (event) => move(under(event)));
  board.addEventListener("pointerleave", () => move(null));
  board.addEventListener("click", (event) => {
    const cell = under(event);
    if (!cell) return;
    move(cell);
    gestures.pick?.(...cell);
  });
  board.addEventListener("focus", () => {
    // The keyboard begins at a cell that is seen, so that its first arrow moves.
    if (heat && !at && board.matches(":focus-visible")) move(marked ?? [0, 0]);
  });
  board.addEventListener("blur", () => move(null));
  board.addEventListener("keydown", (event) => {
    if (!heat || event.altKey || event.ctrlKey || event.metaKey) return;
    if ((event.key === "Enter" || event.key === " ") && at) {
      event.preventDefault();
      gestures.pick?.(...at);
      return;
    }
    const [row, column] = at ?? marked ?? [0, 0];
    /** @type {Record<string, [number, number]>} */
    const steps = {
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      Home: [row, 0],
      End: [row, heat.columns - 1],
    };
    const next = steps[event.key];
    if (!next) return;
    event.preventDefault();
    if (!at) return move([row, column]);
    move([Math.min(heat.rows - 1, Math.max(0, next[0])), Math.min(heat.columns - 1, Math.max(0, next[1]))]);
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });

  new ResizeObserver(draw).observe(scroll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  return {
    element,
    /** @param {Heat} next @param {[number, number] | null} [mark] the cell that is chosen */
    draw: (next, mark = null) => {
      heat = next;
      marked = mark;
      if (at && (at[0] >= next.rows || at[1] >= next.columns)) at = null;
      draw();
      line.textContent = at ? gestures.tell(...at) : mark ? gestures.tell(...mark) : "";
    },
    /** @param {boolean} on */
    dim: (on) => element.classList.toggle("stale", on),
    /** @returns {Promise<Blob | null>} */
    png: () => new Promise((resolve) => canvas.toBlob(resolve, "image/png")),
    /** @param {string} title @returns {string} */
    svg: (title) => {
      const palette = paletteAt(element);
      return scene ? svgText(scene, title, palette, getComputedStyle(element).fontFamily) : "";
    },
  };
}
