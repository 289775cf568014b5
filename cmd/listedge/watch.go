package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/origin"
	"listedge/origin/apikey"
)

// condition is something that holds in normal running. What changes is logged
// once, however many requests notice.
type condition struct {
	holds, broken string // what to log
	ok            func() bool
	why           func() error // it is broken, where known; nil = it is never known
}

// conditionsOf are the conditions of what the node's pages, keys and limits come
// from.
func (n *node) conditionsOf(pages *origin.Origin, keys *apikey.Store) (all []condition) {
	all = []condition{
		{holds: "pages and keys come from the primary", broken: "pages and keys are not taken from the server that --database-url leads to: it is not the primary", ok: func() bool { return n.database.WrongServer() == nil }, why: n.database.WrongServer},
		{holds: "pages are asked of Postgres", broken: "Postgres is left alone for pages: it failed several times in a row", ok: func() bool { return !pages.Stats().BreakerOpen }},
		{holds: "keys are asked of Postgres", broken: "Postgres is left alone for keys: it failed several times in a row", ok: func() bool { return !keys.BreakerOpen() }},
	}
	all = append(all, n.redisConditions()...)
	for i, s := range pages.Stats().Standbys {
		all = append(all,
			condition{holds: "pages are asked of the replica " + s.Host, broken: "the replica " + s.Host + " is left alone: it failed several times in a row",
				ok: func() bool { return !pages.Stats().Standbys[i].BreakerOpen }, why: func() error { return pages.Stats().Standbys[i].Failure }},
			condition{holds: "the replica " + s.Host + " is a standby of the primary", broken: "the replica " + s.Host + " is not used: it is no standby of the primary",
				ok: func() bool { return pages.Stats().Standbys[i].Refusal == nil }, why: func() error { return pages.Stats().Standbys[i].Refusal }})
	}
	return all
}

// reason is why it is broken, as attributes of the log.
func (c *condition) reason() []any {
	if c.why == nil || c.why() == nil {
		return nil
	}
	return []any{"error", c.why()}
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
	var neighboursAt time.Time // when the last look was
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n.away.look(ctx, n)
		for i, c := range n.conditions {
			switch ok := c.ok(); {
			case !ok && !broken[i]:
				n.logger.Warn(c.broken, c.reason()...)
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
		if n.changes != nil && time.Since(neighboursAt) >= n.neighboursPause() && n.lookForNeighbours(ctx) {
			neighboursAt = time.Now()
		}
		if n.follower == nil {
			continue
		}
		why := n.follower.Incapable()
		if now := why != nil && n.feed.Silence() > followAgain; now != cannot {
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

// repeat probes at once, and then now and then until ctx ends.
func repeat(ctx context.Context, probe func(context.Context)) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		probe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// lookForEviction looks whether Redis may evict what must not go, and says so
// once: a bucket that is lost is full again, and a gap in the log of changes
// has every node begin anew. It returns false while Redis does not answer.
func (n *node) lookForEviction(ctx context.Context) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	text, err := n.redis.limiter.Info(ctx, "memory").Result()
	if err != nil {
		return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "ERR") // it answers, but does not tell
	}
	policy := parseInfo(text)["maxmemory_policy"]
	evicts := policy != "noeviction" && policy != ""
	if n.evicts.Swap(evicts) != evicts && evicts {
		n.logger.Warn("Redis may evict buckets and the log of changes: set its maxmemory-policy to noeviction", "maxmemory-policy", policy)
	}
	return true
}
