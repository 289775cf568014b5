// Package usage counts what API keys are used for, and writes the sums to Postgres.
//
//	request ──► Counter of its key ── atomic additions
//	                 │ looked at every 5 s, and at the end of each hour
//	                 ├──► busiest ── for the status page
//	                 ▼
//	queue of all counters ── a batch takes from the front, and puts at the back
//	                 ▼
//	              Store ── one statement; a batch that is sent again counts once
//
// No request waits for any of this. While Postgres cannot be written to, counters go on
// counting, and what they counted in an hour that is over waits beside them, up to a bound.
// What a killed process had not written is lost: at most 10 s of it, if at most one write
// failed before, and at most maxRows * maxBatches keys are in use.
package usage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	// key's sums are written less often. maxRefused bounds the batches of an interval that
	// the database refuses.
	maxRows, maxBatches, maxRefused = 4096, 4, 64
	// maxPast bounds the rows of past hours, and of keys that have left the memory, at 150
	// bytes each. Beyond it, keys in memory are counted in the hour in which there is room
	// again, and what was counted for others is lost.
	maxPast = 1 << 17
	// expireEvery is the time between two looks for rows that are too old.
	expireEvery = time.Hour
)

// Row is what one key was used for in one hour, or a part of it.
type Row struct {
	Key
	Hour time.Time `json:"hour"` // its beginning
	Counts
	LastUsed time.Time `json:"lastUsed"` // the end of the last interval with a request
	since    time.Time // all was counted after it
}

// Batch is what is written at once.
type Batch struct {
	Run    uuid.UUID // the Recorder that writes it
	Number int64     // from 1 in each run, in the order of writing; 0 = not sent yet
	Rows   []Row
}

// ErrRefused: the database refuses the values of a batch, and will again. Nothing was written.
var ErrRefused = errors.New("counts cannot be added")

// Writer stores batches.
type Writer interface {
	// Write adds the batch, once: a batch whose number is not above those that were
	// written by the run has no effect. After an error it is not known whether the batch
	// was written, except ErrRefused.
	Write(ctx context.Context, b *Batch) error
	// Expire removes some of the rows that are too old. more says that there are others.
	Expire(ctx context.Context) (more bool, err error)
}

// Recorder writes the numbers of all counters. The nil Recorder makes counters that are not
// read.
type Recorder struct {
	writer Writer
	log    *slog.Logger
	run    uuid.UUID
	stop   context.CancelFunc
	done   chan struct{} // closed when the loop has ended

	mu  sync.Mutex // guards new
	new []*counts  // of counters that were made since the last look

	// The loop's, and Close's once it has ended.
	queue    []*counts // the first were taken longest ago
	past     []Row     // of hours that are over and counters that are no longer used, the oldest first
	looked   time.Time // when
	batches  []*Batch  // taken and not written, the next first; it may have been written
	number   int64     // of the last batch that was sent
	expireAt time.Time

	busiest atomic.Pointer[busiest]   // of the last look; nil = there was none
	since   atomic.Pointer[time.Time] // from when on counts are not written; nil = all were, as of the last write
	failure atomic.Pointer[error]     // of the last write; nil = there was none
	lost    atomic.Uint64             // requests that no row will count
}

// Start makes a Recorder, which writes until Close.
func Start(w Writer, log *slog.Logger) *Recorder {
	ctx, stop := context.WithCancel(context.Background())
	now := time.Now()
	r := &Recorder{writer: w, log: log, run: uuid.New(), stop: stop, done: make(chan struct{}), looked: now, expireAt: now}
	go r.loop(ctx)
	return r
}

// Counter returns a new counter of a key. The caller keeps it for as long as it uses the
// key.
func (r *Recorder) Counter(k Key) *Counter {
	c := newCounter(k)
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.new = append(r.new, c.counts)
	}
	return c
}

// Stats is a snapshot for metrics and conditions.
type Stats struct {
	Unwritten time.Duration // age of the oldest counts that are not written, as of the last write; 0 = all are written
	Lost      uint64        // requests that are not counted: too many waited to be written, or the database refused them
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
	r.look(time.Now())
	_, err := r.write(ctx, math.MaxInt)
	if err != nil { // the connection may have been broken when the loop ended
		_, err = r.write(ctx, math.MaxInt)
	}
	if err != nil {
		return fmt.Errorf("write the usage of keys: %w", err)
	}
	return nil
}

// loop looks and writes until ctx ends. A write that hangs must not delay the next look into
// another hour.
func (r *Recorder) loop(ctx context.Context) {
	defer close(r.done)
	for {
		next := time.NewTimer(min(time.Until(r.looked.Add(interval)), time.Until(r.hourEnds())))
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		r.look(time.Now())
		writing, cancel := context.WithDeadline(ctx, r.hourEnds())
		if wrote, err := r.write(writing, maxBatches); wrote && err == nil {
			r.expire(writing)
		}
		cancel()
	}
}

// hourEnds is when the hour of the last look ends. What is counted later is of another hour,
// so the next look is due.
func (r *Recorder) hourEnds() time.Time { return r.looked.Truncate(time.Hour).Add(time.Hour) }

// look reads all counters. At the end of an hour it takes what was counted in it.
func (r *Recorder) look(now time.Time) {
	r.mu.Lock()
	r.queue = append(r.queue, r.new...)
	r.new = nil
	r.mu.Unlock()
	hour, over := r.looked.Truncate(time.Hour), !now.Before(r.hourEnds())
	seconds, busiest := now.Sub(r.looked).Seconds(), busiest{}
	r.queue = slices.DeleteFunc(r.queue, func(c *counts) (unused bool) {
		unused = c.holder.Value() == nil // before the numbers are read: then they are the last
		if c.seen == c.taken {
			c.since = r.looked
		}
		n := c.read()
		if counted := n.since(c.seen); counted.Requests > 0 {
			c.lastUsed = now
			busiest.add(Use{c.key, float64(counted.Requests) / seconds, float64(counted.Refused) / seconds})
		}
		if c.seen = n; (unused || over) && c.seen != c.taken && len(r.past) < maxPast {
			r.past = append(r.past, c.take(hour))
		}
		if unused {
			r.lost.Add(c.seen.Requests - c.taken.Requests)
		}
		return unused
	})
	r.looked = now
	r.busiest.Store(&busiest)
}

// write writes at most so many batches. After an error the same batch is written again,
// because it is not known whether it was written. A batch that the database refuses is split,
// until the row is found that cannot be added.
func (r *Recorder) write(ctx context.Context, most int) (wrote bool, err error) {
	defer r.noteAge()
	for refused := 0; most > 0 && refused < maxRefused; {
		if len(r.batches) == 0 {
			r.batches = r.nextBatch()
		}
		if len(r.batches) == 0 {
			break
		}
		switch err := r.attempt(ctx, r.batches[0]); {
		case err == nil:
			r.batches, wrote = r.batches[1:], true
			most--
		case errors.Is(err, ErrRefused):
			r.split(err)
			refused++
		default:
			r.failure.Store(&err)
			return wrote, err
		}
		r.failure.Store(nil)
	}
	return wrote, nil
}

func (r *Recorder) attempt(ctx context.Context, b *Batch) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if b.Number == 0 {
		r.number++
		b.Number = r.number
	}
	return r.writer.Write(ctx, b)
}

// split replaces the first batch by its halves. A single row is lost.
func (r *Recorder) split(refused error) {
	rows := r.batches[0].Rows
	r.batches = r.batches[1:]
	if half := len(rows) / 2; half > 0 {
		r.batches = slices.Insert(r.batches, 0, &Batch{Run: r.run, Rows: rows[:half]}, &Batch{Run: r.run, Rows: rows[half:]})
		return
	}
	r.lost.Add(rows[0].Requests)
	r.log.Error("what a key was used for in an hour cannot be added and is lost: mend its row in key_usage", "workspace_id", rows[0].Workspace,
		"key_id", rows[0].ID, "hour", rows[0].Hour, "requests", rows[0].Requests, "error", refused)
}

// nextBatch takes the past rows and then what the first counters of the queue have counted,
// and puts these at the back.
func (r *Recorder) nextBatch() []*Batch {
	rows := slices.Clone(r.past[:min(maxRows, len(r.past))])
	r.past = r.past[len(rows):]
	n := 0
	for ; n < len(r.queue) && len(rows) < maxRows; n++ {
		if c := r.queue[n]; c.seen != c.taken {
			rows = append(rows, c.take(r.looked.Truncate(time.Hour)))
		}
	}
	r.queue = slices.Concat(r.queue[n:], r.queue[:n])
	if len(rows) == 0 {
		return nil
	}
	return []*Batch{{Run: r.run, Rows: rows}}
}

// noteAge notes since when counts are not written, for Stats. The first are the oldest.
func (r *Recorder) noteAge() {
	waiting := func(c *counts) bool { return c.seen != c.taken }
	var since time.Time
	if len(r.batches) > 0 {
		since = r.batches[0].Rows[0].since
	} else if len(r.past) > 0 {
		since = r.past[0].since
	} else if n := slices.IndexFunc(r.queue, waiting); n >= 0 {
		since = r.queue[n].since
	} else {
		r.since.Store(nil)
		return
	}
	r.since.Store(&since)
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
