//go:build linux

package follower

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
)

// processorTime is the CPU time that a process has used, in nanoseconds.
func processorTime(b *testing.B, pid uint32) (ns float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &ns); err != nil {
		b.Fatal(err)
	}
	return ns
}

// followed is a database of a server, with a foreign table and a follower.
type followed struct {
	*testing.B
	conn, look *pgx.Conn
	f          *Follower
	log        changefeed.Log
}

func startFollowed(b *testing.B, p *sandbox.Postgres, streaming, memory string) *followed {
	b.Helper()
	must(postgrestest.Make(b.Context(), p, postgrestest.Template, migrateUp))
	url := p.URL(postgrestest.Copy(b, p, postgrestest.Template))
	w := &followed{B: b, conn: open(b, url), look: open(b, url), log: changefeed.NewLocal()}
	w.exec("CREATE TABLE other (n int, t text)")
	w.f = New(Options{DatabaseURL: withMemory(url, memory), Log: w.log, LogKept: time.Minute, Silence: silent, Logger: slog.New(slog.DiscardHandler)})
	w.f.streaming = streaming
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.f.Run(ctx) }()
	b.Cleanup(func() { stop(); <-done })
	eventually(b, "following", w.f.Following)
	return w
}

func (w *followed) exec(sql string) {
	w.Helper()
	if _, err := w.conn.Exec(w.Context(), sql); err != nil {
		w.Fatal(err)
	}
}

func (w *followed) number(sql string) (n float64) {
	w.Helper()
	if err := w.look.QueryRow(w.Context(), sql).Scan(&n); err != nil {
		w.Fatal(err)
	}
	return n
}

// settled waits until the follower has decoded all WAL.
func (w *followed) settled() {
	w.Helper()
	at := w.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8")
	var after changefeed.Position
	eventually(w, "all is decoded", func() (yes bool) {
		epoch, _ := w.log.Epoch(w.Context())
		entries, _ := readLog(w.Context(), w.log, epoch, after, time.Millisecond)
		for _, e := range entries {
			after = e.Position
			yes = yes || e.Heartbeat != nil && float64(e.Heartbeat.LSN) >= at
		}
		return yes
	})
}

const (
	kept    = "SELECT (pg_current_wal_insert_lsn() - restart_lsn)::float8 FROM pg_replication_slots WHERE database = current_database()"
	written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8"
)

// BenchmarkWalsender measures what the walsender uses of a processor for a small
// commit, and how that compares with what the writer itself uses.
func BenchmarkWalsender(b *testing.B) {
	for name, insert := range map[string]string{
		"foreign":   "INSERT INTO other VALUES (1, 'x')",
		"published": "INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'x')",
	} {
		b.Run(name, func(b *testing.B) {
			const commits = 30_000
			w := startFollowed(b, server(), "on", "")
			sender := uint32(w.number("SELECT active_pid::float8 FROM pg_replication_slots WHERE database = current_database()"))
			var sent, wrote float64
			for b.Loop() {
				w.settled()
				s, b := processorTime(b, sender), processorTime(b, w.conn.PgConn().PID())
				w.exec(fmt.Sprintf("DO $$ BEGIN FOR n IN 1..%d LOOP %s; COMMIT; END LOOP; END $$", commits, insert))
				w.settled()
				sent, wrote = sent+processorTime(w.B, sender)-s, wrote+processorTime(w.B, w.conn.PgConn().PID())-b
			}
			b.ReportMetric(sent/1e3/float64(b.N)/commits, "walsender-µs/commit")
			b.ReportMetric(sent/wrote, "walsender/writer")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkWALKept measures how much WAL the slot keeps under bulk writes to another table:
// transactions of 200,000 rows, one after the other.
func BenchmarkWALKept(b *testing.B) {
	const lasts = 25 * time.Second
	w := startFollowed(b, sandboxtest.PostgresWith(b, map[string]string{"max_slot_wal_keep_size": "-1"}), "on", "")
	var most, rate float64
	for b.Loop() {
		from, began := w.number(written), time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for time.Since(began) < lasts {
				w.exec("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 200000) n")
				w.exec("TRUNCATE other")
			}
		}()
		for running := true; running; {
			most = max(most, w.number(kept))
			select {
			case <-done:
				running = false
			case <-time.After(50 * time.Millisecond):
			}
		}
		rate = (w.number(written) - from) / time.Since(began).Seconds()
		w.settled()
	}
	b.ReportMetric(most/1e6, "MB-kept")
	b.ReportMetric(rate/1e6, "MB/s-written")
	b.ReportMetric(most/rate, "seconds'-worth")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkForeignTransaction measures the longest time between two heartbeats
// around one transaction that writes rows of a table that is not published.
// Without streaming the walsender decodes it when it commits: from disk, where it
// is larger than the memory of Postgres' default, or from memory.
func BenchmarkForeignTransaction(b *testing.B) {
	for _, rows := range []int{500_000, 2_000_000} {
		for _, c := range []struct{ streaming, memory string }{{"off", "64MB"}, {"off", "2GB"}, {"on", ""}} {
			b.Run(fmt.Sprintf("rows=%d/streaming=%s%s", rows, c.streaming, c.memory), func(b *testing.B) {
				w := startFollowed(b, server(), c.streaming, c.memory)
				var longest, wrote time.Duration
				heartbeats := 0
				for b.Loop() {
					w.settled()
					done := make(chan struct{})
					go func() {
						defer close(done)
						began := time.Now()
						w.exec(fmt.Sprintf("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, %d) n", rows))
						wrote = time.Since(began)
					}()
					gap, n := w.longestSilence(done)
					longest, heartbeats = max(longest, gap), heartbeats+n
					w.exec("TRUNCATE other")
				}
				b.ReportMetric(longest.Seconds(), "s-silence")
				b.ReportMetric(wrote.Seconds(), "s-to-write")
				b.ReportMetric(float64(heartbeats)/float64(b.N), "heartbeats")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// longestSilence returns the longest time between two heartbeats until one
// covers everything that was written before done.
func (w *followed) longestSilence(done <-chan struct{}) (longest time.Duration, heartbeats int) {
	epoch, err := w.log.Epoch(w.Context())
	must(err)
	after, err := w.log.Last(w.Context(), epoch)
	must(err)
	last, end := time.Now(), 0.0
	for {
		entries, err := readLog(w.Context(), w.log, epoch, after, 20*time.Millisecond)
		must(err)
		for _, e := range entries {
			after = e.Position
			if e.Heartbeat == nil {
				continue
			}
			longest, last, heartbeats = max(longest, time.Since(last)), time.Now(), heartbeats+1
			if end != 0 && float64(e.Heartbeat.LSN) >= end {
				return longest, heartbeats
			}
		}
		select {
		case <-done:
			if end == 0 {
				end = w.number(written)
			}
		default:
		}
	}
}

// BenchmarkSlotLost measures for how long nothing is proven if one transaction on another
// table writes several times as much WAL as a slot may keep.
func BenchmarkSlotLost(b *testing.B) {
	const keeps = 64e6
	p := sandboxtest.PostgresWith(b, map[string]string{"max_slot_wal_keep_size": "64MB", "max_wal_size": "64MB", "min_wal_size": "32MB"})
	w := startFollowed(b, p, "on", "")
	var unproven, all time.Duration
	var ratio float64
	lost := 0
	for b.Loop() {
		w.settled()
		from, began := w.number(written), time.Now()
		before, _ := w.log.Epoch(b.Context())
		done := make(chan struct{})
		var wrote float64
		go func() {
			defer close(done)
			w.exec("INSERT INTO other SELECT n, repeat('x', 100) FROM generate_series(1, 2000000) n")
			w.exec("TRUNCATE other")
			w.exec("CHECKPOINT")
		}()
		last, at := time.Now(), changefeed.Position{}
		epoch := before
		for behind := false; !behind; {
			if present, _ := w.log.Epoch(b.Context()); present != epoch {
				epoch, at = present, changefeed.Position{}
				lost++
			}
			entries, _ := readLog(b.Context(), w.log, epoch, at, 20*time.Millisecond)
			for _, e := range entries {
				at = e.Position
				if e.Heartbeat == nil {
					continue
				}
				if gap := time.Since(last); gap > 500*time.Millisecond {
					unproven += gap - 500*time.Millisecond // of the default bound
				}
				last = time.Now()
				select {
				case <-done:
					if wrote == 0 {
						wrote = w.number(written)
					}
					behind = float64(e.Heartbeat.LSN) >= wrote
				default:
				}
			}
		}
		ratio = (wrote - from) / keeps
		all += time.Since(began)
	}
	b.ReportMetric(ratio, "written/kept")
	b.ReportMetric(float64(lost)/float64(b.N), "epochs-lost")
	b.ReportMetric(unproven.Seconds()/float64(b.N), "s-untrusted")
	b.ReportMetric(all.Seconds()/float64(b.N), "s-in-all")
	b.ReportMetric(0, "ns/op")
}
