// Keeps a copy by docs/clients/typescript and brings it up to date once for each
// line of standard input, for copies_test.go.
import { Memory, Problem, sync, type Item, type Page } from "./listedge.js";

declare const process: {
  env: Record<string, string>;
  stdin: AsyncIterable<unknown>;
  pid: number;
  kill(pid: number, signal: string): void;
  getBuiltinModule(name: "fs"): Record<"readFileSync" | "renameSync" | "writeFileSync", (path: string, text: string) => string>;
};
const { NODE, KEY, LIST, FILE, KILL, CANCEL } = process.env; // CANCEL: after so many milliseconds
const fs = process.getBuiltinModule("fs");

class Stored extends Memory<Item> {
  constructor() {
    super();
    try {
      const { state, rows } = JSON.parse(fs.readFileSync(FILE!, "utf8"));
      this.state = state;
      this.rows = new Map(rows);
    } catch {} // it begins
  }

  override apply(page: Page<Item>) {
    super.apply(page);
    fs.writeFileSync(`${FILE}.new`, JSON.stringify({ state: this.state, rows: [...this.rows] }));
    fs.renameSync(`${FILE}.new`, FILE!);
    if (KILL) process.kill(process.pid, "SIGKILL");
  }
}

const copy = FILE ? new Stored() : new Memory<Item>();
for await (const _ of process.stdin) {
  const report = (found: object) => console.log(JSON.stringify({ rows: [...copy.rows.values()].map(({ row }) => row), ...found }));
  try {
    await sync({ url: NODE!, key: KEY! }, LIST!, copy, CANCEL ? AbortSignal.timeout(Number(CANCEL)) : undefined);
    report({});
  } catch (error) {
    if (CANCEL && (error as Error).name === "TimeoutError") {
      report({ cancelled: true });
      continue;
    }
    if (!(error instanceof Problem)) throw error;
    const { status, code, message, requestId, retryAfter } = error;
    report({ problem: { status, code, message, requestId, retryAfter } });
  }
}
