package changefeed

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note(err) }()
	if r.followed.Digest() == "" {
		return "", errUnknown
	}
	epoch, err = r.client.Get(ctx, r.followed.EpochKey()).Result()
	if errors.Is(err, redis.Nil) || isDamaged(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// isDamaged reports whether Redis has a value of another type than ours at a key. It is
// taken for an absent one, and written anew.
func isDamaged(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }

// setEpoch compares and sets in one step, because a node may stop anywhere. It returns
// whether the epoch is set.
var setEpoch = redis.NewScript(`
local present = redis.pcall('GET', KEYS[1])
if type(present) ~= 'string' then
	present = '' -- absent, or of another type
end
if present ~= ARGV[1] and present ~= ARGV[2] then
	return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note(err) }()
	if r.followed.Digest() == "" {
		return errUnknown
	}
	set, err := setEpoch.Run(ctx, r.client, []string{r.followed.EpochKey()}, from, to).Bool()
	if err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	if !set {
		return ErrSuperseded
	}
	return nil
}

// RedisCommands are the commands that a node uses for the log of changes, also within
// scripts, on keys that begin with own and have the hash tag of the log: to check the rights of
// a user.
func RedisCommands(own string) [][]any {
	log, hash, epoch := own+":{changes}:log", own+":{changes}:hash", own+":{changes}:epoch"
	return [][]any{
		{"xadd", log, "1-1", entryField, "x"},
		{"xread", "count", 1, "streams", log, "0"},
		{"xinfo", "stream", log},
		{"xtrim", log, "minid", "1-1"},
		{"set", epoch, "x", "px", 1000},
		{"get", epoch},
		{"eval", "return redis.call('GET', KEYS[1])", 1, epoch},
		{"evalsha", setEpoch.Hash(), 1, epoch, "x", "x"},
		{"evalsha", appendEntries.Hash(), 2, log, epoch, own, "", ""},
		{"info", "server"},
		{"time"},
		{"hset", hash, "x", "y"},
		{"pexpire", hash, 1000},
		{"hgetall", hash},
		{"hdel", hash, "x"},
		{"del", log},
		{"del", hash},
		{"del", epoch},
	}
}
