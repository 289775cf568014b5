package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	recentEntries = 50  // different warnings and errors kept; the one seen longest ago is dropped first
	recentDetail  = 400 // bytes kept of the attributes of one
)

// recentEntry is a warning or an error of the log, with all repetitions: one outage
// does not push everything else out.
type recentEntry struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   uint64    `json:"times"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Detail  string    `json:"detail"` // the attributes, as in a text log
}

// recentLog passes a log on and keeps its latest warnings and errors for the status
// page: they are what an operator wants to see first.
type recentLog struct {
	next   slog.Handler
	text   slog.Handler // writes attributes into the memory's buffer
	memory *logMemory
}

type logMemory struct {
	mu      sync.Mutex // guards all of it
	buffer  bytes.Buffer
	entries []recentEntry // the latest last
}

// newLog makes the process's log.
func newLog(t *terminal, f nodeFlags) *recentLog {
	options := &slog.HandlerOptions{Level: f.LogLevel}
	if f.LogFormat == "json" {
		return newRecentLog(slog.NewJSONHandler(t.err, options))
	}
	return newRecentLog(slog.NewTextHandler(t.err, options))
}

func newRecentLog(next slog.Handler) *recentLog {
	m := &logMemory{}
	return &recentLog{next, slog.NewTextHandler(&m.buffer, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: keptAttribute}), m}
}

// identifier is the id of a workspace, a key or a row.
var identifier = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// keptAttribute is what is kept of an attribute: nothing that recentEntry has a field
// for, no request id (the client may have chosen it), no id of a tenant, no stack.
func keptAttribute(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, slog.LevelKey, slog.MessageKey, "requestId", "alike":
		return slog.Attr{}
	}
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
		text, _, _ := strings.Cut(fmt.Sprint(a.Value.Any()), "\ngoroutine ")
		return slog.String(a.Key, identifier.ReplaceAllLiteralString(oneLine(text), "…"))
	}
	return a
}

// Enabled is true for warnings and errors, even if the log itself is quieter.
func (h *recentLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

// Handle keeps the record and passes it on.
func (h *recentLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.keep(ctx, r)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs is a logger's With.
func (h *recentLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &recentLog{h.next.WithAttrs(attrs), h.text.WithAttrs(attrs), h.memory}
}

// WithGroup is a logger's WithGroup.
func (h *recentLog) WithGroup(name string) slog.Handler {
	return &recentLog{h.next.WithGroup(name), h.text.WithGroup(name), h.memory}
}

func (h *recentLog) keep(ctx context.Context, r slog.Record) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buffer.Reset()
	_ = h.text.Handle(ctx, r) // writing to a buffer does not fail
	e := recentEntry{First: r.Time, Last: r.Time, Times: 1, Level: r.Level.String(), Message: r.Message, Detail: strings.TrimSpace(m.buffer.String())}
	if len(e.Detail) > recentDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:recentDetail], "") + "…"
	}
	repeats := func(o recentEntry) bool { return o.Level == e.Level && o.Message == e.Message && o.Detail == e.Detail }
	if i := slices.IndexFunc(m.entries, repeats); i >= 0 {
		e.First, e.Times = m.entries[i].First, m.entries[i].Times+1
		m.entries = slices.Delete(m.entries, i, i+1)
	}
	if m.entries = append(m.entries, e); len(m.entries) > recentEntries {
		m.entries = slices.Delete(m.entries, 0, 1)
	}
}

// ServeHTTP answers with what is kept, the latest first.
func (h *recentLog) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.memory.mu.Lock()
	latest := append([]recentEntry{}, h.memory.entries...)
	h.memory.mu.Unlock()
	slices.Reverse(latest)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(latest)
}
