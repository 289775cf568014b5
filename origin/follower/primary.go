package follower

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/fleet"
	"listedge/internal/list"
	"listedge/internal/remedy"
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

const (
	// senderTimeout is how long Postgres waits for a reply of the follower before it ends
	// the connection.
	senderTimeout = 2 * time.Second
	// startTimeout is how long Postgres waits for the next statement on a replication connection that does
	// not stream yet: a node that is frozen there would keep a temporary slot from the others.
	startTimeout = 5 * time.Second
)

// primary is an ordinary connection to the primary, and what was read there.
type primary struct {
	conn     *pgx.Conn
	sender   *pgconn.PgConn // the replication connection, with which a temporary slot ends; nil = not opened yet
	slotName string
	server   fleet.Server
	run      Run // as last checked

	lists   *list.Set // set by follow, like all below
	tables  followed
	decoder decoder
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
	p.slotName = fmt.Sprint(SlotPrefix, p.server.Database, SlotSuffix(region))
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

// call bounds a call to the log or to Postgres by callTimeout.
func call[T any](ctx context.Context, do func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

// bounded bounds a call without a result.
func bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx)
}

func (p *primary) close() {
	p.closeSender()
	closeConn(p.conn.PgConn())
}

// closeSender ends the replication connection, and with it a temporary slot.
func (p *primary) closeSender() {
	if p.sender != nil {
		closeConn(p.sender)
		p.sender = nil
	}
}

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

// checkPrerequisites returns an error if changes cannot be followed here.
func (p *primary) checkPrerequisites(ctx context.Context, lists *list.Set) error {
	if err := p.checkSettings(ctx); err != nil {
		return err
	}
	return p.checkPublication(ctx, lists)
}

// Check returns all that a follower lacks to follow changes of the lists through the URL; nil = nothing.
func Check(ctx context.Context, databaseURL string, lists *list.Set) error {
	p, err := connectPrimary(ctx, databaseURL, "")
	if err != nil {
		return err
	}
	defer p.close()
	lacking := errors.Join(p.checkSettings(ctx), p.checkPublication(ctx, lists))
	sender, err := connectSender(ctx, &p.conn.Config().Config)
	if err == nil {
		closeConn(sender)
	}
	return errors.Join(lacking, err)
}

// checkSettings returns an error if the server's settings keep changes from being followed. It sets
// CheckpointerStart and Published of the run:
//
//   - CheckpointerStart changes with a crash, after which transaction ids may be used again,
//     a fail-over and a restore. It is when the checkpointer was started, if the user may see
//     that (pg_read_all_stats), or else when the statistics began, which a crash discards.
//   - Published changes with the publication, and if the schema public is replaced: changes
//     that were written meanwhile may never be sent.
func (p *primary) checkSettings(ctx context.Context) error {
	var level, standbys, publishing string
	var standby bool
	var started *string
	err := p.row(ctx, `SELECT `+walLevelSQL+`, current_setting('synchronous_standby_names'), pg_is_in_recovery(),
		coalesce((SELECT extract(epoch FROM max(backend_start))::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'),
			(SELECT concat(extract(epoch FROM pg_postmaster_start_time()), '/', extract(epoch FROM stats_reset)) FROM pg_stat_bgwriter WHERE stats_reset IS NOT NULL)),
		(SELECT coalesce(string_agg(concat_ws('/', x.oid, x.xmin), ' ' ORDER BY x.oid), '') FROM (
			SELECT oid, xmin::text FROM pg_publication WHERE pubname = $1
			UNION ALL SELECT r.oid, r.xmin::text FROM pg_publication_rel r JOIN pg_publication p ON p.oid = prpubid WHERE pubname = $1
			UNION ALL SELECT objid, d.xmin::text FROM pg_publication p JOIN pg_depend d ON refclassid = 'pg_publication'::regclass AND refobjid = p.oid
				WHERE pubname = $1 AND classid = 'pg_publication_namespace'::regclass
			UNION ALL SELECT oid, 'schema' FROM pg_namespace WHERE nspname = 'public' AND oid <> 2200) x)`, // 2200 is the schema that every database is made with
		PublicationName)(&level, &standbys, &standby, &started, &publishing)
	switch {
	case err != nil:
		return fmt.Errorf("check the prerequisites: %w", err)
	case standby:
		return fmt.Errorf("%w: the database URL leads to a standby, not to the primary", ErrIncapable)
	case level != "logical":
		return remedy.Add(fmt.Errorf("%w: wal_level is %s, not logical", ErrIncapable, level), "set wal_level = logical and restart Postgres")
	case started == nil:
		return fmt.Errorf("%w: the server does not tell this user when its statistics began (GRANT pg_read_all_stats)", ErrIncapable)
	}
	if countsAsStandby.MatchString(standbys) {
		// Commits would wait for the follower, which confirms seconds later.
		return fmt.Errorf("%w: synchronous_standby_names is %s, which makes the follower a standby that commits wait for (name the standbys)", ErrIncapable, standbys)
	}
	p.run.CheckpointerStart, p.run.Published = *started, publishing
	return nil
}

// walLevelSQL is the level of WAL that a slot has, or that it would get: since Postgres 19 wal_level
// is only what there is at least, and the first logical slot raises what is in force, unless that is minimal.
const walLevelSQL = `CASE WHEN current_setting('effective_wal_level', true) <> 'minimal' THEN 'logical' ELSE current_setting('wal_level') END`

// countsAsStandby matches a value of synchronous_standby_names that includes any
// standby, or one with the name of this connection.
var countsAsStandby = regexp.MustCompile(`(?:^|[\s,(])(?:\*|"\*"|"` + applicationName + `")(?:[\s,)]|$)`)

// errIncomplete says that the publication lacks rows that pages show. Changes that are
// written meanwhile are lost. So the slot is dropped, and the next slot begins a new epoch.
var errIncomplete = fmt.Errorf("%w: the publication %q", ErrIncapable, PublicationName)

// checkPublication returns errIncomplete if the publication has a defect.
//
// It returns a defect only if it has found one three times in a row. The statement reads
// some catalogs by its snapshot and others as they are now, so a partition that is
// committed meanwhile seems to be missing. Trying again is safe: if the publication was
// another one in between, Published shows that.
func (p *primary) checkPublication(ctx context.Context, lists *list.Set) error {
	var defect, do string
	for range 3 {
		publication, err := call(ctx, func(ctx context.Context) (Publication, error) { return ReadPublication(ctx, p.conn, lists) })
		if err != nil {
			return err
		}
		defect, do = publication.Defect()
		if defect == "" {
			p.run.publication = publication
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return remedy.Add(fmt.Errorf("%w %s", errIncomplete, defect), do)
}

//go:embed slot.sql
var createSlotSQL string

const (
	// createTimeout bounds making a slot for a command. Postgres waits three times for
	// the end of all open write transactions. Of the first slot, Postgres 19 also waits until each of its
	// processes has noticed that more is to be logged, which the checkpointer may while it syncs files.
	createTimeout = time.Minute
	// createSlow is when a node says that it waits.
	createSlow = 10 * time.Second
	// createByNodeTimeout bounds making a slot for a node. It is long, because a node that
	// gives up begins again: it would never succeed if long transactions overlap.
	createByNodeTimeout = 10 * time.Minute
)

var errHeld = errors.New("another node took the slot")

// Slot is the state of the replication slot when it was last polled.
type Slot struct {
	exists    bool
	held      bool   // by a node, or Postgres is still making it
	making    bool   // Postgres is still making it
	lost      bool   // Postgres has removed WAL that it needs
	retained  uint64 // bytes of WAL that Postgres keeps for it
	unlimited bool   // it may be any amount, also while nobody holds the slot, if the slot is persistent
}

// Slot implements Upstream.
func (p *primary) Slot(ctx context.Context) (s Slot, err error) {
	err = p.row(ctx, `SELECT slot_name IS NOT NULL, active_pid IS NOT NULL, coalesce(slot_name <> $1, false), coalesce(wal_status, '') = 'lost',
			coalesce(greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0)::bigint,
			current_setting('max_slot_wal_keep_size') = '-1'
		FROM (VALUES (1)) one LEFT JOIN pg_replication_slots ON slot_name IN ($1::text, $1::text || '_new') ORDER BY slot_name LIMIT 1`, p.slotName)(
		&s.exists, &s.held, &s.making, &s.lost, &s.retained, &s.unlimited)
	if err != nil {
		return s, fmt.Errorf("poll the slot: %w", err)
	}
	return s, nil
}

// createSlot makes the slot, unless another node is faster. A temporary one belongs to the replication
// connection, and ends with it, whatever happens. So it needs no other lock than a persistent one: the server
// has one slot of a name, and gives it to one connection.
func (p *primary) createSlot(ctx context.Context, temporary bool, timeout time.Duration) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := p.conn.PgConn()
	if temporary {
		if err := p.openSender(ctx); err != nil {
			return false, err
		}
		conn = p.sender
	}
	_, err = conn.Exec(ctx, strings.NewReplacer("NAME", p.slotName, "TEMPORARY", fmt.Sprint(temporary)).Replace(createSlotSQL)).ReadAll()
	switch code := postgres.Code(err); {
	case err == nil:
		return true, nil
	case code == duplicateObject: // made by another node, or about to be
		p.closeSender()
		return false, nil
	case code == insufficientPrivilege:
		return false, fmt.Errorf("%w: the user may not make a slot (ALTER ROLE … REPLICATION): %w", ErrIncapable, err)
	case code == configurationLimitExceeded:
		return false, fmt.Errorf("%w: max_replication_slots are used up (making the slot takes two for a moment): %w", ErrIncapable, err)
	case errors.Is(err, context.DeadlineExceeded):
		return false, fmt.Errorf("make the slot: Postgres waits for the end of a write transaction that has been open for long: %w", err)
	}
	return false, fmt.Errorf("make the slot: %w", err)
}

// ErrTemporary: a slot that no node holds could fill the disk. Nodes make one that ends with them.
var ErrTemporary = errors.New("max_slot_wal_keep_size is not set: the node that follows makes the slot, a temporary one unless --slot says otherwise")

// CreateSlot makes the database's persistent slot for a region unless it exists, to follow changes of the lists.
// Errors: ErrIncapable, ErrTemporary.
func CreateSlot(ctx context.Context, databaseURL, region string, lists *list.Set) (name string, created bool, err error) {
	p, err := connectPrimary(ctx, databaseURL, region)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	s, err := p.Slot(ctx)
	if err != nil || s.exists {
		return p.slotName, false, err
	}
	err = p.checkPrerequisites(ctx, lists)
	if err == nil && s.unlimited {
		err = ErrTemporary
	}
	if err == nil {
		created, err = p.createSlot(ctx, false, createTimeout)
	}
	return p.slotName, created, err
}

// dropSlot drops the slot, unless another node holds it or has dropped it: other nodes see
// what this one sees.
func (p *primary) dropSlot(ctx context.Context) error {
	switch err := p.tryDropSlot(ctx); postgres.Code(err) {
	case undefinedObject, objectInUse:
		return nil
	default:
		return err
	}
}

// tryDropSlot drops the slot. A walsender whose connection was closed holds it for a moment
// more.
func (p *primary) tryDropSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	drop := func() (err error) {
		_, err = p.conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, p.slotName)
		return err
	}
	err := drop()
	for ends := time.Now().Add(callTimeout / 2); postgres.Code(err) == objectInUse && time.Now().Before(ends); err = drop() {
		time.Sleep(pollPause)
	}
	if err != nil {
		return fmt.Errorf("drop the slot: %w", err)
	}
	return nil
}

// DropSlot drops the database's slot for a region, unless a node follows through it. dropped
// is false if there is none.
func DropSlot(ctx context.Context, databaseURL, region string) (name string, dropped bool, err error) {
	p, err := connectPrimary(ctx, databaseURL, region)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	err = p.tryDropSlot(ctx)
	dropped = err == nil
	switch postgres.Code(err) {
	case undefinedObject:
		err = nil
	case objectInUse:
		err = fmt.Errorf("a node follows through the slot %s: stop all nodes of the fleet first: %w", p.slotName, err)
	}
	return p.slotName, dropped, err
}

// Replicate implements Upstream.
func (p *primary) Replicate(ctx context.Context) (fleet.Server, error) {
	if p.sender == nil {
		err := p.openSender(ctx)
		if err != nil {
			return p.server, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	err := pglogrepl.StartReplication(ctx, p.sender, p.slotName, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '2'", "streaming 'on'", "publication_names '" + PublicationName + "'", "messages 'true'"}})
	switch {
	case postgres.Code(err) == objectInUse:
		return p.server, errHeld
	case err != nil:
		return p.server, fmt.Errorf("start replication: %w", err)
	}
	return p.server, nil
}

// openSender opens the replication connection, to the same server.
func (p *primary) openSender(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*callTimeout)
	defer cancel()
	config := &p.conn.Config().Config
	config.RuntimeParams["wal_sender_timeout"] = fmt.Sprint(senderTimeout.Milliseconds())
	config.RuntimeParams["idle_session_timeout"] = fmt.Sprint(startTimeout.Milliseconds())
	if config.RuntimeParams[decodingMemory] == "" { // the URL may set it
		config.RuntimeParams[decodingMemory] = "4MB"
	}
	p.sender, err = connectSender(ctx, config)
	if err != nil {
		return err
	}
	return p.sameServer(ctx, p.sender)
}

// connectSender opens a replication connection.
func connectSender(ctx context.Context, config *pgconn.Config) (*pgconn.PgConn, error) {
	config.RuntimeParams["replication"] = "database"
	sender, err := pgconn.ConnectConfig(ctx, config)
	code := postgres.Code(err)
	switch {
	case err == nil:
		err = checkTexts(ctx, sender)
		if err != nil {
			closeConn(sender)
		}
		return sender, err
	case code == insufficientPrivilege, code == invalidAuthorization:
		return nil, fmt.Errorf("%w: the user may not replicate (ALTER ROLE … REPLICATION; on RDS and Aurora, GRANT rds_replication TO …): %w", ErrIncapable, err)
	case code == protocolViolation:
		return nil, fmt.Errorf("%w: %w: %w", ErrIncapable, errPooler, err)
	case code == tooManyConnections:
		return nil, fmt.Errorf("%w: max_connections or max_wal_senders are used up: %w", ErrIncapable, err)
	}
	return nil, fmt.Errorf("connect for replication: %w", err)
}

// textsSQL selects values that each of postgres.TextSettings decides about, and texts is what they are with these.
const (
	textsSQL = `SELECT concat_ws(' ', timestamptz '2024-02-01 12:00:00.5+02', 0.1::float8 + 0.2::float8, bytea '\x41', interval '1 day 2 hours')`
	texts    = `2024-02-01 10:00:00.5+00 0.30000000000000004 \x41 1 day 02:00:00`
)

// checkTexts returns an error if the server writes values in another form than statements read.
func checkTexts(ctx context.Context, sender *pgconn.PgConn) error {
	results, err := sender.Exec(ctx, textsSQL).ReadAll()
	if err != nil {
		return fmt.Errorf("check the form of values: %w", err)
	}
	if len(results) == 1 && len(results[0].Rows) == 1 && string(results[0].Rows[0][0]) == texts {
		return nil
	}
	return fmt.Errorf("%w: the server does not write values in the form that statements read", ErrIncapable)
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
