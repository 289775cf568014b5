package cache

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"listedge/internal/boottime"
	"listedge/internal/changefeed"
)

// redisTier is the second tier: entries that other nodes have filled, or this one
// before it was restarted.
//
// Invariants: whatever Redis does, it costs a request no more than redisBudget,
// and nothing while the breaker is open. The names of keys contain the digest of
// the database, since fleets of other databases may share the Redis; until the
// database is known, Redis is not used.
type redisTier struct {
	servers  *servers
	followed *changefeed.Followed
	clock    *boottime.Clock
	breaker  *gobreaker.CircuitBreaker[any]

	budget, storeBudget time.Duration

	calls, failures, corrupt, dropped atomic.Uint64

	refused changefeed.Failures // of calls that were made
}

const (
	// redisBudget is the longest that a request waits for an entry from Redis. Local
	// networks answer in well under a millisecond; Postgres, the other way to get
	// the entry, in a few.
	redisBudget = 20 * time.Millisecond
	// redisStoreBudget is for storing, which no request waits for.
	redisStoreBudget = 250 * time.Millisecond
	// maxRedisEntry, in bytes, is the largest entry that is stored. One of several
	// megabytes takes longer than redisBudget to read, which counts as a failure: a
	// few such entries would open the breaker for all others.
	maxRedisEntry = 1 << 20
	// maxRedisValue, in bytes, is how much of a value is read: more than a stored
	// entry has, with all that is stored beside it.
	maxRedisValue = 2 * maxRedisEntry
	// claimLife outlasts a usual query. If a node dies meanwhile, the others wait no
	// longer than they do anyway.
	claimLife = 150 * time.Millisecond

	entryPrefix, claimPrefix = "page:", "fill:"
)

func newRedisTier(client redis.UniversalClient, followed *changefeed.Followed, clock *boottime.Clock) *redisTier {
	return &redisTier{servers: openServers(client), followed: followed, clock: clock, budget: redisBudget, storeBudget: redisStoreBudget, breaker: gobreaker.NewCircuitBreaker[any](gobreaker.Settings{
		Name:        "redis pages",
		MaxRequests: 1,
		Timeout:     250 * time.Millisecond, // then one request probes
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 3 },
	})}
}

// RedisCommands are the commands that a node sends to Redis for entries, on keys of
// their own with these names: for finding out whether it has the rights.
func RedisCommands(own string) [][]any {
	entry, claim := entryPrefix+own, claimPrefix+own
	life := claimLife.Milliseconds()
	return [][]any{
		{"set", entry, "x", "px", life},
		{"pttl", entry},
		{"getrange", entry, 0, maxRedisValue},
		{"set", claim, 1, "px", life, "nx"},
		{"del", entry},
		{"del", claim},
	}
}

func (r *redisTier) close() { r.servers.close() }

// name returns the name of a key in Redis; ok is false while the database is not known.
func (r *redisTier) name(prefix string, key []byte) (name string, ok bool) {
	digest := r.followed.Digest()
	return prefix + digest + ":" + string(key), digest != ""
}

// get returns the key's entry, or nil when Redis has none, does not answer in
// time, or has something that is not this key's entry. The age of the entry is what
// the wall clocks say: too little, where one is wrong.
func (r *redisTier) get(ctx context.Context, key []byte) (e *Entry) {
	name, ok := r.name(entryPrefix, key)
	if !ok {
		return nil
	}
	r.do(ctx, "read", r.budget, name, func(ctx context.Context, conn *redis.Conn) (err error) {
		now := time.Now()
		e, err = r.entry(key, getValue(ctx, conn, name), notAsked, now)
		return err
	})
	return e
}

// getAged is the same, with an age that no clock makes too little. That takes a
// second command, which costs this node a quarter more.
func (r *redisTier) getAged(ctx context.Context, key []byte) (e *Entry) {
	name, ok := r.name(entryPrefix, key)
	if !ok {
		return nil
	}
	r.do(ctx, "read", r.budget, name, func(ctx context.Context, conn *redis.Conn) error {
		var value *redis.StringCmd
		var remaining *redis.DurationCmd
		now := time.Now()
		_, err := conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			// In this order: an entry that is replaced in between looks too old, never too young.
			remaining = pipe.PTTL(ctx, name)
			value = getValue(ctx, pipe, name)
			return nil
		})
		if remaining.Err() == nil { // else it is err
			e, err = r.entry(key, value, remaining.Val(), now)
		}
		return err
	})
	return e
}

// getValue reads a value, or the beginning of one that is too long for an entry;
// empty = there is none.
func getValue(ctx context.Context, client redis.Cmdable, name string) *redis.StringCmd {
	return client.GetRange(ctx, name, 0, maxRedisValue)
}

// entry makes an entry of Redis' answer to a call made at now. That Redis answered
// with anything else is not a failure.
func (r *redisTier) entry(key []byte, value *redis.StringCmd, remaining time.Duration, now time.Time) (*Entry, error) {
	b, err := value.Bytes()
	switch {
	case err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE"):
		return nil, err
	case err == nil && len(b) == 0:
		return nil, nil
	case err == nil && len(b) <= maxRedisValue:
		if e, age, err := decode(b, key, remaining, now); err == nil {
			e.Proof = r.clock.Of(now) - age
			e.ReadAt = e.Proof
			return e, nil
		}
	}
	r.corrupt.Add(1)
	return nil, nil
}

// set stores the entry until life after its proof, unless it is too large, and
// releases the claim for it.
func (r *redisTier) set(ctx context.Context, key []byte, e *Entry, life time.Duration) {
	age := r.clock.Now() - e.Proof
	name, ok := r.name(entryPrefix, key)
	if life-age < time.Millisecond || !ok {
		return
	}
	done := e.size(len(key)) > maxRedisEntry
	if done {
		r.dropped.Add(1)
	} else {
		r.do(ctx, "store", r.storeBudget, name, func(ctx context.Context, conn *redis.Conn) error {
			err := conn.Set(ctx, name, e.encode(key, life, time.Now().Add(-age)), life-age).Err()
			done = err == nil
			return err
		})
	}
	if done && e.Admitted() {
		r.release(ctx, key)
	}
}

// claim says whether this node is the one to fill the key's entry. It is, too, when
// Redis does not answer.
func (r *redisTier) claim(ctx context.Context, key []byte) bool {
	claimed := true
	name, ok := r.name(claimPrefix, key)
	if !ok {
		return claimed
	}
	r.do(ctx, "claim", r.budget, name, func(ctx context.Context, conn *redis.Conn) error {
		set, err := conn.SetNX(ctx, name, 1, claimLife).Result()
		claimed = set || err != nil
		return err
	})
	return claimed
}

// release gives a claim up.
func (r *redisTier) release(ctx context.Context, key []byte) {
	if name, ok := r.name(claimPrefix, key); ok {
		r.do(ctx, "release", r.storeBudget, name, func(ctx context.Context, conn *redis.Conn) error { return conn.Del(ctx, name).Err() })
	}
}

// probe makes a call where the breaker waits for one: hits never would.
func (r *redisTier) probe(ctx context.Context) {
	if r.breaker.State() != gobreaker.StateHalfOpen {
		return
	}
	r.guard(func() error {
		server := r.servers.any()
		if server == nil {
			return errNoneOpen
		}
		return r.on(ctx, server, r.budget, tryRead)
	})
}

// do makes one call, to the server that has the key, within its budget and
// behind the breaker. That the key is elsewhere by now is no failure.
func (r *redisTier) do(ctx context.Context, operation string, budget time.Duration, key string, call func(context.Context, *redis.Conn) error) {
	r.guard(func() error {
		server, err := r.servers.of(ctx, key)
		if err == nil {
			err = r.on(ctx, server, budget, call)
		}
		if err != nil && r.servers.elsewhere(err) {
			return nil
		}
		return r.refused.Note(operation, err)
	})
}

// failure is why entries are not read from Redis, or not stored there; nil if they are.
func (r *redisTier) failure() error {
	return cmp.Or(r.servers.failure(), r.refused.Latest())
}

// on makes one call on an open connection to the server.
func (r *redisTier) on(ctx context.Context, server *connections, budget time.Duration, call func(context.Context, *redis.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	conn, err := server.take(ctx)
	if err != nil {
		return err
	}
	err = errPanic // until it has returned
	defer func() { server.give(conn, err) }()
	err = call(ctx, conn)
	return err
}

// guard makes a call that may fail behind the breaker.
func (r *redisTier) guard(call func() error) {
	_, err := r.breaker.Execute(func() (any, error) {
		r.calls.Add(1)
		if err := call(); err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		return nil, nil
	})
	if err != nil {
		r.failures.Add(1)
	}
}
