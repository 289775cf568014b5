package lists

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
)

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
