package limiter

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

//go:embed token_bucket.lua
var tokenBucketScript string

var tokenBucketDigest = func() string {
	sum := sha1.Sum([]byte(tokenBucketScript))
	return hex.EncodeToString(sum[:])
}()

// redisStats counts what goes to Redis, over all its nodes.
type redisStats struct{ calls, trips atomic.Uint64 }

// redisStore keeps the buckets in one Redis node, where every node of a fleet
// finds the same ones. A visit is one pipeline of one script call per bucket.
type redisStore struct {
	client redis.UniversalClient
	stats  *redisStats
}

func newRedisStore(client redis.UniversalClient, stats *redisStats) *redisStore {
	return &redisStore{client: client, stats: stats}
}

// visit sends every call by the script's digest. A Redis that has not seen the
// script (new, restarted, failed over) refuses such a call before it does
// anything, so those alone are sent again with the whole script.
func (r *redisStore) visit(ctx context.Context, calls []call) error {
	unknown, err := r.send(ctx, calls, nil)
	if len(unknown) == 0 {
		return err
	}
	if unknown, err = r.send(ctx, calls, unknown); err == nil && len(unknown) > 0 {
		err = fmt.Errorf("limiter: redis does not keep the script")
	}
	return err
}

// send makes one trip with the calls that only lists, in full, or, where only is
// nil, with all of them by digest. It returns those that met NOSCRIPT.
func (r *redisStore) send(ctx context.Context, calls []call, only []int) (unknown []int, err error) {
	pipe := r.client.Pipeline()
	sent := make([]*redis.Cmd, len(calls))
	queue := func(i int) {
		c := &calls[i]
		keys := []string{c.key}
		args := []any{c.policy.r, c.policy.p, c.policy.Burst, c.policy.Version, c.life,
			c.need, c.extra, c.spare, c.from, c.rel0, c.rel1, c.ret, c.debt}
		if only == nil {
			sent[i] = pipe.EvalSha(ctx, tokenBucketDigest, keys, args...)
		} else {
			sent[i] = pipe.Eval(ctx, tokenBucketScript, keys, args...)
		}
	}
	if only == nil {
		for i := range calls {
			queue(i)
		}
	}
	for _, i := range only {
		queue(i)
	}
	r.stats.trips.Add(1)
	r.stats.calls.Add(uint64(pipe.Len()))
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, cmd := range sent {
		if cmd == nil {
			continue
		}
		c := &calls[i]
		switch c.err = c.read(cmd); {
		case c.err == nil:
		case strings.HasPrefix(c.err.Error(), "NOSCRIPT"):
			unknown = append(unknown, i)
		case strings.HasPrefix(c.err.Error(), "MOVED "):
			c.err = errNotHere
		default:
			err = fmt.Errorf("limiter: visit bucket %s: %w", c.key, c.err)
		}
	}
	return unknown, err
}

// read fills the reply from the script's answer.
func (c *call) read(cmd *redis.Cmd) error {
	values, err := cmd.Int64Slice()
	if err != nil {
		return err
	}
	if len(values) != 10 {
		return fmt.Errorf("script answered %d values", len(values))
	}
	c.reply = reply{granted: values[0], leased: values[1], level: values[2], p: values[3], wait: values[4],
		epoch: values[5], lasts: values[6], held: values[7], version: values[8], now: values[9]}
	return nil
}
