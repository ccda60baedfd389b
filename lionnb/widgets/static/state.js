// @ts-check
/* What a view knows, and the function that adds an event to it. Pure: no clock, no DOM.

   The same function as lionnb/widgets/state.py, in the browser's language: a page starts from the kernel's copy and must
   stay equal to it after every event (a differential test feeds random events to both). Whoever changes one changes the
   other. The object is changed in place and bounded; `first` of a list is how many fell out at the old end. */

import { addLane, busy, entryOf, laneAt, laneOf, push, resize, still, takeWaiter } from "./lists.js";

/** @typedef {{at: number, kind: string, turn: string|null, size: number, data: any}} WireEvent */
/** @typedef {any} State  see `fresh` in state.py */
/** @typedef {{entries: Set<number>, steers: Set<string>, kinds: Set<string>}} Touched  what has to be drawn again */

const LANDED = ["delivering", "applied", "resolved", "never_reported"];

/** @returns {Touched} */
export function untouched() {
  return { entries: new Set(), steers: new Set(), kinds: new Set() };
}

/** Add one event. @param {State} state @param {WireEvent} event @param {Touched} [touched] @returns {Touched} */
export function reduce(state, event, touched = untouched()) {
  state.n += 1;
  state.at = Math.max(state.at, event.at);
  touched.kinds.add(event.kind);
  const on = Object.hasOwn(ON, event.kind) ? ON[event.kind] : null;
  if (on) on(state, event, event.data, touched);
  return touched;
}

/** Whether something goes on in it: a turn, a wait, or a leg that runs. @param {State} state */
export function isLive(state) {
  return state.turn !== null || state.waiters.length > 0 || (state.run !== null && state.run.status === "running");
}

const ON = {
  wait(state, event, data) {
    const lane = addLane(state, event.turn, data.operation, event.at, null);
    state.waiters.push({ turn: event.turn, at: event.at, lane, ...data });
    if (state.waiters.length > state.limits.waiters) state.waiters.shift();
  },

  start(state, event, data, touched) {
    const { at, turn } = event;
    const waiter = takeWaiter(state, turn, data);
    const lane = waiter === null ? null : laneAt(state, waiter.lane);
    if (lane === null) addLane(state, turn, data.operation, at - (data.waited_s || 0), at);
    else { lane.turn = turn; lane.start_at = at; }
    const { operation, model, waited_s } = data;
    push(state, { ...event, size: 0 }, "start", touched, { operation, model, waited_s });
    let asked = null;
    if (data.instruction) {
      const text = { text: data.instruction, cut: data.instruction_cut, id: null };
      asked = push(state, event, "text", touched, { role: "user", live: false, ...text });
    }
    state.turn = {
      id: turn, operation, model, phase: "active", started_at: at, waited_s, quiet_at: at, outcome: null, asked,
    };
  },

  phase(state, event, data) {
    const turn = state.turn;
    if (turn !== null && turn.id === event.turn) {
      turn.phase = data.phase;
      if (data.phase === "closed") state.turn = null;
    }
    const lane = laneAt(state, laneOf(state, event.turn));
    if (lane && data.phase === "finalizing") lane.fin_at = event.at;
  },

  end(state, event, data, touched) {
    const turn = event.turn;
    let lane;
    if (turn === null) { // a wait that never became a turn
      const waiter = takeWaiter(state, null, data);
      lane = waiter === null ? null : laneAt(state, waiter.lane);
    } else {
      lane = laneAt(state, laneOf(state, turn));
      if (state.turn !== null && state.turn.id === turn) state.turn = null;
      still(state, turn, touched);
      state.tools = [];
    }
    if (lane) { lane.end_at = event.at; lane.outcome = data.outcome; }
    for (const key of ["input", "output"]) {
      const spent = data[`${key}_tokens`];
      if (spent !== null) state.tokens[key] = (state.tokens[key] || 0) + spent;
    }
    const { outcome, operation, error, error_cut, duration_s, input_tokens, output_tokens } = data;
    push(state, event, "end", touched, {
      outcome, operation, error, error_cut, duration_s, input_tokens, output_tokens,
    });
  },

  text(state, event, data, touched) {
    busy(state, event);
    const turn = state.turn;
    let item = null;
    if (data.role === "assistant") {
      item = entryOf(state, state.live);
      if (item !== null && item.turn === event.turn) state.live = null;
      else item = null;
    } else if (data.role === "user" && turn !== null && turn.id === event.turn) {
      const asked = entryOf(state, turn.asked);
      turn.asked = null;
      if (asked !== null && data.text.includes(asked.text)) item = asked;
    }
    if (item === null) {
      const text = { text: data.text, cut: data.text_cut, id: data.id };
      push(state, event, "text", touched, { role: data.role, live: false, ...text });
      return;
    }
    delete item.pieces;
    Object.assign(item, { text: data.text, cut: data.text_cut, id: data.id, live: false });
    resize(state, item, event.size);
    touched.entries.add(item.k);
  },

  chunk(state, event, data, touched) {
    busy(state, event);
    let item = entryOf(state, state.live);
    if (item === null || item.turn !== event.turn) {
      if (item !== null) still(state, item.turn, touched);
      const text = { text: "", cut: 0, id: null, pieces: [] };
      const k = push(state, { ...event, size: 0 }, "text", touched, { role: "assistant", live: true, ...text });
      state.live = k;
      item = entryOf(state, k);
    }
    item.pieces.push([event.size, data.text]);
    item.cut += data.text_cut;
    let size = item.size + event.size;
    while (size > state.limits.live && item.pieces.length > 1) {
      const gone = item.pieces.shift()[0];
      size -= gone;
      item.cut += gone;
    }
    resize(state, item, size);
    touched.entries.add(item.k);
  },

  tool_call(state, event, data, touched) {
    busy(state, event);
    const call = { call: data.id, name: data.name, args: data.arguments, args_cut: data.arguments_cut };
    const open = { done_at: null, output: null, output_cut: 0, error: null, error_cut: 0 };
    state.tools.push([data.id, push(state, event, "tool", touched, { ...call, ...open })]);
    if (state.tools.length > state.limits.tools) state.tools.shift();
  },

  tool_result(state, event, data, touched) {
    busy(state, event);
    let item = null;
    const i = state.tools.findIndex(([call]) => call === data.id);
    if (i >= 0) item = entryOf(state, state.tools.splice(i, 1)[0][1]);
    if (item === null) {
      const call = { call: data.id, name: data.name, args: null, args_cut: 0 };
      item = entryOf(state, push(state, { ...event, size: 0 }, "tool", touched, call));
    }
    const { output, output_cut, error, error_cut } = data;
    Object.assign(item, { done_at: event.at, output, output_cut, error, error_cut });
    resize(state, item, item.size + event.size);
    touched.entries.add(item.k);
  },

  blocks(state, event, data) {
    const before = state.blocks;
    const gather = before !== null && before.turn === event.turn ? before.gather + 1 : 1;
    state.blocks = { turn: event.turn, at: event.at, gather, ...data };
  },

  control(state, event, data, touched) {
    const item = entryOf(state, state.control);
    if (item !== null && item.turn === event.turn && ["taken", "not consumed"].includes(data.fate)) {
      item.fate = data.fate;
      state.control = null;
      touched.entries.add(item.k);
      return;
    }
    const k = push(state, event, "control", touched, data);
    if (data.fate === "stored") state.control = k;
  },

  signal(state, event, data) {
    const signals = state.signals, limit = state.limits.signals;
    signals.items.push([event.at, laneOf(state, event.turn), data.name]);
    const extra = signals.items.length - limit;
    if (extra > Math.floor(limit / 8)) { signals.items.splice(0, extra); signals.first += extra; }
  },

  warning(state, event, data, touched) {
    push(state, event, "warning", touched, { text: data.text, cut: data.text_cut });
  },

  line(state, event, data, touched) {
    push(state, event, "line", touched, { name: data.name, text: data.text, cut: data.text_cut });
  },

  steer(state, event, data, touched) {
    const steers = state.steers;
    let steer = data.control_id === null ? undefined : steers.items.findLast((s) => s.control_id === data.control_id);
    if (steer === undefined) {
      steer = { key: data.control_id || `refused-${state.n}`, entry: null };
      steers.items.push(steer);
      if (steers.items.length > state.limits.steers) { steers.items.shift(); steers.first += 1; }
    }
    Object.assign(steer, data);
    touched.steers.add(steer.key);
    const { control_id, text, text_cut, chip, sentence, created_by } = data;
    const shown = { control_id, text, text_cut, chip, sentence, created_by };
    const item = entryOf(state, steer.entry);
    if (item !== null) { Object.assign(item, shown); touched.entries.add(item.k); }
    else if (LANDED.includes(data.fate) && steer.entry === null) {
      steer.entry = push(state, event, "steer", touched, shown);
    }
  },

  leg(state, event, data, touched) {
    const before = state.run;
    state.run = data;
    if (data.status !== "running" && (before === null || before.status !== data.status)) {
      push(state, event, "leg", touched, { status: data.status, sentence: data.sentence });
    }
  },

  beat(state, event, data) {
    state.beat = { at: event.at, text: data.text };
  },
};
