/** Elements, made without markup: whatever text is shown is put in as text. */

/**
 * @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Properties
 * @typedef {Node | string | number | null | undefined | false} Child
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element @param {Properties} properties
 */
function setAll(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Child[]} children @returns {(Node | string)[]} */
function shownOf(children) {
  /** @type {(Node | string)[]} */
  const kept = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    kept.push(typeof child === "number" ? String(child) : child);
  }
  return kept;
}

/**
 * An HTML element: `el("button", {class: "quiet", onclick: go}, "Go")`. Properties that begin with `on` are listeners.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Properties} [properties] @param {...Child} children @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  setAll(element, properties);
  element.append(...shownOf(children));
  return element;
}

/**
 * An SVG element. @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag @param {Properties} [properties] @param {...Child} children @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAll(element, properties);
  element.append(...shownOf(children));
  return element;
}

/** Replace what an element holds. @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
  element.replaceChildren(...shownOf(children));
}

/**
 * A choice among a few, as buttons that arrow keys move through.
 * @param {string} label @param {{value: string, text: string, title?: string}[]} choices @param {string} chosen
 * @param {(value: string) => void} choose @returns {HTMLElement}
 */
export function choice(label, choices, chosen, choose) {
  const group = el("div", { class: "choice", role: "radiogroup", "aria-label": label });
  const at = choices.findIndex((each) => each.value === chosen);
  choices.forEach((each, index) => {
    const on = each.value === chosen;
    const button = el(
      "button",
      {
        type: "button",
        role: "radio",
        "aria-checked": String(on),
        tabindex: on || (at < 0 && index === 0) ? 0 : -1,
        title: each.title,
        "data-value": each.value,
        onclick: () => choose(each.value),
      },
      each.text,
    );
    group.append(button);
  });
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const buttons = /** @type {HTMLElement[]} */ ([...group.children]);
    const now = buttons.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const next = (now + step + buttons.length) % buttons.length;
    buttons[next].focus();
    choose(choices[next].value);
    // The choice may have been drawn anew: the keyboard stays where it is.
    queueMicrotask(() => keepFocus(label, choices[next].value));
  });
  return group;
}

/**
 * A choice with its label before it; as `choice`.
 * @param {string} label @param {{value: string, text: string, title?: string}[]} choices @param {string} chosen
 * @param {(value: string) => void} choose @returns {HTMLElement}
 */
export function labelledChoice(label, choices, chosen, choose) {
  const name = el("span", { "aria-hidden": "true" }, label);
  return el("div", { class: "field" }, name, choice(label, choices, chosen, choose));
}

/** Focus the button of a choice, if it was drawn anew. @param {string} label @param {string} value */
function keepFocus(label, value) {
  for (const group of document.querySelectorAll('[role="radiogroup"]')) {
    if (group.getAttribute("aria-label") !== label) continue;
    for (const button of group.children) {
      if (button.getAttribute("data-value") === value) /** @type {HTMLElement} */ (button).focus();
    }
  }
}

/**
 * A labelled list to choose from. @param {string} label @param {{value: string, text: string}[]} choices
 * @param {string} chosen @param {(value: string) => void} choose @returns {HTMLElement}
 */
export function picker(label, choices, chosen, choose) {
  const select = el("select", { "aria-label": label });
  for (const each of choices) {
    const option = el("option", { value: each.value }, each.text);
    option.selected = each.value === chosen;
    select.append(option);
  }
  select.addEventListener("change", () => choose(select.value));
  return el("label", { class: "field" }, el("span", {}, label), select);
}

/** Give text to be saved as a file. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * Text to the clipboard; the button says how that went.
 * @param {string} text @param {HTMLElement} button @returns {Promise<void>}
 */
export async function copy(text, button) {
  const before = button.textContent ?? "";
  let said = "Copied";
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "unseen" }, text);
    document.body.append(area);
    area.select();
    if (!document.execCommand("copy")) said = "Copying is not allowed here";
    area.remove();
    button.focus();
  }
  button.textContent = said;
  setTimeout(() => (button.textContent = before), 1500);
}
