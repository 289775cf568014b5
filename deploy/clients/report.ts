// What the clients in TypeScript share.
type Environment = { NODE: string; KEY: string; LIMITED_KEY: string };
export const env = (globalThis as unknown as { process: { env: Environment } }).process.env;

type Page<Row> = { data: Row[]; page: { hasMore: boolean; nextCursor: string | null } };

// walk reads a list to its end.
export async function walk<Row extends { id: string }>(read: (cursor?: string) => Promise<Page<Row>>): Promise<Row[]> {
  const rows: Row[] = [];
  for (let cursor: string | undefined; ; ) {
    const { data, page } = await read(cursor);
    rows.push(...data);
    if (!page.hasMore) return rows;
    if (page.nextCursor === cursor) throw new Error("the walk does not get on");
    cursor = page.nextCursor!;
  }
}

type Refusal = { status: number; code: string; message: string; details?: Record<string, string> };

// report prints what clients_test.go reads.
export function report(found: {
  items: { id: string; usage30: number }[];
  contacts: { id: string }[];
  unchanged: string; // a status, and where the page came from
  invalid: Refusal;
  unauthorized: Refusal;
  limited: Refusal & { retryAfter: string | null };
}) {
  console.log(JSON.stringify({
    ...found,
    items: found.items.map((item) => item.id),
    contacts: found.contacts.map((contact) => contact.id),
    usage: Math.max(...found.items.map((item) => item.usage30)),
    limited: { ...found.limited, retryAfter: Number(found.limited.retryAfter) },
  }));
}
