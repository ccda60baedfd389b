// @ts-check
/* Numbers and instants in words. Pure. */

const GROUPED = new Intl.NumberFormat("en-US");

/** A span of time, short: 0.8 s, 42 s, 3:10, 1:02:03.
 * @param {number|null|undefined} s seconds @returns {string} */
export function duration(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  if (s < 0) s = 0;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 60) return `${whole} s`;
  const two = (/** @type {number} */ v) => String(v).padStart(2, "0");
  const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
  return h ? `${h}:${two(m)}:${two(whole % 60)}` : `${m}:${two(whole % 60)}`;
}

/** A whole number of seconds that counts up; calmer than tenths. @param {number} s @returns {string} */
export function counting(s) {
  return s < 60 ? `${Math.max(0, Math.floor(s))} s` : duration(Math.floor(s));
}

/** @param {number|null|undefined} n @returns {string} */
export function count(n) {
  return n === null || n === undefined ? "?" : GROUPED.format(n);
}

/** The wall clock of this browser. @param {number} at Unix seconds @param {boolean} [fine] with milliseconds */
export function clock(at, fine) {
  const d = new Date(at * 1000), two = (/** @type {number} */ v) => String(v).padStart(2, "0");
  const text = `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  return fine ? `${text}.${String(d.getMilliseconds()).padStart(3, "0")}` : text;
}

/** The first eight characters: enough to tell turns apart. @param {string|null|undefined} id */
export function short(id) {
  return id ? id.slice(0, 8) : "none";
}

/** @param {number} n @param {string} one @param {string} [many] */
export function plural(n, one, many) {
  return `${count(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;
}

/** What was cut from a text, in words; empty when nothing was. @param {number} n */
export function cutNote(n) {
  return n > 0 ? `… ${plural(n, "more character")} not shown` : "";
}

/** Tokens of a turn or of all turns. @param {number|null} input @param {number|null} output */
export function tokens(input, output) {
  if (input === null && output === null) return "";
  return `${count(input)} in / ${count(output)} out`;
}

/** The five words in the face of the user, each with a mark of its own: state is never told by colour alone.
 * @type {Record<string, {tone: string, mark: string}>} */
export const CHIPS = Object.freeze({
  __proto__: null,
  "queued": { tone: "wait", mark: "○" },
  "delivering": { tone: "move", mark: "◐" },
  "applied": { tone: "good", mark: "✓" },
  "not delivered": { tone: "bad", mark: "✕" },
  "needs you": { tone: "warn", mark: "!" },
  "sent": { tone: "wait", mark: "↑" },
});

/** How a turn, a wait or a leg ended. @param {string|null} outcome @returns {{tone: string, mark: string}} */
export function outcomeMark(outcome) {
  if (outcome === "completed") return { tone: "good", mark: "✓" };
  if (outcome === "failed" || outcome === "refused" || outcome === "lost") return { tone: "bad", mark: "✕" };
  if (outcome === "timed_out") return { tone: "bad", mark: "◔" };
  if (outcome === "running") return { tone: "move", mark: "▶" };
  return { tone: "warn", mark: "■" };
}
