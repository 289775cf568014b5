package list_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

func FuzzPositionsSortAsValuesDo(f *testing.F) {
	var lists []*list.List
	for _, descending := range []bool{false, true} {
		for base := range ordered {
			lists = append(lists, described(f, fmt.Sprintf("key: id\nfields: {id: }\norders: {v: {by: v, descending: %t}}", descending), "id text", "v "+base))
		}
		lists = append(lists, described(f, fmt.Sprintf("key: id\nfields: {id: }\norders: {v: {by: v, fold: true, descending: %t}}", descending), "id text", "v text"))
	}
	f.Add("a", "b")
	f.Add("1.5", "-1")
	f.Add("2026-01-02", "2026-01-02 03:04:05")
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, l := range lists {
			given := list.Position(a) // as a cursor might have it
			value, key, ok := l.ParsePosition(0, given)
			if ok != l.IsPosition(0, given) || ok && key != l.KeyText(string(must1(l.ParseKey([]byte(key))))) {
				t.Fatalf("%q: %q, %q, %t", given, value, key, ok)
			}
			r, err := l.Row([][]byte{[]byte("k"), []byte(a)}, nil)
			s, other := l.Row([][]byte{[]byte("k"), []byte(b)}, nil)
			if err != nil || other != nil || strings.ContainsAny(a+b, "\x00") {
				continue
			}
			p, q := l.Position(&r, 0), l.Position(&s, 0)
			if l.Compare(&r, 0, q) != cmp.Compare(p, q) || l.Compare(&s, 0, p) != cmp.Compare(q, p) {
				t.Fatalf("%q and %q compare as %d", a, b, l.Compare(&r, 0, q))
			}
		}
	})
}

// What a position belongs to is the same in two descriptions if nothing that decides about it differs.
func TestAScopeOutlivesADescription(t *testing.T) {
	const description = "key: id\nfields: {id: , v: }\norders: {v: {by: v}, w: {by: w}}\nfilters: {f: {on: a, off: not a}}"
	columns := []string{"id int4", "v text", "w text", "a bool", "b bool"}
	scope := func(description string, order int, match uint64) string {
		return string(described(t, description, columns...).AppendScope(nil, order, match))
	}
	for name, c := range map[string]struct {
		from, to string
		order    int
		match    uint64
		same     bool
	}{
		"nothing":          {"", "", 0, 1, true},
		"another field":    {"v: }", "v: , b: }", 0, 1, true},
		"another order":    {"w: {by: w}", "w: {by: w, descending: true}", 0, 1, true},
		"another filter":   {"{f:", "{g: {on: b}, f:", 0, 0, true},
		"another value":    {"off: not a", "off: b", 0, 1, true},
		"what rows live":   {"key: id", "key: id\nlive: b", 0, 1, true},
		"the order":        {"v: {by: v}", "v: {by: v, fold: true}", 0, 1, false},
		"its column":       {"v: {by: v}", "v: {by: w}", 0, 1, false},
		"its direction":    {"v: {by: v}", "v: {by: v, descending: true}", 0, 1, false},
		"the value":        {"on: a", "on: a and b", 0, 1, false},
		"the value's name": {"on: a", "yes: a", 0, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			if is := scope(description, c.order, c.match) == scope(strings.Replace(description, c.from, c.to, 1), c.order, c.match); is != c.same {
				t.Errorf("the same: %t", is)
			}
		})
	}
	seen := map[string]bool{}
	for order := range 2 {
		for match := range uint64(3) {
			seen[scope(description, order, match)] = true
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d scopes of 6 lists", len(seen))
	}
}

func must1[T any](v T, _ bool) T { return v }

func TestAnOrderByAFoldIsThatOfItsKeys(t *testing.T) {
	for _, base := range []string{"text", "bpchar", "citext"} {
		l := described(t, "key: id\nfields: {id: }\norders: {v: {by: v, fold: true}}", "id int4", "v "+base)
		position := func(v string) list.Position {
			r, err := l.Row(bytesOf("1", v), nil)
			if err != nil {
				t.Fatal(err)
			}
			return l.Position(&r, 0)
		}
		same := []string{"é", "E", strings.Repeat("ß", 40), strings.Repeat("s", 80) + "t", "x", "X"}
		for pair := range slices.Chunk(same, 2) {
			if position(pair[0]) != position(pair[1]) {
				t.Errorf("%s: %q and %q are apart", base, pair[0], pair[1])
			}
		}
		if (position("x  ") == position("x")) != (base == "bpchar") {
			t.Errorf("%s: blanks at the end", base)
		}
		if l.IsPosition(0, list.Position(strings.Repeat("X", 81)+"\x00\x80\x00\x00\x01")) {
			t.Errorf("%s: 81 characters are a position", base)
		}
	}
}

// A row that stands too far from the start has no place, and never takes that of the version before.
func TestAPlaceIsTooLongForAPosition(t *testing.T) {
	l := described(t, "key: id\nfields: {id: , w: }\norders: {v: {by: v}, id: {by: id}}", "id text", "v text", "w text")
	row := func(n int, w string) (list.Row, error) {
		values, unsent := bytesOf("key", w, strings.Repeat("x", n)), []bool{false, w == "", false}
		return l.Row(values, unsent)
	}
	most := list.MaxPosition - len("key\x00") - len("\x00")
	r, err := row(most, "w")
	if err != nil || len(l.Position(&r, 0)) != list.MaxPosition {
		t.Fatalf("%d bytes: %v", len(l.Position(&r, 0)), err)
	}
	for _, w := range []string{"w", ""} {
		far, err := row(most+1, w)
		if !errors.Is(err, list.ErrBounds) || far.State != list.PlaceUnknown || l.HasPosition(&far, 0) || !l.HasPosition(&far, 1) || far.TextSize() != 0 {
			t.Errorf("%v: %+v", err, far)
		}
		if completed := far.Complete(&r); completed != &far {
			t.Errorf("it becomes %+v", completed)
		}
	}
}

func TestARowHasWhatListsCompare(t *testing.T) {
	l := listtest.Items
	for name, c := range map[string]struct {
		column, value string
		match         uint64
		err           error
	}{
		"low":                {"sku", listtest.Null, listtest.Tracked | listtest.Low, nil},
		"not tracked":        {"track_stock", "f", 0, nil},
		"not low":            {"stock_on_hand", "1.0001", listtest.Tracked, nil},
		"equal, shown apart": {"stock_on_hand", "1.0000", listtest.Tracked | listtest.Low, nil},
		"no reorder point":   {"reorder_point", listtest.Null, listtest.Tracked, nil},
		"goods":              {"type", "GOODS", listtest.Tracked | listtest.Low | listtest.Goods, nil},
		"not a number":       {"cost_price", "NaN", listtest.Tracked | listtest.Low, list.ErrBounds},
		"too large a stock":  {"stock_on_hand", "Infinity", listtest.Tracked, list.ErrBounds},
		"infinity":           {"created_at", "infinity", listtest.Tracked | listtest.Low, list.ErrBounds},
		"a long value":       {"description", listtest.Unsent, listtest.Tracked | listtest.Low, nil},
		"the name is long":   {"name", listtest.Unsent, listtest.Tracked | listtest.Low, nil},
		"without a name":     {"name", listtest.Null, listtest.Tracked | listtest.Low, list.ErrBounds},
		"a short id":         {"id", "1", 0, list.ErrMalformed},
		"half an instant":    {"created_at", "2026-01-02", 0, list.ErrMalformed},
		"two truths":         {"taxable", "tt", 0, list.ErrMalformed},
		"no number":          {"usage_30", "5x", 0, list.ErrMalformed},
		"the key is unsent":  {"id", listtest.Unsent, 0, list.ErrMalformed},
		"a filter's column":  {"type", listtest.Unsent, 0, list.ErrMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := listtest.TryRow(l, "track_stock", "t", "stock_on_hand", "1", "reorder_point", "1.00", "name", "é", c.column, c.value)
			if !errors.Is(err, c.err) || r.Match != c.match {
				t.Errorf("%v: %b, want %v: %b", err, r.Match, c.err, c.match)
			}
			unsent := c.value == listtest.Unsent
			if known := err == nil && !unsent; (r.Text() != "") != known || (r.State == list.Known) != (known || r == (list.Row{})) {
				t.Errorf("state %d: %s", r.State, r.Text())
			}
			if want := c.column != "name"; !errors.Is(err, list.ErrMalformed) &&
				(l.HasPosition(&r, listtest.ByName) != want || !l.HasPosition(&r, listtest.ByCreatedAt)) {
				t.Error("its places")
			}
		})
	}
	keyed := described(t, "key: id\nfields: {id: }\norders: {id: {by: id}}", "id text")
	for name, key := range map[string][]byte{"NULL": nil, "too long": bytes.Repeat([]byte("x"), 256)} {
		if r, err := keyed.Row([][]byte{key}, nil); !errors.Is(err, list.ErrBounds) || r != (list.Row{}) {
			t.Errorf("a key that is %s: %+v, %v", name, r, err)
		}
	}
	for name, values := range map[string][][]byte{"none": nil, "too few": make([][]byte, l.Selected-1), "too many": make([][]byte, len(l.Columns))} {
		if r, err := l.Row(values, nil); !errors.Is(err, list.ErrMalformed) || r != (list.Row{}) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRowsMatchSearches(t *testing.T) {
	values := []string{"id", listtest.ID(1), "name", `Café "Mug"`, "type", "GOODS", "description", "one\ntwo \\ \"sku\":\"three\""}
	row := listtest.Row(listtest.Items, values...)
	gone, partial := list.GoneRow(row.Key()), listtest.Row(listtest.Items, append(values, "unit", listtest.Unsent)...)
	nested := described(t, "key: id\nfields: {id: , j: , v: , w: }\norders: {id: {by: id}}\nsearch: [w, v]", "id int4", "j json", "v text?", "w text")
	inside, err := nested.Row(bytesOf("1", ` {"v":"a", "w":["b\\\"}",{"w":"c"}]} `, "NULL", `d","w":"e`), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		list           *list.List
		row            *list.Row
		term           string
		matches, known bool
	}{
		"plain":                   {listtest.Items, &row, "CAFE", true, true},
		"of another field":        {listtest.Items, &row, "ONE\nTWO \\", true, true},
		"quotes":                  {listtest.Items, &row, `E "MUG"`, true, true},
		"of no searched field":    {listtest.Items, &row, "GOODS", false, true},
		"NULL is no text":         {listtest.Items, &row, "NULL", false, true},
		"a text that has a field": {listtest.Items, &row, `"THREE"`, true, true},
		"across fields":           {listtest.Items, &row, `"ONE`, false, true},
		"gone":                    {listtest.Items, &gone, "CAFE", false, false},
		"partial":                 {listtest.Items, &partial, "CAFE", false, false},
		"of another list":         {listtest.Contacts, &row, "CAFE", false, false},
		"behind nested values":    {nested, &inside, `D","W":"E`, true, true},
		"within nested values":    {nested, &inside, "C", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			text, known := test.list.SearchText(test.row)
			if matches := known && strings.Contains(text, test.term); matches != test.matches || known != test.known {
				t.Errorf("matches %t, known %t: %q", matches, known, text)
			}
		})
	}
}

// A partial row takes what it lacks from the version before, as far as that has it.
func FuzzComplete(f *testing.F) {
	l := described(f, "key: id\nfields: {id: , a: , n: , j: , b: }\norders: {id: {by: id}, a: {by: a}, h: {by: h, descending: true}}\nsearch: [b]",
		"id text", "a text", "n numeric", "j json?", "b text?", "h text")
	f.Add(`a",}`, "\\", "b", uint8(2), uint8(0), true)
	f.Add(`"`, "é\n", "", uint8(63), uint8(1), false)
	f.Add("x", "y", "z", uint8(255), uint8(255), true)
	f.Fuzz(func(t *testing.T, a, b, h string, unsent, before uint8, null bool) {
		texts := func(a, b, n string) [][]byte {
			values := bytesOf("k", a, n, `{"a": [{"b":"}"},"\""], "n":1}`, b, h)
			if null {
				values[3], values[4] = nil, nil
			}
			return values
		}
		row := func(values [][]byte, unsent uint8) list.Row {
			r, err := l.Row(values, []bool{false, unsent&1 > 0, unsent&2 > 0, unsent&4 > 0, unsent&8 > 0, unsent&16 > 0})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		const longest = 100 // more may be too far from the start of an order
		a, b, h = a[:min(len(a), longest)], b[:min(len(b), longest)], h[:min(len(h), longest)]
		now, old := texts(a, b, "1.50"), texts(b, h, "-2")
		partial, previous := row(now, unsent), row(old, before)
		want := slices.Clone(now)
		for i := range 5 {
			if unsent&(1<<i) != 0 {
				want[i+1] = old[i+1]
			}
		}
		whole := row(want, unsent&before)
		is := partial.Complete(&previous)
		if is.State != whole.State || is.Text() != whole.Text() || is.TextSize() != whole.TextSize() || is.Key() != whole.Key() {
			t.Errorf("%s is %d %q, want %d %q", partial.Text(), is.State, is.Text(), whole.State, whole.Text())
		}
		for order := range l.Orders {
			if has := l.HasPosition(is, order); has != l.HasPosition(&whole, order) || has && l.Position(is, order) != l.Position(&whole, order) {
				t.Errorf("order %d: %t", order, has)
			}
		}
		if partial.State == list.Known && is != &partial {
			t.Error("it lacked nothing")
		}
	})
}

func TestARowIsNotCompletedFromNothing(t *testing.T) {
	l := listtest.Items
	whole := listtest.Item(1, "sku", "s")
	textUnknown, gone := listtest.Item(1), list.GoneRow(whole.Key())
	textUnknown.ForgetText()
	partial := listtest.Item(1, "name", listtest.Unsent)
	other := listtest.Row(listtest.Contacts, "id", listtest.ID(1))
	for name, c := range map[string]struct {
		row, before *list.Row
		state       list.State
		same        bool
		size        int // of the text
	}{
		"no version before":              {&partial, nil, list.PlaceUnknown, true, partial.TextSize()},
		"nothing is known":               {&textUnknown, &whole, list.TextUnknown, true, 0},
		"it is gone":                     {&gone, &whole, list.Gone, true, 0},
		"the text before is not known":   {&partial, &textUnknown, list.TextUnknown, false, 0},
		"the row was gone":               {&partial, &gone, list.PlaceUnknown, false, 0},
		"the version before lacks it":    {&partial, &partial, list.PlaceUnknown, false, partial.TextSize()},
		"the one before has other names": {&partial, &other, list.TextUnknown, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			is := c.row.Complete(c.before)
			if is.State != c.state || (is == c.row) != c.same || is.TextSize() != c.size || is.Key() != c.row.Key() || is.Match != c.row.Match {
				t.Errorf("%+v", is)
			}
			if has := l.HasPosition(is, listtest.ByName); has != (c.state < list.PlaceUnknown) {
				t.Error("its place")
			}
		})
	}
}

func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	whole, partial := listtest.Item(1, "sku", "s"), listtest.Item(2, "name", listtest.Unsent, "type", "GOODS", "description", listtest.Unsent)
	forgotten := listtest.Contact(3, "is_customer", "t")
	forgotten.ForgetText()
	for name, rows := range map[string][]list.Row{
		"none":        nil,
		"gone":        {list.GoneRow(whole.Key())},
		"an int2":     {list.GoneRow("\x80\x01")},
		"not known":   {partial, forgotten},
		"a long text": {listtest.Item(4, "name", strings.Repeat("\U0010ffff", 100), "description", strings.Repeat("x", 1<<20))},
		"four rows":   {whole, list.GoneRow(strings.Repeat("k", 255) + "\x00"), partial, whole},
	} {
		t.Run(name, func(t *testing.T) {
			b := list.AppendRows([]byte("x"), rows)[1:]
			is, rest, ok := list.ParseRows(append(b[:len(b):len(b)], "rest"...))
			if !ok || string(rest) != "rest" || !reflect.DeepEqual(is, rows) {
				t.Errorf("%+v, rest %q, %t", is, rest, ok)
			}
			for n := range min(len(b), 2000) {
				if _, _, ok := list.ParseRows(b[:n]); ok {
					t.Fatalf("%d of %d bytes are read", n, len(b))
				}
			}
			for i := range b { // no row holds on to the bytes
				b[i] = 0
			}
			if !reflect.DeepEqual(is, rows) {
				t.Error("rows change with the bytes")
			}
		})
	}
	for name, b := range map[string]string{"nothing": "", "another version": "\x03\x00", "rows without bytes": "\x04\xff\xff\xff\xff\x0f",
		"an unknown state": "\x04\x01\x04\x01a",
		"a long key":       "\x04\x01\x03\x81\x02" + strings.Repeat("k", 257), "places before the key": "\x04\x01\x00\x02ab\x00\x01\x02",
		"places behind the data": "\x04\x01\x00\x02ab\x00\x04\x02"} {
		if _, _, ok := list.ParseRows([]byte(b)); ok {
			t.Errorf("%s is read", name)
		}
	}
}

// Whatever bytes there are, a row that is read of them can be asked for everything.
func FuzzParseRows(f *testing.F) {
	partial := listtest.Item(2, "name", listtest.Unsent)
	f.Add(list.AppendRows(nil, []list.Row{listtest.Item(1), partial, list.GoneRow("k")}))
	f.Add([]byte("\x04\x01\x01\x01k\x05\x04\x06\x82\x01x,}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, rest, ok := list.ParseRows(b)
		if !ok {
			return
		}
		again, _, ok := list.ParseRows(list.AppendRows(nil, rows))
		if !ok || !reflect.DeepEqual(again, rows) || len(rest) > len(b) {
			t.Fatalf("%+v is read as %+v", rows, again)
		}
		for i := range rows {
			r := &rows[i]
			for order := range listtest.Items.Orders {
				if listtest.Items.HasPosition(r, order) && len(r.Key()) > 0 && r.Size() < 300 {
					listtest.Items.Compare(r, order, listtest.Items.Position(r, order))
				}
			}
			listtest.Items.SearchText(r)
			r.Complete(&partial)
			partial.Complete(r)
			r.ForgetText()
			if r.Text() != "" || r.Size() < len(r.Key()) {
				t.Fatalf("%+v", r)
			}
		}
	})
}

func TestComparingAllocatesNothing(t *testing.T) {
	l := listtest.Items
	row := listtest.Item(1, "name", strings.Repeat("茶", 100))
	for order := range l.Orders {
		p := l.Position(&row, order)
		if n := testing.AllocsPerRun(100, func() { l.Compare(&row, order, p); l.IsPosition(order, p); l.HasPosition(&row, order) }); n > 0 {
			t.Errorf("order %d: %v", order, n)
		}
	}
}
