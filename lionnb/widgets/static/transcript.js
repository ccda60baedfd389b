// @ts-check
/* The centre of the view: what was said and done, line by line, as it comes. One DOM row an entry; an update touches only
   the rows that changed. */

import { chip, growText, h, setText } from "./dom.js";
import { CHIPS, clock, counting, cutNote, duration, outcomeMark, plural, short, tokens } from "./format.js";
import { entryOf } from "./lists.js";

const ROLES = new Map([["user", "prompt"], ["assistant", "model"], ["system", "system"], ["action", "tool"], ["tool", "tool"]]);
const STUCK_PX = 32;

/** The first line of a text, for a row that is folded. @param {string} text */
export function firstLine(text) {
  const line = text.trimStart().split("\n", 1)[0];
  return line.length > 300 ? `${line.slice(0, 300)}…` : line;
}

/** What is awaited right now, in words; empty when text is coming. Pure. @param {any} state @param {number} now */
export function awaited(state, now) {
  const turn = state.turn;
  if (turn === null) return "";
  const age = now - turn.quiet_at;
  if (turn.phase !== "active") return `turn ${short(turn.id)} is ${turn.phase}, ${counting(age)}`;
  if (state.tools.length) {
    const tool = entryOf(state, state.tools[state.tools.length - 1][1]);
    return `${tool ? tool.name : "a tool"} is running, ${counting(tool ? now - tool.at : age)}`;
  }
  return age < 1 ? "" : `waiting for the provider, ${counting(age)}`;
}

const row = (entry, kind, who, ...what) => h("div", { class: `ln-row ln-is-${kind}` },
  h("time", { class: "ln-time" }, clock(entry.at)), h("div", { class: "ln-who" }, who), h("div", { class: "ln-what" }, ...what));

const cutOf = (n) => (n > 0 ? h("span", { class: "ln-cut" }, cutNote(n)) : null);

function textRow(e) {
  const who = ROLES.get(e.role) ?? e.role;
  const text = h("div", { class: "ln-text" }, e.pieces ? e.pieces.map((/** @type {any} */ p) => p[1]).join("") : e.text);
  const kind = e.role === "user" ? "user" : e.role === "assistant" ? "assistant" : "other";
  if (e.live || e.part) {
    const before = e.cut > 0 ? h("span", { class: "ln-cut" }, `${plural(e.cut, "earlier character")} not shown …`) : null;
    const state = e.live ? h("span", { class: "ln-caret", "aria-label": "still coming" }) : h("span", { class: "ln-cut" }, "the turn ended here: this is not in the history");
    return row(e, kind, who, before, text, state);
  }
  return row(e, kind, who, text.textContent === "" ? h("span", { class: "ln-dim" }, "(empty)") : text, cutOf(e.cut));
}

function toolRow(e) {
  const done = e.done_at !== null;
  const look = !done ? { tone: "move", mark: "◐" } : e.error !== null ? { tone: "bad", mark: "✕" } : { tone: "good", mark: "✓" };
  const word = !done ? "running" : e.error !== null ? "failed" : duration(e.args === null ? null : e.done_at - e.at);
  const args = e.args ?? "(called before this view began)";
  const result = e.error ?? e.output;
  const summary = h("summary", {}, h("span", { class: "ln-call" }, h("span", { class: "ln-name" }, e.name || "tool"),
    h("span", { class: "ln-args" }, ` ${firstLine(args)}`)), chip(word, look));
  const pre = (label, text, cut) => [h("div", { class: "ln-label" }, label), h("pre", {}, text, cutOf(cut))];
  const details = h("details", { class: "ln-tool" }, summary, ...pre("arguments", args, e.args_cut),
    ...(done ? pre(e.error !== null ? "error" : "result", result || "(no output)", e.error !== null ? e.error_cut : e.output_cut) : []));
  const peek = done ? h("div", { class: `ln-peek${e.error !== null ? " ln-failed" : ""}` }, `→ ${firstLine(result || "(no output)")}`) : null;
  return row(e, "tool", "tool", details, peek);
}

function steerRow(e) {
  return row(e, "steer", `steer${e.created_by ? ` by ${e.created_by}` : ""}`, h("div", { class: "ln-text" }, e.text), cutOf(e.text_cut),
    h("div", { class: "ln-fate" }, chip(e.chip, CHIPS[e.chip] ?? { tone: "idle", mark: "?" }, e.sentence), h("span", { class: "ln-dim" }, e.sentence)));
}

function ruleRow(e, look, words, more) {
  return h("div", { class: "ln-row ln-is-rule" }, h("time", { class: "ln-time" }, clock(e.at)),
    h("div", { class: "ln-rule" }, chip(words[0], look), h("span", { class: "ln-dim" }, words.slice(1).filter(Boolean).join(" · "))), more ?? null);
}

function endRow(e) {
  const spent = tokens(e.input_tokens, e.output_tokens);
  const of = e.turn === null ? e.operation : `turn ${short(e.turn)}`;
  const more = e.error ? h("div", { class: "ln-error" }, h("span", {}, e.error), cutOf(e.error_cut)) : null;
  return ruleRow(e, outcomeMark(e.outcome), [e.outcome.replaceAll("_", " "), of, e.duration_s === null ? "" : duration(e.duration_s), spent], more);
}

const ROWS = {
  start: (e) => ruleRow(e, { tone: "idle", mark: "▶" },
    [`turn ${short(e.turn)}`, e.operation, e.model, e.waited_s > 0.05 ? `waited ${duration(e.waited_s)} for its turn` : ""]),
  end: endRow,
  text: textRow,
  tool: toolRow,
  steer: steerRow,
  leg: (e) => ruleRow(e, outcomeMark(e.status), [`leg ${e.status.replaceAll("_", " ")}`, e.sentence]),
  control: (e) => ruleRow(e, { tone: e.fate === "taken" ? "good" : e.fate === "stored" ? "wait" : "warn", mark: "⇢" },
    [`control ${e.directive}`, e.fate, e.reason]),
  warning: (e) => row(e, "warning", "⚠ warning", h("div", { class: "ln-text" }, e.text), cutOf(e.cut)),
  line: (e) => row(e, "other", e.name, h("div", { class: "ln-text" }, e.text), cutOf(e.cut)),
};

/** The row of an entry. @param {any} entry */
export function rowOf(entry) {
  return (ROWS[entry.kind] ?? ROWS.line)(entry);
}

export class Transcript {
  constructor() {
    this.gone = h("div", { class: "ln-gone", hidden: true });
    this.list = h("div", { class: "ln-list" });
    this.now = h("div", { class: "ln-now", hidden: true });
    this.scroll = h("div", { class: "ln-scroll", role: "log", "aria-label": "transcript", "aria-live": "off", tabindex: 0 },
      this.gone, this.list, this.now);
    this.jump = h("button", { type: "button", class: "ln-jump", hidden: true, onclick: () => this.toEnd() }, "↓ newest");
    this.el = h("section", { class: "ln-transcript" }, this.scroll, this.jump);
    /** @type {Map<number, any>} */
    this.rows = new Map();
    this.first = 0; // the oldest entry with a row
    this.stuck = true;
    this.scroll.addEventListener("scroll", () => {
      this.stuck = this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < STUCK_PX;
      if (this.stuck) this.jump.hidden = true;
    }, { passive: true });
  }

  /** Draw everything anew. @param {any} state */
  reset(state) {
    this.rows.clear();
    this.list.replaceChildren();
    this.first = state.entries.first;
    this.update(state, state.entries.items.map((/** @type {any} */ e) => e.k));
  }

  /** Draw the entries that changed. @param {any} state @param {Iterable<number>} touched */
  update(state, touched) {
    const fresh = document.createDocumentFragment();
    for (const k of touched) {
      const entry = entryOf(state, k);
      if (entry === null) continue;
      const old = this.rows.get(k);
      if (old && entry.live && this.grow(old, entry)) continue;
      const node = rowOf(entry);
      this.rows.set(k, node);
      if (!old) fresh.append(node);
      else {
        if (old.querySelector("details")?.open) node.querySelector("details")?.setAttribute("open", "");
        old.replaceWith(node);
      }
    }
    if (fresh.childNodes.length && !this.stuck) this.jump.hidden = false;
    this.list.append(fresh);
    for (; this.first < state.entries.first; this.first++) {
      this.rows.get(this.first)?.remove();
      this.rows.delete(this.first);
    }
    this.gone.hidden = this.first === 0;
    setText(this.gone, this.first ? `${plural(this.first, "earlier line")} no longer kept by this view` : "");
    this.toEndIfStuck();
  }

  /** Add to a row whose text is still coming. @returns {boolean} whether that was enough */
  grow(node, entry) {
    const text = node.querySelector(".ln-text");
    if (text === null || !node.querySelector(".ln-caret")) return false;
    if (entry.cut > 0 && !node.querySelector(".ln-cut")) return false;
    growText(text, entry.pieces.map((/** @type {any} */ p) => p[1]).join(""));
    if (entry.cut > 0) setText(node.querySelector(".ln-cut"), `${plural(entry.cut, "earlier character")} not shown …`);
    return true;
  }

  /** @param {any} state @param {number} now @param {boolean} silent the kernel has not been heard: nothing ticks */
  tick(state, now, silent) {
    const words = silent ? "" : awaited(state, now);
    setText(this.now, words || (state.entries.items.length ? "" : "Nothing has been said yet."));
    this.now.hidden = this.now.textContent === "";
    this.now.classList.toggle("ln-busy", words !== "");
    this.toEndIfStuck();
  }

  toEndIfStuck() {
    if (this.stuck) this.scroll.scrollTop = this.scroll.scrollHeight;
  }

  toEnd() {
    this.stuck = true;
    this.jump.hidden = true;
    this.toEndIfStuck();
  }
}
