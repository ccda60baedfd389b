// What a page knows about a kernel that is gone, or busy.

import assert from "node:assert/strict";
import { test } from "node:test";

import { acknowledge, newDesk, record, tidy } from "../../lionnb/widgets/static/desk.js";
import { silence } from "../../lionnb/widgets/static/header.js";

const NOTHING = { steers: { items: [] } };

test("a kernel that is gone is said to be gone at once, if anything was going on", () => {
  const pulse = { beatAt: 1000, answerAt: 0, nextMs: 2000 };
  assert.equal(silence(pulse, true, 1100, false), "");
  assert.match(silence(pulse, true, 1100, true), /^The kernel of this view is gone/);
  assert.equal(silence(pulse, false, 1100, true), "");
});

test("a recorded steer stays with the sender until the list shows it, however long the kernel is busy", () => {
  const desk = newDesk(0);
  record(desk, { intent: "steer", text: "hello", key: "k" }, "hello", 0);
  acknowledge(desk, { ack: 0, ok: true, sentence: "queued", control_id: "c1" }, 10);
  tidy(desk, NOTHING, 1e9);
  assert.equal(desk.sent.length, 1);
  tidy(desk, { steers: { items: [{ control_id: "c1" }] } }, 1e9);
  assert.equal(desk.sent.length, 0);
});

test("an order that was carried out goes after a while", () => {
  const desk = newDesk(0);
  record(desk, { intent: "withdraw", control_id: "c1" }, "Withdraw", 0);
  acknowledge(desk, { ack: 0, ok: true, sentence: "withdrawn" }, 10);
  tidy(desk, NOTHING, 1000);
  assert.equal(desk.sent.length, 1);
  tidy(desk, NOTHING, 1e6);
  assert.equal(desk.sent.length, 0);
});

test("a loop that stands still is said as the kernel says it, and counts on until the loop is heard or nothing is", () => {
  const starved = { at: 1_000_000, heardAt: 1_057_000, by: "a cell" };
  const pulse = { beatAt: 1_000_000, answerAt: 0, nextMs: 2000, starved };
  assert.equal(silence(pulse, true, 1_058_000, false),
    "Starved 58 s by a cell: the leg stands still until the loop is free. Steers are recorded all the same.");
  assert.match(silence(pulse, true, 1_064_000, false), /^No sign of life from the kernel for 1:04/);
  assert.equal(silence({ ...pulse, beatAt: 1_058_000, starved: null }, true, 1_058_500, false), "");
  assert.match(silence(pulse, true, 1_058_000, true), /^The kernel of this view is gone/);
});
