package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/cache"
	"listedge/cmd/listedge/node"
	"listedge/internal/changefeed"
	"listedge/internal/remedy"
	"listedge/limiter"
	"listedge/origin/admin"
)

// redisTimeout bounds all checks of Redis.
const redisTimeout = 5 * time.Second

// checkRedis checks the Redis that nodes write to, and puts into says what it knows of the fleet
// that follows the database.
func (r *report) checkRedis(ctx context.Context, url string, followed *changefeed.Followed, says map[string]string) {
	o, _ := node.ParseRedisURL(url) // the flags have been checked
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	client := node.NewRedisClient(o)
	defer client.Close()
	began := time.Now()
	err := client.Ping(ctx).Err()
	fine := fmt.Sprintf("the user has all rights that a node needs, and a PING takes %s with its connection", time.Since(began).Round(time.Microsecond))
	if err == nil {
		err = refusal(ctx, client, followed.Prefix()+"doctor-"+rand.Text())
	}
	if r.judge("redis", admin.Fail, fine, err, node.RedisRemedy(err)); err != nil {
		return
	}
	r.readRedis(ctx, client, followed, says)
	r.checkRedisInfo(client.Info(ctx).Result())
}

// readRedis reports what the nodes have written into Redis: epoch, followed database, versions.
func (r *report) readRedis(ctx context.Context, client redis.UniversalClient, followed *changefeed.Followed, says map[string]string) {
	if followed.Digest() != "" {
		if epoch, err := changefeed.NewRedis(client, followed).Epoch(ctx); err == nil {
			says["log of changes"] = "epoch " + cmp.Or(epoch, "none")
			followed.ObserveEpoch(epoch)
		}
		if other, _ := changefeed.NewClaim(client, followed).Other(ctx); other != "" {
			r.add("fleet", admin.Fail, "the fleet follows "+other+", and --database-url names another database", "see ListedgeWrongDatabase in the runbook")
		}
	}
	if err := followed.OldTimeline(); err != nil {
		r.judge("timeline", admin.Fail, "", err, followed.OldTimelineRemedy())
	}
	var views []view
	entries, _, err := node.ReadRoster(ctx, client, followed.Prefix(), node.RosterSilence)
	if err == nil && len(entries) == 0 {
		r.add("fleet version", admin.OK, "no node runs", "")
	}
	names := map[string]bool{} // one that has just started again has an entry of each of its runs
	for _, e := range entries {
		views = append(views, view{e.Name, map[string]string{"version": versionText(e.NodeState)}})
		names[e.Name] = true
	}
	if err == nil {
		says["size"] = fmt.Sprint(len(names))
	}
	r.compare(views, "version", admin.Warn, "finish the upgrade: docs/UPGRADING.md")
}

// checkRedisInfo judges the version and the memory settings in the answer to INFO.
func (r *report) checkRedisInfo(answer string, err error) {
	if err != nil {
		r.judge("redis version", admin.Warn, "", err, node.RedisRemedy(err))
		return
	}
	info := node.ParseInfo(answer)
	text, old, unbounded := info["redis_version"], error(nil), error(nil)
	var major, minor int
	_, _ = fmt.Sscanf(text, "%d.%d", &major, &minor)
	if 100*major+minor < 602 { // 6.2 has XTRIM MINID
		old = errors.New(text + " is too old")
	}
	if valkey := info["valkey_version"]; valkey != "" {
		text = "Valkey " + valkey + ", as Redis " + text
	}
	if info["maxmemory"] == "0" {
		unbounded = errors.New("not set: pages may take all memory of the machine")
	}
	r.judge("redis version", admin.Fail, text, old, "use Redis 6.2 or later")
	r.judge("redis eviction", admin.Warn, info["maxmemory_policy"], node.EvictionFailure(info), "")
	r.judge("redis maxmemory", admin.Warn, info["maxmemory_human"], unbounded, "set maxmemory")
}

// refusal sends Redis all commands of nodes, with keys that begin with a prefix that no node uses.
// It returns what is refused: for lack of a right, of memory, or by a server that is no master.
func refusal(ctx context.Context, client redis.UniversalClient, prefix string) (refused error) {
	var lacking []string
	for _, command := range slices.Concat(cache.RedisCommands(prefix), limiter.RedisCommands(prefix), changefeed.RedisCommands(prefix)) {
		switch err := client.Do(ctx, command...).Err(); {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		case redis.IsPermissionError(err):
			right := "~listedge:*"
			if _, named, ok := strings.Cut(err.Error(), "run the '"); ok {
				name, _, _ := strings.Cut(named, "'")
				right = "+" + name
			}
			lacking = append(lacking, right)
		default:
			refused = err
		}
	}
	if slices.Sort(lacking); len(lacking) > 0 {
		return remedy.Add(errors.New("the user lacks "+strings.Join(slices.Compact(lacking), " ")), "ACL SETUSER with all rights that docs/SECURITY.md lists")
	}
	return refused
}
