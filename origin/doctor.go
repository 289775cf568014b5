package origin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin/follower"
	"listedge/origin/postgres"
)

// Level says how much a finding matters.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, with a risk or a loss that is told
	Fail Level = "fail" // does not work
)

// Finding is one thing that was looked at.
type Finding struct {
	Subject string `json:"subject"`
	Level   Level  `json:"level"`
	Text    string `json:"text"`
	Do      string `json:"do,omitempty"` // what to do about it
}

// DoctorOptions say what to expect.
type DoctorOptions struct {
	Region      string // whose slot is looked at
	Connections int    // that one node uses at most
	Primary     string // as in DatabaseOptions
}

// facts are what the server says of itself, in one row.
type facts struct {
	Version                                                     int
	VersionText, WALLevel, Encoding, Standbys, KeepSize, Status string
	Standby, Superuser, Replication, Owner                      bool
	Active, Lost, Trigram, GIN, ICU, OtherICU                   bool
	Slot                                                        bool
	Slots, SlotsUsed, Senders, SendersUsed, Connections, Used   int
	Retained                                                    int64
}

// Diagnose looks at the server. That it cannot be reached is a finding, too.
func Diagnose(ctx context.Context, url string, o DoctorOptions) []Finding {
	flag := "--database-url"
	if o.Primary != "" {
		flag = "--replication-url"
	}
	conn, err := postgres.Connect(ctx, cmp.Or(o.Primary, url))
	if postgres.Code(err) == "42501" { // insufficient_privilege: CONNECT
		return []Finding{{"postgres", Fail, err.Error(), "GRANT CONNECT ON DATABASE … TO …, as `listedge migrate grants` prints it"}}
	}
	if err != nil {
		return []Finding{{"postgres", Fail, err.Error(), "check " + flag + ", the server and pg_hba.conf"}}
	}
	defer conn.Close(context.WithoutCancel(ctx))
	ctx, cancel := context.WithTimeout(ctx, 4*postgres.PingTimeout)
	defer cancel()
	rows, err := conn.Query(ctx, factsSQL, follower.SlotPrefix, follower.SlotSuffix(o.Region))
	if err == nil {
		var f facts
		if f, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[facts]); err == nil {
			var published follower.Publication
			if published, err = follower.ReadPublication(ctx, conn); err == nil {
				findings := append(judge(f, published, o), judgeSchema(ctx, conn), judgeReading(ctx, url, o.Primary), judgeLocks(ctx, conn))
				if postgres.Pooled(conn.PgConn()) {
					findings = append(findings, Finding{"following", Warn, "a connection pooler answers at " + flag + ": changes cannot be followed through it; pages live --cache-ttl",
						"name Postgres itself in --replication-url"})
				}
				return findings
			}
		}
	}
	return []Finding{{"postgres", Fail, err.Error(), "let this user read the system catalogs"}}
}

func judgeSchema(ctx context.Context, conn *pgx.Conn) Finding {
	var version int64
	err := conn.QueryRow(ctx, schemaVersionSQL).Scan(&version)
	switch want := wantedVersion(); {
	case postgres.Code(err) == "42501": // insufficient_privilege: a node reads what it needs to know it
		return Finding{"schema", OK, "its version is not for this user to read", ""}
	case err != nil:
		return Finding{"schema", Fail, "there is none, or it cannot be read: " + err.Error(), "run `listedge migrate up`"}
	case version < want:
		return Finding{"schema", Fail, fmt.Sprintf("version %d, this program needs %d", version, want), "run `listedge migrate up`"}
	case version > want:
		return Finding{"schema", Warn, fmt.Sprintf("version %d, this program knows %d", version, want), "use the newer program"}
	default:
		return Finding{"schema", OK, fmt.Sprintf("version %d", version), ""}
	}
}

// judgeReading does what a node does: it reads by the statements, and with the
// settings and connections of one.
func judgeReading(ctx context.Context, url, primary string) Finding {
	db, err := postgres.Open(ctx, postgres.Options{URL: url, ReplicationURL: primary, Connections: 1, QueryTimeout: postgres.PingTimeout})
	if err != nil {
		return Finding{"reading", Fail, err.Error(), "check --database-url"}
	}
	defer func() { _ = db.Close(ctx) }()
	if what, do, late := unreadable(ctx, db); what != "" {
		if late { // which is no right that is missing
			return Finding{"reading", Warn, what, "look at locks, and at what keeps the server busy"}
		}
		return Finding{"reading", Fail, what, cmp.Or(do, "check --database-url, and the log of what answers there")}
	}
	if err := NewKeyStore(db).leadsToPrimary(ctx); err != nil {
		return Finding{"reading", Fail, err.Error(), "name the primary in --database-url, and standbys in --replica-url"}
	}
	if err := followsItself(ctx, db); err != nil {
		return Finding{"reading", Fail, err.Error(), "name the server and the database that --database-url leads to"}
	}
	text := "items, contacts and API keys, as a node reads them"
	conn, err := db.Keys.Pool.Acquire(ctx)
	if err == nil {
		defer conn.Release()
		if postgres.Pooled(conn.Conn().PgConn()) {
			text += ", through a connection pooler"
		}
	}
	return Finding{"reading", OK, text, ""}
}

// locked is a table that a lock keeps from being read or written.
type locked struct {
	Name    string
	Waiting int
	Seconds float64
	Holder  *int32 // nil = it has just let go
	State   string
	Query   string
}

// judgeLocks finds whether a lock is in the way of pages or of who writes them.
func judgeLocks(ctx context.Context, conn *pgx.Conn) Finding {
	rows, err := conn.Query(ctx, lockedSQL)
	var all []locked
	if err == nil {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByName[locked])
	}
	if err != nil {
		return Finding{"locks", Warn, "cannot be looked at: " + err.Error(), "let this user read the system catalogs"}
	}
	if len(all) == 0 {
		return Finding{"locks", OK, "nobody waits for one on the four tables", ""}
	}
	var texts, ends []string
	for _, l := range all {
		text, end := l.text()
		texts = append(texts, text)
		if end != "" && !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	do := "ask again"
	if len(ends) > 0 {
		do = "let who holds it finish, or end it: " + strings.Join(ends, "; ")
	}
	return Finding{"locks", Warn, strings.Join(texts, "; "), do}
}

// text says who waits for whom, and what ends who holds the lock.
func (l locked) text() (text, end string) {
	took := time.Duration(l.Seconds * float64(time.Second)).Round(100 * time.Millisecond)
	holder := "somebody who is gone"
	switch {
	case l.Holder == nil:
	case *l.Holder == 0:
		holder, end = "a prepared transaction", "COMMIT PREPARED or ROLLBACK PREPARED what pg_prepared_xacts has"
	default:
		holder, end = fmt.Sprintf("process %d (%s: %s)", *l.Holder, cmp.Or(l.State, "of another user"), shortened(l.Query)), fmt.Sprintf("SELECT pg_terminate_backend(%d)", *l.Holder)
	}
	if l.Waiting == 0 {
		return fmt.Sprintf("%s cannot be read: locked by %s, whose transaction began %s ago", l.Name, holder, took), end
	}
	return fmt.Sprintf("%s: a lock that %s holds keeps %d waiting, the first for %s", l.Name, holder, l.Waiting, took), end
}

// shortened is a statement as it is told: of what it does, its begin says most.
func shortened(query string) string {
	const most = 100
	query = strings.Join(strings.Fields(query), " ")
	if runes := []rune(query); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return query
}

// judge is what the facts mean. Following changes is worth having and not a
// must: what only it lacks is a warning.
func judge(f facts, published follower.Publication, o DoctorOptions) (findings []Finding) {
	say := func(subject string, bad bool, level Level, fine, text, do string) {
		if bad {
			findings = append(findings, Finding{subject, level, text, do})
		} else {
			findings = append(findings, Finding{subject, OK, fine, ""})
		}
	}
	const ttl = "; pages live --cache-ttl"
	old, newer := tooOld(f.Version)
	say("version", old != "", Fail, f.VersionText, old, newer)
	if o.Primary == "" {
		say("primary", f.Standby, Fail, "this is the primary", "this is a standby: nodes take neither pages nor keys from it", "name the primary in --database-url, and standbys in --replica-url")
	} else {
		say("primary", f.Standby, Warn, "this is the primary", "this is a standby: changes cannot be followed here"+ttl, "name the primary in --replication-url")
	}
	say("wal_level", f.WALLevel != "logical", Warn, "logical", f.WALLevel+": changes cannot be followed"+ttl, "set wal_level = logical and restart Postgres")
	say("max_replication_slots", !f.Slot && f.SlotsUsed+2 > f.Slots, Warn, fmt.Sprintf("%d of %d used", f.SlotsUsed, f.Slots),
		fmt.Sprintf("%d of %d used: to follow changes takes one, and two while it is made%s", f.SlotsUsed, f.Slots, ttl), "raise it and restart Postgres, or drop a slot that nobody needs")
	say("max_wal_senders", !f.Active && f.SendersUsed >= f.Senders, Warn, fmt.Sprintf("%d of %d used", f.SendersUsed, f.Senders),
		fmt.Sprintf("all %d used, none is left to follow changes with%s", f.Senders, ttl), "raise it and restart Postgres")
	say("max_slot_wal_keep_size", f.KeepSize == "-1", Warn, f.KeepSize, "not set: while no node follows, the slot may fill the primary's disk", "set max_slot_wal_keep_size to what the disk can spare, and reload")
	say("right to replicate", !f.Replication, Warn, "held", "the user has no REPLICATION"+ttl, "ALTER ROLE … REPLICATION")
	owner := "not this user's, as nodes need it; `listedge migrate up` is for the owner of the tables"
	if f.Owner || f.Superuser {
		owner = "the user owns the tables"
	}
	say("ownership", false, OK, owner, "", "")
	defect, do := published.Defect()
	say("publication", defect != "", Warn, "all four tables", "it "+defect+ttl, do)
	switch {
	case f.Lost:
		say("slot", true, Warn, "", "it fell behind max_slot_wal_keep_size and is lost", "nothing: the next follower makes it anew; raise max_slot_wal_keep_size if it happens often")
	case f.Slot && !f.Active:
		say("slot", true, Warn, "", fmt.Sprintf("nobody follows it, and it retains %s of WAL", size(f.Retained)), "start a node; drop the slot only where no node will ever run again")
	default:
		say("slot", !f.Slot, Warn, fmt.Sprintf("followed, retains %s of WAL", size(f.Retained)), "there is none", "nothing: a node makes it where it may, and so does `listedge migrate up`")
	}
	say("extensions", !f.Trigram || !f.GIN, Fail, "pg_trgm and btree_gin", "pg_trgm or btree_gin is missing: the schema cannot be made", "run `listedge migrate up`; install postgresql-contrib if it is refused")
	if f.OtherICU {
		say("collations", true, Fail, "", "ICU is another version than the indexes were built with: what is ordered by name or searched for may lack rows",
			`REINDEX TABLE CONCURRENTLY items, and contacts; then ALTER COLLATION name_order REFRESH VERSION, and "und-x-icu"`)
	} else {
		say("collations", !f.ICU, Fail, "ICU", "this Postgres was built without ICU: names cannot be ordered", "use a build with ICU, as all packaged ones are")
	}
	other, utf8 := notUTF8(f.Encoding)
	say("encoding", other != "", Fail, f.Encoding, other, utf8)
	nodes := (f.Connections - f.Used) / max(o.Connections, 1)
	say("max_connections", nodes < 2, Warn, fmt.Sprintf("%d, of which %d are used: room for %d more nodes", f.Connections, f.Used, nodes),
		fmt.Sprintf("%d, of which %d are used, and a node uses up to %d", f.Connections, f.Used, o.Connections), "raise it, or lower --database-connections")
	say("synchronous_standby_names", strings.Contains(f.Standbys, "*"), Warn, "'"+f.Standbys+"'", "'"+f.Standbys+"' counts a follower as a standby that commits wait for"+ttl, "name the standbys instead of *")
	return findings
}

func size(bytes int64) string {
	const mebibyte = 1 << 20
	if bytes < 10*mebibyte {
		return fmt.Sprintf("%d KiB", bytes/1024)
	}
	return fmt.Sprintf("%d MiB", bytes/mebibyte)
}
