// @ts-check
/* The timeline: a lane a turn, a mark a signal, on a canvas. Where things go is decided in lanes.js. */

import { button, h, setText } from "./dom.js";
import { clock, count, duration, outcomeMark, plural, short } from "./format.js";
import { AXIS_PX, layout, ROW_PX, SignalIndex, span } from "./lanes.js";

const LABEL_PX = 136, ROWS_SHOWN = 7, LEAST_SPAN_S = 0.005;

/** Draw a layout. Colours come from the style sheet, shapes differ too: a wait is a line, a turn a bar, its finalization an
 * outline. @param {CanvasRenderingContext2D} g @param {ReturnType<typeof layout>} plan @param {Record<string, string>} ink
 * @param {{width: number, height: number, top: number, font: string}} box */
export function draw(g, plan, ink, box) {
  g.clearRect(0, 0, box.width, box.height);
  g.font = box.font;
  g.textBaseline = "middle";
  const bottom = box.height - AXIS_PX;
  g.fillStyle = ink.grid;
  for (const t of plan.ticks) g.fillRect(LABEL_PX + t.x, 0, 1, bottom);
  g.save();
  g.beginPath();
  g.rect(0, 0, box.width, bottom);
  g.clip();
  for (const row of plan.rows) drawRow(g, row, ink, row.y - box.top + ROW_PX / 2);
  g.restore();
  if (plan.nowX !== null) { g.fillStyle = ink.move; g.fillRect(LABEL_PX + plan.nowX - 0.5, 0, 1, bottom); }
  g.fillStyle = ink.dim;
  g.textAlign = "center";
  for (const t of plan.ticks) {
    const text = clock(t.t, t.fine), half = g.measureText(text).width / 2;
    g.fillText(text, Math.min(box.width - half, Math.max(LABEL_PX + half, LABEL_PX + t.x)), box.height - AXIS_PX / 2);
  }
}

function drawRow(g, row, ink, y) {
  const { lane } = row;
  g.textAlign = "left";
  g.fillStyle = lane.end_at === null ? ink.text : ink.dim;
  g.fillText(clip(g, `${lane.turn === null ? "waiting" : short(lane.turn)} ${lane.operation}`, LABEL_PX - 12), 4, y);
  for (const bar of row.bars) {
    const x = LABEL_PX + bar.x;
    if (bar.kind === "waiting") { g.fillStyle = ink.wait; g.fillRect(x, y - 1, bar.w, 2); }
    else if (bar.kind === "active") { g.fillStyle = ink.bar; g.fillRect(x, y - 5, bar.w, 10); }
    else { g.strokeStyle = ink.wait; g.strokeRect(x + 0.5, y - 4.5, Math.max(1, bar.w - 1), 9); }
  }
  g.fillStyle = ink.mark;
  for (const mark of row.marks) {
    const tall = mark.n > 9 ? 8 : mark.n > 1 ? 5 : 3;
    g.fillRect(LABEL_PX + mark.x, y - tall, 1, tall * 2);
  }
  if (row.endX !== null && lane.outcome) {
    const look = outcomeMark(lane.outcome);
    g.fillStyle = ink[look.tone] ?? ink.dim;
    g.fillText(look.mark, LABEL_PX + row.endX + 4, y);
  }
}

function clip(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let n = Math.min(text.length, 40);
  while (n > 1 && g.measureText(`${text.slice(0, n)}…`).width > width) n -= 1;
  return `${text.slice(0, n)}…`;
}

export class Timeline {
  /** @param {() => number} clockNow the kernel's clock, Unix seconds */
  constructor(clockNow) {
    this.clockNow = clockNow;
    this.index = new SignalIndex();
    /** @type {{t0: number, t1: number}|null} null follows the whole span */
    this.window = null;
    this.state = null;
    this.canvas = h("canvas", { class: "ln-canvas", role: "img", tabindex: 0, "aria-label": "timeline of turns" });
    this.spacer = h("div", { class: "ln-spacer" }, this.canvas);
    this.scroll = h("div", { class: "ln-lanes" }, this.spacer);
    this.caption = h("span", { class: "ln-dim" });
    this.readout = h("div", { class: "ln-readout" });
    const tools = h("span", { class: "ln-tools" },
      button("−", () => this.zoom(2), { title: "zoom out (−)", "aria-label": "zoom out" }),
      button("+", () => this.zoom(0.5), { title: "zoom in (+), or Ctrl+wheel", "aria-label": "zoom in" }),
      button("Fit", () => this.fit(), { title: "show everything, and follow (0)" }));
    this.el = h("section", { class: "ln-timeline", "aria-label": "timeline" },
      h("div", { class: "ln-caption" }, "Timeline", this.caption, tools), this.scroll, this.readout);
    this.wire();
  }

  wire() {
    const on = (/** @type {string} */ name, /** @type {(e: any) => void} */ fn, passive = true) => this.canvas.addEventListener(name, fn, { passive });
    on("wheel", (e) => { if (e.ctrlKey || e.metaKey) { e.preventDefault(); this.zoom(e.deltaY > 0 ? 1.25 : 0.8, e.offsetX); } }, false);
    on("keydown", (e) => this.key(e), false);
    on("pointerdown", (e) => { this.drag = { x: e.offsetX, ...this.range() }; this.canvas.setPointerCapture(e.pointerId); });
    on("pointerup", () => { this.drag = null; });
    on("pointermove", (e) => (this.drag ? this.pan(this.drag, e.offsetX) : this.point(e.offsetX, e.offsetY)));
    on("pointerleave", () => setText(this.readout, ""));
    this.scroll.addEventListener("scroll", () => this.redraw(), { passive: true });
  }

  key(e) {
    const { t0, t1 } = this.range(), step = (t1 - t0) / 8;
    if (e.key === "ArrowLeft") this.set(t0 - step, t1 - step);
    else if (e.key === "ArrowRight") this.set(t0 + step, t1 + step);
    else if (e.key === "+" || e.key === "=") this.zoom(0.5);
    else if (e.key === "-") this.zoom(2);
    else if (e.key === "0") this.fit();
    else return;
    e.preventDefault();
    e.stopPropagation();
  }

  range() {
    return this.window ?? span(this.state, this.clockNow());
  }

  get width() {
    return Math.max(50, this.scroll.clientWidth - LABEL_PX - 18);
  }

  zoom(factor, offset) {
    const { t0, t1 } = this.range();
    const share = offset === undefined ? 0.5 : Math.min(1, Math.max(0, (offset - LABEL_PX) / this.width));
    const wide = Math.max(LEAST_SPAN_S, (t1 - t0) * factor), mid = t0 + (t1 - t0) * share;
    this.set(mid - wide * share, mid + wide * (1 - share));
  }

  pan(from, offset) {
    const shift = ((from.x - offset) / this.width) * (from.t1 - from.t0);
    if (Math.abs(from.x - offset) > 2) this.set(from.t0 + shift, from.t1 + shift);
  }

  set(t0, t1) {
    this.window = { t0, t1 };
    this.redraw();
  }

  fit() {
    this.window = null;
    this.redraw();
  }

  /* Says what is under the pointer. */
  point(offsetX, offsetY) {
    const items = this.state.lanes.items, r = Math.floor((offsetY + this.scroll.scrollTop) / ROW_PX);
    const lane = items[items.length - 1 - r];
    if (!lane || offsetX < LABEL_PX) return setText(this.readout, "");
    const { t0, t1 } = this.range(), perPixel = (t1 - t0) / this.width, t = t0 + (offsetX - LABEL_PX) * perPixel;
    const near = this.index.near(this.state.lanes.first + items.length - 1 - r, t, 4 * perPixel);
    const what = near ? near.names.join(", ") + (near.n > near.names.length ? ` and ${near.n - near.names.length} more` : "") : lane.outcome ?? "";
    const took = lane.start_at !== null && lane.end_at !== null ? `took ${duration(lane.end_at - lane.start_at)}` : "";
    setText(this.readout, [clock(near ? near.at : t, true), `turn ${short(lane.turn)}`, lane.operation, took, what].filter(Boolean).join(" · "));
  }

  /** @param {any} state @param {boolean} anew forget what was indexed */
  update(state, anew) {
    if (anew) this.index = new SignalIndex();
    this.state = state;
    this.el.hidden = state.lanes.first + state.lanes.items.length === 0;
    this.index.update(state.signals);
    const turns = state.lanes.first + state.lanes.items.length, signals = state.signals.first + state.signals.items.length;
    const kept = state.signals.first || state.lanes.first ? ` (the newest ${count(state.signals.items.length)} signals of ${plural(state.lanes.items.length, "turn")} are kept)` : "";
    const outside = this.index.lane(-1), loose = outside ? outside.at.length - outside.start : 0;
    const told = signals ? `, ${plural(signals, "signal")}${loose ? `, ${count(loose)} of them outside any turn in sight` : ""}` : "";
    const words = `${plural(turns, "turn")}${told}${kept}`;
    setText(this.caption, ` ${words}`);
    this.canvas.setAttribute("aria-label", `timeline of turns: ${words}. Arrow keys move, plus and minus zoom, 0 shows everything.`);
    this.redraw();
  }

  redraw() {
    const state = this.state, wide = this.scroll.clientWidth;
    if (!state || wide === 0) return;
    const shown = Math.max(1, Math.min(ROWS_SHOWN, state.lanes.items.length));
    const height = shown * ROW_PX + AXIS_PX, ratio = globalThis.devicePixelRatio || 1;
    this.scroll.style.height = `${height}px`;
    this.spacer.style.height = `${Math.max(1, state.lanes.items.length) * ROW_PX + AXIS_PX}px`;
    const w = Math.round(wide * ratio), hh = Math.round(height * ratio);
    if (this.canvas.width !== w || this.canvas.height !== hh) {
      Object.assign(this.canvas, { width: w, height: hh });
      Object.assign(this.canvas.style, { width: `${wide}px`, height: `${height}px` });
    }
    const g = this.canvas.getContext("2d");
    if (!g) return;
    const { t0, t1 } = this.range(), top = this.scroll.scrollTop;
    const plan = layout(state, this.index, { t0, t1, width: this.width, top, height: shown * ROW_PX, now: this.clockNow() });
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw(g, plan, this.ink(), { width: wide, height, top, font: this.font });
  }

  /* Read anew each time: a notebook's theme can change under a view. */
  ink() {
    const style = getComputedStyle(this.el), of = (/** @type {string} */ name) => style.getPropertyValue(`--ln-ink-${name}`).trim() || style.color;
    this.font = `11px ${style.fontFamily || "sans-serif"}`;
    const ink = { text: style.color, font: this.font };
    for (const name of ["dim", "grid", "wait", "bar", "mark", "move", "good", "bad", "warn"]) ink[name] = of(name);
    return ink;
  }
}
