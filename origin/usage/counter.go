package usage

import (
	"sync/atomic"

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

// Counter counts the use of a key, by atomic additions. A key may have several: their counts are
// added up. Whoever drops one loses no count, because the Recorder has each with counts to take.
type Counter struct {
	requests, refused, notModified, bypassed, bytes, queries atomic.Uint64

	recorder *Recorder
	key      Key
	handed   atomic.Bool // over to the Recorder
	row      *Row        // the Recorder's: the last one
}

// Answered counts a request, with the status of its response and the size of the body as
// it is sent.
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
	c.handOver()
}

// Bypassed counts a request that had its page read although a fresh one may be stored.
func (c *Counter) Bypassed() { c.bypassed.Add(1); c.handOver() }

// Queried counts a query of Postgres.
func (c *Counter) Queried() { c.queries.Add(1); c.handOver() }

// handOver gives the counter to the Recorder, unless it is there.
func (c *Counter) handOver() {
	if !c.handed.Load() && c.handed.CompareAndSwap(false, true) {
		c.recorder.mu.Lock()
		c.recorder.used = append(c.recorder.used, c)
		c.recorder.mu.Unlock()
	}
}

// take takes what was counted, requests last, so that they include the others. What is counted
// meanwhile hands the counter over again.
func (c *Counter) take() Counts {
	c.handed.Store(false)
	return Counts{Refused: c.refused.Swap(0), NotModified: c.notModified.Swap(0), Bypassed: c.bypassed.Swap(0),
		Bytes: c.bytes.Swap(0), Queries: c.queries.Swap(0), Requests: c.requests.Swap(0)}
}
