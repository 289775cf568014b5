package postgres

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is the server that gave an answer, as the answer itself names it.
type Server struct {
	Incarnation string // when it was started, by its own clock
	Standby     bool   // it was in recovery
	Database    string // its name
	address     net.Addr
	timeline    string // its system and timeline; empty = not read
}

// ParseServer reads what ServerSQL rendered on the connection.
func ParseServer(text string, conn *pgx.Conn) Server {
	incarnation, rest, _ := strings.Cut(text, "@")
	role, database, _ := strings.Cut(rest, "@")
	return Server{Incarnation: incarnation, Standby: role == "standby", Database: database, address: conn.PgConn().Conn().RemoteAddr()}
}

// Followed is what is known of the primary that the fleet follows.
type Followed struct {
	Incarnation string // empty = not proven at the moment
	Timeline    string // its system and newest timeline; empty = the fleet never followed any
	Database    string // its name; empty = not known
}

// refuses says why an answer is not taken for the primary's; empty = it is.
//
// Invariant, in every mode: an answer that is taken comes
//   - from no server in recovery: its snapshot does not show what it lacks;
//   - from no other database than the fleet's, which a pooler may lead to on the
//     same server;
//   - from the followed incarnation, while that is proven: any other may be an
//     old primary that still runs;
//   - never from an earlier timeline of the system that was followed last: a
//     promotion has ended it. A later start of the followed timeline, a later
//     timeline and another system are taken as soon as nothing is proven of the
//     old one, which is a freshness bound after its last heartbeat. So neither a
//     restart nor a fail-over needs an exception, and in a split brain all nodes
//     that ever followed the later timeline refuse the earlier one.
func (f Followed) refuses(by Server) string {
	switch {
	case by.Standby:
		return fmt.Sprintf("%s is a standby", by.address)
	case f.Database != "" && by.Database != f.Database:
		return fmt.Sprintf("%s is database %s, and not %s", by.address, by.Database, f.Database)
	case f.Incarnation != "" && by.Incarnation != f.Incarnation:
		return fmt.Sprintf("%s, started %s, is not the server that is followed: %s, started %s", by.address, startOf(by.Incarnation), f.Timeline, startOf(f.Incarnation))
	case f.needsTimeline() && earlier(by.timeline, f.Timeline):
		return fmt.Sprintf("%s is %s (system/timeline), which a promotion has ended: %s was followed since", by.address, by.timeline, f.Timeline)
	}
	return ""
}

// needsTimeline says whether refuses depends on the server's timeline.
func (f Followed) needsTimeline() bool { return f.Incarnation == "" && f.Timeline != "" }

// earlier says whether a is an earlier timeline of the same system as b.
func earlier(a, b string) bool {
	system, timeline, _ := strings.Cut(a, "/")
	otherSystem, otherTimeline, _ := strings.Cut(b, "/")
	before, err := strconv.ParseUint(timeline, 10, 32)
	after, otherErr := strconv.ParseUint(otherTimeline, 10, 32)
	return system == otherSystem && err == nil && otherErr == nil && before < after
}

// startOf is an incarnation as people read it.
func startOf(incarnation string) string {
	seconds, err := strconv.ParseFloat(incarnation, 64)
	if err != nil {
		return incarnation
	}
	return time.UnixMilli(int64(1000 * seconds)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// WALPosition is how far a server is: PrimarySQL and StandbySQL read it.
type WALPosition struct {
	Timeline    string // the primary's system and timeline
	LSN         uint64 // where the primary's WAL ends, or what the standby has replayed
	Incarnation string // of the server itself
}

// ScanWALPosition reads a row of PrimarySQL or StandbySQL.
func ScanWALPosition(row pgx.Row) (p WALPosition, err error) {
	var lsn int64
	err = row.Scan(&p.Timeline, &lsn, &p.Incarnation)
	p.LSN = uint64(lsn)
	return p, err
}

// Identity names the database that pages are read from.
type Identity struct {
	System   string // the system identifier of the server
	Timeline uint32 // of the server; 0 = it is in recovery
	Database uint32 // oid
	Name     string // of the database
}

// Identity reads it from any server that answers. A server that refuses is
// neither ErrUnavailable nor ErrTimeout.
func (db *Database) Identity(ctx context.Context) (i Identity, err error) {
	if err = db.Keys.Pool.QueryRow(ctx, identitySQL, pgx.QueryExecModeExec).Scan(&i.System, &i.Timeline, &i.Database, &i.Name); err != nil {
		return Identity{}, fmt.Errorf("identify the database: %w", Classify(err))
	}
	return i, nil
}
