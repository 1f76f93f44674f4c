/** Where the nodes of a permutation graph are drawn: every cycle is a ring, and walking goes round it clockwise. */

/**
 * @typedef {{x: number, y: number, ring: number}} Spot
 * @typedef {{x: number, y: number, radius: number, nodes: number[]}} Ring
 * @typedef {{spots: Spot[], rings: Ring[], width: number, height: number}} Layout
 */

/**
 * The cycles of a permutation, each from its smallest node, or from `first` where that is on it; longest first, and
 * the cycle of `first` before all.
 * @param {number[]} successors @param {number} [first] @returns {number[][]}
 */
export function cyclesOf(successors, first) {
  const seen = new Set();
  /** @type {number[][]} */
  const cycles = [];
  const starts = first === undefined ? [] : [first];
  for (const start of [...starts, ...successors.keys()]) {
    /** @type {number[]} */
    const cycle = [];
    for (let at = start; !seen.has(at) && at >= 0 && at < successors.length; at = successors[at]) {
      seen.add(at);
      cycle.push(at);
    }
    if (cycle.length) cycles.push(cycle);
  }
  const head = first === undefined ? [] : cycles.splice(0, 1);
  return [...head, ...cycles.sort((a, b) => b.length - a.length)];
}

/** Radius of the ring of so many nodes. @param {number} count @param {number} gap @returns {number} */
function ringRadius(count, gap) {
  return count === 1 ? 0 : Math.max(gap / 2, gap / (2 * Math.sin(Math.PI / count)));
}

/**
 * Spots for all nodes: the walker's ring first, the others beside it in columns that are no higher.
 * @param {number[]} successors @param {number} start where the walk begins, drawn at the top of its ring
 * @param {{gap?: number, node?: number}} [sizes] distance of neighbours on a ring and radius of a node
 * @returns {Layout}
 */
export function layOut(successors, start, sizes = {}) {
  const gap = sizes.gap ?? 62;
  const margin = (sizes.node ?? 18) + 14;
  const cycles = cyclesOf(successors, start);
  const boxes = cycles.map((nodes) => {
    const radius = ringRadius(nodes.length, gap);
    return { nodes, radius, size: 2 * (radius + margin) };
  });
  // Many small rings need room above each other; few do without.
  const height = Math.max(cycles.length > 3 ? 270 : 200, ...boxes.map((box) => box.size));
  /** @type {Ring[]} */
  const rings = [];
  /** @type {{boxes: typeof boxes, width: number}[]} */
  const columns = [];
  let filled = 0;
  for (const box of boxes) {
    const column = columns[columns.length - 1];
    if (!column || filled + box.size > height) {
      columns.push({ boxes: [box], width: box.size });
      filled = box.size;
    } else {
      column.boxes.push(box);
      column.width = Math.max(column.width, box.size);
      filled += box.size;
    }
  }
  let left = 0;
  for (const column of columns) {
    const used = column.boxes.reduce((sum, box) => sum + box.size, 0);
    const space = (height - used) / (column.boxes.length + 1);
    let top = space;
    for (const box of column.boxes) {
      rings.push({ x: left + column.width / 2, y: top + box.size / 2, radius: box.radius, nodes: box.nodes });
      top += box.size + space;
    }
    left += column.width;
  }
  /** @type {Spot[]} */
  const spots = successors.map(() => ({ x: 0, y: 0, ring: 0 }));
  rings.forEach((ring, index) =>
    ring.nodes.forEach((node, at) => {
      const angle = (2 * Math.PI * at) / ring.nodes.length - Math.PI / 2;
      spots[node] = {
        x: ring.x + ring.radius * Math.cos(angle),
        y: ring.y + ring.radius * Math.sin(angle),
        ring: index,
      };
    }),
  );
  return { spots, rings, width: left, height };
}

/**
 * How many steps from `from` a node is first met, or -1 where it never is.
 * @param {number[]} successors @param {number} from @param {number} node @returns {number}
 */
export function stepsTo(successors, from, node) {
  let at = from;
  for (let steps = 0; steps < successors.length; steps++) {
    if (at === node) return steps;
    at = successors[at];
  }
  return -1;
}

/**
 * The node after so many steps. @param {number[]} successors @param {number} from @param {number} steps
 * @returns {number}
 */
export function walkOn(successors, from, steps) {
  let at = from;
  for (let step = 0; step < steps; step++) at = successors[at];
  return at;
}

/**
 * The successors that a text lists, or null unless they are a permutation of 0..n-1.
 * @param {string} text @returns {number[] | null}
 */
export function parseSuccessors(text) {
  const parts = text.split(/[\s,]+/).filter((part) => part !== "");
  const numbers = parts.map(Number);
  if (!parts.length || parts.some((part) => !/^\d{1,4}$/.test(part))) return null;
  return new Set(numbers).size === numbers.length && Math.max(...numbers) === numbers.length - 1 ? numbers : null;
}
