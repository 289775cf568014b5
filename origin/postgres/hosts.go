// Package postgres has a connection meet the server that is meant, where the URL
// of a database names several: postgres://user@a,b/database. Which of them is
// the primary changes with a fail-over.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/redact"
)

var errUnclear = errors.New("neither postgres://user:password@host:port/database nor key=value pairs; a user or a password has @ : / ? % and blanks as %40 %3A %2F %3F %25 %20")

// Check returns why a URL cannot be used; nil if it can. err is what the driver
// says of it, which quotes the URL: only its reason is told. A URL that can be
// read in two ways is refused, although the driver may read it: a piece of its
// password would be the name of a host or a database, and be in every error.
func Check(url string, err error) error {
	if !redact.IsClear(url) {
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

// Schema is where the tables are, whatever search path a role or a database has.
const Schema = "public"

// Primary reads a URL for connections that write, or that follow what is
// written: of several servers they meet the primary.
func Primary(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err = Check(url, err); err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	Choose(config, pgconn.ValidateConnectTargetSessionAttrsPrimary)
	Settings{"search_path": Schema}.Hold(&config.Config)
	return config, nil
}

// ErrStandby: a command was led to a server that takes no writes.
var ErrStandby = errors.New("this server is a standby: name the primary in --database-url")

// CheckPrimary returns ErrStandby where the connection leads to a server in
// recovery: a URL that names a single server is taken at its word.
func CheckPrimary(ctx context.Context, conn *pgx.Conn) error {
	var standby bool
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeExec).Scan(&standby); err != nil {
		return fmt.Errorf("ask whether it is the primary: %w", err)
	}
	if standby {
		return fmt.Errorf("%s: %w", conn.PgConn().Conn().RemoteAddr(), ErrStandby)
	}
	return nil
}

// Choose says which of several servers is meant, unless the URL does
// (target_session_attrs). A single one is taken for what it is.
func Choose(c *pgx.ConnConfig, which pgconn.ValidateConnectFunc) {
	several := slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
	if several && c.ValidateConnect == nil {
		c.ValidateConnect = which
	}
}
