import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { isLive, reduce, untouched } from "../../lionnb/widgets/static/state.js";

const folder = new URL("./fixtures/", import.meta.url);
const event = (kind, turn, data, size = 0) => ({ at: 1, kind, turn, size, data });

for (const name of readdirSync(folder)) {
  test(`the scene ${name} leads to the state on file, which Python reaches too`, () => {
    const { start, events, state } = JSON.parse(readFileSync(new URL(name, folder), "utf8"));
    for (const e of events) reduce(start, e);
    assert.deepEqual(start, state);
  });
}

test("only what changed is named for drawing", () => {
  const { state } = JSON.parse(readFileSync(new URL("working_leg.json", folder), "utf8"));
  const touched = reduce(state, event("chunk", state.turn.id, { text: "x", text_cut: 0 }, 1), untouched());
  assert.deepEqual([...touched.entries], [state.live]);
  assert.equal(touched.steers.size, 0);
});

test("a kind from a newer kernel is counted and changes nothing else", () => {
  const { state } = JSON.parse(readFileSync(new URL("failed_turn.json", folder), "utf8"));
  const before = structuredClone(state);
  for (const kind of ["constructor", "__proto__", "toString", "new"]) reduce(state, event(kind, null, {}));
  assert.deepEqual({ ...state, n: before.n }, before);
  assert.equal(state.n, before.n + 4);
});

test("live means a turn, a wait or a running leg", () => {
  const idle = { turn: null, waiters: [], run: null };
  assert.equal(isLive(idle), false);
  assert.equal(isLive({ ...idle, run: { status: "completed" } }), false);
  assert.equal(isLive({ ...idle, run: { status: "running" } }), true);
  assert.equal(isLive({ ...idle, waiters: [{}] }), true);
});
