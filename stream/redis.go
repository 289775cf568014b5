package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is the log of a fleet. All its keys share a hash tag, so that in a
// Cluster they are on one node; none of them may be evicted.
type Redis struct{ client redis.UniversalClient }

const (
	epochKey   = "{listedge}:epoch"
	probesKey  = "{listedge}:probes"
	logKey     = "{listedge}:log:"
	entryField = "e"

	// logLife outlasts the log's last entry: what an epoch leaves behind goes
	// away by itself.
	logLife = time.Hour
	// probeLife is how long a node that is gone is still echoed.
	probeLife = time.Minute
)

// NewRedis uses the client, which should be one of its own: reading blocks.
func NewRedis(client redis.UniversalClient) *Redis { return &Redis{client} }

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (string, error) {
	epoch, err := r.client.Get(ctx, epochKey).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, epoch string) error {
	if err := r.client.Set(ctx, epochKey, epoch, 0).Err(); err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	return nil
}

// Append implements Log: XADD refuses an ID that is not above the last.
func (r *Redis) Append(ctx context.Context, epoch string, e Entry) error {
	body, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode entry %s: %w", e.Position, err)
	}
	pipe := r.client.Pipeline()
	added := pipe.XAdd(ctx, &redis.XAddArgs{Stream: logKey + epoch, ID: e.Position.String(), Values: []any{entryField, body}})
	pipe.Expire(ctx, logKey+epoch, logLife)
	_, _ = pipe.Exec(ctx) // the first command's result is the one that counts
	if err := added.Err(); err != nil {
		if strings.Contains(err.Error(), "equal or smaller") {
			return ErrFenced
		}
		return fmt.Errorf("append entry %s: %w", e.Position, err)
	}
	return nil
}

// Last implements Log. A trimmed stream still knows its last ID.
func (r *Redis) Last(ctx context.Context, epoch string) (Position, error) {
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
func (r *Redis) Read(ctx context.Context, epoch string, after Position, wait time.Duration) ([]Entry, error) {
	streams, err := r.client.XRead(ctx, &redis.XReadArgs{
		Streams: []string{logKey + epoch, after.String()}, Count: readBatch, Block: max(wait, time.Millisecond),
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	var entries []Entry
	for _, s := range streams {
		for _, m := range s.Messages {
			var e Entry
			if e.Position, err = ParsePosition(m.ID); err != nil {
				return nil, err
			}
			body, _ := m.Values[entryField].(string)
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				return nil, fmt.Errorf("decode entry %s: %w", m.ID, err)
			}
			entries = append(entries, e)
		}
	}
	return entries, nil
}

// Trim implements Log.
func (r *Redis) Trim(ctx context.Context, epoch string, before Position) error {
	if err := r.client.XTrimMinID(ctx, logKey+epoch, before.String()).Err(); err != nil {
		return fmt.Errorf("trim the log: %w", err)
	}
	return nil
}

// Probe implements Log. Redis 7 cannot expire a field of a hash, so each node
// has a sorted set's member whose score is its nonce; one that is gone stays
// until probeLife after the last probe of all.
func (r *Redis) Probe(ctx context.Context, node string, nonce uint64) error {
	pipe := r.client.Pipeline()
	pipe.HSet(ctx, probesKey, node, nonce)
	pipe.Expire(ctx, probesKey, probeLife)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// Probes implements Log.
func (r *Redis) Probes(ctx context.Context) (map[string]uint64, error) {
	fields, err := r.client.HGetAll(ctx, probesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read probes: %w", err)
	}
	probes := make(map[string]uint64, len(fields))
	for node, nonce := range fields {
		if n, err := strconv.ParseUint(nonce, 10, 64); err == nil {
			probes[node] = n
		}
	}
	return probes, nil
}
