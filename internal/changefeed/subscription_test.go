package changefeed_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/changefeed"
	"listedge/internal/fleet"
	"listedge/internal/list/listtest"
)

// recorder writes down what it is given, in short.
type recorder struct {
	all    []string
	proofs []Proof
	beats  []string
}

func (r *recorder) Reset(epoch string, cause changefeed.ResetCause) {
	r.all = append(r.all, fmt.Sprintf("reset by %s to %q", cause, epoch))
}

func (r *recorder) Beat(b changefeed.Beat) {
	for _, c := range b.Settled {
		r.all = append(r.all, fmt.Sprint("settled ", c.XID))
	}
	xids := func(changes []*Change) (all []string) {
		for _, c := range changes {
			all = append(all, fmt.Sprintf("%d at %d", c.XID, c.LSN))
		}
		return all
	}
	r.beats = append(r.beats, fmt.Sprintf("%s of %s/%s, LSN %d, sees %s, settled %q, not %q, after %q",
		b.At, b.Timeline, b.StartedAt, b.LSN, b.Snapshot, xids(b.Settled), xids(b.Unsettled), r.all[len(r.all)-1]))
	if !b.Moment.IsZero() {
		r.all = append(r.all, fmt.Sprint("valid through ", b.Moment.Unix()))
		r.proofs = append(r.proofs, b.Proof)
	}
}

func at(term, n uint64) Position { return Position{term, n} }

func termStart(term uint64, previous Position) Entry {
	return Entry{Position: at(term, 1), TermStart: &changefeed.TermStart{Previous: previous}}
}

func change(term, n, xid uint64) Entry {
	return Entry{Position: at(term, n), Change: &Change{XID: xid, Touched: []changefeed.Touched{{Table: Table{List: listtest.Items, Tenant: "a"}}}}}
}

// heartbeat is a heartbeat whose snapshot was taken after the entry at after. If after is zero,
// it proves nothing.
func heartbeat(term, n uint64, after Position, snapshot string, unsettled ...Change) Entry {
	return Entry{Position: at(term, n), Heartbeat: &Heartbeat{LSN: n, Snapshot: snapshot, StartedAt: "run", After: after, Unsettled: unsettled}}
}

func byServer(server string, e Entry) Entry {
	e.Heartbeat.LogServer = server
	return e
}

func ofRun(run string, e Entry) Entry {
	e.Heartbeat.StartedAt = run
	return e
}

// looks are reads one after the other: each begins a second after the one before.
type look struct {
	entries []Entry
	cut     bool
	session bool // by another reader,
	server  string
	epoch   string
}

func reads(entries ...Entry) look { return look{entries: entries} }

func TestSubscription(t *testing.T) {
	nothing := Position{}
	for _, c := range []struct {
		name  string
		looks []look // the first begins at second 1
		want  []string
	}{
		{"a heartbeat proves the last look before the entry at after",
			[]look{reads(heartbeat(1, 1, nothing, "5:5:")), reads(), reads(heartbeat(1, 2, at(1, 1), "5:5:")), reads(heartbeat(1, 3, at(1, 2), "5:5:"))},
			[]string{"valid through 2"}},
		{"a look before the first entry proves nothing",
			[]look{reads(), reads(heartbeat(1, 9, at(1, 8), "5:5:")), reads(heartbeat(1, 10, at(1, 9), "5:5:"))}, nil},
		{"a moment is proven once",
			[]look{reads(termStart(1, Position{})), reads(change(1, 2, 5), heartbeat(1, 3, at(1, 2), "6:6:"), heartbeat(1, 4, at(1, 2), "6:6:"))},
			[]string{"settled 5", "valid through 1"}},
		{"a heartbeat that another server was given proves nothing",
			[]look{{session: true, server: "x", entries: []Entry{termStart(1, Position{})}}, reads(byServer("y", heartbeat(1, 2, at(1, 2), "5:5:"))),
				reads(byServer("x", heartbeat(1, 3, at(1, 3), "5:5:")))},
			[]string{"valid through 2"}},
		{"a snapshot that cannot be read proves nothing",
			[]look{reads(termStart(1, Position{})), reads(heartbeat(1, 2, at(1, 2), "?"))}, nil},
		{"a change settles when a snapshot sees it, proof or not",
			[]look{reads(change(1, 1, 6), heartbeat(1, 2, nothing, "6:9:6"), change(1, 3, 9), heartbeat(1, 4, nothing, "9:10:9"), heartbeat(1, 5, nothing, "10:10:"))},
			[]string{"settled 6", "settled 9"}},
		{"another term goes on without a gap",
			[]look{reads(termStart(1, Position{})), reads(termStart(2, at(1, 1))), reads(heartbeat(2, 2, at(2, 1), "5:5:"))}, []string{"valid through 1"}},
		{"a gap forgets what is unsettled",
			[]look{reads(change(1, 1, 6)), reads(heartbeat(1, 3, at(1, 3), "9:9:"))}, []string{`reset by gap to "e"`}},
		{"an entry that cannot be decoded, and its end",
			[]look{reads(termStart(1, Position{}), Entry{Position: at(1, 2)}, change(1, 3, 5))}, []string{`reset by undecodable to "e"`}},
		{"another server in the same epoch",
			[]look{reads(termStart(1, Position{})), reads(heartbeat(1, 2, at(1, 2), "5:5:")), reads(ofRun("another", heartbeat(1, 3, at(1, 3), "5:5:"))),
				reads(ofRun("another", heartbeat(1, 4, at(1, 4), "5:5:")))},
			[]string{"valid through 1", `reset by epoch to "e"`, "valid through 3"}},
		{"another epoch begins at its oldest entry",
			[]look{reads(change(1, 5, 6)), {epoch: "f", entries: []Entry{heartbeat(9, 1, nothing, "9:9:")}}}, []string{`reset by epoch to "f"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &recorder{}
			s := changefeed.NewSubscription(r)
			s.Follow("e")
			for i, l := range c.looks {
				if l.session {
					s.NewSession(l.server)
				}
				if l.epoch != "" {
					s.Follow(l.epoch)
					if epoch, after := s.Next(); epoch != l.epoch || after != (Position{}) {
						t.Errorf("reads %s after %s", epoch, after)
					}
				}
				s.Apply(time.Unix(int64(i+1), 0), l.entries, l.cut)
				if _, after := s.Next(); len(l.entries) > 0 && after != l.entries[len(l.entries)-1].Position {
					t.Errorf("goes on after %s", after)
				}
			}
			if want := append([]string{`reset by join to "e"`}, c.want...); !slices.Equal(r.all, want) {
				t.Errorf("%q, want %q", r.all, want)
			}
		})
	}
}

// A replica moves to each heartbeat's snapshot, before it serves by the proof.
func TestABeatHasAllThatItsSnapshotSeesAnew(t *testing.T) {
	r := &recorder{}
	s := changefeed.NewSubscription(r)
	s.Follow("e")
	hung := Change{XID: 5, LSN: 50}
	seven := Entry{Position: at(3, 4), Change: &Change{XID: 7, LSN: 70}}
	s.Apply(time.Unix(1, 0), []Entry{seven, heartbeat(3, 5, Position{}, "5:8:5,7", hung, Change{XID: 7})}, false)
	h := heartbeat(3, 6, at(3, 6), "5:8:5", hung)
	h.Heartbeat.Timeline = "s/1"
	s.Apply(time.Unix(2, 0), []Entry{h}, false)
	s.Apply(time.Unix(3, 0), []Entry{byServer("other", heartbeat(3, 7, at(3, 6), "9:9:")), heartbeat(3, 8, at(3, 7), "?"),
		heartbeat(3, 9, at(3, 7), "9:9:")}, false)
	want := []string{
		`3-5 of /run, LSN 5, sees 5:8:5,7, settled [], not ["7 at 70" "5 at 50"], after "reset by join to \"e\""`,
		`3-6 of s/1/run, LSN 6, sees 5:8:5, settled ["7 at 70"], not ["5 at 50"], after "settled 7"`,
		`3-7 of /run, LSN 7, sees 9:9:, settled ["5 at 50"], not [], after "settled 5"`,
		`3-9 of /run, LSN 9, sees 9:9:, settled [], not [], after "settled 5"`,
	}
	if !slices.Equal(r.beats, want) {
		t.Errorf("%q, want %q", r.beats, want)
	}
	if proof := (Proof{Moment: time.Unix(1, 0), At: at(3, 6), Timeline: "s/1", StartedAt: "run", LSN: 6}); len(r.proofs) == 0 || r.proofs[0] != proof {
		t.Errorf("%+v, want %+v", r.proofs, proof)
	}
}

// A subscription remembers a bounded number of reads, the oldest, however long no heartbeat
// comes: its proof becomes older.
func TestReadsAreBounded(t *testing.T) {
	r := &recorder{}
	s := changefeed.NewSubscription(r)
	s.Follow("e")
	const most, looks = 1024, 3000
	for n := range uint64(looks) {
		s.Apply(time.Unix(int64(n), 0), []Entry{termStart(n+1, at(n, 1))}, false)
	}
	s.Apply(time.Unix(looks, 0), []Entry{heartbeat(looks, 2, at(looks, 2), "5:5:")}, false)
	if len(r.proofs) != 1 || r.proofs[0].Moment.Unix() != most-1 {
		t.Errorf("%+v", r.proofs)
	}
}

// scripted is a log whose reads a test answers, and which counts what it is asked.
type scripted struct {
	*changefeed.Local
	answer  func(n int, after Position) ([]Entry, error) // the nth read, from 1 on
	takes   time.Duration                                // a read
	mu      sync.Mutex                                   // after a read has taken its time; guards what a test changes meanwhile
	failure error                                        // of checkpoints

	reads, epochs        atomic.Int64
	readers, checkpoints int
}

func (s *scripted) Checkpoint(ctx context.Context, epoch string) (*changefeed.Checkpoint, error) {
	s.checkpoints++
	c, err := s.Local.Checkpoint(ctx, epoch)
	return c, errors.Join(err, s.failure)
}

func (s *scripted) Epoch(ctx context.Context) (string, error) {
	s.epochs.Add(1)
	return s.Local.Epoch(ctx)
}

func (s *scripted) Reader(context.Context) (changefeed.Reader, string, error) {
	s.readers++
	return scriptedReader{s}, "", nil
}

type scriptedReader struct{ *scripted }

func (scriptedReader) Close() error { return nil }

func (r scriptedReader) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, bool, error) {
	n := r.reads.Add(1)
	if r.answer == nil {
		return r.Local.Read(ctx, epoch, after, wait)
	}
	boottimetest.Pass(r.takes)
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := r.answer(int(n), after)
	return entries, false, err
}

// answered runs a subscriber to a log of epoch e until it is stopped. A read takes a while.
func answered(t *testing.T, takes time.Duration, to changefeed.Listener, answer func(n int, after Position) ([]Entry, error)) (
	log *scripted, s *changefeed.Subscriber, stop func(),
) {
	log = &scripted{Local: changefeed.NewLocal(), answer: answer, takes: takes}
	_ = log.SetEpoch(t.Context(), "", "e")
	s = changefeed.NewSubscriber(log, &fleet.Followed{}, slog.New(slog.DiscardHandler), to)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	synctest.Wait()
	return log, s, func() { cancel(); done.Wait() }
}

// What is proven is the moment before the read was sent, however long its answer takes.
func TestARecordedReadBeganBeforeItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, began := &recorder{}, time.Now()
		_, _, stop := answered(t, 300*time.Millisecond, r, func(n int, _ Position) (entries []Entry, err error) {
			switch n {
			case 1:
				entries = []Entry{termStart(1, Position{})}
			case 2:
				entries = []Entry{heartbeat(1, 2, at(1, 2), "5:5:")}
			}
			return entries, nil
		})
		boottimetest.Pass(time.Second)
		if stop(); len(r.proofs) != 1 || !r.proofs[0].Moment.Equal(began) {
			t.Errorf("%+v, want a proof of %s", r.proofs, began)
		}
	})
}

// lastMoment keeps the moment of the last proof, in nanoseconds since 1970.
type lastMoment struct{ atomic.Int64 }

func (*lastMoment) Reset(string, changefeed.ResetCause) {}

func (l *lastMoment) Beat(b changefeed.Beat) {
	if !b.Moment.IsZero() {
		l.Store(b.Moment.UnixNano())
	}
}

// A subscriber at rest reads the log once in a pause. Its proofs are at most two pauses and two heartbeats old. Silence does not
// count the pauses. A subscriber that is not at rest reads each entry as it comes.
func TestWhatRestsReadsSeldom(t *testing.T) {
	const every, pause, seconds = 33 * time.Millisecond, 160 * time.Millisecond, 10
	synctest.Test(t, func(t *testing.T) {
		proven := &lastMoment{}
		log, s, stop := answered(t, 0, proven, nil)
		_ = log.Append(t.Context(), "e", termStart(1, Position{}))
		n := uint64(1)
		// play appends heartbeats for some seconds, and returns how many reads there were, and the oldest proof and the longest silence.
		play := func() (reads int64, oldest, longest time.Duration) {
			before, end := log.reads.Load(), time.Now().Add(seconds*time.Second)
			for time.Now().Before(end) {
				boottimetest.Pass(every)
				n++
				_ = log.Append(t.Context(), "e", heartbeat(1, n, at(1, n-1), "5:5:"))
				synctest.Wait()
				if last := proven.Load(); last != 0 {
					oldest = max(oldest, time.Since(time.Unix(0, last)))
				}
				longest = max(longest, s.Silence())
			}
			return log.reads.Load() - before, oldest, longest
		}
		for _, c := range []struct {
			rest                 time.Duration
			least, most          int64
			longestProof, silent time.Duration
		}{{0, 280, 310, 5 * every, every}, {pause, 55, 65, 2*pause + 2*every, every}, {0, 280, 310, 5 * every, every}} {
			s.Rest(c.rest)
			play() // until it takes effect
			reads, oldest, longest := play()
			if reads < c.least || reads > c.most || oldest > c.longestProof || longest > c.silent {
				t.Errorf("rest %s: %d reads in %d s, want %d to %d; proofs up to %s old, want %s; silence up to %s, want %s",
					c.rest, reads, seconds, c.least, c.most, oldest, c.longestProof, longest, c.silent)
			}
		}
		s.Rest(pause)
		play()
		before := log.epochs.Load()
		play()
		if n := log.epochs.Load() - before; n > 2 {
			t.Errorf("rest: %d reads of the epoch in %d s", n, seconds)
		}
		boottimetest.Pass(time.Second) // no heartbeats
		if s.Silence() < 700*time.Millisecond {
			t.Errorf("no heartbeat for a second, and a silence of %s", s.Silence())
		}
		stop()
	})
}

// given writes down the checkpoints that heartbeats bring, each once.
type given struct{ all []string }

func (g *given) note(what string) {
	if n := len(g.all); n == 0 || g.all[n-1] != what {
		g.all = append(g.all, what)
	}
}

func (g *given) Reset(string, changefeed.ResetCause) { g.note("reset") }

func (g *given) Beat(b changefeed.Beat) {
	switch {
	case b.Checkpoint != nil:
		g.note(b.Checkpoint.At.String())
	case g.all[len(g.all)-1] == "reset":
		g.note("none")
	}
}

// The checkpoint comes with the first heartbeat, and is read again until one reaches that heartbeat; after a gap, too. One that
// cannot be read stops nothing.
func TestTheCheckpointIsReadUntilItReachesTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, next := &given{}, uint64(5)
		log, _, stop := answered(t, 100*time.Millisecond, g, func(int, Position) ([]Entry, error) {
			next++
			return []Entry{heartbeat(1, next, Position{}, "5:5:")}, nil
		})
		pass := func(asked int, want ...string) { // five seconds
			t.Helper()
			synctest.Wait()
			log.checkpoints, g.all = 0, g.all[max(0, len(g.all)-1):]
			log.mu.Unlock()
			boottimetest.Pass(5 * time.Second)
			synctest.Wait()
			log.mu.Lock()
			if n := log.checkpoints; n < asked || n > asked+2 || !slices.Equal(g.all[max(0, len(g.all)-max(1, len(want))):], want) {
				t.Errorf("asked %d times, want %d: %q, want %q", n, asked, g.all, want)
			}
		}
		store := func(n uint64) { _ = log.SetCheckpoint(t.Context(), &changefeed.Checkpoint{Epoch: "e", At: at(1, n)}) }
		log.mu.Lock() // except while time passes
		store(5)
		log.failure = errors.New("refused")
		pass(4, "reset", "none")
		log.failure = nil
		pass(4, "1-5")
		store(6) // the first heartbeat that was read
		pass(1, "1-6")
		pass(0, "1-6")
		next++ // a gap
		pass(4, "reset", "none", "1-6")
		log.mu.Unlock()
		stop()
	})
}

// A read that failed ends the session: what was seen before does not count with
// what another server says.
func TestAFailedReadEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		log, _, stop := answered(t, 10*time.Millisecond, r, func(n int, _ Position) (entries []Entry, err error) {
			switch n {
			case 1:
				return []Entry{termStart(1, Position{})}, nil
			case 2:
				return nil, errors.New("reset by peer")
			case 3:
				return []Entry{heartbeat(1, 2, at(1, 2), "5:5:")}, nil
			}
			return nil, nil
		})
		boottimetest.Pass(time.Second)
		if stop(); len(r.proofs) > 0 || log.readers != 2 {
			t.Errorf("%d readers, %+v", log.readers, r.proofs)
		}
	})
}

// While heartbeats arrive, a subscriber reads only the log, and the epoch once a second.
func TestHowOftenTheEpochIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, s, stop := answered(t, 40*time.Millisecond, &recorder{}, func(_ int, after Position) ([]Entry, error) {
			return []Entry{heartbeat(1, after.N+1, at(1, after.N), "5:5:")}, nil
		})
		boottimetest.Pass(10 * time.Second)
		if stop(); log.epochs.Load() > 11 || log.reads.Load() < 240 || s.Silence() > time.Second {
			t.Errorf("%d looks at the epoch, %d reads in 10 s, silent for %s", log.epochs.Load(), log.reads.Load(), s.Silence())
		}
		if stats := s.Stats(); stats.Epoch != "e" || stats.Entries != uint64(log.reads.Load()) || stats.Resets["join"] != 1 || stats.Resets["gap"] != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// Two nodes, one of which is led to a server that has become a replica: it has no
// proof, and gets another reader.
func TestASubscriberReadsWhereTheLogIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		log, _, stop := answered(t, 30*time.Millisecond, r, func(_ int, after Position) ([]Entry, error) {
			return []Entry{byServer("another", heartbeat(1, after.N+1, at(1, after.N), "5:5:"))}, nil
		})
		boottimetest.Pass(time.Second)
		if stop(); len(r.proofs) > 0 || log.readers < 10 {
			t.Errorf("%d proofs, %d readers", len(r.proofs), log.readers)
		}
	})
}
