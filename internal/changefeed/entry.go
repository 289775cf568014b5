package changefeed

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"listedge/internal/list"
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

// AppendBytes appends the position in 16 bytes.
func (p Position) AppendBytes(dst []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, p.Term), p.N)
}

// PositionIn returns the position that the bytes begin with, of which there must be 16.
func PositionIn(b []byte) Position {
	return Position{Term: binary.BigEndian.Uint64(b), N: binary.BigEndian.Uint64(b[8:])}
}

// Table is what a change touches, and what a page depends on: the rows of a list that one tenant sees, or
// one row of those that say who may read lists.
type Table struct {
	List   *list.List // nil = the keys
	Tenant string     // of a list that every workspace sees whole: empty; of the keys: the ID of the API key or of the workspace
	All    bool       // those of all tenants; then Tenant is empty
}

// Sum is a name of the table that all nodes have for it. Tables that have the same name by chance count as one: what is
// said of the one that changed last holds for both.
func (t Table) Sum() uint64 {
	var space [256]byte
	return xxhash.Sum64(appendTable(space[:0], t))
}

// Change is one committed transaction.
type Change struct {
	XID         uint64    `json:"x"`           // 64 bits wide: with its wrap-around count
	LSN         uint64    `json:"l"`           // the end of its commit record
	Touched     []Touched `json:"-"`           // a listed row that changed is in a table of each list of its relation
	CommittedAt int64     `json:"a,omitempty"` // microseconds since 1970 by the clock of the primary, or of the server it was replicated from; 0 = not known
}

// Unnamed returns the change without its rows, tenants and time: all rows of its lists may have changed.
func (c *Change) Unnamed() Change {
	short := Change{XID: c.XID, LSN: c.LSN}
	for _, t := range c.Touched {
		if all := AllRowsOf(t.List); !slices.ContainsFunc(short.Touched, func(known Touched) bool { return known.Table == all.Table }) {
			short.Touched = append(short.Touched, all)
		}
	}
	return short
}

// Touched is a table that a transaction changed.
type Touched struct {
	Table
	// Rows are the rows that changed, as the transaction left them. They are immutable. Without any, each
	// row of the table may have changed; so it is if the table is that of all tenants.
	Rows []list.Row
}

// AllRowsOf says that each row of a list may have changed, whose ever it is; nil = each key.
func AllRowsOf(l *list.List) Touched { return Touched{Table: Table{List: l, All: true}} }

// AllRows says that each row of the lists may have changed, and each key.
func AllRows(lists ...*list.List) []Touched {
	all := []Touched{AllRowsOf(nil)}
	for _, l := range lists {
		all = append(all, AllRowsOf(l))
	}
	return all
}

// TermStart is the first entry of a term: a follower has taken the slot.
type TermStart struct {
	Previous Position `json:"p"` // of the last entry before it; a reader at another position has a gap
}

// Heartbeat carries the database's own view of its commits. A follower sends one
// at a time: it takes the next one's snapshot when the log has acknowledged this one.
type Heartbeat struct {
	LSN       uint64       `json:"l"`           // of the primary: each commit whose record lies before it is in the log before this entry
	Snapshot  string       `json:"s"`           // pg_current_snapshot() on the primary
	Timeline  string       `json:"i,omitempty"` // the primary's system and timeline
	StartedAt string       `json:"r,omitempty"` // when the primary was started, by its own clock
	Catalog   string       `json:"c,omitempty"` // the version of the catalog that the snapshot sees, as far as it concerns the tables
	Followed  []*list.List `json:"-"`           // the lists whose tables the log follows: of others it says nothing
	After     Position     `json:"f,omitzero"`  // of an entry that the log had acknowledged before the snapshot was taken; zero = the heartbeat proves nothing
	LogServer string       `json:"g,omitempty"` // the server that appended this entry and the one at After; empty = there is one only
	Unsettled []Change     `json:"-"`           // published, and not yet seen by the snapshot; they name no rows, only lists
}

// Entry is an entry of the log: a Change, a TermStart or a Heartbeat.
type Entry struct {
	Position  Position
	TermStart *TermStart
	Change    *Change
	Heartbeat *Heartbeat
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

// Point is a place among the changes of a table that heartbeats settle: the heartbeat, and how many rows of the table
// it settled up to there, in the order of the log and of rows in a change. It is the same on every node.
type Point struct {
	At      Position
	Ordinal uint32 // from 1; math.MaxUint32 = behind all of the heartbeat's
}

// EndOf returns the point behind all that a heartbeat settled.
func EndOf(p Position) Point { return Point{p, math.MaxUint32} }

// Compare is negative, zero or positive as p is before, at or after q.
func (p Point) Compare(q Point) int {
	return cmp.Or(p.At.Compare(q.At), cmp.Compare(p.Ordinal, q.Ordinal))
}
