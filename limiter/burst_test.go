package limiter

import (
	"fmt"
	"testing"
	"time"
)

// atOnceRefused is the share of whole bursts that is refused, each sent to a full
// bucket, spread over the nodes, one request every apart microseconds.
func atOnceRefused(t testing.TB, p Policy, nodes int, apart int64) (refused, calls float64) {
	w := newWorld(t, 11, p, nodes)
	w.oneWay = func() int64 { return 150 + w.random.Int64N(100) }
	const bursts = 20
	rest := p.units()/p.r + 25_000_000 // it fills up, and what is held goes back
	for i := range int64(bursts) {
		for k := range p.Burst {
			w.after(i*rest+k*apart, func() { w.nodes[w.anyNode()].request() })
		}
	}
	w.run(bursts * rest)
	return 1 - float64(w.admitted)/float64(w.offered), float64(w.calls) / float64(w.offered)
}

// A client that uses its whole burst at once is refused hardly any of it.
func TestAWholeBurstAtOnce(t *testing.T) {
	t.Parallel()
	for _, limit := range []struct {
		rate  float64
		burst int64
	}{{10, 20}, {50, 100}, {1_000, 1_000}} {
		p := policy(t, limit.rate, limit.burst)
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			for _, apart := range []int64{5, 50, 200, 1_000, 5_000} {
				refused, calls := atOnceRefused(t, p, nodes, apart)
				line += fmt.Sprintf(" |%5d us %5.2f %% %.2f", apart, 100*refused, calls)
				if most := .01; apart >= 50 && refused > most || refused > .05 {
					t.Errorf("%v/s burst %d, %d nodes, %d us apart: %.1f %% refused", limit.rate, limit.burst, nodes, apart, 100*refused)
				}
			}
			t.Logf("%5.0f/s burst %4d, %d nodes: refused, calls a request %s", limit.rate, limit.burst, nodes, line)
		}
	}
}

// A level tells when there is one more token, and when all are back.
func TestALevelTellsWhenThereIsMore(t *testing.T) {
	t.Parallel()
	p := policy(t, 0.1, 100)
	for _, c := range []struct {
		units int64 // quarters of a token
		left  int64
		next  time.Duration
		full  time.Duration
	}{
		{400, 100, 0, 0},
		{399, 99, 2500 * time.Millisecond, 2500 * time.Millisecond},
		{5, 1, 7500 * time.Millisecond, 987500 * time.Millisecond},
		{0, 0, 10 * time.Second, 1000 * time.Second},
	} {
		if l := levelOf(&p, c.units*p.p/4); l != (Level{Remaining: c.left, Next: c.next, Full: c.full}) {
			t.Errorf("%d quarters: %+v", c.units, l)
		}
	}
}
