package node

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// LineQueue passes lines to a stream. Only its own goroutine waits for the stream: the reader of a
// log may be slow, hang or be gone, and no request, check or stop may wait for it. When too much
// waits, new lines are lost. A line says how many, as soon as the stream takes lines again.
type LineQueue struct {
	to    io.Writer
	ended chan struct{} // closed after Close, once all that waited is written

	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond // waiting or closed
	waiting  []byte     // lines, at most maxWaiting
	lost     uint64     // lines, since the start
	reported uint64     // of these, those that a line has counted
	closed   bool
	tell     slog.Handler // writes to the stream that lines were lost; nil = nothing does
}

const (
	// maxWaiting bounds the lines that wait, in bytes: a thousand requests in an access log, or
	// more. As many may be on their way to the stream.
	maxWaiting = 1 << 20
	// flushTimeout bounds how long the end of the process waits for the stream.
	flushTimeout = time.Second
)

// NewLineQueue begins to pass lines to the stream.
func NewLineQueue(to io.Writer) *LineQueue {
	q := &LineQueue{to: to, ended: make(chan struct{})}
	q.changed = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// Write adds a line, or counts it as lost. It does not wait, and returns no error: nobody could do
// anything about it.
func (q *LineQueue) Write(line []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting)+len(line) > maxWaiting {
		q.lost++
	} else {
		q.waiting = append(q.waiting, line...)
		q.changed.Signal()
	}
	return len(line), nil
}

// Lost returns how many lines were lost since the start.
func (q *LineQueue) Lost() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lost
}

// Close writes what waits, in at most flushTimeout. What is added later is lost.
func (q *LineQueue) Close() {
	q.mu.Lock()
	q.closed = true
	q.changed.Signal()
	q.mu.Unlock()
	select {
	case <-q.ended:
	case <-time.After(flushTimeout):
	}
}

// run writes lines until Close, each by a call of its own, so that a pipe with several writers
// keeps it whole.
func (q *LineQueue) run() {
	defer close(q.ended)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.waiting) == 0 && !q.closed {
			q.changed.Wait()
		}
		if len(q.waiting) == 0 {
			return
		}
		lines, lost, tell := q.waiting, q.lost, q.tell // what is lost from now on is younger than lines to come
		q.waiting = nil
		q.mu.Unlock()
		failed := uint64(0)
		for line := range bytes.Lines(lines) {
			if _, err := q.to.Write(line); err != nil {
				failed++
			}
		}
		unreported := lost + failed - q.reported // which only this goroutine changes
		reported := unreported > 0 && tell != nil && tellLost(tell, unreported) == nil
		q.mu.Lock()
		q.lost += failed
		if reported {
			q.reported += unreported
		}
	}
}

// tellLost writes how many lines were lost.
func tellLost(to slog.Handler, lines uint64) error {
	r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of the log are lost: its reader was too slow, or gone", 0)
	r.Add("lines", lines)
	return to.Handle(context.Background(), r) // whatever --log-level is
}
