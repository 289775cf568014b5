package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	maxRecentEntries = 50  // different warnings and errors; the one that last occurred longest ago is dropped first
	maxRecentDetail  = 400 // bytes of an entry's attributes
)

// recentEntry is a warning or an error of the log. Repetitions are counted in one
// entry, whatever their details, so that one outage does not push everything else out.
type recentEntry struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   uint64    `json:"times"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Detail  string    `json:"detail"` // the attributes of the last one, as in a text log
}

// Log is a log handler that passes records to another one and keeps the latest
// warnings and errors for the status page.
type Log struct {
	slog.Handler
	lines *LineQueue // nil in tests

	mu      sync.Mutex    // guards entries
	entries []recentEntry // the latest last
}

// NewLog makes the log of a node, whose lines go to the queue.
func NewLog(q *LineQueue, f Flags) *Log {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.LogLevel)) // one that slog knows
	options := &slog.HandlerOptions{Level: level}
	formatted := func(w io.Writer) slog.Handler {
		if f.LogFormat == "json" {
			return slog.NewJSONHandler(w, options)
		}
		return slog.NewTextHandler(w, options)
	}
	q.mu.Lock()
	q.tell = formatted(q.to)
	q.mu.Unlock()
	l := newLogOn(formatted(q))
	l.lines = q
	return l
}

func newLogOn(next slog.Handler) *Log {
	l := &Log{}
	l.Handler = slog.NewMultiHandler(next, slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: redactAttribute}))
	return l
}

// identifier is the id of a workspace, a key or a row.
var identifier = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// redactAttribute makes an attribute fit for the status page. It drops the time, which recentEntry
// has, and request ids, which clients may have chosen, and cuts ids and stacks out of texts.
func redactAttribute(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, "requestId":
		return slog.Attr{}
	case slog.LevelKey, slog.MessageKey:
		return a
	}
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text, _, _ := strings.Cut(fmt.Sprint(a.Value.Any()), "\ngoroutine ")
		return slog.String(a.Key, identifier.ReplaceAllLiteralString(strings.Join(strings.Fields(text), " "), "…"))
	}
	return a
}

// Write keeps a warning or an error, a line like level=WARN msg="it is away" error=refused.
func (l *Log) Write(line []byte) (int, error) {
	level, rest, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(line)), "level="), " msg=")
	message, detail, _ := strings.Cut(rest, " ")
	if quoted, err := strconv.QuotedPrefix(rest); err == nil {
		message, _ = strconv.Unquote(quoted) // it is quoted
		detail = strings.TrimSpace(rest[len(quoted):])
	}
	if len(detail) > maxRecentDetail {
		detail = strings.ToValidUTF8(detail[:maxRecentDetail], "") + "…"
	}
	now := time.Now()
	e := recentEntry{First: now, Last: now, Times: 1, Level: level, Message: message, Detail: detail}
	l.mu.Lock()
	defer l.mu.Unlock()
	repeats := func(o recentEntry) bool { return o.Level == e.Level && o.Message == e.Message }
	if i := slices.IndexFunc(l.entries, repeats); i >= 0 {
		e.First, e.Times = l.entries[i].First, l.entries[i].Times+1
		l.entries = slices.Delete(l.entries, i, i+1)
	}
	l.entries = append(l.entries, e)
	if len(l.entries) > maxRecentEntries {
		l.entries = slices.Delete(l.entries, 0, 1)
	}
	return len(line), nil
}

// recent returns the kept entries, the latest first.
func (l *Log) recent() any {
	l.mu.Lock()
	defer l.mu.Unlock()
	latest := append([]recentEntry{}, l.entries...)
	slices.Reverse(latest)
	return latest
}

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
