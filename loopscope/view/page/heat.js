/** A heat map as a list of marks, which a canvas paints and an SVG writes down. */

import { colourOf, css, hex, mix, textOn } from "./colour.js";

/**
 * @typedef {import("./colour.js").Palette} Palette
 * @typedef {import("./colour.js").Scale} Scale
 * @typedef {import("./colour.js").Rgb} Rgb
 * @typedef {{rows: number, columns: number, value: (row: number, column: number) => number, scale: Scale,
 *   rowNames?: string[], columnNames?: string[], rowTitle?: string, columnTitle?: string,
 *   text?: (row: number, column: number) => string, dot?: (row: number, column: number) => boolean,
 *   breaks?: {rows?: number[], columns?: number[]}, cell?: {least?: number, most?: number, high?: number}}} Heat
 * @typedef {{kind: "box", x: number, y: number, width: number, height: number, colour: Rgb}
 *   | {kind: "hatch", x: number, y: number, width: number, height: number, colour: Rgb}
 *   | {kind: "dot", x: number, y: number, radius: number, colour: Rgb}
 *   | {kind: "text", x: number, y: number, text: string, size: number, colour: Rgb, anchor: "start" | "middle" | "end",
 *      turned?: boolean}} Mark
 * @typedef {{width: number, height: number, left: number, top: number, cellWidth: number, cellHeight: number,
 *   rows: number, columns: number, marks: Mark[]}} Scene
 */

const SIGN = 0.56;
const CAPITAL = 0.72;
const LABEL = 12;
const LEAST_LABEL = 10;
/** How much of the rule's colour an empty cell takes, and how far from the page's a colour needs none. */
const VEIL = 0.28;
const VEILED = 60;

/** About how wide a text is. @param {string} text @param {number} size @returns {number} */
function textWidth(text, size) {
  let width = 0;
  for (const sign of text) width += sign.charCodeAt(0) > 0x2e80 ? 1 : /[A-Z@%mw—]/.test(sign) ? CAPITAL : SIGN;
  return width * size;
}

/** @param {string} text @param {number} room @param {number} size @returns {string} */
export function fitted(text, room, size) {
  if (textWidth(text, size) <= room + 0.01) return text;
  const kept = Math.max(1, Math.floor(room / (size * SIGN)) - 1);
  return `${[...text].slice(0, kept).join("")}…`;
}

/** @param {string[] | undefined} names @param {number} size @returns {number} */
function widest(names, size) {
  return Math.max(0, ...(names ?? []).map((name) => textWidth(name, size)));
}

/**
 * Whether names fit beside each other under the cells; one may be wider than its cell where its neighbours are short.
 * @param {string[]} names @param {number} size @param {number} cellWidth @param {number} before room left of the first
 * @returns {boolean}
 */
function abreast(names, size, cellWidth, before) {
  const halves = names.map((name) => textWidth(name, size) / 2);
  const ends = [before + cellWidth / 2, cellWidth / 2];
  return (
    halves.every((half, at) => at === 0 || halves[at - 1] + half <= cellWidth - 2) &&
    (halves[0] ?? 0) <= ends[0] &&
    (halves[halves.length - 1] ?? 0) <= ends[1]
  );
}

/**
 * The marks of a heat map that is at most `room` wide.
 * @param {Heat} heat @param {number} room @param {Palette} palette @returns {Scene}
 */
export function heatScene(heat, room, palette) {
  const { rows, columns } = heat;
  const size = LABEL;
  const left = Math.min(room * 0.34, widest(heat.rowNames, size) + (heat.rowNames ? 8 : 0)) + (heat.rowTitle ? 18 : 0);
  const most = heat.cell?.most ?? 40;
  const least = heat.cell?.least ?? 3;
  const cellWidth = Math.max(least, Math.min(most, (room - left - size / 2) / Math.max(1, columns)));
  const cellHeight = Math.min(heat.cell?.high ?? cellWidth, most);
  const turned = !!heat.columnNames && !abreast(heat.columnNames, size, cellWidth, left);
  const bottom = heat.columnNames ? (turned ? Math.min(72, widest(heat.columnNames, size) + 8) : size + 8) : 0;
  // Names of the first row and the last column may stick out of small cells.
  const top = Math.max(1, (size - cellHeight) / 2 + 1);
  const width = left + cellWidth * columns + size / 2;
  const height = top + cellHeight * rows + bottom + (heat.columnTitle ? 18 : 0) + 2;
  /** @type {Mark[]} */
  const marks = [];
  const gap = cellWidth > 9 && cellHeight > 9 ? 1 : 0;
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const value = heat.value(row, column);
      const x = left + column * cellWidth;
      const y = top + row * cellHeight;
      const box = { x, y, width: cellWidth - gap, height: cellHeight - gap };
      const colour = colourOf(value, heat.scale, palette);
      if (!colour) {
        marks.push({ kind: "hatch", ...box, colour: palette.rule });
        continue;
      }
      // Even where there is nothing, cells can be told from the page; the less there is, the more of this is needed.
      const veil = gap ? VEIL * Math.max(0, 1 - apart(colour, palette.paper) / VEILED) : 0;
      marks.push({ kind: "box", ...box, colour: mix(colour, palette.rule, veil) });
      const middle = { x: x + box.width / 2, y: y + box.height / 2 };
      if (heat.dot?.(row, column)) {
        marks.push({ kind: "dot", ...middle, radius: Math.min(4, cellHeight / 5), colour: textOn(colour) });
      }
      const text = heat.text?.(row, column);
      if (text) {
        const most = Math.min(13, cellHeight * 0.5, (box.width - 4) / Math.max(1, textWidth(text, 1)));
        if (most >= 8)
          marks.push({ kind: "text", ...middle, text, size: most, colour: textOn(colour), anchor: "middle" });
      }
    }
  }
  const shown = Math.max(1, Math.ceil((LEAST_LABEL + 2) / cellHeight));
  heat.rowNames?.forEach((name, row) => {
    if (row % shown) return;
    const text = fitted(name, left - 8 - (heat.rowTitle ? 18 : 0), size);
    marks.push({
      kind: "text",
      x: left - 6,
      y: top + (row + 0.5) * cellHeight,
      text,
      size,
      colour: palette.faint,
      anchor: "end",
    });
  });
  const every = Math.max(1, Math.ceil((LEAST_LABEL + 2) / cellWidth));
  heat.columnNames?.forEach((name, column) => {
    if (turned && column % every) return;
    const x = left + (column + 0.5) * cellWidth;
    const y = top + rows * cellHeight + (turned ? 6 : size / 2 + 5);
    const text = turned ? fitted(name, 66, size) : name;
    marks.push({ kind: "text", x, y, text, size, colour: palette.faint, anchor: turned ? "end" : "middle", turned });
  });
  if (heat.columnTitle) {
    const x = left + (columns * cellWidth) / 2;
    marks.push({
      kind: "text",
      x,
      y: height - 9,
      text: heat.columnTitle,
      size,
      colour: palette.faint,
      anchor: "middle",
    });
  }
  if (heat.rowTitle) {
    const y = top + (rows * cellHeight) / 2;
    marks.push({
      kind: "text",
      x: 8,
      y,
      text: heat.rowTitle,
      size,
      colour: palette.faint,
      anchor: "middle",
      turned: true,
    });
  }
  for (const row of heat.breaks?.rows ?? []) {
    marks.push({
      kind: "box",
      x: left,
      y: top + row * cellHeight - 1.5,
      width: columns * cellWidth,
      height: 2,
      colour: palette.faint,
    });
  }
  for (const column of heat.breaks?.columns ?? []) {
    marks.push({
      kind: "box",
      x: left + column * cellWidth - 1.5,
      y: top,
      width: 2,
      height: rows * cellHeight,
      colour: palette.faint,
    });
  }
  return { width, height, left, top, cellWidth, cellHeight, rows, columns, marks };
}

/** @param {Rgb} a @param {Rgb} b */
function apart(a, b) {
  return Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) + Math.abs(a[2] - b[2]);
}

/** The cell under a point of the scene, or null. @param {Scene} scene @param {number} x @param {number} y
 * @returns {[number, number] | null} */
export function cellAt(scene, x, y) {
  const row = Math.floor((y - scene.top) / scene.cellHeight);
  const column = Math.floor((x - scene.left) / scene.cellWidth);
  return row >= 0 && row < scene.rows && column >= 0 && column < scene.columns ? [row, column] : null;
}

/**
 * @param {CanvasRenderingContext2D} brush @param {Scene} scene @param {string} family font family of the page
 */
export function paint(brush, scene, family) {
  brush.textBaseline = "middle";
  for (const mark of scene.marks) {
    brush.fillStyle = css(mark.colour);
    if (mark.kind === "box") brush.fillRect(mark.x, mark.y, mark.width, mark.height);
    else if (mark.kind === "dot") {
      brush.beginPath();
      brush.arc(mark.x, mark.y, mark.radius, 0, 2 * Math.PI);
      brush.fill();
    } else if (mark.kind === "hatch") {
      brush.save();
      brush.beginPath();
      brush.rect(mark.x, mark.y, mark.width, mark.height);
      brush.clip();
      brush.strokeStyle = css(mark.colour);
      brush.lineWidth = 1.2;
      brush.beginPath();
      for (let at = -mark.height; at < mark.width; at += 5) {
        brush.moveTo(mark.x + at, mark.y + mark.height);
        brush.lineTo(mark.x + at + mark.height, mark.y);
      }
      brush.stroke();
      brush.restore();
    } else {
      brush.font = `${mark.size}px ${family}`;
      brush.textAlign = mark.anchor === "middle" ? "center" : mark.anchor;
      if (mark.turned) {
        brush.save();
        brush.translate(mark.x, mark.y);
        brush.rotate(-Math.PI / 2);
        brush.fillText(mark.text, 0, 0);
        brush.restore();
      } else brush.fillText(mark.text, mark.x, mark.y);
    }
  }
}

/** @param {string} text @returns {string} */
function escaped(text) {
  return text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/** @param {number} value @returns {string} */
function short(value) {
  return String(Math.round(value * 100) / 100);
}

/** @param {Mark} mark @returns {string} */
function written(mark) {
  const colour = hex(mark.colour);
  const x = short(mark.x);
  const y = short(mark.y);
  if (mark.kind === "dot") return `<circle cx="${x}" cy="${y}" r="${short(mark.radius)}" fill="${colour}"/>`;
  if (mark.kind === "text") {
    const turn = mark.turned ? ` transform="rotate(-90 ${x} ${y})"` : "";
    const place = `x="${x}" y="${y}" text-anchor="${mark.anchor}" dominant-baseline="central"${turn}`;
    return `<text ${place} font-size="${short(mark.size)}" fill="${colour}">${escaped(mark.text)}</text>`;
  }
  const box = `x="${x}" y="${y}" width="${short(mark.width)}" height="${short(mark.height)}"`;
  return mark.kind === "box" ? `<rect ${box} fill="${colour}"/>` : `<rect ${box} fill="none" stroke="${colour}"/>`;
}

/**
 * The scene as a file of its own. @param {Scene} scene @param {string} title @param {Palette} palette @param {string} family
 * @returns {string}
 */
export function svgText(scene, title, palette, family) {
  const size = `width="${short(scene.width)}" height="${short(scene.height)}" viewBox="0 0 ${short(scene.width)} ${short(scene.height)}"`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${escaped(family)}" role="img">`,
    `<title>${escaped(title)}</title>`,
    `<rect width="100%" height="100%" fill="${hex(palette.paper)}"/>`,
    ...scene.marks.map(written),
    "</svg>\n",
  ].join("\n");
}
