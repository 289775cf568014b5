package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/metrics"
	"listedge/origin"
	originadmin "listedge/origin/admin"
)

// checksOf returns what the node checks in the background.
func (n *Node) checksOf(pages *origin.Origin) []admin.Check {
	all := []admin.Check{{Name: "Postgres", Effect: admin.Starts, Run: n.checkPostgres(originadmin.NewReadiness(n.database, pages)),
		Runbook: "ListedgePostgresDown", Metric: metrics.Dependency{Kind: metrics.Postgres, Server: "primary"}}}
	if n.redis.pages != nil {
		all = append(all, admin.Check{Name: "Redis", Effect: admin.Reported, Run: n.checkRedis, Do: RedisRemedy,
			Runbook: "ListedgeRedisDown", Metric: metrics.Dependency{Kind: metrics.Redis}})
		all = append(all, admin.Check{Name: "fleet", Effect: admin.Always, Run: n.checkFleet})
	}
	if n.follower != nil {
		all = append(all, admin.Check{Name: "timeline", Effect: admin.Starts, Run: n.checkTimeline},
			admin.Check{Name: "Follower", Run: n.checkFollower, Runbook: "ListedgeNoFollower"})
	}
	for i, s := range pages.Stats().Standbys {
		check := func(ctx context.Context) error { return pages.CheckStandby(ctx, i) }
		all = append(all, admin.Check{Name: "Replica " + s.Host, Run: check,
			Runbook: "ListedgeReplicaFails", Metric: metrics.Dependency{Kind: metrics.Postgres, Server: s.Host}})
	}
	return all
}

// needsInterval is the time between two checks of what the node needs of its database: tables,
// rights and settings change rarely, and the check takes four queries.
const needsInterval = 5 * time.Second

// checkPostgres returns nil if the primary answers, and has what the node needs. It pings
// on the connections for keys, because those for pages may all be busy.
func (n *Node) checkPostgres(r *originadmin.Readiness) func(context.Context) error {
	var passed time.Time // when the node last had what it needs
	return func(ctx context.Context) error {
		if err := cmp.Or(n.database.Keys.Pool.Ping(ctx), n.database.WrongServer()); err != nil {
			return err
		}
		if time.Since(passed) < needsInterval {
			return nil
		}
		if err := r.Ready(ctx); err != nil {
			return admin.Impaired{Err: err}
		}
		passed = time.Now()
		return nil
	}
}

// writeRedis returns nil if Redis takes a write of each use that the node makes of it. A
// replica, a full server and one whose user lacks rights answer a ping, and refuse writes.
func (n *Node) writeRedis(ctx context.Context) error {
	own := n.followed.Prefix() + "check-" + n.name() // keys that nothing else uses
	var uses []string
	var writes []*redis.Cmd
	_, err := n.redis.limiter.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, use := range []struct {
			name     string
			commands [][]any
		}{{"pages", cache.RedisCommands(own)}, {"limits", limiter.RedisCommands(own)}, {"changes", changefeed.RedisCommands(own)}} {
			i := slices.IndexFunc(use.commands, func(c []any) bool { return c[0] == "set" })
			uses, writes = append(uses, use.name), append(writes, p.Do(ctx, use.commands[i]...))
		}
		return nil
	})
	if refused := redis.Error(nil); !errors.As(err, &refused) {
		return err
	}
	var refusing []string
	for i, w := range writes {
		if w.Err() != nil && w.Err().Error() == err.Error() {
			refusing = append(refusing, uses[i])
		}
	}
	return fmt.Errorf("%s: %w", strings.Join(refusing, ", "), err)
}

// checkRedis returns nil if Redis takes the node's writes, and all uses of it work.
func (n *Node) checkRedis(ctx context.Context) error {
	if err := n.writeRedis(ctx); err != nil {
		return err
	}
	var failing []string
	for _, use := range n.redisUses() {
		if err := use.failure(); err != nil {
			failing = append(failing, use.name+": "+err.Error())
		}
	}
	if len(failing) == 0 {
		return nil
	}
	return admin.Impaired{Err: errors.New(strings.Join(failing, "; "))}
}

// checkFollower returns nil while heartbeats of a follower arrive in time.
func (n *Node) checkFollower(context.Context) error {
	if n.Cache.Mode() == cache.ModeFollowed {
		return nil
	}
	if why := n.follower.Incapable(); why != nil {
		return fmt.Errorf("changes cannot be followed: %w", why)
	}
	if silence := n.feed.Silence(); silence > followAgain {
		return fmt.Errorf("no heartbeat of a follower for %s", silence.Round(time.Second))
	}
	return errors.New("heartbeats are late")
}
