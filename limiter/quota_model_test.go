package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	twins "listedge/internal/world"
	. "listedge/limiter"
)

// quotaModel is the count of quota.lua in Go.
type quotaModel struct {
	total int64
	runs  map[int64]runCount
}

type runCount struct{ number, taken int64 }

// count is a call to a quota: see quota.lua.
type count struct{ tokens, run, number, floor, need, want, nodes, last, life int64 }

func (m *quotaModel) visit(c *count) []int64 {
	n := m.runs[c.run]
	if c.number > n.number {
		free := c.tokens - m.total + n.taken - c.floor
		more := max(0, min(c.need, free), min(c.want, free/(3*c.nodes)))
		m.total += c.floor + more - n.taken
		n.number, n.taken = c.number, c.floor+more
		if m.runs[c.run] = n; c.last == 1 {
			delete(m.runs, c.run)
		}
	}
	return []int64{n.taken, m.total}
}

// countOf returns the count of that key. v.mu is held.
func (v *virtual) countOf(key string) *quotaModel {
	if v.counts[key] == nil {
		v.counts[key] = &quotaModel{runs: map[int64]runCount{}}
	}
	return v.counts[key]
}

// quotaLeft is what no node has taken of the only quota.
func (v *virtual) quotaLeft(tokens int64) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key := range v.counts {
		tokens -= v.countOf(key).total
	}
	return tokens
}

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
		m := &twins.Quota{Runs: map[int64]twins.QuotaRun{}}
		all := []twins.QuotaCall{}
		for range 200 {
			c := twins.QuotaCall{Tokens: 1 + random.Int64N(4_000_000_000), Run: 1 + random.Int64N(3), Number: 1 + int64(len(all)), Floor: random.Int64N(2_000_000_000),
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
