import assert from "node:assert/strict";
import { test } from "node:test";
import { layout, lowerBound, SignalIndex, span, ticks } from "../../lionnb/widgets/static/lanes.js";

const lane = (over) => ({ turn: "t", operation: "operate", wait_at: 0, start_at: 1, fin_at: 8, end_at: 9, outcome: "completed", ...over });
const stateOf = (lanes, signals = [], first = 0) => ({ at: 9, lanes: { first, items: lanes }, signals: { first: 0, items: signals } });
const VIEW = { t0: 0, t1: 10, width: 100, top: 0, height: 60, now: 10 };

/** The index, with each look at an instant counted. */
function counted(index) {
  let looks = 0;
  for (const one of index.lanes.values()) one.at = new Proxy(one.at, { get(list, key) { if (/^\d/.test(String(key))) looks++; return list[key]; } });
  return () => looks;
}

test("a turn is a wait, a bar and its finalization, in this order and without a hole", () => {
  const state = stateOf([lane()]), [row] = layout(state, new SignalIndex(), VIEW).rows;
  assert.deepEqual(row.bars, [{ kind: "waiting", x: 0, w: 10 }, { kind: "active", x: 10, w: 70 }, { kind: "finalizing", x: 80, w: 10 }]);
  assert.equal(row.endX, 90);
});

test("a turn that goes on ends now, and a wait that was cancelled has no bar", () => {
  const open = layout(stateOf([lane({ fin_at: null, end_at: null, outcome: null })]), new SignalIndex(), VIEW).rows[0];
  assert.deepEqual(open.bars.map((b) => [b.kind, b.x + b.w]), [["waiting", 10], ["active", 100]]);
  const gone = layout(stateOf([lane({ start_at: null, fin_at: null, end_at: 4 })]), new SignalIndex(), VIEW).rows[0];
  assert.deepEqual(gone.bars, [{ kind: "waiting", x: 0, w: 40 }]);
});

test("the newest turn is on top and only rows in sight are laid out", () => {
  const lanes = Array.from({ length: 500 }, (_, i) => lane({ turn: `t${i}`, wait_at: i, start_at: i, fin_at: null, end_at: i + 1 }));
  const rows = layout(stateOf(lanes), new SignalIndex(), { ...VIEW, top: 200, height: 140 }).rows;
  assert.deepEqual(rows.map((r) => r.lane.turn), ["t489", "t488", "t487", "t486", "t485", "t484", "t483"]);
});

test("signals on one pixel are one mark that knows how many", () => {
  const index = new SignalIndex();
  index.update({ first: 0, items: [[1, 0, "a"], [1.01, 0, "b"], [1.02, 0, "c"], [5, 0, "d"], [12, 0, "e"]] });
  assert.deepEqual(index.marks(0, 0, 10, 100), [{ x: 10, n: 3 }, { x: 50, n: 1 }]);
  assert.deepEqual(index.marks(7, 0, 10, 100), []);
});

test("every signal is in exactly one mark, whatever the zoom", () => {
  const index = new SignalIndex(), items = Array.from({ length: 5000 }, (_, i) => [i * 0.00137, 0, "s"]);
  index.update({ first: 0, items });
  for (const width of [1, 3, 97, 1000, 20000]) {
    const marks = index.marks(0, 0, 7, width);
    assert.equal(marks.reduce((n, m) => n + m.n, 0), 5000);
    assert.equal(new Set(marks.map((m) => m.x)).size, marks.length);
  }
});

test("a draw of 100,000 signals looks at a few thousand of them, and adding one looks at none", () => {
  const index = new SignalIndex(), signals = { first: 0, items: [] };
  for (let i = 0; i < 100_000; i++) signals.items.push([i / 100, 0, "s"]);
  index.update(signals);
  const looks = counted(index);
  assert.equal(index.marks(0, 0, 1000, 1000).length, 1000);
  const drawn = looks();
  assert.ok(drawn < 40_000 && drawn > 1000, `${drawn} looks`);
  signals.items.push([1000, 0, "s"]);
  index.update(signals);
  assert.ok(looks() - drawn <= 2, `${looks() - drawn} looks for one more`);
});

test("what fell out of the state is gone from the marks, and memory is given back", () => {
  const index = new SignalIndex(), all = Array.from({ length: 6000 }, (_, i) => [i, i % 2, "s"]);
  index.update({ first: 0, items: all });
  index.update({ first: 5000, items: all.slice(5000) });
  assert.equal(index.marks(0, 0, 6000, 6000).length + index.marks(1, 0, 6000, 6000).length, 1000);
  assert.ok(index.lanes.get(0).at.length < 1000);
});

test("a clock that is set back does not hide a signal", () => {
  const index = new SignalIndex();
  index.update({ first: 0, items: [[5, 0, "a"], [3, 0, "b"], [6, 0, "c"]] });
  assert.equal(index.marks(0, 0, 10, 10).reduce((n, m) => n + m.n, 0), 3);
  assert.deepEqual(index.near(0, 5, 0.1).names, ["a", "b"]);
});

test("the span covers all lanes, and follows now while a turn goes on", () => {
  assert.deepEqual(span(stateOf([lane()]), 100), { t0: 0, t1: 9 });
  assert.deepEqual(span(stateOf([lane(), lane({ wait_at: 50, end_at: null })]), 100), { t0: 0, t1: 100 });
  assert.deepEqual(span(stateOf([]), 100), { t0: 90, t1: 100 });
});

test("the axis has round steps that do not crowd, at any zoom", () => {
  for (const wide of [0.005, 0.3, 1, 7, 45, 600, 5000, 86400, 4e6]) {
    const marks = ticks(1764511200.123, 1764511200.123 + wide, 900);
    assert.ok(marks.length >= 1 && marks.length <= 11, `${wide}: ${marks.length}`);
    for (let i = 1; i < marks.length; i++) assert.ok(marks[i].x - marks[i - 1].x > 80);
  }
});

test("lowerBound finds the first that is not below", () => {
  assert.deepEqual([0, 1, 2, 3, 9].map((x) => lowerBound([1, 2, 2, 3], x)), [0, 0, 1, 3, 4]);
});
