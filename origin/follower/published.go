package follower

import (
	"hash/maphash"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
)

const (
	// maxVersions bounds the remembered versions: they take up to 53 MiB.
	maxVersions = 1 << 20
	// maxForgotten bounds the lists for which published has a number of their own.
	maxForgotten = 1 << 14
)

// published remembers the hash of the last published version of each row
// (version.hash). If a row's new version has the same hash, the row is published as
// Same.
//
// Same promises that every list has the row at the position of the version that the log
// named before. A node relies on the log having named every version in between. So:
//
//   - A row is remembered only while every change that may have changed it names it.
//     If a change does not name the rows of a list, that list's rows are forgotten. If
//     it touches a whole collection, that collection's rows are.
//   - A row that is Gone is forgotten, and so is one whose hash is not known.
//   - Committed changes arrive here in the order of their commits, each exactly once,
//     when they are published. The memory belongs to one term and begins empty.
//
// To forget a row is always safe. A list is forgotten by giving it a new number. The
// number is part of the hash that is remembered, so no earlier hash is found equal.
type published struct {
	seed       maphash.Seed
	young, old map[uuid.UUID]uint64 // by the row's id: the hash of its last version and the list's number
	half       int                  // most rows in young; when it is full, it replaces old
	maxLists   int                  // most entries in lists

	number      uint64                     // the last one given
	collections [lists.Collections]uint64  // when each was last forgotten
	lists       map[changefeed.List]uint64 // when each was last forgotten by itself; absent = its collection was forgotten since
}

func newPublished(rows, most int) *published {
	return &published{seed: maphash.MakeSeed(), young: map[uuid.UUID]uint64{}, half: max(1, rows/2), maxLists: most, lists: map[changefeed.List]uint64{}}
}

// name adds the rows to a change that is about to be published. same says that one of
// them is Same.
func (p *published) name(c *commit) (same bool) {
	for collection := range lists.Collections {
		if c.change.Touches(collection) {
			p.forgetCollection(collection)
		}
	}
	for i, list := range c.change.Lists {
		if list.Collection == lists.Keys {
			continue
		}
		versions := c.named[i]
		if versions == nil {
			p.forgetList(list)
			continue
		}
		rows := make([]changefeed.Row, len(versions))
		for n := range versions {
			rows[n] = p.next(list, &versions[n])
			same = same || rows[n].Flags&changefeed.RowSame != 0
		}
		for len(c.change.Rows) < i {
			c.change.Rows = append(c.change.Rows, "")
		}
		c.change.Rows = append(c.change.Rows, changefeed.PackRows(rows...))
	}
	return same
}

// next remembers a version and returns its row. The row is Same if no list has it at
// another position than the version before.
func (p *published) next(list changefeed.List, v *version) changefeed.Row {
	row := v.row
	if v.hash == 0 {
		p.forget(row.ID)
		return row
	}
	hash := max(1, maphash.Comparable(p.seed, [...]uint64{v.hash, p.collections[list.Collection], p.lists[list]}))
	if p.last(row.ID) == hash {
		row.Flags |= changefeed.RowSame
		row.CreatedAt, row.NameKey = 0, ""
	}
	p.remember(row.ID, hash)
	return row
}

// last returns the hash that is remembered of a row; 0 = none.
func (p *published) last(id uuid.UUID) uint64 {
	if hash, ok := p.young[id]; ok {
		return hash
	}
	return p.old[id]
}

func (p *published) remember(id uuid.UUID, hash uint64) {
	if len(p.young) >= p.half {
		p.old, p.young = p.young, map[uuid.UUID]uint64{}
	}
	p.young[id] = hash
}

func (p *published) forget(id uuid.UUID) {
	delete(p.young, id)
	delete(p.old, id)
}

func (p *published) forgetList(list changefeed.List) {
	if len(p.lists) >= p.maxLists {
		clear(p.lists)
		for collection := range lists.Collections {
			p.forgetCollection(collection)
		}
	}
	p.number++
	p.lists[list] = p.number
}

func (p *published) forgetCollection(collection lists.Collection) {
	p.number++
	p.collections[collection] = p.number
}
