package follower

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

const laterOID = uint32(300) // of a table that is a partition later

// transaction is one by pgoutput that inserts a row of workspace 1 into the later partition: numbers are big endian, texts end by a zero.
func transaction(xid uint32) (messages [3][]byte, commit []byte) {
	number := binary.BigEndian.AppendUint32
	describe := append(number([]byte{'R'}, laterOID), "public\x00t\x00d\x00\x01\x01workspace_id\x00"...)
	insert := append(number([]byte{'I'}, laterOID), 'N', 0, 1, 't')
	return [3][]byte{number(append([]byte{'B'}, make([]byte, 16)...), xid), number(number(describe, 2950), 0),
		append(number(insert, 36), listtest.ID(1)...)}, append([]byte{'C', 0}, make([]byte, 24)...)
}

// A transaction may have rows before and after a view that sees ATTACH, while that view does
// not see its commit, which waits for a standby. Its first rows were judged by the old
// catalog, but pages show them by the new one.
func TestAnOpenTransactionIsJudgedByBothCatalogs(t *testing.T) {
	d := newDecoder(list.BuiltIn())
	messages, commit := transaction(7)
	for _, m := range messages {
		must2(d.next(m))
	}
	d.setCatalog(catalog{lists: map[uint32][]*list.List{laterOID: {listtest.Items}}})
	if done := must2(d.next(commit)); done == nil || touched(done.Change) != all {
		t.Errorf("%+v: its rows are not published", done)
	}
}

func TestWidenKnowsEveryTransactionNearby(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		reference := 1<<31 + random.Uint64N(1<<40)
		if random.IntN(2) == 0 { // where transaction ids wrap around
			reference = random.Uint64N(1<<8+1)<<32 + 1<<32 + random.Uint64N(1000) - 500
		}
		xid := reference - 1<<31 + random.Uint64N(1<<32)
		if random.IntN(2) == 0 {
			xid = reference + random.Uint64N(2000) - 1000
		}
		if got := widen(uint32(xid), reference); got != xid {
			t.Fatalf("widen(%d, %d) = %d, want %d", uint32(xid), reference, got, xid)
		}
	}
}

// nameOf is the name of a list; nil = the keys.
func nameOf(l *list.List) string {
	if l == nil {
		return "keys"
	}
	return l.Name
}

// short is n for listtest.ID(n), and else the text.
func short(text string) string {
	end, found := strings.CutPrefix(text, "00000000-0000-0000-0000-")
	n, err := strconv.ParseUint(end, 16, 64)
	if !found || err != nil {
		return text
	}
	return strconv.FormatUint(n, 10)
}

// touched writes a change as "items:1 contacts:2 whole:keys".
func touched(c changefeed.Change) string {
	var parts []string
	for _, p := range c.Touched {
		if p.All {
			parts = append(parts, "whole:"+nameOf(p.List))
		} else {
			parts = append(parts, nameOf(p.List)+":"+short(p.Tenant))
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

const all = "whole:contacts whole:items whole:keys"

// named writes a change as "items:1[5 goods tracked low @1.5s, 6 gone] contacts:2[any]":
// the rows' keys, their values of filters, and where they stand in the first order; of instants since 2020.
func named(c changefeed.Change) string {
	var all []string
	for i, p := range c.Touched {
		table := touched(changefeed.Change{Touched: c.Touched[i : i+1]})
		if p.All {
			all = append(all, table)
			continue
		}
		texts := []string{"any"}
		if p.Rows != nil {
			texts = nil
		}
		for _, r := range p.Rows {
			texts = append(texts, describeRow(p.List, &r))
		}
		slices.Sort(texts)
		all = append(all, table+"["+strings.Join(texts, ", ")+"]")
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func describeRow(l *list.List, r *list.Row) string {
	s := short(l.KeyText(r.Key()))
	if r.State == list.Gone {
		return s + " gone"
	}
	if r.State == list.PlaceUnknown {
		s += " unplaced"
	}
	for _, f := range l.Filters {
		for _, v := range f.Values {
			if r.Match&v.Bit != 0 {
				s += " " + v.Name
			}
		}
	}
	if l.HasPosition(r, 0) {
		place, _, _ := l.ParsePosition(0, l.Position(r, 0))
		at, err := time.Parse("2006-01-02 15:04:05.999999-07", place)
		if err == nil {
			place = at.Sub(since).String()
		}
		s += " @" + place
	}
	switch {
	case r.State == list.Known:
	case r.TextSize() > 0:
		s += " partial"
	default:
		s += " text unknown"
	}
	return s
}

var since = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// For the tests of the package from outside, too.
var Touched, Named = touched, named

const All, WALLevelSQL = all, walLevelSQL

// SetPeriod sets the period of heartbeats.
func (f *Follower) SetPeriod(d time.Duration) { f.period = d }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func must2[T any](v T, err error) T { must(err); return v }

// Poll is what a poll of the slot leads to.
func (f *Follower) Poll(unlimited bool) (temporary bool) {
	return f.observe(Slot{unlimited: unlimited})
}
