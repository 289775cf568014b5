package edge

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/limiter"
)

func TestTheRequestLogHasASampleOfHits(t *testing.T) {
	s, ctx := hitServer(t, "")
	ctx.Conn().(*conn).hits = 0
	for i := range 2 * hitsPerSample {
		ctx.Request.Header.Set("X-Request-Id", fmt.Sprint("hit-", i))
		answerTo(t, s, ctx)
	}
	for i := range 2 * hitsPerSample {
		found := s.Records(fmt.Sprint("hit-", i))
		if want := i%hitsPerSample == 0; want != (len(found) == 1) {
			t.Errorf("hit %d: %+v", i, found)
		}
	}
	got := s.Records("hit-0")[0]
	if got.Status != 200 || got.Outcome != "memory" || got.CacheStatus != "listedge; hit; detail=ttl" || got.ProofAge <= 0 || got.Took <= 0 ||
		got.KeyID == uuid.Nil || got.WorkspaceID == uuid.Nil || got.RefusedBy != "" || got.Limit != "memory" ||
		got.RateLimitPolicy != `"key";q=1000000;w=1;rate=1000000, "workspace";q=1000000;w=1;rate=1000000` || !strings.HasPrefix(string(got.RateLimit),
		`"key";r=999`) {
		t.Errorf("%+v", got)
	}
}

// Every error is logged. Many errors of one class evict none of another class.
func TestAFloodOfRefusalsEvictsNoFailures(t *testing.T) {
	s, ctx := hitServer(t, "")
	pages := s.Cache
	s.Cache = nil // a defect
	ctx.Request.Header.Set("X-Request-Id", "broken")
	answerTo(t, s, ctx)
	s.Cache = pages
	ctx.Request.SetRequestURI("/v1/items?limit=0")
	for i := range 2 * entriesPerRing {
		ctx.Request.Header.Set("X-Request-Id", fmt.Sprint("wrong-", i))
		answerTo(t, s, ctx)
		if found := s.Records(fmt.Sprint("wrong-", i)); len(found) != 1 || found[0].Status != 400 || found[0].Message != invalid.message {
			t.Fatalf("%d: %+v", i, found)
		}
	}
	if found := s.Records("wrong-0"); len(found) != 0 {
		t.Errorf("the request log has no bound: %+v", found)
	}
	if found := s.Records("broken"); len(found) != 1 || found[0].Status != 500 || found[0].Cause == "" {
		t.Errorf("%+v", found)
	}
}

// A record says who asked: never with a whole key, and with nothing that a terminal obeys.
func TestARecordNamesTheClient(t *testing.T) {
	type request struct{ key, agent, forwarded string }
	type want struct {
		status             int
		client, agent, key string
	}
	for name, c := range map[string]struct {
		sent request
		want want
	}{
		"a valid key":    {request{aKey, "curl/8.5.0", ""}, want{200, "127.0.0.1", "curl/8.5.0", "lk_000000"}},
		"a wrong key":    {request{aKey[:42] + "x", "sync/1 (\"x\")", "192.0.2.7"}, want{401, "192.0.2.7", "sync/1 (x)", "lk_000000"}},
		"no key of ours": {request{"hunter2", "", "2001:db8::1%zone"}, want{401, "2001:db8::1", "", "h"}},
		"no key":         {request{"", strings.Repeat("a", 9000), "192.0.2.7, 192.0.2.8"}, want{401, "192.0.2.8", strings.Repeat("a", maxAgent), ""}},
		"control bytes":  {request{aKey, "\x1b[2J\xc2\x9b1m\xff", "junk"}, want{200, "127.0.0.1", `\x1b[2J\u009b1m\xff`, "lk_000000"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := hitServer(t, "")
			s.networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			ctx.Conn().(*conn).hits = 0
			h := &ctx.Request.Header
			h.Set("X-API-Key", c.sent.key)
			h.Set("X-Forwarded-For", c.sent.forwarded)
			h.Set("X-Request-Id", "it")
			h.SetUserAgent(c.sent.agent)
			answer := answerTo(t, s, ctx)
			r := s.Records("it")[0]
			written := func(text headerText) string { return string(must(text.MarshalText())) }
			if got := (want{r.Status, r.Client.String(), written(r.Agent), written(r.KeyPrefix)}); got != c.want || r.Bytes != len(answer.Body) {
				t.Errorf("%+v, %d bytes, want %+v, %d bytes", got, r.Bytes, c.want, len(answer.Body))
			}
		})
	}
}

// The record of a refused request has no page, even if the request revalidates one.
func TestARefusalIsLoggedWithoutAPage(t *testing.T) {
	s, ctx := hitServer(t, "")
	entry, _ := keyOf(t, s)
	s.Limiter.Bucket(limiter.KeyBucket(entry.Key.Workspace.String(), entry.Key.ID.String()), limiter.Policy{Burst: 1})
	ctx.Request.Header.Set("X-Request-Id", "refused")
	ctx.Request.Header.Set("If-None-Match", "*")
	if got := answerTo(t, s, ctx); got.Status != 429 {
		t.Fatalf("%+v", got)
	}
	if got := s.Records("refused")[0]; got.Tier != "" || got.CacheStatus != "" {
		t.Errorf("%+v", got)
	}
	if got := s.Limiter.Stats().Refused[limiter.SourceBlocked]; got != 1 {
		t.Errorf("%d refusals are counted", got)
	}
}

func TestASlowHitIsLogged(t *testing.T) {
	s, ctx := hitServer(t, "")
	x := s.begin(ctx)
	x.conn.hits = 1 // the next hit is not in the sample
	if class := x.class(200, slowFrom-1); class != unlogged {
		t.Errorf("a quick one: %d", class)
	}
	if class := x.class(200, slowFrom); class != failed {
		t.Errorf("a slow one: %d", class)
	}
}

// Whatever clients send and whatever fails, the texts of an entry have bounds.
func TestTheRequestLogIsBounded(t *testing.T) {
	long := errors.New(strings.Repeat("c", 20<<10))
	for name, fail := range map[string]func(x *exchange){
		"cause of a problem": func(x *exchange) { x.failure = &failure{problem: originDown, cause: long} },
		"cause of a stale page": func(x *exchange) {
			x.result = cache.Result{Entry: entryWith(t, strings.Repeat("x", 20<<10)), Source: cache.Memory, Err: long}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := hitServer(t, "")
			x := s.begin(ctx)
			fail(x)
			if r := recordOf(x, 503, time.Second); len(r.Cause) != maxCause+len("…") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// unknownParameters are n that no list has.
func unknownParameters(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "&u%d", i)
	}
	return b.String()
}
