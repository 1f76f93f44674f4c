/** Colours by value: from nothing to full, or from full alarm over nothing to full heat. */

/**
 * @typedef {[number, number, number]} Rgb
 * @typedef {{paper: Rgb, ink: Rgb, faint: Rgb, rule: Rgb, heat: Rgb, alarm: Rgb, link: Rgb}} Palette
 * @typedef {{kind: "ramp", low: number, high: number, root?: boolean} | {kind: "both", most: number}} Scale
 */

/** @param {string} text `#rrggbb`, as the style sheet has them @returns {Rgb} */
export function rgbOf(text) {
  const found = /^#([0-9a-f]{6})$/i.exec(text.trim());
  const value = found ? parseInt(found[1], 16) : 0x808080;
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** The colours that are in force at an element. @param {Element} element @returns {Palette} */
export function paletteAt(element) {
  // What is not in the page yet has no colours; it will have those of the page.
  const style = getComputedStyle(element.isConnected ? element : (document.querySelector(".loopscope") ?? element));
  /** @param {string} name */
  const read = (name) => rgbOf(style.getPropertyValue(`--${name}`));
  return {
    paper: read("paper"),
    ink: read("ink"),
    faint: read("faint"),
    rule: read("rule"),
    heat: read("heat"),
    alarm: read("alarm"),
    link: read("link"),
  };
}

/** @param {Rgb} from @param {Rgb} to @param {number} share @returns {Rgb} */
export function mix(from, to, share) {
  const part = Math.min(1, Math.max(0, share));
  return [0, 1, 2]
    .map((at) => Math.round(from[at] + (to[at] - from[at]) * part))
    .reduce((all, value, at) => ((all[at] = value), all), /** @type {Rgb} */ ([0, 0, 0]));
}

/**
 * The colour of a value; what is no number has none.
 * @param {number} value @param {Scale} scale @param {Palette} palette @returns {Rgb | null}
 */
export function colourOf(value, scale, palette) {
  if (!Number.isFinite(value)) return null;
  if (scale.kind === "both") {
    const share = scale.most > 0 ? value / scale.most : 0;
    return mix(palette.paper, share < 0 ? palette.alarm : palette.heat, Math.abs(share));
  }
  const width = scale.high - scale.low;
  const share = width > 0 ? Math.max(0, (value - scale.low) / width) : 0;
  return mix(palette.paper, palette.heat, scale.root ? Math.sqrt(share) : share);
}

/** @param {Rgb} colour */
function lightness(colour) {
  const [r, g, b] = colour.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** How much two colours stand out from each other, 1 to 21. @param {Rgb} a @param {Rgb} b @returns {number} */
export function contrast(a, b) {
  const [low, high] = [lightness(a), lightness(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

const BLACK = /** @type {Rgb} */ ([0, 0, 0]);
const WHITE = /** @type {Rgb} */ ([255, 255, 255]);

/**
 * The colour of text on this colour. One of black and white can be read on every colour, 4.5 to 1 or more; ink and
 * paper, which are softer, cannot.
 * @param {Rgb} behind @returns {Rgb}
 */
export function textOn(behind) {
  return contrast(behind, BLACK) >= contrast(behind, WHITE) ? BLACK : WHITE;
}

/** @param {Rgb} colour @returns {string} */
export function css(colour) {
  return `rgb(${colour[0]} ${colour[1]} ${colour[2]})`;
}

/** @param {Rgb} colour @returns {string} `#rrggbb`, which every drawing program reads */
export function hex(colour) {
  return `#${colour.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Colours of attention: by its root, as most of what a head looks at has a small share. @type {Scale} */
export const ATTENTION = { kind: "ramp", low: 0, high: 1, root: true };

/**
 * A scale that fits these values: of either sign around nothing, else from `low` (0 unless told) to the largest.
 * @param {Iterable<number>} values @param {{low?: number, high?: number}} [ends] @returns {Scale}
 */
export function scaleOf(values, ends = {}) {
  let low = 0;
  let high = 0;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low < 0) return { kind: "both", most: Math.max(-low, high, ends.high ?? 0) };
  return { kind: "ramp", low: ends.low ?? 0, high: ends.high ?? (high || 1) };
}

/** A number in few signs. @param {number} value @returns {string} */
export function told(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 100000)) return value.toExponential(1).replace("-", "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

/** A share in per cent. @param {number} value @returns {string} */
export function percent(value) {
  if (!Number.isFinite(value)) return "–";
  const of100 = 100 * value;
  const digits = Math.abs(of100) >= 99.95 || of100 === 0 ? 0 : Math.abs(of100) < 10 ? 1 : 0;
  return `${of100
    .toFixed(digits)
    .replace(/^-(?=[0.]+$)/, "")
    .replace("-", "−")}\u00a0%`;
}
