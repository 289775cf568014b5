package limiter

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"listedge/limiter/lease"
)

//go:embed token_bucket.lua
var tokenBucketScript string

var tokenBucketDigest = func() string {
	sum := sha1.Sum([]byte(tokenBucketScript))
	return hex.EncodeToString(sum[:])
}()

// redisStore keeps the buckets in Redis, where every node of a fleet finds the
// same ones: a pipeline of one script call per bucket. A Cluster's client splits it
// by node, and sends again what has moved, or what a broken connection has not
// answered. A call that is carried out twice debits twice, and gives back twice:
// at most what one pipeline gave back is then admitted too much.
type redisStore struct {
	client       redis.UniversalClient
	calls, trips atomic.Uint64
}

func newRedisStore(client redis.UniversalClient) *redisStore { return &redisStore{client: client} }

// visit sends every call by the script's digest. A Redis that has not seen the
// script (new, restarted, failed over) refuses such a call before it does anything,
// so those alone are sent again with the whole script.
func (r *redisStore) visit(ctx context.Context, calls []*visit) error {
	r.send(ctx, calls, r.evalSHA)
	var unknown []*visit
	for _, v := range calls {
		if v.err != nil && strings.HasPrefix(v.err.Error(), "NOSCRIPT") {
			unknown = append(unknown, v)
		}
	}
	if len(unknown) > 0 {
		r.send(ctx, unknown, r.eval)
	}
	var failed error
	for _, v := range calls {
		if v.err == nil {
			return nil
		}
		failed = fmt.Errorf("limiter: visit bucket %s: %w", v.bucket.key, v.err)
	}
	return failed
}

func (r *redisStore) evalSHA(ctx context.Context, pipe redis.Pipeliner, v *visit) *redis.Cmd {
	return pipe.EvalSha(ctx, tokenBucketDigest, []string{v.bucket.key}, arguments(&v.call)...)
}

func (r *redisStore) eval(ctx context.Context, pipe redis.Pipeliner, v *visit) *redis.Cmd {
	return pipe.Eval(ctx, tokenBucketScript, []string{v.bucket.key}, arguments(&v.call)...)
}

func (r *redisStore) send(ctx context.Context, calls []*visit, command func(context.Context, redis.Pipeliner, *visit) *redis.Cmd) {
	pipe := r.client.Pipeline()
	answers := make([]*redis.Cmd, len(calls))
	for i, v := range calls {
		answers[i] = command(ctx, pipe, v)
	}
	r.trips.Add(1)
	r.calls.Add(uint64(len(calls)))
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, v := range calls {
		v.err = read(&v.call, answers[i])
	}
}

// arguments are the script's, in its order.
func arguments(c *lease.Call) []any {
	return []any{c.Policy.Rate, c.Policy.Burst, c.Policy.Version, c.Need, c.Hold, c.Extra, c.Arrived, c.Entitled,
		c.Epoch, c.Rel0, c.Rel1, c.Ret, c.Debt, c.Nodes, c.Missing, c.Node}
}

// read fills the reply from the script's answer.
func read(c *lease.Call, answer *redis.Cmd) error {
	n, err := answer.Int64Slice()
	if err != nil {
		return err
	}
	if len(n) != 11 {
		return fmt.Errorf("script answered %d values", len(n))
	}
	c.Reply = lease.Reply{Granted: n[0], Leased: n[1], Level: n[2], Wait: n[3], Epoch: n[4], Lasts: n[5], Held: n[6],
		Demand: n[7], Owner: n[8], Version: n[9], Now: n[10]}
	return nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// RedisCommands are what a node sends to Redis for limits, or has its scripts do,
// on keys of their own among those of buckets: for whoever wants to know whether it
// may.
func RedisCommands(own string) [][]any {
	bucket, nodes := "rl:{"+own+"}:b", "rl:{"+own+"}:members"
	c := lease.Call{Policy: lease.Policy{Burst: 1, Rate: lease.Token}, Need: 1}
	return [][]any{
		{"time"},
		{"set", bucket, "x", "px", 1000},
		{"get", bucket},
		{"del", bucket},
		append([]any{"eval", tokenBucketScript, 1, bucket}, arguments(&c)...),
		append([]any{"evalsha", tokenBucketDigest, 1, bucket}, arguments(&c)...),
		{"eval", beatScript, 1, nodes, "x", present},
		{"zadd", nodes, 1, "x"},
		{"pexpire", nodes, 1000},
		{"zcard", nodes},
		{"zcount", nodes, 1, "+inf"},
		{"zrem", nodes, "y"},
		{"zremrangebyscore", nodes, "-inf", 1},
		{"del", bucket},
		{"del", nodes},
	}
}
