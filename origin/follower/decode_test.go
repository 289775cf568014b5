package follower

import (
	"encoding/binary"
	"fmt"
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

// message encodes a message of pgoutput: numbers big endian, texts ended by a zero.
func message(kind byte, fields ...any) []byte {
	b := []byte{kind}
	for _, f := range fields {
		switch f := f.(type) {
		case string:
			b = append(append(b, f...), 0)
		case []byte:
			b = append(b, f...)
		case byte:
			b = append(b, f)
		case uint16:
			b = binary.BigEndian.AppendUint16(b, f)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, f)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, f)
		default:
			panic("a field of another type")
		}
	}
	return b
}

const itemsOID, contactsOID, laterOID = uint32(100), uint32(200), uint32(300)

// inSegment adds the message's (sub)transaction, as in a segment of a streamed transaction.
func inSegment(xid uint32, m []byte) []byte {
	return slices.Concat(m[:1], binary.BigEndian.AppendUint32(nil, xid), m[1:])
}

func begin(xid uint32) []byte { return message('B', uint64(50), uint64(0), xid) }
func commitAt(end uint64) []byte {
	return message('C', byte(0), end-8, end, uint64(0))
}
func segment(xid uint32, first byte) []byte { return message('S', xid, first) }
func segmentEnd() []byte                    { return message('E') }
func streamCommit(xid uint32, end uint64) []byte {
	return message('c', xid, byte(0), end-8, end, uint64(0))
}
func streamAbort(xid, sub uint32) []byte { return message('A', xid, sub) }

// relation describes a table whose columns are named so, and are uuids.
func describedAs(oid uint32, columns ...string) []byte {
	b := message('R', oid, "public", "t", byte('d'), uint16(len(columns)))
	for _, c := range columns {
		b = append(b, message(1, c, uint32(2950), uint32(0))...)
	}
	return b
}

// insert is of a row whose columns are workspaces, 0 for a text.
func insert(oid uint32, workspaces ...int) []byte {
	b := message('I', oid, byte('N'), uint16(len(workspaces)))
	for _, n := range workspaces {
		value := "text"
		if n > 0 {
			value = listtest.ID(n)
		}
		b = append(b, text(value)...)
	}
	return b
}

// text is a value of a row.
func text(value string) []byte { return message('t', uint32(len(value)), []byte(value)) }

// decoderOf is a decoder of the lists of the contract, by the oids of their tables.
func decoderOf(tables map[uint32]*list.List) *decoder {
	d := newDecoder(list.BuiltIn())
	d.setCatalog(catalogOf(tables))
	return &d
}

func catalogOf(tables map[uint32]*list.List) catalog {
	c := catalog{lists: map[uint32][]*list.List{}}
	for oid, l := range tables {
		c.lists[oid] = []*list.List{l}
	}
	return c
}

func TestStreamedTransactionsAreDecoded(t *testing.T) {
	plain := func(xid uint32, workspace int, end uint64) [][]byte {
		return [][]byte{begin(xid), insert(itemsOID, workspace), commitAt(end)}
	}
	part := func(xid uint32, first byte, messages ...[]byte) (all [][]byte) {
		all = append(all, segment(xid, first))
		for _, m := range messages {
			all = append(all, inSegment(xid, m))
		}
		return append(all, segmentEnd())
	}
	one := func(m []byte) [][]byte { return [][]byte{m} }
	items := describedAs(itemsOID, "workspace_id")
	for name, c := range map[string]struct {
		messages [][][]byte
		want     string // published changes, in order: xid@end what it touches
	}{
		"not if it aborts": {[][][]byte{part(7, 1, items, insert(itemsOID, 1)), one(streamAbort(7, 7)), part(9, 1, items, insert(itemsOID, 3)),
			one(streamCommit(9, 99))},
			"9@99 items:3"},
		"two of them and a small one in between": {[][][]byte{part(7, 1, items, insert(itemsOID, 1)), part(9, 1, items, insert(itemsOID, 3)),
			{begin(10), items}, {insert(itemsOID, 5), commitAt(80)},
			part(7, 0, insert(itemsOID, 2)), part(9, 0, insert(itemsOID, 4)), one(streamCommit(9, 90)), one(streamCommit(7, 95))},
			"10@80 items:5, 9@90 items:3 items:4, 7@95 items:1 items:2"},
		"nothing of a foreign one": {[][][]byte{part(7, 1), part(7, 0), one(streamCommit(7, 90))}, "7@90"},
		"as it describes a table, and the others as they do": {[][][]byte{{begin(6), items, insert(itemsOID, 1), commitAt(60)},
			part(7, 1, describedAs(itemsOID, "name", "workspace_id"), insert(itemsOID, 0, 2)), plain(8, 3, 80), part(7, 0, insert(itemsOID, 0, 4)),
			one(streamAbort(7, 7)), plain(9, 5, 90)},
			"6@60 items:1, 8@80 items:3, 9@90 items:5"},
		"as it describes a table, and the others do after its commit": {[][][]byte{
			part(7, 1, describedAs(itemsOID, "name", "workspace_id"), insert(itemsOID, 0, 2)), one(streamCommit(7, 90)),
			{begin(8), insert(itemsOID, 0, 3), commitAt(95)}},
			"7@90 items:2, 8@95 items:3"},
		"a relation that it does not describe": {[][][]byte{{begin(6), items, insert(itemsOID, 1), commitAt(60)}, part(7, 1, insert(itemsOID, 2)),
			one(streamCommit(7, 90))},
			"6@60 items:1, 7@90 whole:items"},
		"an unlisted relation": {[][][]byte{part(7, 1, describedAs(laterOID, "workspace_id"), insert(laterOID, 1)),
			one(streamCommit(7, 90))}, "7@90 unlisted"},
		"another catalog": {[][][]byte{part(7, 1, items, insert(itemsOID, 1)), one(nil), part(7, 0, insert(itemsOID, 2)),
			one(streamCommit(7, 90))}, "7@90 " + all},
		"another catalog lists it": {[][][]byte{part(7, 1, describedAs(laterOID, "workspace_id"), insert(laterOID, 1)), one(nil),
			one(streamCommit(7, 90))}, "7@90 unlisted " + all},
		"another catalog, and nothing touched before it": {[][][]byte{part(7, 1), one(nil),
			part(7, 0, describedAs(laterOID, "workspace_id"), insert(laterOID, 1)), one(streamCommit(7, 90))}, "7@90 contacts:1"},
		"a segment whose first is missing":   {[][][]byte{part(7, 0, items)}, "decode: the first segment of transaction 7 is missing"},
		"a commit of which nothing was sent": {[][][]byte{one(streamCommit(7, 90))}, "decode: nothing of transaction 7 was sent before its commit"},
	} {
		t.Run(name, func(t *testing.T) {
			d := decoderOf(map[uint32]*list.List{itemsOID: listtest.Items, contactsOID: listtest.Contacts})
			var got []string
		messages:
			for _, m := range slices.Concat(c.messages...) {
				if m == nil {
					d.setCatalog(catalogOf(map[uint32]*list.List{itemsOID: listtest.Items, laterOID: listtest.Contacts}))
					continue
				}
				done, err := d.next(m)
				if err != nil {
					got = append(got, err.Error())
					break messages
				}
				if done != nil {
					got = append(got, describe(done))
				}
			}
			if is := strings.Join(got, ", "); is != c.want {
				t.Errorf("%s, want %s", is, c.want)
			}
			if c.want != "" && !strings.HasPrefix(c.want, "decode") && len(d.streamed) > 0 {
				t.Errorf("still in memory: %v", d.streamed)
			}
		})
	}
}

func describe(c *commit) string {
	s := fmt.Sprintf("%d@%d", c.change.XID, c.change.LSN)
	if uint64(c.start) != c.change.LSN-8 {
		s += " of another commit record"
	}
	if c.unlisted {
		s += " unlisted"
	}
	return strings.TrimSpace(s + " " + touched(c.change))
}

// The memory of an open transaction is bounded, however many rows it has.
func TestAStreamedTransactionIsBounded(t *testing.T) {
	d := decoderOf(map[uint32]*list.List{itemsOID: listtest.Items, contactsOID: listtest.Contacts})
	d.reference = 5<<32 + 3 // the id is from before the wraparound
	xid := uint32(1<<32 - 2)
	must2(d.next(segment(xid, 1)))
	must2(d.next(inSegment(xid, describedAs(itemsOID, "workspace_id"))))
	for n := range 3 * maxTables {
		must2(d.next(inSegment(xid, insert(itemsOID, n+1))))
		if n%100 == 0 {
			must2(d.next(segmentEnd()))
			must2(d.next(segment(xid, 0)))
		}
	}
	must2(d.next(segmentEnd()))
	open := d.streamed[xid]
	if len(open.change.Touched) > maxTables+1 || len(open.index) > maxTables+1 {
		t.Errorf("%d tables, %d in the index", len(open.change.Touched), len(open.index))
	}
	done := must2(d.next(streamCommit(xid, 90)))
	if is := touched(done.change); is != "whole:items" || done.change.XID != 5<<32-2 {
		t.Errorf("%s by %d", is, done.change.XID)
	}
}

// A transaction may have rows before and after a view that sees ATTACH, while that view does
// not see its commit, which waits for a standby. Its first rows were judged by the old
// catalog, but pages show them by the new one.
func TestAnOpenTransactionIsJudgedByBothCatalogs(t *testing.T) {
	d := decoderOf(map[uint32]*list.List{itemsOID: listtest.Items})
	next := func(message []byte) *commit {
		t.Helper()
		done, err := d.next(message)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	next(begin(7))
	next(describedAs(laterOID, "workspace_id", "id"))
	next(insert(laterOID, 1))
	d.setCatalog(catalogOf(map[uint32]*list.List{itemsOID: listtest.Items, laterOID: listtest.Items}))
	if done := next(commitAt(100)); done == nil || touched(done.change) != all {
		t.Errorf("%+v: its rows are not published", done)
	}
}

// itemMessages describe items with such a replica identity, and update item 2 of
// workspace 1.
func itemMessages(key ...string) (relation, update []byte) {
	columns := listtest.Items.Columns
	values := map[string]string{"workspace_id": listtest.ID(1), "id": listtest.ID(2), "active": "t", "created_at": "2020-01-01 00:00:00+00", "name": "a",
		"type": "GOODS", "track_stock": "f", "taxable": "t", "cost_price": "0", "avg_cost": "0", "selling_price": "0", "stock_on_hand": "0", "usage_30": "0"}
	relation = message('R', itemsOID, "public", "items", byte('d'), uint16(len(columns)))
	update = message('U', itemsOID, byte('N'), uint16(len(columns)))
	for _, c := range columns {
		flags := byte(0)
		if slices.Contains(key, c.Name) {
			flags = 1
		}
		relation = append(relation, message(flags, c.Name, c.OID, uint32(0))...)
		value, ok := values[c.Name]
		if ok {
			update = append(update, text(value)...)
		} else {
			update = append(update, 'n')
		}
	}
	return relation, update
}

func namedOf(t *testing.T, messages ...[]byte) string {
	t.Helper()
	d := decoderOf(map[uint32]*list.List{itemsOID: listtest.Items})
	for _, m := range messages {
		done, err := d.next(m)
		if err != nil {
			t.Fatal(err)
		}
		if done != nil {
			return named(done.change)
		}
	}
	return ""
}

// An update without an old row has not changed the replica identity. If the identity lacks
// the id, the id may have changed.
func TestAnUpdateNamesARowIfItsIDIsInTheKey(t *testing.T) {
	for name, c := range map[string]struct {
		key  []string
		want string
	}{
		"the id is":     {[]string{"workspace_id", "id"}, "items:1[2 goods @0s]"},
		"the id is not": {[]string{"workspace_id", "sku"}, "items:1[any]"},
		"nothing is":    {nil, "whole:items"},
	} {
		t.Run(name, func(t *testing.T) {
			relation, update := itemMessages(c.key...)
			if is := namedOf(t, begin(7), relation, update, commitAt(90)); is != c.want {
				t.Errorf("%s, want %s", is, c.want)
			}
		})
	}
}

// A streamed transaction includes rows of aborted subtransactions, so no version of a row is
// known to be its last.
func TestAStreamedTransactionNamesNoRows(t *testing.T) {
	relation, update := itemMessages("workspace_id", "id")
	if is := namedOf(t, segment(7, 1), inSegment(7, relation), inSegment(8, update), segmentEnd(), streamAbort(7, 8), streamCommit(7, 90)); is != "items:1[any]" {
		t.Error(is)
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
var Touched, Named, Since = touched, named, since

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
	return f.observe(slot{unlimited: unlimited})
}
