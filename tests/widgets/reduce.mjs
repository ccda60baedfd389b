/* Reads {state, events} as JSON lines, writes the state after them: the other half of the differential test. */
import { createInterface } from "node:readline";
import { reduce } from "../../lionnb/widgets/static/state.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { state, events } = JSON.parse(line);
  for (const event of events) reduce(state, event);
  process.stdout.write(`${JSON.stringify(state)}\n`);
}
