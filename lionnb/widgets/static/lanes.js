// @ts-check
/* Where everything in the timeline goes. Pure: no canvas, no clock.

   Signals are indexed by lane as they come, in order of time. A draw asks each visible lane for one mark per pixel and jumps
   over what lies on the same pixel by binary search, so its cost is pixels times log(signals): adding to 100,000 costs the
   same as adding to ten. */

export const ROW_PX = 20, AXIS_PX = 18;

/** The first index whose value is not below x. @param {number[]} sorted @param {number} x @param {number} [from] */
export function lowerBound(sorted, x, from = 0) {
  let lo = from, hi = sorted.length;
  while (lo < hi) {
    const mid = (lo + hi) >> 1;
    if (sorted[mid] < x) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

export class SignalIndex {
  constructor() {
    /** @type {Map<number, {at: number[], no: number[], name: string[], start: number}>} */
    this.lanes = new Map();
    this.next = 0; // number of the next signal to take in
    this.first = 0; // number of the oldest one kept
  }

  /** Take in what is new, forget what has fallen out. @param {{first: number, items: any[]}} signals */
  update(signals) {
    this.next = Math.max(this.next, signals.first);
    this.first = signals.first;
    for (; this.next < signals.first + signals.items.length; this.next++) {
      const [at, no, name] = signals.items[this.next - signals.first];
      let lane = this.lanes.get(no);
      if (!lane) this.lanes.set(no, (lane = { at: [], no: [], name: [], start: 0 }));
      // A wall clock may be set back; the order within a lane is the feed's.
      lane.at.push(lane.at.length ? Math.max(at, lane.at[lane.at.length - 1]) : at);
      lane.no.push(this.next);
      lane.name.push(name);
    }
  }

  /** A lane's signals without those that fell out. @param {number} no */
  lane(no) {
    const lane = this.lanes.get(no);
    if (!lane) return null;
    lane.start = lowerBound(lane.no, this.first, lane.start);
    if (lane.start > 1024 && lane.start > lane.at.length / 2) {
      for (const list of [lane.at, lane.no, lane.name]) list.splice(0, lane.start);
      lane.start = 0;
    }
    return lane;
  }

  /** One mark per pixel. @param {number} no @param {number} t0 @param {number} t1 @param {number} width
   * @returns {{x: number, n: number}[]} n signals share the pixel */
  marks(no, t0, t1, width) {
    const lane = this.lane(no), out = [];
    if (!lane || !(t1 > t0)) return out;
    const perPixel = (t1 - t0) / width, { at } = lane;
    for (let i = lowerBound(at, t0, lane.start); i < at.length && at[i] <= t1;) {
      const x = Math.min(width - 1, Math.floor((at[i] - t0) / perPixel));
      const next = Math.max(i + 1, lowerBound(at, t0 + (x + 1) * perPixel, i));
      out.push({ x, n: next - i });
      i = next;
    }
    return out;
  }

  /** The signals near an instant. @param {number} no @param {number} t @param {number} slack seconds */
  near(no, t, slack) {
    const lane = this.lane(no);
    if (!lane) return null;
    const i = lowerBound(lane.at, t - slack, lane.start), j = lowerBound(lane.at, t + slack, i);
    return j > i ? { at: lane.at[i], names: lane.name.slice(i, Math.min(j, i + 4)), n: j - i } : null;
  }
}

/** The whole span of time that the lanes cover. @param {any} state @param {number} now */
export function span(state, now) {
  const lanes = state.lanes.items;
  if (!lanes.length) return { t0: now - 10, t1: now };
  const t0 = lanes[0].wait_at;
  const open = lanes.some((/** @type {any} */ l) => l.end_at === null && (l.start_at === null || l === lanes[lanes.length - 1]));
  const t1 = open ? now : Math.max(state.at, ...lanes.slice(-20).map((/** @type {any} */ l) => l.end_at ?? 0));
  return { t0, t1: Math.max(t1, t0 + 1) };
}

/** Round steps on the axis: 1, 2, 5 in seconds, then minutes and hours. @param {number} t0 @param {number} t1
 * @param {number} width @returns {{x: number, t: number, fine: boolean}[]} */
export function ticks(t0, t1, width) {
  const least = ((t1 - t0) * 90) / Math.max(width, 1);
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];
  const step = steps.find((s) => s >= least) ?? Math.ceil(least / 86400) * 86400;
  const out = [];
  for (let i = Math.ceil(t0 / step); i * step <= t1 && out.length < 200; i++) {
    out.push({ x: ((i * step - t0) / (t1 - t0)) * width, t: i * step, fine: step < 1 });
  }
  return out;
}

/** Where everything goes. @param {any} state @param {SignalIndex} index
 * @param {{t0: number, t1: number, width: number, top: number, height: number, now: number}} view `top` is scrolled away */
export function layout(state, index, view) {
  const { t0, t1, width, now } = view, { first, items } = state.lanes;
  const x = (/** @type {number} */ t) => Math.min(width, Math.max(0, ((t - t0) / (t1 - t0)) * width));
  const from = Math.max(0, Math.floor(view.top / ROW_PX));
  const to = Math.min(items.length, Math.ceil((view.top + view.height) / ROW_PX));
  const rows = [];
  for (let r = from; r < to; r++) {
    const i = items.length - 1 - r, lane = items[i]; // the newest on top
    const end = lane.end_at ?? now, active = lane.start_at ?? end, fin = lane.fin_at ?? end;
    const bars = [];
    const bar = (/** @type {string} */ kind, /** @type {number} */ a, /** @type {number} */ b) => {
      if (b >= t0 && a <= t1 && b >= a) bars.push({ kind, x: x(a), w: Math.max(1, x(b) - x(a)) });
    };
    if (active > lane.wait_at) bar("waiting", lane.wait_at, active);
    if (lane.start_at !== null) bar("active", active, fin);
    if (lane.fin_at !== null) bar("finalizing", fin, end);
    const seen = end >= t0 && end <= t1;
    rows.push({
      no: first + i, y: r * ROW_PX, lane, bars, marks: index.marks(first + i, t0, t1, Math.floor(width)),
      endX: lane.end_at !== null && seen ? x(end) : null,
    });
  }
  return { rows, ticks: ticks(t0, t1, width), nowX: now >= t0 && now <= t1 ? x(now) : null };
}
