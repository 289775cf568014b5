package follower

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"listedge/internal/changefeed"
	"listedge/internal/list"
)

// decoder turns the messages of pgoutput, protocol 2, into changes.
//
// A transaction larger than decodingMemory is streamed: its rows are sent in segments
// before it commits, between those of other transactions. A message of its own says
// that it has committed or aborted. It is published when it commits and dropped when
// it aborts. Rows of an aborted subtransaction are published, too: an invalidation too
// many is safe.
type decoder struct {
	catalog     catalog
	lists       []*list.List         // all that are followed; nil among them is the keys
	rowsUnnamed []*list.List         // those whose changes name no rows (Publication.Unnamed)
	relations   map[uint32]*relation // their last committed descriptions
	reference   uint64               // a recent transaction id of 64 bits, for widen

	*openTransaction                             // the one that the next rows belong to
	streaming        bool                        // inside a segment of a streamed transaction
	streamed         map[uint32]*openTransaction // unfinished ones, by the id of the top-level transaction
}

func newDecoder(lists *list.Set) decoder {
	d := decoder{lists: append(slices.Clone(lists.Lists), nil), relations: map[uint32]*relation{}, streamed: map[uint32]*openTransaction{}}
	d.openTransaction = d.begin(0, d.relations)
	return d
}

func (d *decoder) begin(xid uint32, described map[uint32]*relation) *openTransaction {
	return &openTransaction{change: changefeed.Change{XID: widen(xid, d.reference)},
		index: map[changefeed.Table]int{}, rowAt: map[rowKey]int{}, described: described}
}

// Commit is a decoded transaction.
type Commit struct {
	Change   changefeed.Change
	Start    pglogrepl.LSN // of its commit record; a slot that is confirmed beyond it does not send it again
	Unlisted bool          // it also changed a relation that the catalog did not list
	decoded  time.Time     // when the term published it
}

// next decodes one message. done is the transaction that the message commits, or nil.
func (d *decoder) next(data []byte) (done *Commit, err error) {
	message, err := pglogrepl.ParseV2(data, d.streaming)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		d.openTransaction = d.begin(m.Xid, d.relations)
	case *pglogrepl.StreamStartMessageV2:
		if m.FirstSegment == 1 {
			// A description that this transaction sends is not valid for others before it commits.
			d.streamed[m.Xid] = d.begin(m.Xid, map[uint32]*relation{})
			d.streamed[m.Xid].rowsUnknown = true
		}
		d.openTransaction = d.streamed[m.Xid]
		if d.openTransaction == nil {
			return nil, fmt.Errorf("decode: the first segment of transaction %d is missing", m.Xid)
		}
		d.streaming = true
	case *pglogrepl.StreamStopMessageV2:
		d.streaming = false
	case *pglogrepl.RelationMessageV2:
		d.described[m.RelationID] = relationOf(&m.RelationMessage)
	case *pglogrepl.InsertMessageV2:
		d.changed(m.RelationID, version{}, version{columns: m.Tuple.Columns})
	case *pglogrepl.UpdateMessageV2:
		// Without an old tuple the update left the replica identity as it was: what it says of that is true of the old row, too.
		old := version{m.NewTuple.Columns, true}
		if m.OldTuple != nil {
			old = version{m.OldTuple.Columns, m.OldTupleType == pglogrepl.UpdateMessageTupleTypeKey}
		}
		d.changed(m.RelationID, old, version{columns: m.NewTuple.Columns})
	case *pglogrepl.DeleteMessageV2:
		d.changed(m.RelationID, version{m.OldTuple.Columns, m.OldTupleType == pglogrepl.DeleteMessageTupleTypeKey}, version{})
	case *pglogrepl.TruncateMessageV2:
		for _, relation := range m.RelationIDs {
			for _, l := range d.listsOf(relation) {
				d.addAllOf(l)
			}
		}
	case *pglogrepl.LogicalDecodingMessageV2:
		if m.Transactional && m.Prefix == MessagePrefix {
			d.message(string(m.Content))
		}
	case *pglogrepl.CommitMessage:
		return d.commit(m.CommitLSN, m.TransactionEndLSN, m.CommitTime), nil
	case *pglogrepl.StreamCommitMessageV2:
		d.openTransaction = d.streamed[m.Xid]
		if d.openTransaction == nil {
			return nil, fmt.Errorf("decode: nothing of transaction %d was sent before its commit", m.Xid)
		}
		delete(d.streamed, m.Xid)
		maps.Copy(d.relations, d.described) // Postgres does not send these descriptions again
		return d.commit(m.CommitLSN, m.TransactionEndLSN, m.CommitTime), nil
	case *pglogrepl.StreamAbortMessageV2:
		if m.SubXid == m.Xid {
			delete(d.streamed, m.Xid)
		}
	}
	return nil, nil
}

// commit ends the open transaction.
func (d *decoder) commit(start, end pglogrepl.LSN, at time.Time) *Commit {
	t := d.openTransaction
	c := t.change
	c.LSN, c.CommittedAt = uint64(end), at.UnixMicro()
	c.Touched = slices.DeleteFunc(c.Touched, func(p changefeed.Touched) bool { return !p.All && t.touchesAll(p.List) })
	return &Commit{Change: c, Start: start, Unlisted: t.unlisted}
}

// setCatalog sets the catalog. The rows of open transactions were decoded with the
// previous one, which may have assigned their relations to other lists. So an
// open transaction that has changed any row touches all lists.
func (d *decoder) setCatalog(c catalog) {
	d.catalog = c
	for _, t := range append(slices.Collect(maps.Values(d.streamed)), d.openTransaction) {
		if t.unlisted || len(t.change.Touched) > 0 {
			d.touchAll(t)
		}
		for _, r := range t.described {
			clear(r.layouts)
		}
	}
	for _, r := range d.relations {
		clear(r.layouts)
	}
}

// touchAll counts all rows of all lists as changed by the transaction.
func (d *decoder) touchAll(t *openTransaction) {
	for _, l := range d.lists {
		t.addAllOf(l)
	}
}

// message decodes a WAL message that a purge or a follower wrote.
func (d *decoder) message(content string) {
	workspace, tenant, ok := parsePurge(content)
	if !ok {
		d.touchAll(d.openTransaction)
		return
	}
	for _, l := range d.lists {
		owner := workspace
		if l != nil {
			owner = l.Owner(tenant)
		}
		d.add(changefeed.Table{List: l, Tenant: owner}, "", nil)
	}
}

// listsOf returns the lists of a relation; nil among them is the keys.
func (d *decoder) listsOf(relation uint32) []*list.List {
	lists, listed := d.catalog.lists[relation]
	d.unlisted = d.unlisted || !listed
	return lists
}

// changed adds what the change of a row touches, in each list of its relation.
func (d *decoder) changed(oid uint32, old, present version) {
	for i, c := range present.columns { // Postgres does not send a large value that an update has left as it was
		if c.DataType == pglogrepl.TupleDataTypeToast && !old.identityOnly && i < len(old.columns) {
			present.columns[i] = old.columns[i]
		}
	}
	r := d.described[oid]
	for _, l := range d.listsOf(oid) {
		switch {
		case r == nil:
			d.addAllOf(l)
		case !d.touchesAll(l): // else a further row adds nothing
			d.changedIn(r.layout(l, d.catalog), old, present)
		}
	}
}

// changedIn adds whose rows the change of one touches, and names the row. If it is not known whose the row is or
// was, it touches the whole list: to invalidate too much is safe, to invalidate too little is not.
func (d *decoder) changedIn(o *layout, old, present version) {
	from, to := o.spot(old), o.spot(present)
	if old.columns != nil && (present.columns == nil || from != to) {
		var gone *list.Row
		if d.names(o, from) {
			r := list.GoneRow(from.key)
			gone = &r
		}
		d.add(o.table(from), from.key, gone)
	}
	table := o.table(to)
	if present.columns == nil || d.touchesAll(o.list) || d.anyRow(table) {
		return
	}
	var row *list.Row
	if d.names(o, to) {
		row = o.row(to, present, from != to)
	}
	d.add(table, to.key, row)
}

// names says whether the row at the spot can be named.
func (d *decoder) names(o *layout, s spot) bool {
	return s.owned && s.keyed && !o.isNobodys(s) && !slices.Contains(d.rowsUnnamed, o.list)
}

// widen extends a 32-bit transaction id to 64 bits. The id must be less than 2^31
// transactions away from the reference.
func widen(xid uint32, reference uint64) uint64 {
	return reference + uint64(int64(int32(xid-uint32(reference))))
}

const (
	// maxTables bounds the tables of a change. A change that touches more touches whole lists instead.
	maxTables = 1000
	// maxRows and maxRowBytes bound the named rows of a change. The table of a row beyond
	// them names none: any of its rows may have changed.
	maxRows     = 1000
	maxRowBytes = 512 << 10
)

// openTransaction collects what the rows that are decoded so far touch.
type openTransaction struct {
	change      changefeed.Change        // so far: at most maxTables of single tenants, and the changed rows of each in their last versions
	index       map[changefeed.Table]int // into the tables
	rowAt       map[rowKey]int           // into the rows of its table; also of rows that were dropped again
	rowBytes    int                      // of all rows in rowAt
	rowsUnknown bool                     // it names no rows, since some may be of aborted subtransactions
	unlisted    bool                     // it also changed a relation that the catalog does not list
	described   map[uint32]*relation     // the relations as the transaction sees them
}

// anyRow says whether the transaction already counts all rows of the table as changed.
func (t *openTransaction) anyRow(table changefeed.Table) bool {
	i, known := t.index[table]
	return known && t.change.Touched[i].Rows == nil
}

// touchesAll says whether the transaction already counts all rows of the list as changed.
func (t *openTransaction) touchesAll(l *list.List) bool {
	_, all := t.index[changefeed.AllRowsOf(l).Table]
	return all
}

// addAllOf counts all rows of the list as changed.
func (t *openTransaction) addAllOf(l *list.List) { t.add(changefeed.AllRowsOf(l).Table, "", nil) }

// rowKey is a row of a table: by the table's index.
type rowKey struct {
	table int
	key   string
}

// rowSize is what a row takes in the log besides its texts, and tableSize what a table takes besides its tenant,
// at most, in bytes.
const rowSize, tableSize = 40, 60

// add adds a table, and r of this key to its rows. r = nil: any row of the table may have changed.
func (t *openTransaction) add(table changefeed.Table, key string, r *list.Row) {
	i, known := t.index[table]
	switch {
	case known && t.change.Touched[i].Rows == nil:
		return
	case !known && len(t.change.Touched) >= maxTables && !table.All:
		table, r = changefeed.AllRowsOf(table.List).Table, nil
		i, known = t.index[table]
	}
	if !known {
		i = len(t.change.Touched)
		t.index[table] = i
		t.change.Touched = append(t.change.Touched, changefeed.Touched{Table: table})
	}
	p := &t.change.Touched[i]
	if r == nil || t.rowsUnknown {
		p.Rows = nil
		return
	}
	at, again := t.rowAt[rowKey{i, key}]
	if again { // this is a later version
		r = r.Complete(&p.Rows[at])
		t.rowBytes -= p.Rows[at].Size()
	} else {
		at, p.Rows = len(p.Rows), append(p.Rows, list.Row{})
		t.rowAt[rowKey{i, key}] = at
		t.rowBytes += rowSize
	}
	t.rowBytes += r.Size()
	p.Rows[at] = *r
	if len(t.rowAt) > maxRows || t.rowBytes > maxRowBytes {
		p.Rows = nil
	}
}

// sizeOf returns what an entry takes in Redis, in bytes, or a little more.
func sizeOf(e *changefeed.Entry) (n int) {
	n = 350
	switch {
	case e.Heartbeat != nil:
		n += len(e.Heartbeat.Snapshot) + 60*len(e.Heartbeat.Unsettled) + 24*len(e.Heartbeat.Followed)
	case e.Change != nil:
		for _, p := range e.Change.Touched {
			n += tableSize + len(p.Tenant)
			for i := range p.Rows {
				n += rowSize + p.Rows[i].Size()
			}
		}
	}
	return n
}
