package apikey

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/boottime"
	"listedge/internal/boottime/boottimetest"
	"listedge/internal/lists"
	"listedge/origin/postgres"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must1[T any](v T, err error) T {
	must(err)
	return v
}

// keyTable is the table of keys as a cache's look-ups see it, in virtual time.
type keyTable struct {
	mu      sync.Mutex
	keys    map[Hash]Key
	queries [][]Hash
	runs    []string      // the run that each query wants
	delay   time.Duration // between a query's snapshot and its answer
	hung    bool          // no answers
	err     error         // instead of answers
}

func newKeyTable(keys int) *keyTable {
	table := &keyTable{keys: map[Hash]Key{}}
	for n := range keys {
		table.keys[hashNumber(n)] = Key{ID: number(n), Workspace: number(1 << 20), Scopes: 1 << lists.Items, Limit: DefaultLimit, Label: Label{Name: fmt.Sprint(n)},
			StartedAt: unique.Make("")}
	}
	return table
}

// textNumber is the text of the nth key.
func textNumber(n int) []byte {
	random := fmt.Appendf(nil, "%0*d", keyRandom, n)
	sum := keyChecksum(random)
	return slices.Concat([]byte(keyPrefix), random, sum[:])
}

func hashNumber(n int) Hash {
	hash, ok := HashOf(textNumber(n))
	if !ok {
		panic("BUG: not a key: " + string(textNumber(n)))
	}
	return hash
}

// number is the id of the nth row.
func number(n int) uuid.UUID { return uuid.MustParse(fmt.Sprintf("00000000-0000-4000-8000-%012x", n)) }

func (s *keyTable) lookup(ctx context.Context, hashes []Hash, run string) (map[Hash]Key, error) {
	s.mu.Lock()
	s.queries, s.runs = append(s.queries, hashes), append(s.runs, run)
	found := map[Hash]Key{}
	for _, hash := range hashes {
		if key, ok := s.keys[hash]; ok {
			found[hash] = key
		}
	}
	delay, hung, err := s.delay, s.hung, s.err
	s.mu.Unlock()
	if hung {
		<-ctx.Done()
		return nil, errors.Join(postgres.ErrUnavailable, ctx.Err())
	}
	if err != nil {
		return nil, err
	}
	time.Sleep(delay) // as long as the query takes
	return found, nil
}

func (s *keyTable) change(do func(*keyTable)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s)
}

func (s *keyTable) set(n int, edit func(*Key)) {
	s.change(func(s *keyTable) {
		key := s.keys[hashNumber(n)]
		edit(&key)
		s.keys[hashNumber(n)] = key
	})
}

func (s *keyTable) queryCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queries)
}

// ring is a cache whose values are the numbers of the attach calls that made them.
type ring struct {
	*Cache[int64]
	attached atomic.Int64
	server   string // which is followed
}

// known is what a request that needs no look-up gets.
func (r *ring) known(n int) (key Key, value int64, ok bool) {
	if e := r.valid(hashNumber(n)); e != nil {
		return e.Key, e.Value, true
	}
	return key, value, false
}

// inRing runs a test in virtual time.
func inRing(t *testing.T, table *keyTable, grace time.Duration, test func(t *testing.T, r *ring)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &ring{}
		r.Cache = NewCache(table.lookup, func(_ Key, value *int64) { *value = r.attached.Add(1) }, grace, boottime.New())
		defer r.Close()
		test(t, r)
	})
}

// use is what a request does with its key.
func (r *ring) use(n int) (Key, error) {
	e, err := r.Authenticate(textNumber(n), func() bool { return false })
	if err != nil {
		return Key{}, err
	}
	return e.Key, nil
}

func TestAKeyInUseNeverWaits(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		if _, _, ok := r.known(0); ok || r.find(hashNumber(0)) != nil {
			t.Fatal("known before it was asked for")
		}
		e, err := r.load(t.Context(), hashNumber(0), ordinaryKey)
		if err != nil || e.Key.ID != number(0) || e.Value != 1 || r.find(hashNumber(0)) == nil {
			t.Fatalf("%+v, %v", e, err)
		}
		for range 600 { // a minute
			boottimetest.Pass(100 * time.Millisecond)
			if again, value, ok := r.known(0); !ok || again != e.Key || value != 1 {
				t.Fatalf("%+v, %d, %v", again, value, ok)
			}
		}
		synctest.Wait() // a refresh may be due at this very moment
		if n := table.queryCount(); n > int(time.Minute/refreshEvery)+1 || r.attached.Load() != 1 {
			t.Errorf("%d queries, attached %d times", n, r.attached.Load())
		}
		if s := r.Stats(); s.Hits != 600 || s.Loaded != 1 || s.Known != 1 || s.Queries != uint64(table.queryCount()) || s.WithinGrace+s.Failures+s.Unknown != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// However long the pauses between its requests, a revoked key is refused at the latest maxAge
// after its revocation, while Postgres answers in time; recentAge, while it is slow.
func TestARevocationIsSeenWithinKeyFresh(t *testing.T) {
	for _, pause := range []time.Duration{time.Millisecond, 70 * time.Millisecond, 399 * time.Millisecond, 401 * time.Millisecond,
		990 * time.Millisecond, 1500 * time.Millisecond, time.Minute} {
		for delay, most := range map[time.Duration]time.Duration{0: maxAge, 30 * time.Millisecond: maxAge, recentTimeout - time.Millisecond: maxAge,
			800 * time.Millisecond: recentAge} {
			table := newKeyTable(1)
			table.delay = delay
			inRing(t, table, 5*time.Minute, func(t *testing.T, r *ring) {
				random := rand.New(rand.NewPCG(uint64(pause), 1))
				for began := time.Now(); time.Since(began) < 5*time.Second+3*pause; boottimetest.Pass(pause) {
					if key, err := r.use(0); err != nil || key.Revoked {
						t.Fatalf("pause %v: %+v, %v", pause, key, err)
					}
				}
				boottimetest.Pass(time.Duration(random.Int64N(int64(pause))))
				table.set(0, func(k *Key) { k.Revoked = true })
				for revoked := time.Now(); time.Since(revoked) < 2*recentAge+3*pause; boottimetest.Pass(pause) {
					key, err := r.use(0)
					if err != nil || !key.Revoked && time.Since(revoked) > most {
						t.Fatalf("pause %v, delay %v: %+v, %v, %v after the revocation", pause, delay, key, err, time.Since(revoked))
					}
				}
			})
		}
	}
}

func TestAChangedKeyIsAttachedAgain(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		for n := range int64(5) {
			table.set(0, func(k *Key) { k.Limit.Burst = 100 + n })
			for range 30 {
				boottimetest.Pass(50 * time.Millisecond)
				must1(r.use(0))
			}
			key, value, ok := r.known(0)
			if !ok || key.Limit.Burst != 100+n || value != n+1 || r.attached.Load() != n+1 {
				t.Errorf("%+v, %d of %d, %v", key, value, r.attached.Load(), ok)
			}
		}
		synctest.Wait()
		if n := len(r.rows[number(0)]); n != 1 || r.Stats().Known != 1 {
			t.Errorf("%d entries of the key's row, %d in all", n, r.Stats().Known)
		}
		table.change(func(s *keyTable) { clear(s.keys) })
		boottimetest.Pass(2 * maxAge)
		if _, err := r.use(0); !errors.Is(err, ErrUnknown) || r.find(hashNumber(0)) != nil {
			t.Errorf("deleted: %v", err)
		}
	})
}

func TestAKeyIsKnownAsSoonAsItIsCreated(t *testing.T) {
	table := newKeyTable(0)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		if _, err := r.use(7); !errors.Is(err, ErrUnknown) || r.find(hashNumber(7)) != nil {
			t.Fatal(err)
		}
		table.set(7, func(k *Key) { k.ID = number(7) })
		if key, err := r.use(7); err != nil || key.ID != number(7) {
			t.Errorf("%+v, %v", key, err)
		}
		if s := r.Stats(); s.Unknown != 1 || s.Failures != 0 || s.Known != 1 {
			t.Errorf("%+v", s)
		}
	})
}

func TestLookupsAreCollapsed(t *testing.T) {
	for _, c := range []struct{ requests, keys, queries int }{
		{1000, 1, 2},     // one for the first, one for all that came while it was under way
		{1000, 1000, 2},  //
		{5000, 5000, 6},  // no query is for more than lookupBatch
		{5000, 10, 2},    //
		{1, 1, 1},        //
		{9000, 4500, 10}, // each key twice
	} {
		table := newKeyTable(c.keys)
		table.delay = 5 * time.Millisecond
		inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
			var all sync.WaitGroup
			for n := range c.requests {
				all.Go(func() {
					if key, err := r.use(n % c.keys); err != nil || key.ID != number(n%c.keys) {
						t.Errorf("%+v, %v", key, err)
					}
				})
			}
			all.Wait()
			if n := table.queryCount(); n > c.queries || r.attached.Load() != int64(c.keys) {
				t.Errorf("%d requests for %d keys: %d queries, attached %d times", c.requests, c.keys, n, r.attached.Load())
			}
			for _, query := range table.queries {
				if len(query) > lookupBatch {
					t.Errorf("%d keys in one query", len(query))
				}
			}
		})
	}
}

func TestTheBacklogIsBounded(t *testing.T) {
	table := newKeyTable(0)
	table.hung = true
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		load := func(n int) {
			all.Go(func() {
				if _, err := r.load(ctx, hashNumber(n), ordinaryKey); !errors.Is(err, postgres.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		load(0)
		synctest.Wait() // it is being asked for
		for n := range lookupBacklog {
			load(1 + n)
		}
		synctest.Wait()
		if _, err := r.load(ctx, hashNumber(1<<40), ordinaryKey); !errors.Is(err, postgres.ErrOverloaded) {
			t.Errorf("beyond the backlog: %v", err)
		}
		short, end := context.WithTimeout(ctx, time.Millisecond)
		defer end()
		if _, err := r.load(short, hashNumber(1), ordinaryKey); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("for a key that waits already: %v", err)
		}
		cancel()
		all.Wait()
	})
}

// While Postgres refuses connections, known keys stay valid for the grace. An unknown key is an
// error, and never taken for one that does not exist.
func TestKnownKeysGoOnWithinGraceAndNotBeyond(t *testing.T) {
	const grace = 30 * time.Second
	table := newKeyTable(1)
	inRing(t, table, grace, func(t *testing.T, r *ring) {
		must1(r.use(0))
		if _, err := r.use(99); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		table.change(func(s *keyTable) { s.err = errNotAsked })
		looked := time.Now()
		for boottimetest.Pass(time.Millisecond); time.Since(looked) < grace+10*time.Second; boottimetest.Pass(100 * time.Millisecond) {
			key, err := r.use(0)
			switch age := time.Since(looked); {
			case age < grace && (err != nil || key.ID != number(0)):
				t.Fatalf("after %v: %+v, %v", age, key, err)
			case age > grace && !errors.Is(err, postgres.ErrUnavailable):
				t.Fatalf("after %v: %+v, %v", age, key, err)
			}
			if _, err := r.use(55); !errors.Is(err, postgres.ErrUnavailable) || errors.Is(err, ErrUnknown) {
				t.Fatalf("a key not known here: %v", err)
			}
			if l, none := r.Label(number(0)), r.Label(number(55)); l.Name != "0" || none != (Label{}) {
				t.Fatalf("the labels of a known key and of one not known here: %v, %v", l, none)
			}
		}
		if _, err := r.use(99); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("unknown before the outage: %v", err)
		}
		table.change(func(s *keyTable) { s.err = nil })
		if _, err := r.use(0); err != nil {
			t.Errorf("after the return: %v", err)
		}
		if s := r.Stats(); s.WithinGrace == 0 || s.Failures == 0 || s.Queries > 10 { // before and after
			t.Errorf("%+v", s)
		}
	})
}

// An outage that the grace covers may last longer than unused keys are kept:
// a key in use is not an unused one.
func TestKeysInUseAreNotForgottenDuringAnOutage(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, 10*idleTTL, func(t *testing.T, r *ring) {
		must1(r.use(0))
		table.change(func(s *keyTable) { s.err = postgres.ErrUnavailable })
		for began := time.Now(); time.Since(began) < 3*idleTTL; boottimetest.Pass(5 * time.Second) {
			if _, err := r.use(0); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
		}
	})
}

// While Postgres hangs, each wait is bounded, and after one without an answer no request waits.
func TestAHungServerCostsOneShortWait(t *testing.T) {
	table := newKeyTable(50)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		for n := range 50 {
			must1(r.use(n))
		}
		boottimetest.Pass(2 * maxAge)
		table.change(func(s *keyTable) { s.hung = true })
		for range 3 {
			began := time.Now()
			var all sync.WaitGroup
			for n := range 50 {
				all.Go(func() {
					if key, err := r.use(n); err != nil || key.ID != number(n) {
						t.Errorf("%+v, %v", key, err)
					}
				})
			}
			all.Wait()
			if waited := time.Since(began); waited > recentTimeout {
				t.Errorf("waited %v", waited)
			}
			began = time.Now()
			for n := range 50 {
				if _, err := r.use(n); err != nil {
					t.Error(err)
				}
			}
			if waited := time.Since(began); waited != 0 {
				t.Errorf("waited %v after a wait in vain", waited)
			}
			boottimetest.Pass(waitPause)
		}
		// A key not known here waits as long as its request allows, and no longer.
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := r.load(ctx, hashNumber(99), ordinaryKey); !errors.Is(err, postgres.ErrUnavailable) || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		table.change(func(s *keyTable) { s.hung = false })
		table.set(3, func(k *Key) { k.Revoked = true })
		boottimetest.Pass(lookupTimeout + waitPause)
		if key, err := r.use(3); err != nil || !key.Revoked {
			t.Errorf("after the return: %+v, %v", key, err)
		}
	})
}

// Two look-ups of a key may be under way at once, the refresher's and a
// request's: the one that began later is right, whichever ends first.
func TestALateAnswerDoesNotOverruleANewerOne(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		must1(r.use(0))
		boottimetest.Pass(refreshEvery * 3 / 2)
		table.change(func(s *keyTable) { s.delay = refreshEvery })
		before := table.queryCount()
		var slow sync.WaitGroup
		slow.Go(func() { _, _ = r.load(context.Background(), hashNumber(0), ordinaryKey) })
		synctest.Wait()
		if table.queryCount() != before+1 {
			t.Fatalf("%d queries", table.queryCount()-before)
		}
		table.set(0, func(k *Key) { k.Revoked = true })
		table.change(func(s *keyTable) { s.delay = 0 })
		boottimetest.Pass(refreshEvery * 3 / 4) // the refresher has asked meanwhile
		for range 20 {                          // and the request notices late
			if key, err := r.use(0); err != nil || !key.Revoked {
				t.Fatalf("revoked, and then not: %+v, %v", key, err)
			}
			boottimetest.Pass(refreshEvery / 10)
		}
		slow.Wait()
	})
}

func TestCloseWaitsForLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newKeyTable(1)
		var ended atomic.Bool
		slow := func(ctx context.Context, hashes []Hash, run string) (map[Hash]Key, error) {
			found, err := table.lookup(ctx, hashes, run)
			if len(hashes) == 1 && hashes[0] == hashNumber(7) {
				<-ctx.Done()
				boottimetest.Pass(time.Second) // takes its time to come back even so
				ended.Store(true)
				return nil, ctx.Err()
			}
			return found, err
		}
		r := NewCache(slow, func(k Key, value *uuid.UUID) { *value = k.ID }, time.Minute, boottime.New())
		if _, err := r.load(t.Context(), hashNumber(0), ordinaryKey); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { _, err := r.load(context.Background(), hashNumber(7), ordinaryKey); answer <- err }()
		synctest.Wait()
		r.Close()
		if !ended.Load() {
			t.Error("Close did not wait")
		}
		if err := <-answer; err == nil || errors.Is(err, ErrUnknown) {
			t.Errorf("the look-up under way: %v", err)
		}
		if _, err := r.load(t.Context(), hashNumber(8), ordinaryKey); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		if e, err := r.load(t.Context(), hashNumber(0), ordinaryKey); err != nil || e.Value != number(0) {
			t.Errorf("known before Close: %+v, %v", e, err)
		}
		r.Close() // twice is once
	})
}
