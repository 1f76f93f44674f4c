/** The bar above all views: the input, the run as a strip, and its text. */

import { copyButtons, quietButton } from "./copying.js";
import { copy, el, fill } from "./dom.js";
import { inputEditor } from "./inputs.js";
import { formatProgram, parseProgram, patchesOf, withoutPatches } from "./program.js";
import { newest } from "./session.js";
import { runStrip } from "./strip.js";

/** @typedef {import("./app.js").App} App */

/** @param {App} app */
export function runBar(app) {
  const { hello, session, state } = app;
  const input = inputEditor(hello, "Input", (text) => state.set({ input: text }, { push: true }));
  /** @param {string} program */
  const change = (program) => state.set({ program }, { push: true });
  const strip = runStrip({ maps: hello.maps, change, choose: (loop) => state.set({ loop: String(loop) }) });

  const presets = el("select", { "aria-label": "Runs to start from" });
  const text = el("input", {
    type: "text",
    id: "program-text",
    spellcheck: "false",
    autocomplete: "off",
    autocapitalize: "off",
    maxlength: hello.limits.program,
    "aria-describedby": "program-wrong",
  });
  const wrong = el("p", { class: "wrong", id: "program-wrong", role: "alert" });
  const patches = el("ul", { class: "patches", "aria-label": "Patches of this run" });
  const said = el("div", { class: "share" });

  const reading = newest((trouble) => {
    wrong.textContent = trouble ? trouble.message : "";
    text.setAttribute("aria-invalid", String(!!wrong.textContent));
    if (trouble?.position !== null && trouble?.position !== undefined && document.activeElement === text) {
      text.setSelectionRange(trouble.position, Math.min(text.value.length, trouble.position + 1));
    }
  });
  const commit = () =>
    reading(async (signal) => {
      const program = await session.canonical(text.value, { ...app.about(), signal });
      text.value = program;
      change(program);
    });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      text.value = app.program();
      wrong.textContent = "";
      text.setAttribute("aria-invalid", "false");
    }
  });
  text.addEventListener("change", commit);

  presets.addEventListener("change", () => presets.value && change(presets.value));

  fill(
    said,
    quietButton("Copy link", (made) => copy(state.link(), made)),
    ...copyButtons(app, app.program, wrong),
  );

  const fields = el(
    "div",
    { class: "text" },
    el("label", { class: "field wide" }, el("span", {}, "Program"), text),
    el("label", { class: "field" }, el("span", {}, "from"), presets),
    said,
  );
  // On a phone the view comes first: what is written stands behind a line that opens.
  const more = el("details", {}, el("summary", {}, "Input and program"), input.element, fields);
  const wide = matchMedia("(min-width: 46rem)");
  const unfold = () => (more.open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();
  const element = el("section", { class: "runbar", "aria-label": "The run" }, more, strip.element, wrong, patches);

  return {
    element,
    stop: strip.stop,
    show: () => {
      const program = app.program();
      input.show(app.inputText());
      strip.show(program, app.loop());
      if (document.activeElement !== text || !wrong.textContent) text.value = program;
      const known = hello.programs.map((each) => each.program);
      const options = hello.programs.map((each) => el("option", { value: each.program }, each.title));
      fill(presets, known.includes(program) ? null : el("option", { value: "" }, "–"), ...options);
      presets.value = known.includes(program) ? program : "";
      const parsed = parseProgram(program);
      const list = parsed ? patchesOf(parsed) : [];
      patches.hidden = !list.length;
      fill(
        patches,
        ...list.map((each) => el("li", {}, el("code", {}, `loop[${each.loop}].${each.text}`))),
        list.length && parsed
          ? el(
              "li",
              {},
              quietButton("Remove all patches", () => change(formatProgram(withoutPatches(parsed)))),
            )
          : null,
      );
    },
  };
}
