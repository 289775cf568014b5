//go:build mutations

package mutations

import "testing"

// The rules of what is counted, broken one at a time:
//
//	make mutations ONLY=TestUsageMutations
func TestUsageMutations(t *testing.T) {
	const (
		recorder, write, expire = "origin/usage/recorder.go", "origin/usage/write.sql", "origin/usage/expire.sql"
		model                   = "TestEachRequestIsCountedOnce"
	)
	caught(t, []mutation{
		{"a batch is added again", []edit{{write, " WHERE w.batch < excluded.batch", ""}}, "./origin/usage", "TestABatchCountsOnce"},
		{"a key was last used earlier", []edit{{write, " WHERE l.last_used_at < excluded.last_used_at", ""}}, "./origin/usage", "TestABatchCountsOnce"},
		{"since when is forgotten", []edit{{expire, " AND batch > 0", ""}}, "./origin/usage", "TestOldRowsAreRemoved"},
		{"keys that exist are forgotten", []edit{{expire, "k.id = l.key_id", "false"}}, "./origin/usage", "TestOldRowsAreRemoved"},
		{"a read-only role writes nothing", []edit{{"origin/postgres/primary.go", ", AccessMode: pgx.ReadWrite", ""}, {"origin/postgres/pool.go", `"default_transaction_read_only": "off",`, ""}}, "./origin/usage", "TestSettingsOfTheRoleHaveNoEffect"},
		{"a failed batch is dropped", []edit{{recorder, "err, left = failure, 0", "err, left, r.queue, r.sent = failure, 0, r.queue[len(rows):], 0"}}, "./origin/usage", model},
		{"a failed batch gets a new number", []edit{{recorder, "err, left = failure, 0", "err, left, r.sent = failure, 0, 0"}}, "./origin/usage", model},
		{"counts are added to what was sent", []edit{{recorder, "row.sent = !isRefused", "row.sent = false"}}, "./origin/usage", model},
		{"a refused batch is sent again", []edit{{recorder, "size, refused = 0, len(rows)/2,", "size, refused = 0, len(rows),"}}, "./origin/usage", "TestARowThatCannotBeAdded"},
		{"a refused row is sent with others", []edit{{recorder, "row.refused = true", "row.refused = false"}}, "./origin/usage", "TestARowThatCannotBeAdded"},
		{"memory is not bounded", []edit{{recorder, "len(r.queue) >= maxQueued", "false"}}, "./origin/usage", "TestMemoryIsBounded"},
		{"all that waits is written at once", []edit{{recorder, "4 * maxRows", "99 * maxRows"}}, "./origin/usage", "TestTheLoadOfTheDatabaseIsBounded"},
		{"hours end late", []edit{{recorder, "lost := r.looked.Truncate(time.Hour)", "lost := now.Truncate(time.Hour)"}}, "./origin/usage", "TestARecorderWrites"},
		{"nothing is written at the end", []edit{{recorder, "\tr.look(time.Now())\n\t_ = r.flush", "\t_ = r.flush"}}, "./origin/usage", "TestARecorderWrites"},
		{"the body of HEAD is counted", []edit{{"edge/handler.go", "if x.http.IsHead() {", "if false {"}}, "./edge", "TestUsageCountsWhatIsAnswered"},
	})
}
