package main

import (
	"context"
	"errors"
	"strings"
	"time"
)

// redisPart is one use that a node makes of Redis.
type redisPart struct {
	name, holds, broken string
	failure             func() error // why it is of none at the moment; nil = it is
}

func (n *node) redisParts() []redisPart {
	if n.redis.pages == nil {
		return nil
	}
	parts := []redisPart{
		{"pages", "pages go through Redis", "pages do not go through Redis", func() error {
			s := n.cache.Stats()
			if s.RedisFailure == nil && s.RedisBreakerOpen {
				return errBreakerOpen
			}
			return s.RedisFailure
		}},
		{"limits", "limits are kept in Redis", "limits are kept by this node alone", func() error { return n.limiter.Stats().Failure }},
	}
	if n.changes != nil {
		parts = append(parts, redisPart{"changes", "changes go through Redis", "changes do not go through Redis", n.changes.Failure})
	}
	return parts
}

var errBreakerOpen = errors.New("no answer in time, several times in a row")

// checkRedis is what /readyz says of Redis: whether it answers, and which use of
// it is refused.
func (n *node) checkRedis(ctx context.Context) error {
	if err := n.redis.limiter.Ping(ctx).Err(); err != nil {
		return err
	}
	var failing []string
	for _, part := range n.redisParts() {
		if err := part.failure(); err != nil {
			failing = append(failing, part.name+": "+err.Error())
		}
	}
	if len(failing) > 0 {
		return errors.New(strings.Join(failing, "; "))
	}
	return nil
}

// redisAway tells a Redis that does not answer, which is one condition, from one
// that is of no use for something.
type redisAway struct {
	err error     // why it does not answer; nil = it does
	at  time.Time // when it last did not
}

// awayLinger is how long a Redis that answers again may take until all is well:
// breakers stay open for a moment.
const awayLinger = 5 * time.Second

// look asks Redis for a sign of life where some use of it fails.
func (a *redisAway) look(ctx context.Context, n *node) {
	failing := false
	for _, part := range n.redisParts() {
		failing = failing || part.failure() != nil
	}
	if !failing {
		a.err = nil
		return
	}
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	if err := n.redis.limiter.Ping(ctx).Err(); err != nil {
		a.err, a.at = err, time.Now()
	} else if time.Since(a.at) > awayLinger {
		a.err = nil
	}
}

// redisConditions are one of Redis as a whole, and one of each use, of which
// nothing is said while Redis does not answer.
func (n *node) redisConditions() []condition {
	if n.redis.pages == nil {
		return nil
	}
	all := []condition{{
		holds: "Redis answers", broken: "Redis does not answer: pages are read from Postgres, limits are kept by this node alone, changes are not told",
		ok: func() bool { return n.away.err == nil }, why: func() error { return n.away.err },
	}}
	for _, part := range n.redisParts() {
		all = append(all, condition{holds: part.holds, broken: part.broken,
			ok: func() bool { return n.away.err != nil || part.failure() == nil }, why: part.failure})
	}
	return all
}
