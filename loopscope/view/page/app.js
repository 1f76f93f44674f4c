/** The page: its head, the views, and the state they share. */

import { el, fill } from "./dom.js";
import { firstInput, parseInput } from "./inputs.js";
import { callsIn, firstCall, parseProgram } from "./program.js";
import { runBar } from "./runbar.js";
import { onWork, sessionWith } from "./session.js";
import { stateIn } from "./place.js";
import { compareView } from "./compare.js";
import { patchView } from "./patch.js";
import { patternsView } from "./patterns.js";
import { sweepView } from "./sweep.js";
import { textView } from "./text.js";
import { tourView } from "./tour.js";
import { trajectoriesView } from "./trajectories.js";
import { walkView } from "./walk.js";

/**
 * @typedef {import("./contract.js").Hello} Hello
 * @typedef {import("./contract.js").Input} Input
 * @typedef {import("./session.js").Session} Session
 * @typedef {ReturnType<typeof stateIn>} Place
 * @typedef {{element: HTMLElement, show: () => void, hide?: () => void}} View
 * @typedef {{session: Session, hello: Hello, state: Place, program: () => string, inputText: () => string,
 *   input: () => Input, others: () => Record<string, Input>, about: () => {input: Input, others: Record<string, Input>},
 *   loop: () => number, calls: () => number, go: (some: Record<string, string>) => void}} App
 */

/** Views by name, with their titles; a model that is no graph model has texts in the place of walks. */
const VIEWS = [
  { name: "tour", title: "Tour", make: tourView },
  { name: "walk", title: "Walk", make: walkView },
  { name: "text", title: "Text", make: textView },
  { name: "patterns", title: "Patterns", make: patternsView },
  { name: "patch", title: "Patch", make: patchView },
  { name: "sweep", title: "Sweep", make: sweepView },
  { name: "trajectories", title: "Trajectories", make: trajectoriesView },
  { name: "compare", title: "Compare", make: compareView },
];

/** @param {Hello} hello */
function viewsFor(hello) {
  return VIEWS.filter((view) => {
    if (view.name === "tour") return !!hello.tour?.length;
    if (view.name === "walk") return hello.kind === "graph";
    if (view.name === "text") return hello.kind !== "graph";
    return true;
  });
}

/**
 * What a link names that cannot be shown: the entries to go on with instead, and a sentence for whoever followed it.
 * @param {import("./place.js").State} state @param {Hello} hello @returns {{without: Record<string, string>, said: string}}
 */
export function lostIn(state, hello) {
  const layers = Math.max(1, ...hello.stacks.map((stack) => stack.layers));
  const layer = state.layer ?? "";
  if (state.input && !parseInput(state.input, hello))
    return {
      without: { input: "" },
      said: "The link names an input that this page cannot read, so the first example is shown.",
    };
  if (state.other && !parseInput(state.other, hello))
    return {
      without: { other: "" },
      said: "The link names another input that this page cannot read, so that of the example is taken.",
    };
  if (layer && !(/^\d+$/.test(layer) && Number(layer) >= 1 && Number(layer) <= layers))
    return {
      without: { layer: "" },
      said: `The link names layer ${layer.slice(0, 20)}, but layers are 1 to ${layers}, so the last one is shown.`,
    };
  return { without: {}, said: "" };
}

/**
 * Fill an element with the page of one model. Returns what ends it.
 * @param {HTMLElement} root @param {import("./hosts.js").Host} host @param {Hello} hello
 * @param {import("./place.js").Keeper} keeper @returns {() => void}
 */
export function startApp(root, host, hello, keeper) {
  const state = stateIn(keeper);
  const banner = el("p", { class: "banner", role: "alert" });
  banner.hidden = true;
  const progress = el("div", { class: "progress", role: "status" });
  const session = sessionWith(host, hello, {
    waiting: (what) => {
      progress.classList.toggle("on", !!what);
      if (!what) return fill(progress);
      const { done, total, ahead } = what;
      const bar = el(
        "progress",
        total ? { max: total, value: done, "aria-label": "progress" } : { "aria-label": "progress" },
      );
      const words = ahead
        ? `waiting for ${ahead} before it`
        : total
          ? `${what.what || "computing"}: ${done} of ${total}`
          : "computing";
      const stop = el("button", { type: "button", class: "quiet", onclick: () => session.stop() }, "Stop");
      fill(progress, bar, el("span", {}, words), stop);
    },
    gone: (message) => {
      banner.hidden = !message;
      banner.textContent = message ?? "";
    },
  });

  const views = viewsFor(hello);
  // A run with a map shows most; a model without maps begins as it was trained.
  const first = hello.programs.find((each) => each.program.includes("J:"))?.program ?? hello.program;
  /** @type {App} */
  const app = {
    session,
    hello,
    state,
    program: () => state.get().program || first,
    inputText: () => {
      const text = state.get().input ?? "";
      return parseInput(text, hello) ? text : firstInput(hello);
    },
    input: () => /** @type {Input} */ (parseInput(app.inputText(), hello)),
    others: () => {
      const other = parseInput(state.get().other ?? "", hello);
      const input = app.input();
      const example = hello.inputs.find((each) => each.id === app.inputText());
      // Beside a text of one's own stands the same text, for a word of it to be changed: rows then stay as many.
      const others = example?.others ?? ("graph" in input ? hello.others : { other: input });
      return other ? { ...others, other } : others;
    },
    about: () => ({ input: app.input(), others: app.others() }),
    calls: () => {
      const parsed = parseProgram(app.program());
      return parsed ? firstCall(parsed) + callsIn(parsed) : hello.loops;
    },
    loop: () => {
      const told = state.get().loop;
      const parsed = parseProgram(app.program());
      const [from, to] = parsed ? [firstCall(parsed), app.calls()] : [0, hello.loops];
      return /^\d+$/.test(told ?? "") ? Math.min(to, Math.max(from, Number(told))) : to;
    },
    go: (some) => state.set(some, { push: true }),
  };
  /** @type {Map<string, View>} */
  const made = new Map();
  const tabs = el("nav", { class: "tabs", "aria-label": "Views" });
  for (const view of views) {
    const link = el("a", { href: `#view=${view.name}`, "data-view": view.name }, view.title);
    link.addEventListener("click", (event) => {
      event.preventDefault();
      app.go({ view: view.name });
    });
    tabs.append(link);
  }
  const bar = runBar(app);
  const stage = el("main", { class: "stage", id: "loopscope-stage", tabindex: -1 });
  const skip = el("a", { class: "skip", href: "#" }, "Skip to the view");
  skip.addEventListener("click", (event) => {
    event.preventDefault();
    stage.focus();
  });
  fill(
    root,
    skip,
    el(
      "header",
      { class: "head" },
      el("h1", {}, el("span", { class: "mark", "aria-hidden": "true" }), "Loopscope"),
      el("p", { class: "model", title: `fingerprint ${hello.model}` }, hello.name),
      tabs,
    ),
    banner,
    progress,
    bar.element,
    stage,
  );

  let shown = "";
  let told = false;
  let mending = false;
  /** Go on without what a link names and this model has not, and say so. @returns {boolean} whether there was any */
  const mend = () => {
    const { without, said } = lostIn(state.get(), hello);
    if (!said) {
      if (told && !mending) banner.hidden = true;
      told &&= mending;
      return false;
    }
    told = mending = true;
    state.set(without);
    mending = false;
    banner.hidden = false;
    banner.textContent = said;
    return true;
  };
  const show = () => {
    if (mend()) return; // what is left was shown
    const asked = state.get().view;
    const name = views.some((view) => view.name === asked) ? asked : views[0].name;
    for (const link of tabs.children) {
      if (link.getAttribute("data-view") === name) {
        link.setAttribute("aria-current", "page");
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
      } else link.removeAttribute("aria-current");
    }
    let view = made.get(name);
    if (!view) {
      view = /** @type {typeof VIEWS[number]} */ (views.find((each) => each.name === name)).make(app);
      made.set(name, view);
    }
    if (host.kind !== "notebook") {
      document.title = `${views.find((each) => each.name === name)?.title}: ${hello.name}, loop by loop`;
    }
    if (shown !== name) {
      made.get(shown)?.hide?.();
      bar.stop();
      fill(stage, view.element);
      shown = name;
    }
    bar.element.hidden = name === "tour";
    if (name !== "tour") bar.show();
    view.show();
  };
  const silence = state.listen(show);
  const unheard = onWork((busy) => root.setAttribute("aria-busy", String(busy)));
  show();
  return () => {
    silence();
    unheard();
    state.stop();
    bar.stop();
    host.cancel(null).catch(() => {});
  };
}
