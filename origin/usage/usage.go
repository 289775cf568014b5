// Package usage counts what API keys are used for, and writes the sums to Postgres.
//
//	request ──► Counter of its key ──► queue of rows: a key in an hour ──► Store: one statement for a batch
//
// Every 5 s, and at the end of each hour, counts are added to a row that waits, or to a new one at
// the back. Batches come from the front. What a killed process had not written is lost: at most
// 10 s of it, if at most one write failed before, and at most maxWritten keys are in use.
package usage

import (
	"cmp"
	"context"
	_ "embed" // SQL
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

const (
	interval     = 5 * time.Second // between two writes; twice that may be lost, if one of them fails
	writeTimeout = 3 * time.Second // ends before the next interval
	closeTimeout = 4 * time.Second

	// These bound memory and the load of the database, however many keys are in use.
	maxRows    = 4096        // of a batch
	maxWritten = 4 * maxRows // of an interval
	maxQueued  = 1 << 18     // rows, of 160 bytes each, that wait
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

// Row is what one key was used for in one hour, or a part of it.
type Row struct {
	Key
	Hour time.Time `json:"hour"` // its beginning
	Counts
	LastUsed time.Time `json:"lastUsed"` // the end of the last interval with a request
	since    time.Time // all that the row counts was counted after it
	sent     bool      // it may have been written, so nothing is added
}

// Writer stores batches. A batch whose number is not above those that were written by the run has
// no effect. After an error it is not known whether it was written.
type Writer func(ctx context.Context, run uuid.UUID, number int64, rows []*Row) error

// Use is how much a key is used on this node.
type Use struct {
	Key
	Requests, Refused float64 // per second; refused = answered with a 429
}

// Stats is a snapshot for metrics, conditions and the status page.
type Stats struct {
	Since   time.Time // of the oldest counts that are not written, as of the last write; zero = all are
	Lost    uint64    // requests that are not counted, because too many rows waited
	Failure error     // of the last write; nil = there was none
	Busiest []Use     // the ten counters with the most requests in the last interval, the busiest first
}

// Recorder writes what counters count. The nil Recorder makes counters that are not read.
type Recorder struct {
	write Writer
	run   uuid.UUID
	stop  context.CancelFunc
	loops sync.WaitGroup // the one loop
	// Used by the loop alone, and by Close once the loop has ended.
	queue  []*Row
	sent   int       // how many rows at the front may have been written, as batch number
	number int64     // of the last batch; from 1, in the order of writing
	looked time.Time // when the counters were last read

	mu    sync.Mutex // guards used and stats
	used  []*Counter // those with counts that are in no row
	stats Stats
}

// Start makes a Recorder, which writes until Close.
func Start(w Writer) *Recorder {
	ctx, stop := context.WithCancel(context.Background())
	r := &Recorder{write: w, run: uuid.New(), stop: stop, looked: time.Now()}
	r.loops.Go(func() { r.loop(ctx) })
	return r
}

// Counter returns a new counter of a key.
func (r *Recorder) Counter(k Key) *Counter {
	c := &Counter{key: k, recorder: r}
	c.handed.Store(r == nil)
	return c
}

// Stats returns the present state.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Close writes what is left, in at most two attempts, because the connection may have been broken
// when the loop ended. Nothing may be counted afterwards.
func (r *Recorder) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	r.stop()
	r.loops.Wait()
	r.look(time.Now())
	_ = r.flush(ctx, math.MaxInt)
	return r.flush(ctx, math.MaxInt)
}

// loop reads the counters and writes rows until ctx ends. A write that hangs must not delay the
// next reading into another hour.
func (r *Recorder) loop(ctx context.Context) {
	hourEnds := func() time.Time { return r.looked.Truncate(time.Hour).Add(time.Hour) }
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(time.Until(r.looked.Add(interval)), time.Until(hourEnds()))):
		}
		r.look(time.Now())
		writing, cancel := context.WithDeadline(ctx, hourEnds())
		_ = r.flush(writing, maxWritten) // Stats has the error
		cancel()
	}
}

// look adds what was counted since the last look to rows of the hour of that look. If the queue
// is full, it adds to a row of the same key that waits, of any hour; without one it is lost.
func (r *Recorder) look(now time.Time) {
	r.mu.Lock()
	used := r.used
	r.used = nil
	r.mu.Unlock()
	hour, seconds, busiest, lost := r.looked.Truncate(time.Hour), now.Sub(r.looked).Seconds(), []Use(nil), uint64(0)
	for _, c := range used {
		n, full := c.take(), len(r.queue) >= maxQueued
		waits := c.row != nil && !c.row.sent && (full || c.row.Hour.Equal(hour))
		if n == (Counts{}) || full && !waits {
			lost += n.Requests
			continue
		}
		if !waits {
			c.row = &Row{Key: c.key, Hour: hour, since: r.looked}
			r.queue = append(r.queue, c.row)
		}
		c.row.Add(n)
		if n.Requests == 0 {
			continue
		}
		c.row.LastUsed = now
		if use := float64(n.Requests) / seconds; len(busiest) < 10 || use > busiest[9].Requests {
			busiest = append(busiest, Use{c.key, use, float64(n.Refused) / seconds})
			slices.SortFunc(busiest, func(a, b Use) int { return cmp.Compare(b.Requests, a.Requests) })
			busiest = busiest[:min(len(busiest), 10)]
		}
	}
	r.looked = now
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Busiest = busiest
	r.stats.Lost += lost
}

// flush writes at most so many rows, and none twice. After an error the same batch is sent again,
// because it is not known whether it was written.
func (r *Recorder) flush(ctx context.Context, most int) (err error) {
	for left := min(most, len(r.queue)); left > 0 && err == nil; {
		if r.sent == 0 {
			r.sent, r.number = min(maxRows, left), r.number+1
		}
		rows := r.queue[:r.sent]
		for _, row := range rows {
			row.sent = true
		}
		sending, cancel := context.WithTimeout(ctx, writeTimeout)
		err = r.write(sending, r.run, r.number, rows)
		cancel()
		if err == nil {
			r.queue, r.sent, left = r.queue[len(rows):], 0, left-len(rows)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Since, r.stats.Failure = time.Time{}, err
	if len(r.queue) > 0 {
		r.stats.Since = r.queue[0].since
	}
	return err
}

// Counter counts the use of a key, by atomic additions. A key may have several: their counts are
// added up. Whoever drops one loses no count, because the Recorder has each with counts to take.
type Counter struct {
	requests, refused, notModified, bypassed, bytes, queries atomic.Uint64

	recorder *Recorder
	key      Key
	handed   atomic.Bool // it is in the Recorder's used, or nobody reads it
	row      *Row        // the last row that the Recorder added the counts to; used by it alone
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

// handOver tells the Recorder that the counter has counts, unless it knows.
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

// Kept is how long the numbers of an hour are kept. When a key was last used is kept as
// long as the key.
const Kept = 35 * 24 * time.Hour

//go:embed write.sql
var writeSQL string

//go:embed expire.sql
var expireSQL string

// Store writes to the primary, on a connection of its own.
type Store struct {
	db       *postgres.Database
	expireAt time.Time
}

// NewStore writes to a database.
func NewStore(db *postgres.Database) *Store { return &Store{db: db} }

// Add writes a batch, as a Writer. Once an hour it also removes rows older than Kept: a node
// without requests does nothing. If that fails, the next hour tries again.
func (s *Store) Add(ctx context.Context, run uuid.UUID, number int64, rows []*Row) error {
	text, _ := json.Marshal(rows) // numbers, ids and times: it cannot fail
	_, err := s.exec(ctx, writeSQL, run.String(), number, string(text))
	if err == nil && time.Now().After(s.expireAt) {
		if more, err := s.exec(ctx, expireSQL, fmt.Sprintf("%d hours", Kept/time.Hour)); err != nil || more == 0 {
			s.expireAt = time.Now().Add(time.Hour)
		}
	}
	return err
}

// exec runs a statement on the primary that the fleet follows, and returns its number of rows.
func (s *Store) exec(ctx context.Context, sql string, arguments ...any) (rows int64, err error) {
	err = s.db.Usage.Write(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, append([]any{pgx.QueryExecModeExec}, arguments...)...)
		rows = tag.RowsAffected()
		return err
	})
	return rows, err
}
