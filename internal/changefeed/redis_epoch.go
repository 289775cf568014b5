package changefeed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	followersKey = keyPrefix + "followers"

	// followerLife is how long a follower counts as alive after it last set its
	// epoch, which it does every second.
	followerLife = 10 * time.Second
)

// Epoch implements Log.
func (r *Redis) Epoch(ctx context.Context) (epoch string, err error) {
	defer func() { err = r.note("epoch", err) }()
	digest := r.followed.Digest()
	if digest == "" {
		return "", errUnknown
	}
	epoch, err = r.client.Get(ctx, EpochKey(digest)).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the epoch: %w", err)
	}
	return epoch, nil
}

// setEpoch compares and sets in one step, because a node may stop anywhere. It enters an
// accepted follower among the followers, by the clock of Redis. These are read only to
// warn, so a damaged list is made anew, and a failure is ignored.
// Returns 0; -1: superseded; -2: of an older timeline than the epoch that is returned
// after it.
var setEpoch = redis.NewScript(`
local function parse(epoch)
	local identity, timeline = string.match(epoch, '^([^.]*)%.(%d+)%.[^.]*%.[^.]*%.[^.]*$')
	return identity, tonumber(timeline or 0)
end
local present = redis.call('GET', KEYS[1]) or ''
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
local now = redis.call('TIME')
local listed = redis.pcall('HSET', KEYS[2], ARGV[3], ARGV[4] .. ' ' .. now[1] * 1000 + math.floor(now[2] / 1000))
if type(listed) == 'table' then
	redis.pcall('DEL', KEYS[2])
end
redis.pcall('PEXPIRE', KEYS[2], ARGV[5])
return {0}`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note("set epoch", err) }()
	identity, known := r.followed.Identity()
	if !known {
		return errUnknown
	}
	digest := identity.Digest()
	answer, err := setEpoch.Run(ctx, r.client, []string{EpochKey(digest), followersKey}, from, to, digest, identity.String(), followerLife.Milliseconds()).Slice()
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

// Followers returns the identities that have a follower at the moment, by their digests. It
// leaves out a follower that last set its epoch more than followerLife before the latest one.
func (r *Redis) Followers(ctx context.Context) (followers map[string]string, err error) {
	defer func() { err = r.note("followers", err) }()
	fields, err := r.client.HGetAll(ctx, followersKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the followers: %w", err)
	}
	return recent(fields, followerLife), nil
}

// recent reads fields of "<text> <milliseconds>". It leaves out those that were written more
// than life before the latest.
func recent(fields map[string]string, life time.Duration) (texts map[string]string) {
	texts = make(map[string]string, len(fields))
	writtenAt, latest := make(map[string]int64, len(fields)), int64(0)
	for name, field := range fields {
		blank := strings.LastIndexByte(field, ' ')
		if ms, err := strconv.ParseInt(field[blank+1:], 10, 64); blank >= 0 && err == nil {
			texts[name], writtenAt[name], latest = field[:blank], ms, max(latest, ms)
		}
	}
	maps.DeleteFunc(texts, func(name, _ string) bool { return latest-writtenAt[name] > life.Milliseconds() })
	return texts
}

// RedisCommands are the commands that a node uses for the log of changes, also within
// scripts, on keys of their own: to check the rights of a user.
func RedisCommands(own string) [][]any {
	log, hash, epoch, followers := logKey+own, logKey+own+":hash", logKey+own+":epoch", logKey+own+":followers"
	return [][]any{
		{"xadd", log, "1-1", entryField, "x"},
		{"xread", "count", 1, "streams", log, "0"},
		{"xinfo", "stream", log},
		{"xtrim", log, "minid", "1-1"},
		{"set", epoch, "x", "px", 1000},
		{"get", epoch},
		{"eval", "return redis.call('GET', KEYS[1])", 1, epoch},
		{"evalsha", setEpoch.Hash(), 2, epoch, followers, "x", "x", "x", "x", 1000},
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
		{"del", followers},
	}
}
