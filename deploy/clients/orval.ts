// A client that orval generates from /openapi.json walks both lists and meets
// the answers that it has to tell apart.
import { listContacts, listItems } from "./generated.js";
import { env, report, walk } from "./report.js";

const own = globalThis.fetch; // the generated code asks for paths: browsers know of which server
globalThis.fetch = (path, options) => own(env.NODE + path, options);
const key = (key: string, etag?: string) => ({ headers: { "X-API-Key": key, ...(etag && { "If-None-Match": etag }) }, cache: "no-cache" as const });

const items = await walk(async (cursor) => {
  const answer = await listItems({ limit: 7, cursor }, key(env.KEY));
  if (answer.status !== 200) throw new Error(`${answer.status}`);
  return answer.data;
});
const contacts = await walk(async (cursor) => {
  const answer = await listContacts({ limit: 7, cursor }, key(env.KEY));
  if (answer.status !== 200) throw new Error(`${answer.status}`);
  return answer.data;
});

const first = await listItems({}, key(env.KEY));
const unchanged = await listItems({}, key(env.KEY, first.headers.get("ETag")!));
const invalid = await listItems({ limit: 101 }, key(env.KEY));
const unauthorized = await listItems({}, key("none"));
await listItems({}, key(env.LIMITED_KEY));
const refused = await listItems({}, key(env.LIMITED_KEY));
if (invalid.status !== 400 || unauthorized.status !== 401 || refused.status !== 429) throw new Error(`${invalid.status} ${unauthorized.status} ${refused.status}`);

report({
  items, contacts,
  unchanged: `${unchanged.status} ${unchanged.headers.get("Cache-Status")}`,
  invalid: { status: invalid.status, ...invalid.data.error },
  unauthorized: { status: unauthorized.status, ...unauthorized.data.error },
  limited: { status: refused.status, ...refused.data.error, retryAfter: refused.headers.get("Retry-After") },
});
