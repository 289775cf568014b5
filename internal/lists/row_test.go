package lists

import (
	"bytes"
	"cmp"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestPositionsSortAsTheListDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	times := []int64{math.MinInt64, -1 << 40, -1, 0, 1, 255, 256, 1 << 40, math.MaxInt64}
	names := []string{"", "A", "A ", "AB", "B", "Ω", "東京", strings.Repeat("\U0010ffff", NameKeyLength)}
	random := func() (row Row) {
		row.CreatedAt = times[r.IntN(len(times))]
		row.SetTexts(names[r.IntN(len(names))], "")
		for _, i := range []int{0, 15} {
			row.ID[i] = []byte{0, 1, 255}[r.IntN(3)]
		}
		return row
	}
	for range 20_000 {
		a, b := random(), random()
		ids := bytes.Compare(a.ID[:], b.ID[:])
		for order, want := range map[Order]int{
			ByCreatedAt: -cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), ids),
			ByName:      cmp.Or(strings.Compare(a.NameKey(), b.NameKey()), ids),
		} {
			at := b.Position(order)
			if got, also := cmp.Compare(a.Position(order), at), a.Compare(order, at); got != want || also != want {
				t.Fatalf("%s: %v and %v: %d and %d, want %d", order, a, b, got, also, want)
			}
			key, id, ok := order.Parse(nil, at)
			valid := order == ByName || b.CreatedAt >= MinInstant && b.CreatedAt < EndInstant
			if ok != valid || ok && (id != b.ID || order == ByName && string(key) != b.NameKey()) {
				t.Fatalf("%s: %v is read as %x, %s, %t", order, b, key, id, ok)
			}
			if _, _, ok := order.Parse(nil, at[1:]); ok && (order == ByCreatedAt || b.NameKey() == "") {
				t.Fatalf("%s: %x is read as a position", order, at[1:])
			}
		}
	}
	longest := (&Row{ID: uuid.Max}).SetTexts(names[len(names)-1], "")
	if n := len(longest.Position(ByName)); n != PositionSize {
		t.Errorf("the longest position has %d bytes", n)
	}
}

func TestRowsMatchSearches(t *testing.T) {
	const row = `{"id":"0","name":"Café \"Mug\"","type":"GOODS","sku":null,"description":"one\ntwo \\ \"sku\":\"three\""}`
	for name, test := range map[string]struct {
		text, term     string
		matches, known bool
	}{
		"plain":                   {row, "CAFE", true, true},
		"of another column":       {row, "ONE\nTWO \\", true, true},
		"quotes":                  {row, `E "MUG"`, true, true},
		"of no searched column":   {row, "GOODS", false, true},
		"NULL is no text":         {row, "NULL", false, true},
		"a text that has a field": {row, `"THREE"`, true, true},
		"across columns":          {row, `"ONE`, false, true},
		"no text":                 {"", "CAFE", false, false},
		"a field is missing":      {`{"name":"Cafe"}`, "CAFE", false, false},
		"cut within a value":      {row[:len(row)-3], "CAFE", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			text, known := Items.SearchText((&Row{}).SetTexts("", test.text))
			if matches := known && strings.Contains(text, test.term); matches != test.matches || known != test.known {
				t.Errorf("matches %t, known %t", matches, known)
			}
		})
	}
}

// A partial row takes what it lacks from the version before, as far as that has it.
func TestComplete(t *testing.T) {
	row := func(state State, key, text string) *Row {
		return (&Row{CreatedAt: 1, State: state}).SetTexts(key, text)
	}
	const whole = `{"name":"a","sku":null,"n":1.50,"s":"x\",}"}`
	for _, c := range []struct {
		name        string
		row, before *Row
		key, is     string
		state       State
	}{
		{"nothing is lacking", row(Known, "B", `{"name":"b"}`), row(Known, "A", whole), "B", `{"name":"b"}`, Known},
		{"nothing is known", row(TextUnknown, "B", ""), row(Known, "A", whole), "B", "", TextUnknown},
		{"it is gone", row(Gone, "", ""), row(Known, "A", whole), "", "", Gone},
		{"the name", row(PlaceUnknown, "", `,"name":,"sku":"s","n":2,"s":"y"}`), row(Known, "A", whole), "A", `{"name":"a","sku":"s","n":2,"s":"y"}`, Known},
		{"another value", row(TextUnknown, "B", `,"name":"b","sku":null,"n":2,"s":}`), row(Known, "A", whole), "B", `{"name":"b","sku":null,"n":2,"s":"x\",}"}`, Known},
		{"numbers and NULL", row(TextUnknown, "B", `,"name":"b","sku":,"n":,"s":""}`), row(Known, "A", whole), "B", `{"name":"b","sku":null,"n":1.50,"s":""}`, Known},
		{"of a partial one", row(PlaceUnknown, "", `,"name":,"sku":,"n":2,"s":"y"}`), row(PlaceUnknown, "", `,"name":,"sku":"s","n":1,"s":"x"}`),
			"", `,"name":,"sku":"s","n":2,"s":"y"}`, PlaceUnknown},
		{"of a partial one with a name", row(PlaceUnknown, "", `,"name":,"sku":,"n":2,"s":"y"}`), row(TextUnknown, "A", `,"name":"a","sku":,"n":1,"s":"x"}`),
			"A", `,"name":"a","sku":,"n":2,"s":"y"}`, TextUnknown},
		{"the text before is not known", row(PlaceUnknown, "", `,"name":,"sku":"s","n":2,"s":"y"}`), row(TextUnknown, "A", ""), "A", "", TextUnknown},
		{"the row was gone", row(PlaceUnknown, "", `,"name":,"sku":"s","n":2,"s":"y"}`), row(Gone, "", ""), "", "", PlaceUnknown},
		{"other fields", row(PlaceUnknown, "", `,"name":,"s":"y"}`), row(Known, "A", whole), "A", "", TextUnknown},
		{"damaged", row(PlaceUnknown, "", `,"name":,"sku":"`), row(Known, "A", whole), "A", "", TextUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := c.row.Complete(c.before)
			if is.NameKey() != c.key || is.texts[is.key:] != c.is || is.State != c.state ||
				is.CreatedAt != c.row.CreatedAt {
				t.Errorf("%+v", is)
			}
		})
	}
}

func FuzzComplete(f *testing.F) {
	f.Add(`,"a":,"b":1}`, `{"a":"\\","b":2}`, "x", "y", uint8(1))
	f.Add(`,"a":"`, `{"a":"`, `"`, `\`, uint8(2))
	f.Fuzz(func(t *testing.T, a, b, c, d string, unsent uint8) {
		(&Row{State: TextUnknown}).SetTexts("", a).Complete(new(Row).SetTexts("", b)) // does not panic, whatever Redis says
		quoted := func(s string) string { return string(appendText([]byte{'"'}, []byte(s))) + `"` }
		now, before := []string{quoted(a), quoted(b)}, []string{quoted(c), quoted(d)}
		sent, want := slices.Clone(now), slices.Clone(now)
		first, state := "{", Known
		for i := range now {
			if unsent&(1<<i) != 0 {
				first, state, sent[i], want[i] = ",", TextUnknown, "", before[i]
			}
		}
		text := func(first string, values []string) string {
			return first + `"a":` + values[0] + `,"b":` + values[1] + "}"
		}
		if is := (&Row{State: state}).SetTexts("", text(first, sent)).Complete(new(Row).SetTexts("", text("{", before))); is.Text() != text("{", want) {
			t.Errorf("%s, want %s", is.Text(), text("{", want))
		}
	})
}

func TestRowsAreReadAsTheyWereWritten(t *testing.T) {
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	for name, rows := range map[string][]Row{
		"none":        nil,
		"gone":        {{ID: id, State: Gone}},
		"not known":   {{ID: id, State: PlaceUnknown, Flags: Low, CreatedAt: math.MaxInt64}},
		"a long text": {*(&Row{ID: id, CreatedAt: math.MinInt64}).SetTexts(strings.Repeat("\U0010ffff", NameKeyLength), strings.Repeat("x", 1<<20))},
		"three rows":  {*(&Row{ID: id, Flags: Tracked | Goods, CreatedAt: -1}).SetTexts("\x01", "{}"), {ID: uuid.Max, State: Gone}, {Flags: Suppliers, CreatedAt: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			b := AppendRows([]byte("x"), rows)[1:]
			if is, rest, ok := ParseRows(append(b[:len(b):len(b)], "rest"...)); !ok || string(rest) != "rest" || !reflect.DeepEqual(is, rows) {
				t.Errorf("%+v, want %+v, and %q behind them (%t)", is, rows, rest, ok)
			}
			for n := 0; n < len(b); n += 1 + len(b)/500 {
				if is, _, ok := ParseRows(b[:n]); ok {
					t.Errorf("%d of %d bytes are %+v", n, len(b), is)
				}
			}
		})
	}
	for name, b := range map[string]string{"another version": "\x02\x00", "a state unheard of": "\x03\x01\x04" + string(id[:]), "more rows than bytes": "\x03\xff\xff\xff\xff\x0f" + string(id[:])} {
		t.Run(name, func(t *testing.T) {
			if is, _, ok := ParseRows([]byte(b)); ok {
				t.Errorf("%+v", is)
			}
		})
	}
}
