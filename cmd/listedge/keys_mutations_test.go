//go:build mutations

package main

import "testing"

// The rules by which keys are believed, broken one at a time:
//
//	make mutations ONLY=TestKeyMutations
func TestKeyMutations(t *testing.T) {
	const (
		told, refresh, changes = "origin/keyring_told.go", "origin/keyring_refresh.go", "internal/changefeed/keys.go"
		storm                  = "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"
		sequence               = "TestChangesOfKeysAreToldWhenPublishedAndWhenVisible"
	)
	caught(t, []mutation{
		{"not told when it is visible", []edit{{changes, "\t\tif settled {\n\t\t\tk.told.Changed(c)\n\t\t}\n", ""}}, "./edge", storm},
		{"not told when it is published", []edit{{changes, "\t\tk.told.Changed(*e.Change)\n", ""}}, "./stream", sequence},
		{"a gap is overlooked", []edit{{changes, "e.Undecodable() || k.read && !e.Follows(k.position)", "false"}}, "./edge", storm},
		{"nothing unsettled at the join", []edit{{changes, "slices.Clone(h.Unsettled)", "[]Change(nil)"}}, "./stream", sequence},
		{"any probe proves", []edit{{changes, "\tif !ours {\n\t\treturn\n\t}\n", "\tif !ours {\n\t\tprobed = time.Now()\n\t}\n"}}, "./stream", sequence},
		{"proven before the proof", []edit{{told, "p != nil && lookedUp > p.since", "p != nil"}}, "./origin", "TestAProofIsOfKeysLookedUpWithin"},
		{"proven of any server", []edit{{told, " && (p.run == \"\" || p.run == run)", ""}}, "./origin", "TestAProofIsOfOneServer"},
		{"nothing is doubted", []edit{{told, "doubtful = at <= time.Duration(k.doubted.Load())", "_ = k.doubted.Load()"}}, "./edge", storm},
		{"a look-up under way is not told", []edit{{told, "if last := t.last.Load(); last >= int64(at) {", "if last := t.last.Load(); false && last >= int64(at) {"}}, "./origin", "TestAChangeIsToldToTheLookupUnderWay"},
		{"what is forgotten is relied on", []edit{{refresh, "\t\tr.supersede(k)\n\t\tr.size", "\t\tr.size"}}, "./origin", "TestAForgottenKeyIsNotReliedOn"},
		{"what is forgotten is found", []edit{{"origin/keyring.go", "\tr.near.Load().drop(k)\n", ""}}, "./origin", "TestNearKeysAreThoseOfTheShards"},
		{"put near when the shard may have changed", []edit{{"origin/keyring.go", "\tdefer s.mu.RUnlock()\n\tk := s.at(hash)\n", "\tk := s.at(hash)\n\ts.mu.RUnlock()\n\truntime.Gosched()\n"}, {"origin/keyring.go", "\t\"sync\"\n", "\t\"runtime\"\n\t\"sync\"\n"}}, "./origin", "TestNearKeysAreThoseOfTheShards"},
		{"its place is forgotten", []edit{{"origin/keyring.go", "\t\tk.place.Store(uint64(place))\n", ""}}, "./origin", "TestNearKeysGrowWithTheKeys"},
		{"a place is taken for a hash", []edit{{"origin/keyring_near.go", "k != nil && k.hash == hash {", "k != nil {"}}, "./origin", "TestNearKeysAreThoseOfTheShards"},
		{"a schedule is not looked at", []edit{{told, "!doubtful && !k.Key.Scheduled &&", "!doubtful &&"}}, "./origin", "TestAScheduledKeyIsAskedFor"},
		{"connections to an old primary are kept", []edit{{"origin/keystore.go", "fromPrimary(ctx, s.upstream, run, func() (map[KeyHash]Key, answerer, error) { return s.lookup(ctx, hashes) })", "fromPrimary(ctx, s.upstream, \"\", func() (map[KeyHash]Key, answerer, error) { return s.lookup(ctx, hashes) })"}}, "./origin", "TestTheSideOfTheEarlierTimelineIsRefused"},
		{"an answer without keys is anybody's", []edit{{"origin/keystore.go", "{ return s.lookup(ctx, hashes) }", "{\n\tfound, by, err := s.lookup(ctx, hashes)\n\tif len(found) == 0 {\n\t\tby.Run = run\n\t}\n\treturn found, by, err\n}"}}, "./origin", "TestAnOldPrimaryThatDoesNotKnowAKeyIsNotBelieved"},
	})
}
