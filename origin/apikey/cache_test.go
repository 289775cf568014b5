package apikey_test

import (
	"context"
	"errors"
	"fmt"
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
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// keyTable is the table of keys as a cache's look-ups see it, in virtual time.
type keyTable struct {
	mu      sync.Mutex
	keys    map[apikey.Hash]apikey.Key
	queries [][]apikey.Hash
	runs    []string      // the run that each query wants
	delay   time.Duration // between a query's snapshot and its answer
	hung    bool          // no answers
	err     error         // instead of answers
}

func newKeyTable(keys int) *keyTable {
	table := &keyTable{keys: map[apikey.Hash]apikey.Key{}}
	for n := range keys {
		table.keys[hashNumber(n)] = apikey.Key{ID: number(n), Workspace: number(1 << 20), Tenant: "T", Scopes: 1, Limit: apikey.DefaultLimit,
			Label:     apikey.Label{Name: fmt.Sprint(n)},
			StartedAt: unique.Make("")}
	}
	return table
}

// textNumber is the text of the nth key.
func textNumber(n int) []byte {
	random := fmt.Appendf(nil, "%0*d", apikey.KeyRandom, n)
	sum := apikey.KeyChecksum(random)
	return slices.Concat([]byte(apikey.KeyPrefix), random, sum[:])
}

func hashNumber(n int) apikey.Hash {
	hash, ok := apikey.HashOf(textNumber(n))
	if !ok {
		panic("BUG: not a key: " + string(textNumber(n)))
	}
	return hash
}

func (s *keyTable) lookup(ctx context.Context, hashes []apikey.Hash, run string) (map[apikey.Hash]apikey.Key, error) {
	s.mu.Lock()
	s.queries, s.runs = append(s.queries, hashes), append(s.runs, run)
	found := map[apikey.Hash]apikey.Key{}
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

func (s *keyTable) set(n int, edit func(*apikey.Key)) {
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
	*apikey.Cache[int64]
	attached atomic.Int64
	machine  *boottimetest.Machine
	server   string    // which is followed
	until    time.Time // of the last proof
}

// known is what a request that needs no look-up gets.
func (r *ring) known(n int) (key apikey.Key, value int64, ok bool) {
	if e := r.Valid(hashNumber(n)); e != nil {
		return e.Key, e.Value, true
	}
	return key, value, false
}

// inRing runs a test in virtual time.
func inRing(t *testing.T, table *keyTable, grace time.Duration, test func(t *testing.T, r *ring)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &ring{machine: boottimetest.NewMachine()}
		r.Cache = apikey.NewCache(table.lookup, nil, func(_ apikey.Key, value *int64) { *value = r.attached.Add(1) }, grace, r.machine.Clock)
		defer r.Close()
		test(t, r)
	})
}

// trusted says of a client that it has not sent many unknown keys.
func trusted() bool { return false }

// use is what a request does with its key.
func (r *ring) use(n int) (apikey.Key, error) {
	e, err := r.Authenticate(time.Now(), textNumber(n), new(apikey.LastKey), trusted)
	if err != nil {
		return apikey.Key{}, err
	}
	return e.Key, nil
}

func TestAKeyInUseNeverWaits(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		if _, _, ok := r.known(0); ok || r.Find(hashNumber(0)) != nil {
			t.Fatal("known before it was asked for")
		}
		e, err := r.Authenticate(time.Now(), textNumber(0), new(apikey.LastKey), trusted)
		if err != nil || e.Key.ID != number(0) || e.Value != 1 || r.Find(hashNumber(0)) == nil {
			t.Fatalf("%+v, %v", e, err)
		}
		for range 600 { // a minute
			boottimetest.Pass(100 * time.Millisecond)
			if again, value, ok := r.known(0); !ok || again != e.Key || value != 1 {
				t.Fatalf("%+v, %d, %v", again, value, ok)
			}
		}
		synctest.Wait() // a refresh may be due at this very moment
		if n := table.queryCount(); n > int(time.Minute/apikey.RefreshEvery)+1 || r.attached.Load() != 1 {
			t.Errorf("%d queries, attached %d times", n, r.attached.Load())
		}
		if s := r.Stats(); s.Hits != 600 || s.Loaded != 1 || s.Known != 1 || s.Queries != uint64(table.queryCount()) || s.WithinGrace+s.Failures+s.Unknown != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAChangedKeyIsAttachedAgain(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		for n := range int64(5) {
			table.set(0, func(k *apikey.Key) { k.Limit.Burst = 100 + n })
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
		if n := r.EntriesOf(number(0)); n != 1 || r.Stats().Known != 1 {
			t.Errorf("%d entries of the key's row, %d in all", n, r.Stats().Known)
		}
		table.change(func(s *keyTable) { clear(s.keys) })
		boottimetest.Pass(2 * apikey.MaxAge)
		if _, err := r.use(0); !errors.Is(err, apikey.ErrUnknown) || r.Find(hashNumber(0)) != nil {
			t.Errorf("deleted: %v", err)
		}
		table.set(0, func(k *apikey.Key) { k.ID, k.Label.Name = number(7), "0" })
		if key, err := r.use(0); err != nil || key.ID != number(7) {
			t.Errorf("created again: %+v, %v", key, err)
		}
		if s := r.Stats(); s.Unknown != 1 || s.Failures != 0 || s.Known != 1 {
			t.Errorf("%+v", s)
		}
		if of, none := r.Label(number(7)), r.Label(number(0)); of.Name != "0" || none != (apikey.Label{}) {
			t.Errorf("the labels of a known key and of one not known here: %v, %v", of, none)
		}
		r.join()
		r.provenFor(apikey.IdleTTL+2*apikey.IdleScan, func() {})
		if synctest.Wait(); r.Stats().Known != 0 || r.Rows() != 0 {
			t.Errorf("unused: %d entries, of %d rows", r.Stats().Known, r.Rows())
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
				if len(query) > apikey.LookupBatch {
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
		var all sync.WaitGroup
		load := func(n int) {
			all.Go(func() {
				if _, err := r.Authenticate(time.Now(), textNumber(n), new(apikey.LastKey), trusted); !errors.Is(err, postgres.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		load(0)
		synctest.Wait() // it is being asked for
		for n := range apikey.LookupBacklog {
			load(1 + n)
		}
		synctest.Wait()
		if _, err := r.Authenticate(time.Now(), textNumber(1<<40), new(apikey.LastKey), trusted); !errors.Is(err, postgres.ErrOverloaded) {
			t.Errorf("beyond the backlog: %v", err)
		}
		if _, err := r.Authenticate(time.Now(), textNumber(1), new(apikey.LastKey), trusted); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("for a key that waits already: %v", err)
		}
		all.Wait()
	})
}

// An outage that the grace covers may last longer than unused keys are kept:
// a key in use is not an unused one.
func TestKeysInUseAreNotForgottenDuringAnOutage(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, 10*apikey.IdleTTL, func(t *testing.T, r *ring) {
		must1(r.use(0))
		table.change(func(s *keyTable) { s.err = postgres.ErrUnavailable })
		for began := time.Now(); time.Since(began) < 3*apikey.IdleTTL; boottimetest.Pass(5 * time.Second) {
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
		boottimetest.Pass(2 * apikey.MaxAge)
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
			if waited := time.Since(began); waited > apikey.RecentTimeout {
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
			boottimetest.Pass(apikey.WaitPause)
		}
		// A key not known here waits as long as its request allows, and no longer.
		began := time.Now()
		if _, err := r.use(99); !errors.Is(err, postgres.ErrUnavailable) || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		table.change(func(s *keyTable) { s.hung = false })
		table.set(3, func(k *apikey.Key) { k.Revoked = true })
		boottimetest.Pass(apikey.LookupTimeout + apikey.WaitPause)
		if key, err := r.use(3); err != nil || !key.Revoked {
			t.Errorf("after the return: %+v, %v", key, err)
		}
	})
}

func TestCloseWaitsForLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newKeyTable(1)
		var ended atomic.Bool
		slow := func(ctx context.Context, hashes []apikey.Hash, run string) (map[apikey.Hash]apikey.Key, error) {
			found, err := table.lookup(ctx, hashes, run)
			if len(hashes) == 1 && hashes[0] == hashNumber(7) {
				<-ctx.Done()
				boottimetest.Pass(time.Second) // takes its time to come back even so
				ended.Store(true)
				return nil, ctx.Err()
			}
			return found, err
		}
		r := apikey.NewCache(slow, nil, func(k apikey.Key, value *uuid.UUID) { *value = k.ID }, time.Minute, boottime.New())
		if _, err := r.Authenticate(time.Now(), textNumber(0), new(apikey.LastKey), trusted); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			_, err := r.Authenticate(time.Now(), textNumber(7), new(apikey.LastKey), trusted)
			answer <- err
		}()
		synctest.Wait()
		r.Close()
		if !ended.Load() {
			t.Error("Close did not wait")
		}
		if err := <-answer; err == nil || errors.Is(err, apikey.ErrUnknown) {
			t.Errorf("the look-up under way: %v", err)
		}
		if _, err := r.Authenticate(time.Now(), textNumber(8), new(apikey.LastKey), trusted); !errors.Is(err, postgres.ErrUnavailable) {
			t.Errorf("after Close: %v", err)
		}
		if e, err := r.Authenticate(time.Now(), textNumber(0), new(apikey.LastKey), trusted); err != nil || e.Value != number(0) {
			t.Errorf("known before Close: %+v, %v", e, err)
		}
		r.Close() // twice is once
	})
}
