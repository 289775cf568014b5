package follower

import (
	"context"
	"errors"
	"fmt"
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

// decodingMemory is the setting that bounds the open transactions in a walsender's
// memory. Above it, the walsender decodes and sends the rows of the largest one.
// So at most that much is left to decode at a commit, which delays heartbeats.
const decodingMemory = "logical_decoding_work_mem"

// senderTimeout is after how long Postgres ends a follower that does not reply.
const senderTimeout = 2 * time.Second

// primary is an ordinary connection to it, and what was found there.
type primary struct {
	conn        *pgx.Conn
	config      *pgx.ConnConfig
	slotName    string
	identity    changefeed.Identity
	timeline    uint32 // 0 = it is in recovery
	system      string // its system identifier and timeline
	started     string // when it was, as the answers to pages say it, too
	run         string // names this run of it (checkPrerequisites)
	published   string // names this state of the publication
	publication Publication
}

// errPooler: a pooler has no replication connections, and two statements may run
// in two sessions.
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
		"default_transaction_isolation": "read committed", // a snapshot for each statement
		"synchronous_commit":            "local",          // flush does not wait for a standby
		"plan_cache_mode":               "force_generic_plan",
		"jit":                           "off", // compiling takes longer than reading the catalog of many partitions
	} {
		config.RuntimeParams[name] = value
	}
	p := &primary{config: config}
	p.conn, err = pgx.ConnectConfig(ctx, config)
	switch {
	case postgres.Code(err) == protocolRefused: // startup parameters
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

// identify reads what is followed here. The timeline comes from the name of the
// WAL file: right after a promotion the control file has the old one.
func (p *primary) identify(ctx context.Context, region string) error {
	p.identity.Region = region
	err := p.row(ctx, `SELECT $1 || oid || $2, oid, datname::text, system_identifier::text,
			CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END
		FROM pg_database, pg_control_system() WHERE datname = current_database()`,
		SlotPrefix, SlotSuffix(region))(&p.slotName, &p.identity.Database, &p.identity.Name, &p.identity.System, &p.timeline)
	switch {
	case postgres.Code(err) == notAllowed:
		return fmt.Errorf("%w: the user may not ask which server this is (GRANT EXECUTE ON FUNCTION pg_control_system() TO …): %w", ErrIncapable, err)
	case err != nil:
		return fmt.Errorf("identify the database: %w", err)
	}
	return nil
}

// row queries one row within callTimeout.
func (p *primary) row(ctx context.Context, sql string, args ...any) func(into ...any) error {
	return func(into ...any) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return p.conn.QueryRow(ctx, sql, args...).Scan(into...)
	}
}

func (p *primary) close() { closeConn(p.conn.PgConn()) }

// closeConn ends the session and waits for that, at most callTimeout.
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

// replicate takes the slot; nil when another node holds it.
func (p *primary) replicate(ctx context.Context, streaming string) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	config := p.config.Config.Copy()
	config.RuntimeParams["replication"] = "database"
	config.RuntimeParams["client_encoding"] = "UTF8" // rows come as texts: whatever the database or the role prefers
	config.RuntimeParams["datestyle"] = "ISO"
	config.RuntimeParams["timezone"] = "UTC"
	config.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	if config.RuntimeParams[decodingMemory] == "" { // the URL may name another one
		config.RuntimeParams[decodingMemory] = "4MB"
	}
	sender, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		switch postgres.Code(err) {
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
		if postgres.Code(err) == objectInUse {
			return nil, nil
		}
		return nil, fmt.Errorf("start replication: %w", err)
	}
	return sender, nil
}

// sameServer returns an error if the two connections lead to two servers: a URL may
// name several hosts, and one of them may be replacing the other.
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
		return errors.New("two connections lead to two servers")
	}
	system, err := pglogrepl.IdentifySystem(ctx, sender)
	if err != nil {
		return err
	}
	p.started = here
	p.system, p.timeline = fmt.Sprintf("%s/%d", system.SystemID, system.Timeline), uint32(system.Timeline)
	return nil
}

// end ends the connection of a follower that has stalled. If this user may not,
// senderTimeout ends it a little later.
func (p *primary) end(ctx context.Context, pid int32) {
	var ended bool
	_ = p.row(ctx, `SELECT pg_terminate_backend($1)`, pid)(&ended)
}
