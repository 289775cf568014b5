package postgres

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrStandby: a command reached a server that takes no writes.
var ErrStandby = errors.New("this server is a standby: name the primary in --database-url")

// kind is what a caller distinguishes errors by.
type kind string

func (k kind) Error() string { return string(k) }

// Kinds of errors. The first three are temporary: the caller may serve an older
// page, or try again later.
const (
	ErrUnavailable = kind("database unavailable")
	ErrOverloaded  = kind("too many queries at once")
	ErrTimeout     = kind("query took too long")
	// ErrNotAllowed: the role lacks a right. Other tables may still be readable.
	ErrNotAllowed = kind("the database does not let this node read")
	// ErrSchema: the tables are not those of the schema.
	ErrSchema = kind("unexpected columns")
	// ErrRowTooLong: a row is from before migration 8, and too long to be read.
	ErrRowTooLong = kind("a row is too long to be read")
	// ErrLagging and ErrOtherPrimary: a standby cannot serve a page.
	ErrLagging      = kind("the standby has not replayed far enough, or was not looked at before")
	ErrOtherPrimary = kind("not a standby of this primary")
)

// Kinds within a kind.
var (
	// ErrWrongServer: a server answered that is not the primary. The primary's
	// answer is unknown.
	ErrWrongServer = fmt.Errorf("%w: not the primary", ErrUnavailable)
	// ErrCanceled: the caller's context ended before the server's own time limit.
	// It says nothing about the server.
	ErrCanceled = fmt.Errorf("%w for its caller", ErrTimeout)
	// ErrProtocol: the server's messages are no answer to the request.
	ErrProtocol = fmt.Errorf("%w: unexpected answer of the database", ErrUnavailable)
)

// Classify gives an error its kind, unless it has one. It returns nil for nil,
// and an error without a kind for a defect of this program or of the schema.
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
	case server.Code == "57014": // query_canceled: statement_timeout
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	case server.Code == "42501": // insufficient_privilege
		return fmt.Errorf("%w: %w", ErrNotAllowed, err)
	case server.Code == "25001": // active_sql_transaction: Settings.Local
		return fmt.Errorf("behind a connection pooler this role needs default_transaction_isolation = 'read committed': %w", err)
	}
	switch server.Code[:2] {
	case "08", "40", "53", "57", "58": // connection, rollback (a standby's conflict), resources, shutdown and crash, system
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Code is the SQLSTATE of a server's error; empty for other errors.
func Code(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}
	return ""
}
