package follower

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"listedge/origin"
	"listedge/sandbox/sandboxtest"
	"listedge/stream"
)

func TestChangesAndHeartbeats(t *testing.T) {
	p := sandboxtest.Postgres(t)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := origin.CreateDatabase(ctx, p.URL("postgres"), "listedge"); err != nil {
		t.Fatal(err)
	}
	url := p.URL("listedge")
	if _, err := origin.MigrateUp(ctx, url); err != nil {
		t.Fatal(err)
	}
	log := stream.NewLocal()
	f := New(Options{DatabaseURL: url, Log: log, LogKept: time.Minute, Silence: func() time.Duration { return 0 },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); f.Run(running) }()
	defer func() { stop(); <-done }()
	_ = log.Probe(ctx, "me", 42)

	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var epoch string
	for epoch == "" {
		if ctx.Err() != nil {
			t.Fatal("no epoch", f.Incapable())
		}
		epoch, _ = log.Epoch(ctx)
		time.Sleep(5 * time.Millisecond)
	}
	var pos stream.Position
	beats := 0
	read := func(stop func(e stream.Entry) bool) stream.Entry {
		t.Helper()
		for ctx.Err() == nil {
			es, _ := log.Read(ctx, epoch, pos, time.Second)
			for _, e := range es {
				if pos.Term == e.Position.Term && e.Position.N != pos.N+1 {
					t.Fatalf("gap: %v after %v", e.Position, pos)
				}
				pos = e.Position
				if e.Heartbeat != nil {
					beats++
				}
				if stop(e) {
					return e
				}
			}
		}
		t.Fatal("timeout")
		return stream.Entry{}
	}
	read(func(e stream.Entry) bool { return e.Heartbeat != nil && e.Heartbeat.Nonces["me"] == 42 })
	w := uuid.New()
	began := time.Now()
	if _, err := conn.Exec(ctx, `INSERT INTO items (workspace_id, name) VALUES ($1, 'x')`, w); err != nil {
		t.Fatal(err)
	}
	e := read(func(e stream.Entry) bool { return e.Change != nil })
	t.Log("change after", time.Since(began), e.Change)
	if len(e.Change.Pairs) != 1 || e.Change.Pairs[0] != (stream.Pair{Workspace: w, Collection: stream.Items}) {
		t.Fatalf("%+v", e.Change)
	}
	xid := e.Change.XID
	e = read(func(e stream.Entry) bool {
		return e.Heartbeat != nil && len(e.Heartbeat.Unsettled) == 0
	})
	s, _ := stream.ParseSnapshot(e.Heartbeat.Snapshot)
	t.Log("settled after", time.Since(began), xid, s)
	n := beats
	time.Sleep(time.Second)
	read(func(e stream.Entry) bool { return e.Heartbeat != nil && beats > n+15 })
	// An open transaction's unflushed rows do not hold up heartbeats.
	tx, _ := conn.Begin(ctx)
	_, _ = tx.Exec(ctx, `INSERT INTO items (workspace_id, name) SELECT $1, 'y' || g FROM generate_series(1, 1000) g`, w)
	n, began = beats, time.Now()
	read(func(e stream.Entry) bool { return e.Heartbeat != nil && beats > n+10 })
	t.Log("10 heartbeats in", time.Since(began))
	_ = tx.Rollback(ctx)
	_, _ = conn.Exec(ctx, `TRUNCATE contacts`)
	e = read(func(e stream.Entry) bool { return e.Change != nil })
	if !e.Change.Touches(stream.Contacts) || e.Change.Touches(stream.Items) {
		t.Fatalf("%+v", e.Change)
	}
	_, _ = conn.Exec(ctx, `ALTER TABLE items ADD COLUMN extra int`)
	e = read(func(e stream.Entry) bool { return e.Change != nil })
	if !e.Change.Touches(stream.Items) || !e.Change.Touches(stream.Keys) {
		t.Fatalf("%+v", e.Change)
	}
}
