package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/world"
	. "listedge/limiter"
)

// Random calls, of which some are repeated or come late, change the count in Redis as they
// change the model. A value of another type, or another form, counts as none.
func TestQuotaScriptEqualsModel(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	script := redis.NewScript(QuotaText)
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		key := fmt.Sprintf("{w}:q:%d", i)
		switch i % 10 {
		case 0:
			client.LPush(t.Context(), key, "x")
		case 1:
			client.HSet(t.Context(), key, "total", "x", "run:1", "x")
		}
		m := &world.Quota{Runs: map[int64]world.QuotaRun{}}
		all := []world.QuotaCall{}
		for range 200 {
			c := world.QuotaCall{Tokens: 1 + random.Int64N(4_000_000_000), Run: 1 + random.Int64N(3), Number: 1 + int64(len(all)), Floor: random.Int64N(2_000_000_000),
				Need: random.Int64N(3), Want: random.Int64N(1_000_000), Nodes: 1 + random.Int64N(20), Last: random.Int64N(9) / 8, Life: 60_000}
			if len(all) > 0 && random.IntN(4) == 0 {
				c = all[max(0, len(all)-1-random.IntN(3))]
			}
			all = append(all, c)
			got, err := script.Run(t.Context(), client, []string{key}, c.Tokens, c.Run, c.Number, c.Floor, c.Need, c.Want, c.Nodes, c.Last, c.Life).Int64Slice()
			if want := m.Execute(&c); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%+v\nscript %d, %v\nmodel  %d", c, got, err, want)
			}
			if kept := client.PTTL(t.Context(), key).Val(); kept < time.Second || kept > time.Minute {
				t.Fatalf("%+v is kept for %v", c, kept)
			}
		}
	}
}
