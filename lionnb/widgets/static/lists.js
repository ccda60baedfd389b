// @ts-check
/* The bounded lists of a view's state, and what finds its way in them. Pure; see state.js. */

/** @typedef {any} State  see `fresh` in state.py */

/** Entry k; null when it has fallen out. @param {State} state @param {number|null} k */
export function entryOf(state, k) {
  return k === null || k < state.entries.first ? null : (state.entries.items[k - state.entries.first] ?? null);
}

/** Add an entry; returns its number. The oldest fall out. */
export function push(state, event, kind, touched, fields) {
  const entries = state.entries, limits = state.limits;
  const k = entries.first + entries.items.length;
  entries.items.push({ k, at: event.at, kind, turn: event.turn, size: event.size, ...fields });
  entries.text += event.size;
  touched.entries.add(k);
  while (entries.items.length > limits.entries || (entries.text > limits.text && entries.items.length > 1)) {
    entries.text -= entries.items.shift().size;
    entries.first += 1;
  }
  return k;
}

export function resize(state, item, size) {
  state.entries.text += size - item.size;
  item.size = size;
}

/** The number of the turn's lane; -1 when it has none (any more). @param {State} state @param {string|null} turn */
export function laneOf(state, turn) {
  const { first, items } = state.lanes;
  if (turn !== null) for (let i = items.length - 1; i >= 0; i--) if (items[i].turn === turn) return first + i;
  return -1;
}

export function laneAt(state, no) {
  return no >= state.lanes.first ? state.lanes.items[no - state.lanes.first] : null;
}

export function addLane(state, turn, operation, waitAt, startAt) {
  const lanes = state.lanes;
  lanes.items.push({ turn, operation, wait_at: waitAt, start_at: startAt, fin_at: null, end_at: null, outcome: null });
  if (lanes.items.length > state.limits.lanes) { lanes.items.shift(); lanes.first += 1; }
  return lanes.first + lanes.items.length - 1;
}

/* The feed names a waiter by its task at most. Waiters enter in arrival order, so the first that fits is the one. */
export function takeWaiter(state, turn, data) {
  const fits = (w) => {
    if (turn !== null && w.turn !== null) return w.turn === turn;
    if (data.task !== null && w.task !== null && data.task !== w.task) return false;
    return data.operation === null || data.operation === w.operation;
  };
  const i = state.waiters.findIndex(fits);
  return i < 0 ? null : state.waiters.splice(i, 1)[0];
}

/* The text that was coming will not come any further: what is there is a part. */
export function still(state, turn, touched) {
  const item = entryOf(state, state.live);
  if (item === null || item.turn !== turn) return;
  item.live = false;
  item.part = true;
  state.live = null;
  touched.entries.add(item.k);
}

export function busy(state, event) {
  if (state.turn !== null && state.turn.id === event.turn) state.turn.quiet_at = event.at;
}
