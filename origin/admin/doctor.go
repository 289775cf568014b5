package admin

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
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
	Remedy  string `json:"remedy,omitempty"` // what to do about it
}

// DoctorOptions say how a node is configured.
type DoctorOptions struct {
	Region         string                          // whose slot is checked
	Connections    int                             // the most that one node uses
	ReplicationURL string                          // as in postgres.Options
	Pages          func(*postgres.Database) Reader // as a node reads them
}

// doctorSQL is the table of what the doctor asks the primary.
//
//go:embed doctor.sql
var doctorSQL string

// Diagnose checks the server. If it cannot be reached, that is a finding, too.
func Diagnose(ctx context.Context, url string, o DoctorOptions) []Finding {
	flag, direct := "--database-url", cmp.Or(o.ReplicationURL, url)
	if o.ReplicationURL != "" {
		flag = "--replication-url"
	}
	conn, err := postgres.Connect(ctx, direct)
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
	rows, _ := conn.Query(ctx, doctorSQL, follower.SlotPrefix, follower.SlotSuffix(o.Region), lists.Tables(), o.Connections, o.ReplicationURL != "")
	findings, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Finding])
	if err == nil {
		publication, err = follower.ReadPublication(ctx, conn)
	}
	switch code := postgres.Code(err); {
	case code == "42703", code == "42883": // undefined column, undefined function: the catalogs are those of an older Postgres
		return []Finding{{"postgres", Fail, err.Error(), "use Postgres 14 or later"}}
	case err != nil:
		return []Finding{{"postgres", Fail, err.Error(), "let this user read the system catalogs"}}
	}
	return append(findings, judgePublication(publication), judgeReplication(ctx, conn, direct, flag), judgeReading(ctx, url, o))
}

// byAge is what it means that changes cannot be followed.
const byAge = "; pages live for --cache-ttl"

func judgePublication(p follower.Publication) Finding {
	defect, remedy := p.Defect()
	if defect != "" {
		defect += byAge
	} else if defect, remedy = p.Coarse(); defect == "" {
		return Finding{"publication", OK, "all tables", ""}
	}
	return Finding{"publication", Warn, "it " + defect, remedy}
}

func judgeReplication(ctx context.Context, conn *pgx.Conn, url, flag string) Finding {
	const subject = "right to replicate"
	if postgres.Pooled(conn.PgConn()) {
		return Finding{subject, Warn, "a connection pooler answers at " + flag + ": changes cannot be followed through it" + byAge,
			"name Postgres itself in --replication-url"}
	}
	if err := follower.CheckReplication(ctx, url); err != nil {
		return Finding{subject, Warn, err.Error() + byAge, "let this user open a replication connection to Postgres itself"}
	}
	return Finding{subject, OK, "held", ""}
}

// judgeReading checks that a node could work, with its own statements, settings and connections.
func judgeReading(ctx context.Context, url string, o DoctorOptions) Finding {
	const subject = "reading"
	db, err := postgres.Open(ctx, postgres.Options{URL: url, ReplicationURL: o.ReplicationURL, Connections: 1, QueryTimeout: postgres.PingTimeout})
	if err != nil {
		return Finding{subject, Fail, err.Error(), "check --database-url"}
	}
	defer func() { _ = db.Close(ctx) }()
	err = NewReadiness(db, o.Pages(db)).Ready(ctx)
	var lacks *LackError
	switch {
	case errors.As(err, &lacks):
		return Finding{subject, Fail, lacks.error.Error(), lacks.remedy}
	case errors.Is(err, postgres.ErrTimeout):
		return Finding{subject, Warn, err.Error(), "look for locks, and for what keeps the server busy"}
	case err != nil:
		return Finding{subject, Fail, err.Error(), "check --database-url, and the log of the server that answers there"}
	}
	text := strings.Join(lists.Names(), ", ") + " and API keys, as a node reads them"
	if conn, err := db.Keys.Pool.Acquire(ctx); err == nil {
		defer conn.Release()
		if postgres.Pooled(conn.Conn().PgConn()) {
			text += ", through a connection pooler"
		}
	}
	return Finding{subject, OK, text, ""}
}
