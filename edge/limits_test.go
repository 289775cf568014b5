package edge

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/limiter"
	"listedge/origin"
)

// Behind a proxy a connection is that of many clients: whichever asks next, it
// is told of its own limits, as one that has a connection to itself.
func TestAConnectionTellsEachClientItsOwnLimits(t *testing.T) {
	s, _ := hitServer(t, `{"data":[]`)
	workspaces := []uuid.UUID{uuid.New(), uuid.New()}
	var clients []*client
	for _, rate := range []float64{0, 1e-3, 1000} {
		for _, burst := range []int64{3, 4} {
			for i, shared := range []origin.Limit{{}, {Set: true, Rate: 1e-3, Burst: 40}} {
				var c client
				s.makeClient(origin.Key{ID: uuid.New(), Workspace: workspaces[i], Limit: origin.Limit{Set: true, Rate: rate, Burst: burst}, WorkspaceLimit: shared}, nil, &c)
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
		x.limits = s.limiter.TakeAt(x.now, x.client.bucket, x.client.workspaceBucket)
		before := one.told.standing
		is, want := string(one.told.of(x)), string(new(told).of(x))
		if is != want {
			t.Fatalf("told\n%s instead of\n%s", is, want)
		}
		if one.told.standing == before {
			again++
		}
		limit := x.client.limit
		if x.limits.Source == limiter.SourceBlocked {
			limit = 0
		}
		if seen[is]++; !strings.Contains(is, fmt.Sprintf("\r\nX-RateLimit-Limit: %d\r\n", limit)) && !strings.Contains(is, "X-RateLimit-Limit: 40\r\n") {
			t.Errorf("a burst of %d: %s", limit, is)
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
	k := origin.Key{ID: uuid.New(), Workspace: uuid.New(), Limit: origin.Limit{Set: true, Rate: 1, Burst: 10, Version: 5},
		WorkspaceLimit: origin.Limit{Set: true, Rate: 2, Burst: 20, Version: 7}}
	var before, changed, moved, unknown client
	s.makeClient(k, nil, &before)
	k.Limit.Burst, k.Limit.Version = 11, 6
	s.makeClient(k, &before, &changed)
	if changed.bucket != before.bucket || changed.workspaceBucket != before.workspaceBucket || changed.bucket.Policy().Burst != 11 {
		t.Error("a changed limit has another bucket")
	}
	k.Workspace = uuid.New()
	s.makeClient(k, &changed, &moved)
	s.makeClient(k, nil, &unknown)
	if moved.bucket != unknown.bucket || moved.bucket == changed.bucket || moved.workspaceBucket == changed.workspaceBucket {
		t.Error("a moved key has two buckets, or its old workspace's")
	}
}
