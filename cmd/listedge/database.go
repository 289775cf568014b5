package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"listedge/internal/list"
	"listedge/origin/admin"
	"listedge/origin/audit"
	"listedge/origin/postgres"
)

// DatabaseFlags say where Postgres is.
type DatabaseFlags struct {
	conn        *admin.Conn
	DatabaseURL string `help:"postgres://user:password@host:port/database; of several host:port the primary." required:"" placeholder:"URL" secret:""`
}

// Validate refuses an empty URL, which would mean the defaults of libpq.
func (f *DatabaseFlags) Validate() error {
	if f.DatabaseURL == "" {
		return fmt.Errorf("--database-url must be given, or LISTEDGE_DATABASE_URL")
	}
	return checkURL("--database-url", f.DatabaseURL)
}

// checkURL refuses a malformed URL. An empty one is none.
func checkURL(flag, url string) error {
	if _, err := postgres.ParseURL(url); url != "" && err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// ProvideConn connects a command whose Run takes an *admin.Conn.
func (f *DatabaseFlags) ProvideConn(ctx context.Context) (_ *admin.Conn, err error) {
	f.conn, err = admin.Open(ctx, f.DatabaseURL)
	return f.conn, err
}

// AfterRun closes the connection.
func (f *DatabaseFlags) AfterRun() error {
	if f.conn != nil {
		f.conn.Close()
	}
	return nil
}

// ReplicationFlag is the database whose changes are followed.
type ReplicationFlag struct {
	ReplicationURL string `help:"The same database without its connection pooler, to follow changes. Empty: --database-url." placeholder:"URL" secret:""`
}

// Validate refuses a malformed URL.
func (f *ReplicationFlag) Validate() error { return checkURL("--replication-url", f.ReplicationURL) }

// ListsFlag names the description of the lists. Without it they are the built-in ones.
type ListsFlag struct {
	Description *list.Description `kong:"-"` // the one in force, once the flags are valid
	Lists       string            `help:"File that describes the lists: docs/OWN_TABLES.md. Empty: items and contacts, which are built in." placeholder:"FILE"`
}

// Validate reads the description. Its error has all mistakes.
func (f *ListsFlag) Validate() error {
	if f.Lists == "" {
		f.Description = list.BuiltInDescription()
		return nil
	}
	text, err := os.ReadFile(f.Lists)
	if err != nil {
		return fmt.Errorf("--lists: %w", err)
	}
	f.Description, err = list.Parse(f.Lists, text)
	return err
}

// Resolve makes the lists in force, as the database at the URL has their tables. The built-in ones need no database. It is wrong
// usage if the tables do not fit.
func (f *ListsFlag) Resolve(ctx context.Context, url string) (*list.Set, error) {
	if f.Lists == "" {
		return list.BuiltIn(), nil
	}
	set, err := admin.ResolveLists(ctx, url, f.Description)
	if errors.As(err, new(list.Mistakes)) {
		err = usageError{Err: err}
	}
	return set, err
}

// ActorFlag names who runs the command, for the audit log.
type ActorFlag struct {
	Actor string `help:"Name of the actor in the audit log." default:"${user}" placeholder:"NAME"`
}

// Validate refuses a name that would spoil the audit log.
func (f *ActorFlag) Validate() error {
	if err := audit.CheckActor(f.Actor); err != nil {
		return fmt.Errorf("--actor %w", err)
	}
	return nil
}

// acting is the context of a command that changes something: its acts are the actor's.
type acting context.Context

// ProvideContext names the actor to a command whose Run takes an acting context.
func (f *ActorFlag) ProvideContext(ctx context.Context) acting { return audit.As(ctx, f.Actor) }

// ChangeFlags are for commands that change the database and name who does it.
type ChangeFlags struct {
	DatabaseFlags
	ActorFlag
}
