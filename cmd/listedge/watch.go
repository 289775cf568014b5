package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/origin"
)

// condition is something that holds in normal running. What changes is logged
// once, however many requests notice.
type condition struct {
	holds, broken string // what to log
	ok            func() bool
}

// conditionsOf are the conditions of what the node's pages, keys and limits come
// from.
func (n *node) conditionsOf(pages *origin.Origin, keys *origin.KeyStore) (all []condition) {
	all = []condition{
		{"pages are asked of Postgres", "Postgres is left alone for pages: it failed several times in a row", func() bool { return !pages.Stats().BreakerOpen }},
		{"keys are asked of Postgres", "Postgres is left alone for keys: it failed several times in a row", func() bool { return !keys.BreakerOpen() }},
		{"pages are asked of Redis", "Redis is left alone for pages: it failed several times in a row", func() bool { return !n.cache.Stats().RedisBreakerOpen }},
		{"limits are kept in Redis", "limits are kept by this node alone: Redis failed several times in a row", func() bool {
			state := n.limiter.Stats().Breaker
			return state == "" || state == "closed"
		}},
	}
	for i, s := range pages.Stats().Standbys {
		all = append(all,
			condition{"pages are asked of the replica " + s.Host, "the replica " + s.Host + " is left alone: it failed several times in a row",
				func() bool { return !pages.Stats().Standbys[i].BreakerOpen }},
			condition{"the replica " + s.Host + " is a standby of the primary", "the replica " + s.Host + " is not used: it is no standby that streams from the primary, is on another timeline, or does not tell",
				func() bool { return !pages.Stats().Standbys[i].IsForeign }})
	}
	return all
}

const (
	watchEvery = 200 * time.Millisecond
	// followAgain is how long the log of changes must be silent before a node
	// that cannot follow changes itself stops waiting for one that can.
	followAgain = 2 * time.Second
	// evictionEvery is how often Redis is asked for its policy.
	evictionEvery = time.Minute
)

// watch logs changes of condition, and lets pages live by their age while
// nobody can follow changes.
func (n *node) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	broken := make([]bool, len(n.conditions))
	cannot := false
	evictionAt := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for i, c := range n.conditions {
			switch ok := c.ok(); {
			case !ok && !broken[i]:
				n.logger.Warn(c.broken)
			case ok && broken[i]:
				n.logger.Info("again: " + c.holds)
			default:
				continue
			}
			broken[i] = !broken[i]
		}
		if n.redis.limiter != nil && !time.Now().Before(evictionAt) && n.lookForEviction(ctx) {
			evictionAt = time.Now().Add(evictionEvery)
		}
		if n.follower == nil {
			continue
		}
		why := n.follower.Incapable()
		if now := why != nil && n.cache.Silence() > followAgain; now != cannot {
			cannot = now
			n.cache.CannotFollow(cannot)
			if cannot {
				n.logger.Warn("pages live --cache-ttl: changes cannot be followed", "why", why)
			} else {
				n.logger.Info("changes are followed again")
			}
		}
	}
}

// repeat probes now and then until ctx ends.
func repeat(ctx context.Context, probe func(context.Context)) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			probe(ctx)
		}
	}
}

// lookForEviction looks whether Redis may evict what must not go, and says so
// once: a bucket that is lost is full again, and a gap in the log of changes
// has every node begin anew. It returns false while Redis does not answer.
func (n *node) lookForEviction(ctx context.Context) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	found, err := n.redis.limiter.ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil {
		return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "ERR") // it answers, but does not tell
	}
	policy := found["maxmemory-policy"]
	evicts := policy != "noeviction" && policy != ""
	if n.evicts.Swap(evicts) != evicts && evicts {
		n.logger.Warn("Redis may evict buckets and the log of changes: set its maxmemory-policy to noeviction", "maxmemory-policy", policy)
	}
	return true
}
