package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is the log of a fleet. All its keys share a hash tag, so that in a
// Cluster they are on one node; none of them may be evicted.
type Redis struct {
	client    redis.UniversalClient
	probeLife time.Duration
	failures  Failures
}

const (
	epochKey   = "{listedge}:epoch"
	probesKey  = "{listedge}:probes"
	logKey     = "{listedge}:log:"
	entryField = "e"

	// logLife outlasts the log's last entry: what an epoch leaves behind goes
	// away by itself.
	logLife = time.Hour
	// probeLife is how long a node that is gone is still echoed. It is more
	// than any pause after which a node may hope for an echo.
	probeLife = time.Minute
)

// NewRedis uses the client, which should be one of its own: reading blocks.
func NewRedis(client redis.UniversalClient) *Redis {
	return &Redis{client: client, probeLife: probeLife}
}

// Failure is why the log cannot be used, or not wholly; nil if it can.
func (r *Redis) Failure() error { return r.failures.Latest() }

// note remembers what an operation came to, and marks it as the log's.
func (r *Redis) note(operation string, err error) error {
	if err == nil || errors.Is(err, ErrFenced) || errors.Is(err, ErrSuperseded) {
		_ = r.failures.Note(operation, nil)
		return err
	}
	return &Error{r.failures.Note(operation, err)}
}

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note("epoch", err) }()
	epoch, err = r.client.Get(ctx, epochKey).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// setEpoch compares and sets in one step: a node may be stopped anywhere.
var setEpoch = redis.NewScript(`
local present = redis.call('GET', KEYS[1]) or ''
if present ~= ARGV[1] and present ~= ARGV[2] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note("set epoch", err) }()
	done, err := setEpoch.Run(ctx, r.client, []string{epochKey}, from, to).Bool()
	switch {
	case err != nil:
		return fmt.Errorf("write the epoch: %w", err)
	case !done:
		return ErrSuperseded
	}
	return nil
}

// Append implements Log: XADD refuses an ID that is not above the last. In a
// transaction, so that what runs out of memory leaves no hole.
func (r *Redis) Append(ctx context.Context, epoch string, entries ...Entry) (err error) {
	defer func() { err = r.note("append", err) }()
	pipe := r.client.TxPipeline()
	for _, e := range entries {
		body, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode entry %s: %w", e.Position, err)
		}
		pipe.XAdd(ctx, &redis.XAddArgs{Stream: logKey + epoch, ID: e.Position.String(), Values: []any{entryField, body}})
	}
	if slices.ContainsFunc(entries, keepsAlive) {
		pipe.Expire(ctx, logKey+epoch, logLife)
	}
	if _, err := pipe.Exec(ctx); err != nil { // the first command's that failed
		if strings.Contains(err.Error(), "equal or smaller") || strings.Contains(err.Error(), "must be greater") {
			return ErrFenced
		}
		return fmt.Errorf("append entries from %s: %w", entries[0].Position, err)
	}
	return nil
}

// keepsAlive says whether the log's life is extended with the entry: a term's
// first, and now and then another, which is soon enough.
func keepsAlive(e Entry) bool { return e.Position.N%100 == 1 }

// Last implements Log. A trimmed stream still knows its last ID.
func (r *Redis) Last(ctx context.Context, epoch string) (last Position, err error) {
	defer func() { err = r.note("last", err) }()
	info, err := r.client.XInfoStream(ctx, logKey+epoch).Result()
	if err != nil {
		if strings.Contains(err.Error(), "no such key") {
			return Position{}, nil
		}
		return Position{}, fmt.Errorf("read the log's end: %w", err)
	}
	return ParsePosition(info.LastGeneratedID)
}

// readBatch bounds what one Read returns, in entries.
const readBatch = 1000

// Read implements Log.
func (r *Redis) Read(ctx context.Context, epoch string, after Position, wait time.Duration) (entries []Entry, err error) {
	defer func() { err = r.note("read", err) }()
	streams, err := r.client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{logKey + epoch, after.String()}, Count: readBatch, Block: max(wait, time.Millisecond),
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	for _, s := range streams {
		for _, m := range s.Messages {
			at, err := ParsePosition(m.ID)
			if err != nil {
				return nil, err
			}
			body, _ := m.Values[entryField].(string)
			entries = append(entries, decode(at, body))
		}
	}
	return entries, nil
}

// decode reads the body of an entry; what it cannot read is Unknown.
func decode(at Position, body string) (e Entry) {
	if json.Unmarshal([]byte(body), &e) != nil {
		e = Entry{}
	}
	e.Position = at
	return e
}

// Trim implements Log.
func (r *Redis) Trim(ctx context.Context, epoch string, before Position) (err error) {
	defer func() { err = r.note("trim", err) }()
	if err := r.client.XTrimMinID(ctx, logKey+epoch, before.String()).Err(); err != nil {
		return fmt.Errorf("trim the log: %w", err)
	}
	return nil
}

// probe keeps each nonce with the moment it came, in milliseconds of Redis'
// own clock: a field of a hash cannot expire before Redis 7.4.
var probe = redis.NewScript(`
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('PEXPIRE', KEYS[1], ARGV[3])`)

// Probe implements Log.
func (r *Redis) Probe(ctx context.Context, node string, nonce uint64) (err error) {
	defer func() { err = r.note("probe", err) }()
	err = probe.Run(ctx, r.client, []string{probesKey}, node, strconv.FormatUint(nonce, 10), r.probeLife.Milliseconds()).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Probes implements Log. Nodes that are gone are known by the nodes that are
// not: whose probe came probeLife before the latest is forgotten.
func (r *Redis) Probes(ctx context.Context) (probes map[string]uint64, err error) {
	defer func() { err = r.note("probes", err) }()
	fields, err := r.client.HGetAll(ctx, probesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read probes: %w", err)
	}
	probes = make(map[string]uint64, len(fields))
	came, latest := make(map[string]int64, len(fields)), int64(0)
	for node, field := range fields {
		nonce, at, _ := strings.Cut(field, " ")
		ms, err := strconv.ParseInt(at, 10, 64)
		if n, notNonce := strconv.ParseUint(nonce, 10, 64); notNonce == nil && err == nil {
			probes[node], came[node], latest = n, ms, max(latest, ms)
		}
	}
	var gone []string
	for node, ms := range came {
		if latest-ms > r.probeLife.Milliseconds() {
			gone = append(gone, node)
			delete(probes, node)
		}
	}
	if len(gone) > 0 {
		_ = r.client.HDel(ctx, probesKey, gone...).Err() // else the next reader forgets them
	}
	return probes, nil
}
