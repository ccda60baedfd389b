/* A page's side of the stream without a page: one JSON line in, one out. {open}, {deliver} or {tick}; the answer says what
   the page would send and what it knows. */
import { createInterface } from "node:readline";
import { Sync } from "../../lionnb/widgets/static/sync.js";

let sync = null, sent = [];
for await (const line of createInterface({ input: process.stdin })) {
  const said = JSON.parse(line);
  sent = [];
  if (said.open) sync = new Sync(JSON.parse(said.open), (m) => sent.push(m));
  const m = said.deliver;
  if (m?.ev) sync.batch(m, said.now);
  else if (m?.beat) sync.heard(m.beat.n, said.now);
  else if (m?.snapshot) sync.adopt(m.snapshot);
  sync.tick(said.now);
  process.stdout.write(`${JSON.stringify({ sent, n: sync.state.n, state: said.show ? sync.state : null })}\n`);
}
