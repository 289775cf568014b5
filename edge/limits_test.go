package edge

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

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
		if seen[is]++; !strings.Contains(is, fmt.Sprintf("\r\nX-RateLimit-Limit: %d\r\n", x.client.limit)) && !strings.Contains(is, "X-RateLimit-Limit: 40\r\n") {
			t.Errorf("a burst of %d: %s", x.client.limit, is)
		}
	}
	if len(seen) < 12 || again == 0 || again > 1900 {
		t.Errorf("%d different lines, told again %d times", len(seen), again)
	}
}
