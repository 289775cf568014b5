package edge

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
	"listedge/limiter"
	"listedge/origin/apikey"
)

// The RateLimit headers have one item for each bucket. The X-RateLimit headers are about
// the bucket with fewer tokens.
func TestLimitHeaders(t *testing.T) {
	c := &client{policy: unique.Make(`"key";q=100;w=2;rate=50`), limit: 100, workspaceLimit: 500, workspaceBucket: new(limiter.Bucket)}
	alone := &client{policy: c.policy, limit: 100}
	second := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	left := func(n int64, resetIn float64) limiter.Status {
		return limiter.Status{Remaining: n, ResetIn: second(resetIn)}
	}
	none := func(in float64) limiter.Status { return limiter.Status{RetryIn: second(in), ResetIn: second(in)} }
	november := &period{policy: `"quota";q=1000;w=2592000`}
	quota := &quota{Quota: apikey.Quota{Requests: 1000, Period: apikey.Month}}
	c.quota, alone.quota = quota, quota
	var described struct {
		Components struct {
			Schemas map[string]struct{ Pattern string }
		}
	}
	must(0, json.Unmarshal(OpenAPI(list.BuiltIn()), &described))
	for name, v := range map[string]struct {
		c       *client
		d       limiter.Decision
		items   string // of RateLimit
		buckets string // X-RateLimit-Limit, -Remaining and -Reset
	}{
		"the quota has fewer": {c, limiter.Decision{Allowed: true, Key: left(99, .1), Workspace: left(7, 2), Quota: left(5, 3600.5)},
			`"key";r=99;t=1, "workspace";r=7;t=2, "quota";r=5;t=3601`, "1000 5 3601"},
		"the quota has more": {alone, limiter.Decision{Allowed: true, Key: left(99, .1), Quota: left(500, 60)},
			`"key";r=99;t=1, "quota";r=500;t=60`, "100 99 1"},
		"the quota refused": {alone, limiter.Decision{Refused: limiter.Quota, RetryAfter: second(60), Quota: none(60)},
			`"key";r=0;t=0, "quota";r=0;t=60`, "1000 0 60"},
		"the quota is not known while Redis is away": {alone, limiter.Decision{Refused: limiter.Quota, RetryAfter: second(1), Quota: left(0, 60)},
			`"key";r=0;t=0, "quota";r=0;t=60`, "1000 0 1"},
		"allowed":                 {alone, limiter.Decision{Allowed: true, Key: left(99, .02)}, `"key";r=99;t=1`, "100 99 1"},
		"full":                    {alone, limiter.Decision{Allowed: true, Key: left(100, 0)}, `"key";r=100;t=0`, "100 100 0"},
		"the workspace has fewer": {c, limiter.Decision{Allowed: true, Key: left(99, .1), Workspace: left(7, 2)}, `"key";r=99;t=1, "workspace";r=7;t=2`, "500 7 2"},
		"refused": {c, limiter.Decision{Refused: limiter.Key, RetryAfter: second(1.5), Key: none(1.5), Workspace: left(7, 2)},
			`"key";r=0;t=2, "workspace";r=7;t=2`, "100 0 2"},
		"blocked": {c, limiter.Decision{Refused: limiter.Workspace, Source: limiter.SourceBlocked, RetryAfter: time.Hour, Workspace: none(3600)},
			`"workspace";r=0;t=3600`, "0 0 3600"},
	} {
		policy, of := `"key";q=100;w=2;rate=50`, (*period)(nil)
		if strings.Contains(v.items, "quota") {
			policy, of = policy+`, "quota";q=1000;w=2592000`, november
		}
		b := strings.Fields(v.buckets)
		want := fmt.Sprintf("RateLimit-Policy: %s\r\nRateLimit: %s\r\nX-RateLimit-Limit: %s\r\nX-RateLimit-Remaining: %s\r\nX-RateLimit-Reset: %s\r\n",
			policy, v.items, b[0], b[1], b[2])
		var got header
		if got.limits(v.c, &grant{decision: v.d, period: of}); string(got) != want {
			t.Errorf("%s:\n%s instead of\n%s", name, got, want)
		}
		for schema, value := range map[string]string{"RateLimitPolicy": policy, "RateLimit": v.items} {
			pattern := described.Components.Schemas[schema].Pattern
			if pattern == "" || !regexp.MustCompile(pattern).MatchString(value) {
				t.Errorf("%s: %s: %s is not described by %s", name, schema, value, pattern)
			}
		}
	}
}

// A bucket that fills in less than a second has a window of a second, so its rate is shown.
func TestThePolicyShowsTheRate(t *testing.T) {
	for want, p := range map[string]limiter.Policy{
		`"key";q=5;w=1;rate=50`:         {Rate: 50_000_000, Burst: 5},
		`"key";q=5;w=10;rate=0.5`:       {Rate: 500_000, Burst: 5},
		`"key";q=1;w=4;rate=0.333`:      {Rate: 333_333, Burst: 1},
		`"key";q=1;w=1000000`:           {Rate: 1, Burst: 1},
		`"key";q=1;w=1;rate=4294967296`: {Rate: 4_294_967_296_000_000, Burst: 1},
		`"key";q=0`:                     {Burst: 1},
	} {
		t.Run(want, func(t *testing.T) {
			var got header
			if got.policy("key", p); string(got) != want {
				t.Errorf("%s", got)
			}
		})
	}
}

// Keys share the bucket and the quota of their workspace. A changed one keeps what was used. A key that was moved to another workspace has the
// same bucket on a node that knew it before and on one that did not.
func TestWhatKeysShare(t *testing.T) {
	s, _ := hitServer(t, "")
	first := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: apikey.Limit{Set: true, Rate: 1, Burst: 10, Version: 5},
		WorkspaceLimit: apikey.Limit{Set: true, Rate: 2, Burst: 20, Version: 7}, Quota: apikey.Quota{Requests: 5, Period: apikey.Month}}
	var one client
	s.makeClient(first, &one)
	count := func(c *client) *limiter.Counter { return c.quota.at(time.Now()).count }
	s.Limiter.Take(time.Now(), nil, nil, count(&one))
	for name, c := range map[string]struct {
		change                func(k *apikey.Key)
		key, workspace, quota bool // is that of the first
	}{
		"nothing":                {func(*apikey.Key) {}, true, true, true},
		"another limit":          {func(k *apikey.Key) { k.Limit.Burst, k.Limit.Version = 11, 6 }, true, true, true},
		"another key":            {func(k *apikey.Key) { k.ID = uuid.New() }, false, true, true},
		"another workspace":      {func(k *apikey.Key) { k.Workspace = uuid.New() }, false, false, false},
		"a larger quota":         {func(k *apikey.Key) { k.Quota.Requests = 50 }, true, true, true},
		"a quota of other times": {func(k *apikey.Key) { k.Quota.Period = apikey.Day }, true, true, false},
		"no quota":               {func(k *apikey.Key) { k.Quota = apikey.Quota{} }, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			k := first
			c.change(&k)
			var known, unknown client
			s.makeClient(k, &known)
			s.makeClient(k, &unknown)
			quota := known.quota != nil && count(&known) == count(&one)
			if (known.bucket == one.bucket) != c.key || (known.workspaceBucket == one.workspaceBucket) != c.workspace || quota != c.quota ||
				known.bucket != unknown.bucket || known.bucket.Policy().Burst != int64(k.Limit.Burst) || (known.quota == nil) != (k.Quota == apikey.Quota{}) {
				t.Errorf("key %t, workspace %t, quota %t: %+v", known.bucket == one.bucket, known.workspaceBucket == one.workspaceBucket, quota, known.bucket.Policy())
			}
			if !quota {
				return
			}
			if left := s.Limiter.Peek(time.Now(), nil, nil, count(&known)).Quota.Remaining; left != int64(k.Quota.Requests)-1 {
				t.Errorf("%d are left", left)
			}
		})
	}
}

// Whatever rate and burst a row may have, its key has a bucket with this burst, and with
// this rate in whole micro-tokens: rounded down, but not to nothing. The window that
// RateLimit-Policy names is an integer of HTTP, which has at most 15 digits.
func TestEveryLimitOfARowCanBeEnforced(t *testing.T) {
	s, _ := hitServer(t, "")
	random := rand.New(rand.NewPCG(8, 5))
	rates := []float64{0, math.SmallestNonzeroFloat64, 1e-12, 1e-10, 1e-5, 0.1, 1, math.MaxFloat64}
	for range 200 {
		rates = append(rates, math.Exp(random.Float64()*60-40))
	}
	const numbers = `q=\d{1,10}(;w=[1-9]\d{0,14}(;rate=\d{1,10}(\.\d{0,2}[1-9])?)?)?`
	policyHeader := regexp.MustCompile(`^"key";` + numbers + `, "workspace";` + numbers + `$`)
	for _, rate := range rates {
		for _, burst := range []int32{1, 2, 3, 1000, 1_000_000, math.MaxInt32} {
			l := apikey.LimitOf(&rate, &burst, apikey.DefaultLimit)
			var c client
			s.makeClient(apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: l, WorkspaceLimit: l}, &c)
			for _, p := range []limiter.Policy{c.bucket.Policy(), c.workspaceBucket.Policy()} {
				got, whole := float64(p.Rate)/1e6, max(rate, 1e-6)
				if p.Burst != int64(burst) || p.Blocked() != (rate == 0) || rate > 0 && got > whole || rate > 0 && rate < 1e9 && got < whole-1.1e-6 {
					t.Errorf("%g/s, %d at once became %d/1e6 a second, %d", rate, burst, p.Rate, p.Burst)
				}
			}
			for range 2 {
				d := s.Limiter.Take(time.Now(), c.bucket, c.workspaceBucket, nil)
				if spent := burst == 1 && d.Key.Remaining == 0; d.Allowed != (rate > 0) && !spent || !d.Allowed && d.RetryAfter <= 0 || d.Key.ResetIn < 0 {
					t.Errorf("%g/s, %d at once: %+v", rate, burst, d)
				}
			}
			if !policyHeader.MatchString(c.policy.Value()) {
				t.Errorf("%g/s, %d at once: RateLimit-Policy: %s", rate, burst, c.policy.Value())
			}
		}
	}
}

// A 304, 412 or 504 from memory costs no token and needs none, on any page. Everything else
// costs one, and is 429 without one.
func TestWhatCostsAToken(t *testing.T) {
	etag := cache.TagOf([]byte(bodyOf(""))).String()
	q := page.Query{List: listtest.Items, Limit: 20, Order: listtest.ByName, Match: listtest.Goods | listtest.Low}
	q.After = positionOf(&q, "N")
	second := theTarget + "&cursor=" + string(q.AppendCursor(nil))
	for name, c := range map[string]struct {
		header, value, target string
		status                int
		free                  bool
	}{
		"page":                       {"Accept", "*/*", theTarget, 200, false},
		"page with a cursor":         {"Accept", "*/*", second, 200, false},
		"modified":                   {"If-None-Match", `"other"`, theTarget, 200, false},
		"not modified":               {"If-None-Match", etag, theTarget, 304, true},
		"not modified, any":          {"If-None-Match", "*", theTarget, 304, true},
		"not modified with a cursor": {"If-None-Match", etag, second, 304, true},
		"mismatch":                   {"If-Match", etag, theTarget, 412, true},
		"mismatch with a cursor":     {"If-Match", etag, second, 412, true},
		"not stored":                 {"Cache-Control", "only-if-cached", "/v1/items", 504, true},
		"not stored and not to be":   {"Cache-Control", "no-cache, only-if-cached", second, 504, true},
		"stored":                     {"Cache-Control", "only-if-cached", theTarget, 200, false},
		"changes, not known":         {"Cache-Control", "only-if-cached", "/v1/items?cursor=changes", 504, true},
		"changes, not proven":        {"Accept", "*/*", "/v1/items?cursor=changes", 503, false},
		"changes, mismatch":          {"If-Match", `"other"`, "/v1/items?cursor=changes", 412, true},
		"wrong parameter":            {"If-None-Match", "*", "/v1/items?limit=0", 400, false},
		"mismatch, wrong parameter":  {"If-Match", `"other"`, "/v1/items?limit=0", 400, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, ctx := hitServer(t, "")
			entry, _ := keyOf(t, s)
			q.Tenant = entry.Key.Tenant
			fillWith(t, s.Cache, q, "")
			policy := policyOf(apikey.Limit{Set: true, Rate: 0.001, Burst: 100})
			bucket := s.Limiter.Bucket(limiter.KeyBucket(entry.Key.Workspace.String(), entry.Key.ID.String()), policy)
			ctx.Request.SetRequestURI(c.target)
			ctx.Request.Header.Set(c.header, c.value)
			before := s.Limiter.Peek(time.Now(), bucket, nil, nil).Key.Remaining
			got := answerTo(t, s, ctx)
			left := s.Limiter.Peek(time.Now(), bucket, nil, nil).Key.Remaining
			if cost := before - left; got.Status != c.status || (cost == 0) != c.free || cost > 1 || got.Header("X-Ratelimit-Remaining") != fmt.Sprint(left) {
				t.Errorf("%+v cost %d, want %d", got, cost, c.status)
			}
			for s.Limiter.Take(time.Now(), bucket, nil, nil).Allowed {
			}
			want := c.status
			if !c.free {
				want = 429
			}
			if got := answerTo(t, s, ctx); got.Status != want {
				t.Errorf("%+v without a token, want %d", got, want)
			}
		})
	}
}
