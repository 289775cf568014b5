package usage

import (
	"runtime"
	"sync/atomic"
	"time"
	"weak"

	"github.com/google/uuid"
)

// Key is what is counted for: an API key, in the workspace that it belongs to.
type Key struct {
	Workspace uuid.UUID `json:"workspace"`
	ID        uuid.UUID `json:"key"`
}

// Counts say what a key was used for.
type Counts struct {
	Requests    uint64 `json:"requests"`    // all that were answered, those below included
	Refused     uint64 `json:"refused"`     // answered with a 429
	NotModified uint64 `json:"notModified"` // answered with a 304
	Bypassed    uint64 `json:"bypassed"`    // read from Postgres because of Cache-Control: no-cache
	Bytes       uint64 `json:"bytes"`       // of response bodies, as sent
	Queries     uint64 `json:"queries"`     // page queries of Postgres
}

// Add adds other counts.
func (c *Counts) Add(o Counts) {
	*c = Counts{c.Requests + o.Requests, c.Refused + o.Refused, c.NotModified + o.NotModified, c.Bypassed + o.Bypassed, c.Bytes + o.Bytes, c.Queries + o.Queries}
}

// since returns what was counted after the earlier state.
func (c Counts) since(earlier Counts) Counts {
	return Counts{c.Requests - earlier.Requests, c.Refused - earlier.Refused, c.NotModified - earlier.NotModified,
		c.Bypassed - earlier.Bypassed, c.Bytes - earlier.Bytes, c.Queries - earlier.Queries}
}

// Counter counts the use of a key, by atomic additions alone. A key may have several
// counters, one after the other or at the same time: their counts are added up.
type Counter struct{ *counts }

// counts are the numbers of a Counter, in the Recorder's queue.
type counts struct {
	requests, refused, notModified, bypassed, bytes, queries atomic.Uint64

	key    Key
	holder weak.Pointer[Counter] // without it nothing more is counted

	// The Recorder's.
	seen, taken Counts    // as of the last look; of these, what is in rows
	since       time.Time // what is seen and not taken was counted after it
	lastUsed    time.Time // the end of the last interval with a request
}

func newCounter(k Key) *Counter {
	c := &Counter{&counts{key: k}}
	c.holder = weak.Make(c)
	return c
}

// Answered counts a request, with the status of its response and the size of the body as
// it is sent. It allocates nothing and never waits.
func (c *Counter) Answered(status, size int) {
	c.requests.Add(1)
	switch status {
	case 304:
		c.notModified.Add(1)
	case 429:
		c.refused.Add(1)
	}
	if size > 0 {
		c.bytes.Add(uint64(size))
	}
	runtime.KeepAlive(c) // or the numbers could be dropped before the last addition
}

// Bypassed counts a request that had its page read although a fresh one may be stored.
func (c *Counter) Bypassed() {
	c.bypassed.Add(1)
	runtime.KeepAlive(c)
}

// Queried counts a query of Postgres.
func (c *Counter) Queried() {
	c.queries.Add(1)
	runtime.KeepAlive(c)
}

// read returns the numbers so far. It reads requests last, so that none of the others
// counts a request that is not in it.
func (c *counts) read() (n Counts) {
	n.Refused, n.NotModified, n.Bypassed = c.refused.Load(), c.notModified.Load(), c.bypassed.Load()
	n.Bytes, n.Queries = c.bytes.Load(), c.queries.Load()
	n.Requests = c.requests.Load()
	return n
}

// take makes a row of what is seen and not taken. It was counted in that hour.
func (c *counts) take(hour time.Time) Row {
	row := Row{Key: c.key, Hour: hour, Counts: c.seen.since(c.taken), LastUsed: c.lastUsed, since: c.since}
	c.taken = c.seen
	return row
}
