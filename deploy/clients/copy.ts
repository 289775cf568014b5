// Keeps a copy by docs/clients/typescript and walks once for each line of
// standard input, for copies_test.go.
import { Copy, Problem } from "./listedge.js";

declare const process: { env: Record<"NODE" | "KEY" | "LIMIT" | "CANCEL", string>; stdin: AsyncIterable<unknown> };
const { NODE, KEY, LIMIT, CANCEL } = process.env; // CANCEL: after so many milliseconds
const copy = Copy.items({ url: NODE, key: KEY }, Number(LIMIT));

for await (const _ of process.stdin) {
  try {
    const { changed, removed, requests, unchanged } = await copy.round(CANCEL ? AbortSignal.timeout(Number(CANCEL)) : undefined);
    console.log(JSON.stringify({ rows: [...copy.rows().values()], changed: changed.map((row) => row.id), removed, requests, unchanged }));
  } catch (error) {
    if (CANCEL && (error as Error).name === "TimeoutError") {
      console.log(JSON.stringify({ cancelled: true }));
      continue;
    }
    if (!(error instanceof Problem)) throw error;
    const { status, code, requestId, retryAfter } = error;
    console.log(JSON.stringify({ rows: [...copy.rows().values()], problem: { status, code, requestId, retryAfter } }));
  }
}
