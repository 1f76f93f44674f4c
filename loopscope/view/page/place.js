/**
 * What the page shows, as the text behind the # of its address: a link reproduces the view.
 *
 * @typedef {Record<string, string>} State  every entry a text; what is missing is the default
 */

export const DEFAULTS = /** @type {const} */ ({
  view: "",
  stop: "1",
  input: "",
  other: "",
  program: "",
  against: "",
  loop: "",
  layer: "",
  head: "",
  row: "",
  part: "",
  source: "",
  from: "",
  pins: "",
  measure: "",
  answers: "",
  diff: "",
  pick: "",
});

/** @typedef {keyof typeof DEFAULTS} Key */

const MOST = 20000;

/**
 * The state that a hash says. What cannot be read is left out: an old or broken link still opens the page.
 * @param {string} hash @returns {State}
 */
export function parsePlace(hash) {
  /** @type {State} */
  const state = {};
  for (const part of hash.replace(/^#/, "").slice(0, MOST).split("&")) {
    const at = part.indexOf("=");
    const key = at < 0 ? "" : part.slice(0, at);
    if (!Object.hasOwn(DEFAULTS, key)) continue;
    try {
      state[key] = decodeURIComponent(part.slice(at + 1).replace(/\+/g, " "));
    } catch {
      // a broken escape
    }
  }
  return state;
}

/** Signs that a hash may hold as they are, so that a link can be read. */
const READABLE = /%(?:5B|5D|3A|2C|28|29|3B|24|2F|40|2A)/g;

/**
 * The hash of a state, without what is as by default; `+` stands for a space.
 * @param {State} state @returns {string}
 */
export function formatPlace(state) {
  const parts = Object.keys(DEFAULTS)
    .filter((key) => state[key] !== undefined && state[key] !== DEFAULTS[/** @type {Key} */ (key)])
    .map((key) => {
      const text = encodeURIComponent(state[key]).replace(READABLE, decodeURIComponent).replace(/%20/g, "+");
      return `${key}=${text}`;
    });
  return parts.length ? `#${parts.join("&")}` : "";
}

/**
 * Where a state is kept: an address bar, or memory in a notebook.
 * @typedef {{read: () => string, write: (hash: string, push: boolean) => void,
 *   listen: (changed: () => void) => () => void, link: (hash: string) => string}} Keeper
 */

/** The address bar of this window. @param {Window} window @returns {Keeper} */
export function addressBar(window) {
  return {
    read: () => window.location.hash,
    write: (hash, push) => {
      const where = window.location.pathname + window.location.search + hash;
      if (hash === window.location.hash) return;
      if (push) window.history.pushState(null, "", where);
      else window.history.replaceState(null, "", where);
    },
    listen: (changed) => {
      window.addEventListener("popstate", changed);
      window.addEventListener("hashchange", changed);
      return () => {
        window.removeEventListener("popstate", changed);
        window.removeEventListener("hashchange", changed);
      };
    },
    link: (hash) => window.location.href.split("#")[0] + hash,
  };
}

/** Memory, for hosts whose address bar is not ours. @param {string} first @returns {Keeper} */
export function inMemory(first) {
  let now = first;
  return { read: () => now, write: (hash) => void (now = hash), listen: () => () => {}, link: (hash) => hash };
}

/**
 * The state and who wants to hear of it. `set` keeps what it is not told; an empty text stands for the default.
 * @param {Keeper} keeper
 */
export function stateIn(keeper) {
  let state = parsePlace(keeper.read());
  /** @type {Set<(state: State, before: State) => void>} */
  const listeners = new Set();
  /** @param {State} next @param {boolean} push @param {boolean} write */
  const change = (next, push, write) => {
    const before = state;
    state = next;
    if (write) keeper.write(formatPlace(state), push);
    for (const listener of listeners) listener(state, before);
  };
  const stop = keeper.listen(() => {
    const next = parsePlace(keeper.read());
    if (formatPlace(next) !== formatPlace(state)) change(next, false, false);
  });
  return {
    get: () => state,
    /** @param {State} some @param {{push?: boolean}} [how] a step that the browser's back button undoes */
    set: (some, how = {}) => {
      const next = { ...state, ...some };
      if (formatPlace(next) !== formatPlace(state)) change(next, how.push ?? false, true);
    },
    /** @param {State} all */
    replace: (all) => change({ ...all }, true, true),
    /** @param {(state: State, before: State) => void} listener */
    listen: (listener) => {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    link: () => keeper.link(formatPlace(state)),
    stop,
  };
}
