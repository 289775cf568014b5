package follower

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"listedge/internal/changefeed"
	"listedge/internal/sandbox/postgrestest"
	"listedge/internal/sandbox/sandboxtest"
)

// slowLog is a log that answers late. With oneByOne set it appends entries one by one.
type slowLog struct {
	changefeed.Log
	late     time.Duration
	oneByOne bool
}

func (l slowLog) Append(ctx context.Context, epoch string, entries ...changefeed.Entry) error {
	if l.oneByOne {
		for _, e := range entries {
			if err := l.append(ctx, epoch, e); err != nil {
				return err
			}
		}
		return nil
	}
	return l.append(ctx, epoch, entries...)
}

func (l slowLog) append(ctx context.Context, epoch string, entries ...changefeed.Entry) error {
	if l.late > 0 {
		time.Sleep(l.late)
	}
	return l.Log.Append(ctx, epoch, entries...)
}

// BenchmarkBacklog measures how fast a follower appends a backlog of commits of one row
// to Redis: one append for each commit, against many commits in an append, in one run.
func BenchmarkBacklog(b *testing.B) {
	const commits = 20_000
	url := server().URL(postgrestest.Copy(b, server(), postgrestest.Template))
	redisServer := sandboxtest.Redis(b)
	client := redis.NewClient(&redis.Options{Addr: redisServer.Addr(), MaxRetries: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}})
	b.Cleanup(func() { _ = client.Close() })
	_, _, err := CreateSlot(b.Context(), url, "")
	must(err)
	conn := open(b, url)
	_, err = conn.Exec(b.Context(), fmt.Sprintf(`DO $$ BEGIN
		FOR n IN 1..%d LOOP INSERT INTO items (workspace_id, name) VALUES (gen_random_uuid(), 'x'); COMMIT; END LOOP; END $$`, commits))
	must(err)

	// The slot is not confirmed in so short a time: each term begins with all of them.
	followed := &changefeed.Followed{}
	run := func(log changefeed.Log, commits uint64) float64 {
		f := New(Options{DatabaseURL: url, Log: log, Followed: followed, LogKept: time.Minute, Silence: silent, Logger: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(b.Context())
		done := make(chan struct{})
		go func() { defer close(done); f.Run(ctx) }()
		eventually(b, "following", f.Following)
		began, before := time.Now(), f.Stats().Commits
		eventually(b, "all commits", func() bool { return f.Stats().Commits >= commits })
		rate := float64(f.Stats().Commits-before) / time.Since(began).Seconds()
		stop()
		<-done
		return rate
	}
	log := changefeed.NewRedis(client, followed)
	for name, c := range map[string]struct {
		late   time.Duration
		enough uint64
	}{"loopback": {0, commits}, "half a millisecond away": {500 * time.Microsecond, commits / 10}} {
		b.Run(name, func(b *testing.B) {
			var single, many float64
			for b.Loop() {
				single = max(single, run(slowLog{log, c.late, true}, c.enough))
				many = max(many, run(slowLog{log, c.late, false}, commits))
			}
			b.ReportMetric(commits, "commits")
			b.ReportMetric(single, "commits/s-one-by-one")
			b.ReportMetric(many, "commits/s")
			b.ReportMetric(many/single, "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
