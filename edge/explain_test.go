package edge

import (
	"strings"
	"testing"
	"time"
)

// A record, and what must be said of it.
func TestSentences(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	limits := func(change func(*LimitRecord)) *LimitRecord {
		l := &LimitRecord{Allowed: true, Source: "lease", Key: BucketRecord{50, 100, 42}}
		change(l)
		return l
	}
	for _, c := range []struct {
		name   string
		record Record
		want   string
	}{
		{"a hit", Record{Route: "items", Status: 200, KeyID: "k", WorkspaceID: "w",
			Limit: limits(func(l *LimitRecord) { l.Workspace = &BucketRecord{500, 1000, 900} }),
			Page:  &PageRecord{"memory", "listedge; hit; detail=memory", 0.0123}, Took: TimesRecord{Total: 0.00000312}},
			`At 2026-01-02T03:04:05.678Z a request of key k of workspace w for items was answered 200 after 3.12µs.
The key's bucket (rate 50/s, burst 100) had 42 left; decided at once, from what this node has leased of the bucket in Redis.
The workspace's bucket (rate 500/s, burst 1000) had 900 left.
The page, from memory, was fresh: it was known to equal the database 12.3ms before.
It waited for nothing.`},
		{"refused by its workspace's bucket", Record{Route: "items", Status: 429, KeyID: "k", WorkspaceID: "w", Message: "Too many requests.",
			Limit: limits(func(l *LimitRecord) {
				*l = LimitRecord{Source: "redis", RefusedBy: "workspace", RetryAfter: 0.5, Key: l.Key, Workspace: &BucketRecord{2, 4, 0}}
			}),
			Took: TimesRecord{Total: 0.001, Limit: 0.0009}},
			`At 2026-01-02T03:04:05.678Z a request of key k of workspace w for items was answered 429 after 1ms.
The client was told: Too many requests.
The workspace's bucket (rate 2/s, burst 4) had no token for it, and may have one after 500ms; decided by Redis, which the request waited for.
Of its 1ms it took 900µs for the limit to be decided.`},
		{"refused while Redis was away", Record{Route: "items", Status: 429, Message: "Too many requests.",
			Limit: limits(func(l *LimitRecord) {
				*l = LimitRecord{Source: "local-fallback", RefusedBy: "key", RetryAfter: 2, Key: l.Key}
			})},
			`At 2026-01-02T03:04:05.678Z a request of no key that is known for items was answered 429 after 0s.
The client was told: Too many requests.
The key's bucket (rate 50/s, burst 100) had no token for it, and may have one after 2s; decided by this node alone, because Redis was away or late.
It waited for nothing.`},
		{"stood in", Record{Route: "contacts", Status: 200, KeyID: "k", WorkspaceID: "w", Cause: "database\nunavailable",
			Page: &PageRecord{"memory", "listedge; fwd=stale; detail=stale-if-error", 61.5},
			Took: TimesRecord{Total: 1.2, Wait: 1.1, Redis: 0.1, Fill: 1, Query: 0.2}},
			`At 2026-01-02T03:04:05.678Z a request of key k of workspace w for contacts was answered 200 after 1.2s.
The page is old: it was last known to equal the database 1m1.5s before, and stood in for one that could not be read: database unavailable.
Of its 1.2s it took 800ms to wait for a turn and a connection to the database, 200ms for the query, 100ms for Redis.`},
		{"by age", Record{Route: "items", Status: 200, Page: &PageRecord{"redis", "listedge; hit; detail=ttl", 1.5}},
			`At 2026-01-02T03:04:05.678Z a request of no key that is known for items was answered 200 after 0s.
The page, from redis, was read 1.5s before: changes are not followed, so pages count as fresh for --cache-ttl.
It waited for nothing.`},
		{"another's flight", Record{Route: "items", Status: 200, Page: &PageRecord{"origin", "listedge; fwd=uri-miss; collapsed", 0},
			Took: TimesRecord{Total: 0.3, Key: 0.1, Wait: 0.19, Redis: 0.01, Fill: 0.5, Query: 0.4, Shared: true}},
			`At 2026-01-02T03:04:05.678Z a request of no key that is known for items was answered 200 after 300ms.
The page was read from the database: neither memory nor Redis had it.
Of its 300ms it took 190ms to wait for a page that another request was fetching (its query: 400ms), 100ms to look up the key.`},
		{"changed", Record{Route: "items", Status: 200, Page: &PageRecord{"origin", "listedge; fwd=stale", 0}},
			`At 2026-01-02T03:04:05.678Z a request of no key that is known for items was answered 200 after 0s.
The page was read from the database: the one in memory or Redis had been changed, or could not be proven fresh.
It waited for nothing.`},
		{"failed", Record{Route: "items", Status: 503, Message: "The database cannot be reached.", Cause: "dial"},
			`At 2026-01-02T03:04:05.678Z a request of no key that is known for items was answered 503 after 0s.
The client was told: The database cannot be reached.
The cause: dial.
It waited for nothing.`},
	} {
		c.record.Time = at
		if got := strings.Join(c.record.Sentences(), "\n"); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}
