// @ts-check
/* The page's side of the stream: numbers tell what is missing, and nothing is added twice. Pure: time is an argument.

   A message may be lost around the creation of a view and at a reload. A gap is seen at the next batch, a lost tail at the
   next heartbeat; either makes the page ask `{since: n}`, again and again with growing pauses until something comes. */

import { reduce, untouched } from "./state.js";

const FIRST_RETRY_MS = 1000, LAST_RETRY_MS = 30000;

export class Sync {
  /** @param {any} state @param {(message: object) => void} send */
  constructor(state, send) {
    this.state = state;
    this.send = send;
    this.gaps = 0;
    /** @type {number|null} */
    this.askedAt = null;
    this.retry = FIRST_RETRY_MS;
  }

  /** Add what is new in a batch. @param {{i0: number, ev: any[]}} batch @param {number} now ms */
  batch(batch, now) {
    const touched = untouched(), have = this.state.n - batch.i0;
    if (have < 0) {
      this.gaps += 1;
      if (this.askedAt === null) this.ask(now);
      return touched;
    }
    for (let k = have; k < batch.ev.length; k++) reduce(this.state, batch.ev[k], touched);
    this.settled();
    return touched;
  }

  /** A heartbeat says how many events there are. @param {number} n @param {number} now ms */
  heard(n, now) {
    if (n > this.state.n && this.askedAt === null) this.ask(now);
  }

  /** Take a whole state if it knows more. @param {string} text JSON @returns {boolean} whether it was taken */
  adopt(text) {
    const given = JSON.parse(text);
    if (given.uid === this.state.uid && given.n <= this.state.n) return false;
    this.state = given;
    this.settled();
    return true;
  }

  /** Ask again if the answer is late. @param {number} now ms */
  tick(now) {
    if (this.askedAt !== null && now - this.askedAt >= this.retry) {
      this.retry = Math.min(this.retry * 2, LAST_RETRY_MS);
      this.ask(now);
    }
  }

  /** @param {number} now ms */
  ask(now) {
    this.askedAt = now;
    this.send({ since: this.state.n });
  }

  settled() {
    this.askedAt = null;
    this.retry = FIRST_RETRY_MS;
  }
}
