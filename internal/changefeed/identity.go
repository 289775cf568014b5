package changefeed

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Identity is what a fleet follows: one database of one Postgres. A copy of the
// database has another oid, so another identity; a standby, and what it becomes when
// it is promoted, has the same.
type Identity struct {
	System   string // the system identifier of pg_control_system()
	Database uint32 // oid
	Name     string // of the database: for people, not part of the identity
}

// Digest is the identity as twelve letters and digits, for names of keys.
func (i Identity) Digest() string {
	return Digest(fmt.Sprintf("%s/%d", i.System, i.Database))
}

func (i Identity) String() string {
	return fmt.Sprintf("database %s (oid %d of Postgres %s)", i.Name, i.Database, i.System)
}

// Digest is a short hash of a text, without dots.
func Digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:6])
}

// EpochName is the unique name of an epoch. All parts but the timeline are words without
// dots.
type EpochName struct {
	Identity  string // the digest of what is followed
	Timeline  uint32 // of the primary: a promoted standby's is higher than that of the primary it replaces
	Instance  string // of the server
	Published string // state of the publication
	Random    string
}

func (n EpochName) String() string {
	return strings.Join([]string{n.Identity, strconv.FormatUint(uint64(n.Timeline), 10), n.Instance, n.Published, n.Random}, ".")
}

// ParseEpoch reads what String wrote; ok is false for any other name.
func ParseEpoch(name string) (n EpochName, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 5 {
		return EpochName{}, false
	}
	timeline, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil {
		return EpochName{}, false
	}
	return EpochName{parts[0], uint32(timeline), parts[2], parts[3], parts[4]}, true
}

// Followed is what a node knows of the database that its fleet follows: its identity,
// the timeline of the server that the node is connected to, and the newest timeline
// that the fleet has followed. Nothing is known until the server has answered. Safe
// for use by several goroutines.
//
// Invariant: a node reads no log of a timeline older than either of the two.
type Followed struct {
	Region string // the name of the fleet; empty = it has none

	mu       sync.Mutex // guards all below
	identity Identity
	digest   string // of identity; empty = it is not known yet
	timeline uint32 // of this node's server; 0 = not known
	newest   uint32 // of the epochs of this identity that this node has seen
}

// Prefix begins all keys of the fleet in Redis. Fleets of different regions that use one
// Redis share none.
func (f *Followed) Prefix() string {
	if f.Region == "" {
		return "listedge:"
	}
	return "listedge:" + f.Region + ":"
}

// logPrefix begins the fleet's keys that have to be on one server of a Cluster.
func (f *Followed) logPrefix() string { return f.Prefix() + "{changes}:" }

// EpochKey is the key of Redis that names the present epoch.
func (f *Followed) EpochKey() string { return f.logPrefix() + f.Digest() + ":epoch" }

// SetServer records the identity and the timeline of the server. The timeline is 0 if the
// server is in recovery and does not know it.
func (f *Followed) SetServer(identity Identity, timeline uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if digest := identity.Digest(); digest != f.digest {
		f.digest, f.newest = digest, 0
	}
	f.identity, f.timeline = identity, timeline
}

// Identity is what is followed; ok is false while it is not known.
func (f *Followed) Identity() (identity Identity, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.identity, f.digest != ""
}

// Digest is that of the identity; empty while it is not known.
func (f *Followed) Digest() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.digest
}

// MarshalText implements encoding.TextMarshaler: it names the database; empty = not known yet.
func (f *Followed) MarshalText() (text []byte, err error) {
	if identity, ok := f.Identity(); ok {
		text = []byte(identity.String())
	}
	return text, nil
}

// ObserveEpoch records the present epoch, and says whether its log may be read: it must be of
// this identity, and of no older timeline. Names of another form belong to any
// identity and to no timeline.
func (f *Followed) ObserveEpoch(epoch string) (readable bool) {
	n, ok := ParseEpoch(epoch)
	if !ok {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.digest != "" && n.Identity != f.digest {
		return false
	}
	f.newest = max(f.newest, n.Timeline)
	return n.Timeline >= max(f.newest, f.timeline)
}

// TimelineError: the database server is on an older timeline than the fleet
// follows. It is not the primary any more, or its files were restored.
type TimelineError struct {
	Server, Fleet uint32
}

func (e *TimelineError) Error() string {
	return fmt.Sprintf("the database server is on timeline %d; the fleet follows timeline %d", e.Server, e.Fleet)
}

// OldTimeline says that the node's server is on an older timeline than the
// fleet follows; nil if it is not, as far as is known.
func (f *Followed) OldTimeline() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timeline == 0 || f.timeline >= f.newest {
		return nil
	}
	return &TimelineError{Server: f.timeline, Fleet: f.newest}
}

// OldTimelineRemedy is what an operator can do about an old timeline.
func (f *Followed) OldTimelineRemedy() string {
	return "connect the node to the new primary; if a copy of the server has taken over, such as a restored backup, give its nodes a Redis of their own; " +
		"to return to the older timeline for good, stop all nodes, delete " + f.EpochKey() + " in Redis, and start them"
}

// Newest is the newest timeline that the fleet has followed; 0 = none is known.
func (f *Followed) Newest() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.newest
}

// CheckTimeline says that the present epoch is of a newer timeline than the epoch of a server, of
// the same identity; nil if it is not.
func CheckTimeline(present, ofServer string) error {
	was, _ := ParseEpoch(present)
	is, ok := ParseEpoch(ofServer)
	if !ok || is.Identity != was.Identity || is.Timeline >= was.Timeline {
		return nil
	}
	return &TimelineError{Server: is.Timeline, Fleet: was.Timeline}
}
