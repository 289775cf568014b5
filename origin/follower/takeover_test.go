package follower_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"listedge/internal/changefeed"
)

// awaitFree waits until Postgres has noticed that the follower has ended.
func (w *world) awaitFree() {
	w.Helper()
	w.eventually("the slot is free", func() bool {
		return w.text("SELECT coalesce(active_pid, 0)::text FROM pg_replication_slots WHERE slot_name = '"+w.slotName()+"'") == "0"
	})
}

// silent is a value of Options.Silence: no heartbeat came recently.
func silent() time.Duration { return time.Second }

func TestAFrozenFollowerIsOvertakenAndFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	thaw, frozen := make(chan struct{}), make(chan struct{})
	var freeze atomic.Bool
	var once sync.Once
	var late atomic.Int64
	slow := &faultyLog{Log: w.log}
	slow.append = func(context.Context, string, []changefeed.Entry) error {
		if freeze.Load() {
			once.Do(func() { close(frozen) })
			<-thaw
			late.Add(1)
		}
		return nil
	}
	first := w.followWith(w.url, slow, silent)
	w.awaitFollowing(first)
	w.heartbeat()
	epoch := w.epoch
	freeze.Store(true)
	<-frozen
	second := w.followWith(w.url, w.log, silent)
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	w.awaitFollowingFrom(second)
	if w.epoch != epoch {
		t.Errorf("a new epoch, though nothing was missed")
	}
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
	close(thaw)
	w.eventually("the late entry is tried", func() bool { return late.Load() > 0 })
	w.eventually("the frozen one steps down", func() bool { return !first.Following() })
	freeze.Store(false)
	for range 20 {
		w.heartbeat() // fails if a position is missing
	}
	if !second.Following() || first.Following() {
		t.Error("both or none follow")
	}
	if present, _ := w.log.Epoch(t.Context()); present != epoch {
		t.Errorf("the epoch turned to %s", present)
	}
}

// A follower may be frozen anywhere, even just before it sets its epoch. If another node has
// taken over when it continues, it must not set its epoch, not even for a moment.
func TestAnOvertakenFollowerNamesNoEpoch(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"as it begins": false, "as it mends what the log lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, server())
			var stop atomic.Bool
			var once sync.Once
			var woken atomic.Int64
			stopped, wake := make(chan struct{}), make(chan struct{})
			log := &faultyLog{Log: w.log}
			log.naming = func(string, string) {
				if stop.Load() {
					once.Do(func() { close(stopped) })
					<-wake
					woken.Add(1)
				}
			}
			stop.Store(!lost)
			first := w.followWith(w.url, log, silent)
			if lost {
				w.awaitFollowing(first)
				w.heartbeat()
				stop.Store(true)
				must(w.log.SetEpoch(w.ctx(), w.epoch, ""))
			}
			<-stopped
			second := w.followWith(w.url, w.log, silent)
			w.awaitFollowing(second)
			epoch := w.epoch
			watching, done := context.WithCancel(t.Context())
			named := make(chan string, 1)
			go func() { // reads the epoch as a node does
				defer close(named)
				for watching.Err() == nil {
					if present, _ := w.log.Epoch(watching); present != epoch {
						named <- present
						return
					}
				}
			}()
			stop.Store(false)
			close(wake)
			w.eventually("the first wakes and steps down", func() bool { return woken.Load() > 0 && !first.Following() })
			for range 5 {
				w.heartbeat()
			}
			done()
			if present, yes := <-named; yes {
				t.Errorf("the epoch turned from %s to %q", epoch, present)
			}
			if !second.Following() {
				t.Error("the second does not follow any more")
			}
		})
	}
}

func TestTheNextFollowsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	f := w.follow()
	w.awaitFollowing(f)
	candidates := []running{w.follow(), w.follow()}
	quickest := patience // of three: a busy machine may be slow once, but a candidate that polls rarely is slow each time
	for range 3 {
		w.heartbeat()
		epoch := w.epoch
		began := time.Now()
		f.stop()
		w.eventually("the next follows", func() bool { return candidates[0].Following() || candidates[1].Following() })
		quickest = min(quickest, time.Since(began))
		w.skipToEnd()
		if w.epoch != epoch {
			t.Error("a new epoch, though nothing was missed")
		}
		if candidates[1].Following() {
			candidates[0], candidates[1] = candidates[1], candidates[0]
		}
		f, candidates[0] = candidates[0], w.follow()
	}
	if quickest > time.Second {
		t.Errorf("after %s", quickest)
	}
}
