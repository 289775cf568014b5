package node

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTheLatestWarningsAreKept(t *testing.T) {
	var out bytes.Buffer
	h := newLogOn(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError}))
	log := slog.New(h)
	if all := h.recent().([]recentEntry); len(all) != 0 {
		t.Errorf("from the start: %v", all)
	}
	log.Info("fine")
	log.Warn("away", "error", errors.New("refused"))
	log.With("where", "here").WithGroup("g").Error("request failed", "requestId", "chosen-by-client", "status", 503, "error",
		errors.New("first\n\tsecond\ngoroutine 7 [running]:"))
	log.Warn("away", "error", errors.New("refused"))
	log.Warn("away", "error", errors.New("late for listedge:{2eb47be5-0a5c-53b0-9f9a-33982776de3a}"), "node", "")

	var got []string
	for _, e := range h.recent().([]recentEntry) {
		got = append(got, fmt.Sprintf("%s %s (%s) %d", e.Level, e.Message, e.Detail, e.Times))
		if e.First.IsZero() || e.Last.Before(e.First) {
			t.Errorf("%s: from %s to %s", e.Message, e.First, e.Last)
		}
	}
	want := []string{`WARN away (error="late for listedge:{…}" node="") 3`, "ERROR request failed (where=here g.status=503 g.error=\"first second\") 1"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("remembered\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The log output itself has all messages.
	if said := out.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "requestId=chosen-by-client") {
		t.Errorf("logged: %s", said)
	}
}

func TestKeptWarningsAreBounded(t *testing.T) {
	h := newLogOn(slog.DiscardHandler)
	log := slog.New(h)
	for i := range 3 * maxRecentEntries {
		log.Warn(fmt.Sprint("warning ", i), "n", i, "text", strings.Repeat("ä", 10_000))
	}
	all := h.recent().([]recentEntry)
	if len(all) != maxRecentEntries || !strings.HasPrefix(all[0].Detail, fmt.Sprintf("n=%d ", 3*maxRecentEntries-1)) {
		t.Errorf("%d remembered, the latest %.20s", len(all), all[0].Detail)
	}
	for _, e := range all {
		if len(e.Detail) > maxRecentDetail+len("…") || !utf8.ValidString(e.Detail) {
			t.Errorf("%d bytes: %q", len(e.Detail), e.Detail)
		}
	}
}
