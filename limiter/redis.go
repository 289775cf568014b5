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

func newScript(text string) *script { return &script{text, redis.NewScript(text).Hash()} }

//go:embed token_bucket.lua
var tokenBucketText string

//go:embed quota.lua
var quotaText string

//go:embed heartbeat.lua
var heartbeatText string

var tokenBucketScript, quotaScript, heartbeatScript = newScript(tokenBucketText), newScript(quotaText), newScript(heartbeatText)

// call is one call of a script with one key: to a bucket, to a quota, or a heartbeat.
type call struct {
	script    *script
	limit     *limit // nil = a heartbeat
	key       string
	arguments []any
	apply     func(answer []int64, now int64) // what the limit's law does with the answer; nil = there is none

	answer []int64
	err    error // not nil = it is unknown whether the call was executed
}

// store is the Redis that keeps the buckets, quotas and members of a fleet. It sends calls
// in a pipeline. A Cluster's client splits the pipeline by master, and repeats calls for
// slots that have moved.
type store struct {
	client   redis.UniversalClient
	prefix   string      // of all keys
	answered atomic.Bool // a call was answered, so a Cluster's client knows the masters
}

// cluster is a client that knows the masters of a Cluster.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
}

// maxShards bounds the shards. In a Cluster each master has a shard; the masters above
// this number share the first one.
const maxShards = 256

// shardOf returns the number of the Cluster master that has the key. The number of a
// master is the smallest i for which the master has membersKey(i). So nodes send their
// heartbeats to the masters that have their buckets, and a replica that replaces its
// master is the same shard.
func (r *store) shardOf(key string) uint8 {
	masters, ok := r.client.(cluster)
	if !ok || !r.answered.Load() {
		return 0
	}
	master := masterOf(masters, key)
	for i := range maxShards {
		if masterOf(masters, membersKey(i)) == master {
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

func masterOf(c cluster, key string) string {
	master, err := c.MasterForKey(context.Background(), key)
	if err != nil {
		return ""
	}
	return master.Options().Addr
}

// execute executes the calls, which are for one shard. Each is atomic and is executed at most once.
// It sends every call with the script's digest. A Redis that does not have the script
// (after a start or a failover) refuses the call without executing anything. Only those
// calls are sent again, with the whole script.
func (r *store) execute(calls []*call) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r.send(ctx, calls, "evalsha")
	calls = slices.DeleteFunc(slices.Clone(calls), func(c *call) bool { return !redis.HasErrorPrefix(c.err, "NOSCRIPT") })
	if len(calls) > 0 {
		r.send(ctx, calls, "eval")
	}
}

func (r *store) send(ctx context.Context, calls []*call, eval string) {
	pipe := r.client.Pipeline()
	commands := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		source := c.script.digest
		if eval == "eval" {
			source = c.script.text
		}
		commands[i] = redis.NewCmd(ctx, slices.Concat([]any{eval, source, 1, r.prefix + c.key}, c.arguments)...)
		_ = pipe.Process(ctx, once{commands[i]})
	}
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, c := range calls {
		c.answer, c.err = commands[i].Int64Slice()
		if c.err != nil {
			c.answer, c.err = nil, fmt.Errorf("limiter: call %v: %w", r.prefix+c.key, c.err)
			continue
		}
		r.answered.Store(true)
	}
}

// once is a command that the client does not retry. If a connection breaks, the server
// may have executed the command, and a retry would give tokens back twice. Without
// NoRetry a Cluster's client repeats a whole pipeline even if it is set to no retries.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// pack packs the numbers of a call to a bucket as the script does its state: as little-endian doubles.
// Redis reads one argument faster than many.
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
		{"eval", tokenBucketText, 1, bucket, pack(c.Arguments()...)},
		{"evalsha", tokenBucketScript.digest, 1, bucket, pack(c.Arguments()...)},
		{"eval", heartbeatText, 1, nodes, "x", present, 1, lease.Forever},
		{"zadd", nodes, 1, "x"},
		{"pexpire", nodes, 1000},
		{"zcard", nodes},
		{"zrem", nodes, "y"},
		{"zrangebyscore", nodes, 1, "+inf"},
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
