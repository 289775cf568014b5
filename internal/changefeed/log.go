// Package changefeed is the log of changes that keeps the caches of a fleet
// equal to the database: one node, the follower, writes what Postgres commits,
// and all nodes read it in one order.
//
//	Postgres ── slot ──► follower ── Append ──► log of an epoch ──► Reader of every node
//	                                                                       │
//	     pages, API keys ◄── Listener ◄── Subscription ◄── Subscriber ◄────┘
//
// An entry's position is <term>-<n>. A term begins when a node takes over the slot; n
// counts 1, 2, 3 … without gaps. A log refuses a position that is not above its last:
// this fences a follower that has lost its slot and does not know. A new epoch is a
// new log: nothing of the old one is valid any more.
package changefeed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Position is an entry's place in the log of an epoch. The zero Position is
// before all entries.
type Position struct{ Term, N uint64 }

// Compare is negative, zero or positive as p is before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Term, q.Term), cmp.Compare(p.N, q.N))
}

func (p Position) String() string {
	return strconv.FormatUint(p.Term, 10) + "-" + strconv.FormatUint(p.N, 10)
}

// ParsePosition reads what String wrote.
func ParsePosition(s string) (p Position, err error) {
	term, n, ok := strings.Cut(s, "-")
	if p.Term, err = strconv.ParseUint(term, 10, 64); err == nil && ok {
		p.N, err = strconv.ParseUint(n, 10, 64)
	}
	if err != nil || !ok {
		return Position{}, fmt.Errorf("position %q: not <term>-<n>", s)
	}
	return p, nil
}

// Collection is a kind of rows: the two kinds of lists, and the rows that say who may
// read them.
type Collection uint8

// The collections.
const (
	Items Collection = iota
	Contacts
	Keys // api_keys and workspaces
	Collections
)

// List is the items, or the contacts, of one workspace: what a change touches, and what
// a page depends on. Of Keys, a list is one row: the ID is the key's or the
// workspace's.
type List struct {
	Workspace  uuid.UUID
	Collection Collection
}

// Change is one committed transaction.
type Change struct {
	XID         uint64 `json:"x"`           // 64 bits wide: with its wrap-around count
	LSN         uint64 `json:"l"`           // the end of its commit record
	CommittedAt int64  `json:"a,omitempty"` // microseconds since 1970 by the clock of the primary, or of the server it was replicated from; 0 = not known
	Lists       []List `json:"p,omitempty"`
	Rows        []Rows `json:"r,omitempty"` // of each of Lists; those beyond the end are nil
	NameOrder   uint32 `json:"n,omitempty"` // the alphabet of the rows' name keys; 0 = none
	Whole       uint8  `json:"w,omitempty"` // a bit for each collection touched as a whole
}

// RowsOf returns the rows of Lists[i] that changed; nil = any may have.
func (c *Change) RowsOf(i int) Rows {
	if i < len(c.Rows) {
		return c.Rows[i]
	}
	return nil
}

// Touches says whether the collection is touched as a whole.
func (c *Change) Touches(collection Collection) bool { return c.Whole&(1<<collection) != 0 }

// NeverAfter is before all entries, and not zero: with it a heartbeat proves nothing.
var NeverAfter = Position{N: 1}

// TermStart begins a term: another follower holds the slot.
type TermStart struct {
	Previous Position `json:"p"` // the last entry before it; a reader that was elsewhere has a gap
}

// Heartbeat carries the database's own view of its commits. A follower sends one
// at a time: it takes the next one's snapshot when the log has acknowledged this one.
type Heartbeat struct {
	LSN       uint64            `json:"l"`
	Snapshot  string            `json:"s"`           // pg_current_snapshot() on the primary
	Server    string            `json:"i,omitempty"` // of the primary: its system and timeline
	Run       string            `json:"r,omitempty"` // and when it was started, by its own clock
	Catalog   string            `json:"c,omitempty"` // the version of the catalog that the snapshot sees, as far as it concerns the tables
	After     Position          `json:"f,omitzero"`  // of an entry that the log had acknowledged before the snapshot was taken; zero = an older version does not say
	LogServer string            `json:"g,omitempty"` // that the entry at After and this one were appended by; empty = there is one only, or an older version does not say
	Unsettled []Change          `json:"u,omitempty"` // published, and not yet seen by the snapshot
	Nonces    map[string]uint64 `json:"n,omitempty"` // the probes of nodes of older versions, read before the snapshot was taken
}

// Entry is one of the three. Versions of this program meet in one log: what an
// older one may ignore is a new field, what it must not is a new kind.
type Entry struct {
	Position  Position   `json:"-"`
	TermStart *TermStart `json:"t,omitempty"`
	Change    *Change    `json:"c,omitempty"`
	Heartbeat *Heartbeat `json:"h,omitempty"`
}

// Undecodable says that the entry is none of the three: of a newer version, or damaged.
// A reader has missed what it said.
func (e *Entry) Undecodable() bool {
	return e.TermStart == nil && e.Change == nil && e.Heartbeat == nil
}

// Follows says whether there is no entry between the position and this one.
func (e *Entry) Follows(p Position) bool {
	if e.Position.Term == p.Term {
		return e.Position.N == p.N+1
	}
	return e.TermStart != nil && e.TermStart.Previous == p
}

// ErrFenced: the log has entries at or above the position.
var ErrFenced = errors.New("position is not above the log's last")

// ErrSuperseded: the present epoch is neither the expected one nor the new one.
var ErrSuperseded = errors.New("another epoch has begun")

// Error is an error of a log that cannot be reached, or refuses an operation.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap is for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Log stores entries: in Redis for a fleet, in process for a single node.
// Implementations pass one suite.
type Log interface {
	// Epoch names the present epoch; empty when there is none.
	Epoch(ctx context.Context) (string, error)
	// SetEpoch replaces the epoch that was read before (empty: there was none, or it
	// was lost). If to is the present one already, nothing is done.
	// Errors: ErrSuperseded; after any other it is not known whether it was done, and
	// it may be tried again.
	SetEpoch(ctx context.Context, from, to string) error
	// Append adds entries, in ascending order, without entries of others between them.
	// Errors: ErrFenced, if one was refused; ErrSuperseded, if another epoch is
	// present and none of them starts a term. After any other error it is not known
	// how many were added: those up to Last are, if they are of its term.
	Append(ctx context.Context, epoch string, entries ...Entry) error
	// Last is the position of the newest entry ever appended.
	Last(ctx context.Context, epoch string) (Position, error)
	// Reader opens a reader, which its user closes.
	Reader(ctx context.Context) (Reader, error)
	// Trim removes the entries before the position.
	Trim(ctx context.Context, epoch string, before Position) error
}

// Reader reads logs from one server. After a read that got no answer, all later reads
// fail: a new Reader may be connected to another server, and it is not known when
// that one received its entries. Not safe for use by several goroutines.
type Reader interface {
	// Read returns the entries after the position, oldest first. It waits up to wait
	// for the first; none is no error. An entry that cannot be decoded is Undecodable
	// and has its position, so that the reader can continue after it. cut says that
	// the log may have had more of them.
	Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, cut bool, err error)
	// Server names the server that answers; empty = there is one only.
	Server() string
	Close() error
}
