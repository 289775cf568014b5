//go:build mutations

package mutations

import "testing"

// The rules of what is counted, broken one at a time:
//
//	make mutations ONLY=TestUsageMutations
func TestUsageMutations(t *testing.T) {
	const (
		recorder, store = "origin/usage/recorder.go", "origin/usage/store.go"
		model           = "TestEachRequestIsCountedOnce"
	)
	caught(t, []mutation{
		{"a batch is added again", []edit{{store, " WHERE w.batch < excluded.batch", ""}}, "./origin/usage", "TestABatchCountsOnce"},
		{"a key was last used earlier", []edit{{store, " WHERE l.last_used_at < excluded.last_used_at", ""}}, "./origin/usage", "TestABatchCountsOnce"},
		{"since when is forgotten", []edit{{store, " AND batch > 0", ""}}, "./origin/usage", "TestOldRowsAreRemoved"},
		{"keys that exist are forgotten", []edit{{store, "k.id = l.key_id", "false"}}, "./origin/usage", "TestOldRowsAreRemoved"},
		{"a read-only role writes nothing", []edit{{store, ", AccessMode: pgx.ReadWrite", ""}, {"origin/postgres/pool.go", `"default_transaction_read_only": "off",`, ""}}, "./origin/usage", "TestSettingsOfTheRoleHaveNoEffect"},
		{"a failed batch is dropped", []edit{{recorder, "\t\t\tr.failure.Store(&err)\n", "\t\t\tr.failure.Store(&err)\n\t\t\tr.batches = nil\n"}}, "./origin/usage", model},
		{"a failed batch gets a new number", []edit{{recorder, "\t\t\tr.failure.Store(&err)\n", "\t\t\tr.failure.Store(&err)\n\t\t\tr.batches[0].Number = 0\n"}}, "./origin/usage", model},
		{"a refused batch is sent again", []edit{{recorder, "if half := len(rows) / 2; half > 0", "if half := 0; half > 0"}}, "./origin/usage", "TestARowThatCannotBeAdded"},
		{"counters in use are dropped", []edit{{recorder, "unused = c.holder.Value() == nil", "unused = true"}}, "./origin/usage", model},
		{"dropped before it is read", []edit{{recorder, "\t\tn := c.read()\n", "\t\tif unused {\n\t\t\treturn true\n\t\t}\n\t\tn := c.read()\n"}}, "./origin/usage", model},
		{"memory is not bounded", []edit{{recorder, " && len(r.past) < maxPast", ""}}, "./origin/usage", "TestMemoryIsBounded"},
		{"all that waits is written at once", []edit{{recorder, "maxRefused = 4096, 4, 64", "maxRefused = 4096, 99, 64"}}, "./origin/usage", "TestTheLoadOfTheDatabaseIsBounded"},
		{"the same keys always have room", []edit{{recorder, "slices.Concat(r.queue[n:], r.queue[:n])", "r.queue"}}, "./origin/usage", "TestTheLoadOfTheDatabaseIsBounded"},
		{"hours end late", []edit{{recorder, "hour, over := r.looked.Truncate(time.Hour)", "hour, over := now.Truncate(time.Hour)"}}, "./origin/usage", "TestARecorderWrites"},
		{"nothing is written at the end", []edit{{recorder, "\tr.look(time.Now())\n\t_, err", "\t_, err"}}, "./origin/usage", "TestARecorderWrites"},
		{"a refresh is counted for somebody", []edit{{"cache/refresh.go", "\t\tfill.Queried = nil\n\t\tr.add", "\t\tr.add"}}, "./cache", "TestQueriesAreCountedForTheRequestThatCausedThem"},
		{"the body of HEAD is counted", []edit{{"edge/handler.go", "if x.http.IsHead() {", "if false {"}}, "./edge", "TestUsageCountsWhatIsAnswered"},
	})
}
