package changefeed

import (
	"slices"
	"time"
)

// Listener keeps something equal to the database, such as a cache, by the entries of the
// log. One goroutine calls its methods, in the order of the log. They must not block,
// because the log is not read meanwhile.
type Listener interface {
	// Reset: changes may have been missed, so nothing that was read from the database
	// before is valid. From now on the log of this epoch is read: another epoch than
	// before, or the same from a later position. Empty = no log is read.
	Reset(epoch string, cause ResetCause)
	// Changed: a transaction was published. Statements may not see it yet.
	Changed(at Position, c *Change)
	// Beat: a heartbeat was read. The transactions that it settles are visible to all
	// statements that begin from now on.
	Beat(b Beat)
	// ValidThrough: all transactions that were visible at the moment of the proof have
	// been settled.
	ValidThrough(p Proof)
}

// Beat is a heartbeat. Unsettled has every change before it in the log that its snapshot does
// not see, and Settled every one that it sees and the previous Beat's does not.
type Beat struct {
	Position  Position
	Snapshot  Snapshot
	LSN       uint64    // every commit whose record lies before it was given to Changed, or before the first Beat since a Reset
	Timeline  string    // the primary: its system and timeline
	StartedAt string    // when the primary was started, by its own clock
	Settled   []*Change // published before, and visible now
	Unsettled []*Change // valid during the call; one that the first heartbeat names has no rows
}

// Proof says, by a heartbeat, which changes this node has applied.
type Proof struct {
	Moment    time.Time // every transaction that was visible at this moment has been applied
	At        Position  // of the heartbeat
	Timeline  string    // the primary: its system and timeline
	StartedAt string    // when the primary was started, by its own clock
	LSN       uint64    // the end of the primary's WAL at the moment, or a later one
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
// proof. It has no I/O and no clock. A Subscriber runs it; the model of package cache
// runs it in virtual time.
//
// Invariants:
//   - listeners have received every entry of the epoch's log from the first that was read
//     since the last Reset up to the position, in order and without a gap;
//   - unsettled has every change given to Changed since the last Reset that the
//     snapshot of no heartbeat has seen.
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

// Follow begins to read another epoch; empty = no log may be read.
func (s *Subscription) Follow(epoch string) (cause ResetCause) {
	cause = ResetEpoch
	if s.epoch == "" {
		cause = ResetJoin
	}
	s.epoch, s.position = epoch, Position{}
	s.reset(cause)
	return cause
}

// Next returns what to read: the entries of the epoch's log after the position.
func (s *Subscription) Next() (epoch string, after Position) { return s.epoch, s.position }

// NewSession begins a session in which the server answers all reads; empty = there is
// only one server.
func (s *Subscription) NewSession(server string) {
	s.server, s.moved, s.reads = server, false, nil // mutation: reads outlive the session
}

// LogHasMoved reports whether the follower writes the log to another server than the one
// from which the session reads.
func (s *Subscription) LogHasMoved() bool { return s.moved }

// Apply applies the result of a read: the entries after the position. began is when the
// read began. cut says that the log may have had more entries. Apply returns the causes
// of resets. An entry that cannot be applied causes a reset at once, because the missing
// entries before it will not come.
func (s *Subscription) Apply(began time.Time, entries []Entry, cut bool) (causes []ResetCause) {
	for i := range entries {
		if cause := s.apply(&entries[i]); cause != "" {
			causes = append(causes, cause)
		}
	}
	if !cut && s.begun { // mutation: a read that was cut proves; a read before the first entry proves
		s.reads = remember(s.reads, read{began, s.position})
	}
	return causes
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
// log. ok is false if there is no such read. rest are the reads for later heartbeats.
func proves(reads []read, after Position) (moment time.Time, rest []read, ok bool) {
	n := 0
	for n < len(reads) && after.Compare(reads[n].end) > 0 { // mutation: any heartbeat is a proof; a read that saw the entry at After proves
		n++
	}
	if n == 0 {
		return moment, reads, false
	}
	return reads[n-1].began, reads[n:], true
}

func (s *Subscription) reset(cause ResetCause) {
	s.begun, s.synced, s.startedAt = false, false, ""
	s.reads, s.unsettled = nil, nil // mutation: reads outlive a reset
	for _, l := range s.listeners {
		l.Reset(s.epoch, cause)
	}
}

// apply returns why the entry caused a reset; empty = it caused none.
func (s *Subscription) apply(e *Entry) (cause ResetCause) {
	switch {
	case e.Undecodable(): // mutation: entries that cannot be decoded ignored
		cause = ResetUndecodable
	case s.begun && !e.Follows(s.position): // mutation: gaps ignored
		cause = ResetGap
	// mutation: no epoch for a crash, and no reset; a restart is overlooked
	case e.Heartbeat != nil && s.synced && e.Heartbeat.StartedAt != s.startedAt: // the server restarted without a new epoch: changes may be missing
		cause = ResetEpoch
	}
	if cause != "" {
		s.reset(cause)
	}
	s.begun, s.position = true, e.Position
	switch {
	case e.Change != nil:
		s.changed(e.Change)
	case e.Heartbeat != nil:
		s.heartbeat(e.Heartbeat)
	}
	return cause
}

func (s *Subscription) changed(c *Change) {
	s.unsettled = append(s.unsettled, c)
	for _, l := range s.listeners {
		l.Changed(s.position, c)
	}
}

// heartbeat calls Beat with the changes that its snapshot sees. Then it calls
// ValidThrough if the heartbeat is a proof.
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
	s.moved = h.LogServer != "" && h.LogServer != s.server // mutation: a heartbeat of another server proves
	var moment time.Time
	proof := false
	if !s.moved {
		moment, s.reads, proof = proves(s.reads, h.After)
	}
	if !s.synced {
		s.synced, s.startedAt = true, h.StartedAt
		s.adoptUnsettled(h.Unsettled) // mutation: no unsettled at join
	}
	for _, l := range s.listeners {
		l.Beat(Beat{s.position, snapshot, h.LSN, h.Timeline, h.StartedAt, settled, s.unsettled})
	}
	if !proof {
		return
	}
	for _, l := range s.listeners {
		l.ValidThrough(Proof{Moment: moment, At: s.position, Timeline: h.Timeline, StartedAt: h.StartedAt, LSN: h.LSN})
	}
}

// adoptUnsettled adds the unsettled transactions of the first heartbeat: they may have been
// published before the first entry that was read.
func (s *Subscription) adoptUnsettled(unsettled []Change) {
	for i := range unsettled {
		c := &unsettled[i]
		if !slices.ContainsFunc(s.unsettled, func(known *Change) bool { return known.XID == c.XID }) {
			s.changed(c)
		}
	}
}
