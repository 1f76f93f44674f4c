/** Inputs as short texts for links, and the editor that makes one. */

import { el, fill, picker } from "./dom.js";
import { parseSuccessors } from "./graph.js";

/**
 * @typedef {import("./contract.js").Hello} Hello
 * @typedef {import("./contract.js").Input} Input
 */

/**
 * The text of an input in a link: `graph:3,0,1:2:8`, `tokens:1,2,3`, `text:…`, `chat:…`.
 * @param {Input} input @returns {string}
 */
export function formatInput(input) {
  if ("graph" in input) return `graph:${input.graph.join(",")}:${input.start}:${input.depth}`;
  if ("tokens" in input) return `tokens:${input.tokens.join(",")}`;
  return `${input.chat ? "chat" : "text"}:${input.text}`;
}

/**
 * The input that a text names: one of the examples, or one spelled out; null where it is neither.
 * @param {string} text @param {Hello} hello @returns {Input | null}
 */
export function parseInput(text, hello) {
  const known = hello.inputs.find((each) => each.id === text);
  if (known) return known.input;
  const at = text.indexOf(":");
  const [kind, rest] = [text.slice(0, at), text.slice(at + 1)];
  if (kind === "text" || kind === "chat") return rest ? { text: rest, chat: kind === "chat" } : null;
  if (kind === "tokens") {
    const tokens = rest.split(",").map(Number);
    return tokens.length && tokens.every((token) => Number.isInteger(token) && token >= 0) ? { tokens } : null;
  }
  if (kind !== "graph") return null;
  const [nodes, start, depth] = rest.split(":");
  const graph = parseSuccessors(nodes ?? "");
  if (!graph || !/^\d+$/.test(start ?? "") || !/^\d+$/.test(depth ?? "")) return null;
  return Number(start) < graph.length ? { graph, start: Number(start), depth: Number(depth) } : null;
}

/**
 * The shortest text of an input: the name of an example where it is one.
 * @param {Input} input @param {Hello} hello @returns {string}
 */
export function nameInput(input, hello) {
  const text = formatInput(input);
  return hello.inputs.find((each) => formatInput(each.input) === text)?.id ?? text;
}

/** An input in a few words. @param {Input} input @returns {string} */
export function inputTold(input) {
  if ("graph" in input) return `the walk from node ${input.start} of ${input.graph.join(" ")}`;
  const text = "text" in input ? input.text : input.tokens.join(" ");
  return `“${text.length > 60 ? `${text.slice(0, 59)}…` : text}”`;
}

/** The input that stands first. @param {Hello} hello @returns {string} */
export function firstInput(hello) {
  return hello.inputs[0]?.id ?? "";
}

/** A permutation of so many nodes, drawn anew. @param {number} nodes @returns {number[]} */
function drawn(nodes) {
  const graph = Array.from({ length: nodes }, (_, node) => node);
  for (let at = nodes - 1; at > 0; at--) {
    const other = Math.floor(Math.random() * (at + 1));
    [graph[at], graph[other]] = [graph[other], graph[at]];
  }
  return graph;
}

/**
 * The editor of an input. @param {Hello} hello @param {string} label @param {(text: string) => void} changed
 */
export function inputEditor(hello, label, changed) {
  const element = el("div", { class: "input", role: "group", "aria-label": label });
  /** @type {string} */
  let shown = "";

  /** @param {Extract<Input, {graph: number[]}>} input @returns {HTMLElement[]} */
  const graphFields = (input) => {
    const nodes = input.graph.map((_, node) => ({ value: String(node), text: String(node) }));
    const start = picker("start", nodes, String(input.start), (value) =>
      changed(nameInput({ ...input, start: Number(value) }, hello)),
    );
    const arrows = el("input", { type: "text", value: input.graph.join(" "), spellcheck: "false", size: 22 });
    const wrong = el("span", { class: "wrong", role: "alert" });
    arrows.addEventListener("change", () => {
      const graph = parseSuccessors(arrows.value);
      const fits = graph && (!hello.nodes || graph.length === hello.nodes);
      wrong.textContent = fits
        ? ""
        : `Every node from 0 to ${(hello.nodes ?? input.graph.length) - 1} has to stand here once.`;
      if (fits) changed(nameInput({ ...input, graph, start: Math.min(input.start, graph.length - 1) }, hello));
    });
    const another = el(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: () => changed(nameInput({ ...input, graph: drawn(input.graph.length) }, hello)),
      },
      "New graph",
    );
    return [start, el("label", { class: "field" }, el("span", {}, "arrows to"), arrows), another, wrong];
  };

  /** @param {Extract<Input, {text: string}>} input @returns {HTMLElement[]} */
  const textFields = (input) => {
    const area = el(
      "textarea",
      { "aria-label": "text", rows: 2, maxlength: hello.limits.text, spellcheck: "false" },
      input.text,
    );
    const chat = el("input", { type: "checkbox" });
    chat.checked = input.chat;
    const send = () => area.value && changed(nameInput({ text: area.value, chat: chat.checked }, hello));
    area.addEventListener("change", send);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        send();
      }
    });
    chat.addEventListener("change", send);
    const template = hello.chat ? el("label", { class: "check" }, chat, " as a chat question") : null;
    const parts = [el("label", { class: "field wide" }, el("span", {}, "text"), area)];
    return template ? [...parts, template] : parts;
  };

  /** @param {Extract<Input, {tokens: number[]}>} input @returns {HTMLElement[]} */
  const tokenFields = (input) => {
    const field = el("input", { type: "text", value: input.tokens.join(" "), spellcheck: "false" });
    const wrong = el("span", { class: "wrong", role: "alert" });
    field.addEventListener("change", () => {
      const tokens = field.value
        .split(/[\s,]+/)
        .filter(Boolean)
        .map(Number);
      const fits = tokens.length && tokens.every((token) => Number.isInteger(token) && token >= 0);
      wrong.textContent = fits ? "" : "Tokens are whole numbers from 0, with blanks between them.";
      if (fits) changed(nameInput({ tokens }, hello));
    });
    return [el("label", { class: "field wide" }, el("span", {}, "tokens"), field), wrong];
  };

  return {
    element,
    /** @param {string} text */
    show: (text) => {
      if (text === shown) return;
      shown = text;
      const input = parseInput(text, hello) ?? hello.inputs[0]?.input;
      if (!input) return fill(element);
      const known = hello.inputs.some((each) => each.id === text);
      const examples = hello.inputs.map((each) => ({ value: each.id, text: each.title }));
      const choices = known ? examples : [...examples, { value: text, text: "another" }];
      const fields = "graph" in input ? graphFields(input) : "text" in input ? textFields(input) : tokenFields(input);
      fill(element, picker(label, choices, text, changed), ...fields);
    },
  };
}
