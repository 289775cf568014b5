package apikey_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
	"unique"

	"github.com/google/uuid"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// prove proves all changes up to a moment, on the server that was started at run.
func (r *ring) prove(until time.Time, run string) {
	if run != r.server {
		r.Reset("", changefeed.ResetEpoch)
	}
	r.server, r.until = run, until
	r.Beat(changefeed.Beat{Proof: changefeed.Proof{Moment: until, StartedAt: run}})
}

// join has changes proven from now on.
func (r *ring) join() {
	r.prove(time.Now(), r.server)
	boottimetest.Pass(time.Nanosecond)
}

// provenFor lets time pass while everything is proven, all along.
func (r *ring) provenFor(d time.Duration, meanwhile func()) {
	for began := time.Now(); time.Since(began) < d; boottimetest.Pass(50 * time.Millisecond) {
		r.prove(time.Now().Add(-20*time.Millisecond), r.server)
		meanwhile()
	}
}

// changed is a change of rows of keys and workspaces.
func (r *ring) changed(ids ...uuid.UUID) {
	c := &changefeed.Change{Touched: []changefeed.Touched{{Table: changefeed.Table{List: &list.List{}, Tenant: number(9000).String()}}}}
	for _, id := range ids {
		c.Touched = append(c.Touched, keyRow(id))
	}
	r.Beat(changefeed.Beat{Settled: []*changefeed.Change{c}})
}

// keyRow is a row of a key or a workspace.
func keyRow(id uuid.UUID) changefeed.Touched {
	return changefeed.Touched{Table: changefeed.Table{Tenant: id.String()}}
}

func (r *ring) isKnown(n int) bool {
	_, _, ok := r.known(n)
	return ok
}

// What makes an entry one that a request relies on without a look-up.
func TestWhichEntriesAreReliedOn(t *testing.T) {
	const long, tick = apikey.MaxAge + time.Millisecond, time.Nanosecond
	nothing := func() {}
	used := func(r *ring) { // looked up behind the beginning of a proof
		r.join()
		must1(r.use(0))
		boottimetest.Pass(tick)
	}
	answered := func(run string) func(*keyTable, *ring) {
		return func(table *keyTable, r *ring) {
			table.set(0, func(k *apikey.Key) { k.StartedAt = unique.Make(run) })
			r.server = "new"
			used(r)
			r.provenFor(long, nothing)
		}
	}
	unsettled := changefeed.Beat{Unsettled: []*changefeed.Change{{LSN: 7, Touched: []changefeed.Touched{keyRow(number(0))}}}}
	late := func(after time.Duration) func(*keyTable, *ring) {
		return func(table *keyTable, r *ring) { // the proof is of a quarter of maxAge before it arrives
			used(r)
			table.change(func(s *keyTable) { s.err = postgres.ErrUnavailable }) // it is not refreshed
			boottimetest.Pass(apikey.MaxAge / 2)
			r.prove(time.Now().Add(-apikey.MaxAge/4), "")
			boottimetest.Pass(after)
		}
	}
	for name, c := range map[string]struct {
		do    func(table *keyTable, r *ring)
		known bool
	}{
		"looked up after the proof's beginning": {func(_ *keyTable, r *ring) { used(r); r.provenFor(long, nothing) }, true},
		"before it": {func(_ *keyTable, r *ring) { // what was published before it was read, and visible by now, is not known
			moment := time.Now()
			boottimetest.Pass(tick)
			must1(r.use(0))
			boottimetest.Pass(tick)
			r.prove(moment, "")
			r.provenFor(long, nothing)
		}, false},
		"before a reset": {func(_ *keyTable, r *ring) {
			used(r)
			r.Reset("e", changefeed.ResetGap)
			r.provenFor(apikey.MaxAge+100*time.Millisecond, nothing)
		}, false},
		"changed while it was looked up": {func(table *keyTable, r *ring) {
			r.join()
			table.delay = 20 * time.Millisecond
			time.AfterFunc(time.Millisecond, func() { r.changed(number(0)) })
			must1(r.use(0))
			r.prove(time.Now(), "")
		}, false},
		"a change that is not visible yet": {func(_ *keyTable, r *ring) { used(r); r.Beat(unsettled) }, false},
		"the same, looked up since": {func(_ *keyTable, r *ring) {
			used(r)
			r.Beat(unsettled)
			boottimetest.Pass(tick)
			must1(r.use(0))
			r.Beat(unsettled)
		}, true},
		"a proof of maxAge ago":              {late(apikey.MaxAge * 3 / 4), true},
		"an older one":                       {late(apikey.MaxAge*3/4 + time.Millisecond), false},
		"answered by another run":            {answered("old"), false},
		"answered by the run that is proven": {answered("new"), true},
		"right moments before another's proof": {func(_ *keyTable, r *ring) {
			used(r)
			r.provenFor(100*time.Millisecond, nothing)
			r.prove(time.Now(), "newer")
		}, true},
		"the machine slept since": {func(_ *keyTable, r *ring) { used(r); r.provenFor(long, nothing); r.machine.Sleep(time.Hour) }, false},
		"proven by what was read before it slept": {func(_ *keyTable, r *ring) {
			used(r)
			began := time.Now()
			r.machine.Sleep(time.Hour)
			boottimetest.Pass(tick)
			_ = r.isKnown(0) // the clocks are compared
			r.prove(began, "")
		}, false},
		"with a schedule, which no change tells": {func(table *keyTable, r *ring) {
			table.set(0, func(k *apikey.Key) { k.Scheduled = true })
			used(r)
			r.provenFor(long, nothing)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			table := newKeyTable(2)
			inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
				if c.do(table, r); r.isKnown(0) != c.known {
					t.Errorf("relied on: %t", !c.known)
				}
			})
		})
	}
}

// Look-ups fail while the log proves that the primary is up. A key that a change may have revoked is
// used for recentAge, then refused. Another key goes on. Without a proof both go on for the grace.
func TestAChangedKeyStopsWhileThePrimaryIsUp(t *testing.T) {
	const grace = time.Minute
	for name, change := range map[string]func(*ring){
		"a change of the key":       func(r *ring) { r.changed(number(0)) },
		"a change of its workspace": func(r *ring) { r.changed(number(1 << 21)) },
		"a change before it settles": func(r *ring) {
			r.Beat(changefeed.Beat{Unsettled: []*changefeed.Change{{LSN: 7, Touched: []changefeed.Touched{keyRow(number(0))}}}})
		},
		"a schedule": func(*ring) {},
		"a schedule, and later a change": func(r *ring) {
			r.provenFor(apikey.RecentAge/2, func() {})
			r.changed(number(0))
		},
	} {
		for answer, fail := range map[string]func(*keyTable){
			"look-ups hang": func(s *keyTable) { s.hung = true },
			"look-ups fail": func(s *keyTable) { s.err = postgres.ErrUnavailable },
		} {
			t.Run(name+", "+answer, func(t *testing.T) {
				table := newKeyTable(2)
				table.set(0, func(k *apikey.Key) { k.Workspace, k.Scheduled = number(1<<21), strings.HasPrefix(name, "a schedule") })
				inRing(t, table, grace, func(t *testing.T, r *ring) {
					r.join()
					r.provenFor(100*time.Millisecond, func() { must1(r.use(0)); must1(r.use(1)) })
					table.change(fail)
					changed := time.Now()
					change(r)
					var all sync.WaitGroup
					r.provenFor(3*apikey.RecentAge, func() {
						all.Go(func() {
							_, err := r.use(0)
							if age := time.Since(changed); age < apikey.RecentAge-apikey.MaxAge && err != nil || age > apikey.RecentAge && !errors.Is(err, postgres.ErrUnavailable) {
								t.Errorf("%v after the change: %v", age, err)
							}
						})
						if !r.isKnown(1) {
							t.Errorf("a key that was not changed waits %v after the change of another", time.Since(changed))
						}
					})
					r.provenFor(apikey.RequestTimeout, func() {}) // so long the last of them wait
					all.Wait()
					boottimetest.Pass(apikey.MaxAge) // the primary may be down, so nothing can have revoked the key since
					for n := range 2 {
						if _, err := r.use(n); err != nil {
							t.Errorf("key %d without a proof: %v", n, err)
						}
					}
				})
			})
		}
	}
}

// A change that comes while a key is looked up may be later than the answer. The seconds for which that key is
// good begin with the look-up.
func TestAKeyThatWasChangedWhileItWasLookedUpIsUsable(t *testing.T) {
	table := newKeyTable(1)
	table.delay = 20 * time.Millisecond
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		r.provenFor(2*apikey.RecentAge, func() {})
		time.AfterFunc(time.Millisecond, func() { r.changed(number(0)) })
		must1(r.use(0))
		table.change(func(s *keyTable) { s.err = postgres.ErrUnavailable })
		r.prove(time.Now(), r.server)
		if _, err := r.use(0); err != nil {
			t.Error(err)
		}
	})
}

// A reset while the primary is up does not begin the seconds anew.
func TestAResetKeepsNoChangedKeyUsable(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		r.provenFor(100*time.Millisecond, func() { must1(r.use(0)) })
		table.change(func(s *keyTable) { s.err = postgres.ErrUnavailable })
		r.changed(number(0))
		for range 2 {
			r.provenFor(apikey.RecentAge/2, func() {})
			r.Reset("", changefeed.ResetGap)
		}
		r.provenFor(100*time.Millisecond, func() {})
		if _, err := r.use(0); !errors.Is(err, postgres.ErrUnavailable) {
			t.Error(err)
		}
	})
}
