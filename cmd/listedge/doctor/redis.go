package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/limiter"
)

// redisTimeout bounds all checks of Redis.
const redisTimeout = 5 * time.Second

// redisState is what a Redis has of a fleet.
type redisState struct {
	isKnown bool   // which database the fleet follows
	epoch   string // of its log of changes; empty = there is none, or it is not known
	nodes   int64  // that send heartbeats
}

// checkRedis checks the server that nodes write to, and reads what it has of the fleet
// that follows the database; nil if it does not say.
func (r *report) checkRedis(ctx context.Context, o redis.UniversalOptions, followed *changefeed.Followed) *redisState {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	client := node.NewRedisClient(o)
	defer client.Close()
	if err := client.Ping(ctx).Err(); err != nil {
		r.redisUnreachable(err, o)
		return nil
	}
	const pings = 5
	began := time.Now()
	for range pings {
		_ = client.Ping(ctx).Err()
	}
	r.ok("redis", fmt.Sprintf("reachable, a PING takes %s", (time.Since(began)/pings).Round(time.Microsecond)))
	var fleet report
	state := fleet.readRedis(ctx, client, followed)
	own := followed.Prefix() + "doctor-" + rand.Text() // keys that no node uses
	r.checkRights(ctx, client, "redis pages", cache.RedisCommands(own))
	r.checkRights(ctx, client, "redis limits", limiter.RedisCommands(own))
	r.checkRights(ctx, client, "redis changes", changefeed.RedisCommands(own))
	*r = append(*r, fleet...)
	text, err := client.Info(ctx).Result()
	if err != nil {
		r.warn("redis settings", "the user may not run INFO: "+err.Error(), "allow INFO, so that settings can be checked")
		return state
	}
	r.checkRedisInfo(node.ParseInfo(text), o)
	return state
}

// readRedis reads what the nodes have in Redis.
func (r *report) readRedis(ctx context.Context, client redis.UniversalClient, followed *changefeed.Followed) *redisState {
	log, state := changefeed.NewRedis(client, followed), &redisState{isKnown: followed.Digest() != ""}
	var err error
	if identity, known := followed.Identity(); known {
		if state.epoch, err = log.Epoch(ctx); err != nil {
			return nil
		}
		followed.ObserveEpoch(state.epoch)
		if other, err := changefeed.NewClaim(client, followed).Other(ctx); err == nil && other != "" {
			r.fail("redis fleet", fmt.Sprintf("the fleet follows %s, and --database-url names %s", other, identity), node.OtherDatabaseRemedy)
		}
	}
	if old := (*changefeed.TimelineError)(nil); errors.As(followed.OldTimeline(), &old) {
		r.fail("timeline", old.Error(), followed.OldTimelineRemedy())
	}
	if state.nodes, err = limiter.LiveNodes(ctx, client, followed.Prefix()); err != nil {
		return nil
	}
	if entries, err := node.ReadRoster(ctx, client, followed.Prefix()); err == nil { // else a right is missing, which is another finding
		r.checkRoster(entries)
	}
	return state
}

// redisUnreachable says why there is no answer, and what to do.
func (r *report) redisUnreachable(err error, o redis.UniversalOptions) {
	text, do := err.Error(), node.RedisRemedy(err)
	switch {
	case o.MasterName != "" && strings.Contains(text, redis.Nil.Error()):
		text, do = fmt.Sprintf("the Sentinels know no master %q", o.MasterName), "use their name for the master in --redis-url"
	case o.TLSConfig == nil && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)):
		do = "use rediss:// if that port speaks TLS, and check the server"
	case o.TLSConfig != nil && errors.Is(err, context.DeadlineExceeded):
		text, do = "no answer to the TLS handshake: "+text, "use redis:// if that port does not speak TLS, and check the server"
	}
	r.fail("redis", text, do)
}

// checkRedisInfo judges what INFO says.
func (r *report) checkRedisInfo(info map[string]string, o redis.UniversalOptions) {
	version := info["redis_version"]
	switch valkey := info["valkey_version"]; {
	case !since62(version):
		r.fail("redis version", version+" is too old", "use Redis 6.2 or later")
	case valkey != "":
		r.ok("redis version", "Valkey "+valkey+", as Redis "+version)
	default:
		r.ok("redis version", version)
	}
	// Valkey has another name for the mode; both say whether it is a Cluster.
	mode := cmp.Or(info["redis_mode"], info["server_mode"], "standalone")
	if info["cluster_enabled"] == "1" {
		mode = "cluster"
	}
	switch {
	case mode == "cluster" && len(o.Addrs) < 2:
		r.fail("redis mode", "this is a Cluster, and the URL names one address", "name several of its nodes: redis://a:6379,b:6379")
	case mode != "cluster" && len(o.Addrs) > 1 && o.MasterName == "":
		r.fail("redis mode", "several addresses are named, and this is no Cluster", "name one address, or use redis+sentinel://")
	case mode == "sentinel":
		r.fail("redis mode", "this is a Sentinel, which holds no data", "use redis+sentinel://…/master")
	default:
		r.ok("redis mode", mode)
	}
	if info["role"] == "slave" && mode != "cluster" {
		r.fail("redis role", "a replica, which refuses writes", "name the master, or use redis+sentinel://")
	} else {
		r.ok("redis role", "accepts writes")
	}
	if err := node.EvictionFailure(info); err != nil {
		r.warn("maxmemory-policy", err.Error(), "set maxmemory-policy to noeviction")
	} else {
		r.ok("maxmemory-policy", info["maxmemory_policy"])
	}
	if info["maxmemory"] == "0" {
		r.warn("maxmemory", "not set: pages may take all memory of the machine", "set maxmemory")
	} else {
		r.ok("maxmemory", info["maxmemory_human"])
	}
}

// checkRights sends the commands of one use of Redis, and reports what is refused: for
// lack of a right or of memory. keys is the right to the keys of this use.
func (r *report) checkRights(ctx context.Context, client redis.UniversalClient, subject string, commands [][]any) {
	var lacking []string
	var refused error
	for _, command := range commands {
		err := client.Do(ctx, command...).Err()
		switch {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
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
		r.fail(subject, "the user lacks "+strings.Join(lacking, " "), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	case refused != nil:
		r.fail(subject, "refused: "+refused.Error(), node.RedisRemedy(refused))
	default:
		r.ok(subject, "the user has all rights that a node needs")
	}
}

// since62 says whether a server of the version has XTRIM MINID, which keeps the log of
// changes short.
func since62(version string) bool {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 2
}

// checkRoster reports the versions of the nodes that use a Redis.
func (r *report) checkRoster(entries []node.RosterEntry) {
	const subject, do = "redis nodes", "finish the upgrade: docs/UPGRADING.md"
	on := nodesByValue{}
	for _, e := range entries {
		on.add(versionText(e.Version, e.Revision), e.Name)
	}
	parts := on.parts()
	switch text := strings.Join(parts, "; "); {
	case len(parts) == 0:
		r.ok(subject, "none runs")
	case len(parts) > 1:
		r.warn(subject, text, do)
	default:
		r.ok(subject, text)
	}
}
