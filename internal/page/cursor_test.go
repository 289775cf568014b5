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

	"github.com/google/uuid"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// allLists are all there are, each with a few searches.
func allLists() (queries []Query) {
	searches := []string{"", "chai", "Chai", "chai ", "茶", "\x00", strings.Repeat("𝒜", 120)}
	matches := map[*list.List][]uint64{
		listtest.Contacts: {0, listtest.Customers, listtest.Suppliers},
		listtest.Items: {0, listtest.Goods, listtest.Services, listtest.Tracked, listtest.Tracked | listtest.Goods, listtest.Tracked | listtest.Services,
			listtest.Low, listtest.Low | listtest.Goods, listtest.Low | listtest.Services},
	}
	for _, search := range searches {
		for l, of := range matches {
			for order := range l.Orders {
				for _, match := range of {
					queries = append(queries, Query{List: l, Order: order, Match: match, Search: search, Limit: 50})
				}
			}
		}
	}
	return queries
}

// names are short and long, in several scripts.
var names = []string{"", "a", "A", "Ä", "'\"\\%_", "\u0301", "茶", "𝒜𝒜", "чай", strings.Repeat("x", 300), strings.Repeat("𝒜", 300),
	strings.Repeat("x", 79) + "é",
	strings.Repeat("\U0010FFFF", list.FoldKeyLength)}

const maxID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// positions are places in a list of this order, the ends of the range among them.
func positions(q *Query) (places []list.Position) {
	column, values := "name", names
	if q.Order == listtest.ByCreatedAt {
		column = "created_at"
		values = []string{"0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "1970-01-01 00:00:00+00", "1969-12-31 23:59:59.999999+00",
			"2000-01-01 00:00:00+00",
			"2026-01-02 03:04:05.678+00"}
	}
	for _, value := range values {
		for _, id := range []string{listtest.ID(0), uuid.NewString(), maxID} {
			row := listtest.Row(q.List, "id", id, column, value)
			places = append(places, q.List.Position(&row, q.Order))
		}
	}
	return places
}

func TestACursorIsItsPosition(t *testing.T) {
	for _, q := range allLists() {
		for _, p := range positions(&q) {
			q.After = p
			cursor := q.AppendCursor([]byte("before "))[len("before "):]
			fresh := q
			fresh.After, fresh.Limit, fresh.Tenant = "", 1+len(p)%MaxLimit, "another" // neither is part of it
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
		from.After = positions(&from)[0]
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
	for _, q := range []Query{{List: listtest.Items}, {List: listtest.Contacts, Order: listtest.ByName, Search: "chai"}} {
		q.After = positions(&q)[3]
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
	forge := func(q Query, version byte, position list.Position) []byte {
		raw := append(make([]byte, cursorHead), position...)
		raw[4] = version
		binary.BigEndian.PutUint64(raw[5:], q.scopeHash())
		binary.BigEndian.PutUint32(raw, crc32.Checksum(raw[4:], castagnoli))
		return base64.RawURLEncoding.AppendEncode(nil, raw)
	}
	byTime, byName := Query{List: listtest.Items}, Query{List: listtest.Items, Order: listtest.ByName}
	now := listtest.Item(1)
	at := listtest.Items.Position(&now, listtest.ByCreatedAt)
	const id = "0123456789abcdef"
	if p, err := byName.ParseCursor(new([]byte), forge(byName, cursorVersion, "name\x00"+id)); err != nil || p != "name\x00"+id {
		t.Fatalf("the forger does not know how: %q, %v", p, err)
	}
	for name, c := range map[string]struct {
		query    Query
		version  byte
		position list.Position
	}{
		"another version": {byName, cursorVersion + 1, "name\x00" + id}, "no position": {byTime, cursorVersion, ""},
		"half an id": {byName, cursorVersion, list.Position("\x00" + id[:8])},
		"no time":    {byTime, cursorVersion, at[8:]}, "half a time": {byTime, cursorVersion, at[4:]}, "more than a time": {byTime, cursorVersion, at + "\x00"},
		"an instant that Postgres has not": {byTime, cursorVersion, "\x00\x00\x00\x00\x00\x00\x00\x01" + id},
		"no end of the name":               {byName, cursorVersion, "name" + id},
		"not UTF-8":                        {byName, cursorVersion, "\xff\x00" + id}, "half a character": {byName, cursorVersion, list.Position("茶"[:2]) +
			"\x00" + id},
		"NUL": {byName, cursorVersion, "a\x00b\x00" + id}, "a surrogate": {byName, cursorVersion, "\xed\xa0\x80\x00" + id},
		"81 characters": {byName, cursorVersion, list.Position(strings.Repeat("x", list.FoldKeyLength+1)) + "\x00" + id},
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
		places := positions(&q)
		q.After = places[random.IntN(len(places))]
		f.Add(q.AppendCursor(nil), uint8(q.Order), q.Search)
	}
	f.Add([]byte(""), uint8(0), "")
	f.Add([]byte("AAAA\r\nAAAA"), uint8(1), "x")
	f.Fuzz(func(t *testing.T, cursor []byte, order uint8, search string) {
		q := Query{List: listtest.Items, Order: int(order) % len(listtest.Items.Orders), Search: search}
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
		if value, key, ok := q.List.ParsePosition(q.Order, p); !ok || !utf8.ValidString(value) || utf8.RuneCountInString(value) > list.FoldKeyLength ||
			uuid.Validate(key) != nil {
			t.Fatalf("impossible position %q", p)
		}
	})
}
