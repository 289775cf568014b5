package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
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

// Log is a log handler that passes records to the next one and keeps the latest
// warnings and errors for the status page.
type Log struct {
	next slog.Handler
	text slog.Handler // formats attributes into kept.buffer
	kept *keptEntries // shared by all handlers that With has derived
}

type keptEntries struct {
	mu      sync.Mutex // guards the fields below
	buffer  bytes.Buffer
	entries []recentEntry // the latest last
}

// NewLog makes the process's log.
func NewLog(w io.Writer, f Flags) *Log {
	options := &slog.HandlerOptions{Level: f.LogLevel}
	if f.LogFormat == "json" {
		return newLogOn(slog.NewJSONHandler(w, options))
	}
	return newLogOn(slog.NewTextHandler(w, options))
}

func newLogOn(next slog.Handler) *Log {
	kept := &keptEntries{}
	return &Log{next, slog.NewTextHandler(&kept.buffer, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: redactAttribute}), kept}
}

// identifier is the id of a workspace, a key or a row.
var identifier = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// redactAttribute drops attributes for which recentEntry has a field, and request ids,
// which clients may have chosen. It removes ids of tenants and stacks from texts.
func redactAttribute(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, slog.LevelKey, slog.MessageKey, "requestId", "alike":
		return slog.Attr{}
	}
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text, _, _ := strings.Cut(fmt.Sprint(a.Value.Any()), "\ngoroutine ")
		return slog.String(a.Key, identifier.ReplaceAllLiteralString(strings.Join(strings.Fields(text), " "), "…"))
	}
	return a
}

// Enabled is true for warnings and errors, even if the next handler omits them.
func (h *Log) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

// Handle keeps the record and passes it on.
func (h *Log) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.keep(ctx, r)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs is a logger's With.
func (h *Log) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Log{h.next.WithAttrs(attrs), h.text.WithAttrs(attrs), h.kept}
}

// WithGroup is a logger's WithGroup.
func (h *Log) WithGroup(name string) slog.Handler {
	return &Log{h.next.WithGroup(name), h.text.WithGroup(name), h.kept}
}

func (h *Log) keep(ctx context.Context, r slog.Record) {
	kept := h.kept
	kept.mu.Lock()
	defer kept.mu.Unlock()
	kept.buffer.Reset()
	_ = h.text.Handle(ctx, r) // writing to a buffer does not fail
	e := recentEntry{First: r.Time, Last: r.Time, Times: 1, Level: r.Level.String(), Message: r.Message, Detail: strings.TrimSpace(kept.buffer.String())}
	if len(e.Detail) > maxRecentDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:maxRecentDetail], "") + "…"
	}
	repeats := func(o recentEntry) bool { return o.Level == e.Level && o.Message == e.Message }
	if i := slices.IndexFunc(kept.entries, repeats); i >= 0 {
		e.First, e.Times = kept.entries[i].First, kept.entries[i].Times+1
		kept.entries = slices.Delete(kept.entries, i, i+1)
	}
	if kept.entries = append(kept.entries, e); len(kept.entries) > maxRecentEntries {
		kept.entries = slices.Delete(kept.entries, 0, 1)
	}
}

// ServeHTTP answers with the kept entries, the latest first.
func (h *Log) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.kept.mu.Lock()
	latest := append([]recentEntry{}, h.kept.entries...)
	h.kept.mu.Unlock()
	slices.Reverse(latest)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(latest)
}
