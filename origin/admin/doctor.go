package admin

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"listedge/internal/lists"
	"listedge/internal/remedy"
	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// Level says how much a finding matters.
type Level string

// The values of Level.
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

// FindingOf makes the finding of a check: fine, or its error with the remedy that the error
// brings (package remedy), or else otherwise.
func FindingOf(subject string, level Level, fine string, err error, otherwise string) Finding {
	if err == nil {
		return Finding{subject, OK, fine, ""}
	}
	why, do := remedy.Explain(err)
	return Finding{subject, level, why, cmp.Or(do, otherwise)}
}

// DoctorOptions say how a node is configured.
type DoctorOptions struct {
	Region         string // whose slot is checked
	Connections    int    // the most that one node uses
	Nodes          int    // how many there are; 0 = unknown
	ReplicationURL string // as in postgres.Options
}

// doctorSQL is the table of what the doctor asks the primary. WAL_LEVEL stands for follower.WALLevelSQL.
//
//go:embed doctor.sql
var doctorSQL string

// Diagnose checks the primary, until ctx ends. If it cannot be reached, that is a finding, too.
func Diagnose(ctx context.Context, url string, o DoctorOptions) []Finding {
	flag, direct := "--database-url", cmp.Or(o.ReplicationURL, url)
	if o.ReplicationURL != "" {
		flag = "--replication-url"
	}
	conn, err := postgres.Connect(ctx, direct, postgres.ConnectTimeout)
	if postgres.Code(err) == "42501" { // insufficient_privilege: CONNECT
		err = remedy.Add(err, "GRANT CONNECT ON DATABASE … TO …, as `listedge migrate grants` prints it")
	}
	if err != nil {
		return []Finding{FindingOf("postgres", Fail, "", err, "check "+flag+", the server and pg_hba.conf")}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var publication follower.Publication
	rows, _ := conn.Query(ctx, strings.ReplaceAll(doctorSQL, "WAL_LEVEL", follower.WALLevelSQL), follower.SlotPrefix, follower.SlotSuffix(o.Region), lists.Tables(), o.Connections, o.ReplicationURL != "", o.Nodes)
	findings, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Finding])
	if err == nil {
		publication, err = follower.ReadPublication(ctx, conn)
	}
	if code := postgres.Code(err); code == "42703" || code == "42883" { // undefined column or function: the catalogs are those of an older Postgres
		err = remedy.Add(err, "use Postgres 15 or later")
	}
	if err != nil {
		return []Finding{FindingOf("postgres", Fail, "", err, "let this user read the system catalogs")}
	}
	return append(findings,
		FindingOf("publication", Warn, "all tables", judgePublication(publication), ""),
		FindingOf("right to replicate", Warn, "held", judgeReplication(ctx, conn, direct, flag), "let this user open a replication connection to Postgres itself"))
}

// byAge ends the text of a failure because of which changes cannot be followed.
const byAge = "; pages live for --cache-ttl"

func judgePublication(p follower.Publication) error {
	defect, do := p.Defect()
	if defect != "" {
		defect += byAge
	} else if defect, do = p.RowsUnnamed(); defect == "" {
		return nil
	}
	return remedy.Add(errors.New("it "+defect), do)
}

func judgeReplication(ctx context.Context, conn *pgx.Conn, url, flag string) error {
	if postgres.Pooled(conn.PgConn()) {
		return remedy.Add(errors.New("a connection pooler answers at "+flag+": changes cannot be followed through it"+byAge),
			"name Postgres itself in --replication-url")
	}
	if err := follower.CheckReplication(ctx, url); err != nil {
		return fmt.Errorf("%w%s", err, byAge)
	}
	return nil
}
