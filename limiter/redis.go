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

//go:embed token_bucket.lua
var tokenBucketScript string

var tokenBucketDigest = redis.NewScript(tokenBucketScript).Hash()

// store keeps the buckets of a fleet and executes calls to them.
type store interface {
	// shardOf returns which shard has a key. It does not wait.
	shardOf(key string) uint8

	// mostShards bounds the number of shards.
	mostShards() int

	// execute executes the calls and fills in their replies. Each call is atomic in its
	// bucket and is executed at most once. If a call's err is not nil afterwards, it is
	// unknown whether it was executed. execute returns an error if no call was answered.
	execute(ctx context.Context, calls []*bucketCall) error

	// countQuota executes a call to a quota. If it returns an error, it is unknown whether the
	// call was executed.
	countQuota(ctx context.Context, c *count) error

	// heartbeat sends a heartbeat of a node to a shard, and returns how many nodes there
	// are, how many of them are missing, and the time by the shard's clock. A heartbeat that
	// arrives after until, by that clock, does not report its node present.
	heartbeat(ctx context.Context, shard int, id, state string, until int64) (nodes, missing, now int64, err error)
}

// bucketCall is one call to one bucket.
type bucketCall struct {
	bucket *Bucket
	call   lease.Call
	err    error
}

// redisStore keeps the buckets in Redis, so that all nodes of a fleet share them. It
// sends one script call for each bucket, in a pipeline. A Cluster's client splits the
// pipeline by master, and repeats calls for slots that have moved.
type redisStore struct {
	client   redis.UniversalClient
	prefix   string      // of all keys
	answered atomic.Bool // a call was answered, so a Cluster's client knows the masters
}

// maxShards bounds the shards. In a Cluster each master has a shard; the masters above
// this number share the first one.
const maxShards = 256

func (r *redisStore) mostShards() int {
	if _, ok := r.client.(*redis.ClusterClient); ok {
		return maxShards
	}
	return 1
}

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
			return uint8(i) // mutation: all masters are one shard
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
func (r *redisStore) execute(ctx context.Context, calls []*bucketCall) error {
	r.send(ctx, calls, "evalsha", tokenBucketDigest)
	known := func(v *bucketCall) bool { return !redis.HasErrorPrefix(v.err, "NOSCRIPT") }
	if unknown := slices.DeleteFunc(slices.Clone(calls), known); len(unknown) > 0 {
		r.send(ctx, unknown, "eval", tokenBucketScript) // mutation: the script is sent once
	}
	var failed error
	for _, v := range calls {
		if v.err == nil {
			return nil
		}
		failed = fmt.Errorf("limiter: call bucket %s: %w", v.bucket.key, v.err)
	}
	return failed
}

func (r *redisStore) send(ctx context.Context, calls []*bucketCall, eval, script string) {
	pipe := r.client.Pipeline()
	answers := make([]*redis.Cmd, len(calls))
	for i, v := range calls {
		answers[i] = redis.NewCmd(ctx, eval, script, 1, r.prefix+v.bucket.key, arguments(&v.call))
		_ = pipe.Process(ctx, once{answers[i]})
	}
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, v := range calls {
		if v.err = read(&v.call, answers[i]); v.err == nil {
			r.answered.Store(true)
		}
	}
}

// once is a command that the client does not retry. If a connection breaks, the server
// may have executed the command, and a retry would give tokens back twice. Without
// NoRetry a Cluster's client repeats a whole pipeline even if it is set to no retries.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true } // mutation: a call is sent again

// arguments packs a call into the script's one argument. Redis reads one faster than many.
func arguments(c *lease.Call) []byte {
	return pack(c.Policy.Rate, c.Policy.Burst, c.Policy.Version, c.Need, c.Hold, c.Extra, c.Arrived, c.Fair,
		c.Slice, c.ReleasedNow, c.ReleasedBefore, c.Returned, c.Debt, c.Nodes, c.Missing)
}

// pack packs numbers as the script does its state: as little-endian doubles.
func pack(numbers ...int64) (packed []byte) {
	for _, n := range numbers {
		packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(float64(n)))
	}
	return packed
}

// read fills the call's reply from the script's answer.
func read(c *lease.Call, answer *redis.Cmd) error {
	n, err := answer.Int64Slice()
	if err != nil {
		return err
	}
	if len(n) != 8 {
		return fmt.Errorf("script answered %d values", len(n))
	}
	c.Reply = lease.Reply{Granted: n[0], Leased: n[1], Level: n[2], Wait: n[3], Slice: n[4], Lasts: n[5], Held: n[6], Demand: n[7]}
	return nil
}

//go:embed quota.lua
var quotaText string

var quotaScript = redis.NewScript(quotaText)

func (r *redisStore) countQuota(ctx context.Context, c *count) error {
	n, err := r.run(ctx, quotaScript, 2, c.key, c.tokens, c.run, c.number, c.floor, c.need, c.want, c.nodes, c.last, c.lifeMS)
	if err != nil {
		return fmt.Errorf("limiter: count quota %s: %w", c.key, err)
	}
	c.taken, c.total = n[0], n[1]
	return nil
}

// run runs a script that answers so many numbers.
func (r *redisStore) run(ctx context.Context, script *redis.Script, numbers int, key string, arguments ...any) (n []int64, err error) {
	if n, err = script.Run(ctx, r.client, []string{r.prefix + key}, arguments...).Int64Slice(); err == nil && len(n) != numbers {
		err = fmt.Errorf("script answered %d values", len(n))
	}
	r.answered.CompareAndSwap(false, err == nil)
	return n, err
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
		{"eval", tokenBucketScript, 1, bucket, arguments(&c)},
		{"evalsha", tokenBucketDigest, 1, bucket, arguments(&c)},
		{"eval", heartbeatScript, 1, nodes, "x", present, lease.Forever},
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
