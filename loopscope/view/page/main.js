/** Where the page begins: hosts, and `mount`. */

import { startApp } from "./app.js";
import { Trouble } from "./contract.js";
import { el, fill } from "./dom.js";
import { kernelHost, recordedHost, serverHost } from "./hosts.js";
import { addressBar, inMemory } from "./place.js";

/** @typedef {import("./hosts.js").Host} Host */

const KNOCK = 2000;

/** The server that this page came from. @returns {Host} */
export function liveHost() {
  return serverHost();
}

/** The answers that were recorded into this page. @returns {Host} */
export function bundleHost() {
  return recordedHost();
}

/** The kernel of a notebook. @param {any} model the widget's model @returns {Host} */
export function widgetHost(model) {
  return kernelHost(model);
}

/**
 * Show the page in an element. Returns what ends it.
 * @param {HTMLElement} element @param {Host} host @returns {() => void}
 */
export function mount(element, host) {
  element.classList.add("loopscope");
  let ended = false;
  let end = () => {};
  const keeper = host.kind === "notebook" ? inMemory("") : addressBar(window);
  const begin = async () => {
    try {
      const hello = await host.hello();
      if (ended) return;
      if (hello.contract !== 1)
        throw new Trouble("refused", "this page is of another version of Loopscope; load it again");
      end = startApp(element, host, hello, keeper);
    } catch (error) {
      if (ended) return;
      const message = error instanceof Trouble ? error.message : `this page has a mistake: ${error}`;
      if (!(error instanceof Trouble)) console.error(error);
      fill(element, el("p", { class: "banner", role: "alert" }, message));
      if (error instanceof Trouble && error.kind === "gone") setTimeout(begin, KNOCK);
    }
  };
  begin();
  return () => {
    ended = true;
    end();
  };
}
