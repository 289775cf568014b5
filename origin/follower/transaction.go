package follower

import (
	"slices"

	"listedge/internal/changefeed"
)

const (
	// maxLists bounds the lists of a change. A change that touches more lists touches
	// whole collections instead.
	maxLists = 1000
	// maxRows bounds the named rows of a list, and maxRowsInAll those of a change. A
	// list with more changed rows names none: any of its rows may have changed.
	maxRows      = 64
	maxRowsInAll = 1000
)

// openTransaction collects what the rows that are decoded so far touch.
type openTransaction struct {
	xid         uint64
	whole       uint8                   // a bit for each collection touched as a whole
	lists       []changefeed.List       // at most maxLists
	named       [][]version             // by list: its changed rows, each in its last version; nil = any row
	index       map[changefeed.List]int // into lists and named
	rows        int                     // rows named so far, those dropped again included
	rowsUnknown bool                    // it names no rows, since some may be of aborted subtransactions
	unlisted    bool                    // it also changed a relation that the catalog does not list
	tables      map[uint32]table        // the relations' descriptions as the transaction sees them
}

// anyRow says whether it is already known that any row of the list may have changed.
func (t *openTransaction) anyRow(list changefeed.List) bool {
	i, known := t.index[list]
	return known && t.named[i] == nil
}

// add adds a list, and v to its rows. v = nil: any row of the list may have changed.
func (t *openTransaction) add(list changefeed.List, v *version) {
	i, known := t.index[list]
	if !known {
		if i = len(t.lists); i == maxLists {
			t.whole |= 1 << list.Collection
			return
		}
		t.index[list] = i
		t.lists, t.named = append(t.lists, list), append(t.named, []version{})
	}
	rows := t.named[i]
	if rows == nil {
		return
	}
	if v == nil || t.rowsUnknown {
		t.named[i] = nil
		return
	}
	if at := slices.IndexFunc(rows, func(o version) bool { return o.row.ID == v.row.ID }); at >= 0 {
		rows[at] = *v // a later version
		return
	}
	if t.rows++; len(rows) == maxRows || t.rows > maxRowsInAll {
		t.named[i] = nil
		return
	}
	t.named[i] = append(rows, *v)
}
