/**
 * The text of a program, taken apart and put together: `F6 J:one F[layer[2].z<-(F7)]`.
 *
 * Only the outline is read here: calls, maps, and patches as they are written. What a patch means, and whether it may
 * stand, the library says.
 *
 * @typedef {{kind: "call", stack: string, patches: string[]}} Call
 * @typedef {{kind: "map", name: string}} MapStep
 * @typedef {Call | MapStep} Step
 * @typedef {{start: string, prelude: string[], steps: Step[], coda: {loop: number, patches: string[]}[]}} Program
 */

const MOST_STEPS = 20000;

/**
 * Where the bracket that opens at `from` is closed; -1 where it never is. Quoted text is passed over.
 * @param {string} text @param {number} from @returns {number}
 */
function closing(text, from) {
  let depth = 0;
  for (let at = from; at < text.length; at++) {
    const sign = text[at];
    if (sign === '"') {
      at++;
      while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    } else if (sign === "[" || sign === "(") depth++;
    else if ((sign === "]" || sign === ")") && --depth === 0) return at;
  }
  return -1;
}

/**
 * The parts of a text between separators that stand in no bracket and no quotes, without space around them.
 * @param {string} text @param {string} separator @returns {string[]}
 */
export function splitOutside(text, separator) {
  /** @type {string[]} */
  const parts = [];
  let from = 0;
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (sign === '"') {
      at++;
      while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
    } else if (sign === "[" || sign === "(") {
      const end = closing(text, at);
      at = end < 0 ? text.length : end;
    } else if (sign === separator) {
      parts.push(text.slice(from, at).trim());
      from = at + 1;
    }
  }
  parts.push(text.slice(from).trim());
  return parts;
}

/**
 * The words of a program: parts between spaces that stand in no bracket.
 * @param {string} text @returns {string[]}
 */
function words(text) {
  return splitOutside(text.replace(/\s+/g, " "), " ").filter((word) => word !== "");
}

/** @param {string} word @param {number} from @returns {string[] | null} */
function patchesIn(word, from) {
  if (word[from] !== "[" || closing(word, from) !== word.length - 1) return null;
  return splitOutside(word.slice(from + 1, -1), ";").filter((patch) => patch !== "");
}

/** @param {string} word @returns {Step[] | null} */
function stepsOf(word) {
  const map = /^J:([\w-]+)$/.exec(word);
  if (map) return [{ kind: "map", name: map[1] }];
  if (word[0] === "(") {
    const end = closing(word, 0);
    const times = /^\d{1,5}$/.exec(word.slice(end + 1));
    const inner = end > 0 ? steps(words(word.slice(1, end))) : null;
    if (!inner || !times) return null;
    return Array.from({ length: Number(times[0]) }, () => inner.map(copyStep)).flat();
  }
  const call = /^([A-IK-Z])(\d{1,5})?(\[)?/.exec(word);
  if (!call) return null;
  if (call[3]) {
    const patches = call[2] ? null : patchesIn(word, call[0].length - 1);
    return patches && [{ kind: "call", stack: call[1], patches }];
  }
  if (call[0] !== word) return null;
  return Array.from({ length: Number(call[2] ?? 1) }, () => ({ kind: "call", stack: call[1], patches: [] }));
}

/** @param {string[]} list @returns {Step[] | null} */
function steps(list) {
  /** @type {Step[]} */
  const found = [];
  for (const word of list) {
    const more = stepsOf(word);
    if (!more || found.length + more.length > MOST_STEPS) return null;
    found.push(...more);
  }
  return found;
}

/**
 * The outline of a program's text, or null where it cannot be read; then only the library can say why.
 * @param {string} text @returns {Program | null}
 */
export function parseProgram(text) {
  const list = words(text);
  const start = /^(h\d+|seed:\d+|zeros)$/.test(list[0] ?? "") ? /** @type {string} */ (list.shift()) : "";
  /** @type {string[]} */
  let prelude = [];
  if (list[0]?.startsWith("prelude[")) {
    const found = patchesIn(/** @type {string} */ (list.shift()), "prelude".length);
    if (!found) return null;
    prelude = found;
  }
  /** @type {Program["coda"]} */
  const coda = [];
  while (list.length) {
    const named = /^coda:(\d+)(?=\[)/.exec(list[list.length - 1]);
    if (!named) break;
    const patches = patchesIn(/** @type {string} */ (list.pop()), named[0].length);
    if (!patches) return null;
    coda.unshift({ loop: Number(named[1]), patches });
  }
  const body = steps(list);
  if (!body || (!body.length && !start.startsWith("h"))) return null;
  return { start, prelude, steps: body, coda };
}

/**
 * The text of a program, as the library writes it: equal bare calls that follow each other become one word.
 * @param {Program} program @returns {string}
 */
export function formatProgram(program) {
  /** @type {string[]} */
  const out = program.start ? [program.start] : [];
  if (program.prelude.length) out.push(`prelude[${program.prelude.join("; ")}]`);
  let stack = "";
  let count = 0;
  const flush = () => {
    if (count) out.push(count > 1 ? `${stack}${count}` : stack);
    count = 0;
  };
  for (const step of program.steps) {
    if (step.kind === "call" && !step.patches.length) {
      if (step.stack !== stack) flush();
      stack = step.stack;
      count++;
      continue;
    }
    flush();
    out.push(step.kind === "map" ? `J:${step.name}` : `${step.stack}[${step.patches.join("; ")}]`);
  }
  flush();
  for (const each of program.coda) out.push(`coda:${each.loop}[${each.patches.join("; ")}]`);
  return out.join(" ");
}

/** @param {Step} step @returns {Step} */
function copyStep(step) {
  return step.kind === "call" ? { ...step, patches: [...step.patches] } : { ...step };
}

/** @param {Program} program @returns {Program} */
function copyProgram(program) {
  return {
    start: program.start,
    prelude: [...program.prelude],
    steps: program.steps.map(copyStep),
    coda: program.coda.map((each) => ({ loop: each.loop, patches: [...each.patches] })),
  };
}

/** How many calls the state at the start has been through. @param {Program} program @returns {number} */
export function firstCall(program) {
  return program.start.startsWith("h") ? Number(program.start.slice(1)) : 0;
}

/** How often F is called. @param {Program} program @returns {number} */
export function callsIn(program) {
  return program.steps.filter((step) => step.kind === "call").length;
}

/**
 * Index of the step that is this loop, or -1. @param {Program} program @param {number} loop @returns {number}
 */
export function indexOfLoop(program, loop) {
  let at = firstCall(program);
  return program.steps.findIndex((step) => step.kind === "call" && ++at === loop);
}

/** The stack that a loop calls; F where there is none. @param {Program} program @param {number} loop @returns {string} */
export function stackAt(program, loop) {
  const step = program.steps[indexOfLoop(program, loop)];
  return step?.kind === "call" ? step.stack : "F";
}

/**
 * The maps between call `after` and the next one, in order; `after` is 0 before the first call.
 * @param {Program} program @param {number} after @returns {string[]}
 */
export function mapsAfter(program, after) {
  let calls = firstCall(program);
  /** @type {string[]} */
  const names = [];
  for (const step of program.steps) {
    if (step.kind === "call") calls++;
    else if (calls === after) names.push(step.name);
    if (calls > after) break;
  }
  return names;
}

/**
 * The program with these maps, and no others, between call `after` and the next one.
 * @param {Program} program @param {number} after @param {string[]} names @returns {Program}
 */
export function withMaps(program, after, names) {
  const made = copyProgram(program);
  let calls = firstCall(program);
  /** @type {Step[]} */
  const kept = [];
  /** @type {Step[]} */
  const maps = names.map((name) => ({ kind: "map", name }));
  if (calls === after) kept.push(...maps);
  for (const step of made.steps) {
    if (step.kind === "map" && calls === after) continue;
    kept.push(step);
    if (step.kind === "call" && ++calls === after) kept.push(...maps);
  }
  made.steps = kept;
  return made;
}

/** The program with one more call at its end. @param {Program} program @returns {Program} */
export function withCall(program) {
  const made = copyProgram(program);
  const last = made.steps.filter((step) => step.kind === "call").pop();
  made.steps.push({ kind: "call", stack: last?.kind === "call" ? last.stack : "F", patches: [] });
  return made;
}

/**
 * The program without its last call and the maps before it; the same program where only one call is left.
 * @param {Program} program @returns {Program}
 */
export function withoutCall(program) {
  if (callsIn(program) < 2) return program;
  const made = copyProgram(program);
  while (made.steps.length && made.steps[made.steps.length - 1].kind === "map") made.steps.pop();
  made.steps.pop();
  while (made.steps.length && made.steps[made.steps.length - 1].kind === "map") made.steps.pop();
  const last = firstCall(made) + callsIn(made);
  made.coda = made.coda.filter((each) => each.loop <= last);
  return made;
}

/**
 * The program with one more patch in a loop: `site<-source`. One that stood at the same site is replaced.
 * @param {Program} program @param {number} loop @param {string} site @param {string} change `<-source` or `*=0`
 * @returns {Program}
 */
export function withPatch(program, loop, site, change) {
  const made = copyProgram(program);
  const step = made.steps[indexOfLoop(made, loop)];
  if (step?.kind === "call") {
    step.patches = [...step.patches.filter((each) => siteOf(each) !== site), `${site}${change}`];
  }
  return made;
}

/** The same steps without any patch. @param {Program} program @returns {Program} */
export function withoutPatches(program) {
  const made = copyProgram(program);
  for (const step of made.steps) if (step.kind === "call") step.patches = [];
  made.prelude = [];
  made.coda = [];
  return made;
}

/**
 * The first stack or map that a program or one of its sources names and that is not among the known ones, with its place
 * in the text where that is the program's own; null where all are known.
 * @param {string} text @param {{stacks: string[], maps: string[]}} known
 * @returns {{kind: "stack" | "map", name: string, position: number | null} | null}
 */
export function unknownIn(text, known) {
  const program = parseProgram(text);
  if (!program) return null;
  for (const step of program.steps) {
    const name = step.kind === "map" ? step.name : step.stack;
    if ((step.kind === "map" ? known.maps : known.stacks).includes(name)) continue;
    const written = step.kind === "map" ? `J:${name}(?![\\w-])` : `${name}(?![\\w:])|${name}\\d`;
    const found = new RegExp(`(?<![\\w:])(?:${written})`).exec(text);
    return { kind: step.kind === "map" ? "map" : "stack", name, position: found ? found.index : null };
  }
  const lists = [
    program.prelude,
    ...program.coda.map((each) => each.patches),
    patchesOf(program).map((each) => each.text),
  ];
  for (const patch of lists.flat()) {
    const from = patch.indexOf("<-(") + 2;
    const end = from < 2 ? -1 : closing(patch, from);
    const found = end < 0 ? null : unknownIn(patch.slice(from + 1, end), known);
    if (found) return { ...found, position: null };
  }
  return null;
}

/** The place that a patch stands at. @param {string} patch @returns {string} */
export function siteOf(patch) {
  const at = /<-|\+=|\*=/.exec(patch.replace(/"(?:[^"\\]|\\.)*"|<[\d ]+>/g, (quoted) => " ".repeat(quoted.length)));
  return at ? patch.slice(0, at.index).trim() : patch.trim();
}

/**
 * Every patch of a program with its loop. @param {Program} program @returns {{loop: number, text: string}[]}
 */
export function patchesOf(program) {
  let calls = firstCall(program);
  return program.steps.flatMap((step) => {
    if (step.kind !== "call") return [];
    calls++;
    return step.patches.map((text) => ({ loop: calls, text }));
  });
}

/**
 * The site of an address inside its loop. Heads and rows are left out where all are meant.
 * @param {{layer: number, head?: number | null, row?: number | null, component: string}} place @returns {string}
 */
export function siteText(place) {
  const parts = [`layer[${place.layer}]`];
  if (place.head !== null && place.head !== undefined) parts.push(`head[${place.head}]`);
  if (place.row !== null && place.row !== undefined) parts.push(`row[${place.row}]`);
  return [...parts, place.component].join(".");
}
