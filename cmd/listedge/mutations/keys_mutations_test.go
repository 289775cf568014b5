//go:build mutations

package mutations

import "testing"

// The rules of the key cache, broken one at a time:
//
//	make mutations ONLY=TestKeyMutations
func TestKeyMutations(t *testing.T) {
	const (
		entries, lookups, invalidation, store = "origin/apikey/cache.go", "origin/apikey/lookups.go", "origin/apikey/invalidation.go", "origin/apikey/store.go"
		storm                                 = "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"
	)
	caught(t, []mutation{
		{"not invalidated when a change settles", []edit{{invalidation, "range b.Settled {", "range b.Settled[:0] {"}}, "./origin/apikey", "TestALookupBeforeAChangeIsVisibleIsInvalidated"},
		{"a gap is overlooked", gapsIgnored, "./origin/apikey", storm},
		{"proven until now", []edit{{invalidation, "until: c.clock.Of(p.Moment)", "until: c.clock.Now()"}}, "./origin/apikey", "TestAProofIsAsOldAsItsMoment"},
		{"proven since the moment", []edit{{invalidation, "\tsince := c.clock.Now()\n", "\tsince := c.clock.Of(p.Moment)\n"}}, "./origin/apikey", "TestAProofCoversLookupsAfterItsBeginning"},
		{"proven across a reset", []edit{{invalidation, "\tc.proof.Store(nil)\n", ""}}, "./origin/apikey", storm},
		{"proven before the proof", []edit{{entries, "p != nil && lookedUp > p.since", "p != nil"}}, "./origin/apikey", "TestAProofCoversLookupsAfterItsBeginning"},
		{"proven of any server", []edit{{entries, " && (p.run == anyRun || p.run == run)", ""}}, "./origin/apikey", "TestAProofCoversOneServer"},
		{"an old proof names the server", []edit{{invalidation, "if p != nil && now-p.until < maxAge {", "if p != nil {"}}, "./origin/apikey", "TestAnOldProofNamesNoServer"},
		{"nothing is invalidated", []edit{{entries, "changed = at <= time.Duration(e.invalidatedAt.Load())", "_ = e.invalidatedAt.Load()"}}, "./origin/apikey", storm},
		{"a look-up in flight is not invalidated", []edit{{lookups, "} else if s.changedAt >= began {", "} else if false {"}}, "./origin/apikey", "TestAChangeInvalidatesALookupInFlight"},
		{"a late answer replaces a newer one", []edit{{lookups, "case before != nil && time.Duration(before.validatedAt.Load()) > began:", "case false:"}}, "./origin/apikey", "TestALateAnswerDoesNotOverruleANewerOne"},
		{"an entry is found by its old rows", []edit{{lookups, "\tc.evict(s, before)\n\ts.entries[hash] = e\n", "\ts.entries[hash] = e\n"}}, "./origin/apikey", "TestAChangedKeyIsAttachedAgain"},
		{"an evicted entry stays in its rows", []edit{{entries, "if s.rows[id] = others; len(others) == 0 {", "if len(others) < 0 {"}}, "./origin/apikey", "TestAnIdleEntryIsEvictedWithItsRows"},
		{"a schedule is not looked up", []edit{{entries, "!changed && !e.Key.Scheduled &&", "!changed &&"}}, "./origin/apikey", "TestAScheduledKeyIsLookedUp"},
		{"connections to an old primary are kept", []edit{{store, "s.db.Keys.Read(ctx, run, ", "s.db.Keys.Read(ctx, \"\", "}}, "./origin", "TestAnEarlierTimelineIsRefused"},
		{"an answer without keys is anybody's", []edit{{store, "\t\tfound, by, err = s.query(ctx, hashes)\n", "\t\tif found, by, err = s.query(ctx, hashes); len(found) == 0 {\n\t\t\tby.StartedAt = run\n\t\t}\n"}}, "./origin", "TestAnOldPrimaryThatDoesNotKnowAKeyIsNotBelieved"},
	})
}
