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
	recentTold   = 50  // different warnings and errors remembered; the one not told for longest goes first
	recentDetail = 400 // bytes of its attributes that are kept of one
)

// told is a warning or an error of the log, with all that were told alike: an
// outage does not push everything else out.
type told struct {
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   uint64    `json:"times"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Detail  string    `json:"detail"` // the attributes, as in a text log
}

// recentLog passes a log on and remembers its last warnings and errors, for the
// status page: whoever looks at a node wants them first, and may not be where
// the log goes.
type recentLog struct {
	next   slog.Handler
	text   slog.Handler // writes attributes to the memory's buffer
	memory *memory
}

type memory struct {
	mu     sync.Mutex // guards all of it
	buffer bytes.Buffer
	told   []told // the latest last
}

func newRecentLog(next slog.Handler) *recentLog {
	m := &memory{}
	return &recentLog{next, slog.NewTextHandler(&m.buffer, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: remembered}), m}
}

// identifier is a workspace's, a key's or a row's.
var identifier = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// remembered is what of an attribute is kept: not what told has fields for, not
// a request's id, which its client may have chosen, nor whom it concerned, nor
// the stack of a panic.
func remembered(_ []string, a slog.Attr) slog.Attr {
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

// Enabled is true for what is remembered, even where the log itself is quieter.
func (h *recentLog) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

// Handle remembers and passes on.
func (h *recentLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		h.remember(ctx, r)
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

func (h *recentLog) remember(ctx context.Context, r slog.Record) {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buffer.Reset()
	_ = h.text.Handle(ctx, r) // a buffer always takes what is written
	e := told{First: r.Time, Last: r.Time, Times: 1, Level: r.Level.String(), Message: r.Message, Detail: strings.TrimSpace(m.buffer.String())}
	if len(e.Detail) > recentDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:recentDetail], "") + "…"
	}
	alike := func(o told) bool { return o.Level == e.Level && o.Message == e.Message && o.Detail == e.Detail }
	if i := slices.IndexFunc(m.told, alike); i >= 0 {
		e.First, e.Times = m.told[i].First, m.told[i].Times+1
		m.told = slices.Delete(m.told, i, i+1)
	}
	if m.told = append(m.told, e); len(m.told) > recentTold {
		m.told = slices.Delete(m.told, 0, 1)
	}
}

// ServeHTTP answers with what is remembered, the latest first.
func (h *recentLog) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	latest := []told{}
	h.memory.mu.Lock()
	for _, e := range slices.Backward(h.memory.told) {
		latest = append(latest, e)
	}
	h.memory.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(latest)
}
