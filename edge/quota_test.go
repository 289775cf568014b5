package edge

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/cache"
	"listedge/origin/apikey"
)

// giveQuota gives the workspace of the server's key a quota.
func giveQuota(t *testing.T, s *Server, q apikey.Quota) *client {
	t.Helper()
	entry, _ := keyOf(t, s)
	key := entry.Key
	key.Quota = q
	entry.Key.Quota = q
	s.makeClient(key, &entry.Value)
	return &entry.Value
}

// A request counts in the period in which it came, also while others count in the next. A
// new period begins full, with its own length in the headers.
func TestTheNextPeriodBegins(t *testing.T) {
	for _, c := range []struct {
		period              apikey.Period
		before, after       string
		policy, policyAfter string
	}{
		{apikey.Day, "2126-11-22T23:59:59.999Z", "2126-11-23T00:00:00Z", `"quota";q=3;w=86400`, `"quota";q=3;w=86400`},
		{apikey.Month, "2127-01-31T23:59:59.999Z", "2127-02-01T00:00:00Z", `"quota";q=3;w=2678400`, `"quota";q=3;w=2419200`},
	} {
		t.Run(string(c.period), func(t *testing.T) {
			s, _ := hitServer(t, "")
			workspace := uuid.New()
			q := &quota{Quota: apikey.Quota{Requests: 3, Period: c.period}, limiter: s.Limiter, workspace: workspace.String()}
			at := func(text string) time.Time {
				moment := must(time.Parse(time.RFC3339, text))
				return moment
			}
			before, after := at(c.before), at(c.after)
			p := q.at(before)
			if p != q.at(before.Add(-time.Hour)) || p.policy != c.policy || !p.end.Equal(after) {
				t.Fatalf("%+v", p)
			}
			// Each period has a count of its own, which can be spent at any time.
			spend := func(p *period, n int) (admitted int) {
				for range n {
					if s.Limiter.Take(time.Now(), nil, nil, p.count).Allowed {
						admitted++
					}
				}
				return admitted
			}
			if n := spend(p, 5); n != 3 {
				t.Fatalf("%d of 3 admitted", n)
			}
			next := q.at(after)
			if next == p || next.count == p.count || next.policy != c.policyAfter {
				t.Fatalf("%+v", next)
			}
			if n := spend(next, 5); n != 3 {
				t.Fatalf("%d of 3 admitted in the next period", n)
			}
			if late := q.at(before); late.count != p.count { // a request that came a moment before midnight
				t.Error("the period before has another count now")
			}
			var all sync.WaitGroup
			for i := range 8 {
				all.Go(func() {
					for range 200 {
						if i%2 == 0 && q.at(before).count != p.count || i%2 == 1 && q.at(after).count != next.count {
							t.Error("a request counts in the other period")
						}
					}
				})
			}
			all.Wait()
			q.at(after)
			if n := testing.AllocsPerRun(100, func() { q.at(after) }); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// A request that costs no token costs nothing of the quota. When the quota is used up,
// requests get 429 with its own code, and 304s from memory go on.
func TestAnswersOfAQuota(t *testing.T) {
	s, ctx := hitServer(t, "")
	entry, _ := keyOf(t, s)
	etag := cache.TagOf([]byte(bodyOf(""))).String()
	c := giveQuota(t, s, apikey.Quota{Requests: 3, Period: apikey.Day})
	left := func() int64 {
		return s.Limiter.Peek(time.Now(), nil, nil, c.quota.at(time.Now()).count).Quota.Remaining
	}
	ask := func(header, value, target string) answered {
		t.Helper()
		ctx.Request.Header.Del("If-None-Match")
		ctx.Request.Header.Del("If-Match")
		ctx.Request.Header.Set(header, value)
		ctx.Request.SetRequestURI(target)
		return answerTo(t, s, ctx)
	}
	for i, want := range []struct {
		header, value, target string
		status                int
		left                  int64
	}{
		{"Accept", "*/*", theTarget, 200, 2},
		{"If-None-Match", etag, theTarget, 304, 2},
		{"If-Match", `"a"`, theTarget, 412, 2},
		{"Accept", "*/*", "/v1/items?limit=0", 400, 1},
		{"Accept", "*/*", theTarget, 200, 0},
		{"If-None-Match", etag, theTarget, 304, 0},
		{"If-None-Match", `"other"`, theTarget, 429, 0},
		{"Accept", "*/*", "/v1/items?limit=0", 429, 0},
	} {
		got := ask(want.header, want.value, want.target)
		if got.Status != want.status || left() != want.left {
			t.Fatalf("request %d: %d, %d left, want %d and %d", i, got.Status, left(), want.status, want.left)
		}
		if got.Status != 429 {
			continue
		}
		now := time.Now().UTC()
		wait := time.Until(time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, time.UTC)) / time.Second
		retry, err := strconv.Atoi(got.Header("Retry-After"))
		if !strings.Contains(got.Body, `"code":"PLAN_LIMIT_REACHED"`) || err != nil || (time.Duration(retry)-wait).Abs() > 300 && wait > 300 {
			t.Errorf("request %d: Retry-After %d, with %d s to midnight: %s", i, retry, wait, got.Body)
		}
		if h := got.Head; h.Get("X-Ratelimit-Limit") != "3" || !strings.HasSuffix(h.Get("RateLimit-Policy"), `, "quota";q=3;w=86400`) ||
			!strings.HasSuffix(h.Get("RateLimit"), `, "quota";r=0;t=`+h.Get("Retry-After")) {
			t.Errorf("request %d: %v", i, h)
		}
	}
	ctx.Request.Header.Set("X-Request-Id", "used-up")
	ask("Accept", "*/*", theTarget)
	if r := s.Records("used-up")[0]; r.RefusedBy != "quota" || !strings.Contains(string(r.RateLimitPolicy), `"quota";q=3;w=86400`) ||
		!strings.Contains(string(r.RateLimit), `"quota";r=0;`) {
		t.Errorf("%+v", r.Limit)
	}
	key := s.Limiter.Peek(time.Now(), entry.Value.bucket, nil, nil).Key
	if key.Remaining < 1e6-10 {
		t.Errorf("%d tokens of the key left", key.Remaining)
	}
}
