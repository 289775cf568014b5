package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/fleet"
)

// startedSQL is when the server was started, timelineSQL its timeline; 0 = it is in recovery and
// does not know it. The control file would name a new timeline too late.
const (
	startedSQL  = `extract(epoch FROM pg_postmaster_start_time())::text`
	timelineSQL = `CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END`
)

// ServerSQL is an expression that identifies the answering server and its database:
// <startedAt>@<timeline>@<database>. ParseServer reads it.
const ServerSQL = startedSQL + ` || '@' || ` + timelineSQL + ` || '@' || current_database()`

// ParseServer reads what ServerSQL rendered on the connection. It knows the name of the
// database, and not the rest of the identity.
func ParseServer(text string, conn *pgconn.PgConn) (s fleet.Server) {
	var timeline string
	s.StartedAt, text, _ = strings.Cut(text, "@")
	timeline, s.Name, _ = strings.Cut(text, "@")
	number, _ := strconv.ParseUint(timeline, 10, 32) // 0 if it is none
	s.Timeline, s.Address = uint32(number), conn.Conn().RemoteAddr()
	return s
}

// Identify asks a connection, or a pool, which server answers. The identity lasts as long as
// the files of the database, whatever its host.
func Identify(ctx context.Context, of interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (s fleet.Server, err error) {
	err = of.QueryRow(ctx, `SELECT system_identifier::text, oid, datname::text, `+timelineSQL+`, `+startedSQL+`
		FROM pg_control_system(), pg_database WHERE datname = current_database()`, pgx.QueryExecModeExec).
		Scan(&s.System, &s.Database, &s.Name, &s.Timeline, &s.StartedAt)
	if err != nil {
		return s, fmt.Errorf("identify the database: %w", Classify(err))
	}
	return s, nil
}

// WALPosition is how far a server has written or replayed WAL. PrimarySQL and StandbySQL
// read it.
type WALPosition struct {
	fleet.Server        // of a standby, Timeline is that of the WAL it receives; without Name
	LSN          uint64 // where the primary's WAL ends, or what the standby has replayed
}

// ScanWALPosition reads a row of PrimarySQL or StandbySQL.
func ScanWALPosition(row pgx.Row) (p WALPosition, err error) {
	err = row.Scan(&p.System, &p.Timeline, &p.LSN, &p.StartedAt)
	return p, err
}

// PrimarySQL reads a primary's WALPosition.
const PrimarySQL = `
SELECT system_identifier::text, ` + timelineSQL + `, (pg_current_wal_lsn() - '0/0')::int8, ` + startedSQL + `
FROM pg_control_system()`

// StandbySQL reads a standby's WALPosition: the server that it follows, and the LSN up
// to which it has replayed. It returns no row if the server is not a standby, receives
// no WAL, or does not let this user see its WAL receiver.
//
// The timeline is that of the WAL receiver. The control file names a new timeline only
// minutes later. Meanwhile, WAL of another primary that the standby has replayed would
// be taken for WAL of the old one. A standby that has replayed more of the old timeline
// than the new one contains cannot change to the new one, so its receiver never names
// it.
const StandbySQL = `
SELECT system_identifier::text, r.received_tli::int8, (pg_last_wal_replay_lsn() - '0/0')::int8, ` + startedSQL + `
FROM pg_control_system(), pg_stat_wal_receiver r
WHERE pg_is_in_recovery() AND pg_last_wal_replay_lsn() IS NOT NULL AND r.received_tli IS NOT NULL`
