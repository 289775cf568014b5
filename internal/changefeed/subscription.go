package changefeed

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"listedge/internal/fleet"
	"listedge/internal/list"
)

// Listener keeps something equal to the database, such as a cache, by the entries of the
// log. One goroutine calls its methods, in the order of the log. They must not block,
// because the log is not read meanwhile.
type Listener interface {
	// Reset: changes may have been missed, so nothing that was read from the database
	// before is valid. From now on the log of this epoch is read: another epoch than
	// before, or the same from a later position. Empty = no log is read.
	Reset(epoch string, cause ResetCause)
	// Beat: a heartbeat was read. The transactions that it settles are visible to all
	// statements that begin from now on. All that were visible at its Moment have been
	// settled by it, or by a Beat before.
	Beat(b Beat)
}

// Beat is a heartbeat. Unsettled has every change before it in the log that its snapshot does
// not see, and Settled every one that it sees and the previous Beat's does not.
type Beat struct {
	Proof     // without a Moment if the heartbeat proves nothing
	Snapshot  Snapshot
	Followed  []*list.List // the lists whose changes the log has
	Settled   []*Change    // published before, and visible now
	Unsettled []*Change    // valid during the call; one that the first heartbeat names has no rows

	Checkpoint *Checkpoint // that was read since the last Beat; nil = none
}

// Proof says, by a heartbeat, which changes this node has applied.
type Proof struct {
	Moment    time.Time // every transaction that was visible at this moment has been applied
	At        Position  // of the heartbeat
	Timeline  string    // the primary: its system and timeline
	StartedAt string    // when the primary was started, by its own clock
	// LSN is the end of the primary's WAL at the moment, or a later one: every commit whose
	// record lies before it was in a Beat, or before the first Beat since a Reset.
	LSN uint64
}

// ResetCause is why the data that was read so far is not valid any more.
type ResetCause string

const (
	ResetJoin        ResetCause = "join"        // an epoch is known, for the first time or again
	ResetEpoch       ResetCause = "epoch"       // another epoch
	ResetGap         ResetCause = "gap"         // an entry is missing
	ResetUndecodable ResetCause = "undecodable" // an entry is damaged, or of another version
)

// ResetCauses are all causes.
var ResetCauses = [...]ResetCause{ResetJoin, ResetEpoch, ResetGap, ResetUndecodable}

// Subscription is the state of one node that reads the log: its position, the
// transactions that are not visible yet, and the reads by which a heartbeat may be a
// proof. It has no I/O and no clock. A Subscriber runs it, and
// package world in virtual time.
//
// Invariants:
//   - every entry of the epoch's log from the first that was read since the last Reset up to
//     the position has been applied, in order and without a gap;
//   - unsettled has every change applied since the last Reset that the snapshot of no
//     heartbeat has seen.
//
// Why a proof is right. The follower takes a heartbeat's snapshot after the entry at
// After has been acknowledged. Before the heartbeat it publishes all transactions that
// the snapshot sees, or it names them as unsettled in the heartbeat. Let a read begin at
// t and see the log end before After: then it was answered before the entry at After was
// in the log. So the snapshot was taken after t, and it sees every transaction that was
// visible at t. All of these have been applied here when the heartbeat has been applied.
// No two clocks are compared. If a process is paused, proofs only become older.
//
// Two conditions must hold. Reads for which they do not hold are not remembered.
//   - The server that answered the read is the server that appended the entry at
//     After. Another server may get the entry later (a replica, or a master that has
//     become one), or may have had it long before. So reads count only within a
//     session, in which one server answers all of them (Reader). And a heartbeat is a
//     proof only if it names this server.
//   - An entry of the epoch has been read. Then the entry at After is read as well, or
//     there is a gap. Before that, a server that has lost its entries cannot be
//     distinguished from one that never had them.
type Subscription struct {
	listeners []Listener

	epoch     string
	begun     bool      // an entry of the epoch has been read since the last Reset
	position  Position  // of the last entry that was applied
	synced    bool      // a heartbeat has been read since the last Reset
	startedAt string    // when the primary was started, by the first of these heartbeats
	server    string    // answers the reads of the current session
	moved     bool      // another server than this one appended the last heartbeat
	reads     []read    // reads by which a heartbeat may be a proof; both fields ascend
	unsettled []*Change // see the invariants

	checkpoint *Checkpoint // for the next heartbeat to hand on; nil = none
	first      Position    // of the first of these heartbeats
	reached    bool        // a checkpoint that reaches it was handed on
}

// read is one read of the log: when it began, and where it saw the log end.
type read struct {
	began time.Time
	end   Position
}

// maxReads bounds the reads that are kept between two heartbeats.
const maxReads = 1024

// NewSubscription makes a subscription without an epoch.
func NewSubscription(listeners ...Listener) *Subscription {
	return &Subscription{listeners: listeners}
}

// Follow begins to read an epoch, unless it is read already; empty = no log may be read.
func (s *Subscription) Follow(epoch string) {
	if epoch == s.epoch {
		return
	}
	cause := ResetEpoch
	if s.epoch == "" {
		cause = ResetJoin
	}
	s.epoch, s.position = epoch, Position{}
	s.reset(cause)
}

// Restore hands a checkpoint on with the next heartbeat. It may be of any epoch, and need not reach the entries that are read.
func (s *Subscription) Restore(c *Checkpoint) { s.checkpoint = c }

// lacksCheckpoint reports whether no checkpoint was handed on, since the last Reset, that reaches the first heartbeat.
func (s *Subscription) lacksCheckpoint() bool { return !s.reached }

// Next returns what to read: the entries of the epoch's log after the position.
func (s *Subscription) Next() (epoch string, after Position) { return s.epoch, s.position }

// NewSession begins a session in which the server answers all reads; empty = there is
// only one server.
func (s *Subscription) NewSession(server string) {
	s.server, s.moved, s.reads = server, false, nil
}

// Apply applies the result of a read: the entries after the position. began is when the
// read began. cut says that the log may have had more entries. An entry that cannot be
// applied causes a reset at once, because the missing entries before it will not come.
func (s *Subscription) Apply(began time.Time, entries []Entry, cut bool) {
	for i := range entries {
		s.apply(&entries[i])
	}
	if !cut && s.begun {
		s.reads = remember(s.reads, read{began, s.position})
	}
}

// remember adds a read to reads. Of several reads that saw the same end only the last is kept,
// because it gives the newest proof.
func remember(reads []read, r read) []read {
	if n := len(reads); n > 0 && reads[n-1].end == r.end {
		reads[n-1] = r
		return reads
	}
	if len(reads) == maxReads { // no heartbeat comes; proofs become older
		return reads
	}
	return append(reads, r)
}

// proves returns the moment of the proof that a heartbeat gives by these reads: the
// beginning of the last read that was answered before the entry at after was in the
// log; zero = there is no such read. rest are the reads for later heartbeats.
func proves(reads []read, after Position) (moment time.Time, rest []read) {
	n := 0
	for n < len(reads) && after.Compare(reads[n].end) > 0 {
		n++
	}
	if n > 0 {
		moment = reads[n-1].began
	}
	return moment, reads[n:]
}

func (s *Subscription) reset(cause ResetCause) {
	s.begun, s.synced, s.startedAt, s.reached = false, false, "", false
	s.reads, s.unsettled = nil, nil
	for _, l := range s.listeners {
		l.Reset(s.epoch, cause)
	}
}

func (s *Subscription) apply(e *Entry) {
	var cause ResetCause // empty = the entry causes no reset
	switch {
	case e.Undecodable():
		cause = ResetUndecodable
	case s.begun && !e.Follows(s.position):
		cause = ResetGap
	case e.Heartbeat != nil && s.synced && e.Heartbeat.StartedAt != s.startedAt: // the server restarted without a new epoch: changes may be missing
		cause = ResetEpoch
	}
	if cause != "" {
		s.reset(cause)
	}
	s.begun, s.position = true, e.Position
	switch {
	case e.Change != nil:
		s.unsettled = append(s.unsettled, e.Change)
	case e.Heartbeat != nil:
		s.heartbeat(e.Heartbeat)
	}
}

// heartbeat calls Beat with the changes that its snapshot sees.
func (s *Subscription) heartbeat(h *Heartbeat) {
	snapshot, err := ParseSnapshot(h.Snapshot)
	if err != nil {
		return // it is no proof
	}
	var settled []*Change
	s.unsettled = slices.DeleteFunc(s.unsettled, func(c *Change) bool {
		sees := snapshot.Sees(c.XID)
		if sees {
			settled = append(settled, c)
		}
		return sees
	})
	s.moved = h.LogServer != "" && h.LogServer != s.server
	proof := Proof{At: s.position, Timeline: h.Timeline, StartedAt: h.StartedAt, LSN: h.LSN}
	if !s.moved {
		proof.Moment, s.reads = proves(s.reads, h.After)
	}
	if !s.synced {
		s.synced, s.startedAt, s.first = true, h.StartedAt, s.position
		for i := range h.Unsettled { // some may have been published before the first entry that was read
			c := &h.Unsettled[i]
			if !slices.ContainsFunc(s.unsettled, func(known *Change) bool { return known.XID == c.XID }) {
				s.unsettled = append(s.unsettled, c)
			}
		}
	}
	for _, l := range s.listeners {
		l.Beat(Beat{proof, snapshot, h.Followed, settled, s.unsettled, s.checkpoint})
	}
	s.reached = s.reached || s.checkpoint != nil && s.checkpoint.At.Compare(s.first) >= 0
	s.checkpoint = nil
}

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
	// checkpointInterval is how often the checkpoint is read until one reaches what was read of the log.
	checkpointInterval = time.Second
	// epochInterval is how often the current epoch is read while the log has entries.
	// After a read of the log without entries the epoch is read at once: nothing is
	// appended to the log of an old epoch, so there may be a new epoch.
	epochInterval = time.Second
	// epochAtRest is how often a node that rests reads it.
	epochAtRest = 5 * time.Second
)

// Subscriber reads the log of the current epoch for its listeners. It is one of them, to count.
type Subscriber struct {
	log      Log
	followed *fleet.Followed
	logger   *slog.Logger

	subscription *Subscription // used by Run's goroutine only
	epochRead    time.Time     // when the current epoch was last read; used by Run's goroutine only
	restored     time.Time     // when the checkpoint was last read; used by Run's goroutine only

	start     time.Time
	heartbeat atomic.Int64 // when a heartbeat was last read, in nanoseconds since start
	rest      atomic.Int64 // see Rest, in nanoseconds

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

// Silence returns how long no heartbeat has been read, beyond the pauses between reads.
func (s *Subscriber) Silence() time.Duration {
	return max(0, time.Since(s.start)-time.Duration(s.heartbeat.Load()+s.rest.Load()))
}

// Rest sets the time between the beginnings of two reads that return entries; 0 = as short as it is reasonable. A node that
// rests costs the log fewer reads. Its proofs, and what it knows, are older by up to twice this time.
func (s *Subscriber) Rest(pause time.Duration) { s.rest.Store(int64(pause)) }

// Run reads the log until ctx ends.
func (s *Subscriber) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = s.readFromOneServer(ctx) // the log reports its failures itself (Redis.Failure)
		fleet.Pause(ctx, readBackoff)
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

func (s *Subscriber) readOnce(ctx context.Context, reader Reader) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rest, interval := time.Duration(s.rest.Load()), epochInterval
	if rest > 0 {
		interval = epochAtRest
	}
	if time.Since(s.epochRead) > interval {
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
		fleet.Pause(ctx, readBackoff)
		return nil
	}
	if s.subscription.lacksCheckpoint() && time.Since(s.restored) > checkpointInterval {
		s.restore(ctx, epoch)
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
	pause := readPause
	if len(entries) > 0 && !cut {
		pause = max(pause, rest)
	}
	fleet.Pause(ctx, pause-time.Since(began))
	return nil
}

// restore reads the checkpoint, before the entries that it is to reach. Without one, clients get more than they lack: that is no
// reason not to read the log.
func (s *Subscriber) restore(ctx context.Context, epoch string) {
	s.restored = time.Now()
	ctx, cancel := context.WithTimeout(ctx, readTimeout/2)
	defer cancel()
	c, err := s.log.Checkpoint(ctx, epoch)
	if err == nil {
		s.subscription.Restore(c)
	}
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
	s.stats.Epoch, s.restored = epoch, time.Time{}
	s.stats.Resets[cause]++
}
