/** What the page says when something cannot be shown: one sentence, and what to do. */

import { copy, el, fill } from "./dom.js";

/**
 * @typedef {import("./contract.js").Hello} Hello
 * @typedef {import("./contract.js").Trouble} Trouble
 */

/** A line of a shell with a button that copies it. @param {string} text @returns {HTMLElement} */
export function commandLine(text) {
  const button = el("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", () => copy(text, button));
  return el("div", { class: "command" }, el("code", {}, text), button);
}

/**
 * A place where trouble is told, above what it concerns; what was shown before stays; where nothing was recorded it is hidden,
 * as its captions speak of another run, and its place is hatched.
 * @param {Hello} hello @param {HTMLElement} stage what cannot be brought up to date
 */
export function troublePlace(hello, stage) {
  const element = el("div", { class: "trouble", role: "status" });
  element.hidden = true;
  return {
    element,
    /** @param {Trouble | null} trouble */
    tell: (trouble) => {
      stage.classList.remove("stale");
      stage.classList.toggle("unrecorded", trouble?.kind === "unrecorded");
      stage.classList.toggle("failed", !!trouble && trouble.kind !== "unrecorded");
      element.hidden = !trouble;
      element.classList.toggle("hatched", trouble?.kind === "unrecorded");
      if (!trouble) return fill(element);
      if (trouble.kind !== "unrecorded") return fill(element, el("p", {}, trouble.message));
      const how = hello.made_with
        ? [
            el("p", {}, "This was not recorded in this page. With Loopscope installed, this computes it:"),
            commandLine(hello.made_with),
            el("p", {}, "To the address that it prints, add the end of this address, from # on."),
          ]
        : [el("p", {}, "This was not recorded in this page.")];
      fill(element, ...how);
    },
  };
}
