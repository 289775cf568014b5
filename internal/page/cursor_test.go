package page

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"listedge/internal/lists"

	"github.com/google/uuid"
)

// allLists are all there are, each with a few searches.
func allLists() (queries []Query) {
	searches := []string{"", "chai", "Chai", "chai ", "茶", "\x00", strings.Repeat("𝒜", 120)}
	for _, search := range searches {
		for _, sort := range []lists.Order{lists.ByCreatedAt, lists.ByName} {
			for _, typ := range []lists.Flags{0, lists.Customers, lists.Suppliers} {
				queries = append(queries, Query{Collection: lists.Contacts, Sort: sort, Filter: typ, Search: search, Limit: 50})
			}
			for _, typ := range []lists.Flags{0, lists.Goods, lists.Services} {
				for _, stock := range []lists.Flags{0, lists.Tracked, lists.Low} {
					queries = append(queries, Query{Collection: lists.Items, Sort: sort, Filter: typ | stock, Search: search, Limit: 50})
				}
			}
		}
	}
	return queries
}

// names are short and long, in several scripts.
var names = []string{"", "a", "A", "Ä", "'\"\\%_", "\u0301", "茶", "𝒜𝒜", "чай", strings.Repeat("x", 300), strings.Repeat("𝒜", 300), strings.Repeat("x", 79) + "é"}

// positions are places in a list of this order, the ends of the range among them.
func positions(sort lists.Order) (list []lists.Position) {
	var rows []lists.Row
	for _, name := range names {
		rows = append(rows, *(&lists.Row{ID: uuid.New()}).SetTexts(lists.NameKey(name), ""))
	}
	rows = append(rows, *(&lists.Row{}).SetTexts(strings.Repeat("\U0010FFFF", lists.NameKeyLength), ""), *(&lists.Row{ID: uuid.Max}).SetTexts("A", ""),
		lists.Row{}) // that of a name of marks alone
	if sort == lists.ByCreatedAt {
		rows = nil
		for _, at := range []int64{lists.MinInstant, lists.EndInstant - 1, 0, -1, 1, lists.PostgresEpoch, 1767323045_678000} {
			rows = append(rows, lists.Row{ID: uuid.New(), CreatedAt: at}, lists.Row{CreatedAt: at}, lists.Row{ID: uuid.Max, CreatedAt: at})
		}
	}
	for i := range rows {
		list = append(list, rows[i].Position(sort))
	}
	return list
}

func TestACursorIsItsPosition(t *testing.T) {
	for _, q := range allLists() {
		for _, p := range positions(q.Sort) {
			q.After = p
			cursor := q.AppendCursor([]byte("before "))[len("before "):]
			fresh := q
			fresh.After, fresh.Limit, fresh.Workspace = "", 1+len(p)%MaxLimit, uuid.New() // neither is part of it
			got, err := fresh.ParseCursor(new([]byte), cursor)
			if err != nil || got != p {
				t.Fatalf("%+v: %q became %q, %v", q, p, got, err)
			}
			if len(cursor) > MaxCursor || !utf8.Valid(cursor) || strings.ContainsAny(string(cursor), `"\+/= `) {
				t.Fatalf("%+v: cursor %s", q, cursor)
			}
		}
	}
}

func TestACursorOfAnotherListIsForeign(t *testing.T) {
	all := allLists()
	for i, from := range all {
		from.After = positions(from.Sort)[0]
		cursor := from.AppendCursor(nil)
		for j, to := range all {
			want := ErrCursorForeign
			if i == j {
				want = nil
			}
			if _, err := to.ParseCursor(new([]byte), cursor); !errors.Is(err, want) {
				t.Fatalf("from %+v to %+v: %v", from, to, err)
			}
		}
	}
}

// Nothing that is not a cursor, as it was given, is one: whatever bit, byte,
// length or order is changed.
func TestAMangledCursorIsMalformed(t *testing.T) {
	for _, q := range []Query{{Sort: lists.ByCreatedAt}, {Sort: lists.ByName, Collection: lists.Contacts, Search: "chai"}} {
		q.After = positions(q.Sort)[3]
		cursor := q.AppendCursor(nil)
		refused := func(how string, mangled []byte) {
			t.Helper()
			if bytes.Equal(mangled, cursor) {
				return
			}
			if p, err := q.ParseCursor(new([]byte), mangled); !errors.Is(err, ErrCursorMalformed) || p != "" {
				t.Errorf("%s: %q, %v from %s", how, p, err, mangled)
			}
		}
		for i := range cursor {
			for b := range 256 {
				mangled := bytes.Clone(cursor)
				mangled[i] = byte(b) // every bit of every byte, and all other values
				refused(fmt.Sprintf("byte %d is %d", i, b), mangled)
			}
			refused(fmt.Sprintf("cut to %d", i), cursor[:i])
			refused(fmt.Sprintf("without %d", i), slices.Delete(bytes.Clone(cursor), i, i+1))
			for _, more := range []string{"A", "_", "=", "\n", "\r\n", " ", "\x00"} {
				refused(fmt.Sprintf("%q before %d", more, i), slices.Insert(bytes.Clone(cursor), i, []byte(more)...))
			}
			for j := range i {
				mangled := bytes.Clone(cursor)
				mangled[i], mangled[j] = mangled[j], mangled[i]
				refused(fmt.Sprintf("%d and %d swapped", i, j), mangled)
			}
		}
		for _, more := range []string{"A", "AA", "AAAA", "=", "==", "\n", "\r", " ", string(cursor), strings.Repeat("A", MaxCursor)} {
			refused(fmt.Sprintf("with %.10q behind", more), append(bytes.Clone(cursor), more...))
		}
		refused("upper case", bytes.ToUpper(cursor))
		refused("twice as long", bytes.Repeat([]byte("A"), 100_000))
		refused("nothing", nil)
	}
}

// Even with a right checksum, what no list could have given is refused.
func TestACursorHoldsNothingImpossible(t *testing.T) {
	forge := func(q Query, version byte, position lists.Position) []byte {
		raw := append(make([]byte, cursorHead), position...)
		raw[4] = version
		binary.BigEndian.PutUint64(raw[5:], q.scopeHash())
		binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
		return base64.RawURLEncoding.AppendEncode(nil, raw)
	}
	byTime, byName := Query{}, Query{Sort: lists.ByName}
	at := func(us int64) lists.Position { return (&lists.Row{CreatedAt: us}).Position(byTime.Sort) }
	named := func(key string) lists.Position { return (&lists.Row{}).SetTexts(key, "").Position(byName.Sort) }
	if p, err := byName.ParseCursor(new([]byte), forge(byName, cursorVersion, named("name"))); err != nil || p != named("name") {
		t.Fatalf("the forger does not know how: %q, %v", p, err)
	}
	for name, c := range map[string]struct {
		query    Query
		version  byte
		position lists.Position
	}{
		"another version": {byName, cursorVersion + 1, named("name")},
		"no position":     {byTime, cursorVersion, ""}, "half an id": {byName, cursorVersion, named("")[:9]},
		"no time": {byTime, cursorVersion, at(0)[8:]}, "half a time": {byTime, cursorVersion, at(0)[4:]}, "more than a time": {byTime, cursorVersion, at(0) + "\x00"},
		"before the year 1": {byTime, cursorVersion, at(lists.MinInstant - 1)}, "the year 10000": {byTime, cursorVersion, at(lists.EndInstant)},
		"infinity": {byTime, cursorVersion, at(1<<63 - 1)}, "no end of the name": {byName, cursorVersion, "name" + named("")[1:]},
		"not UTF-8": {byName, cursorVersion, named("\xff")}, "half a character": {byName, cursorVersion, named("茶"[:2])},
		"NUL": {byName, cursorVersion, named("a\x00b")}, "a surrogate": {byName, cursorVersion, named("\xed\xa0\x80")},
		"81 characters": {byName, cursorVersion, named(strings.Repeat("x", lists.NameKeyLength+1))},
	} {
		if p, err := c.query.ParseCursor(new([]byte), forge(c.query, c.version, c.position)); !errors.Is(err, ErrCursorMalformed) {
			t.Errorf("%s: %q, %v", name, p, err)
		}
	}
}

// A damaged cursor that is accepted nevertheless must at least be a position of
// this very list that Postgres takes as an argument.
func FuzzParseCursor(f *testing.F) {
	random := rand.New(rand.NewPCG(8, 9))
	all := allLists()
	for range 40 {
		q := all[random.IntN(len(all))]
		places := positions(q.Sort)
		q.After = places[random.IntN(len(places))]
		f.Add(q.AppendCursor(nil), uint8(q.Sort), q.Search)
	}
	f.Add([]byte(""), uint8(0), "")
	f.Add([]byte("AAAA\r\nAAAA"), uint8(1), "x")
	f.Fuzz(func(t *testing.T, cursor []byte, sort uint8, search string) {
		q := Query{Sort: lists.Order(sort) % lists.Orders, Search: search}
		p, err := q.ParseCursor(new([]byte), cursor)
		if err != nil {
			if !errors.Is(err, ErrCursorMalformed) && !errors.Is(err, ErrCursorForeign) || p != "" {
				t.Fatalf("%+v, %v", p, err)
			}
			return
		}
		q.After = p
		if p == "" || !bytes.Equal(q.AppendCursor(nil), cursor) {
			t.Fatalf("%q is %q, whose cursor is %q", cursor, p, q.AppendCursor(nil))
		}
		if key, _, ok := q.Sort.Parse(nil, p); !ok || q.Sort == lists.ByName && (!utf8.Valid(key) || utf8.RuneCount(key) > lists.NameKeyLength) {
			t.Fatalf("impossible position %q", p)
		}
	})
}
