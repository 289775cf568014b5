package origin

import (
	"context"
	"errors"
	"math/rand/v2"
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

// Tenants that always want more get the same service time, however long their
// queries take and however many there are. One that was inactive gets no more.
func TestFairQueueSharesServiceTime(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 50))
		size, longest := 1+r.IntN(8), time.Duration(0)
		var demands []*demand
		for w := range 2 + r.IntN(3) {
			most := time.Duration(1+r.IntN(200)) * 100 * time.Microsecond
			longest = max(longest, most)
			d := &demand{tenant: always(byte(w)), clients: size + 1 + r.IntN(size+1), takes: random(r, most)}
			if w == 0 && seed%2 == 0 {
				d.from = 3 * time.Second // away so long
			}
			demands = append(demands, d)
		}
		simulate(t, size, 6*time.Second, demands...)
		for _, d := range demands[1:] {
			if diff := (d.serviceTime - demands[0].serviceTime).Abs(); diff > 2*time.Duration(size)*longest {
				t.Errorf("seed %d: of %d slots one tenant had %v, one %v; no query took more than %v", seed, size, demands[0].serviceTime, d.serviceTime, longest)
			}
		}
	}
}

// A tenant that wants little gets the next slot, however many queries of others
// wait; or the second, if another tenant had as little.
func TestFairQueuePrefersQuietTenants(t *testing.T) {
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 51))
		size := 1 + r.IntN(8)
		const slowest = 20 * time.Millisecond
		quiet := &demand{tenant: always(0), clients: 1, takes: random(r, 300*time.Microsecond), pause: 5 * time.Millisecond}
		demands := []*demand{quiet}
		for w := range 1 + r.IntN(3) {
			demands = append(demands, &demand{tenant: always(byte(1 + w)), clients: 2 * size, takes: random(r, slowest)})
		}
		simulate(t, size, 3*time.Second, demands...)
		if quiet.waited > 2*slowest || quiet.served < 100 {
			t.Errorf("seed %d: one of %d queries waited for %v", seed, quiet.served, quiet.waited)
		}
	}
}

// A tenant with few queries is never refused, however many others have.
func TestFairQueueRefusesTheTenantWithMost(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 53))
		size := 2 + r.IntN(8)
		quiet := &demand{tenant: always(0), clients: 2, takes: random(r, time.Millisecond), pause: time.Millisecond}
		demands := []*demand{quiet}
		for w := range 2 + r.IntN(3) {
			demands = append(demands, &demand{tenant: always(byte(1 + w)), clients: size * queueFactor, takes: random(r, 20*time.Millisecond)})
		}
		simulate(t, size, 2*time.Second, demands...)
		refused := 0
		for _, d := range demands[1:] {
			refused += d.refused
		}
		if quiet.refused > 0 || quiet.served < 100 || refused == 0 {
			t.Errorf("seed %d: %d queries of the quiet one were refused, %d served; %d of others refused", seed, quiet.refused, quiet.served, refused)
		}
	}
}

// Every query gets its turn, however many new tenants become active. The queue remembers only
// few inactive tenants.
func TestFairQueueStarvesNoTenant(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 52))
		size := 1 + r.IntN(8)
		const longest = 20 * time.Millisecond
		next := 0
		newcomers := &demand{clients: 5 * size, takes: random(r, longest), tenant: func() string {
			next++
			return number(1000 + next)
		}}
		regular := &demand{tenant: always(0), clients: 2, takes: random(r, longest)}
		kept := simulate(t, size, 10*time.Second, newcomers, regular)
		// Its two earlier queries, at the slowest virtual time, and then those that came before.
		if most := 3 * longest * (queueFactor + 1); regular.waited > most || regular.served < 10 {
			t.Errorf("seed %d: one of %d queries waited for %v, want %v at most", seed, regular.served, regular.waited, most)
		}
		if most := 3 * size * (1 + queueFactor); kept > most {
			t.Errorf("seed %d: %d slots: %d tenants were known, want %d at most", seed, size, kept, most)
		}
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
