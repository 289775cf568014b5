package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/origin"
	"listedge/origin/apikey"
)

const (
	// watchInterval is the time between two checks of the conditions.
	watchInterval = 200 * time.Millisecond
	// followAgain is how long the log of changes must be silent before a node that cannot
	// follow changes itself stops waiting for another node to do so.
	followAgain = 2 * time.Second
	// evictionInterval is how often Redis is asked for its eviction policy.
	evictionInterval = time.Minute
	// outageLinger is how long after an outage failures still count as part of it:
	// breakers stay open for a moment.
	outageLinger = 5 * time.Second
)

// condition is something that holds in normal running. A change is logged once,
// however many requests notice it.
type condition struct {
	holds, broken string       // log messages
	failure       func() error // why it does not hold; nil = it holds
}

var errBreakerOpen = errors.New("it failed several times in a row")

// breakerFailure is the failure of a breaker: the last error if it is known.
func breakerFailure(open bool, last error) error {
	if !open {
		return nil
	}
	return cmp.Or(last, errBreakerOpen)
}

// conditionsOf are the conditions of the servers that pages, keys and limits come from.
func (n *Node) conditionsOf(pages *origin.Origin, keys *apikey.Store) []condition {
	all := []condition{
		{"pages and keys are read from the primary", "pages and keys are not read: the server of --database-url is not the primary", n.database.WrongServer},
		{"pages are read from Postgres", "pages are not read from Postgres", func() error { return breakerFailure(pages.Stats().BreakerOpen, nil) }},
		{"keys are read from Postgres", "keys are not read from Postgres", func() error { return breakerFailure(keys.BreakerOpen(), nil) }},
	}
	all = append(all, condition{"the usage of keys is written to Postgres", "the usage of keys is not written to Postgres", func() error { return n.usage.Stats().Failure }})
	if n.redis.pages != nil {
		all = append(all, condition{"Redis is up", "Redis is down: this node enforces limits alone, and has no proof that its pages are fresh", func() error {
			if err := n.redisOutage.err; err != nil {
				return fmt.Errorf("%w: %s", err, RedisRemedy(err))
			}
			return nil
		}})
		for _, use := range n.redisUses() {
			all = append(all, condition{use.holds, use.broken, func() error {
				if n.redisOutage.err != nil {
					return nil // the condition above says so
				}
				return use.failure()
			}})
		}
	}
	for i, s := range pages.Stats().Standbys {
		standby := func() origin.StandbyStats { return pages.Stats().Standbys[i] }
		all = append(all,
			condition{"the replica " + s.Host + " is queried", "the replica " + s.Host + " is not queried",
				func() error { return breakerFailure(standby().BreakerOpen, standby().Failure) }},
			condition{"the replica " + s.Host + " is a standby of the primary", "the replica " + s.Host + " is not used: it is not a standby of the primary",
				func() error { return standby().Refusal }})
	}
	return all
}

// redisUse is one of the uses that a node makes of Redis.
type redisUse struct {
	name, holds, broken string
	failure             func() error
}

func (n *Node) redisUses() []redisUse {
	if n.redis.pages == nil {
		return nil
	}
	uses := []redisUse{
		{"pages", "pages are stored in Redis", "pages are not stored in Redis", func() error {
			s := n.Cache.Stats()
			return cmp.Or(s.RedisFailure, breakerFailure(s.RedisBreakerOpen, nil))
		}},
		{"limits", "limits are shared through Redis", "this node enforces limits alone", func() error { return n.limiter.Stats().Failure }},
	}
	if n.changes != nil {
		uses = append(uses, redisUse{"changes", "changes go through Redis", "changes do not go through Redis", n.changes.Failure})
	}
	return uses
}

// redisOutage distinguishes a Redis that is down from one of which some use fails.
type redisOutage struct {
	err error     // why it is down; nil = it is up
	at  time.Time // when it last was down
}

// check writes to Redis if some use of it fails.
func (o *redisOutage) check(ctx context.Context, n *Node) {
	failing := false
	for _, use := range n.redisUses() {
		failing = failing || use.failure() != nil
	}
	if !failing {
		o.err = nil
		return
	}
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	if err := n.writeRedis(ctx); err != nil {
		o.err, o.at = err, time.Now()
	} else if time.Since(o.at) > outageLinger {
		o.err = nil
	}
}

// watch logs changes of conditions, and makes pages expire by age while no node can follow
// changes.
func (n *Node) watch(ctx context.Context) {
	broken := make([]bool, len(n.conditions))
	cannotFollow := false
	var evictionAt time.Time // when it was last checked
	repeat(ctx, func(ctx context.Context) {
		n.redisOutage.check(ctx, n)
		for i, c := range n.conditions {
			switch err := c.failure(); {
			case err != nil && !broken[i]:
				n.logger.Warn(c.broken, "error", err)
			case err == nil && broken[i]:
				n.logger.Info("again: " + c.holds)
			default:
				continue
			}
			broken[i] = !broken[i]
		}
		if n.redis.limiter != nil && time.Since(evictionAt) >= evictionInterval && n.checkEviction(ctx) {
			evictionAt = time.Now()
		}
		if n.follower == nil {
			return
		}
		why := n.follower.Incapable()
		if now := why != nil && n.feed.Silence() > followAgain; now != cannotFollow {
			cannotFollow = now
			n.Cache.SetTTLMode(now)
			if now {
				n.logger.Warn("changes cannot be followed: pages expire after --cache-ttl", "why", why)
			} else {
				n.logger.Info("changes are followed again")
			}
		}
	})
}

// repeat calls f at once, and then every watchInterval until ctx ends.
func repeat(ctx context.Context, f func(context.Context)) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		f(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// checkEviction warns once if Redis may evict what must not be lost: a bucket that is
// evicted is full again, and a gap in the log of changes makes every node discard
// what it knows. It returns false while Redis does not answer.
func (n *Node) checkEviction(ctx context.Context) (answered bool) {
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	text, err := n.redis.limiter.Info(ctx, "memory").Result()
	if err != nil {
		return redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "ERR") // it answers, without the policy
	}
	policy := ParseInfo(text)["maxmemory_policy"]
	evicts := policy != "noeviction" && policy != ""
	if n.evicts.Swap(evicts) != evicts && evicts {
		n.logger.Warn("Redis may evict buckets and the log of changes: set its maxmemory-policy to noeviction", "maxmemory-policy", policy)
	}
	return true
}
