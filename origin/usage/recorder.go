// Package usage counts what API keys are used for, and writes the sums to Postgres.
//
//	request ──► Counter of its key ── atomic additions
//	                 │ collected every 5 s, and at the end of each hour
//	                 ├──► busiest ── for the status page
//	                 ▼
//	             pending ── sums by workspace, hour and key
//	                 │ at most one batch at a time
//	                 ▼
//	              Store ── one statement; a batch that is sent again counts once
//
// No request waits for any of this. While Postgres cannot be written to, sums stay in
// memory, which is bounded, and are written later. What is collected or counted when a
// process is killed is lost: at most 10 s of it, if at most one write failed before, and
// at most maxRows * maxBatches keys are in use.
package usage

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

const (
	// interval is the time between two writes. Two intervals are the most that a killed
	// process loses, so that one write may fail.
	interval = 5 * time.Second
	// writeTimeout bounds a write as the node sees it. It ends before the next interval.
	writeTimeout = 3 * time.Second
	// closeTimeout bounds Close.
	closeTimeout = 4 * time.Second
	// maxRows bounds the rows of a batch, and maxBatches the batches of an interval. So the
	// database has a bounded load, however many keys are in use: where there are more, each
	// key's sums are written less often.
	maxRows, maxBatches = 4096, 4
	// maxPending bounds the sums that wait to be written, at about 170 bytes each. When
	// there are more, counters of keys in memory go on counting, and go to the hour in
	// which there is room again. Those of keys that have left the memory are lost.
	maxPending = 1 << 17
	// expireEvery is the time between two looks for rows that are too old.
	expireEvery = time.Hour
)

// Row is what one key was used for in one hour.
type Row struct {
	Key
	Hour time.Time // its beginning
	Counts
	LastUsed time.Time // the end of the last interval with a request
}

// Batch is what is written at once, in the order of workspace, hour and key, so that two
// nodes never wait for each other in a circle.
type Batch struct {
	Run    uuid.UUID // the Recorder that writes it
	Number int64     // from 1 in each run
	Rows   []Row     // at most one for a key and an hour
}

// Writer stores batches.
type Writer interface {
	// Write adds the batch, once: a batch whose number is not above those that were
	// written by the run has no effect. After an error it is not known whether the batch
	// was written.
	Write(ctx context.Context, b *Batch) error
	// Expire removes some of the rows that are too old. more says that there are others.
	Expire(ctx context.Context) (more bool, err error)
}

// Recorder collects the numbers of all counters and writes them. The nil Recorder makes
// counters that nobody reads.
type Recorder struct {
	writer Writer
	run    uuid.UUID
	stop   context.CancelFunc
	done   chan struct{} // closed when the loop has ended

	mu  sync.Mutex // guards new
	new []*counts  // of counters that were made since the last collection

	// The loop's, and Close's once it has ended.
	counters  []*counts
	collected time.Time // when
	pending   map[hourOfKey]*pendingRow
	queue     []*pendingRow // the same, the oldest first
	batch     *Batch        // may have been written; nil = none
	batches   int64         // begun
	expireAt  time.Time

	busiest atomic.Pointer[busiest]   // of the last collection; nil = there was none
	since   atomic.Pointer[time.Time] // from when on counts are not written; nil = all were, as of the last write
	failure atomic.Pointer[error]     // of the last write; nil = there was none
	lost    atomic.Uint64             // requests that no row will count
}

// hourOfKey is the primary key of a row.
type hourOfKey struct {
	key  Key
	hour int64 // in seconds since 1970
}

// pendingRow waits to be written.
type pendingRow struct {
	Row
	since time.Time // its oldest count is not older
}

// Start makes a Recorder, which writes until Close.
func Start(w Writer) *Recorder {
	ctx, stop := context.WithCancel(context.Background())
	now := time.Now()
	r := &Recorder{writer: w, run: uuid.New(), stop: stop, done: make(chan struct{}), collected: now, expireAt: now, pending: map[hourOfKey]*pendingRow{}}
	go r.loop(ctx)
	return r
}

// Counter returns a new counter of a key. The caller keeps it for as long as it uses the
// key.
func (r *Recorder) Counter(k Key) *Counter {
	c := newCounter(k)
	if r == nil {
		return c
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.new = append(r.new, c.counts)
	return c
}

// Stats is a snapshot for metrics and conditions.
type Stats struct {
	Unwritten time.Duration // age of the oldest counts that are not written, as of the last collection; 0 = all are written
	Lost      uint64        // requests that are not counted, because too many keys wait to be written
	Failure   error         // why the last write failed; nil = it did not
}

// Stats returns the present state.
func (r *Recorder) Stats() (s Stats) {
	if r == nil {
		return s
	}
	s.Lost = r.lost.Load()
	if since := r.since.Load(); since != nil {
		s.Unwritten = time.Since(*since)
	}
	if err := r.failure.Load(); err != nil {
		s.Failure = *err
	}
	return s
}

// Close writes what is left, in at most two attempts, until ctx ends and for closeTimeout at
// most. Nothing may be counted afterwards.
func (r *Recorder) Close(ctx context.Context) error {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	r.stop()
	<-r.done
	r.collect(time.Now())
	all := 1 + len(r.pending)/maxRows + 1 // the batch that may have been written, and the last one
	_, err := r.write(ctx, all)
	if err != nil { // the connection may have been broken when the loop ended
		_, err = r.write(ctx, all)
	}
	if err != nil {
		return fmt.Errorf("write the usage of keys: %w", err)
	}
	return nil
}

// loop collects and writes until ctx ends.
func (r *Recorder) loop(ctx context.Context) {
	defer close(r.done)
	for {
		next := time.NewTimer(min(interval, time.Until(r.hourEnds())))
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		r.collect(time.Now())
		r.writeUntil(ctx, r.hourEnds())
	}
}

// hourEnds is when the hour of the last collection ends. What is counted later is of
// another hour, so the next collection is due.
func (r *Recorder) hourEnds() time.Time { return r.collected.Truncate(time.Hour).Add(time.Hour) }

// writeUntil writes what is pending, and has old rows removed, until end: a write that hangs
// must not delay the next collection into another hour.
func (r *Recorder) writeUntil(ctx context.Context, end time.Time) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	if wrote, err := r.write(ctx, maxBatches); wrote && err == nil {
		r.expire(ctx)
	}
}

// collect adds what was counted since the last collection to the pending rows, and
// forgets counters that nobody uses any more.
func (r *Recorder) collect(now time.Time) {
	r.mu.Lock()
	r.counters = append(r.counters, r.new...)
	r.new = nil
	r.mu.Unlock()
	hour := r.collected.Truncate(time.Hour) // collections end with the hour, so all of it was counted in this one
	kept, noRoom := r.counters[:0], 0       // noRoom: the first that has to wait
	seconds, busiest := now.Sub(r.collected).Seconds(), busiest{}
	for _, c := range r.counters {
		unused := c.holder.Value() == nil // before the numbers are read: then they are the last
		n := c.read()
		if counted := n.since(c.collected); counted != (Counts{}) {
			if row := r.row(c.key, hour); row != nil {
				row.add(counted)
				if counted.Requests > 0 {
					row.LastUsed = now
					busiest.add(Use{c.key, float64(counted.Requests) / seconds, float64(counted.Refused) / seconds})
				}
				c.collected = n
			} else if unused {
				r.lost.Add(counted.Requests)
			} else if noRoom == 0 {
				noRoom = len(kept)
			}
		}
		if !unused {
			kept = append(kept, c)
		}
	}
	clear(r.counters[len(kept):])
	r.counters = append(kept[noRoom:len(kept):len(kept)], kept[:noRoom]...) // next time those come first that had to wait
	r.collected = now
	r.busiest.Store(&busiest)
	r.noteAge()
}

// row returns the pending row of the key in that hour. It returns nil if the row is new
// and there is no room for it.
func (r *Recorder) row(k Key, hour time.Time) *pendingRow {
	id := hourOfKey{k, hour.Unix()}
	row := r.pending[id]
	if row == nil && len(r.pending) < maxPending {
		row = &pendingRow{Row{Key: k, Hour: hour}, r.collected}
		r.pending[id], r.queue = row, append(r.queue, row)
	}
	return row
}

// noteAge notes the age of the oldest row that is not written, for Stats.
func (r *Recorder) noteAge() {
	switch {
	case r.batch != nil: // it has kept the age of its oldest row since it was made
	case len(r.queue) > 0:
		r.since.Store(&r.queue[0].since)
	default:
		r.since.Store(nil)
	}
}

// write writes at most so many batches. After an error the same batch is written again,
// because it is not known whether it was written.
func (r *Recorder) write(ctx context.Context, batches int) (wrote bool, err error) {
	for ; batches > 0 && (r.batch != nil || len(r.queue) > 0); batches-- {
		if r.batch == nil {
			r.batch = r.nextBatch()
		}
		if err := r.attempt(ctx); err != nil {
			r.failure.Store(&err)
			return wrote, err
		}
		r.failure.Store(nil)
		r.batch, wrote = nil, true
		r.noteAge()
	}
	return wrote, nil
}

func (r *Recorder) attempt(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return r.writer.Write(ctx, r.batch)
}

// nextBatch takes the oldest of the pending rows.
func (r *Recorder) nextBatch() *Batch {
	r.batches++
	b := &Batch{Run: r.run, Number: r.batches}
	rows := r.queue[:min(maxRows, len(r.queue))]
	for _, row := range rows {
		b.Rows = append(b.Rows, row.Row)
		delete(r.pending, hourOfKey{row.Key, row.Hour.Unix()})
	}
	r.queue = slices.Delete(r.queue, 0, len(rows))
	slices.SortFunc(b.Rows, func(a, b Row) int {
		return cmp.Or(bytes.Compare(a.Workspace[:], b.Workspace[:]), a.Hour.Compare(b.Hour), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return b
}

// expire has rows removed that are too old. It is called after a successful write, so a
// node without requests does nothing. It ignores an error: the next hour tries again.
func (r *Recorder) expire(ctx context.Context) {
	if time.Now().Before(r.expireAt) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if more, err := r.writer.Expire(ctx); err != nil || !more {
		r.expireAt = time.Now().Add(expireEvery)
	}
}
