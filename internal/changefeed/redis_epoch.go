package changefeed

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note("epoch", err) }()
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

// setEpoch compares and sets in one step, because a node may stop anywhere.
// Returns 0; -1: superseded; -2: of an older timeline than the epoch that is returned
// after it.
var setEpoch = redis.NewScript(`
local function parse(epoch)
	local identity, timeline = string.match(epoch, '^([^.]*)%.(%d+)%.[^.]*%.[^.]*%.[^.]*$')
	return identity, tonumber(timeline or 0)
end
local present = redis.pcall('GET', KEYS[1])
if type(present) ~= 'string' then
	present = '' -- absent, or of another type
end
local identity, timeline = parse(present)
local of, to = parse(ARGV[2])
local same = of and of == identity
if same and to < timeline then
	return {-2, present}
end
if present ~= ARGV[1] and present ~= ARGV[2] and not (same and to > timeline) then
	return {-1}
end
redis.call('SET', KEYS[1], ARGV[2])
return {0}`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note("set epoch", err) }()
	if r.followed.Digest() == "" {
		return errUnknown
	}
	answer, err := setEpoch.Run(ctx, r.client, []string{r.followed.EpochKey()}, from, to).Slice()
	if err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	switch answer[0].(int64) {
	case -2:
		present, _ := answer[1].(string)
		return CheckTimeline(present, to)
	case -1:
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
