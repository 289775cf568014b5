// Keeps a copy of a list of a listedge service. It has no dependency: copy this
// file and openapi.d.ts into your project. ../README.md says how to use it.
import type { components } from "./openapi.js";

type Schemas = components["schemas"];
export type Item = Schemas["Item"];
export type Contact = Schemas["Contact"];
type List<Row> = { data: Row[]; page: Schemas["Page"] };

/** How to reach a service. */
export type Client = {
  url: string; // of the service, such as https://listedge.example.com
  key: string; // an API key, best one of its own
  maxWait?: number; // how long one page is tried for, waits included, in ms; a minute unless given
};

/** An error that waiting does not mend, or that would take longer than maxWait: the service answered it, or the url is wrong. */
export class Problem extends Error {
  constructor(
    readonly status: number, // 0 = there was no answer
    readonly code: Schemas["ErrorCode"] | undefined, // none if the service did not answer
    message: string,
    readonly details?: Schemas["ErrorDetails"] | undefined, // by parameter
    readonly requestId?: string | undefined, // to be quoted in a report
    readonly retryAfter = 0, // seconds; 0 = none
  ) {
    super([status || "", code && `${code}:`, message].filter(Boolean).join(" ") + (retryAfter > 0 ? ` (try again in ${retryAfter} s)` : ""));
  }
}

/** How far a copy is. */
export type State = {
  cursor: string; // of the next request; "" = the copy is empty
  mark: number; // of the rows that the last full round has shown
};

/** A change of the copy. */
export type Page<Row> = {
  rows: Row[]; // to be stored under their ids, each with state.mark
  gone: string[]; // ids of rows to be deleted
  sweep: boolean; // then delete all rows that have another mark: a full round has ended without them
  state: State; // to be stored
};

/** Where a copy is kept. apply stores all of the page in one transaction. */
export interface Store<Row> {
  load(): State | Promise<State>;
  apply(page: Page<Row>): void | Promise<void>;
}

/**
 * Brings a copy up to date. path is that of the list and may have filters: "/v1/items?type=goods". After an error, or an
 * abort by the signal, the next call goes on at the page that failed.
 */
export async function sync<Row>(client: Client, path: string, store: Store<Row>, signal?: AbortSignal): Promise<void> {
  let { cursor, mark } = await store.load();
  for (let restarted = false, ended = false; !ended; ) {
    let answer: Answer<Row>;
    try {
      answer = await read<Row>(client, path, cursor || "changes", signal);
    } catch (error) {
      if (!(error instanceof Problem) || error.status !== 400 || cursor === "" || restarted) throw error;
      cursor = ""; // it is of another list, or of a newer service
      restarted = true;
      continue;
    }
    const { covers, rows, gone } = answer;
    const has = (name: string) => covers.some((member) => member.split("=")[0] === name);
    if (!has("none") && !has("after")) mark++; // a full round begins
    ({ next: cursor, ended } = answer);
    await store.apply({ rows, gone, sweep: !has("none") && !has("through"), state: { cursor, mark } });
  }
}

/** A store in memory. Its state and [...rows], stored as JSON, survive a restart: `new Memory(state, new Map(rows))`. */
export class Memory<Row extends { id: string }> implements Store<Row> {
  constructor(public state: State = { cursor: "", mark: 0 }, public rows = new Map<string, { row: Row; mark: number }>()) {}

  load = () => this.state;

  apply({ rows, gone, sweep, state }: Page<Row>) {
    for (const row of rows) this.rows.set(row.id, { row, mark: state.mark });
    for (const id of gone) this.rows.delete(id);
    if (sweep) for (const [id, { mark }] of this.rows) if (mark !== state.mark) this.rows.delete(id);
    this.state = state;
  }
}

type Answer<Row> = {
  rows: Row[];
  covers: string[];
  gone: string[];
  next: string; // the cursor of the next page or, if the round has ended, of the next round
  ended: boolean;
};

// read requests a page until it is there. It waits as long as Retry-After says, and for up to 8 s after a broken
// connection. It waits up to half as long again, so that many clients do not come back at once.
async function read<Row>(client: Client, path: string, cursor: string, signal?: AbortSignal): Promise<Answer<Row>> {
  const patience = Date.now() + (client.maxWait ?? 60_000);
  for (let wait = 500; ; wait = Math.min(2 * wait, 8_000)) {
    let failed: unknown;
    try {
      return await once(client, path, cursor, signal);
    } catch (error) {
      failed = error; // no Problem: the connection broke, and the same request can be sent again
    }
    signal?.throwIfAborted();
    if (failed instanceof Problem && failed.status < 500 && failed.status !== 429 && failed.status !== 408) throw failed;
    const pause = (failed instanceof Problem && failed.retryAfter > 0 ? failed.retryAfter * 1000 : wait) * (1 + Math.random() / 2);
    if (Date.now() + pause > patience) throw failed;
    await new Promise<void>((done) => {
      const timer = setTimeout(end, pause);
      function end() {
        clearTimeout(timer);
        signal?.removeEventListener("abort", end);
        done();
      }
      signal?.addEventListener("abort", end);
    });
    signal?.throwIfAborted();
  }
}

// wrongAddress: there is no such host, or it has the certificate of another. These are Node's codes.
const wrongAddress = /ENOTFOUND|CERT|UNABLE_TO_/;

// once sends one request. fetch asks for gzip, and decompresses it. It follows no redirect, because it would send the
// key wherever that leads.
async function once<Row>(client: Client, path: string, cursor: string, signal?: AbortSignal): Promise<Answer<Row>> {
  if (!/^https?:\/\/[^/]/.test(client.url)) throw new Problem(0, undefined, `"${client.url}" is not the URL of a service, such as https://listedge.example.com`);
  const [list, query] = path.split("?");
  const parameters = new URLSearchParams({ limit: "100", ...Object.fromEntries(new URLSearchParams(query)), cursor });
  const timeout = AbortSignal.timeout(30_000);
  const response = await fetch(`${client.url.replace(/\/+$/, "")}${list}?${parameters}`, {
    headers: { "X-API-Key": client.key },
    redirect: "manual",
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  }).catch((error: Error) => {
    const cause = error.cause as { code?: string; message?: string } | undefined;
    throw wrongAddress.test(cause?.code ?? "") ? new Problem(0, undefined, `${error.message}: ${cause?.message}`) : error;
  });
  const { status, statusText, headers } = response;
  const body = await response.text();
  let said: (Partial<List<Row>> & Partial<Schemas["Error"]>) | undefined;
  try {
    said = JSON.parse(body);
  } catch {} // not the service's
  if (status !== 200) {
    const to = headers.get("Location");
    const message = to ? `${statusText} to ${to}, which is not followed; check the url` : (said?.error?.message ?? statusText);
    throw new Problem(status, said?.error?.code, message, said?.error?.details, said?.requestId, Number(headers.get("Retry-After")) || 0);
  }
  if (!said?.data || !said.page) throw new Problem(200, undefined, "the answer is not a page of listedge; check the url");
  const covers = texts(headers.get("List-Covers"));
  const gone = texts(headers.get("List-Gone"));
  const link = /<[^>]*[?&]cursor=([^&>]*)[^>]*>; *rel="https:\/\/listedge\.dev\/rel\/changes"/.exec(headers.get("Link") ?? "");
  const next = said.page.nextCursor ?? link?.[1];
  if (!covers?.length || !gone || !next || (covers.includes("gone") && !gone.length)) {
    const message = "List-Covers, List-Gone or Link is missing or damaged; proxies in front of the service have to let these headers through";
    throw new Problem(200, undefined, message);
  }
  return { rows: said.data, covers, gone, next, ended: !said.page.nextCursor };
}

// A member of a list or dictionary of RFC 9651, as far as the service uses them.
const text = /%"[^"]*"|"(?:[^"\\]|\\["\\])*"/.source;
const member = `(?:[a-z]+=)?(?:${text})|[a-z]+`;
const members = new RegExp(`^(?:${member})(?:[ \\t]*,[ \\t]*(?:${member}))*$`);

// texts returns the members of a header: Strings and Display Strings decoded, others as they are. None if it is damaged.
function texts(line: string | null): string[] | undefined {
  if (!line) return [];
  if (!members.test(line)) return undefined;
  try {
    return line.match(new RegExp(member, "g"))!.map((m) =>
      m.startsWith("%") ? decodeURIComponent(m.slice(2, -1)) : m.startsWith('"') ? m.slice(1, -1).replace(/\\(.)/g, "$1") : m);
  } catch {
    return undefined;
  }
}
