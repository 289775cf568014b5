//go:build mutations

package mutations

import "testing"

// The rules of joined pages, broken one at a time:
//
//	make mutations ONLY=TestJoinedMutations
func TestJoinedMutations(t *testing.T) {
	const (
		join  = "cache/freshness/join.go"
		model = "TestAJoinedPageIsTheOneReadAnew"
	)
	var mutations []mutation
	for name, e := range map[string]edit{
		"a gap between parts":                  {join, "return ok && order >= 0", "return ok && order >= -1"},
		"the row at a part's end is left out":  {join, "end, complete = position(n-1), false", "complete = false"},
		"a row twice":                          {join, "return order > 0", "return order >= 0"},
		"rows of other filters":                {join, "e.Filter == o.Filter && ", ""},
		"parts are current":                    {join, "concern != Unconcerned {", "concern > Concerns {"},
		"parts are judged by their rows alone": {join, "p.shown.End = end", "p.shown.End = p.shown.After"},
		"the row behind the page is forgotten": {join, "e.Tags[from : p.To+1]", "e.Tags[from:p.To]"},
		"the last row of a part is forgotten":  {join, "p.shown.Tags = e.Tags[from:n]", "p.shown.Tags = e.Tags[from : n-1]"},
		"the page's end is its last row":       {join, "end = position(p.To)", "end = position(p.To - 1)"},
		"a part may show what is not known":    {join, " || p.readBy > time.Duration(t.proof.Load())", ""},
		"a part from before a reset":           {join, " || s < t.join.Load()", ""},
	} {
		mutations = append(mutations, mutation{name, []edit{e}, "./cache/freshness", model})
	}
	caught(t, mutations)
}
