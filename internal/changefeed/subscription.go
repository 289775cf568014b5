package changefeed

import (
	"slices"
	"time"
)

// Listener keeps something equal to the database, by the entries of the log. One
// goroutine calls its methods, in the order of the log. They must not block: reading
// waits for them.
type Listener interface {
	// Reset: changes may have been missed, so nothing that was read from the database
	// before is valid. From now on the log of another epoch is read, or the same from
	// a later position; empty = none.
	Reset(epoch string, cause ResetCause)
	// Changed: a transaction was published. Statements may not see it yet.
	Changed(at Position, c *Change)
	// Settled: a transaction that was published is visible to all statements
	// that begin from now on.
	Settled(c *Change)
	// ValidThrough: Changed and Settled have been called for all transactions that
	// were visible at a moment.
	ValidThrough(p Proof)
}

// Proof is what a heartbeat proves of the changes that this node has applied.
type Proof struct {
	Moment time.Time // every transaction that was visible then has been applied
	At     Position  // of the heartbeat
	First  Position  // of the first entry that was read since the last Reset
	Server string    // the primary: its system and timeline
	Run    string    // and when it was started, by its own clock
	LSN    uint64    // where its WAL ended at the moment, or later
}

// ResetCause is why what was read so far is not valid any more.
type ResetCause uint8

// The causes.
const (
	ResetJoin        ResetCause = iota // an epoch is known, for the first time or again
	ResetEpoch                         // another epoch
	ResetGap                           // an entry is missing
	ResetUndecodable                   // an entry is of a kind that only newer versions know, or damaged
	resetCauses
)

func (c ResetCause) String() string { return [...]string{"join", "epoch", "gap", "undecodable"}[c] }

// ResetCauses are the texts of all causes.
func ResetCauses() (all []string) {
	for c := range resetCauses {
		all = append(all, c.String())
	}
	return all
}

// Subscription is the state of one node's reading: its position in the log, the
// transactions that are not visible yet, and the reads that may prove something. It has
// no I/O and no clock: a Subscriber runs it, and so do simulations.
//
// Invariants:
//   - listeners have received every entry of the epoch's log from First up to the
//     position, in order and without a gap, or a Reset since;
//   - unsettled has every change given to Changed since the last Reset that the
//     snapshot of no heartbeat has seen.
//
// Why a proof is one. The follower takes a heartbeat's snapshot after the entry
// at After has been acknowledged, and publishes before the heartbeat what the
// snapshot sees, or names it unsettled in the heartbeat. A read that began at t
// and saw the log end before After was answered before that entry was in the
// log. So the snapshot was taken after t and sees everything that was visible at
// t: it has been applied here when the heartbeat has been. No two clocks are
// compared, and a process that is paused anywhere makes a proof older only.
// For that, two conditions must hold, and reads for which they do not are not
// remembered:
//   - The server that answered is the one by which the entry at After was
//     appended: another may get it later (a replica, or a master that has become
//     one), or may have had it long before. So only reads of one session count
//     together, all answered by one server (Reader), and only heartbeats prove that
//     name this server.
//   - An entry of the epoch has been read. Then the entry at After is read as
//     well, or there is a gap. Before that, a server that has lost its entries
//     looks like one that never had them.
type Subscription struct {
	listeners []Listener

	epoch     string
	begun     bool     // an entry of it has been read since the last Reset
	first     Position // that entry's
	position  Position // of the last entry that was applied
	barrier   Position // of the last heartbeat or start of the present term; zero = not known
	proven    bool     // since the last Reset
	run       string   // that was proven
	server    string   // that answers the reads at present
	misled    bool     // the last heartbeat was not appended by it
	reads     []read   // that may prove something: both fields ascend
	unsettled []Change
}

// read is one look at the log: it began at a moment and saw the log end here.
type read struct {
	began time.Time
	end   Position
}

// mostReads bounds the reads that are kept between two heartbeats.
const mostReads = 1024

// NewSubscription begins without an epoch.
func NewSubscription(listeners ...Listener) *Subscription {
	return &Subscription{listeners: listeners}
}

// Follow begins to read another epoch; empty = none may be read.
func (s *Subscription) Follow(epoch string) (cause ResetCause) {
	cause = ResetEpoch
	if s.epoch == "" {
		cause = ResetJoin
	}
	s.epoch, s.position = epoch, Position{}
	s.reset(cause)
	return cause
}

// Next is what to read: the entries of the epoch's log after the position.
func (s *Subscription) Next() (epoch string, after Position) { return s.epoch, s.position }

// NewSession says which server answers the reads from now on; empty = there is one only.
func (s *Subscription) NewSession(server string) {
	s.server, s.misled, s.reads = server, false, nil
}

// Misled says that the follower writes the log by another server than the session's.
func (s *Subscription) Misled() bool { return s.misled }

// Apply applies the result of a read that began at a moment: the entries after the
// position. cut says that there may have been more of them. It returns the causes of
// resets: an entry that cannot be applied resets at once, because what is missing
// before it will not come.
func (s *Subscription) Apply(began time.Time, entries []Entry, cut bool) (causes []ResetCause) {
	for i := range entries {
		if cause, ok := s.apply(&entries[i]); !ok {
			causes = append(causes, cause)
		}
	}
	if !cut && s.begun {
		s.reads = remember(s.reads, read{began, s.position})
	}
	return causes
}

// remember adds a read. Of several that saw the same end, the last proves most.
func remember(reads []read, r read) []read {
	if n := len(reads); n > 0 && reads[n-1].end == r.end {
		reads[n-1] = r
		return reads
	}
	if len(reads) == mostReads { // keep every second one: proofs are a little older
		for i := range mostReads / 2 {
			reads[i] = reads[2*i]
		}
		reads = reads[:mostReads/2]
	}
	return append(reads, r)
}

// proves returns the moment that a heartbeat proves by these reads, if any: the
// beginning of the last read that was answered before the entry at after was in the
// log. rest are the reads that a later heartbeat may prove.
func proves(reads []read, after Position) (moment time.Time, rest []read, ok bool) {
	n := 0
	for n < len(reads) && after.Compare(reads[n].end) > 0 {
		n++
	}
	if n == 0 {
		return moment, reads, false
	}
	return reads[n-1].began, reads[n:], true
}

func (s *Subscription) reset(cause ResetCause) {
	s.begun, s.proven, s.run = false, false, ""
	s.barrier, s.reads, s.unsettled = Position{}, nil, nil
	for _, l := range s.listeners {
		l.Reset(s.epoch, cause)
	}
}

func (s *Subscription) apply(e *Entry) (cause ResetCause, ok bool) {
	ok = true
	switch {
	case e.Undecodable():
		cause, ok = ResetUndecodable, false
	case s.begun && !e.Follows(s.position):
		cause, ok = ResetGap, false
	case e.Heartbeat != nil && s.proven && e.Heartbeat.Run != s.run: // the server restarted without a new epoch: what happened meanwhile is not known
		cause, ok = ResetEpoch, false
	}
	if !ok {
		s.reset(cause)
	}
	if !s.begun {
		s.begun, s.first = true, e.Position
	}
	s.position = e.Position
	switch {
	case e.TermStart != nil:
		s.barrier = e.Position
	case e.Change != nil:
		s.changed(e.Change)
	case e.Heartbeat != nil:
		s.heartbeat(e.Heartbeat)
		s.barrier = e.Position
	}
	return cause, ok
}

func (s *Subscription) changed(c *Change) {
	s.unsettled = append(s.unsettled, *c)
	for _, l := range s.listeners {
		l.Changed(s.position, c)
	}
}

// heartbeat settles the changes that its snapshot sees, and then proves what it can.
func (s *Subscription) heartbeat(h *Heartbeat) {
	snapshot, err := ParseSnapshot(h.Snapshot)
	if err != nil {
		return // it proves nothing
	}
	s.unsettled = slices.DeleteFunc(s.unsettled, func(c Change) bool {
		settled := snapshot.Sees(c.XID)
		if settled {
			for _, l := range s.listeners {
				l.Settled(&c)
			}
		}
		return settled
	})
	after := h.After
	if after == (Position{}) { // from version 0.1.0, which also sends one heartbeat at a time
		after = s.barrier
	}
	if s.misled = h.LogServer != "" && h.LogServer != s.server; s.misled {
		return
	}
	moment, rest, ok := proves(s.reads, after)
	if !ok {
		return
	}
	s.reads = rest
	if !s.proven {
		s.proven, s.run = true, h.Run
		s.join(h.Unsettled)
	}
	for _, l := range s.listeners {
		l.ValidThrough(Proof{Moment: moment, At: s.position, First: s.first, Server: h.Server, Run: h.Run, LSN: h.LSN})
	}
}

// join adds the transactions that are not visible yet and may have been published
// before the first entry that was read.
func (s *Subscription) join(unsettled []Change) {
	for i := range unsettled {
		c := &unsettled[i]
		if !slices.ContainsFunc(s.unsettled, func(known Change) bool { return known.XID == c.XID }) {
			s.changed(c)
		}
	}
}
