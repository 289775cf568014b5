package follower

import (
	"hash/maphash"

	"github.com/google/uuid"

	"listedge/internal/changefeed"
)

const (
	// maxVersions bounds the remembered versions: they take up to 53 MiB.
	maxVersions = 1 << 20
	// maxForgotten bounds the lists of which is known when each was forgotten.
	maxForgotten = 1 << 14
)

// published remembers by what lists go in the version of a row that was published
// last. A row is marked Same if its new version is listed just so.
//
// Same says that every list has the row where the version that the log named before
// had it. A node relies on the log having named each version since. So:
//
//   - A row is remembered only while no published change may have changed it that
//     does not name it: a list whose rows are not named, and a collection touched as a
//     whole, are forgotten.
//   - A row that is Gone is forgotten, and so is one of which not all is known that
//     lists go by.
//   - Changes come in the order of their commits, each of them, once, as it is published:
//     none that aborted, none twice. The memory is the term's and begins empty.
//
// Forgetting is always right. A list is forgotten by a number that is part of what is
// remembered of its rows: no row of an earlier number is found equal any more.
type published struct {
	seed       maphash.Seed
	young, old map[uuid.UUID]uint64 // by the row's id: of its last version, the hash with the list's number
	half       int                  // of the rows remembered: old is dropped when young has so many
	most       int                  // of lists

	number      uint64                         // the last one given
	collections [changefeed.Collections]uint64 // when each was last forgotten
	lists       map[changefeed.List]uint64     // when each was last forgotten by itself; if it is not here, its collection was since
}

func newPublished(rows, lists int) *published {
	return &published{seed: maphash.MakeSeed(), young: map[uuid.UUID]uint64{}, half: max(1, rows/2), most: lists, lists: map[changefeed.List]uint64{}}
}

// name adds the rows to a change that is about to be published.
func (p *published) name(c *commit) {
	for collection := range changefeed.Collections {
		if c.change.Touches(collection) {
			p.forgetCollection(collection)
		}
	}
	keys := false
	for i, list := range c.change.Lists {
		if list.Collection == changefeed.Keys {
			continue
		}
		versions := c.named[i]
		if versions == nil {
			p.forgetList(list)
			continue
		}
		rows := make(changefeed.Rows, len(versions))
		for n := range versions {
			rows[n] = p.next(list, &versions[n])
			keys = keys || rows[n].NameKey != ""
		}
		for len(c.change.Rows) < i {
			c.change.Rows = append(c.change.Rows, nil)
		}
		c.change.Rows = append(c.change.Rows, rows)
	}
	if !keys {
		c.change.NameOrder = 0
	}
}

// next remembers a version and returns its row, Same if it is listed as the one before.
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

// last is what is remembered of a row; 0 = nothing.
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
	if len(p.lists) >= p.most {
		clear(p.lists)
		for collection := range changefeed.Collections {
			p.forgetCollection(collection)
		}
	}
	p.number++
	p.lists[list] = p.number
}

func (p *published) forgetCollection(collection changefeed.Collection) {
	p.number++
	p.collections[collection] = p.number
}
