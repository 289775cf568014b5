// A client of the types that openapi-typescript generates from /openapi.json
// walks both lists and meets the answers that it has to tell apart.
import createClient from "openapi-fetch";
import { env, report, walk } from "./report.js";
import type { paths } from "./openapi.js";

const connect = (key: string) => createClient<paths>({ baseUrl: env.NODE, headers: { "X-API-Key": key } });
const client = connect(env.KEY);

const items = await walk(async (cursor) => (await client.GET("/v1/items", { params: { query: { limit: 7, cursor } } })).data!);
const contacts = await walk(async (cursor) => (await client.GET("/v1/contacts", { params: { query: { limit: 7, cursor } } })).data!);

const first = await client.GET("/v1/items");
const unchanged = await client.GET("/v1/items", { params: { header: { "If-None-Match": first.response.headers.get("ETag")! } }, cache: "no-cache" });
const invalid = await client.GET("/v1/items", { params: { query: { limit: 101 } } });
const unauthorized = await connect("none").GET("/v1/items");
const limited = connect(env.LIMITED_KEY);
await limited.GET("/v1/items");
const refused = await limited.GET("/v1/items");

report({
  items, contacts,
  unchanged: `${unchanged.response.status} ${unchanged.response.headers.get("Cache-Status")}`,
  invalid: { status: invalid.response.status, ...invalid.error!.error },
  unauthorized: { status: unauthorized.response.status, ...unauthorized.error!.error },
  limited: { status: refused.response.status, ...refused.error!.error, retryAfter: refused.response.headers.get("Retry-After") },
});
