/** A run as text for elsewhere: buttons that copy it as Python and as a command. */

import { Trouble } from "./contract.js";
import { copy, el } from "./dom.js";

/** @typedef {import("./app.js").App} App */

const NAMELESS = "There is no command, as this model or one of its maps has no name; it can be copied as Python.";

/** @param {string} label @param {(button: HTMLElement) => void} act */
export function quietButton(label, act) {
  const made = el("button", { type: "button", class: "quiet" }, label);
  made.addEventListener("click", () => act(made));
  return made;
}

/**
 * @param {App} app @param {() => string} program what is copied @param {HTMLElement} wrong where trouble is told
 * @returns {HTMLElement[]}
 */
export function copyButtons(app, program, wrong) {
  /** @param {"python" | "command"} what @param {HTMLElement} made */
  const copyAs = async (what, made) => {
    try {
      const { head } = await app.session.ask(program(), { kind: "check" }, app.about());
      if (head[what]) await copy(head[what], made);
      else wrong.textContent = NAMELESS;
    } catch (error) {
      wrong.textContent =
        error instanceof Trouble && error.kind === "unrecorded"
          ? "This text was not recorded in this page."
          : String(/** @type {Error} */ (error).message);
    }
  };
  return [
    quietButton("Copy Python", (made) => copyAs("python", made)),
    quietButton("Copy command", (made) => copyAs("command", made)),
  ];
}
