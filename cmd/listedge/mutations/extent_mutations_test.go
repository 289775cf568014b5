//go:build mutations

package mutations

import "testing"

// What a page says of the rows that it shows, made wrong in one way at a time:
//
//	make mutations ONLY=TestExtentMutations
func TestExtentMutations(t *testing.T) {
	const (
		shown, fold, extent = "origin/page.go", "internal/lists/fold.go", "edge/fill.go"

		lists, folds, queries = "TestEveryListIsWhatTheReferenceSays", "TestTheFoldIsThatOfTheDatabase", "TestExtentsOfAllQueries"
		oracle                = "TestEveryCachedPageEqualsOneReadAnew"
	)
	caught(t, []mutation{
		{"the row behind the page is forgotten", []edit{{shown, "\ts.addID(row)\n\ts.end = ", "\ts.end = "}}, "./origin", lists},
		{"the page's end is forgotten", []edit{{shown, "IDs: slices.Clone(s.ids), End: s.end", "IDs: slices.Clone(s.ids)"}}, "./origin", lists},
		{"ids are those of the next page read", []edit{{shown, "IDs: slices.Clone(s.ids)", "IDs: slices.Clip(s.ids)"}}, "./origin", "TestPagesKeepWhatTheyShow"},
		{"a page ends before a row that was not read", []edit{{"origin/origin.go", "\t\tr.showing.unknown = true\n", ""}}, "./origin", "TestARowThatIsTooLongIsNotRead"},
		{"pages with microseconds are joined", []edit{{shown, "CreatedAt%1000 != 0", "CreatedAt < 0 && false"}}, "./origin", "TestAPageWithMicrosecondsIsNotJoined"},

		{"names are compared as they are", []edit{{fold, "\tkey := Fold(name)\n", "\tkey := name\n"}}, "./origin", lists},
		{"marks stay", []edit{{fold, "r <= '\\u036f': // a", "r <= '\\u0300': // a"}}, "./origin", folds},
		{"marks are not in order", []edit{{fold, "class(a), class(b)", "class(a), class(a)"}}, "./origin", folds},
		{"younger characters are decomposed", []edit{{fold, "if !strings.ContainsFunc(t, isLater) {", "if true {"}}, "./origin", folds},

		{"a search is none", []edit{{extent, "Search: lists.Fold(q.Search)", "Search: \"\""}}, "./edge", queries},
		{"a filter is forgotten", []edit{{extent, "Filter: q.Filter,", "Filter: 0,"}}, "./edge", queries},

		// By the oracle, on real servers.
		{"goods are services", []edit{{"internal/lists/lists.go", `{"goods", Goods,`, `{"goods", Services,`}}, "./origin", lists},
		{"a row that comes in does not concern the page", []edit{{"cache/freshness/extent.go", "\treturn RowEntered\n", "\treturn Unconcerned\n"}}, "./cmd/listedge/e2e", oracle},
	})
}
