package origin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// Ready returns nil when the server answers what nodes ask, and its schema is
// migrated as far as this program needs it.
func Ready(ctx context.Context, db *postgres.Database) error {
	have, known, err := schemaVersion(ctx, db)
	if err != nil {
		return err
	}
	if want := wantedVersion(); known && have < want {
		var server int
		var encoding string
		var standby bool
		if err := db.Keys.Pool.QueryRow(ctx, serverFactsSQL, pgx.QueryExecModeExec).Scan(&server, &encoding, &standby); err != nil {
			return fmt.Errorf("ask for the server's version: %w", postgres.Classify(err))
		}
		if err := checkServer(server, encoding); err != nil { // migrating would not help
			return err
		}
		return fmt.Errorf("schema is at version %d, this program needs %d: run `listedge migrate up`", have, want)
	}
	if unreadable, do, _ := unreadable(ctx, db); unreadable != "" {
		if do != "" {
			unreadable += ": " + do
		}
		return errors.New(unreadable)
	}
	if err := NewKeyStore(db).leadsToPrimary(ctx); err != nil {
		return err
	}
	return followsItself(ctx, db)
}

// schemaVersion asks for the version that goose keeps; 0 = never migrated. A
// node need not have the right to read it, and it is unknown then.
func schemaVersion(ctx context.Context, db *postgres.Database) (version int64, known bool, err error) {
	var newest *int64
	err = db.Keys.Pool.QueryRow(ctx, schemaVersionSQL, pgx.QueryExecModeExec).Scan(&newest)
	switch postgres.Code(err) {
	case "42501": // insufficient_privilege
		return 0, false, nil
	case "42P01": // undefined_table
		return 0, true, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read the schema's version: %w", postgres.Classify(err))
	}
	if newest != nil {
		version = *newest
	}
	return version, true, nil
}

// unreadable reads what a node reads, by a node's own statements and
// connections, for a workspace that is none. It says what it could not read, and
// what to do about it where that is known, and whether all that is wrong is that
// it takes too long, behind a lock or on a busy server.
func unreadable(ctx context.Context, db *postgres.Database) (what, do string, late bool) {
	var all []string
	hidden, lacking := false, false
	late = true
	note := func(name string, err error) {
		if err == nil {
			return
		}
		all = append(all, fmt.Sprintf("%s cannot be read: %v", name, err))
		late = late && errors.Is(postgres.Classify(err), ErrTimeout)
		switch postgres.Code(err) {
		case "42501": // insufficient_privilege
			hidden = true
		case "42P01", "42703", "42883", "42704": // undefined table, column, function, object
			lacking = true
		}
		lacking = lacking || errors.Is(err, postgres.ErrSchema)
	}
	o := New(db)
	for _, c := range []Collection{Items, Contacts} {
		// A statement with all functions of the schema in it.
		_, _, err := o.readFrom(ctx, o.pool, &Query{Collection: c, Sort: ByName, Search: "none", Limit: 1, After: Position{Set: true, Name: "n", ID: uuid.Max}})
		note(c.String(), err)
	}
	_, _, err := NewKeyStore(db).lookup(ctx, []KeyHash{{}})
	note("API keys", err)
	if hidden {
		do = mendRights(ctx, db)
	}
	if do == "" && lacking {
		do = "run `listedge migrate up`"
	}
	return strings.Join(all, "; "), do, late
}

// mendRights are the commands that give this role what it lacks; empty = it
// lacks nothing, or cannot be asked.
func mendRights(ctx context.Context, db *postgres.Database) string {
	rows, err := db.Keys.Pool.Query(ctx, mendRightsSQL, pgx.QueryExecModeExec)
	if err != nil {
		return ""
	}
	commands, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return ""
	}
	return strings.Join(commands, "; ")
}

// errOtherDatabase: following another's changes would have pages stay for ever.
var errOtherDatabase = errors.New("--replication-url leads to another server or database than --database-url")

// followsItself looks, until it is so, whether changes are followed in the
// database that pages are read from.
func followsItself(ctx context.Context, db *postgres.Database) error {
	if db.Options.ReplicationURL == "" || db.Options.ReplicationURL == db.Options.URL || db.SameDatabase.Load() {
		return nil
	}
	there, err := postgres.Connect(ctx, db.Options.ReplicationURL)
	if err != nil {
		return fmt.Errorf("--replication-url: %w", err)
	}
	defer there.Close(context.WithoutCancel(ctx))
	var pages, changes string
	if err = there.QueryRow(ctx, databaseIdentitySQL).Scan(&changes); err == nil {
		err = db.Keys.Pool.QueryRow(ctx, databaseIdentitySQL, pgx.QueryExecModeExec).Scan(&pages)
	}
	switch {
	case err != nil:
		return fmt.Errorf("--replication-url: %w", err)
	case postgres.Pooled(there.PgConn()):
		return nil // the follower refuses it
	case pages != changes:
		return errOtherDatabase
	}
	db.SameDatabase.Store(true)
	return nil
}
