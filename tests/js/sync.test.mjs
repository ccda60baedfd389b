import assert from "node:assert/strict";
import { test } from "node:test";
import { Sync } from "../../lionnb/widgets/static/sync.js";

const START = () => ({ n: 0, uid: "u", at: 0, beat: null });
const event = (i) => ({ at: i, kind: "beat", turn: null, size: 0, data: { text: String(i) } });

/** The kernel's side of the protocol, as lionnb/widgets/feed.py has it (tests/widgets runs the page's side against that). */
function server(keep) {
  const log = [];
  return {
    log,
    batch: (n) => { const i0 = log.length; for (let i = 0; i < n; i++) log.push(event(log.length)); return { i0, ev: log.slice(i0) }; },
    since: (i) => log.length - i <= keep ? { i0: i, ev: log.slice(i) }
      : { snapshot: JSON.stringify({ ...START(), n: log.length, at: log.length - 1, beat: { at: log.length - 1, text: String(log.length - 1) } }) },
  };
}

/** Numbers that look random and are the same in each run. */
function mulberry(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function deliver(sync, m, now) {
  if (m.ev) sync.batch(m, now);
  else if (m.beat) sync.heard(m.beat.n, now);
  else sync.adopt(m.snapshot);
}

for (let seed = 1; seed <= 20; seed++) {
  test(`nothing is lost and nothing doubled when messages are lost, doubled and swapped (seed ${seed})`, () => {
    const random = mulberry(seed), kernel = server(seed % 2 ? 1000 : 25);
    let now = 0, queue = [];
    const toPage = (m) => { if (random() > 0.35) { queue.push(m); if (random() < 0.1) queue.push(m); } };
    const sync = new Sync(START(), (m) => { if (random() > 0.35) toPage(kernel.since(m.since)); });
    const seen = [];
    for (let step = 0; step < 300; step++) {
      now += 50;
      toPage(kernel.batch(1 + Math.floor(random() * 4)));
      if (step % 20 === 0) toPage({ beat: { n: kernel.log.length } });
      if (random() < 0.2) queue.reverse();
      const batch = queue;
      queue = [];
      for (const m of batch) {
        const before = sync.state.n;
        deliver(sync, m, now);
        seen.push(sync.state.n - before);
        assert.ok(sync.state.n <= kernel.log.length, "more than there is");
        if (sync.state.n) assert.equal(sync.state.beat.text, String(sync.state.n - 1), "the newest event is the n-th");
      }
      sync.tick(now);
    }
    for (let i = 0; i < 200 && sync.state.n < kernel.log.length; i++) { // the feed is over; heartbeats go on
      now += 2000;
      toPage({ beat: { n: kernel.log.length } });
      const batch = queue;
      queue = [];
      for (const m of batch) deliver(sync, m, now);
      sync.tick(now);
    }
    assert.equal(sync.state.n, kernel.log.length);
    assert.ok(sync.gaps > 0, "the test lost nothing, so it shows nothing");
    assert.ok(seen.every((d) => d >= 0), "the page went backwards");
  });
}

test("a lost last batch is learned from the next heartbeat", () => {
  const asked = [], sync = new Sync(START(), (m) => asked.push(m));
  sync.batch({ i0: 0, ev: [event(0)] }, 0);
  sync.heard(1, 10);
  assert.deepEqual(asked, []);
  sync.heard(3, 20);
  assert.deepEqual(asked, [{ since: 1 }]);
});

test("a page asks once and then with growing pauses", () => {
  const asked = [], sync = new Sync(START(), (m) => asked.push(m));
  sync.batch({ i0: 5, ev: [event(5)] }, 0);
  sync.batch({ i0: 6, ev: [event(6)] }, 100);
  sync.heard(7, 200);
  assert.deepEqual(asked, [{ since: 0 }]);
  const at = [];
  for (let now = 0; now <= 40000; now += 500) { const n = asked.length; sync.tick(now); if (asked.length > n) at.push(now); }
  assert.deepEqual(at, [1000, 3000, 7000, 15000, 31000]);
});

test("a snapshot that knows less than the page is not taken", () => {
  const sync = new Sync({ ...START(), n: 9 }, () => {});
  assert.equal(sync.adopt(JSON.stringify({ ...START(), n: 4 })), false);
  assert.equal(sync.state.n, 9);
  assert.equal(sync.adopt(JSON.stringify({ ...START(), uid: "another view", n: 4 })), true);
});
