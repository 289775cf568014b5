package follower

import (
	"slices"

	"listedge/internal/changefeed"
)

const (
	// maxLists bounds the lists of a change. A change of more touches whole collections.
	maxLists = 1000
	// maxRows bounds the named rows of a list, and maxRowsInAll those of a change. A
	// list of which more have changed names none: any of its rows may have.
	maxRows      = 64
	maxRowsInAll = 1000
)

// openTransaction has what the rows decoded so far touch.
type openTransaction struct {
	xid      uint64
	whole    uint8                   // a bit for each collection touched as a whole
	lists    []changefeed.List       // at most maxLists
	named    [][]version             // the rows of each list, each in its last version; nil = any row
	index    map[changefeed.List]int // into the two
	rows     int                     // that were ever named
	nameless bool                    // rows of subtransactions that aborted are among its rows
	unlisted bool                    // it also changed a relation that the catalog does not list
	tables   map[uint32]table        // the relations' descriptions as the transaction sees them
}

// anyRow says whether any row of the list may have changed, by what is known already.
func (t *openTransaction) anyRow(list changefeed.List) bool {
	i, known := t.index[list]
	return known && t.named[i] == nil
}

// add has the transaction touch the list, by a version of a row or, nil, by any row.
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
	if v == nil || t.nameless {
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
