package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/edge"
	"listedge/origin/apikey"
)

// Each record has these sentences.
func TestSentences(t *testing.T) {
	key, workspace := uuid.UUID{1}, uuid.UUID{2}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	limits := func(change func(*edge.LimitRecord)) edge.LimitRecord {
		l := edge.LimitRecord{Allowed: true, Source: "lease", Key: edge.BucketRecord{Rate: 50, Burst: 100, Remaining: 42}}
		change(&l)
		return l
	}
	for _, c := range []struct {
		name   string
		record edge.Record
		want   string
	}{
		{"a hit", edge.Record{Route: "items", Status: 200, KeyID: key, WorkspaceID: workspace,
			Limit: limits(func(l *edge.LimitRecord) { l.Workspace = edge.BucketRecord{Rate: 500, Burst: 1000, Remaining: 900} }),
			Page:  edge.PageRecord{Tier: "memory", CacheStatus: "listedge; hit; detail=memory", ProofAge: 0.0123}, Took: edge.TimesRecord{Total: 0.00000312}},
			`At 2026-01-02T03:04:05.678Z a request of key 01000000-0000-0000-0000-000000000000 of workspace 02000000-0000-0000-0000-000000000000 for items got status 200 after 3.12µs.
The key's bucket (rate 50/s, burst 100) had 42 tokens left; decided at once, from the tokens that this node has leased from Redis.
The workspace's bucket (rate 500/s, burst 1000) had 900 tokens left.
The page, from memory, was fresh: it equalled the database 12.3ms before.
It waited for nothing.`},
		{"refused by its workspace's bucket", edge.Record{Route: "items", Status: 429, KeyID: key, WorkspaceID: workspace, Message: "Too many requests.",
			Limit: limits(func(l *edge.LimitRecord) {
				*l = edge.LimitRecord{Source: "redis", RefusedBy: "workspace", RetryAfter: 0.5, Key: l.Key, Workspace: edge.BucketRecord{Rate: 2, Burst: 4, Remaining: 0}}
			}),
			Took: edge.TimesRecord{Total: 0.001, Limit: 0.0009}},
			`At 2026-01-02T03:04:05.678Z a request of key 01000000-0000-0000-0000-000000000000 of workspace 02000000-0000-0000-0000-000000000000 for items got status 429 after 1ms.
The error message was: Too many requests.
The workspace's bucket (rate 2/s, burst 4) was empty, with a retry after 500ms; decided by Redis, and the request waited for it.
Of its 1ms it took 900µs to decide the limit.`},
		{"refused by its workspace's quota", edge.Record{Route: "items", Status: 429, Message: "The quota is used up.",
			Limit: limits(func(l *edge.LimitRecord) {
				*l = edge.LimitRecord{Source: "lease", RefusedBy: "quota", RetryAfter: 5400, Key: l.Key, Quota: edge.QuotaRecord{Requests: 1000, Period: apikey.Day}}
			})},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 429 after 0s.
The error message was: The quota is used up.
The workspace's quota (1000 requests a day) was used up, and the next period began 1h30m0s later; decided at once, from the tokens that this node has leased from Redis.
It waited for nothing.`},
		{"within its workspace's quota", edge.Record{Route: "items", Status: 200,
			Limit: limits(func(l *edge.LimitRecord) {
				l.Quota = edge.QuotaRecord{Requests: 1000, Period: apikey.Month, Remaining: 7}
			})},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The key's bucket (rate 50/s, burst 100) had 42 tokens left; decided at once, from the tokens that this node has leased from Redis.
The workspace's quota (1000 requests a month) had 7 left.
It waited for nothing.`},
		{"refused while Redis was down", edge.Record{Route: "items", Status: 429, Message: "Too many requests.",
			Limit: limits(func(l *edge.LimitRecord) {
				*l = edge.LimitRecord{Source: "local-fallback", RefusedBy: "key", RetryAfter: 2, Key: l.Key}
			})},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 429 after 0s.
The error message was: Too many requests.
The key's bucket (rate 50/s, burst 100) was empty, with a retry after 2s; decided by this node alone, because Redis was down or late.
It waited for nothing.`},
		{"served stale", edge.Record{Route: "contacts", Status: 200, KeyID: key, WorkspaceID: workspace, Cause: "database\nunavailable",
			Page: edge.PageRecord{Tier: "memory", CacheStatus: "listedge; fwd=stale; detail=stale-if-error", ProofAge: 61.5},
			Took: edge.TimesRecord{Total: 1.2, Wait: 1.1, Redis: 0.1, Fill: 1, Query: 0.2}},
			`At 2026-01-02T03:04:05.678Z a request of key 01000000-0000-0000-0000-000000000000 of workspace 02000000-0000-0000-0000-000000000000 for contacts got status 200 after 1.2s.
The page was stale: it last equalled the database 1m1.5s before. It was served because the database could not be read: database unavailable.
Of its 1.2s it took 800ms to wait in the queue and for a connection to the database, 200ms for the query, 100ms for Redis.`},
		{"by age", edge.Record{Route: "items", Status: 200, Page: edge.PageRecord{Tier: "redis", CacheStatus: "listedge; hit; detail=ttl", ProofAge: 1.5}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The page, from redis, was read 1.5s before: this node does not follow changes, so pages count as fresh for --cache-ttl.
It waited for nothing.`},
		{"another's fill", edge.Record{Route: "items", Status: 200, Page: edge.PageRecord{Tier: "origin", CacheStatus: "listedge; fwd=uri-miss; collapsed", ProofAge: 0},
			Took: edge.TimesRecord{Total: 0.3, Key: 0.1, Wait: 0.19, Redis: 0.01, Fill: 0.5, Query: 0.4, Shared: true}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 300ms.
The page was read from the database: neither memory nor Redis had it.
Of its 300ms it took 190ms to wait for a fill that another request had begun (its query: 400ms), 100ms to look up the key.`},
		{"changed", edge.Record{Route: "items", Status: 200, Page: edge.PageRecord{Tier: "origin", CacheStatus: "listedge; fwd=stale", ProofAge: 0}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The page was read from the database: the one in memory or Redis was invalidated or not known to be fresh.
It waited for nothing.`},
		{"changed by a known transaction", edge.Record{Route: "items", Status: 200, Page: edge.PageRecord{Tier: "origin", CacheStatus: "listedge; fwd=stale",
			Invalidation: edge.InvalidationRecord{Concern: "shown", Transaction: 777, Term: 5, N: 12, CommittedAt: at.UnixMicro() - 1_554_999}}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The page was read from the database: the one in memory or Redis was invalidated by transaction 777 at 03:04:04.123Z (position 5-12), which changed a row on the page, or the first row after it.
It waited for nothing.`},
		{"older than what is remembered", edge.Record{Route: "items", Status: 200, Page: edge.PageRecord{Tier: "origin", CacheStatus: "listedge; fwd=stale",
			Invalidation: edge.InvalidationRecord{Concern: "forgotten"}}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The page was read from the database: the one in memory or Redis was older than the changes of its list that this node remembers.
It waited for nothing.`},
		{"served stale, changed by a transaction of unknown time", edge.Record{Route: "items", Status: 200, Cause: "dial", Page: edge.PageRecord{Tier: "memory", CacheStatus: "listedge; fwd=stale; detail=stale-if-error",
			Invalidation: edge.InvalidationRecord{Concern: "any-row", Transaction: 777, Term: 5, N: 12}}},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 200 after 0s.
The page was stale: it last equalled the database 0s before. It was served because the database could not be read: dial.
It was invalidated by transaction 777 (position 5-12), whose changed rows are not known.
It waited for nothing.`},
		{"failed", edge.Record{Route: "items", Status: 503, Message: "The database cannot be reached.", Cause: "dial"},
			`At 2026-01-02T03:04:05.678Z a request without a valid key for items got status 503 after 0s.
The error message was: The database cannot be reached.
The cause was: dial.
It waited for nothing.`},
	} {
		c.record.Time = at
		if got := strings.Join(Sentences(&c.record), "\n"); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}
