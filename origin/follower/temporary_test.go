package follower_test

import (
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/follower"
)

func TestTheKindOfSlot(t *testing.T) {
	for _, c := range []struct {
		setting   string
		unlimited bool
		temporary bool
		risk      string
	}{
		{"auto", true, true, "the slot is temporary"}, {"auto", false, false, ""}, {"", true, true, "the slot is temporary"},
		{"temporary", true, true, ""}, {"temporary", false, true, ""},
		{"persistent", true, false, "may fill the disk"}, {"persistent", false, false, ""},
	} {
		f := follower.New(follower.Options{Slot: c.setting})
		temporary, risk := f.Poll(c.unlimited), ""
		if err := f.SlotRisk(); err != nil {
			risk = err.Error()
		}
		if temporary != c.temporary || !strings.Contains(risk, c.risk) || (risk == "") != (c.risk == "") {
			t.Errorf("%+v: %v, %q", c, temporary, risk)
		}
	}
}

// slotsOf names the database's slots, each with its kind.
func (w *world) slotsOf() string {
	w.Helper()
	return w.text(`SELECT coalesce(string_agg(replace(slot_name, 'listedge_' || oid, 'slot') || CASE WHEN temporary THEN ' temporary' ELSE ' persistent' END, ', '
		ORDER BY slot_name), 'none') FROM pg_replication_slots JOIN pg_database ON datname = database WHERE datname = current_database()`)
}

func (w *world) awaitNoSlot() {
	w.Helper()
	w.eventually("no slot is left", func() bool { return w.slotsOf() == "none" })
}

// as starts a follower with a kind of slot.
func (w *world) as(kind string) running {
	w.Helper()
	w.slot = kind
	return w.follow()
}

// A fleet is changed from one kind to the other and back, node by node. At each moment at most one node follows, and
// each new slot begins a new epoch, whose changes are published.
func TestAFleetChangesItsKindOfSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	before := w.as("persistent")
	w.awaitFollowing(before)
	for i, kind := range []string{"persistent", "temporary", "temporary", "persistent", "temporary"} {
		epoch, was := w.epoch, w.slotsOf()
		next := w.as(kind)
		w.heartbeat()
		if next.Following() || !before.Following() {
			t.Error("two nodes follow, or another one does")
		}
		before.stop()
		w.awaitFollowing(next)
		w.publishes()
		if is := w.slotsOf(); is != "slot "+kind {
			t.Errorf("%d: %s", i, is)
		}
		if goes := w.epoch == epoch; goes != (kind == "persistent" && was == "slot persistent") {
			t.Errorf("%d, %s after %s: epoch %s, then %s", i, kind, was, epoch, w.epoch)
		}
		before = next
	}
	before.stop()
	w.awaitNoSlot()
}

// A slot that a former run has left, and that nobody holds, is dropped also if changes cannot be followed.
func TestALeftSlotIsDropped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	f := w.as("persistent")
	w.awaitFollowing(f)
	f.stop()
	w.exec("DROP PUBLICATION listedge")
	w.incapable(w.as("temporary"), "is missing")
	w.awaitNoSlot()
}

// The setting of the server decides, also while a node follows.
func TestTheKindFollowsTheServersSetting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, sandboxtest.PostgresWith(t, map[string]string{"max_slot_wal_keep_size": ""}))
	f := w.as("auto")
	becomes := func(kind, risk string) {
		t.Helper()
		w.eventually(kind, func() bool { return w.slotsOf() == "slot "+kind && f.Following() })
		w.awaitFollowing(f)
		w.publishes()
		if err := f.SlotRisk(); (err == nil) != (risk == "") || err != nil && !strings.Contains(err.Error(), risk) {
			t.Errorf("%s: %v", kind, err)
		}
	}
	becomes("temporary", "set max_slot_wal_keep_size")
	end := w.withSetting("max_slot_wal_keep_size", "64MB")
	becomes("persistent", "")
	end()
	becomes("temporary", "set max_slot_wal_keep_size")
}

// A slot of another connection continues no epoch, even if the former follower, which does not know that it lost its
// own, has published a heartbeat from behind the new slot's beginning.
func TestANewSlotContinuesNoEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	first := w.as("temporary")
	w.awaitFollowing(first)
	h := w.heartbeat()
	epoch := w.epoch
	first.stop()
	h.LSN = uint64(pglogrepl.LSN(1) << 62)
	last, err := w.log.Last(w.ctx(), epoch)
	must(err)
	must(w.log.Append(w.ctx(), epoch, changefeed.Entry{Position: changefeed.Position{Term: last.Term, N: last.N + 1}, Heartbeat: &h}))
	second := w.as("temporary")
	w.awaitFollowing(second)
	if w.epoch == epoch {
		t.Error("the epoch has changes of two slots")
	}
	if err := w.log.Append(w.ctx(), epoch, changefeed.Entry{Position: changefeed.Position{Term: last.Term, N: last.N + 2}, Heartbeat: &h}); err == nil {
		t.Error("a late heartbeat of the former epoch was not refused")
	}
}

// A node without the log makes no slot, and drops none: others may follow.
func TestANodeWithoutTheLogMakesNoSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	f := w.as("persistent")
	w.awaitFollowing(f)
	f.stop()
	w.awaitFree()
	w.slot = "temporary"
	log := &faultyLog{Log: w.log}
	log.away.Store(true)
	f = w.followWith(w.url, log, silent)
	w.eventually("it has tried", func() bool { return log.epochs.Load() > 2 })
	if is := w.slotsOf(); is != "slot persistent" {
		t.Error(is)
	}
	log.away.Store(false)
	w.awaitFollowing(f)
	if is := w.slotsOf(); is != "slot temporary" {
		t.Error(is)
	}
}

// While a slot is made, which lasts as long as the longest write transaction, the nodes know why nobody follows. The node
// that makes it may end: nothing is left.
func TestATemporarySlotWaitsForWriteTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.slot = "temporary"
	long := w.begin("INSERT INTO items (workspace_id, name) VALUES ($1, 'x')")
	first := w.follow()
	w.awaitWaiting(long)
	second := w.follow()
	w.eventually("both know it", func() bool { return first.Making() != "" && second.Making() != "" })
	first.stop()
	w.awaitWaiting(long)
	if first.Stats().Terms+second.Stats().Terms > 0 {
		t.Error("a slot was made that lacks what the transaction has written")
	}
	must2(long.Exec(w.ctx(), "COMMIT"))
	w.awaitFollowing(second)
	w.eventually("made", func() bool { return second.Making() == "" })
	second.stop()
	w.awaitNoSlot()
}
