package limiter_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	. "listedge/limiter"
)

// quotaFleet is a fleet that shares a quota, in virtual time.
type quotaFleet struct {
	*virtual
	t        *testing.T
	random   *rand.Rand
	mode     FailureMode
	nodes    []*Limiter
	ways     []*way
	spent    []int64 // by each since it started
	ends     time.Time
	tokens   int64
	asked    int
	admitted int64
}

// spendQuota runs f with so many nodes that have counted one another.
func spendQuota(t *testing.T, seed uint64, mode FailureMode, tokens int64, nodes int, f func(q *quotaFleet)) {
	synctest.Test(t, func(t *testing.T) {
		q := &quotaFleet{virtual: newVirtual(), t: t, random: rand.New(rand.NewPCG(seed, 5)), mode: mode, ends: time.Now().Add(100 * 24 * time.Hour), tokens: tokens}
		q.oneWay.Store(int64(100 * time.Microsecond))
		for i := range nodes {
			q.nodes, q.ways, q.spent = append(q.nodes, nil), append(q.ways, nil), append(q.spent, 0)
			q.start(i)
		}
		boottimetest.Pass(3 * time.Second)
		f(q)
		for i := range q.nodes {
			closeLimiter(t, q.nodes[i])
		}
	})
}

// start starts a node, as at first or after a crash.
func (q *quotaFleet) start(i int) {
	q.ways[i] = &way{virtual: q.virtual}
	q.nodes[i] = newLimiter(Options{NodeID: fmt.Sprint(i), FailureMode: q.mode}, q.ways[i])
	q.spent[i] = 0
}

// crash kills a node, and starts it again. It returns what is lost: what Redis counts for it
// and it has not spent.
func (q *quotaFleet) crash(i int) (lost int64) {
	q.mu.Lock()
	for _, c := range q.counts {
		lost = c.runs[q.ways[i].run.Load()].taken - q.spent[i]
	}
	q.mu.Unlock()
	q.ways[i].cut.Store(true)
	closeLimiter(q.t, q.nodes[i])
	q.start(i)
	return max(0, lost)
}

func (q *quotaFleet) count(i int) *Counter { return quotaFor(q.nodes[i], "day", q.tokens, q.ends) }

// take sends a request to a node.
func (q *quotaFleet) take(i int) Decision {
	q.asked++
	d := q.nodes[i].Take(time.Now(), nil, nil, q.count(i))
	if d.Allowed {
		q.admitted++
		q.spent[i]++
	}
	return d
}

// loads are how requests come: the gap to the next one, at so many a second, and its node.
var loads = []struct {
	name string
	next func(q *quotaFleet, perSecond float64) (gap float64, node int)
}{
	{"spread", func(q *quotaFleet, r float64) (float64, int) {
		return q.random.ExpFloat64() / r, q.random.IntN(len(q.nodes))
	}},
	{"sticky", func(q *quotaFleet, r float64) (float64, int) { return q.random.ExpFloat64() / r, 0 }},
	{"moving", func(q *quotaFleet, r float64) (float64, int) {
		return q.random.ExpFloat64() / r, int(time.Since(q.began).Seconds()/3) % len(q.nodes)
	}},
	{"bursty", func(q *quotaFleet, r float64) (float64, int) {
		if q.random.IntN(40) == 0 {
			return 40 * q.random.ExpFloat64() / r, q.random.IntN(len(q.nodes))
		}
		return 0.002 * q.random.Float64(), q.random.IntN(len(q.nodes))
	}},
}

// traffic sends requests for a while, or until stop.
func (q *quotaFleet) traffic(load int, perSecond float64, span time.Duration, stop func() bool) {
	for end := time.Now().Add(span); time.Now().Before(end) && !stop(); {
		gap, node := loads[load].next(q, perSecond)
		boottimetest.Pass(time.Duration(gap * float64(time.Second)))
		q.take(node)
	}
}

func endless() bool { return false }

// spendRest sends requests to all nodes until long after the quota is used up.
func (q *quotaFleet) spendRest() {
	for range 30 {
		for quiet := 0; quiet < len(q.nodes); {
			quiet++
			if q.take(q.asked % len(q.nodes)).Allowed {
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
			for i, load := range loads {
				spendQuota(t, 3, FailDeny, c.tokens, nodes, func(q *quotaFleet) {
					before := q.calls.Load()
					q.traffic(i, c.perSecond, time.Hour, func() bool { return q.admitted >= c.tokens*9/10 })
					asked, calls := q.asked, float64(q.calls.Load()-before)/float64(max(1, q.asked))
					if refused := int64(asked) - q.admitted; refused > 0 {
						t.Errorf("%d nodes, %s: %d refused with %d left", nodes, load.name, refused, c.tokens-q.admitted)
					}
					q.traffic(i, c.perSecond, time.Duration(float64(c.tokens)/c.perSecond*float64(time.Second)), endless)
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
	gone, crashes := int64(0), 0
	for seed := range uint64(20) {
		tokens := []int64{10, 100, 1_000, 5_000}[seed%4]
		held := int64(0)
		spendQuota(t, seed, FailDeny, tokens, []int{1, 3, 8}[seed/4%3], func(q *quotaFleet) {
			load, kills := q.random.IntN(len(loads)), seed%2 == 0
			for range 20 {
				i := q.random.IntN(len(q.nodes))
				switch q.random.IntN(6) {
				case 0:
					q.mood.Store(int32([]mood{hung, late, lost, slow}[q.random.IntN(4)]))
				case 1:
					q.ways[i].deaf.Store(true)
				case 2:
					q.oneWay.Store(q.random.Int64N(int64(200 * time.Millisecond)))
				case 3:
					if kills {
						crashes++
						held += q.crash(i)
					}
				default:
					q.mood.Store(int32(well))
					q.oneWay.Store(int64(100 * time.Microsecond))
					q.ways[i].deaf.Store(false)
				}
				q.traffic(load, float64(tokens)/30, time.Duration(q.random.Int64N(int64(3*time.Second))), endless)
				if q.admitted > tokens {
					t.Fatalf("seed %d: %d of %d admitted", seed, q.admitted, tokens)
				}
			}
			q.mood.Store(int32(well))
			q.oneWay.Store(int64(100 * time.Microsecond))
			for _, w := range q.ways {
				w.deaf.Store(false)
			}
			boottimetest.Pass(3 * time.Second)
			q.spendRest()
			if q.admitted != tokens-held {
				t.Errorf("seed %d: %d of %d admitted, and nodes that were killed held %d", seed, q.admitted, tokens, held)
			}
		})
		gone += held
	}
	t.Logf("%d nodes killed: %d tokens lost", crashes, gone)
}

// A quota that is changed in its period keeps what was spent: exactly as much as the last one
// has is admitted, if that much was left.
func TestAChangedQuotaKeepsWhatWasSpent(t *testing.T) {
	for _, nodes := range []int{1, 3, 8} {
		for _, change := range [][]int64{{1_000, 1_500}, {1_000, 600}, {1_000, 200, 1_100}, {100, 5, 101}, {20, 3, 8, 40}, {1_000, 10, 1_000}} {
			t.Run(fmt.Sprint(nodes, change), func(t *testing.T) {
				spendQuota(t, 1, FailDeny, change[0], nodes, func(q *quotaFleet) {
					q.traffic(0, 100, time.Hour, func() bool { return q.admitted >= change[0]/2 })
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
					spendQuota(t, 7, FailLocal, tokens, c.nodes, func(q *quotaFleet) {
						perSecond := float64(tokens) / 30
						set := func(cut bool) {
							for _, w := range q.ways[:c.cut] {
								w.cut.Store(cut)
							}
						}
						q.traffic(0, perSecond, cuts.first, endless)
						alone := tokens - q.admitted
						for range cuts.times {
							set(true)
							q.traffic(0, perSecond, cuts.each, endless)
							set(false)
							q.traffic(0, perSecond, time.Second, endless)
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
	spendQuota(t, 1, FailAllow, 100, 1, func(q *quotaFleet) {
		q.ways[0].cut.Store(true)
		q.traffic(0, 20, 20*time.Second, endless)
		q.ways[0].cut.Store(false)
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
		spendQuota(t, 1, FailDeny, 1_000, nodes, func(q *quotaFleet) {
			q.traffic(0, 50, 10*time.Second, endless)
			q.mu.Lock()
			clear(q.counts)
			q.mu.Unlock()
			q.traffic(0, 50, 5*time.Second, endless)
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
			spendQuota(t, 5, FailDeny, 10_000, nodes, func(q *quotaFleet) {
				over, shown, low := 0, 0, int64(0)
				for q.admitted < 10_000 {
					gap, node := load.next(q, 100)
					boottimetest.Pass(time.Duration(gap * float64(time.Second)))
					d := q.take(node)
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
