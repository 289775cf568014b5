package follower_test

import (
	"strings"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/sandbox/postgrestest"
)

// followAs starts a follower that reports to followed what it finds.
func (w *world) followAs(followed *fleet.Followed, log changefeed.Log) running {
	w.Helper()
	return w.run(w.follower(w.url, log, silent, followed))
}

// No node follows a server on an older timeline than the fleet has followed, and the slot
// stays free. Once the newer epoch is deleted, a node follows.
func TestAServerOnAnOldTimelineIsNotFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	followed, log, others := &fleet.Followed{}, &faultyLog{Log: w.log}, &faultyLog{Log: w.log}
	first := w.followAs(followed, log)
	w.awaitFollowing(first)
	name, _ := fleet.ParseEpoch(w.epoch)
	name.Timeline = 2
	must(w.log.SetEpoch(w.ctx(), w.epoch, name.String())) // by the new primary's follower
	w.eventually("it steps down", func() bool { return !first.Following() })
	w.awaitFree()
	terms := first.Stats().Terms
	followed.ObserveEpoch(name.String()) // as the node's reader of the log does
	before := log.epochs.Load()
	w.eventually("it has found that its timeline is old", func() bool { return followed.OldTimeline() != nil })
	second := w.followAs(&fleet.Followed{}, others) // it learns of the newer timeline from the log
	w.eventually("the second has tried", func() bool { return others.epochs.Load() > 2 })
	if first.Stats().Terms != terms || second.Stats().Terms != 0 || log.epochs.Load() > before+2 {
		t.Errorf("%+v, %+v, %d attempts", first.Stats(), second.Stats(), log.epochs.Load()-before)
	}
	if present, _ := w.log.Epoch(w.ctx()); present != name.String() {
		t.Errorf("the epoch is %s", present)
	}
	must(w.log.SetEpoch(w.ctx(), name.String(), ""))
	w.awaitFollowing(second)
}

// The first connection to another database behind the same URL (a restored one, for
// example) notices it.
func TestAnotherDatabaseBehindTheSameURLIsFollowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	followed := &fleet.Followed{}
	f := w.followAs(followed, w.log)
	w.awaitFollowing(f)
	before, epoch := followed.Digest(), w.epoch
	admin := open(t, w.postgres.URL("postgres"))
	for _, sql := range []string{
		"ALTER DATABASE THIS ALLOW_CONNECTIONS false",
		"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'THIS'",
		"ALTER DATABASE THIS RENAME TO THIS_old",
		"CREATE DATABASE THIS TEMPLATE " + postgrestest.Template,
	} {
		must2(admin.Exec(w.ctx(), strings.ReplaceAll(sql, "THIS", w.name)))
	}
	w.eventually("another database is found", func() bool { return followed.Digest() != before })
	w.eventually("another epoch", func() bool { e, _ := w.log.Epoch(w.ctx()); return e != epoch })
	w.connect()
	w.awaitFollowing(f)
	if name, ok := fleet.ParseEpoch(w.epoch); !ok || name.Identity != followed.Digest() {
		t.Errorf("%s is followed as %s", followed.Digest(), w.epoch)
	}
	w.exec(ids("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')"))
	if is := touched(w.change()); is != "items:1" {
		t.Error(is)
	}
}
