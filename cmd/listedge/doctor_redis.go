package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/internal/changefeed"
	"listedge/limiter"
	"listedge/origin"
)

// redisTimeout bounds the whole look at Redis.
const redisTimeout = 5 * time.Second

// redisSeen is what a Redis holds of a fleet.
type redisSeen struct {
	isKnown bool   // which database the fleet follows
	epoch   string // of its log of changes; empty = there is none, or it is not known
	nodes   int64  // that beat in it
}

// seeRedis looks at what the nodes keep in the Redis; nil if it does not say.
func seeRedis(ctx context.Context, client redis.UniversalClient, followed *changefeed.Followed) (seen *redisSeen, findings []origin.Finding) {
	log, seen := changefeed.NewRedis(client, followed), &redisSeen{isKnown: followed.Digest() != ""}
	followers, err := log.Followers(ctx)
	if err != nil {
		return nil, nil
	}
	if seen.isKnown {
		if seen.epoch, err = log.Epoch(ctx); err != nil {
			return nil, nil
		}
		followed.See(seen.epoch)
		if text := otherFleets(followers, followed.Digest()); text != "" {
			findings = append(findings, origin.Finding{Subject: "redis fleets", Level: origin.Warn, Text: text, Do: otherFleetsDo})
		}
	}
	if old := (*changefeed.TimelineError)(nil); errors.As(followed.OldTimeline(), &old) {
		findings = append(findings, origin.Finding{Subject: "timeline", Level: origin.Fail, Text: old.Error(), Do: old.Do()})
	}
	if seen.nodes, err = limiter.LiveNodes(ctx, client); err != nil {
		return nil, findings
	}
	return seen, findings
}

// diagnoseRedis looks at the server that would be written to, and at what is in
// it of the fleet that follows the database.
func diagnoseRedis(ctx context.Context, o redis.UniversalOptions, followed *changefeed.Followed) (findings []origin.Finding, seen *redisSeen) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	client := newRedisClient(o)
	defer client.Close()
	say := func(level origin.Level, subject, text, do string) {
		findings = append(findings, origin.Finding{Subject: subject, Level: level, Text: text, Do: do})
	}
	if err := client.Ping(ctx).Err(); err != nil {
		return []origin.Finding{judgeUnreachable(err, o)}, nil
	}
	const pings = 5
	began := time.Now()
	for range pings {
		_ = client.Ping(ctx).Err()
	}
	say(origin.OK, "redis", fmt.Sprintf("reachable, a PING takes %s", (time.Since(began)/pings).Round(time.Microsecond)), "")
	seen, found := seeRedis(ctx, client, followed)
	findings = append(append(findings, judgeRights(ctx, client)...), found...)
	text, err := client.Info(ctx).Result()
	if err != nil {
		say(origin.Warn, "redis settings", "the user may not run INFO: "+err.Error(), "allow INFO, to have them looked at")
		return findings, seen
	}
	return append(findings, judgeRedis(parseInfo(text), o)...), seen
}

// judgeUnreachable is why there is no answer, and what to do about it.
func judgeUnreachable(err error, o redis.UniversalOptions) origin.Finding {
	f := origin.Finding{Subject: "redis", Level: origin.Fail, Text: err.Error(), Do: "check --redis-url, its password and the server"}
	switch {
	case o.MasterName != "" && strings.Contains(err.Error(), redis.Nil.Error()):
		f.Text, f.Do = fmt.Sprintf("the Sentinels know no master %q", o.MasterName), "name it in --redis-url as they do"
	case o.TLSConfig == nil && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)):
		f.Do = "use rediss:// if that port speaks TLS, and check the server"
	case o.TLSConfig != nil && errors.Is(err, context.DeadlineExceeded):
		f.Text, f.Do = "no answer to the TLS handshake: "+f.Text, "use redis:// if that port does not speak TLS, and check the server"
	}
	return f
}

// judgeRedis is what INFO means.
func judgeRedis(info map[string]string, o redis.UniversalOptions) (findings []origin.Finding) {
	say := func(level origin.Level, subject, text, do string) {
		findings = append(findings, origin.Finding{Subject: subject, Level: level, Text: text, Do: do})
	}
	version := info["redis_version"]
	switch valkey := info["valkey_version"]; {
	case !since62(version):
		say(origin.Fail, "redis version", version+" is too old", "use Redis 6.2 or later")
	case valkey != "":
		say(origin.OK, "redis version", "Valkey "+valkey+", as Redis "+version, "")
	default:
		say(origin.OK, "redis version", version, "")
	}
	mode := redisMode(info)
	switch {
	case mode == "cluster" && len(o.Addrs) < 2:
		say(origin.Fail, "redis mode", "this is a Cluster, and the URL names one address", "name several of its nodes: redis://a:6379,b:6379")
	case mode != "cluster" && len(o.Addrs) > 1 && o.MasterName == "":
		say(origin.Fail, "redis mode", "several addresses are named, and this is no Cluster", "name one address, or use redis+sentinel://")
	case mode == "sentinel":
		say(origin.Fail, "redis mode", "this is a Sentinel, which holds no data", "use redis+sentinel://…/master")
	default:
		say(origin.OK, "redis mode", mode, "")
	}
	if info["role"] == "slave" && mode != "cluster" {
		say(origin.Fail, "redis role", "a replica, which cannot be written to", "name the master, or use redis+sentinel://")
	} else {
		say(origin.OK, "redis role", "can be written to", "")
	}
	switch policy := info["maxmemory_policy"]; {
	case strings.HasPrefix(policy, "volatile-"):
		say(origin.Warn, "maxmemory-policy", policy+": buckets and the log of changes expire too, and so may be evicted", "give Redis so much memory that nothing is evicted")
	case policy != "noeviction" && policy != "":
		say(origin.Warn, "maxmemory-policy", policy+": buckets and the log of changes may be evicted", "set maxmemory-policy to noeviction")
	default:
		say(origin.OK, "maxmemory-policy", policy, "")
	}
	if info["maxmemory"] == "0" {
		say(origin.Warn, "maxmemory", "not set: pages may take all memory of the machine", "set maxmemory")
	} else {
		say(origin.OK, "maxmemory", info["maxmemory_human"], "")
	}
	return findings
}

// redisMode is standalone, sentinel or cluster. Valkey names it otherwise, and
// both say apart whether it is a Cluster.
func redisMode(info map[string]string) string {
	if info["cluster_enabled"] == "1" {
		return "cluster"
	}
	return cmp.Or(info["redis_mode"], info["server_mode"], "standalone")
}

// since62 says whether a server of the version knows XTRIM MINID, by which the
// log of changes is kept short.
func since62(version string) bool {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, _ := strconv.Atoi(first)
	minor, _ := strconv.Atoi(second)
	return major > 6 || major == 6 && minor >= 2
}

// parseInfo reads the name:value lines of INFO.
func parseInfo(text string) map[string]string {
	info := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			info[name] = value
		}
	}
	return info
}

// judgeRights does what a node does, on keys of its own, and finds what Redis
// refuses: for want of a right, of memory, or whatever it says.
func judgeRights(ctx context.Context, client redis.UniversalClient) (findings []origin.Finding) {
	own := "doctor-" + rand.Text()
	for _, part := range []struct {
		name, keys string
		commands   [][]any
	}{
		{"pages", "~page:* ~fill:*", cache.RedisCommands(own)},
		{"limits", "~rl:*", limiter.RedisCommands(own)},
		{"changes", "~{listedge}:*", changefeed.RedisCommands(own)},
	} {
		findings = append(findings, judgePart(ctx, client, "redis "+part.name, part.keys, part.commands))
	}
	return findings
}

// judgePart sends the commands of one part. keys is the right to its keys.
func judgePart(ctx context.Context, client redis.UniversalClient, subject, keys string, commands [][]any) origin.Finding {
	var lacking []string
	var refused error
	for _, command := range commands {
		err := send(ctx, client, command)
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := keys
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			if !slices.Contains(lacking, right) {
				lacking = append(lacking, right)
			}
		case refused == nil:
			refused = err
		}
	}
	switch {
	case len(lacking) > 0:
		return origin.Finding{Subject: subject, Level: origin.Fail, Text: "the user lacks " + strings.Join(lacking, " "),
			Do: "ACL SETUSER with all rights that docs/SECURITY.md lists"}
	case refused != nil:
		return origin.Finding{Subject: subject, Level: origin.Fail, Text: "refused: " + refused.Error(), Do: "mend what Redis says; give it memory if it is full"}
	}
	return origin.Finding{Subject: subject, Level: origin.OK, Text: "all that a node does is allowed"}
}

// send sends one command, or those of a transaction.
func send(ctx context.Context, client redis.UniversalClient, command []any) error {
	if command[0] != "multi" {
		return client.Do(ctx, command...).Err()
	}
	_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return pipe.Do(ctx, command[1:]...).Err() })
	return err
}
