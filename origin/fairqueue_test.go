package origin

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/page"
)

// demand is clients of a tenant, each of which sends one query after the other.
type demand struct {
	tenant  func() string // of the next query
	clients int
	takes   func() time.Duration
	longest time.Duration // that they take, where it matters
	pause   time.Duration // between two queries of a client
	from    time.Duration // when the first queries come

	serviceTime, waited time.Duration // of all queries, and the longest wait for a slot
	served              int
	refused             int
}

func always(w byte) func() string { return func() string { return number(int(w)) } }

func random(r *rand.Rand, most time.Duration) func() time.Duration {
	return func() time.Duration { return 1 + time.Duration(r.Int64N(int64(most))) }
}

// simulate runs the demands against a queue in fake time, and returns how many
// tenants the queue knew at most. Service time counts from the last demand's start.
func simulate(t *testing.T, size int, lasts time.Duration, demands ...*demand) (kept int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue(size)
		var mu sync.Mutex // guards the demands
		var last time.Duration
		for _, d := range demands {
			last = max(last, d.from)
		}
		for _, d := range demands {
			for range d.clients {
				go func() {
					for boottimetest.Pass(d.from); q.now() < lasts; boottimetest.Pass(d.pause) {
						mu.Lock()
						w, takes, asked := d.tenant(), d.takes(), q.now()
						mu.Unlock()
						began, err := q.enter(t.Context(), w)
						if err != nil {
							mu.Lock()
							d.refused++
							mu.Unlock()
							boottimetest.Pass(5 * time.Millisecond)
							continue
						}
						boottimetest.Pass(takes)
						mu.Lock()
						if began >= last {
							d.serviceTime += takes
							d.waited = max(d.waited, began-asked)
							d.served++
						}
						q.mu.Lock()
						kept = max(kept, len(q.tenants))
						q.mu.Unlock()
						mu.Unlock()
						q.leave(w, began)
					}
				}()
			}
		}
		boottimetest.Pass(lasts + time.Minute)
		if running, waiting := q.load(); running != 0 || waiting != 0 {
			t.Errorf("%d run and %d wait in the end", running, waiting)
		}
	})
	return kept
}

// Each case is of a few seeds, and of random numbers of slots; the first demand is the one that is judged.
func TestFairQueue(t *testing.T) {
	const longest = 20 * time.Millisecond
	greedy := func(r *rand.Rand, n, clients int) (demands []*demand) {
		for w := range n {
			demands = append(demands, &demand{tenant: always(byte(1 + w)), clients: clients, takes: random(r, longest)})
		}
		return demands
	}
	for name, c := range map[string]struct {
		lasts   time.Duration
		demands func(r *rand.Rand, size int) []*demand
		ok      func(size, kept int, first *demand, others []*demand) bool
	}{
		// Tenants that always want more get the same, however long their queries take and however many there are. One that was inactive gets no more.
		"shares service time": {6 * time.Second, func(r *rand.Rand, size int) (demands []*demand) {
			for w := range 2 + r.IntN(3) {
				most := time.Duration(1+r.IntN(200)) * 100 * time.Microsecond
				d := &demand{tenant: always(byte(w)), clients: size + 1 + r.IntN(size+1), takes: random(r, most), longest: most}
				if w == 0 && r.IntN(2) == 0 {
					d.from = 3 * time.Second // away so long
				}
				demands = append(demands, d)
			}
			return demands
		}, func(size, _ int, first *demand, others []*demand) bool {
			longest := first.longest
			for _, d := range others {
				longest = max(longest, d.longest)
			}
			return !slices.ContainsFunc(others, func(d *demand) bool { return (d.serviceTime - first.serviceTime).Abs() > 2*time.Duration(size)*longest })
		}},
		// One that wants little gets the next slot, however many queries of others wait; or the second, if another tenant had as little.
		"prefers quiet tenants": {3 * time.Second, func(r *rand.Rand, size int) []*demand {
			return append([]*demand{{tenant: always(0), clients: 1, takes: random(r, 300*time.Microsecond), pause: 5 * time.Millisecond}},
				greedy(r, 1+r.IntN(3), 2*size)...)
		}, func(_, _ int, first *demand, _ []*demand) bool {
			return first.waited <= 2*longest && first.served >= 100
		}},
		// One with few queries is never refused, however many others have.
		"refuses the tenant with most": {2 * time.Second, func(r *rand.Rand, size int) []*demand {
			return append([]*demand{{tenant: always(0), clients: 2, takes: random(r, time.Millisecond), pause: time.Millisecond}},
				greedy(r, 2+r.IntN(3), size*queueFactor)...)
		}, func(_, _ int, first *demand, others []*demand) bool {
			return first.refused == 0 && first.served >= 100 && slices.ContainsFunc(others, func(d *demand) bool { return d.refused > 0 })
		}},
		// Every query gets its turn, however many new tenants become active. The queue remembers only few inactive ones.
		"starves no tenant": {10 * time.Second, func(r *rand.Rand, size int) []*demand {
			next := 1000
			return []*demand{{tenant: always(0), clients: 2, takes: random(r, longest)},
				{clients: 5 * size, takes: random(r, longest), tenant: func() string { next++; return number(next) }}}
		}, func(size, kept int, first *demand, _ []*demand) bool {
			// Its two earlier queries, at the slowest virtual time, and then those that came before.
			return first.waited <= 3*longest*(queueFactor+1) && first.served >= 10 && kept <= 3*size*(1+queueFactor)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				r := rand.New(rand.NewPCG(seed, 50))
				size := 1 + r.IntN(8)
				if name == "refuses the tenant with most" {
					size++ // the quiet one needs a slot beside another
				}
				demands := c.demands(r, size)
				if kept := simulate(t, size, c.lasts, demands...); !c.ok(size, kept, demands[0], demands[1:]) {
					t.Errorf("seed %d, %d slots, %d tenants known: %+v, and %+v", seed, size, kept, demands[0], demands[1])
				}
			}
		})
	}
}

// run is a query that is not refused.
func run(t *testing.T, q *fairQueue, w string, takes time.Duration) (waited time.Duration) {
	t.Helper()
	asked := q.now()
	began, err := q.enter(t.Context(), w)
	if err != nil {
		t.Error(err)
	}
	boottimetest.Pass(takes)
	q.leave(w, began)
	return began - asked
}

// A tenant uses all slots while it is alone. From then on some stay free for
// others, whose queries do not wait.
func TestFairQueueKeepsSlotsForOtherActiveTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 10 * time.Millisecond
		q, greedy := newFairQueue(5), number(1)
		var over atomic.Bool
		query := func(w string) (waited time.Duration) { return run(t, q, w, takes) }
		for range 10 {
			go func() {
				for !over.Load() {
					query(greedy)
				}
			}()
		}
		slots := func(want int) {
			t.Helper()
			boottimetest.Pass(takes + 1)
			if running, _ := q.load(); running != want {
				t.Errorf("it has %d slots, want %d", running, want)
			}
		}
		slots(5)
		for other := range 3 {
			query(number(2000 + other))
			for range 3 { // it has fewer than all slots at any moment
				slots(3)
				if waited := query(number(2000 + other)); waited != 0 {
					t.Errorf("another tenant waited for %v", waited)
				}
			}
			boottimetest.Pass(recently)
			slots(5)
		}
		over.Store(true)
		boottimetest.Pass(time.Second)
	})
}

func TestFairQueueForgetsACancelledQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFairQueue(1)
		began := must1(q.enter(context.Background(), number(1)))
		for i := range 3 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			if _, err := q.enter(ctx, number(i)); !errors.Is(err, page.ErrOverloaded) || !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			cancel()
		}
		if running, waiting := q.load(); running != 1 || waiting != 0 {
			t.Errorf("%d run, %d wait", running, waiting)
		}
		q.leave(number(1), began)
		for _, s := range q.tenants {
			if s.running != 0 || s.waiting != 0 {
				t.Errorf("left behind: %+v", s)
			}
		}
		if running, _ := q.load(); running != 0 {
			t.Error("the slot is not free")
		}
	})
}
