package origin

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// A list longer than a search walks before it turns to the index: terms that
// fill their page at a glance or from the walk, that do so only on the first
// pages, that the walk never meets, and that have no gram.
func TestSearchFindsTheSameByTheWalkAndByTheIndex(t *testing.T) {
	t.Parallel()
	const rows = list.SearchWalk + 700
	url := newDatabase(t)
	conn := connect(t, url)
	// Rows by their number: the newest, and by name the first, are the lowest.
	exec(t, conn, `INSERT INTO items (workspace_id, id, name, description, sku, track_stock, created_at)
		SELECT $1, ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'Common ' || lpad(n::text, 6, '0'),
		       CASE WHEN n > $2 - 12 THEN 'Needle' WHEN n <= 30 THEN 'Front' ELSE 'Hay' END,
		       CASE WHEN n = 2100 THEN 'QX' WHEN n % 17 = 0 THEN 'Some' END, n % 2 = 0, '2026-01-01Z'::timestamptz - n * interval '1 second'
		FROM generate_series(1, $2) n`, ourWorkspace, rows)
	o := openOrigin(t, url)
	numbers := func(from, to int) (list []string) {
		for n := from; n <= to; n++ {
			list = append(list, number(n))
		}
		return list
	}
	var some []string
	for n := 17; n <= rows; n += 17 {
		some = append(some, number(n))
	}
	for term, want := range map[string][]string{
		"some": some, "common": numbers(1, rows), "NEEDLE": numbers(rows-11, rows), "front": numbers(1, 30), "nowhere": nil,
		"common 002700": numbers(2700, 2700), "q": numbers(2100, 2100), "qx": numbers(2100, 2100), "%%%": nil,
	} {
		for _, sort := range []int{listtest.ByCreatedAt, listtest.ByName} {
			for _, limit := range []int{1, 7, 100} {
				for _, stock := range []uint64{0, listtest.Tracked} {
					if len(want) > rows/2 && (limit < 100 || stock != 0) {
						continue // one way to walk everything is enough
					}
					q := page.Query{List: listtest.Items, Tenant: ourWorkspace, Search: term, Order: sort, Limit: limit, Match: stock}
					expected := want
					if stock == listtest.Tracked {
						expected = slices.DeleteFunc(slices.Clone(want), func(id string) bool { return !strings.ContainsAny(id[len(id)-1:], "02468ace") })
					}
					if got := walk(t, o, q); !slices.Equal(got, expected) {
						t.Errorf("%s: %d rows %.100s, want %d", describe(q), len(got), fmt.Sprint(got), len(expected))
					}
				}
			}
		}
	}
}

// The index knows three characters in a row, and one from Thai on; without them in the
// term it would be read from end to end.
func TestTermsWithoutAGramDoNotUseTheIndex(t *testing.T) {
	for want, terms := range [][]string{
		list.NoSearch:   {"", "\u0301"},
		list.WalkSearch: {"a", "ab", "a b c", "ab cd", "ab\ncd", "é", "чa", "a\u00a0b"},
		list.IndexedSearch: {"abc", "a bcd", "12a", "中国茶", "%%%", "чай", "😀😀😀", "a-b", "a\tb", "ß1",
			"茶", "東京", "바라", "か", "ชา", "ຊາ", "តែ", "လ", "😎", "a 茶"},
	} {
		for _, term := range terms {
			if s, _ := shapeOf(&page.Query{List: listtest.Items, Search: term}); s.Search != list.SearchPlan(want) {
				t.Errorf("%q: plan %d, want %d", term, s.Search, want)
			}
		}
	}
}

// A key may be empty, but is never NULL, behind which there is no row. A tenant that no row has is NULL.
func TestOnlyATenantOfNobodyIsNULL(t *testing.T) {
	for _, order := range []int{listtest.ByCreatedAt, listtest.ByName} {
		for _, search := range []string{"", "\x00", "chai", "茶"} {
			for _, name := range []string{"", "N"} {
				row := listtest.Item(1, "name", name)
				for tenant, null := range map[string]int{ourWorkspace: 0, "42": 1} {
					q := page.Query{List: listtest.Items, Tenant: tenant, Order: order, Search: search, Limit: 50, After: listtest.Items.Position(&row, order)}
					_, args := shapeOf(&q)
					if n := len(slices.DeleteFunc(args, func(arg []byte) bool { return arg != nil })); n != null || null > 0 && args[0] != nil {
						t.Fatalf("%s of %s: %d arguments are NULL", describe(q), tenant, n)
					}
				}
			}
		}
	}
}
