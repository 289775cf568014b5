package edge

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"listedge/cache/freshness"
	"listedge/internal/lists"
	"listedge/origin"
)

// queryFields has a change of each field of a query, and what must differ with the change.
// The page's key must always differ. A new field must be added here.
var queryFields = map[string]struct {
	change func(q *origin.Query)
	extent bool // the extent, so which changes concern the page
	link   bool // the address of the next page, apart from its cursor
}{
	"Workspace":  {func(q *origin.Query) { q.Workspace[0]++ }, false, false},                    // changes name it, keys imply it
	"Collection": {func(q *origin.Query) { q.Collection = lists.Contacts }, true, false},        // changes name it, the address is relative to its path
	"Limit":      {func(q *origin.Query) { q.Limit++ }, false, true},                            // the rows show it
	"After":      {func(q *origin.Query) { q.After = origin.Position{Set: true} }, true, false}, // the next page has another
	"Sort":       {func(q *origin.Query) { q.Sort = lists.ByName }, true, true},
	"Filter":     {func(q *origin.Query) { q.Filter = lists.Low }, true, true},
	"Search":     {func(q *origin.Query) { q.Search = "a" }, true, true},
}

func TestEachFieldOfAQueryIsHandled(t *testing.T) {
	base := origin.Query{Limit: 10}
	shown := &origin.Shown{IDs: []uuid.UUID{{1}, {2}}, End: origin.Position{Set: true, CreatedAt: 5, Name: "n", ID: uuid.UUID{2}}}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[origin.Query]()) {
		is, known := queryFields[field.Name]
		if !known {
			t.Errorf("%s: say here what depends on it, and handle it in extentOf, Query.AppendScope or AppendPosition, and appendLink", field.Name)
			continue
		}
		q := base
		is.change(&q)
		if reflect.ValueOf(q).FieldByIndex(field.Index).Equal(reflect.ValueOf(base).FieldByIndex(field.Index)) {
			t.Errorf("%s: not changed", field.Name)
		}
		if string(appendPageKey(nil, &q, nil)) == string(appendPageKey(nil, &base, nil)) {
			t.Errorf("%s: two pages have one key", field.Name)
		}
		if reflect.DeepEqual(extentOf(&q, shown), extentOf(&base, shown)) == is.extent {
			t.Errorf("%s: the extents differ: %t", field.Name, !is.extent)
		}
		if (string(appendLink(nil, &q, "n")) == string(appendLink(nil, &base, "n"))) == is.link {
			t.Errorf("%s: the addresses of the next page differ: %t", field.Name, !is.link)
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[origin.Position]()) {
		p := origin.Position{Set: true, CreatedAt: 1, Name: "n", ID: uuid.UUID{1}}
		switch field.Name {
		case "Set", "CreatedAt", "Name", "ID":
		default:
			t.Errorf("%s of a position: handle it in extentOf and in AppendPosition, and say so here: %+v", field.Name, p)
		}
	}
}

// The extents of all shapes of queries, by the words of the API.
func TestExtentsOfAllQueries(t *testing.T) {
	id, endID, afterID := uuid.UUID{1}, uuid.UUID{2}, uuid.UUID{3}
	tests := 0
	for _, filter := range []lists.Flags{0, lists.Low, lists.Low | lists.Goods} {
		for _, search := range []string{"", "x"} {
			for _, after := range []bool{false, true} {
				for _, end := range []bool{false, true} {
					for _, sort := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
						tests++
						q := origin.Query{Sort: sort, Filter: filter, Search: search, Limit: 2}
						shown := &origin.Shown{IDs: []uuid.UUID{id}}
						want := freshness.Extent{Order: lists.ByCreatedAt, Filter: filter, Search: strings.ToUpper(search),
							After: freshness.Bound{Kind: freshness.Open}, End: freshness.Bound{Kind: freshness.Open}, Tags: []uint32{freshness.Tag(id)}}
						at, name := int64(7), ""
						if sort == lists.ByName {
							want.Order, at, name = lists.ByName, 0, "É"
						}
						if after {
							q.After = origin.Position{Set: true, CreatedAt: at, Name: name, ID: afterID}
							want.After = freshness.Bound{Kind: freshness.At, CreatedAt: at, NameKey: name, ID: afterID}
						}
						if end {
							shown.IDs = append(shown.IDs, endID)
							shown.End = origin.Position{Set: true, CreatedAt: at, Name: name, ID: endID}
							want.End, want.Tags = freshness.Bound{Kind: freshness.At, CreatedAt: at, NameKey: name, ID: endID}, append(want.Tags, freshness.Tag(endID))
						}
						if got := extentOf(&q, shown); !reflect.DeepEqual(*got, want) {
							t.Errorf("%+v: %+v instead of %+v", q, *got, want)
						}
					}
				}
			}
		}
	}
	if tests != 3*16 {
		t.Errorf("%d tests", tests)
	}
	if extentOf(&origin.Query{}, nil) != nil {
		t.Error("a page that does not say what it shows has an extent")
	}
}

// A row that gets another name concerns the pages that show it, and the one where it
// belongs now, whatever the script.
func TestARenameConcernsFewPagesInEveryScript(t *testing.T) {
	const pages, size = 100, 10
	var rows []origin.Position
	words := []string{"Bolt", "Café crème", "Łódź", "Чай чёрный", "Οδός", "抹茶", "ｶﾞﾗｽ", "참기름", "ชาเย็น", "मसाला चाय", "שלום", "شاي"}
	for i := range pages * size {
		rows = append(rows, origin.Position{Set: true, Name: lists.NameKey(fmt.Sprint(words[i%len(words)], " ", i)), ID: uuid.UUID{1, byte(i >> 8), byte(i)}})
	}
	slices.SortFunc(rows, func(a, b origin.Position) int { return strings.Compare(a.Name, b.Name) })
	var extents []*freshness.Extent
	for from := 0; from < len(rows); from += size {
		q, shown := origin.Query{Sort: lists.ByName, Limit: size}, &origin.Shown{}
		if from > 0 {
			q.After = rows[from-1]
		}
		for _, r := range rows[from:min(len(rows), from+size+1)] {
			shown.IDs = append(shown.IDs, r.ID)
		}
		if from+size < len(rows) {
			shown.End = rows[from+size]
		}
		extents = append(extents, extentOf(&q, shown))
	}
	for _, name := range []string{"Mug", "CAFÉ MUG", "Łyżka", "Чашка", "Κούπα", "東京", "カップ", "한국어", "แก้ว", "कप", "כוס", "كوب", "👍🏽", "\u00df"} {
		t.Run(name, func(t *testing.T) {
			concerned := 0
			for _, e := range extents {
				if e.Concern([]lists.Row{lists.Row{ID: rows[555].ID, NameKey: lists.NameKey(name)}}) != freshness.Unconcerned {
					concerned++
				}
			}
			if concerned < 1 || concerned > 3 { // two may show it, one of them behind its end
				t.Errorf("%d of %d pages", concerned, pages)
			}
		})
	}
}
