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

// redisStore keeps the buckets in Redis, where every node of a fleet finds the
// same ones. A visit is one pipeline of one script call per bucket.
type redisStore struct {
	client redis.UniversalClient
	sha    string
	calls  atomic.Uint64 // script calls sent
	trips  atomic.Uint64 // pipelines sent
}

func newRedisStore(client redis.UniversalClient) *redisStore {
	sum := sha1.Sum([]byte(tokenBucketScript))
	return &redisStore{client: client, sha: hex.EncodeToString(sum[:])}
}

// visit sends every call by the script's digest. A Redis that has not seen the
// script (new, restarted, failed over) refuses such a call before it does
// anything, so those alone are sent again with the whole script.
func (r *redisStore) visit(ctx context.Context, calls []call) error {
	unknown, err := r.send(ctx, calls, nil)
	if err != nil || len(unknown) == 0 {
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
		keys := []string{c.bucket.key}
		args := []any{c.policy.r, c.policy.p, c.policy.Burst, c.policy.Version, c.need, c.ret, c.debt}
		if only == nil {
			sent[i] = pipe.EvalSha(ctx, r.sha, keys, args...)
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
	r.trips.Add(1)
	r.calls.Add(uint64(pipe.Len()))
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, cmd := range sent {
		if cmd == nil {
			continue
		}
		if err := calls[i].read(cmd); err != nil {
			if !strings.HasPrefix(err.Error(), "NOSCRIPT") {
				return nil, fmt.Errorf("limiter: visit bucket %s: %w", calls[i].bucket.key, err)
			}
			unknown = append(unknown, i)
		}
	}
	return unknown, nil
}

// read fills the reply from the script's answer.
func (c *call) read(cmd *redis.Cmd) error {
	values, err := cmd.Int64Slice()
	if err != nil {
		return err
	}
	if len(values) != 7 {
		return fmt.Errorf("script answered %d values", len(values))
	}
	c.reply = reply{granted: values[0], level: values[1], remaining: values[2],
		wait: values[3], full: values[4], version: values[5], now: values[6]}
	return nil
}
