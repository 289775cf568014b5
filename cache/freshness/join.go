package freshness

import (
	"sort"
	"time"
)

// Joining: a page that is not stored may be covered by entries that are. A row that
// comes in at the head of a list moves every later page by one row, so each has
// another cursor and another key, but its rows are all there:
//
//	wanted    A(═════════════════]E        the rows behind A, and that there is one more
//	entry 1 (═════════]                    its rows behind A
//	entry 2           (═══════════════]    its rows behind those, as many as are missing
//
// Each part is judged for what the page shows of it alone: entry 1 may be stale,
// because of a row that came in before A.
//
// Claim. Let K be all transactions that the tracker knows when Join returns. The
// joined page equals the page that a statement would return which sees K.
// Proof: let V be what the statement of a part's entry saw.
//  1. V is within K. Join requires that the entry was read before the moment of the
//     last proof: everything that was visible then has been applied. (On a standby,
//     what is visible is in the primary's flushed WAL, so it is before the end of the
//     WAL up to which the log had been written then.) Without this, an entry might
//     show a transaction that the log has not brought yet, and the one beside it
//     might not: half a transaction. An entry that was joined itself equals K as it
//     was then.
//  2. Each transaction in K and not in V does not concern the part's extent: those
//     that were known when the entry was last judged as a whole, because its extent
//     includes the part's; the others, because Join asks for them. So by the lemma
//     the part is what a statement that sees K returns of its extent.
//  3. Each part begins where the one before ends, so the extents of the parts cover
//     (A, E] without a gap, and nothing twice.
//
// All parts are judged at one K: under one lock. Of transactions that are in K and
// not visible yet, none concerns the page unless a part saw it; so the page also
// equals what a statement returned at the latest of the parts' moments.
//
// A joined page has no snapshot: nothing that is not in K is in any V. So its read
// point sees nothing, and each change that comes after K must not concern its extent,
// or it is stale. Its extent is of the usual form, and so is every later judgement.

// MaxParts bounds the entries that a page is joined from.
const MaxParts = 4

// Listed are the rows of an entry's body.
type Listed interface {
	Len() int
	// Position returns a row's position in the list, or Unknown.
	Position(i int) Bound
}

// Part is what a joined page shows of an entry.
type Part struct {
	*Validity
	From, To int    // rows of the entry's body
	shown    Extent // of those rows; in the last part also of the row behind the page
}

// Join is a page that is being joined, part by part.
type Join struct {
	Extent   Extent // of the page; End and Tags are set when it is complete
	Parts    []Part
	Complete bool

	at      Bound // the end of the last part so far
	missing int   // the number of missing rows
}

// NewJoin begins a page of so many rows. The extent gives the list and the beginning of
// the page.
func NewJoin(of Extent, rows int) *Join {
	of.End, of.Tags = Bound{}, make([]uint32, 0, rows+1)
	return &Join{Extent: of, at: of.After, missing: rows}
}

// At returns the position at which, or before which, the next part has to begin.
func (j *Join) At() Bound { return j.at }

// More reports whether there are rows behind a complete page.
func (j *Join) More() bool { return j.Extent.End.Kind == At }

// Add adds the rows of the entry that continue the page; false = there are none.
func (j *Join) Add(v *Validity, rows Listed) bool {
	e, n := v.Extent, rows.Len()
	if j.Complete || len(j.Parts) == MaxParts || e == nil || !e.isOf(&j.Extent) || !e.reaches(n) || !e.begins(&j.at) {
		return false
	}
	known := true
	position := func(i int) Bound {
		p := rows.Position(i)
		known = known && p.Kind == At
		return p
	}
	from := sort.Search(n, func(i int) bool {
		p := position(i)
		order, ok := e.compare(&p, &j.at, 1)
		known = known && ok
		return order > 0
	})
	p := Part{Validity: v, From: from, To: min(from+j.missing, n), shown: *e}
	p.shown.After = j.at
	end, complete := e.End, true
	switch {
	case p.To < n: // the row behind the page is in the body
		end = position(p.To)
		p.shown.Tags = e.Tags[from : p.To+1]
	case end.Kind == Open || n-from == j.missing: // it is the one at the entry's end, or there is none
		p.shown.Tags = e.Tags[from:]
	case from == n: // nothing, or nothing but the row at the entry's end
		return false
	default:
		end, complete = position(n-1), false
		p.shown.Tags = e.Tags[from:n]
	}
	if !known {
		return false
	}
	p.shown.End = end
	j.Parts, j.Complete, j.at, j.missing = append(j.Parts, p), complete, end, j.missing-(p.To-from)
	j.Extent.End, j.Extent.Tags = end, append(j.Extent.Tags, p.shown.Tags...)
	return true
}

// isOf reports whether both are extents of one list, so that their bounds can be compared.
func (e *Extent) isOf(o *Extent) bool {
	return e.Order == o.Order && e.Collection == o.Collection && e.Filter == o.Filter && e.Search == o.Search
}

// reaches reports whether the extent has tags of so many rows, and of the row at End.
func (e *Extent) reaches(rows int) bool {
	switch e.End.Kind {
	case Open:
		return len(e.Tags) == rows
	case At:
		return len(e.Tags) == rows+1
	}
	return false
}

// begins reports whether the extent begins at the position or before it.
func (e *Extent) begins(b *Bound) bool {
	if b.Kind == Open { // the start of the list
		return e.After.Kind == Open
	}
	order, ok := e.compare(b, &e.After, 1)
	return ok && order >= 0
}

// Join sets the validity of a complete page if the page equals the database. Otherwise
// stale is the first part that does not, or -1 if no proof is young enough.
func (t *Tracker) Join(v *Validity, j *Join, now time.Duration) (stale int, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.Trusted(now) || !j.Complete {
		return -1, false
	}
	first := j.Parts[0].Validity
	v.Proof, v.ReadAt = first.Proof, first.ReadAt
	for i, p := range j.Parts {
		if !t.showsAll(&p) || p.list != first.list || p.collection != first.collection {
			return i, false
		}
		v.Proof, v.ReadAt = min(v.Proof, p.Proof), min(v.ReadAt, p.ReadAt)
	}
	v.list, v.collection = first.list, first.collection
	extent := j.Extent // a copy, so that the page does not keep j and all parts in memory
	v.Extent = &extent
	v.Epoch, v.Position = t.epoch, t.position
	v.sequence.Store(t.sequence)
	return 0, true
}

// showsAll reports whether no known transaction that the part's statement did not see
// concerns the part. If none concerns the whole entry either, the entry's sequence is
// raised, so that each transaction is compared once.
func (t *Tracker) showsAll(p *Part) bool {
	s := p.sequence.Load()
	if s == 0 || s < t.join.Load() || p.readBy > time.Duration(t.proof.Load()) {
		return false
	}
	if t.isCurrent(p.Validity) || p.invalidation.Load() == nil && t.revalidateLocked(p.Validity) {
		return true
	}
	part := Validity{ReadPoint: p.ReadPoint, Extent: &p.shown}
	for _, v := range []*listVersion{p.list, p.collection} {
		if concern, _ := v.compareSince(s, &part); concern != Unconcerned {
			return false
		}
	}
	return true
}
