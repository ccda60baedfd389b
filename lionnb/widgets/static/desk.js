// @ts-check
/* What was sent from this page and what is known of it. Pure: time and chance are arguments.

   A send is never taken for a receipt: until the kernel answers it reads "sent, not yet recorded". A refused text goes back
   into the box, or stays beside it when the box is in use. All displays of one view in a page share one desk. */

/** @typedef {{n: number, intent: string, label: string, message: any, at: number, status: "sent"|"ok"|"refused",
 *   sentence: string, control: string|null, doneAt: number}} Sent */
/** @typedef {{draft: string, next: number, sent: Sent[], notes: string[], listeners: Set<() => void>,
 *   typing: any}} Desk  typing: the box that has the keyboard, in whichever display */

const KEEP_OK_MS = 8000, KEEP_NOTES = 5;

/** @param {number} base where this page's numbers begin: random, so that the answers of two pages never meet
 * @returns {Desk} */
export function newDesk(base) {
  return { draft: "", next: base, sent: [], notes: [], listeners: new Set(), typing: null };
}

/** Note a message and return it with its number. @param {Desk} desk @param {any} message @param {string} label
 * @param {number} at ms */
export function record(desk, message, label, at) {
  const whole = { ...message, n: desk.next++ };
  desk.sent.push({
    n: whole.n, intent: whole.intent, label, message: whole, at, status: "sent", sentence: "", control: null, doneAt: 0,
  });
  return whole;
}

/** The kernel answered. @param {Desk} desk @param {any} ack @param {number} at ms @returns {Sent|null} */
export function acknowledge(desk, ack, at) {
  const item = desk.sent.find((s) => s.n === ack.ack);
  if (!item) return null;
  const before = item.status;
  Object.assign(item, {
    status: ack.ok ? "ok" : "refused", sentence: String(ack.sentence ?? ""), control: ack.control_id ?? null, doneAt: at,
  });
  if (item.status === "refused" && before === "sent" && item.intent === "steer" && desk.draft.trim() === "") {
    desk.draft = item.message.text;
  }
  return item;
}

/** Drop what is told elsewhere: a recorded steer once the list shows it (a busy kernel may take minutes), an order that was
 * carried out a while ago.
 * @param {Desk} desk @param {any} state @param {number} now ms @returns {boolean} whether something went */
export function tidy(desk, state, now) {
  const listed = (/** @type {string|null} */ id) => id !== null && state.steers.items.some((s) => s.control_id === id);
  const untold = (/** @type {Sent} */ s) => !listed(s.control) && ((s.intent === "steer" && s.control !== null) || now - s.doneAt < KEEP_OK_MS);
  const kept = desk.sent.filter((s) => s.status !== "ok" || untold(s));
  const gone = kept.length !== desk.sent.length;
  desk.sent = kept;
  return gone;
}

/** @param {Desk} desk @param {Sent} item */
export function dismiss(desk, item) {
  desk.sent = desk.sent.filter((s) => s !== item);
}

/** @param {Desk} desk @param {string} text */
export function note(desk, text) {
  desk.notes = [...desk.notes, text].slice(-KEEP_NOTES);
}

/** One line about a message that was sent. @param {Sent} item @param {number} now ms */
export function sentLine(item, now) {
  if (item.status !== "sent") return item.sentence;
  const age = Math.floor((now - item.at) / 1000);
  const what = item.intent === "steer" ? "sent, not yet recorded" : "sent, not yet answered";
  return age < 2 ? what : `${what} for ${age} s: no answer from the kernel yet`;
}
