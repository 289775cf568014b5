package edge

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/limiter"
	"listedge/origin/apikey"
)

// The RateLimit headers have one item for each bucket. The X-RateLimit headers are about
// the bucket with fewer tokens.
func TestLimitHeaders(t *testing.T) {
	c := &client{policy: unique.Make(`"key";q=100;w=2;rate=50`), limit: 100, workspaceLimit: 500, workspaceBucket: new(limiter.Bucket)}
	alone := &client{policy: c.policy, limit: 100}
	second := func(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
	november := &period{policy: `"quota";q=1000;w=2592000`}
	quota := &quota{Quota: apikey.Quota{Requests: 1000, Period: apikey.Month}}
	c.quota, alone.quota = quota, quota
	var described struct {
		Components struct {
			Schemas map[string]struct{ Pattern string }
		}
	}
	must(0, json.Unmarshal(openAPISource, &described))
	for name, v := range map[string]struct {
		c    *client
		d    limiter.Decision
		want string
	}{
		"the quota has fewer": {c, limiter.Decision{Allowed: true, Key: limiter.Status{Remaining: 99, ResetIn: 1}, Workspace: limiter.Status{Remaining: 7, ResetIn: second(2)},
			Quota: limiter.Status{Remaining: 5, ResetIn: second(3600.5)}},
			"RateLimit: \"key\";r=99;t=1, \"workspace\";r=7;t=2, \"quota\";r=5;t=3601\r\nX-RateLimit-Limit: 1000\r\nX-RateLimit-Remaining: 5\r\nX-RateLimit-Reset: 3601\r\n"},
		"the quota has more": {alone, limiter.Decision{Allowed: true, Key: limiter.Status{Remaining: 99, ResetIn: 1}, Quota: limiter.Status{Remaining: 500, ResetIn: second(60)}},
			"RateLimit: \"key\";r=99;t=1, \"quota\";r=500;t=60\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 99\r\nX-RateLimit-Reset: 1\r\n"},
		"the quota refused": {alone, limiter.Decision{Refused: limiter.Quota, RetryAfter: second(60), Key: limiter.Status{}, Quota: limiter.Status{RetryIn: second(60), ResetIn: second(60)}},
			"RateLimit: \"key\";r=0;t=0, \"quota\";r=0;t=60\r\nX-RateLimit-Limit: 1000\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 60\r\n"},
		"the quota is not known while Redis is away": {alone, limiter.Decision{Refused: limiter.Quota, RetryAfter: second(1), Quota: limiter.Status{RetryIn: second(1), ResetIn: second(60)}},
			"RateLimit: \"key\";r=0;t=0, \"quota\";r=0;t=60\r\nX-RateLimit-Limit: 1000\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 1\r\n"},
		"allowed": {alone, limiter.Decision{Allowed: true, Key: limiter.Status{Remaining: 99, ResetIn: second(.02)}},
			"RateLimit: \"key\";r=99;t=1\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 99\r\nX-RateLimit-Reset: 1\r\n"},
		"full": {alone, limiter.Decision{Allowed: true, Key: limiter.Status{Remaining: 100}},
			"RateLimit: \"key\";r=100;t=0\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 100\r\nX-RateLimit-Reset: 0\r\n"},
		"the workspace has fewer": {c, limiter.Decision{Allowed: true, Key: limiter.Status{Remaining: 99, ResetIn: 1}, Workspace: limiter.Status{Remaining: 7, ResetIn: second(2)}},
			"RateLimit: \"key\";r=99;t=1, \"workspace\";r=7;t=2\r\nX-RateLimit-Limit: 500\r\nX-RateLimit-Remaining: 7\r\nX-RateLimit-Reset: 2\r\n"},
		"refused": {c, limiter.Decision{Refused: limiter.Key, RetryAfter: second(1.5), Key: limiter.Status{RetryIn: second(1.5), ResetIn: second(1.5)}, Workspace: limiter.Status{Remaining: 7, ResetIn: second(2)}},
			"RateLimit: \"key\";r=0;t=2, \"workspace\";r=7;t=2\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 2\r\n"},
		"blocked": {c, limiter.Decision{Refused: limiter.Workspace, Source: limiter.SourceBlocked, RetryAfter: time.Hour, Workspace: limiter.Status{RetryIn: time.Hour, ResetIn: time.Hour}},
			"RateLimit: \"workspace\";r=0;t=3600\r\nX-RateLimit-Limit: 0\r\nX-RateLimit-Remaining: 0\r\nX-RateLimit-Reset: 3600\r\n"},
	} {
		policy, of := "RateLimit-Policy: \"key\";q=100;w=2;rate=50", (*period)(nil)
		if strings.Contains(v.want, "quota") {
			policy, of = policy+", \"quota\";q=1000;w=2592000", november
		}
		if got, want := string(appendLimits(nil, v.c, of, &v.d)), policy+"\r\n"+v.want; got != want {
			t.Errorf("%s:\n%s instead of\n%s", name, got, want)
		}
		for _, header := range []string{"RateLimit-Policy", "RateLimit"} {
			_, value, _ := strings.Cut(policy+"\r\n"+v.want, header+": ")
			value, _, _ = strings.Cut(value, "\r\n")
			pattern := described.Components.Schemas[strings.ReplaceAll(header, "-", "")].Pattern
			if pattern == "" || !regexp.MustCompile(pattern).MatchString(value) {
				t.Errorf("%s: %s: %s is not described by %s", name, header, value, pattern)
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
			if got := string(appendPolicy(nil, "key", p)); got != want {
				t.Error(got)
			}
		})
	}
}

// Keys share the bucket of their workspace. A key that was moved to another workspace has the same
// bucket on a node that knew it before and on one that did not.
func TestAKeyHasOneBucketOnAllNodes(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	k := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: apikey.Limit{Set: true, Rate: 1, Burst: 10, Version: 5},
		WorkspaceLimit: apikey.Limit{Set: true, Rate: 2, Burst: 20, Version: 7}}
	var before, changed, other, moved, unknown client
	s.makeClient(k, &before)
	k.Limit.Burst, k.Limit.Version = 11, 6
	s.makeClient(k, &changed)
	if changed.bucket != before.bucket || changed.workspaceBucket != before.workspaceBucket || changed.bucket.Policy().Burst != 11 {
		t.Error("a changed limit has another bucket")
	}
	k.ID = uuid.New()
	if s.makeClient(k, &other); other.workspaceBucket != before.workspaceBucket || other.bucket == before.bucket {
		t.Error("two keys of a workspace have two buckets of the workspace, or one of their own")
	}
	k.Workspace = uuid.New()
	s.makeClient(k, &moved)
	s.makeClient(k, &unknown)
	if moved.bucket != unknown.bucket || moved.bucket == changed.bucket || moved.workspaceBucket == changed.workspaceBucket {
		t.Error("a moved key has two buckets, or its old workspace's")
	}
}

// A quota that is not valid refuses the requests of its workspace: it is not taken for none.
func TestAnInvalidQuotaIsNotNone(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	var c client
	if s.makeClient(apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: apikey.DefaultLimit, Quota: apikey.InvalidQuota}, &c); c.broken == nil {
		t.Error("it is admitted")
	}
}

// Whatever rate and burst a row may have, its key has a bucket with this burst, and with
// this rate in whole micro-tokens: rounded down, but not to nothing. The window that
// RateLimit-Policy names is an integer of HTTP, which has at most 15 digits.
func TestEveryLimitOfARowCanBeEnforced(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	random := rand.New(rand.NewPCG(8, 5))
	rates := []float64{0, math.SmallestNonzeroFloat64, 1e-12, 1e-10, 1e-5, 0.1, 1, math.MaxFloat64}
	for range 200 {
		rates = append(rates, math.Exp(random.Float64()*60-40))
	}
	policyHeader := regexp.MustCompile(`^"key";q=\d{1,10}(;w=[1-9]\d{0,14}(;rate=\d{1,10}(\.\d{0,2}[1-9])?)?)?, "workspace";q=\d{1,10}(;w=[1-9]\d{0,14}(;rate=\d{1,10}(\.\d{0,2}[1-9])?)?)?$`)
	for _, rate := range rates {
		for _, burst := range []int32{1, 2, 3, 1000, 1_000_000, math.MaxInt32} {
			l := apikey.LimitOf(&rate, &burst, apikey.DefaultLimit)
			var c client
			if s.makeClient(apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: l, WorkspaceLimit: l}, &c); c.broken != nil {
				t.Fatalf("%g/s, %d at once: %v", rate, burst, c.broken)
			}
			for _, p := range []limiter.Policy{c.bucket.Policy(), c.workspaceBucket.Policy()} {
				got, whole := float64(p.Rate)/1e6, max(rate, 1e-6)
				if p.Burst != int64(burst) || p.Blocked() != (rate == 0) || rate > 0 && got > whole || rate > 0 && rate < 1e9 && got < whole-1.1e-6 {
					t.Errorf("%g/s, %d at once became %d/1e6 a second, %d", rate, burst, p.Rate, p.Burst)
				}
			}
			for range 2 {
				d := s.limiter.Take(time.Now(), c.bucket, c.workspaceBucket, nil)
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
