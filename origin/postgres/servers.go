package postgres

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// This file has the statements of the package, except the one that Settings renders.

// Expressions: when a server was started, and the timeline of one that is not in recovery.
const (
	startedSQL  = `extract(epoch FROM pg_postmaster_start_time())::text`
	timelineSQL = `('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8`
)

// ServerSQL is an expression that identifies the answering server and its database:
// <run>@<standby or primary>@<database>. ParseServer reads it.
const ServerSQL = startedSQL + ` || CASE WHEN pg_is_in_recovery() THEN '@standby@' ELSE '@primary@' END || current_database()`

// identitySQL identifies a database independently of its host. The identity lasts as long
// as the database's files. A server in recovery does not know its timeline.
const identitySQL = `
SELECT system_identifier::text, CASE WHEN pg_is_in_recovery() THEN 0 ELSE ` + timelineSQL + ` END, oid, datname::text
FROM pg_control_system(), pg_database WHERE datname = current_database()`

// Timeline is a timeline of a Postgres system. The zero value is not known.
type Timeline struct {
	System string // its identifier
	Number uint32 // each promotion begins the next
}

func (t Timeline) String() string { return fmt.Sprintf("%s/%d", t.System, t.Number) }

// endedBy says whether a promotion ended the timeline, if the system is on the newer one.
func (t Timeline) endedBy(newer Timeline) bool {
	return t.System == newer.System && t.Number < newer.Number // mutation: any timeline is the primary's
}

// WALPosition is how far a server has written or replayed WAL. PrimarySQL and StandbySQL
// read it.
type WALPosition struct {
	Timeline  Timeline // the primary's
	LSN       uint64   // where the primary's WAL ends, or what the standby has replayed
	StartedAt string   // of the server itself
}

// ScanWALPosition reads a row of PrimarySQL or StandbySQL.
func ScanWALPosition(row pgx.Row) (p WALPosition, err error) {
	var lsn int64
	err = row.Scan(&p.Timeline.System, &p.Timeline.Number, &lsn, &p.StartedAt)
	p.LSN = uint64(lsn)
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

const isStandbySQL = `SELECT pg_is_in_recovery()`
