package follower

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// Each heartbeat repeats an unsettled change, and says only which collections it touches: it is
// sent thirty times a second, and only nodes that have just joined read that.
func TestHeartbeatsStaySmall(t *testing.T) {
	term := term{Follower: New(Options{})}
	term.publishChange(Commit{Change: changefeed.Change{XID: 7, LSN: 9, CommittedAt: 1, Touched: []changefeed.Touched{changefeed.AllRowsOf(nil),
		{Table: changefeed.Table{List: listtest.Items, Tenant: listtest.ID(1)}, Rows: []list.Row{listtest.Item(2)}}}}})
	published := term.waiting[0].Change
	if len(published.Touched) != 2 || len(published.Touched[1].Rows) != 1 {
		t.Errorf("published: %+v", published)
	}
	c := term.unsettled[0].Change
	if text := touched(c); c.XID != 7 || c.LSN != 9 || text != "whole:items whole:keys" || c.CommittedAt != 0 {
		t.Errorf("in a heartbeat: %+v", c)
	}
}

// Changes that are published while a heartbeat waits are no reason to name a later entry.
func TestAHeartbeatComesAfterWhatWasThereBeforeItsSnapshot(t *testing.T) {
	log, before := changefeed.NewLocal(), changefeed.Position{Term: 5, N: 3}
	term := term{Follower: New(Options{Log: log, Lists: list.BuiltIn()}), epoch: "e",
		last: before, acknowledged: before, pending: &changefeed.Heartbeat{After: before}}
	term.enqueue(changefeed.Entry{Change: &changefeed.Change{XID: 7}})
	must(term.publish(t.Context()))
	must(term.sendHeartbeat(t.Context()))
	reader, _, _ := log.Reader(t.Context())
	entries, _, err := reader.Read(t.Context(), "e", before, time.Millisecond)
	must(err)
	if len(entries) != 2 || entries[1].Heartbeat == nil || entries[1].Heartbeat.After != before {
		t.Errorf("%+v", entries)
	}
}

func TestWhenASnapshotIsTaken(t *testing.T) {
	now := time.Now()
	at := func(ms int) time.Time { return now.Add(time.Duration(ms) * time.Millisecond) }
	decoded := func(ms int) unsettled { return unsettled{{decoded: at(-1000)}, {decoded: at(ms)}} }
	for name, c := range map[string]struct {
		term term // its last snapshot was taken now
		next int  // when the next one is, in milliseconds
	}{
		"at rest":                        {term{}, 33},
		"a change":                       {term{waiting: make([]changefeed.Entry, 1)}, 4},
		"a node waits for a proof":       {term{early: 1}, 4},
		"a commit that is not visible":   {term{unsettled: decoded(-19)}, 4},
		"a commit that was decoded late": {term{unsettled: decoded(1)}, 4},
		"a commit that hangs":            {term{unsettled: decoded(-20)}, 33},
	} {
		t.Run(name, func(t *testing.T) {
			c.term.preparedAt = now
			if next := c.term.nextSnapshot(at(33)); next != at(c.next) {
				t.Errorf("the next one after %s, want %d ms", next.Sub(now), c.next)
			}
		})
	}
}

// A node that asks gets as many heartbeats at once as a proof takes. Those that ask meanwhile are no reason for more.
func TestAProofIsHurried(t *testing.T) {
	log := changefeed.NewLocal()
	term := term{Follower: New(Options{Log: log, Lists: list.BuiltIn()}), epoch: "e", last: changefeed.Position{Term: 5}}
	for i, want := range []int{0, 3, 2, 1, 0, 0, 3} {
		if i == 1 || i == 3 || i == 6 {
			log.Hurry(t.Context())
		}
		term.pending = &changefeed.Heartbeat{}
		must(term.sendHeartbeat(t.Context()))
		if term.early != want {
			t.Errorf("after heartbeat %d, %d come early, want %d", i, term.early, want)
		}
	}
}

// However many requests wait for proofs all the time, they cost the primary so many heartbeats a second, and not one each.
func TestWhatHurriedProofsCost(t *testing.T) {
	for asked, want := range map[bool]int{false: 31, true: 91} { // 30 and 89 in each second, and the first ones at once
		log := changefeed.NewLocal()
		term := term{Follower: New(Options{Log: log, Lists: list.BuiltIn()}), epoch: "e", last: changefeed.Position{Term: 5}}
		n, began := 0, time.Now()
		for now := began; now.Sub(began) < time.Second; n++ {
			for range 1000 {
				if asked {
					log.Hurry(t.Context())
				}
			}
			term.preparedAt, term.pending = now, &changefeed.Heartbeat{}
			must(term.sendHeartbeat(t.Context()))
			now = term.nextSnapshot(now.Add(heartbeatEvery))
		}
		if n != want {
			t.Errorf("%d heartbeats in a second, want %d; asked: %t", n, want, asked)
		}
	}
}

func TestWhatTheLogNeedNotKeep(t *testing.T) {
	now := time.Now()
	h := history{{at: now, position: changefeed.Position{Term: 5}}}
	for _, c := range []struct {
		after time.Duration
		n     uint64
		mb    int
		want  string
	}{
		{time.Second / 2, 20, 1, ""}, {30 * time.Second, 600, 2, ""}, {50 * time.Second, 1000, 3, ""}, {61 * time.Second, 1200, 4, ""},
		{91 * time.Second, 1800, 5, "5-600"}, {91*time.Second + 1, 1900, 12, ""}, {91*time.Second + 2, 2000, 13, ""}, {92 * time.Second, 3000, 60, "5-1800"},
		{93 * time.Second, 4000, 68, "5-2000"},
	} {
		got := ""
		if h.add(milestone{now.Add(c.after), changefeed.Position{Term: 5, N: c.n}, c.mb << 20, 0}) {
			if before, ok := h.trim(time.Minute); ok {
				got = before.String()
			}
		}
		if got != c.want {
			t.Errorf("after %s: %q, want %q", c.after, got, c.want)
		}
	}
}

// A log that is trimmed many times a second still lets the slot release WAL.
func TestAFloodOfEntriesIsConfirmed(t *testing.T) {
	now := time.Now()
	h := history{{at: now}}
	const perSecond = 20 // times historyBytes
	for i := range 10 * perSecond {
		m := milestone{now.Add(time.Duration(i+1) * time.Second / perSecond),
			changefeed.Position{Term: 5, N: uint64(i + 1)}, (i + 1) * historyBytes, pglogrepl.LSN(i + 1)}
		if h.add(m); i == 0 {
			continue
		}
		if before, _ := h.trim(time.Minute); uint64(m.bytes)-before.N*historyBytes > logBytes {
			t.Fatalf("at %d the log is trimmed before %d only", i+1, before.N)
		}
		if to := h.confirmable(m.at, nil); i > 4*perSecond && to != pglogrepl.LSN(i-3*perSecond) {
			t.Fatalf("at %d up to %d can be confirmed", i+1, to)
		}
		if len(h) > 4*perSecond {
			t.Fatalf("%d milestones are kept", len(h))
		}
	}
}

// The WAL of a commit that is not visible yet is kept for the next follower, also if no list shows its rows: the next one
// may have other lists.
func TestTheWALOfUnsettledCommitsIsKept(t *testing.T) {
	now := time.Now()
	h := history{{at: now.Add(-10 * time.Second), lsn: 100}}
	for name, c := range map[string]struct {
		unsettled, unlisted unsettled
		want                pglogrepl.LSN
	}{
		"of none":                     {nil, nil, 100},
		"of a list's":                 {unsettled{{Start: 50}, {Start: 60}}, nil, 50},
		"of another table's":          {nil, unsettled{{Start: 40}}, 40},
		"of both":                     {unsettled{{Start: 50}}, unsettled{{Start: 70}}, 50},
		"of one that came afterwards": {unsettled{{Start: 200}}, unsettled{{Start: 200}}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			to := h.confirmable(now, c.unsettled, c.unlisted)
			if to != c.want {
				t.Errorf("up to %d can be confirmed, want %d", to, c.want)
			}
		})
	}
}

// A candidate polls the slot at once when heartbeats have stopped, and otherwise after
// idleInterval. It does not wake up much earlier.
func TestACandidateWaits(t *testing.T) {
	t.Run("until heartbeats stop", func(t *testing.T) {
		for stopsAfter := time.Duration(0); stopsAfter < time.Second; stopsAfter += 7 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				waited, wakes := waitWithHeartbeats(t, stopsAfter)
				if late := waited - stopsAfter.Truncate(heartbeatEvery) - silenceThreshold; late <= 0 || late > 2*pollFirst {
					t.Errorf("heartbeats until %v: polls %v after the threshold", stopsAfter, late)
				}
				if most := 4 + 2*int(waited/(silenceThreshold-heartbeatEvery)); wakes > most {
					t.Errorf("heartbeats until %v: wakes %d times in %v", stopsAfter, wakes, waited)
				}
			})
		}
	})
	t.Run("while they go on", func(t *testing.T) {
		waits := map[time.Duration]bool{}
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				waited, _ := waitWithHeartbeats(t, time.Hour)
				if waited < 10*time.Second || waited > 12*time.Second+silenceThreshold+pollLast {
					t.Errorf("polls after %v", waited)
				}
				waits[waited.Truncate(100*time.Millisecond)] = true
			})
		}
		if len(waits) < 3 {
			t.Errorf("candidates poll at the same moments: %v", waits)
		}
	})
	t.Run("until its server is known to be an old primary", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := New(Options{Followed: &fleet.Followed{}, Silence: func() time.Duration { return 0 }})
			server := fleet.Server{Timeline: 1}
			f.options.Followed.SetServer(server)
			newer := fleet.EpochName{Identity: server.Digest(), Timeline: 2, Instance: "r", Published: "p", Random: "x"}
			f.options.Followed.ObserveEpoch(newer.String())
			began := time.Now()
			must(f.waitPoll(t.Context()))
			if waited := time.Since(began); waited > 2*silenceThreshold {
				t.Errorf("polls after %v", waited)
			}
		})
	})
}

// waitWithHeartbeats runs waitPoll with heartbeats until stopsAfter.
func waitWithHeartbeats(t *testing.T, stopsAfter time.Duration) (waited time.Duration, wakes int) {
	began := time.Now()
	f := New(Options{Followed: &fleet.Followed{}, Silence: func() time.Duration {
		wakes++
		passed := time.Since(began)
		return passed - min(passed, stopsAfter).Truncate(heartbeatEvery)
	}})
	must(f.waitPoll(t.Context()))
	return time.Since(began), wakes
}

// With a publication FOR ALL TABLES most commits are of other tables. A term that catches up
// decodes any number of them between two views, and the first of these has seen them.
func TestCommitsThatAViewHasSeenAreNotKept(t *testing.T) {
	for want, xid := range []uint64{7, 8} {
		received := Received{Commit: &Commit{Change: changefeed.Change{XID: xid}, Unlisted: true}}
		term := term{Follower: New(Options{}), primary: primaryOf{sends: received}, snapshot: changefeed.Snapshot{Xmin: 8, Xmax: 8}}
		must(term.receive(t.Context(), time.Time{}))
		if n := len(term.unlisted); n != want {
			t.Errorf("%d commits are kept after that of transaction %d", n, xid)
		}
	}
}

// primaryOf sends one message again and again.
type primaryOf struct {
	Upstream
	sends Received
}

func (p primaryOf) Receive(context.Context, time.Time) (Received, error) { return p.sends, nil }
