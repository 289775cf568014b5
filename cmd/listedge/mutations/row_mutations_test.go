//go:build mutations

package mutations

import "testing"

// The rules by which the follower names the rows of a change, broken one at a time:
//
//	make mutations ONLY=TestRowMutations
func TestRowMutations(t *testing.T) {
	const (
		version, decode, published = "origin/follower/version.go", "origin/follower/decode.go", "origin/follower/published.go"

		rows, random, model = "TestWhatRowsAChangeNames", "TestRowsAreAsTheDatabaseHasThem", "TestARowIsTheSameOnlyWhereItWas"
		pkg                 = "./origin/follower"
	)
	caught(t, []mutation{
		{"a row that becomes active is listed as before", []edit{
			{version, "\tif !f.bool(\"active\") {\n\t\tv.row.Flags = changefeed.RowGone\n\t\treturn v, !f.unknown\n\t}\n", ""},
			{version, "\treturn v, !f.unknown\n}\n\n// fields", "\tif !f.bool(\"active\") {\n\t\tv.row = changefeed.Row{ID: v.row.ID, Flags: changefeed.RowGone}\n\t}\n\treturn v, !f.unknown\n}\n\n// fields"}}, pkg, random},
		{"an inactive row is listed", []edit{{version, "if !f.bool(\"active\") {", "if !f.bool(\"active\") && false {"}}, pkg, rows},
		{"what is equal is not low", []edit{{version, "stock.Cmp(reorder) <= 0", "stock.Cmp(reorder) < 0"}}, pkg, rows},
		{"what is not tracked is low", []edit{{version, "if f.bool(\"track_stock\") {", "if f.bool(\"track_stock\") || true {"}}, pkg, rows},
		{"any time is read", []edit{{version, "f.unknown = f.unknown || err != nil", "f.unknown = f.unknown || err != nil && text == \"\""}}, pkg, rows},
		{"a value that is not sent is NULL", []edit{{version, "\t\tf.unknown = true\n", ""}}, pkg, "TestRowsWithLargeValues"},
		{"a searched field that is not sent is the one before", []edit{{version, "\t\t\treturn 0\n", "\t\t\tcontinue\n"}}, pkg, "TestRowsWithLargeValues"},
		{"the hash lacks the description", []edit{{version, "{\"name\", \"sku\", \"description\"}", "{\"name\", \"sku\"}"}}, pkg, random},
		{"the hash lacks flags", []edit{{version, "\th.WriteByte(byte(row.Flags))\n", ""}}, pkg, random},
		{"a column of another type", []edit{{version, " && of.DataType == c.oid", ""}}, pkg, rows},
		{"an id that an update may have changed", []edit{{version, "!ok || which == newRowOfSameKey && !t.id.key", "!ok"}}, pkg, "TestAnUpdateNamesARowIfItsIDIsInTheKey"},
		{"rows that their id does not name", []edit{{"origin/follower/publication.go", "slices.Concat(s.missingColumns, s.ambiguousRows)", "slices.Concat(s.missingColumns)"}}, pkg, "TestRowsThatTheirIDDoesNotName"},
		{"the old row is not named", []edit{{decode, "\t\td.touch(m.RelationID, m.OldTuple, oldRow) // a move between workspaces touches both\n", ""}}, pkg, rows},
		{"the first version is named", []edit{{decode, "\t\trows[at] = *v // a later version\n", ""}, {decode, "); at >= 0 {", ") >= 0; at {"}}, pkg, rows},
		{"a list of many rows names some", []edit{{decode, "\tif t.rows++; len(rows) == maxRows || t.rows > maxRowsInAll {\n\t\tt.named[i] = nil\n\t\treturn\n\t}\n", "\tif len(rows) == maxRows {\n\t\treturn\n\t}\n"}}, pkg, rows},
		{"rows of a streamed transaction are named", []edit{{decode, "v == nil || t.rowsUnknown", "v == nil"}}, pkg, "TestAStreamedTransactionNamesNoRows"},
		{"heartbeats name rows", []edit{{"origin/follower/term.go", "\tt.unsettled = append(t.unsettled, c)\n", "\tt.unsettled = append(t.unsettled, named)\n"}}, pkg, "TestHeartbeatsNameNoRows"},

		{"the same although it was gone between", []edit{{published, "\t\tp.forget(row.ID)\n", ""}}, pkg, model},
		{"the same although any row was changed between", []edit{{published, "\t\t\tp.forgetList(list)\n", ""}}, pkg, model},
		{"the same although all lists were changed between", []edit{{published, "\t\tif c.change.Touches(collection) {", "\t\tif false {"}}, pkg, model},
		{"the same in a list that was forgotten long ago", []edit{{published, "\t\tclear(p.lists)\n\t\tfor collection := range changefeed.Collections {\n\t\t\tp.forgetCollection(collection)\n\t\t}\n", "\t\tclear(p.lists)\n"}}, pkg, model},
		{"the same as an older version", []edit{{published, "\tdelete(p.old, id)\n", ""}}, pkg, model},
	})
}
