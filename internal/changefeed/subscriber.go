package changefeed

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/fleet"
)

const (
	// readWait is the longest a read of the log waits.
	readWait = 100 * time.Millisecond
	// readTimeout bounds each call to the log.
	readTimeout = 500 * time.Millisecond
	// readPause is the least time between the beginnings of two reads: where entries come
	// fast, one read returns several. A read costs a node as much as several entries do.
	readPause = 2 * time.Millisecond
	// readBackoff is the pause after an error, or while there is no epoch.
	readBackoff = 20 * time.Millisecond
	// epochInterval is how often the current epoch is read while the log has entries.
	// After a read of the log without entries the epoch is read at once: nothing is
	// appended to the log of an old epoch, so there may be a new epoch.
	epochInterval = time.Second
)

// Subscriber reads the log of the current epoch for its listeners. It is one of them, to count.
type Subscriber struct {
	log      Log
	followed *fleet.Followed
	logger   *slog.Logger

	subscription *Subscription // used by Run's goroutine only
	epochRead    time.Time     // when the current epoch was last read; used by Run's goroutine only

	start     time.Time
	heartbeat atomic.Int64 // when a heartbeat was last read, in nanoseconds since start

	mu    sync.Mutex // guards stats
	stats Stats
}

// Stats are a subscriber's numbers.
type Stats struct {
	Epoch   string
	Entries uint64                // applied
	Resets  map[ResetCause]uint64 // by cause; causes that have not occurred are missing
}

// NewSubscriber makes a subscriber, which Run starts. followed decides which logs may be
// read.
func NewSubscriber(log Log, followed *fleet.Followed, logger *slog.Logger, listeners ...Listener) *Subscriber {
	s := &Subscriber{log: log, followed: followed, logger: logger, start: time.Now(), stats: Stats{Resets: map[ResetCause]uint64{}}}
	s.subscription = NewSubscription(append([]Listener{s}, listeners...)...)
	return s
}

// Stats returns the counts since the start and the current epoch.
func (s *Subscriber) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Resets = maps.Clone(stats.Resets)
	return stats
}

// Silence returns how long no heartbeat has been read.
func (s *Subscriber) Silence() time.Duration {
	return time.Since(s.start) - time.Duration(s.heartbeat.Load())
}

// Run reads the log until ctx ends.
func (s *Subscriber) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.readFromOneServer(ctx) // the log reports its failures itself (Redis.Failure)
		pause(ctx, readBackoff)
	}
}

// readFromOneServer reads until a call to the log fails, or another server has the log.
func (s *Subscriber) readFromOneServer(ctx context.Context) error {
	s.epochRead = time.Time{}
	reader, server, err := s.log.Reader(ctx)
	if err != nil {
		return err
	}
	defer reader.Close()
	s.subscription.NewSession(server)
	for err == nil && ctx.Err() == nil && !s.subscription.moved {
		err = s.readOnce(ctx, reader)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *Subscriber) readOnce(ctx context.Context, reader Reader) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if time.Since(s.epochRead) > epochInterval {
		current, err := s.log.Epoch(ctx)
		if err != nil {
			return err
		}
		s.epochRead = time.Now()
		if current != "" && s.followed.ObserveEpoch(current) { // a log that has lost its epoch is read until there is another
			s.subscription.Follow(current)
		}
	}
	epoch, after := s.subscription.Next()
	if epoch != "" && !s.followed.ObserveEpoch(epoch) { // of another database, or of an older timeline
		s.subscription.Follow("")
		epoch = ""
	}
	if epoch == "" {
		s.epochRead = time.Time{}
		pause(ctx, readBackoff)
		return nil
	}
	began := time.Now() // before the command is sent: Subscription
	entries, cut, err := reader.Read(ctx, epoch, after, readWait)
	if err != nil {
		return err
	}
	s.subscription.Apply(began, entries, cut)
	s.mu.Lock()
	s.stats.Entries += uint64(len(entries))
	s.mu.Unlock()
	if len(entries) == 0 {
		s.epochRead = time.Time{}
	}
	pause(ctx, readPause-time.Since(began))
	return nil
}

// Beat implements Listener.
func (s *Subscriber) Beat(Beat) { s.heartbeat.Store(int64(time.Since(s.start))) }

// Reset implements Listener.
func (s *Subscriber) Reset(epoch string, cause ResetCause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch == s.stats.Epoch { // of the log that is read already
		s.logger.Warn("a gap in the log of changes, or an entry that this version cannot read: all pages are read again",
			"after", s.subscription.position.String(), "cause", cause)
	}
	s.stats.Epoch = epoch
	s.stats.Resets[cause]++
}
