package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with the risk or loss that the text names
	Fail Level = "fail" // does not work
)

// Finding is the result of one check.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Do      string `json:"do,omitempty"` // what to do about it
}

// Judge returns the finding that something is bad, and what to do, or that it is fine.
func Judge(subject string, bad bool, level Level, fine, text, do string) Finding {
	if !bad {
		return Finding{subject, OK, fine, ""}
	}
	return Finding{subject, level, text, do}
}

// DoctorOptions say how a node is configured.
type DoctorOptions struct {
	Region         string                          // whose slot is checked
	Connections    int                             // the most that one node uses
	ReplicationURL string                          // as in postgres.Options
	Pages          func(*postgres.Database) Reader // as a node reads them
}

// oldestWriterSQL describes the oldest transaction that has written something: slots retain
// the WAL from its begin on. Whose sessions this user may not see have no age.
const oldestWriterSQL = `SELECT text FROM (
	SELECT xact_start AS since, format('process %s of user %s in database %s, open for %s', pid, usename, datname,
		coalesce(date_trunc('second', clock_timestamp() - xact_start)::text, 'an unknown time')) AS text
	FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
	UNION ALL SELECT prepared, format('the prepared transaction %L of user %s in database %s, open for %s', gid, owner, database,
		date_trunc('second', clock_timestamp() - prepared)) FROM pg_prepared_xacts) w
	ORDER BY since LIMIT 1`

// factsSQL reads facts, for a slot whose name begins with $1 and ends with $2.
var factsSQL = `
WITH me AS (SELECT * FROM pg_roles WHERE rolname = current_user),
slot AS (SELECT *, to_jsonb(s) ->> 'invalidation_reason' AS reason FROM pg_replication_slots s
	WHERE slot_name = $1 || (SELECT oid FROM pg_database WHERE datname = current_database()) || $2)
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS version_text,
	current_setting('wal_level') AS wal_level, pg_encoding_to_char(d.encoding) AS encoding,
	current_setting('synchronous_standby_names') AS standbys, current_setting('max_slot_wal_keep_size') AS keep_size,
	(SELECT setting::bigint * 1048576 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep_bytes,
	coalesce(nullif(current_setting('idle_replication_slot_timeout', true), '0'), '') AS idle_timeout, -- which is since Postgres 18
	pg_is_in_recovery() AS standby,
	me.rolsuper AS superuser,
	coalesce((SELECT bool_and(pg_has_role(current_user, relowner, 'USAGE')) FROM pg_class
		WHERE oid IN (SELECT to_regclass(n) FROM unnest(` + lists.TablesSQL + `) n)), false) AS owner,
	EXISTS (SELECT FROM slot WHERE active) AS active, coalesce((SELECT wal_status = 'lost' FROM slot), false) AS lost,
	coalesce((SELECT reason = 'idle_timeout' FROM slot), false) AS idle,
	EXISTS (SELECT FROM slot) AS slot,
	current_setting('max_replication_slots')::int AS slots, (SELECT count(*) FROM pg_replication_slots)::int AS slots_used,
	current_setting('max_wal_senders')::int AS senders, (SELECT count(*) FROM pg_stat_replication)::int AS senders_used,
	current_setting('max_connections')::int AS connections,
	(SELECT sum(numbackends) FROM pg_stat_database)::int AS used,
	coalesce((SELECT greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0)
		FROM slot), 0)::bigint AS retained,
	coalesce((` + oldestWriterSQL + `), '') AS oldest_writer
FROM pg_database d, me WHERE d.datname = current_database()`

// facts are what the server says about itself: one row of factsSQL.
type facts struct {
	Version                                                   int
	VersionText, WALLevel, Encoding, Standbys, KeepSize       string
	IdleTimeout, OldestWriter                                 string
	Standby, Superuser, Owner                                 bool
	Active, Lost, Idle                                        bool
	Slot                                                      bool
	Slots, SlotsUsed, Senders, SendersUsed, Connections, Used int
	Retained, KeepBytes                                       int64
}

// Diagnose checks the server. If it cannot be reached, that is a finding, too.
func Diagnose(ctx context.Context, url string, o DoctorOptions) []Finding {
	flag := "--database-url"
	if o.ReplicationURL != "" {
		flag = "--replication-url"
	}
	conn, err := postgres.Connect(ctx, cmp.Or(o.ReplicationURL, url))
	if postgres.Code(err) == "42501" { // insufficient_privilege: CONNECT
		return []Finding{{"postgres", Fail, err.Error(), "GRANT CONNECT ON DATABASE … TO …, as `listedge migrate grants` prints it"}}
	}
	if err != nil {
		return []Finding{{"postgres", Fail, err.Error(), "check " + flag + ", the server and pg_hba.conf"}}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, 4*postgres.PingTimeout)
	defer cancel()
	var publication follower.Publication
	rows, _ := conn.Query(ctx, factsSQL, follower.SlotPrefix, follower.SlotSuffix(o.Region))
	f, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[facts])
	if err == nil {
		publication, err = follower.ReadPublication(ctx, conn)
	}
	if err != nil {
		return []Finding{{"postgres", Fail, err.Error(), "let this user read the system catalogs"}}
	}
	findings := append(judge(f, publication, o), judgeReplication(ctx, cmp.Or(o.ReplicationURL, url)), judgeSchema(ctx, conn), judgeReading(ctx, url, o),
		judgeUsage(ctx, conn), judgeLocks(ctx, conn))
	if postgres.Pooled(conn.PgConn()) {
		findings = append(findings, Finding{"following", Warn, "a connection pooler answers at " + flag +
			": changes cannot be followed through it; pages live for --cache-ttl",
			"name Postgres itself in --replication-url"})
	}
	return findings
}

// ttl is what it means that changes cannot be followed.
const ttl = "; pages live for --cache-ttl"

func judgeReplication(ctx context.Context, url string) Finding {
	if err := follower.CheckReplication(ctx, url); err != nil {
		return Finding{"right to replicate", Warn, err.Error() + ttl, "let this user open a replication connection to Postgres itself"}
	}
	return Finding{"right to replicate", OK, "held", ""}
}

func judgeSchema(ctx context.Context, conn *pgx.Conn) Finding {
	version, known, err := schemaVersion(ctx, conn)
	switch want := wantedVersion(); {
	case err != nil:
		return Finding{"schema", Fail, "its version cannot be read: " + err.Error(), "run `listedge migrate up`"}
	case !known: // a node needs no right to it
		return Finding{"schema", OK, "this user may not read its version", ""}
	case version == 0:
		return Finding{"schema", Fail, "there is none", "run `listedge migrate up`"}
	case version < want:
		return Finding{"schema", Fail, fmt.Sprintf("version %d, this program needs %d", version, want), "run `listedge migrate up`"}
	case version > want:
		return Finding{"schema", Warn, fmt.Sprintf("version %d, this program knows %d", version, want), "use the newer program"}
	}
	return Finding{"schema", OK, fmt.Sprintf("version %d", version), ""}
}

// judgeReading checks reading with a node's own statements, settings and connections.
func judgeReading(ctx context.Context, url string, o DoctorOptions) Finding {
	fail := func(err error, do string) Finding { return Finding{"reading", Fail, err.Error(), do} }
	db, err := postgres.Open(ctx, postgres.Options{URL: url, ReplicationURL: o.ReplicationURL, Connections: 1, QueryTimeout: postgres.PingTimeout})
	if err != nil {
		return fail(err, "check --database-url")
	}
	defer func() { _ = db.Close(ctx) }()
	r := NewReadiness(db, o.Pages(db))
	switch do, err := r.checkReaders(ctx); {
	case errors.Is(err, postgres.ErrTimeout):
		return Finding{"reading", Warn, err.Error(), "look for locks, and for what keeps the server busy"}
	case errors.Is(err, postgres.ErrWrongServer):
		return fail(err, "name the primary in --database-url, and standbys in --replica-url")
	case err != nil:
		return fail(err, cmp.Or(do, "check --database-url, and the log of the server that answers there"))
	}
	if err := r.checkReplicationURL(ctx); err != nil {
		return fail(err, "name the server and the database that --database-url leads to")
	}
	text := strings.Join(lists.Names(), ", ") + " and API keys, as a node reads them"
	conn, err := db.Keys.Pool.Acquire(ctx)
	if err == nil {
		defer conn.Release()
		if postgres.Pooled(conn.Conn().PgConn()) {
			text += ", through a connection pooler"
		}
	}
	return Finding{"reading", OK, text, ""}
}

// missingWritesSQL returns a command for each right that this user lacks to write the usage
// of keys, or for the tables that do not exist.
const missingWritesSQL = `
SELECT 'run listedge migrate up' WHERE to_regclass('public.usage_writers') IS NULL
UNION ALL
SELECT format('GRANT SELECT, INSERT, UPDATE, DELETE ON public.%I TO %I', relname, current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('key_usage', 'key_last_used', 'usage_writers')
	AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT') AND has_table_privilege(oid, 'UPDATE')
		AND has_table_privilege(oid, 'DELETE'))
UNION ALL
SELECT DISTINCT format('ALTER ROLE %I BYPASSRLS', current_user) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relname IN ('key_usage', 'key_last_used', 'usage_writers') AND row_security_active(oid)`

// judgeUsage checks whether a node may write the usage of keys.
func judgeUsage(ctx context.Context, conn *pgx.Conn) Finding {
	rows, _ := conn.Query(ctx, missingWritesSQL)
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return Finding{"usage", Warn, "its rights cannot be read: " + err.Error(), "let this user read the system catalogs"}
	case len(missing) > 0:
		return Finding{"usage", Warn, "the usage of keys is not counted: this user may not write it", strings.Join(missing, "; ")}
	}
	return Finding{"usage", OK, "this user may write the usage of keys", ""}
}

// lockedSQL says, for each session that locks tables of lists or keys, what it locks and how
// to end it: statements have waited for the lock for over 100 ms, or it has kept readers away
// for over a second. Of a queue it names the first. Process 0 is a prepared transaction.
// Indexes and partitions count as their table. It reads only catalogs that are never locked.
var lockedSQL = `
WITH RECURSIVE tables (oid, name) AS (
	SELECT to_regclass(n)::oid, n FROM unnest(` + lists.TablesSQL + `) n
	UNION ALL SELECT inhrelid, name FROM tables JOIN pg_inherits ON inhparent = oid
),
relations AS (SELECT * FROM tables UNION ALL SELECT indexrelid, name FROM tables JOIN pg_index ON indrelid = oid),
locks AS (
	SELECT name, pid, granted, mode, waitstart FROM pg_locks l JOIN relations r ON r.oid = l.relation
	WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
),
holders AS (
	SELECT name, w.pid AS waits, waitstart AS since, h.pid FROM locks w, LATERAL
		(SELECT pid FROM unnest(pg_blocking_pids(w.pid)) pid ORDER BY cardinality(pg_blocking_pids(pid)) LIMIT 1) h
	WHERE NOT granted AND waitstart < clock_timestamp() - interval '100 ms'
	UNION ALL SELECT name, NULL, xact_start, l.pid FROM locks l JOIN pg_stat_activity USING (pid)
	WHERE granted AND mode = 'AccessExclusiveLock' AND xact_start < clock_timestamp() - interval '1 s'
)
SELECT format('%s locked by %s; statements that wait: %s, since %s', string_agg(DISTINCT name, ' and ' ORDER BY name),
	CASE pid WHEN 0 THEN 'a prepared transaction' ELSE format('process %s (%s: %s)', pid, coalesce(max(state), 'of another user'),
		left(regexp_replace(max(query), '\s+', ' ', 'g'), 100)) END, count(DISTINCT waits), date_trunc('second', min(since))),
	CASE pid WHEN 0 THEN 'COMMIT PREPARED or ROLLBACK PREPARED each transaction in pg_prepared_xacts' ELSE format('SELECT pg_terminate_backend(%s)', pid) END
FROM holders LEFT JOIN pg_stat_activity USING (pid) GROUP BY pid ORDER BY pid`

// judgeLocks finds locks that block pages or writers.
func judgeLocks(ctx context.Context, conn *pgx.Conn) Finding {
	var texts, ends []string
	var text, end string
	rows, _ := conn.Query(ctx, lockedSQL)
	_, err := pgx.ForEachRow(rows, []any{&text, &end}, func() error {
		texts, ends = append(texts, text), append(ends, end)
		return nil
	})
	if err != nil {
		return Finding{"locks", Warn, "cannot be read: " + err.Error(), "let this user read the system catalogs"}
	}
	return Judge("locks", len(texts) > 0, Warn, "no statement waits for one on the tables", strings.Join(texts, "; "),
		"let the holder finish, or end it: "+strings.Join(ends, "; "))
}

// judge turns the facts into findings. A node works without following changes, so what
// is missing only for following is a warning.
func judge(f facts, publication follower.Publication, o DoctorOptions) (findings []Finding) {
	say := func(subject string, bad bool, level Level, fine, text, do string) {
		findings = append(findings, Judge(subject, bad, level, fine, text, do))
	}
	s := server{version: f.Version, encoding: f.Encoding}
	tooOld, upgrade := s.tooOld()
	say("version", tooOld != "", Fail, f.VersionText, tooOld, upgrade)
	if o.ReplicationURL == "" {
		say("primary", f.Standby, Fail, "this is the primary", "this is a standby: nodes take neither pages nor keys from it",
			"name the primary in --database-url, and standbys in --replica-url")
	} else {
		say("primary", f.Standby, Warn, "this is the primary", "this is a standby: changes cannot be followed here"+ttl, "name the primary in --replication-url")
	}
	say("wal_level", f.WALLevel != "logical", Warn, "logical", f.WALLevel+": changes cannot be followed"+ttl, "set wal_level = logical and restart Postgres")
	say("max_replication_slots", !f.Slot && f.SlotsUsed+2 > f.Slots, Warn, fmt.Sprintf("%d of %d used", f.SlotsUsed, f.Slots),
		fmt.Sprintf("%d of %d used: following changes takes one, and two while it is made%s", f.SlotsUsed, f.Slots, ttl),
		"raise it and restart Postgres, or drop a slot that nobody needs")
	say("max_wal_senders", !f.Active && f.SendersUsed >= f.Senders, Warn, fmt.Sprintf("%d of %d used", f.SendersUsed, f.Senders),
		fmt.Sprintf("all %d used, none is left to follow changes%s", f.Senders, ttl), "raise it and restart Postgres")
	const keepDo = "set max_slot_wal_keep_size to what the disk can spare, and reload"
	switch unlimited := f.KeepBytes < 0; {
	case unlimited && f.IdleTimeout != "":
		say("max_slot_wal_keep_size", true, Warn, "",
			"not set: a slot may fill the primary's disk until nobody has followed it for "+f.IdleTimeout+" (idle_replication_slot_timeout)", keepDo)
	default:
		say("max_slot_wal_keep_size", unlimited, Fail, f.KeepSize, "not set: while no node follows, the slot may fill the primary's disk", keepDo)
	}
	owner := "this user does not own the tables, and nodes need not; only the owner can run `listedge migrate up`"
	if f.Owner || f.Superuser {
		owner = "the user owns the tables"
	}
	say("ownership", false, OK, owner, "", "")
	defect, do := publication.Defect()
	if defect != "" {
		defect += ttl
	} else {
		defect, do = publication.Coarse()
	}
	say("publication", defect != "", Warn, "all tables", "it "+defect, do)
	findings = append(findings, judgeSlot(f))
	other, utf8 := s.notUTF8()
	say("encoding", other != "", Fail, f.Encoding, other, utf8)
	nodes := (f.Connections - f.Used) / max(o.Connections, 1)
	say("max_connections", nodes < 2, Warn, fmt.Sprintf("%d, of which %d are used: room for %d more nodes", f.Connections, f.Used, nodes),
		fmt.Sprintf("%d, of which %d are used, and a node uses up to %d", f.Connections, f.Used, o.Connections), "raise it, or lower --database-connections")
	say("synchronous_standby_names", strings.Contains(f.Standbys, "*"), Warn, "'"+f.Standbys+"'",
		"'"+f.Standbys+"' counts a follower as a standby that commits wait for"+ttl, "name the standbys instead of *")
	return findings
}

// manyRetained is how much WAL a slot retains when ListedgeRetainedWAL fires, or half of the
// limit if that is less.
const manyRetained = 512 << 20

// judgeSlot judges what the slot retains.
func judgeSlot(f facts) Finding {
	const subject = "slot"
	retains := "retains " + size(f.Retained) + " of WAL"
	if f.KeepBytes >= 0 {
		retains += ", of " + size(f.KeepBytes) + " that max_slot_wal_keep_size allows"
	}
	switch {
	case f.Lost && f.Idle:
		return Finding{subject, Warn, "nobody followed it for idle_replication_slot_timeout, so Postgres invalidated it",
			"nothing: the next follower makes a new one"}
	case f.Lost:
		return Finding{subject, Warn, "it retained more WAL than max_slot_wal_keep_size allows, so Postgres invalidated it",
			"nothing: the next follower makes a new one; raise max_slot_wal_keep_size if it happens often"}
	case !f.Slot:
		return Finding{subject, Warn, "there is none", "nothing: a node makes it if it may, and so does `listedge migrate up`"}
	case !f.Active:
		return Finding{subject, Warn, "no node follows it, and it " + retains, "start a node; `listedge migrate drop-slot` if no node will ever run again"}
	case f.Retained < manyRetained && (f.KeepBytes < 0 || f.Retained < f.KeepBytes/2):
		return Finding{subject, OK, "followed, " + retains, ""}
	case f.OldestWriter == "":
		return Finding{subject, Warn, "followed, " + retains, "see whether the follower keeps up: ListedgeRetainedWAL in the runbook"}
	}
	return Finding{subject, Warn, "followed, " + retains + "; the oldest write transaction is " + f.OldestWriter,
		"end that transaction: Postgres keeps WAL from its begin on"}
}

func size(bytes int64) string {
	const mebibyte = 1 << 20
	if bytes < 10*mebibyte {
		return fmt.Sprintf("%d KiB", bytes/1024)
	}
	return fmt.Sprintf("%d MiB", bytes/mebibyte)
}
