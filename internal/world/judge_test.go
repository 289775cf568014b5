package world_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// promise is a sentence of docs/GUARANTEES.md: its heading, and how it begins.
type promise struct{ heading, sentence string }

// judged is what a world judges.
var judged = slices.Concat(ofPages, ofRounds, ofLimits, ofKeys, ofDoors)

// breaks notes that a promise does not hold, and how.
func (w *run) breaks(p promise, how string, of ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf("%s: %q: %s", p.heading, p.sentence, fmt.Sprintf(how, of...))
		w.Tracef("BROKEN: %s", w.broken)
	}
}

// Each promise that worlds judge stands in docs/GUARANTEES.md, under its heading. The sentences that no world judges are listed.
func TestWhatTheWorldJudges(t *testing.T) {
	text, err := os.ReadFile("../../docs/GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	found, all := map[promise]bool{}, 0
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		var rest []string
		for _, paragraph := range strings.Split(strings.ReplaceAll(body, "\n* ", "\n\n"), "\n\n") {
			for _, sentence := range strings.Split(strings.Join(strings.Fields(paragraph), " "), ". ") {
				if len(sentence) < 3 {
					continue
				}
				all++
				i := slices.IndexFunc(judged, func(p promise) bool {
					return p.heading == heading && strings.HasPrefix(strings.TrimPrefix(sentence+".", "* "), p.sentence)
				})
				if i < 0 {
					rest = append(rest, sentence)
					continue
				}
				found[judged[i]] = true
			}
		}
		t.Logf("%s: no world judges these:\n\t%s", heading, strings.Join(rest, "\n\t"))
	}
	t.Logf("%d of %d sentences are judged", len(found), all)
	for _, p := range judged {
		if !found[p] {
			t.Errorf("%s does not say: %s", p.heading, p.sentence)
		}
	}
}
