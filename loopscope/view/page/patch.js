/** Patch by hand: choose a place on the run, choose what to put there, see before and after. */

import { runChoices } from "./choices.js";
import { copyButtons, quietButton } from "./copying.js";
import { el, fill, picker } from "./dom.js";
import { inputEditor, nameInput } from "./inputs.js";
import { layersAt, layerNow, layerPlace, THUMB } from "./patterns.js";
import { callsIn, firstCall, parseProgram, formatProgram, patchesOf, siteText, withPatch } from "./program.js";
import { newest } from "./session.js";
import { runCard } from "./sides.js";
import { visible } from "./textgrid.js";
import { headThumbs } from "./thumbs.js";
import { troublePlace } from "./trouble.js";
import { WALK_READ } from "./walk.js";

/**
 * @typedef {import("./app.js").App} App
 * @typedef {import("./app.js").View} View
 */

/** More layers than this are drawn flat. */
const MANY = 8;

/** Components in words. */
export const PARTS = /** @type {Record<string, string>} */ ({
  resid: "residual stream",
  q: "queries",
  k: "keys",
  v: "values",
  pattern: "pattern",
  z: "head output",
  attn_out: "attention output",
  mlp_hidden: "MLP units",
  mlp_out: "MLP output",
});

/** @param {App} app @returns {string} */
function partNow(app) {
  const told = app.state.get().part ?? "";
  return app.hello.components.includes(told)
    ? told
    : app.hello.components.includes("pattern")
      ? "pattern"
      : app.hello.components[0];
}

/** The run that a patch is taken from, unless another is named: the next of the examples. @param {App} app */
export function giverNow(app) {
  const source = app.state.get().source ?? "";
  const told = source.startsWith("@") ? "" : source;
  const other = [...app.hello.programs]
    .reverse()
    .find((each) => each.program !== app.program() && sameCalls(each.program, app));
  return told || other?.program || app.program();
}

/** Where values come from; without maps another input, as what runs of such a model differ in are their calls alone. @param {App} app */
export function fromNow(app) {
  const { from, source } = app.state.get();
  return from || (!source && othersSay(app) ? "input" : "run");
}

/** Whether another input says more of a model than its other runs. @param {App} app @returns {boolean} */
export function othersSay(app) {
  return !app.hello.maps.length && !!app.others().other;
}

/** @param {string} text @param {App} app @returns {boolean} */
function sameCalls(text, app) {
  const parsed = parseProgram(text);
  return !!parsed && firstCall(parsed) + callsIn(parsed) >= app.calls();
}

/**
 * What is put into the place, as the text behind it.
 * @param {string} from run, loop:t, input, zero or mean @param {string} giver @param {string} own @returns {string}
 */
function changeText(from, giver, own) {
  if (from === "zero") return "*=0";
  if (from === "mean") return "<-$mean";
  if (from === "input") return `<-(${own})@other`;
  if (from.startsWith("loop:")) return `<-(${own}).loop[${from.slice(5)}]`;
  return `<-(${giver})`;
}

/** @param {App} app @returns {View} */
export function patchView(app) {
  const { session, state, hello } = app;
  const plan = el("div", {
    class: "plan",
    role: "grid",
    "aria-label": "The run: layers by loops. Choose where to patch.",
  });
  const scroll = el("div", { class: "scroll" }, plan);
  const controls = el("div", { class: "controls" });
  const thumbs = headThumbs((head) => state.set({ head: state.get().head === String(head) ? "" : String(head) }));
  const other = inputEditor(hello, "Other input", (text) => state.set({ other: text }));
  const text = el("textarea", {
    "aria-label": "The patched run, as text",
    rows: 2,
    spellcheck: "false",
    id: "patched-text",
    "aria-describedby": "patched-wrong",
    maxlength: hello.limits.program,
  });
  const wrong = el("p", { class: "wrong", id: "patched-wrong", role: "alert" });
  const before = runCard();
  const after = runCard();
  const change = el("p", { class: "sentence", "aria-live": "polite" });
  const stage = el("div", { class: "two cards" }, before.element, after.element);
  const trouble = troublePlace(hello, stage);
  /** @type {any[]} */
  let tokens = [];
  let patched = "";
  /** Text that someone typed and that stands until another place is chosen. @type {string | null} */
  let typed = null;

  const made = () => {
    const program = parseProgram(app.program());
    if (!program) return app.program();
    const layer = layerNow(app);
    const part = partNow(app);
    const { head, row } = state.get();
    const heads = hello.per_head.includes(part) && head ? Number(head) : null;
    const site = siteText({ layer, head: heads, row: row ? Number(row) : null, component: part });
    const own = app.program();
    return formatProgram(withPatch(program, loopHere(), site, changeText(fromNow(app), giverNow(app), own)));
  };
  const loopHere = () => Math.max(1, app.loop());

  const acts = el(
    "div",
    { class: "share" },
    quietButton("Keep as the run", () => state.set({ program: patched }, { push: true })),
    ...copyButtons(app, () => patched, wrong),
  );

  const drawPlan = () => {
    const focused = plan.contains(document.activeElement);
    const loops = app.calls();
    const parsed = parseProgram(app.program());
    const first = parsed ? firstCall(parsed) : 0;
    const patches = parsed ? patchesOf(parsed) : [];
    const layers = Math.max(...Array.from({ length: loops - first }, (_, at) => layersAt(app, first + at + 1)));
    plan.classList.toggle("many", layers > MANY);
    const rows = [];
    for (let layer = layers; layer >= 1; layer--) {
      const cells = [];
      for (let loop = first + 1; loop <= loops; loop++) {
        if (layer > layersAt(app, loop)) {
          cells.push(el("span", { class: "none", role: "gridcell" }));
          continue;
        }
        const on = loop === loopHere() && layer === layerNow(app);
        const has = patches.some((each) => each.loop === loop && each.text.startsWith(`layer[${layer}]`));
        cells.push(
          el(
            "button",
            {
              type: "button",
              role: "gridcell",
              class: has ? "patched" : "",
              "aria-selected": String(on),
              "aria-label": `loop ${loop}, layer ${layer}`,
              tabindex: on ? 0 : -1,
              "data-loop": loop,
              "data-layer": layer,
              onclick: () => state.set({ loop: String(loop), layer: String(layer) }),
            },
            "",
          ),
        );
      }
      rows.push(el("div", { role: "row" }, el("span", { role: "rowheader" }, `layer ${layer}`), ...cells));
    }
    const heads = Array.from({ length: loops - first }, (_, at) =>
      el("span", { role: "columnheader" }, String(first + at + 1)),
    );
    fill(plan, ...rows, el("div", { role: "row", class: "foot" }, el("span", { role: "rowheader" }, "loop"), ...heads));
    const chosen = /** @type {HTMLElement | null} */ (plan.querySelector('[aria-selected="true"]'));
    if (focused) chosen?.focus({ preventScroll: true });
    if (!chosen) return;
    const [left, right] = [chosen.offsetLeft - scroll.offsetLeft, scroll.clientWidth - chosen.offsetWidth];
    if (left < scroll.scrollLeft || left > scroll.scrollLeft + right) scroll.scrollLeft = left - right / 2;
  };
  plan.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
    const cell = /** @type {HTMLElement} */ (event.target);
    if (!step || !cell.dataset.loop) return;
    event.preventDefault();
    const next = plan.querySelector(
      `[data-loop="${Number(cell.dataset.loop) + step[0]}"][data-layer="${Number(cell.dataset.layer) + step[1]}"]`,
    );
    if (next) state.set({ loop: next.getAttribute("data-loop") ?? "", layer: next.getAttribute("data-layer") ?? "" });
  });

  const drawControls = () => {
    const focus =
      document.activeElement instanceof HTMLElement && controls.contains(document.activeElement)
        ? document.activeElement
        : null;
    const label = focus?.closest("label, .choice")?.textContent;
    const { head = "", row = "" } = state.get();
    const from = fromNow(app);
    const part = partNow(app);
    const perHead = hello.per_head.includes(part);
    const loops = Array.from({ length: app.calls() }, (_, at) => at + 1).filter((loop) => loop !== loopHere());
    const sources = [
      { value: "run", text: "another run" },
      ...loops.map((loop) => ({ value: `loop:${loop}`, text: `this run at loop ${loop}` })),
      { value: "input", text: "this run on another input" },
      ...(part === "pattern" ? [] : [{ value: "zero", text: "zero" }]),
      { value: "mean", text: "the mean over inputs" },
    ];
    const giver = giverNow(app);
    const headChoices = [
      { value: "", text: "all heads" },
      ...Array.from({ length: hello.heads }, (_, at) => ({ value: String(at), text: `head ${at}` })),
    ];
    const rows = [
      { value: "", text: "all rows" },
      { value: "-1", text: "the last row" },
      ...tokens.map((token, at) => ({
        value: String(at),
        text: `row ${at}: ${visible(token.text)}${token.title ? ` (${token.title})` : ""}`,
      })),
    ];
    const chosenFrom = sources.some((each) => each.value === from) ? from : "run";
    fill(
      controls,
      picker(
        "What",
        hello.components.map((each) => ({ value: each, text: PARTS[each] ?? each })),
        part,
        (value) => state.set({ part: value }),
      ),
      perHead ? picker("Heads", headChoices, head, (value) => state.set({ head: value })) : null,
      picker("Rows", rows, row, (value) => state.set({ row: value })),
      picker("From", sources, chosenFrom, (value) => state.set({ from: value })),
      chosenFrom === "run"
        ? picker("Run", runChoices(app, giver), giver, (value) => state.set({ source: value }))
        : null,
    );
    if (label) {
      for (const each of controls.querySelectorAll("label")) {
        if (each.textContent?.slice(0, 4) === label.slice(0, 4)) each.querySelector("select")?.focus();
      }
    }
    other.element.hidden = chosenFrom !== "input";
    if (chosenFrom === "input") other.show(nameInput(app.others().other ?? app.input(), hello));
    thumbs.element.hidden = !perHead;
  };

  const run = newest((found) => {
    const told = found && found.kind === "wrong" ? found : null;
    wrong.textContent = told ? told.message : "";
    text.setAttribute("aria-invalid", String(!!told));
    if (told && told.position !== null && document.activeElement === text)
      text.setSelectionRange(told.position, Math.min(text.value.length, told.position + 1));
    trouble.tell(told ? null : found);
    if (found) fill(change); // it would speak of the run before
    stage.classList.toggle("failed", !!told);
  });
  const heads = newest(() => {});

  const refresh = () => {
    const wanted = typed ?? made();
    if (typed === null && document.activeElement !== text) text.value = wanted;
    run(async (signal) => {
      const about = { ...app.about(), signal };
      const base = await session.canonical(app.program(), about);
      patched = wanted;
      const program = await session.canonical(wanted, about);
      if (typed === null && !signal.aborted) text.value = program;
      patched = program;
      const [one, two] = await Promise.all([
        session.ask(base, WALK_READ, about),
        session.ask(program, WALK_READ, about),
      ]);
      if (signal.aborted) return;
      const input = app.input();
      before.show("Before", one, input);
      after.show("After the patch", two, input);
      const last = (/** @type {import("./contract.js").Answer} */ answer) => {
        const { shape, data } = answer.arrays.top;
        const at = shape[0] * shape[1] * shape[2] - shape[2];
        const name = visible(answer.head.names[data[at]] ?? String(data[at]));
        return "graph" in input ? name : `“${name}”`;
      };
      fill(
        change,
        last(one) === last(two) ? el("strong", {}, "The answer stays. ") : el("strong", {}, "The answer changes. "),
        `Before: ${last(one)}. After: ${last(two)}.`,
      );
    });
    heads(async (signal) => {
      const about = { ...app.about(), signal };
      const base = await session.canonical(app.program(), about);
      const [input, all] = await Promise.all([
        session.ask(hello.program, { kind: "input" }, about),
        session.ask(
          base,
          { kind: "patterns", head: null, place: layerPlace(loopHere(), layerNow(app)), size: THUMB },
          about,
        ),
      ]);
      if (signal.aborted) return;
      const fresh = tokens.length !== input.head.tokens.length;
      tokens = input.head.tokens;
      if (fresh) drawControls();
      thumbs.show(all.arrays.patterns, state.get().head ? Number(state.get().head) : null);
    });
  };
  const commit = () => {
    typed = text.value.trim();
    refresh();
  };
  text.addEventListener("change", commit);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      commit();
    }
    if (event.key === "Escape") {
      typed = null;
      refresh();
      text.value = made();
    }
  });

  // Beside a drawing of many layers, so that what a click changes is in sight.
  const tall = hello.stacks.some((stack) => stack.layers > MANY);
  const element = el(
    "section",
    { class: "view", "aria-label": "Patch by hand" },
    el(
      "p",
      { class: "sentence" },
      el("strong", {}, "Choose a place, and what to put there. "),
      "Everything behind it is computed again; everything before it stays.",
    ),
    el(
      "div",
      { class: "two choose" },
      scroll,
      el(
        "div",
        {},
        controls,
        other.element,
        thumbs.element,
        el(
          "div",
          { class: "text" },
          el("label", { class: "field wide" }, el("span", {}, "The patched run, as text"), text),
          acts,
        ),
        wrong,
        change,
        trouble.element,
        tall ? stage : null,
      ),
    ),
    tall ? null : stage,
  );
  let key = "";
  return {
    element,
    show: () => {
      const next = JSON.stringify([app.program(), app.inputText(), app.loop(), state.get()]);
      if (next !== key) typed = null;
      key = next;
      drawPlan();
      drawControls();
      refresh();
    },
  };
}
