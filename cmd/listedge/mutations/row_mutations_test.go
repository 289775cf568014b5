//go:build mutations

package mutations

import "testing"

// The rules by which the follower names the rows of a change, broken one at a time:
//
//	make mutations ONLY=TestRowMutations
func TestRowMutations(t *testing.T) {
	const (
		row, decode, render = "origin/follower/row.go", "origin/follower/decode.go", "internal/lists/render.go"

		rows, random, large = "TestWhatRowsAChangeNames", "TestRowsAreAsTheDatabaseHasThem", "TestRowsWithLargeValues"
		pkg                 = "./origin/follower"
	)
	caught(t, []mutation{
		{"an inactive row is listed", []edit{{row, "len(active) == 0 || active[0] == 0", "len(active) == 0"}}, pkg, rows},
		{"what is equal is not low", []edit{{render, "a.compare(&b) <= 0", "a.compare(&b) < 0"}}, pkg, rows},
		{"a value that is not sent is NULL", []edit{{row, "\t\t\tunsent |= 1 << i\n", ""}}, pkg, large},
		{"a name that is not sent is empty", []edit{{render, "\t\tr.Flags |= NameUnknown\n", ""}}, pkg, large},
		{"a filter's value that is not sent is NULL", []edit{{row, "if list.Collection.IsFilteredBy(column.Name) {", "if list.Collection.IsFilteredBy(\"no \" + column.Name) {"}}, pkg, large},
		{"a text of any length", []edit{{row, "len(r.Text) > maxText", "false"}}, pkg, large},
		{"a column of another type", []edit{{row, " && of.DataType == c.Kind.OID()", ""}}, pkg, rows},
		{"an id that an update may have changed", []edit{{row, "!ok || which == newRowOfSameKey && !t.id.key", "!ok"}}, pkg, "TestAnUpdateNamesARowIfItsIDIsInTheKey"},
		{"rows that their id does not name", []edit{{"origin/follower/publication.go", "slices.Concat(s.missingColumns, s.ambiguousRows)", "slices.Concat(s.missingColumns)"}}, pkg, "TestRowsThatTheirIDDoesNotName"},
		{"the old row is not named", []edit{{decode, "\t\td.touch(m.RelationID, m.OldTuple, oldRow) // a move between workspaces touches both\n", ""}}, pkg, rows},
		{"the first version is named", []edit{{decode, "if rows[at] = *r; len", "if !again {\n\t\trows[at] = *r\n\t}\n\tif len"}}, pkg, random},
		{"a list of many rows names some", []edit{{decode, "len(t.rowAt) > maxRows || ", ""}}, pkg, rows},
		{"rows of any size", []edit{{decode, " || t.rowBytes > maxRowBytes", ""}}, pkg, rows},
		{"rows of a streamed transaction are named", []edit{{decode, "r == nil || t.rowsUnknown", "r == nil"}}, pkg, "TestAStreamedTransactionNamesNoRows"},
		{"heartbeats name rows", []edit{{"origin/follower/term.go", "c.change.Rows, c.decoded = nil, time.Now()", "c.decoded = time.Now()"}, {"origin/follower/heartbeat.go", "Whole: c.change.Whole}", "Whole: c.change.Whole, Rows: c.change.Rows}"}}, pkg, "TestHeartbeatsNameNoRows"},
	})
}
