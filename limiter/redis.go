package limiter

import (
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"listedge/limiter/lease"
)

// script is a script in Redis. It takes one key, and answers with numbers.
type script struct{ text, digest string }

func newScript(text string) script { return script{text, redis.NewScript(text).Hash()} }

//go:embed token_bucket.lua
var tokenBucketText string

//go:embed quota.lua
var quotaText string

var tokenBucketScript, quotaScript = newScript(tokenBucketText), newScript(quotaText)

// store keeps the buckets, quotas and members of a fleet.
type store interface {
	// shardOf returns which shard has a key. It does not wait.
	shardOf(key string) uint8

	// execute executes the calls, which are for one shard, and returns an error for each. A call
	// is atomic and is executed at most once. If its error is not nil, it is unknown whether
	// it was executed.
	execute(ctx context.Context, calls []call) []error
}

// call is one call of a script with one key: to a bucket, to a quota, or a heartbeat.
type call interface {
	request() (s script, key string, arguments []any)
	read(answer []int64)
	complete(err error, sent int64) // ends it, once the answer is read or there is none
}

// redisStore keeps them in Redis, so that all nodes of a fleet share them. It sends calls
// in a pipeline. A Cluster's client splits the pipeline by master, and repeats calls for
// slots that have moved.
type redisStore struct {
	client   redis.UniversalClient
	prefix   string      // of all keys
	answered atomic.Bool // a call was answered, so a Cluster's client knows the masters
}

// maxShards bounds the shards. In a Cluster each master has a shard; the masters above
// this number share the first one.
const maxShards = 256

// shardOf returns the number of the Cluster master that has the key. The number of a
// master is the smallest i for which the master has membersKey(i). So nodes send their
// heartbeats to the masters that have their buckets, and a replica that replaces its
// master is the same shard.
func (r *redisStore) shardOf(key string) uint8 {
	cluster, ok := r.client.(*redis.ClusterClient)
	if !ok || !r.answered.Load() {
		return 0
	}
	master := masterOf(cluster, key)
	for i := range maxShards {
		if masterOf(cluster, membersKey(i)) == master {
			return uint8(i)
		}
	}
	return 0
}

// membersKey is the key of the heartbeats of the nodes that share a shard's buckets.
func membersKey(shard int) string {
	if shard == 0 {
		return "{fleet}:members"
	}
	return "{fleet" + strconv.Itoa(shard) + "}:members"
}

func masterOf(c *redis.ClusterClient, key string) string {
	master, err := c.MasterForKey(context.Background(), key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// execute sends every call with the script's digest. A Redis that does not have the script
// (after a start or a failover) refuses the call without executing anything. Only those
// calls are sent again, with the whole script.
func (r *redisStore) execute(ctx context.Context, calls []call) []error {
	errs := make([]error, len(calls))
	r.send(ctx, calls, errs, false)
	if slices.ContainsFunc(errs, lacksScript) {
		r.send(ctx, calls, errs, true)
	}
	return errs
}

func lacksScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// send sends the calls, or again those whose script Redis did not have.
func (r *redisStore) send(ctx context.Context, calls []call, errs []error, again bool) {
	pipe := r.client.Pipeline()
	answers := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		s, key, arguments := c.request()
		eval, source := "evalsha", s.digest
		if again {
			eval, source = "eval", s.text
		}
		if !again || lacksScript(errs[i]) {
			answers[i] = redis.NewCmd(ctx, append([]any{eval, source, 1, r.prefix + key}, arguments...)...)
			_ = pipe.Process(ctx, once{answers[i]})
		}
	}
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, a := range answers {
		if a == nil {
			continue
		}
		n, err := a.Int64Slice()
		if err != nil {
			errs[i] = fmt.Errorf("limiter: call %v: %w", a.Args()[3], err)
			continue
		}
		errs[i] = nil
		calls[i].read(n)
		r.answered.Store(true)
	}
}

// once is a command that the client does not retry. If a connection breaks, the server
// may have executed the command, and a retry would give tokens back twice. Without
// NoRetry a Cluster's client repeats a whole pipeline even if it is set to no retries.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// arguments packs a call to a bucket into the script's one argument. Redis reads one faster than many.
func arguments(c *lease.Call) []byte {
	return pack(c.Policy.Rate, c.Policy.Burst, c.Policy.Version, c.Need, c.Hold, c.Extra, c.Arrived, c.Fair,
		c.Slice, c.ReleasedNow, c.ReleasedBefore, c.Returned, c.Debt, c.Nodes, c.Missing, c.Until)
}

// pack packs numbers as the script does its state: as little-endian doubles.
func pack(numbers ...int64) (packed []byte) {
	for _, n := range numbers {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(n)))
	}
	return packed
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// RedisCommands returns the commands that a node sends to Redis for limits, and those
// that its scripts execute. Their keys begin with own. A caller runs them to check
// that the Redis user is permitted to.
func RedisCommands(own string) [][]any {
	bucket, nodes := own+":b", own+":members"
	c := lease.Call{Policy: lease.Policy{Burst: 1, Rate: lease.Token}, Need: 1}
	return [][]any{
		{"time"},
		{"set", bucket, "x", "px", 1000},
		{"get", bucket},
		{"del", bucket},
		{"eval", tokenBucketText, 1, bucket, arguments(&c)},
		{"evalsha", tokenBucketScript.digest, 1, bucket, arguments(&c)},
		{"eval", heartbeatScript.text, 1, nodes, "x", present, lease.Forever},
		{"zadd", nodes, 1, "x"},
		{"pexpire", nodes, 1000},
		{"zcard", nodes},
		{"zcount", nodes, 1, "+inf"},
		{"zrem", nodes, "y"},
		{"zremrangebyscore", nodes, "-inf", 1},
		{"del", bucket},
		{"eval", quotaText, 1, bucket, 1, 1, 1, 0, 0, 0, 1, 1, 1000},
		{"hmget", bucket, "total"},
		{"hset", bucket, "total", "0"},
		{"hdel", bucket, "total"},
		{"del", bucket},
		{"del", nodes},
	}
}
