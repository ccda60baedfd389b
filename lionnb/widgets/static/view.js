// @ts-check
/* Puts the parts together for one display of the view. State and stream are this display's own; the desk (what was typed and
   sent) belongs to the view, so that two displays of it agree and a press in one acts once. */

import { newDesk, note } from "./desk.js";
import { button, h, keepKeys, setText } from "./dom.js";
import { Blocks, Header, silence } from "./header.js";
import { Panel } from "./panel.js";
import { isLive, untouched } from "./state.js";
import { Sync } from "./sync.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

const TICK_MS = 1000, BEAT_MS = 2000;

/** @type {Map<string, any>} the desk of each view in this page, by the view's id: it outlives a display that is redrawn */
const DESKS = new Map();

const randomWord = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (v) => v.toString(36)).join("");

function deskOf(uid) {
  if (!DESKS.has(uid)) DESKS.set(uid, newDesk(crypto.getRandomValues(new Uint32Array(1))[0] * 1024));
  return DESKS.get(uid);
}

class Display {
  constructor(model, el) {
    this.model = model;
    this.sync = new Sync(JSON.parse(model.get("snapshot")), (m) => this.send(m));
    this.pulse = { beatAt: Date.now(), answerAt: 0, nextMs: this.state.beats ? BEAT_MS : null };
    this.offset = 0; // the kernel's clock minus this browser's, ms
    this.dirty = untouched();
    this.anew = true;
    this.gone = false; // no kernel behind this view: a restart, an export
    this.frame = 0;
    this.desk = deskOf(this.state.uid);
    this.header = new Header();
    this.transcript = new Transcript();
    this.timeline = new Timeline(() => this.now());
    this.blocks = new Blocks();
    this.pulseLine = h("div", { class: "ln-pulse", role: "status", hidden: true });
    this.notes = h("ul", { class: "ln-notes", "aria-label": "notices", hidden: true });
    this.panel = this.state.can_steer
      ? new Panel(this.desk, (m) => this.send(m), randomWord, `ln-${randomWord()}`) : null;
    const main = h("div", { class: "ln-main" }, this.transcript.el, this.panel && this.panel.el);
    this.root = h("div", { class: `lionnb-turn-view${this.panel ? " ln-can-steer" : ""}` },
      this.header.el, this.pulseLine, this.notes, main, this.timeline.el, this.blocks.el);
    keepKeys(this.root);
    el.append(this.root);
    this.begin();
  }

  get state() {
    return this.sync.state;
  }

  /** The kernel's clock in Unix seconds; it stands still when nothing is heard, so that nothing looks alive. */
  now() {
    return ((this.quiet ? this.pulse.beatAt : Date.now()) + this.offset) / 1000;
  }

  get quiet() {
    return silence(this.pulse, isLive(this.state), Date.now(), this.gone);
  }

  begin() {
    this.onMessage = (/** @type {any} */ m) => this.message(m);
    this.onSnapshot = () => this.adopt(this.model.get("snapshot"));
    this.onDesk = () => this.panel?.tick(this.state, this.now(), Date.now());
    this.onComm = () => { this.sync.ask(Date.now()); this.tick(); }; // a restart cuts the line: trying it tells
    this.model.on("comm_live_update", this.onComm);
    this.model.on("msg:custom", this.onMessage);
    this.model.on("change:snapshot", this.onSnapshot);
    this.desk.listeners.add(this.onDesk);
    this.timer = setInterval(() => this.tick(), TICK_MS);
    this.resized = new ResizeObserver(() => { // the first time, it has just come onto the page
      this.panel?.takeOver();
      this.timeline.redraw();
    });
    this.resized.observe(this.root);
    this.themed = new MutationObserver(() => this.timeline.redraw()); // a canvas does not follow the theme by itself
    for (const el of [document.documentElement, document.body]) this.themed.observe(el, { attributes: true });
    this.draw();
    this.sync.ask(Date.now()); // what was sent while this display came into being is lost
  }

  end() {
    clearInterval(this.timer);
    cancelAnimationFrame(this.frame);
    this.resized.disconnect();
    this.themed.disconnect();
    this.desk.listeners.delete(this.onDesk);
    this.model.off("comm_live_update", this.onComm);
    this.model.off("msg:custom", this.onMessage);
    this.model.off("change:snapshot", this.onSnapshot);
    this.root.remove();
  }

  /** @returns {boolean} whether there is a kernel to send it to */
  send(message) {
    try {
      this.model.send(message);
      this.gone = false;
    } catch (error) {
      console.debug("lionnb: not sent", error);
      this.gone = true;
    }
    return !this.gone;
  }

  // ---------------------------------------------------------------- from the kernel
  message(m) {
    try {
      if (m === null || typeof m !== "object") return;
      if (Array.isArray(m.ev)) this.take(this.sync.batch(m, Date.now()));
      else if (m.beat) this.beat(m.beat);
      else if (typeof m.snapshot === "string") this.adopt(m.snapshot);
      else if (m.starved) this.starve(m.starved);
      else if (m.ack !== undefined) this.answer(m);
      else if (typeof m.err === "string") this.notice(m.err);
    } catch (error) {
      this.notice(`this page could not show a message: ${error}`);
    }
  }

  beat(beat) {
    const now = Date.now();
    this.pulse = { ...this.pulse, starved: null, beatAt: now, nextMs: beat.next_s === null ? null : beat.next_s * 1000 };
    this.offset = beat.at * 1000 - now;
    this.sync.heard(beat.n, now);
    this.tick();
  }

  /** The control thread says that the loop stands still; whatever comes from the loop says that it moves. */
  starve(starved) {
    const now = Date.now();
    this.pulse.starved = { at: now - starved.s * 1000, heardAt: now, by: String(starved.by) };
    this.tick();
  }

  take(touched) {
    this.pulse.starved = null;
    this.pulse.beatAt = Date.now(); // a batch comes from the main loop: as good as a heartbeat
    for (const key of /** @type {const} */ (["entries", "steers", "kinds"])) for (const v of touched[key]) this.dirty[key].add(v);
    this.later();
  }

  adopt(text) {
    if (typeof text !== "string" || !this.sync.adopt(text)) return;
    this.anew = true;
    this.later();
  }

  answer(m) {
    this.pulse.answerAt = Date.now();
    if (this.panel) this.panel.answer(m, this.state, this.now());
    else if (!m.ok) this.notice(String(m.sentence));
  }

  notice(text) {
    note(this.desk, text);
    this.drawNotes();
  }

  // ---------------------------------------------------------------- drawing
  later() {
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  draw() {
    const { state, dirty, anew } = this, now = this.now();
    this.dirty = untouched();
    this.anew = false;
    if (anew) {
      this.transcript.reset(state);
      this.panel?.reset(state, now);
    } else {
      if (dirty.entries.size) this.transcript.update(state, dirty.entries);
      if (dirty.steers.size) this.panel?.update(state, dirty.steers, now);
    }
    this.timeline.update(state, anew);
    if (anew || dirty.kinds.has("blocks")) this.blocks.draw(state);
    this.tick();
  }

  tick() {
    const now = this.now(), quiet = this.quiet;
    setText(this.pulseLine, quiet);
    this.pulseLine.hidden = quiet === "";
    this.root.classList.toggle("ln-quiet", quiet !== "");
    this.header.draw(this.state, now, this.gone);
    this.transcript.tick(this.state, now, quiet !== "");
    if (this.panel) this.panel.gone = this.gone;
    this.panel?.tick(this.state, now, Date.now());
    if (isLive(this.state) && quiet === "") this.timeline.redraw();
    this.sync.tick(Date.now());
  }

  drawNotes() {
    const gone = () => { this.desk.notes = []; this.drawNotes(); };
    this.notes.hidden = this.desk.notes.length === 0;
    this.notes.replaceChildren(...this.desk.notes.map((/** @type {string} */ text) => h("li", {}, `⚠ ${text}`)), h("li", {}, button("Dismiss", gone)));
  }
}

/** anywidget calls this for each display; what it returns is called when the display goes. */
function render({ model, el }) {
  const given = model.get("snapshot");
  if (typeof given !== "string") {
    const words = h("div", { class: "lionnb-turn-view ln-empty" }, "This view has no saved state. Run its cell again.");
    el.append(words);
    return () => words.remove();
  }
  const display = new Display(model, el);
  return () => display.end();
}

export default { render };
