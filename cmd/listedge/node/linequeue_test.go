package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stream is standard error. Its reader may hang: then a write waits until it goes on. It may be
// gone: then writes fail.
type stream struct {
	hangs chan struct{} // a write takes one; nil = it need not

	mu   sync.Mutex // guards the fields below
	got  bytes.Buffer
	gone bool
}

func (s *stream) Write(line []byte) (int, error) {
	if s.hangs != nil {
		<-s.hangs
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return 0, errors.New("broken pipe")
	}
	return s.got.Write(line)
}

func (s *stream) setGone(gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = gone
}

// messages are those of the lines that the stream has got, and of lost lines also their number.
func (s *stream) messages(t *testing.T) (all []string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range bytes.Lines(s.got.Bytes()) {
		var e struct {
			Msg   string
			Lines int
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if e.Lines > 0 {
			e.Msg = fmt.Sprint(e.Lines, " lost")
		}
		all = append(all, e.Msg)
	}
	return all
}

func TestLinesAreWrittenInTheirOrder(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		s := &stream{}
		q := NewLineQueue(s)
		log := slog.New(NewLog(q, Flags{LogFormat: format}))
		for i := range 1000 {
			log.Info("fine", "n", i)
		}
		q.Close()
		lines := strings.Split(strings.TrimSpace(s.got.String()), "\n")
		for i, line := range lines {
			if !strings.HasSuffix(line, fmt.Sprint(" n=", i)) && !strings.HasSuffix(line, fmt.Sprint(`"n":`, i, "}")) {
				t.Fatalf("%s: line %d is %s", format, i, line)
			}
		}
		if len(lines) != 1000 || q.Lost() != 0 {
			t.Errorf("%s: %d lines, %d lost", format, len(lines), q.Lost())
		}
	}
}

// Whoever logs does not wait. What waited for the reader comes before the number of lost lines, and
// younger lines come after it.
func TestAReaderThatHangsDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{hangs: make(chan struct{})}
		q := NewLineQueue(s)
		log := slog.New(NewLog(q, Flags{LogFormat: "json", LogLevel: "error"}))
		text := strings.Repeat("x", maxWaiting/100)
		log.Error("first")
		synctest.Wait() // it is being written
		const tries = 150
		for i := range tries {
			log.Error(fmt.Sprint(i), "text", text)
		}
		lost := int(q.Lost())
		if lost < 50 || lost > 60 {
			t.Errorf("%d lines are lost", lost)
		}
		close(s.hangs)
		synctest.Wait()
		log.Error("last")
		want := []string{"first"}
		for i := range tries - lost {
			want = append(want, fmt.Sprint(i))
		}
		want = append(want, fmt.Sprint(lost, " lost"), "last")
		q.Close()
		if got := s.messages(t); !slices.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	})
}

// The reader is gone, or the disk is full: each line fails, and the first that does not is followed
// by the number of those that did.
func TestLinesThatCannotBeWrittenAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stream{gone: true}
		q := NewLineQueue(s)
		log := slog.New(NewLog(q, Flags{LogFormat: "json"}))
		for range 3 {
			log.Info("into nothing")
			synctest.Wait()
		}
		s.setGone(false)
		log.Info("again")
		synctest.Wait()
		log.Info("and again")
		q.Close()
		if got := s.messages(t); !slices.Equal(got, []string{"again", "3 lost", "and again"}) || q.Lost() != 3 {
			t.Errorf("%d lost, got %v", q.Lost(), got)
		}
	})
}

func TestTheEndWaitsASecondForTheReader(t *testing.T) {
	for name, hang := range map[string]time.Duration{"it reads on in time": flushTimeout / 2, "it does not": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &stream{hangs: make(chan struct{})}
				q := NewLineQueue(s)
				log := slog.New(NewLog(q, Flags{LogFormat: "json"}))
				log.Info("one")
				log.Info("two")
				began := time.Now()
				time.AfterFunc(hang, func() { close(s.hangs) })
				q.Close()
				if took := time.Since(began); took != min(hang, flushTimeout) {
					t.Errorf("took %s", took)
				}
				if got := s.messages(t); len(got) != 2 && hang < flushTimeout {
					t.Errorf("got %v", got)
				}
				log.Info("late")
				if q.Lost() != 1 {
					t.Errorf("%d lost", q.Lost())
				}
				<-q.ended
			})
		})
	}
}
