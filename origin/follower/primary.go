package follower

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/fleet"
	"listedge/origin/postgres"
)

const applicationName = "listedge follower"

// The SQLSTATEs that the follower handles, by their names in Postgres' manual.
const (
	insufficientPrivilege      = "42501"
	invalidAuthorization       = "28000"
	undefinedObject            = "42704"
	duplicateObject            = "42710"
	objectInUse                = "55006"
	configurationLimitExceeded = "53400"
	tooManyConnections         = "53300"
	protocolViolation          = "08P01"
)

// decodingMemory is the setting that bounds how much of the open transactions a
// walsender keeps in memory. Above the bound, the walsender decodes and sends the rows
// of the largest one. So at most that much is left to decode when a transaction
// commits. A low bound keeps heartbeats from waiting for a large commit.
const decodingMemory = "logical_decoding_work_mem"

// senderTimeout is how long Postgres waits for a reply of the follower before it ends
// the connection.
const senderTimeout = 2 * time.Second

// primary is an ordinary connection to the primary, and what was read there.
type primary struct {
	conn              *pgx.Conn
	slotName          string
	server            fleet.Server
	unlimited         bool   // a slot may retain any amount of WAL
	checkpointerStart string // changes with each crash, unlike server.StartedAt (checkPrerequisites)
	published         string // changes with the publication's definition (checkPrerequisites)
	publication       Publication
}

// errPooler: behind a pooler nothing can be followed. It has no replication
// connections, and two statements may run in two sessions.
var errPooler = errors.New("a connection pooler answers: name Postgres itself in --replication-url")

func connectPrimary(ctx context.Context, url, region string) (*primary, error) {
	config, err := postgres.PrimaryConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIncapable, err)
	}
	maps.Copy(config.RuntimeParams, map[string]string{
		"application_name":              applicationName,
		"statement_timeout":             "0",
		"default_transaction_read_only": "off",
		"default_transaction_isolation": "read committed", // a snapshot for each statement
		"synchronous_commit":            "local",          // flush does not wait for a standby
		"plan_cache_mode":               "force_generic_plan",
	})
	p := &primary{}
	p.conn, err = pgx.ConnectConfig(ctx, config)
	switch {
	case postgres.Code(err) == protocolViolation: // startup parameters
		return nil, fmt.Errorf("%w: %w: %w", ErrIncapable, errPooler, err)
	case err != nil:
		return nil, fmt.Errorf("connect: %w", postgres.ExplainParameter(err, config))
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

// identify reads which server and database this is.
func (p *primary) identify(ctx context.Context, region string) (err error) {
	identifying, cancel := context.WithTimeout(ctx, postgres.ConnectTimeout)
	defer cancel()
	p.server, err = postgres.Identify(identifying, p.conn)
	if postgres.Code(err) == insufficientPrivilege {
		return fmt.Errorf("%w: the user may not ask which server this is (GRANT EXECUTE ON FUNCTION pg_control_system() TO …): %w", ErrIncapable, err)
	}
	if err == nil {
		p.slotName = fmt.Sprint(SlotPrefix, p.server.Database, SlotSuffix(region))
		err = p.row(ctx, `SELECT current_setting('max_slot_wal_keep_size') = '-1'`)(&p.unlimited)
	}
	return err
}

// row returns a function that runs the query within callTimeout and scans its one row.
func (p *primary) row(ctx context.Context, sql string, args ...any) func(into ...any) error {
	return func(into ...any) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return p.conn.QueryRow(ctx, sql, args...).Scan(into...)
	}
}

func (p *primary) close() { closeConn(p.conn.PgConn()) }

// closeConn ends the session and waits until it has ended, for at most callTimeout.
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

// replicate opens a replication connection and starts streaming from the slot, which
// takes the slot. Errors: errHeld.
func (p *primary) replicate(ctx context.Context) (*pgconn.PgConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	config := &p.conn.Config().Config
	config.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	if config.RuntimeParams[decodingMemory] == "" { // the URL may set it
		config.RuntimeParams[decodingMemory] = "4MB"
	}
	sender, err := connectSender(ctx, config)
	if err != nil {
		return nil, err
	}
	err = p.sameServer(ctx, sender)
	if err == nil {
		err = pglogrepl.StartReplication(ctx, sender, p.slotName, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
			"proto_version '2'", "streaming 'on'", "publication_names '" + PublicationName + "'", "messages 'true'", "binary 'true'"}})
	}
	if err != nil {
		closeConn(sender)
		if postgres.Code(err) == objectInUse {
			return nil, errHeld
		}
		return nil, fmt.Errorf("start replication: %w", err)
	}
	return sender, nil
}

// connectSender opens a replication connection.
func connectSender(ctx context.Context, config *pgconn.Config) (*pgconn.PgConn, error) {
	config.RuntimeParams["replication"] = "database"
	sender, err := pgconn.ConnectConfig(ctx, config)
	switch postgres.Code(err) {
	case insufficientPrivilege, invalidAuthorization:
		return nil, fmt.Errorf("%w: the user may not replicate (ALTER ROLE … REPLICATION; on RDS and Aurora, GRANT rds_replication TO …): %w", ErrIncapable, err)
	case protocolViolation:
		return nil, fmt.Errorf("%w: %w: %w", ErrIncapable, errPooler, err)
	case tooManyConnections:
		return nil, fmt.Errorf("%w: max_connections or max_wal_senders are used up: %w", ErrIncapable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("connect for replication: %w", err)
	}
	return sender, nil
}

// CheckReplication returns why this user cannot replicate; nil = it can. It tries to,
// because no attribute of a role says so everywhere.
func CheckReplication(ctx context.Context, url string) error {
	config, err := postgres.PrimaryConfig(url)
	if err != nil {
		return err
	}
	sender, err := connectSender(ctx, &config.Config)
	if err != nil {
		return err
	}
	defer closeConn(sender)
	_, err = pglogrepl.IdentifySystem(ctx, sender)
	return err
}

// sameServer returns an error if the two connections lead to two servers: a URL may
// name several hosts, and one of them may be replacing the other.
func (p *primary) sameServer(ctx context.Context, sender *pgconn.PgConn) error {
	const sql = `SELECT ` + postgres.ServerSQL
	var here string
	if err := p.row(ctx, sql)(&here); err != nil {
		return err
	}
	results, err := sender.Exec(ctx, sql).ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || string(results[0].Rows[0][0]) != here {
		return errors.New("two connections lead to two servers")
	}
	is := postgres.ParseServer(here, p.conn.PgConn())
	p.server.Timeline, p.server.StartedAt = is.Timeline, is.StartedAt // it may have been promoted
	return nil
}
