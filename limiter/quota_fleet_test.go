//go:build !race

package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
)

// quotaFleet is a fleet whose nodes share a quota. The rate of its bucket, which nobody asks, is that of
// the requests.
type quotaFleet struct {
	*world
	ends    time.Time
	tokens  int64
	crashed []*node
}

// spendQuota has f play with so many nodes that have counted one another.
func spendQuota(t *testing.T, seed uint64, mode FailureMode, tokens int64, perSecond float64, nodes int, f func(q *quotaFleet)) {
	simulate(t, seed, policy(t, perSecond, 100), nodes, mode, func(w *world) {
		f(&quotaFleet{world: w, tokens: tokens, ends: time.Now().Add(100 * 24 * time.Hour)})
	})
}

func (q *quotaFleet) count(i int) *Counter {
	return q.nodes[i].limiter.Quota("w", "day", q.tokens, q.ends)
}

// take sends a request to a node.
func (q *quotaFleet) take(i int) Decision {
	q.offered++
	d := q.nodes[i].limiter.Take(time.Now(), nil, nil, q.count(i))
	if d.Allowed {
		q.admitted++
		q.nodes[i].spent++
	}
	return d
}

// lost is what Redis counts for nodes that crashed, and they have not spent.
func (q *quotaFleet) lost() (tokens int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, n := range q.crashed {
		for _, c := range q.counts {
			tokens += max(0, c.runs[n.run].taken-n.spent)
		}
	}
	return tokens
}

// loads are how requests come.
var loads = []struct {
	name string
	shape
}{{"spread", steady(1)}, {"sticky", sticky(1)}, {"moving", moving}, {"bursty", bursty}}

// traffic sends requests for a while, or until stop.
func (q *quotaFleet) traffic(s shape, span time.Duration, stop func() bool) {
	for end := time.Now().Add(span); time.Now().Before(end) && !stop(); {
		gap, node := s(q.world)
		boottimetest.Pass(time.Duration(gap) * time.Microsecond)
		q.take(int(node))
	}
}

// locked has f change the world.
func (q *quotaFleet) locked(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f()
}

func endless() bool { return false }

// spendRest sends requests to all nodes until long after the quota is used up.
func (q *quotaFleet) spendRest() {
	for range 30 {
		for quiet := 0; quiet < len(q.nodes); {
			quiet++
			if q.take(int(q.offered) % len(q.nodes)).Allowed {
				quiet = 0
			}
		}
		boottimetest.Pass(2 * time.Second)
	}
}

// A fleet admits exactly a quota: what no request takes from a node goes back to the others.
// Only few requests ask Redis.
func TestAQuotaIsAdmittedExactly(t *testing.T) {
	for _, c := range []struct {
		tokens    int64
		perSecond float64
		calls     float64 // for a request while the quota lasts, at most
	}{{1, 1, 2}, {10, 2, 2}, {50, 1, 1.6}, {1_000, 20, .3}, {20_000, 200, .15}} {
		for _, nodes := range []int{1, 3, 8} {
			line := ""
			for _, load := range loads {
				spendQuota(t, 3, FailDeny, c.tokens, c.perSecond, nodes, func(q *quotaFleet) {
					before := q.calls.Load()
					q.traffic(load.shape, time.Hour, func() bool { return q.admitted >= c.tokens*9/10 })
					calls := float64(q.calls.Load()-before) / float64(max(1, q.offered))
					if refused := q.offered - q.admitted; refused > 0 {
						t.Errorf("%d nodes, %s: %d refused with %d left", nodes, load.name, refused, c.tokens-q.admitted)
					}
					q.traffic(load.shape, time.Duration(float64(c.tokens)/c.perSecond*float64(time.Second)), endless)
					q.spendRest()
					line += fmt.Sprintf(" | %s %.3f", load.name, calls)
					if q.admitted != c.tokens || calls > c.calls {
						t.Errorf("%d nodes, %s at %v/s: %d of %d admitted, %.2f calls a request", nodes, load.name, c.perSecond, q.admitted, c.tokens, calls)
					}
				})
			}
			t.Logf("%5d at %3.0f/s, %d nodes: calls a request%s", c.tokens, c.perSecond, nodes, line)
		}
	}
}

// Redis hangs, answers late or not at all, nodes lose what it says and are killed: never more
// than the quota is admitted, and all of it but what killed nodes held.
func TestAQuotaInStorms(t *testing.T) {
	for seed := range uint64(20) {
		tokens := []int64{10, 100, 1_000, 5_000}[seed%4]
		spendQuota(t, seed, FailDeny, tokens, float64(tokens)/30, []int{1, 3, 8}[seed/4%3], func(q *quotaFleet) {
			load, kills := loads[q.random.IntN(len(loads))], seed%2 == 0
			calm := func() {
				q.hung, q.loses = time.Now(), func() bool { return false }
				q.far(200)
				for _, n := range q.nodes {
					n.deaf = false
				}
			}
			for range 20 {
				i := q.random.IntN(len(q.nodes))
				q.locked(func() {
					switch q.random.IntN(6) {
					case 0:
						q.hang(3_600e6)
					case 1:
						q.nodes[i].deaf = true
					case 2:
						q.far(q.random.Int64N(400_000))
						q.loses = func() bool { return q.random.IntN(3) == 0 }
					case 3:
						if kills {
							q.crashed = append(q.crashed, q.nodes[i])
							q.crash(i)
						}
					default:
						calm()
					}
				})
				q.traffic(load.shape, time.Duration(q.random.Int64N(int64(3*time.Second))), endless)
				if q.admitted > tokens {
					t.Fatalf("seed %d: %d of %d admitted", seed, q.admitted, tokens)
				}
			}
			q.locked(calm)
			boottimetest.Pass(3 * time.Second)
			q.spendRest()
			if q.admitted != tokens-q.lost() {
				t.Errorf("seed %d: %d of %d admitted, and nodes that were killed held %d", seed, q.admitted, tokens, q.lost())
			}
		})
	}
}

// A quota that is changed in its period keeps what was spent: exactly as much as the last one
// has is admitted, if that much was left.
func TestAChangedQuotaKeepsWhatWasSpent(t *testing.T) {
	for _, nodes := range []int{1, 3, 8} {
		for _, change := range [][]int64{{1_000, 1_500}, {1_000, 600}, {1_000, 200, 1_100}, {100, 5, 101}, {20, 3, 8, 40}, {1_000, 10, 1_000}} {
			t.Run(fmt.Sprint(nodes, change), func(t *testing.T) {
				spendQuota(t, 1, FailDeny, change[0], 100, nodes, func(q *quotaFleet) {
					q.traffic(steady(1), time.Hour, func() bool { return q.admitted >= change[0]/2 })
					before := q.admitted
					for _, q.tokens = range change[1:] {
						for i := range q.nodes {
							q.count(i)
						}
						boottimetest.Pass(3 * time.Second)
						if q.tokens == change[len(change)-1] {
							q.spendRest()
						}
					}
					if want := max(before, q.tokens); q.admitted != want {
						t.Errorf("%d admitted, %d of them before, want %d", q.admitted, before, want)
					}
				})
			})
		}
	}
}

// Some nodes or all are cut off from Redis: each admits its part of what is left, as far as
// it knows, and the quota is debited with all of it. So at most the parts of the nodes that
// were cut off are admitted too much, and none if they are back before the quota is used up.
func TestAQuotaWithoutRedis(t *testing.T) {
	for _, tokens := range []int64{30, 500, 5_000} {
		for _, c := range []struct{ cut, nodes int }{{1, 1}, {1, 3}, {2, 3}, {8, 8}} {
			for _, cuts := range []struct {
				what        string
				first, each time.Duration
				times       int
			}{
				{"once", 10 * time.Second, 3 * time.Second, 1}, {"again and again", 10 * time.Second, 3 * time.Second, 3},
				{"to the end", 20 * time.Second, time.Minute, 1},
			} {
				t.Run(fmt.Sprintf("%d, %d of %d, %s", tokens, c.cut, c.nodes, cuts.what), func(t *testing.T) {
					spendQuota(t, 7, FailLocal, tokens, float64(tokens)/30, c.nodes, func(q *quotaFleet) {
						set := func(cut bool) {
							for _, n := range q.nodes[:c.cut] {
								q.locked(func() { n.cut = cut })
							}
						}
						q.traffic(steady(1), cuts.first, endless)
						alone := tokens - q.admitted
						for range cuts.times {
							set(true)
							q.traffic(steady(1), cuts.each, endless)
							set(false)
							q.traffic(steady(1), time.Second, endless)
						}
						boottimetest.Pass(3 * time.Second)
						q.spendRest()
						over, part := q.admitted-tokens, alone*int64(c.cut)/int64(c.nodes)
						t.Logf("%d over, the part is %d", over, part)
						if over < 0 || over > part+2+part/8 || over > 0 && cuts.what != "to the end" {
							t.Errorf("%d over, and the nodes' part was %d", over, part)
						}
					})
				})
			}
		}
	}
}

// FailAllow admits all, and the quota is debited with all of it.
func TestAQuotaThatIsAllowedAbove(t *testing.T) {
	spendQuota(t, 1, FailAllow, 100, 20, 1, func(q *quotaFleet) {
		q.locked(func() { q.nodes[0].cut = true })
		q.traffic(steady(1), 20*time.Second, endless)
		q.locked(func() { q.nodes[0].cut = false })
		boottimetest.Pass(5 * time.Second)
		before := q.admitted
		q.spendRest()
		if left := q.quotaLeft(100); before < 300 || left != 100-before || q.admitted != before {
			t.Errorf("%d admitted, then %d more, %d left of 100", before, q.admitted-before, left)
		}
	})
}

// If Redis loses the count, the nodes bring back what they have taken.
func TestALostCountComesBack(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		spendQuota(t, 1, FailDeny, 1_000, 50, nodes, func(q *quotaFleet) {
			q.traffic(steady(1), 10*time.Second, endless)
			q.locked(func() { clear(q.counts) })
			q.traffic(steady(1), 5*time.Second, endless)
			q.spendRest()
			if q.admitted != 1_000 {
				t.Errorf("%d nodes: %d of 1000 admitted", nodes, q.admitted)
			}
		})
	}
}

// What is shown as left of a quota may be had.
func TestWhatIsShownOfAQuota(t *testing.T) {
	for _, nodes := range []int{1, 3, 8} {
		for _, load := range loads[:3] {
			spendQuota(t, 5, FailDeny, 10_000, 100, nodes, func(q *quotaFleet) {
				over, shown, low := 0, 0, int64(0)
				for q.admitted < 10_000 {
					gap, node := load.shape(q.world)
					boottimetest.Pass(time.Duration(gap) * time.Microsecond)
					d := q.take(int(node))
					if !d.Allowed {
						continue
					}
					shown++
					if more := d.Quota.Remaining - (10_000 - q.admitted); more > 0 {
						over++
					} else {
						low = max(low, -more)
					}
				}
				t.Logf("%d nodes, %s: %d of %d too many, at most %d too few", nodes, load.name, over, shown, low)
				if float64(over) > .03*float64(shown) || low > 2_000 {
					t.Errorf("%d nodes, %s: %d of %d shown too many, at most %d too few", nodes, load.name, over, shown, low)
				}
			})
		}
	}
}
