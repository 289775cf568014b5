package changefeed

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"listedge/internal/lists"
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
	term, n, _ := strings.Cut(s, "-")
	p.Term, err = strconv.ParseUint(term, 10, 64)
	if err == nil {
		p.N, err = strconv.ParseUint(n, 10, 64)
	}
	if err != nil {
		return Position{}, fmt.Errorf("position %q: not <term>-<n>", s)
	}
	return p, nil
}

// List is a collection of one workspace: what a change touches, and what a page depends on.
// Of lists.Keys it is one row: Workspace is then the ID of the API key or of the workspace.
// Without a Workspace it stands for those of all workspaces.
type List struct {
	Workspace  uuid.UUID
	Collection lists.Collection
}

// OfAll reports whether the list stands for those of all workspaces.
func (l List) OfAll() bool { return l.Workspace == uuid.Nil }

// MarshalText implements encoding.TextMarshaler: the collection, and the id in base64, if there is one.
func (l List) MarshalText() ([]byte, error) {
	if l.OfAll() {
		return []byte{'0' + byte(l.Collection)}, nil
	}
	return base64.RawStdEncoding.AppendEncode([]byte{'0' + byte(l.Collection)}, l.Workspace[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *List) UnmarshalText(text []byte) error {
	var id []byte
	if len(text) > 0 && text[0]-'0' < byte(lists.Collections) {
		l.Collection, l.Workspace = lists.Collection(text[0]-'0'), uuid.Nil
		if len(text) == 1 {
			return nil
		}
		id, _ = base64.RawStdEncoding.AppendDecode(nil, text[1:])
	}
	if len(id) != len(l.Workspace) {
		return fmt.Errorf("list %q: not a collection and an id", text)
	}
	l.Workspace = uuid.UUID(id)
	return nil
}

// Change is one committed transaction.
type Change struct {
	XID         uint64    `json:"x"` // 64 bits wide: with its wrap-around count
	LSN         uint64    `json:"l"` // the end of its commit record
	Lists       []Touched `json:"p,omitempty"`
	CommittedAt int64     `json:"a,omitempty"` // microseconds since 1970 by the clock of the primary, or of the server it was replicated from; 0 = not known
}

// Unnamed returns the change without its rows, lists and time: all rows of its collections may have changed.
func (c *Change) Unnamed() Change {
	short := Change{XID: c.XID, LSN: c.LSN}
	for collection := range lists.Collections {
		if slices.ContainsFunc(c.Lists, func(l Touched) bool { return l.Collection == collection }) {
			short.Lists = append(short.Lists, AllRowsOf(collection))
		}
	}
	return short
}

// Touched is a list that a transaction changed. In JSON it is the List alone.
type Touched struct {
	List
	// Rows are the rows that changed, as the transaction left them. They are immutable. Without any, each
	// row of the list may have changed; so it is if the list is OfAll.
	Rows []lists.Row
}

// AllRowsOf says that each row of a collection may have changed, in any workspace.
func AllRowsOf(c lists.Collection) Touched { return Touched{List: List{Collection: c}} }

// TermStart is the first entry of a term: a follower has taken the slot.
type TermStart struct {
	Previous Position `json:"p"` // of the last entry before it; a reader at another position has a gap
}

// Heartbeat carries the database's own view of its commits. A follower sends one
// at a time: it takes the next one's snapshot when the log has acknowledged this one.
type Heartbeat struct {
	LSN       uint64   `json:"l"`           // of the primary: each commit whose record lies before it is in the log before this entry
	Snapshot  string   `json:"s"`           // pg_current_snapshot() on the primary
	Timeline  string   `json:"i,omitempty"` // the primary's system and timeline
	StartedAt string   `json:"r,omitempty"` // when the primary was started, by its own clock
	Catalog   string   `json:"c,omitempty"` // the version of the catalog that the snapshot sees, as far as it concerns the tables
	After     Position `json:"f,omitzero"`  // of an entry that the log had acknowledged before the snapshot was taken; zero = the heartbeat proves nothing
	LogServer string   `json:"g,omitempty"` // the server that appended this entry and the one at After; empty = there is one only
	Unsettled []Change `json:"u,omitempty"` // published, and not yet seen by the snapshot; they name no rows, only collections
}

// Entry is an entry of the log: a Change, a TermStart or a Heartbeat.
type Entry struct {
	Position  Position   `json:"-"`
	TermStart *TermStart `json:"t,omitempty"`
	Change    *Change    `json:"c,omitempty"`
	Heartbeat *Heartbeat `json:"h,omitempty"`
}

// Undecodable says that the entry is none of the three: of another version, or damaged.
// A reader has missed what it said.
func (e *Entry) Undecodable() bool {
	return e.TermStart == nil && e.Change == nil && e.Heartbeat == nil
}

// Follows says whether the entry is the next one after the position.
func (e *Entry) Follows(p Position) bool {
	if e.Position.Term == p.Term {
		return e.Position.N == p.N+1
	}
	return e.TermStart != nil && e.TermStart.Previous == p
}

// Snapshot is a pg_current_snapshot(): which transactions a statement saw.
type Snapshot struct {
	Xmin, Xmax uint64   // all transactions below Xmin had ended; none from Xmax on had begun
	Running    []uint64 // those in between that had not ended, ascending
}

// ParseSnapshot reads xmin:xmax:xip,xip,…
func ParseSnapshot(text string) (s Snapshot, err error) {
	fields := strings.Split(text, ":")
	if len(fields) != 3 {
		return Snapshot{}, fmt.Errorf("snapshot %q: not xmin:xmax:xips", text)
	}
	parse := func(text string) (xid uint64) {
		if err == nil {
			xid, err = strconv.ParseUint(text, 10, 64)
		}
		return xid
	}
	s.Xmin, s.Xmax = parse(fields[0]), parse(fields[1])
	if fields[2] != "" {
		for xip := range strings.SplitSeq(fields[2], ",") {
			s.Running = append(s.Running, parse(xip))
		}
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", text, err)
	}
	return s, nil
}

// Sees says whether the effects of a transaction, known to have committed, are
// visible to the statement.
func (s *Snapshot) Sees(xid uint64) bool {
	if xid < s.Xmin {
		return true
	}
	if xid >= s.Xmax {
		return false
	}
	_, running := slices.BinarySearch(s.Running, xid)
	return !running
}

// String writes what ParseSnapshot reads.
func (s Snapshot) String() string {
	running := strings.Trim(fmt.Sprint(s.Running), "[]")
	return fmt.Sprintf("%d:%d:%s", s.Xmin, s.Xmax, strings.ReplaceAll(running, " ", ","))
}

// ReadPoint says which changes the rows of a statement show, which ran on the primary or on a
// standby of it.
type ReadPoint struct {
	StartedAt string   // of the primary: when it was started
	Snapshot  Snapshot // on the primary: the statement's own
	Began     Position // on the primary: of a heartbeat that was taken before the statement began

	Timeline string // that the standby follows: its system and timeline; empty = on the primary
	LSN      uint64 // on the standby: it had replayed up to here before the statement began
	Through  uint64 // on the standby: the end of the WAL that it had received, so the statement shows nothing behind it
}
