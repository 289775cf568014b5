//go:build mutations

package mutations

import "testing"

// The rules by which rows in memory follow the database, broken one at a time:
//
//	make mutations ONLY=TestReplicaMutations
func TestReplicaMutations(t *testing.T) {
	const (
		fill, merge, table, list, row = "cache/replica/fill.go", "cache/replica/merge.go", "cache/replica/table.go", "cache/replica/list.go", "cache/replica/row.go"
		replica, history, read        = "cache/replica/replica.go", "cache/replica/history.go", "cache/replica/read.go"

		pkg, model = "./cache/replica", "TestModel"
	)
	caught(t, []mutation{
		{"merged without waiting", []edit{{fill, "case !r.covers(&f.At):", "case false:"}}, pkg, model},
		{"by xmax alone", []edit{{fill, " && !slices.ContainsFunc(s.snapshot.Running, v.Snapshot.Sees)", " || slices.Contains(s.snapshot.Running, 0)"}}, pkg, model},
		{"a lower xmax", []edit{{fill, "s.snapshot.Xmax >= v.Snapshot.Xmax && ", ""}}, pkg, model},
		{"by the LSN alone", []edit{{fill, " && (s.unsettled == 0 || s.unsettled > v.Through)", ""}}, pkg, model},
		{"an unsettled change at the LSN", []edit{{fill, "s.unsettled > v.Through", "s.unsettled >= v.Through"}}, pkg, model},
		{"by the LSN before the statement", []edit{{fill, "s.lsn >= v.Through && (s.unsettled == 0 || s.unsettled > v.Through)", "s.lsn >= v.LSN && (s.unsettled == 0 || s.unsettled > v.LSN)"}}, pkg, model},
		{"a fill of the primary from before what is remembered", []edit{{fill, "return f.At.Began.Compare(r.history.floor.at) < 0", "return false"}}, pkg, model},
		{"without what the fill does not show", []edit{{merge, "\t\t\tcase f.sees(c):\n", "\t\t\tcase true:\n"}}, pkg, model},
		{"without what the primary's statement does not see", []edit{{fill, "return c.at.Compare(f.At.Began) <= 0 || f.At.Snapshot.Sees(c.xid)", "return true"}}, pkg, model},
		{"a standby that lags", []edit{{fill, "return c.lsn <= f.At.LSN", "return true"}}, pkg, model},
		{"a standby behind what is remembered", []edit{{fill, "return f.At.LSN < r.history.floor.lsn", "return false"}}, pkg, model},
		{"a standby's LSN is behind the change", []edit{{fill, "return c.lsn <= f.At.LSN", "return c.lsn <= f.At.LSN+1"}}, pkg, model},
		{"a change that names no rows is overlooked", []edit{{merge, "return nil, AnyRow\n\t\t\tcase rows", "continue\n\t\t\tcase rows"}}, pkg, model},
		{"a change of the collection is overlooked", []edit{{merge, "{f.Table, {Collection: f.Table.Collection}}", "{f.Table}"}}, pkg, model},
		{"a forgotten change leaves no floor", []edit{{history, "\t\th.floor = point{c.at, max(h.floor.lsn, c.lsn)}\n", ""}}, pkg, model},
		{"the floor's LSN falls", []edit{{history, "max(h.floor.lsn, c.lsn)", "c.lsn"}}, pkg, model},
		{"joining leaves no floor", []edit{{replica, "\t\tr.history.floor = point{b.Position, b.LSN}\n", ""}}, pkg, model},
		{"a fill of another run", []edit{{fill, "return v.StartedAt != r.state.startedAt", "return false"}}, pkg, model},

		{"a table whose rows are not named is kept", []edit{{replica, "\t\tcase rows == nil:\n\t\t\tr.forget(t)\n", ""}}, pkg, model},
		{"a collection is kept", []edit{{replica, "\t\t\t\tif of.Collection == collection {", "\t\t\t\tif of.Collection != collection {"}}, pkg, model},
		{"a row is removed from one list only", []edit{{table, "belongs(row, &l.Key, &s))\n", "belongs(row, &l.Key, &s))\n\t\told = nil\n"}}, pkg, model},
		{"a row is removed where it is put", []edit{{table, "l.shows(old, from)", "l.shows(old, to)"}}, pkg, model},
		{"the filter is forgotten", []edit{{table, "case row.Flags&lists.Gone != 0 || row.Flags&k.Filter != k.Filter:", "case row.Flags&lists.Gone != 0:"}}, pkg, model},
		{"what is unknown is served", []edit{{table, "\tcase row.Flags&lists.NameUnknown != 0 || row.Text == \"\":\n\t\treturn unknown\n", ""}}, pkg, model},
		{"a row of no known name is put", []edit{{table, "!row.HasPosition(k.Order)", "false"}}, pkg, model},
		{"a searched row is kept though its text changed", []edit{{table, "strings.Contains(searched.text, k.Search)", "strings.Contains(searched.text, \"\")"}}, pkg, model},
		{"a row that begins to match is not put", []edit{{table, "strings.Contains(searched.text, k.Search)", "strings.Contains(k.Search, searched.text)"}}, pkg, model},
		{"a row that no range shows is remembered", []edit{{table, "\tif t.rows[row.ID] == row {\n\t\tdelete(t.rows, row.ID)\n\t}\n", ""}}, pkg, model},
		{"the version is not raised by a row that leaves", []edit{{table, "\t\t\tl.version.Add(1)\n\t\t\tr.hide", "\t\t\tr.hide"}}, pkg, model},
		{"the version is not raised by a row that enters", []edit{{table, "\t\tl.version.Add(1)\n\t\tr.insert", "\t\tr.insert"}}, pkg, model},
		{"the version is not raised by eviction", []edit{{list, "\tl.version.Add(1)\n", ""}}, pkg, model},
		{"the version is not raised by a reset", []edit{{replica, "\t\t\tl.version.Add(1)\n", "\t\t\tl.version.Add(0)\n"}}, pkg, model},
		{"an evicted range is still covered", []edit{{list, "\tl.ranges = slices.Delete(l.ranges, from, to)\n", ""}}, pkg, model},
		{"a gap is covered", []edit{{merge, "lo, rows = behind(gap), rows[n:]", "lo, rows = gap, rows[n:]"}}, pkg, model},
		{"ranges that do not touch become one", []edit{{list, "g.hi != right.lo || ", ""}}, pkg, model},
		{"a page goes on across a gap", []edit{{read, " || l.ranges[i+1].lo != g.hi", ""}}, pkg, model},
		{"a page begins in a gap", []edit{{read, " || l.ranges[i].lo > after && !isBehind(l.ranges[i].lo, after)", ""}}, pkg, model},
		{"a page has the row at its position", []edit{{read, "Compare(l.Order, after) > 0", "Compare(l.Order, after) >= 0"}}, pkg, model},
		{"a page ends with its range", []edit{{read, "if g.hi == listEnd {", "if true {"}}, pkg, model},
		{"a range has its lower bound only behind", []edit{{list, "l.ranges[i].lo <= at\n", "l.ranges[i].lo < at\n"}}, pkg, model},
		{"a range has its upper bound", []edit{{list, "l.ranges[i].hi > at })\n", "l.ranges[i].hi >= at })\n"}}, pkg, model},
		{"a bound is before its row", []edit{{row, "return p + \"\\x00\"", "return p"}}, pkg, model},
		{"a fill that differs is merged", []edit{{merge, "\tcase !consistent:\n\t\tr.forget(t)\n\t\treturn Inconsistent\n", ""}}, pkg, "TestWhatDoesNotAgree"},
		{"the hand gives no second chance", []edit{{"cache/replica/clock.go", " || !g.wasUsed()", " || true"}}, pkg, "TestWhatIsUsedIsKept"},
	})
}
