package cache

import (
	"time"

	"listedge/cache/replica"
	"listedge/internal/lists"
)

// View names one page: a cut out of a list. Its methods may be called by several goroutines.
type View interface {
	Key() []byte            // names the page in memory and in Redis: AppendKey
	List() replica.Key      // the list
	After() lists.Position  // the page begins behind it
	Limit() int             // the most rows of the page, at most lists.MaxLimit
	Behind(*lists.Row) View // the page of the same list and limit that begins behind a row
	// Frame returns what the page's body has before its rows, and behind them up to the
	// request id. more = rows follow the last; then next is the cursor behind it, a part of
	// end. Commas separate rows.
	Frame(last *lists.Row, more bool) (head, end, next string)
}

// cut makes the page's entry out of the replica, or returns old if that shows the same rows.
// It returns nil if the replica does not have all of them, or while nothing is proven. It
// allocates nothing if it returns old.
func (c *Cache) cut(v View, old *Entry, now time.Duration) *Entry {
	if !c.followed.trusted(now) {
		return nil
	}
	var space [lists.MaxLimit]*replica.Row
	key := v.List()
	list, version, rows, more, ok := c.replica.Read(space[:0], &key, v.After(), v.Limit(), lists.MaxBytes)
	if !ok {
		return nil
	}
	if old != nil && old.shows(list, rows, more) {
		old.version.Store(version)
		return old
	}
	c.cuts.Add(1)
	texts, last := make([]string, len(rows)), &replica.Row{}
	for i, r := range rows {
		texts[i], last = r.Text, r
	}
	e := newEntry(v, texts, &last.Row, more, old)
	e.list, e.last = list, last
	e.version.Store(version)
	e.Proof = time.Duration(c.followed.proof.Load())
	e.ReadAt = e.Proof
	return e
}

// entryOf makes the entry of the first page of rows that were read behind the view's
// position. end = the list ends with them.
func entryOf(v View, rows []lists.Row, end bool, readAt time.Duration) *Entry {
	n := firstPage(rows, v.Limit())
	texts, last := make([]string, n), (*lists.Row)(nil)
	for i := range texts {
		texts[i], last = rows[i].Text, &rows[i]
	}
	e := newEntry(v, texts, last, n < len(rows) || !end, nil)
	e.Proof, e.ReadAt = readAt, readAt
	return e
}

// firstPage returns how many of a fill's rows its first page shows.
func firstPage(rows []lists.Row, limit int) int {
	size := 0
	for i := range rows[:min(limit, len(rows))] {
		if size += len(rows[i].Text); i > 0 && size > lists.MaxBytes {
			return i
		}
	}
	return min(limit, len(rows))
}
