// Keeps a copy of a workspace's items or contacts in step with a listedge
// service. It has no dependency: copy this file and openapi.d.ts into your project.
// ../README.md says how to use it.
import type { components } from "./openapi.js";

type Schemas = components["schemas"];
export type Item = Schemas["Item"];
export type Contact = Schemas["Contact"];
type List<Row> = { data: Row[]; page: Schemas["Page"] };

/** How to reach a service. */
export type Client = {
  url: string; // of the service, such as https://listedge.example.com
  key: string; // an API key, best one of its own: see ../README.md
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

/** A page as it was read. */
export type StoredPage<Row> = {
  cursor: string; // "" = the first page
  etag: string;
  rows: Row[];
  next: string; // the cursor of the next page; "" = this is the last
  cut?: boolean; // it has fewer rows than were asked for, because of their size
};

/** What a round found. */
export type Round<Row> = {
  changed: Row[]; // rows that are new or differ
  removed: string[]; // ids of rows that are gone
  requests: number; // pages that were asked for
  unchanged: number; // of these, answered with 304
};

/**
 * A copy of a list. round() brings it up to date; one call at a time.
 *
 * Invariant: pages are the answers of one walk from the first page to the last. A page that the service said is
 * unchanged (304) counts as read. So a round finds what a walk finds: each row that was active from its beginning to
 * its end, once.
 */
export class Copy<Row extends { id: string }> {
  /** Of the last round that ended. Store them as JSON, and a restart needs no new walk. */
  pages: StoredPage<Row>[] = [];
  private walk: Walk<Row> | undefined; // a round that has not ended

  /** limit: rows of a request, at most 100. */
  constructor(private client: Client, private path: "/v1/items" | "/v1/contacts", private limit = 100) {}

  static items = (client: Client, limit?: number) => new Copy<Item>(client, "/v1/items", limit);
  static contacts = (client: Client, limit?: number) => new Copy<Contact>(client, "/v1/contacts", limit);

  /** The rows by id. */
  rows(): Map<string, Row> {
    return rowsOf(this.pages);
  }

  /**
   * Walks the list once and then replaces the copy. An error ends the call and not the round: the copy stays as it was,
   * and the next call goes on at the page that failed. So does an abort by the signal.
   */
  async round(signal?: AbortSignal): Promise<Round<Row>> {
    const walk = (this.walk ??= new Walk(this.pages, this.limit));
    do {
      const { limit, stored } = walk.next();
      const query = new URLSearchParams({ limit: `${limit}`, ...(walk.cursor && { cursor: walk.cursor }) });
      const answer = await read<Row>(this.client, `${this.path}?${query}`, stored?.etag, signal).catch((error: unknown) => {
        if (error instanceof Problem && error.status === 400) this.walk = undefined; // the same request would fail again
        throw error;
      });
      walk.requests++;
      if (answer === "unchanged") {
        walk.unchanged++;
        walk.add(stored!);
        continue;
      }
      const { data, page } = answer.list;
      walk.add({ cursor: walk.cursor, etag: answer.etag, rows: data, next: page.nextCursor ?? "", cut: page.hasMore && data.length < limit });
    } while (walk.cursor !== "");
    const before = this.rows();
    this.pages = walk.pages;
    this.walk = undefined;
    const after = this.rows();
    return {
      // An unchanged page keeps its rows as they are.
      changed: [...after].filter(([id, row]) => before.get(id) !== row && JSON.stringify(before.get(id)) !== JSON.stringify(row)).map(([, row]) => row),
      removed: [...before.keys()].filter((id) => !after.has(id)),
      requests: walk.requests,
      unchanged: walk.unchanged,
    };
  }
}

// rowsOf: a row that moved during the walk may be there twice; the page that was read last is right.
const rowsOf = <Row extends { id: string }>(pages: StoredPage<Row>[]) => new Map(pages.flatMap((page) => page.rows.map((row) => [row.id, row] as const)));

/**
 * A round under way. It asks for pages that end where stored pages end: `limit` may differ from page to page. So a row
 * that comes or goes changes the pages around it, and not each page behind it, and those can be revalidated. This
 * decides only what a round costs; what it finds does not depend on it.
 */
class Walk<Row extends { id: string }> {
  cursor = ""; // of the next page
  pages: StoredPage<Row>[] = [];
  requests = 0;
  unchanged = 0;
  private place = 0; // how many old rows are before the next page
  private begins = [0]; // how many old rows are before each old page, and before the end
  private pageAt = new Map<string, number>(); // the old page of a cursor
  private rowAt = new Map<string, number>(); // the place of a row among the old ones, by id

  constructor(private old: StoredPage<Row>[], private limit: number) {
    old.forEach((page, i) => {
      this.pageAt.set(page.cursor, i);
      page.rows.forEach((row, j) => this.rowAt.set(row.id, this.begins[i]! + j));
      this.begins.push(this.begins[i]! + page.rows.length);
    });
  }

  /**
   * How many rows to ask for: up to the furthest end of an old page that a request reaches, which joins small pages
   * again. If one old page has just these rows, it is returned, too: it may be unchanged.
   */
  next(): { limit: number; stored: StoredPage<Row> | undefined } {
    const { begins, old } = this;
    const i = this.pageAt.get(this.cursor);
    if (i !== undefined) this.place = begins[i]!;
    let end = begins.findIndex((n) => n > this.place); // of the old page that has the next row
    if (end < 0) end = begins.length;
    while (end + 1 < begins.length && begins[end + 1]! <= this.place + this.limit && !old[end - 1]!.cut) end++;
    const rows = end < begins.length ? begins[end]! - this.place : 0;
    return {
      limit: end < old.length ? Math.min(this.limit, rows) : this.limit, // behind the last page there may be new rows
      stored: i !== undefined && old[i]!.rows.length === rows ? old[i] : undefined,
    };
  }

  add(page: StoredPage<Row>) {
    this.pages.push(page);
    this.cursor = page.next;
    const places = page.rows.map((row) => this.rowAt.get(row.id)).filter((place) => place !== undefined);
    if (places.length > 0) this.place = places[places.length - 1]! + 1;
  }
}

type Answer<Row> = { list: List<Row>; etag: string } | "unchanged";

// read requests a page until it is there. It waits as long as Retry-After says, and for up to 8 s after a broken
// connection. It waits up to half as long again, so that many clients do not come back at once.
async function read<Row>(client: Client, target: string, etag?: string, signal?: AbortSignal): Promise<Answer<Row>> {
  const patience = Date.now() + (client.maxWait ?? 60_000);
  for (let wait = 500; ; wait = Math.min(2 * wait, 8_000)) {
    let failed: unknown;
    try {
      return await once(client, target, etag, signal);
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
// key wherever that leads. Without its option `cache`, Node.js adds Cache-Control: no-cache to each request with
// If-None-Match, as the Fetch standard says, and the service would read the page from its database. With "no-cache" it
// adds max-age=0.
async function once<Row>(client: Client, target: string, etag?: string, signal?: AbortSignal): Promise<Answer<Row>> {
  if (!/^https?:\/\/[^/]/.test(client.url)) throw new Problem(0, undefined, `"${client.url}" is not the URL of a service, such as https://listedge.example.com`);
  const timeout = AbortSignal.timeout(30_000);
  const response = await fetch(client.url.replace(/\/+$/, "") + target, {
    headers: { "X-API-Key": client.key, ...(etag && { "If-None-Match": etag }) },
    cache: "no-cache",
    redirect: "manual",
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  }).catch((error: Error) => {
    const cause = error.cause as { code?: string; message?: string } | undefined;
    throw wrongAddress.test(cause?.code ?? "") ? new Problem(0, undefined, `${error.message}: ${cause?.message}`) : error;
  });
  const body = await response.text();
  if (response.status === 304) return "unchanged";
  let said: (Partial<List<Row>> & Partial<Schemas["Error"]>) | undefined;
  try {
    said = JSON.parse(body);
  } catch {} // not the service's
  if (response.status === 200) {
    if (!said?.data || !said.page) throw new Problem(200, undefined, "the answer is not a page of listedge; check the url");
    return { list: { data: said.data, page: said.page }, etag: response.headers.get("ETag") ?? "" };
  }
  const to = response.headers.get("Location");
  const message = to ? `${response.statusText} to ${to}, which is not followed; check the url` : (said?.error?.message ?? response.statusText);
  throw new Problem(response.status, said?.error?.code, message, said?.error?.details, said?.requestId, Number(response.headers.get("Retry-After")) || 0);
}
