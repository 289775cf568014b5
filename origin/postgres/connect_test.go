package postgres_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

// A name server that hangs keeps nobody waiting for longer than a server that does: neither a
// pool that has to connect, nor a node that stops.
func TestAHostIsLookedUpInTime(t *testing.T) {
	var asked atomic.Int32 // of two families at once
	previous := net.DefaultResolver
	defer func() { net.DefaultResolver = previous }()
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		asked.Add(1)
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > postgres.ConnectTimeout {
			t.Errorf("it may take %s", time.Until(deadline))
		}
		return nil, errors.New("no name server")
	}}
	config, err := postgres.PrimaryConfig("postgres://db.shop.example/listedge")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.ConnectConfig(t.Context(), config); err == nil || asked.Load() == 0 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
}
