// @ts-check
/* The steer panel of a leg: say something to it, see what became of what was said, end its turn or the leg. */

import { acknowledge, dismiss, record, sentLine, tidy } from "./desk.js";
import { button, chip, h, setText } from "./dom.js";
import { CHIPS, counting, cutNote, plural, short } from "./format.js";

const GUARD_MS = 400, ARMED_MS = 4000, RESEND_MS = 5000;
const SENT = { sent: CHIPS.sent, ok: CHIPS.applied, refused: CHIPS["not delivered"], queued: CHIPS.queued };
const WORD = { sent: "sent", ok: "done", refused: "refused", queued: "queued" };
export const GONE = "The kernel of this view is gone: it was restarted, or has ended.";

/** Ages and owner of a steer. Pure. @param {any} s @param {number} now Unix seconds */
export function steerLine(s, now) {
  const word = `${s.chip}: `; // the chip beside it says that already
  const parts = [s.sentence.startsWith(word) ? s.sentence.slice(word.length) : s.sentence];
  if (s.chip === "delivering" && s.handed_over_at !== null) parts.push(`handed over ${counting(now - s.handed_over_at)} ago`);
  if (s.created_at !== null) {
    const by = s.created_by ? ` by ${s.created_by}` : "";
    parts.push(s.closed_at === null ? `${counting(now - s.created_at)} old${by}` : `settled after ${counting(s.closed_at - s.created_at)}${by}`);
  }
  if (s.turn_id && !s.sentence.includes(short(s.turn_id))) parts.push(`turn ${short(s.turn_id)}`);
  if (s.note) parts.push(s.note);
  return parts.filter(Boolean).join(" · ");
}

export class Panel {
  /** @param {any} desk @param {(message: object) => void} send @param {() => string} makeKey @param {string} id */
  constructor(desk, send, makeKey, id) {
    Object.assign(this, { desk, send, makeKey });
    this.box = h("textarea", {
      class: "ln-box", id: `${id}-box`, rows: 3, spellcheck: "true", "aria-describedby": `${id}-hint`,
      placeholder: "What should it do differently?",
    });
    this.box.value = desk.draft;
    this.box.addEventListener("input", () => {
      desk.draft = this.box.value;
      this.drawOut(Date.now()); // "edit again" is offered while the box holds something else
    });
    this.box.addEventListener("focus", () => { desk.typing = this.box; });
    // Later, for then it shows whether the person left the box or the page took it away.
    this.box.addEventListener("blur", () => setTimeout(() => { if (this.box.isConnected && desk.typing === this.box) desk.typing = null; }));
    this.box.addEventListener("keydown", (/** @type {KeyboardEvent} */ e) => {
      if (e.key !== "Enter" || !(e.ctrlKey || e.metaKey) || e.isComposing) return;
      e.preventDefault();
      e.stopPropagation();
      this.steer();
    });
    this.sendButton = button("Send", () => this.steer(), { class: "ln-button ln-primary", title: "Ctrl+Enter or ⌘+Enter" });
    this.hint = h("span", { class: "ln-hint", id: `${id}-hint` });
    this.turnSlot = h("span", { class: "ln-slot" });
    this.stopButton = button("Stop leg", () => this.stop(), { class: "ln-button ln-danger" });
    this.said = h("div", { class: "ln-said", role: "status" });
    this.heard = h("div", { class: "ln-unseen", role: "status" }); // for ears: the lists show it to eyes
    this.out = h("ul", { class: "ln-out", "aria-label": "sent from this page" });
    this.count = h("span", { class: "ln-dim" });
    this.list = h("ul", { class: "ln-steers", "aria-label": "steers of this leg" });
    this.el = h("section", { class: "ln-panel", "aria-label": "steer this leg" },
      h("label", { class: "ln-caption", for: `${id}-box` }, "Steer this leg"), this.box,
      h("div", { class: "ln-actions" }, this.sendButton, this.hint), this.said, this.heard,
      h("div", { class: "ln-ledger" }, this.out, h("div", { class: "ln-caption" }, "Steers", this.count), this.list),
      h("div", { class: "ln-actions ln-ends" }, this.turnSlot, this.stopButton));
    /** @type {Map<string, any>} */
    this.rows = new Map();
    this.turn = undefined;
    this.gone = false; // whether there is a kernel to send to
    this.armedAt = 0;
    this.outDrawn = "";
  }

  /* The end of a leg draws its view anew. Whoever was typing goes on here: elsewhere the keys are JupyterLab's commands. */
  takeOver() {
    const old = this.desk.typing;
    if (!old || old.isConnected || !this.box.isConnected) return;
    this.box.focus({ preventScroll: true });
    this.box.setSelectionRange(old.selectionStart, old.selectionEnd);
  }

  // ---------------------------------------------------------------- what a person does
  order(message, label) {
    const whole = record(this.desk, message, label, Date.now());
    if (!this.send(whole)) acknowledge(this.desk, { ack: whole.n, ok: false, sentence: `${GONE} Nothing was sent.` }, Date.now());
    this.changed();
  }

  changed() {
    for (const listener of this.desk.listeners) listener();
  }

  steer() {
    const text = this.box.value;
    if (this.gone) return this.say(`${GONE} Your text stays here.`);
    if (this.ended) return this.say("The leg has ended: nothing would read it. Your text stays here.");
    if (text.trim() === "") return this.say("Nothing to send yet.");
    this.box.value = this.desk.draft = "";
    this.say("");
    this.order({ intent: "steer", text, key: this.makeKey() }, text);
  }

  /* Stop is for good, so it takes two presses; the second within four seconds. */
  stop() {
    if (Date.now() - this.armedAt > ARMED_MS) {
      this.armedAt = Date.now();
      setText(this.stopButton, "Press again to stop");
      return this.say("Stopping ends the leg for good; what is queued will not be delivered. Press again to stop it.");
    }
    this.disarm();
    this.order({ intent: "stop" }, "Stop leg");
  }

  disarm() {
    this.armedAt = 0;
    setText(this.stopButton, "Stop leg");
    this.say("");
  }

  say(text) {
    setText(this.said, text);
  }

  // ---------------------------------------------------------------- drawing
  /** @param {any} state @param {number} now Unix seconds */
  reset(state, now) {
    this.rows.clear();
    this.list.replaceChildren();
    this.update(state, state.steers.items.map((/** @type {any} */ s) => s.key), now);
  }

  /** @param {any} state @param {Iterable<string>} touched @param {number} now */
  update(state, touched, now) {
    const wanted = new Set(touched);
    for (const s of state.steers.items) {
      if (!wanted.has(s.key)) continue;
      const old = this.rows.get(s.key), sign = JSON.stringify([s.chip, s.text, s.text_cut, s.control_id, s.claim]);
      if (old?.sign === sign) { old.steer = s; continue; } // a new sentence must not cost what is being typed in the row
      const made = { ...this.steerRow(s), sign };
      if (old) old.node.replaceWith(made.node);
      else this.list.prepend(made.node); // the newest on top
      this.rows.set(s.key, made);
    }
    if (this.rows.size > state.steers.items.length) this.forget(state);
    this.tick(state, now, Date.now());
  }

  forget(state) {
    const kept = new Set(state.steers.items.map((/** @type {any} */ s) => s.key));
    for (const [key, made] of this.rows) if (!kept.has(key)) { made.node.remove(); this.rows.delete(key); }
  }

  steerRow(s) {
    const line = h("span", { class: "ln-dim" });
    const look = CHIPS[s.chip] ?? { tone: "idle", mark: "?" };
    const word = chip(s.chip, look);
    const node = h("li", { class: `ln-steer ln-edge-${look.tone}` },
      h("div", { class: "ln-text" }, s.text, s.text_cut ? h("span", { class: "ln-cut" }, cutNote(s.text_cut)) : null),
      h("div", { class: "ln-fate" }, word, line, this.withdrawButton(s)));
    if (s.chip === "needs you" && s.control_id && s.claim) node.append(this.resolveForm(s));
    return { node, line, word, steer: s };
  }

  withdrawButton(s) {
    if (s.chip !== "queued" || !s.control_id) return null;
    const label = `Withdraw: ${s.text.slice(0, 60)}`;
    return button("Withdraw", () => this.order({ intent: "withdraw", control_id: s.control_id }, label), { "aria-label": label });
  }

  /* Only a person can say whether it arrived, and the record keeps who said so. A new hand-over of the same steer has
     another claim, and gets a new form: what is said here is about the one that it was drawn for. */
  resolveForm(s) {
    const { control_id, claim } = s;
    const name = h("input", { class: "ln-input", type: "text", maxlength: 100, "aria-label": "your name", placeholder: "your name", autocomplete: "name" });
    const as = (/** @type {string} */ outcome) => () => {
      if (name.value.trim() === "") { this.say("Say who you are first: the record keeps who decided."); return name.focus(); }
      this.order({ intent: "resolve", control_id, claim, outcome, by: name.value.trim() }, `Resolve as ${outcome}`);
    };
    return h("div", { class: "ln-resolve" },
      h("div", {}, "It was handed over, and nobody reported back. Did it arrive? Look at the transcript, then say so:"),
      h("div", { class: "ln-actions" }, name, button("It arrived", as("applied")), button("It did not", as("abandoned"))));
  }

  outRow(item) {
    const line = h("span", { class: "ln-dim" }, sentLine(item, Date.now()));
    const acts = [];
    if (item.status === "refused") {
      if (item.intent === "steer" && item.message.text !== this.box.value) acts.push(button("Edit again", () => this.editAgain(item)));
      acts.push(button("Dismiss", () => { dismiss(this.desk, item); this.changed(); }));
    } else if (item.status === "sent" && item.intent === "steer" && Date.now() - item.at > RESEND_MS) {
      acts.push(button("Send again", () => this.send(item.message), { title: "The same message: it is recorded once however often it is sent" }));
    }
    // A steer that was recorded is queued, not done; the list takes over as soon as the kernel's loop tells of it.
    const status = item.intent === "steer" && item.status === "ok" ? "queued" : item.status;
    return h("li", { class: `ln-steer ln-edge-${SENT[status].tone}` }, h("div", { class: "ln-text" }, item.label),
      h("div", { class: "ln-fate" }, chip(WORD[status], SENT[status]), line, ...acts));
  }

  editAgain(item) {
    const mine = this.box.value.trim();
    this.box.value = this.desk.draft = mine ? `${item.message.text}\n${this.box.value}` : item.message.text;
    dismiss(this.desk, item);
    this.changed();
    this.box.focus();
  }

  /** An answer came. @param {any} ack @param {any} state @param {number} now */
  answer(ack, state, now) {
    const item = acknowledge(this.desk, ack, Date.now());
    if (item) setText(this.heard, `${item.intent === "steer" ? "Steer" : item.label}: ${item.sentence}`);
    this.changed();
    this.tick(state, now, Date.now());
  }

  /** Ages, buttons, what was sent. @param {any} state @param {number} now Unix seconds @param {number} local ms */
  tick(state, now, local) {
    const run = state.run, ended = run !== null && run.status !== "running";
    this.ended = ended;
    tidy(this.desk, state, local);
    if (this.box.value === "" && this.desk.draft !== "") this.box.value = this.desk.draft;
    for (const { line, word, steer } of this.rows.values()) {
      setText(line, steerLine(steer, now));
      if (word.title !== steer.sentence) word.title = steer.sentence;
    }
    const queued = state.steers.items.filter((/** @type {any} */ s) => s.chip === "queued").length;
    const n = state.steers.first + state.steers.items.length;
    setText(this.count, n ? ` ${plural(n, "sent", "sent")}${queued ? `, ${queued} queued` : ""}` : " none yet");
    const waits = run !== null && run.sentence.startsWith("waits for the Branch"); // then the turn shown is not the leg's
    setText(this.hint, ended ? "the leg has ended" : this.gone ? "the kernel is gone" : waits ? "the leg waits for the Branch" : state.turn ? "lands when the current turn ends" : "lands as the next turn");
    this.sendButton.disabled = this.stopButton.disabled = ended || this.gone;
    if (this.armedAt && local - this.armedAt > ARMED_MS) this.disarm();
    this.drawTurnButton(ended || this.gone || waits ? null : state.turn, local);
    this.drawOut(local);
  }

  drawOut(local) {
    const seen = JSON.stringify(this.desk.sent.map((/** @type {any} */ s) =>
      [s.n, sentLine(s, local), s.status, local - s.at > RESEND_MS, s.message.text === this.box.value]));
    if (seen === this.outDrawn) return;
    this.outDrawn = seen;
    this.out.replaceChildren(...this.desk.sent.map((/** @type {any} */ item) => this.outRow(item)));
  }

  /* A new button for a new turn: a press that began on the old one ends nowhere, and one that comes too soon after the
     change was meant for the turn before. */
  drawTurnButton(turn, local) {
    const id = turn === null ? null : turn.id;
    if (this.turn === id) return;
    this.turn = id;
    const label = id === null ? "Cancel turn" : `Cancel turn ${short(id)}`;
    const born = local;
    const act = () => {
      if (Date.now() - born < GUARD_MS) return this.say("The turn changed just as you pressed: nothing was cancelled.");
      this.order({ intent: "cancel_turn", turn_id: id }, label);
    };
    const title = id === null ? "There is no turn to cancel." : "Ends this turn; the leg goes on with what is queued.";
    this.turnSlot.replaceChildren(button(label, act, { disabled: id === null, title }));
  }
}
