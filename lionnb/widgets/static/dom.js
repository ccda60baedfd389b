// @ts-check
/* The only place that makes elements. Text goes in as text: no markup, no links, no attribute that could run. */

const ATTRIBUTES = new Set([
  "class", "title", "role", "type", "rows", "placeholder", "id", "for", "tabindex", "hidden", "open", "disabled",
  "aria-label", "aria-live", "aria-hidden", "aria-describedby", "aria-valuemin", "aria-valuemax", "aria-valuenow",
  "autocomplete", "spellcheck", "maxlength",
]);

/* What can have the focus. JupyterLab's shortcuts act on the focused element and stop at the first ancestor with this mark,
   but look at the element itself before that: so each one carries it. */
const FOCUSABLE = new Set(["button", "canvas", "input", "summary", "textarea"]);
const SUPPRESS = "data-lm-suppress-shortcuts";

/** Make an element. Strings among the children become text nodes.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {...(Node|string|null|undefined|false)} children
 * @returns {any} */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") node.addEventListener("click", value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) {
      if (!ATTRIBUTES.has(key)) throw new TypeError(`attribute ${key} is not allowed`);
      node.setAttribute(key, String(value));
    }
  }
  if (FOCUSABLE.has(tag) || "tabindex" in attributes) node.setAttribute(SUPPRESS, "true");
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/** Keep a notebook's own handling of keys out of a view. @param {any} root */
export function keepKeys(root) {
  root.setAttribute(SUPPRESS, "true");
  // JupyterLab 4.6 puts a listener on whatever has the focus in a cell and cancels the line break that Enter would make.
  // Stopped here, above the element and before it, the event never reaches that listener, and Enter works in the box.
  root.addEventListener("beforeinput", (/** @type {Event} */ e) => e.stopPropagation(), true);
}

/** Change a text only if it differs: an unchanged one keeps its selection and costs no layout.
 * @param {any} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Show text that mostly grows at its end. @param {any} node a node with one text node @param {string} text */
export function growText(node, text) {
  const shown = node.firstChild;
  if (shown && text.startsWith(shown.data)) shown.appendData(text.slice(shown.data.length));
  else node.textContent = text;
}

/** A word with a mark before it, in a tone. @param {string} word @param {{tone: string, mark: string}} look
 * @param {string} [title] */
export function chip(word, look, title) {
  return h("span", { class: `ln-chip ln-${look.tone}`, title: title || null },
    h("span", { class: "ln-mark", "aria-hidden": "true" }, look.mark), h("span", { class: "ln-word" }, word));
}

/** @param {string} label @param {() => void} onclick @param {Record<string, any>} [attributes] */
export function button(label, onclick, attributes = {}) {
  return h("button", { type: "button", class: "ln-button", ...attributes, onclick }, label);
}
