/** Runs to choose from: those to begin with, those that are pinned, and the one that is chosen. */

import { splitOutside } from "./program.js";

/** @typedef {import("./app.js").App} App */

/** So many fit into a link and on a shelf. */
export const MOST_PINS = 12;

/** The programs that are pinned. @param {App} app @returns {string[]} */
export function pinsOf(app) {
  return splitOutside(app.state.get().pins ?? "", "|")
    .filter(Boolean)
    .slice(0, MOST_PINS);
}

/** @param {App} app @param {string} [chosen] a program that is among them in any case @returns {{value: string, text: string}[]} */
export function runChoices(app, chosen) {
  const { programs } = app.hello;
  const every = [...programs.map((each) => each.program), ...pinsOf(app), ...(chosen ? [chosen] : [])];
  return [...new Set(every)].map((program) => {
    const named = programs.find((each) => each.program === program);
    return { value: program, text: named ? `${named.title} (${program})` : program };
  });
}
