package edge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/limiter"
	"listedge/origin/apikey"
)

// Behind a proxy a connection is that of many clients: whichever asks next, it
// is told of its own limits, as one that has a connection to itself.
func TestAConnectionTellsEachClientItsOwnLimits(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	workspaces := []uuid.UUID{uuid.New(), uuid.New()}
	var clients []*client
	for _, rate := range []float64{0, 1e-3, 1000} {
		for _, burst := range []int64{3, 4} {
			for i, shared := range []apikey.Limit{{}, {Set: true, Rate: 1e-3, Burst: 40}} {
				var c client
				s.makeClient(apikey.Key{ID: uuid.New(), Workspace: workspaces[i], Limit: apikey.Limit{Set: true, Rate: rate, Burst: burst}, WorkspaceLimit: shared}, &c)
				if c.broken != nil {
					t.Fatal(c.broken)
				}
				clients = append(clients, &c)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 3))
	one, seen, again := &conn{server: s}, map[string]int{}, 0
	for range 2000 {
		x := &exchange{client: clients[random.IntN(len(clients))], conn: one, now: time.Now()}
		x.decision = s.limiter.TakeAt(x.now, x.client.bucket, x.client.workspaceBucket)
		before := one.told.standing
		is, want := string(one.told.of(x)), string(new(told).of(x))
		if is != want {
			t.Fatalf("told\n%s instead of\n%s", is, want)
		}
		if one.told.standing == before {
			again++
		}
		if seen[is]++; !strings.Contains(is, fmt.Sprintf("\r\nX-RateLimit-Limit: %d\r\n", x.client.limit)) && !strings.Contains(is, "X-RateLimit-Limit: 40\r\n") {
			t.Errorf("a burst of %d: %s", x.client.limit, is)
		}
	}
	if len(seen) < 12 || again == 0 || again > 1900 {
		t.Errorf("%d different lines, told again %d times", len(seen), again)
	}
}

// A node that knew a key before it was moved to another workspace spends from the
// same bucket as one that did not.
func TestAKeyHasOneBucketOnAllNodes(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	k := apikey.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: apikey.Limit{Set: true, Rate: 1, Burst: 10, Version: 5},
		WorkspaceLimit: apikey.Limit{Set: true, Rate: 2, Burst: 20, Version: 7}}
	var before, changed, moved, unknown client
	s.makeClient(k, &before)
	k.Limit.Burst, k.Limit.Version = 11, 6
	s.makeClient(k, &changed)
	if changed.bucket != before.bucket || changed.workspaceBucket != before.workspaceBucket || changed.bucket.Policy().Burst != 11 {
		t.Error("a changed limit has another bucket")
	}
	k.Workspace = uuid.New()
	s.makeClient(k, &moved)
	s.makeClient(k, &unknown)
	if moved.bucket != unknown.bucket || moved.bucket == changed.bucket || moved.workspaceBucket == changed.workspaceBucket {
		t.Error("a moved key has two buckets, or its old workspace's")
	}
}

// Whatever rate and burst a row may have, its key is served, and never more than
// they say.
func TestEveryLimitOfARowCanBeEnforced(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	random := rand.New(rand.NewPCG(8, 5))
	rates := []float64{0, math.SmallestNonzeroFloat64, 1e-12, 1e-10, 1e-5, 0.1, 1, math.MaxFloat64}
	for range 200 {
		rates = append(rates, math.Exp(random.Float64()*60-40))
	}
	cut := 0
	for _, rate := range rates {
		for _, burst := range []int32{1, 2, 3, 1000, 1_000_000, math.MaxInt32} {
			l := apikey.LimitOf(&rate, &burst, apikey.DefaultLimit)
			var c client
			if s.makeClient(apikey.Key{ID: uuid.New(), Limit: l, WorkspaceLimit: l}, &c); c.broken != nil {
				t.Fatalf("%g/s, %d at once: %v", rate, burst, c.broken)
			}
			for _, p := range []limiter.Policy{c.bucket.Policy(), c.workspaceBucket.Policy()} {
				if p.Rate > rate || p.Burst > int64(burst) || rate > 1e-3 && (p.Rate != rate || rate > 1 && p.Burst != int64(burst)) {
					t.Errorf("%g/s, %d at once became %g/s, %d", rate, burst, p.Rate, p.Burst)
				}
				if p.Burst < int64(burst) {
					cut++
				}
			}
		}
	}
	if cut == 0 {
		t.Error("no limit was cut")
	}
}
