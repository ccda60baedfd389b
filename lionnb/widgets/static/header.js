// @ts-check
/* The head of the view: what it is, where it stands, who waits, what is left; and, at the foot, the provider blocks. */

import { chip, h, setText } from "./dom.js";
import { clock, count, counting, cutNote, duration, outcomeMark, short, tokens } from "./format.js";
import { isLive } from "./state.js";

const WAITERS_SHOWN = 4;
const STARVED_MS = 6000; // what the kernel said of a standstill counts for so long

/** What the head says. Pure. @param {any} state @param {number} now the kernel's clock, Unix seconds */
export function headline(state, now) {
  const { run, turn } = state;
  const [word, look] = standing(state);
  const lead = turn
    ? [`turn ${short(turn.id)}`, turn.operation, turn.model, turn.phase, counting(now - turn.started_at)]
    : [lastTurn(state)];
  const waits = state.waiters.slice(0, WAITERS_SHOWN).map((/** @type {any} */ w) => ({
    text: `${w.operation} (${w.task ?? "a call"}) waits ${counting(now - w.at)}`, behind: w.behind,
  }));
  return {
    title: (run && run.name) || state.title,
    runId: run ? run.run_id : "",
    status: { word, look, sentence: run ? run.sentence : "" },
    lead: lead.filter(Boolean).join(" · "),
    tokens: tokens(state.tokens.input, state.tokens.output),
    waits,
    more: state.waiters.length - waits.length,
    budget: budget(run, now),
    needsYou: state.steers.items.filter((/** @type {any} */ s) => s.chip === "needs you").length,
    note: state.beat && isLive(state) ? state.beat.text : "",
  };
}

/* The one word for where it stands, and how it looks. */
function standing(state) {
  if (state.run) return [state.run.status.replaceAll("_", " "), outcomeMark(state.run.status)];
  if (state.turn) return ["in a turn", outcomeMark("running")];
  const ended = lastEnded(state);
  if (ended && outcomeMark(ended.outcome).tone === "bad") return [`idle, the last turn ${ended.outcome.replaceAll("_", " ")}`, outcomeMark(ended.outcome)];
  return [state.waiters.length ? "waiting" : "idle", { tone: "idle", mark: "○" }];
}

function lastEnded(state) {
  return state.lanes.items.findLast((/** @type {any} */ lane) => lane.end_at !== null && lane.turn !== null);
}

function lastTurn(state) {
  const ended = lastEnded(state);
  if (!ended) return state.lanes.items.length ? "" : "no turn yet";
  return `last turn ${short(ended.turn)} · ${ended.operation} · ${ended.outcome} at ${clock(ended.end_at)}`;
}

/** The bar of a leg with a deadline; null without one. @param {any} run @param {number} now */
export function budget(run, now) {
  if (!run || run.deadline_at === null) return null;
  const from = run.started_at ?? run.deadline_at - (run.timeout_s ?? 0);
  const total = Math.max(0.001, run.deadline_at - from), left = run.deadline_at - now;
  const running = run.status === "running";
  const share = Math.min(1, Math.max(0, left / total));
  const text = !running ? `budget ${duration(total)}`
    : left > 0 ? `${counting(left)} of ${duration(total)} left`
      : `the budget of ${duration(total)} is used up: no new provider work starts`;
  return { share: running ? share : 0, text, tone: left <= 0 ? "bad" : share < 0.15 ? "warn" : "move", running };
}

export class Header {
  constructor() {
    const line = (/** @type {string} */ name) => h("div", { class: `ln-${name}` });
    this.chip = h("span", { class: "ln-slot" });
    this.title = h("span", { class: "ln-title" });
    this.run = h("code", { class: "ln-run" });
    this.needs = h("span", { class: "ln-slot" });
    this.tokens = h("span", { class: "ln-tokens", title: "tokens of all turns that ended here, as the provider reported them" });
    this.lead = line("lead");
    this.sentence = line("sentence");
    this.note = line("note");
    this.waits = h("ul", { class: "ln-waits", "aria-label": "who waits" });
    this.fill = h("div", { class: "ln-fill" });
    this.bar = h("div", {
      class: "ln-bar", role: "progressbar", "aria-label": "budget left", "aria-valuemin": 0, "aria-valuemax": 100,
    }, this.fill);
    this.left = h("span", { class: "ln-left" });
    this.budget = h("div", { class: "ln-budget" }, this.bar, this.left);
    const top = h("div", { class: "ln-top" }, this.chip, this.title, this.run, this.needs, this.tokens);
    this.el = h("header", { class: "ln-header" }, top, this.lead, this.sentence, this.note, this.budget, this.waits);
    this.drawn = "";
  }

  /** @param {any} state @param {number} now @param {boolean} [gone] whether there is no kernel any more */
  draw(state, now, gone) {
    const head = headline(state, now);
    if (gone && isLive(state)) Object.assign(head.status, { word: `${head.status.word} when last heard`, look: { tone: "idle", mark: "?" } });
    setText(this.title, head.title);
    setText(this.run, head.runId);
    setText(this.lead, head.lead);
    setText(this.tokens, head.tokens);
    setText(this.sentence, head.status.sentence);
    setText(this.note, head.note);
    for (const el of [this.run, this.tokens, this.sentence, this.note, this.lead]) el.hidden = el.textContent === "";
    const seen = JSON.stringify([head.status, head.needsYou]);
    if (seen !== this.drawn) {
      this.drawn = seen;
      this.chip.replaceChildren(chip(head.status.word, head.status.look, head.status.sentence));
      const needs = head.needsYou ? [chip(`${head.needsYou} need${head.needsYou === 1 ? "s" : ""} you`, { tone: "warn", mark: "!" })] : [];
      this.needs.replaceChildren(...needs);
    }
    this.drawBudget(head.budget);
    const items = head.waits.map((/** @type {any} */ w) =>
      h("li", {}, h("span", {}, w.text), w.behind ? h("span", { class: "ln-dim" }, ` · behind ${w.behind}`) : null));
    if (head.more > 0) items.push(h("li", { class: "ln-dim" }, `and ${count(head.more)} more`));
    this.waits.replaceChildren(...items);
    this.waits.hidden = items.length === 0;
  }

  drawBudget(budget) {
    this.budget.hidden = budget === null;
    if (budget === null) return;
    this.bar.hidden = !budget.running;
    this.fill.style.width = `${(budget.share * 100).toFixed(1)}%`;
    this.fill.className = `ln-fill ln-${budget.tone}`;
    this.bar.setAttribute("aria-valuenow", String(Math.round(budget.share * 100)));
    setText(this.left, budget.text);
  }
}

/** Provider blocks of the newest turn that gathered any. */
export class Blocks {
  constructor() {
    this.el = h("section", { class: "ln-blocks", "aria-label": "context providers", hidden: true });
  }

  /** @param {any} state */
  draw(state) {
    const b = state.blocks;
    this.el.hidden = b === null;
    if (b === null) return;
    const again = b.gather > 1 ? `, gathering ${b.gather} of this turn` : "";
    const head = h("div", { class: "ln-caption" }, "Context providers",
      h("span", { class: "ln-dim" }, ` of turn ${short(b.turn)}${again}`));
    const fired = b.blocks.map((/** @type {any} */ block) => h("details", { class: "ln-block" },
      h("summary", {}, h("span", { class: "ln-name" }, block.name || "unnamed"),
        h("span", { class: "ln-dim" }, ` ${block.tokens === null ? "tokens unknown" : `${count(block.tokens)} tokens`}`)),
      h("pre", {}, block.text, h("span", { class: "ln-dim" }, cutNote(block.text_cut)))));
    const why = (/** @type {string} */ word, /** @type {string} */ tone, /** @type {string} */ mark, /** @type {any[]} */ list) =>
      list.map((p) => h("div", { class: "ln-why" }, chip(word, { tone, mark }), h("span", { class: "ln-name" }, p.name),
        p.reason ? h("span", { class: "ln-dim" }, p.reason) : null));
    const rest = [...why("failed", "bad", "✕", b.failed), ...why("degraded", "warn", "▽", b.degraded), ...why("skipped", "idle", "–", b.skipped)];
    const open = new Set(Array.from(this.el.querySelectorAll("details[open]"), (/** @type {any} */ d) => d.dataset.name));
    for (const [i, d] of fired.entries()) { // a request may gather again while somebody reads
      d.dataset.name = b.blocks[i].name;
      d.open = open.has(b.blocks[i].name);
    }
    const none = fired.length + rest.length ? [] : [h("div", { class: "ln-dim" }, "no provider took part")];
    this.el.replaceChildren(head, ...fired, ...rest, ...none);
  }
}

/** What the page knows about the kernel's life. Pure.
 * @param {{beatAt: number, answerAt: number, nextMs: number|null, starved?: {at: number, heardAt: number, by: string}|null}} pulse
 * ms of this browser; `starved` is said by the kernel itself, once a second @param {boolean} live
 * @param {number} now ms @param {boolean} [gone] whether there is no kernel to send to
 * @returns {string} empty while all is well */
export function silence(pulse, live, now, gone) {
  if (live && gone) return `The kernel of this view is gone: it was restarted, or has ended. What you see is what was last heard (${clock(pulse.beatAt / 1000)}).`;
  if (pulse.starved && now - pulse.starved.heardAt < STARVED_MS) {
    const { at, by } = pulse.starved;
    return `Starved ${counting((now - at) / 1000)} by ${by}: the leg stands still until the loop is free. Steers are recorded all the same.`;
  }
  if (!live || pulse.nextMs === null) return "";
  const quiet = now - pulse.beatAt;
  if (quiet < Math.max(6000, 3 * pulse.nextMs)) return "";
  const since = `${counting(quiet / 1000)} (since ${clock(pulse.beatAt / 1000)})`;
  return pulse.answerAt > pulse.beatAt
    ? `The kernel is busy with a cell for ${since}: it takes messages, and nothing else moves.`
    : `No sign of life from the kernel for ${since}: a cell keeps it busy, or it is gone. What you see is what was last heard.`;
}

