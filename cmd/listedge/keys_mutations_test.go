//go:build mutations

package main

import "testing"

// The rules by which keys are believed, broken one at a time:
//
//	make mutations ONLY=TestKeyMutations
func TestKeyMutations(t *testing.T) {
	const (
		told, refresh = "origin/keyring_told.go", "origin/keyring_refresh.go"
		storm         = "TestNoAnswerReliesOnAKeyThatWasChangedLongAgo"
	)
	caught(t, []mutation{
		{"not doubted when it is visible", []edit{{told, "func (r *Keyring[T]) Changed(_ changefeed.Position, c *changefeed.Change) { r.Settled(c) }", "func (r *Keyring[T]) Changed(_ changefeed.Position, c *changefeed.Change) { r.changed(c) }\n\nfunc (r *Keyring[T]) Settled(*changefeed.Change) {}"}, {told, "func (r *Keyring[T]) Settled(c *changefeed.Change) {\n", "func (r *Keyring[T]) changed(c *changefeed.Change) {\n"}}, "./edge", storm},
		{"a gap is overlooked", gapsIgnored, "./edge", storm},
		{"proven until now", []edit{{told, "until: r.clock.Of(p.Moment)", "until: r.clock.Now()"}}, "./edge", storm},
		{"proven since the moment", []edit{{told, "since: r.clock.Now(), until", "since: r.clock.Of(p.Moment), until"}}, "./origin", "TestAProofIsOfKeysLookedUpWithin"},
		{"proven across a reset", []edit{{told, "\tr.told.proof.Store(nil)\n", ""}}, "./edge", storm},
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
		{"connections to an old primary are kept", []edit{{"origin/keystore.go", "fromPrimary(ctx, s.upstream, run, func() (map[KeyHash]Key, answerer, error) { return s.lookup(ctx, hashes) })", "fromPrimary(ctx, s.upstream, \"\", func() (map[KeyHash]Key, answerer, error) { return s.lookup(ctx, hashes) })"}}, "./origin", "TestAnEarlierTimelineIsRefused"},
		{"an answer without keys is anybody's", []edit{{"origin/keystore.go", "{ return s.lookup(ctx, hashes) }", "{\n\tfound, by, err := s.lookup(ctx, hashes)\n\tif len(found) == 0 {\n\t\tby.Run = run\n\t}\n\treturn found, by, err\n}"}}, "./origin", "TestAnOldPrimaryThatDoesNotKnowAKeyIsNotBelieved"},
	})
}
