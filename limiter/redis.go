package limiter

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
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
	other  func(address string) redis.UniversalClient // of a Cluster: another node; else nil
}

func newRedisStore(client redis.UniversalClient, stats *redisStats) *redisStore {
	return &redisStore{client: client, stats: stats}
}

// visit sends every call by the script's digest. A Redis that has not seen the
// script (new, restarted, failed over) refuses such a call before it does
// anything, so those alone are sent again with the whole script. So are those
// whose slot is just moving, to where this node says that they are.
func (r *redisStore) visit(ctx context.Context, calls []call) error {
	for i := range calls {
		calls[i].err = errUnsent
	}
	err := r.send(ctx, r.client, calls, errUnsent)
	if met(calls, errNoScript) {
		if err = errors.Join(err, r.send(ctx, r.client, calls, errNoScript)); met(calls, errNoScript) {
			err = errors.Join(err, errNoScript)
		}
	}
	for i := range calls {
		if asks, ok := calls[i].err.(askElsewhere); ok && r.other != nil {
			err = errors.Join(err, r.send(ctx, r.other(asks.address), calls, asks))
		}
	}
	return err
}

func met(calls []call, err error) bool {
	return slices.ContainsFunc(calls, func(c call) bool { return c.err == err })
}

// What a call came to that was not carried out.
var (
	errUnsent   = errors.New("limiter: not sent yet")
	errNoScript = errors.New("limiter: redis has not seen the script")
)

// askElsewhere: the slot is moving, and this bucket is at the other node already.
type askElsewhere struct{ address string }

func (e askElsewhere) Error() string { return "limiter: ask " + e.address }

// send makes one trip with those calls whose err is the one given, and returns
// why it failed. That calls are elsewhere, or the script unknown, is no failure.
func (r *redisStore) send(ctx context.Context, to redis.UniversalClient, calls []call, which error) (err error) {
	pipe := to.Pipeline()
	sent := make([]*redis.Cmd, len(calls))
	_, asking := which.(askElsewhere)
	for i := range calls {
		c := &calls[i]
		if c.err != which {
			continue
		}
		keys := []string{c.key}
		args := c.arguments()
		if asking {
			pipe.Do(ctx, "ASKING") // counts for the one command that follows
		}
		if which == errUnsent {
			sent[i] = pipe.EvalSha(ctx, tokenBucketDigest, keys, args...)
		} else {
			sent[i] = pipe.Eval(ctx, tokenBucketScript, keys, args...)
		}
		r.stats.calls.Add(1)
	}
	r.stats.trips.Add(1)
	_, _ = pipe.Exec(ctx) // every command carries its own error
	for i, cmd := range sent {
		if cmd == nil {
			continue
		}
		c := &calls[i]
		c.err = verdictOn(c.read(cmd))
		switch c.err.(type) {
		case nil, movedTo, askElsewhere:
			continue
		}
		if c.err != errNoScript {
			err = fmt.Errorf("limiter: visit bucket %s: %w", c.key, c.err)
		}
	}
	return err
}

// arguments are the script's, in its order.
func (c *call) arguments() []any {
	return []any{c.policy.r, c.policy.p, c.policy.Burst, c.policy.Version, c.life,
		c.need, c.extra, c.spare, c.from, c.rel0, c.rel1, c.ret, c.debt, c.hold, max(1, c.parts)}
}

// verdictOn tells errors that only point elsewhere from failures.
func verdictOn(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	kind, rest, _ := strings.Cut(text, " ")
	_, address, _ := strings.Cut(rest, " ") // after the slot
	switch kind {
	case "NOSCRIPT":
		return errNoScript
	case "MOVED":
		return movedTo{address}
	case "ASK":
		return askElsewhere{address}
	}
	return err
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
