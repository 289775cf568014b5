package edge

import (
	"fmt"
	"testing"

	"listedge/metrics"
)

func TestTheJournalRemembersTheFirstOfManyHits(t *testing.T) {
	s, ctx := hitServer(t, `{"data":[]`)
	ctx.Conn().(*conn).hits = 0
	for i := range 2 * hitsPerEntry {
		ctx.Request.Header.Set("X-Request-Id", fmt.Sprint("hit-", i))
		answerTo(t, s, ctx)
	}
	for i := range 2 * hitsPerEntry {
		found := s.Records(fmt.Sprint("hit-", i))
		if want := i%hitsPerEntry == 0; want != (len(found) == 1) {
			t.Errorf("hit %d: %+v", i, found)
		}
	}
	got := s.Records("hit-0")[0]
	if got.Status != 200 || got.Outcome != "memory" || got.Page.CacheStatus != string(statusByAge) || got.Page.ProofAge <= 0 || got.Took.Total <= 0 ||
		got.KeyID == "" || got.WorkspaceID == "" || !got.Limit.Allowed || got.Limit.Source != "memory" || got.Limit.Workspace == nil ||
		got.Limit.Key.Burst != 1e6 || got.Limit.Key.Remaining < 1e6-1000 {
		t.Errorf("%+v %+v %+v", got, got.Limit, got.Page)
	}
}

// Every error is remembered, and so many of one kind leave the others be.
func TestAFloodOfRefusalsLeavesFailuresInTheJournal(t *testing.T) {
	s, ctx := hitServer(t, `{"data":[]`)
	pages := s.cache
	s.cache = nil // a defect
	ctx.Request.Header.Set("X-Request-Id", "broken")
	answerTo(t, s, ctx)
	s.cache = pages
	ctx.Request.SetRequestURI("/v1/items?limit=0")
	for i := range 2 * entriesPerRing {
		ctx.Request.Header.Set("X-Request-Id", fmt.Sprint("wrong-", i))
		answerTo(t, s, ctx)
		if found := s.Records(fmt.Sprint("wrong-", i)); len(found) != 1 || found[0].Status != 400 || found[0].Message != invalid.message {
			t.Fatalf("%d: %+v", i, found)
		}
	}
	if found := s.Records("wrong-0"); len(found) != 0 {
		t.Errorf("the journal has no bound: %+v", found)
	}
	if found := s.Records("broken"); len(found) != 1 || found[0].Status != 500 || found[0].Cause == "" {
		t.Errorf("%+v", found)
	}
}

func TestASlowHitIsRemembered(t *testing.T) {
	s, ctx := hitServer(t, `{"data":[]`)
	x := begin(ctx)
	defer x.end()
	s.identify(x)
	x.route, x.outcome = metrics.RouteItems, metrics.OutcomeMemory
	x.conn.hits = 1 // the next is not of the sample
	if k := x.kind(200, slowFrom-1); k != forgotten {
		t.Errorf("a quick one: %d", k)
	}
	if k := x.kind(200, slowFrom); k != failed {
		t.Errorf("a slow one: %d", k)
	}
}
