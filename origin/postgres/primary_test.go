package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"listedge/internal/fleet"
)

// A query is sent again if its connection has ended, as often as the pool has connections, and for
// no other error.
func TestReadAgain(t *testing.T) {
	const connections = 4
	pool, err := openPool(t.Context(), "postgres://u@127.0.0.1:1/none", toPrimary, connections, 0, SessionSettings(time.Minute), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	p := &Primary{Pool: pool, db: &Database{Options: Options{Followed: &fleet.Followed{}}}}
	for _, test := range []struct {
		err  error
		want int
	}{
		{io.ErrUnexpectedEOF, 1 + connections},
		{&pgconn.PgError{Code: "57P01"}, 1 + connections}, // admin_shutdown
		{&pgconn.PgError{Code: "08P01"}, 1 + connections}, // of PgBouncer, which has closed the connection
		{&pgconn.PgError{Code: "57014"}, 1},               // query_canceled
		{&pgconn.PgError{Code: "53300"}, 1},               // too_many_connections
		{&pgconn.ConnectError{}, 1},
		{fmt.Errorf("an LSN: %w", ErrProtocol), 1}, // it would answer the same
		{ErrRow, 1},
	} {
		reads := 0
		err := p.Read(t.Context(), "", func() (fleet.Server, error) { reads++; return fleet.Server{}, test.err })
		if err != test.err || reads != test.want {
			t.Errorf("%v: %d reads, %v", test.err, reads, err)
		}
	}
}

// Of a read whose caller has gone, that is the error: not that the timeline is unknown.
func TestAReadWhoseCallerHasGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	known := make(chan struct{})
	close(known)
	p := &Primary{db: &Database{Options: Options{Followed: &fleet.Followed{Known: known}}}}
	for range 100 {
		if err := p.Read(ctx, "", func() (fleet.Server, error) { return fleet.Server{}, ctx.Err() }); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}
