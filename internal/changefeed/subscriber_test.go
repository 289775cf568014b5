package changefeed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"listedge/internal/boottime/boottimetest"
	"listedge/internal/fleet"
)

// scripted is a log whose reads a test answers.
type scripted struct {
	*Local
	mu      sync.Mutex // guards all below
	readers int
	epochs  int
	answer  func(after Position) ([]Entry, bool, error)
}

func (s *scripted) Epoch(ctx context.Context) (string, error) {
	s.mu.Lock()
	s.epochs++
	s.mu.Unlock()
	return s.Local.Epoch(ctx)
}

func (s *scripted) Reader(context.Context) (Reader, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
	return scriptedReader{s}, "", nil
}

type scriptedReader struct{ *scripted }

func (scriptedReader) Close() error { return nil }

func (r scriptedReader) Read(ctx context.Context, _ string, after Position, _ time.Duration) ([]Entry, bool, error) {
	return r.answer(after)
}

// subscribe runs a subscriber to the log until the test's end.
func subscribe(t *testing.T, log Log, listeners ...Listener) (s *Subscriber, stop func()) {
	s = NewSubscriber(log, &fleet.Followed{}, slog.New(slog.DiscardHandler), listeners...)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	return s, func() { cancel(); done.Wait() }
}

// What is proven is the moment before the read was sent, however long its answer takes.
func TestARecordedReadBeganBeforeItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r, began := &scripted{Local: NewLocal()}, &recorder{}, time.Now()
		_ = log.SetEpoch(t.Context(), "", "e")
		answers := [][]Entry{{termStart(1, Position{})}, {heartbeat(1, 2, at(1, 2), "5:5:")}}
		log.answer = func(Position) ([]Entry, bool, error) {
			boottimetest.Pass(300 * time.Millisecond)
			if len(answers) == 0 {
				return nil, false, nil
			}
			next := answers[0]
			answers = answers[1:]
			return next, false, nil
		}
		_, stop := subscribe(t, log, r)
		boottimetest.Pass(time.Second)
		stop()
		if len(r.proofs) != 1 || !r.proofs[0].Moment.Equal(began) {
			t.Errorf("%+v, want a proof of %s", r.proofs, began)
		}
	})
}

// A read that failed ends the session: what was seen before does not count with
// what another server says.
func TestAFailedReadEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, r := &scripted{Local: NewLocal()}, &recorder{}
		_ = log.SetEpoch(t.Context(), "", "e")
		n := 0
		log.answer = func(Position) ([]Entry, bool, error) {
			boottimetest.Pass(10 * time.Millisecond)
			switch n++; n {
			case 1:
				return []Entry{termStart(1, Position{})}, false, nil
			case 2:
				return nil, false, errors.New("reset by peer")
			case 3:
				return []Entry{heartbeat(1, 2, at(1, 2), "5:5:")}, false, nil
			}
			return nil, false, nil
		}
		_, stop := subscribe(t, log, r)
		boottimetest.Pass(time.Second)
		stop()
		if len(r.proofs) > 0 || log.readers != 2 {
			t.Errorf("%d readers, %+v", log.readers, r.proofs)
		}
	})
}

// While heartbeats arrive, a subscriber reads only the log, and the epoch once a second.
func TestHowOftenTheEpochIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &scripted{Local: NewLocal()}
		_ = log.SetEpoch(t.Context(), "", "e")
		reads := 0
		log.answer = func(after Position) ([]Entry, bool, error) {
			boottimetest.Pass(40 * time.Millisecond)
			reads++
			return []Entry{heartbeat(1, after.N+1, at(1, after.N), "5:5:")}, false, nil
		}
		s, stop := subscribe(t, log, &recorder{})
		boottimetest.Pass(10 * time.Second)
		stop()
		if log.epochs > 11 || reads < 240 || s.Silence() > time.Second {
			t.Errorf("%d looks at the epoch, %d reads in 10 s, silent for %s", log.epochs, reads, s.Silence())
		}
		if stats := s.Stats(); stats.Epoch != "e" || stats.Entries != uint64(reads) || stats.Resets["join"] != 1 || stats.Resets["gap"] != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// Through Redis and in process: while heartbeats are sent, subscribers get proofs, and the
// proofs advance.
func TestSubscribersProve(t *testing.T) {
	_, client := startRedis(t)
	for name, log := range map[string]Log{"local": NewLocal(), "redis": NewRedis(client, shop())} {
		t.Run(name, func(t *testing.T) {
			turn(t, log, "e")
			proofs := make(chan Proof, 1000)
			_, stop := subscribe(t, log, &proofsTo{to: proofs})
			defer stop()
			last := Position{}
			deadline := time.After(patient)
			for n, proven := uint64(1), 0; proven < 3; n++ {
				before := time.Now()
				add(t, log, "e", heartbeat(1, n, last, "5:5:"))
				last = at(1, n)
				select {
				case p := <-proofs:
					if p.Moment.After(before) || p.At.Compare(last) > 0 {
						t.Fatalf("%+v proves a moment behind its heartbeat's, %s", p, before)
					}
					proven++
				case <-time.After(5 * time.Millisecond): // the pace of heartbeats
				case <-deadline:
					t.Fatal("nothing is proven")
				}
			}
		})
	}
}

// proofsTo hands proofs on.
type proofsTo struct {
	recorder
	to chan Proof
}

func (p *proofsTo) Beat(b Beat) {
	if !b.Moment.IsZero() {
		p.to <- b.Proof
	}
}
