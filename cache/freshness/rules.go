package freshness

import (
	"sync/atomic"
	"time"

	"listedge/internal/changefeed"
)

// Validity is the evidence that one entry is fresh. It is set while the entry is
// filled, or validated from Redis, and only sequence and invalidation change
// afterwards.
type Validity struct {
	sequence         atomic.Uint64 // of the latest change or proof that the entry is known to show; 0 = it may not be stored
	list, collection *listVersion  // what changes it

	// Proof is the latest moment at which the entry is known to have equalled the
	// database: on the primary, when its statement was about to begin.
	Proof time.Duration
	// ReadAt is when reading began. It orders entries of one key that the log does not.
	ReadAt time.Duration

	ReadPoint ReadPoint
	Extent    *Extent             // what the entry shows of the list; nil = not known: every change concerns it
	Epoch     string              // of the log; empty = changes were not followed
	Position  changefeed.Position // the entry shows all changes up to here

	// A hit by rule 1 needs none of these.

	readBy       time.Duration // a moment: reading had ended
	missed       uint64        // sequence of the change that an entry which was NotVisible should show
	invalidation atomic.Pointer[Invalidation]
}

// Admitted reports whether the entry was ever known to show all changes. An entry that
// was not is only shared, for ShareTime.
func (v *Validity) Admitted() bool { return v.sequence.Load() != 0 }

// Missed is the sequence of the change for which the entry was not admitted, because
// its statement did not see it; 0 = there was none.
func (v *Validity) Missed() uint64 { return v.missed }

// Invalidation returns why the entry is not current and never will be; nil = it was not
// found to be invalid yet.
func (v *Validity) Invalidation() *Invalidation { return v.invalidation.Load() }

// NewerThan says whether the entry is known to show more than another of the
// same key: by the log, or, where one of them was not admitted, by when they were
// read. (Not by their proofs: an admitted entry of a standby would lose to one
// that was read from the primary earlier, and too early to be admitted.)
func (v *Validity) NewerThan(o *Validity) bool {
	a, b := v.sequence.Load(), o.sequence.Load()
	if a == 0 || b == 0 || a == b {
		return v.ReadAt > o.ReadAt
	}
	return a > b
}

// State says how an entry may be served.
type State uint8

// The states, in the order in which an entry has them as it ages.
const (
	Fresh   State = iota // serve it
	Stale                // read from the origin; if that fails, serve it marked as stale
	Expired              // never serve it
)

// ByAge is the serving rule where changes are not followed: nothing older than
// ttl is fresh, and nothing older than ttl + maxStale is served.
func ByAge(age, ttl, maxStale time.Duration) State {
	switch {
	case age < ttl:
		return Fresh
	case age < ttl+maxStale:
		return Stale
	}
	return Expired
}

// shareFactor: an answer that was read less than bound/shareFactor ago may be shared.
const shareFactor = 4

// ShareTime is how long the answer to one query may be shared by all requests:
// it omits nothing that is older.
func (t *Tracker) ShareTime() time.Duration { return t.bound / shareFactor }

// Trusted reports whether the last proof is young enough: every change that was visible
// bound ago has been applied.
func (t *Tracker) Trusted(now time.Duration) bool { return int64(now) < t.trustedUntil.Load() }

// IsFresh is the serving rule. Rule 1: nothing has changed since the entry was
// known to be right. Rule 2: its statement saw what has, or it does not concern the
// page. Else, while nothing is proven, or a change is published and not yet visible,
// what was read a moment ago is shared.
func (t *Tracker) IsFresh(v *Validity, now time.Duration) bool {
	recent := now-v.Proof < t.ShareTime()
	if !t.Trusted(now) {
		return recent
	}
	return t.isCurrent(v) || t.revalidate(v) || recent && t.AwaitsVisibility(v)
}

// isCurrent is rule 1. It takes no lock.
func (t *Tracker) isCurrent(v *Validity) bool {
	s := v.sequence.Load()
	return s >= t.join.Load() && v.list != nil && s >= v.list.last.Load() && s >= v.collection.last.Load()
}

// revalidate is rule 2. An entry that passes is current by rule 1 until the next change.
// One that fails stays stale.
func (t *Tracker) revalidate(v *Validity) bool {
	if v.list == nil || v.invalidation.Load() != nil {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.revalidateLocked(v)
}

// revalidateLocked is revalidate for callers that hold the lock.
func (t *Tracker) revalidateLocked(v *Validity) bool {
	s := v.sequence.Load()
	return s >= t.join.Load() && t.pass(v, v.list, v.collection, func(of *listVersion) (Concern, *change) { return of.compareSince(s, v) })
}

// pass raises the entry's sequence to the present one if no newer change of the list, or
// of the whole collection, concerns the entry. Otherwise it stores which one does.
// compare compares the entry with the newer changes.
func (t *Tracker) pass(v *Validity, list, collection *listVersion, compare func(*listVersion) (Concern, *change)) bool {
	concern, c := compare(list)
	if concern == Unconcerned {
		concern, c = compare(collection)
	}
	t.compared[concern].Add(1)
	if concern != Unconcerned {
		v.invalidation.Store(c.invalidation(concern))
		return false
	}
	v.sequence.Store(t.sequence)
	return true
}

// Age is how long ago the entry is known to have equalled the database.
func (t *Tracker) Age(v *Validity, now time.Duration) time.Duration {
	age := now - v.Proof
	if t.isCurrent(v) {
		if proven := now - time.Duration(t.proof.Load()); proven >= 0 {
			age = min(age, proven)
		}
	}
	return max(0, age)
}

// AwaitsVisibility says whether the entry was read while a change of its list
// was published and not yet visible, and still is not.
func (t *Tracker) AwaitsVisibility(v *Validity) bool {
	if v.list == nil || v.Admitted() {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return v.list.hasUnsettled() || v.collection.hasUnsettled()
}

// ValidateFromRedis is rule 2 for an entry that another node stored in Redis,
// with its position in the log. It must have been read from the
// server that is followed here, or from a standby of it. An entry that passes is
// current here. It equalled the database at the moment of this node's proof,
// whatever the clocks say of when it was read, and is taken for no younger than
// that.
func (t *Tracker) ValidateFromRedis(v *Validity, list changefeed.List, now time.Duration) bool {
	if !t.Trusted(now) {
		return false
	}
	v.Extent.index()
	version := t.lockFor(list)
	defer t.mu.RUnlock()
	if v.Epoch != t.epoch || v.Position.Compare(t.joinedAt) < 0 || t.isOfWrongServer(&v.ReadPoint) {
		return false
	}
	collection := t.collections[list.Collection]
	if !t.pass(v, version, collection, func(of *listVersion) (Concern, *change) { return of.compareAfter(v.Position, v) }) {
		return false
	}
	v.list, v.collection, v.readBy = version, collection, now
	v.ReadAt = time.Duration(t.proof.Load()) // it shows no less; else an entry that this node read later and may not store would replace it
	v.Proof = min(v.Proof, v.ReadAt)
	return true
}

// lockFor locks the tracker for reading, and returns the list's version, which is
// remembered from then on.
func (t *Tracker) lockFor(list changefeed.List) *listVersion {
	for {
		t.mu.RLock()
		if v := t.lists.known[list]; v != nil {
			return v
		}
		t.mu.RUnlock()
		t.mu.Lock()
		t.lists.of(list)
		t.mu.Unlock()
	}
}

// isOfWrongServer says whether a statement ran neither on the primary that is
// followed, in its present run, nor on a standby of it.
func (t *Tracker) isOfWrongServer(r *ReadPoint) bool {
	if r.OnStandby() {
		return r.Server != t.last.Server
	}
	return r.Run != t.last.Run
}

// FillStart is the state of the tracker when a fill began.
type FillStart struct {
	at      time.Duration
	join    uint64
	trusted bool
}

// Begin is called before an entry is read. readAt is now, and never later than
// that.
func (t *Tracker) Begin(readAt, now time.Duration) FillStart {
	return FillStart{at: readAt, join: t.join.Load(), trusted: t.Trusted(now)}
}

// Admission says whether an entry that was just read may be stored, and if not,
// why.
type Admission uint8

// The admissions.
const (
	Admitted    Admission = iota
	Untrusted             // nothing was proven when the fill began
	Late                  // it took longer than a fill may
	Resynced              // the node was reset meanwhile
	NotVisible            // a change is known that the statement's snapshot does not see
	Lagging               // a change is known that the standby had not replayed
	WrongServer           // not this primary, or not a standby of it
	Admissions
)

// String is the name that the metrics use.
func (a Admission) String() string {
	return [...]string{"admitted", "untrusted", "late", "resynced", "not-visible", "lagging", "wrong-server"}[a]
}

// Admit decides whether an entry that was just read may be stored: whether its
// statement saw every change that is known here, that it might have missed and that
// concerns its page. On a standby that is every change there ever was; the entry is
// then proven by the node's own proof, and not by when the standby was asked.
func (t *Tracker) Admit(start FillStart, v *Validity, list changefeed.List, now time.Duration) Admission {
	v.Extent.index()
	var version *listVersion
	if start.trusted {
		version = t.lockFor(list)
	} else { // the list is not remembered: while nothing is proven, none is forgotten
		t.mu.RLock()
	}
	defer t.mu.RUnlock()
	r := &v.ReadPoint
	standby := r.OnStandby()
	switch {
	case t.database.OldTimeline() != nil && (!t.joined || t.isOfWrongServer(r)):
		return WrongServer
	case !standby && t.last.Run != "" && r.Run != t.last.Run && t.Trusted(now):
		return WrongServer // whatever was known when the fill began
	case !start.trusted:
		return Untrusted
	case start.join != t.join.Load():
		return Resynced
	case max(now, t.pruned)-start.at > t.fillTimeout: // the caller may have been paused since it looked at the clock
		return Late
	case standby && r.Server != t.last.Server:
		return WrongServer
	case standby && r.LSN < t.joinLSN:
		return Lagging
	}
	collection := t.collections[list.Collection]
	concern, c := version.compareRecent(v)
	if concern == Unconcerned {
		concern, c = collection.compareRecent(v)
	}
	if concern != Unconcerned && standby {
		return Lagging
	}
	v.list, v.collection, v.readBy = version, collection, now
	if concern != Unconcerned {
		v.missed = c.sequence
		return NotVisible
	}
	if standby {
		v.Proof = time.Duration(t.proof.Load())
	}
	v.Epoch, v.Position = t.epoch, t.position
	v.sequence.Store(t.sequence)
	return Admitted
}

// Requirement is what a standby must have replayed for its entry to be admitted,
// and what is known of its primary.
type Requirement struct {
	Server  string    // the primary's system and timeline
	Run     string    // when it was started, by its own clock
	LSN     uint64    // replayed at least up to here
	Primary uint64    // where the primary's WAL ended
	At      time.Time // then, or later
}

// Require returns what a standby must have replayed for its entry of the list to
// be admitted; ok is false where none would be.
func (t *Tracker) Require(list changefeed.List, now time.Duration) (r Requirement, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.last.Server == "" || !t.Trusted(now) {
		return Requirement{}, false
	}
	return Requirement{Server: t.last.Server, Run: t.last.Run, Primary: t.last.LSN, At: t.provenAt,
		LSN: max(t.joinLSN, t.lists.lastLSN(list), t.collections[list.Collection].lastLSN)}, true
}
