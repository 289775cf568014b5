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
	oldEpochKey  = keyPrefix + "epoch" // of nodes of version 0.1.0

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
// accepted follower among the followers, by the clock of Redis, and returns how many
// others there are. -1: superseded; -2: of an older timeline than the epoch that
// is returned after it.
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
local now, others = redis.call('TIME'), 0
now = now[1] * 1000 + math.floor(now[2] / 1000)
local known = redis.call('HGETALL', KEYS[2])
for i = 1, #known, 2 do
	if known[i] ~= ARGV[3] then
		if now - tonumber(string.match(known[i + 1], '%d+$') or 0) > tonumber(ARGV[5]) then
			redis.call('HDEL', KEYS[2], known[i])
		else
			others = others + 1
		end
	end
end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4] .. ' ' .. now)
redis.call('PEXPIRE', KEYS[2], ARGV[5])
if others == 0 then
	redis.call('SET', KEYS[3], ARGV[2])
end
return {others}`)

// SetEpoch implements Log.
func (r *Redis) SetEpoch(ctx context.Context, from, to string) (err error) {
	defer func() { err = r.note("set epoch", err) }()
	identity, known := r.followed.Identity()
	if !known {
		return errUnknown
	}
	digest := identity.Digest()
	answer, err := setEpoch.Run(ctx, r.client, []string{EpochKey(digest), followersKey, oldEpochKey}, from, to, digest, identity.String(), followerLife.Milliseconds()).Slice()
	if err != nil {
		return fmt.Errorf("write the epoch: %w", err)
	}
	switch others := answer[0].(int64); others {
	case -2:
		present, _ := answer[1].(string)
		return CheckTimeline(present, to)
	case -1:
		return ErrSuperseded
	default:
		r.shared.Store(others > 0)
	}
	return nil
}

// Followers are the identities that have a follower at the moment, by their digests. A
// follower is gone if others have been seen much later.
func (r *Redis) Followers(ctx context.Context) (followers map[string]string, err error) {
	defer func() { err = r.note("followers", err) }()
	fields, err := r.client.HGetAll(ctx, followersKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read the followers: %w", err)
	}
	return recent(fields, followerLife), nil
}

// recent reads fields of "<text> <milliseconds>", but not those that were written more
// than life before the latest.
func recent(fields map[string]string, life time.Duration) (texts map[string]string) {
	texts = make(map[string]string, len(fields))
	came, latest := make(map[string]int64, len(fields)), int64(0)
	for name, field := range fields {
		blank := strings.LastIndexByte(field, ' ')
		if ms, err := strconv.ParseInt(field[blank+1:], 10, 64); blank >= 0 && err == nil {
			texts[name], came[name], latest = field[:blank], ms, max(latest, ms)
		}
	}
	maps.DeleteFunc(texts, func(name, _ string) bool { return latest-came[name] > life.Milliseconds() })
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
		{"evalsha", setEpoch.Hash(), 3, epoch, followers, epoch, "x", "x", "x", "x", 1000},
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

// Nodes of version 0.1.0 prove freshness by probes: each writes a nonce into a hash
// every 50 ms, and has a proof for that moment once a heartbeat names the nonce. For
// them the follower names the nonces that it finds. To be removed in the version
// after the next.

const (
	oldProbesKey = keyPrefix + "probes"
	// probeLife is how long the nonce of a node that is gone is published.
	probeLife = time.Minute
)

// Probes returns the latest nonce of each old node that probed recently.
func (r *Redis) Probes(ctx context.Context) (probes map[string]uint64, err error) {
	defer func() { err = r.note("probes", err) }()
	if r.shared.Load() { // they may belong to another database
		return nil, nil
	}
	fields, err := r.client.HGetAll(ctx, oldProbesKey).Result()
	if err != nil {
		return nil, fmt.Errorf("read probes: %w", err)
	}
	probes = map[string]uint64{}
	for node, text := range recent(fields, probeLife) {
		if nonce, err := strconv.ParseUint(text, 10, 64); err == nil {
			probes[node] = nonce
		}
	}
	return probes, nil
}
