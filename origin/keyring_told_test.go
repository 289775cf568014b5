package origin

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

// prove has everything proven up to a moment, on the server that was started at run.
func (r *ring) prove(until time.Time, run string) {
	if run != r.server {
		r.Reset("", changefeed.ResetEpoch)
	}
	r.server = run
	r.ValidThrough(changefeed.Proof{Moment: until, Run: run})
}

// join has changes proven from now on.
func (r *ring) join() {
	r.prove(time.Now(), r.server)
	time.Sleep(time.Nanosecond)
}

// provenFor lets time pass while everything is proven, all along.
func (r *ring) provenFor(d time.Duration, meanwhile func()) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(50 * time.Millisecond) {
		r.prove(time.Now().Add(-20*time.Millisecond), r.server)
		meanwhile()
	}
}

// changed is a change of rows of keys and workspaces.
func (r *ring) changed(ids ...uuid.UUID) {
	c := &changefeed.Change{Lists: []changefeed.List{{Workspace: number(9000), Collection: changefeed.Items}}}
	for _, id := range ids {
		c.Lists = append(c.Lists, changefeed.List{Workspace: id, Collection: changefeed.Keys})
	}
	r.Keyring.Changed(changefeed.Position{}, c)
}

func (r *ring) allChanged() { r.Settled(&changefeed.Change{Whole: 1 << changefeed.Keys}) }

func (r *ring) isKnown(n int) bool {
	return r.Known(hashNumber(n), placeOf(hashNumber(n)), time.Now()) != nil
}

func TestWhereChangesAreToldHardlyAKeyIsAskedFor(t *testing.T) {
	table := newKeyTable(100)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		for n := range 100 {
			table.set(n, func(k *Key) { k.Workspace = number(1000 + n) })
			if _, err := r.use(n); err != nil {
				t.Fatal(err)
			}
		}
		asked := table.asked()
		n, began := 0, time.Now()
		r.provenFor(2*keyReview, func() { // each key every 5 seconds
			if n++; !r.isKnown(n % 100) {
				t.Fatalf("a request waits after %v", time.Since(began))
			}
		})
		if asked = table.asked() - asked; asked < 100 || asked > 200 { // the table spreads its 100 keys over all shards
			t.Errorf("%d queries in %v, in which each shard is due twice", asked, 2*keyReview)
		}
		for n, concerns := range []func(Key) []uuid.UUID{
			func(k Key) []uuid.UUID { return []uuid.UUID{number(5000), k.ID} },
			func(k Key) []uuid.UUID { return []uuid.UUID{k.Workspace} },
			nil,
		} {
			table.set(n, func(k *Key) { k.Revoked, k.Workspace = true, number(4000) })
			kept := r.find(hashNumber(n))
			if r.changed(number(6000)); !r.isKnown(n) {
				t.Error("what concerns another has it looked up")
			}
			if concerns == nil {
				r.allChanged()
			} else {
				r.changed(concerns(kept.Key)...)
			}
			if r.StillKnown(kept, time.Now()) || r.isKnown(n) {
				t.Error("relied on although it was changed")
			}
			time.Sleep(time.Nanosecond)
			if key, err := r.use(n); err != nil || !key.Revoked || !r.isKnown(n) || r.StillKnown(kept, time.Now()) {
				t.Errorf("%+v, %v", key, err)
			}
			time.Sleep(time.Nanosecond)
			if r.changed(number(4000)); r.isKnown(n) {
				t.Error("not found by the workspace that it was moved to")
			}
		}
	})
}

// Half of a proof is none: a change may have come before since.
func TestAProofIsOfKeysLookedUpWithin(t *testing.T) {
	table := newKeyTable(2)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		moment := time.Now()
		time.Sleep(time.Nanosecond)
		_, _ = r.use(0)
		time.Sleep(time.Nanosecond)
		r.prove(moment, r.server) // what was published before it was read, and visible by now, is not known
		time.Sleep(time.Nanosecond)
		_, _ = r.use(1)
		r.provenFor(keyFresh+time.Millisecond, func() {})
		if r.isKnown(0) || !r.isKnown(1) {
			t.Errorf("looked up before %v, after %v", r.isKnown(0), r.isKnown(1))
		}
		r.Reset("e", changefeed.ResetGap)
		r.provenFor(keyFresh+100*time.Millisecond, func() {})
		if r.isKnown(1) {
			t.Error("known as of a look-up that another proof was about")
		}
	})
}

// Of a key that nobody knew yet, whoever looks it up finds out that something
// was told meanwhile.
func TestAChangeIsToldToTheLookupUnderWay(t *testing.T) {
	table := newKeyTable(2)
	table.delay = 20 * time.Millisecond
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		for n := range 2 {
			time.Sleep(time.Nanosecond)
			time.AfterFunc(time.Duration(1+30*n)*time.Millisecond, func() { r.changed(number(n)) })
			_, _ = r.use(n)
			r.prove(time.Now(), "")
			if known := r.isKnown(n); known != (n == 1) { // the other is told of afterwards
				t.Errorf("key %d: %v", n, known)
			}
		}
	})
}

// What an old primary says, that lives on, is proven by no follower of the new.
func TestAProofIsOfOneServer(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		for round, c := range []struct {
			told, proven string
			known        bool
		}{{"old", "old", true}, {"old", "new", false}, {"new", "new", true}, {"new", "", true}} {
			r.prove(time.Now().Add(-time.Millisecond), c.proven)
			table.set(0, func(k *Key) { k.Run = c.told })
			r.allChanged()
			time.Sleep(time.Nanosecond)
			if _, err := r.use(0); err != nil {
				t.Fatal(err)
			}
			if asked := table.asked(); table.runs[asked-1] != c.proven {
				t.Errorf("round %d: %q was asked for, and %q is proven", round, table.runs[asked-1], c.proven)
			}
			r.provenFor(keyFresh+time.Millisecond, func() {})
			if known := r.isKnown(0); known != c.known {
				t.Errorf("round %d: %v, told by %q, proven of %q", round, known, c.told, c.proven)
			}
		}
		r.prove(time.Now(), "new")
		r.provenFor(100*time.Millisecond, func() {})
		if r.prove(time.Now(), "newer"); !r.isKnown(0) {
			t.Error("it was right moments ago")
		}
	})
}

func TestAScheduledKeyIsAskedFor(t *testing.T) {
	table := newKeyTable(1)
	table.set(0, func(k *Key) { k.Scheduled = true })
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		_, _ = r.use(0)
		r.provenFor(keyFresh+time.Millisecond, func() {})
		if r.isKnown(0) {
			t.Error("nobody tells when its time has come")
		}
	})
}

// What is kept of a key that the keyring has forgotten is told nothing any more.
func TestAForgottenKeyIsNotReliedOn(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		_, _ = r.use(0)
		kept := r.find(hashNumber(0))
		r.provenFor(keyIdle+2*keyReview, func() {})
		if r.find(hashNumber(0)) != nil || r.StillKnown(kept, time.Now()) || len(r.told.index.hashes) != 0 {
			t.Errorf("seen %v, relied on %v, indexed %v", r.find(hashNumber(0)) != nil, r.StillKnown(kept, time.Now()), r.told.index.hashes)
		}
	})
}

// A key is as right as it was proven to be, however long ago it was looked up,
// and that is what the grace counts from.
func TestTheGraceBeginsWithTheLastProof(t *testing.T) {
	const grace = 30 * time.Second
	for name, end := range map[string]func(*ring){"no more proof": func(*ring) {}, "reset": func(r *ring) { r.Reset("", changefeed.ResetGap) }} {
		t.Run(name, func(t *testing.T) {
			table := newKeyTable(1)
			inRing(t, table, grace, func(t *testing.T, r *ring) {
				r.join()
				_, _ = r.use(0)
				r.provenFor(keyReview/2, func() { r.isKnown(0) })
				proven := r.told.proof.Load().until
				end(r)
				table.change(func(s *keyTable) { s.err = ErrUnavailable })
				for r.clock.Now() < proven+grace+10*time.Second {
					_, err := r.use(0)
					if age := r.clock.Now() - proven; (err == nil) != (age < grace) {
						t.Fatalf("after %v: %v", age, err)
					}
					time.Sleep(100 * time.Millisecond)
				}
			})
		})
	}
}

// Another server answers in the primary's place. What it does not know is not
// unknown, and what was known goes on within the grace, but for a key that was
// changed meanwhile: nobody can say how.
func TestTheWrongServerRevivesNoKey(t *testing.T) {
	table := newKeyTable(3)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.join()
		for n := range 2 {
			_, _ = r.use(n)
		}
		r.provenFor(100*time.Millisecond, func() {})
		for name, wrong := range map[string]error{"at once": ErrWrongServer, "or not in time": errors.Join(ErrUnavailable, context.DeadlineExceeded)} {
			table.change(func(s *keyTable) { s.err = ErrWrongServer })
			_, _ = r.use(2)
			table.change(func(s *keyTable) { s.err = wrong })
			r.changed(number(0))
			for range 20 {
				r.provenFor(50*time.Millisecond, func() {})
				if _, err := r.use(0); !errors.Is(err, ErrUnavailable) {
					t.Fatalf("%s: a key that was changed: %v", name, err)
				}
				if _, err := r.use(1); err != nil {
					t.Errorf("%s: a key that was not: %v", name, err)
				}
				if _, err := r.use(2); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknownKey) {
					t.Errorf("%s: a key that only the primary knows: %v", name, err)
				}
			}
		}
		table.change(func(s *keyTable) { s.err = nil })
		for n := range 3 {
			if _, err := r.use(n); err != nil {
				t.Error(err)
			}
		}
		table.change(func(s *keyTable) { s.err = ErrUnavailable }) // away, as it may always be
		r.changed(number(0))
		if _, err := r.use(0); err != nil {
			t.Error(err)
		}
	})
}

// A proof that has grown old does not say any more which run is the primary's.
func TestAnOldProofNamesNoServer(t *testing.T) {
	table := newKeyTable(1)
	inRing(t, table, time.Minute, func(t *testing.T, r *ring) {
		r.prove(time.Now(), "old")
		for _, want := range []string{"old", ""} {
			r.allChanged()
			time.Sleep(time.Nanosecond)
			_, _ = r.use(0)
			table.change(func(s *keyTable) {
				if last := s.runs[len(s.runs)-1]; last != want {
					t.Errorf("%q was asked for, not %q", last, want)
				}
			})
			time.Sleep(keyFresh)
		}
	})
}
