package usage_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/origin/usage"
)

// Longer than the time between two writes.
const twoWrites = 11 * time.Second

// row is the primary key of what is written.
type row struct {
	usage.Key
	Hour time.Time
}

// table stores batches as Postgres does. It fails if the test says so.
type table struct {
	mu       sync.Mutex
	batches  map[uuid.UUID]int64 // the last of each run
	rows     map[row]usage.Counts
	lastUsed map[usage.Key]time.Time
	writes   []int // their rows

	fail func(ctx context.Context) (lost, answerLost error) // nil = never
}

func newTable() *table {
	return &table{batches: map[uuid.UUID]int64{}, rows: map[row]usage.Counts{}, lastUsed: map[usage.Key]time.Time{}}
}

// failing sets how writes fail from now on.
func (w *table) failing(fail func(ctx context.Context) (lost, answerLost error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *table) write(ctx context.Context, run uuid.UUID, number int64, rows []*usage.Row) error {
	var lost, answerLost error
	w.mu.Lock()
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		lost, answerLost = fail(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, len(rows))
	if lost != nil {
		return lost
	}
	if number > w.batches[run] {
		w.batches[run] = number
		for _, r := range rows {
			sum := w.rows[row{r.Key, r.Hour}]
			sum.Add(r.Counts)
			w.rows[row{r.Key, r.Hour}] = sum
			if r.LastUsed.After(w.lastUsed[r.Key]) {
				w.lastUsed[r.Key] = r.LastUsed
			}
		}
	}
	return answerLost
}

// sum adds the hours of a key up.
func (w *table) sum(k usage.Key) (n usage.Counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, counts := range w.rows {
		if at.Key == k {
			n.Add(counts)
		}
	}
	return n
}

func (w *table) written() (batches, rows int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.writes), len(w.rows)
}

func (w *table) total() (requests uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, counts := range w.rows {
		requests += counts.Requests
	}
	return requests
}

// key is the nth key of a workspace.
func key(workspace, n int) usage.Key {
	return usage.Key{Workspace: uuid.UUID{1, byte(workspace)}, ID: uuid.UUID{2, byte(n), byte(n >> 8), byte(n >> 16)}}
}

func closed(t *testing.T, r *usage.Recorder) {
	t.Helper()
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestARecorderWrites(t *testing.T) {
	t.Run("nothing while nothing is counted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := usage.Start(w.write)
			r.Counter(key(1, 1))
			boottimetest.Pass(48 * time.Hour)
			closed(t, r)
			if len(w.writes) != 0 {
				t.Errorf("%d writes", len(w.writes))
			}
		})
	})
	for name, lost := range map[string]func(context.Context) error{
		"fails": func(context.Context) error { return errors.New("connection refused") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run("at most 10 s after it was counted, if one write "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTable()
				var once sync.Once
				w.failing(func(ctx context.Context) (err, _ error) { once.Do(func() { err = lost(ctx) }); return err, nil })
				r := usage.Start(w.write)
				defer closed(t, r)
				r.Counter(key(1, 1)).Answered(200, 1)
				boottimetest.Pass(9 * time.Second)
				if s := r.Stats(); s.Failure == nil || time.Since(s.Since) != 9*time.Second {
					t.Errorf("%+v", s)
				}
				boottimetest.Pass(time.Second + time.Millisecond)
				if s := r.Stats(); w.total() != 1 || s.Failure != nil || !s.Since.IsZero() {
					t.Errorf("%d requests, %+v", w.total(), s)
				}
			})
		})
	}
	t.Run("to the hour of the request, if a write hangs at its end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			hour := time.Now().Truncate(time.Hour)
			next := hour.Add(time.Hour)
			boottimetest.Pass(time.Until(next.Add(-7 * time.Second)))
			var hung time.Time
			w.failing(func(ctx context.Context) (error, error) {
				if !hung.IsZero() {
					return nil, nil
				}
				hung = time.Now()
				<-ctx.Done()
				return ctx.Err(), nil
			})
			r := usage.Start(w.write)
			c := r.Counter(key(1, 1))
			c.Answered(200, 1)
			boottimetest.Pass(6 * time.Second)
			c.Answered(200, 1) // while the write hangs
			boottimetest.Pass(2500 * time.Millisecond)
			c.Answered(200, 1)
			boottimetest.Pass(twoWrites)
			closed(t, r)
			if want := next.Add(-2 * time.Second); !hung.Equal(want) {
				t.Errorf("the write began at %s, want %s", hung, want)
			}
			if a, b := w.rows[row{key(1, 1), hour}].Requests, w.rows[row{key(1, 1), next}].Requests; a != 2 || b != 1 {
				t.Errorf("%d, and %d in the next", a, b)
			}
		})
	})
}

func TestClosingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		w.failing(func(ctx context.Context) (error, error) { <-ctx.Done(); return ctx.Err(), nil }) // Postgres hangs
		r := usage.Start(w.write)
		r.Counter(key(1, 1)).Answered(200, 1)
		boottimetest.Pass(time.Minute)
		began := time.Now()
		if err := r.Close(t.Context()); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Each request is counted once, in whatever order statements fail, hang, or lose their
// answers, while keys change and counters come and go; and it is known when a key was last used.
func TestEachRequestIsCountedOnce(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random, faults := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
				w := newTable()
				w.failing(func(ctx context.Context) (lost, answerLost error) {
					failure := errors.New("connection reset")
					switch faults.IntN(5) {
					case 0:
						return failure, nil
					case 1:
						return nil, failure
					case 2:
						<-ctx.Done()
						return nil, ctx.Err() // it was written all the same
					}
					return nil, nil
				})
				r := usage.Start(w.write)
				want, last, counters := map[usage.Key]usage.Counts{}, map[usage.Key]time.Time{}, map[usage.Key]*usage.Counter{}
				for range 300 {
					k := key(random.IntN(2), random.IntN(5))
					if counters[k] == nil || random.IntN(10) == 0 { // the key has changed
						counters[k] = r.Counter(k)
					}
					n := want[k]
					for range random.IntN(4) {
						status, size := []int{200, 304, 429, 400}[random.IntN(4)], random.IntN(1000)
						counters[k].Answered(status, size)
						last[k] = time.Now()
						n.Add(usage.Counts{Requests: 1, Bytes: uint64(size), NotModified: map[int]uint64{304: 1}[status], Refused: map[int]uint64{429: 1}[status]})
					}
					if random.IntN(3) == 0 {
						counters[k].Queried()
						n.Queries++
					}
					want[k] = n
					if random.IntN(20) == 0 {
						counters[k] = nil // not used any more
					}
					boottimetest.Pass(time.Duration(random.IntN(4000)) * time.Millisecond)
				}
				w.failing(nil)
				closed(t, r)
				for k, n := range want {
					if got, used := w.sum(k), w.lastUsed[k].Sub(last[k]); got != n || used < 0 || used > 5*time.Second {
						t.Errorf("%+v, want %+v; last used %s after the request", got, n, used)
					}
				}
				if s := r.Stats(); s.Lost != 0 || !s.Since.IsZero() || s.Failure != nil {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}

// Counters are used while they are collected and dropped.
func TestCountersAreUsedAtOnce(t *testing.T) {
	const users, requests = 8, 2000
	w := newTable()
	synctest.Test(t, func(t *testing.T) {
		r := usage.Start(w.write)
		var all sync.WaitGroup
		for range users {
			all.Go(func() {
				for i := range requests {
					c := r.Counter(key(1, 1))
					c.Answered(200, 1)
					c.Answered(304, 0)
					if i%20 == 0 {
						boottimetest.Pass(time.Second)
					}
				}
			})
		}
		all.Wait()
		closed(t, r)
	})
	if got, want := w.sum(key(1, 1)), (usage.Counts{Requests: 2 * users * requests, NotModified: users * requests, Bytes: users * requests}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Those with most requests are found among many, and forgotten once they stop.
func TestBusiestKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := usage.Start(newTable().write)
		defer closed(t, r)
		for n := range 2000 {
			counter, status, times := r.Counter(key(n%7, n)), 200, 1
			switch n {
			case 500:
				status, times = 429, 100
			case 1500:
				times = 50
			}
			for range times {
				counter.Answered(status, 0)
			}
		}
		boottimetest.Pass(5*time.Second + time.Millisecond)
		top := r.Stats().Busiest
		if len(top) != 10 || top[0] != (usage.Use{Key: key(500%7, 500), Requests: 20, Refused: 20}) ||
			top[1] != (usage.Use{Key: key(1500%7, 1500), Requests: 10}) || top[9].Requests != .2 {
			t.Errorf("%+v", top)
		}
		boottimetest.Pass(5 * time.Second)
		if top := r.Stats().Busiest; len(top) != 0 {
			t.Errorf("later: %+v", top)
		}
	})
}

func TestCountingAllocatesNothing(t *testing.T) {
	r := usage.Start(newTable().write)
	defer closed(t, r)
	c := r.Counter(key(1, 1))
	if n := testing.AllocsPerRun(1000, func() { c.Answered(200, 10) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWithoutARecorderNothingIsKept(t *testing.T) {
	var r *usage.Recorder
	r.Counter(key(1, 1)).Answered(200, 1)
}
