package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"listedge/cache"
	"listedge/edge/admin"
	"listedge/metrics"
	"listedge/origin"
)

// dependenciesOf returns the dependencies of a node. They are checked every second,
// independently of requests.
func (n *node) dependenciesOf(pages *origin.Origin) []admin.Dependency {
	all := []admin.Dependency{{Name: "Postgres", Runbook: "ListedgePostgresDown", Check: n.pingPrimary, Metric: metrics.Dependency{Kind: metrics.Postgres, Server: "primary"}}}
	if n.redis.pages != nil {
		ping := func(ctx context.Context) error { return n.redis.limiter.Ping(ctx).Err() }
		all = append(all, admin.Dependency{Name: "Redis", Runbook: "ListedgeRedisDown", Check: ping, Metric: metrics.Dependency{Kind: metrics.Redis}})
	}
	if n.follower != nil {
		all = append(all, admin.Dependency{Name: "Follower", Runbook: "ListedgeNoFollower", Check: n.checkFollower})
	}
	for i, s := range pages.Stats().Standbys {
		check := func(ctx context.Context) error { return pages.CheckStandby(ctx, i) }
		all = append(all, admin.Dependency{Name: "Replica " + s.Host, Runbook: "ListedgeReplicaFails", Check: check, Metric: metrics.Dependency{Kind: metrics.Postgres, Server: s.Host}})
	}
	return all
}

// pingPrimary returns nil if the primary answers. It uses the connections for keys,
// because those for pages may all be busy.
func (n *node) pingPrimary(ctx context.Context) error {
	return cmp.Or(n.database.Keys.Pool.Ping(ctx), n.database.WrongServer())
}

// checkFollower returns nil while heartbeats of a follower arrive in time.
func (n *node) checkFollower(context.Context) error {
	if n.cache.Mode() == cache.ModeFollowed {
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
