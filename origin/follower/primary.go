package follower

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/changefeed"
	"listedge/origin/postgres"
)

const applicationName = "listedge follower"

// SQLSTATEs that have a meaning here.
const (
	notAllowed      = "42501"
	notLetIn        = "28000"
	undefinedObject = "42704"
	duplicateObject = "42710"
	objectInUse     = "55006"
	noSlotFree      = "53400"
	noSenderFree    = "53300"
	protocolRefused = "08P01"
)

// decodingMemory is the setting that bounds what a walsender keeps in memory of
// open transactions. Above it, the walsender decodes the largest one as far as it
// is written, and sends its rows. So at most that much is left to decode when a
// transaction commits, of whatever tables; no heartbeat can be published before
// that is done.
const decodingMemory = "logical_decoding_work_mem"

// senderTimeout has Postgres let go of a follower that does not answer.
const senderTimeout = 2 * time.Second

// primary is an ordinary connection to it, and what was found there.
type primary struct {
	conn      *pgx.Conn
	config    *pgx.ConnConfig
	slotName  string
	identity  changefeed.Identity
	timeline  uint32 // 0 = it is in recovery
	system    string // which server, which timeline
	started   string // when it was, as pages are told, too
	run       string // which run of it
	published string // which state of the publication
}

// errPooler: it has no replication connections, and what is asked of it twice may
// be asked of two sessions.
var errPooler = errors.New("a connection pooler answers: name Postgres itself in --replication-url")

func connectPrimary(ctx context.Context, url, region string) (*primary, error) {
	config, err := postgres.PrimaryConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIncapable, err)
	}
	config.ConnectTimeout = callTimeout
	for name, value := range map[string]string{
		"application_name":              applicationName,
		"statement_timeout":             "0",
		"default_transaction_read_only": "off",
		"default_transaction_isolation": "read committed", // each look is a new one
		"synchronous_commit":            "local",          // of flush: a standby's answer is not what it waits for
		"plan_cache_mode":               "force_generic_plan",
		"jit":                           "off", // it takes longer than a look at the catalog of many partitions
	} {
		config.RuntimeParams[name] = value
	}
	p := &primary{config: config}
	p.conn, err = pgx.ConnectConfig(ctx, config)
	switch {
	case code(err) == protocolRefused: // startup parameters
		return nil, fmt.Errorf("%w: %w: %w", ErrIncapable, errPooler, err)
	case err != nil:
		return nil, fmt.Errorf("connect: %w", err)
	case postgres.Pooled(p.conn.PgConn()):
		p.close()
		return nil, fmt.Errorf("%w: %w", ErrIncapable, errPooler)
	}
	if err := p.identify(ctx, region); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// identify finds what is followed here. (The control file of a server that was
// just promoted has its old timeline, the name of its WAL file the new one.)
func (p *primary) identify(ctx context.Context, region string) error {
	p.identity.Region = region
	err := p.row(ctx, `SELECT $1 || oid || $2, oid, datname::text, system_identifier::text,
			CASE WHEN pg_is_in_recovery() THEN '00000000' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END
		FROM pg_database, pg_control_system() WHERE datname = current_database()`,
		SlotPrefix, SlotSuffix(region))(&p.slotName, &p.identity.Database, &p.identity.Name, &p.identity.System, (*hexadecimal)(&p.timeline))
	switch {
	case code(err) == notAllowed:
		return fmt.Errorf("%w: the user may not ask which server this is (GRANT EXECUTE ON FUNCTION pg_control_system() TO …): %w", ErrIncapable, err)
	case err != nil:
		return fmt.Errorf("identify the database: %w", err)
	}
	return nil
}

// hexadecimal scans the digits of a number.
type hexadecimal uint32

// Scan implements sql.Scanner.
func (h *hexadecimal) Scan(digits any) error {
	n, err := strconv.ParseUint(fmt.Sprint(digits), 16, 32)
	*h = hexadecimal(n)
	return err
}

// row asks for one row within callTimeout.
func (p *primary) row(ctx context.Context, sql string, args ...any) func(into ...any) error {
	return func(into ...any) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return p.conn.QueryRow(ctx, sql, args...).Scan(into...)
	}
}

func (p *primary) close() { closeConn(p.conn.PgConn()) }

// closeConn says good-bye and waits, in vain for callTimeout at most.
func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	_ = conn.Conn().SetReadDeadline(time.Time{}) // receive sets it
	_ = conn.Close(ctx)
	select {
	case <-conn.CleanupDone():
	case <-ctx.Done():
	}
}

// checkPrerequisites looks whether changes can be followed here, and reads what names
// this run of the server: a crash, after which transaction ids are used again,
// a fail-over and a restore give another name, and so does a publication that
// was changed, or another schema public, because what was written meanwhile may
// never be told. When the
// checkpointer was started only pg_read_all_stats lets a user see. All may see
// when statistics began, which a crash discards.
func (p *primary) checkPrerequisites(ctx context.Context) error {
	var level, standbys, publishing string
	var standby bool
	var started *string
	err := p.row(ctx, `SELECT current_setting('wal_level'), current_setting('synchronous_standby_names'), pg_is_in_recovery(),
		coalesce((SELECT extract(epoch FROM max(backend_start))::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'),
			(SELECT concat(extract(epoch FROM pg_postmaster_start_time()), '/', extract(epoch FROM stats_reset)) FROM pg_stat_bgwriter WHERE stats_reset IS NOT NULL)),
		(SELECT coalesce(string_agg(concat_ws('/', x.oid, x.xmin), ' ' ORDER BY x.oid), '') FROM (
			SELECT oid, xmin::text FROM pg_publication WHERE pubname = $1
			UNION ALL SELECT r.oid, r.xmin::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid WHERE pubname = $1
			UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
				WHERE pubname = $1 AND classid = to_regclass('pg_catalog.pg_publication_namespace') -- which is since Postgres 15
			UNION ALL SELECT oid, 'schema' FROM pg_namespace WHERE nspname = 'public' AND oid <> 2200) x)`, // that every database is made with
		PublicationName)(&level, &standbys, &standby, &started, &publishing)
	switch {
	case err != nil:
		return fmt.Errorf("look at the primary: %w", err)
	case standby:
		return fmt.Errorf("%w: the database URL leads to a standby, not to the primary", ErrIncapable)
	case level != "logical":
		return fmt.Errorf("%w: wal_level is %s, not logical", ErrIncapable, level)
	case started == nil:
		return fmt.Errorf("%w: the server does not tell this user when its statistics began (GRANT pg_read_all_stats)", ErrIncapable)
	}
	if countsAsStandby.MatchString(standbys) {
		// It confirms seconds late, and writers would wait for it.
		return fmt.Errorf("%w: synchronous_standby_names is %s, which makes the follower a standby that commits wait for (name the standbys)", ErrIncapable, standbys)
	}
	p.run, p.published = *started, publishing
	return p.checkPublication(ctx)
}

// countsAsStandby matches a synchronous_standby_names that includes a walsender
// of any name, or of ours.
var countsAsStandby = regexp.MustCompile(`(?:^|[\s,(])(?:\*|"\*"|"` + applicationName + `")(?:[\s,)]|$)`)

// errIncomplete: rows that pages show are not published. Nothing tells afterwards
// what was written meanwhile, nor to which tables, so the slot is dropped: an
// epoch begins with the next one.
var errIncomplete = fmt.Errorf("%w: the publication %q", ErrIncapable, PublicationName)

// checkPublication looks whether the publication has all that is needed.
//
// A defect is believed if it is still there a moment later: the look reads some
// rows by the statement's snapshot and some as they are, so a partition that is
// committed in between seems to be lacking. No harm lies in the second look: what
// was written while the publication was another one shows in published.
func (p *primary) checkPublication(ctx context.Context) error {
	var defect, do string
	for range 3 {
		asking, cancel := context.WithTimeout(ctx, callTimeout)
		state, err := ReadPublication(asking, p.conn)
		cancel()
		if err != nil {
			return err
		}
		if defect, do = state.Defect(); defect == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return fmt.Errorf("%w %s: %s", errIncomplete, defect, do)
}

// replicate takes the slot; nil when another node holds it.
func (p *primary) replicate(ctx context.Context, streaming string) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	config := p.config.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	if config.RuntimeParams[decodingMemory] == "" { // the URL may name another one
		config.RuntimeParams[decodingMemory] = "4MB"
	}
	sender, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		switch code(err) {
		case notAllowed, notLetIn:
			return nil, fmt.Errorf("%w: the user may not replicate (ALTER ROLE … REPLICATION): %w", ErrIncapable, err)
		case protocolRefused:
			return nil, fmt.Errorf("%w: %w: %w", ErrIncapable, errPooler, err)
		case noSenderFree:
			return nil, fmt.Errorf("%w: max_connections or max_wal_senders are used up: %w", ErrIncapable, err)
		}
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	err = p.sameServer(ctx, sender)
	if err == nil {
		err = pglogrepl.StartReplication(ctx, sender, p.slotName, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
			"proto_version '2'", "streaming '" + streaming + "'", "publication_names '" + PublicationName + "'", "messages 'true'"}})
	}
	if err != nil {
		closeConn(sender)
		if code(err) == objectInUse {
			return nil, nil
		}
		return nil, fmt.Errorf("start replication: %w", err)
	}
	return sender, nil
}

// sameServer: a URL may name several hosts, and two connections meet two of
// them, of which one may be on its way to be replaced by the other.
func (p *primary) sameServer(ctx context.Context, sender *pgconn.PgConn) error {
	const started = `SELECT extract(epoch FROM pg_postmaster_start_time())::text`
	var here string
	if err := p.row(ctx, started)(&here); err != nil {
		return err
	}
	results, err := sender.Exec(ctx, started).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != here {
		return errors.New("two connections met two servers")
	}
	system, err := pglogrepl.IdentifySystem(ctx, sender)
	if err != nil {
		return err
	}
	p.started = here
	p.system, p.timeline = fmt.Sprintf("%s/%d", system.SystemID, system.Timeline), uint32(system.Timeline)
	return nil
}

// end ends the connection of a follower that has stalled. Without the right
// to, senderTimeout ends it a little later.
func (p *primary) end(ctx context.Context, pid int32) {
	var ended bool
	_ = p.row(ctx, `SELECT pg_terminate_backend($1)`, pid)(&ended)
}

func code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
