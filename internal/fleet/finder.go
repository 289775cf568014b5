package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Finder finds out which database and which timeline the fleet of a node follows, before the
// node answers, and records both in Followed. Later it asks the database again and again, as
// long as nobody else does.
type Finder struct {
	Followed *Followed
	Needed   func() bool                           // whether nobody else asks the database
	Ask      func(context.Context) (Server, error) // asks the database
	Away     error                                 // of Ask: the database has not answered
	Epoch    func(context.Context) (string, error) // reads the present epoch of the log

	failure atomic.Pointer[error] // nil = nothing was recorded, or nobody need ask
}

const (
	// askInterval is how often the database is asked; askRetry, while that fails, or while the
	// next answer may come from a new primary.
	askInterval = 5 * time.Second
	askRetry    = 200 * time.Millisecond
	askTimeout  = time.Second
	// startPause is the time between two reads of the epoch at the start, and startTimeout is how
	// long they go on, and the longest that each may take.
	startPause   = 50 * time.Millisecond
	startTimeout = 500 * time.Millisecond
)

// Run finds the timeline, and then asks the database until ctx ends.
func (f *Finder) Run(ctx context.Context) {
	if !f.Followed.KnowsTimeline() {
		f.findTimeline(ctx)
	}
	for ctx.Err() == nil {
		interval := askInterval
		if f.ask(ctx) != nil || f.Followed.OldTimeline() != nil {
			interval = askRetry
		}
		Pause(ctx, interval)
	}
}

// findTimeline decides when a starting node may judge answers of the database. It may once it
// has read the timeline that the fleet follows, or has tried to for startTimeout since the
// database first answered.
//
// Invariant: before that, no page and no key is read from the database. So an answer of an old
// primary is never taken for the primary's (Followed). There are two exceptions: the node has no
// right to ask for the identity, or Redis has not answered for startTimeout. A node also serves
// without Redis, but it knows the timeline of the fleet only when Redis answers.
func (f *Finder) findTimeline(ctx context.Context) {
	var answered time.Time // when the database first answered; before, it returns no pages either
	for ; ctx.Err() == nil; Pause(ctx, startPause) {
		err := f.ask(ctx)
		if answered.IsZero() && !errors.Is(err, f.Away) {
			answered = time.Now()
		}
		read := err == nil && f.readEpoch(ctx)
		if !answered.IsZero() && (read || time.Since(answered) >= startTimeout) {
			close(f.Followed.Known)
			return
		}
	}
}

// readEpoch reads the epoch of the fleet's log: it has the timeline that the fleet follows. It
// reports whether Redis has answered.
func (f *Finder) readEpoch(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	epoch, err := f.Epoch(ctx)
	if err == nil {
		f.Followed.ObserveEpoch(epoch)
	}
	return err == nil
}

// ask asks the database which one it is, if nobody else does.
func (f *Finder) ask(ctx context.Context) error {
	if !f.Needed() {
		f.failure.Store(nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	server, err := f.Ask(ctx)
	if !f.Needed() { // another has found it meanwhile
		return nil
	}
	if !errors.Is(err, f.Away) {
		f.Found(server, err)
	}
	return err
}

// Found records the database's answer.
func (f *Finder) Found(s Server, err error) {
	if err == nil {
		f.Followed.SetServer(s)
	}
	f.failure.Store(&err)
}

// Failure is why the last answer did not say which database it is; nil = it did, or none was
// needed.
func (f *Finder) Failure() error {
	if err := f.failure.Load(); err != nil {
		return *err
	}
	return nil
}
