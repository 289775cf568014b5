package usage_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"listedge/origin/usage"
)

// Longer than the time between two writes.
const twoWrites = 11 * time.Second

// row is the primary key of what is written.
type row struct {
	usage.Key
	Hour time.Time
}

// table is a Writer that stores batches as Postgres does. It fails if the test says so.
type table struct {
	mu       sync.Mutex
	batches  map[uuid.UUID]int64 // the last of each run
	rows     map[row]usage.Counts
	lastUsed map[usage.Key]time.Time
	writes   []usage.Batch
	expired  int

	fail    func(ctx context.Context) (lost, answerLost error) // nil = never
	refuses func(k usage.Key) bool                             // nil = none
}

func start(w usage.Writer) *usage.Recorder { return usage.Start(w, slog.New(slog.DiscardHandler)) }

func newTable() *table {
	return &table{batches: map[uuid.UUID]int64{}, rows: map[row]usage.Counts{}, lastUsed: map[usage.Key]time.Time{}}
}

// failing sets how writes fail from now on.
func (w *table) failing(fail func(ctx context.Context) (lost, answerLost error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail = fail
}

func (w *table) Write(ctx context.Context, b *usage.Batch) error {
	var lost, answerLost error
	w.mu.Lock()
	fail := w.fail
	w.mu.Unlock()
	if fail != nil {
		lost, answerLost = fail(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, *b)
	if lost != nil {
		return lost
	}
	if w.refuses != nil && slices.ContainsFunc(b.Rows, func(r usage.Row) bool { return w.refuses(r.Key) }) {
		return usage.ErrRefused
	}
	if b.Number > w.batches[b.Run] {
		w.batches[b.Run] = b.Number
		for _, r := range b.Rows {
			at := row{r.Key, r.Hour}
			sum := w.rows[at]
			w.rows[at] = plus(sum, r.Counts)
			if r.LastUsed.After(w.lastUsed[r.Key]) {
				w.lastUsed[r.Key] = r.LastUsed
			}
		}
	}
	return answerLost
}

func (w *table) Expire(context.Context) (more bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expired++
	return false, nil
}

// sum adds the hours of a key up.
func (w *table) sum(k usage.Key) (n usage.Counts) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, counts := range w.rows {
		if at.Key == k {
			n = plus(n, counts)
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

func plus(a, b usage.Counts) usage.Counts {
	return usage.Counts{Requests: a.Requests + b.Requests, Refused: a.Refused + b.Refused, NotModified: a.NotModified + b.NotModified, Bypassed: a.Bypassed + b.Bypassed,
		Bytes: a.Bytes + b.Bytes, Queries: a.Queries + b.Queries}
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
	t.Run("what was counted, once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := start(w)
			c := r.Counter(key(1, 1))
			for status, size := range map[int]int{200: 1000, 304: 0, 429: 90, 403: 80} {
				c.Answered(status, size)
			}
			c.Queried()
			began := time.Now()
			time.Sleep(twoWrites)
			want := usage.Counts{Requests: 4, Refused: 1, NotModified: 1, Bytes: 1170, Queries: 1}
			if got := w.sum(key(1, 1)); got != want || len(w.writes) != 1 {
				t.Errorf("%+v by %d writes, want %+v", got, len(w.writes), want)
			}
			if used := w.lastUsed[key(1, 1)].Sub(began); used < 0 || used > 5*time.Second {
				t.Errorf("last used %s after the request", used)
			}
			closed(t, r)
			if len(w.writes) != 1 {
				t.Errorf("%d writes", len(w.writes))
			}
		})
	})
	t.Run("nothing while nothing is counted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := start(w)
			r.Counter(key(1, 1))
			time.Sleep(48 * time.Hour)
			closed(t, r)
			if len(w.writes) != 0 || w.expired != 0 {
				t.Errorf("%d writes, %d looks for old rows", len(w.writes), w.expired)
			}
		})
	})
	t.Run("at most 10 s after it was counted, if one write fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			failed := false
			w.failing(func(context.Context) (error, error) {
				if failed {
					return nil, nil
				}
				failed = true
				return errors.New("connection refused"), nil
			})
			r := start(w)
			defer closed(t, r)
			r.Counter(key(1, 1)).Answered(200, 1)
			time.Sleep(7 * time.Second)
			if s := r.Stats(); s.Failure == nil || s.Unwritten < 5*time.Second || s.Unwritten > 10*time.Second {
				t.Errorf("%+v", s)
			}
			time.Sleep(3*time.Second + time.Millisecond)
			if s := r.Stats(); w.total() != 1 || s.Failure != nil || s.Unwritten != 0 {
				t.Errorf("%d requests, %+v", w.total(), s)
			}
		})
	})
	t.Run("to the hour of the request", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := start(w)
			c, hour := r.Counter(key(1, 1)), time.Now().Truncate(time.Hour)
			time.Sleep(time.Until(hour.Add(time.Hour - 3*time.Second)))
			c.Answered(200, 1) // in the last seconds
			time.Sleep(4 * time.Second)
			c.Answered(200, 1)
			c.Answered(200, 1)
			closed(t, r)
			if a, b := w.rows[row{key(1, 1), hour}].Requests, w.rows[row{key(1, 1), hour.Add(time.Hour)}].Requests; a != 1 || b != 2 {
				t.Errorf("%d, and %d in the next", a, b)
			}
		})
	})
	t.Run("to the hour of the request, if a write hangs at its end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			hour := time.Now().Truncate(time.Hour)
			next := hour.Add(time.Hour)
			time.Sleep(time.Until(next.Add(-7 * time.Second)))
			var hung time.Time
			w.failing(func(ctx context.Context) (error, error) {
				if !hung.IsZero() {
					return nil, nil
				}
				hung = time.Now()
				<-ctx.Done()
				return ctx.Err(), nil
			})
			r := start(w)
			c := r.Counter(key(1, 1))
			c.Answered(200, 1)
			time.Sleep(6 * time.Second)
			c.Answered(200, 1) // while the write hangs
			time.Sleep(2500 * time.Millisecond)
			c.Answered(200, 1)
			time.Sleep(twoWrites)
			closed(t, r)
			if want := next.Add(-2 * time.Second); !hung.Equal(want) {
				t.Errorf("the write began at %s, want %s", hung, want)
			}
			if a, b := w.rows[row{key(1, 1), hour}].Requests, w.rows[row{key(1, 1), next}].Requests; a != 2 || b != 1 {
				t.Errorf("%d, and %d in the next", a, b)
			}
		})
	})
	t.Run("what is left, when it is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := start(w)
			r.Counter(key(1, 1)).Answered(200, 1)
			closed(t, r)
			if w.total() != 1 {
				t.Errorf("%d requests", w.total())
			}
		})
	})
	t.Run("and looks for old rows once an hour", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newTable()
			r := start(w)
			c := r.Counter(key(1, 1))
			for range 4 * 60 {
				c.Answered(200, 1)
				time.Sleep(time.Minute)
			}
			closed(t, r)
			if w.expired != 4 {
				t.Errorf("%d times in four hours", w.expired)
			}
		})
	})
}

func TestClosingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		w.failing(func(ctx context.Context) (error, error) { <-ctx.Done(); return ctx.Err(), nil }) // Postgres hangs
		r := start(w)
		r.Counter(key(1, 1)).Answered(200, 1)
		time.Sleep(time.Minute)
		began := time.Now()
		if err := r.Close(t.Context()); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Each request is counted once, in whatever order statements fail, hang, or lose their
// answers, while keys change and counters come and go.
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
				r := start(w)
				want := map[usage.Key]usage.Counts{}
				counters := map[usage.Key]*usage.Counter{}
				for range 300 {
					k := key(random.IntN(2), random.IntN(5))
					if counters[k] == nil || random.IntN(10) == 0 { // the key has changed
						counters[k] = r.Counter(k)
					}
					n := want[k]
					for range random.IntN(4) {
						status, size := []int{200, 304, 429, 400}[random.IntN(4)], random.IntN(1000)
						counters[k].Answered(status, size)
						n.Requests++
						n.Bytes += uint64(size)
						switch status {
						case 304:
							n.NotModified++
						case 429:
							n.Refused++
						}
					}
					if random.IntN(3) == 0 {
						counters[k].Queried()
						n.Queries++
					}
					want[k] = n
					if random.IntN(20) == 0 {
						counters[k] = nil // not used any more
						runtime.GC()
					}
					time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
				}
				w.failing(nil)
				closed(t, r)
				for k, n := range want {
					if got := w.sum(k); got != n {
						t.Errorf("%+v, want %+v", got, n)
					}
				}
				if s := r.Stats(); s.Lost != 0 || s.Unwritten != 0 || s.Failure != nil {
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
		r := start(w)
		var all sync.WaitGroup
		for range users {
			all.Go(func() {
				for i := range requests {
					c := r.Counter(key(1, 1))
					c.Answered(200, 1)
					c.Answered(304, 0)
					if i%20 == 0 {
						time.Sleep(time.Second) // beside collections
					}
				}
			})
		}
		all.Go(func() {
			for range 20 {
				runtime.GC()
				time.Sleep(4 * time.Second)
			}
		})
		all.Wait()
		closed(t, r)
	})
	if got, want := w.sum(key(1, 1)), (usage.Counts{Requests: 2 * users * requests, NotModified: users * requests, Bytes: users * requests}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The database gets at most four batches in 5 s, however many keys are in use. Every key is
// written in turn, also keys for which there was no room at first.
func TestTheLoadOfTheDatabaseIsBounded(t *testing.T) {
	const keys, intervals = 1<<17 + 10_000, 10
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		r := start(w)
		counters := make([]*usage.Counter, keys)
		for i := range counters {
			counters[i] = r.Counter(key(1, i))
		}
		for range intervals {
			for _, c := range counters {
				c.Answered(200, 1)
			}
			before, _ := w.written()
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if after, _ := w.written(); after-before > 4 {
				t.Fatalf("%d batches in 5 s", after-before)
			}
		}
		if _, rows := w.written(); rows != keys {
			t.Errorf("after %d intervals %d of %d keys have been written", intervals, rows, keys)
		}
		// By then a row waits for its nine turns at most.
		if age := r.Stats().Unwritten; age < 30*time.Second || age > 45*time.Second {
			t.Errorf("the oldest count is %v old", age)
		}
		closed(t, r)
		if got := w.total(); got != keys*intervals {
			t.Errorf("%d requests are counted, want %d", got, keys*intervals)
		}
	})
}

// After a write that hangs until its timeout the next one comes when it is due: what was
// counted before is written within two intervals.
func TestAWriteThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		var hung atomic.Bool
		w.failing(func(ctx context.Context) (error, error) {
			if hung.Swap(true) {
				return nil, nil
			}
			<-ctx.Done()
			return ctx.Err(), nil
		})
		r := start(w)
		defer closed(t, r)
		r.Counter(key(1, 1)).Answered(200, 1)
		time.Sleep(10*time.Second + time.Millisecond)
		if !hung.Load() || w.total() != 1 {
			t.Errorf("after 10 s: hung %t, %d requests written", hung.Load(), w.total())
		}
	})
}

// While nothing can be written, memory is bounded: keys in use are counted later, in the hour
// in which there is room, and of those that left the memory it is said how many requests are lost.
func TestMemoryIsBounded(t *testing.T) {
	const bound, more = 1 << 17, 5000
	synctest.Test(t, func(t *testing.T) {
		w := newTable()
		w.failing(func(context.Context) (error, error) { return errors.New("permission denied"), nil })
		r := start(w)
		hour := time.Now().Truncate(time.Hour)
		counters := make([]*usage.Counter, bound+4096+more)
		for i := range counters { // the first 4096 become a batch
			counters[i] = r.Counter(key(1, i))
			counters[i].Answered(200, 1)
			if i == 4095 {
				time.Sleep(6 * time.Second)
			}
		}
		time.Sleep(10 * time.Second)
		inUse := counters[bound:]
		counters = nil
		runtime.GC()
		runtime.GC()
		time.Sleep(10 * time.Second)
		if s := r.Stats(); s.Lost != 0 {
			t.Errorf("%d lost while there is room", s.Lost)
		}
		time.Sleep(time.Until(hour.Add(time.Hour + time.Second))) // there is room for 4096 of those in use
		gone := inUse[len(inUse)-more:]
		for i := range gone {
			gone[i] = nil
		}
		runtime.GC()
		runtime.GC()
		time.Sleep(10 * time.Second)
		if s := r.Stats(); s.Lost != more {
			t.Errorf("%d lost, want %d", s.Lost, more)
		}
		w.failing(nil)
		closed(t, r)
		runtime.KeepAlive(inUse)
		if got := w.total(); got != bound+4096 {
			t.Errorf("%d requests are counted, want %d", got, bound+4096)
		}
		for _, b := range w.writes {
			if len(b.Rows) > 4096 {
				t.Errorf("a batch of %d rows", len(b.Rows))
			}
		}
	})
}

// A row that the database will never add to is found and lost. All others are written.
func TestARowThatCannotBeAdded(t *testing.T) {
	for name, c := range map[string]struct{ keys, bad int }{"alone": {1, 1}, "one of many": {3000, 1}, "three": {9, 3}, "more than an interval has time for": {200, 100}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTable()
				w.refuses = func(k usage.Key) bool { return int(k.ID[1])+int(k.ID[2])<<8 < c.bad }
				r := start(w)
				counters := make([]*usage.Counter, c.keys)
				for i := range counters {
					counters[i] = r.Counter(key(1, i))
					counters[i].Answered(200, 1)
				}
				time.Sleep(time.Minute)
				if w.total() != uint64(c.keys-c.bad) {
					t.Errorf("%d requests are counted, want %d", w.total(), c.keys-c.bad)
				}
				if s := r.Stats(); s.Lost != uint64(c.bad) || s.Failure != nil || s.Unwritten != 0 {
					t.Errorf("%+v", s)
				}
				closed(t, r)
			})
		})
	}
}

func TestCountingAllocatesNothing(t *testing.T) {
	r := start(newTable())
	defer closed(t, r)
	c := r.Counter(key(1, 1))
	if n := testing.AllocsPerRun(1000, func() { c.Answered(200, 10) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWithoutARecorderNothingIsKept(t *testing.T) {
	var r *usage.Recorder
	r.Counter(key(1, 1)).Answered(200, 1)
	if s := r.Stats(); s != (usage.Stats{}) || r.Close(t.Context()) != nil {
		t.Errorf("%+v", s)
	}
}

func BenchmarkAnswered(b *testing.B) {
	r := start(newTable())
	defer func() { _ = r.Close(context.Background()) }()
	c := r.Counter(key(1, 1))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			c.Answered(200, 1000)
		}
	})
}
