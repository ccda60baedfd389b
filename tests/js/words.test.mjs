import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { acknowledge, dismiss, newDesk, note, record, sentLine, tidy } from "../../lionnb/widgets/static/desk.js";
import { CHIPS, count, counting, cutNote, duration, outcomeMark, tokens } from "../../lionnb/widgets/static/format.js";
import { budget, headline, silence } from "../../lionnb/widgets/static/header.js";
import { steerLine } from "../../lionnb/widgets/static/panel.js";
import { awaited, firstLine } from "../../lionnb/widgets/static/transcript.js";

const scene = (name) => JSON.parse(readFileSync(new URL(`./fixtures/${name}.json`, import.meta.url), "utf8")).state;
const T0 = 1764511200;

// ------------------------------------------------------------------ format
test("durations are short and never negative or NaN", () => {
  assert.deepEqual([0.04, 9.94, 42.4, 59.6, 190, 3723, -3, null, NaN].map(duration), ["0.0 s", "9.9 s", "42 s", "1:00", "3:10", "1:02:03", "0.0 s", "–", "–"]);
  assert.deepEqual([0.9, 59.9, 60].map(counting), ["0 s", "59 s", "1:00"]);
});

test("unknown is not zero", () => {
  assert.equal(count(null), "?");
  assert.equal(tokens(null, null), "");
  assert.equal(tokens(1200, null), "1,200 in / ? out");
  assert.equal(cutNote(0), "");
  assert.equal(cutNote(1), "… 1 more character not shown");
});

test("no two chips and no two outcomes share both mark and tone, and each chip has a mark of its own", () => {
  assert.equal(new Set(Object.values(CHIPS).map((c) => c.mark)).size, Object.keys(CHIPS).length);
  assert.notEqual(outcomeMark("completed").mark, outcomeMark("failed").mark);
  assert.equal(CHIPS["__proto__"] ?? CHIPS["constructor"], undefined);
});

// ------------------------------------------------------------------ head
test("the head tells turn, phase, model, age, waiters, budget and who is needed", () => {
  const head = headline(scene("working_leg"), T0 + 27);
  assert.equal(head.title, "survey");
  assert.equal(head.status.word, "running");
  assert.match(head.lead, /^turn a1b2c3d4 · operate · gpt-4\.1-mini · active · \d+ s$/);
  assert.match(head.waits[0].text, /^communicate \(Task-41\) waits \d+ s$/);
  assert.equal(head.waits[0].behind, "turn a1b2c3d4 (operate, active)");
  assert.equal(head.budget.text, "9:33 of 10:00 left");
  assert.equal(head.needsYou, 1);
});

test("an idle Branch whose last turn failed says so first", () => {
  assert.equal(headline(scene("failed_turn"), T0).status.word, "idle, the last turn failed");
});

test("a budget that is used up says what that means, and an ended leg has no bar", () => {
  const run = { status: "running", started_at: 0, deadline_at: 100, timeout_s: 100 };
  assert.deepEqual([budget(run, 50).share, budget(run, 50).tone], [0.5, "move"]);
  assert.equal(budget(run, 90).tone, "warn");
  assert.match(budget(run, 101).text, /used up: no new provider work starts/);
  assert.equal(budget({ ...run, status: "completed" }, 50).running, false);
  assert.equal(budget({ ...run, deadline_at: null }, 50), null);
});

// ------------------------------------------------------------------ is the kernel there
test("silence is named after three missed heartbeats, with since when; an idle view expects none", () => {
  const pulse = { beatAt: 10_000, answerAt: 0, nextMs: 2000 };
  assert.equal(silence(pulse, true, 15_000), "");
  assert.match(silence(pulse, true, 11_000, true), /^The kernel of this view is gone/);
  assert.match(silence(pulse, true, 24_000), /^No sign of life from the kernel for 14 s \(since .*\): a cell keeps it busy, or it is gone/);
  assert.equal(silence(pulse, false, 99_000), "");
  assert.equal(silence({ ...pulse, nextMs: null }, true, 99_000), "");
});

test("a kernel that answers and does not beat is busy, not gone", () => {
  assert.match(silence({ beatAt: 10_000, answerAt: 12_000, nextMs: 2000 }, true, 30_000), /busy with a cell for 20 s/);
});

// ------------------------------------------------------------------ transcript
test("what is awaited is named: the provider, a tool, the finalization; nothing while text comes", () => {
  const state = scene("working_leg"), quiet = state.turn.quiet_at;
  assert.equal(awaited(state, quiet + 0.5), "");
  assert.equal(awaited(state, quiet + 42), "waiting for the provider, 42 s");
  state.tools = [["t", state.entries.items.find((e) => e.kind === "tool").k]];
  assert.match(awaited(state, quiet + 42), /^search is running, \d+ s$/);
  state.turn.phase = "finalizing";
  assert.equal(awaited(state, quiet + 5), "turn a1b2c3d4 is finalizing, 5 s");
  assert.equal(awaited({ ...state, turn: null }, quiet), "");
});

test("a folded text shows its first line, cut", () => {
  assert.equal(firstLine("\n  one\ntwo"), "one");
  assert.equal(firstLine("x".repeat(9999)).length, 301);
});

// ------------------------------------------------------------------ steers
test("a steer's line has its sentence, age, owner and turn", () => {
  const s = { sentence: "applied in turn 9", chip: "applied", created_at: 10, created_by: "ada", closed_at: 15, handed_over_at: 14, turn_id: "0123456789", note: null };
  assert.equal(steerLine(s, 99), "applied in turn 9 · settled after 5 s by ada · turn 01234567");
  assert.equal(steerLine({ ...s, chip: "queued", sentence: "queued: lands next", closed_at: null, turn_id: null }, 12), "lands next · 2 s old by ada");
  assert.doesNotMatch(steerLine({ ...s, sentence: "applied in turn 01234567" }, 99), /· turn/);
  assert.equal(steerLine({ ...s, chip: "delivering", closed_at: null, turn_id: null, sentence: "held" }, 74), "held · handed over 1:00 ago · 1:04 old by ada");
});

// ------------------------------------------------------------------ the desk
const MESSAGE = { intent: "steer", text: "hello", key: "k" };

test("a send is not a receipt: it reads not yet recorded until the kernel answers", () => {
  const desk = newDesk(100), sent = record(desk, MESSAGE, "hello", 0);
  assert.deepEqual(sent, { ...MESSAGE, n: 100 });
  assert.equal(sentLine(desk.sent[0], 500), "sent, not yet recorded");
  assert.equal(sentLine(desk.sent[0], 12_000), "sent, not yet recorded for 12 s: no answer from the kernel yet");
  tidy(desk, { steers: { items: [] } }, 1e9);
  assert.equal(desk.sent.length, 1);
  acknowledge(desk, { ack: 100, ok: true, sentence: "recorded: lands at the end of the turn", control_id: "c1" }, 20);
  assert.equal(sentLine(desk.sent[0], 30), "recorded: lands at the end of the turn");
});

test("a refused text goes back into an empty box, and beside a box in use", () => {
  const desk = newDesk(0);
  record(desk, MESSAGE, "hello", 0);
  acknowledge(desk, { ack: 0, ok: false, sentence: "refused: the leg has ended" }, 1);
  assert.equal(desk.draft, "hello");
  record(desk, { ...MESSAGE, text: "second" }, "second", 2);
  acknowledge(desk, { ack: 1, ok: false, sentence: "refused" }, 3);
  assert.equal(desk.draft, "hello");
  tidy(desk, { steers: { items: [] } }, 1e9);
  assert.deepEqual(desk.sent.map((s) => s.message.text), ["hello", "second"]);
  dismiss(desk, desk.sent[0]);
  assert.equal(desk.sent.length, 1);
});

test("a refusal that is told twice puts the text back once", () => {
  const desk = newDesk(0);
  record(desk, MESSAGE, "hello", 0);
  acknowledge(desk, { ack: 0, ok: false, sentence: "no" }, 1);
  desk.draft = "";
  acknowledge(desk, { ack: 0, ok: false, sentence: "no" }, 2);
  assert.equal(desk.draft, "");
});

test("a recorded steer leaves the desk when the list shows it; an answer for nobody is ignored", () => {
  const desk = newDesk(0);
  record(desk, MESSAGE, "hello", 0);
  assert.equal(acknowledge(desk, { ack: 77, ok: true }, 1), null);
  acknowledge(desk, { ack: 0, ok: true, sentence: "recorded", control_id: "c1" }, 1);
  assert.equal(tidy(desk, { steers: { items: [] } }, 1e9), false, "a busy kernel may take minutes to list it");
  assert.equal(tidy(desk, { steers: { items: [{ control_id: "c1" }] } }, 3), true);
  assert.equal(desk.sent.length, 0);
});

test("notices are bounded", () => {
  const desk = newDesk(0);
  for (let i = 0; i < 50; i++) note(desk, String(i));
  assert.deepEqual(desk.notes, ["45", "46", "47", "48", "49"]);
});
