// Package postgres connects to Postgres: which of several servers a URL means,
// pools, breakers, rows read from the wire, and the kinds of errors.
//
//	URL ──► hosts ──► pool ──► breaker ──► session ──► rows
//	                                          └──────► errors, by kind
//
// It knows nothing of lists, keys and schemas.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/changefeed"
	"listedge/internal/redact"
)

// Schema is where the tables are, whatever search path a role or a database has.
const Schema = "public"

var errUnclear = errors.New("not postgres://user:password@host:port/database; a user or a password has @ : / ? % and blanks as %40 %3A %2F %3F %25 %20")

// checkURL returns why a URL cannot be used; nil if it can. err is the driver's error, which
// quotes the URL, so only its reason is kept. A URL that can be read in two ways is refused,
// even if the driver accepts it: a part of the password might be taken for the name of a
// host or a database, and appear in every error.
func checkURL(url string, err error) error {
	scheme, _, isURL := strings.Cut(url, "://")
	if !redact.IsClear(url) || isURL && scheme != "postgres" && scheme != "postgresql" {
		return errUnclear
	}
	if err == nil {
		return nil
	}
	reason := err.Error()
	if i := strings.LastIndex(reason, "`: "); i >= 0 {
		reason = reason[i+len("`: "):]
	}
	return fmt.Errorf("%s: %s", redact.URL(url), redact.Text(reason, url))
}

// PrimaryConfig parses a URL for connections that write, or that follow changes. If the URL
// names several servers, they lead to the primary.
func PrimaryConfig(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err = checkURL(url, err); err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	prepareConfig(config, toPrimary, CommandSettings)
	return config, nil
}

// CommandSettings are the settings of commands and of the follower. jit is off because compiling
// would take longer than what they ask of the catalog.
var CommandSettings = Settings{"search_path": Schema, "jit": "off"}

// prepareConfig sets what all connections have in common. If the URL names several servers,
// target chooses one of them, unless the URL itself does (target_session_attrs). A single
// server is not checked here: it may be a primary or a standby.
func prepareConfig(c *pgx.ConnConfig, target pgconn.ValidateConnectFunc, settings Settings) {
	c.ConnectTimeout = ConnectTimeout
	c.RuntimeParams["application_name"] = "listedge"
	c.RuntimeParams["timezone"] = "UTC"
	c.RuntimeParams["client_encoding"] = "UTF8" // overrides the setting of the database and of the role
	settings.apply(&c.Config)
	several := slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
	if several && c.ValidateConnect == nil {
		c.ValidateConnect = target
	}
}

// Connect opens one ordinary, writing connection. If the URL names a single
// server, it may be a standby.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	return connectWithin(ctx, url, ConnectTimeout)
}

func connectWithin(ctx context.Context, url string, timeout time.Duration) (*pgx.Conn, error) {
	config, err := PrimaryConfig(url)
	if err != nil {
		return nil, err
	}
	config.ConnectTimeout = timeout
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may forget what is prepared
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	return conn, nil
}

// IdentifyAt returns which server and database a URL leads to.
func IdentifyAt(ctx context.Context, url string) (s changefeed.Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*ConnectTimeout)
	defer cancel()
	conn, err := Connect(ctx, url)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return Identify(ctx, conn)
}

// CommandTimeout is how long a command waits for a connection: nobody else waits meanwhile.
const CommandTimeout = 10 * time.Second

// ConnectPrimary opens a connection for a command that needs the primary. It returns ErrStandby
// if the server is a standby: Connect does not check a URL that names a single server.
func ConnectPrimary(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := connectWithin(ctx, url, CommandTimeout)
	if err != nil {
		return nil, err
	}
	var standby bool
	err = conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&standby)
	if standby {
		err = fmt.Errorf("%s: %w", conn.PgConn().Conn().RemoteAddr(), ErrStandby)
	}
	if err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return conn, nil
}
