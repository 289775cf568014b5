//go:build mutations

package mutations

import "testing"

// The rules of which changes concern a page, broken one at a time:
//
//	make mutations ONLY=TestInvalidationMutations
//
// Two edits that sound wrong are not: a page whose End is open to the left is as right,
// because the row at End is found by its tag; and so is one whose tags have one byte,
// because a tag is used for saying that a change concerns the page, and for nothing else.
func TestInvalidationMutations(t *testing.T) {
	const (
		extent    = "cache/freshness/extent.go"
		freshness = "./cache/freshness"
	)
	caught(t, []mutation{
		// By trying out all small lists.
		{"rows behind the last one do not enter a page that reaches the end", []edit{{extent, "\t\treturn open, true\n", "\t\treturn 1, true\n"}}, freshness, "TestLemma"},
		{"a page has no place before the row behind it", []edit{{extent, "endKnown && end > 0:", "endKnown && end >= -1 && e.End.Kind == At:"}}, freshness, "TestLemma"},
		{"the row behind the page is not known", []edit{{extent, "return slices.Contains(e.Tags, tag)", "return slices.Contains(e.Tags[:max(0, len(e.Tags)-1)], tag)"}}, freshness, "TestLemma"},
		{"a row that the page shows does not concern it", []edit{{extent, "\tcase e.shows(Tag(r.ID)):\n\t\treturn ShowsRow\n", ""}}, freshness, "TestLemma"},
		{"a tag that is looked for in the wrong place", []edit{{extent, "e.seen[tag%tagBits/64]&(1<<(tag%64)) == 0", "e.seen[tag%tagBits/64]&(2<<(tag%64)) == 0"}}, freshness, "TestLemma"},
		{"a row that comes in does not concern the page", []edit{{extent, "\treturn RowEntered\n", "\treturn Unconcerned\n"}}, freshness, "TestLemma"},
		{"the search does not find a row that comes in", []edit{{extent, "\t\treturn SearchedRow\n", "\t\treturn Unconcerned\n"}}, freshness, "TestLemma"},
		{"a row matches no filter", []edit{{extent, "r.Flags&e.Filter != e.Filter:", "e.Filter != 0:"}}, freshness, "TestLemma"},
		{"a name without a key comes first", []edit{{extent, "a.NameKey == \"\" || b.NameKey == \"\"", "false"}}, freshness, "TestLemma"},
		{"a cut key is compared as a whole one", []edit{{extent, " && r.NameKeyIsCut() {", " && false {"}}, freshness, "TestLemma"},
		{"rows that are created at once have no order", []edit{{extent, "-cmp.Compare(a.CreatedAt, b.CreatedAt), -bytes.Compare(a.ID[:], b.ID[:])", "-cmp.Compare(a.CreatedAt, b.CreatedAt), -1"}}, freshness, "TestLemma"},
		{"one row of a transaction is enough", []edit{{extent, "\t\tif c := e.concern(&row); c != Unconcerned {\n\t\t\treturn c\n\t\t}\n", "\t\treturn e.concern(&row)\n"}}, freshness, "TestConcerns"},
		{"the first newer change is skipped", []edit{{versions, "for _, c := range newer {", "for _, c := range newer[min(1, len(newer)):] {"}}, freshness, "TestLemma"},

		// By the ring's own tests.
		{"the change behind a sequence is skipped", []edit{{versions, "return c.sequence > sequence })", "return c.sequence > sequence+1 })"}}, freshness, "TestAnEntryIsComparedWithNewerChangesAlone"},
		{"the change behind a position is skipped", []edit{{versions, "return c.position.Compare(position) > 0 })", "return c.position.N > position.N+1 })"}}, freshness, "TestAnEntryIsComparedWithNewerChangesAlone"},
		{"a change that is published once more has its old LSN", []edit{{versions, "\tc.lsn = v.lastLSN ", "\t_ = v.lastLSN "}}, freshness, "TestAStandbysPageIsComparedWithRepeatedChanges"},
		{"a change that does not fit concerns no fill", []edit{{extent, "\tcase changed == \"\":\n\t\treturn AnyRow\n", ""}}, freshness, "TestAnUnsettledChangeIsNeverLost"},
		{"a change that does not fit is lost", []edit{{versions, "\t\tc.list.dropOldest()\n", "\t\tc.list.dropOldest()\n\t\tc.settledAt = 0\n"}}, freshness, "TestAnUnsettledChangeIsNeverLost"},
		{"the ring has no end", []edit{{versions, "r.bytes > r.budget && ", "r.bytes < 0 && "}}, freshness, "TestTheOldestChangesAreDropped"},
		{"the changes of a forgotten list are counted", []edit{{versions, "\tr.bytes -= len(c.rows)\n", ""}}, freshness, "TestForgettingAListForgetsItsChanges"},
		{"any number of rows is compared", []edit{{versions, "rows > maxRows {", "rows < 0 {"}}, freshness, "TestTooManyRowsAreNotCompared"},
		{"the page of any change is read ahead", []edit{{"cache/refresh.go", "!e.isConcernedBy(c.RowsOf(i)) || ", "i < 0 || "}}, "./cache", "TestOnlyPagesThatAChangeConcernsAreRefreshed"},
		{"what Redis keeps has no extent", []edit{{"cache/codec.go", "\tif e.Extent != nil {", "\tif false {"}}, "./cache", "TestCodecKeepsTheExtent"},

		// Of requests.
		{"a refused request is popularity", []edit{{"cache/cache.go", "\tr.slot = s\n", "\ts.requests.Add(1)\n"}}, "./edge", "TestRefusedRequestsAreNotPopularity"},
		{"a Redis that hangs is asked again", []edit{{"cache/fill.go", "l.redis == nil || l.redisErr != nil || !l.following", "l.redis == nil || !l.following"}}, "./cache", "TestAMissWaitsOnceForARedisThatHangs"},
	})
}
