package cache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// redisTier is the second tier: pages that other nodes have read, or this one
// before it was restarted. Whatever Redis does, it costs a request no more
// than redisBudget, and nothing while the breaker is open.
type redisTier struct {
	client  redis.UniversalClient
	breaker *gobreaker.CircuitBreaker[any]

	budget, storeBudget time.Duration

	calls, failures, corrupt, dropped atomic.Uint64
}

const (
	// redisBudget is the longest a request waits for a page from Redis. Local
	// networks answer in well under a millisecond; Postgres, the other way to
	// get the page, in a few.
	redisBudget = 20 * time.Millisecond
	// redisStoreBudget is for storing, for which nobody waits.
	redisStoreBudget = 250 * time.Millisecond
	redisKeyPrefix   = "page:"
)

func newRedisTier(client redis.UniversalClient) *redisTier {
	return &redisTier{client: client, budget: redisBudget, storeBudget: redisStoreBudget, breaker: gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name:        "redis pages",
		MaxRequests: 1,
		Timeout:     250 * time.Millisecond, // then one request probes
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
	})}
}

// get returns the key's page, or nil when Redis has none, cannot be asked in
// time, or has something that is not this key's page. Its age is what the wall
// clocks say: too little, where one is wrong.
func (r *redisTier) get(ctx context.Context, key []byte) (p *Page) {
	r.do(ctx, r.budget, func(ctx context.Context) (err error) {
		now := time.Now()
		p, err = r.page(key, r.client.Get(ctx, redisKeyPrefix+string(key)), untold, now)
		return err
	})
	return p
}

// getAged is the same with an age that no clock makes too little. That takes a
// second command, which costs this node a quarter more.
func (r *redisTier) getAged(ctx context.Context, key []byte) (p *Page) {
	r.do(ctx, r.budget, func(ctx context.Context) error {
		var value *redis.StringCmd
		var remaining *redis.DurationCmd
		now := time.Now()
		_, err := r.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			// In this order: an entry that is replaced in between looks too old, never too young.
			remaining = pipe.PTTL(ctx, redisKeyPrefix+string(key))
			value = pipe.Get(ctx, redisKeyPrefix+string(key))
			return nil
		})
		if remaining.Err() == nil { // else it is err
			p, err = r.page(key, value, remaining.Val(), now)
		}
		return err
	})
	return p
}

// page makes a page of Redis' answer to who asked at now.
func (r *redisTier) page(key []byte, value *redis.StringCmd, remaining time.Duration, now time.Time) (*Page, error) {
	bytes, err := value.Bytes()
	switch {
	case err == nil:
	case errors.Is(err, redis.Nil):
		return nil, nil
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // no failure: Redis answered
		r.corrupt.Add(1)
		return nil, nil
	default:
		return nil, err
	}
	p, err := decode(bytes, key, remaining, now)
	if err != nil {
		r.corrupt.Add(1)
	}
	return p, nil
}

// set keeps the page until life after its proof.
func (r *redisTier) set(ctx context.Context, key []byte, p *Page, life time.Duration) {
	remaining := life - time.Since(p.Proof)
	if remaining < time.Millisecond {
		return
	}
	r.do(ctx, r.storeBudget, func(ctx context.Context) error {
		err := r.client.Set(ctx, redisKeyPrefix+string(key), p.encode(key, life), remaining).Err()
		if err == nil && p.sequence.Load() > 0 {
			err = r.client.Del(ctx, claimPrefix+string(key)).Err()
		}
		return err
	})
}

const (
	claimPrefix = "fill:"
	// claimLife outlasts a usual query; a node that died meanwhile holds the
	// others up no longer than they wait anyway.
	claimLife = 150 * time.Millisecond
)

// claim says whether this node is the one to read the key's page: it is, too,
// when Redis cannot tell.
func (r *redisTier) claim(ctx context.Context, key []byte) bool {
	mine := true
	r.do(ctx, r.budget, func(ctx context.Context) error {
		claimed, err := r.client.SetNX(ctx, claimPrefix+string(key), 1, claimLife).Result()
		mine = claimed || err != nil
		return err
	})
	return mine
}

// release gives a claim up.
func (r *redisTier) release(ctx context.Context, key []byte) {
	r.do(ctx, r.storeBudget, func(ctx context.Context) error { return r.client.Del(ctx, claimPrefix+string(key)).Err() })
}

// probe asks for a sign of life where Redis was left alone long enough: hits
// never would.
func (r *redisTier) probe(ctx context.Context) {
	if r.breaker.State() == gobreaker.StateHalfOpen {
		r.do(ctx, r.budget, func(ctx context.Context) error { return r.client.Ping(ctx).Err() })
	}
}

// do runs one call within its budget and behind the breaker.
func (r *redisTier) do(ctx context.Context, budget time.Duration, call func(context.Context) error) {
	_, err := r.breaker.Execute(func() (any, error) {
		r.calls.Add(1)
		ctx, cancel := context.WithTimeout(ctx, budget)
		defer cancel()
		if err := call(ctx); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		return nil, nil
	})
	if err != nil {
		r.failures.Add(1)
	}
}
