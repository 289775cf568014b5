package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/page"
)

// ErrStandby says that a command that needs the primary has reached a standby.
var ErrStandby = errors.New("this server is a standby: name the primary in --database-url")

type kind = page.Kind

// Kinds of errors. Package page says what its own mean.
const (
	ErrUnavailable = page.ErrUnavailable
	ErrOverloaded  = page.ErrOverloaded
	ErrTimeout     = page.ErrTimeout
	ErrNotAllowed  = page.ErrNotAllowed
	ErrSchema      = page.ErrSchema
	ErrRow         = page.ErrRow
	// ErrLagging and ErrOtherPrimary say why a standby cannot serve a page.
	ErrLagging      = kind("the standby has not replayed far enough, or was not compared with the primary yet")
	ErrOtherPrimary = kind("not a standby of this primary")
)

// More special kinds. Each wraps one of the kinds above.
var (
	ErrWrongServer = page.ErrWrongServer
	// ErrCanceled: the caller's context ended before the server's own time limit.
	// It says nothing about the server.
	ErrCanceled = fmt.Errorf("%w for its caller", ErrTimeout)
	// ErrProtocol: the server's messages do not fit the request.
	ErrProtocol = fmt.Errorf("%w: unexpected answer of the database", ErrUnavailable)
)

// Classify wraps an error with its kind, unless it has one. It returns nil for nil. It
// returns an error without a kind if the cause is a defect of this program or of the
// schema.
func Classify(err error) error {
	var (
		known   kind
		refused *pgconn.ConnectError
		server  *pgconn.PgError
	)
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.As(err, &refused), !errors.As(err, &server): // not connected; no answer, a broken one, or none in time
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case server.Code == "57014", server.Code == "55P03": // query_canceled: statement_timeout; lock_not_available: the role's lock_timeout
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case server.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%w: %w", ErrNotAllowed, err)
	case server.Code == "42P01", server.Code == "42703", server.Code == "0A000": // undefined_table, undefined_column; altered again since it was prepared
		return fmt.Errorf("%w: %w", ErrSchema, err)
	case server.Code == "25001": // active_sql_transaction: Settings.Local
		return fmt.Errorf("behind a connection pooler this role needs default_transaction_isolation = 'read committed': %w", err)
	}
	switch server.Code[:2] {
	case "08", "40", "53", "57", "58": // connection, rollback (a standby's conflict), resources, shutdown and crash, system
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Code returns the SQLSTATE of a server's error; empty for other errors.
func Code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}

// WithSchemaHint adds to an error about a missing table or column what to do: the schema is of an
// older version than the program, or was changed.
func WithSchemaHint(err error) error {
	switch Code(err) {
	case "42P01", "42703": // undefined_table, undefined_column
		return fmt.Errorf("%w: run `listedge migrate up`; if it has nothing to apply, `listedge doctor` says how to restore the tables", err)
	}
	return err
}
