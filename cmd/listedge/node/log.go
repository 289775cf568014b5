package node

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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

// ServeHTTP answers with the kept entries, the latest first.
func (l *Log) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	latest := append([]recentEntry{}, l.entries...)
	l.mu.Unlock()
	slices.Reverse(latest)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(latest)
}
